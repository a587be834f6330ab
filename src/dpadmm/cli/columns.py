"""Columns of a study on the screen: what they may hold, and what an owner's table holds."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpadmm.cli.screen import say, table
from dpadmm.data.schema import Category, Column, Label, Number, Ordinal, Schema
from dpadmm.study.study import Study

if TYPE_CHECKING:
    from dpadmm.data.encoded import Survey

MOST_SHOWN = 60


def columns_table(schema: Schema) -> Table:
    """Name, kind, and public bounds or values of every column."""
    out = table("column", "kind", "bounds or values", "features")
    for column in schema.columns[:MOST_SHOWN]:
        out.add_row(Text(column.name), column.kind, Text(_holds(column)), str(len(column.features)))
    more = len(schema.columns) - MOST_SHOWN
    if more > 0:
        out.add_row(f"and {more:,} more", "", "", "")
    for place in (1, 2):
        out.columns[place].justify = "left"
    for place in (0, 2):
        out.columns[place].overflow = "fold"
    return out


def surveyed(study: Study, path: Path, label: Label | None) -> Survey:
    """What a study would make of a table's cells."""
    from dpadmm.data.encoded import plain_schema, survey_table

    return survey_table(path, study.schema or plain_schema(study.features), label)


def show_survey(console: Console, study: Study, survey: Survey) -> None:
    """Counts by column, and warnings: for the owner's eyes only."""
    from dpadmm.data.encoded import plain_schema

    say(console, f"{survey.rows:,} rows. For your eyes only: what the study makes of their cells.")
    out = table("column", "clamped", "unknown", "missing")
    out.columns[0].overflow = "fold"
    named = list(survey.columns.items())
    if study.label is not None:
        named.append((f"{study.label.column} (label)", survey.label))
    quiet = 0
    for name, tally in named:
        if any(asdict(tally).values()):
            out.add_row(Text(name), *(_share(count, survey.rows) for count in asdict(tally).values()))
        else:
            quiet += 1
    if out.row_count:
        console.print(out)
    if quiet:
        say(console, f"{'Nothing' if not out.row_count else 'Nothing else'} in {quiet} columns.")
    for warning in survey.warnings(study.schema or plain_schema(study.features)):
        say(console, f"Warning: {warning}")


def counts_of(survey: Survey) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "rows": survey.rows,
        "columns": {name: asdict(tally) for name, tally in survey.columns.items()},
        "label": asdict(survey.label),
    }


def _share(count: int, rows: int) -> str:
    return f"{count:,} ({count / rows:.1%})" if count else "0"


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e12 else f"{value:g}"


def _holds(column: Column) -> str:
    if isinstance(column, Number):
        low, high = column.bounds
        bins = f", cut at {', '.join(f'{edge:g}' for edge in column.bins)}" if column.bins else ""
        text = f"{_number(low)} to {_number(high)}{', log' if column.transform == 'log' else ''}{bins}"
    elif isinstance(column, Category | Ordinal):
        between = " < " if isinstance(column, Ordinal) else ", "
        more = f" and {len(column.values) - 8} more" if len(column.values) > 8 else ""
        text = between.join(column.values[:8]) + more
    else:
        text = "as it is" if column.kind == "plain" else ""
    missing = getattr(column, "missing", "middle") == "indicator"
    return "; ".join(each for each in (text, "missing is said" if missing else "") if each)
