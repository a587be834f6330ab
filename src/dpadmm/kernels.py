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
from scipy.sparse import csr_array

from dpadmm.arrays import Floats, Integers
from dpadmm.compiler import numba
from dpadmm.formulas import compiled_slopes
from dpadmm.losses.base import Loss, slopes
from dpadmm.paging import portions

if TYPE_CHECKING:
    from dpadmm.problem import Rows

ENTRIES_PER_BLOCK = 2**17
"""An agent with more feature entries than this is cut into several blocks."""

_SUMS = {"reassoc", "contract", "nsz"}  # lets sums be vectorised; NaN and inf keep their meaning
_exact = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_serial = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_SUMS)
_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_SUMS, parallel=True)

_LANE = 4  # rows summed together, so that the gradient is loaded and stored once for four rows


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


# --- dense rows --------------------------------------------------------------------------------------------


@_serial
def _dense_scores(features, order, first, last, weights, scores):  # type: ignore[no-untyped-def]
    # one row at a time: the rows come from memory here, and a straight read is what the prefetcher foresees
    for h in range(weights.shape[0]):
        for r in range(first, last):
            row = order[r]
            s = 0.0
            for j in range(weights.shape[1]):
                s += features[row, j] * weights[h, j]
            scores[h, r - first] = s


@_exact
def _clip(slope, norms, first, last, bound):  # type: ignore[no-untyped-def]
    """Scale a row's slopes so that its gradient, of norm ‖slope‖·‖a‖, is at most ``bound``, always.

    Slopes that are not finite (a point so far out that scores overflow) become 0, so that no row can be
    told by its turning the sum into NaN. Squares are taken relative to the largest slope, so that none
    overflows or vanishes.
    """
    n_outputs, n_rows = slope.shape[0], last - first
    if n_outputs == 1:  # the usual case is that no row is too long, and that is seen four rows at a time
        n_fine = 0
        for i in range(n_rows):
            n_fine += abs(slope[0, i]) * norms[first + i] <= bound  # false for NaN
        if n_fine == n_rows:
            return
    for i in range(n_rows):
        largest = 0.0
        finite = True
        for h in range(n_outputs):
            finite = finite and np.isfinite(slope[h, i])
            largest = max(largest, abs(slope[h, i]))
        if not finite:
            for h in range(n_outputs):
                slope[h, i] = 0.0
        elif largest > 0.0:
            squared = 0.0
            for h in range(n_outputs):
                squared += (slope[h, i] / largest) ** 2
            limit = bound / (np.sqrt(squared) * norms[first + i])
            if largest > limit:
                for h in range(n_outputs):
                    slope[h, i] = slope[h, i] / largest * limit


@_parallel
def _dense_gradient(features, order, labels, norms, bound, slopes_of, parameters, blocks, weights, sums):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    n_outputs, n_features = weights.shape[1], weights.shape[2]
    batch = max(_LANE, 24576 // (features.itemsize * n_features))  # rows that fit into the first-level cache
    for b in numba.prange(len(agent)):
        scores = np.empty((n_outputs, batch))
        slope = np.empty((n_outputs, batch))
        total = np.zeros((n_outputs, n_features))
        for first in range(start[b], stop[b], batch):
            last = min(first + batch, stop[b])
            _dense_scores(features, order, first, last, weights[agent[b]], scores)
            slopes_of(labels[first:last], scores, parameters, slope)
            _clip(slope, norms, first, last, bound)
            whole = first + (last - first) // _LANE * _LANE
            for h in range(n_outputs):
                for r in range(first, whole, _LANE):
                    r0, r1, r2, r3 = order[r], order[r + 1], order[r + 2], order[r + 3]
                    i = r - first
                    s0, s1, s2, s3 = slope[h, i], slope[h, i + 1], slope[h, i + 2], slope[h, i + 3]
                    for j in range(n_features):
                        one = s0 * features[r0, j] + s1 * features[r1, j]
                        two = s2 * features[r2, j] + s3 * features[r3, j]
                        total[h, j] += one + two
                for r in range(whole, last):
                    row, s = order[r], slope[h, r - first]
                    for j in range(n_features):
                        total[h, j] += s * features[row, j]
        sums[b] = total


@_parallel
def _dense_all_scores(features, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    for b in numba.prange(len(agent)):
        _dense_scores(features, order, start[b], stop[b], weights[agent[b]], out[:, start[b] : stop[b]])


# --- sparse rows -------------------------------------------------------------------------------------------


@_serial
def _sparse_scores(data, indices, indptr, order, first, last, weights, scores):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        row = order[r]
        for h in range(weights.shape[0]):
            s = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                s += data[k] * weights[h, indices[k]]
            scores[h, r - first] = s


@_parallel
def _sparse_gradient(  # type: ignore[no-untyped-def]
    data, indices, indptr, order, labels, norms, bound, slopes_of, parameters, blocks, weights, sums
):
    agent, start, stop = blocks
    n_outputs = weights.shape[1]
    batch = 64
    for b in numba.prange(len(agent)):
        scores = np.empty((n_outputs, batch))
        slope = np.empty((n_outputs, batch))
        total = np.zeros((n_outputs, weights.shape[2]))
        for first in range(start[b], stop[b], batch):
            last = min(first + batch, stop[b])
            _sparse_scores(data, indices, indptr, order, first, last, weights[agent[b]], scores)
            slopes_of(labels[first:last], scores, parameters, slope)
            _clip(slope, norms, first, last, bound)
            for r in range(first, last):
                row = order[r]
                for h in range(n_outputs):
                    s = slope[h, r - first]
                    for k in range(indptr[row], indptr[row + 1]):
                        total[h, indices[k]] += s * data[k]
        sums[b] = total


@_parallel
def _sparse_all_scores(data, indices, indptr, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    for b in numba.prange(len(agent)):
        rows = out[:, start[b] : stop[b]]
        _sparse_scores(data, indices, indptr, order, start[b], stop[b], weights[agent[b]], rows)


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
    bound = loss.lipschitz if bound is None else bound
    slopes_of = compiled_slopes(loss.formula)
    if slopes_of is None:
        return reference_gradient(rows, points, loss, active, bound=bound)
    blocks = rows.blocks
    if active is not None:
        chosen = np.isin(blocks[0], active)
        blocks = (blocks[0][chosen], blocks[1][chosen], blocks[2][chosen])
    weights = np.ascontiguousarray(points.transpose(0, 2, 1))
    sums = np.empty((len(blocks[0]), *weights.shape[1:]))
    parameters = np.array(loss.parameters, dtype=float)
    about_rows = (rows.order, rows.labels, rows.norms, bound, slopes_of, parameters)
    for part in _portions(rows, blocks):
        some = (blocks[0][part], blocks[1][part], blocks[2][part])
        if isinstance(rows.features, csr_array):
            x = rows.features
            _sparse_gradient(x.data, x.indices, x.indptr, *about_rows, some, weights, sums[part])
        else:
            _dense_gradient(rows.features, *about_rows, some, weights, sums[part])
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
    weights = np.ascontiguousarray(points.transpose(0, 2, 1))
    out = np.empty((weights.shape[1], len(rows.labels)))
    for part in _portions(rows, rows.blocks):
        some = (rows.blocks[0][part], rows.blocks[1][part], rows.blocks[2][part])
        if isinstance(rows.features, csr_array):
            x = rows.features
            _sparse_all_scores(x.data, x.indices, x.indptr, rows.order, some, weights, out)
        else:
            _dense_all_scores(rows.features, rows.order, some, weights, out)
    return np.ascontiguousarray(out.T)


def _portions(rows: Rows, blocks: Blocks) -> Iterator[slice]:
    """Blocks to work on at a time."""
    row_bytes = rows.features.data.nbytes / max(1, rows.features.shape[0])
    return portions(rows.features, (blocks[2] - blocks[1]) * row_bytes)


def reference_gradient(
    rows: Rows,
    points: Floats,
    loss: Loss,
    active: Integers | None = None,
    *,
    bound: float | None = None,
) -> Floats:
    """The same as ``gradient`` in plain NumPy: all scores, all slopes, then all sums."""
    bound = loss.lipschitz if bound is None else bound
    agents = range(rows.n_agents) if active is None else active
    parts = [rows.features[rows.order[rows.offsets[i] : rows.offsets[i + 1]]] for i in agents]
    labels = [rows.labels[rows.offsets[i] : rows.offsets[i + 1]] for i in agents]
    norms = [rows.norms[rows.offsets[i] : rows.offsets[i + 1]] for i in agents]
    out = np.zeros(points.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # far out, scores overflow; the clipping sees to it
        all_scores = [np.asarray(part @ points[i]) for i, part in zip(agents, parts, strict=True)]
        all_slopes = [slopes(loss, b, s) for b, s in zip(labels, all_scores, strict=True)]
    for i, part, slope, norm in zip(agents, parts, all_slopes, norms, strict=True):
        out[i] = (part.T @ _clipped(slope, norm, bound)) / max(len(slope), 1)
    return out


def _clipped(slope: Floats, norms: Floats, bound: float) -> Floats:
    """``_clip`` in NumPy: slopes (rows, p)."""
    slope = np.where(np.isfinite(slope).all(axis=1, keepdims=True), slope, 0.0)
    largest = np.abs(slope).max(axis=1, keepdims=True)
    unit = slope / np.where(largest > 0.0, largest, 1.0)
    limit = bound / np.maximum(np.linalg.norm(unit, axis=1) * norms, np.finfo(float).tiny)[:, None]
    return np.where(largest > limit, unit * np.minimum(limit, largest), slope)
