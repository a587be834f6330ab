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


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """``np.empty`` that begins with a cache line.

    The compiler reads 32 or 64 bytes at a time; where NumPy puts large arrays, 16 bytes into a line, half of these
    or all lie in two lines, and a pass over rows takes up to half as long again.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + LINE, np.uint8)
    start = -int(room.__array_interface__["data"][0]) % LINE
    return room[start : start + size].view(dtype).reshape(shape)


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
