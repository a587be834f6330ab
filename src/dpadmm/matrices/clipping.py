"""Feature matrices: their form, the norms of their rows, clipping, and the constant column of an intercept.

Everything here looks at one row at a time, so nothing about a row depends on another person's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array, hstack, vstack

from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Floats, flush_subnormals, has_subnormals
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features, layout, row_sums, squared
from dpadmm.matrices.memmap import row_portions

NORM_SLACK = 1e-6
"""Rows may exceed norm 1 by this much (float32 rounding); their gradients are clipped to c1 all the same."""

CODED_ROWS = 2**12
"""Coded rows whose squares are looked at together: they stay in the cache."""

INTERCEPT, BESIDE_INTERCEPT = 0.28, 0.96
"""The constant column's value, and what all other features are multiplied by: their squares add up to 1.

Rows seldom come near their bound, the constant always does: with an equal share for both, noise and steps are
made for the constant, and features learn slowly (docs/decisions/0009-tables.md)."""


def as_matrix(features: Features) -> Features:
    """Two-dimensional, C-contiguous, canonical CSR or coded, float32 or float64; anything else is converted once."""
    array: Features
    if isinstance(features, CodedRows):
        array = features
    elif hasattr(features, "tocsr"):
        _check_places(features)
        matrix = features if isinstance(features, csr_array) else csr_array(features)
        # another object: what this one says of its form may be of before its arrays were changed
        same = csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
        if not same.has_canonical_format:
            matrix = same.copy()
            matrix.sum_duplicates()
        array = matrix if matrix.dtype in (np.float32, np.float64) else matrix.astype(np.float64)
    else:
        array = np.asarray(features)
        if array.dtype not in (np.float32, np.float64):
            try:
                array = array.astype(np.float64)
            except (TypeError, ValueError):
                raise DataError(f"features must be numbers, not {array.dtype}; encode text columns first") from None
    if array.ndim != 2:
        raise DataError(f"features must have two dimensions (rows × features), not shape {array.shape}")
    if 0 in array.shape:
        raise DataError(f"features have shape {array.shape}: there is nothing to train on")
    if isinstance(array, CodedRows):
        array.check()
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array


def _check_places(matrix: Any) -> None:
    """Refuse sparse entries of rows or columns that are not there: compiled passes, and SciPy's, do not ask."""
    fine = True
    if matrix.format in ("csr", "csc"):
        pointers, (n_major, n_minor) = matrix.indptr, matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
        last = int(pointers[-1])
        fine = len(pointers) == n_major + 1 and pointers[0] == 0 and bool((pointers[1:] >= pointers[:-1]).all())
        fine = fine and last <= min(len(matrix.indices), len(matrix.data)) and _within(matrix.indices[:last], n_minor)
    elif matrix.format == "coo":
        fine = all(map(_within, matrix.coords, matrix.shape))
    if not fine:
        raise DataError("the sparse features name rows or columns that are not there; build the matrix again")


def _within(places: Any, size: int) -> bool:
    return not len(places) or (int(places.min()) >= 0 and int(places.max()) < size)


def stacked(parts: Sequence[Features]) -> Features:
    """Rows of the same columns, stored alike, below each other."""
    first = parts[0]
    if isinstance(first, CodedRows):
        values, codes = (np.concatenate([getattr(each, name) for each in parts]) for name in ("values", "codes"))
        return replace(first, values=values, codes=codes)
    return np.concatenate(parts) if isinstance(first, np.ndarray) else csr_array(vstack(parts))


def row_norms(features: Features) -> Floats:
    """L2 norm of every row, without a copy of the matrix; NaN or inf where a row has one."""
    with np.errstate(over="ignore"):
        if isinstance(features, CodedRows):
            out = np.empty(features.shape[0])
            for part in row_portions(features):
                for start in range(part.start, part.stop, CODED_ROWS):
                    few = slice(start, min(start + CODED_ROWS, part.stop))
                    out[few] = row_sums(squared(features[few]))
            return np.sqrt(out, out=out)
        if not isinstance(features, csr_array):
            out = np.empty(features.shape[0])
            for part in row_portions(features):
                out[part] = np.einsum("ij,ij->i", features[part], features[part], dtype=np.float64)
            return np.sqrt(out, out=out)
        out = np.zeros(features.shape[0])
        for part in row_portions(features):
            pointers = features.indptr[part.start : part.stop + 1]
            filled = np.flatnonzero(np.diff(pointers))
            if len(filled):
                squares = np.square(features.data[pointers[0] : pointers[-1]], dtype=np.float64)
                out[part.start + filled] = np.sqrt(np.add.reduceat(squares, pointers[filled] - pointers[0]))
        return out


def check_norms(norms: Floats) -> None:
    """Refuse rows that are not finite or longer than 1."""
    _check_finite(norms)
    long = np.flatnonzero(norms > 1.0 + NORM_SLACK)
    if len(long):
        raise DataError(
            f"row {long[0] + 1} has L2 norm {norms[long[0]]:.6g} > 1 ({_count(long)}); scale the columns "
            "by public constants, or ask for clipping (clip_rows=True, --clip-rows), which shortens them to 1"
        )


def _check_finite(norms: Floats) -> None:
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        raise DataError(
            f"row {bad[0] + 1} has a NaN, infinite or absurdly large feature ({_count(bad)}); "
            "fill, scale or remove it first"
        )


def clip_rows(features: Features) -> Features:
    """Shorten rows with an L2 norm > 1 to norm 1; others stay as they are. Copies only when it must.

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [0.0, 0.5]])).round(6).tolist()
    [[0.6, 0.8], [0.0, 0.5]]
    """
    features = as_matrix(features)
    norms = row_norms(features)
    _check_finite(norms)  # scaled, an infinite row would turn into NaN and an absurdly large one into zeros
    if not np.any(norms > 1.0):
        return features
    # a little below 1, so that the shortened row does not round up to more than 1
    scale = np.where(norms > 1.0, (1.0 - 2.0**-50) / np.maximum(norms, 1.0), 1.0).astype(features.dtype)
    if isinstance(features, csr_array):
        return csr_array(diags_array(scale) @ features)
    if isinstance(features, CodedRows):
        return replace(features, values=features.values * scale[:, None])
    return features * scale[:, None]


def without_subnormals(features: Features) -> Features:
    """Set numbers below the smallest normal number of their type to 0; norms of rows do not grow.

    A copy if there are any. Rows of an encoder have none.

    Examples
    --------
    >>> without_subnormals(np.array([[1e-310, 1.0]])).tolist()
    [[0.0, 1.0]]
    """
    values = layout(features)[1][0]
    parts = row_portions(features)
    if isinstance(features, csr_array):
        parts = (slice(features.indptr[part.start], features.indptr[part.stop]) for part in parts)
    if not any(has_subnormals(values[part]) for part in parts):
        return features
    copy = features.copy()
    flush_subnormals(layout(copy)[1][0])
    return copy


def with_intercept(features: Features) -> Features:
    """Append a constant column and scale, so that rows of norm ≤ 1 keep it: ``[0.96·a, 0.28]``.

    Examples
    --------
    >>> with_intercept(np.array([[1.0, 0.0]])).round(3).tolist()
    [[0.96, 0.0, 0.28]]
    """
    features = as_matrix(features)
    share = features.dtype.type(BESIDE_INTERCEPT)
    column = np.full((features.shape[0], 1), INTERCEPT, dtype=features.dtype)
    if isinstance(features, csr_array):
        return csr_array(hstack([features * share, csr_array(column)]))
    if isinstance(features, CodedRows):
        scaled, places = features.values * share, np.append(features.places, features.width)
        values = np.hstack([scaled[:, :-1], column, scaled[:, -1:]])
        return CodedRows(values, features.codes, places, features.width + 1)
    return np.hstack([features * share, column])


def _count(rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> str:
    return "the only such row" if len(rows) == 1 else f"{len(rows)} such rows"
