"""Cells -> features, by the public schema alone: clamped, bucketed, scaled; one row never changes another.

Numbers are float32, whatever the table's size. What was clamped, unknown or missing is counted for the owner
of the table, and for nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpadmm.arrays import Features
from dpadmm.data.cells import as_numbers, codes_of
from dpadmm.data.compact import compact_csr
from dpadmm.data.schema import OTHER, Boolean, Category, Column, Number, Ordinal, Plain, Schema
from dpadmm.errors import DataError
from dpadmm.features import BESIDE_INTERCEPT, INTERCEPT

Values = NDArray[np.float32]
TRUE, FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
ONE = np.float32(1.0)
HUGE = 1e18
"""Plain numbers beyond are taken to be this: their rows are shortened to 1 anyway."""


@dataclass
class Tally:
    """What happened to the cells of one column."""

    clamped: int = 0
    unknown: int = 0
    missing: int = 0


MUCH = 0.05
"""A larger share of a column's cells than this is worth a word to the table's owner."""


def much(columns: Mapping[str, Tally], rows: int, kind: str) -> dict[str, int]:
    """Columns of which much was ``kind`` (clamped, unknown or missing), and how many cells."""
    counts = {name: int(getattr(tally, kind)) for name, tally in columns.items()}
    return {name: count for name, count in counts.items() if count > MUCH * rows}


@dataclass
class Report:
    """What happened to a table's cells, by column: for its owner only, since it depends on the rows."""

    rows: int = 0
    columns: dict[str, Tally] = field(default_factory=dict)
    label: Tally = field(default_factory=Tally)


class Encoder:
    """Encodes batches of a table; ``report`` counts.

    With an intercept rows are ``[0.96·a, 0.28]``, as :func:`dpadmm.features.with_intercept` makes them.
    ``total`` leaves no cell without a meaning: what is no number is missing, and a missing plain number
    is 0.

    Examples
    --------
    >>> schema = Schema((Number("age", (0, 100)), Category("sex", ("f", "m"))), row_norm=1.0)
    >>> batch = pa.record_batch({"age": [50, 175, None], "sex": ["m", "x", "f"]})
    >>> encoder = Encoder(schema)
    >>> encoder.encode(batch).tolist()
    [[0.0, 0.0, 1.0, 0.0], [0.7071..., 0.0, 0.0, 0.7071...], [0.0, 1.0, 0.0, 0.0]]
    >>> encoder.report.columns["age"]
    Tally(clamped=1, unknown=0, missing=1)
    """

    def __init__(self, schema: Schema, *, intercept: bool = False, total: bool = False) -> None:
        self.schema, self.intercept, self.total = schema, intercept, total
        self.report = Report(columns={column.name: Tally() for column in schema.columns})

    def encode(self, batch: Any) -> Features:
        """A record batch with at least the schema's columns -> (rows, d) features of length at most 1."""
        n, first, rows = batch.num_rows, 0, self._empty(batch.num_rows)
        for column in self.schema.columns:
            tally = self.report.columns[column.name]
            cells = batch.column(column.name)
            if self.total and isinstance(column, Number | Plain):
                cells = _numbers_of_any(cells, column, tally)
            for place, value in ENCODERS[column.kind](column, cells, tally):
                rows.append(place + first, value / np.float32(self.schema.scale))
            first += len(column.features)
        self.report.rows += n
        return rows.finish()

    def _empty(self, n: int) -> _Dense | _Sparse:
        return (_Sparse if self.schema.sparse else _Dense)(n, self.schema, self.intercept)


class _Dense:
    """Rows that are filled feature by feature, and shortened to 1 where they are longer.

    Every operation is on single cells in the same order, so that not even a rounding depends on other rows.
    """

    def __init__(self, n: int, schema: Schema, intercept: bool) -> None:
        width = len(schema.features) + intercept
        self._intercept, self._starts = intercept, np.arange(0, n * width, width)
        self._squares = None if schema.bounded else np.zeros(n)
        self._out = np.zeros((n, width), dtype=np.float32)

    def append(self, place: Any, value: Any) -> None:
        """Set one feature of all rows, or another one in every row."""
        if self._squares is not None:
            self._squares += np.multiply(value, value, dtype=np.float64)
        if isinstance(place, int):
            self._out[:, place] = value
        else:
            self._out.reshape(-1)[self._starts + place] = value

    def finish(self) -> Features:
        _shorten(self._out, self._squares)
        if self._intercept:
            self._out *= np.float32(BESIDE_INTERCEPT)
            self._out[:, -1] = INTERCEPT
        return self._out


class _Sparse:
    """As :class:`_Dense`, with the places of the entries beside them."""

    def __init__(self, n: int, schema: Schema, intercept: bool) -> None:
        self._shape, self._intercept = (n, len(schema.features) + intercept), intercept
        self._squares = None if schema.bounded else np.zeros(n)
        self._values = np.zeros((n, schema.n_stored + intercept), np.float32)
        self._places = np.full(self._values.shape, self._shape[1] - 1, np.int32)
        self._filled = 0

    def append(self, place: Any, value: Any) -> None:
        """Append an entry to every row."""
        if self._squares is not None:
            self._squares += np.multiply(value, value, dtype=np.float64)
        self._values[:, self._filled], self._places[:, self._filled] = value, place
        self._filled += 1

    def finish(self) -> Features:
        _shorten(self._values, self._squares)
        if self._intercept:
            self._values *= np.float32(BESIDE_INTERCEPT)
            self._values[:, -1] = INTERCEPT
        n, stored = self._values.shape
        pointers = np.arange(0, n * stored + 1, stored)
        return compact_csr(self._values.ravel(), self._places.ravel(), pointers, self._shape)


def _shorten(values: Values, squares: NDArray[np.float64] | None) -> None:
    if squares is not None and (long := squares > 1.0).any():
        values[long] *= ((1.0 - 2.0**-20) / np.sqrt(squares[long, None])).astype(np.float32)


Entries = list[tuple[Any, Any]]
"""Places (one for all rows, or one per row) within the column's features, and the values there."""


def _number(column: Number, cells: Any, tally: Tally) -> Entries:
    raw = as_numbers(cells, column.name)
    low, high = column.bounds
    finite = np.isfinite(raw)
    n_missing = len(raw) - int(np.count_nonzero(finite))
    clamped = np.clip(raw, low, high)
    tally.missing += n_missing
    tally.clamped += int(np.count_nonzero(clamped != raw)) - n_missing  # NaN and ∞ differ too
    missing = ~finite if n_missing else None
    if missing is not None:
        clamped[missing] = low
    if column.bins:
        places = np.searchsorted(column.bins, clamped, "right")
        if missing is not None:
            places[missing] = len(column.bins) + 1
        return [(places, ONE)]
    if column.transform == "log":  # logarithms are rounded, here and there differently
        low, high = math.log(low), math.log(high)
        clamped = np.clip(np.log(clamped), low, high)
    clamped -= low
    clamped /= (high - low) / 2.0  # at most 2, whatever the rounding
    clamped -= 1.0
    return _with_missing(clamped, missing, column)


def _plain(column: Plain, cells: Any, tally: Tally) -> Entries:
    raw = as_numbers(cells, column.name)
    if not np.isfinite(raw).all():
        raise DataError(
            f"column {column.name!r} has a missing or infinite cell, which a plain column may not have"
        )
    return [(0, np.clip(raw, -HUGE, HUGE).astype(np.float32))]


def _numbers_of_any(cells: Any, column: Number | Plain, tally: Tally) -> Any:
    """Numbers of whatever cells hold: what is none is missing, and 0 in a plain column."""
    numbers = as_numbers(cells, column.name, total=True)
    if isinstance(column, Plain):
        missing = ~np.isfinite(numbers)
        tally.missing += int(np.count_nonzero(missing))
        numbers = np.where(missing, 0.0, numbers)
    return pa.array(numbers)


def _category(column: Category, cells: Any, tally: Tally) -> Entries:
    # a cell that says "other" means that bucket, and is no unknown value
    codes, others = _tallied(cells, (*column.values, OTHER), column.name, tally)
    if others is not None:
        codes[others] = len(column.values)
    return [(codes, ONE)]


def _ordinal(column: Ordinal, cells: Any, tally: Tally) -> Entries:
    codes, others = _tallied(cells, column.values, column.name, tally)
    return _with_missing(codes / (len(column.values) - 1) * 2.0 - 1.0, others, column)


def _boolean(column: Boolean, cells: Any, tally: Tally) -> Entries:
    codes, others = _tallied(cells, (*TRUE, *FALSE), column.name, tally, fold=True)
    return _with_missing(np.where(codes < len(TRUE), 1.0, -1.0), others, column)


ENCODERS: Mapping[str, Callable[[Any, Any, Tally], Entries]] = {
    "number": _number,
    "plain": _plain,
    "category": _category,
    "ordinal": _ordinal,
    "boolean": _boolean,
}


def _with_missing(value: NDArray[Any], missing: NDArray[Any] | None, column: Column) -> Entries:
    """The value, or 0 where it is missing; and 1 in the column's second feature there, if it has one."""
    if missing is not None:
        value[missing] = 0.0
    entries: Entries = [(0, value.astype(np.float32))]
    if len(column.features) == 1:
        return entries
    return [
        *entries,
        (1, np.zeros(len(value), np.float32) if missing is None else missing.astype(np.float32)),
    ]


def _tallied(
    cells: Any, values: tuple[str, ...], name: str, tally: Tally, *, fold: bool = False
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Places among the values, and which cells have none, if any."""
    codes, n_missing = codes_of(cells, values, name, fold=fold)
    others = codes < 0
    n_others = int(np.count_nonzero(others))
    tally.missing += n_missing
    tally.unknown += n_others - n_missing
    return codes, others if n_others else None
