"""Convert feature matrices, compute and clip row norms, and append the constant column of an intercept.

Each row is processed independently, so no row affects the result for another person's row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array, hstack, issparse, vstack

from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Floats, flush_subnormals, has_subnormals
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features, layout, row_sums, squared
from dpadmm.matrices.memmap import row_portions

NORM_SLACK = 1e-6
"""Tolerance of row norms above 1 (float32 rounding). Gradients are clipped in any case."""

CODED_ROWS = 2**12
"""Coded rows that are squared at once, so that they stay in the cache."""

INTERCEPT, BESIDE_INTERCEPT = 0.28, 0.96
"""Value of the constant column, and the factor of all other features. Their squares add up to 1.

Rows are rarely close to their bound, but the constant always is. With equal factors, noise and step sizes would suit
the constant, and features would learn slowly (docs/decisions/0009-tables.md)."""


def as_matrix(features: Features) -> Features:
    """Return a matrix that is two-dimensional, float32 or float64, and C-contiguous, canonical CSR or coded."""
    array: Features
    if isinstance(features, CodedRows):
        array = features
    elif issparse(features):
        _check_indices(features)
        matrix = features if isinstance(features, csr_array) else csr_array(features)
        # a new object, because the flags of this one may be older than its arrays
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


def _check_indices(matrix: Any) -> None:
    """Raise DataError for entries outside of the matrix. Neither compiled kernels nor SciPy check this."""
    valid = True
    if matrix.format in ("csr", "csc"):
        pointers, (n_major, n_minor) = matrix.indptr, matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
        last = int(pointers[-1])
        valid = len(pointers) == n_major + 1 and pointers[0] == 0 and bool((pointers[1:] >= pointers[:-1]).all())
        valid = valid and last <= min(len(matrix.indices), len(matrix.data)) and _within(matrix.indices[:last], n_minor)
    elif matrix.format == "coo":
        valid = all(map(_within, matrix.coords, matrix.shape))
    if not valid:
        raise DataError("the sparse features have entries outside of their shape; build the matrix again")


def _within(indices: Any, size: int) -> bool:
    return not len(indices) or (int(indices.min()) >= 0 and int(indices.max()) < size)


def stacked(parts: Sequence[Features]) -> Features:
    """Return the rows of several matrices with the same columns and the same storage."""
    first = parts[0]
    if isinstance(first, CodedRows):
        coded = [part for part in parts if isinstance(part, CodedRows)]
        values, codes = np.concatenate([part.values for part in coded]), np.concatenate([part.codes for part in coded])
        return replace(first, values=values, codes=codes)
    return np.concatenate(parts) if isinstance(first, np.ndarray) else csr_array(vstack(parts))


def row_norms(features: Features) -> Floats:
    """Return the L2 norm of each row, without a copy of the matrix. NaN or inf for rows with such an entry."""
    with np.errstate(over="ignore"):
        if isinstance(features, CodedRows):
            out = np.empty(features.shape[0])
            for part in row_portions(features):
                for start in range(part.start, part.stop, CODED_ROWS):
                    block = slice(start, min(start + CODED_ROWS, part.stop))
                    out[block] = row_sums(squared(features[block]))
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
    """Raise DataError for rows that are not finite or have a norm above 1."""
    _check_finite(norms)
    long = np.flatnonzero(norms > 1.0 + NORM_SLACK)
    if len(long):
        raise DataError(
            f"row {long[0] + 1} has L2 norm {norms[long[0]]:.6g} > 1 ({_count(long)}); scale the columns "
            "by public constants, or set clip_rows=True (--clip-rows) to clip rows to norm 1"
        )


def _check_finite(norms: Floats) -> None:
    bad = np.flatnonzero(~np.isfinite(norms))
    if len(bad):
        raise DataError(
            f"row {bad[0] + 1} has a NaN, infinite or extremely large feature ({_count(bad)}); "
            "fill, scale or remove it first"
        )


def clip_rows(features: Features) -> Features:
    """Clip rows to an L2 norm of 1. Copies only if a row has a larger norm.

    Examples
    --------
    >>> clip_rows(np.array([[3.0, 4.0], [0.0, 0.5]])).round(6).tolist()
    [[0.6, 0.8], [0.0, 0.5]]
    """
    features = as_matrix(features)
    norms = row_norms(features)
    _check_finite(norms)  # scaling would turn an infinite row into NaN and an extremely large one into zeros
    if not np.any(norms > 1.0):
        return features
    # slightly below 1, so that rounding cannot raise the norm above 1
    scale = np.where(norms > 1.0, (1.0 - 2.0**-50) / np.maximum(norms, 1.0), 1.0).astype(features.dtype)
    if isinstance(features, csr_array):
        return csr_array(diags_array(scale) @ features)
    if isinstance(features, CodedRows):
        return replace(features, values=features.values * scale[:, None])
    return features * scale[:, None]


def without_subnormals(features: Features) -> Features:
    """Return features with subnormal numbers set to 0, which does not increase norms.

    Copies only if there are any. Encoded tables have none.

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
    """Append a constant column and scale: ``[0.96·a, 0.28]``. Norms of at most 1 stay at most 1.

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
