"""Compiled gradients and scores of blocks of rows: dense, sparse and coded. :mod:`dpadmm.kernels` calls them.

Importing this module loads the compiler (0.2 s, 50 MB), so it is imported on first use. ``benchmarks/RESULTS.md`` has
the gains of tiles, vectors and prefetching.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types as nbt
from numba.core import cgutils
from numba.extending import intrinsic, overload

from dpadmm.kernels.compiler import numba as numba
from dpadmm.kernels.formulas import SLOPES_SIGNATURE
from dpadmm.kernels.formulas import compiled_slopes as compiled_slopes
from dpadmm.kernels.vectors import WIDTH, four_times, load, store, transposed

_SUMS = {"reassoc", "contract", "nsz"}  # allows vectorised sums; NaN and inf are preserved
_exact = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})
_serial = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_SUMS)
_parallel = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=_SUMS, parallel=True)

_intrinsic: Any = intrinsic  # typed as if the compiler's context were an argument of the call

_PER_THREAD = 4  # groups of blocks per thread; a thread that finishes a group takes the next
_TILE = 5  # outputs for which a row is read once
_EIGHT = 2 * WIDTH  # columns whose sums for _TILE outputs fit into the registers
_LANE = 4  # rows that are added at once, so that the gradient is loaded and stored once for four rows


@_intrinsic
def _slopes(typing, address, labels, scores, parameters, out):  # type: ignore[no-untyped-def]
    """Call the slopes of a loss by address. A function object would be processed in Python at every call."""

    def call(context, builder, signature, args):  # type: ignore[no-untyped-def]
        as_c = ir.FunctionType(context.get_value_type(nbt.none), [arg.type for arg in args[1:]])
        builder.call(builder.inttoptr(args[0], as_c.as_pointer()), args[1:])
        return context.get_dummy_value()

    return nbt.void(nbt.int64, *SLOPES_SIGNATURE.args), call


@_intrinsic
def _take(typing, counter):  # type: ignore[no-untyped-def]
    """Return ``counter[0]`` and increment it, atomically."""

    def add(context, builder, signature, args):  # type: ignore[no-untyped-def]
        first = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", first, ir.Constant(ir.IntType(64), 1), "monotonic")

    return nbt.int64(counter), add


@_intrinsic
def _fetch(typing, array, row, column):  # type: ignore[no-untyped-def]
    """Prefetch the cache line of ``array[row, column]`` into the second-level cache."""

    def generate(context, builder, signature, args):  # type: ignore[no-untyped-def]
        view = context.make_array(signature.args[0])(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, signature.args[0], view, args[1:])
        number, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [builder.bitcast(place, byte), number(0), number(2), number(1)])
        return context.get_dummy_value()

    return nbt.void(array, nbt.int64, nbt.int64), generate


@_exact
def _groups(start, stop, n_groups):  # type: ignore[no-untyped-def]
    """Return the edges of groups of consecutive blocks with about equal numbers of rows.

    A thread processes one group at a time. Every block has its own sum, so results do not depend on the groups.
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


@_exact
def _transpose(source, target):  # type: ignore[no-untyped-def]
    """Set ``target[i, j] = source[j, i]``."""
    for j in range(source.shape[0]):
        for i in range(source.shape[1]):
            target[i, j] = source[j, i]


# --- dense rows --------------------------------------------------------------------------------------------


@_serial
def _dense_scores(features, order, weights, scores, ahead):  # type: ignore[no-untyped-def]
    """Score the rows ``order``, one at a time. Prefetch half of the columns of the next rows, ``ahead``."""
    line, half = 64 // features.itemsize, len(weights) // 2
    for i in range(len(order)):
        row, s = order[i], 0.0
        if i < len(ahead):
            for j in range(0, half, line):
                _fetch(features, ahead[i], j)
        for j in range(len(weights)):
            s += features[row, j] * weights[j]
        scores[i] = s


@_serial
def _dense_scores_of_many(features, rows, weights, scores, ahead):  # type: ignore[no-untyped-def]
    """Score two rows for five outputs at a time. The number of outputs is a multiple of five.

    Prefetch half of the columns of the next rows, ``ahead``. :func:`_dense_sums_of_many` prefetches the others.
    """
    tiles, line = len(weights) // _TILE, 64 // features.itemsize
    lines = -(-features.shape[1] // line)
    for h in range(0, len(weights), _TILE):
        for i in range(0, len(rows), 2):
            k = min(i + 1, len(rows) - 1)
            if k < len(ahead):
                part, parts = h // _TILE, 2 * tiles
                for j in range(part * lines // parts, (part + 1) * lines // parts):
                    _fetch(features, ahead[i], j * line)
                    _fetch(features, ahead[k], j * line)
            one, two = features[np.uint64(rows[i])], features[np.uint64(rows[k])]
            s0 = s1 = s2 = s3 = s4 = t0 = t1 = t2 = t3 = t4 = 0.0
            for j in range(weights.shape[1]):
                x, y = one[j], two[j]
                w0, w1, w2, w3, w4 = (
                    weights[h, j],
                    weights[h + 1, j],
                    weights[h + 2, j],
                    weights[h + 3, j],
                    weights[h + 4, j],
                )
                s0 += x * w0
                s1 += x * w1
                s2 += x * w2
                s3 += x * w3
                s4 += x * w4
                t0 += y * w0
                t1 += y * w1
                t2 += y * w2
                t3 += y * w3
                t4 += y * w4
            scores[h, i], scores[h + 1, i], scores[h + 2, i], scores[h + 3, i], scores[h + 4, i] = s0, s1, s2, s3, s4
            scores[h, k], scores[h + 1, k], scores[h + 2, k], scores[h + 3, k], scores[h + 4, k] = t0, t1, t2, t3, t4


@_exact
def _clip(slope, norms, bound):  # type: ignore[no-untyped-def]
    """Scale the slopes of each row so that its gradient, of norm ‖slope‖·‖a‖, is at most ``bound``.

    Slopes that are not finite, because scores overflow at a distant point, become 0: a row must not turn the sum into
    NaN. Slopes are divided by the largest before they are squared, so that no square overflows or underflows.
    """
    n_outputs, n_rows = slope.shape[0], len(norms)
    n_fine = 0  # usually all rows are within the bound, which is checked four rows at a time
    if n_outputs == 1:
        for i in range(n_rows):
            n_fine += abs(slope[0, i]) * norms[i] <= bound  # false for NaN
    else:
        safe = bound * bound * (1.0 - 1e-9) if bound > 1e-100 else 0.0  # smaller squares would underflow
        squares = np.zeros(n_rows)
        for h in range(n_outputs):
            for i in range(n_rows):
                squares[i] += slope[h, i] * slope[h, i]
        for i in range(n_rows):
            n_fine += squares[i] * norms[i] * norms[i] < safe
    if n_fine == n_rows:
        return
    if n_outputs == 1:  # as below, vectorised: a slope divided by its size is 1 or -1
        for i in range(n_rows):
            s, norm = slope[0, i], norms[i]
            size = abs(s)
            limit = min(bound / norm, size)
            kept = (limit if s > 0.0 else -limit) if size * norm > bound else s
            slope[0, i] = kept if size < np.inf else 0.0  # false for NaN
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
            length = np.sqrt(squared) * norms[i]
            if largest * length > bound:  # the same test as above, so that other rows do not affect the result
                limit = min(bound / length, largest)
                for h in range(n_outputs):
                    slope[h, i] = slope[h, i] / largest * limit


def _as_floats(labels: Any) -> Any:
    """Return labels as float64, for formulas."""


@overload(_as_floats)
def _compiled_as_floats(labels):  # type: ignore[no-untyped-def]
    return (lambda labels: labels) if labels.dtype == nbt.float64 else (lambda labels: labels.astype(np.float64))


@_exact
def _clipped_slopes(slope_arguments, first, last, scores, slope):  # type: ignore[no-untyped-def]
    """Compute the clipped slopes of rows ``first:last``, times the factors of the rows if there are any."""
    labels, norms, factors, bound, slopes_of, parameters = slope_arguments
    _slopes(slopes_of, _as_floats(labels[first:last]), scores, parameters, slope)
    _clip(slope, norms[first:last], bound)
    if len(factors):
        each = factors[first:last]
        for h in range(slope.shape[0]):
            for i in range(len(each)):
                slope[h, i] *= each[i]


@_serial
def _dense_sums(features, order, slope, total, ahead):  # type: ignore[no-untyped-def]
    """Add the gradients of four rows at a time. Prefetch the other half of the columns of the next rows, ``ahead``."""
    whole, line = len(order) // _LANE * _LANE, 64 // features.itemsize
    for i in range(0, whole, _LANE):
        r0, r1, r2, r3 = order[i], order[i + 1], order[i + 2], order[i + 3]
        if i + 3 < len(ahead):
            for j in range(len(total) // 2 // line * line, len(total), line):
                _fetch(features, ahead[i], j)
                _fetch(features, ahead[i + 1], j)
                _fetch(features, ahead[i + 2], j)
                _fetch(features, ahead[i + 3], j)
        s0, s1, s2, s3 = slope[i], slope[i + 1], slope[i + 2], slope[i + 3]
        for j in range(len(total)):
            one = s0 * features[r0, j] + s1 * features[r1, j]
            two = s2 * features[r2, j] + s3 * features[r3, j]
            total[j] += one + two
    for i in range(whole, len(order)):
        row, s = order[i], slope[i]
        for j in range(len(total)):
            total[j] += s * features[row, j]


@_exact
def _five_sums(features, rows, column, slope, fetched, ahead, out):  # type: ignore[no-untyped-def]
    """Set ``out[k, j] = Σ_i slope[k, i]·features[rows[i], column + j]`` for five outputs and eight columns.

    The sums are in registers. If ``fetched``, prefetch the same columns of the next rows, ``ahead``.
    """
    one, two, three, four, five = slope[0], slope[1], slope[2], slope[3], slope[4]
    here, there, n_ahead = np.uint64(column), np.uint64(column + WIDTH), len(ahead) if fetched else 0
    a = b = c = d = e = aa = bb = cc = dd = ee = four_times(0.0)
    for i in range(len(rows)):
        if i < n_ahead:
            _fetch(features, ahead[i], column)
        row = features[np.uint64(rows[i])]
        x, y = load(row, here), load(row, there)
        s = four_times(one[i])
        a += s * x
        aa += s * y
        s = four_times(two[i])
        b += s * x
        bb += s * y
        s = four_times(three[i])
        c += s * x
        cc += s * y
        s = four_times(four[i])
        d += s * x
        dd += s * y
        s = four_times(five[i])
        e += s * x
        ee += s * y
    start, middle = np.uint64(0), np.uint64(WIDTH)
    store(out[0], start, a)
    store(out[0], middle, aa)
    store(out[1], start, b)
    store(out[1], middle, bb)
    store(out[2], start, c)
    store(out[2], middle, cc)
    store(out[3], start, d)
    store(out[3], middle, dd)
    store(out[4], start, e)
    store(out[4], middle, ee)


@_exact
def _dense_sums_of_many(features, rows, slope, total, ahead, part):  # type: ignore[no-untyped-def]
    """Add gradients for five outputs and eight columns at a time. ``part`` is scratch space (5, 8)."""
    n_features, tiles, line = features.shape[1], len(total) // _TILE, 64 // features.itemsize
    lines = -(-n_features // line)
    for h in range(0, len(total), _TILE):
        mine, tile = slope[h : h + _TILE], tiles + h // _TILE
        first, last = tile * lines // (2 * tiles) * line, (tile + 1) * lines // (2 * tiles) * line
        for column in range(0, n_features - _EIGHT + 1, _EIGHT):
            _five_sums(features, rows, column, mine, first <= column < last and column % line == 0, ahead, part)
            for k in range(_TILE):
                for j in range(_EIGHT):
                    total[h + k, column + j] += part[k, j]
        rest = n_features % _EIGHT
        if rest and n_features > _EIGHT:  # the last eight columns; the first of these have already been added
            column = n_features - _EIGHT
            _five_sums(features, rows, column, mine, False, ahead, part)
            for k in range(_TILE):
                for j in range(_EIGHT - rest, _EIGHT):
                    total[h + k, column + j] += part[k, j]
        elif rest:
            for k in range(_TILE):
                for i in range(len(rows)):
                    for j in range(n_features):
                        total[h + k, j] += mine[k, i] * features[rows[i], j]


@_parallel
def _dense_gradient_of_one(features, order, slope_arguments, blocks, n_threads, points, sums):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    n_groups, todo = _PER_THREAD * n_threads, np.zeros(1, np.int64)
    groups = _groups(start, stop, n_groups)
    # rows that fit into half of the first-level cache, a multiple of the lane
    n_features = points.shape[1]
    batch = max(_LANE, 16384 // (features.itemsize * n_features) // _LANE * _LANE)
    for _ in numba.prange(n_threads):
        scores, slope = np.empty((1, batch)), np.empty((1, batch))
        point, total = np.empty(n_features), np.empty(n_features)  # aligned, unlike arguments
        g = _take(todo)
        while g < n_groups:
            for b in range(groups[g], groups[g + 1]):
                total[:] = 0.0
                point[:] = points[agent[b], :, 0]
                for first in range(start[b], stop[b], batch):
                    last = min(first + batch, stop[b])
                    mine, ahead = order[first:last], order[last : last + batch]
                    _dense_scores(features, mine, point, scores[0], ahead)
                    _clipped_slopes(slope_arguments, first, last, scores, slope)
                    _dense_sums(features, mine, slope[0], total, ahead)
                sums[b, :, 0] = total
            g = _take(todo)


@_parallel
def _dense_gradient_of_many(features, order, slope_arguments, blocks, n_threads, points, sums):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    n_groups, todo = _PER_THREAD * n_threads, np.zeros(1, np.int64)
    groups = _groups(start, stop, n_groups)
    n_features, n_outputs = points.shape[1:]
    tiled = -(-n_outputs // _TILE) * _TILE
    # a batch and the prefetched next one fit into the second-level cache; a multiple of the vector width
    batch = max(_LANE, round(65536 / (8 * n_features * 16)) * 16)
    for _ in numba.prange(n_threads):
        scores, slope = np.empty((tiled, batch)), np.zeros((tiled, batch))
        point, total = np.zeros((tiled, n_features)), np.empty((tiled, n_features))
        part = np.empty((_TILE, _EIGHT))
        g = _take(todo)
        while g < n_groups:
            for b in range(groups[g], groups[g + 1]):
                total[:] = 0.0
                _transpose(points[agent[b]], point[:n_outputs])
                for first in range(start[b], stop[b], batch):
                    last = min(first + batch, stop[b])
                    mine, ahead = order[first:last], order[last : last + batch]
                    _dense_scores_of_many(features, mine, point, scores, ahead)
                    _clipped_slopes(slope_arguments, first, last, scores[:n_outputs], slope[:n_outputs])
                    _dense_sums_of_many(features, mine, slope, total, ahead, part)
                _transpose(total[:n_outputs], sums[b])
            g = _take(todo)


def dense_gradient(*arguments):  # type: ignore[no-untyped-def]
    (_dense_gradient_of_one if arguments[-2].shape[2] == 1 else _dense_gradient_of_many)(*arguments)


@_parallel
def dense_all_scores(features, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    for b in numba.prange(len(agent)):
        mine = order[start[b] : stop[b]]
        for h in range(len(out)):
            _dense_scores(features, mine, weights[agent[b], h], out[h, start[b] : stop[b]], mine[:0])


# --- sparse rows -------------------------------------------------------------------------------------------


@_serial
def _sparse_scores(data, indices, indptr, order, first, last, weights, scores):  # type: ignore[no-untyped-def]
    for r in range(first, last):
        row = order[r]
        for h in range(weights.shape[0]):
            s, by_column = 0.0, weights[h]
            for k in range(indptr[row], indptr[row + 1]):
                s += data[k] * by_column[np.uint64(indices[k])]  # unsigned indices need no check for negative ones
            scores[h, r - first] = s


@_parallel
def sparse_gradient(data, indices, indptr, order, slope_arguments, blocks, n_threads, points, sums):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    n_groups, todo = _PER_THREAD * n_threads, np.zeros(1, np.int64)
    groups = _groups(start, stop, n_groups)
    n_features, n_outputs = points.shape[1:]
    batch = 64
    for _ in numba.prange(n_threads):
        scores, slope = np.empty((n_outputs, batch)), np.empty((n_outputs, batch))
        point, total = np.empty((n_outputs, n_features)), np.empty((n_outputs, n_features))
        g = _take(todo)
        while g < n_groups:
            for b in range(groups[g], groups[g + 1]):
                total[:] = 0.0
                _transpose(points[agent[b]], point)
                for first in range(start[b], stop[b], batch):
                    last = min(first + batch, stop[b])
                    _sparse_scores(data, indices, indptr, order, first, last, point, scores)
                    _clipped_slopes(slope_arguments, first, last, scores, slope)
                    for r in range(first, last):
                        row = order[r]
                        for h in range(n_outputs):
                            s, by_column = slope[h, r - first], total[h]
                            for k in range(indptr[row], indptr[row + 1]):
                                by_column[np.uint64(indices[k])] += s * data[k]
                _transpose(total, sums[b])
            g = _take(todo)


@_parallel
def sparse_all_scores(data, indices, indptr, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    for b in numba.prange(len(agent)):
        rows = out[:, start[b] : stop[b]]
        _sparse_scores(data, indices, indptr, order, start[b], stop[b], weights[agent[b]], rows)


# --- coded rows --------------------------------------------------------------------------------------------


@_exact
def _by_columns(values, order, columns):  # type: ignore[no-untyped-def]
    """Set ``columns[j, i] = values[order[i], j]``, so that loops over rows can be vectorised."""
    whole = values.shape[1] // _LANE * _LANE
    for j in range(0, whole, _LANE):
        one, two, three, four = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
        for i in range(len(order)):
            row = np.uint64(order[i])  # unsigned indices need no check for negative ones
            one[i], two[i], three[i], four[i] = (
                values[row, j],
                values[row, j + 1],
                values[row, j + 2],
                values[row, j + 3],
            )
    for j in range(whole, values.shape[1]):
        one = columns[j]
        for i in range(len(order)):
            one[i] = values[np.uint64(order[i]), j]


@_exact
def _coded_scores(columns, codes, places, order, weights, scores):  # type: ignore[no-untyped-def]
    n, n_numbers, whole = len(order), len(places), codes.shape[1] // _LANE * _LANE
    for i in range(n):
        scores[i] = 0.0
    for j in range(0, whole, _LANE):
        for i in range(n):
            row = np.uint64(order[i])
            one, two = weights[codes[row, j]], weights[codes[row, j + 1]]
            three, four = weights[codes[row, j + 2]], weights[codes[row, j + 3]]
            scores[i] += (one + two) + (three + four)
    for j in range(whole, codes.shape[1]):
        for i in range(n):
            scores[i] += weights[codes[np.uint64(order[i]), j]]
    factors = columns[n_numbers]
    for i in range(n):
        scores[i] *= factors[i]
    for j in range(n_numbers):
        numbers, weight = columns[j], weights[places[j]]
        for i in range(n):
            scores[i] += numbers[i] * weight


@_serial
def _dot(one, two, n):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(n):
        total += one[i] * two[i]
    return total


@_exact
def _coded_sums(columns, codes, order, slope, by_number, tables):  # type: ignore[no-untyped-def]
    # two tables, so that equal codes in consecutive rows do not wait for each other's sum
    n, n_codes, n_numbers, here, there = len(order), codes.shape[1], len(by_number), tables[0], tables[1]
    for j in range(n_numbers):
        by_number[j] += _dot(columns[j], slope, n)
    factors, pairs, whole = columns[n_numbers], n // 2 * 2, n_codes // _LANE * _LANE
    for i in range(n):
        slope[i] *= factors[i]
    for j in range(0, whole, _LANE):
        for i in range(0, pairs, 2):
            r0, r1, s0, s1 = np.uint64(order[i]), np.uint64(order[i + 1]), slope[i], slope[i + 1]
            here[codes[r0, j]] += s0
            there[codes[r1, j]] += s1
            here[codes[r0, j + 1]] += s0
            there[codes[r1, j + 1]] += s1
            here[codes[r0, j + 2]] += s0
            there[codes[r1, j + 2]] += s1
            here[codes[r0, j + 3]] += s0
            there[codes[r1, j + 3]] += s1
    for j in range(whole, n_codes):
        for i in range(0, pairs, 2):
            here[codes[np.uint64(order[i]), j]] += slope[i]
            there[codes[np.uint64(order[i + 1]), j]] += slope[i + 1]
    for i in range(pairs, n):
        for j in range(n_codes):
            here[codes[np.uint64(order[i]), j]] += slope[i]


@_parallel
def _coded_gradient_of_one(values, codes, places, order, slope_arguments, blocks, n_threads, points, sums):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    n_groups, todo = _PER_THREAD * n_threads, np.zeros(1, np.int64)
    groups = _groups(start, stop, n_groups)
    n_features, batch = points.shape[1], 256
    for _ in numba.prange(n_threads):
        columns = np.empty((len(places) + 1, batch))
        scores, slope = np.empty((1, batch)), np.empty((1, batch))
        tables, by_number, point = np.empty((2, n_features)), np.empty(len(places)), np.empty(n_features)
        g = _take(todo)
        while g < n_groups:
            for b in range(groups[g], groups[g + 1]):
                tables[:] = 0.0
                by_number[:] = 0.0
                point[:] = points[agent[b], :, 0]
                for first in range(start[b], stop[b], batch):
                    last = min(first + batch, stop[b])
                    mine = order[first:last]
                    _by_columns(values, mine, columns)
                    _coded_scores(columns, codes, places, mine, point, scores[0])
                    _clipped_slopes(slope_arguments, first, last, scores, slope)
                    _coded_sums(columns, codes, mine, slope[0], by_number, tables)
                for j in range(n_features):
                    sums[b, j, 0] = tables[0, j] + tables[1, j]
                for j in range(len(places)):
                    sums[b, places[j], 0] = by_number[j]
            g = _take(todo)


@_exact
def _by_four(point, tables):  # type: ignore[no-untyped-def]
    """Arrange weights (columns, outputs) by four outputs: (n / 4, columns · 4), padded with 0."""
    n_features, n_outputs = point.shape
    for v in range(len(tables)):
        table, first = tables[v], v * WIDTH
        if first + WIDTH <= n_outputs:
            for j in range(n_features):
                store(table, np.uint64(j * WIDTH), load(point[j], np.uint64(first)))
        else:
            table[:] = 0.0
            for j in range(n_features):
                for k in range(n_outputs - first):
                    table[j * WIDTH + k] = point[j, first + k]


@_exact
def _from_four(tables, by_number, places, sums):  # type: ignore[no-untyped-def]
    """Add the two tables, insert the sums of numbers, and return to the layout (columns, outputs)."""
    n_features, n_outputs = sums.shape
    for v in range(len(tables)):
        here, there, first = tables[v, 0], tables[v, 1], v * WIDTH
        for j in range(len(places)):
            store(here, np.uint64(places[j] * WIDTH), load(by_number[v], np.uint64(j * WIDTH)))
            store(there, np.uint64(places[j] * WIDTH), four_times(0.0))
        if first + WIDTH <= n_outputs:
            for j in range(n_features):
                place = np.uint64(j * WIDTH)
                store(sums[j], np.uint64(first), load(here, place) + load(there, place))
        else:
            for j in range(n_features):
                for k in range(n_outputs - first):
                    sums[j, first + k] = here[j * WIDTH + k] + there[j * WIDTH + k]


@_exact
def _coded_scores_of_four(values, codes, places, order, weights, scores):  # type: ignore[no-untyped-def]
    """Score four rows for four outputs at a time: (4, rows). The last row is repeated to complete four."""
    n, n_numbers, n_codes, end = len(order), np.uint64(len(places)), np.uint64(codes.shape[1]), len(order) - 1
    one, two, three, four = scores[0], scores[1], scores[2], scores[3]
    for i in range(0, n, 4):
        r0, r1 = np.uint64(order[i]), np.uint64(order[min(i + 1, end)])
        r2, r3 = np.uint64(order[min(i + 2, end)]), np.uint64(order[min(i + 3, end)])
        s0 = s1 = s2 = s3 = four_times(0.0)
        for j in range(n_codes):
            s0 += load(weights, WIDTH * np.uint64(codes[r0, j]))
            s1 += load(weights, WIDTH * np.uint64(codes[r1, j]))
            s2 += load(weights, WIDTH * np.uint64(codes[r2, j]))
            s3 += load(weights, WIDTH * np.uint64(codes[r3, j]))
        s0 *= four_times(values[r0, n_numbers])
        s1 *= four_times(values[r1, n_numbers])
        s2 *= four_times(values[r2, n_numbers])
        s3 *= four_times(values[r3, n_numbers])
        for j in range(n_numbers):
            weight = load(weights, WIDTH * np.uint64(places[j]))
            s0 += weight * four_times(values[r0, j])
            s1 += weight * four_times(values[r1, j])
            s2 += weight * four_times(values[r2, j])
            s3 += weight * four_times(values[r3, j])
        s0, s1, s2, s3 = transposed(s0, s1, s2, s3)
        store(one, i, s0)
        store(two, i, s1)
        store(three, i, s2)
        store(four, i, s3)


@_exact
def _added(table, place, vector):  # type: ignore[no-untyped-def]
    store(table, place, load(table, place) + vector)


@_exact
def _coded_sums_of_four(values, codes, order, slope, by_number, here, there):  # type: ignore[no-untyped-def]
    """Add gradients of four rows for four outputs at a time. Slopes (4, rows) of up to three padding rows are 0."""
    n, n_numbers, n_codes, end = len(order), np.uint64(values.shape[1] - 1), np.uint64(codes.shape[1]), len(order) - 1
    one, two, three, four = slope[0], slope[1], slope[2], slope[3]
    for i in range(0, n, 4):
        r0, r1 = np.uint64(order[i]), np.uint64(order[min(i + 1, end)])
        r2, r3 = np.uint64(order[min(i + 2, end)]), np.uint64(order[min(i + 3, end)])
        s0, s1, s2, s3 = transposed(load(one, i), load(two, i), load(three, i), load(four, i))
        for j in range(n_numbers):
            pair = s0 * four_times(values[r0, j]) + s1 * four_times(values[r1, j])
            other = s2 * four_times(values[r2, j]) + s3 * four_times(values[r3, j])
            _added(by_number, WIDTH * j, pair + other)
        s0 *= four_times(values[r0, n_numbers])
        s1 *= four_times(values[r1, n_numbers])
        s2 *= four_times(values[r2, n_numbers])
        s3 *= four_times(values[r3, n_numbers])
        for j in range(n_codes):
            _added(here, WIDTH * np.uint64(codes[r0, j]), s0)
            _added(there, WIDTH * np.uint64(codes[r1, j]), s1)
            _added(here, WIDTH * np.uint64(codes[r2, j]), s2)
            _added(there, WIDTH * np.uint64(codes[r3, j]), s3)


@_parallel
def _coded_gradient_of_many(values, codes, places, order, slope_arguments, blocks, n_threads, points, sums):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    n_groups, todo = _PER_THREAD * n_threads, np.zeros(1, np.int64)
    groups = _groups(start, stop, n_groups)
    n_features, n_outputs, batch = points.shape[1], points.shape[2], 128
    fours = -(-n_outputs // WIDTH)
    for _ in numba.prange(n_threads):
        scores, slope = np.empty((fours * WIDTH, batch)), np.zeros((fours * WIDTH, batch))
        point, by_number = np.empty((fours, n_features * WIDTH)), np.empty((fours, len(places) * WIDTH))
        tables = np.empty((fours, 2, n_features * WIDTH))
        g = _take(todo)
        while g < n_groups:
            for b in range(groups[g], groups[g + 1]):
                tables[:] = 0.0
                by_number[:] = 0.0
                _by_four(points[agent[b]], point)
                for first in range(start[b], stop[b], batch):
                    last = min(first + batch, stop[b])
                    mine = order[first:last]
                    for v in range(fours):
                        part = scores[v * WIDTH : (v + 1) * WIDTH]
                        _coded_scores_of_four(values, codes, places, mine, point[v], part)
                    _clipped_slopes(slope_arguments, first, last, scores[:n_outputs], slope[:n_outputs])
                    slope[:, last - first : last - first + WIDTH] = 0.0
                    for v in range(fours):
                        part = slope[v * WIDTH : (v + 1) * WIDTH]
                        _coded_sums_of_four(values, codes, mine, part, by_number[v], tables[v, 0], tables[v, 1])
                _from_four(tables, by_number, places, sums[b])
            g = _take(todo)


def coded_gradient(*arguments):  # type: ignore[no-untyped-def]
    (_coded_gradient_of_one if arguments[-2].shape[2] == 1 else _coded_gradient_of_many)(*arguments)


@_parallel
def coded_all_scores(values, codes, places, order, blocks, weights, out):  # type: ignore[no-untyped-def]
    agent, start, stop = blocks
    batch = 256
    for b in numba.prange(len(agent)):
        columns = np.empty((len(places) + 1, batch))
        for first in range(start[b], stop[b], batch):
            mine = order[first : min(first + batch, stop[b])]
            _by_columns(values, mine, columns)
            for h in range(len(out)):
                scores = out[h, first : first + len(mine)]
                _coded_scores(columns, codes, places, mine, weights[agent[b], h], scores)


Pass = Callable[..., Any]
GRADIENTS: dict[str, Pass] = {"dense": dense_gradient, "sparse": sparse_gradient, "coded": coded_gradient}
SCORES: dict[str, Pass] = {"dense": dense_all_scores, "sparse": sparse_all_scores, "coded": coded_all_scores}
"""By the storage that :func:`dpadmm.matrices.features.layout` returns."""
