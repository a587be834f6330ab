"""Cells -> features, by the public schema alone: clamped, bucketed, scaled; one row never changes another.

Numbers are float32, whatever the table's size. What was clamped, unknown or missing is counted for the owner
of the table, and for nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from dpadmm.data.cells import WordCache, as_numbers, word_codes
from dpadmm.data.schema import OTHERS, Boolean, Category, Column, Interaction, Number, Ordinal, Plain, Schema
from dpadmm.data.tabulation import Counts, Crossed, NumberMoments
from dpadmm.errors import DataError
from dpadmm.matrices.arrays import LINE, flush_subnormals
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT
from dpadmm.matrices.coded import CodedRows, code_type
from dpadmm.matrices.features import Features

Values = NDArray[np.float32]
TRUE, FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
ZERO, ONE = np.float32(0.0), np.float32(1.0)
HUGE = 1e18
"""Plain numbers beyond are taken to be this: their rows are shortened to 1 anyway."""

MUCH = 0.05
"""A larger share of a column's cells than this is worth a word to the table's owner."""


@dataclass
class Tally:
    """What happened to the cells of one column."""

    clamped: int = 0
    unknown: int = 0
    missing: int = 0


def much(columns: Mapping[str, Tally], rows: int, kind: str) -> dict[str, int]:
    """Columns of which much was ``kind`` (clamped, unknown or missing), and how many cells."""
    counts = {name: int(getattr(tally, kind)) for name, tally in columns.items()}
    return {name: count for name, count in counts.items() if count > MUCH * rows}


@dataclass
class Report:
    """What happened to a table's cells, by column: for its owner only, since it depends on the rows."""

    rows: int = 0
    shortened: int = 0
    columns: dict[str, Tally] = field(default_factory=dict)
    label: Tally = field(default_factory=Tally)


class Encoder:
    """Encodes batches of a table; ``report`` counts, and ``words`` holds cells while the encoder lives.

    With an intercept rows are ``[0.96·a, 0.28]``, as :func:`dpadmm.matrices.clipping.with_intercept` makes them.
    ``total`` leaves no cell without a meaning: what is no number is missing, and a plain number that is
    missing is 0.

    Examples
    --------
    >>> schema = Schema((Number("age", (0, 100)), Category("sex", ("f", "m"))), row_norm=1.0)
    >>> batch = pa.record_batch({"age": [50, 175, None], "sex": ["m", "x", "f"]})
    >>> encoder = Encoder(schema)
    >>> encoder.encode(batch).toarray().tolist()
    [[0.0, 0.0, 1.0, 0.0], [0.7071..., 0.0, 0.0, 0.7071...], [0.0, 1.0, 0.0, 0.0]]
    >>> encoder.report.columns["age"]
    Tally(clamped=1, unknown=0, missing=1)
    """

    def __init__(self, schema: Schema, *, intercept: bool = False, total: bool = False) -> None:
        self.schema, self.intercept, self.total = schema, intercept, total
        self.report = Report(columns={column.name: Tally() for column in schema.sources})
        self.words = WordCache()

    @property
    def stored(self) -> tuple[tuple[np.dtype[Any], int], ...]:
        """Type and width of the arrays that rows are stored in: dense rows, or values and codes."""
        schema, real = self.schema, np.dtype(np.float32)
        if not schema.n_categories:
            return ((real, len(schema.features) + self.intercept),)
        values = len(schema.number_places) + self.intercept + 1
        return (real, values), (code_type(len(schema.features)), schema.n_categories)

    def matrix(self, blocks: tuple[NDArray[Any], ...]) -> Features:
        """The rows that such arrays hold."""
        if len(blocks) == 1:
            return blocks[0]
        values, codes = blocks
        d = len(self.schema.features)
        places = (*self.schema.number_places, *([d] if self.intercept else []))
        return CodedRows(values, codes, np.array(places, np.int64), d + self.intercept)

    def encode(self, batch: Any) -> Features:
        """A record batch with at least the schema's columns -> (rows, d) features of length at most 1."""
        return self.matrix(tuple(np.ascontiguousarray(each) for each in self.encode_blocks(batch)))

    def encode_blocks(self, batch: Any) -> tuple[NDArray[Any], ...]:
        """The same, as the arrays that rows are stored in: column by column, so that whoever keeps them copies once."""
        n, first = batch.num_rows, 0
        rows = (CodedBlock if self.schema.n_categories else DenseBlock)(n, self.schema, intercept=self.intercept)
        paired: dict[str, Entries] = {name: [] for pair in self.schema.interactions for name in pair}
        for term in self.schema.terms:
            if isinstance(term, Interaction):
                entries = _products(term, paired[term.left.name], paired[term.right.name])
            else:
                entries = self._entries(term, batch)
                if term.name in paired:
                    paired[term.name] = entries
            for place, value in entries:
                rows.append(place + first, value)
            first += len(term.features)
        self.report.rows += n
        blocks = rows.finish()
        self.report.shortened += rows.shortened
        return blocks

    def _entries(self, column: Any, batch: Any, *, again: bool = False) -> Entries:
        """The entries of one column; what is read ``again`` was tallied before."""
        if isinstance(column, Crossed):
            (one, _), (other, _) = (self._entries(each, batch, again=True)[0] for each in column.pair)
            return [(one * len(column.pair[1].features) + other, ONE)]
        (source,) = getattr(column, "sources", (column,))
        tally = Tally() if again or isinstance(column, NumberMoments) else self.report.columns[source.name]
        cells = batch.column(source.name)
        if self.total and isinstance(source, Number | Plain):
            cells = _numbers_of_any(cells, source, tally)
        return ENCODERS[column.kind](column, cells, tally, self.words)


Entries = list[tuple[Any, Any]]
"""Places (one for all rows, or one per row) within the column's features, and the values there."""


def _products(term: Interaction, left: Entries, right: Entries) -> Entries:
    """All products of the features of two columns; of two categories, which of the products is 1."""
    width = len(term.right.features)
    if not isinstance(left[0][0], int) and not isinstance(right[0][0], int):
        return [(left[0][0].astype(np.int64) * width + right[0][0], ONE)]
    ours, theirs = _spread(term.left, left), _spread(term.right, right)
    return [(i * width + j, one * other) for i, one in ours for j, other in theirs]


def _spread(column: Column, entries: Entries) -> Entries:
    """Every feature of a column with its values, also of a category."""
    place = entries[0][0]
    return (
        entries
        if isinstance(place, int)
        else [(j, (place == j).astype(np.float32)) for j in range(len(column.features))]
    )


def _number(column: Number, cells: Any, tally: Tally, words: WordCache) -> Entries:
    raw = as_numbers(cells, column.name)
    low, high = column.bounds
    value = np.clip(raw, low, high)
    missing = None
    n_changed = int(np.count_nonzero(value != raw))  # NaN and ∞ too
    if n_changed:
        missing = ~np.isfinite(raw)
        n_missing = int(np.count_nonzero(missing))
        tally.missing += n_missing
        tally.clamped += n_changed - n_missing
        missing = missing if n_missing else None
    if column.bins:
        places = np.searchsorted(column.bins, value, "right")
        if missing is not None:
            places[missing] = len(column.bins) + 1
        return [(places, ONE)]
    if column.transform == "log":  # logarithms are rounded, here and there differently
        low, high = column.ends
        value = np.clip(np.log(value, out=value), low, high, out=value)
    if column.knots:
        return _hats(column, value, missing)
    if column.center is None or column.scale is None:
        value -= low
        value /= (high - low) / 2.0  # at most 2, whatever the rounding
        value -= 1.0
    else:
        value -= column.center
        value /= column.scale
    return _with_missing(value.astype(np.float32), missing, column)


def _hats(column: Number, value: NDArray[np.float64], missing: NDArray[np.bool_] | None) -> Entries:
    """The spline's features: 1 − t at the node before a value and t at the one behind."""
    nodes = np.array(column.nodes)
    value = np.where(missing, nodes[0], value) if missing is not None else value
    before = np.minimum(np.searchsorted(nodes, value, "right") - 1, len(nodes) - 2)
    share = np.clip((value - nodes[before]) / (nodes[before + 1] - nodes[before]), 0.0, 1.0).astype(np.float32)
    there = np.ones_like(share) if missing is None else (~missing).astype(np.float32)
    hats = [((before == k) * (ONE - share) + (before == k - 1) * share) * there for k in range(len(nodes))]
    return [*enumerate(hats), (len(nodes), ONE - there)]


def _plain(column: Plain, cells: Any, tally: Tally, words: WordCache) -> Entries:
    raw = as_numbers(cells, column.name)
    if not np.isfinite(raw).all():
        raise DataError(f"column {column.name!r} has a missing or infinite cell, which a plain column may not have")
    return [(0, np.clip(raw, -HUGE, HUGE).astype(np.float32))]


def _numbers_of_any(cells: Any, column: Number | Plain, tally: Tally) -> Any:
    """Numbers of whatever cells hold: what is none is missing, and 0 in a plain column."""
    numbers = as_numbers(cells, column.name, total=True)
    if isinstance(column, Plain):
        missing = ~np.isfinite(numbers)
        tally.missing += int(np.count_nonzero(missing))
        numbers = np.where(missing, 0.0, numbers)
    return pa.array(numbers)


def _category(column: Category, cells: Any, tally: Tally, words: WordCache) -> Entries:
    # a cell that says "other" means that bucket, and is no unknown value
    named = dict.fromkeys((*column.values, *OTHERS))
    codes, places = tallied(cells, tuple(named), column.name, tally, words)
    return [(np.where(codes < 0, len(column.values), np.minimum(codes, len(column.values))).take(places), ONE)]


def _ordinal(column: Ordinal, cells: Any, tally: Tally, words: WordCache) -> Entries:
    codes, places = tallied(cells, column.values, column.name, tally, words)
    return _of_words(codes / (len(column.values) - 1) * 2.0 - 1.0, codes < 0, places, column)


def _boolean(column: Boolean, cells: Any, tally: Tally, words: WordCache) -> Entries:
    codes, places = tallied(cells, (*TRUE, *FALSE), column.name, tally, words, fold=True)
    return _of_words(np.where(codes < len(TRUE), 1.0, -1.0), codes < 0, places, column)


def _counts(column: Counts, cells: Any, tally: Tally, words: WordCache) -> Entries:
    """Which bin every cell is in: of its value, of none of them (the last but one), or of missing cells."""
    read = column.binned
    if isinstance(read, Number):
        return _number(read, cells, tally, words)
    other = len(column.labels) - 2
    if isinstance(read, Boolean):
        codes, places = tallied(cells, (*FALSE, *TRUE), read.name, tally, words, fold=True)
        known = codes >= len(FALSE)
    else:
        codes, places = tallied(cells, tuple(dict.fromkeys((*column.labels[:other], *OTHERS))), read.name, tally, words)
        known = np.minimum(codes, other)
    return [(np.where(codes == -2, other + 1, np.where(codes < 0, other, known))[places], ONE)]


def _moments(column: NumberMoments, cells: Any, tally: Tally, words: WordCache) -> Entries:
    (_, value), (_, missing) = _number(column.line, cells, tally, words)
    return [(0, value), (1, np.where(missing > 0.0, ZERO, 2.0 * value * value - ONE))]


ENCODERS: Mapping[str, Callable[[Any, Any, Tally, WordCache], Entries]] = {
    "number": _number,
    "plain": _plain,
    "category": _category,
    "ordinal": _ordinal,
    "boolean": _boolean,
    "counts": _counts,
    "moments": _moments,
}


def _of_words(value: NDArray[Any], missing: NDArray[np.bool_], places: NDArray[Any], column: Column) -> Entries:
    """The entries of every different cell, given to all cells."""
    entries = _with_missing(value.astype(np.float32), missing, column)
    return [(place, each.take(places)) for place, each in entries]


def _with_missing(value: Values, missing: NDArray[np.bool_] | None, column: Column) -> Entries:
    """The value, or 0 where it is missing; and 1 in the column's second feature there, if it has one."""
    if missing is not None:
        value[missing] = 0.0
    if len(column.features) == 1:
        return [(0, value)]
    return [(0, value), (1, np.zeros_like(value) if missing is None else missing.astype(np.float32))]


def tallied(
    cells: Any, values: tuple[str, ...], name: str, tally: Tally, words: WordCache, *, fold: bool = False
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Places of different cells among the values, negative where there is none; and which each cell is."""
    codes, places = word_codes(cells, values, name, words, fold=fold)
    places = places.astype(np.intp, copy=False)  # once for all that is looked up
    found = np.minimum(codes, 0).astype(np.int8).take(places)
    tally.missing += int(np.count_nonzero(found == -2))
    tally.unknown += int(np.count_nonzero(found == -1))
    return codes, places


# Rows are filled feature by feature. Every operation is on single cells in the same order, so that not even a
# rounding depends on other rows.


def _column_room(count: int, n: int, kind: DTypeLike) -> NDArray[Any]:
    """Room for columns of n entries, an odd number of cache lines apart.

    To make rows of them, an entry of every column is read. If they were 4,096 bytes apart, or a multiple of that, each
    would drive another out of the cache, and it would take six times as long.
    """
    size = np.dtype(kind).itemsize
    lines = -(-n * size // LINE) | 1
    return np.empty((count, lines * LINE // size), kind)[:, :n]


class DenseBlock:
    """All features of n rows of numbers."""

    def __init__(self, n: int, schema: Schema, *, intercept: bool) -> None:
        self._scale, self._intercept = np.float32(schema.scale), intercept
        self._squares, self.shortened = None if schema.bounded else np.zeros(n), 0
        self._columns = _column_room(len(schema.features) + intercept, n, np.float32)

    def append(self, place: int, value: Any) -> None:
        """Set one feature of all rows, divided by R."""
        scaled = np.divide(value, self._scale, out=self._columns[place])
        if self._squares is not None:
            self._squares += np.multiply(scaled, scaled, dtype=np.float64)

    def finish(self) -> tuple[Values]:
        """Rows of length at most 1, (n, d)."""
        features = self._columns[: len(self._columns) - self._intercept]
        self.shortened = _shorten(features, self._squares)
        if self._intercept:
            features *= np.float32(BESIDE_INTERCEPT)
            self._columns[-1] = INTERCEPT
        _flush(self._columns)
        return (self._columns.T,)


class CodedBlock:
    """Numbers and factor of n rows, and which features their categories set."""

    def __init__(self, n: int, schema: Schema, *, intercept: bool) -> None:
        self._scale, self._intercept = np.float32(schema.scale), intercept
        self._squares, self.shortened = None if schema.bounded else np.zeros(n), 0
        self._columns = _column_room(len(schema.number_places) + intercept + 1, n, np.float32)
        self._columns[:] = 0.0
        self._columns[-1] = ONE / self._scale
        self._codes = _column_room(schema.n_categories, n, code_type(len(schema.features)))
        self._numbers, self._categories = iter(self._columns), iter(self._codes)

    def append(self, place: Any, value: Any) -> None:
        """Append a number to all rows, divided by R; or a category, that is which feature it sets."""
        if isinstance(place, int):
            scaled = np.divide(value, self._scale, out=next(self._numbers))
        else:
            scaled = self._columns[-1]
            next(self._categories)[:] = place
        if self._squares is not None:
            self._squares += np.multiply(scaled, scaled, dtype=np.float64)

    def finish(self) -> tuple[Values, NDArray[Any]]:
        """Values of rows of length at most 1, (n, numbers + 1), and their codes, (n, categories)."""
        self.shortened = _shorten(self._columns, self._squares)
        if self._intercept:
            self._columns *= np.float32(BESIDE_INTERCEPT)
            self._columns[-2] = INTERCEPT
        _flush(self._columns)
        return self._columns.T, self._codes.T


def _flush(columns: Values) -> None:
    """Set subnormal numbers to 0, after all scaling: rows only become shorter."""
    for column in columns:  # one at a time stays in the cache
        flush_subnormals(column)


def _shorten(columns: Values, squares: NDArray[np.float64] | None) -> int:
    """Shorten rows that are longer than 1, and count them."""
    if squares is None or not (long := squares > 1.0).any():
        return 0
    columns[:, long] *= ((1.0 - 2.0**-20) / np.sqrt(squares[long])).astype(np.float32)
    return int(np.count_nonzero(long))
