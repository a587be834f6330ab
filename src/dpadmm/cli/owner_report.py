"""How the cells of a table were encoded: counts without noise, for the owner of the table only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpadmm.cli.console import echo, show_table
from dpadmm.data.encoder import Report, Tally, much
from dpadmm.data.reader import line_warnings

OWNER_ONLY = "For the owner of the table only: these counts have no noise and must not be published."
SHOWN = 20


def warnings(report: Report, path: Path) -> list[str]:
    """Columns with many clamped or unknown cells, and lines of the file that made no rows."""
    hints = {
        "clamped": "clamped to the bounds; are its units those of the study?",
        "unknown": "none of the study's values; is it written as in the study?",
    }
    counts = {kind: much(report.columns, report.rows, kind) for kind in hints}
    return line_warnings(path, report.rows) + [
        f"column {name!r}: {100.0 * counts[kind][name] / report.rows:.1f}% of the cells were {hint}"
        for name in report.columns
        for kind, hint in hints.items()
        if name in counts[kind]
    ]


def as_json(report: Report, path: Path) -> dict[str, Any]:
    columns = {name: dict(vars(tally)) for name, tally in report.columns.items()}
    counts = {"rows": report.rows, "shortened": report.shortened, "columns": columns}
    return {"note": OWNER_ONLY, **counts, "warnings": warnings(report, path)}


def show(report: Report, path: Path) -> None:
    """Show columns with changed cells, and warnings."""
    n_changed = show_counts(report.columns, report.rows)
    echo(*shortened(report))
    if n_changed or report.shortened:
        echo(OWNER_ONLY, style="dim")
    echo(*(f"Warning: {sentence}" for sentence in warnings(report, path)), style="bold")


def shortened(report: Report) -> list[str]:
    """How many rows were shortened, what that means and what to do; nothing if none was."""
    if not report.shortened:
        return []
    return [
        f"{report.shortened:,} ({report.shortened / report.rows:.1%}) of the rows are longer than the study's row_norm "
        "and shortened to it: all their values count less, by the same factor, so that the model fits them less well. "
        "A larger row_norm in the study shortens fewer rows, but there is more noise beside every value."
    ]


def show_counts(columns: Mapping[str, Tally], rows: int) -> int:
    """A table of the columns with changed cells, if there are any; how many there are."""
    changed = {name: counts for name, each in columns.items() if any(counts := vars(each).values())}
    more = len(changed) - SHOWN
    if changed:
        show_table(
            ("cells of column", *vars(Tally())),
            [
                (name, *(f"{count:,} ({count / rows:.1%})" if count else "0" for count in counts))
                for name, counts in list(changed.items())[:SHOWN]
            ],
            fold=[0],
            caption=f"and {more} more columns; --json has them all" if more > 0 else None,
        )
    return len(changed)
