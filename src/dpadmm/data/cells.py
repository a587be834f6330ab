"""Cells of a table as numbers, as text, or as places among public values: each for itself.

No cell outlives the work on its table: what is remembered of words is in a :class:`WordCache`, which whoever
encodes owns. Caches of this module hold what a study says, and kinds of columns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray
from pyarrow import types

from dpadmm.errors import DataError

MISSING = ("", *(word for word in pyarrow.csv.ConvertOptions().null_values if word))
"""Cells that say that there is no number."""

NUMERIC = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
TEXT = (types.is_string, types.is_large_string, types.is_string_view)
DATES = (types.is_date, types.is_timestamp, types.is_time)
FEW_WORDS = 256
INK = bytes(range(ord("!"), ord("~") + 1))
"""Characters that are surely no blanks."""


def no_number(name: str, row: int | None, cell: str) -> str:
    """What to do about a cell that is no number; it may be private, so it is not quoted."""
    which = "a cell" if row is None else f"the cell in row {row:,}"
    return (
        f"column {name!r}: {which} should be a number and is not{comma_hint(cell)}; correct it, or leave it "
        "empty if the number is not known"
    )


def comma_hint(cell: str) -> str:
    """What to do about a decimal comma."""
    return "; decimals are written with a point" if re.search(r"\d,\d", cell) else ""


class NotANumberError(DataError):
    """A cell, at this place among others, that should be a number and is none."""

    def __init__(self, name: str, place: int, cell: str) -> None:
        super().__init__(no_number(name, place + 1, cell))
        self.name, self.place, self.cell = name, place, cell

    def at(self, first: int) -> str:
        """The sentence where so many rows come before."""
        return no_number(self.name, first + self.place + 1, self.cell)


def placed(error: DataError, path: Path, first: int, n_rows: int) -> DataError:
    """The error of a batch with the file and the row, or as nearly as is known."""
    if isinstance(error, NotANumberError):
        return DataError(f"{path}: {error.at(first)}")
    return DataError(f"{path}, rows {first + 1} to {first + n_rows}: {error}")


class WordCache:
    """Words that were looked up, and their codes: once for every word of a table, not once for every batch.

    It holds cells, so it belongs to one encoding and goes with it; one thread at a time may use it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], bool], dict[str | None, int]] = {}
        self._last: dict[tuple[str, tuple[str, ...], bool], tuple[Any, NDArray[np.int64]]] = {}

    def few(self, words: Any, values: tuple[str, ...], fold: bool) -> list[int]:
        """Places of words among the values, −1 for others, −2 for blanks; a word is looked up once only."""
        known, texts = self._known.setdefault((values, fold), {}), words.to_pylist()
        new = [text for text in texts if text not in known]
        if new:
            if len(known) > 100 * FEW_WORDS:
                known.clear()
                new = texts
            known.update(zip(new, _looked_up(_strings(new), values, fold).tolist(), strict=True))
        return [known[text] for text in texts]

    def many(self, words: Any, values: tuple[str, ...], fold: bool, name: str) -> NDArray[np.int64]:
        """The same and −2 at the end, for many words: looked up unless they are those of the last batch."""
        last = self._last.get((name, values, fold))  # batches of a Parquet file often share them
        if last is not None and words.equals(last[0]):
            return last[1]
        codes = np.append(_looked_up(words, values, fold), -2)
        self._last[name, values, fold] = (words, codes)
        return codes


def word_codes(
    cells: Any, values: tuple[str, ...], name: str, cache: WordCache, *, fold: bool = False
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Places of the different cells among the values, −1 for others, −2 for missing; and which each cell is.

    Blanks around a cell do not count, nor do the zeros of 1.0, nor capitals where ``fold`` is set. The last
    of the codes is that of cells without text: −1, the place of missing cells, points at it.
    """
    words, places = as_words(cells, name)
    if len(words) <= FEW_WORDS:
        return np.array([*cache.few(words, values, fold), -2], dtype=np.int64), places
    return cache.many(words, values, fold, name), places


def _looked_up(words: Any, values: tuple[str, ...], fold: bool) -> NDArray[np.int64]:
    words = _normal(words)
    found = pc.index_in(pc.utf8_lower(words) if fold else words, value_set=_value_set(values))
    codes = _to_numpy(found.fill_null(-1)).astype(np.int64)
    return np.where(np.asarray(words.is_null()), -2, codes) if words.null_count else codes


def as_words(cells: Any, name: str) -> tuple[Any, NDArray[Any]]:
    """The different cells of a column as text, and which of them each cell is: −1 for missing cells."""
    coded = types.is_dictionary(cells.type)
    kind = cells.type.value_type if coded else cells.type
    if not _is_any(kind, (*TEXT, *NUMERIC, *DATES)):
        raise DataError(f"column {name!r} holds {kind} values; the study wants text, whole numbers or true/false")
    if not coded:
        cells = (pc.cast(cells, pa.string()) if types.is_string_view(kind) else cells).dictionary_encode()
    words, indices = cells.dictionary, cells.indices
    if indices.null_count:
        signed = pc.cast(indices, pa.int64()) if types.is_unsigned_integer(indices.type) else indices
        indices = signed.fill_null(-1)
    places = _to_numpy(indices)
    if len(words) > FEW_WORDS + 4 * len(places):  # those of a whole file, perhaps
        used, places = np.unique(places, return_inverse=True)
        words, places = words.take(pa.array(used[used >= 0])), places - np.count_nonzero(used < 0)
    if types.is_floating(kind):  # not a number is no value
        words = pc.if_else(pc.is_nan(words), pa.scalar(None, kind), words)
    return words if types.is_string(words.type) else pc.cast(words, pa.string()), places


def _to_numpy(array: Any) -> NDArray[Any]:
    """Return the values of a numeric array; missing values are NaN.

    Without missing values DLPack shares the memory. ``Array.to_numpy`` would import pandas if it is installed.
    """
    return np.from_dlpack(array) if array.null_count == 0 else np.asarray(array.to_numpy(zero_copy_only=False))


def as_numbers(cells: Any, name: str, *, total: bool = False) -> NDArray[np.float64]:
    """A column as numbers; missing cells are NaN, and with ``total`` also those that are no number."""
    cells = cells.dictionary_decode() if types.is_dictionary(cells.type) else cells
    kind = cells.type
    if types.is_float64(kind):
        return _to_numpy(cells)
    if _is_any(kind, TEXT):
        cells = pc.cast(cells, pa.string())
        try:  # as they are, which is what most columns need; a cell that is taken here means the same below
            return _to_numpy(pc.cast(cells, pa.float64()))
        except pa.ArrowException:
            cells = pc.utf8_trim_whitespace(cells)
            cells = pc.if_else(pc.is_in(cells, value_set=_missing()), pa.scalar(None, pa.string()), cells)
    elif not _is_any(kind, NUMERIC):
        raise DataError(f"column {name!r} holds {kind} values, where numbers are needed")
    try:
        numbers = pc.cast(cells, pa.float64(), safe=False)
    except pa.ArrowException:
        words, places = as_words(cells, name)
        by_word = np.array([*map(_number_or_nan, words), np.nan])
        if total:
            return np.asarray(by_word[places])
        place = int(np.argmax(np.isnan(by_word[places]) & (places >= 0)))
        raise NotANumberError(name, place, words[int(places[place])].as_py() or "") from None
    return np.asarray(_to_numpy(numbers), dtype=np.float64)


@lru_cache(maxsize=256)
def _is_any(kind: Any, wanted: tuple[Callable[[Any], bool], ...]) -> bool:
    return any(is_kind(kind) for is_kind in wanted)


def _number_or_nan(word: Any) -> float:
    """By the same reader as a whole column."""
    try:
        number = pc.cast(word, pa.float64()).as_py()
    except pa.ArrowException:
        return math.nan
    return math.nan if number is None else float(number)


def _normal(texts: Any) -> Any:
    """Text without blanks around, missing where nothing is left; 1.0 is 1."""
    content = texts.buffers()[2]  # what need not be looked for in every text is not
    content = content.to_pybytes() if content is not None else b""
    if content.translate(None, INK):
        texts = pc.utf8_trim_whitespace(texts)
    if b"." in content:
        texts = pc.replace_substring_regex(texts, r"^([+-]?[0-9]+)\.0*$", r"\1")
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


@lru_cache(maxsize=256)
def _value_set(values: tuple[str, ...]) -> Any:
    return _normal(_strings(values))


@lru_cache(maxsize=1)
def _missing() -> Any:
    return _strings(MISSING)


def _strings(values: Sequence[str | None]) -> Any:
    return pa.array(values, pa.string())
