"""Array types shared by all layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.float64]
"""Float64 array; shapes are given where it is used."""

Integers = NDArray[np.int64]

LINE = 64
"""Bytes of a cache line."""

BLOCK = 2**18
"""Numbers that are compared at a time: they stay in the cache."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """``np.empty`` that begins with a cache line.

    The compiler reads 32 or 64 bytes at a time; where NumPy puts large arrays, 16 bytes into a line, half of these
    or all lie in two lines, and a pass over rows takes up to half as long again.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % LINE
    return room[start : start + size].view(dtype).reshape(shape)


def flush_subnormals(values: NDArray[Any]) -> None:
    """Set numbers below the smallest normal number of their type to 0, in place.

    Processors are slower with such numbers, so the time of a sum would depend on how many of them a table has.
    """
    np.copyto(values, 0, where=np.abs(values) < np.finfo(values.dtype).tiny)


def has_subnormals(values: NDArray[Any]) -> bool:
    """Whether a number is below the smallest normal number of its type and not 0."""
    least = np.finfo(values.dtype).tiny
    step = max(1, BLOCK * len(values) // max(1, values.size))
    blocks = (np.abs(values[start : start + step]) for start in range(0, len(values), step))
    return any(((block < least) & (block > 0.0)).any() for block in blocks)


def flushed(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same numbers without subnormal ones: a copy if there are any.

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


def kinds(*columns: NDArray[Any]) -> tuple[Integers, Integers]:
    """Where each combination of values first stands in columns of one length, and which of them every place has.

    Examples
    --------
    >>> first, which = kinds(np.array([5.0, 7.0, 5.0]), np.array([1, 1, 1]))
    >>> first.tolist(), which.tolist()
    ([0, 1], [0, 1, 0])
    """
    which = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if len(column) and np.any(column != column[0]):
            values, inverse = np.unique(column, return_inverse=True)
            which = np.unique(which * len(values) + inverse, return_inverse=True)[1]
    return np.unique(which, return_index=True)[1], which
