"""Array types shared by all layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.float64]
"""Float64 array."""

Integers = NDArray[np.int64]

LINE = 64
"""Size of a cache line in bytes."""

BLOCK = 2**18
"""Numbers that are compared at once, so that they stay in the cache."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an uninitialised array that begins at a cache line.

    Compiled loops read 32 or 64 bytes at once. NumPy places large arrays 16 bytes after the start of a line, so that
    half or all of these reads touch two lines, and a pass over the rows takes up to 50% longer.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % LINE
    return room[start : start + size].view(dtype).reshape(shape)


def flush_subnormals(values: NDArray[Any]) -> None:
    """Set numbers below the smallest normal number of their type to 0, in place.

    Processors are slower with such numbers, so the duration of a sum would depend on their count in a table.
    """
    np.copyto(values, 0, where=np.abs(values) < np.finfo(values.dtype).tiny)


def has_subnormals(values: NDArray[Any]) -> bool:
    """Return whether an entry is not 0 and below the smallest normal number of its type."""
    smallest = np.finfo(values.dtype).tiny
    step = max(1, BLOCK * len(values) // max(1, values.size))
    blocks = (np.abs(values[start : start + step]) for start in range(0, len(values), step))
    return any(((block < smallest) & (block > 0.0)).any() for block in blocks)


def flushed(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same numbers with subnormal numbers set to 0. Copies only if there are any.

    Examples
    --------
    >>> flushed(np.array([1e-310, -1e-310, 1.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    if not has_subnormals(values):
        return values
    copy = values.copy()
    flush_subnormals(copy)
    return copy


def distinct_rows(*columns: NDArray[Any]) -> tuple[Integers, Integers]:
    """Return the first index of each distinct combination of values, and the combination at each index.

    Examples
    --------
    >>> first, which = distinct_rows(np.array([5.0, 7.0, 5.0]), np.array([1, 1, 1]))
    >>> first.tolist(), which.tolist()
    ([0, 1], [0, 1, 0])
    """
    which = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if len(column) and np.any(column != column[0]):
            values, inverse = np.unique(column, return_inverse=True)
            which = np.unique(which * len(values) + inverse, return_inverse=True)[1]
    return np.unique(which, return_index=True)[1], which
