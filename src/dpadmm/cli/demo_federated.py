"""``dpadmm demo --federated``: a deployment on one machine, with real processes, certificates and ledgers."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dpadmm.cli.console import echo, progress_bar, show
from dpadmm.errors import StudyError
from dpadmm.rendering import Cell, Fact, Facts, Paragraph, Rendering
from dpadmm.rendering.formats import epsilon_text

if TYPE_CHECKING:
    from dpadmm.federation.demo import Summary
    from dpadmm.studies.settings import Training


def demo_federated(n_sites: int, training: Training, *, output: Path | None = None, as_json: bool = False) -> None:
    """Run a study across processes on this machine, check all results, and show them.

    Without ``output``, all files are deleted at the end.
    """
    if (n_honest := training.min_honest_sites) is not None and n_sites <= n_honest:
        raise StudyError(f"secure aggregation with {n_honest} honest sites takes at least {n_honest + 1} sites")
    training = training.with_changes(n_rounds=training.planned_rounds)  # sites need a fixed number of rounds
    began = time.monotonic()
    if output is not None:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise StudyError(f"{output} already exists; choose the name of a new folder")
        output.mkdir(mode=0o700, parents=True, exist_ok=True)
    with nullcontext(output) if output else TemporaryDirectory(prefix="dpadmm-demo-") as folder:
        summary = _run(n_sites, training, Path(folder), quiet=as_json)
    files = [] if output is None else [f"Files: {output}"]
    show(_rendering(summary, time.monotonic() - began).extend(next_steps=files), as_json=as_json)


def _run(n_sites: int, training: Training, folder: Path, *, quiet: bool) -> Summary:
    from dpadmm.cli.server import follow_rounds, until_signal
    from dpadmm.federation.demo import demonstrate

    log = logging.getLogger("dpadmm.federation.demo")
    handler = logging.FileHandler(folder / "server.log")
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


def _rendering(summary: Summary, seconds: float) -> Rendering:
    assert summary.replay is not None
    replay, study, n_honest = summary.replay, summary.study, summary.study.training.min_honest_sites
    shape = f"{summary.n_sites} sites with {summary.rows_per_site:,} rows each, d = {study.shape[0]}"
    noise = f"{replay.n_rounds} rounds; noise multiplier {study.terms.plan.describe_noise()}"
    epsilon, alone = epsilon_text(summary.epsilon), epsilon_text(summary.epsilon_if_others_collude)
    majority = f"{summary.majority_class:.1%}"
    ledgers = (
        f"{summary.n_sites} of {summary.n_sites} intact: {summary.records:,} records, {summary.releases:,} releases, "
        "none over budget"
    )
    facts = [
        Fact(
            "accuracy",
            "accuracy on 5,222 held-out rows",
            Cell(summary.accuracy, f"{summary.accuracy:.1%} (majority class: {majority})"),
        ),
        Fact(
            "epsilon",
            "privacy report, verified",
            Cell(summary.epsilon, f"ε = {epsilon} at δ = {study.training.delta:g}"),
        ),
    ]
    if n_honest is not None:
        text = f"ε = {alone} (above: {n_honest} honest sites)"
        value = Cell(summary.epsilon_if_others_collude, text)
        facts.append(Fact("epsilon_if_others_collude", "if all other sites collude", value))
    facts += [
        Fact("releases", "ledgers", Cell(summary.releases, ledgers)),
        Fact("set_up_seconds", "set-up", summary.set_up, _seconds),
        Fact("start_seconds", "start of the sites, until the first round", summary.started, _seconds),
        Fact("median_round_seconds", "median round", summary.median_round, lambda value: f"{1000 * value:.0f} ms"),
        Fact("rounds_seconds", "all rounds", summary.rounds, _seconds),
        Fact("checks_seconds", "checks", summary.checks, _seconds),
    ]
    if summary.memory:
        facts.append(Fact("peak_memory_mb", "peak memory of a site", max(summary.memory), lambda mb: f"{mb:.0f} MB"))
    facts.append(Fact("seconds", "total", seconds, _seconds))
    result = f"Identical to a run in one process, bit by bit: {'yes' if replay.equal else 'NO'}"
    return Rendering(
        title=study.name,
        body=[Paragraph(shape), Paragraph(noise), Facts(facts)],
        verdict=Paragraph(result, "good" if replay.equal else "bad", "identical", replay.equal),
        data={"sites": summary.n_sites, "rounds": replay.n_rounds},
    )


def _seconds(value: float) -> str:
    return f"{value:.1f} s"
