"""What a schema would make of a table's cells: counts and problems by column, for the owner's eyes only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm._base.errors import DataError, DpadmmError
from dpadmm.data.batches import column_names, open_batches
from dpadmm.data.cells import NoNumber, WordCache, as_numbers, codes_of
from dpadmm.data.encoding import ENCODERS, Tally, much
from dpadmm.data.lines import swallowed
from dpadmm.data.raw_table import unknown_name
from dpadmm.data.schema import Category, Column, Label, Number, Ordinal, Plain, Schema


@dataclass
class Survey:
    """Rows of a table, what becomes of its cells by column, and sentences about what cannot be encoded."""

    rows: int = 0
    columns: dict[str, Tally] = field(default_factory=dict)
    label: Tally = field(default_factory=Tally)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def warnings(self, schema: Schema) -> Iterator[str]:
        """Where much was clamped, or belongs to no value, or lines became no rows."""
        yield from self.remarks
        clamped, unknown = (much(self.columns, self.rows, kind) for kind in ("clamped", "unknown"))
        for column in schema.columns:
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


def survey_table(path: Path, schema: Schema, label: Label | None = None) -> Survey:
    """Read a table once, and count; where a column is wrong, the others are looked at all the same."""
    survey, names, words = Survey(), column_names(path), WordCache()
    counts = Counter(names)
    open_columns: dict[str, Column | Label] = {}
    for each in (*schema.columns, *([label] if label else [])):
        name = each.column if isinstance(each, Label) else each.name
        if name not in counts:
            survey.problems.append(str(unknown_name("column", name, names, path.name)))
        elif counts[name] > 1:
            survey.problems.append(f"column {name!r} occurs more than once")
        else:
            open_columns[name] = each
            survey.columns |= {} if isinstance(each, Label) else {name: Tally()}
    try:
        for batch in open_batches(path, list(open_columns)):
            rows = f"rows {survey.rows + 1:,} to {survey.rows + batch.num_rows:,}"
            for name, each in list(open_columns.items()):
                try:
                    _count(each, batch.column(name), survey, words)
                except DataError as error:
                    survey.problems.append(
                        error.at(survey.rows) if isinstance(error, NoNumber) else f"{error} ({rows})"
                    )
                    del open_columns[name]
            survey.rows += batch.num_rows
    except DpadmmError as error:
        survey.problems.append(str(error))
    else:
        if open_columns and not survey.rows:
            survey.problems.append(f"{path} has no rows")
    survey.remarks = swallowed(path, survey.rows)
    if label is not None:
        survey.problems += _label_problems(label, survey.label)
    return survey


def _count(column: Column | Label, cells: Any, survey: Survey, words: WordCache) -> None:
    if not isinstance(column, Label):
        ENCODERS[column.kind](column, cells, survey.columns[column.name], words)
    elif column.classes is None:
        values = as_numbers(cells, column.column)
        finite = values[np.isfinite(values)]
        survey.label.missing += len(values) - len(finite)
        if column.bounds is not None:
            survey.label.clamped += int(np.count_nonzero(np.clip(finite, *column.bounds) != finite))
    else:
        codes, n_missing = codes_of(cells, tuple(map(str, column.classes)), column.column, words)
        survey.label.missing += n_missing
        survey.label.unknown += int(np.count_nonzero(codes < 0)) - n_missing


def _label_problems(label: Label, tally: Tally) -> Iterator[str]:
    if tally.missing:
        yield (
            f"the label {label.column!r} is missing in {tally.missing:,} rows; correct them or leave them out"
        )
    if tally.unknown:
        classes = ", ".join(map(str, (label.classes or ())[:8]))
        yield f"the label {label.column!r} is none of the classes {classes} in {tally.unknown:,} rows"


def plain_schema(features: tuple[str, ...]) -> Schema:
    """The schema of a study that names columns of numbers, to be used as they are."""
    return Schema(tuple(Plain(name) for name in features))
