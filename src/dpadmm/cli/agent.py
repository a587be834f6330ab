"""``dpadmm agent``: the commands of a data owner, from the first file to taking part in a study."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Argument, Option

from dpadmm.cli.screen import (
    AsJson,
    LogForm,
    Metrics,
    OnlyLive,
    StudyFile,
    alarms_json,
    check_new,
    echo_json,
    exit_with_health,
    rounded_down,
    rounded_up,
    say,
    say_path,
    show_table,
    write,
)
from dpadmm.errors import RefusalError, StudyError
from dpadmm.federation.site import decisions
from dpadmm.parameters.text import printable
from dpadmm.sites.accounts import broken_promises
from dpadmm.sites.site import Site, counted, read_site
from dpadmm.studies.study import Study, read_study
from dpadmm.trusted.ledger import Account, LedgerState, read_ledger
from dpadmm.trusted.policy import MaskingLimits, Policy

if TYPE_CHECKING:
    from dpadmm.federation.site.process import SiteProcess
    from dpadmm.trusted.unit import Persons


ALONE = "if all other sites work together"

agent_app = typer.Typer(
    help="For data owners: your table, your limits, and the studies you take part in.", no_args_is_help=True
)

SiteFile = Annotated[Path, Argument(help="Your site.toml.", show_default=False, metavar="SITE")]
SiteOption = Annotated[Path, Option("--site", help="Your site.toml.", metavar="SITE")]


@agent_app.command("init")
def init(
    folder: Path = Argument(..., help="The folder for this data set.", show_default=False, metavar="FOLDER"),
) -> None:
    """Write a commented site.toml to fill in. Existing files are kept."""
    from dpadmm.cli.study import write_template

    file = folder / "site.toml"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its ledger, keys and decisions are private
    write_template("site", file)
    say_path(
        f"Written: {file}",
        "1. Fill it in: your table, its label, the rows per person, your limits.",
        f"2. Check it:                 dpadmm agent check {file}",
        f"3. Create the ledger, once:  dpadmm agent begin {file}",
        f"4. Review each study:        dpadmm agent review STUDY --site {file}",
        f"5. Take part in a study:     dpadmm agent enrol STUDY --site {file}",
    )


@agent_app.command("check")
def check(
    site_file: SiteFile,
    study_file: Path | None = Option(
        None, "--study", metavar="STUDY", help="Also count the cells that this study would change."
    ),
    connection: bool = Option(False, "--connect", help="Check the connection to the brokers instead of the table."),
    as_json: AsJson = False,
) -> None:
    """Read your table, and show your limits and the remaining budget.

    With --study, also count the cells outside the bounds of the study, with unknown values, or missing. An
    agent replaces such cells silently, as the study defines. The counts are exact: do not publish them.

    With --connect, try each step of a connection to the brokers, and say what to do where one fails. Exit code 1: no
    broker can be used.
    """
    from dpadmm.cli.study import counts_of, show_survey

    if connection:
        if study_file is not None:
            raise StudyError("--connect checks the connection, and --study the table: use one of them")
        return _check_connection(site_file, as_json=as_json)
    site, study = _opened(site_file), read_study(study_file) if study_file else None
    persons, state = site.rows.persons(), _ledger_state(site)
    survey = site.rows.survey(study) if study else None
    if as_json:
        counts = {"cells": {**counts_of(survey), "problems": survey.problems}} if survey else {}
        return echo_json(_site_figures(site, persons, state) | counts)
    say_path(f"Table: {site.table}")
    say(*_rows_text(site, persons), *_limits_text(site.policy))
    say_path(f"Ledger: {site.ledger}")
    say(_ledger_text(site.policy, state), *(f"Warning: {each}" for each in _warnings(site, persons, state)))
    if study is not None and survey is not None:
        say(study.name, style="bold")
        show_survey(study, survey)
        say(*(f"Warning: {problem}" for problem in survey.problems))
    elif study is not None:
        say("Cells are counted in tables with named columns only.")
    return None


def _check_connection(site_file: Path, *, as_json: bool) -> None:
    from dpadmm.federation.site.connection import check_connections, reachable

    site = read_site(site_file)
    found = check_connections(site.path.parent, site.addresses)
    if as_json:
        brokers = [
            {"url": url, "reachable": reachable(checks), "checks": [check._asdict() for check in checks]}
            for url, checks in found.items()
        ]
        echo_json({"reachable": any(each["reachable"] for each in brokers), "brokers": brokers})
    else:
        words = {True: "ok", False: "FAILED", None: "-"}
        for url, checks in found.items():
            say_path(url)
            rows = [(check.name, words[check.ok], check.text) for check in checks]
            show_table(("check", "result", "what was seen, or what to do"), rows, left=range(3), whole=(0, 1))
    if not any(map(reachable, found.values())):
        raise typer.Exit(1)


@agent_app.command("begin")
def begin(site_file: SiteFile) -> None:
    """Create the ledger of this data set. Refused if there is one, because spent budget stays spent."""
    site = _opened(site_file)
    site.begin()
    say_path(f"Created: {site.ledger}")
    say(
        "Never delete it or put an old copy back: it is the only record of the spent budget (see dpadmm ledger backup)."
    )


@agent_app.command("offer")
def offer(
    draft: Path = Argument(..., help="The draft of a study.", show_default=False, metavar="DRAFT"),
    site_file: SiteOption = Path("site.toml"),
    output: Path | None = Option(
        None, "-o", "--output", help="The offer's file.", metavar="FILE", show_default="NAME.offer.json"
    ),
) -> None:
    """Offer to take part in a study with secure aggregation: creates a key for it, which stays here.

    Nothing is accepted yet: review the study that comes back with the keys of all sites.
    """
    from dpadmm.federation.identity.joining import site_identity
    from dpadmm.federation.offers import Offer

    study, site = read_study(draft), _opened(site_file)
    if study.training.trust != "secure_aggregation":
        raise StudyError(f"{draft}: offers are for studies with secure aggregation; review this one as it is")
    if study.roster or study.most_rows is None:
        has = "has a roster already: review it" if study.roster else "needs most_rows, which no site exceeds"
        raise StudyError(f"{draft}: an offer is for a draft, and this one {has}")
    if site.policy.masking is None:
        text = "it does not allow secure aggregation; add [secure_aggregation] with allow = true"
        raise StudyError(f"{site_file}: {text}")
    if (n_rows := site.rows.persons().n_rows) > study.most_rows:
        text = f"your table has {n_rows:,} rows, and most_rows of the draft is {study.most_rows:,}"
        raise StudyError(f"{text}; ask the study coordinators for a larger number")
    name = site_identity(site.path.parent).name
    target = output or Path(f"{name}.offer.json")
    check_new(target)
    write(target, Offer(name, site.make_key().hex(), study.hash).as_bytes())
    say_path(f"Send to the aggregator: {target}")
    say("It is not secret. Next: dpadmm agent review STUDY --accept --hash HASH, with the study that they send")
    say("back, and the hash that you compared with the other owners, for example by telephone.")


TheirHash = Annotated[
    str | None,
    Option("--hash", help="The study's hash, as the other owners have it.", metavar="HASH", show_default=False),
]


def _compare(study: Study, path: Path, expected: str | None, *, needed: bool) -> None:
    """Secure aggregation protects from an aggregator that made sites up only where owners compared the hash."""
    if expected is not None and "".join(expected.split()).lower() != study.hash:
        raise StudyError(f"{path}: the hashes differ: this is not the study that the other owners have")
    if expected is None and needed and study.terms.masking is not None:
        raise StudyError(
            f"{path}: with secure aggregation, compare the study's hash with the other owners, not through the "
            "aggregator, and give it: --hash HASH (dpadmm agent review shows it)"
        )


@agent_app.command("review")
def review(
    study_file: StudyFile,
    site_file: SiteOption = Path("site.toml"),
    as_json: AsJson = False,
    accepted: bool = Option(False, "--accept", help="Accept the study, like enrol."),
    declined: bool = Option(False, "--decline", help="Decline the study; an enrolled study is left."),
    expected: TheirHash = None,
) -> None:
    """Compare the cost of a study with your limits and your ledger; accept or decline it.

    Exit code 0: you can enrol it. 2: it would be refused; the message gives the reason. The agent may run
    at the same time.
    """
    from dpadmm.cli.study import figures

    if accepted and declined:
        raise StudyError("a study can be accepted or declined, not both")
    study, site = read_study(study_file), _opened(site_file)
    _compare(study, study_file, expected, needed=accepted)
    state, refusal, rows, n_rows = read_ledger(site.ledger), None, None, None
    try:
        rows = site.rehearse(study, state).rows
        n_rows = rows.n_rows
    except RefusalError as error:
        refusal = error
        if error.code != "study-unfit" and not declined:
            n_rows = site.rows.persons().n_rows
    lines = _limits(study, site.policy, state, n_rows)
    if as_json:
        reason = {"code": refusal.code, "text": str(refusal)} if refusal else None
        answer = {"acceptable": refusal is None, "refusal": reason, "limits": lines, "study": figures(study)}
        echo_json({**answer, "enrolled": study.hash in state.accounts, "rows": n_rows})
    else:
        _show_review(study, site, lines)
    if declined:
        say(_declined_text(study, site, *decisions.decline(site, study)), err=as_json)
        return
    if refusal:
        raise refusal
    if accepted:
        state = decisions.accept(site, study, rows)
    if not as_json:
        say(*_owner_warnings(study, site, state), _review_result(study, state))


@agent_app.command("enrol")
def enrol(
    study_file: StudyFile,
    site_file: SiteOption = Path("site.toml"),
    as_json: AsJson = False,
    expected: TheirHash = None,
) -> None:
    """Accept a study: fix its rows as they are now, and reserve its budget.

    Repeating the command is harmless. The rows must not change until the study has ended.
    """
    study, site = read_study(study_file), _opened(site_file)
    _compare(study, study_file, expected, needed=True)
    before = read_ledger(site.ledger).accounts
    state = decisions.accept(site, study)
    account = state.accounts[study.hash]
    n_rows, at = account.about["n_rows"], account.reservation.at
    reserved = Fraction(account.reservation.mu_squared)
    if as_json:
        answer = {"study": study.hash, "rows": n_rows, "enrolled_at": at}
        amounts = {"reserved": reserved, "left": _left(site.policy, state)}
        amounts |= {"reserved_alone": account.shares * reserved, "left_alone": _left(site.policy, state, alone=True)}
        return echo_json({**answer, **{name: _amount(each, site.policy) for name, each in amounts.items()}})
    done = "Already enrolled, nothing changed" if study.hash in before else "Enrolled"
    say(f"{done}: {study.name}, with {n_rows:,} rows, since {at}.")
    say_path(study.hash)
    whole = f"{rounded_up(site.policy.epsilon)} at δ = {site.policy.delta:g}"
    rest = _epsilon_left(state, site.policy)
    say(f"Reserved: ε {_epsilon(reserved, site.policy, account.shares)} of {whole}; left for other studies: {rest}.")
    say(*_owner_warnings(study, site, state))
    say("Do not change the table until the study has ended: changed rows are refused.")
    return None


@agent_app.command("leave")
def leave(
    study: str = Argument(
        ..., help="The study's file, its name, or the beginning of its hash.", show_default=False, metavar="STUDY"
    ),
    site_file: SiteOption = Path("site.toml"),
) -> None:
    """Leave a study: it gets no more answers, and its unused budget is released.

    It is done at once, without a question, and for good: a study that was left cannot be enrolled again. Released
    answers stay spent. A running agent stops answering it.
    """
    from dpadmm.cli.ledger import chosen_study

    site = _opened(site_file)
    state = read_ledger(site.ledger)
    chosen = read_study(Path(study)).hash if study.endswith(".toml") else chosen_study(state, study)
    already = state.account(chosen).closed
    state = state if already else decisions.leave(site, chosen)
    account = state.accounts[chosen]
    rounds = counted(len(account.rounds), "round", "rounds")
    say(f"{account.about.get('name') or chosen[:12]}, after {rounds}: {_closed_text(account, already=already)}.")
    say_path(chosen)
    say(_charged_text(account, state, site.policy))


@agent_app.command("request")
def request(
    name: str = Argument(..., help="Site name.", show_default=False, metavar="NAME"),
    site_file: SiteOption = Path("site.toml"),
    certificate: Path | None = Option(
        None,
        "--certificate",
        help="If your own CA signs certificates: what it made of network/request.csr, then intermediate ones (PEM).",
        metavar="FILE",
        show_default=False,
    ),
) -> None:
    """Create the private key of your site, and a request to send to the aggregator."""
    from dpadmm.federation.identity.joining import make_request
    from dpadmm.federation.identity.private_files import read_short

    folder = read_site(site_file).path.parent
    made = make_request(folder, name, None if certificate is None else read_short(certificate))
    say_path(f"Send to the aggregator: {folder / 'network' / 'request.json'}")
    say("It is not secret. Fingerprint of your key, which the study coordinators will ask for:")
    say_path(made.fingerprint)
    say("Next: dpadmm agent join INVITATION, with the file that they send back.")


@agent_app.command("join")
def join(
    invitation_file: Path = Argument(
        ..., help="The aggregator's invitation.", show_default=False, metavar="INVITATION"
    ),
    site_file: SiteOption = Path("site.toml"),
    fingerprint: str | None = Option(None, help="The expected fingerprint, from the study coordinators."),
    yes: bool = Option(False, "--yes", help="I have compared the fingerprint."),
) -> None:
    """Accept the aggregator's invitation, after you have compared its fingerprint."""
    from dpadmm.federation.identity import joining

    folder, invitation = read_site(site_file).path.parent, joining.read_invitation(invitation_file)
    say(
        f"Invitation for {invitation.name}, to connect to {invitation.url}",
        "Fingerprint of the aggregator's authority:",
    )
    say_path(invitation.ca_fingerprint)
    if fingerprint is not None:
        if not joining.same_fingerprint(fingerprint, invitation.ca_fingerprint):
            raise StudyError("the fingerprints differ: this invitation is from somebody else")
    elif not yes:
        if not os.isatty(0):
            raise StudyError("compare the fingerprint with the study coordinators, then add --yes")
        if not typer.confirm("Have you compared it with the study coordinators, and is it the same?"):
            raise StudyError("not joined: ask the study coordinators for their fingerprint")
    joining.join(folder, invitation)
    say(f"Joined as {invitation.name}. Next, for each study you receive:")
    say_path(f"  dpadmm agent review STUDY --accept --site {site_file}", f"  dpadmm agent run --site {site_file}")


@agent_app.command("run")
def run(
    site_file: SiteOption = Path("site.toml"),
    quiet: bool = Option(False, "--quiet", help="Log to agent.log only."),
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Answer the studies that you accepted, until it is stopped. Connects to the broker; opens no port but --metrics.

    It notices when you accept or leave a study. It can be killed at any time and resumes when started again.
    """
    from dpadmm.federation.logs import make_log
    from dpadmm.federation.site.process import LOG, SiteProcess

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # gives memory of tables back
    site = read_site(site_file)
    _warn(*site.warnings(), *broken_promises(site.policy, read_ledger(site.ledger)))
    folder = site.path.parent
    log = make_log(f"agent.{folder}", terminal=not quiet, file=folder / LOG, as_json=log_form == "json")
    with _without_pandas():
        asyncio.run(_until_signal(SiteProcess(site, log), metrics))
    log.info("stopped")


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Keep pyarrow from importing pandas, which would cost an agent 40 MB that it does not use."""
    import pyarrow

    if "pandas" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        with suppress(AttributeError):  # pyarrow tries to use it once
            pyarrow.array([0])
        yield
    finally:
        del sys.modules["pandas"]


async def _until_signal(process: SiteProcess, metrics: str | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await process.run(stop, metrics=metrics)


@agent_app.command("status")
def status(site_file: SiteOption = Path("site.toml"), as_json: AsJson = False) -> None:
    """Show whether the agent is running and connected, which studies it answers, and what is wrong."""
    from dpadmm.federation import health

    folder = read_site(site_file).path.parent
    seen = health.read_status(folder / health.STATUS)
    alarms, live = health.site_alarms(seen, folder), health.is_live(seen)
    if as_json:
        known = {} if seen is None else seen | {"running": live, "connected": live and seen["connected"]}
        days = {} if seen is None else {"certificate_days_left": health.days_left(seen["certificate_expires"])}
        return echo_json({"running": False, "connected": False, "studies": []} | known | days | alarms_json(alarms))
    if seen is not None:
        running = "is running" if live else "is not running"
        connected = "connected" if live and seen["connected"] else "not connected"
        say(f"{seen['site']}: the agent {running}, {connected} to {seen['broker']} ({seen['at']})")
        say(f"Its certificate is valid until {seen['certificate_expires'][:10]}.")
        rows = [
            (
                each["name"],
                each["state"] + (f" ({each['reason']})" if each["reason"] else ""),
                "" if each["last_round"] is None else str(each["last_round"]),
                "" if each["n_rounds"] is None else str(each["n_rounds"]),
                each["asked_at"] or "",
            )
            for each in seen["studies"]
        ]
        show_table(("study", "state", "last round", "of", "last asked"), rows)
    return say(*(f"{alarm.level} {alarm.code}: {alarm.text}" for alarm in alarms))


@agent_app.command("health")
def health_command(site_file: SiteOption = Path("site.toml"), only_live: OnlyLive = False) -> None:
    """Say what is wrong, for systemd, Docker and Kubernetes. Exit code 0: healthy. 1: not."""
    from dpadmm.federation import health

    folder = read_site(site_file).path.parent
    seen = health.read_status(folder / health.STATUS)
    alarms = health.site_alarms(seen, folder)
    exit_with_health([each for each in alarms if not only_live or each.code == "not-running"])


def _opened(path: Path) -> Site:
    site = read_site(path)
    _warn(*site.warnings())
    return site


def _warn(*warnings: str) -> None:
    for warning in warnings:
        typer.echo(printable(f"dpadmm: warning: {warning}"), err=True)


def _ledger_state(site: Site) -> LedgerState | None:
    try:
        return read_ledger(site.ledger)
    except RefusalError as refusal:
        if refusal.code != "ledger-missing":
            raise
        return None


# The site


def _rows_text(site: Site, persons: Persons) -> list[str]:
    k = site.policy.unit.rows
    rows = "one row" if k == 1 else f"{k} rows"
    if persons.n_persons is None:
        return [f"{persons.n_rows:,} rows, all used: you guarantee that nobody has more than {rows}."]
    counts = f"{persons.n_rows:,} rows of {persons.n_persons:,} persons; {persons.n_used:,} rows are used."
    if persons.n_used == persons.n_rows:
        return [counts, f"Nobody has more than {rows}."]
    reasons = [
        (persons.n_above, "person has", "persons have", f"more than {rows}"),
        (persons.n_without_id, "row has", "rows have", "no id"),
        (persons.n_ambiguous, "id is", "ids are", "written in different ways (7 and 007)"),
    ]
    why = "; ".join(f"{counted(n, one, several)} {what}" for n, one, several, what in reasons if n)
    return [counts, f"The others count as rows of zeros: {why}."]


def _limits_text(policy: Policy) -> list[str]:
    rows = counted(policy.unit.rows, "row", "rows")
    return [
        f"Limit: ε {policy.epsilon:g} at δ = {policy.delta:g} for each person ({rows}), over all studies.",
        f"Allowed: {', '.join(sorted(policy.methods))}; losses {', '.join(sorted(policy.losses))}; at "
        f"most {policy.max_rounds:,} rounds in a study; no study with fewer than {policy.min_rows:,} rows.",
        *([_masking_text(policy.masking, policy.delta)] if policy.masking else []),
    ]


def _masking_text(limits: MaskingLimits, delta: float) -> str:
    return (
        f"Secure aggregation: allowed, up to ε {limits.epsilon_alone:g} at δ = {delta:g} if all other sites work "
        f"together; studies must rely on at least {limits.min_honest} honest sites, and withstand "
        f"{counted(limits.min_withstood, 'site that works', 'sites that work')} with the aggregator."
    )


def _ledger_text(policy: Policy, state: LedgerState | None) -> str:
    if state is None:
        return "Not created yet."
    n_open = sum(not account.closed for account in state.accounts.values())
    text = (
        f"{counted(len(state.accounts), 'study', 'studies')}, {n_open} of them open; ε "
        f"{_epsilon(state.spent, policy)} spent, {_epsilon(state.promised, policy)} spent or reserved, "
        f"{_epsilon_left(state, policy)} left."
    )
    if state.promised_alone == state.promised:
        return text
    alone = [_epsilon(each, policy) for each in (state.spent_alone, state.promised_alone)]
    return f"{text} If all other sites work together, ε {alone[0]} is spent, {alone[1]} spent or reserved."


def _warnings(site: Site, persons: Persons, state: LedgerState | None) -> list[str]:

    found, used = site.rows.line_warnings(persons.n_rows), persons.n_used
    if used < site.policy.min_rows:
        found.append(
            f"only {used:,} rows are used, fewer than your min_rows = {site.policy.min_rows:,}: any study is refused."
        )
    if site.policy.delta * used >= 1.0:
        found.append(f"δ = {site.policy.delta:g} should be well below 1 / rows = {1 / used:.2g}.")
    return found + (broken_promises(site.policy, state) if state else [])


def _site_figures(site: Site, persons: Persons, state: LedgerState | None) -> dict[str, Any]:
    policy = site.policy
    return {
        "table": str(site.table),
        "rows": persons.n_rows,
        "rows_used": persons.n_used,
        "persons": persons.n_persons,
        "persons_with_more": persons.n_above,
        "ids_written_differently": persons.n_ambiguous,
        "rows_without_id": persons.n_without_id,
        "limits": {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "methods": sorted(policy.methods),
            "losses": sorted(policy.losses),
            "max_rounds": policy.max_rounds,
            "min_rows": policy.min_rows,
            "rows_per_person": policy.unit.rows,
            "secure_aggregation": policy.masking._asdict() if policy.masking else None,
        },
        "ledger": str(site.ledger),
        "spent": None if state is None else _amount(state.spent, policy),
        "promised": None if state is None else _amount(state.promised, policy),
        "left": _amount(_left(policy, state), policy),
        "spent_alone": None if state is None else _amount(state.spent_alone, policy),
        "promised_alone": None if state is None else _amount(state.promised_alone, policy),
        "left_alone": _amount(_left(policy, state, alone=True), policy),
        "notes": [*site.warnings(), *_warnings(site, persons, state)],
    }


# The cost of a study


def _limits(study: Study, policy: Policy, state: LedgerState, n_rows: int | None) -> list[dict[str, Any]]:
    """Every limit with its requested, allowed and remaining amount, without the study's own reservation."""
    known = state.accounts.get(study.hash)
    own, shares = (known.promised, known.shares) if known is not None and not known.closed else (Fraction(0), 1)
    lines = []
    for limit in policy.evaluate(study.terms, n_rows, (state.promised - own, state.promised_alone - shares * own)):
        values: dict[str, tuple[Any, ...]] = {limit.name: (limit.asked, limit.allowed, limit.left)}
        if limit.name in ("budget", "alone"):
            sums = [_amount(Fraction(cast(float, each)), policy) for each in values[limit.name]]
            kind = "_alone" if limit.name == "alone" else ""
            values = {f"{name}{kind}": tuple(each[name] for each in sums) for name in sums[0]}
        for name, (asked, allowed, left) in values.items():
            names = list(allowed) if isinstance(allowed, tuple) else allowed
            lines.append({"limit": name, "asked": asked, "allowed": names, "left": left, "holds": limit.holds})
    return lines


def _left(policy: Policy, state: LedgerState | None, *, alone: bool = False) -> Fraction:
    """Σμ² that is neither spent nor reserved, or that if all other sites work together."""
    from dpadmm.cli.ledger import left_in

    state = state or LedgerState()
    if alone:
        return left_in(Fraction(policy.cap_alone), state.promised_alone)
    return left_in(Fraction(policy.cap), state.promised)


def _amount(mu_squared: Fraction, policy: Policy) -> dict[str, float]:
    """Σμ², and the corresponding ε at the owner's δ."""
    return {"epsilon": policy.epsilon_of(mu_squared), "mu_squared": float(mu_squared)}


def _epsilon(mu_squared: Fraction, policy: Policy, shares: int = 1) -> str:
    """ε, and with secure aggregation that if all other sites work together."""
    text = rounded_up(_amount(mu_squared, policy)["epsilon"])
    return f"{text} ({_epsilon(shares * mu_squared, policy)} {ALONE})" if shares > 1 else text


def _epsilon_left(state: LedgerState, policy: Policy) -> str:
    sums = [_left(policy, state, alone=alone) for alone in (False, True)]
    shown = [rounded_down(_amount(each, policy)["epsilon"]) for each in sums]
    return shown[0] if sums[0] == sums[1] else f"{shown[0]} ({shown[1]} {ALONE})"


def _show_review(study: Study, site: Site, lines: list[dict[str, Any]]) -> None:
    from dpadmm.cli.study import in_words, start_in_words

    policy = site.policy
    say(study.name, style="bold")
    say_path(study.hash)
    say(in_words(study)[0], f"Noise multiplier z: {study.terms.plan.noise_in_words()}.")
    names = {"rows": "rows here", "epsilon": f"total ε at δ = {policy.delta:g}", "mu_squared": "total Σμ²"}
    names |= {"honest": "honest sites", "withstood": "sites that may work with the aggregator"}
    names |= {f"{name}_alone": f"{names[name]} {ALONE}" for name in ("epsilon", "mu_squared")}
    rows = [
        (
            names.get(line["limit"], line["limit"]),
            *(_cell(line["limit"], name, line[name]) for name in ("asked", "allowed", "left")),
            "yes" if line["holds"] else "no",
        )
        for line in lines
    ]
    show_table(("", "asked", "allowed", "left", "fits"), rows, fold=range(5))
    who = "with one row" if policy.unit.rows == 1 else f"with up to {policy.unit.rows} rows"
    cost = {line["limit"]: line["asked"] for line in lines}
    text = f"The study would cost each person {who} here ε {rounded_up(cost['epsilon'])} at your δ = {policy.delta:g}"
    if study.terms.masking:
        text += (
            f" if at least {study.terms.shares} of the sites that take part in a round are honest; if all others work "
        )
        text += f"together against you: ε {rounded_up(cost['epsilon_alone'])}"
    say(f"{text}; Σμ² of several studies adds up, ε does not.")
    if study.public_rows is not None:
        say(f"{start_in_words(study.public_rows).capitalize()}.")
    if study.roster:
        say(*_roster_text(study, site))


def _roster_text(study: Study, site: Site) -> list[str]:
    """Who takes part, and of how many an owner has to be sure: a sum leaves out n − q sites, and needs h."""
    n, honest, quorum = len(study.roster), study.terms.shares, study.terms.quorum
    names = [f"{name} (you)" if (site.keys / key).exists() else name for name, key in study.roster]
    return [
        f"Sites that take part: {', '.join(names)}.",
        f"The first ε holds if at most {quorum - honest} of these {n} work with the aggregator, which could have made "
        f"sites up. Compare the hash above with at least {n - quorum + honest - 1} other owners whom you trust, by "
        "telephone for example, and not through the aggregator.",
    ]


def _cell(limit: str, column: str, value: Any) -> str:
    if value is None:
        return ""
    if limit.startswith("epsilon"):
        return rounded_down(value) if column == "left" else rounded_up(value)
    if limit.startswith("mu_squared"):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(value)
    at_least = "at least " if limit in ("rows", "honest", "withstood") and column == "allowed" else ""
    return f"{at_least}{value:,}" if isinstance(value, int) else str(value)


def _owner_warnings(study: Study, site: Site, state: LedgerState) -> list[str]:
    found = (*site.rows.warnings(study), *broken_promises(site.policy, state))
    return [f"For the owner only: {warning}" for warning in found]


def _closed_text(account: Account, *, already: bool) -> str:
    """How a study was closed, and whether that was before this command."""
    from dpadmm.federation.site.lifecycle import CLOSED_TEXT, participation

    text = CLOSED_TEXT[participation("accepted", account.ending, None)]
    return f"{text} before; nothing changed" if already else text


def _charged_text(account: Account, state: LedgerState, policy: Policy) -> str:
    """What a closed study cost, and the remaining budget."""
    from dpadmm.cli.ledger import ENDED_EARLY

    spent, left = _epsilon(account.spent, policy, account.shares), _epsilon_left(state, policy)
    charged = f"It is charged with ε {spent}; left for other studies: {left}."
    if account.ending == "restore":
        return f"{charged} That is its whole budget, since the restored ledger may lack some of its rounds."
    return f"{charged} {ENDED_EARLY}"


def _declined_text(study: Study, site: Site, state: LedgerState, changed: bool) -> str:
    account = state.accounts.get(study.hash)
    if account is None:
        done = "Declined, and recorded with the date" if changed else "Already declined, nothing changed"
        return f"{done}. Nothing was reserved."
    done = "Declined. It was enrolled, and is left now" if changed else _closed_text(account, already=True)
    rounds = counted(len(account.rounds), "round", "rounds")
    return (
        f"{done}: it gets no more answers, and cannot be enrolled again. It answered {rounds}. "
        f"{_charged_text(account, state, site.policy)}"
    )


def _review_result(study: Study, state: LedgerState) -> str:
    account = state.accounts.get(study.hash)
    if account is None:
        return "Within your limits: you can enrol it. Nothing was changed."
    done = f"{len(account.rounds)} of {study.training.planned_rounds} rounds are answered"
    closed = f" {_closed_text(account, already=True)}." if account.closed else ""
    return f"Enrolled since {account.reservation.at}: {done}.{closed}"
