"""Convert the cells of a table to numbers, to text, or to indices of public values, each independently of the others.

Distinct words are looked up once per table, in a :class:`WordCache` that belongs to one encoding. Module-level caches
hold public values of the study and Arrow types only, never cells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray
from pyarrow import types

from dpadmm.errors import DataError

MISSING = ("", *(word for word in pyarrow.csv.ConvertOptions().null_values if word))
"""Cells that stand for a missing number."""

NUMERIC = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
TEXT = (types.is_string, types.is_large_string, types.is_string_view)
DATES = (types.is_date, types.is_timestamp, types.is_time)
MAX_CACHED_WORDS = 256
"""Maximum number of distinct words of a batch that are looked up one by one in the cache."""

VISIBLE = bytes(range(ord("!"), ord("~") + 1))
"""ASCII characters that are not blank."""


def comma_hint(cell: str) -> str:
    """Return a hint if a cell has a decimal comma."""
    return "; decimals are written with a point" if re.search(r"\d,\d", cell) else ""


def bad_number_hint(cell: str) -> str:
    """Return the end of the message for a cell that is not a number. The cell is private, so it is not quoted."""
    return f" should be a number and is not{comma_hint(cell)}; correct it, or leave it empty if the number is missing"


class RowError(DataError):
    """An error in one row of a batch, ``index`` from 0. The message is ``before``, the row from 1, and ``after``."""

    def __init__(self, before: str, index: int, after: str) -> None:
        self.before, self.index, self.after = before, index, after
        super().__init__(self.message(0))

    def message(self, first_row: int) -> str:
        """Return the message if the batch begins at row ``first_row`` (from 0) of the table."""
        return f"{self.before} row {first_row + self.index + 1:,}{self.after}"


class NotANumberError(RowError):
    """A cell should be a number and is not."""

    def __init__(self, name: str, index: int, cell: str) -> None:
        super().__init__(f"column {name!r}: the cell in", index, bad_number_hint(cell))
        self.cell = cell


def with_location(error: DataError, table: object, first_row: int, n_rows: int) -> DataError:
    """Return the error of a batch with the table and the row, or the rows of the batch."""
    if isinstance(error, RowError):
        return DataError(f"{table}: {error.message(first_row)}")
    return DataError(f"{table}, rows {first_row + 1} to {first_row + n_rows}: {error}")


class WordCache:
    """Indices of words among public values, looked up once per table instead of once per batch.

    The cache holds cells, so it belongs to one encoding. It is not thread-safe.
    """

    def __init__(self) -> None:
        self._indices: dict[tuple[tuple[str, ...], bool], dict[str | None, int]] = {}
        self._last: dict[tuple[str, tuple[str, ...], bool], tuple[Any, NDArray[np.int64]]] = {}

    def lookup_small(self, words: Any, values: tuple[str, ...], fold: bool) -> list[int]:
        """Return the index of each word among the values, −1 for other words, −2 for blanks."""
        cached, texts = self._indices.setdefault((values, fold), {}), words.to_pylist()
        new = [text for text in texts if text not in cached]
        if new:
            if len(cached) > 100 * MAX_CACHED_WORDS:
                cached.clear()
                new = texts
            cached.update(zip(new, _indices(_strings(new), values, fold).tolist(), strict=True))
        return [cached[text] for text in texts]

    def lookup_large(self, words: Any, values: tuple[str, ...], fold: bool, name: str) -> NDArray[np.int64]:
        """Return the same for many words, followed by −2. Batches of a Parquet file often share their dictionary."""
        last = self._last.get((name, values, fold))
        if last is not None and words.equals(last[0]):
            return last[1]
        codes = np.append(_indices(words, values, fold), -2)
        self._last[name, values, fold] = (words, codes)
        return codes


def word_codes(
    cells: Any, values: tuple[str, ...], name: str, cache: WordCache, *, fold: bool = False
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the index of each distinct cell among the values, and which distinct cell each cell is.

    The index is −1 for other values and −2 for missing cells. Blanks around a cell and the decimals of 1.0 are
    ignored, and so is case if ``fold`` is set. The last index is −2, for cells without text, which point at −1.
    """
    words, places = as_words(cells, name)
    if len(words) <= MAX_CACHED_WORDS:
        return np.array([*cache.lookup_small(words, values, fold), -2], dtype=np.int64), places
    return cache.lookup_large(words, values, fold, name), places


def _indices(words: Any, values: tuple[str, ...], fold: bool) -> NDArray[np.int64]:
    words = _normalized(words)
    indices = pc.index_in(pc.utf8_lower(words) if fold else words, value_set=_value_set(values))
    codes = _to_numpy(indices.fill_null(-1)).astype(np.int64)
    return np.where(np.asarray(words.is_null()), -2, codes) if words.null_count else codes


def as_words(cells: Any, name: str) -> tuple[Any, NDArray[Any]]:
    """Return the distinct cells of a column as text, and which of them each cell is (−1 if missing)."""
    is_dictionary = types.is_dictionary(cells.type)
    kind = cells.type.value_type if is_dictionary else cells.type
    if not _is_any(kind, (*TEXT, *NUMERIC, *DATES)):
        raise DataError(f"column {name!r} holds {kind} values, but the study needs text, whole numbers or true/false")
    if not is_dictionary:
        cells = (pc.cast(cells, pa.string()) if types.is_string_view(kind) else cells).dictionary_encode()
    words, indices = cells.dictionary, cells.indices
    if indices.null_count:
        signed = pc.cast(indices, pa.int64()) if types.is_unsigned_integer(indices.type) else indices
        indices = signed.fill_null(-1)
    places = _to_numpy(indices)
    if len(words) > MAX_CACHED_WORDS + 4 * len(places):  # the dictionary of a whole file
        used, places = np.unique(places, return_inverse=True)
        words, places = words.take(pa.array(used[used >= 0])), places - np.count_nonzero(used < 0)
    if types.is_floating(kind):
        words = pc.if_else(pc.is_nan(words), pa.scalar(None, kind), words)
    return words if types.is_string(words.type) else pc.cast(words, pa.string()), places


def _to_numpy(array: Any) -> NDArray[Any]:
    """Return the values of a numeric array; missing values are NaN.

    Without missing values DLPack shares the memory. ``Array.to_numpy`` would import pandas if it is installed.
    """
    return np.from_dlpack(array) if array.null_count == 0 else np.asarray(array.to_numpy(zero_copy_only=False))


def as_numbers(cells: Any, name: str, *, invalid_as_missing: bool = False) -> NDArray[np.float64]:
    """Return a column as numbers, with NaN for missing cells.

    Raises
    ------
    NotANumberError
        If a cell is not a number. With ``invalid_as_missing`` it is NaN instead.
    """
    cells = cells.dictionary_decode() if types.is_dictionary(cells.type) else cells
    kind = cells.type
    if types.is_float64(kind):
        return _to_numpy(cells)
    if _is_any(kind, TEXT):
        cells = pc.cast(cells, pa.string())
        try:  # without trimming, which most columns do not need and which changes no number
            return _to_numpy(pc.cast(cells, pa.float64()))
        except pa.ArrowException:
            cells = pc.utf8_trim_whitespace(cells)
            cells = pc.if_else(pc.is_in(cells, value_set=_missing()), pa.scalar(None, pa.string()), cells)
    elif not _is_any(kind, NUMERIC):
        raise DataError(f"column {name!r} holds {kind} values, but the study needs numbers")
    try:
        numbers = pc.cast(cells, pa.float64(), safe=False)
    except pa.ArrowException:
        words, places = as_words(cells, name)
        by_word = np.array([*map(_number_or_nan, words), np.nan])
        if invalid_as_missing:
            return np.asarray(by_word[places])
        index = int(np.argmax(np.isnan(by_word[places]) & (places >= 0)))
        raise NotANumberError(name, index, words[int(places[index])].as_py() or "") from None
    return np.asarray(_to_numpy(numbers), dtype=np.float64)


def not_numbers(cells: Any, name: str) -> NDArray[np.bool_]:
    """Return which cells are neither numbers nor missing."""
    words, places = as_words(cells, name)
    bad = [not _is_missing(word) and math.isnan(_number_or_nan(pc.utf8_trim_whitespace(word))) for word in words]
    return np.asarray(np.array([*bad, False], dtype=bool)[places])


def _is_missing(word: Any) -> bool:
    text = word.as_py()
    return text is None or text.strip() in MISSING or text.strip().lower().lstrip("+-") == "nan"


@lru_cache(maxsize=256)
def _is_any(kind: Any, predicates: tuple[Callable[[Any], bool], ...]) -> bool:
    return any(is_kind(kind) for is_kind in predicates)


def _number_or_nan(word: Any) -> float:
    """Convert one word like a whole column."""
    try:
        number = pc.cast(word, pa.float64()).as_py()
    except pa.ArrowException:
        return math.nan
    return math.nan if number is None else float(number)


def _normalized(texts: Any) -> Any:
    """Strip blanks, replace empty text by null, and write 1.0 as 1."""
    content = texts.buffers()[2]  # the steps are skipped if no text needs them
    content = content.to_pybytes() if content is not None else b""
    if content.translate(None, VISIBLE):
        texts = pc.utf8_trim_whitespace(texts)
    if b"." in content:
        texts = pc.replace_substring_regex(texts, r"^([+-]?[0-9]+)\.0*$", r"\1")
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


@lru_cache(maxsize=256)
def _value_set(values: tuple[str, ...]) -> Any:
    return _normalized(_strings(values))


@lru_cache(maxsize=1)
def _missing() -> Any:
    return _strings(MISSING)


def _strings(values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string())
