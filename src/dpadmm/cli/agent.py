"""``dpadmm agent``: commands for data owners, from the first file to running studies."""

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

from dpadmm.cli.console import (
    AsJson,
    LogForm,
    Metrics,
    OnlyLive,
    StudyFile,
    alarms_json,
    check_new,
    echo,
    echo_json,
    echo_path,
    exit_with_health,
    rounded_down,
    rounded_up,
    show_table,
    write,
)
from dpadmm.errors import RefusalError, StudyError
from dpadmm.federation.site import decisions
from dpadmm.parameters.text import printable
from dpadmm.sites.accounts import broken_promises
from dpadmm.sites.site import Site, counted, read_site
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import Account, LedgerState, read_ledger
from dpadmm.trusted.policy import MaskingLimits, Policy

if TYPE_CHECKING:
    from dpadmm.federation.site.process import SiteProcess
    from dpadmm.trusted.unit import Persons


ALONE = "if all other sites collude"

agent_app = typer.Typer(
    help="For data owners: configure a site, review studies and take part in them.", no_args_is_help=True
)

SiteFile = Annotated[Path, Argument(help="Your site.toml.", show_default=False, metavar="SITE")]
SiteOption = Annotated[Path, Option("--site", help="Your site.toml.", metavar="SITE")]


@agent_app.command("init")
def init(
    folder: Path = Argument(..., help="Folder for this data set.", show_default=False, metavar="FOLDER"),
) -> None:
    """Write a commented site.toml to fill in. Existing files are kept."""
    from dpadmm.cli.study import write_template

    file = folder / "site.toml"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its ledger, keys and decisions are private
    write_template("site", file)
    echo_path(
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
    study_file: Path | None = Option(None, "--study", metavar="STUDY", help="Also check the table against this study."),
    connection: bool = Option(False, "--connect", help="Check the connection to the brokers instead."),
    as_json: AsJson = False,
) -> None:
    """Check your table, and show your limits and the remaining budget.

    With --study, also count cells that are out of bounds, unknown or missing. The agent replaces such cells as the
    study defines. The counts carry no noise: do not publish them.

    With --connect, test each step of the connection to the brokers and suggest fixes. Exit code 1 if no broker can be
    reached.
    """
    from dpadmm.cli.study import counts_of, show_survey

    if connection:
        if study_file is not None:
            raise StudyError("--connect and --study cannot be combined")
        return _check_connection(site_file, as_json=as_json)
    site, study = _opened(site_file), read_study(study_file) if study_file else None
    persons, state = site.rows.persons(), _ledger_state(site)
    survey = site.rows.survey(study) if study else None
    if as_json:
        counts = {"cells": {**counts_of(survey), "problems": survey.problems}} if survey else {}
        return echo_json(_site_figures(site, persons, state) | counts)
    echo_path(f"Table: {site.table}")
    echo(*_rows_text(site, persons), *_limits_text(site.policy))
    echo_path(f"Ledger: {site.ledger}")
    echo(_ledger_text(site.policy, state), *(f"Warning: {each}" for each in _warnings(site, persons, state)))
    if study is not None and survey is not None:
        echo(study.name, style="bold")
        show_survey(study, survey)
        echo(*(f"Warning: {problem}" for problem in survey.problems))
    elif study is not None:
        echo("Cells were not counted: the table has no named columns.")
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
            echo_path(url)
            rows = [(check.name, words[check.ok], check.text) for check in checks]
            show_table(("check", "result", "details"), rows, left=range(3), whole=(0, 1))
    if not any(map(reachable, found.values())):
        raise typer.Exit(1)


@agent_app.command("begin")
def begin(site_file: SiteFile) -> None:
    """Create the ledger of this data set. An existing ledger is never replaced."""
    site = _opened(site_file)
    site.begin()
    echo_path(f"Created: {site.ledger}")
    echo(
        "Never delete it or replace it with an old copy: it is the only record of the spent budget (see dpadmm ledger "
        "backup)."
    )


@agent_app.command("offer")
def offer(
    draft: Path = Argument(..., help="Draft of a study.", show_default=False, metavar="DRAFT"),
    site_file: SiteOption = Path("site.toml"),
    output: Path | None = Option(
        None, "-o", "--output", help="File to write.", metavar="FILE", show_default="NAME.offer.json"
    ),
) -> None:
    """Offer to take part in a study with secure aggregation.

    Creates a key for the study. Its private part stays on this machine. The offer accepts nothing: review the study
    that the coordinators send back with the keys of all sites.
    """
    from dpadmm.federation.identity.joining import site_identity
    from dpadmm.federation.offers import Offer

    study, site = read_study(draft), _opened(site_file)
    if study.training.aggregation != "secure":
        raise StudyError(f"{draft}: the study does not use secure aggregation; review it without an offer")
    if study.roster:
        raise StudyError(f"{draft}: the study already has a roster; review it")
    if study.max_rows_per_site is None:
        raise StudyError(f"{draft}: the draft does not set max_rows_per_site, the maximum number of rows per site")
    if site.policy.masking is None:
        raise StudyError(f"{site_file}: secure aggregation is not allowed; add [secure_aggregation] with allow = true")
    if (n_rows := site.rows.persons().n_rows) > study.max_rows_per_site:
        text = f"your table has {n_rows:,} rows, but the draft allows {study.max_rows_per_site:,} (max_rows_per_site)"
        raise StudyError(f"{text}; ask the study coordinators for a larger limit")
    name = site_identity(site.path.parent).name
    target = output or Path(f"{name}.offer.json")
    check_new(target)
    write(target, Offer(name, site.make_key().hex(), study.hash).as_bytes())
    echo_path(f"Send to the study coordinators: {target}")
    echo(
        "It is not secret. They send back the study. Compare its hash with the other owners, for example by telephone. "
        "Then: dpadmm agent review STUDY --accept --hash HASH"
    )


TheirHash = Annotated[
    str | None,
    Option("--hash", help="Study hash received from the other owners.", metavar="HASH", show_default=False),
]


def _check_hash(study: Study, path: Path, expected: str | None, *, needed: bool) -> None:
    """Raise ``StudyError`` if the study has another hash, or if secure aggregation needs one and none is given.

    Only a comparison of hashes among owners protects against a server that invents sites.
    """
    if expected is not None and "".join(expected.split()).lower() != study.hash:
        raise StudyError(f"{path}: the hash differs from --hash; the other owners have another study")
    if expected is None and needed and study.terms.masking is not None:
        raise StudyError(
            f"{path}: secure aggregation needs --hash HASH; compare the hash (dpadmm agent review) with the other "
            "owners, not through the server"
        )


@agent_app.command("review")
def review(
    study_file: StudyFile,
    site_file: SiteOption = Path("site.toml"),
    as_json: AsJson = False,
    accepted: bool = Option(False, "--accept", help="Accept the study (same as enrol)."),
    declined: bool = Option(False, "--decline", help="Decline the study, or leave it if enrolled."),
    expected: TheirHash = None,
) -> None:
    """Compare the cost of a study with your limits and ledger; accept or decline it.

    Exit code 0 if you can enrol it, 2 if it would be refused. The agent may be running.
    """
    from dpadmm.studies.rendering import figures

    if accepted and declined:
        raise StudyError("--accept and --decline cannot be combined")
    study, site = read_study(study_file), _opened(site_file)
    _check_hash(study, study_file, expected, needed=accepted)
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
        echo(_declined_text(study, site, *decisions.decline(site, study)), err=as_json)
        return
    if refusal:
        raise refusal
    if accepted:
        state = decisions.accept(site, study, rows)
    if not as_json:
        echo(*_owner_warnings(study, site, state), _review_result(study, state))


@agent_app.command("enrol")
def enrol(
    study_file: StudyFile,
    site_file: SiteOption = Path("site.toml"),
    as_json: AsJson = False,
    expected: TheirHash = None,
) -> None:
    """Accept a study: record the current rows and reserve its budget.

    Repeating the command changes nothing. The rows must not change until the study has ended.
    """
    study, site = read_study(study_file), _opened(site_file)
    _check_hash(study, study_file, expected, needed=True)
    before = read_ledger(site.ledger).accounts
    state = decisions.accept(site, study)
    account = state.accounts[study.hash]
    n_rows, at = account.about["n_rows"], account.reservation.at
    reserved = Fraction(account.reservation.mu_squared)
    if as_json:
        answer = {"study": study.hash, "rows": n_rows, "enrolled_at": at}
        amounts = {"reserved": reserved, "left": _left(site.policy, state)}
        amounts |= {
            "collusion_reserved": account.shares * reserved,
            "left_if_others_collude": _left(site.policy, state, alone=True),
        }
        return echo_json({**answer, **{name: _amount(each, site.policy) for name, each in amounts.items()}})
    done = "Already enrolled, nothing changed" if study.hash in before else "Enrolled"
    echo(f"{done}: {study.name}, with {n_rows:,} rows, since {at}.")
    echo_path(study.hash)
    whole = f"{rounded_up(site.policy.epsilon)} at δ = {site.policy.delta:g}"
    rest = _epsilon_left(state, site.policy)
    echo(f"Reserved: ε {_epsilon(reserved, site.policy, account.shares)} of {whole}; left for other studies: {rest}.")
    echo(*_owner_warnings(study, site, state))
    echo("Do not change the table until the study has ended. The agent refuses to use changed rows.")
    return None


@agent_app.command("leave")
def leave(
    study: str = Argument(..., help="Study file, name, or beginning of the hash.", show_default=False, metavar="STUDY"),
    site_file: SiteOption = Path("site.toml"),
) -> None:
    """Leave a study permanently and free its unused budget.

    The command does not ask for confirmation, and the study cannot be enrolled again. Budget spent by past releases
    stays spent. A running agent stops answering the study.
    """
    from dpadmm.cli.ledger import chosen_study

    site = _opened(site_file)
    state = read_ledger(site.ledger)
    chosen = read_study(Path(study)).hash if study.endswith(".toml") else chosen_study(state, study)
    already = state.account(chosen).closed
    state = state if already else decisions.leave(site, chosen)
    account = state.accounts[chosen]
    rounds = counted(len(account.rounds), "round", "rounds")
    echo(f"{account.about.get('name') or chosen[:12]}, after {rounds}: {_closed_text(account, already=already)}.")
    echo_path(chosen)
    echo(_charged_text(account, state, site.policy))


@agent_app.command("request")
def request(
    name: str = Argument(..., help="Site name.", show_default=False, metavar="NAME"),
    site_file: SiteOption = Path("site.toml"),
    certificate: Path | None = Option(
        None,
        "--certificate",
        help="With your own CA: certificate for network/request.csr, followed by intermediate ones (PEM).",
        metavar="FILE",
        show_default=False,
    ),
) -> None:
    """Create the private key of your site and a request for the study coordinators."""
    from dpadmm.federation.identity.joining import make_request
    from dpadmm.federation.identity.private_files import read_short

    folder = read_site(site_file).path.parent
    site_request = make_request(folder, name, None if certificate is None else read_short(certificate))
    echo_path(f"Send to the study coordinators: {folder / 'network' / 'request.json'}")
    echo("It is not secret. The coordinators will ask for the fingerprint of your key:")
    echo_path(site_request.fingerprint)
    echo("They send back an invitation. Next: dpadmm agent join INVITATION")


@agent_app.command("join")
def join(
    invitation_file: Path = Argument(
        ..., help="Invitation received from the study coordinators.", show_default=False, metavar="INVITATION"
    ),
    site_file: SiteOption = Path("site.toml"),
    fingerprint: str | None = Option(None, help="Expected fingerprint, from the study coordinators."),
    yes: bool = Option(False, "--yes", help="Confirm that you have compared the fingerprint."),
) -> None:
    """Accept an invitation after comparing its fingerprint."""
    from dpadmm.federation.identity import joining

    folder, invitation = read_site(site_file).path.parent, joining.read_invitation(invitation_file)
    echo(
        f"Invitation for {invitation.name}, to connect to {invitation.url}",
        "Fingerprint of the server's certificate authority:",
    )
    echo_path(invitation.ca_fingerprint)
    if fingerprint is not None:
        if not joining.same_fingerprint(fingerprint, invitation.ca_fingerprint):
            raise StudyError("the fingerprints differ; the invitation is not from these study coordinators")
    elif not yes:
        if not os.isatty(0):
            raise StudyError("compare the fingerprint with the study coordinators, then add --yes")
        if not typer.confirm("Does it match the fingerprint that the study coordinators gave you?"):
            raise StudyError("not joined: ask the study coordinators for their fingerprint")
    joining.join(folder, invitation)
    echo(f"Joined as {invitation.name}. Next, for each study you receive:")
    echo_path(f"  dpadmm agent review STUDY --accept --site {site_file}", f"  dpadmm agent run --site {site_file}")


@agent_app.command("run")
def run(
    site_file: SiteOption = Path("site.toml"),
    quiet: bool = Option(False, "--quiet", help="Log to agent.log only."),
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Run the agent: answer accepted studies until stopped.

    The agent connects to the broker and opens no port except --metrics. It detects accepted and left studies while
    running. It can be killed at any time and resumes when restarted.
    """
    from dpadmm.federation.logs import make_log
    from dpadmm.federation.site.process import LOG, SiteProcess

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # returns the memory of tables
    site = read_site(site_file)
    _warn(*site.warnings(), *broken_promises(site.policy, read_ledger(site.ledger)))
    folder = site.path.parent
    log = make_log(f"agent.{folder}", terminal=not quiet, file=folder / LOG, as_json=log_form == "json")
    with _without_pandas():
        asyncio.run(_until_signal(SiteProcess(site, log), metrics))
    log.info("stopped")


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Prevent pyarrow from importing pandas, which would add 40 MB of unused memory."""
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
    """Show whether the agent is running and connected, its studies, and its alarms."""
    from dpadmm.federation import health

    folder = read_site(site_file).path.parent
    seen = health.read_status(folder / health.STATUS)
    alarms, live = health.site_alarms(seen, folder), health.is_live(seen)
    if as_json:
        state = {} if seen is None else seen | {"running": live, "connected": live and seen["connected"]}
        days = {} if seen is None else {"certificate_days_left": health.days_left(seen["certificate_expires"])}
        return echo_json({"running": False, "connected": False, "studies": []} | state | days | alarms_json(alarms))
    if seen is not None:
        running = "is running" if live else "is not running"
        connected = "connected" if live and seen["connected"] else "not connected"
        echo(f"{seen['site']}: the agent {running}, {connected} to {seen['broker']} ({seen['at']})")
        echo(f"Its certificate is valid until {seen['certificate_expires'][:10]}.")
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
        show_table(("study", "state", "last round", "of", "last request"), rows)
    return echo(*(f"{alarm.level} {alarm.code}: {alarm.text}" for alarm in alarms))


@agent_app.command("health")
def health_command(site_file: SiteOption = Path("site.toml"), only_live: OnlyLive = False) -> None:
    """Health check for systemd, Docker and Kubernetes. Exit code 0 if healthy, else 1."""
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
        return [f"{persons.n_rows:,} rows, all used. You guarantee that no person has more than {rows}."]
    counts = f"{persons.n_rows:,} rows of {persons.n_persons:,} persons; {persons.n_used:,} rows are used."
    if persons.n_used == persons.n_rows:
        return [counts, f"No person has more than {rows}."]
    reasons = [
        (persons.n_above, "person has", "persons have", f"more than {rows}"),
        (persons.n_without_id, "row has", "rows have", "no id"),
        (persons.n_ambiguous, "id is", "ids are", "written in different ways (7 and 007)"),
    ]
    causes = "; ".join(f"{counted(n, one, several)} {problem}" for n, one, several, problem in reasons if n)
    return [counts, f"The other rows are replaced with zeros: {causes}."]


def _limits_text(policy: Policy) -> list[str]:
    rows = counted(policy.unit.rows, "row", "rows")
    return [
        f"Limit: ε {policy.epsilon:g} at δ = {policy.delta:g} for each person ({rows}), over all studies.",
        f"Allowed: methods {', '.join(sorted(policy.methods))}; losses {', '.join(sorted(policy.losses))}; at most "
        f"{policy.max_rounds:,} rounds per study; at least {policy.min_rows:,} rows.",
        *([_masking_text(policy.masking, policy.delta)] if policy.masking else []),
    ]


def _masking_text(limits: MaskingLimits, delta: float) -> str:
    return (
        f"Secure aggregation: allowed, up to ε {limits.epsilon_if_others_collude:g} at δ = {delta:g} {ALONE}. "
        f"Studies must assume "
        f"at least {limits.min_honest_sites} honest sites and tolerate "
        f"{counted(limits.min_withstood, 'site that colludes', 'sites that collude')} with the server."
    )


def _ledger_text(policy: Policy, state: LedgerState | None) -> str:
    if state is None:
        return "Not created yet."
    n_open = sum(not account.closed for account in state.accounts.values())
    text = (
        f"{counted(len(state.accounts), 'study', 'studies')}, {n_open} open; ε "
        f"{_epsilon(state.spent, policy)} spent, {_epsilon(state.promised, policy)} spent or reserved, "
        f"{_epsilon_left(state, policy)} left."
    )
    if state.collusion_promised == state.promised:
        return text
    alone = [_epsilon(each, policy) for each in (state.collusion_spent, state.collusion_promised)]
    return f"{text} I{ALONE[1:]}, ε {alone[0]} is spent, {alone[1]} spent or reserved."


def _warnings(site: Site, persons: Persons, state: LedgerState | None) -> list[str]:

    found, used = site.rows.line_warnings(persons.n_rows), persons.n_used
    if used < site.policy.min_rows:
        found.append(
            f"only {used:,} rows are used, fewer than your min_rows = {site.policy.min_rows:,}; any study is refused."
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
        "collusion_spent": None if state is None else _amount(state.collusion_spent, policy),
        "collusion_promised": None if state is None else _amount(state.collusion_promised, policy),
        "left_if_others_collude": _amount(_left(policy, state, alone=True), policy),
        "notes": [*site.warnings(), *_warnings(site, persons, state)],
    }


# The cost of a study


def _limits(study: Study, policy: Policy, state: LedgerState, n_rows: int | None) -> list[dict[str, Any]]:
    """Return every limit with its requested, allowed and remaining amount, without the study's own reservation."""
    account = state.accounts.get(study.hash)
    own, shares = (account.promised, account.shares) if account and not account.closed else (Fraction(0), 1)
    lines = []
    for limit in policy.evaluate(study.terms, n_rows, (state.promised - own, state.collusion_promised - shares * own)):
        values: dict[str, tuple[Any, ...]] = {limit.name: (limit.asked, limit.allowed, limit.left)}
        if limit.name in ("budget", "alone"):
            sums = [_amount(Fraction(cast(float, each)), policy) for each in values[limit.name]]
            kind = "_if_others_collude" if limit.name == "alone" else ""
            values = {f"{name}{kind}": tuple(each[name] for each in sums) for name in sums[0]}
        for name, (asked, allowed, left) in values.items():
            names = list(allowed) if isinstance(allowed, tuple) else allowed
            lines.append({"limit": name, "asked": asked, "allowed": names, "left": left, "holds": limit.holds})
    return lines


def _left(policy: Policy, state: LedgerState | None, *, alone: bool = False) -> Fraction:
    """Return the Σμ² that is neither spent nor reserved, or with ``alone`` the one if all other sites collude."""
    from dpadmm.cli.ledger import left_in

    state = state or LedgerState()
    if alone:
        return left_in(Fraction(policy.collusion_cap), state.collusion_promised)
    return left_in(Fraction(policy.cap), state.promised)


def _amount(mu_squared: Fraction, policy: Policy) -> dict[str, float]:
    """Return Σμ² and the corresponding ε at the owner's δ."""
    return {"epsilon": policy.epsilon_of(mu_squared), "mu_squared": float(mu_squared)}


def _epsilon(mu_squared: Fraction, policy: Policy, shares: int = 1) -> str:
    """Return ε as text; with secure aggregation, also ε if all other sites collude."""
    text = rounded_up(_amount(mu_squared, policy)["epsilon"])
    return f"{text} ({_epsilon(shares * mu_squared, policy)} {ALONE})" if shares > 1 else text


def _epsilon_left(state: LedgerState, policy: Policy) -> str:
    sums = [_left(policy, state, alone=alone) for alone in (False, True)]
    shown = [rounded_down(_amount(each, policy)["epsilon"]) for each in sums]
    return shown[0] if sums[0] == sums[1] else f"{shown[0]} ({shown[1]} {ALONE})"


def _show_review(study: Study, site: Site, lines: list[dict[str, Any]]) -> None:
    from dpadmm.studies.rendering import describe_public_rows, describe_releases

    policy = site.policy
    echo(study.name, style="bold")
    echo_path(study.hash)
    echo(describe_releases(study)[0], f"Noise multiplier z: {study.terms.plan.noise_in_words()}.")
    names = {"rows": "rows", "epsilon": f"total ε at δ = {policy.delta:g}", "mu_squared": "total Σμ²"}
    names |= {"min_honest_sites": "honest sites", "withstood": "tolerated sites that collude with the server"}
    names |= {f"{name}_if_others_collude": f"{names[name]} {ALONE}" for name in ("epsilon", "mu_squared")}
    rows = [
        (
            names.get(line["limit"], line["limit"]),
            *(_cell(line["limit"], name, line[name]) for name in ("asked", "allowed", "left")),
            "yes" if line["holds"] else "no",
        )
        for line in lines
    ]
    show_table(("", "requested", "allowed", "left", "fits"), rows, fold=range(5))
    unit = "with one row" if policy.unit.rows == 1 else f"with up to {policy.unit.rows} rows"
    cost = {line["limit"]: line["asked"] for line in lines}
    text = f"Privacy loss of a person {unit}: ε {rounded_up(cost['epsilon'])} at your δ = {policy.delta:g}"
    if study.terms.masking:
        text += f" if at least {study.terms.shares} of the sites in a round are honest; if all other sites collude, ε "
        text += rounded_up(cost["epsilon_if_others_collude"])
    echo(f"{text}. Σμ² of several studies adds up; ε does not.")
    if study.public_rows is not None:
        echo(f"Public rows: {describe_public_rows(study.public_rows)}.")
    if study.roster:
        echo(*_roster_text(study, site))


def _roster_text(study: Study, site: Site) -> list[str]:
    """List the sites and the number of owners to compare with. A sum omits up to n − q sites and needs h honest."""
    n, min_honest_sites, quorum = len(study.roster), study.terms.shares, study.terms.quorum
    names = [f"{name} (you)" if (site.keys / key).exists() else name for name, key in study.roster]
    return [
        f"Sites: {', '.join(names)}.",
        f"The first ε holds if at most {quorum - min_honest_sites} of these {n} sites collude with the server. The "
        f"server could "
        f"have invented sites: compare the hash above with at least {n - quorum + min_honest_sites - 1} other owners "
        f"whom you "
        "trust, for example by telephone, not through the server.",
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
    at_least = "at least " if limit in ("rows", "min_honest_sites", "withstood") and column == "allowed" else ""
    return f"{at_least}{value:,}" if isinstance(value, int) else str(value)


def _owner_warnings(study: Study, site: Site, state: LedgerState) -> list[str]:
    warnings = (*site.rows.warnings(study), *broken_promises(site.policy, state))
    return [f"For the owner only: {warning}" for warning in warnings]


def _closed_text(account: Account, *, already: bool) -> str:
    """Describe how a study was closed, and whether that was before this command."""
    from dpadmm.federation.site.lifecycle import CLOSED_TEXT, participation

    text = CLOSED_TEXT[participation("accepted", account.ending, None)]
    return f"{text} before; nothing changed" if already else text


def _charged_text(account: Account, state: LedgerState, policy: Policy) -> str:
    """Describe the cost of a closed study and the remaining budget."""
    from dpadmm.cli.ledger import ENDED_EARLY

    spent, left = _epsilon(account.spent, policy, account.shares), _epsilon_left(state, policy)
    charged = f"Charged: ε {spent}; left for other studies: {left}."
    if account.ending == "restore":
        return f"{charged} This is its whole budget, because the restored ledger may lack some of its rounds."
    return f"{charged} {ENDED_EARLY}"


def _declined_text(study: Study, site: Site, state: LedgerState, changed: bool) -> str:
    account = state.accounts.get(study.hash)
    if account is None:
        done = "Declined, and recorded with the date" if changed else "Already declined, nothing changed"
        return f"{done}. Nothing was reserved."
    done = "Declined, and left because it was enrolled" if changed else _closed_text(account, already=True)
    rounds = counted(len(account.rounds), "round", "rounds")
    return (
        f"{done}. The study gets no more answers and cannot be enrolled again. Answered: {rounds}. "
        f"{_charged_text(account, state, site.policy)}"
    )


def _review_result(study: Study, state: LedgerState) -> str:
    account = state.accounts.get(study.hash)
    if account is None:
        return "Within your limits; you can enrol it. Nothing was changed."
    done = f"{len(account.rounds)} of {study.training.planned_rounds} rounds answered"
    closed = f" {_closed_text(account, already=True)}." if account.closed else ""
    return f"Enrolled since {account.reservation.at}: {done}.{closed}"
