"""Drafts of studies from a public or dummy table. All inferred values must be confirmed.

Columns become numbers, categories or booleans. Numbers get bounds rounded outwards, with mean and standard deviation as
center and scale, those of the logarithm for skewed amounts. Rare values of a category are grouped. Useless and invalid
columns are left out, with the reason as a comment. Ambiguous columns, such as whole numbers that may be amounts or
codes, get a question as a comment.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpadmm.data.cells import MISSING, as_numbers, as_words, comma_hint
from dpadmm.data.encoder import FALSE, TRUE
from dpadmm.data.labels import DROP_HINT
from dpadmm.data.leakage import leaky_columns, sample_cells
from dpadmm.data.reader import (
    DATABASE,
    Table,
    column_names,
    open_batches,
    open_table,
    path_of,
    repeated,
    table_format,
)
from dpadmm.data.schema import MAX_SCALE_RATIO, OTHER, OTHERS, Label
from dpadmm.data.schema_file import is_identifier, is_label_like
from dpadmm.errors import DataError, StudyError
from dpadmm.parameters.suggestions import first_of, unknown_name
from dpadmm.studies.drafts.draft import Draft, DraftColumn, Question, check_name
from dpadmm.studies.drafts.row_norm import choose_row_norm
from dpadmm.studies.drafts.shapes import (
    MAX_CODES,
    MIN_AMOUNTS,
    Numbers,
    RunningMoments,
    is_unordered,
    round_log_bounds,
)
from dpadmm.studies.public_rows import MIN_PUBLIC_ROWS, PublicRows

MAX_CATEGORIES, MAX_CLASSES = 50, 20
"""Limits of values that are drafted whatever their frequency."""

MAX_GROUPED, MIN_VALUE_ROWS, MIN_COVERED = 300, 5, 0.5
"""With more values, those with enough rows are drafted, if most rows have one of them. Others are grouped."""

LabelKind = Literal["classes", "counts", "number"]
MAX_DISTINCT = 10_000
MAX_COLUMNS = 10_000
MAX_STEPS = 10
"""Maximum number of steps between rounded bounds, which are multiples of the step."""

NEARLY_ALL = 0.99
"""A number with one value in this fraction of the rows gets no center and scale."""

CODES = sorted(s * int(d * n) for d in "789" for n in range(1, 7) for s in (-1, 1) if n > 1 or s * int(d) == -9)
"""Frequent codes for missing values, if far from all other numbers: -9, -99, 999, 8888 ..."""

_CODE = re.compile(r"(?:.*[_\s.-])?(?:code|type|kind|category|zip|(?:zip|post|postal)[_\s.-]?code)s?", re.IGNORECASE)
_PERSON = re.compile(
    r"(?:.*[_\s.-])?(?:person|patient|subject|participant|respondent|customer|client|member|user|student|employee|"
    r"household|account|case|record|mrn)(?:[_\s.-]?(?:no|nr|num|number|key))?",
    re.IGNORECASE,
)
_MONTH = r"(?:\d{1,2}[- ])?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[-., ]+(?:\d{1,2},? )?\d{2,4}"
_DAY = r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})|(?:19|20)\d\d-?(?:0[1-9]|1[0-2])"
_DATE = re.compile(rf"(?:{_DAY}|(?:19|20)\d\d(?:0[1-9]|1[0-2])[0-3]\d|{_MONTH})(?:[T ]\d{{1,2}}:\d.*)?", re.IGNORECASE)
_TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[ap]m)?", re.IGNORECASE)

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
"""Ordered words. Three or more words of one line, and no others, are an ordinal scale."""

_NUMBERED = re.compile(r"([^0-9]*?)([<>]?)=?\s*([0-9]+(?:\.[0-9]+)?)(?:\s*(?:-|–|to)\s*[0-9.]+|\+)?([^0-9]*)")
_SIGNS = ("<", "", ">")


@dataclass(frozen=True)
class Answers:
    """Kinds of columns that a table alone does not determine, as given by a person."""

    categories: tuple[str, ...] = ()
    """Columns of whole numbers that are codes."""
    numbers: tuple[str, ...] = ()
    """Columns of whole numbers that are amounts."""
    label_kind: LabelKind | None = None
    row_norm: float | None = None

    def check(self, names: list[str], label: str, where: object) -> None:
        """Raise an error for a column that does not exist, or that has two answers."""
        for name in (*self.categories, *self.numbers):
            if name not in names:
                raise unknown_name("column", name, names, where)
            if name == label:
                raise StudyError(f"column {name!r} is the label; describe it with --label-kind (in Python label_kind=)")
        if both := set(self.categories) & set(self.numbers):
            raise StudyError(f"column {min(both)!r} cannot be both a category and a number")
        if self.label_kind not in (None, *get_args(LabelKind)):
            raise StudyError(f"label kind must be {' or '.join(get_args(LabelKind))}, not {self.label_kind!r:.40}")


def draft_from_table(table: Table, label: str, answers: Answers | None = None) -> Draft:
    """Infer a draft from a public or dummy table.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "dummy.csv")
    ...     _ = path.write_text("age,ward,ill\\n23,A,no\\n87,B,yes\\n41,A,no\\n")
    ...     draft = draft_from_table(path, "ill")
    >>> [column.about for column in draft.columns]
    [{'kind': 'number', 'bounds': (20, 90), 'center': 50, 'scale': 27},
     {'kind': 'category', 'values': ('A', 'B'), 'unseen': ('other',)}]
    >>> draft.label
    {'column': 'ill', 'classes': ('no', 'yes')}
    """
    source, answers = open_table(table), answers or Answers()
    path, where = path_of(source), source.location
    names = column_names(source)
    if label not in names:
        raise unknown_name("column", label, names, where)
    if twice := repeated(names):
        raise DataError(f"{where}: column {twice[0]!r} occurs more than once")
    if len(names) > MAX_COLUMNS:
        raise DataError(
            f"{where} has {len(names):,} columns, but a draft has at most {MAX_COLUMNS:,}; "
            "remove the columns that the study does not need"
        )
    for name in names:
        check_name(name, where)
    answers.check(names, label, where)
    seen = {name: CellSummary() for name in names}
    types = source.column_types()
    readable = [name for name, kind in types.items() if _is_readable(kind)]
    for name in names:
        seen[name].is_temporal = pa.types.is_temporal(types[name])
    floats = frozenset(name for name, kind in types.items() if pa.types.is_floating(kind))  # text would be inexact
    for batch in open_batches(source, readable, numbers=floats):
        for name in readable:
            seen[name].add(batch.column(name), name)
    if not any(cells.rows for cells in seen.values()):
        raise DataError(f"{where} has no rows")
    about, notes, loss, questions = _infer_label(label, seen[label], where, answers.label_kind)
    numeric = [name for name in readable if seen[name].is_number and name != label]
    wanted = [*dict.fromkeys([*(name for name in readable if not _exclusion_reason(name, seen[name], label)), label])]
    cells = sample_cells(
        source, wanted, numbers=[*numeric, *([label] if "bounds" in about else [])], n_rows=seen[label].rows
    )
    codes = {name for name in numeric if name in cells and _has_codes(seen[name], cells[name], cells[label], about)}
    columns = []
    for name in names:
        if name == label:
            continue
        column, question = _infer_column(name, seen[name], label, where, answers, has_codes=name in codes)
        columns.append(column)
        questions += [question] if question else []
    kept = {column.name: column.about for column in columns if column.about} | {label: about}
    numbers = [name for name, about in kept.items() if "bounds" in about]
    leaks = leaky_columns(cells, list(kept), label, numbers=numbers)
    asked = {leak.name: leak.question for leak in leaks}
    columns = [column.with_question(asked[column.name]) if column.name in asked else column for column in columns]
    row_norm = answers.row_norm or choose_row_norm(source, columns, label)
    draft = Draft(
        tuple(columns),
        about,
        Path(str(where)).name,
        is_inferred=True,
        comments=notes,
        loss=loss,
        row_norm=row_norm,
        questions=tuple(questions),
        notes=tuple(source.notes()),
    )
    reason = _not_public_reason(seen[label])
    if path is None:
        return draft
    if not reason and (path.is_dir() or table_format(path) == DATABASE):
        reason = "public rows must be a single file; export them as CSV or Parquet"
    if reason:
        return replace(draft, not_public=reason)
    return replace(draft, public_rows=PublicRows.of(path))


def _has_codes(seen: CellSummary, values: Any, labels: Any, about: dict[str, Any]) -> bool:
    """Return whether whole numbers are codes: few of them, with no order in the mean label."""
    if not 3 <= len(seen.whole) <= MAX_CODES:
        return False
    if "bounds" in about:
        return is_unordered(values, np.where(np.isfinite(labels), labels, np.nan))
    known = labels[labels >= 0]
    most_common = np.bincount(known).argmax() if len(known) else 0
    return is_unordered(values, np.where(labels >= 0, labels == most_common, np.nan))


def _not_public_reason(label: CellSummary) -> str:
    """Return why rows with this label cannot initialise training, or an empty string."""
    unlabelled = label.missing + (sum(label.numbers[1].values()) if label.is_number else 0)
    if unlabelled:
        return f"{unlabelled:,} of them have no label"
    return f"there are only {label.rows:,}, fewer than {MIN_PUBLIC_ROWS}" if label.rows < MIN_PUBLIC_ROWS else ""


@dataclass
class CellSummary:
    """Running summary of a column's cells."""

    rows: int = 0
    missing: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    overflow: bool = False
    no_number: str | None = None
    is_temporal: bool = False
    _usual: Numbers = field(default_factory=Numbers)
    _codes: Counter[float] = field(default_factory=Counter)

    def add(self, cells: Any, name: str) -> None:
        """Count the cells of a batch."""
        words, places = as_words(cells, name)
        self.rows += len(places)
        counts = np.bincount(places[places >= 0], minlength=len(words))
        self._measure(words, counts, name)
        self.missing += len(places) - int(counts.sum())
        blank = np.array(pc.equal(pc.utf8_trim_whitespace(words), ""))
        self.missing += int(counts[blank].sum())
        if self.overflow:
            return
        for word, count in zip(words.to_pylist(), counts.tolist(), strict=True):
            if text := word.strip():
                whole = _WHOLE.fullmatch(text)
                self.counts[whole[1] if whole else text] += count
        self.overflow = len(self.counts) > MAX_DISTINCT

    def _measure(self, words: Any, counts: Any, name: str) -> None:
        """Add the numbers, or store the first cell that is not a number."""
        if self.no_number is not None:
            return
        try:
            values = as_numbers(words, name)
        except DataError:
            self.no_number = next(word.strip() for word in words.to_pylist() if not _is_number(word, name))
            return
        is_code, good = np.isin(values, CODES), np.isfinite(values) & (counts > 0)
        self._codes.update(dict(zip(values[good & is_code].tolist(), counts[good & is_code].tolist(), strict=True)))
        self._usual.add(values[good & ~is_code], counts[good & ~is_code])

    @cached_property
    def numbers(self) -> tuple[Numbers, dict[str, int]]:
        """The numbers without codes for missing values, and the count of each code; valid after the last batch."""
        numbers, codes = replace(self._usual, logs=replace(self._usual.logs or RunningMoments())), {}
        for value, count in sorted(self._codes.items(), key=lambda pair: abs(pair[0])):
            low, high = numbers.low - numbers.span, numbers.high + numbers.span
            if numbers.span > 0.0 and (value < 0.0 <= numbers.low or not low <= value <= high):
                codes[f"{value:.0f}"] = count
            else:
                numbers.add(np.array([value]), np.array([count]))
        return numbers, codes

    @property
    def is_number(self) -> bool:
        """Whether every cell is a number or missing, and at least one is a number."""
        return self.no_number is None and self.numbers[0].n > 0

    @property
    def whole(self) -> list[int]:
        """Distinct numbers except codes for missing values, if all are whole and were counted."""
        if self.overflow or not all(map(_WHOLE.fullmatch, self.counts)):
            return []
        return sorted({int(text) for text in self.counts} - {int(code) for code in self.numbers[1]})

    def mostly(self, pattern: re.Pattern[str]) -> bool:
        """Return whether more than 95% of the cells match the pattern."""
        fit = sum(count for text, count in self.counts.items() if pattern.fullmatch(text))
        return fit > 0.95 * self.counts.total()


def _infer_column(
    name: str, seen: CellSummary, label: str, where: object, answers: Answers, *, has_codes: bool
) -> tuple[DraftColumn, Question | None]:
    """Return a column, and the question whose answer could change its kind."""
    if reason := _exclusion_reason(name, seen, label):
        return DraftColumn(name, None, reason), None
    if is_boolean(seen) and name not in answers.categories:
        return DraftColumn(name, {"kind": "boolean"}), None
    if seen.is_number and name not in answers.categories:
        hint = code_hint(name, seen)
        if has_codes and name not in answers.numbers:
            about = {"kind": "category", "values": tuple(map(str, seen.whole))}
            about |= {} if seen.missing or seen.numbers[1] else {"unseen": (OTHER,)}
            column = DraftColumn(
                name, about, f"codes: {NO_ORDER}. If these are amounts: --numbers {name} (in Python numbers=)"
            )
            return column, Question(name, _code_question(name, seen, NO_ORDER), "category")
        hints = (
            missing_codes(seen),
            record_hint(name, seen) or ("" if name in answers.numbers else hint) or grade_hint(seen.whole),
        )
        column = DraftColumn(name, {"kind": "number", **_number(seen)}, "; ".join(filter(None, hints)))
        is_open = bool(hint) and name not in answers.numbers and 0 < len(seen.whole) <= MAX_CODES
        return column, Question(name, _code_question(name, seen), "number") if is_open else None
    _check_commas(name, seen, where)
    return _infer_category(name, seen, where), None


NO_ORDER = "the label neither rises nor falls with these numbers"


def _code_question(name: str, seen: CellSummary, reason: str = "") -> str:
    numbers = first_of(list(map(str, seen.whole)), 6)
    return f"column {name!r} has {len(seen.whole)} whole numbers ({numbers}){f'; {reason}' * bool(reason)}"


def _infer_category(name: str, seen: CellSummary, where: object) -> DraftColumn:
    """Return a category. If there are many values, rare ones are grouped into ``other``."""
    odd = f"; {seen.no_number!r} is not a number" if _is_mostly_numbers(seen) else ""
    ranked = [(value, count) for value, count in _by_frequency(seen.counts) if value not in OTHERS]
    n_values, grouped = len(seen.counts), ""
    if seen.overflow or n_values > MAX_CATEGORIES:
        frequent = [(value, count) for value, count in ranked[:MAX_GROUPED] if count >= MIN_VALUE_ROWS]
        covered = sum(count for _, count in frequent)
        if seen.overflow or covered < MIN_COVERED * (seen.rows - seen.missing):
            n = f"more than {MAX_DISTINCT:,}" if seen.overflow else f"{n_values:,}"
            return DraftColumn(name, None, f"text with {n} different values{odd}")
        if len(frequent) < len(ranked):
            grouped = (
                f"{OTHER!r} stands for {len(ranked) - len(frequent):,} rare values, in "
                f"{1.0 - covered / (seen.rows - seen.missing):.1%} of the rows"
            )
        ranked = frequent
    values = tuple(value for value, _ in ranked)
    if all(map(_WHOLE.fullmatch, values)):
        values = tuple(sorted(values, key=int))
    _check_values(name, values, where)
    other = f"{OTHER!r} stands for all values that are not listed, including the table's value of that name"
    has_other = any(value in OTHERS for value in seen.counts)
    hint = odd.removeprefix("; ") or grouped or order_hint(values) or other * has_other
    unseen = {} if seen.missing or len(values) < n_values else {"unseen": (OTHER,)}
    return DraftColumn(name, {"kind": "category", "values": values, **unseen}, hint)


def _exclusion_reason(name: str, seen: CellSummary, label: str) -> str:
    """Return why a column is left out, or an empty string."""
    if seen.is_temporal or seen.mostly(_DATE):
        return "dates; derive a number from them, such as an age or the days between two events"
    if seen.mostly(_TIME):
        return "times of day; derive a number from them, such as the hour"
    if seen.rows == 0:
        return "neither numbers nor text"
    if not seen.counts:
        return "every cell is missing"
    if is_identifier(name):
        return f"looks like an identifier{_person_hint(name, seen)}"
    if is_label_like(name, label):
        return f"looks like the label {label!r} itself"
    filled = seen.rows - seen.missing
    if len(seen.counts) == 1:
        return f"{next(iter(seen.counts))[:40]!r} in every row"
    is_unique = seen.overflow or len(seen.counts) == filled
    if seen.is_number:
        is_running = seen.numbers[0].span == filled - 1 and all(map(_WHOLE.fullmatch, seen.counts))
        return "a running number; probably an identifier" if is_running and filled > 20 else ""
    return "unique in every row; probably an identifier" if is_unique and filled > 20 else ""


def _person_hint(name: str, seen: CellSummary) -> str:
    """Return the setting that protects persons with several rows."""
    n_rows = max(seen.counts.values())
    if n_rows == 1:
        return ""
    return (
        f"; up to {n_rows:,} rows have the same value. If it identifies persons, every owner must set, in site.toml, "
        f'[person] column = "{name}", rows = {n_rows} (or fewer); otherwise ε protects single rows'
    )


def _range(seen: CellSummary) -> dict[str, Any]:
    numbers = seen.numbers[0]
    return {"bounds": round_bounds(numbers.low, numbers.high)}


def _number(seen: CellSummary) -> dict[str, Any]:
    """Return the bounds of a number with its center and scale; those of the logarithm for skewed amounts."""
    numbers = seen.numbers[0]
    is_amount = numbers.is_amount and (seen.overflow or len(seen.counts) >= MIN_AMOUNTS)
    if is_amount and numbers.logs is not None:
        bounds = round_log_bounds(numbers.low, numbers.high)
        ends = math.log(bounds[0]), math.log(bounds[1])
        return {"bounds": bounds, "transform": "log", **_usual(seen, numbers.logs, ends)}
    bounds = round_bounds(numbers.low, numbers.high)
    return {"bounds": bounds, **_usual(seen, numbers, bounds)}


def _usual(seen: CellSummary, moments: RunningMoments, ends: tuple[float, float]) -> dict[str, float]:
    """Return mean and standard deviation, to two digits of the latter; empty if (nearly) all numbers are equal."""
    low, high = ends
    mean, std = moments.mean, math.sqrt(moments.squares / moments.n)
    missing = {*MISSING, *seen.numbers[1]}
    mode_count = 0 if seen.overflow else max(n for text, n in seen.counts.items() if text not in missing)
    is_constant = mode_count >= NEARLY_ALL * moments.n
    if is_constant or not (high - low) / MAX_SCALE_RATIO < std < math.inf or not math.isfinite(mean):
        return {}
    digits = 1 - math.floor(math.log10(std))
    values = {"center": min(max(round(mean, digits), low), high), "scale": round(std, digits)}
    return {name: int(value) if value.is_integer() and abs(value) < 1e15 else value for name, value in values.items()}


def _infer_label(
    name: str, seen: CellSummary, where: object, kind: LabelKind | None
) -> tuple[dict[str, Any], tuple[str, ...], str, list[Question]]:
    """Return the label, comments, the loss (empty: the usual one), and the question whose answer could change them."""
    if not seen.counts:
        raise DataError(f"{where}: the label {name!r} has no value in any row")
    if len(seen.counts) == 1:
        raise DataError(
            f"{where}: the label {name!r} is {next(iter(seen.counts))[:40]!r} in every row; "
            "use a table with at least two classes"
        )
    notes = []
    if seen.missing:
        notes.append(f"{seen.missing:,} of {seen.rows:,} rows have no label; remove such rows ({DROP_HINT})")
    notes += filter(None, [missing_codes(seen) if seen.is_number else ""])
    whole = all(map(_WHOLE.fullmatch, seen.counts))
    may_count = seen.is_number and whole and seen.numbers[0].is_count
    if kind in ("counts", "number") and not seen.is_number:
        raise DataError(f"{where}: the label {name!r} is text, so it cannot be {kind}; use classes")
    if kind == "counts" and (not whole or seen.numbers[0].low < 0.0):
        raise DataError(f"{where}: the label {name!r} has fractions or negative numbers, so it cannot be counts")
    has_many = seen.overflow or not whole or len(seen.counts) > MAX_CLASSES
    if kind == "counts" or (kind is None and may_count):
        high = round_bounds(0.0, seen.numbers[0].high)[1]
        text = f"label {name!r} has whole numbers from {seen.numbers[0].low:.0f} to {seen.numbers[0].high:.0f}"
        if kind is None:
            notes.append(
                "drafted as counts (loss poisson), because these are whole numbers with a long tail. If not: "
                "--label-kind number or classes (in Python label_kind=)"
            )
        questions = [] if kind else [Question(name, f"{text} with a long tail", "counts", is_label=True)]
        return {"column": name, "bounds": (0, high)}, tuple(notes), "poisson", questions
    if seen.is_number and (kind == "number" or (kind is None and has_many)):
        return {"column": name, **_range(seen)}, tuple(notes), "", []
    _check_commas(name, seen, where)
    if seen.overflow or len(seen.counts) > MAX_CLASSES:
        raise DataError(
            f"{where}: the label {name!r} has {len(seen.counts):,} different values; "
            f"use a number, or at most {MAX_CLASSES} classes"
        )
    questions = []
    if whole:
        classes: tuple[str | int, ...] = tuple(sorted(map(int, seen.counts)))
        if len(classes) > 2 and seen.numbers[0].low >= 0.0 and kind is None:
            low, high = _range(seen)["bounds"]
            notes.append(
                "drafted as classes. If these are counts or measurements, replace classes with "
                f'bounds = [{low}, {high}], and set name = "squared" under [loss]'
            )
            text = f"label {name!r} has {len(classes)} whole numbers ({first_of(list(map(str, classes)), 6)})"
            questions = [Question(name, text, "classes", is_label=True)]
    elif is_boolean(seen):
        classes = tuple(sorted(seen.counts, key=lambda word: str(word).lower() in TRUE))
    else:
        classes = tuple(value for value, _ in _by_frequency(seen.counts))
    _check_values(name, tuple(map(str, classes)), where)
    Label(name, classes)  # raises if invalid
    return {"column": name, "classes": classes}, tuple(notes), "", questions


def _is_number(word: str, name: str) -> bool:
    try:
        as_numbers(pa.array([word]), name)
    except DataError:
        return False
    return True


def _is_mostly_numbers(seen: CellSummary) -> bool:
    numbers = sum(count for text, count in seen.counts.items() if _NUMBER.fullmatch(text))
    return 2 * numbers > seen.counts.total()


def is_boolean(seen: CellSummary) -> bool:
    """Return whether every cell is a word for true or false, and both occur."""
    words = {word.lower() for word in seen.counts}
    return words <= {*TRUE, *FALSE} and bool(words & set(TRUE)) and bool(words & set(FALSE))


def round_bounds(low: float, high: float) -> tuple[float, float]:
    """Round bounds outwards to few digits.

    Examples
    --------
    >>> round_bounds(17, 90), round_bounds(0.0, 99_999.0), round_bounds(-0.731, 2.2), round_bounds(5.0, 5.0)
    ((10, 90), (0, 100000), (-1, 2.5), (0, 10))
    """
    if low == high:
        low, high = min(0.0, 2.0 * low), max(0.0, 2.0 * high) or 1.0
    with np.errstate(all="ignore"):
        span = high - low
        if not math.isfinite(span) or span < 1e-300:
            return low, high
        power = math.floor(math.log10(span))
        step = next(s for s in (1, 2, 5, 10) if span / (s * 10.0 ** (power - 1)) <= MAX_STEPS)
        digits = max(0, 1 - power)
        unit = step * 10.0 ** (power - 1)
        bounds = _outward(low, unit, digits, math.floor), _outward(high, unit, digits, math.ceil)
    return bounds if bounds[0] <= low < high <= bounds[1] else (low, high)


def _outward(value: float, unit: float, digits: int, towards: Any) -> float:
    nearest = round(value / unit)
    steps = nearest if abs(value / unit - nearest) < 1e-9 else towards(value / unit)
    rounded = round(steps * unit, digits)
    return int(rounded) if float(rounded).is_integer() and abs(rounded) < 1e15 else rounded


def _by_frequency(counts: Counter[str]) -> list[tuple[str, int]]:
    """Sort by descending frequency; ties alphabetically."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def _is_readable(kind: Any) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer)
    more = (pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(is_kind(inner) for is_kind in (*kinds, *more))


def _check_commas(name: str, seen: CellSummary, where: object) -> None:
    odd = seen.no_number or ""
    if _COMMA.fullmatch(odd) and all(_COMMA.fullmatch(x) or _WHOLE.fullmatch(x) for x in seen.counts):
        raise DataError(f"{where}: column {name!r} holds {odd!r}{comma_hint(odd)}; read the file with --decimal ,")


def _check_values(name: str, values: tuple[str, ...], where: object) -> None:
    for value in values:
        if not value.isprintable() or len(value) > 200:
            raise DataError(
                f"{where}: column {name!r} has a value that is not printable text of at most 200 characters, "
                f"{value[:40]!r}; correct it, or remove the column"
            )
    if not values:
        raise DataError(f"{where}: column {name!r} has no value but {OTHER!r}")


def in_order(values: Iterable[str]) -> tuple[str, ...] | None:
    """Return the values in ascending order if they look ordinal, otherwise None.

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
    numbered = {value: match for value in values if (match := _NUMBERED.fullmatch(value.strip()))}
    affixes = {(match[1].strip().casefold(), match[4].strip().casefold()) for match in numbered.values()}
    steps = {value: (float(match[3]), _SIGNS.index(match[2])) for value, match in numbered.items()}
    if len(numbered) == len(values) == len(set(steps.values())) and len(affixes) == 1:
        return tuple(sorted(values, key=steps.__getitem__))
    return None


def order_hint(values: Iterable[str]) -> str:
    """Return a hint for a category whose values look ordered, otherwise an empty string."""
    ordered = in_order(values)
    if ordered is None:
        return ""
    listed = ", ".join(f'"{value}"' for value in ordered)
    return f'values look ordered; if they are, set kind = "ordinal", values = [{listed}], and remove unseen'


def grade_hint(whole: list[int]) -> str:
    """Return a hint for few consecutive whole numbers, such as 1 to 5, that may be grades."""
    if not 3 <= len(whole) <= 10 or whole[0] not in (0, 1) or whole[-1] - whole[0] != len(whole) - 1:
        return ""
    return f'if these are grades and not amounts, set kind = "ordinal", values = {_as_values(whole)}'


def code_hint(name: str, seen: CellSummary) -> str:
    """Return a hint for whole numbers that may be codes: by column name, or few frequent values with gaps."""
    whole = seen.whole
    steps = {after - before for before, after in pairwise(whole)}
    is_small = 3 <= len(whole) <= MAX_CLASSES and 10 * len(whole) <= seen.rows
    has_gaps = is_small and len(steps) > 1 and whole[-1] - whole[0] + 1 >= 2 * len(whole)
    if not has_gaps and not (_CODE.fullmatch(name) and (whole or seen.overflow)):
        return ""
    if not 0 < len(whole) <= MAX_CATEGORIES:
        return "if these are codes and not amounts, remove the column, or use a category with fewer public values"
    return f'if these are codes and not amounts, set kind = "category", values = {_as_values(whole)}, and remove bounds'


def record_hint(name: str, seen: CellSummary) -> str:
    """Return a hint for whole numbers that may identify persons or records with several rows.

    They are recognised by the column's name. Otherwise there must be many of them, nearly consecutive, starting at 0, 1
    or a large number, with about equally many rows each.
    """
    whole, n, max_count = seen.whole, seen.counts.total(), max(seen.counts.values())
    named = bool(_PERSON.fullmatch(name)) and (len(whole) > MAX_CLASSES or seen.overflow)
    first = bool(whole) and (whole[0] in (0, 1) or whole[0] >= 1000)
    running = first and len(whole) > MAX_CATEGORIES and whole[-1] - whole[0] < 1.2 * len(whole)
    if max_count == 1 or not (named or (running and max_count * len(whole) <= 4 * n)):
        return ""
    return f"if these identify persons or records, remove the column{_person_hint(name, seen)}"


def missing_codes(seen: CellSummary) -> str:
    """Return a hint for numbers such as -99 that are far from all others, otherwise an empty string."""
    codes = " and ".join(f"{code} in {n:,} row{'s' * (n != 1)}" for code, n in seen.numbers[1].items())
    if not codes:
        return ""
    return f"{codes}: far from all other numbers, so ignored. If it means missing, empty such cells in all tables"


def _as_values(whole: list[int]) -> str:
    return json.dumps(list(map(str, whole)))
