"""The gradient as this project computed it before there were coded rows: what "times faster" is measured against.

Its loops, unchanged: one output after the other, softmax with two exponentials, every row's slopes looked at by
itself, and room for the sums of every block made anew. Not used by anything else.
"""

from __future__ import annotations

import numba
import numpy as np
from scipy.sparse import csr_array

from dpadmm.kernels.formulas import compiled_slopes
from dpadmm.kernels.passes import _slopes
from dpadmm.losses import Logistic, Loss
from dpadmm.losses.base import exp
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Rows

_SUMS = {"reassoc", "contract", "nsz"}
_NOTHING = np.empty(0)
_exact = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})
_serial = numba.njit(nogil=True, error_model="numpy", fastmath=_SUMS)
_parallel = numba.njit(nogil=True, error_model="numpy", fastmath=_SUMS, parallel=True)
_LANE = 4


def _softmax(i: int, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
    n_outputs = len(scores)
    top = scores[0, i]
    for h in range(1, n_outputs):
        top = np.maximum(top, scores[h, i])
    total = 0.0 * top
    for h in range(n_outputs):
        total = total + exp(scores[h, i] - top)
    for h in range(n_outputs):
        out[h, i] = exp(scores[h, i] - top) / total - (labels[i] == h)


@_exact
def _clip(slope, norms, first, last, bound):
    n_outputs, n_rows = slope.shape[0], last - first
    if n_outputs == 1:
        n_fine = 0
        for i in range(n_rows):
            n_fine += abs(slope[0, i]) * norms[first + i] <= bound
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


@_serial
def _dense_scores(features, order, first, last, weights, scores):
    for h in range(weights.shape[0]):
        for r in range(first, last):
            row = order[r]
            s = 0.0
            for j in range(weights.shape[1]):
                s += features[row, j] * weights[h, j]
            scores[h, r - first] = s


@_parallel
def _dense_gradient(features, order, labels, norms, bound, slopes_of, nothing, blocks, weights, sums):
    agent, start, stop = blocks
    n_outputs, n_features = weights.shape[1], weights.shape[2]
    batch = max(_LANE, 24576 // (features.itemsize * n_features))
    for b in numba.prange(len(agent)):
        scores = np.empty((n_outputs, batch))
        slope = np.empty((n_outputs, batch))
        total = np.zeros((n_outputs, n_features))
        for first in range(start[b], stop[b], batch):
            last = min(first + batch, stop[b])
            _dense_scores(features, order, first, last, weights[agent[b]], scores)
            _slopes(slopes_of, labels[first:last], scores, nothing, slope)
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


@_serial
def _sparse_scores(data, indices, indptr, order, first, last, weights, scores):
    for r in range(first, last):
        row = order[r]
        for h in range(weights.shape[0]):
            s = 0.0
            for k in range(indptr[row], indptr[row + 1]):
                s += data[k] * weights[h, indices[k]]
            scores[h, r - first] = s


@_parallel
def _sparse_gradient(data, indices, indptr, order, labels, norms, bound, slopes_of, nothing, blocks, weights, sums):
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
            _slopes(slopes_of, labels[first:last], scores, nothing, slope)
            _clip(slope, norms, first, last, bound)
            for r in range(first, last):
                row = order[r]
                for h in range(n_outputs):
                    s = slope[h, r - first]
                    for k in range(indptr[row], indptr[row + 1]):
                        total[h, indices[k]] += s * data[k]
        sums[b] = total


def gradient(rows: Rows, points: Floats, loss: Loss) -> Floats:
    """``kernels.gradient`` as it was, for logistic and softmax and agents of one block each."""
    blocks = rows.blocks
    assert len(blocks[0]) == rows.n_agents
    weights = np.array(points.transpose(0, 2, 1), order="C")
    sums = np.empty(weights.shape)
    slopes_of = compiled_slopes(Logistic.formula if loss.n_outputs == 1 else _softmax)
    assert slopes_of is not None
    about = (rows.order, rows.labels, rows.norms, loss.lipschitz, slopes_of.address, _NOTHING, blocks, weights, sums)
    if isinstance(rows.features, csr_array):
        _sparse_gradient(rows.features.data, rows.features.indices, rows.features.indptr, *about)
    else:
        _dense_gradient(rows.features, *about)
    sums /= rows.n_rows[:, None, None]
    return sums.transpose(0, 2, 1)
