"""A study across sites, on the terminal: while it runs, and as it was left."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dpadmm.cli.interrupted import Interrupted
from dpadmm.cli.screen import progress_bar, say, say_path, table

if TYPE_CHECKING:
    from dpadmm.federation.hosting import Host
    from dpadmm.federation.view import View


def run(host: Host, folder: Path, study: Path | None, *, page: bool, page_port: int) -> None:
    """Run a study to its end, with its progress and, if wanted, its page."""
    from dpadmm.federation.page import Page

    console = Console()
    with ExitStack() as held, progress_bar(quiet=False) as bar:

        def watch(view: View) -> None:
            seen = view.snapshot()
            say(console, seen["study"]["name"], style="bold")
            say_path(console, seen["study"]["hash"])
            names = ", ".join(site["name"] for site in seen["sites"])
            say(console, f"{seen['study']['n_rounds']} rounds with {len(seen['sites'])} sites: {names}")
            if not seen["rounds_done"]:
                say(console, "Waiting until they are here ...")
            if page:
                shown = Page(view.snapshot, port=page_port)
                shown.start()
                held.callback(shown.close)
                say_path(console, f"Live page, on this machine only: {shown.url}")
            task = bar.add_task("rounds", total=seen["study"]["n_rounds"], completed=seen["rounds_done"])
            held.callback(followed(view, lambda done: bar.update(task, completed=done)))

        view = asyncio.run(_until_told(host, watch))
    show(view.snapshot())
    which = "" if study is None else f"{study} "
    say_path(console, f"Next: dpadmm aggregator export {which}-o MODEL.dpadmm --folder {folder}")


def followed(view: View, update: Callable[[int], None]) -> Callable[[], None]:
    """Call ``update`` with the rounds done, a few times a second; the function returned ends it."""
    from threading import Event, Thread

    ended = Event()

    def follow() -> None:
        while not ended.wait(0.2):
            update(view.rounds_done)

    thread = Thread(target=follow, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


async def _until_told(host: Host, watch: Callable[[View], None]) -> View:
    """Run to the end, or until Ctrl-C or SIGTERM, which lose nothing."""
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(host.run(watch))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        return await running
    except asyncio.CancelledError:
        raise Interrupted(
            "stopped; nothing is lost: dpadmm aggregator resume goes on with the same round"
        ) from None


def show(seen: dict[str, Any]) -> None:
    """A study as it is: rounds, sites, and the last warnings."""
    console, study = Console(), seen["study"]
    words = {"done": "done", "running": "not at its end", "waiting": "not begun", "stopped": "stopped"}
    say(console, study["name"], style="bold")
    rounds = f"{seen['rounds_done']} of {study['n_rounds']} rounds"
    usual = seen["median_seconds"]
    pace = "" if usual is None else f", {1000 * usual:.0f} ms each" if usual < 1 else f", {usual:.1f} s each"
    if seen.get("served") is False and seen["state"] != "done":
        say(console, "No aggregator runs it at the moment: dpadmm aggregator resume goes on.")
    say(console, f"{words[seen['state']]}: {rounds}{pace}; {seen['quorum']} sites make a round")
    out = table("site", "state", "rows", "rounds answered", f"ε so far at δ = {study['delta']:g}")
    for site in seen["sites"]:
        state = site["state"] + (f" ({site['code']})" if site["code"] else "")
        rows = "" if site["rows"] is None else f"{site['rows']:,}"
        out.add_row(site["name"], state, rows, str(site["answered"]), f"{site['epsilon']:.4f}")
    console.print(out)
    for event in [event for event in seen["events"] if event["level"] != "info"][-5:]:
        say(console, f"{event['at'][:19]} {event['text']}")
