"""A draft of a study from a public or dummy table: every value that was read off it waits to be confirmed.

Guessed are numbers (with bounds rounded outwards), categories and booleans; what nothing can be learnt from,
or what would be refused, is left out with a comment that says why.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpadmm._base.errors import DataError
from dpadmm._base.suggestions import unknown_name
from dpadmm.data.cells import as_numbers, as_words, comma_hint
from dpadmm.data.encoder import FALSE, TRUE
from dpadmm.data.leakage import leaky_columns
from dpadmm.data.reader import column_names, column_types, open_batches, repeated
from dpadmm.data.schema import OTHER, Label
from dpadmm.data.schema_file import is_identifier, is_label_like
from dpadmm.study.drafting.draft import Draft, DraftColumn, check_name

MOST_CATEGORIES, MOST_CLASSES = 50, 20
MOST_DISTINCT = 10_000
MOST_DRAFTED = 10_000
MOST_STEPS = 10
"""Bounds are whole multiples of a round number, of which there are at most this many between them."""

_WHOLE, _COMMA = re.compile(r"([+-]?[0-9]+)(?:\.0*)?"), re.compile(r"[+-]?[0-9]+,[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+")

SCALES = [
    scale.split()
    for scale in (
        "none minimal mild moderate severe critical",
        "no slight some much extreme",
        "very_low low lower medium middle mid moderate normal average higher high very_high",
        "tiny xs s small m medium l large xl xxl huge",
        "never rarely seldom occasionally sometimes often usually always",
        "very_bad bad very_poor poor fair average satisfactory good very_good excellent",
        "strongly_disagree disagree neutral neither agree strongly_agree",
        "very_dissatisfied dissatisfied neutral satisfied very_satisfied",
        "none primary elementary secondary high_school bachelor bachelors master masters doctorate phd",
        "child teenager adult senior",
        "young middle old",
        "weekly monthly quarterly yearly",
        "i ii iii iv v vi",
        "first second third fourth fifth",
        "short medium long",
        "light moderate heavy",
        "slow normal fast",
    )
]
"""Words from little to much; three or more of one line, and no other word, are a scale."""

_NUMBERED = re.compile(r"([^0-9]*?)([<>]?)=?\s*([0-9]+(?:\.[0-9]+)?)(?:\s*(?:-|–|to)\s*[0-9.]+|\+)?([^0-9]*)")
_SIGNS = ("<", "", ">")


def draft_from_table(path: Path, label: str) -> Draft:
    """Read a public or dummy table once, and guess.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "dummy.csv")
    ...     _ = path.write_text("age,ward,ill\\n23,A,no\\n87,B,yes\\n41,A,no\\n")
    ...     draft = draft_from_table(path, "ill")
    >>> [each.about for each in draft.columns]
    [{'kind': 'number', 'bounds': (20, 90)}, {'kind': 'category', 'values': ('A', 'B')}]
    >>> draft.label
    {'column': 'ill', 'classes': ('no', 'yes')}
    """
    names = column_names(path)
    if label not in names:
        raise unknown_name("column", label, names, path)
    if twice := repeated(names):
        raise DataError(f"{path}: column {twice[0]!r} occurs more than once")
    if len(names) > MOST_DRAFTED:
        raise DataError(
            f"{path} has {len(names):,} columns; a draft is made of at most {MOST_DRAFTED:,}, "
            "so leave out what is not for the study"
        )
    for name in names:
        check_name(name, path)
    seen = {name: Seen() for name in names}
    readable = [name for name, kind in column_types(path).items() if _is_readable(kind)]
    for batch in open_batches(path, readable):
        for name in readable:
            seen[name].add(batch.column(name), name)
    if not any(each.rows for each in seen.values()):
        raise DataError(f"{path} has no rows")
    columns = [_guess(name, seen[name], label, path) for name in names if name != label]
    about, note = _guess_label(label, seen[label], path)
    kept = {each.name: each.about for each in columns if each.about} | {label: about}
    numbers = [name for name, about in kept.items() if "bounds" in about]
    found = leaky_columns(path, list(kept), label, numbers=numbers, n_rows=seen[label].rows)
    doubts = {each.name: each.sentence for each in found}
    columns = [each.doubted(doubts[each.name]) if each.name in doubts else each for each in columns]
    return Draft(tuple(columns), about, path.name, confirm=True, comments=(note,) if note else ())


@dataclass
class Seen:
    """What is known of a column's cells after some batches."""

    rows: int = 0
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    overflow: bool = False
    low: float = math.inf
    high: float = -math.inf
    no_number: str | None = None

    def add(self, cells: Any, name: str) -> None:
        """Count the cells of a batch."""
        words, places = as_words(cells, name)
        self.rows += len(places)
        self._bound(words, name)
        counts = np.bincount(places[places >= 0], minlength=len(words))
        self.missing += len(places) - int(counts.sum())
        blank = np.array(pc.equal(pc.utf8_trim_whitespace(words), ""))
        self.missing += int(counts[blank].sum())
        if self.overflow:
            return
        for word, count in zip(words.to_pylist(), counts.tolist(), strict=True):
            if text := word.strip():
                found = _WHOLE.fullmatch(text)
                self.counts[found[1] if found else text] += count
        self.overflow = len(self.counts) > MOST_DISTINCT

    def _bound(self, words: Any, name: str) -> None:
        """Note the smallest and the largest number, and the first cell that is none."""
        if self.no_number is not None:
            return
        try:
            values = as_numbers(words, name)
        except DataError:
            self.no_number = next(word.strip() for word in words.to_pylist() if not _is_number(word, name))
            return
        values = values[np.isfinite(values)]
        if len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    @property
    def is_number(self) -> bool:
        """Whether every cell is a number or missing, and not all are missing."""
        return self.no_number is None and self.low <= self.high


def _guess(name: str, seen: Seen, label: str, path: Path) -> DraftColumn:
    if why := _useless(name, seen, label):
        return DraftColumn(name, None, why)
    if is_boolean(seen):
        return DraftColumn(name, {"kind": "boolean"})
    if seen.is_number:
        grades = "" if seen.overflow else grade_hint(seen.low, seen.high, len(seen.counts))
        return DraftColumn(name, {"kind": "number", "bounds": friendly(seen.low, seen.high)}, grades)
    _check_commas(name, seen, path)
    odd = f"; {seen.no_number!r} is not a number" if _is_mostly_numbers(seen) else ""
    if seen.overflow or len(seen.counts) > MOST_CATEGORIES:
        n = f"more than {MOST_DISTINCT:,}" if seen.overflow else f"{len(seen.counts):,}"
        return DraftColumn(name, None, f"text with {n} different values{odd}")
    values = tuple(value for value, _ in _by_frequency(seen.counts) if value != OTHER)
    _check_values(name, values, path)
    hint = odd.removeprefix("; ") or order_hint(values)
    return DraftColumn(name, {"kind": "category", "values": values}, hint)


def _useless(name: str, seen: Seen, label: str) -> str:
    """Why a column is left out, if it is."""
    if seen.rows == 0:
        return "neither numbers nor text"
    if not seen.counts:
        return "every cell is missing"
    if is_identifier(name):
        return "looks like an identifier"
    if is_label_like(name, label):
        return f"looks like the label {label!r} itself"
    filled = seen.rows - seen.missing
    if len(seen.counts) == 1:
        return f"{next(iter(seen.counts))[:40]!r} in every row"
    every_other = seen.overflow or len(seen.counts) == filled
    if seen.is_number:
        is_running = seen.high - seen.low == filled - 1 and all(map(_WHOLE.fullmatch, seen.counts))
        return "a running number, which looks like an identifier" if is_running and filled > 20 else ""
    return "every row has another value: looks like an identifier" if every_other and filled > 20 else ""


def _guess_label(name: str, seen: Seen, path: Path) -> tuple[dict[str, Any], str]:
    if not seen.counts:
        raise DataError(f"{path}: the label {name!r} has no value in any row")
    if len(seen.counts) == 1:
        raise DataError(
            f"{path}: the label {name!r} is {next(iter(seen.counts))[:40]!r} in every row: nothing to learn"
        )
    note = f"{seen.missing:,} of {seen.rows:,} rows have no label; such rows are refused" * bool(seen.missing)
    whole = all(map(_WHOLE.fullmatch, seen.counts))
    if seen.is_number and (seen.overflow or not whole or len(seen.counts) > MOST_CLASSES):
        return {"column": name, "bounds": friendly(seen.low, seen.high)}, note
    _check_commas(name, seen, path)
    if seen.overflow or len(seen.counts) > MOST_CLASSES:
        raise DataError(
            f"{path}: the label {name!r} has {len(seen.counts):,} different values; "
            f"a number, or at most {MOST_CLASSES} classes, can be predicted"
        )
    if whole:
        classes: tuple[str | int, ...] = tuple(sorted(map(int, seen.counts)))
    elif is_boolean(seen):
        classes = tuple(sorted(seen.counts, key=lambda word: str(word).lower() in TRUE))
    else:
        classes = tuple(value for value, _ in _by_frequency(seen.counts))
    _check_values(name, tuple(map(str, classes)), path)
    Label(name, classes)  # it can be one
    return {"column": name, "classes": classes}, note


def _is_number(word: str, name: str) -> bool:
    try:
        as_numbers(pa.array([word]), name)
    except DataError:
        return False
    return True


def _is_mostly_numbers(seen: Seen) -> bool:
    numbers = sum(count for text, count in seen.counts.items() if _NUMBER.fullmatch(text))
    return 2 * numbers > seen.counts.total()


def is_boolean(seen: Seen) -> bool:
    """Whether every cell is a word for true or false, and both occur."""
    words = {word.lower() for word in seen.counts}
    return words <= {*TRUE, *FALSE} and bool(words & set(TRUE)) and bool(words & set(FALSE))


def friendly(low: float, high: float) -> tuple[float, float]:
    """Bounds rounded outwards to few digits.

    Examples
    --------
    >>> friendly(17, 90), friendly(0.0, 99_999.0), friendly(-0.731, 2.2), friendly(5.0, 5.0)
    ((10, 90), (0, 100000), (-1, 2.5), (0, 10))
    """
    if low == high:
        low, high = min(0.0, 2.0 * low), max(0.0, 2.0 * high) or 1.0
    with np.errstate(all="ignore"):
        span = high - low
        if not math.isfinite(span) or span < 1e-300:
            return low, high
        power = math.floor(math.log10(span))
        step = next(s for s in (1, 2, 5, 10) if span / (s * 10.0 ** (power - 1)) <= MOST_STEPS)
        digits = max(0, 1 - power)
        unit = step * 10.0 ** (power - 1)
        found = _outward(low, unit, digits, math.floor), _outward(high, unit, digits, math.ceil)
    return found if found[0] <= low < high <= found[1] else (low, high)


def _outward(value: float, unit: float, digits: int, towards: Any) -> float:
    nearest = round(value / unit)
    steps = nearest if abs(value / unit - nearest) < 1e-9 else towards(value / unit)
    found = round(steps * unit, digits)
    return int(found) if float(found).is_integer() and abs(found) < 1e15 else found


def _by_frequency(counts: Counter[str]) -> list[tuple[str, int]]:
    """The most frequent first; equals in the order of the alphabet."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _is_readable(kind: Any) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer)
    more = (pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null)
    return any(is_kind(inner) for is_kind in (*kinds, *more))


def _check_commas(name: str, seen: Seen, path: Path) -> None:
    odd = seen.no_number or ""
    if _COMMA.fullmatch(odd) and all(_COMMA.fullmatch(x) or _WHOLE.fullmatch(x) for x in seen.counts):
        raise DataError(f"{path}: column {name!r} holds {odd!r}{comma_hint(odd)}")


def _check_values(name: str, values: tuple[str, ...], path: Path) -> None:
    for value in values:
        if not value.isprintable() or len(value) > 200:
            raise DataError(
                f"{path}: column {name!r} has a value that is not text on one line, {value[:40]!r}; "
                "correct it or leave the column out"
            )
    if not values:
        raise DataError(f"{path}: column {name!r} has no value but {OTHER!r}")


def in_order(values: Iterable[str]) -> tuple[str, ...] | None:
    """The values from little to much, where they look as if they had an order.

    Examples
    --------
    >>> in_order(["medium", "High", "low"]), in_order(["grade 2", "grade 10", "grade 1"])
    (('low', 'medium', 'High'), ('grade 1', 'grade 2', 'grade 10'))
    >>> in_order(["18-25", "65+", "26-64"]), in_order(["A", "B", "AB", "0"])
    (('18-25', '26-64', '65+'), None)
    """
    values = tuple(values)
    if len(values) < 3:
        return None
    words = {value: re.sub(r"[\s_-]+", "_", value.strip().casefold()) for value in values}
    for scale in SCALES:
        if len(set(words.values())) == len(values) and set(words.values()) <= set(scale):
            return tuple(sorted(values, key=lambda value: scale.index(words[value])))
    found = {value: _NUMBERED.fullmatch(value.strip()) for value in values}
    numbered = {value: each for value, each in found.items() if each}
    alike = {(each[1].strip().casefold(), each[4].strip().casefold()) for each in numbered.values()}
    steps = {value: (float(each[3]), _SIGNS.index(each[2])) for value, each in numbered.items()}
    if len(numbered) == len(values) == len(set(steps.values())) and len(alike) == 1:
        return tuple(sorted(values, key=steps.__getitem__))
    return None


def order_hint(values: Iterable[str]) -> str:
    """What to say of a category whose values look ordered; nothing for others."""
    found = in_order(values)
    if found is None:
        return ""
    listed = ", ".join(f'"{value}"' for value in found)
    return f'its values look ordered; if they are: kind = "ordinal", values = [{listed}]'


def grade_hint(low: float, high: float, n_values: int) -> str:
    """What to say of a few whole numbers, such as 1 to 5, which may be grades and not amounts."""
    whole = float(low).is_integer() and float(high).is_integer()
    if not whole or not 3 <= n_values <= 10 or n_values != high - low + 1 or low not in (0.0, 1.0):
        return ""
    listed = ", ".join(f'"{k}"' for k in range(int(low), int(high) + 1))
    return f'if these are grades and not amounts: kind = "ordinal", values = [{listed}]'
