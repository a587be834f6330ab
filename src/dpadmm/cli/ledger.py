"""``dpadmm ledger``: the privacy budget of a data set, for its owner and the data-protection officer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import dpadmm
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import gaussian, plan_from_json
from dpadmm.accounting.statement import Statement
from dpadmm.cli.console import AsJson, Row, echo, echo_json, echo_path, rounded_down, rounded_up, show_table, write
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.federation.site.lifecycle import participation
from dpadmm.parameters.checks import require_delta
from dpadmm.parameters.suggestions import first_of
from dpadmm.sites.accounts import of_account
from dpadmm.trusted.ledger import DATABASE, MARK, START, Account, LedgerState, read_ledger

MEANING = (
    "ε is exact and holds for each person with the maximum number of rows, for replace-one neighbours, "
    "against everyone who sees all messages of all studies. Σμ² of several releases adds up; ε does not."
)
ALONE = (
    "With secure aggregation, ε holds if in every round at least as many sites are honest as the study says "
    "(honest), and as long as its masks are secret, which is computational; what is given for all other sites "
    "working together needs neither."
)
ENDED_EARLY = (
    "The ledger charges a study that ended early only for the rounds it released. Its statement charges all "
    "planned rounds, because readers cannot know why it ended."
)
DELTA = 1e-5
CHECK = (
    "The chain of a record is the SHA-256 of the chain before it (64 zeros at first), a line break, and the "
    "record as a JSON array, as Python's json.dumps writes it: [kind, study, mu_squared, round, digest, seq, "
    "at, content]. The content of a spend is the SHA-256 of its upload."
)

PUBLIC = ("name", "method", "loss", "plan", "statistics", "delta", "masking", "n_rows", "rows_per_person")
"""The public part of a study's description: not the digest of the rows and its salt."""

ledger_app = typer.Typer(
    help="The privacy budget of a data set: spent, reserved and left, by study.", no_args_is_help=True
)

Folder = Annotated[Path, Argument(help="The folder of the ledger.", metavar="FOLDER")]
Output = Annotated[Path, Option("--output", "-o", help="The JSON file to write.")]
Delta = Annotated[
    float | None,
    Option(
        "--delta", help="The δ for which ε is computed.", show_default="from the site.toml beside the ledger, else 1e-5"
    ),
]
TOTALS = {
    "spent": "spent by releases so far",
    "reserved": "reserved by open studies, not yet spent",
    "promised": "spent and reserved",
    "left": "left for new studies",
    "cap": "the owner's limit",
}
ROUNDING = Fraction(1, 2**40)
"""A smaller fraction of a limit is a rounding error and shown as zero."""


@ledger_app.command("show")
def show(folder: Folder, delta: Delta = None, as_json: AsJson = False) -> None:
    """Show the spent, reserved and remaining budget, in total and by study.

    The ledger is verified first. The agent may run at the same time.
    """
    delta, whose = _delta(folder, delta)
    state = read_ledger(folder)
    found = summary(state, delta)
    if as_json:
        echo_json(found)
        return
    echo_path(f"Ledger in {folder}")
    _show_totals(found["totals"], delta, "")
    if _differ(state):
        _show_totals(found["totals_alone"], delta, "if all other sites work together")
    if state.accounts:
        _show_studies(found["studies"], [each.shares for each in state.accounts.values()])
    echo(f"δ = {delta:g} {whose}. {MEANING}", *([ALONE] if _differ(state) else []))
    accounts = [(each, Fraction(each.reservation.mu_squared)) for each in state.accounts.values()]
    if any(each.closed and each.spent < reserved * (1 - ROUNDING) for each, reserved in accounts):
        echo(ENDED_EARLY)
    echo_path(f"{state.seq} records, all verified. Fingerprint, to keep elsewhere:", state.fingerprint)


@ledger_app.command("verify")
def verify(folder: Folder) -> None:
    """Verify every record, hash, rule and sum, and the mark; exit code 0 if all are correct, else 2."""
    state = read_ledger(folder)
    studies = f"{len(state.accounts)} {'study' if len(state.accounts) == 1 else 'studies'}"
    echo(f"The ledger is intact: {state.seq} records, {studies}; hashes, rules, sums and mark are correct.")
    echo_path(f"Fingerprint: {state.fingerprint}")


@ledger_app.command("export")
def export(folder: Folder, output: Output, delta: Delta = None) -> None:
    """Write all records with their hashes, without uploads, to a JSON file that anyone can check."""
    delta, _ = _delta(folder, delta)
    state = read_ledger(folder)
    records, chain = [], START
    for record in state.records:
        chain = record.chain(chain)
        records.append({**record._asdict(), "chain": chain})
    extra = {"records": records, "how_to_check": CHECK, "dpadmm_version": dpadmm.__version__}
    text = json.dumps({**summary(state, delta), **extra}, indent=2, allow_nan=False)
    _write(folder, output, f"{text}\n".encode())
    echo_path(f"Ledger: {output}")


@ledger_app.command("statement")
def statement(
    folder: Folder,
    study: Annotated[str, Argument(help="The study's name, or the beginning of its hash.")],
    output: Output,
    site: str = Option("this site", "--site", help="Site name in the file."),
) -> None:
    """Write the privacy statement of one study, which dpadmm verify checks."""
    state = read_ledger(folder)
    chosen = chosen_study(state, study)
    stated = of_account(chosen, state.accounts[chosen], site=site, version=dpadmm.__version__)
    _write(folder, output, stated.as_bytes())
    account = state.accounts[chosen]
    echo_path(f"Statement: {output}")
    if len(account.rounds) < sum(each.charged for each in stated.groups[0].releases):
        echo(_both_charges(account, stated))


@ledger_app.command("backup")
def backup(
    folder: Folder,
    output: Annotated[Path, Option("--output", "-o", help="The file to write; as secret as the table.")],
) -> None:
    """Copy the ledger to a file, for dpadmm ledger restore. The agent may run at the same time."""
    from dpadmm.sites.backup import back_up

    _check_elsewhere(folder, output)
    state = back_up(folder, output)
    echo_path(f"Copy: {output}")
    echo(
        f"{state.seq} records, all verified. Keep it as secret as the table. Whoever restores it is charged for all "
        "that may have been released since: make a new one whenever a study was enrolled or has ended, or a limit was "
        "changed."
    )


@ledger_app.command("restore")
def restore_command(
    copy: Annotated[
        Path | None,
        Argument(help="A copy that dpadmm ledger backup made.", show_default="the ledger there is an old copy itself"),
    ] = None,
    site_file: Annotated[Path, Option("--site", help="Your site.toml.", metavar="SITE")] = Path("site.toml"),
    since: Annotated[
        list[Path] | None,
        Option("--enrolled-since", help="A study enrolled after the copy was made; repeat it.", metavar="STUDY"),
    ] = None,
    none_since: bool = Option(False, "--none-since", help="No study was enrolled after the copy was made."),
) -> None:
    """Go on from an old copy of a ledger, and charge all that may have been released since.

    Studies that were open in the copy are charged in full and closed; so are those that were enrolled since. The server
    is informed that they cannot continue with this site. If you do not say which studies were enrolled since, all that
    your limits leave is charged.
    """
    from dpadmm.federation.site.decisions import close_unknown, decisions
    from dpadmm.sites.backup import restore
    from dpadmm.sites.site import read_site
    from dpadmm.studies.study import read_study

    site = read_site(site_file)
    if since and none_since:
        raise StudyError(
            "studies were enrolled since the copy was made, or none: give --enrolled-since or --none-since"
        )
    named = [read_study(each) for each in since or ()]
    decided = {each.study.hash: each.study.name for each in decisions(site.path.parent) if each.kind != "declined"}
    done = restore(site, copy, named if since or none_since else None, decided)
    policy, state = site.policy, done.state
    echo_path(f"Restored: {site.ledger}", *([f"The damaged ledger is kept: {done.kept}"] if done.kept else []))
    if done.complete:
        echo("The mark that was left shows that the copy has every record: nothing more is charged.")
        return
    close_unknown(site.path.parent, state)
    for hash in done.closed:
        account = state.accounts[hash]
        text = f"charged in full and closed, ε {rounded_up(policy.epsilon_of(account.spent))}"
        echo(f"{account.about.get('name') or hash[:12]}: {text}.")
    echo(f"For studies enrolled since the copy: ε {rounded_up(policy.epsilon_of(done.lost))}.")
    highest, alone = (rounded_up(policy.epsilon_of(each)) for each in (state.max_cap, state.max_cap_alone))
    together = f" (ε {alone} for all other sites working together)" if state.max_cap_alone != state.max_cap else ""
    echo(
        f"Assumed: since the copy was made, the limit was at most ε {highest}{together} at δ = {policy.delta:g}, and "
        f"person.rows at most {state.max_rows_per_person}. These are the highest values in the copy and in site.toml. "
        "If a value was higher for a time, set it in site.toml and repeat this command without the copy."
    )
    left = left_in(Fraction(policy.cap), state.promised)
    echo(f"Left for new studies: ε {rounded_down(policy.epsilon_of(left))} at δ = {policy.delta:g}.")


def chosen_study(state: LedgerState, study: str) -> str:
    """The hash of the study with this name, or with a hash that begins like this."""
    named = [each for each, account in state.accounts.items() if account.about.get("name") == study]
    found = named or [each for each in state.accounts if each.startswith(study)]
    if len(found) == 1:
        return found[0]
    if not state.accounts:
        raise StudyError("the ledger has no studies yet")
    names = [f"{each[:12]} {state.accounts[each].about.get('name', '')}".strip() for each in found or state.accounts]
    what = "matches more than one study" if found else "is not a study in this ledger"
    cure = "the beginning of the hash" if found else "the name, or the beginning of the hash,"
    raise StudyError(f"{study!r} {what}; give {cure} of one of these: {first_of(names, 8)}")


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
        "totals_alone": _totals(delta, Fraction(state.cap_alone), state.promised_alone, state.spent_alone),
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
        "reserved_alone": _figures(account.shares * Fraction(account.reservation.mu_squared), delta),
        "spent_alone": _figures(account.shares * account.spent, delta),
        "enrolled_at": times[0],
        "last_at": times[-1],
    }


def _differ(state: LedgerState) -> bool:
    """Whether secure aggregation gives the ledger two sums or two limits."""
    return (state.promised, state.cap) != (state.promised_alone, state.cap_alone)


def _totals(delta: float, cap: Fraction, promised: Fraction, spent: Fraction) -> dict[str, dict[str, float]]:
    sums = (spent, left_in(promised, spent), promised, left_in(cap, promised), cap)
    return {name: _figures(each, delta) for name, each in zip(TOTALS, sums, strict=True)}


def left_in(whole: Fraction, used: Fraction) -> Fraction:
    """The rest of a Σμ²; zero if it is only a rounding error."""
    left = whole - used
    return left if left > whole * ROUNDING else Fraction(0)


def _delta(folder: Path, given: float | None) -> tuple[float, str]:
    """The δ for which ε is shown and its source: the option, or the site.toml beside the ledger."""
    if given is not None:
        require_delta(given)
        return given, "as given"
    path = folder.absolute().parent / "site.toml"
    if path.exists():
        from dpadmm.sites.site import read_site

        try:
            site = read_site(path)
            if site.ledger.resolve() == folder.resolve():
                return site.policy.delta, "from the site.toml beside the ledger"
        except (DPADMMError, OSError):
            pass  # the ledger can be shown without it
    return DELTA, "by default, since there is no site.toml beside the ledger (choose with --delta)"


def _both_charges(account: Account, stated: Statement) -> str:
    (group,) = stated.groups
    charged = sum(each.charged for each in group.releases)
    whole, spent = (rounded_up(exact_epsilon(mu, stated.delta)) for mu in (group.person_mu, account.spent**0.5))
    return (
        f"It charges all {charged} planned rounds, ε {whole} for a person at the study's "
        f"δ = {stated.delta:g}, because readers cannot know why a study ended; your ledger charges the "
        f"{len(account.rounds)} released rounds, ε {spent}."
    )


def _releases(account: Account) -> list[dict[str, Any]]:
    """What the study's plan releases, in how many rounds so far, and in how many in all."""
    if "plan" not in account.about:  # a reservation that no guard made
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
    for each, honest in zip(studies, shares, strict=True):
        short, both = each["study"][:12], (each["spent"], each["reserved"])
        name = f"{short} {each['about'].get('name', '')}".strip()
        amounts = (*(f"{of['mu_squared']:.4g}" for of in both), *(rounded_up(of["epsilon"]) for of in both))
        rows.append((name, each["state"], str(each["releases"]), *amounts))
        if honest > 1:
            alone = (rounded_up(each[kind]["epsilon"]) for kind in ("spent_alone", "reserved_alone"))
            masked.append((short, str(honest), *alone))
        for of in each["by_statistic"]:
            done = f"{of['released']} of {of['planned']}"
            plans.append((short, of["statistic"], f"{of['noise_multiplier']:.4f}", done))
    show_table(("study", "state", "rounds", "Σμ² spent", "of", "ε spent", "of"), rows, fold=[0])
    if masked:
        show_table(("study", "honest sites", "ε spent if all others work together", "of"), masked)
    show_table(("study", "statistic", "noise multiplier z", "rounds"), plans, left=(0, 1), fold=[1])
