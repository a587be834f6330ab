"""``dpadmm verify``: recompute the values of a privacy report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.verification import EpsilonCheck, Verification, verify_report
from dpadmm.cli.console import AsJson, Row, echo, echo_json, echo_path, number_range, rounded_up, show_table
from dpadmm.sites.ledger_check import compare_with_ledger

MAX_GROUPS_SHOWN = 12


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
    entry = None if ledger is None else compare_with_ledger(verification.report, ledger)
    if as_json:
        echo_json({**_to_dict(verification), "ledger": entry and entry._asdict()})
        return
    _show(file, verification)
    if entry:
        others = entry.other_studies
        echo(
            f"The ledger agrees: {entry.released} of {entry.charged} rounds released, Σμ² {entry.spent:.6g} of "
            f"{entry.reserved:.6g}." + (f" Other studies in the ledger, not included: {others}." if others else "")
        )


def _to_dict(verification: Verification) -> dict[str, Any]:
    checks = verification.checks
    return {
        **verification.document,
        "correct": True,
        "agents": [
            {**entry, "mu": group.mu, "checks": [check._asdict() for check in checks.get(i, [])]}
            for i, (group, entry) in enumerate(
                zip(verification.report.groups, verification.document["agents"], strict=True)
            )
        ],
    }


def _show(file: Path, verification: Verification) -> None:
    report, document = verification.report, verification.document
    echo_path(f"Privacy report: {file}")
    study = "no study" if report.study_hash is None else f"study {report.study}, hash {report.study_hash[:12]}"
    echo(f"{report.method}, {study}")
    _show_agents(verification)
    _show_worst(verification)
    echo(
        "All values are correct. They were recomputed from the noise and the number of releases: in closed form and, "
        "where shown, with privacy loss distributions (PLD), which round up.",
        "Names, numbers of rows, released rounds and the study hash cannot be recomputed and are taken on trust from "
        "the signer. A data owner can compare them with the site's ledger: --ledger FOLDER.",
    )
    if not report.exact_noise:
        echo("The noise was simulated: an experiment without privacy.", style="bold")
    echo(f"Guarantee: {document['guarantee']}", f"Limitations: {document['limitations']}")


def _show_agents(verification: Verification) -> None:
    report, checks = verification.report, verification.checks
    order = sorted(range(len(report.groups)), key=lambda i: (i not in checks, -report.groups[i].person_mu))
    rows, more = [], len(order) - MAX_GROUPS_SHOWN
    for i in order[:MAX_GROUPS_SHOWN]:
        group, stated = report.groups[i], verification.document["agents"][i]["epsilon"]
        n_rows = report.members(i)
        rows.append(
            (
                next(iter(n_rows)) if len(n_rows) == 1 else f"{len(n_rows)} agents",
                number_range(list(n_rows.values()), "d").replace(" to ", "–"),
                number_range([z for _, z, _ in group.gaussian_counts], ".4g"),
                f"{sum(each.released for each in group.releases)} of {sum(each.charged for each in group.releases)}",
                rounded_up(stated),
                rounded_up(exact_epsilon(group.mu, report.delta)),
                _pld(checks[i][0] if i in checks else None),
            )
        )
    show_table(
        ("agents", "rows", "z", "rounds", "ε stated", "closed form", "PLD"),
        rows,
        fold=range(7),
        title=f"Privacy loss of one row at δ = {report.delta:g}; all rounds are charged",
        caption=f"and {more} more groups of agents with a smaller ε" if more > 0 else None,
    )


def _show_worst(verification: Verification) -> None:
    position, checks = next(iter(verification.checks.items()))
    report, rows = verification.report, list[Row]()
    group = report.groups[position]
    for check in checks:
        unit = f"{check.n_rows} row{'s' if check.n_rows > 1 else ''}"
        unit = f"a person with {unit}" if check.n_rows == group.rows_per_person > 1 else unit
        rows += [(unit, f"{check.delta:g}", rounded_up(check.stated), rounded_up(check.closed_form), _pld(check))]
    if (paper := verification.document["agents"][position]["paper_epsilon"]) is not None:
        rows += [(), ("1 row, the paper's bound ε̄", f"{report.delta:g}", rounded_up(paper), "", "")]
    show_table(("Agent with the largest ε", "δ", "ε stated", "closed form", "PLD"), rows)
    show_table(
        ("Its releases (sums over rows)", "z", "rounds", "share of Σμ²"),
        [
            (
                statistic,
                f"{z:.4g}",
                f"{each.released} of {each.charged}",
                f"{each.charged / (z * (group.mu or 1.0)) ** 2:.1%}",
            )
            for statistic, z, each in group.gaussian_counts
        ],
        fold=[0],
    )


def _pld(check: EpsilonCheck | None) -> str:
    return "–" if check is None or check.pld is None else rounded_up(check.pld)
