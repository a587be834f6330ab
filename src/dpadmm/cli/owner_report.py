"""Counts of clamped, unknown and missing cells. They carry no noise and are for the owner of the table only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpadmm.cli import console
from dpadmm.data.encoder import Report, Tally
from dpadmm.data.reader import Table as AnyTable
from dpadmm.data.reader import line_warnings, open_table
from dpadmm.rendering import Column, Paragraph, Rendering, Table

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


def to_dict(report: Report, table: AnyTable) -> dict[str, Any]:
    columns = {name: dict(vars(tally)) for name, tally in report.columns.items()}
    counts = {"rows": report.rows, "clipped": report.clipped, "columns": columns}
    return {"note": OWNER_ONLY, **counts, "warnings": warnings(report, table)}


def describe(report: Report, data: AnyTable) -> Rendering:
    """Return how the table was read, columns with changed cells, clipped rows and warnings."""
    table = counts_table(report.columns, report.rows)
    clipping = describe_clipping(report)
    return Rendering(
        body=[*([table] if table else []), *map(Paragraph, clipping)],
        notes=[*open_table(data).notes(), *([OWNER_ONLY] if table or clipping else [])],
        warnings=warnings(report, data),
        data={"owner_only": to_dict(report, data)},
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


def show_counts(columns: Mapping[str, Tally], rows: int) -> int:
    """Show a table of the columns with changed cells, and return their number."""
    table = counts_table(columns, rows)
    if table is not None:
        console.show(Rendering(body=[table]))
    return len(table.rows) if table is not None else 0
