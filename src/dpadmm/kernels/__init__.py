"""Sums over rows for a cohort: scores, slopes, clipped gradients.

The rows of an agent are split into *blocks* of consecutive rows. The blocks of an agent depend on its own rows only,
and all sums have a fixed order. The result therefore has the same bits for any number of threads, and for an agent
alone or in a cohort.

Compiled code processes a block in batches that fit into the cache: scores, slopes by the compiled formula of the loss,
clipping to c1, and the sum. Small cohorts, and installations without numba, use NumPy (``plain.py``).
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
"""Feature entries of an agent above which its rows are split into several blocks."""

MIN_COMPILED_ENTRIES = 10**6
"""Stored entries of a cohort below which NumPy is used. It takes at most about 10 ms."""

MAX_NUMPY_ENTRIES = 2**23
"""Feature entries ``m·d`` of an agent up to which ``guarded_sums`` uses NumPy."""

compilation_listeners: list[Callable[[], object]] = []
"""Functions to call when the compiler starts. Functions in its cache need no compilation."""

Blocks = tuple[Integers, Integers, Integers]
"""Agent, first row and last row + 1 of every block."""


def cut_blocks(offsets: Integers, entries: Integers, n_features: int, size: int | None = None) -> Blocks:
    """Return blocks of about equal work: agent, first row and last row + 1 of each block.

    Parameters
    ----------
    offsets : (n_agents + 1,)
        Agent i owns rows ``offsets[i]:offsets[i+1]``.
    entries : (n_agents,)
        Stored feature entries of every agent.
    n_features : int
        A block has at least as many entries as 16 gradients, so that the partial sums need little memory.
    size : int, optional
        Entries of a block. Default: ``ENTRIES_PER_BLOCK``.

    Examples
    --------
    >>> agent, start, stop = cut_blocks(np.array([0, 10, 30]), np.array([1000, 400_000]), 100)
    >>> agent.tolist(), start.tolist(), stop.tolist()
    ([0, 1, 1, 1, 1], [0, 10, 15, 20, 25], [10, 15, 20, 25, 30])
    """
    size, rows = max(size or ENTRIES_PER_BLOCK, 16 * n_features), np.diff(offsets)
    counts = np.maximum(np.minimum(-(-entries // size), rows), 1)
    agent = np.repeat(np.arange(len(rows)), counts)
    first, n, n_blocks = offsets[:-1][agent], rows[agent], counts[agent]
    position = np.arange(len(agent)) - np.repeat(np.cumsum(counts) - counts, counts)  # among the agent's blocks
    return agent, first + n * position // n_blocks, first + n * (position + 1) // n_blocks


def gradient(
    rows: Rows,
    points: Floats,
    loss: Loss,
    active: Integers | None = None,
    *,
    bound: float | None = None,
) -> Floats:
    """Return the mean clipped gradient of every agent at its own point: (n, d, p) -> (n, d, p).

    ``g_i = (1/m_i) Σ_j ω_ij·clip(ℓ'(a_ij, b_ij, points_i), bound)``. The default bound is c1 of the loss; results with
    another bound must not be released. ω_ij is the weight of the row, 0 to 1. Agents not in ``active`` get zeros.
    """
    total = gradient_sums(rows, points, loss, active, bound=bound)
    total /= np.maximum(rows.n_rows, 1)[:, None, None]
    return total


def gradient_sums(
    rows: Rows, points: Floats, loss: Loss, active: Integers | None = None, *, bound: float | None = None
) -> Floats:
    """Return the sums of :func:`gradient`, without the division by m_i."""
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
    """Return ``Σ_i (weights_i/m_i) Σ_j ω_ij·clip(ℓ'(a_ij, b_ij, point), bound)``: (d, p) and (n,) -> (d, p).

    The cost does not depend on the number of agents. The result is the weighted sum of :func:`gradient` up to
    rounding, because the sums have another order.
    """
    by_agent = weights / np.maximum(rows.n_rows, 1)
    is_uniform = bool(np.all(by_agent == by_agent[0]))
    factors = rows.row_weights
    if not is_uniform:
        factors = np.repeat(by_agent, rows.n_rows) * (1.0 if factors is None else factors)
    if is_small(rows):
        factors = np.ones(len(rows.labels)) if factors is None else factors
        return plain.weighted_cohort_sum(rows, point, loss, factors, bound) * (by_agent[0] if is_uniform else 1.0)
    sums = _block_sums(rows, rows.even_blocks, point[None], loss, bound, factors)
    if sums is None:
        points = np.broadcast_to(point, (rows.n_agents, *point.shape))
        return np.asarray(np.tensordot(weights, reference_gradient(rows, points, loss, bound=bound), 1))
    return np.asarray(sums.sum(axis=0) * (by_agent[0] if is_uniform else 1.0))


def _block_sums(
    rows: Rows, blocks: Blocks, points: Floats, loss: Loss, bound: float, factors: Floats | None = None
) -> Floats | None:
    """Return the sums of clipped gradients of every block, times the factors of the rows if any: (blocks, d, p).

    None if the compiler is missing or cannot compile the formula of the loss.
    """
    if not can_compile():
        return None
    from dpadmm.kernels import passes as compiled

    row_loop = loss.formula_of_rows if isinstance(loss, RowLoop) else None
    slopes_of = compiled.compiled_slopes(row_loop or loss.formula, row_loop is not None)
    if slopes_of is None:
        return None
    if not (points.flags.c_contiguous and points.flags.writeable and points.dtype == np.float64):
        points = np.array(points, np.float64, order="C")  # each other layout would be compiled separately
    sums = np.empty((len(blocks[0]), *points.shape[1:]))
    parameters = np.array(loss.parameters, dtype=float) if loss.parameters else _NOTHING
    factors = _NOTHING if factors is None else factors
    slope_arguments = (rows.labels, rows.norms, factors, bound, slopes_of.address, parameters)
    kind, arrays = layout(rows.features)
    n_threads = compiled.numba.get_num_threads()
    for portion, part in _portions(rows, blocks, sums):
        compiled.GRADIENTS[kind](*arrays, rows.order, slope_arguments, portion, n_threads, points, part)
    return sums


def scores(rows: Rows, points: Floats) -> Floats:
    """Return ``a_ijᵀ points_i`` of every row, in the order of the cohort: (n, d, p) -> (rows, p)."""
    if is_small(rows):
        return plain.cohort_scores(rows, points)
    if not can_compile():
        agents = zip(rows.offsets[:-1], rows.offsets[1:], points, strict=True)
        return np.concatenate([products(rows.features[rows.order[a:b]], point) for a, b, point in agents])
    from dpadmm.kernels import passes as compiled

    blocks = rows.blocks
    if points.strides[0] == 0:  # one point for all
        points, blocks = points[:1], rows.even_blocks
    weights = _by_output(points)
    out = np.empty((weights.shape[1], len(rows.labels)))
    kind, arrays = layout(rows.features)
    for portion, _ in _portions(rows, blocks, blocks[0]):
        compiled.SCORES[kind](*arrays, rows.order, portion, weights, out)
    return np.ascontiguousarray(out.T)


def is_small(rows: Rows) -> bool:
    """Return whether to use NumPy. The first use of a compiled kernel takes about ten seconds."""
    return rows.n_entries < MIN_COMPILED_ENTRIES and not rows.in_file


def can_compile() -> bool:
    """Return whether the compiler is installed. Sites do not need it."""
    return find_spec("numba") is not None


def _by_output(points: Floats) -> Floats:
    """Return points (n, d, p) as a writable array (n, p, d); each other layout would be compiled separately."""
    n, d, p = points.shape
    if p == 1 and points.flags.c_contiguous and points.flags.writeable:
        return points.reshape(n, p, d)
    return np.array(points.transpose(0, 2, 1), order="C")


_NOTHING = np.empty(0)


def _portions(rows: Rows, blocks: Blocks, values: NDArray[Any]) -> Iterator[tuple[Blocks, NDArray[Any]]]:
    """Yield the blocks, with their ``values``, in portions that are read from a file at a time."""
    if not rows.in_file:
        yield blocks, values
        return
    row_bytes = sum(array.nbytes for array in layout(rows.features)[1]) / max(1, rows.features.shape[0])
    for part in portions(rows.features, (blocks[2] - blocks[1]) * row_bytes):
        yield (blocks[0][part], blocks[1][part], blocks[2][part]), values[part]


def guarded_sums(
    rows: Rows, points: Floats, loss: Loss, active: Integers | None = None, *, bound: float | Floats
) -> Floats:
    """Return ``Σ_j ω_ij·clip(ℓ'(a_ij, b_ij, points_i), bound_i)`` of every agent, (n, d, p), for exact noise.

    NumPy is used for agents with a small ``m_i·d``, which is public, so sites of this size need no compiler. An agent
    has the same sum, to the last bit, alone and in a cohort.
    """
    agents = np.arange(rows.n_agents) if active is None else active
    is_small_agent = rows.n_rows[agents] * rows.n_features <= MAX_NUMPY_ENTRIES
    out = np.zeros(points.shape)
    bounds = np.broadcast_to(bound, rows.n_agents)
    for value in np.unique(bounds[agents[~is_small_agent]]):
        group = agents[~is_small_agent & (bounds[agents] == value)]
        means = gradient(rows, points, loss, group, bound=float(value))
        out[group] = means[group] * rows.n_rows[group, None, None]
    for i in agents[is_small_agent]:
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
    """Return :func:`gradient` in NumPy."""
    bound = loss.lipschitz if bound is None else bound
    return plain.agent_sums(rows, points, loss, active, bound) / np.maximum(rows.n_rows, 1)[:, None, None]
