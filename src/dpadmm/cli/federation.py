"""``dpadmm federation demo``: a deployment on one machine, with real processes, certificates and ledgers."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dpadmm.cli.interrupted import Interrupted
from dpadmm.cli.screen import epsilon_text, progress_bar, say, say_path, table
from dpadmm.errors import StudyError

if TYPE_CHECKING:
    from dpadmm.federation.demo import Plan, Shown
    from dpadmm.federation.view import View

federation_app = typer.Typer(
    help="A federation on this machine alone: see it work before others depend on it.",
    no_args_is_help=True,
)
federation_app.callback()(lambda: None)  # a group, though it has one command


@federation_app.command("demo")
def demo(
    sites: Annotated[
        int, typer.Option(min=1, max=800, help="Sites, each a process with its own part of UCI Adult.")
    ] = 10,
    rounds: Annotated[int, typer.Option(min=1, max=100_000, help="Rounds.")] = 100,
    epsilon: Annotated[
        float, typer.Option(min=0.01, max=50.0, help="ε of the whole study, for every site.")
    ] = 1.0,
    keep: Annotated[
        Path | None,
        typer.Option(help="A new folder, in which all is kept.", show_default=False, metavar="FOLDER"),
    ] = None,
    faults: Annotated[
        bool, typer.Option("--faults/--no-faults", help="A bad network between sites and broker.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the end.")] = False,
) -> None:
    """Run a study across real processes on this machine, check all of it, and clean up."""
    from dpadmm.federation.demo import Plan

    plan, began, console = Plan(sites, rounds, epsilon, faults), time.monotonic(), Console()
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise StudyError(f"{keep} exists and is kept; give the name of a new folder")
    with ExitStack() as held:
        if keep is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="dpadmm-federation-")))
        else:
            folder = keep
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        shown = asyncio.run(_shown(plan, folder, console, quiet=quiet))
        show(console, shown, plan)
    say(console, f"Total: {time.monotonic() - began:.1f} s")
    if keep is not None:
        say_path(console, f"Kept: {keep}")


async def _shown(plan: Plan, folder: Path, console: Console, *, quiet: bool) -> Shown:
    from dpadmm.cli.aggregator_run import followed
    from dpadmm.federation.demo import demonstrate

    log = logging.getLogger("dpadmm.federation.demo")
    log.addHandler(logging.FileHandler(folder / "aggregator.log"))
    log.setLevel(logging.INFO)
    log.propagate = False
    with ExitStack() as held:
        bar = held.enter_context(progress_bar(quiet=quiet))
        held.callback(_closed, log)

        def watch(view: View) -> None:
            task = bar.add_task("rounds", total=plan.n_rounds)
            held.callback(followed(view, lambda done: bar.update(task, completed=done)))

        tell = (lambda text: None) if quiet else (lambda text: say(console, text))
        running = asyncio.ensure_future(demonstrate(plan, folder, log, tell=tell, watch=watch))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        try:
            return await running
        except asyncio.CancelledError:
            raise Interrupted("stopped; all processes of the demonstration have ended") from None


def _closed(log: logging.Logger) -> None:
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()


def show(console: Console, shown: Shown, plan: Plan) -> None:
    """What was seen and checked."""
    assert shown.replay is not None
    again, study = shown.replay, shown.study
    say(console, study.name, style="bold")
    say(
        console,
        f"{shown.n_sites} sites with {shown.rows_per_site:,} rows each, d = {study.shape[0]}, "
        f"{again.n_rounds} rounds; noise multiplier {study.noise_multiplier:.4g}",
    )
    out = table("checked", "")
    out.add_row(
        "accuracy on 5,222 rows that no site has",
        f"{shown.accuracy:.1%} (most frequent class: {shown.most_frequent:.1%})",
    )
    out.add_row(
        "privacy statement, derived again",
        f"right: ε = {epsilon_text(shown.epsilon)} at δ = {study.settings.delta:g}",
    )
    out.add_row(
        "ledgers",
        f"{shown.n_sites} of {shown.n_sites} whole: {shown.records:,} records, "
        f"{shown.releases:,} releases, none too many",
    )
    if plan.faults:
        out.add_row("network", f"{shown.connections} connections, {shown.cuts} cut, {shown.stalls} stalls")
        out.add_row("uploads late, lost", f"{again.n_late}, {again.n_lost}")
    out.add_row("set-up", f"{shown.set_up:.1f} s")
    out.add_row("agents started, until the first round", f"{shown.started:.1f} s")
    out.add_row("median round", f"{1000 * shown.median_round:.0f} ms")
    out.add_row("all rounds", f"{shown.rounds:.1f} s")
    out.add_row("checks", f"{shown.checks:.1f} s")
    if shown.memory:
        out.add_row("largest memory of an agent", f"{max(shown.memory):.0f} MB")
    console.print(out)
    say(console, f"deployed = in process, bit for bit: {'yes' if again.equal else 'NO'}")
