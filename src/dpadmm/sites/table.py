"""An owner's table, as a study wants it: whose rows are used, and what their cells become.

Whether a study can be encoded depends on the table's columns, not on its cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.data.dataset import encode_labels
from dpadmm.data.encoded import EncodedTable, Survey, encode_table, plain_schema, read_owners, survey_table
from dpadmm.data.encoder import Report, much
from dpadmm.data.reader import has_named_columns, line_warnings
from dpadmm.data.schema import Label, Schema
from dpadmm.data.tables import RawTable, read_columns
from dpadmm.errors import DataError, StudyError
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.sites.site import counted
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import PrivateRows
from dpadmm.trusted.private_rows import CheckedRows, ProtectedRows, protect
from dpadmm.trusted.unit import Ids, Persons, PrivacyUnit


@dataclass(frozen=True)
class SiteRows:
    """A table, its column of labels, and whose rows go together.

    ``path`` is the ``site.toml`` that says so, for messages.
    """

    path: Path
    table: Path
    label: str | None
    unit: PrivacyUnit
    _reports: dict[str, tuple[Report, Persons]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By study: what its encoding reported, so that remarks do not encode the table again."""

    def persons(self) -> Persons:
        """Whose rows there are: for the owner only."""
        person, label = self.unit.column, () if self.label is None else (self.label,)
        if person is not None and self._has_named_columns:  # where any cell may be an id, or none
            try:
                codes, spellings = read_owners(self.table, person, label)
            except StudyError as problem:
                raise DataError(str(problem)) from None
            return self.unit.persons(Ids(codes, spellings), len(codes))
        raw = self._read(())
        return self.unit.persons(self._ids(raw), len(raw.labels))

    def opened(self, study: Study) -> PrivateRows:
        """The rows as a guard holds them."""
        return CheckedRows(self.encoded(study))

    def encoded(self, study: Study) -> ProtectedRows:
        """Features with the constant column if there is one, and labels; as many rows as the file has."""
        if (encoded := self.encoded_table(study)) is not None:
            ids = None if encoded.groups is None else Ids(encoded.groups, encoded.owners)
            rows = protect(
                encoded.features, encoded.labels, self.unit, ids, owned=True, row_weights=encoded.row_weights
            )
            self._reports[study.hash] = encoded.report, rows.persons
            return rows
        raw = self._read(study.features)
        try:
            labels = encode_labels(raw.labels, task=study.problem.loss.task, classes=study.classes)
        except DataError as problem:
            what = str(problem).partition(": declare")[0]
            column = f", column {self.label!r}" if self.label else ""
            raise DataError(f"{self.table}{column}, {what}; correct the row or leave it out") from None
        features = clip_rows(raw.features.astype(np.float32))
        # Last of all: a constant column would give silent rows a gradient again
        features = with_intercept(features) if study.training.intercept else features
        return protect(features, labels, self.unit, self._ids(raw), owned=True)

    def warnings(self, study: Study) -> list[str]:
        """What of the table a study cannot use: for the owner only, since it depends on the rows."""
        if self._schema(study) is None:
            return []
        if study.hash not in self._reports:
            self._encode(study)
        report, persons = self._reports[study.hash]
        told = self.line_warnings(report.rows)
        if report.label.unknown:
            rows = f"{report.label.unknown:,} of {report.rows:,} rows"
            what = "label or weight" if study.label is not None and study.label.weight is not None else "label"
            told.append(f"{rows} have no {what} that the study knows; they count as rows of zeros.")
        if report.label.unknown == report.rows:
            told.append("NO row has a label that the study knows: enrolled as it is, it spends your budget on nothing.")
        if persons.n_without_id or persons.n_ambiguous:
            without = counted(persons.n_without_id, "row has", "rows have")
            ambiguous = counted(persons.n_ambiguous, "id is", "ids are")
            told.append(
                f"{without} no id, and {ambiguous} written in different ways; such rows count as rows of zeros."
            )
        doubts = {"clamped": "; the same units?", "unknown": "; the same spelling?", "missing": ""}
        for kind, doubt in doubts.items():
            many = ", ".join(f"{name!r} {n:,}" for name, n in much(report.columns, report.rows, kind).items())
            if many:
                told.append(f"of {report.rows:,} cells {kind} in columns {many}{doubt}")
        return told

    def line_warnings(self, n_rows: int) -> list[str]:
        """Where lines of the file became no rows."""
        return line_warnings(self.table, n_rows)

    def survey(self, study: Study) -> Survey | None:
        """What a study makes of the table's cells, for the owner only; None for files without columns."""
        named = self._schema(study)
        return None if named is None else survey_table(self.table, *named)

    def _encode(self, study: Study) -> None:
        """Make a report of what a study makes of the table."""
        self.encoded(study)

    @property
    def _has_named_columns(self) -> bool:
        """Other files are read as they are."""
        return has_named_columns(self.table)

    def _read(self, columns: Sequence[str]) -> RawTable:
        try:
            return read_columns(self.table, columns, label=self.label, by=self.unit.column)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _ids(self, raw: RawTable) -> Ids | None:
        groups = None if self.unit.column is None else raw.groups  # NPZ may have groups that nobody named
        return None if groups is None else Ids.of(groups.tolist())

    def encoded_table(self, study: Study) -> EncodedTable | None:
        """The table before anything is silenced; None for files without columns."""
        for role, column in (("label", self.label), ("person", self.unit.column)):
            if column in study.features:
                raise DataError(f"{self.path}: {column!r} is the {role} column, and the study wants it as a feature")
        if (named := self._schema(study)) is None:
            return None
        schema, label = named
        person = self.unit.column
        if label is not None and label.column == person:
            raise DataError(f"{self.path}: {person!r} is the person column, and the study wants it as the label")
        if label is not None and person is not None and person in (label.exposure, label.weight):
            # Numbers are read as such, and ids as they are written
            raise DataError(f"{self.path}: {person!r} is the person column, and the study wants it as numbers of rows")
        intercept = study.training.intercept
        try:
            return encode_table(self.table, schema, label, by=person, intercept=intercept, total=True)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _schema(self, study: Study) -> tuple[Schema, Label | None] | None:
        """The columns and the label, if any, to read from a table of named columns; None for other files."""
        if study.encoding is not None:
            label = study.label and replace(study.label, column=self.label or study.label.column)
            return study.encoding, label
        if not self._has_named_columns:
            return None  # without names, or by numbers: such files are read as they are
        if self.label is None:
            raise DataError(f"{self.path}: data.label is missing: the column of {self.table} to predict")
        loss = study.problem.loss
        if loss.n_outputs == 2:
            raise DataError("for two classes take the loss logistic; softmax is for three or more")
        classes: Any = study.classes or ((-1, 1) if loss.task == "binary" else None)
        label = Label(self.label, classes=classes, plain=classes is None)
        return plain_schema(study.features), label
