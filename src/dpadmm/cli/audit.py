"""``dpadmm audit``: attack the agent that ships, and see whether it keeps its promise."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from dpadmm.cli.screen import CtrlC, Interrupted, progress_bar, say, say_path, table
from dpadmm.experiments.runner import n_cores
from dpadmm.reporting.run_folder import check_folder, write_text

if TYPE_CHECKING:
    from dpadmm.audit import Audit, Plan

RED = 1

VERDICTS = {True: ("passed", "green"), False: ("FAILED", "bold red"), None: ("too few", "yellow")}


def audit(
    trials: Annotated[int, typer.Option("--trials", help="Studies to attack; each has two agents.")] = 10_000,
    mu: Annotated[float, typer.Option("--mu", help="What a study promises: μ-GDP in all.")] = 2.0,
    delta: Annotated[float, typer.Option("--delta", help="δ at which ε is given.")] = 1e-5,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes, one core each.", show_default="all cores")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for figure and numbers.")] = Path(
        "runs/audit"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, and the verdict only.")] = False,
) -> None:
    """Attack the agent that ships: does it keep its promise?

    Whole studies run through the real guard, noise and ledger, on the worst
    rows there are, with an aggregator that wants to know one row. Its guesses
    must find 90% of ε, so that a leak would show, and never more than ε;
    noise, answers and ledger are checked one by one.

    Exit code 0: all gates passed. 1: a gate failed. 2: wrong input.
    """
    from dpadmm.audit import Plan  # statistics take their time

    plan = Plan(trials=trials, mu=mu, delta=delta, workers=n_cores() if workers is None else workers)
    check_folder(output, overwrite=True)
    result = _play(plan, quiet=quiet or as_json)
    figure = _write(result, output)
    if as_json:
        typer.echo(json.dumps(result.as_json(), indent=2, allow_nan=False))
    else:
        _show(result, output, figure, verdict_only=quiet)
    if result.n_studies < trials:
        raise Interrupted(f"interrupted after {result.n_studies} of {trials} studies, which were judged")
    if not result.passed:
        raise typer.Exit(RED)


def _play(plan: Plan, *, quiet: bool) -> Audit:
    from dpadmm.audit import run_audit

    with progress_bar(quiet=quiet) as bar, CtrlC() as ctrl_c:
        task = bar.add_task("studies attacked", total=plan.trials)
        return run_audit(
            plan, watch=lambda done: bar.update(task, completed=done), stop=lambda: ctrl_c.pressed
        )


def _write(result: Audit, folder: Path) -> Path | None:
    """The numbers, and the figure if anything was answered; its path."""
    write_text(folder / "audit.json", json.dumps(result.as_json(), indent=2, allow_nan=False))
    seen, plan = result.seen, result.plan
    if not len(seen.worlds):
        return None
    from dpadmm.audit.lower_bound import threshold
    from dpadmm.reporting.convergence import save_figure
    from dpadmm.reporting.roc import roc_figure

    picture = roc_figure(
        (seen.scores[seen.worlds == 0], seen.scores[seen.worlds == 1]),
        mu=plan.mu,
        proven=result.bound.mu,
        threshold=threshold(plan.mu),
        confidence=plan.confidence,
        title=f"Audit of {result.n_studies} studies",
    )
    write_text(folder / "roc.md", f"# {picture.title}\n\n![{picture.title}](roc.png)\n\n{picture.caption}\n")
    return save_figure(picture.figure, folder / picture.name)[0]


def _show(result: Audit, folder: Path, figure: Path | None, *, verdict_only: bool) -> None:
    console = Console()
    plan, bound = result.plan, result.bound
    if not verdict_only:
        console.print(_gates_table(result))
    for gate in result.gates:
        if not gate.passed:
            say(console, f"{gate.name}: {gate.sentence}", VERDICTS[gate.passed][1])
    n_red = sum(gate.red for gate in result.gates)
    share = bound.epsilon / result.epsilon
    if n_red:
        say(console, f"RED: {n_red} of {len(result.gates)} gates failed. Do not use this build.", "bold red")
    else:
        decided = all(gate.passed for gate in result.gates)
        word = "GREEN" if decided else "GREEN as far as so few trials can tell"
        say(
            console,
            f"{word}: the attacker found ε ≥ {bound.epsilon:.3f} of {result.epsilon:.3f} promised "
            f"({share:.1%}), at δ = {plan.delta:g} with {100 * plan.confidence:g}% confidence.",
            "bold green" if decided else "yellow",
        )
    if verdict_only:
        return
    say(
        console,
        f"{result.n_studies} studies in {result.seconds:.0f} s. Sound code fails an audit like this "
        f"{_rarely(result.false_alarm)}. The promise is for a person with one row, replace-one neighbours.",
        style="dim",
    )
    if figure:
        say_path(console, f"Figure: {figure}")
    say_path(console, f"All numbers: {folder / 'audit.json'}")


def _gates_table(result: Audit) -> Table:
    out = table("gate", "measured", "from", "to", "")
    for gate in result.gates:
        word, style = VERDICTS[gate.passed]
        limits = ("" if limit is None else _number(limit) for limit in (gate.low, gate.high))
        out.add_row(gate.name, _number(gate.measured), *limits, f"[{style}]{word}[/{style}]")
    return out


def _number(value: float) -> str:
    """Whole numbers as they are, others with four digits."""
    if not math.isfinite(value):
        return "not a number"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def _rarely(rate: float) -> str:
    return f"about once in {int(float(f'{1.0 / rate:.1g}')):,} times" if rate > 0 else "never"
