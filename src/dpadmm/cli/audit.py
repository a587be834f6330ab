"""``dpadmm audit``: a privacy attack against the shipped agent."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text
from typer import Option

from dpadmm.cli import INCONCLUSIVE, InterruptedRunError
from dpadmm.cli.console import AsJson, CtrlC, Row, echo, echo_json, echo_path, progress_bar, show_table
from dpadmm.engine.workers import n_cores
from dpadmm.training.run_folder import check_folder, write_text

if TYPE_CHECKING:
    from dpadmm.audit import Audit, Outcome

EXIT_CODES: Mapping[Outcome, int] = {"passed": 0, "failed": 1, "inconclusive": INCONCLUSIVE}

VERDICTS = {True: ("passed", "green"), False: ("FAILED", "bold red"), None: ("inconclusive", "yellow")}


def audit(
    method: str = Option("all", help="Whose studies to attack: pgd, newton, dp_admm, or all in equal parts."),
    aggregation: str | None = Option(
        None, help="Studies with secure aggregation, local ones, or all.", show_default="all that is installed"
    ),
    trials: int = Option(10_000, help="Number of studies to attack; each has two agents."),
    mu: float = Option(2.0, help="The guarantee of a study: μ-GDP in total."),
    delta: float = Option(1e-5, help="The δ for which ε is computed."),
    workers: int | None = Option(None, help="Number of processes.", show_default="all cores"),
    output: Path = Option(Path("runs/audit"), "--output", "-o", help="Folder for the figure and the numbers."),
    as_json: AsJson = False,
    quiet: bool = Option(False, "--quiet", help="Show the verdict only."),
) -> None:
    """Attack the shipped agent and check that its privacy guarantee holds.

    Whole studies run through the real guard, noise and ledger, on worst-case
    rows, with an aggregator that tries to infer one row. The studies of all
    methods release every statistic that agents know. With secure aggregation,
    other sites work with the aggregator: as many as a study withstands
    (auto_coalition), or all of them (auto_alone). The attack must reach
    90% of ε, so that it would detect a leak, and never exceed ε; what each
    statistic tells, noise, answers and ledger are checked separately.

    Exit code 0: all gates passed. 1: a gate failed. 2: user error. 3:
    inconclusive, because a gate needs more trials.
    """
    from dpadmm.audit import AuditPlan, games_of, run_audit  # statistics take their time

    games = games_of(method, aggregation or ("all" if find_spec("cryptography") else "plain"))
    plan = AuditPlan(games=games, trials=trials, mu=mu, delta=delta, workers=n_cores() if workers is None else workers)
    check_folder(output, overwrite=True)
    with progress_bar(quiet=quiet or as_json) as bar, CtrlC() as ctrl_c:
        task = bar.add_task("studies attacked", total=trials)
        result = run_audit(plan, watch=lambda done: bar.update(task, completed=done), stop=lambda: ctrl_c.pressed)
    figure = _write(result, output)
    if as_json:
        echo_json(result.as_json())
    else:
        _show(result, output, figure, verdict_only=quiet)
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
        title=f"Audit of {result.n_studies} studies ({', '.join(result.seen)})",
    )
    write_text(folder / "roc.md", f"# {picture.title}\n\n![{picture.title}](roc.png)\n\n{picture.caption}\n")
    return save_figure(picture.figure, folder / picture.name)[0]


def _show(result: Audit, folder: Path, figure: Path | None, *, verdict_only: bool) -> None:
    plan, bound = result.plan, result.bound
    if not verdict_only:
        for about in (None, *result.seen):
            rows: list[Row] = []
            for gate in (each for each in result.gates if each.game == about):
                word, style = VERDICTS[gate.passed]
                limits = ("" if limit is None else _number(limit) for limit in (gate.low, gate.high))
                rows.append((gate.name, _number(gate.measured), *limits, Text(word, style)))
            show_table((f"gate ({about or 'all studies'})", "measured", "from", "to", ""), rows)
    for gate in result.gates:
        if not gate.passed:
            echo(
                f"{f'{gate.game}, ' if gate.game else ''}{gate.name}: {gate.sentence}",
                style=VERDICTS[gate.passed][1],
            )
    found = (
        f"the attack proves ε ≥ {bound.epsilon:.3f} of the guaranteed {result.epsilon:.3f} ("
        f"{bound.epsilon / result.epsilon:.1%}), at δ = {plan.delta:g} with {100 * plan.confidence:g}% confidence."
    )
    count = Counter(gate.passed for gate in result.gates)
    match result.outcome:
        case "passed":
            echo(f"PASSED: {found}", style="bold green")
        case "failed":
            echo(f"FAILED: {count[False]} of {count.total()} gates failed. Do not use this build.", style="bold red")
        case "inconclusive":
            echo(
                f"INCONCLUSIVE: {count[None]} of {count.total()} gates undecided after {result.n_studies:,} trials, "
                f"and none failed. Increase --trials. So far, {found}",
                style="bold yellow",
            )
    if verdict_only:
        return
    rate = result.false_alarm
    rarely = f"about once in {int(float(f'{1.0 / rate:.1g}')):,} times" if rate > 0 else "never"
    echo(
        f"{result.n_studies} studies of {' and '.join(result.seen)} (statistics: {', '.join(result.statistics)}) "
        f"in {result.seconds:.0f} s. Correct code fails such an audit {rarely}. "
        "The guarantee is for a person with one row, replace-one neighbours.",
        style="dim",
    )
    if figure:
        echo_path(f"Figure: {figure}")
    echo_path(f"All numbers: {folder / 'audit.json'}")


def _number(value: float) -> str:
    """Integers, or four digits."""
    if not math.isfinite(value):
        return "not a number"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"
