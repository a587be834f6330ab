"""``dpadmm audit``: a privacy attack against the shipped agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Option

from dpadmm.cli import INCONCLUSIVE, InterruptedRunError
from dpadmm.cli.console import AsJson, CtrlC, echo_json, progress_bar, show
from dpadmm.engine.workers import n_cores
from dpadmm.training.run_folder import check_folder, write_text

if TYPE_CHECKING:
    from dpadmm.audit import Audit, Outcome

EXIT_CODES: Mapping[Outcome, int] = {"passed": 0, "failed": 1, "inconclusive": INCONCLUSIVE}


def audit(
    method: str = Option(
        "all", help="Method to audit: pgd, newton, dp_admm, statistics, evaluation, or all in equal parts."
    ),
    aggregation: str | None = Option(
        None, help="Audit plain or secure aggregation, or all.", show_default="all that are installed"
    ),
    trials: int = Option(10_000, help="Number of studies to attack; each has two agents."),
    mu: float = Option(2.0, help="Total guarantee of a study: μ-GDP."),
    delta: float = Option(1e-5, help="δ at which ε is computed."),
    workers: int | None = Option(None, help="Number of processes.", show_default="all cores"),
    output: Path = Option(Path("runs/audit"), "--output", "-o", help="Folder for the figure and the numbers."),
    as_json: AsJson = False,
    quiet: bool = Option(False, "--quiet", help="Show the verdict only."),
) -> None:
    """Attack the shipped agent and check that its privacy guarantee holds.

    Whole studies run through the real guard, noise and ledger, on worst-case
    rows, with a server that tries to infer one row. The studies release
    every statistic that agents support. With secure aggregation, other sites
    collude with the server: as many as a study withstands
    (pgd_coalition), or all of them (pgd_alone). The attack must reach 90% of
    ε, so that it would detect a leak, and must not exceed ε. Each statistic,
    the noise, the answers and the ledger are also checked separately.

    Exit code 0: all gates passed. 1: a gate failed. 2: user error. 3:
    inconclusive, because a gate needs more trials.
    """
    from dpadmm.audit import AuditPlan, games_of, run_audit  # slow: imports SciPy
    from dpadmm.audit.rendering import render_audit

    games = games_of(method, aggregation or ("all" if find_spec("cryptography") else "plain"))
    plan = AuditPlan(games=games, trials=trials, mu=mu, delta=delta, workers=n_cores() if workers is None else workers)
    check_folder(output, overwrite=True)
    with progress_bar(quiet=quiet or as_json) as bar, CtrlC() as ctrl_c:
        task = bar.add_task("studies attacked", total=trials)
        result = run_audit(plan, watch=lambda done: bar.update(task, completed=done), stop=lambda: ctrl_c.pressed)
    figure = _write(result, output)
    files = [*([f"Figure: {figure}"] if figure else []), f"All numbers: {output / 'audit.json'}"]
    if as_json:
        echo_json(result.as_json())
    else:
        show(render_audit(result, verdict_only=True) if quiet else render_audit(result).extend(next_steps=files))
    if result.n_studies < trials:
        raise InterruptedRunError(f"interrupted after {result.n_studies} of {trials} studies; the verdict is for these")
    raise typer.Exit(EXIT_CODES[result.outcome])


def _write(result: Audit, folder: Path) -> Path | None:
    """Write the numbers, and the figure if there were any answers; returns its path."""
    write_text(folder / "audit.json", json.dumps(result.as_json(), indent=2, allow_nan=False))
    guesses, plan = result.guesses, result.plan
    if not len(guesses.worlds):
        return None
    from dpadmm.figures.roc import roc_figure
    from dpadmm.figures.style import save_figure

    picture = roc_figure(
        (guesses.margins[guesses.worlds == 0], guesses.margins[guesses.worlds == 1]),
        mu=plan.mu,
        proven=result.bound.mu,
        threshold=0.0,
        confidence=plan.confidence,
        title=f"Audit of {result.n_studies} studies ({', '.join(result.outcomes)})",
    )
    write_text(folder / "roc.md", f"# {picture.title}\n\n![{picture.title}](roc.png)\n\n{picture.caption}\n")
    return save_figure(picture.figure, folder / picture.name)[0]
