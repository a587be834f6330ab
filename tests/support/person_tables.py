"""Owners' tables with persons, as files, and neighbouring tables that differ in one person.

A table is a list of rows. A cell is text, or None if it is missing. Neighbouring tables have the same number of rows,
and all rows except those of one person are equal. In every row without an id, the person is a different one.
"""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st

from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Schema
from dpadmm.methods import EvaluationRelease, StatisticsRelease
from dpadmm.studies.settings import Training, nest
from dpadmm.studies.study import Study

Cell = Any
Row = tuple[Cell, ...]

COLUMNS = ("id", "age", "bmi", "region", "grade", "smoker", "note", "outcome")
"""``note`` is anything; of counts it says how long they were counted for."""
REGIONS = ("north", "south", "east", "west", *(f"county {i}" for i in range(12)))
GRADES = ("low", "middle", "high")

AGE, BMI = Number("age", (0.0, 100.0)), Number("bmi", (10.0, 60.0), missing="indicator")
MIXED = (AGE, BMI, Category("region", REGIONS[:2]), Ordinal("grade", GRADES), Boolean("smoker"))
SCHEMAS: dict[str, Schema | None] = {
    "mixed": Schema(MIXED),
    "shortened": Schema(MIXED, row_norm=0.7),
    "sparse": Schema(
        (
            Number("age", (0.0, 100.0), bins=(20.0, 40.0, 60.0, 80.0)),
            Category("region", REGIONS),
            Boolean("smoker", missing="indicator"),
        )
    ),
    "plain": None,
    "numbered": None,
}

LABELS = {
    "logistic": Label("outcome", classes=("no", "yes")),
    "softmax": Label("outcome", classes=("no", "perhaps", "yes")),
    "squared": Label("outcome", bounds=(0.0, 10.0)),
    "huber": Label("outcome", bounds=(0.0, 10.0)),
    "poisson": Label("outcome", bounds=(0.0, 10.0), exposure="note", exposure_bound=5.0),
    "poisson with times": Label("outcome", exposure="note", times=(1.0, 2.5, 5.0)),
}
BOUNDS = {"squared": {"loss.gradient_bound": 0.5}, "huber": {"loss.delta": 0.2}}
ROUNDS = 6


@cache
def person_study(
    loss: str,
    schema: str = "mixed",
    *,
    intercept: bool = True,
    method: str = "dp_admm",
    allow_missed_rounds: bool = False,
    weighted: bool = False,
) -> Study:
    """Return a study of such tables. A small gradient bound lets every row attain its maximum contribution."""
    step = {"method.learning_rate": 0.5} if method == "dp_sgd" else {}
    constants = {**BOUNDS.get(loss, {}), **step}
    training = {"loss": loss, "method": method, "intercept": intercept, **constants}
    label = LABELS[loss]
    if weighted and SCHEMAS[schema] is not None:  # by the text of a note
        shares = {name: 1.0 + k for k, name in enumerate(map(str, label.classes or ()))} or None
        label = replace(label, weight="note", weight_bound=4.0, class_weight=shares)
    columns: dict[str, Any] = {"schema": SCHEMAS[schema], "label": label}
    if SCHEMAS[schema] is None:
        names = ("age", "bmi") if schema == "plain" else ("x1", "x2")
        columns = {"features": names, "classes": LABELS[loss].classes}
    return Study(
        name="persons",
        training=nest({**training, "noise_multiplier": 20.0, "n_rounds": ROUNDS, "delta": 1e-5}),
        provenance=dict.fromkeys(constants, "assumed"),
        allow_missed_rounds=allow_missed_rounds,
        **columns,
    )


@cache
def person_counts(label: str, schema: str = "mixed", *, inference: bool = True) -> Study:
    """Counts of such tables, or survival."""
    method = {"name": "auto", "inference": inference or "times" in label}
    training = {"loss": "poisson", "intercept": True, "method": method}
    return Study(
        name="counts of events",
        training={**training, "noise_multiplier": 20.0, "n_rounds": ROUNDS, "delta": 1e-5},
        schema=SCHEMAS[schema],
        label=LABELS[label],
    )


@cache
def person_evaluation(schema: str = "mixed") -> Study:
    """Return an evaluation study of a model whose scores fall into many bins."""
    width = len(person_study("logistic", schema).features) + 1
    method = EvaluationRelease(weights=tuple(5.0 * (-1.0) ** j for j in range(width)))
    training = Training(method=method, intercept=True, noise_multiplier=20.0, delta=1e-5, n_rounds=ROUNDS)
    return Study(name="a model on persons", training=training, schema=SCHEMAS[schema], label=LABELS["logistic"])


@cache
def person_statistics(schema: str = "mixed") -> Study:
    """Return a study of counts, moments and two-way tables of such tables."""
    tables = (("age", "region"), ("region", "smoker"))
    training = Training(
        method=StatisticsRelease(tables=tables, bins=5), noise_multiplier=20.0, delta=1e-5, n_rounds=ROUNDS
    )
    return Study(name="counts of persons", training=training, schema=SCHEMAS[schema])


# Cells

POLES: dict[str, Row] = {
    "top": ("100", "60", "north", "high", "yes", "4"),
    "bottom": ("0", "10", "south", "low", "no", "1e9"),
    "inside": ("35.5", "22", "east", "middle", "0", "a, b"),
    "nothing": ("", None, "", None, "", None),
}
EVERYWHERE = ("top", "bottom", "top", "bottom", "inside", "nothing")
PLACES = (EVERYWHERE, ("top", "bottom"), ("bottom", "bottom", "inside"), ("inside",))
"""Where all rows of a table are; who comes may be anywhere."""

OUTCOMES = {"classes": ("no", "yes", "perhaps"), "numbers": ("0", "10", "7.25"), "counts": ("0", "1", "10", "1")}
EXPOSURES = ("5", "0.001", "2.5", "1", "7", "0", "-1", "")
"""Of counts: some are none."""
GARBAGE = (
    *("", None, " ", "\t", "\u00a0", "text", 'say "so"', "a,b", "two\nlines", "=1+1", "\x00", "é", "e\u0301"),
    *("nan", "NaN", "NA", "null", "inf", "-inf", "1e308", "-1e308", "1e400", "-1e400", "1e-400", "9" * 400),
    *("0x10", "1_000", "1,5", "٣", "+5", " 5 ", "--5", "1e", ".", "5.", "true", "FALSE", "other", "middle"),
    *("county 3", "County 3", "north ", "west", "2", "2.0", "-0", "500", "-3", "yes ", "YES", "maybe"),
)

# Ids by column type: spellings of a missing id, ids in the table, ids of the new person

BLANKS = ("", None, " ", "\t ", "\u00a0")
IDS: dict[str, tuple[tuple[Cell, ...], tuple[Cell, ...], tuple[Cell, ...]]] = {
    "text": (BLANKS, ("7", "ann", "0", "p0", "Straße", "12", "éva", "nan"), ("q", "8", "-7", "70", "7.5")),
    "int": ((None,), (7, 8, 0, -7, 2**53 + 1), (70, 71, 2**53)),
    "float": ((None, float("nan")), (7.0, 8.0, 0.0, 7.5, 1e300), (70.0, -7.0)),
}
SPELLINGS: dict[str, Callable[[str], str]] = {
    "a blank before": lambda name: f" {name}",
    "a blank behind": lambda name: f"{name} ",
    "a blank that does not break": lambda name: f"{name}\u00a0",
    "capitals": str.upper,
    "a capital": str.title,
    "small letters": str.casefold,
    "wide letters": lambda name: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in name),
    "letters and their marks": lambda name: unicodedata.normalize("NFD", name),
    "zeros before": lambda name: f"00{name}" if name.isdecimal() else f"\t{name}",
    "a decimal": lambda name: f"{name}.0" if name.isdecimal() else f"{name}\n",
    "a point": lambda name: f"{name}." if name.isdecimal() else f"{name}\u3000",
    "a sign": lambda name: f"-{name}" if name == "0" else f"{name}  ",
    "a zero byte": lambda name: f"{name}\x00",
}
"""Other ways to write an id: most of them look like the same person."""


def is_blank(value: Cell) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


# Files

ID_TYPES = {"csv": ("text",), "npz": ("text", "float")}
FORMS = ("csv", "parquet text", "parquet coded", "parquet typed")
NATURAL = {"age": pa.float64(), "bmi": pa.int64(), "smoker": pa.bool_(), "region": pa.large_string()}
CODED = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class PersonTable:
    """Rows and their file format, with the types of ids and outcomes."""

    rows: tuple[Row, ...]
    form: str
    ids: str

    def write(self, folder: Path) -> str:
        """The table's file in a folder, and its name there."""
        if self.form == "csv":
            with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(COLUMNS)
                writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
            return "table.csv"
        columns = {name: [row[i] for row in self.rows] for i, name in enumerate(COLUMNS)}
        if self.form == "npz":
            ids = [_unless_none(item, "" if self.ids == "text" else np.nan) for item in columns["id"]]
            features = np.array([[float(cell) for cell in row[1:3]] for row in self.rows])
            np.savez(folder / "table.npz", id=ids, features=features, outcome=columns["outcome"])
            return "table.npz"
        arrays = {name: self._array(name, cells) for name, cells in columns.items()}
        pa.parquet.write_table(pa.table(arrays), folder / "table.parquet")
        return "table.parquet"

    def _array(self, name: str, cells: Sequence[Cell]) -> Any:
        if name == "id" and self.ids != "text":
            return pa.array(cells, pa.int64() if self.ids == "int" else pa.float64(), from_pandas=False)
        if self.form == "parquet coded":
            return pa.array(cells, pa.string()).cast(CODED)
        kind = NATURAL.get(name, pa.string()) if self.form == "parquet typed" else pa.string()
        return pa.array([_typed(cell, kind) for cell in cells], kind)


def _typed(cell: Cell, kind: Any) -> Cell:
    """Return a cell of a column of this type, or None if it cannot be converted."""
    if cell is None or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return cell
    if pa.types.is_boolean(kind):
        return {"yes": True, "no": False, "true": True, "FALSE": False}.get(cell)
    try:
        number = float(cell)
        return number if pa.types.is_floating(kind) else int(number) if abs(number) < 2**62 else None
    except (ValueError, OverflowError):
        return None


def _unless_none(cell: Cell, instead: Cell) -> Cell:
    return instead if cell is None else cell


# Neighbours


@dataclass(frozen=True)
class Neighbours:
    """Two tables that differ in one person, the number of rows used per person, and the study's task."""

    one: PersonTable
    other: PersonTable
    k: int
    by_person: bool
    study: Study
    replaced: tuple[int, ...]

    @property
    def person(self) -> dict[str, Any]:
        """The ``[person]`` of the site."""
        return {"column": "id", "rows": self.k} if self.by_person else {"rows": self.k}


@st.composite
def bodies(draw: Any, outcomes: tuple[str, ...], poles: tuple[str, ...] = EVERYWHERE) -> Row:
    """Draw a row without its id: mostly one with the maximum contribution, with up to two unusual cells."""
    cells = list(POLES[draw(st.sampled_from(poles))])
    if outcomes == OUTCOMES["counts"]:
        cells[-1] = draw(st.sampled_from(EXPOSURES))
    cells.append(draw(st.sampled_from(outcomes)))
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        cells[draw(st.integers(0, len(cells) - 1))] = draw(st.sampled_from(GARBAGE))
    return tuple(cells)


@st.composite
def numeric_rows(draw: Any, classes: tuple[Any, ...] | None) -> Row:
    """Draw a row of an array file, which contains only numbers and valid labels."""
    cells = [draw(st.sampled_from(("0.6", "-0.6", "0", "1e18", "-1e18", "1e-300"))) for _ in range(2)]
    return (*cells, "", "", "", "", draw(st.sampled_from(classes or (1.0, -1.0, 0.0, 1e18))))


@cache
def some_studies() -> st.SearchStrategy[Study]:
    schemas = st.sampled_from(("mixed", "sparse", "shortened"))
    counts = st.builds(person_counts, st.sampled_from(("poisson", "poisson with times")), schemas,
                       inference=st.booleans())  # fmt: skip
    others = st.builds(person_statistics, st.sampled_from(("mixed", "sparse"))) | st.builds(person_evaluation, schemas)
    return (
        counts
        | others
        | st.builds(
            person_study,
            st.sampled_from(("huber", "logistic", "squared", "softmax")),
            st.sampled_from(("mixed", "sparse", "shortened", "plain", "numbered")),
            intercept=st.booleans(),
            method=st.sampled_from(("dp_sgd", "dp_admm")),
            allow_missed_rounds=st.booleans(),
            weighted=st.booleans(),
        )
    )


@st.composite
def neighbours(draw: Any, max_rows_per_site: int = 14) -> Neighbours:
    """Draw any table, any person in it, and any other person as a replacement."""
    study = draw(some_studies())
    counts = study.label is not None and study.label.counts
    outcomes = OUTCOMES["counts" if counts else "numbers" if study.classes is None else "classes"]
    form = "npz" if "x1" in study.features else draw(st.sampled_from(FORMS))
    ids = draw(st.sampled_from(ID_TYPES.get(form, ("text", "text", "text", "int", "float"))))
    blanks, known, new = IDS[ids]
    # Few persons per table, so that they have several rows and spellings collide
    people = draw(st.lists(st.sampled_from(known), min_size=2, max_size=4, unique=True))
    names = [*people, *people, *(_respelt(draw, person, form) for person in people[:1]), *blanks[:2]]
    body = numeric_rows(study.classes) if form == "npz" else bodies(outcomes)
    others = body if form == "npz" else bodies(outcomes, draw(st.sampled_from(PLACES)))
    row = st.tuples(st.sampled_from(names), others).map(lambda parts: (parts[0], *parts[1]))
    rows = draw(st.lists(row, min_size=5, max_size=max_rows_per_site))
    k, by_person = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from((True,) * 5 + (False,)))
    replaced, name = draw(replacements(rows, k, by_person, blanks, new, form))
    after = list(rows)
    for j in replaced:
        after[j] = (name, *draw(body))
    one, other = (PersonTable(tuple(item), form, ids) for item in (rows, after))
    return Neighbours(one, other, k, by_person, study, tuple(replaced))


@st.composite
def replacements(
    draw: Any,
    rows: list[Row],
    k: int,
    by_person: bool,
    blanks: tuple[Cell, ...],
    new: tuple[Cell, ...],
    form: str,
) -> tuple[list[int], Cell]:
    """Draw the person whose rows are replaced, and the id of the new person: not in the table, or none."""
    n = len(rows)
    first = draw(st.integers(0, n - 1))
    if not by_person:  # the owner guarantees that no person has more than k rows
        return sorted({(first + j) % n for j in range(draw(st.integers(1, k)))}), rows[first][0]
    name = rows[first][0]
    if is_blank(name):
        nameless = [j % n for j in range(first, first + n) if is_blank(rows[j % n][0])]
        replaced = sorted(nameless[: draw(st.integers(1, k))])
    else:
        replaced = [j for j in range(n) if rows[j][0] == name]
    rest = sorted({rows[j][0] for j in range(n) if j not in replaced and not is_blank(rows[j][0])})
    coming = draw(st.sampled_from(("alike", "alike", "new", "none") if len(replaced) <= k else ("alike", "new")))
    if coming == "none":
        return replaced, draw(st.sampled_from(blanks))
    if coming == "alike" and rest and isinstance(rest[0], str):
        alike = _respelt(draw, draw(st.sampled_from(rest)), form)
        if alike not in rest:
            return replaced, alike
    return replaced, draw(st.sampled_from([item for item in (*new, name) if item not in rest and not is_blank(item)]))


def _respelt(draw: Any, name: Cell, form: str) -> Cell:
    """Return the id in another spelling, if ids are text."""
    if not isinstance(name, str):
        return name
    spelt = SPELLINGS[draw(st.sampled_from(tuple(SPELLINGS)))](name)
    return spelt.rstrip("\x00") if form == "npz" else spelt  # Parquet cannot store zero bytes there
