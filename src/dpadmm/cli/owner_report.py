"""Counts of clamped, unknown and missing cells. They carry no noise and are for the owner of the table only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dpadmm.data.encoder import Report, Tally
from dpadmm.data.reader import Table as AnyTable
from dpadmm.data.reader import line_warnings, reading_notes
from dpadmm.data.schema import plain_schema
from dpadmm.data.survey import Survey
from dpadmm.rendering import Column, Paragraph, Rendering, Table

if TYPE_CHECKING:
    from dpadmm.studies.study import Study

OWNER_ONLY = (
    "For the owner of the table only: the counts of clamped, unknown and missing cells and of clipped rows carry no "
    "noise and must not be published."
)
MAX_COLUMNS_SHOWN = 20


def warnings(report: Report, table: AnyTable) -> list[str]:
    """Return warnings on columns with many clamped or unknown cells, and on lines of the file that are not rows."""
    hints = {
        "clamped": "clamped to the bounds; check that its units match the study",
        "unknown": "not among the study's values; check its spelling",
    }
    counts = {kind: report.frequent_issues(kind) for kind in hints}
    return (
        line_warnings(table, report.rows)
        + report.nearly_constant()
        + [
            f"column {name!r}: {100.0 * counts[kind][name] / report.rows:.1f}% of the cells were {hint}"
            for name in report.columns
            for kind, hint in hints.items()
            if name in counts[kind]
        ]
    )


def counts_of(report: Report) -> dict[str, Any]:
    """Return the counts as JSON values."""
    columns = {name: asdict(tally) for name, tally in report.columns.items()}
    label = {"label": asdict(report.label)} if isinstance(report, Survey) else {}
    return {"rows": report.rows, "clipped": report.clipped, "columns": columns, **label}


def to_dict(report: Report, table: AnyTable) -> dict[str, Any]:
    """Return the counts and warnings as JSON values."""
    return {"note": OWNER_ONLY, **counts_of(report), "warnings": warnings(report, table)}


def describe(report: Report, data: AnyTable) -> Rendering:
    """Return how the table was read, columns with changed cells, clipped rows and warnings."""
    table = counts_table(report.columns, report.rows)
    clipping = describe_clipping(report)
    return Rendering(
        body=[*([table] if table else []), *map(Paragraph, clipping)],
        notes=[*reading_notes(data), *([OWNER_ONLY] if table or clipping else [])],
        warnings=warnings(report, data),
        data={"owner_only": to_dict(report, data)},
    )


def survey_rendering(study: Study, survey: Survey) -> Rendering:
    """Return the counts of a table by column, and warnings."""
    columns = survey.columns | ({f"{study.label.column} (label)": survey.label} if study.label else {})
    table = counts_table(columns, survey.rows)
    names = ["the label"] if study.label and not any(vars(survey.label).values()) else []
    unchanged = len(columns) - (len(table.rows) if table else 0) - len(names)
    other = " other" if unchanged < len(survey.columns) else ""
    names = ([f"{unchanged}{other} column{'s' * (unchanged > 1)}"] if unchanged else []) + names
    return Rendering(
        body=[
            Paragraph(f"{survey.rows:,} rows. These counts are for the data owner only; do not share them."),
            *([table] if table else []),
            *([Paragraph(f"No clamped, unknown or missing cells in {' and '.join(names)}.")] if names else []),
            *map(Paragraph, describe_clipping(survey)),
        ],
        warnings=list(survey.warnings(study.schema or plain_schema(study.features))),
    )


def describe_clipping(report: Report) -> list[str]:
    """Describe the number of clipped rows, its effect and the remedy. Return nothing if no row was clipped."""
    if not report.clipped:
        return []
    return [
        f"Clipped {report.clipped:,} of {report.rows:,} rows ({report.clipped / report.rows:.1%}) to the study's "
        "row_norm, which scales down all values of a row."
    ]


def counts_table(columns: Mapping[str, Tally], rows: int) -> Table | None:
    """Return a table of the columns with changed cells; None if there are none."""
    changed = {name: counts for name, tally in columns.items() if any(counts := vars(tally).values())}
    if not changed:
        return None
    more = len(changed) - MAX_COLUMNS_SHOWN

    def text(count: int) -> str:
        return f"{count:,} ({count / rows:.1%})" if count else "0"

    return Table(
        (Column("", "cells of column"), *(Column("", kind, text) for kind in vars(Tally()))),
        [(name, *counts) for name, counts in changed.items()],
        caption=f"and {more} more columns; use --json for all" if more > 0 else "",
        max_rows=MAX_COLUMNS_SHOWN,
    )
