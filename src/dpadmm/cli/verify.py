"""``dpadmm verify``: recompute the values of a privacy report."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from dpadmm.accounting.verification import verify_report
from dpadmm.cli.console import AsJson, show
from dpadmm.rendering import Paragraph
from dpadmm.sites.ledger_check import compare_with_ledger


def verify(
    file: Path = Argument(..., help="Privacy report (JSON).", metavar="FILE"),
    ledger: Path | None = Option(None, help="Also compare the report with the ledger in FOLDER.", metavar="FOLDER"),
    as_json: AsJson = False,
) -> None:
    """Verify a privacy report: recompute every ε with two independent methods.

    Only the noise, the releases and δ are taken from the file. Exit code 0 if
    all values are correct, else 2. Recomputation cannot show that agents
    followed the report; data owners can check this with --ledger.
    """
    verification = verify_report(file)
    rendering = verification.rendering()
    if ledger is not None:
        entry = compare_with_ledger(verification.report, ledger)
        rendering = rendering.extend(Paragraph(entry.sentence), data={"ledger": entry._asdict()})
    show(rendering, as_json=as_json)
