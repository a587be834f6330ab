"""What ``dpadmm plan`` shows: costs, the forecast, and go or no-go, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dpadmm.arrays import Integers
from dpadmm.cli.ledger import rounded_up
from dpadmm.cli.plan_words import but, in_words, plan_text, sentences
from dpadmm.cli.screen import say, table
from dpadmm.planning.costs import Costs
from dpadmm.planning.forecast import Grid, Outlook
from dpadmm.planning.scenarios import STRENGTHS
from dpadmm.planning.verdict import Verdict, best_rounds, joined
from dpadmm.study import Study

SHOWN_SIZES = 6
STYLES = {"go": "bold green", "no-go": "bold red", "open": "bold yellow"}


@dataclass(frozen=True)
class Plan:
    """A study's costs and forecast."""

    study: Study
    sizes: Integers
    costs: Costs
    grid: Grid
    outlooks: tuple[Outlook, ...]
    verdicts: tuple[Verdict, ...]
    public: Path | None
    repeats: int
    goal_given: bool
    warnings: tuple[str, ...] = ()

    @property
    def higher(self) -> bool:
        """Whether more is better: accuracy, and not an error."""
        return self.study.problem.loss.task != "regression"

    @property
    def measure(self) -> str:
        if self.higher:
            return "accuracy"
        column = self.study.label.column if self.study.label is not None else "the label"
        return f"root mean square error of {column}"

    @property
    def agents_in_words(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        n = len(self.sizes)
        return f"{n:,} agent{'s' if n > 1 else ''} with {each} rows{' each' if n > 1 else ''}"

    @property
    def verdict(self) -> Verdict:
        return joined(self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        scenarios = []
        for outlook, verdict in zip(self.outlooks, self.verdicts, strict=True):
            best = best_rounds(outlook, self.grid, higher=self.higher)
            scenarios.append(
                {
                    **outlook.as_json(),
                    **verdict.as_json(),
                    "own": outlook.at(*self.grid.own).as_json(),
                    "better_rounds": None if best is None else best.n_rounds,
                }
            )
        return {
            "forecast": True,
            "private_rows_read": 0,
            "study": self.study.name,
            "hash": self.study.hash,
            "n_rows": self.sizes.tolist(),
            "costs": self.costs.as_json(),
            "measure": self.measure,
            "higher_is_better": self.higher,
            "source": "made-up rows" if self.public is None else str(self.public),
            "repeats": self.repeats,
            "own": {"epsilon": self.grid.own[0], "n_rounds": self.grid.own[1]},
            "scenarios": scenarios,
            "verdict": self.verdict.word,
            "reason": self.verdict.reason,
            "warnings": list(self.warnings),
        }


def show(console: Console, plan: Plan) -> None:
    """Everything, for people."""
    say(console, f"{plan.study.name}: {plan.agents_in_words}", style="bold")
    say(console, "No private row was read for any of this.")
    _show_costs(console, plan.costs)
    say(console, f"Forecast of {plan.measure}, not a result", style="bold")
    say(console, _source(plan))
    console.print(_grid_table(plan))
    if len(plan.outlooks) > 1:
        console.print(_strength_table(plan))
    for sentence in sentences(plan):
        say(console, sentence)
    for warning in plan.warnings:
        say(console, f"Warning: {warning}", style="bold yellow")
    verdict = plan.verdict
    say(console, f"{verdict.word.upper()}: {verdict.reason}{but(plan)}.", style=STYLES[verdict.word])


def _show_costs(console: Console, costs: Costs) -> None:
    out = table("", "")
    out.show_header = False
    out.columns[1].overflow = "fold"
    out.add_row(f"total ε at δ = {costs.delta:g}, exact", rounded_up(costs.epsilon))
    out.add_row("the paper's bound for the same noise", rounded_up(costs.epsilon_paper))
    out.add_row("noise multiplier z", f"{costs.noise_multiplier:.4f}")
    out.add_row("sent by and to one agent, each round", size_in_words(costs.bytes_round))
    out.add_row(f"in all {costs.n_rounds} rounds", size_in_words(costs.bytes_total))
    out.add_row("time, all agents in one process", time_in_words(costs.seconds))
    console.print(out)
    noise = table("noise beside the largest possible gradient", "agents", "each number", "whole length")
    for each in _few(costs.agents):
        noise.add_row(
            f"agent with {each.n_rows:,} rows",
            f"{each.agents:,}",
            f"{100 * each.noise_coordinate:.3g}%",
            f"{100 * each.noise_length:.3g}%",
        )
    if costs.n_agents > 1:
        noise.add_row(
            "mean over all agents", f"{costs.n_agents:,}", "", f"{100 * costs.noise_length_mean:.3g}%"
        )
    console.print(noise)
    length = costs.noise_length_mean
    than = f"{length:.1f} times as long as" if length >= 1.0 else f"{100 * length:.2g}% as long as"
    say(
        console,
        f"In words: in every round the noise on the mean of all agents' gradients is {than} the longest "
        "gradient that there can be. Rounds add up what they learn, and noise cancels in part.",
    )
    console.print()


def _few(agents: Sequence[Any]) -> Sequence[Any]:
    if len(agents) <= SHOWN_SIZES:
        return agents
    places = [round(k * (len(agents) - 1) / (SHOWN_SIZES - 1)) for k in range(SHOWN_SIZES)]
    return [agents[k] for k in places]


def _source(plan: Plan) -> str:
    if plan.public is not None:
        rows = plan.outlooks[0].rows
        return (
            f"From {rows:,} rows of {plan.public.name}, taken as public, each tested by a model that was not "
            f"trained on it; {plan.repeats} repeats. ± is one standard deviation of what a run may reach."
        )
    strengths = ", ".join(STRENGTHS)
    return (
        f"From made-up rows: cells uniform within the study's bounds and values, labels from random linear "
        f"models with {strengths} signal; {plan.repeats} repeats. Real rows may lie anywhere between; "
        "with --public TABLE the forecast is sharper."
    )


def _grid_table(plan: Plan) -> Table:
    out = table("total ε", *(f"{t} rounds" for t in plan.grid.rounds))
    for epsilon in plan.grid.epsilons:
        cells = []
        for t in plan.grid.rounds:
            values = [each.at(epsilon, t) for each in plan.outlooks]
            text = plan_text(values, percent=plan.higher)
            cells.append(f"[bold]{text}[/bold]*" if (epsilon, t) == plan.grid.own else text)
        out.add_row(f"{epsilon:.4g}", *cells)
    ceilings = [each.ceiling for each in plan.outlooks]
    out.caption = "* the study's own ε and rounds. "
    if len(plan.outlooks) == 1:
        learns = "always the most frequent class" if plan.higher else "always the mean"
        baseline = in_words(plan.outlooks[0].baseline, percent=plan.higher)
        out.caption += f"Without privacy {plan_text(ceilings, percent=plan.higher)}; {learns}: {baseline}."
    else:
        out.caption += "From weak to strong signal."
    out.caption_justify = "left"
    return out


def _strength_table(plan: Plan) -> Table:
    out = table("at the study's own", "no learning", "forecast", "no privacy", "")
    for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True):
        own = outlook.at(*plan.grid.own)
        out.add_row(
            outlook.name,
            in_words(outlook.baseline, percent=plan.higher),
            plan_text([own], percent=plan.higher),
            in_words(outlook.ceiling.mean, percent=plan.higher),
            f"[{STYLES[verdict.word]}]{verdict.word}[/]",
        )
    return out


def size_in_words(n_bytes: int) -> str:
    """``1.7 kB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} bytes"


def time_in_words(seconds: float) -> str:
    """``about 3 minutes``."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.1f} {unit}"
    if seconds < 1.0:
        return "less than a second"
    return "about 1 second" if seconds < 1.5 else f"about {seconds:.0f} seconds"
