"""Budget of a site: ``dpadmm site budget``, ``export``, ``backup`` and ``restore``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import ReleasePlan, gaussian
from dpadmm.cli.console import AsJson, echo, echo_path, show, write
from dpadmm.errors import DataError, StudyError
from dpadmm.federation.site.lifecycle import participation
from dpadmm.parameters.checks import require_delta
from dpadmm.parameters.suggestions import first_of
from dpadmm.parameters.text import printable
from dpadmm.rendering import Block, Cell, Column, Paragraph, Rendering, Row, Table
from dpadmm.rendering.formats import plural, rounded_down, rounded_up
from dpadmm.sites.site import Site, read_site
from dpadmm.trusted.ledger import DATABASE, MARK, START, Account, LedgerState, read_ledger
from dpadmm.version import VERSION

if TYPE_CHECKING:
    from dpadmm.accounting.report import PrivacyReport

MEANING = (
    "ε is exact. It protects a person with the maximum number of rows, for replace-one neighbours, against anyone who "
    "sees all messages of all studies. Σμ² of several releases adds up; ε does not."
)
SECURE_MEANING = (
    "With secure aggregation, ε holds if every round has at least the study's number of honest sites, and if its "
    "masks are secret (a computational assumption). The ε if all other sites collude needs neither assumption."
)
ENDED_EARLY = (
    "The ledger charges a study that ended early only for the released rounds. Its privacy report charges all "
    "planned rounds, because readers cannot check why it ended."
)
DEFAULT_DELTA = 1e-5
HOW_TO_CHECK = (
    "The chain of a record is the SHA-256 of the chain before it (64 zeros at first), a line break, and the "
    "record as a JSON array, as Python's json.dumps writes it: [kind, study, mu_squared, round, digest, seq, "
    "at, content]. The content of a spend is the SHA-256 of its upload."
)
PUBLIC = ("name", "method", "loss", "plan", "statistics", "delta", "masking", "n_rows", "rows_per_person")
"""The public part of a study's description, without the digest of the rows and its salt."""
TOTALS = {
    "spent": "spent by releases",
    "reserved": "reserved by open studies",
    "promised": "spent and reserved",
    "left": "left for new studies",
    "cap": "limit set by the owner",
}
ROUNDING = Fraction(1, 2**40)
"""A smaller fraction of a limit is a rounding error and is shown as zero."""

SiteOption = Annotated[
    Path, Option("--site", help="Your site.toml, or its folder.", metavar="SITE", show_default="site.toml")
]
LedgerOption = Annotated[
    Path | None, Option("--ledger", help="Folder of a ledger, instead of the site's.", metavar="FOLDER")
]
Delta = Annotated[
    float | None,
    Option("--delta", help="δ at which ε is computed.", show_default="your δ, or 1e-5 with --ledger"),
]
HERE = Path("site.toml")


def budget(
    site_file: SiteOption = HERE, ledger: LedgerOption = None, delta: Delta = None, as_json: AsJson = False
) -> None:
    """Verify the ledger, and show the spent, reserved and remaining budget in total and by study.

    Every record, hash, rule and sum is verified; a damaged ledger is an error with exit code 2. The site may be
    running.
    """
    folder, delta = _ledger_and_delta(site_file, ledger, delta)
    show(budget_rendering(folder, read_ledger(folder), delta), as_json=as_json)


def export(
    study: Annotated[
        str | None,
        Argument(help="Name of a study, or the beginning of its hash.", show_default="all records", metavar="STUDY"),
    ] = None,
    output: Path = Option(..., "--output", "-o", help="JSON file to write.", metavar="FILE"),
    site_file: SiteOption = HERE,
    ledger: LedgerOption = None,
    name: str = Option(
        "this site", "--name", help="Name of the site in the privacy report.", show_default="this site", metavar="NAME"
    ),
    delta: Delta = None,
) -> None:
    """Write the privacy report of a study, or without STUDY all records of the ledger.

    The privacy report can be verified with dpadmm verify. The records contain hashes and no uploads; the file explains
    how to verify them.
    """
    folder, delta = _ledger_and_delta(site_file, ledger, delta)
    state = read_ledger(folder)
    _check_elsewhere(folder, output)
    if study is None:
        write(output, _exported(state, delta))
        return echo_path(f"Ledger: {output}")
    from dpadmm.sites.accounts import report_of_account

    chosen = chosen_study(state, study)
    report = report_of_account(chosen, state.accounts[chosen], site=name)
    write(output, report.to_bytes())
    echo_path(f"Privacy report: {output}")
    if len(state.accounts[chosen].rounds) < report.charged_releases.sum():
        echo(_both_charges(state.accounts[chosen], report))
    return None


def backup(
    output: Path = Option(..., "--output", "-o", help="File to write. Keep it as secret as the table.", metavar="FILE"),
    site_file: SiteOption = HERE,
) -> None:
    """Back up the ledger to a file, for dpadmm site restore. The site may be running."""
    from dpadmm.sites.backup import back_up

    folder, _ = _ledger_and_delta(site_file, None, None)
    _check_elsewhere(folder, output)
    state = back_up(folder, output)
    note = (
        "Keep it as secret as the table. Restoring it charges all releases that may have been made since. Make a new "
        "backup when a study is accepted or ends, or when a limit changes."
    )
    body = [Paragraph(f"{state.seq} records, all verified. {note}")]
    show(Rendering(body=body, next_steps=[f"Backup: {output}"]))


def restore(
    copy: Path | None = Argument(
        None, help="Backup of the ledger.", show_default="the ledger itself is an old copy", metavar="BACKUP"
    ),
    site_file: SiteOption = HERE,
    since: list[Path] = Option(
        [], "--accepted-since", help="Study accepted after the backup; repeatable.", metavar="STUDY"
    ),
    none_since: bool = Option(False, "--none-since", help="No study was accepted after the backup."),
) -> None:
    """Restore a backup of the ledger. Releases made since are charged in full.

    Studies that were open in the backup, and studies accepted since, are charged in full and closed. The server is
    informed that they cannot continue with this site. Without --accepted-since or --none-since, the whole remaining
    budget is charged.
    """
    from dpadmm.federation.site.decisions import close_unknown, decisions
    from dpadmm.sites import backup as backups
    from dpadmm.studies.reading import read_study

    site = _site(site_file)
    if since and none_since:
        raise StudyError("--accepted-since and --none-since cannot be combined")
    studies = [read_study(path) for path in since]
    decided = {each.study.hash: each.study.name for each in decisions(site.path.parent) if each.kind != "declined"}
    restored = backups.restore(site, copy, studies if since or none_since else None, decided)
    if not restored.complete:
        close_unknown(site.path.parent, restored.state)
    show(_restored_rendering(site, restored))


def _restored_rendering(site: Site, restored: Any) -> Rendering:
    policy, state = site.policy, restored.state
    paths = [f"Restored: {site.ledger}"]
    paths += [f"The damaged ledger is kept in {restored.kept}"] if restored.kept else []
    if restored.complete:
        return Rendering(body=[Paragraph("The backup has every record. Nothing more is charged.")], next_steps=paths)
    lines = []
    for hash in restored.closed:
        account = state.accounts[hash]
        text = f"charged in full and closed, ε {rounded_up(policy.epsilon_of(account.spent))}"
        lines.append(f"{account.about.get('name') or hash[:12]}: {text}.")
    lines.append(f"Charged for studies accepted since the backup: ε {rounded_up(policy.epsilon_of(restored.lost))}.")
    limit, colluding = (rounded_up(policy.epsilon_of(cap)) for cap in (state.max_cap, state.max_collusion_cap))
    alone = f" (ε {colluding} if all other sites collude)" if state.max_collusion_cap != state.max_cap else ""
    lines.append(
        f"Assumed: since the backup, the limit was at most ε {limit}{alone} at δ = {policy.delta:g}, and "
        f"person.rows at most {state.max_rows_per_person}. These are the highest values in the backup and in "
        "site.toml. If a value was higher for a time, set it in site.toml and repeat this command without the backup."
    )
    left = rounded_down(policy.epsilon_of(left_in(Fraction(policy.cap), state.promised)))
    lines.append(f"Left for new studies: ε {left} at δ = {policy.delta:g}.")
    return Rendering(body=list(map(Paragraph, lines)), next_steps=paths)


def budget_rendering(folder: Path, state: LedgerState, delta: float) -> Rendering:
    """Return the budget of a ledger: totals and studies."""
    values = summary(state, delta)
    body: list[Block] = [_totals_table(values["totals"], "")]
    if _differ(state):
        body.append(_totals_table(values["totals_if_others_collude"], "if all other sites collude"))
    body += _studies_tables(values["studies"], [account.shares for account in state.accounts.values()])
    notes = [f"δ = {delta:g}. {MEANING}", *([SECURE_MEANING] if _differ(state) else [])]
    accounts = [(account, Fraction(account.reservation.mu_squared)) for account in state.accounts.values()]
    if any(account.closed and account.spent < reserved * (1 - ROUNDING) for account, reserved in accounts):
        notes.append(ENDED_EARLY)
    studies = f"{len(state.accounts)} {'study' if len(state.accounts) == 1 else 'studies'}"
    verified = f"Verified: {plural(state.seq, 'record')}, {studies}. Fingerprint (keep a copy elsewhere):"
    return Rendering(body=body, notes=notes, next_steps=[f"Ledger: {folder}", verified, state.fingerprint], data=values)


def _totals_table(totals: Mapping[str, Mapping[str, float]], heading: str) -> Table:
    rows: list[Row] = []
    for name, words in TOTALS.items():
        epsilon = (rounded_down if name == "left" else rounded_up)(totals[name]["epsilon"])
        rows.append((words, totals[name]["mu_squared"], Cell(totals[name]["epsilon"], epsilon)))
        rows += [()] if name == "promised" else []
    return Table([Column("", heading), Column("", "Σμ²", ".6g"), Column("", "ε")], rows)


def _studies_tables(studies: Iterable[Mapping[str, Any]], shares: Iterable[int]) -> list[Block]:
    rows, masked, plans = list[Row](), list[Row](), list[Row]()
    for each, min_honest_sites in zip(studies, shares, strict=True):
        short, amounts = each["study"][:12], (each["spent"], each["reserved"])
        name = f"{short} {each['about'].get('name', '')}".strip()
        rows.append(
            (
                name,
                each["state"],
                each["releases"],
                *(amount["mu_squared"] for amount in amounts),
                *(amount["epsilon"] for amount in amounts),
            )
        )
        if min_honest_sites > 1:
            alone = (each[kind]["epsilon"] for kind in ("collusion_spent", "collusion_reserved"))
            masked.append((short, min_honest_sites, *alone))
        for of in each["by_statistic"]:
            done = Cell(of["released"], f"{of['released']} of {of['planned']}")
            plans.append((short, of["statistic"], of["noise_multiplier"], done))
    study, sums = ("study", None), [("Σμ² spent", ".4g"), ("of", ".4g")]
    tables: list[tuple[list[tuple[str, Any]], list[Row]]] = [
        ([study, ("state", None), ("rounds", None), *sums, ("ε spent", rounded_up), ("of", rounded_up)], rows),
        ([study, ("honest sites", None), ("ε spent if all others collude", rounded_up), ("of", rounded_up)], masked),
        ([study, ("statistic", None), ("noise multiplier z", ".4f"), ("rounds", None)], plans),
    ]
    return [
        Table([Column("", title, form) for title, form in columns], content) for columns, content in tables if content
    ]


def chosen_study(state: LedgerState, study: str) -> str:
    """Return the hash of the study with this name or hash prefix."""
    named = [hash for hash, account in state.accounts.items() if account.about.get("name") == study]
    matches = named or [hash for hash in state.accounts if hash.startswith(study)]
    if len(matches) == 1:
        return matches[0]
    if not state.accounts:
        raise StudyError("the ledger has no studies yet")
    names = [f"{hash[:12]} {state.accounts[hash].about.get('name', '')}".strip() for hash in matches or state.accounts]
    problem = "matches more than one study" if matches else "is not a study in this ledger"
    key = "the beginning of the hash" if matches else "the name, or the beginning of the hash,"
    raise StudyError(f"{study!r} {problem}; give {key} of one of these: {first_of(names, 8)}")


def summary(state: LedgerState, delta: float) -> dict[str, Any]:
    """Return totals and studies of a ledger as values for JSON."""
    return {
        "delta": delta,
        "totals": _totals(delta, Fraction(state.cap), state.promised, state.spent),
        "totals_if_others_collude": _totals(
            delta, Fraction(state.collusion_cap), state.collusion_promised, state.collusion_spent
        ),
        "studies": [_study(study, account, delta) for study, account in state.accounts.items()],
        "n_records": state.seq,
        "fingerprint": state.fingerprint,
        "meaning": f"{MEANING} {SECURE_MEANING}" if _differ(state) else MEANING,
    }


def _exported(state: LedgerState, delta: float) -> bytes:
    """Return all records with their hashes, and the summary, as a JSON file."""
    records, chain = [], START
    for record in state.records:
        chain = record.chain(chain)
        records.append({**record._asdict(), "chain": chain})
    extra = {"records": records, "how_to_check": HOW_TO_CHECK, "dpadmm_version": VERSION}
    return (json.dumps({**summary(state, delta), **extra}, indent=2, allow_nan=False) + "\n").encode()


def _study(study: str, account: Account, delta: float) -> dict[str, Any]:
    times = [account.reservation.at, *(record.at for record in account.rounds.values())]
    return {
        "study": study,
        "about": {key: account.about[key] for key in PUBLIC if key in account.about},
        "state": participation("accepted", account.ending, None).value if account.closed else "open",
        "may_miss_rounds": account.may_miss_rounds,
        "releases": len(account.rounds),
        "by_statistic": _releases(account),
        "last_round": max(account.rounds, default=0),
        "reserved": _figures(Fraction(account.reservation.mu_squared), delta),
        "spent": _figures(account.spent, delta),
        "collusion_reserved": _figures(account.shares * Fraction(account.reservation.mu_squared), delta),
        "collusion_spent": _figures(account.shares * account.spent, delta),
        "accepted_at": times[0],
        "last_at": times[-1],
    }


def _releases(account: Account) -> list[dict[str, Any]]:
    """Return each statistic of the study's plan with its released and planned rounds."""
    if "plan" not in account.about:  # not reserved by a guard
        return []
    plan = ReleasePlan.from_list(account.about["plan"])
    return [
        {"statistic": of.statistic, "noise_multiplier": of.noise_multiplier, "released": n, "planned": planned}
        for (each, n), (_, planned) in zip(plan.tally(account.rounds), plan.tally(), strict=True)
        if (of := gaussian(each))
    ]


def _differ(state: LedgerState) -> bool:
    """Return whether secure aggregation gives the ledger two sums or two limits."""
    return (state.promised, state.cap) != (state.collusion_promised, state.collusion_cap)


def _totals(delta: float, cap: Fraction, promised: Fraction, spent: Fraction) -> dict[str, dict[str, float]]:
    sums = (spent, left_in(promised, spent), promised, left_in(cap, promised), cap)
    return {name: _figures(amount, delta) for name, amount in zip(TOTALS, sums, strict=True)}


def _figures(amount: Fraction, delta: float) -> dict[str, float]:
    mu_squared = float(max(Fraction(0), amount))
    return {"mu_squared": mu_squared, "epsilon": exact_epsilon(math.sqrt(mu_squared), delta)}


def left_in(whole: Fraction, used: Fraction) -> Fraction:
    """Return the unused part of a Σμ², or zero if it is only a rounding error."""
    left = whole - used
    return left if left > whole * ROUNDING else Fraction(0)


def _both_charges(account: Account, report: PrivacyReport) -> str:
    (group,) = report.groups
    whole, spent = (rounded_up(exact_epsilon(mu, report.delta)) for mu in (group.person_mu, account.spent**0.5))
    return (
        f"It charges all {report.charged_releases.sum()} planned rounds, ε {whole} for a person at the study's δ = "
        f"{report.delta:g}, because readers cannot check why a study ended. Your ledger charges the "
        f"{len(account.rounds)} released rounds, ε {spent}."
    )


def _site(path: Path) -> Site:
    return read_site(site_path(path))


def open_site(path: Path) -> Site:
    """Read a site, and print warnings about its files."""
    site = read_site(site_path(path))
    warn(*site.warnings())
    return site


def warn(*warnings: str) -> None:
    for warning in warnings:
        typer.echo(printable(f"dpadmm: warning: {warning}"), err=True)


def site_path(path: Path) -> Path:
    """Return the site.toml of a path, which may be its folder."""
    return path if path.suffix == ".toml" and not path.is_dir() else path / "site.toml"


def _ledger_and_delta(site_file: Path, ledger: Path | None, delta: float | None) -> tuple[Path, float]:
    """Return the folder of the chosen ledger, and the δ at which ε is shown."""
    if delta is not None:
        require_delta(delta)
    if ledger is not None:
        return ledger, DEFAULT_DELTA if delta is None else delta
    site = _site(site_file)
    return site.ledger, site.policy.delta if delta is None else delta


def _check_elsewhere(folder: Path, output: Path) -> None:
    if output.absolute().parent.resolve() == folder.resolve() and output.name.startswith((DATABASE, MARK)):
        raise DataError(f"{output} belongs to the ledger itself; choose another name")
