"""``dpadmm federation demo``: a deployment on one machine, with real processes, certificates and ledgers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer
from typer import Option

from dpadmm.cli.console import echo, echo_path, epsilon_text, progress_bar, show_table
from dpadmm.errors import StudyError

if TYPE_CHECKING:
    from dpadmm.federation.demo import Summary
    from dpadmm.studies.settings import Training

federation_app = typer.Typer(help="Run a federation on this machine, as a demonstration.", no_args_is_help=True)
federation_app.callback()(lambda: None)  # a group, though it has one command


@federation_app.command("demo")
def demo(
    sites: int = Option(10, min=1, max=800, help="Number of sites; each is a process with a part of UCI Adult."),
    method: str = Option("auto", help="Training method: auto, dp_admm or dp_sgd."),
    rounds: int | None = Option(
        None, min=1, max=100_000, help="Number of rounds.", show_default="25, or 100 (dp_admm)"
    ),
    epsilon: float = Option(1.0, min=0.01, max=50.0, help="Total ε of the study, for every site."),
    aggregation: str = Option("plain", help="plain, or secure: the server sees only sums of masked answers."),
    min_honest_sites: int | None = Option(
        None, min=2, help="With secure aggregation: sites of a round that are honest.", show_default="half of them"
    ),
    keep: Path | None = Option(None, help="A new folder for all files.", show_default=False, metavar="FOLDER"),
    quiet: bool = Option(False, "--quiet", help="Show the summary only."),
) -> None:
    """Run a study across processes on this machine, check all results, and clean up."""
    from dpadmm.studies.settings import Training

    if aggregation == "secure" and min_honest_sites is None:
        min_honest_sites = max(2, sites // 2)
    if min_honest_sites is not None and sites <= min_honest_sites:
        raise StudyError(
            f"secure aggregation with {min_honest_sites} honest sites takes at least {min_honest_sites + 1} sites"
        )
    training = Training(
        method=method, epsilon=epsilon, n_rounds=rounds, aggregation=aggregation, min_honest_sites=min_honest_sites
    )
    began = time.monotonic()
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise StudyError(f"{keep} exists; choose the name of a new folder")
    if keep is not None:
        keep.mkdir(mode=0o700, parents=True, exist_ok=True)
    with nullcontext(keep) if keep else TemporaryDirectory(prefix="dpadmm-federation-") as folder:
        _show(_run(sites, training, Path(folder), quiet=quiet))
    echo(f"Total: {time.monotonic() - began:.1f} s")
    if keep is not None:
        echo_path(f"Files: {keep}")


def _run(n_sites: int, training: Training, folder: Path, *, quiet: bool) -> Summary:
    from dpadmm.cli.aggregator import follow_rounds, until_signal
    from dpadmm.federation.demo import demonstrate

    log = logging.getLogger("dpadmm.federation.demo")
    handler = logging.FileHandler(folder / "aggregator.log")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        with progress_bar(quiet=quiet) as bar:
            work = demonstrate(
                n_sites,
                training,
                folder,
                log,
                report=lambda text: None if quiet else echo(text),
                on_start=lambda run: follow_rounds(run, bar, training.planned_rounds),
            )
            return asyncio.run(until_signal(work, "stopped; all processes of the demo have ended"))
    finally:
        log.removeHandler(handler)
        handler.close()


def _show(summary: Summary) -> None:
    assert summary.replay is not None
    replay, study = summary.replay, summary.study
    echo(study.name, style="bold")
    sites = f"{summary.n_sites} sites with {summary.rows_per_site:,} rows each, d = {study.shape[0]}"
    echo(f"{sites}, {replay.n_rounds} rounds; noise multiplier {study.terms.plan.noise_in_words()}")
    intact = f"{summary.n_sites} of {summary.n_sites} intact"
    alone = {}
    if study.training.min_honest_sites is not None:
        n_honest = study.training.min_honest_sites
        collusion_epsilon = epsilon_text(summary.epsilon_if_others_collude)
        alone = {"if all other sites collude": f"ε = {collusion_epsilon} (the ε above: if {n_honest} sites are honest)"}
    rows = {
        "accuracy on 5,222 held-out rows": f"{summary.accuracy:.1%} (majority class: {summary.majority_class:.1%})",
        "privacy statement, recomputed": f"correct: ε = {epsilon_text(summary.epsilon)} "
        f"at δ = {study.training.delta:g}",
        **alone,
        "ledgers": f"{intact}: {summary.records:,} records, {summary.releases:,} releases, none over budget",
        "set-up": f"{summary.set_up:.1f} s",
        "start of the agents, until the first round": f"{summary.started:.1f} s",
        "median round": f"{1000 * summary.median_round:.0f} ms",
        "all rounds": f"{summary.rounds:.1f} s",
        "checks": f"{summary.checks:.1f} s",
    }
    if summary.memory:
        rows["peak memory of an agent"] = f"{max(summary.memory):.0f} MB"
    show_table(("checked", ""), rows.items())
    echo(f"Identical to a run in one process, bit by bit: {'yes' if replay.equal else 'NO'}")
