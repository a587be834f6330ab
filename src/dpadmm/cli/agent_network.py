"""``dpadmm agent request|join|run|status``: an owner's site on the network, outwards only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dpadmm.cli.screen import say, say_path, table
from dpadmm.errors import StudyError
from dpadmm.privacy.ledger import read_ledger
from dpadmm.site import read_site
from dpadmm.site_promises import broken_promises

SiteOption = Annotated[Path, typer.Option("--site", help="Your site.toml.", metavar="SITE")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def request(
    name: Annotated[
        str, typer.Argument(help="What your site shall be called.", show_default=False, metavar="NAME")
    ],
    site_file: SiteOption = Path("site.toml"),
) -> None:
    """Make your site's key, which never leaves this machine, and a request to send to the aggregator."""
    from dpadmm.federation.joining import make_request

    folder = read_site(site_file).path.parent
    asked = make_request(folder, name)
    console = Console()
    say_path(console, f"Send to the aggregator: {folder / 'network' / 'request.json'}")
    say(console, "It is not secret. Fingerprint of your key; tell it to them when they ask:")
    say_path(console, asked.fingerprint)
    say(console, "Then: dpadmm agent join INVITATION, with the file that they send back.")


def join(
    invitation_file: Annotated[
        Path, typer.Argument(help="What they sent.", show_default=False, metavar="INVITATION")
    ],
    site_file: SiteOption = Path("site.toml"),
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The aggregator's fingerprint, as its people told you: it must be the same."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="I have compared the fingerprint.")] = False,
) -> None:
    """Keep the aggregator's invitation, after you compared its fingerprint with its people."""
    from dpadmm.federation import joining
    from dpadmm.federation.invitation import read_invitation, same_fingerprint

    folder, invitation = read_site(site_file).path.parent, read_invitation(invitation_file)
    console = Console()
    say(console, f"An invitation for {invitation.name}, to connect to {invitation.url}")
    say(console, "Fingerprint of the aggregator's authority:")
    say_path(console, invitation.ca_fingerprint)
    if fingerprint is not None:
        if not same_fingerprint(fingerprint, invitation.ca_fingerprint):
            raise StudyError("the fingerprint is another than you gave: this is not their invitation")
    elif not yes:
        if not os.isatty(0):
            raise StudyError("compare the fingerprint with the aggregator's people, then say --yes")
        if not typer.confirm("Have you compared it with the aggregator's people, and is it the same?"):
            raise StudyError("not joined: ask the aggregator's people for their fingerprint")
    joining.join(folder, invitation)
    say(console, f"Joined as {invitation.name}. Next, for a study that you are sent:")
    say_path(console, f"  dpadmm agent review STUDY --accept --site {site_file}")
    say_path(console, f"  dpadmm agent run --site {site_file}")


def run(
    site_file: SiteOption = Path("site.toml"),
    quiet: Annotated[bool, typer.Option("--quiet", help="Log to agent.log only.")] = False,
) -> None:
    """Answer the studies that you accepted, until you stop it; connects out only, and opens no port.

    Studies that you accept or leave meanwhile are taken up by it. Stopped or killed, it goes on where it was.
    """
    from dpadmm.federation.site_process import SiteProcess, make_log, stay_small

    stay_small()
    site = read_site(site_file)
    for worry in (*site.worries(), *broken_promises(site.policy, read_ledger(site.ledger))):
        typer.echo(f"dpadmm: warning: {worry}", err=True)
    log = make_log(site.path.parent, loud=not quiet)
    asyncio.run(_until_told(SiteProcess(site, log)))
    log.info("stopped")


async def _until_told(process: Any) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await process.run(stop)


def status(site_file: SiteOption = Path("site.toml"), as_json: AsJson = False) -> None:
    """Show whether the agent runs, is connected, and which studies it answers."""
    from dpadmm.federation.site_status import read_status
    from dpadmm.federation.site_studies import STATUS

    path = read_site(site_file).path.parent / STATUS
    if not path.exists():
        raise StudyError("the agent has not run here yet: dpadmm agent run")
    seen = read_status(path)
    seen["running"] = bool(seen["running"]) and _alive(seen["pid"])
    seen["connected"] = seen["running"] and seen["connected"]
    if as_json:
        typer.echo(json.dumps(seen, indent=2))
        return
    console = Console()
    life = "runs" if seen["running"] else "does not run"
    line = "connected" if seen["connected"] else "not connected"
    say(console, f"{seen['site']}: the agent {life}, {line} to {seen['broker']} ({seen['at']})")
    say(console, f"Its certificate holds until {seen['certificate_expires'][:10]}.")
    out = table("study", "decision", "answering", "last round", "of")
    for each in seen["studies"]:
        answering = "yes" if each["answering"] and seen["running"] else "no"
        last = "" if each["last_round"] is None else str(each["last_round"])
        out.add_row(each["name"], each["decision"], answering, last, str(each["n_rounds"]))
    console.print(out)


def _alive(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True
