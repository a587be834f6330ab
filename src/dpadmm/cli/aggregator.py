"""``dpadmm aggregator``: certificates of sites, and studies across sites up to the model."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from dpadmm.cli import InterruptedRunError
from dpadmm.cli.console import (
    AsJson,
    LogForm,
    Metrics,
    OnlyLive,
    alarms_json,
    check_free,
    check_new,
    echo,
    echo_json,
    echo_path,
    exit_with_health,
    progress_bar,
    show_table,
    write,
    write_json,
)
from dpadmm.errors import StudyError

if TYPE_CHECKING:
    from rich.progress import Progress

    from dpadmm.federation.identity.authority import Authority
    from dpadmm.federation.server.coordinator import Coordinator
    from dpadmm.federation.server.journal import FederatedResult
    from dpadmm.federation.server.process import Server

T = TypeVar("T")

aggregator_app = typer.Typer(
    help="For study coordinators: run the server, enrol sites and collect the model.", no_args_is_help=True
)

Folder = Annotated[Path, Option("--folder", help="The aggregator's folder, created by init.", metavar="FOLDER")]
ChosenStudy = Annotated[
    Path | None,
    Argument(help="The study's file, name or hash; optional if there is only one study.", metavar="STUDY"),
]
Port = Annotated[int | None, Option("--port", help="Another port for the built-in broker.", metavar="PORT")]
BrokerUrl = Annotated[
    str | None,
    Option(
        "--broker",
        help="Existing NATS brokers instead of the built-in one, separated by commas: tls://HOST:PORT or wss://HOST:PORT.",
        metavar="URLS",
        show_default="those of aggregator.toml",
    ),
]
PagePort = Annotated[int, Option("--page-port", help="Port of the live page; 0 for any free port.", metavar="PORT")]
WithPage = Annotated[bool, Option("--page/--no-page", help="Serve a live page on this machine only.")]
StartWait = Annotated[
    float, Option("--start-wait", min=1.0, help="Seconds to wait for all sites at the start.", metavar="SECONDS")
]
HERE = Path()


@aggregator_app.command("init")
def init(
    folder: Path = Argument(..., help="A new folder.", show_default=False, metavar="FOLDER"),
    host: list[str] = Option(..., help="A host name or address under which sites reach this machine; repeatable."),
    port: int = Option(4222, help="The port of the broker."),
    listen: str | None = Option(None, help="The address on which the broker listens.", show_default="all addresses"),
    websocket_port: int | None = Option(
        None, help="Also accept WebSocket connections on this port, such as 443.", show_default=False
    ),
    broker: list[str] = Option(
        [], help="An existing NATS broker for sites and serve, instead of the built-in one; repeatable.", metavar="URL"
    ),
    ca: Path | None = Option(
        None,
        "--ca",
        help="The certificate of your own CA, which signs all certificates.",
        show_default="a new authority",
    ),
) -> None:
    """Create an aggregator: its certificate authority and the configuration of its broker."""
    from dpadmm.federation.identity.authority import Authority
    from dpadmm.federation.identity.private_files import read_short

    authority = Authority.create(
        folder,
        hosts=host,
        port=port,
        listen=listen,
        websocket_port=websocket_port,
        brokers=broker,
        ca=None if ca is None else read_short(ca),
    )
    echo_path(f"Created: {folder}. It contains private keys: keep it secret.")
    echo_path(f"Sites will connect to {authority.url}")
    if ca is not None:
        echo("Have these signed by your CA, as a server and as a client, then install the certificates:")
        echo_path(*(f"  {folder / name}" for name in ("server.csr", "aggregator.csr")))
        echo_path(f"  dpadmm aggregator install CERTIFICATE --folder {folder}")
    echo("Fingerprint of this authority, which sites compare when they join:")
    echo_path(authority.fingerprint)
    echo_path(f"Next: dpadmm aggregator approve REQUEST --folder {folder}")


@aggregator_app.command("install")
def install(
    certificate: Path = Argument(..., help="A PEM file: the certificate, then intermediate ones.", show_default=False),
    folder: Folder = HERE,
) -> None:
    """Use a certificate of your own CA for the broker or the aggregator. A running broker loads it at once."""
    from dpadmm.federation.identity.private_files import read_short
    from dpadmm.federation.transport.broker import Broker

    authority = _authority(folder)
    try:
        whose = authority.install(read_short(certificate))
    except StudyError as problem:
        raise StudyError(f"{certificate}: {problem}") from None
    echo(f"Installed: the certificate of {whose}.")
    broker = Broker(authority)
    if broker.alive():
        broker.reload()
        echo("The broker uses it for new connections; those that exist continue.")


@aggregator_app.command("approve")
def approve(
    request: Path = Argument(..., help="The site's request.json.", show_default=False),
    folder: Folder = HERE,
    days: int = Option(397, help="Validity of the certificate in days.", metavar="DAYS"),
    output: Path | None = Option(
        None, "-o", "--output", help="The invitation's file.", metavar="FILE", show_default=False
    ),
    fingerprint: str | None = Option(None, help="The expected fingerprint, from the owner of the site."),
) -> None:
    """Certify the key of a site, and write the invitation to send back. Neither file is secret."""
    from dpadmm.federation.identity.joining import read_request, same_fingerprint

    authority, asked = _authority(folder), read_request(request)
    if fingerprint is not None and not same_fingerprint(fingerprint, asked.fingerprint):
        raise StudyError("the fingerprints differ: this request is from somebody else")
    target = output or Path(f"{asked.name}.invitation.json")
    if target.exists():
        raise StudyError(f"{target} exists; choose another name with --output")
    invitation = authority.approve(asked, days=days)
    write(target, invitation.as_bytes())
    echo_path(f"Approved {asked.name}. Send to the site: {target}")
    echo("Fingerprint of its key; compare it with the owner of the site, for example by telephone:")
    echo_path(asked.fingerprint)
    echo_path(f"If it differs: dpadmm aggregator revoke {asked.name} --folder {folder}")


@aggregator_app.command("revoke")
def revoke(
    name: str = Argument(..., help="Site name.", show_default=False, metavar="NAME"), folder: Folder = HERE
) -> None:
    """Revoke the certificates of a site. It is disconnected at once; studies continue with their quorum."""
    from dpadmm.federation.transport.broker import Broker

    authority = _authority(folder)
    authority.revoke(name)
    broker, what = Broker(authority), ""
    if broker.alive():
        broker.reload()
        what = " The broker has closed its connections."
    elif broker.is_held():  # in another container
        what = " The broker closes its connections within a few seconds."
    echo(f"Revoked: {name}.{what}")


@aggregator_app.command("sites")
def sites(folder: Folder = HERE, as_json: AsJson = False) -> None:
    """List the approved sites, and how long their certificates are valid."""
    from datetime import UTC, datetime

    rows, now = [], datetime.now(UTC)
    for each in _authority(folder).sites():
        state = "revoked" if each.revoked else "approved" if each.usable(now) else "expired"
        rows.append((each.name, state, f"{each.expires:%Y-%m-%d}"))
    if as_json:
        return echo_json([dict(zip(("name", "state", "expires"), row, strict=True)) for row in rows])
    return show_table(("site", "state", "valid until"), rows)


@aggregator_app.command("users")
def users(folder: Folder = HERE) -> None:
    """Print who may connect, as the part of the configuration that each server of an existing NATS cluster needs."""
    from dpadmm.federation.transport.broker import users_config

    typer.echo(users_config(_authority(folder)))


@aggregator_app.command("roster")
def roster(
    draft: Path = Argument(..., help="The draft that sites made offers for.", show_default=False, metavar="DRAFT"),
    offers: list[Path] = Argument(..., help="The offers of all sites.", show_default=False, metavar="OFFER..."),
    output: Path = Option(..., "-o", "--output", help="The study's file.", metavar="STUDY"),
) -> None:
    """Write a study with secure aggregation: its draft, with the keys that the sites offered."""
    from dpadmm.federation.offers import with_roster
    from dpadmm.studies.reading import read_study

    check_new(output)
    write(output, with_roster(draft, offers).encode())
    echo_path(f"Written: {output}. Send it to all sites: {len(offers)} are in its roster.")
    echo("Hash of the study, which the owners compare with each other, for example by telephone:")
    echo_path(read_study(output).hash)
    echo("Next, at each site: dpadmm agent review STUDY --accept --hash HASH")


@aggregator_app.command("broker")
def broker(folder: Folder = HERE, port: Port = None, log_form: LogForm = "text", metrics: Metrics = None) -> None:
    """Keep the broker running between studies, so that sites stay connected, until it is stopped.

    Without it, serve starts a broker that stops with the last study.
    """
    from dpadmm.federation.server.process import keep_broker

    try:
        work = keep_broker(_authority(folder), _log(log_form), port=port, metrics=metrics)
        asyncio.run(until_signal(work, ""))
    except InterruptedRunError:
        echo("Stopped. A study that is being served keeps the broker until its end.")


@aggregator_app.command("serve")
def serve(
    study_file: Path = Argument(..., help="The study's file.", show_default=False, metavar="STUDY"),
    folder: Folder = HERE,
    only: str | None = Option(
        None, "--sites", help="Site names, separated by commas.", show_default="all approved sites"
    ),
    broker: BrokerUrl = None,
    port: Port = None,
    page: WithPage = True,
    page_port: PagePort = 0,
    start_wait: StartWait = 60.0,
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Run a study across sites: wait for them, run all rounds, and keep a journal.

    Round 1 starts when all sites are there, or after --start-wait with the quorum; without it, this ends with exit
    code 75 and says who is missing. It can be killed at any time and resumes with the same round when started again.
    """
    from dpadmm.federation.server.process import Server, begin
    from dpadmm.studies.reading import read_study

    authority, study = _authority(folder), read_study(study_file)
    wanted = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    server = Server(authority, begin(authority, study, wanted), _log(log_form), broker, port, start_wait, metrics)
    _run(server, page_port if page else None)


@aggregator_app.command("resume")
def resume(
    study_file: ChosenStudy = None,
    folder: Folder = HERE,
    broker: BrokerUrl = None,
    port: Port = None,
    page: WithPage = True,
    page_port: PagePort = 0,
    start_wait: StartWait = 60.0,
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Continue a study from its journal, with the round that was open.

    Without STUDY: the only study that is not finished.
    """
    from dpadmm.federation.server.process import Server

    journal = _journal(folder, study_file, unfinished=True)
    server = Server(_authority(folder), journal, _log(log_form), broker, port, start_wait, metrics)
    _run(server, page_port if page else None)


@aggregator_app.command("end")
def end(
    study: Path = Argument(..., help="The study's file, name or hash.", show_default=False, metavar="STUDY"),
    folder: Folder = HERE,
) -> None:
    """End a study for good: no more rounds are requested, and sites close it and release its unused budget.

    It is done at once, without a question. A server that runs the study stops. Closed rounds are kept: export them with
    --unfinished.
    """
    from dpadmm.federation.server.journal import Journal, end_study

    path = _journal(folder, study)
    with Journal.open(path, read_only=True) as journal:
        name, done, n_rounds = journal.study.name, journal.rounds_done, journal.study.training.planned_rounds
        over = journal.is_over
    if over:
        return echo(f"{'Finished' if done == n_rounds else 'Ended'} before, nothing changed: {name}.")
    end_study(path)
    echo(f"Ended for good: {name}, after {done} of {n_rounds} rounds.")
    return echo(
        "Sites are informed by dpadmm aggregator broker or serve, as soon as one of them runs and they connect."
    )


@aggregator_app.command("status")
def status(study_file: ChosenStudy = None, folder: Folder = HERE, as_json: AsJson = False) -> None:
    """Show the progress of a study: its rounds, its sites, what each has released, and what is wrong.

    Of several studies without STUDY: one line each.
    """
    from dpadmm.federation.health import STATUS, AggregatorStatus, command_line, is_live, read_status
    from dpadmm.federation.server.process import alarms_of, journals, overview, status_of

    authority = _authority(folder)
    hub, found = read_status(folder / STATUS, AggregatorStatus), journals(folder)
    if study_file:
        found = [_journal(folder, study_file)]
    seen = [status_of(authority, each) for each in found]
    alarms = alarms_of(authority, seen)
    if as_json:
        several = seen[0] if len(seen) == 1 else {"state": "several" if seen else "none", "studies": seen}
        return echo_json(several | {"broker": hub and hub | {"running": is_live(hub)}} | alarms_json(alarms))
    if hub is not None:
        echo_path(
            f"The broker {'is running' if is_live(hub) else 'is not kept running'}: {hub['broker']} ({hub['at']})"
        )
    if len(seen) > 1:
        head, listed = ("study", "hash", "state", "rounds", "sites", "began", "last round"), overview(folder)
        show_table(head, map(_line, listed), left=(0, 1, 2), whole=range(1, 7))
        example = command_line("aggregator", "status", listed[0]["hash"][:SHORT], "--folder", folder)
        echo_path(f"Details of one study: {example}")
    elif seen:
        _show(seen[0])
    elif hub is not None:
        rows = [(name, site["last_seen"] or "never") for name, site in hub["sites"].items()]
        show_table(("site", "last sign of life"), rows)
    if not seen:
        echo("No study was served here yet.")
    return echo_path(*(alarm.line for alarm in alarms))


@aggregator_app.command("health")
def health(study_file: ChosenStudy = None, folder: Folder = HERE, only_live: OnlyLive = False) -> None:
    """Print all alarms, for systemd, Docker and Kubernetes. Exit code 0: healthy. 1: not.

    Without STUDY: the broker that dpadmm aggregator broker keeps, and all studies, but those whose server was stopped
    on purpose.
    """
    from dpadmm.federation.server.process import alarms_of, journals, status_of

    authority = _authority(folder)
    found = [_journal(folder, study_file)] if study_file else journals(folder)
    seen = [status_of(authority, each) for each in found]
    if study_file is None:
        seen = [each for each in seen if each["live"] is None or each["live"]["running"] or each["error"]]
    alarms = alarms_of(authority, seen)
    exit_with_health([each for each in alarms if not only_live or each.code == "not-running"])


@aggregator_app.command("export")
def export(
    output: Path = Option(..., "-o", "--output", help="The model's file.", metavar="MODEL"),
    study_file: ChosenStudy = None,
    folder: Folder = HERE,
    unfinished: bool = Option(False, "--unfinished", help="Export before the last round is done."),
    overwrite: bool = Option(False, "--overwrite", help="Replace existing files."),
) -> None:
    """Write the model, its privacy report and the transcript of a study, from its journal.

    Of a study of the kind statistics or evaluation: the results as JSON, in place of a model.
    """
    from dpadmm.cli.console import privacy_report_path
    from dpadmm.federation.server.journal import Journal, result_of, write_transcript
    from dpadmm.models.model import model_of

    transcript, report = output.with_suffix(".transcript.npz"), privacy_report_path(output)
    check_free(output, report, transcript, overwrite=overwrite)
    with Journal.open(_journal(folder, study_file), read_only=True) as journal:
        result = result_of(journal)
        rounds = journal.study.training.planned_rounds
        if result.rounds_done < rounds and not unfinished:
            done = f"only {result.rounds_done} of {rounds} rounds are closed"
            todo = "add --unfinished" if journal.ended_at else "resume the study, or add --unfinished"
            raise StudyError(f"{done}: {todo}")
        what = "Model:     "
        if result.study.kind == "training":
            model = model_of(result)
            write_transcript(journal, transcript)
            model.save(output)
        else:
            what, results = "Results:   ", _results(result)
            write_transcript(journal, transcript)
            write_json(output, results)
    write(report, result.privacy.to_bytes())
    echo_path(f"{what} {output}", f"Privacy report: {report}", f"Transcript: {transcript}")


def _results(result: FederatedResult) -> dict[str, Any]:
    """What a study that trains nothing gave; rows at sites may be silent, so not all of them count."""
    from dpadmm.models.description import description_of
    from dpadmm.models.private_evaluation import private_evaluation_of

    of = description_of if result.study.kind == "statistics" else private_evaluation_of
    return of(result, all_count=False).to_dict()


def _authority(folder: Path) -> Authority:
    from dpadmm.federation.identity.authority import Authority

    return Authority.open(folder)


SHORT = 16
"""Characters of a hash that name a study in commands, and its folder."""


def _journal(folder: Path, study: Path | None, *, unfinished: bool = False) -> Path:
    """The journal of a study, by its file, name or hash; without one, that of the only (unfinished) study."""
    from dpadmm.federation.health import command_line
    from dpadmm.federation.server.process import journal_of, journals, overview
    from dpadmm.studies.reading import read_study

    if study is not None and study.is_file():
        if not (path := journal_of(folder, read_study(study).hash)).exists():
            start = command_line("aggregator", "serve", study, "--folder", folder)
            raise StudyError(f"{path}: no such journal. To start this study: {start}")
        return path
    text = "" if study is None else str(study)
    if len(by_hash := [path for path in journals(folder) if path.parent.name == text[:SHORT]]) == 1:
        return by_hash[0]  # whatever the state of the other journals is
    listed = overview(folder)
    if study is None:
        what = "study that is not finished" if unfinished else "study"
        found = [each for each in listed if not (unfinished and each["state"] in ("finished", "ended"))]
    else:
        what = f"study with the file, name or hash {text!r}"
        found = [each for each in listed if each["name"] == text]
    if len(found) == 1:
        return journal_of(folder, found[0]["hash"])
    choices = ", ".join(f"{each['hash'][:SHORT]} ({each['name']}, {each['state']})" for each in found or listed)
    count = f"there is no {what}" if not found else f"there is more than one {what}"
    raise StudyError(f"{folder}: {count}; {f'name one of: {choices}' if choices else 'no study was started here'}")


def _log(form: str) -> logging.Logger:
    from dpadmm.federation.logs import make_log

    return make_log("aggregator", terminal=True, as_json=form == "json")


def _run(server: Server, page_port: int | None) -> None:
    """Run a study to its end, with a progress bar and, unless ``page_port`` is None, a live page."""
    from dpadmm.federation.health import command_line
    from dpadmm.federation.server.page import Page
    from dpadmm.federation.server.process import page_snapshot

    here = server.journal.parent.name, "--folder", server.authority.folder
    with ExitStack() as resources, progress_bar(quiet=False) as bar:

        def on_start(run: Coordinator) -> None:
            seen = run.snapshot()
            echo(seen["study"]["name"], style="bold")
            echo_path(seen["study"]["hash"])
            names = ", ".join(site["name"] for site in seen["sites"])
            echo(f"{seen['study']['n_rounds']} rounds with {len(seen['sites'])} sites: {names}")
            if not seen["rounds_done"]:
                echo("Waiting for the sites ...")
            if page_port is not None:
                page = resources.enter_context(Page(page_snapshot(server), port=page_port))
                echo_path(f"Live page, on this machine only: {page.url}")
            follow_rounds(run, bar, seen["study"]["n_rounds"])

        message = f"stopped; no closed round is lost. To continue: {command_line('aggregator', 'resume', *here)}"
        run = asyncio.run(until_signal(server.run(on_start), message))
    _show(run.snapshot())
    echo_path(f"Next: {command_line('aggregator', 'export', '-o', 'MODEL.dpadmm', *here)}")


def follow_rounds(run: Coordinator, bar: Progress, n_rounds: int) -> None:
    """Update a progress bar a few times a second, as long as the event loop runs."""
    task, loop = bar.add_task("rounds", total=n_rounds), asyncio.get_running_loop()

    def update() -> None:
        bar.update(task, completed=run.rounds_done)
        loop.call_later(0.2, update)

    update()


async def until_signal(work: Coroutine[Any, Any, T], message: str) -> T:
    """Await ``work``; Ctrl-C or SIGTERM cancel it and raise ``InterruptedRunError(message)``."""
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        raise InterruptedRunError(message) from None


def _line(study: dict[str, Any]) -> tuple[str, ...]:
    """A study in the table of several."""
    there = study["sites_present"]
    return (
        study["name"],
        study["hash"][:SHORT],
        study["state"],
        f"{study['rounds_done']} of {study['n_rounds']}",
        f"{'–' if there is None else there} of {study['n_sites']}",
        study["begun_at"][:10],
        _date(study["last_round_at"]),
    )


def _date(at: str | None) -> str:
    return "" if at is None else f"{at[:10]} {at[11:16]}"


SHOWN_STALLS = 10
"""Latest stalls that ``status`` shows; ``--json`` has all of a snapshot."""


def _show(seen: dict[str, Any]) -> None:
    """The state of a study: rounds, sites, and the last warnings."""
    study = seen["study"]
    served = seen.get("served") is not False
    past = {} if served else {"present": "answered", "absent": "missed", "unseen": "never answered"}
    echo(study["name"], style="bold")
    echo(seen["headline"] + (f" (since {_date(seen['since'])} UTC)" if seen["since"] else ""))
    usual = seen["median_seconds"]
    pace = "" if usual is None else f", {1000 * usual:.0f} ms each" if usual < 1 else f", {usual:.1f} s each"
    echo(f"{seen['rounds_done']} of {study['n_rounds']} rounds{pace}; quorum: {seen['quorum']} sites")
    last = f"; last round {_date(seen['last_round_at'])}" if seen["last_round_at"] else ""
    echo(f"began {_date(seen['begun_at'])}{last} (UTC)")
    echo(f"noise multiplier z: {study['noise']}")
    rows = [
        (
            site["name"],
            past.get(site["state"], site["state"]) + (f" ({site['code']})" if site["code"] else ""),
            "" if site["rows"] is None else f"{site['rows']:,}",
            str(site["answered"]),
            f"{site['epsilon']:.4f}",
            *([f"{site['epsilon_if_others_collude']:.4f}"] if "min_honest_sites" in seen else []),
        )
        for site in seen["sites"]
    ]
    head = (
        "site",
        "state" if served else "last round",
        "rows",
        "rounds answered",
        f"ε so far at δ = {study['delta']:g}",
    )
    show_table((*head, "if all others collude") if "min_honest_sites" in seen else head, rows)
    if aborted_rounds := seen.get("aborted_rounds"):
        echo(
            f"Aborted rounds: {', '.join(str(aborted['round']) for aborted in aborted_rounds)}; they are charged, "
            f"and nothing was learnt."
        )
    if stalls := seen["stalls"][-SHOWN_STALLS:]:
        rows = [(each["site"], str(each["round"]), each["start"][:19], (each["end"] or "open")[:19]) for each in stalls]
        show_table(("stalled by", "round", "start (UTC)", "end (UTC)"), rows)
    warnings = [event for event in seen["events"] if event["level"] != "info"][-5:]
    echo(*(f"{event['at'][:19]} {event['text']}" for event in warnings))
