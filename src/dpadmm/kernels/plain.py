"""Sums over rows in NumPy, for small cohorts and for installations without the compiler.

BLAS is not used, because its sums depend on the number of threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from dpadmm.losses.base import Loss, slopes
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import products, weighted_sum

if TYPE_CHECKING:
    from dpadmm.queries.problem import Rows

ENTRIES_PER_STEP = 2**17
"""Feature entries that ``agent_sum`` converts to float64 at a time."""


def cohort_scores(rows: Rows, points: Floats) -> Floats:
    """Return ``a_ijᵀ points_i`` of every row: (n, d, p) -> (rows, p)."""
    matrix, owner = rows.matrix, np.repeat(np.arange(rows.n_agents), rows.n_rows)
    out = np.empty((len(owner), points.shape[2]))
    one_point = points.strides[0] == 0
    if isinstance(matrix, np.ndarray):
        for q in range(out.shape[1]):
            weights = points[0, :, q] if one_point else points[owner, :, q]
            out[:, q] = (matrix * weights).sum(axis=1)
        return out
    row = np.repeat(np.arange(len(owner)), np.diff(matrix.indptr))
    for q in range(out.shape[1]):
        weights = points[0, matrix.indices, q] if one_point else points[owner[row], matrix.indices, q]
        out[:, q] = np.bincount(row, matrix.data * weights, len(owner))
    return out


def cohort_sums(rows: Rows, points: Floats, loss: Loss, active: Integers | None, bound: float) -> Floats:
    """Return the sums of every agent's clipped gradients, times the weights of the rows if any: (n, d, p)."""
    slope = _row_slopes(rows, points, loss, bound)
    if rows.row_weights is not None:
        slope = slope * rows.row_weights[:, None]
    out: Floats = np.empty(points.shape)
    positions = np.arange(len(slope))
    for q in range(points.shape[2]):
        by_agent = csr_array((slope[:, q], positions, rows.offsets), shape=(rows.n_agents, len(slope)))
        sums = by_agent @ rows.matrix
        out[:, :, q] = sums if isinstance(sums, np.ndarray) else sums.toarray()
    if active is not None:
        out[np.setdiff1d(np.arange(rows.n_agents), active)] = 0.0
    return out


def weighted_cohort_sum(rows: Rows, point: Floats, loss: Loss, factors: Floats, bound: float) -> Floats:
    """Return the sum of the clipped gradients of all rows at one point, times ``factors`` (rows,): (d, p)."""
    points = np.broadcast_to(point, (rows.n_agents, *point.shape))
    return weighted_sum(rows.matrix, _row_slopes(rows, points, loss, bound) * factors[:, None])


def _row_slopes(rows: Rows, points: Floats, loss: Loss, bound: float) -> Floats:
    """Return the clipped slopes of all rows: (rows, p)."""
    with np.errstate(over="ignore", invalid="ignore"):  # scores may overflow; clipping bounds the result
        return clip_slopes(slopes(loss, rows.labels, cohort_scores(rows, points)), rows.norms, bound)


def agent_sums(rows: Rows, points: Floats, loss: Loss, active: Integers | None, bound: float) -> Floats:
    """Return :func:`agent_sum` of every agent: (n, d, p)."""
    out = np.zeros(points.shape)
    for i in range(rows.n_agents) if active is None else active:
        out[i] = agent_sum(rows, int(i), points[i], loss, bound)
    return out


def agent_sum(rows: Rows, agent: int, point: Floats, loss: Loss, bound: float) -> Floats:
    """Return the sum of an agent's clipped gradients, times the weights of the rows if any: (d, p).

    Rows are processed in batches, so agents of any size need little memory.
    """
    first, last = int(rows.offsets[agent]), int(rows.offsets[agent + 1])
    width = rows.features.n_stored if isinstance(rows.features, CodedRows) else rows.n_features
    step, total = max(1, ENTRIES_PER_STEP // width), np.zeros(point.shape)
    for start in range(first, last, step):
        some = slice(start, min(start + step, last))
        part = rows.features[rows.order[some]].astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):  # scores may overflow; clipping bounds the result
            slope = slopes(loss, rows.labels[some], products(part, point))
            slope = clip_slopes(slope, rows.norms[some], bound)
        if rows.row_weights is not None:
            slope = slope * rows.row_weights[some, None]
        total += weighted_sum(part, slope)
    return total


def clip_slopes(slope: Floats, norms: Floats, bound: float) -> Floats:
    """Scale slopes (rows, p) so that the gradient of a row has a norm of at most ``bound``."""
    slope = np.where(np.isfinite(slope).all(axis=1, keepdims=True), slope, 0.0)
    largest = np.abs(slope).max(axis=1, keepdims=True)
    unit = slope / np.where(largest > 0.0, largest, 1.0)
    limit = bound / np.maximum(np.linalg.norm(unit, axis=1) * norms, np.finfo(float).tiny)[:, None]
    return np.where(largest > limit, unit * np.minimum(limit, largest), slope)
