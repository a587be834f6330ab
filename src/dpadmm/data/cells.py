"""Cells of a table as numbers, as text, or as places among public values: each for itself."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpadmm.data.batches import MISSING, comma_hint
from dpadmm.errors import DataError

NUMERIC = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_null,
)
TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
DATES = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_time)
FEW_WORDS = 256


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
