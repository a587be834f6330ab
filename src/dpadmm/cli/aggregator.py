"""``dpadmm aggregator``: who may take part, and studies across sites, from certificates to the model."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dpadmm.cli.aggregator_run import run, show
from dpadmm.cli.screen import say, say_path, table
from dpadmm.errors import StudyError
from dpadmm.files import atomic_file

aggregator_app = typer.Typer(
    help="For who runs studies across sites: certificates, the broker, rounds and the model.",
    no_args_is_help=True,
)

Folder = Annotated[
    Path, typer.Option("--folder", help="The aggregator's folder, made by init.", metavar="FOLDER")
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
ChosenStudy = Annotated[
    Path | None,
    typer.Argument(help="The study's file; not needed if there is one only.", metavar="STUDY"),
]
Port = Annotated[int | None, typer.Option("--port", help="Another port for the own broker.", metavar="PORT")]
BrokerUrl = Annotated[
    str | None, typer.Option("--broker", help="An existing NATS broker, instead of an own.", metavar="URL")
]
PagePort = Annotated[
    int, typer.Option("--page-port", help="Port of the live page; 0 for any that is free.", metavar="PORT")
]
WithPage = Annotated[bool, typer.Option("--page/--no-page", help="A live page on this machine only.")]
HERE = Path()


@aggregator_app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.", show_default=False, metavar="FOLDER")],
    host: Annotated[
        list[str],
        typer.Option(help="A name or address by which sites reach this machine; may be repeated."),
    ],
    port: Annotated[int, typer.Option(help="The broker's port.")] = 4222,
    listen: Annotated[
        str | None, typer.Option(help="The address that the broker listens at; all if not given.")
    ] = None,
) -> None:
    """Begin an aggregator: its authority for certificates, and its broker's configuration."""
    from dpadmm.federation.certificates import Authority

    authority = Authority.create(folder, hosts=host, port=port, listen=listen)
    console = Console()
    say_path(console, f"Written: {folder}, with keys that nobody else may have.")
    say_path(console, f"Sites will connect to {authority.url}")
    say(console, "Fingerprint of this authority; sites compare it when they join:")
    say_path(console, authority.fingerprint)
    say_path(console, f"Next: dpadmm aggregator approve REQUEST --folder {folder}")


@aggregator_app.command("approve")
def approve(
    request: Annotated[Path, typer.Argument(help="A site's request.json.", show_default=False)],
    folder: Folder = HERE,
    days: Annotated[int, typer.Option(help="How long the certificate holds.", metavar="DAYS")] = 397,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where the invitation goes.", metavar="FILE")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="The site's fingerprint, as its people told you: it must be the same.")
    ] = None,
) -> None:
    """Certify a site's key, and write the invitation to send back. Neither file is secret."""
    from dpadmm.federation.certificates import Authority, read_request
    from dpadmm.federation.invitation import same_fingerprint

    authority, asked = Authority.open(folder), read_request(request)
    if fingerprint is not None and not same_fingerprint(fingerprint, asked.fingerprint):
        raise StudyError("the fingerprint is another than you gave: this is not their request")
    target = output or Path(f"{asked.name}.invitation.json")
    if target.exists():
        raise StudyError(f"{target} exists and is kept; give another name with --output")
    invitation = authority.approve(asked, days=days)
    with atomic_file(target) as out:
        out.write(invitation.as_bytes())
    console = Console()
    say_path(console, f"Approved: {asked.name}; send it {target}")
    say(console, "Fingerprint of its key; compare it with its people, by telephone say:")
    say_path(console, asked.fingerprint)
    say_path(console, f"If it is not theirs: dpadmm aggregator revoke {asked.name} --folder {folder}")


@aggregator_app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="The site.", show_default=False, metavar="NAME")],
    folder: Folder = HERE,
) -> None:
    """Take back a site's certificates: its connections end at once; a study goes on if enough are left."""
    from dpadmm.federation.broker import Broker
    from dpadmm.federation.certificates import Authority

    authority = Authority.open(folder)
    authority.revoke(name)
    broker = Broker(authority)
    running = broker.alive()
    if running:
        broker.reload()
    say(Console(), f"Revoked: {name}." + (" The broker has closed its connections." if running else ""))


@aggregator_app.command("sites")
def sites(folder: Folder = HERE, as_json: AsJson = False) -> None:
    """List the approved sites, and until when their certificates hold."""
    from datetime import UTC, datetime

    from dpadmm.federation.certificates import Authority

    found, now = Authority.open(folder).sites(), datetime.now(UTC)
    state = {True: "approved", False: "expired"}
    rows = [
        (each.name, "revoked" if each.revoked else state[each.usable(now)], f"{each.expires:%Y-%m-%d}")
        for each in found
    ]
    if as_json:
        typer.echo(json.dumps([dict(zip(("name", "state", "expires"), row, strict=True)) for row in rows]))
        return
    out = table("site", "state", "until")
    for row in rows:
        out.add_row(*row)
    Console().print(out)


@aggregator_app.command("serve")
def serve(
    study_file: Annotated[
        Path, typer.Argument(help="The study's file.", show_default=False, metavar="STUDY")
    ],
    folder: Folder = HERE,
    only: Annotated[
        str | None,
        typer.Option("--sites", help="Only these sites, with commas; all approved if not given."),
    ] = None,
    broker: BrokerUrl = None,
    port: Port = None,
    page: WithPage = True,
    page_port: PagePort = 0,
) -> None:
    """Run a study with the sites: wait for them, ask round by round, and keep a journal.

    Killed at any moment, it goes on with the same round when it is started again.
    """
    from dpadmm.federation.certificates import Authority
    from dpadmm.federation.hosting import Host, begin
    from dpadmm.study import read_study

    authority, study = Authority.open(folder), read_study(study_file)
    wanted = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    journal = begin(authority, study, wanted)
    run(Host(authority, journal, _log(), broker, port), folder, study_file, page=page, page_port=page_port)


@aggregator_app.command("resume")
def resume(
    study_file: ChosenStudy = None,
    folder: Folder = HERE,
    broker: BrokerUrl = None,
    port: Port = None,
    page: WithPage = True,
    page_port: PagePort = 0,
) -> None:
    """Go on with a study from its journal, with the round that was open."""
    from dpadmm.federation.certificates import Authority
    from dpadmm.federation.hosting import Host

    authority, journal = Authority.open(folder), _journal(folder, study_file)
    run(Host(authority, journal, _log(), broker, port), folder, study_file, page=page, page_port=page_port)


@aggregator_app.command("status")
def status(study_file: ChosenStudy = None, folder: Folder = HERE, as_json: AsJson = False) -> None:
    """Show where a study is: rounds, sites, what each has released. A run may be going on meanwhile."""
    from dpadmm.federation.journal import Journal
    from dpadmm.federation.view import of_journal

    with Journal.open(_journal(folder, study_file), read_only=True) as journal:
        seen = of_journal(journal) | {"served": journal.is_held()}
    if as_json:
        typer.echo(json.dumps(seen, indent=2, allow_nan=False))
    else:
        show(seen)


@aggregator_app.command("export")
def export(
    output: Annotated[Path, typer.Option("-o", "--output", help="The model's file.", metavar="MODEL")],
    study_file: ChosenStudy = None,
    folder: Folder = HERE,
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Also before the last round.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
) -> None:
    """Write the model, its privacy statement and the transcript of a study, from its journal."""
    from dpadmm.cli.train import statement_path
    from dpadmm.federation.journal import Journal
    from dpadmm.federation.outcome import result_of, write_transcript
    from dpadmm.model import model_of

    transcript = output.with_suffix(".transcript.npz")
    for path in (output, statement_path(output), transcript):
        if path.exists() and not overwrite:
            raise StudyError(f"{path} exists and is kept; choose another name, or say --overwrite")
    with Journal.open(_journal(folder, study_file), read_only=True) as journal:
        result = result_of(journal)
        rounds = journal.study.settings.n_rounds
        if result.rounds_done < rounds and not unfinished:
            done = f"only {result.rounds_done} of {rounds} rounds are done"
            raise StudyError(f"{done}: resume the study, or say --unfinished")
        write_transcript(journal, transcript)
    model_of(result).save(output)
    with atomic_file(statement_path(output)) as out:
        out.write(result.statement.as_bytes())
    console = Console()
    say_path(console, f"Model:      {output}")
    say_path(console, f"Statement:  {statement_path(output)}")
    say_path(console, f"Transcript: {transcript}")


def _journal(folder: Path, study_file: Path | None) -> Path:
    from dpadmm.federation.hosting import journal_of, journals
    from dpadmm.study import read_study

    if study_file is not None:
        return journal_of(folder, read_study(study_file).hash)
    found = journals(folder)
    if len(found) != 1:
        count = "no study was begun" if not found else f"there are {len(found)} studies"
        raise StudyError(f"{folder}: {count} here; name the study's file")
    return found[0]


def _log() -> logging.Logger:
    log = logging.getLogger("dpadmm.aggregator")
    log.setLevel(logging.INFO)
    log.propagate = False
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
    return log
