"""One pass over the rows: scores, slopes, clipping and the gradient, for a whole cohort at once.

The work is cut into *blocks*: consecutive rows of one agent. How an agent is cut depends on its own rows
only, and a block's sum and the sum of its blocks are always taken in the same order. So the result is the
same to the last bit for any number of threads, and for an agent alone as for the same agent in a cohort.

Within a block, a few rows at a time (they stay in the first-level cache) go through: scores, slopes by the
loss's own compiled formula, clipping to c1, and the sum, four rows together.
``reference_gradient`` is its plain NumPy twin.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dpadmm._base.arrays import Floats, Integers, layout, products, weighted_sum
from dpadmm._base.memmap import portions
from dpadmm.optim.losses.base import Loss, slopes

if TYPE_CHECKING:
    from dpadmm.optim.problem import Rows

ENTRIES_PER_BLOCK = 2**17
"""An agent with more feature entries than this is cut into several blocks."""

SMALL = 2**23
"""Agents of at most so many feature entries, ``m·d``, are summed without the compiler by ``guarded_sums``."""

# --- cutting -----------------------------------------------------------------------------------------------


Blocks = tuple[Integers, Integers, Integers]
"""Agent, first row and last row + 1 of every block."""


def cut_blocks(offsets: Integers, entries: Integers, n_features: int) -> Blocks:
    """Cut every agent's rows into blocks of about equal work: (agent, start, stop) of each block.

    Parameters
    ----------
    offsets : (n_agents + 1,)
        Agent i owns rows ``offsets[i]:offsets[i+1]``.
    entries : (n_agents,)
        Stored feature entries of every agent.
    n_features : int
        A block is never smaller than 16 gradients, so that the partial sums stay small beside the rows.

    Examples
    --------
    >>> agent, start, stop = cut_blocks(np.array([0, 10, 30]), np.array([1000, 400_000]), 100)
    >>> agent.tolist(), start.tolist(), stop.tolist()
    ([0, 1, 1, 1, 1], [0, 10, 15, 20, 25], [10, 15, 20, 25, 30])
    """
    size = max(ENTRIES_PER_BLOCK, 16 * n_features)
    agents, starts, stops = [], [], []
    for i, (first, last) in enumerate(pairwise(offsets)):
        n_blocks = int(min(-(-int(entries[i]) // size), last - first)) or 1
        edges = first + (last - first) * np.arange(n_blocks + 1) // n_blocks
        agents.append(np.full(n_blocks, i))
        starts.append(edges[:-1])
        stops.append(edges[1:])
    return np.concatenate(agents), np.concatenate(starts), np.concatenate(stops)


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

    ``g_i = (1/m_i) Σ_j clip(ℓ'(a_ij, b_ij, points_i), bound)``, where the bound is the loss's c1 unless the
    caller, who then may not release the result, gives another. Agents not in ``active`` get zeros.
    """
    from dpadmm.optim.kernels import passes as compiled
    from dpadmm.optim.kernels.formulas import compiled_slopes

    bound = loss.lipschitz if bound is None else bound
    of_rows = getattr(loss, "formula_of_rows", None)
    slopes_of = compiled_slopes(of_rows or loss.formula, of_rows is not None)
    if slopes_of is None:
        return reference_gradient(rows, points, loss, active, bound=bound)
    blocks = rows.blocks
    if active is not None:
        chosen = np.isin(blocks[0], active)
        blocks = (blocks[0][chosen], blocks[1][chosen], blocks[2][chosen])
    weights = _by_output(points)
    sums = np.empty((len(blocks[0]), *weights.shape[1:]))
    parameters = np.array(loss.parameters, dtype=float)
    about_rows = (rows.order, rows.labels, rows.norms, bound, slopes_of, parameters)
    kind, arrays = layout(rows.features)
    for part in _portions(rows, blocks):
        some = (blocks[0][part], blocks[1][part], blocks[2][part])
        compiled.GRADIENTS[kind](*arrays, *about_rows, some, weights, sums[part])
    if active is None and len(sums) == rows.n_agents:
        total = sums
    else:
        total = np.zeros_like(weights)
        if len(sums):
            first_blocks = np.flatnonzero(np.diff(blocks[0], prepend=-1))
            total[blocks[0][first_blocks]] = np.add.reduceat(sums, first_blocks, axis=0)
    total /= np.maximum(rows.n_rows, 1)[:, None, None]
    return total.transpose(0, 2, 1)


def scores(rows: Rows, points: Floats) -> Floats:
    """``a_ijᵀ points_i`` of every row, in the cohort's order: (n, d, p) -> (rows, p)."""
    from dpadmm.optim.kernels import passes as compiled

    weights = _by_output(points)
    out = np.empty((weights.shape[1], len(rows.labels)))
    kind, arrays = layout(rows.features)
    for part in _portions(rows, rows.blocks):
        some = (rows.blocks[0][part], rows.blocks[1][part], rows.blocks[2][part])
        compiled.SCORES[kind](*arrays, rows.order, some, weights, out)
    return np.ascontiguousarray(out.T)


def _by_output(points: Floats) -> Floats:
    """(n, d, p) -> (n, p, d), always a copy: for arrays that cannot be written to, all would be compiled again."""
    return np.array(points.transpose(0, 2, 1), order="C")


def _portions(rows: Rows, blocks: Blocks) -> Iterator[slice]:
    """Blocks to work on at a time."""
    row_bytes = sum(each.nbytes for each in layout(rows.features)[1]) / max(1, rows.features.shape[0])
    return portions(rows.features, (blocks[2] - blocks[1]) * row_bytes)


def guarded_sums(rows: Rows, points: Floats, loss: Loss, active: Integers | None = None, *, bound: float) -> Floats:
    """``Σ_j clip(ℓ'(a_ij, b_ij, points_i), bound)`` of every agent, (n, d, p): what exact noise is added to.

    Small agents, by ``m_i·d``, which is public, are summed in plain NumPy: it takes milliseconds, and a site
    that serves no other needs no compiler. An agent alone and in a cohort has the same sum, to the last bit.
    """
    agents = np.arange(rows.n_agents) if active is None else active
    small = rows.n_rows[agents] * rows.n_features <= SMALL
    out = np.zeros(points.shape)
    if not small.all():
        means = gradient(rows, points, loss, agents[~small], bound=bound)
        for i in agents[~small]:
            out[i] = means[i] * rows.n_rows[i]
    for i in agents[small]:
        out[i] = _plain_sum(rows, int(i), points[i], loss, bound)
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
    out = np.zeros(points.shape)
    for i in range(rows.n_agents) if active is None else active:
        out[i] = _plain_sum(rows, int(i), points[i], loss, bound) / max(int(rows.n_rows[i]), 1)
    return out


def _plain_sum(rows: Rows, agent: int, point: Floats, loss: Loss, bound: float) -> Floats:
    """The sum of an agent's clipped gradients in NumPy, some rows at a time.

    No BLAS: its sums depend on the number of threads.
    """
    first, last = int(rows.offsets[agent]), int(rows.offsets[agent + 1])
    step, total = max(1, ENTRIES_PER_BLOCK // rows.n_features), np.zeros(point.shape)
    for start in range(first, last, step):
        some = slice(start, min(start + step, last))
        part = rows.features[rows.order[some]].astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):  # scores overflow far out; clipping sees to it
            slope = slopes(loss, rows.labels[some], products(part, point))
            slope = _clipped(slope, rows.norms[some], bound)
        total += weighted_sum(part, slope)
    return total


def _clipped(slope: Floats, norms: Floats, bound: float) -> Floats:
    """``_clip`` in NumPy: slopes (rows, p)."""
    slope = np.where(np.isfinite(slope).all(axis=1, keepdims=True), slope, 0.0)
    largest = np.abs(slope).max(axis=1, keepdims=True)
    unit = slope / np.where(largest > 0.0, largest, 1.0)
    limit = bound / np.maximum(np.linalg.norm(unit, axis=1) * norms, np.finfo(float).tiny)[:, None]
    return np.where(largest > limit, unit * np.minimum(limit, largest), slope)
