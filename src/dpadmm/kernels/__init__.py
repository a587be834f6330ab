"""One pass over the rows: scores, slopes, clipping and the gradient, for a whole cohort at once.

The work is cut into *blocks*: consecutive rows of one agent. How an agent is cut depends on its own rows
only, and a block's sum and the sum of its blocks are always taken in the same order. So the result is the
same to the last bit for any number of threads, and for an agent alone as for the same agent in a cohort.

Within a block, a few rows at a time (they stay in the first-level cache) go through: scores, slopes by the
loss's own compiled formula, clipping to c1, and the sum.
``reference_gradient`` is its plain NumPy twin, which also serves where numba is not installed: a site needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpadmm.kernels import plain
from dpadmm.losses.base import Loss, RowLoop
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import layout, products
from dpadmm.matrices.memmap import portions

if TYPE_CHECKING:
    from dpadmm.queries.problem import Rows

ENTRIES_PER_BLOCK = 2**17
"""An agent with more feature entries than this is cut into several blocks."""

MIN_COMPILED_ENTRIES = 10**6
"""Cohorts with fewer stored entries are summed in NumPy, in at most about 10 ms."""

MAX_NUMPY_ENTRIES = 2**23
"""``guarded_sums`` sums agents of up to this many feature entries, ``m·d``, without the compiler."""

compilation_listeners: list[Callable[[], object]] = []
"""Called when the compiler starts; compiled functions in its cache are loaded without it."""

# --- cutting -----------------------------------------------------------------------------------------------


Blocks = tuple[Integers, Integers, Integers]
"""Agent, first row and last row + 1 of every block."""


def cut_blocks(offsets: Integers, entries: Integers, n_features: int, size: int | None = None) -> Blocks:
    """Cut every agent's rows into blocks of about equal work: (agent, start, stop) of each block.

    Parameters
    ----------
    offsets : (n_agents + 1,)
        Agent i owns rows ``offsets[i]:offsets[i+1]``.
    entries : (n_agents,)
        Stored feature entries of every agent.
    n_features : int
        A block is never smaller than 16 gradients, so that the partial sums stay small compared with the rows.
    size : int, optional
        Entries of a block.

    Examples
    --------
    >>> agent, start, stop = cut_blocks(np.array([0, 10, 30]), np.array([1000, 400_000]), 100)
    >>> agent.tolist(), start.tolist(), stop.tolist()
    ([0, 1, 1, 1, 1], [0, 10, 15, 20, 25], [10, 15, 20, 25, 30])
    """
    size, rows = max(size or ENTRIES_PER_BLOCK, 16 * n_features), np.diff(offsets)
    counts = np.maximum(np.minimum(-(-entries // size), rows), 1)
    agent = np.repeat(np.arange(len(rows)), counts)
    place, first, n, of = np.arange(len(agent)), offsets[:-1][agent], rows[agent], counts[agent]
    place -= np.repeat(np.cumsum(counts) - counts, counts)  # of a block among its agent's
    return agent, first + n * place // of, first + n * (place + 1) // of


# --- the functions others call -----------------------------------------------------------------------------


def gradient(
    rows: Rows,
    points: Floats,
    loss: Loss,
    active: Integers | None = None,
    *,
    bound: float | None = None,
) -> Floats:
    """Every agent's mean row gradient at its own point: (n, d, p) -> (n, d, p).

    ``g_i = (1/m_i) Σ_j ω_ij·clip(ℓ'(a_ij, b_ij, points_i), bound)``, where the bound is the loss's c1 unless the
    caller, who then may not release the result, gives another; ω is the row's weight, from 0 to 1, and 1 where rows
    have none. Agents not in ``active`` get zeros.
    """
    total = gradient_sums(rows, points, loss, active, bound=bound)
    total /= np.maximum(rows.n_rows, 1)[:, None, None]
    return total


def gradient_sums(
    rows: Rows, points: Floats, loss: Loss, active: Integers | None = None, *, bound: float | None = None
) -> Floats:
    """The same without the division by m_i."""
    bound = loss.lipschitz if bound is None else bound
    if is_small(rows):
        return plain.cohort_sums(rows, points, loss, active, bound)
    blocks = rows.blocks
    if active is not None:
        chosen = np.isin(blocks[0], active)
        blocks = (blocks[0][chosen], blocks[1][chosen], blocks[2][chosen])
    sums = _block_sums(rows, blocks, points, loss, bound, rows.row_weights)
    if sums is None:
        return plain.agent_sums(rows, points, loss, active, bound)
    if active is None and len(sums) == rows.n_agents:
        total = sums
    else:
        total = np.zeros((rows.n_agents, *sums.shape[1:]))
        if len(sums):
            first_blocks = np.flatnonzero(np.diff(blocks[0], prepend=-1))
            total[blocks[0][first_blocks]] = np.add.reduceat(sums, first_blocks, axis=0)
    return total


def weighted_gradient(rows: Rows, point: Floats, loss: Loss, weights: Floats, *, bound: float) -> Floats:
    """``Σ_i (weights_i/m_i) Σ_j ω_ij·clip(ℓ'(a_ij, b_ij, point), bound)``: (d, p) and (n,) -> (d, p).

    One pass whose cost does not depend on how many agents there are. It is the weighted sum of what ``gradient``
    gives, but for rounding: its sums are taken in another order.
    """
    each = weights / np.maximum(rows.n_rows, 1)
    alike = bool(np.all(each == each[0]))
    factors = rows.row_weights
    if not alike:
        factors = np.repeat(each, rows.n_rows) * (1.0 if factors is None else factors)
    if is_small(rows):
        factors = np.ones(len(rows.labels)) if factors is None else factors
        return plain.weighted_cohort_sum(rows, point, loss, factors, bound) * (each[0] if alike else 1.0)
    sums = _block_sums(rows, rows.even_blocks, point[None], loss, bound, factors)
    if sums is None:
        points = np.broadcast_to(point, (rows.n_agents, *point.shape))
        return np.asarray(np.tensordot(weights, reference_gradient(rows, points, loss, bound=bound), 1))
    return np.asarray(sums.sum(axis=0) * (each[0] if alike else 1.0))


def _block_sums(
    rows: Rows, blocks: Blocks, points: Floats, loss: Loss, bound: float, factors: Floats | None = None
) -> Floats | None:
    """Sums of clipped gradients over the rows of every block, times the rows' factors if any: (blocks, d, p).

    None where there is no compiler, or the loss's formula cannot be compiled.
    """
    if not can_compile():
        return None
    from dpadmm.kernels import passes as compiled

    row_loop = loss.formula_of_rows if isinstance(loss, RowLoop) else None
    slopes_of = compiled.compiled_slopes(row_loop or loss.formula, row_loop is not None)
    if slopes_of is None:
        return None
    if not (points.flags.c_contiguous and points.flags.writeable and points.dtype == np.float64):
        points = np.array(points, np.float64, order="C")  # for other arrays all would be compiled again
    sums = np.empty((len(blocks[0]), *points.shape[1:]))
    parameters = np.array(loss.parameters, dtype=float) if loss.parameters else _NOTHING
    about = (rows.labels, rows.norms, _NOTHING if factors is None else factors, bound, slopes_of.address, parameters)
    kind, arrays = layout(rows.features)
    n_threads = compiled.numba.get_num_threads()
    for some, part in _portions(rows, blocks, sums):
        compiled.GRADIENTS[kind](*arrays, rows.order, about, some, n_threads, points, part)
    return sums


def scores(rows: Rows, points: Floats) -> Floats:
    """``a_ijᵀ points_i`` of every row, in the cohort's order: (n, d, p) -> (rows, p)."""
    if is_small(rows):
        return plain.cohort_scores(rows, points)
    if not can_compile():
        own = zip(rows.offsets[:-1], rows.offsets[1:], points, strict=True)
        return np.concatenate([products(rows.features[rows.order[a:b]], point) for a, b, point in own])
    from dpadmm.kernels import passes as compiled

    blocks = rows.blocks
    if points.strides[0] == 0:  # one point for all
        points, blocks = points[:1], rows.even_blocks
    weights = _by_output(points)
    out = np.empty((weights.shape[1], len(rows.labels)))
    kind, arrays = layout(rows.features)
    for some, _ in _portions(rows, blocks, blocks[0]):
        compiled.SCORES[kind](*arrays, rows.order, some, weights, out)
    return np.ascontiguousarray(out.T)


def is_small(rows: Rows) -> bool:
    """Whether NumPy sums these rows. The first use of a compiled kernel takes about ten seconds."""
    return rows.n_entries < MIN_COMPILED_ENTRIES and not rows.in_file


def can_compile() -> bool:
    """Whether the compiler is installed. A site can do without it."""
    return find_spec("numba") is not None


def _by_output(points: Floats) -> Floats:
    """(n, d, p) -> (n, p, d), writable: for arrays that cannot be written to, all would be compiled again."""
    n, d, p = points.shape
    if p == 1 and points.flags.c_contiguous and points.flags.writeable:
        return points.reshape(n, p, d)
    return np.array(points.transpose(0, 2, 1), order="C")


_NOTHING = np.empty(0)


def _portions(rows: Rows, blocks: Blocks, of_blocks: NDArray[Any]) -> Iterator[tuple[Blocks, NDArray[Any]]]:
    """Blocks to work on at a time, and what belongs to them."""
    if not rows.in_file:
        yield blocks, of_blocks
        return
    row_bytes = sum(each.nbytes for each in layout(rows.features)[1]) / max(1, rows.features.shape[0])
    for part in portions(rows.features, (blocks[2] - blocks[1]) * row_bytes):
        yield (blocks[0][part], blocks[1][part], blocks[2][part]), of_blocks[part]


def guarded_sums(
    rows: Rows, points: Floats, loss: Loss, active: Integers | None = None, *, bound: float | Floats
) -> Floats:
    """``Σ_j ω_ij·clip(ℓ'(a_ij, b_ij, points_i), bound_i)`` of every agent, (n, d, p): what exact noise is added to.

    Small agents, by ``m_i·d``, which is public, are summed in plain NumPy: it takes milliseconds, and a site
    that serves no other needs no compiler. An agent alone and in a cohort has the same sum, to the last bit.
    """
    agents = np.arange(rows.n_agents) if active is None else active
    small = rows.n_rows[agents] * rows.n_features <= MAX_NUMPY_ENTRIES
    out = np.zeros(points.shape)
    bounds = np.broadcast_to(bound, rows.n_agents)
    for each in np.unique(bounds[agents[~small]]):
        alike = agents[~small & (bounds[agents] == each)]
        means = gradient(rows, points, loss, alike, bound=float(each))
        out[alike] = means[alike] * rows.n_rows[alike, None, None]
    for i in agents[small]:
        out[i] = plain.agent_sum(rows, int(i), points[i], loss, float(bounds[i]))
    return out


def reference_gradient(
    rows: Rows,
    points: Floats,
    loss: Loss,
    active: Integers | None = None,
    *,
    bound: float | None = None,
) -> Floats:
    """The same as ``gradient`` in plain NumPy."""
    bound = loss.lipschitz if bound is None else bound
    return plain.agent_sums(rows, points, loss, active, bound) / np.maximum(rows.n_rows, 1)[:, None, None]
