"""UCI Adult for a deployment on one machine: a public study of 104 features, and a table for every site.

Of every category the last value is not named: it is what the schema calls "other". So the features are as
many as in the paper, d = 104; bounds and values are those of the data set's public description.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from dpadmm.data.adult import adult_rows
from dpadmm.data.adult_sources import COLUMNS, Row
from dpadmm.data.schema import Category, Column, Label, Number, Schema
from dpadmm.errors import StudyError
from dpadmm.study import Study

LABEL, CLASSES = "class", ("<=50K", ">50K")
BOUNDS = {
    "age": (17.0, 90.0),
    "fnlwgt": (0.0, 1_500_000.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 4_400.0),
    "hours-per-week": (1.0, 99.0),
}
HELD_OUT, LEAST_ROWS, SHUFFLED_BY = 5_222, 50, 1
DELTA = 1e-5


@dataclass(frozen=True)
class Parts:
    """The rows of every site, and those that no site has."""

    sites: list[list[Row]]
    held_out: list[Row]


def deal(rows: Sequence[Row], n_sites: int) -> Parts:
    """Deal rows to sites, as many to each, always in the same way."""
    order = np.random.default_rng(SHUFFLED_BY).permutation(len(rows))
    shuffled = [rows[i] for i in order]
    share = (len(rows) - HELD_OUT) // n_sites
    if n_sites < 1 or share < LEAST_ROWS:
        raise StudyError(
            f"sites: choose 1 to {(len(rows) - HELD_OUT) // LEAST_ROWS}, so that each has rows, not {n_sites}"
        )
    ends = [HELD_OUT + share * i for i in range(n_sites + 1)]
    return Parts([shuffled[a:b] for a, b in pairwise(ends)], shuffled[:HELD_OUT])


def adult_study(
    rows: Sequence[Row],
    *,
    n_rounds: int,
    epsilon: float,
    quorum: int | None = None,
    deadline: float | None = None,
) -> Study:
    """The study that all sites accept; with a ``quorum``, sites may miss rounds."""
    return Study(
        name="income (UCI Adult)",
        schema=Schema(tuple(_column(name, rows) for name in COLUMNS if name != LABEL)),
        label=Label(LABEL, classes=CLASSES),
        training={
            "method": "dp_admm", "loss": "logistic", "intercept": False, "epsilon": epsilon, "delta": DELTA,
            "n_rounds": n_rounds,
        },
        absences=quorum is not None,
        quorum=quorum,
        deadline=deadline,
    )  # fmt: skip


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Rows as a CSV file with names of columns."""
    with path.open("w", newline="", encoding="ascii") as out:
        csv.writer(out).writerows([list(COLUMNS), *rows])


def load_rows() -> list[Row]:
    """All rows of Adult, fetched once and kept in the cache."""
    return adult_rows()


def _column(name: str, rows: Sequence[Row]) -> Column:
    if name in BOUNDS:
        return Number(name, BOUNDS[name])
    place = COLUMNS.index(name)
    return Category(name, tuple(sorted({row[place] for row in rows}))[:-1])
