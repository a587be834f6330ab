"""``dpadmm site``: commands for data owners, from the first file to running studies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from dpadmm.cli import site_budget, site_join
from dpadmm.cli.console import (
    AsJson,
    Health,
    Live,
    LogForm,
    Metrics,
    alarms_json,
    check_new,
    echo,
    exit_with_health,
    show,
    write,
)
from dpadmm.cli.site_budget import HERE, SiteOption, chosen_study, open_site, site_path, warn
from dpadmm.errors import RefusalError, StudyError
from dpadmm.federation.site import decisions
from dpadmm.federation.site.proposals import clear_decided, find_study, offers, withdraw_offer, write_offer
from dpadmm.rendering import Paragraph, Rendering
from dpadmm.sites.accounts import broken_promises
from dpadmm.sites.site import Site, read_site
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import LedgerState, read_ledger

if TYPE_CHECKING:
    from dpadmm.federation.site.process import SiteProcess

site_app = typer.Typer(
    help="For data owners: join a server, review studies, take part in them and track the budget.",
    no_args_is_help=True,
)

StudyChoice = Annotated[
    str, Argument(help="Name or hash of a proposed study, or a study file.", metavar="STUDY", show_default=False)
]
ExpectedHash = Annotated[
    str | None,
    Option("--hash", help="Study hash received from the other owners.", metavar="HASH", show_default=False),
]


@site_app.command("check")
def check(
    site_file: SiteOption = HERE,
    study_file: Path | None = Option(None, "--study", metavar="STUDY", help="Also check the table against this study."),
    connection: bool = Option(False, "--connect", help="Check the connection to the brokers instead."),
    as_json: AsJson = False,
) -> None:
    """Check your table, limits and ledger.

    With --study, also count cells that are out of bounds, unknown or missing. The site replaces such cells as the
    study defines. The counts carry no noise: do not publish them.

    With --connect, test each step of the connection to the brokers and suggest fixes. Exit code 1 if no broker can be
    reached.
    """
    from dpadmm.cli import site_reports
    from dpadmm.cli.owner_report import counts_of, survey_rendering
    from dpadmm.federation.site.connection import check_connections, reachable

    if connection:
        if study_file is not None:
            raise StudyError("--connect and --study cannot be combined")
        site = read_site(site_path(site_file))
        found = check_connections(site.path.parent, site.addresses)
        show(site_reports.connection_rendering(found), as_json=as_json)
        if not any(map(reachable, found.values())):
            raise typer.Exit(1)
        return None
    site, study = open_site(site_file), read_study(study_file) if study_file else None
    persons, state = site.rows.persons(), _ledger_state(site)
    survey = site.rows.survey(study) if study else None
    counts = {"cells": {**counts_of(survey), "problems": survey.problems}} if survey else {}
    show(site_reports.check_rendering(site, persons, state).extend(data=counts), as_json=as_json)
    if study is None or as_json:
        return None
    if survey is None:
        return echo("Cells were not counted: the table has no named columns.")
    echo(study.name, style="bold")
    show(survey_rendering(study, survey))
    return echo(*(f"Warning: {problem}" for problem in survey.problems))


@site_app.command("studies")
def studies(site_file: SiteOption = HERE, as_json: AsJson = False) -> None:
    """List the studies that were proposed to you and your decisions, with rounds and budget."""
    from dpadmm.cli.site_reports import studies_rendering

    site = read_site(site_path(site_file))
    show(studies_rendering(site, _ledger_state(site)), as_json=as_json)


@site_app.command("review")
def review(
    chosen: StudyChoice, site_file: SiteOption = HERE, expected: ExpectedHash = None, as_json: AsJson = False
) -> None:
    """Compare the cost of a study with your limits and ledger. Nothing is changed.

    Exit code 0 if you can accept the study, 2 if it would be refused. The site may be running. With a study file, the
    command needs no connection and no process, for example for a review board.
    """
    from dpadmm.cli import site_reports

    site = open_site(site_file)
    study = find_study(site.path.parent, chosen)
    _check_hash(study, chosen, expected)
    state, refusal, n_rows = read_ledger(site.ledger), None, None
    try:
        n_rows = site.dry_run(study, state).rows.n_rows
    except RefusalError as error:
        refusal = error
        if error.code != "study-unfit":
            n_rows = site.rows.persons().n_rows
    show(site_reports.review_rendering(study, site, state, n_rows, refusal), as_json=as_json)
    if refusal:
        raise refusal


@site_app.command("accept")
def accept(
    chosen: StudyChoice,
    site_file: SiteOption = HERE,
    expected: ExpectedHash = None,
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        help="With a draft: also write the offer to a file, to send it without the broker.",
        metavar="FILE",
        show_default=False,
    ),
    as_json: AsJson = False,
) -> None:
    """Accept a study: record the current rows and reserve its budget.

    The rows must not change until the study has ended. Repeating the command changes nothing.

    For the draft of a study with secure aggregation, the command creates a key, which the running site offers to the
    server. It reserves nothing: accept the study with the keys of all sites when it arrives, with the hash (--hash)
    that you compared with the other owners.
    """
    from dpadmm.cli.site_reports import accepted_rendering

    site = open_site(site_file)
    study = find_study(site.path.parent, chosen)
    study.check_concrete()
    if study.is_draft:
        _check_hash(study, chosen, expected, needed=False)
        return _offer(study, chosen, site, output)
    if output is not None:
        raise StudyError(f"{chosen}: --output is for drafts of studies with secure aggregation")
    _check_hash(study, chosen, expected, needed=study.terms.masking is not None)
    known = study.hash in read_ledger(site.ledger).accounts
    state = decisions.accept(site, study)
    clear_decided(site.path.parent, study)
    return show(accepted_rendering(study, site, state, known=known), as_json=as_json)


def _offer(study: Study, draft: str, site: Site, output: Path | None) -> None:
    """Create a key for a draft with secure aggregation, unless it has one, and offer it to the server."""
    from dpadmm.federation.identity.joining import site_identity
    from dpadmm.federation.offers import Offer

    if study.max_rows_per_site is None:
        raise StudyError(f"{draft}: the draft does not set max_rows_per_site, the maximum number of rows per site")
    if site.policy.masking is None:
        raise StudyError(f"{site.path}: secure aggregation is not allowed; add [secure_aggregation] with allow = true")
    if (n_rows := site.rows.persons().n_rows) > study.max_rows_per_site:
        text = f"your table has {n_rows:,} rows, but the draft allows {study.max_rows_per_site:,} (max_rows_per_site)"
        raise StudyError(f"{text}; ask the study coordinators for a larger limit")
    name, folder = site_identity(site.path.parent).name, site.path.parent
    if output is not None:
        check_new(output)
    key = offers(folder).get(study.hash)
    offer = Offer(name, site.make_key().hex() if key is None else key, study.hash)
    lines = ["The running site offers a key to the server, and receives the study with the keys of all sites."]
    if output is not None:
        write(output, offer.as_bytes())
        lines = [
            f"Send to the study coordinators: {output}. It is not secret.",
            "They send back the study with the keys of all sites.",
        ]
    write_offer(folder, offer)
    lines += ["Compare its hash with the other owners, for example by telephone. Then:"]
    lines += ["  dpadmm site accept STUDY --hash HASH"]
    show(Rendering(next_steps=lines))


def _check_hash(study: Study, chosen: str, expected: str | None, *, needed: bool = False) -> None:
    """Raise ``StudyError`` if the study has another hash, or if one is needed and none is given.

    Only a comparison of hashes among owners protects against a server that invents sites.
    """
    if expected is not None and "".join(expected.split()).lower() != study.hash:
        raise StudyError(f"{chosen}: the hash differs from --hash; the other owners have another study")
    if expected is None and needed:
        if os.isatty(0):
            sites = ", ".join(entry.name for entry in study.roster)
            show(Rendering(title=study.name, body=[Paragraph(f"Sites: {sites}.")], next_steps=[study.hash]))
            if typer.confirm("Have you compared this hash with the other owners, not through the server?"):
                return
        raise StudyError(
            f"{chosen}: secure aggregation needs --hash HASH; compare the hash (dpadmm site review) with the other "
            "owners, not through the server"
        )


@site_app.command("decline")
def decline(chosen: StudyChoice, site_file: SiteOption = HERE) -> None:
    """Decline a study. If you accepted it before, leave it permanently; else you can still accept it later."""
    from dpadmm.cli.site_reports import declined_text

    site = open_site(site_file)
    study = find_study(site.path.parent, chosen)
    result = decisions.decline(site, study)
    withdraw_offer(site.path.parent, study.hash)
    clear_decided(site.path.parent)
    echo(declined_text(study, site, *result))


@site_app.command("leave")
def leave(
    study: str = Argument(..., help="File or name of a study, or the beginning of its hash.", metavar="STUDY"),
    site_file: SiteOption = HERE,
) -> None:
    """Leave a study permanently and free its unused budget.

    The command does not ask for confirmation, and the study cannot be accepted again. Budget spent by past releases
    stays spent. A running site stops answering the study.
    """
    from dpadmm.cli.site_reports import left_rendering

    site = open_site(site_file)
    state = read_ledger(site.ledger)
    chosen = read_study(Path(study)).hash if study.endswith(".toml") else chosen_study(state, study)
    already = state.account(chosen).closed
    state = state if already else decisions.leave(site, chosen)
    show(left_rendering(site, chosen, state, already=already))


@site_app.command("run")
def run(
    site_file: SiteOption = HERE,
    quiet: bool = Option(False, "--quiet", help="Log to the log file only."),
    page: bool = Option(False, "--page/--no-page", help="Serve the owner's page, on this machine only."),
    page_port: int = Option(0, help="Port of the owner's page; 0 for any free port.", metavar="PORT"),
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Run the site: answer accepted studies until stopped.

    The site connects to the broker and opens no port except those of --page and --metrics. It applies new decisions
    while running. It can be killed at any time and resumes when restarted.
    """
    from dpadmm.federation.logs import make_log
    from dpadmm.federation.site.process import LOG, SiteProcess

    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # returns the memory of tables
    site = open_site(site_file)
    warn(*broken_promises(site.policy, read_ledger(site.ledger)))
    folder = site.path.parent
    log = make_log(f"agent.{folder}", terminal=not quiet, file=folder / LOG, as_json=log_form == "json")
    with _without_pandas():
        asyncio.run(_until_signal(SiteProcess(site, log), folder, metrics, page_port if page else None))
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


async def _until_signal(process: SiteProcess, folder: Path, metrics: str | None, page_port: int | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await process.run(stop, metrics=metrics, page_port=page_port, on_start=partial(_show_link, folder))


@site_app.command("status")
def status(
    site_file: SiteOption = HERE,
    as_json: AsJson = False,
    health: Health = False,
    live: Live = False,
    link: bool = Option(False, "--link", help="Print a new one-time link to the owner's page."),
) -> None:
    """Show whether the site is running and connected, its open studies, and alarms."""
    from dpadmm.cli.site_reports import status_rendering
    from dpadmm.federation.health import STATUS, is_live, read_status, site_alarms

    folder = read_site(site_path(site_file)).path.parent
    seen = read_status(folder / STATUS)
    if link:
        if seen is None or not is_live(seen) or not seen["pages"]:
            raise StudyError("no page is running; to start it: dpadmm site run --page")
        return _show_link(folder, seen["pages"])
    alarms = site_alarms(seen, folder)
    if health or live:
        return exit_with_health(alarms, only_live=live)
    rendering = status_rendering(seen).extend(next_steps=[alarm.line for alarm in alarms], data=alarms_json(alarms))
    return show(rendering, as_json=as_json)


def _show_link(folder: Path, pages: list[str]) -> None:
    """Print a new one-time link to the owner's page, if there is one."""
    if pages:
        from dpadmm.federation.web.sessions import new_link  # a site without a page does not load the web framework

        lines = ["Page, on this machine only (one-time link, valid for one hour):"]
        show(Rendering(next_steps=[*lines, *(f"{page}{new_link(folder)}" for page in pages)]))


@site_app.command("install")
def install(
    site_file: SiteOption = HERE,
    output: Path = Option(Path("dpadmm-site.service"), "-o", "--output", help="File to write.", metavar="FILE"),
    user: str | None = Option(
        None, help="User that owns the folder of the site.", metavar="USER", show_default="the owner of site.toml"
    ),
) -> None:
    """Write a systemd unit that runs the site as a service."""
    from dpadmm.sites.service import systemd_unit

    path = site_path(site_file)
    check_new(output)
    site = open_site(path)
    write(output, systemd_unit(site, user or path.owner()).encode())
    lines = [
        f"Written: {output}. To start the service now and after each reboot:",
        f"  sudo install -m 644 {output} /etc/systemd/system/",
        f"  sudo systemctl enable --now {output.stem}",
    ]
    show(Rendering(next_steps=lines))


def _ledger_state(site: Site) -> LedgerState | None:
    try:
        return read_ledger(site.ledger)
    except RefusalError as refusal:
        if refusal.code != "ledger-missing":
            raise
        return None


site_app.command("join")(site_join.join)
site_app.command("budget")(site_budget.budget)
site_app.command("export")(site_budget.export)
site_app.command("backup")(site_budget.backup)
site_app.command("restore")(site_budget.restore)
