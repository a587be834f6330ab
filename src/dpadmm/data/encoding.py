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
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpadmm.arrays import Features
from dpadmm.data.compact import compact_csr
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Plain, Schema
from dpadmm.errors import DataError

Values = NDArray[np.float32]
Places = NDArray[np.int32]
NUMERIC = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_null,
)
TRUE, FALSE = pa.array(["true", "1", "yes", "y", "t"]), pa.array(["false", "0", "no", "n", "f"])


@dataclass
class Tally:
    """What happened to the cells of one column."""

    clamped: int = 0
    unknown: int = 0
    missing: int = 0


@dataclass
class Report:
    """What happened to a table's cells, by column: for its owner only, since it depends on the rows."""

    rows: int = 0
    columns: dict[str, Tally] = field(default_factory=dict)


class Encoder:
    """Encodes batches of a table; ``report`` counts.

    With an intercept rows are ``[a, 1]/√2``, as :func:`dpadmm.features.with_intercept` makes them.

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

    def __init__(self, schema: Schema, *, intercept: bool = False) -> None:
        self.schema, self.intercept = schema, intercept
        self.report = Report(columns={column.name: Tally() for column in schema.columns})

    def encode(self, batch: Any) -> Features:
        """A record batch with at least the schema's columns -> (rows, d) features of length at most 1."""
        n, places, values, first = batch.num_rows, [], [], 0
        for column in self.schema.columns:
            tally = self.report.columns[column.name]
            for place, value in ENCODERS[column.kind](column, batch.column(column.name), tally):
                places.append(np.broadcast_to(np.asarray(place + first, dtype=np.int32), (n,)))
                values.append(value)
            first += len(column.features)
        self.report.rows += n
        return self._matrix(np.stack(places, axis=1), np.stack(values, axis=1))

    def _matrix(self, places: Places, values: Values) -> Features:
        """Entries of rows -> a matrix of rows of length at most 1: dense, or sparse as the schema says."""
        n, stored = values.shape
        values = values / np.float32(self.schema.scale)
        lengths = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
        long = lengths > 1.0
        if long.any():
            values[long] *= ((1.0 - 2.0**-20) / lengths[long, None]).astype(np.float32)
        width = len(self.schema.features) + self.intercept
        if self.intercept:
            half = np.float32(np.sqrt(0.5))
            values = np.column_stack([values * half, np.full(n, half)])
            places = np.column_stack([places, np.full(n, width - 1, np.int32)])
            stored += 1
        if self.schema.sparse:
            pointers = np.arange(0, n * stored + 1, stored)
            return compact_csr(values.ravel(), places.ravel(), pointers, (n, width))
        out = np.zeros((n, width), dtype=np.float32)
        np.put_along_axis(out, places.astype(np.intp), values, axis=1)
        return out


Entries = list[tuple[Any, Values]]
"""Places (one for all rows, or one per row) within the column's features, and the values there."""


def _number(column: Number, cells: Any, tally: Tally) -> Entries:
    raw = as_numbers(cells, column.name)
    missing = ~np.isfinite(raw)
    low, high = column.bounds
    clamped = np.clip(np.where(missing, low, raw), low, high)
    tally.missing += int(missing.sum())
    tally.clamped += int(((clamped != raw) & ~missing).sum())
    if column.bins:
        return [
            (
                np.where(missing, len(column.bins) + 1, np.searchsorted(column.bins, clamped, "right")),
                _ones(raw),
            )
        ]
    if column.transform == "log":
        clamped, low, high = np.log(clamped), math.log(low), math.log(high)
    value = (clamped - low) / (high - low) * 2.0 - 1.0
    return _with_missing(value, missing, column)


def _plain(column: Plain, cells: Any, tally: Tally) -> Entries:
    raw = as_numbers(cells, column.name)
    if not np.isfinite(raw).all():
        raise DataError(
            f"column {column.name!r} has a missing or infinite cell, which a plain column may not have"
        )
    return [(0, raw.astype(np.float32))]


def _category(column: Category, cells: Any, tally: Tally) -> Entries:
    texts = as_text(cells, column.name)
    codes = codes_of(texts, column.values)
    found = codes >= 0
    tally.missing += texts.null_count
    tally.unknown += int((~found).sum()) - texts.null_count
    return [(np.where(found, codes, len(column.values)), _ones(codes))]


def _ordinal(column: Ordinal, cells: Any, tally: Tally) -> Entries:
    texts = as_text(cells, column.name)
    codes = codes_of(texts, column.values)
    missing = codes < 0
    tally.missing += texts.null_count
    tally.unknown += int(missing.sum()) - texts.null_count
    return _with_missing(codes / (len(column.values) - 1) * 2.0 - 1.0, missing, column)


def _boolean(column: Boolean, cells: Any, tally: Tally) -> Entries:
    texts = pc.utf8_lower(as_text(cells, column.name))
    true, false = (pc.is_in(texts, value_set=words).to_numpy(zero_copy_only=False) for words in (TRUE, FALSE))
    missing = ~(true | false)
    tally.missing += texts.null_count
    tally.unknown += int(missing.sum()) - texts.null_count
    return _with_missing(np.where(true, 1.0, -1.0), missing, column)


ENCODERS: Mapping[str, Callable[[Any, Any, Tally], Entries]] = {
    "number": _number,
    "plain": _plain,
    "category": _category,
    "ordinal": _ordinal,
    "boolean": _boolean,
}


def _with_missing(value: NDArray[Any], missing: NDArray[Any], column: Column) -> Entries:
    """The value, or 0 where it is missing; and 1 in the column's second feature there, if it has one."""
    entries: Entries = [(0, np.where(missing, 0.0, value).astype(np.float32))]
    return entries if len(column.features) == 1 else [*entries, (1, missing.astype(np.float32))]


def codes_of(texts: Any, values: tuple[str, ...]) -> NDArray[Any]:
    """The place of every cell among the values; −1 for all others."""
    found = pc.index_in(texts, value_set=pa.array(values, type=pa.string()))
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False))


def _ones(like: NDArray[Any]) -> Values:
    return np.ones(len(like), dtype=np.float32)


def as_numbers(cells: Any, name: str) -> NDArray[np.float64]:
    """A column as numbers; missing cells are NaN."""
    kind = cells.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        trimmed = pc.utf8_trim_whitespace(cells)
        cells = pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, trimmed.type), trimmed)
    elif not any(is_kind(kind) for is_kind in NUMERIC):
        raise DataError(f"column {name!r} holds {kind} values; the study says it is a number")
    try:
        numbers = pc.cast(cells, pa.float64(), safe=False)
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"column {name!r} is a number in the study, but a cell is not ({reason[:120]})"
        ) from None
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


def as_text(cells: Any, name: str) -> Any:
    """A column as text without blanks around; empty cells are missing."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        cells = cells.dictionary_decode()
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        raise DataError(
            f"column {name!r} holds {kind} values; the study wants text, whole numbers or true/false"
        )
    texts = pc.utf8_trim_whitespace(pc.cast(cells, pa.string()))
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
