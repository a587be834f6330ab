"""What happened to the cells of an owner's table: shown to the owner, and meant for nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dpadmm.cli.screen import say, table
from dpadmm.data.encoding import Report, much
from dpadmm.data.lines import swallowed

OWNER_ONLY = "For the owner of the table only, not to be published: it was counted without noise."
SHOWN = 20


def worries(report: Report, path: Path) -> list[str]:
    """A sentence for every column of which a lot was clamped, or unknown, and for lines that made no rows."""
    doubts = {
        "clamped": "clamped to the bounds; are its units those of the study?",
        "unknown": "none of the study's values; is it written as in the study?",
    }
    counts = {kind: much(report.columns, report.rows, kind) for kind in doubts}
    return swallowed(path, report.rows) + [
        f"column {name!r}: {100.0 * counts[kind][name] / report.rows:.1f}% of the cells were {doubt}"
        for name in report.columns
        for kind, doubt in doubts.items()
        if name in counts[kind]
    ]


def as_json(report: Report, path: Path) -> dict[str, Any]:
    """Plain values, with the note that goes with them."""
    columns = {name: dict(vars(tally)) for name, tally in report.columns.items()}
    return {"note": OWNER_ONLY, "rows": report.rows, "columns": columns, "warnings": worries(report, path)}


def show(console: Console, report: Report, path: Path) -> None:
    """The columns with anything to tell, and warnings."""
    told = {
        name: tally
        for name, tally in report.columns.items()
        if tally.clamped or tally.unknown or tally.missing
    }
    if told:
        out = table("cells of column", "clamped", "unknown", "missing")
        out.columns[0].overflow = "fold"
        for name, tally in list(told.items())[:SHOWN]:
            counts = (tally.clamped, tally.unknown, tally.missing)
            out.add_row(Text(name), *(_share(count, report.rows) for count in counts))
        if len(told) > SHOWN:
            out.caption = f"and {len(told) - SHOWN} more columns; --json has them all"
        console.print(out)
        say(console, OWNER_ONLY, style="dim")
    for sentence in worries(report, path):
        say(console, f"Warning: {sentence}", style="bold")


def _share(count: int, rows: int) -> str:
    return f"{count:,} ({100.0 * count / rows:.1f}%)" if count else "–"
