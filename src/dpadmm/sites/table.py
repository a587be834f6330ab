"""The rows of an owner's table in the encoding of a study.

Only the table's columns, not its cells, decide whether a study can be encoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpadmm.data.encoder import Report
from dpadmm.data.reader import has_named_columns, line_warnings
from dpadmm.data.schema import Label, Schema, plain_schema
from dpadmm.data.survey import Survey, survey_table
from dpadmm.data.table import EncodedTable, encode_table, read_owners
from dpadmm.errors import DataError, StudyError
from dpadmm.sites.site import counted
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import PrivateRows
from dpadmm.trusted.private_rows import CheckedRows, ProtectedRows, protect
from dpadmm.trusted.unit import Ids, Persons, PrivacyUnit


@dataclass(frozen=True)
class SiteRows:
    """A table with its label column and privacy unit. ``path`` is the ``site.toml``, for error messages."""

    path: Path
    table: Path
    label: str | None
    unit: PrivacyUnit
    _reports: dict[str, tuple[Report, Persons]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Reports of the encodings, by study, so that ``warnings`` does not encode the table again."""

    def persons(self) -> Persons:
        """Return the persons in the table: for the owner only."""
        label = () if self.label is None else (self.label,)
        try:
            n_rows, codes, spellings = read_owners(self.table, self.unit.column, label)
        except StudyError as problem:
            raise DataError(str(problem)) from None
        return self.unit.persons(None if codes is None else Ids(codes, spellings), n_rows)

    def opened(self, study: Study) -> PrivateRows:
        """Return the encoded rows for a guard."""
        return CheckedRows(self.encoded(study))

    def encoded(self, study: Study) -> ProtectedRows:
        """Return features (with a constant column if there is an intercept) and labels of all rows of the file."""
        encoded = self.encoded_table(study)
        ids = None if encoded.groups is None else Ids(encoded.groups, encoded.owners)
        rows = protect(encoded.features, encoded.labels, self.unit, ids, owned=True, row_weights=encoded.row_weights)
        self._reports[study.hash] = encoded.report, rows.persons
        return rows

    def warnings(self, study: Study) -> list[str]:
        """Return warnings about rows that a study cannot use: for the owner only, because they depend on the rows."""
        if study.hash not in self._reports:
            self._encode(study)
        report, persons = self._reports[study.hash]
        warnings = self.line_warnings(report.rows)
        if report.label.unknown:
            rows = f"{report.label.unknown:,} of {report.rows:,} rows"
            column = "label or weight" if study.label is not None and study.label.weight is not None else "label"
            warnings.append(f"{rows} have an unknown {column}; they are replaced with zeros.")
        if report.label.unknown == report.rows:
            warnings.append("NO row has a label of this study: participation would spend your budget on nothing.")
        if persons.n_without_id or persons.n_ambiguous:
            without = counted(persons.n_without_id, "row has", "rows have")
            ambiguous = counted(persons.n_ambiguous, "id is", "ids are")
            warnings.append(
                f"{without} no id, and {ambiguous} written in different ways; such rows are replaced with zeros."
            )
        hints = {"clamped": "; the same units?", "unknown": "; the same spelling?", "missing": ""}
        for kind, hint in hints.items():
            counts = ", ".join(f"{name!r} {n:,}" for name, n in report.frequent_issues(kind).items())
            if counts:
                warnings.append(f"of {report.rows:,} cells {kind} in columns {counts}{hint}")
        return warnings

    def line_warnings(self, n_rows: int) -> list[str]:
        """Return warnings about lines of the file that contain no row."""
        return line_warnings(self.table, n_rows)

    def survey(self, study: Study) -> Survey | None:
        """Return counts of the table's cells in a study's encoding, for the owner only; None without named columns."""
        return survey_table(self.table, *self._schema(study)) if has_named_columns(self.table) else None

    def _encode(self, study: Study) -> None:
        """Store the report of a study's encoding."""
        self.encoded(study)

    def encoded_table(self, study: Study) -> EncodedTable:
        """Return the encoded table before rows are zeroed."""
        for role, column in (("label", self.label), ("person", self.unit.column)):
            if column in study.features:
                raise DataError(f"{self.path}: {column!r} is the {role} column, but the study uses it as a feature")
        schema, label = self._schema(study)
        person = self.unit.column
        if label is not None and label.column == person:
            raise DataError(f"{self.path}: {person!r} is the person column, but the study uses it as the label")
        if label is not None and person is not None and person in (label.exposure, label.weight):
            # numbers are parsed, but ids are compared as text
            raise DataError(
                f"{self.path}: {person!r} is the person column, but the study uses it as exposure or weight"
            )
        intercept = study.training.intercept
        try:
            return encode_table(self.table, schema, label, by=person, intercept=intercept, invalid_as_missing=True)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _schema(self, study: Study) -> tuple[Schema, Label | None]:
        """Return the columns and the label, if any, to read from the table."""
        if study.encoding is not None:
            label = study.label and replace(study.label, column=self.label or study.label.column)
            return study.encoding, label
        if self.label is None and has_named_columns(self.table):
            raise DataError(f"{self.path}: data.label is missing: the column of {self.table} to predict")
        loss = study.problem.loss
        if loss.n_outputs == 2:
            raise DataError("for two classes, use the loss logistic; softmax is for three or more")
        classes: Any = study.classes or ((-1, 1) if loss.task == "binary" else None)
        label = Label(self.label or "labels", classes=classes, plain=classes is None, counts=loss.task == "count")
        return plain_schema(study.features), label
