"""Array types shared by all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Float64 array; shapes are given where it is used."""

Integers = NDArray[np.int64]


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
