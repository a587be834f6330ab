"""``dpadmm verify``: recompute the figures of a privacy statement."""

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

SHOWN = 12


def verify(
    file: Path = Argument(..., help="A privacy statement (JSON).", metavar="FILE"),
    ledger: Path | None = Option(
        None, help="Also compare the statement with the ledger in this folder.", metavar="FOLDER"
    ),
    as_json: AsJson = False,
) -> None:
    """Check a privacy statement: recompute every ε in two ways.

    Only the noise, the releases and δ are taken from the file. Exit code 0 if
    all figures are correct, else 2. No calculation can tell whether agents
    did what the statement says; owners can check that with --ledger.
    """
    verified = read_statement(file)
    at_site = None if ledger is None else compared(verified.statement, ledger)
    checks = cross_checks(verified)
    if as_json:
        echo_json({**as_plain(verified, checks), "ledger": at_site})
        return
    _show(file, verified, checks)
    if at_site:
        others = at_site["other_studies"]
        echo(
            f"The ledger has this study with the same numbers: {at_site['released']} of {at_site['charged']} "
            f"rounds released, Σμ² {at_site['spent']:.6g} of {at_site['reserved']:.6g}."
            + (f" It has {others} other studies, which are not included." if others else "")
        )


def as_plain(verified: Verified, checks: dict[int, list[StatementCheck]]) -> dict[str, Any]:
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


def compared(statement: Statement, folder: Path) -> dict[str, Any]:
    """The entry of the study in a ledger; raises ``StudyError`` if it contradicts the statement."""
    if statement.sampler == SIMULATED:
        raise StudyError("the statement is for a simulated run, which is in no ledger")
    state = read_ledger(folder)
    account = state.accounts.get(statement.study_hash)
    if account is None:
        raise StudyError(f"the ledger in {folder} has no study {statement.study_hash}")
    # Together with the rules of the ledger: no more was spent than is charged here
    own = of_account(statement.study_hash, account, site="this site", version=statement.version)
    (here,) = _terms(own)
    stated = _terms(statement)
    same = [terms for terms in stated if {**terms, "released": here["released"]} == here]
    if not same:
        raise StudyError(f"the statement contradicts the ledger in {folder}: {_difference(stated, here)}")
    if (released := min(terms["released"] for terms in same)) > here["released"]:
        raise StudyError(f"the ledger in {folder} has {here['released']} releases, but the statement has {released}")
    return {
        "charged": here["charged"],
        "released": here["released"],
        "spent": float(account.spent),
        "reserved": account.reservation.mu_squared,
        "other_studies": len(state.accounts) - 1,
    }


def _terms(statement: Statement) -> list[dict[str, Any]]:
    """The terms of every distinct agent, for comparison."""
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


def _difference(stated: list[dict[str, Any]], here: dict[str, Any]) -> str:
    if len(stated) > 1:
        return "none of its agents has the numbers of the ledger"
    name = next(name for name, value in here.items() if stated[0][name] != value and name != "released")
    return f"it has {name} {stated[0][name]!r}, the ledger {here[name]!r}"


def _show(file: Path, verified: Verified, checks: dict[int, list[StatementCheck]]) -> None:
    statement = verified.statement
    echo_path(f"Statement in {file}")
    echo(f"{statement.name} ({statement.method}), hash {statement.study_hash[:12]}")
    worst = next(iter(checks))
    _show_agents(verified, checks)
    _show_worst(verified, checks[worst], worst)
    echo(
        "All figures are correct. They were recomputed from the noise and the number of releases alone: in "
        "closed form and, where shown, with privacy loss distributions (PLD), which round up.",
        "Names, numbers of rows, rounds released so far and the study's hash cannot be recomputed: they are the word "
        "of whoever signs the statement. An owner can compare them with the site's ledger: --ledger FOLDER.",
    )
    document = verified.document
    echo(document["sampler"]["words"], style="bold" if statement.sampler == SIMULATED else None)
    echo(f"Guaranteed: {document['guaranteed']}", f"Not guaranteed: {document['not_guaranteed']}")


def _show_agents(verified: Verified, checks: dict[int, list[StatementCheck]]) -> None:
    statement, document = verified
    order = sorted(range(len(statement.groups)), key=lambda i: (i not in checks, -statement.groups[i].person_mu))
    rows = []
    for i in order[:SHOWN]:
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
        title=f"One row of an agent, at δ = {statement.delta:g}; charged for all rounds",
        caption=f"and {len(order) - SHOWN} more groups of agents with a smaller ε" if len(order) > SHOWN else None,
    )


def _show_worst(verified: Verified, checks: list[StatementCheck], position: int) -> None:
    group, rows = verified.statement.groups[position], list[Row]()
    for check in checks:
        who = f"{check.n_rows} row{'s' if check.n_rows > 1 else ''}"
        who = f"a person, with {who}" if check.n_rows == group.rows_per_person > 1 else who
        rows += [(who, f"{check.delta:g}", rounded_up(check.stated), rounded_up(check.closed_form), _pld(check))]
    if (paper := verified.document["agents"][position]["epsilon_paper"]) is not None:
        rows += [(), ("1 row, the paper's bound ε̄", f"{verified.statement.delta:g}", rounded_up(paper), "", "")]
    show_table(("The agent with the largest ε", "δ", "ε stated", "closed form", "PLD"), rows)
    show_table(
        ("Its releases: sums over rows of", "z", "rounds", "share of Σμ²"),
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
