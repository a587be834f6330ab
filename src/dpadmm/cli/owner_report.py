"""How the cells of a table were encoded: counts without noise, for the owner of the table only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dpadmm.cli.screen import say, table
from dpadmm.data.encoder import Report, much
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
    """The counts as plain values."""
    columns = {name: dict(vars(tally)) for name, tally in report.columns.items()}
    counts = {"rows": report.rows, "shortened": report.shortened, "columns": columns}
    return {"note": OWNER_ONLY, **counts, "warnings": warnings(report, path)}


def show(console: Console, report: Report, path: Path) -> None:
    """Show columns with changed cells, and warnings."""
    counted = {name: (each.clamped, each.unknown, each.missing) for name, each in report.columns.items()}
    changed = {name: counts for name, counts in counted.items() if any(counts)}
    if changed:
        out = table("cells of column", "clamped", "unknown", "missing")
        out.columns[0].overflow = "fold"
        for name, counts in list(changed.items())[:SHOWN]:
            out.add_row(Text(name), *(_share(count, report.rows) for count in counts))
        if len(changed) > SHOWN:
            out.caption = f"and {len(changed) - SHOWN} more columns; --json has them all"
        console.print(out)
    if report.shortened:
        say(console, f"{_share(report.shortened, report.rows)} of the rows were shortened to the study's row norm.")
    if changed or report.shortened:
        say(console, OWNER_ONLY, style="dim")
    for sentence in warnings(report, path):
        say(console, f"Warning: {sentence}", style="bold")


def _share(count: int, rows: int) -> str:
    return f"{count:,} ({100.0 * count / rows:.1f}%)" if count else "–"
