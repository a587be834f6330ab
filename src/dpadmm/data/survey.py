"""Survey a table for its owner: count the cells that a study would change, and collect all problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpadmm.data.cells import NotANumberError, WordCache, as_numbers, comma_hint, not_numbers, word_codes
from dpadmm.data.encoder import ENCODERS, Encoder, Report, Tally
from dpadmm.data.labels import Issue, Issues, LabelColumns, issue_message
from dpadmm.data.problems import MAX_SHOWN, ColumnProblem, Locations
from dpadmm.data.reader import CsvFile, Table, column_names, line_warnings, open_batches, open_table
from dpadmm.data.schema import Category, Column, Label, Number, Ordinal, Plain, Schema
from dpadmm.errors import DataError, DPADMMError, TableError
from dpadmm.parameters.suggestions import unknown_name


@dataclass
class Survey(Report):
    """Counts of a table's cells by a schema, and messages for everything that prevents its encoding."""

    problems: list[str] = field(default_factory=list)
    """The texts of ``details``."""
    details: list[ColumnProblem] = field(default_factory=list, compare=False)
    issues: dict[Issue, Locations] = field(default_factory=dict)
    """Rows whose label, exposure or weight cannot be used, by the kind of problem."""
    bad_cells: dict[str, Locations] = field(default_factory=dict)
    """Cells that should be numbers and are not, by column."""
    other_case: int = 0
    """Labels that would be a class if case were ignored."""
    line_warnings: list[str] = field(default_factory=list)

    def add(self, issues: Issues, cells: Any) -> None:
        """Count the issues of the next batch of a column."""
        for kind, bad in issues.items():
            if bad.any():
                self.issues.setdefault(kind, Locations()).add(bad, self.rows, cells)

    def add_cells(self, name: str, cells: Any, invalid: NDArray[np.bool_]) -> None:
        """Count invalid cells of the next batch of a column."""
        if invalid.any():
            self.bad_cells.setdefault(name, Locations()).add(invalid, self.rows, cells)

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
        yield from self.nearly_constant()
        for name in clamped.keys() - {column.name for column in schema.sources}:
            yield f"weights {name!r}: {clamped[name] / self.rows:.0%} are above their bound and clamped to it"


def merge_issues(surveys: Sequence[Survey]) -> dict[Issue, Locations]:
    """Return the total number of rows with each problem in several files."""
    merged: dict[Issue, Locations] = {}
    for survey in surveys:
        for kind, found in survey.issues.items():
            merged.setdefault(kind, Locations()).merge(found)
    return merged


def survey_table(table: Table, schema: Schema, label: Label | None = None, *, by: str | None = None) -> Survey:
    """Read a table once, count its cells, and collect all problems, by column."""
    source = open_table(table)
    if isinstance(source, CsvFile):
        source = source.without_ragged_rows()
    survey, names, words = Survey(), column_names(source), WordCache()
    encoder = None if schema.bounded else Encoder(schema, invalid_as_missing=True)
    columns = {column.name: column for column in schema.sources}
    labels = None if label is None else LabelColumns(label, words, invalid_as_missing=True)
    roles = {} if labels is None else labels.roles
    wanted = [*columns, *roles, *([] if by is None else [by])]
    counts, readable, found = Counter(names), [], list[ColumnProblem]()
    for name in dict.fromkeys(wanted):
        if name not in counts:
            where = Path(str(source.location)).name
            text = str(unknown_name("column", name, names, where, role=roles.get(name), used=wanted))
            found.append(ColumnProblem(name, _missing_column(text), text))
        elif counts[name] > 1:
            found.append(ColumnProblem(name, "occurs more than once", f"column {name!r} occurs more than once"))
        else:
            readable.append(name)
    survey.columns = {name: Tally() for name in readable if name in columns or (label and name == label.weight)}
    numeric = frozenset(name for name, each in columns.items() if isinstance(each, Number | Plain))
    numeric |= frozenset() if labels is None else labels.numeric
    owners, is_broken = Locations(), False

    def count(name: str, cells: Any) -> None:
        if name in columns:
            _count_cells(columns[name], cells, survey, words)
        elif labels is not None and name in roles:
            _count_labels(labels, name, cells, survey)
        if name == by:
            codes, places = word_codes(cells, (), name, words)
            owners.add(codes[places] == -2, survey.rows)

    try:
        for batch in open_batches(source, readable, numbers=numeric, invalid_as_missing=True):
            for name in list(readable):
                try:
                    count(name, batch.column(name))
                except DataError as error:  # the type of the whole column
                    short = str(error).removeprefix(f"column {name!r} ")
                    found.append(ColumnProblem(name, short, f"{error}{_rows_of(survey.rows, batch.num_rows, error)}"))
                    readable.remove(name)
            if encoder is not None and not found:
                encoder.encode_blocks(batch)
                survey.clipped, survey.spreads = encoder.report.clipped, encoder.report.spreads
            survey.rows += batch.num_rows
    except DPADMMError as error:
        is_broken = True
        found.append(ColumnProblem("(all)", str(error), str(error)))
    ragged = source.ragged_rows() if isinstance(source, CsvFile) and source.n_skipped else {}
    if ragged:
        found.append(_ragged_problem(ragged, len(names)))
        for each in (owners, *survey.issues.values(), *survey.bad_cells.values()):
            each.first = [_raw_row(row, ragged) for row in each.first]
    elif readable and not survey.rows and not found:
        found.append(ColumnProblem("(all)", "no rows", f"{source.location} has no rows"))
    found += [_cell_problem(columns.get(name), name, each) for name, each in survey.bad_cells.items()]
    if not is_broken:
        survey.line_warnings = line_warnings(table, survey.rows)
    if label is not None:
        found += [_issue_problem(label, kind, survey) for kind in survey.issues]
    if owners.rows:
        text = f"column {by!r} has a missing cell in {owners.text}; fill in the owner, or leave the rows out"
        found.append(ColumnProblem(str(by), "no owner", text, owners))
    survey.details, survey.problems = found, [each.text for each in found]
    return survey


def all_problems(
    error: DPADMMError, table: Table, schema: Schema, label: Label | None = None, *, by: str | None = None
) -> DPADMMError:
    """Return an error with all problems of a table, or the same error if it is the only problem of a single row."""
    if isinstance(error, TableError):
        return error
    try:
        survey = survey_table(table, schema, label, by=by)
    except DPADMMError:
        return error
    n_rows = sum(each.locations.rows if each.locations else 1 for each in survey.details)
    has_own_text = any(each.column == "(all)" and each.locations for each in survey.details)
    return TableError(open_table(table).location, survey.details) if n_rows > 1 or has_own_text else error


def _rows_of(first: int, n_rows: int, error: DataError) -> str:
    return f" (rows {first + 1:,} to {first + n_rows:,})" if "holds" not in str(error) else ""


def _missing_column(text: str) -> str:
    """Return the end of the message for a missing column: a suggestion or the unused columns."""
    rest = text.partition(": ")[2] or text.partition("; ")[2]
    return f"no such column{f': {rest}' if rest else ''}"


def _ragged_problem(ragged: Mapping[int, int], n_columns: int) -> ColumnProblem:
    """Return the problem of rows with another number of cells than the first line."""
    found = Locations(len(ragged), [*ragged][:MAX_SHOWN])
    short = f"{' or '.join(map(str, sorted({*ragged.values()})[:3]))} cells instead of {n_columns}"
    verb = "has" if len(ragged) == 1 else "have"
    text = f"{found.text} {verb} {short}: is a separator or a quotation mark missing or doubled?"
    return ColumnProblem("(all)", short, text, found)


def _raw_row(row: int, skipped: Iterable[int]) -> int:
    """Return the number of a row if these rows are counted too."""
    for each in skipped:
        row += each <= row
    return row


def _cell_problem(column: Column | None, name: str, found: Locations) -> ColumnProblem:
    """Return the problem of cells that should be numbers."""
    if isinstance(column, Plain):
        text = f"column {name!r} has a missing or infinite cell, or one that is not a number, in {found.text}"
        return ColumnProblem(name, "not a finite number", f"{text}; a plain column may not have such cells", found)
    hint = next(filter(None, map(comma_hint, found.values)), "")
    cells, numbers = ("the cell", "a number and is not") if found.rows == 1 else ("the cells", "numbers and are not")
    it, is_missing = ("it", "it empty if the number is") if found.rows == 1 else ("them", "them empty if numbers are")
    text = f"column {name!r}: {cells} in {found.text} should be {numbers}{hint}"
    action = f"; correct {it}, or leave {is_missing} missing"
    return ColumnProblem(name, f"not a number{hint}", text + action, found)


def _issue_problem(label: Label, kind: Issue, survey: Survey) -> ColumnProblem:
    before, after = issue_message(label, kind)
    capitals = f"; {survey.other_case:,} of them in capitals only" if kind == "unknown" and survey.other_case else ""
    found = survey.issues[kind]
    column = {"exposure": label.exposure, "weight": label.weight}.get(kind) or label.column
    text = f"{before} in {found.text}{capitals}{after}"
    return ColumnProblem(column, before.partition("' is ")[2] + capitals, text, found)


def _count_cells(column: Column, cells: Any, survey: Survey, words: WordCache) -> None:
    """Count one feature column."""
    tally = survey.columns[column.name]
    try:
        ENCODERS[column.kind](column, cells, tally, words)
        return
    except NotANumberError:
        numbers = as_numbers(cells, column.name, invalid_as_missing=True)
    except DataError:
        if not isinstance(column, Plain):
            raise
        numbers = as_numbers(cells, column.name)
    bad = not_numbers(cells, column.name)
    survey.add_cells(column.name, cells, bad | ~np.isfinite(numbers) if isinstance(column, Plain) else bad)
    if isinstance(column, Number):
        ENCODERS[column.kind](column, pa.array(numbers), tally, words)
        tally.missing -= int(np.count_nonzero(bad))


def _count_labels(columns: LabelColumns, name: str, cells: Any, survey: Survey) -> None:
    """Count one of the label, exposure and weight columns."""
    label, bad = columns.label, np.zeros(len(cells), bool)
    if name in columns.numeric:
        try:
            as_numbers(cells, name)
        except NotANumberError:
            bad = not_numbers(cells, name)
            survey.add_cells(name, cells, bad)
    if name == label.weight:
        _, issues = columns.read_weight(cells, survey.columns[name])
    elif name == label.exposure:
        _, issues = columns.read_exposure(cells)
    else:
        values, issues = columns.read(cells)
        if label.classes is not None:
            survey.label.missing += int(np.count_nonzero(issues["missing"]))
            survey.label.unknown += int(np.count_nonzero(issues["unknown"]))
            if issues["unknown"].any():
                survey.other_case += int(np.count_nonzero(columns.has_other_case(cells) & issues["unknown"]))
        else:
            finite = values[np.isfinite(values)]
            survey.label.missing += len(values) - len(finite) - int(np.count_nonzero(bad))
            if label.bounds is not None:
                survey.label.clamped += int(np.count_nonzero(np.clip(finite, *label.bounds) != finite))
        if label.drop_missing_labels:
            issues = {kind: rows for kind, rows in issues.items() if kind != "missing"}
    survey.add({kind: rows & ~bad for kind, rows in issues.items()}, cells)
