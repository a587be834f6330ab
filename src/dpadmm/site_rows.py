"""An owner's table, as a study wants it: whose rows are used, and what their cells become.

Whether a study can be encoded depends on the table's columns, not on its cells.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpadmm.arrays import Features, Floats, Integers
from dpadmm.data.dataset import encode_labels
from dpadmm.data.encoded import EncodedTable, encode_table
from dpadmm.data.encoding import much
from dpadmm.data.lines import swallowed
from dpadmm.data.raw_table import RawTable
from dpadmm.data.schema import Label, Schema
from dpadmm.data.survey import Survey, plain_schema, survey_table
from dpadmm.data.tables import read_columns
from dpadmm.errors import DataError, StudyError
from dpadmm.features import clip_rows, with_intercept
from dpadmm.study import Study

_NUMBER = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")


class Persons(NamedTuple):
    """Rows in the table, persons they belong to (None: not said), and which rows are used, in file order."""

    n_rows: int
    n_persons: int | None
    n_above: int
    used: Integers


@dataclass(frozen=True)
class SiteRows:
    """A table, its columns of labels and persons, and how many rows of a person are used.

    ``path`` is the ``site.toml`` that says so, for messages.
    """

    path: Path
    table: Path
    label: str | None
    person: str | None
    rows_per_person: int

    def persons(self) -> Persons:
        """Whose rows there are: for the owner only."""
        raw = self._read(())
        return self._used(len(raw.labels), raw.groups)

    def encoded(self, study: Study) -> tuple[Features, Floats]:
        """Features with the constant column if there is one, and labels, of the rows that are used."""
        for role, column in (("label", self.label), ("person", self.person)):
            if column is not None and column in study.features:
                raise DataError(
                    f"{self.path}: {column!r} is the {role} column, and the study wants it as a feature"
                )
        if (encoded := self._encoded_table(study)) is not None:
            groups = None if encoded.groups is None else np.array(encoded.owners)[encoded.groups]
            used = self._used(len(encoded.labels), groups).used
            if len(used) == len(encoded.labels):  # as they are: they may be in a file
                return encoded.features, encoded.labels
            return encoded.features[used], encoded.labels[used]
        raw = self._read(study.features)
        used = self._used(len(raw.labels), raw.groups).used
        try:
            labels = encode_labels(raw.labels, task=study.problem.loss.task, classes=study.classes)
        except DataError as problem:
            what = str(problem).partition(": declare")[0]
            column = f", column {self.label!r}" if self.label else ""
            raise DataError(f"{self.table}{column}, {what}; correct the row or leave it out") from None
        features = clip_rows(raw.features[used].astype(np.float32))
        return with_intercept(features) if study.settings.intercept else features, labels[used]

    def remarks(self, study: Study) -> list[str]:
        """What of the table a study cannot use: for the owner only, since it depends on the rows."""
        encoded = self._encoded_table(study)
        if encoded is None:
            return []
        report, told = encoded.report, swallowed(self.table, encoded.report.rows)
        if report.label.unknown:
            rows = f"{report.label.unknown:,} of {report.rows:,} rows"
            told.append(f"{rows} have no label that the study knows; they count as rows of zeros.")
        doubts = {"clamped": "; the same units?", "unknown": "; the same spelling?", "missing": ""}
        for kind, doubt in doubts.items():
            many = ", ".join(f"{name!r} {n:,}" for name, n in much(report.columns, report.rows, kind).items())
            if many:
                told.append(f"of {report.rows:,} cells {kind} in columns {many}{doubt}")
        return told

    def survey(self, study: Study) -> Survey | None:
        """What a study makes of the table's cells, for the owner only; None for files without columns."""
        named = self._schema(study)
        return None if named is None else survey_table(self.table, *named)

    def _read(self, columns: Sequence[str]) -> RawTable:
        try:
            return read_columns(self.table, columns, label=self.label, by=self.person)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _used(self, n: int, persons: NDArray[Any] | None) -> Persons:
        if self.person is None or persons is None:
            return Persons(n, None, 0, np.arange(n))
        counts: dict[str, int] = {}
        used = []
        for row, value in enumerate(persons.tolist()):
            name = person_of(value)  # rows of nobody are taken to be one person's
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= self.rows_per_person:
                used.append(row)
        above = sum(count > self.rows_per_person for count in counts.values())
        return Persons(n, len(counts), above, np.array(used, dtype=np.int64))

    def _encoded_table(self, study: Study) -> EncodedTable | None:
        if (named := self._schema(study)) is None:
            return None
        schema, label = named
        if label.column == self.person:
            raise DataError(
                f"{self.path}: {self.person!r} is the person column, and the study wants it as the label"
            )
        intercept = study.settings.intercept
        try:
            return encode_table(self.table, schema, label, by=self.person, intercept=intercept, total=True)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _schema(self, study: Study) -> tuple[Schema, Label] | None:
        """The columns and the label to read from a table of named columns; None for other files."""
        if study.schema is not None and study.label is not None:
            return study.schema, replace(study.label, column=self.label or study.label.column)
        if self.table.suffix.lower() not in (".csv", ".parquet"):
            return None  # without names, or by numbers: such files are read as they are
        if self.label is None:
            raise DataError(f"{self.path}: data.label is missing: the column of {self.table} to predict")
        task = study.problem.loss.task
        if task == "multiclass" and len(study.classes or ()) == 2:
            raise DataError("for two classes take the loss logistic; softmax is for three or more")
        classes = study.classes or ((-1, 1) if task == "binary" else None)
        label = Label(self.label, classes=classes, plain=classes is None)
        return plain_schema(study.features), label


def person_of(value: object) -> str:
    """A name for a person: 7, 7.0, "7", " 7" and "007" are one, since the other mistake would undercharge."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = (
        ""
        if value is None or value != value
        else unicodedata.normalize("NFKC", str(value)).casefold().strip()
    )
    found = _NUMBER.fullmatch(text)
    return found[1] * (found[2] != "0") + found[2] if found else text
