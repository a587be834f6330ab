"""Encode cells as features by the public schema: clamp, bin, scale. No row affects the encoding of another row.

Features are float32. Clamped, unknown and missing cells are counted in a report, which only the owner may see.
"""

from __future__ import annotations

import math
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
"""Bound on the absolute value of plain numbers. Rows with larger numbers are clipped to norm 1 anyway."""

MIN_SPREAD = 0.02
"""Standard deviation of an encoded number below which its column is nearly constant. Bounds are mapped to [−1, 1]."""

MAX_UNREPORTED_SHARE = 0.05
"""Share of a column's cells above which the owner is informed."""


@dataclass
class Tally:
    """Number of cells of one column that were clamped, unknown or missing."""

    clamped: int = 0
    unknown: int = 0
    missing: int = 0


@dataclass
class Spread:
    """Running sums of an encoded number."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: NDArray[np.float32]) -> None:
        """Add the values of a batch."""
        self.n += len(values)
        self.total += float(values.sum(dtype=np.float64))
        self.squares += float(np.dot(values, values))

    @property
    def std(self) -> float:
        mean = self.total / max(self.n, 1)
        return math.sqrt(max(0.0, self.squares / max(self.n, 1) - mean * mean))


@dataclass
class Report:
    """Changes to a table's cells, by column. It depends on the rows, so only the owner may see it."""

    rows: int = 0
    clipped: int = 0
    columns: dict[str, Tally] = field(default_factory=dict)
    label: Tally = field(default_factory=Tally)
    spreads: dict[str, Spread] = field(default_factory=dict, compare=False)

    def nearly_constant(self) -> list[str]:
        """Return a warning for each number whose scale or bounds make it nearly constant."""
        spreads = {name: spread.std for name, spread in self.spreads.items()}
        return [
            f"column {name!r} {nearly_constant_text(std)}" for name, std in spreads.items() if 0.0 < std < MIN_SPREAD
        ]

    def frequent_issues(self, kind: str) -> dict[str, int]:
        """Return the number of clamped, unknown or missing cells, for the columns in which they are frequent."""
        counts = {name: int(getattr(tally, kind)) for name, tally in self.columns.items()}
        return {name: count for name, count in counts.items() if count > MAX_UNREPORTED_SHARE * self.rows}


def nearly_constant_text(std: float) -> str:
    """Return the end of the warning for a column that is nearly constant."""
    return (
        f"is nearly constant after scaling (standard deviation {std:.1g}, where bounds are −1 and 1), so the noise "
        "hides it: choose narrower bounds, a smaller scale, or transform = log; or check its units"
    )


class Encoder:
    """Encode record batches of a table. ``report`` counts changed cells, and ``words`` caches cells.

    Parameters
    ----------
    schema : Schema
        Public schema of the columns.
    intercept : bool
        Whether to append a constant column: rows become ``[0.96·a, 0.28]``, as with
        :func:`dpadmm.matrices.clipping.with_intercept`.
    invalid_as_missing : bool
        Whether a cell that is not a number is missing instead of an error. A missing plain number is 0.

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

    def __init__(self, schema: Schema, *, intercept: bool = False, invalid_as_missing: bool = False) -> None:
        self.schema, self.intercept, self.invalid_as_missing = schema, intercept, invalid_as_missing
        self.report = Report(columns={column.name: Tally() for column in schema.sources})
        self.words = WordCache()

    @property
    def stored(self) -> tuple[tuple[np.dtype[Any], int], ...]:
        """Type and width of the arrays of a matrix: dense rows, or values and codes."""
        schema, real = self.schema, np.dtype(np.float32)
        if not schema.n_categories:
            return ((real, len(schema.features) + self.intercept),)
        values = len(schema.number_places) + self.intercept + 1
        return (real, values), (code_type(len(schema.features)), schema.n_categories)

    def matrix(self, arrays: tuple[NDArray[Any], ...]) -> Features:
        """Return the matrix of these arrays."""
        if len(arrays) == 1:
            return arrays[0]
        values, codes = arrays
        d = len(self.schema.features)
        places = (*self.schema.number_places, *([d] if self.intercept else []))
        return CodedRows(values, codes, np.array(places, np.int64), d + self.intercept)

    def encode(self, batch: Any) -> Features:
        """Return the features (rows, d) of a record batch. The norm of a row is at most 1."""
        return self.matrix(tuple(np.ascontiguousarray(array) for array in self.encode_blocks(batch)))

    def encode_blocks(self, batch: Any) -> tuple[NDArray[Any], ...]:
        """Return the arrays of the same matrix, column by column in memory, so that storing them copies once."""
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
                if isinstance(term, Number) and not term.bins and not term.knots:
                    self.report.spreads.setdefault(term.name, Spread()).add(entries[0][1])
            for place, value in entries:
                rows.append(place + first, value)
            first += len(term.features)
        self.report.rows += n
        blocks = rows.finish()
        self.report.clipped += rows.clipped
        return blocks

    def _entries(self, column: Any, batch: Any, *, counted: bool = False) -> Entries:
        """Return the entries of one column. ``counted``: its cells were counted before."""
        if isinstance(column, Crossed):
            (one, _), (other, _) = (self._entries(counts, batch, counted=True)[0] for counts in column.pair)
            return [(one * len(column.pair[1].features) + other, ONE)]
        (source,) = column.sources
        tally = Tally() if counted or isinstance(column, NumberMoments) else self.report.columns[source.name]
        cells = batch.column(source.name)
        if self.invalid_as_missing and isinstance(source, Number | Plain):
            cells = _valid_numbers(cells, source, tally)
        return ENCODERS[column.kind](column, cells, tally, self.words)


Entries = list[tuple[Any, Any]]
"""Indices of features of a column (one for all rows, or one per row), and the values of these features."""


def _products(term: Interaction, left: Entries, right: Entries) -> Entries:
    """Return all products of the features of two columns; for two categories, the index of the product that is 1."""
    width = len(term.right.features)
    if not isinstance(left[0][0], int) and not isinstance(right[0][0], int):
        return [(left[0][0].astype(np.int64) * width + right[0][0], ONE)]
    left, right = _all_features(term.left, left), _all_features(term.right, right)
    return [(i * width + j, one * other) for i, one in left for j, other in right]


def _all_features(column: Column, entries: Entries) -> Entries:
    """Return each feature of a column with its values, also for a category."""
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
    n_changed = int(np.count_nonzero(value != raw))  # also true for NaN and ∞
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
    if column.transform == "log":  # the rounding of logarithms depends on the platform
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
    """Return the features of a spline: 1 − t at the node before a value and t at the node after it."""
    nodes = np.array(column.nodes)
    value = np.where(missing, nodes[0], value) if missing is not None else value
    before = np.minimum(np.searchsorted(nodes, value, "right") - 1, len(nodes) - 2)
    share = np.clip((value - nodes[before]) / (nodes[before + 1] - nodes[before]), 0.0, 1.0).astype(np.float32)
    present = np.ones_like(share) if missing is None else (~missing).astype(np.float32)
    hats = [((before == k) * (ONE - share) + (before == k - 1) * share) * present for k in range(len(nodes))]
    return [*enumerate(hats), (len(nodes), ONE - present)]


def _plain(column: Plain, cells: Any, tally: Tally, words: WordCache) -> Entries:
    raw = as_numbers(cells, column.name)
    if not np.isfinite(raw).all():
        raise DataError(f"column {column.name!r} has a missing or infinite cell, which a plain column may not have")
    return [(0, np.clip(raw, -HUGE, HUGE).astype(np.float32))]


def _valid_numbers(cells: Any, column: Number | Plain, tally: Tally) -> Any:
    """Return cells as numbers. A cell that is not a number is missing; in a plain column it is 0."""
    numbers = as_numbers(cells, column.name, invalid_as_missing=True)
    if isinstance(column, Plain):
        missing = ~np.isfinite(numbers)
        tally.missing += int(np.count_nonzero(missing))
        numbers = np.where(missing, 0.0, numbers)
    return pa.array(numbers)


def _category(column: Category, cells: Any, tally: Tally, words: WordCache) -> Entries:
    # The word "other" is not counted as unknown
    values = tuple(dict.fromkeys((*column.values, *OTHERS)))
    codes, places = count_words(cells, values, column.name, tally, words)
    return [(np.where(codes < 0, len(column.values), np.minimum(codes, len(column.values))).take(places), ONE)]


def _ordinal(column: Ordinal, cells: Any, tally: Tally, words: WordCache) -> Entries:
    codes, places = count_words(cells, column.values, column.name, tally, words)
    return _word_entries(codes / (len(column.values) - 1) * 2.0 - 1.0, codes < 0, places, column)


def _boolean(column: Boolean, cells: Any, tally: Tally, words: WordCache) -> Entries:
    codes, places = count_words(cells, (*TRUE, *FALSE), column.name, tally, words, fold=True)
    return _word_entries(np.where(codes < len(TRUE), 1.0, -1.0), codes < 0, places, column)


def _counts(column: Counts, cells: Any, tally: Tally, words: WordCache) -> Entries:
    """Return the bin of each cell. The last bin but one is for other values, the last for missing cells."""
    binned = column.binned
    if isinstance(binned, Number):
        return _number(binned, cells, tally, words)
    other = len(column.labels) - 2
    if isinstance(binned, Boolean):
        codes, places = count_words(cells, (*FALSE, *TRUE), binned.name, tally, words, fold=True)
        bins = codes >= len(FALSE)
    else:
        codes, places = count_words(
            cells, tuple(dict.fromkeys((*column.labels[:other], *OTHERS))), binned.name, tally, words
        )
        bins = np.minimum(codes, other)
    return [(np.where(codes == -2, other + 1, np.where(codes < 0, other, bins))[places], ONE)]


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


def _word_entries(value: NDArray[Any], missing: NDArray[np.bool_], places: NDArray[Any], column: Column) -> Entries:
    """Return the entries of all cells, from the value of each distinct cell."""
    entries = _with_missing(value.astype(np.float32), missing, column)
    return [(place, values.take(places)) for place, values in entries]


def _with_missing(value: Values, missing: NDArray[np.bool_] | None, column: Column) -> Entries:
    """Return the value, or 0 if it is missing, and the indicator of missing cells if the column has one."""
    if missing is not None:
        value[missing] = 0.0
    if len(column.features) == 1:
        return [(0, value)]
    return [(0, value), (1, np.zeros_like(value) if missing is None else missing.astype(np.float32))]


def count_words(
    cells: Any, values: tuple[str, ...], name: str, tally: Tally, words: WordCache, *, fold: bool = False
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Count missing and unknown cells, and return the same as ``word_codes``."""
    codes, places = word_codes(cells, values, name, words, fold=fold)
    places = places.astype(np.intp, copy=False)  # converted once for several lookups
    by_cell = np.minimum(codes, 0).astype(np.int8).take(places)
    tally.missing += int(np.count_nonzero(by_cell == -2))
    tally.unknown += int(np.count_nonzero(by_cell == -1))
    return codes, places


# Rows are filled feature by feature. Each operation is on single cells in a fixed order, so that not even rounding
# depends on other rows.


def _empty_columns(count: int, n: int, kind: DTypeLike) -> NDArray[Any]:
    """Return uninitialised columns of n entries, an odd number of cache lines apart.

    Writing rows reads one entry of each column. Columns that are a multiple of 4,096 bytes apart share cache lines,
    which makes this six times as slow.
    """
    size = np.dtype(kind).itemsize
    lines = -(-n * size // LINE) | 1
    return np.empty((count, lines * LINE // size), kind)[:, :n]


class DenseBlock:
    """Features of n rows that are all numbers."""

    def __init__(self, n: int, schema: Schema, *, intercept: bool) -> None:
        self._scale, self._intercept = np.float32(schema.scale), intercept
        self._squares, self.clipped = None if schema.bounded else np.zeros(n), 0
        self._columns = _empty_columns(len(schema.features) + intercept, n, np.float32)

    def append(self, place: int, value: Any) -> None:
        """Set one feature of all rows, divided by the row norm bound."""
        scaled = np.divide(value, self._scale, out=self._columns[place])
        if self._squares is not None:
            self._squares += np.multiply(scaled, scaled, dtype=np.float64)

    def finish(self) -> tuple[Values]:
        """Return the rows (n, d), with norms of at most 1."""
        features = self._columns[: len(self._columns) - self._intercept]
        self.clipped = _clip(features, self._squares)
        if self._intercept:
            features *= np.float32(BESIDE_INTERCEPT)
            self._columns[-1] = INTERCEPT
        _flush(self._columns)
        return (self._columns.T,)


class CodedBlock:
    """Numbers, category value and category codes of n rows; see :class:`dpadmm.matrices.coded.CodedRows`."""

    def __init__(self, n: int, schema: Schema, *, intercept: bool) -> None:
        self._scale, self._intercept = np.float32(schema.scale), intercept
        self._squares, self.clipped = None if schema.bounded else np.zeros(n), 0
        self._columns = _empty_columns(len(schema.number_places) + intercept + 1, n, np.float32)
        self._columns[:] = 0.0
        self._columns[-1] = ONE / self._scale
        self._codes = _empty_columns(schema.n_categories, n, code_type(len(schema.features)))
        self._numbers, self._categories = iter(self._columns), iter(self._codes)

    def append(self, place: Any, value: Any) -> None:
        """Append a number, divided by the row norm bound, or the codes of a category."""
        if isinstance(place, int):
            scaled = np.divide(value, self._scale, out=next(self._numbers))
        else:
            scaled = self._columns[-1]
            next(self._categories)[:] = place
        if self._squares is not None:
            self._squares += np.multiply(scaled, scaled, dtype=np.float64)

    def finish(self) -> tuple[Values, NDArray[Any]]:
        """Return values (n, numbers + 1) and codes (n, categories) of the rows, with norms of at most 1."""
        self.clipped = _clip(self._columns, self._squares)
        if self._intercept:
            self._columns *= np.float32(BESIDE_INTERCEPT)
            self._columns[-2] = INTERCEPT
        _flush(self._columns)
        return self._columns.T, self._codes.T


def _flush(columns: Values) -> None:
    """Set subnormal numbers to 0, after all scaling, so that norms only decrease."""
    for column in columns:  # a single column stays in the cache
        flush_subnormals(column)


def _clip(columns: Values, squares: NDArray[np.float64] | None) -> int:
    """Clip rows to norm 1, and return the number of clipped rows."""
    if squares is None or not (long := squares > 1.0).any():
        return 0
    columns[:, long] *= ((1.0 - 2.0**-20) / np.sqrt(squares[long])).astype(np.float32)
    return int(np.count_nonzero(long))
