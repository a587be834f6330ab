"""``dpadmm ledger``: inspect, export, back up and restore the privacy budget of a data set."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import gaussian, plan_from_json
from dpadmm.accounting.report import PrivacyReport
from dpadmm.cli.console import AsJson, Row, echo, echo_json, echo_path, rounded_down, rounded_up, show_table, write
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.federation.site.lifecycle import participation
from dpadmm.parameters.checks import require_delta
from dpadmm.parameters.suggestions import first_of
from dpadmm.sites.accounts import report_of_account
from dpadmm.trusted.ledger import DATABASE, MARK, START, Account, LedgerState, read_ledger
from dpadmm.version import VERSION

MEANING = (
    "ε is exact. It protects a person with the maximum number of rows, for replace-one neighbours, against anyone who "
    "sees all messages of all studies. Σμ² of several releases adds up; ε does not."
)
ALONE = (
    "With secure aggregation, ε holds if every round has at least the study's number of honest sites, and if its "
    "masks are secret (a computational assumption). The ε if all other sites collude needs neither assumption."
)
ENDED_EARLY = (
    "The ledger charges a study that ended early only for the released rounds. Its privacy report charges all "
    "planned rounds, because readers cannot check why it ended."
)
DELTA = 1e-5
CHECK = (
    "The chain of a record is the SHA-256 of the chain before it (64 zeros at first), a line break, and the "
    "record as a JSON array, as Python's json.dumps writes it: [kind, study, mu_squared, round, digest, seq, "
    "at, content]. The content of a spend is the SHA-256 of its upload."
)

PUBLIC = ("name", "method", "loss", "plan", "statistics", "delta", "masking", "n_rows", "rows_per_person")
"""The public part of a study's description, without the digest of the rows and its salt."""

ledger_app = typer.Typer(
    help="Inspect, export, back up and restore the privacy budget of a data set.", no_args_is_help=True
)

Folder = Annotated[Path, Argument(help="Folder of the ledger.", metavar="FOLDER")]
Output = Annotated[Path, Option("--output", "-o", help="JSON file to write.")]
Delta = Annotated[
    float | None,
    Option("--delta", help="δ at which ε is computed.", show_default="from the site.toml of the ledger, else 1e-5"),
]
TOTALS = {
    "spent": "spent by releases",
    "reserved": "reserved by open studies",
    "promised": "spent and reserved",
    "left": "left for new studies",
    "cap": "limit set by the owner",
}
ROUNDING = Fraction(1, 2**40)
"""A smaller fraction of a limit is a rounding error and is shown as zero."""


@ledger_app.command("show")
def show(folder: Folder, delta: Delta = None, as_json: AsJson = False) -> None:
    """Show the spent, reserved and remaining budget, in total and by study.

    The ledger is verified first. The agent may be running.
    """
    delta, source = _delta(folder, delta)
    state = read_ledger(folder)
    values = summary(state, delta)
    if as_json:
        echo_json(values)
        return
    echo_path(f"Ledger in {folder}")
    _show_totals(values["totals"], delta, "")
    if _differ(state):
        _show_totals(values["totals_if_others_collude"], delta, "if all other sites collude")
    if state.accounts:
        _show_studies(values["studies"], [account.shares for account in state.accounts.values()])
    echo(f"δ = {delta:g} {source}. {MEANING}", *([ALONE] if _differ(state) else []))
    accounts = [(account, Fraction(account.reservation.mu_squared)) for account in state.accounts.values()]
    if any(account.closed and account.spent < reserved * (1 - ROUNDING) for account, reserved in accounts):
        echo(ENDED_EARLY)
    echo_path(f"{state.seq} records, all verified. Fingerprint (keep a copy elsewhere):", state.fingerprint)


@ledger_app.command("verify")
def verify(folder: Folder) -> None:
    """Verify every record, hash, rule and sum, and the mark. Exit code 0 if all are correct, else 2."""
    state = read_ledger(folder)
    studies = f"{len(state.accounts)} {'study' if len(state.accounts) == 1 else 'studies'}"
    echo(f"The ledger is intact: {state.seq} records, {studies}; hashes, rules, sums and mark are correct.")
    echo_path(f"Fingerprint: {state.fingerprint}")


@ledger_app.command("export")
def export(folder: Folder, output: Output, delta: Delta = None) -> None:
    """Write all records and hashes, without uploads, to a JSON file that anyone can verify."""
    delta, _ = _delta(folder, delta)
    state = read_ledger(folder)
    records, chain = [], START
    for record in state.records:
        chain = record.chain(chain)
        records.append({**record._asdict(), "chain": chain})
    extra = {"records": records, "how_to_check": CHECK, "dpadmm_version": VERSION}
    text = json.dumps({**summary(state, delta), **extra}, indent=2, allow_nan=False)
    _write(folder, output, f"{text}\n".encode())
    echo_path(f"Ledger: {output}")


@ledger_app.command("report")
def report(
    folder: Folder,
    study: Annotated[str, Argument(help="Name of the study, or the beginning of its hash.")],
    output: Output,
    site: str = Option("this site", "--site", help="Site name in the file."),
) -> None:
    """Write the privacy report of a study (see dpadmm verify)."""
    state = read_ledger(folder)
    chosen = chosen_study(state, study)
    privacy = report_of_account(chosen, state.accounts[chosen], site=site)
    _write(folder, output, privacy.to_bytes())
    account = state.accounts[chosen]
    echo_path(f"Privacy report: {output}")
    if len(account.rounds) < privacy.charged_releases.sum():
        echo(_both_charges(account, privacy))


@ledger_app.command("backup")
def backup(
    folder: Folder,
    output: Annotated[Path, Option("--output", "-o", help="File to write. Keep it as secret as the table.")],
) -> None:
    """Back up the ledger to a file, for dpadmm ledger restore. The agent may be running."""
    from dpadmm.sites.backup import back_up

    _check_elsewhere(folder, output)
    state = back_up(folder, output)
    echo_path(f"Backup: {output}")
    echo(
        f"{state.seq} records, all verified. Keep it as secret as the table. Restoring it charges all releases that "
        "may have been made since. Make a new backup when a study is enrolled or ends, or when a limit changes."
    )


@ledger_app.command("restore")
def restore_command(
    copy: Annotated[
        Path | None,
        Argument(help="Backup made by dpadmm ledger backup.", show_default="the ledger folder is itself an old copy"),
    ] = None,
    site_file: Annotated[Path, Option("--site", help="Your site.toml.", metavar="SITE")] = Path("site.toml"),
    since: Annotated[
        list[Path] | None,
        Option("--enrolled-since", help="Study enrolled after the backup; repeatable.", metavar="STUDY"),
    ] = None,
    none_since: bool = Option(False, "--none-since", help="No study was enrolled after the backup."),
) -> None:
    """Restore a ledger backup; releases made since are charged in full.

    Studies that were open in the backup, and studies enrolled since, are charged in full and closed. The server is
    informed that they cannot continue with this site. Without --enrolled-since or --none-since, the whole remaining
    budget is charged.
    """
    from dpadmm.federation.site.decisions import close_unknown, decisions
    from dpadmm.sites.backup import restore
    from dpadmm.sites.site import read_site
    from dpadmm.studies.reading import read_study

    site = read_site(site_file)
    if since and none_since:
        raise StudyError("--enrolled-since and --none-since cannot be combined")
    studies = [read_study(path) for path in since or ()]
    decided = {each.study.hash: each.study.name for each in decisions(site.path.parent) if each.kind != "declined"}
    result = restore(site, copy, studies if since or none_since else None, decided)
    policy, state = site.policy, result.state
    echo_path(f"Restored: {site.ledger}", *([f"The damaged ledger is kept in {result.kept}"] if result.kept else []))
    if result.complete:
        echo("The mark shows that the backup has every record. Nothing more is charged.")
        return
    close_unknown(site.path.parent, state)
    for hash in result.closed:
        account = state.accounts[hash]
        text = f"charged in full and closed, ε {rounded_up(policy.epsilon_of(account.spent))}"
        echo(f"{account.about.get('name') or hash[:12]}: {text}.")
    echo(f"Charged for studies enrolled since the backup: ε {rounded_up(policy.epsilon_of(result.lost))}.")
    limit, alone = (rounded_up(policy.epsilon_of(cap)) for cap in (state.max_cap, state.max_collusion_cap))
    colluding = f" (ε {alone} if all other sites collude)" if state.max_collusion_cap != state.max_cap else ""
    echo(
        f"Assumed: since the backup, the limit was at most ε {limit}{colluding} at δ = {policy.delta:g}, and "
        f"person.rows at most {state.max_rows_per_person}. These are the highest values in the backup and in "
        "site.toml. If a value was higher for a time, set it in site.toml and repeat this command without the backup."
    )
    left = left_in(Fraction(policy.cap), state.promised)
    echo(f"Left for new studies: ε {rounded_down(policy.epsilon_of(left))} at δ = {policy.delta:g}.")


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


def _check_elsewhere(folder: Path, output: Path) -> None:
    if output.absolute().parent.resolve() == folder.resolve() and output.name.startswith((DATABASE, MARK)):
        raise DataError(f"{output} belongs to the ledger itself; choose another name")


def _write(folder: Path, output: Path, content: bytes) -> None:
    _check_elsewhere(folder, output)
    write(output, content)


def summary(state: LedgerState, delta: float) -> dict[str, Any]:
    return {
        "delta": delta,
        "totals": _totals(delta, Fraction(state.cap), state.promised, state.spent),
        "totals_if_others_collude": _totals(
            delta,
            Fraction(state.collusion_cap),
            state.collusion_promised,
            state.collusion_spent,
        ),
        "studies": [_study(study, account, delta) for study, account in state.accounts.items()],
        "n_records": state.seq,
        "fingerprint": state.fingerprint,
        "meaning": f"{MEANING} {ALONE}" if _differ(state) else MEANING,
    }


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
        "enrolled_at": times[0],
        "last_at": times[-1],
    }


def _differ(state: LedgerState) -> bool:
    """Return whether secure aggregation gives the ledger two sums or two limits."""
    return (state.promised, state.cap) != (state.collusion_promised, state.collusion_cap)


def _totals(delta: float, cap: Fraction, promised: Fraction, spent: Fraction) -> dict[str, dict[str, float]]:
    sums = (spent, left_in(promised, spent), promised, left_in(cap, promised), cap)
    return {name: _figures(amount, delta) for name, amount in zip(TOTALS, sums, strict=True)}


def left_in(whole: Fraction, used: Fraction) -> Fraction:
    """Return the unused part of a Σμ², or zero if it is only a rounding error."""
    left = whole - used
    return left if left > whole * ROUNDING else Fraction(0)


def _delta(folder: Path, given: float | None) -> tuple[float, str]:
    """Return the δ at which ε is shown, and its source: the option, the ledger's site.toml or the default."""
    if given is not None:
        require_delta(given)
        return given, "as given"
    path = folder.absolute().parent / "site.toml"
    if path.exists():
        from dpadmm.sites.site import read_site

        try:
            site = read_site(path)
            if site.ledger.resolve() == folder.resolve():
                return site.policy.delta, "from site.toml"
        except (DPADMMError, OSError):
            pass  # the ledger can be shown without it
    return DELTA, "by default, because the ledger has no site.toml (choose with --delta)"


def _both_charges(account: Account, privacy: PrivacyReport) -> str:
    (agent,) = privacy.groups
    whole, spent = (rounded_up(exact_epsilon(mu, privacy.delta)) for mu in (agent.person_mu, account.spent**0.5))
    return (
        f"It charges all {privacy.charged_releases.sum()} planned rounds, ε {whole} for a person at the study's δ = "
        f"{privacy.delta:g}, because readers cannot check why a study ended. Your ledger charges the "
        f"{len(account.rounds)} released rounds, ε {spent}."
    )


def _releases(account: Account) -> list[dict[str, Any]]:
    """Return each statistic of the study's plan with its released and planned rounds."""
    if "plan" not in account.about:  # not reserved by a guard
        return []
    plan = plan_from_json(account.about["plan"])
    return [
        {"statistic": of.statistic, "noise_multiplier": of.noise_multiplier, "released": n, "planned": planned}
        for (each, n), (_, planned) in zip(plan.tally(account.rounds), plan.tally(), strict=True)
        if (of := gaussian(each))
    ]


def _figures(amount: Fraction, delta: float) -> dict[str, float]:
    mu_squared = float(max(Fraction(0), amount))
    return {"mu_squared": mu_squared, "epsilon": exact_epsilon(math.sqrt(mu_squared), delta)}


def _show_totals(totals: Mapping[str, Mapping[str, float]], delta: float, heading: str) -> None:
    rows: list[Row] = []
    for name, words in TOTALS.items():
        epsilon = (rounded_down if name == "left" else rounded_up)(totals[name]["epsilon"])
        rows += [(words, f"{totals[name]['mu_squared']:.6g}", epsilon), *([()] if name == "promised" else [])]
    show_table((heading, "Σμ²", f"ε at δ = {delta:g}"), rows)


def _show_studies(studies: Sequence[Mapping[str, Any]], shares: Sequence[int]) -> None:
    rows, masked, plans = list[Row](), list[Row](), list[Row]()
    for each, min_honest_sites in zip(studies, shares, strict=True):
        short, both = each["study"][:12], (each["spent"], each["reserved"])
        name = f"{short} {each['about'].get('name', '')}".strip()
        amounts = (*(f"{of['mu_squared']:.4g}" for of in both), *(rounded_up(of["epsilon"]) for of in both))
        rows.append((name, each["state"], str(each["releases"]), *amounts))
        if min_honest_sites > 1:
            alone = (rounded_up(each[kind]["epsilon"]) for kind in ("collusion_spent", "collusion_reserved"))
            masked.append((short, str(min_honest_sites), *alone))
        for of in each["by_statistic"]:
            done = f"{of['released']} of {of['planned']}"
            plans.append((short, of["statistic"], f"{of['noise_multiplier']:.4f}", done))
    show_table(("study", "state", "rounds", "Σμ² spent", "of", "ε spent", "of"), rows, fold=[0])
    if masked:
        show_table(("study", "honest sites", "ε spent if all others collude", "of"), masked)
    show_table(("study", "statistic", "noise multiplier z", "rounds"), plans, left=(0, 1), fold=[1])
