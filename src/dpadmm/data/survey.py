"""Survey a table for its owner: count the cells that a study would change, and collect all problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.data.cells import RowError, WordCache
from dpadmm.data.encoder import ENCODERS, Encoder, Report, Tally
from dpadmm.data.labels import Issue, Issues, LabelColumns, issue_message
from dpadmm.data.reader import Table, column_names, line_warnings, open_batches, open_table
from dpadmm.data.schema import Category, Label, Number, Ordinal, Schema
from dpadmm.errors import DataError, DPADMMError
from dpadmm.parameters.suggestions import unknown_name


@dataclass
class IssueCount:
    """Number of rows with a problem, and the first of them (from 1)."""

    rows: int = 0
    first: int = field(default=0, compare=False)

    @property
    def location(self) -> str:
        return f"in {self.rows:,} rows, first in row {self.first:,}" if self.rows > 1 else f"in row {self.first:,}"


@dataclass
class Survey(Report):
    """Counts of a table's cells by a schema, and messages for everything that prevents its encoding."""

    problems: list[str] = field(default_factory=list)
    issues: dict[Issue, IssueCount] = field(default_factory=dict)
    """Rows whose label, exposure or weight cannot be used, by the kind of problem."""
    other_case: int = 0
    """Labels that would be a class if case were ignored."""
    line_warnings: list[str] = field(default_factory=list)

    def add(self, issues: Issues) -> None:
        """Count the issues of the next batch."""
        for kind, bad in issues.items():
            if bad.any():
                count = self.issues.setdefault(kind, IssueCount(first=self.rows + int(np.argmax(bad)) + 1))
                count.rows += int(np.count_nonzero(bad))

    def warnings(self, schema: Schema) -> Iterator[str]:
        """Yield warnings about cells that are often clamped or unknown, and about lines that became no rows."""
        yield from self.line_warnings
        clamped, unknown = self.frequent_issues("clamped"), self.frequent_issues("unknown")
        for column in schema.sources:
            if isinstance(column, Number) and column.name in clamped:
                low, high = column.bounds
                yield (
                    f"column {column.name!r}: {clamped[column.name] / self.rows:.0%} of the cells are beyond "
                    f"[{low:g}, {high:g}] and clamped: other units?"
                )
            elif isinstance(column, Category | Ordinal) and column.name in unknown:
                yield (
                    f"column {column.name!r}: {unknown[column.name] / self.rows:.0%} of the cells are none "
                    "of its values: other spellings?"
                )
        for name in clamped.keys() - {column.name for column in schema.sources}:
            yield f"weights {name!r}: {clamped[name] / self.rows:.0%} are above their bound and clamped to it"


def merge_issues(surveys: Sequence[Survey]) -> dict[Issue, IssueCount]:
    """Return the total number of rows with each problem in several files."""
    merged: dict[Issue, IssueCount] = {}
    for survey in surveys:
        for kind, count in survey.issues.items():
            merged.setdefault(kind, IssueCount(first=count.first)).rows += count.rows
    return merged


def survey_table(table: Table, schema: Schema, label: Label | None = None) -> Survey:
    """Read a table once and count its cells. A column with an error is skipped from there on; others are counted."""
    source = open_table(table)
    survey, names, words = Survey(), column_names(source), WordCache()
    encoder = None if schema.bounded else Encoder(schema)
    columns = {column.name: column for column in schema.sources}
    labels = None if label is None else LabelColumns(label, words)
    roles = {} if labels is None else labels.roles
    wanted = [*columns, *roles]
    counts, readable = Counter(names), []
    for name in dict.fromkeys(wanted):
        if name not in counts:
            survey.problems.append(
                str(
                    unknown_name(
                        "column", name, names, Path(str(source.location)).name, role=roles.get(name), used=wanted
                    )
                )
            )
        elif counts[name] > 1:
            survey.problems.append(f"column {name!r} occurs more than once")
        else:
            readable.append(name)
    survey.columns = {name: Tally() for name in readable if name in columns or (label and name == label.weight)}

    def count(name: str, cells: Any) -> None:
        if name in columns:
            ENCODERS[columns[name].kind](columns[name], cells, survey.columns[name], words)
        elif labels is not None:
            _count_labels(labels, name, cells, survey)

    try:
        for batch in open_batches(source, readable):
            rows = f"rows {survey.rows + 1:,} to {survey.rows + batch.num_rows:,}"
            for name in list(readable):
                try:
                    count(name, batch.column(name))
                except DataError as error:
                    problem = error.message(survey.rows) if isinstance(error, RowError) else f"{error} ({rows})"
                    survey.problems.append(problem)
                    readable.remove(name)
            survey.rows += batch.num_rows
            if encoder is not None and not survey.problems:
                encoder.encode_blocks(batch)
                survey.clipped = encoder.report.clipped
    except DPADMMError as error:
        survey.problems.append(str(error))
    else:
        if readable and not survey.rows:
            survey.problems.append(f"{source.location} has no rows")
    survey.line_warnings = line_warnings(table, survey.rows)
    if label is not None:
        survey.problems += [_issue_problem(label, kind, survey) for kind in survey.issues]
    return survey


def _issue_problem(label: Label, kind: Issue, survey: Survey) -> str:
    before, after = issue_message(label, kind)
    if kind == "unknown" and survey.other_case:
        after = f"; {survey.other_case:,} of them in capitals only{after}"
    return f"{before} {survey.issues[kind].location}{after}"


def _count_labels(columns: LabelColumns, name: str, cells: Any, survey: Survey) -> None:
    """Count one of the label, exposure and weight columns."""
    label = columns.label
    if name == label.weight:
        survey.add(columns.read_weight(cells, survey.columns[name])[1])
    elif name == label.exposure:
        survey.add(columns.read_exposure(cells)[1])
    else:
        values, issues = columns.read(cells)
        survey.add(issues)
        if label.classes is not None:
            survey.label.missing += int(np.count_nonzero(issues["missing"]))
            survey.label.unknown += int(np.count_nonzero(issues["unknown"]))
            if issues["unknown"].any():
                survey.other_case += int(np.count_nonzero(columns.has_other_case(cells) & issues["unknown"]))
        else:
            finite = values[np.isfinite(values)]
            survey.label.missing += len(values) - len(finite)
            if label.bounds is not None:
                survey.label.clamped += int(np.count_nonzero(np.clip(finite, *label.bounds) != finite))
