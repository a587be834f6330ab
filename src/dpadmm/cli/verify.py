"""``dpadmm verify``: recompute the values of a privacy report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.statement import SIMULATED, Statement, StatementCheck, Verified, cross_checks, read_statement
from dpadmm.cli.console import AsJson, Row, echo, echo_json, echo_path, number_range, rounded_up, show_table
from dpadmm.errors import StudyError
from dpadmm.sites.accounts import of_account
from dpadmm.trusted.ledger import read_ledger

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
    verified = read_statement(file)
    entry = None if ledger is None else compare_with_ledger(verified.statement, ledger)
    checks = cross_checks(verified)
    if as_json:
        echo_json({**_to_dict(verified, checks), "ledger": entry})
        return
    _show(file, verified, checks)
    if entry:
        others = entry["other_studies"]
        echo(
            f"The ledger agrees: {entry['released']} of {entry['charged']} rounds released, Σμ² {entry['spent']:.6g} "
            f"of {entry['reserved']:.6g}."
            + (f" Other studies in the ledger, not included: {others}." if others else "")
        )


def _to_dict(verified: Verified, checks: dict[int, list[StatementCheck]]) -> dict[str, Any]:
    statement, document = verified
    return {
        "right": True,
        "study": document["study"],
        "sampler": statement.sampler,
        "protects": statement.sampler != SIMULATED,
        "delta": statement.delta,
        "worst": document["worst"],
        "agents": [
            {
                "n_rows": entry["n_rows"],
                "mu": group.mu,
                "releases": entry["releases"],
                "checks": [check._asdict() for check in checks.get(i, [])],
            }
            for i, (group, entry) in enumerate(zip(statement.groups, document["agents"], strict=True))
        ],
    }


def compare_with_ledger(statement: Statement, folder: Path) -> dict[str, Any]:
    """Return the ledger's entry of the study, or raise ``StudyError`` if it contradicts the report."""
    if statement.sampler == SIMULATED:
        raise StudyError("the privacy report is for a simulated run, which no ledger records")
    state = read_ledger(folder)
    account = state.accounts.get(statement.study_hash)
    if account is None:
        raise StudyError(f"the ledger in {folder} has no study {statement.study_hash}")
    # With the rules of the ledger, this shows that no more was spent than the report charges
    own = of_account(statement.study_hash, account, site="this site", version=statement.version)
    (recorded,) = _terms(own)
    stated = _terms(statement)
    matching = [terms for terms in stated if {**terms, "released": recorded["released"]} == recorded]
    if not matching:
        raise StudyError(f"the privacy report contradicts the ledger in {folder}: {_difference(stated, recorded)}")
    if (released := min(terms["released"] for terms in matching)) > recorded["released"]:
        raise StudyError(
            f"the ledger in {folder} has {recorded['released']} releases, but the privacy report has {released}"
        )
    return {
        "charged": recorded["charged"],
        "released": recorded["released"],
        "spent": float(account.spent),
        "reserved": account.reservation.mu_squared,
        "other_studies": len(state.accounts) - 1,
    }


def _terms(statement: Statement) -> list[dict[str, Any]]:
    """Return the terms of every distinct agent, for comparison."""
    return [
        {
            "name": statement.name,
            "method": statement.method,
            "delta": statement.delta,
            "n_rows": n_rows,
            "rows_per_person": group.rows_per_person,
            "statistic": [each.statistic for each in group.releases],
            "noise_multiplier": [each.noise_multiplier for each in group.releases],
            "charged": sum(each.charged for each in group.releases),
            "released": sum(each.released for each in group.releases),
        }
        for group in statement.groups
        for n_rows in sorted(set(group.n_rows.values()))
    ]


def _difference(stated: list[dict[str, Any]], recorded: dict[str, Any]) -> str:
    if len(stated) > 1:
        return "none of its agents matches the ledger"
    name = next(name for name, value in recorded.items() if stated[0][name] != value and name != "released")
    return f"it has {name} {stated[0][name]!r}, the ledger {recorded[name]!r}"


def _show(file: Path, verified: Verified, checks: dict[int, list[StatementCheck]]) -> None:
    statement = verified.statement
    echo_path(f"Privacy report: {file}")
    echo(f"{statement.name} ({statement.method}), hash {statement.study_hash[:12]}")
    worst = next(iter(checks))
    _show_agents(verified, checks)
    _show_worst(verified, checks[worst], worst)
    echo(
        "All values are correct. They were recomputed from the noise and the number of releases: in closed form and, "
        "where shown, with privacy loss distributions (PLD), which round up.",
        "Names, numbers of rows, released rounds and the study hash cannot be recomputed and are taken on trust from "
        "the signer. A data owner can compare them with the site's ledger: --ledger FOLDER.",
    )
    document = verified.document
    echo(document["sampler"]["words"], style="bold" if statement.sampler == SIMULATED else None)
    echo(f"Guaranteed: {document['guaranteed']}", f"Not guaranteed: {document['not_guaranteed']}")


def _show_agents(verified: Verified, checks: dict[int, list[StatementCheck]]) -> None:
    statement, document = verified
    order = sorted(range(len(statement.groups)), key=lambda i: (i not in checks, -statement.groups[i].person_mu))
    rows, more = [], len(order) - MAX_GROUPS_SHOWN
    for i in order[:MAX_GROUPS_SHOWN]:
        group, stated = statement.groups[i], document["agents"][i]["epsilon"][repr(statement.delta)]
        rounds = [(each.released, each.charged) for each in group.releases]
        own = next((each for each in checks.get(i, []) if each[:2] == (1, statement.delta)), None)
        rows.append(
            (
                next(iter(group.n_rows)) if len(group.n_rows) == 1 else f"{len(group.n_rows)} agents",
                number_range(list(group.n_rows.values()), "d").replace(" to ", "–"),
                number_range([each.noise_multiplier for each in group.releases], ".4g"),
                " of ".join(str(sum(counts)) for counts in zip(*rounds, strict=True)),
                rounded_up(stated),
                rounded_up(exact_epsilon(group.mu, statement.delta)),
                _pld(own),
            )
        )
    show_table(
        ("agents", "rows", "z", "rounds", "ε stated", "closed form", "PLD"),
        rows,
        fold=range(7),
        title=f"Privacy loss of one row at δ = {statement.delta:g}; all rounds are charged",
        caption=f"and {more} more groups of agents with a smaller ε" if more > 0 else None,
    )


def _show_worst(verified: Verified, checks: list[StatementCheck], position: int) -> None:
    group, rows = verified.statement.groups[position], list[Row]()
    for check in checks:
        unit = f"{check.n_rows} row{'s' if check.n_rows > 1 else ''}"
        unit = f"a person with {unit}" if check.n_rows == group.rows_per_person > 1 else unit
        rows += [(unit, f"{check.delta:g}", rounded_up(check.stated), rounded_up(check.closed_form), _pld(check))]
    if (paper := verified.document["agents"][position]["epsilon_paper"]) is not None:
        rows += [(), ("1 row, the paper's bound ε̄", f"{verified.statement.delta:g}", rounded_up(paper), "", "")]
    show_table(("Agent with the largest ε", "δ", "ε stated", "closed form", "PLD"), rows)
    show_table(
        ("Its releases (sums over rows)", "z", "rounds", "share of Σμ²"),
        [
            (
                each.statistic,
                f"{each.noise_multiplier:.4g}",
                f"{each.released} of {each.charged}",
                f"{each.charged / (each.noise_multiplier * (group.mu or 1.0)) ** 2:.1%}",
            )
            for each in group.releases
        ],
        fold=[0],
    )


def _pld(check: StatementCheck | None) -> str:
    return "–" if check is None or check.pld is None else rounded_up(check.pld)
