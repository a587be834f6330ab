"""Cells -> features, by the public schema alone: clamped, bucketed, scaled; one row never changes another.

Numbers are float32, whatever the table's size. What was clamped, unknown or missing is counted for the owner
of the table, and for nobody else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpadmm.arrays import Features
from dpadmm.data.batches import MISSING, comma_hint
from dpadmm.data.compact import compact_csr
from dpadmm.data.schema import OTHER, Boolean, Category, Column, Number, Ordinal, Plain, Schema
from dpadmm.errors import DataError

Values = NDArray[np.float32]
NUMERIC = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_null,
)
TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
DATES = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time)
TRUE, FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
ONE = np.float32(1.0)
FEW_WORDS = 256
HALF = np.float32(np.sqrt(0.5))
HUGE = 1e18
"""Plain numbers beyond are taken to be this: their rows are shortened to 1 anyway."""


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
    label: Tally = field(default_factory=Tally)


class Encoder:
    """Encodes batches of a table; ``report`` counts.

    With an intercept rows are ``[a, 1]/√2``, as :func:`dpadmm.features.with_intercept` makes them. ``total``
    leaves no cell without a meaning: what is no number is missing, and a plain number that is missing is 0.

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
            self._out *= HALF
            self._out[:, -1] = HALF
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
            self._values *= HALF
            self._values[:, -1] = HALF
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


def codes_of(
    cells: Any, values: tuple[str, ...], name: str, *, fold: bool = False
) -> tuple[NDArray[Any], int]:
    """The place of every cell among the values, −1 for all others; and how many cells are missing.

    Blanks around a cell do not count, nor do the zeros of 1.0, nor capitals where ``fold`` is set.
    """
    words, places = as_words(cells, name)
    codes = np.array([*_word_codes(words, values, fold), -2])[places]
    n_missing = int(np.count_nonzero(codes == -2))
    return np.maximum(codes, -1) if n_missing else codes, n_missing


def _word_codes(words: Any, values: tuple[str, ...], fold: bool) -> list[int]:
    """Places of words among the values, −1 for others, −2 for blanks; few words are looked up once only."""
    if len(words) > FEW_WORDS:
        return _looked_up(words, values, fold)
    known, texts = _known_words(values, fold), words.to_pylist()
    new = [text for text in texts if text not in known]
    if new:
        if len(known) > 100 * FEW_WORDS:
            known.clear()
            new = texts
        known.update(zip(new, _looked_up(_strings(new), values, fold), strict=True))
    return [known[text] for text in texts]


@lru_cache(maxsize=256)
def _known_words(values: tuple[str, ...], fold: bool) -> dict[str | None, int]:
    return {}


def _looked_up(words: Any, values: tuple[str, ...], fold: bool) -> list[int]:
    words = _normal(words)
    found = pc.index_in(pc.utf8_lower(words) if fold else words, value_set=_value_set(values))
    codes: list[int] = pc.if_else(pc.is_null(words), -2, pc.fill_null(found, -1)).to_pylist()
    return codes


def as_words(cells: Any, name: str) -> tuple[Any, NDArray[Any]]:
    """The different cells of a column as text, and which of them each cell is: −1 for missing cells."""
    kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
    if not any(is_kind(kind) for is_kind in (*TEXT, *NUMERIC, *DATES)):
        raise DataError(
            f"column {name!r} holds {kind} values; the study wants text, whole numbers or true/false"
        )
    if not pa.types.is_dictionary(cells.type):
        cells = (pc.cast(cells, pa.string()) if pa.types.is_string_view(kind) else cells).dictionary_encode()
    words = cells.dictionary
    if pa.types.is_floating(kind):  # not a number is no value
        words = pc.if_else(pc.is_nan(words), pa.scalar(None, kind), words)
    places = pc.fill_null(cells.indices, -1) if cells.null_count else cells.indices
    return pc.cast(words, pa.string()), np.asarray(places)


def as_numbers(cells: Any, name: str, *, total: bool = False) -> NDArray[np.float64]:
    """A column as numbers; missing cells are NaN, and with ``total`` also those that are no number."""
    cells = cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
    kind = cells.type
    if any(is_kind(kind) for is_kind in TEXT):
        cells = pc.utf8_trim_whitespace(pc.cast(cells, pa.string()))
        none = pc.is_in(cells, value_set=_strings(MISSING))
        cells = pc.if_else(none, pa.scalar(None, pa.string()), cells)
    elif not any(is_kind(kind) for is_kind in NUMERIC):
        raise DataError(f"column {name!r} holds {kind} values; the study says it is a number")
    try:
        numbers = pc.cast(cells, pa.float64(), safe=False)
    except pa.ArrowException as error:
        if total:
            words, places = as_words(cells, name)
            return np.asarray(np.array([*map(_number_or_nan, words), np.nan])[places])
        found = re.search(r"'(.*)' as a scalar", str(error).splitlines()[0])
        cell = found[1][:60] if found else ""
        raise DataError(
            f"column {name!r} is a number in the study, but a cell is {cell!r}{comma_hint(cell)}"
        ) from None
    return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)


def _number_or_nan(word: Any) -> float:
    """By the same reader as a whole column."""
    try:
        number = pc.cast(word, pa.float64()).as_py()
    except pa.ArrowException:
        return math.nan
    return math.nan if number is None else float(number)


def _normal(texts: Any) -> Any:
    """Text without blanks around, missing where nothing is left; 1.0 is 1."""
    texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), r"^([+-]?[0-9]+)\.0*$", r"\1")
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


@lru_cache(maxsize=256)
def _value_set(values: tuple[str, ...]) -> Any:
    return _normal(_strings(values))


def _strings(values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string())
