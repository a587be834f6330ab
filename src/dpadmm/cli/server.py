"""``dpadmm server``: set up the server of a federation, invite sites, and run studies up to the model."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from dpadmm.cli import InterruptedRunError
from dpadmm.cli.console import (
    AsJson,
    Health,
    Live,
    LogForm,
    Metrics,
    alarms_json,
    check_free,
    check_new,
    echo,
    echo_path,
    exit_with_health,
    progress_bar,
    show,
    write,
    write_json,
)
from dpadmm.errors import StudyError
from dpadmm.rendering import Paragraph, Rendering

if TYPE_CHECKING:
    from rich.progress import Progress

    from dpadmm.federation.identity.authority import Authority
    from dpadmm.federation.server.coordinator import Coordinator
    from dpadmm.federation.server.journal import FederatedResult
    from dpadmm.federation.server.process import Server
    from dpadmm.studies.study import Study

T = TypeVar("T")

server_app = typer.Typer(
    help="For study coordinators: run the server, invite sites, run studies and export models.", no_args_is_help=True
)

Folder = Annotated[Path, Option("--folder", help="Folder of the server, created by init.", metavar="FOLDER")]
OptionalStudy = Annotated[
    Path | None,
    Argument(help="File, name or hash of a study. Optional if there is only one.", metavar="STUDY"),
]
Port = Annotated[int | None, Option("--port", help="Another port for the built-in broker.", metavar="PORT")]
HERE = Path()


@server_app.command("init")
def init(
    folder: Path = Argument(HERE, help="A new or empty folder.", metavar="FOLDER"),
    host: list[str] = Option([], help="Host name or address under which sites reach this machine; repeatable."),
    port: int = Option(4222, help="Port of the broker."),
    listen: str | None = Option(
        None, help="Address on which the broker listens.", show_default="all addresses", metavar="ADDRESS"
    ),
    websocket_port: int | None = Option(
        None, help="Also accept WebSocket connections on this port, such as 443.", show_default=False, metavar="PORT"
    ),
    web_port: int | None = Option(
        None,
        help="Port of the web application: joining, status page, health and metrics.",
        metavar="PORT",
        show_default="the next port",
    ),
    broker: list[str] = Option(
        [], help="Existing NATS broker to use instead of the built-in one; repeatable.", metavar="URL"
    ),
    ca: Path | None = Option(
        None, "--ca", help="Certificate of your own CA.", show_default="a new authority", metavar="FILE"
    ),
    certificate: list[Path] = Option(
        [],
        help="Certificate signed by your own CA, with intermediate ones (PEM), for an existing folder; repeatable.",
        metavar="FILE",
    ),
) -> None:
    """Create the folder of a server: its certificate authority and the configuration of its broker.

    With your own CA (--ca), repeat the command with --certificate when the CA has signed the requests, and again for
    each renewal.
    """
    from dpadmm.federation.identity.authority import Authority
    from dpadmm.federation.identity.private_files import read_short

    if certificate:
        return _install_certificates(_authority(folder), certificate)
    if not host:
        raise StudyError("--host is required: give a host name or address under which sites reach this machine")
    authority = Authority.create(
        folder,
        hosts=host,
        port=port,
        listen=listen,
        websocket_port=websocket_port,
        web_port=web_port,
        brokers=broker,
        ca=None if ca is None else read_short(ca),
    )
    lines = [f"Created: {folder}. It contains private keys: keep it secret.", f"Sites will connect to {authority.url}"]
    if ca is not None:
        lines += ["Have your CA sign these requests, as a server and as a client, and install the certificates:"]
        lines += [f"  {folder / name}" for name in ("broker.csr", "server.csr")]
        lines += [f"  dpadmm server init {folder} --certificate FILE --certificate FILE"]
    lines += ["Fingerprint of the authority, for sites that join without a token:", authority.fingerprint]
    lines += [f"Next: dpadmm server start --folder {folder}"]
    lines += [f"For each site: dpadmm server invite NAME --folder {folder}"]
    return show(Rendering(next_steps=lines))


def _install_certificates(authority: Authority, files: list[Path]) -> None:
    """Install certificates of an organisation's own CA. A running broker loads them."""
    from dpadmm.federation.identity.private_files import read_short
    from dpadmm.federation.transport.broker import Broker

    for file in files:
        try:
            owner = authority.install(read_short(file))
        except StudyError as problem:
            raise StudyError(f"{file}: {problem}") from None
        echo(f"Installed: the certificate of {owner}.")
    broker = Broker(authority)
    if broker.alive():
        broker.reload()
        echo("The broker uses it for new connections. Existing connections continue.")


@server_app.command("start")
def start(
    folder: Folder = HERE,
    port: Port = None,
    page: bool = Option(True, "--page/--no-page", help="Also serve the status page on this machine without TLS."),
    page_port: int | None = Option(
        None, help="Port of the status page on this machine.", metavar="PORT", show_default="the one after web_port"
    ),
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Keep the broker and the web application running until stopped, so that sites stay connected between studies.

    The web application has the status page, health and metrics. Without this command, dpadmm server run starts a
    broker that stops with the last study.
    """
    from dpadmm.federation.server.process import keep_broker

    authority = _authority(folder)
    own_port = (authority.settings.web_port + 1 if page_port is None else page_port) if page else None

    def on_start(pages: list[str]) -> None:
        show(Rendering(next_steps=_links(authority, pages)))

    try:
        work = keep_broker(authority, _log(log_form), port=port, page_port=own_port, metrics=metrics, on_start=on_start)
        asyncio.run(until_signal(work, ""))
    except InterruptedRunError:
        echo("Stopped. If a study is running, it keeps the broker until its end.")


@server_app.command("invite")
def invite(
    names: list[str] = Argument(..., help="Names of sites.", show_default=False, metavar="NAME..."),
    folder: Folder = HERE,
    days: int | None = Option(
        None,
        help="Validity in days: of the join token, or with --manual of the certificate.",
        metavar="DAYS",
        show_default="7, or 397 with --manual",
    ),
    revoke: bool = Option(False, "--revoke", help="Withdraw the open join token of the site instead."),
    manual: Path | None = Option(
        None, "--manual", help="Sign this request.json from dpadmm site join --manual, without a token.", metavar="FILE"
    ),
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        help="With --manual: file to write.",
        metavar="FILE",
        show_default="NAME.invitation.json",
    ),
    fingerprint: str | None = Option(
        None, help="With --manual: expected fingerprint of the site's key, from its owner.", metavar="FINGERPRINT"
    ),
) -> None:
    """Print a join token, one line to send to the owner of a site. It is secret until it is used.

    Only the first site that uses it can join, under this name. A new token replaces the one before. It also renews the
    certificate of a site that has joined. With several names, each line has a name and its token.
    """
    if manual is None and (output is not None or fingerprint is not None):
        raise StudyError("--output and --fingerprint belong to --manual FILE")
    if revoke and (manual is not None or days is not None):
        raise StudyError("--revoke cannot be combined with --manual or --days")
    if manual is not None and len(names) != 1:
        raise StudyError("--manual FILE is for one site")
    authority = _authority(folder)
    if revoke:
        for name in names:
            authority.withdraw_token(name)
        return echo(f"Withdrawn: the join token of {', '.join(names)}.")
    if manual is not None:
        return _sign_request(authority, names[0], manual, output, fingerprint, days)
    return _print_tokens(authority, names, days)


def _print_tokens(authority: Authority, names: list[str], days: int | None) -> None:
    """Print new join tokens to stdout, and all else to stderr."""
    from dpadmm.federation.identity.tokens import TOKEN_DAYS
    from dpadmm.federation.protocol import check_name

    for name in names:
        check_name(name)
    tokens = [authority.create_token(name, days=TOKEN_DAYS if days is None else days) for name in names]
    for token in tokens:
        typer.echo(token.text if len(tokens) == 1 else f"{token.name} {token.text}")
    until = f"valid until {tokens[0].expires:%Y-%m-%d %H:%M} UTC, for one site"
    lines = [
        f"{'A' if len(tokens) > 1 else 'This'} join token is {until}. Send it to the owner over a channel that you "
        "trust: its first user joins as this site.",
        "At the site: dpadmm site join TOKEN",
    ]
    if read_running(authority) is None:
        lines.append("Sites can join while the server runs: dpadmm server start")
    for line in lines:
        echo(line, err=True)


def read_running(authority: Authority) -> Any:
    """Return the status of a running ``dpadmm server start``, or None."""
    from dpadmm.federation.health import STATUS, ServerStatus, is_live, read_status

    status = read_status(authority.folder / STATUS, ServerStatus)
    return status if is_live(status) else None


def _sign_request(
    authority: Authority, name: str, request: Path, output: Path | None, fingerprint: str | None, days: int | None
) -> None:
    """Sign the certificate of a request file and write the invitation to send back."""
    from dpadmm.federation.identity.authority import YEAR
    from dpadmm.federation.identity.joining import read_request, same_fingerprint

    site_request = read_request(request)
    if site_request.name != name:
        raise StudyError(f"{request}: the request is from {site_request.name}, not from {name}")
    if fingerprint is not None and not same_fingerprint(fingerprint, site_request.fingerprint):
        raise StudyError("the fingerprints differ: the request is not from the owner of this site")
    target = output or Path(f"{name}.invitation.json")
    check_new(target)
    write(target, authority.approve(site_request, days=YEAR if days is None else days).as_bytes())
    show(
        Rendering(
            next_steps=[
                f"Invited: {name}. Send to the site: {target}. It is not secret.",
                "Fingerprint of the site's key, to compare with its owner, for example by telephone:",
                site_request.fingerprint,
                f"If it differs: dpadmm server revoke {name} --folder {authority.folder}",
                f"At the site: dpadmm site join --invitation {target.name}",
            ]
        )
    )


@server_app.command("sites")
def sites(
    folder: Folder = HERE,
    nats_users: bool = Option(False, "--nats-users", help="Print the users for the configuration of a NATS cluster."),
    as_json: AsJson = False,
) -> None:
    """List the sites: whether they are connected, and how long their certificates are valid.

    Connections are known while dpadmm server start is running.
    """
    from dpadmm.cli.server_status import sites_rendering
    from dpadmm.federation.transport.broker import users_config

    authority = _authority(folder)
    if nats_users:
        typer.echo(users_config(authority))
    else:
        show(sites_rendering(authority), as_json=as_json)


@server_app.command("revoke")
def revoke(
    name: str = Argument(..., help="Name of the site.", show_default=False, metavar="NAME"), folder: Folder = HERE
) -> None:
    """Revoke the certificates of a site. It is disconnected; studies continue with their quorum."""
    from dpadmm.federation.transport.broker import Broker

    authority = _authority(folder)
    authority.revoke(name)
    broker, effect = Broker(authority), ""
    if broker.alive():
        broker.reload()
        effect = " The broker has closed its connections."
    elif broker.is_held():  # in another container
        effect = " The broker closes its connections within a few seconds."
    echo(f"Revoked: {name}.{effect}")


@server_app.command("propose")
def propose(
    study_file: Path = Argument(..., help="Study file.", show_default=False, metavar="STUDY"),
    folder: Folder = HERE,
    only: str | None = Option(
        None, "--sites", help="Comma-separated names of sites.", show_default="all sites", metavar="NAMES"
    ),
    offers: list[Path] = Option(
        [], "--offer", help="Offer file of a site, if the roster is collected without the broker.", metavar="FILE"
    ),
    output: Path | None = Option(
        None, "-o", "--output", help="With --offer: study file to write.", metavar="FILE", show_default=False
    ),
) -> None:
    """Propose a study to sites. Connected sites receive it now, others when they connect.

    The sites of a study are fixed from then on. A changed study is a new study.

    A study with secure aggregation needs a key of each site. The file is then a draft: when all owners have accepted
    it, the study with all keys is proposed automatically, and owners accept it once more. With --offer, the draft and
    the offer files become the study.
    """
    from dpadmm.federation.offers import with_roster
    from dpadmm.federation.server.delivery import propose_draft
    from dpadmm.federation.server.process import begin, members_of_draft
    from dpadmm.studies.reading import read_study

    authority = _authority(folder)
    if bool(offers) != (output is not None):
        raise StudyError("--offer and --output belong together: give all offers, and the study file to write")
    if output is None and (study := read_study(study_file)).is_draft:
        study.check_concrete()
        members = members_of_draft(authority, study, _names(only))
        propose_draft(authority.folder, study, members)
        return show(_proposed(authority, study, members, is_draft=True))
    if output is not None:
        check_new(output)
        write(output, with_roster(study_file, offers).encode())
    study = read_study(output or study_file)
    try:
        path = begin(authority, study, _names(only))
    except BaseException:
        if output is not None:
            output.unlink()
        raise
    return show(_proposed(authority, study, _members_of(path), is_draft=False))


def _members_of(path: Path) -> tuple[str, ...]:
    from dpadmm.federation.server.journal import Journal

    with Journal.open(path, read_only=True) as journal:
        return journal.members


def _proposed(authority: Authority, study: Study, members: tuple[str, ...], *, is_draft: bool) -> Rendering:
    """Return what a proposal means, and the next steps at the sites and here."""
    from dpadmm.federation.health import command_line
    from dpadmm.federation.server.status import SHORT_HASH

    what = "The draft is proposed" if is_draft else "Proposed"
    text = f"{what} to {len(members)} sites: {', '.join(members)}."
    if study.public_rows is not None:
        text += f" {study.public_rows.file} is used at the server only."
    notes = []
    if read_running(authority) is None:
        notes = ["Sites receive it while the server runs: dpadmm server start, or dpadmm server run."]
    at_sites = f"dpadmm site review {study.hash[:SHORT_HASH]}, then dpadmm site accept {study.hash[:SHORT_HASH]}"
    lines = ["Hash of the study, the same at every site:", study.hash, f"At every site: {at_sites}"]
    if is_draft:
        lines += ["When all owners have offered a key, the study with these keys is proposed to them."]
        lines += [f"Then: {command_line('server', 'run', '--folder', authority.folder)}"]
    else:
        lines += [f"Then: {command_line('server', 'run', study.hash[:SHORT_HASH], '--folder', authority.folder)}"]
    return Rendering(title=study.name, body=[Paragraph(text)], notes=notes, next_steps=lines)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@server_app.command("run")
def run(
    study: OptionalStudy = None,
    folder: Folder = HERE,
    broker: str | None = Option(
        None,
        "--broker",
        help="Comma-separated existing NATS brokers instead of the built-in one: tls://HOST:PORT or wss://HOST:PORT.",
        metavar="URLS",
        show_default="from the server's settings",
    ),
    port: Port = None,
    page: bool = Option(True, "--page/--no-page", help="Serve the status page, unless dpadmm server start does."),
    page_port: int = Option(0, help="Port of the status page; 0 for any free port.", metavar="PORT"),
    start_wait: float | None = Option(
        None,
        min=1.0,
        help="Exit with code 75 if too few sites have accepted after this time.",
        metavar="SECONDS",
        show_default="wait for the quorum",
    ),
    log_form: LogForm = "text",
    metrics: Metrics = None,
) -> None:
    """Run a study to its end, or continue it with the open round.

    Round 1 starts when all sites have accepted and are connected, or after a minute (or --start-wait) with the quorum.
    The command can be killed at any time: repeat it to continue.

    A study file that is not proposed yet is proposed to all sites. Without STUDY, the only unfinished study is run.
    """
    from dpadmm.federation.server.process import START_WAIT, Server, begin
    from dpadmm.studies.reading import read_study

    authority = _authority(folder)
    if study is not None and study.is_file():
        journal = begin(authority, read_study(study), None)
    else:
        journal = _journal(folder, study, unfinished=True)
    wait, own_page = START_WAIT if start_wait is None else start_wait, page_port if page else None
    server = Server(authority, journal, _log(log_form), broker, port, wait, start_wait is not None, own_page, metrics)
    _run(server)


@server_app.command("end")
def end(
    study: Path = Argument(..., help="File, name or hash of a study.", show_default=False, metavar="STUDY"),
    folder: Folder = HERE,
) -> None:
    """End a study permanently. Sites close it and free its unused budget.

    The command does not ask for confirmation. A server that runs the study stops. Completed rounds are kept: export
    them with --unfinished.
    """
    from dpadmm.federation.server.journal import Journal, end_study

    path = _journal(folder, study)
    with Journal.open(path, read_only=True) as journal:
        name, done, n_rounds = journal.study.name, journal.rounds_done, journal.study.training.planned_rounds
        is_over = journal.is_over
    if is_over:
        return echo(f"Already {'finished' if done == n_rounds else 'ended'}, nothing changed: {name}.")
    end_study(path)
    echo(f"Ended permanently: {name}, after {done} of {n_rounds} rounds.")
    return echo("Sites are informed when they connect to dpadmm server start or run.")


@server_app.command("status")
def status(
    study: OptionalStudy = None,
    folder: Folder = HERE,
    as_json: AsJson = False,
    health: Health = False,
    live: Live = False,
    link: bool = Option(False, "--link", help="Print a new one-time link to the status page."),
) -> None:
    """Show the progress of a study, its sites, their privacy loss, and alarms.

    If there are several studies, show one line for each.
    """
    from dpadmm.cli.server_status import status_rendering
    from dpadmm.federation.server.status import alarms_of, journals, page_addresses, status_of

    authority = _authority(folder)
    if link:
        return show(Rendering(next_steps=_links(authority, page_addresses(folder))))
    seen = [status_of(authority, each) for each in ([_journal(folder, study)] if study else journals(folder))]
    if health or live:
        if study is None:  # not those that were stopped on purpose
            seen = [each for each in seen if each["live"] is None or each["live"]["running"] or each["error"]]
        return exit_with_health(alarms_of(authority, seen), only_live=live)
    alarms = alarms_of(authority, seen)
    return show(status_rendering(folder, seen, alarms).extend(data=alarms_json(alarms)), as_json=as_json)


@server_app.command("export")
def export(
    study: OptionalStudy = None,
    output: Path = Option(..., "-o", "--output", help="Model file to write.", metavar="MODEL"),
    folder: Folder = HERE,
    unfinished: bool = Option(False, "--unfinished", help="Export before the last round is completed."),
    overwrite: bool = Option(False, "--overwrite", help="Replace existing files."),
) -> None:
    """Write the model, the privacy report and the transcript of a study.

    A study of statistics or of an evaluation gives its results as JSON instead of a model.
    """
    from dpadmm.cli.console import privacy_report_path
    from dpadmm.federation.server.journal import Journal, result_of, write_transcript
    from dpadmm.models.model import model_of

    transcript, report = output.with_suffix(".transcript.npz"), privacy_report_path(output)
    check_free(output, report, transcript, overwrite=overwrite)
    with Journal.open(_journal(folder, study), read_only=True) as journal:
        result = result_of(journal)
        rounds = journal.study.training.planned_rounds
        if result.rounds_done < rounds and not unfinished:
            done = f"only {result.rounds_done} of {rounds} rounds are completed"
            action = "add --unfinished" if journal.ended_at else "run the study to its end, or add --unfinished"
            raise StudyError(f"{done}: {action}")
        kind = "Model:         "
        if result.study.kind == "training":
            model = model_of(result)
            write_transcript(journal, transcript)
            model.save(output)
        else:
            kind, results = "Results:       ", _results(result)
            write_transcript(journal, transcript)
            write_json(output, results)
    write(report, result.privacy.to_bytes())
    echo_path(f"{kind} {output}", f"Privacy report: {report}", f"Transcript:     {transcript}")


def _results(result: FederatedResult) -> dict[str, Any]:
    """Return the results of a study without a model. Rows may be left out at sites, so not all of them count."""
    from dpadmm.models.description import description_of
    from dpadmm.models.private_evaluation import private_evaluation_of

    build = description_of if result.study.kind == "statistics" else private_evaluation_of
    return build(result, all_count=False).to_dict()


def _authority(folder: Path) -> Authority:
    from dpadmm.federation.identity.authority import Authority

    return Authority.open(folder)


def _journal(folder: Path, study: Path | None, *, unfinished: bool = False) -> Path:
    """Return the journal of a study by its file, name or hash; without one, that of the only (unfinished) study."""
    from dpadmm.federation.health import command_line
    from dpadmm.federation.server.status import SHORT_HASH, journal_of, journals, overview
    from dpadmm.studies.reading import read_study

    if study is not None and study.is_file():
        if not (path := journal_of(folder, read_study(study).hash)).exists():
            command = command_line("server", "propose", study, "--folder", folder)
            raise StudyError(f"{study} is not proposed yet; to propose it: {command}")
        return path
    text = "" if study is None else str(study)
    by_hash = [path for path in journals(folder) if path.parent.name == text[:SHORT_HASH]]
    if len(by_hash) == 1:
        return by_hash[0]  # even if another journal is damaged
    listed = overview(folder)
    if study is None:
        wanted = "unfinished study" if unfinished else "study"
        found = [each for each in listed if not (unfinished and each["state"] in ("finished", "ended"))]
    else:
        wanted = f"study with the file, name or hash {text!r}"
        found = [each for each in listed if each["name"] == text]
    if len(found) == 1:
        return journal_of(folder, found[0]["hash"])
    choices = ", ".join(f"{each['hash'][:SHORT_HASH]} ({each['name']}, {each['state']})" for each in found or listed)
    count = f"there is more than one {wanted}" if found else f"there is no {wanted}"
    action = f"give one of: {choices}" if choices else "propose one with dpadmm server propose STUDY"
    raise StudyError(f"{folder}: {count}; {action}")


def _log(form: str) -> logging.Logger:
    from dpadmm.federation.logs import make_log

    return make_log("server", terminal=True, as_json=form == "json")


def _links(authority: Authority, pages: list[str]) -> list[str]:
    """Return a new one-time link to the status page, at each of its addresses."""
    from dpadmm.federation.web.sessions import new_link

    path = new_link(authority.folder)
    lines = [f"{'On this machine' if page.startswith('http:') else 'From elsewhere'}: {page}{path}" for page in pages]
    return ["Status page (one-time link, valid for one hour):", *lines]


def _run(server: Server) -> None:
    """Run a study to its end, with a progress bar."""
    from dpadmm.cli.server_status import study_rendering
    from dpadmm.federation.health import command_line

    which = server.journal.parent.name, "--folder", server.authority.folder
    with progress_bar(quiet=False) as bar:

        def on_start(run: Coordinator) -> None:
            seen = run.snapshot()
            names = ", ".join(site["name"] for site in seen["sites"])
            waiting = [] if seen["rounds_done"] else [Paragraph("Waiting for the sites ...")]
            rounds = Paragraph(f"{seen['study']['n_rounds']} rounds with {len(seen['sites'])} sites: {names}")
            lines = [seen["study"]["hash"], *(_links(server.authority, server.pages) if server.pages else [])]
            show(Rendering(title=seen["study"]["name"], body=[rounds, *waiting], next_steps=lines))
            follow_rounds(run, bar, seen["study"]["n_rounds"])

        message = f"stopped; no completed round is lost. To continue: {command_line('server', 'run', *which)}"
        run = asyncio.run(until_signal(server.run(on_start), message))
    export_command = command_line("server", "export", which[0], "-o", "MODEL.dpadmm", *which[1:])
    show(study_rendering(run.snapshot()).extend(next_steps=[f"Next: {export_command}"]))


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
