"""The compiled passes over a block of rows, dense, sparse and coded; :mod:`dpadmm.optim.kernels` calls them.

They stand apart so that the compiler, which takes a fifth of a second and 50 MB, is loaded by the first pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpadmm.optim.kernels.compiler import numba

_SUMS = {"reassoc", "contract", "nsz"}  # lets sums be vectorised; NaN and inf keep their meaning
_exact = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_serial = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_SUMS)
_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_SUMS, parallel=True)

_LANE = 4  # rows summed together, so that the gradient is loaded and stored once for four rows


@_exact
def _groups(start, stop, n_groups):  # type: ignore[no-untyped-def]
    """Edges of groups of consecutive blocks with about as many rows: what a thread does with the same scratch space.

    Every block has a sum of its own, so that nothing depends on how they are grouped.
    """
    edges, total, done, g = np.zeros(n_groups + 1, np.int64), 0, 0, 0
    for b in range(len(start)):
        total += stop[b] - start[b]
    for b in range(len(start)):
        while g < n_groups and done * n_groups >= g * total:
            edges[g] = b
            g += 1
        done += stop[b] - start[b]
    edges[g:] = len(start)
    return edges


# --- dense rows --------------------------------------------------------------------------------------------


@_serial
def _dense_scores(features, order, first, last, weights, scores):  # type: ignore[no-untyped-def]
    # one row at a time: the rows come from memory here, and a straight read is what the prefetcher foresees
    whole = weights.shape[0] // _LANE * _LANE
    for h in range(0, whole, _LANE):  # of several outputs, four at a time share what is read of a row
        for r in range(first, last):
            row = order[r]
            s0 = s1 = s2 = s3 = 0.0
            for j in range(weights.shape[1]):
                x = features[row, j]
                s0 += x * weights[h, j]
                s1 += x * weights[h + 1, j]
                s2 += x * weights[h + 2, j]
                s3 += x * weights[h + 3, j]
            i = r - first
            scores[h, i], scores[h + 1, i], scores[h + 2, i], scores[h + 3, i] = s0, s1, s2, s3
    for h in range(whole, weights.shape[0]):
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
    n_fine = 0  # the usual case is that no row is too long, and that is seen four rows at a time
    if n_outputs == 1:
        for i in range(n_rows):
            n_fine += abs(slope[0, i]) * norms[first + i] <= bound  # false for NaN
    else:
        surely = bound * bound * (1.0 - 1e-9) if bound > 1e-100 else 0.0  # smaller squares would vanish
        squares = np.zeros(n_rows)
        for h in range(n_outputs):
            for i in range(n_rows):
                squares[i] += slope[h, i] * slope[h, i]
        for i in range(n_rows):
            n_fine += squares[i] * norms[first + i] * norms[first + i] < surely
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
            length = np.sqrt(squared) * norms[first + i]
            if largest * length > bound:  # asked as above, so that nothing depends on the rows beside it
                limit = min(bound / length, largest)
                for h in range(n_outputs):
                    slope[h, i] = slope[h, i] / largest * limit


@_exact
def _weigh(slope, factors, first, last):  # type: ignore[no-untyped-def]
    """Multiply clipped slopes with their rows' factors, if there are any."""
    if len(factors):
        for h in range(slope.shape[0]):
            for i in range(last - first):
                slope[h, i] *= factors[first + i]


@_serial
def _dense_sums(features, order, first, last, slope, total):  # type: ignore[no-untyped-def]
    whole, pairs = first + (last - first) // _LANE * _LANE, total.shape[0] // 2 * 2
    for h in range(0, pairs, 2):
        one, two = total[h], total[h + 1]
        for r in range(first, whole, _LANE):
            r0, r1, r2, r3 = order[r], order[r + 1], order[r + 2], order[r + 3]
            i = r - first
            s0, s1, s2, s3 = slope[h, i], slope[h, i + 1], slope[h, i + 2], slope[h, i + 3]
            t0, t1, t2, t3 = slope[h + 1, i], slope[h + 1, i + 1], slope[h + 1, i + 2], slope[h + 1, i + 3]
            for j in range(total.shape[1]):
                x0, x1, x2, x3 = features[r0, j], features[r1, j], features[r2, j], features[r3, j]
                one[j] += (s0 * x0 + s1 * x1) + (s2 * x2 + s3 * x3)
                two[j] += (t0 * x0 + t1 * x1) + (t2 * x2 + t3 * x3)
        for r in range(whole, last):
            row, s, t = order[r], slope[h, r - first], slope[h + 1, r - first]
            for j in range(total.shape[1]):
                one[j] += s * features[row, j]
                two[j] += t * features[row, j]
    for h in range(pairs, total.shape[0]):
        for r in range(first, whole, _LANE):
            r0, r1, r2, r3 = order[r], order[r + 1], order[r + 2], order[r + 3]
            i = r - first
            s0, s1, s2, s3 = slope[h, i], slope[h, i + 1], slope[h, i + 2], slope[h, i + 3]
            for j in range(total.shape[1]):
                one = s0 * features[r0, j] + s1 * features[r1, j]
                two = s2 * features[r2, j] + s3 * features[r3, j]
                total[h, j] += one + two
        for r in range(whole, last):
            row, s = order[r], slope[h, r - first]
            for j in range(total.shape[1]):
                total[h, j] += s * features[row, j]


@_parallel
def dense_gradient(  # type: ignore[no-untyped-def]
    features, order, labels, norms, factors, bound, slopes_of, parameters, blocks, n_groups, weights, sums
):
    agent, start, stop = blocks
    groups = _groups(start, stop, n_groups)
    n_outputs, n_features = weights.shape[1], weights.shape[2]
    # rows that fit into half of the first-level cache, in whole lanes
    batch = max(_LANE, 16384 // (features.itemsize * n_features) // _LANE * _LANE)
    for g in numba.prange(n_groups):
        scores = np.empty((n_outputs, batch))
        slope = np.empty((n_outputs, batch))
        for b in range(groups[g], groups[g + 1]):
            sums[b] = 0.0
            for first in range(start[b], stop[b], batch):
                last = min(first + batch, stop[b])
                _dense_scores(features, order, first, last, weights[agent[b]], scores)
                slopes_of(labels[first:last], scores, parameters, slope)
                _clip(slope, norms, first, last, bound)
                _weigh(slope, factors, first, last)
                _dense_sums(features, order, first, last, slope, sums[b])


@_parallel
def dense_all_scores(features, order, blocks, weights, out):  # type: ignore[no-untyped-def]
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
def sparse_gradient(  # type: ignore[no-untyped-def]
    data, indices, indptr, order, labels, norms, factors, bound, slopes_of, parameters, blocks, n_groups, weights, sums
):
    agent, start, stop = blocks
    groups = _groups(start, stop, n_groups)
    n_outputs = weights.shape[1]
    batch = 64
    for g in numba.prange(n_groups):
        scores = np.empty((n_outputs, batch))
        slope = np.empty((n_outputs, batch))
        for b in range(groups[g], groups[g + 1]):
            total = sums[b]
            total[:] = 0.0
            for first in range(start[b], stop[b], batch):
                last = min(first + batch, stop[b])
                _sparse_scores(data, indices, indptr, order, first, last, weights[agent[b]], scores)
                slopes_of(labels[first:last], scores, parameters, slope)
                _clip(slope, norms, first, last, bound)
                _weigh(slope, factors, first, last)
                for r in range(first, last):
                    row = order[r]
                    for h in range(n_outputs):
                        s = slope[h, r - first]
                        for k in range(indptr[row], indptr[row + 1]):
                            total[h, indices[k]] += s * data[k]


@_parallel
def sparse_all_scores(data, indices, indptr, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    for b in numba.prange(len(agent)):
        rows = out[:, start[b] : stop[b]]
        _sparse_scores(data, indices, indptr, order, start[b], stop[b], weights[agent[b]], rows)


# --- coded rows --------------------------------------------------------------------------------------------


@_exact
def _four_rows(order, first, last, i):  # type: ignore[no-untyped-def]
    # the last row stands in for those beyond it; unsigned, since an index that may be negative is checked each time
    end = last - first - 1
    return (
        np.uint64(order[first + i]),
        np.uint64(order[first + min(i + 1, end)]),
        np.uint64(order[first + min(i + 2, end)]),
        np.uint64(order[first + min(i + 3, end)]),
    )


@_exact
def _coded_scores(values, codes, places, order, first, last, weights, scores):  # type: ignore[no-untyped-def]
    n_numbers, end = len(places), last - first - 1
    by_number = np.empty(n_numbers)
    for h in range(weights.shape[0]):
        by_column = weights[h]
        for j in range(n_numbers):
            by_number[j] = by_column[places[j]]
        for i in range(0, last - first, _LANE):
            r0, r1, r2, r3 = _four_rows(order, first, last, i)
            s0 = s1 = s2 = s3 = 0.0
            for j in range(codes.shape[1]):
                s0 += by_column[codes[r0, j]]
                s1 += by_column[codes[r1, j]]
                s2 += by_column[codes[r2, j]]
                s3 += by_column[codes[r3, j]]
            s0 *= values[r0, n_numbers]
            s1 *= values[r1, n_numbers]
            s2 *= values[r2, n_numbers]
            s3 *= values[r3, n_numbers]
            for j in range(n_numbers):
                w = by_number[j]
                s0 += values[r0, j] * w
                s1 += values[r1, j] * w
                s2 += values[r2, j] * w
                s3 += values[r3, j] * w
            scores[h, min(i + 3, end)] = s3
            scores[h, min(i + 2, end)] = s2
            scores[h, min(i + 1, end)] = s1
            scores[h, i] = s0


@_exact
def _coded_sums(values, codes, order, first, last, slope, by_number, tables):  # type: ignore[no-untyped-def]
    # four tables: a row that sets the column its neighbour set would otherwise wait for its neighbour's sum
    n_numbers, t0, t1, t2, t3 = len(by_number), tables[0], tables[1], tables[2], tables[3]
    for i in range(0, last - first, _LANE):
        r0, r1, r2, r3 = _four_rows(order, first, last, i)
        s0, s1, s2, s3 = slope[i], slope[i + 1], slope[i + 2], slope[i + 3]
        for j in range(n_numbers):
            one = s0 * values[r0, j] + s1 * values[r1, j]
            two = s2 * values[r2, j] + s3 * values[r3, j]
            by_number[j] += one + two
        s0 *= values[r0, n_numbers]
        s1 *= values[r1, n_numbers]
        s2 *= values[r2, n_numbers]
        s3 *= values[r3, n_numbers]
        for j in range(codes.shape[1]):
            t0[codes[r0, j]] += s0
            t1[codes[r1, j]] += s1
            t2[codes[r2, j]] += s2
            t3[codes[r3, j]] += s3


@_parallel
def _coded_gradient_of_one(  # type: ignore[no-untyped-def]
    values, codes, places, order, labels, norms, factors, bound, slopes_of, parameters, blocks, n_groups, weights, sums
):
    agent, start, stop = blocks
    groups = _groups(start, stop, n_groups)
    batch = 512
    for g in numba.prange(n_groups):
        scores = np.empty((1, batch))
        slope = np.empty((1, batch))
        tables = np.empty((_LANE, weights.shape[2]))
        by_number = np.empty(len(places))
        for b in range(groups[g], groups[g + 1]):
            tables[:] = 0.0
            by_number[:] = 0.0
            for first in range(start[b], stop[b], batch):
                last = min(first + batch, stop[b])
                _coded_scores(values, codes, places, order, first, last, weights[agent[b]], scores)
                slopes_of(labels[first:last], scores, parameters, slope)
                _clip(slope, norms, first, last, bound)
                _weigh(slope, factors, first, last)
                slope[0, last - first : last - first + _LANE] = 0.0
                _coded_sums(values, codes, order, first, last, slope[0], by_number, tables)
            for j in range(weights.shape[2]):
                sums[b, 0, j] = (tables[0, j] + tables[1, j]) + (tables[2, j] + tables[3, j])
            for j in range(len(places)):
                sums[b, 0, places[j]] = by_number[j]


# Of several outputs: all scores of a row together, in multiples of four numbers


@_exact
def _wide_scores(values, codes, places, order, first, last, by_column, scores):  # type: ignore[no-untyped-def]
    n_numbers, n_codes, width = len(places), codes.shape[1], scores.shape[1]
    fours, pairs = n_codes // 4 * 4, n_numbers // 2 * 2
    for i in range(last - first):
        row, s = np.uint64(order[first + i]), scores[i]
        factor = values[row, n_numbers]
        for h in range(width):
            s[h] = 0.0
        for j in range(0, fours, 4):
            w0, w1 = by_column[codes[row, j]], by_column[codes[row, j + 1]]
            w2, w3 = by_column[codes[row, j + 2]], by_column[codes[row, j + 3]]
            for h in range(width):
                s[h] += factor * ((w0[h] + w1[h]) + (w2[h] + w3[h]))
        for j in range(fours, n_codes):
            w0 = by_column[codes[row, j]]
            for h in range(width):
                s[h] += factor * w0[h]
        for j in range(0, pairs, 2):
            w0, w1, one, two = by_column[places[j]], by_column[places[j + 1]], values[row, j], values[row, j + 1]
            for h in range(width):
                s[h] += one * w0[h] + two * w1[h]
        for j in range(pairs, n_numbers):
            w0, one = by_column[places[j]], values[row, j]
            for h in range(width):
                s[h] += one * w0[h]


@_exact
def _wide_sums(values, codes, places, order, first, last, slope, total):  # type: ignore[no-untyped-def]
    n_numbers, width = len(places), slope.shape[1]
    for i in range(0, last - first, _LANE):
        r0, r1, r2, r3 = _four_rows(order, first, last, i)
        s0, s1, s2, s3 = slope[i], slope[i + 1], slope[i + 2], slope[i + 3]
        for j in range(n_numbers):
            to, v0, v1, v2, v3 = total[places[j]], values[r0, j], values[r1, j], values[r2, j], values[r3, j]
            for h in range(width):
                to[h] += (v0 * s0[h] + v1 * s1[h]) + (v2 * s2[h] + v3 * s3[h])
    for i in range(last - first):
        row, s = np.uint64(order[first + i]), slope[i]
        factor = values[row, n_numbers]
        for h in range(width):
            s[h] *= factor
        for j in range(codes.shape[1]):
            to = total[codes[row, j]]
            for h in range(width):
                to[h] += s[h]


@_parallel
def _coded_gradient_of_many(  # type: ignore[no-untyped-def]
    values, codes, places, order, labels, norms, factors, bound, slopes_of, parameters, blocks, n_groups, weights, sums
):
    agent, start, stop = blocks
    groups = _groups(start, stop, n_groups)
    n_outputs, n_features = weights.shape[1], weights.shape[2]
    batch, width = 128, (n_outputs + 3) // 4 * 4
    for g in numba.prange(n_groups):
        scores = np.empty((n_outputs, batch))
        slope = np.empty((n_outputs, batch))
        wide = np.zeros((batch, width))
        by_column, total = np.zeros((n_features, width)), np.empty((n_features, width))
        for b in range(groups[g], groups[g + 1]):
            total[:] = 0.0
            for j in range(n_features):
                for h in range(n_outputs):
                    by_column[j, h] = weights[agent[b], h, j]
            for first in range(start[b], stop[b], batch):
                last = min(first + batch, stop[b])
                _wide_scores(values, codes, places, order, first, last, by_column, wide)
                for i in range(last - first):
                    for h in range(n_outputs):
                        scores[h, i] = wide[i, h]
                slopes_of(labels[first:last], scores, parameters, slope)
                _clip(slope, norms, first, last, bound)
                _weigh(slope, factors, first, last)
                for i in range(last - first):
                    for h in range(n_outputs):
                        wide[i, h] = slope[h, i]
                wide[last - first :] = 0.0
                _wide_sums(values, codes, places, order, first, last, wide, total)
            for j in range(n_features):
                for h in range(n_outputs):
                    sums[b, h, j] = total[j, h]


def coded_gradient(*asked):  # type: ignore[no-untyped-def]
    weights = asked[-2]
    (_coded_gradient_of_one if weights.shape[1] == 1 else _coded_gradient_of_many)(*asked)


@_parallel
def coded_all_scores(values, codes, places, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    for b in numba.prange(len(agent)):
        rows = out[:, start[b] : stop[b]]
        _coded_scores(values, codes, places, order, start[b], stop[b], weights[agent[b]], rows)


Pass = Callable[..., Any]
GRADIENTS: dict[str, Pass] = {"dense": dense_gradient, "sparse": sparse_gradient, "coded": coded_gradient}
SCORES: dict[str, Pass] = {"dense": dense_all_scores, "sparse": sparse_all_scores, "coded": coded_all_scores}
"""By :func:`dpadmm._base.features.layout`."""
