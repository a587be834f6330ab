"""Rows that are filled feature by feature: dense, or the stored entries of sparse rows.

Every operation is on single cells in the same order, so that not even a rounding depends on other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.schema import Schema
from dpadmm.optim.features import BESIDE_INTERCEPT, INTERCEPT

Values = NDArray[np.float32]

TILE = 64
"""Features that are turned from columns into rows at a time: as many lines of memory stay close at hand."""


class DenseRows:
    """All features of n rows; those that are not set are 0."""

    def __init__(self, n: int, schema: Schema, *, intercept: bool) -> None:
        self._scale, self._intercept = np.float32(schema.scale), intercept
        self._squares = None if schema.bounded else np.zeros(n)
        self._columns = np.zeros((len(schema.features), n), dtype=np.float32)
        self._each = np.arange(n)

    def append(self, place: Any, value: Any) -> None:
        """Set one feature of all rows, or another one in every row to the same value; divided by R."""
        if isinstance(place, int):
            scaled = np.divide(value, self._scale, out=self._columns[place])
        else:
            scaled = value / self._scale
            self._columns.reshape(-1)[place * len(self._each) + self._each] = scaled
        if self._squares is not None:
            self._squares += np.multiply(scaled, scaled, dtype=np.float64)

    def finish(self) -> tuple[Values]:
        """Rows of length at most 1, (n, d)."""
        d, n = self._columns.shape
        _shorten(self._columns, self._squares)
        out = np.empty((n, d + self._intercept), dtype=np.float32)
        for start in range(0, d, TILE):
            part = self._columns[start : start + TILE]
            if self._intercept:
                part *= np.float32(BESIDE_INTERCEPT)
            out[:, start : start + len(part)] = part.T
        if self._intercept:
            out[:, -1] = INTERCEPT
        return (out,)


class SparseRows:
    """As many stored entries in each of n rows, and their places."""

    def __init__(self, n: int, schema: Schema, *, intercept: bool) -> None:
        self._scale, self._intercept = np.float32(schema.scale), intercept
        self._squares = None if schema.bounded else np.zeros(n)
        shape = (schema.n_stored + intercept, n)
        self._columns, self._places = np.empty(shape, np.float32), np.empty(shape, np.int32)
        self._filled, self._last = 0, len(schema.features)

    def append(self, place: Any, value: Any) -> None:
        """Append an entry to every row: the value, divided by R."""
        scaled = np.divide(value, self._scale)
        self._columns[self._filled], self._places[self._filled] = scaled, place
        self._filled += 1
        if self._squares is not None:
            self._squares += np.multiply(scaled, scaled, dtype=np.float64)

    def finish(self) -> tuple[Values, NDArray[np.int32]]:
        """Entries of rows of length at most 1, and their places, both (n, entries)."""
        columns = self._columns[: self._filled]
        _shorten(columns, self._squares)
        if self._intercept:
            columns *= np.float32(BESIDE_INTERCEPT)
            self._columns[-1], self._places[-1] = INTERCEPT, self._last
        return np.ascontiguousarray(self._columns.T), np.ascontiguousarray(self._places.T)


def _shorten(columns: Values, squares: NDArray[np.float64] | None) -> None:
    if squares is not None and (long := squares > 1.0).any():
        columns[:, long] *= ((1.0 - 2.0**-20) / np.sqrt(squares[long])).astype(np.float32)
