"""``dpadmm plan``: the expected cost and accuracy of a study, without reading private rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from dpadmm._base.arrays import Integers
from dpadmm._base.errors import StudyError
from dpadmm._base.files import atomic_file
from dpadmm.cli import Interrupted
from dpadmm.cli.screen import AsJson, CtrlC, echo_json, progress_bar, rounded_up, say, say_path, table
from dpadmm.data.leakage import leakage_warnings
from dpadmm.runs.planning.costs import Costs, costs_of, measured_seconds
from dpadmm.runs.planning.forecast import Grid, Outlook, Value, grid_of, n_runs
from dpadmm.runs.planning.forecast import outlook as make_outlook
from dpadmm.runs.planning.scenarios import STRENGTHS, Scenario, public_scenario, synthetic_scenarios
from dpadmm.runs.planning.verdict import (
    Verdict,
    best_rounds,
    joined,
    judged,
    least_epsilon,
    rounds_help,
    too_short,
)
from dpadmm.study.study import Study, read_study

ROUNDS = "50,100,200,800"
MOST_CELLS = 200
MOST_ROWS = 10**12
MOST_AGENTS = 10**6


def plan(
    study_file: Annotated[
        Path, typer.Argument(help="The study's TOML file.", show_default=False, metavar="STUDY")
    ],
    rows: Annotated[
        str,
        typer.Option(
            "--rows",
            "-m",
            help="Rows of every agent: one number, or one per agent separated by commas.",
            show_default=False,
            metavar="M",
        ),
    ],
    agents: Annotated[
        int | None, typer.Option("--agents", "-n", help="Number of agents.", show_default=False, metavar="N")
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            "--public",
            help="A public table with the same columns; without it, rows are synthetic.",
            show_default=False,
            metavar="TABLE",
        ),
    ] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            "-e",
            help="Values of total ε, separated by commas.",
            show_default="half, one and two times the study's ε",
        ),
    ] = None,
    rounds: Annotated[
        str, typer.Option("--rounds", "-t", help="Numbers of rounds to compare, in addition to the study's.")
    ] = ROUNDS,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs for every ε and number of rounds.")] = 5,
    goal: Annotated[
        float | None,
        typer.Option(
            "--goal",
            help="The accuracy to reach (such as 0.8), or for regression the largest root mean square error.",
            show_default="halfway between no learning and no privacy",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the figure and the numbers.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of splits and simulated noise.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Forecast the cost and the accuracy of a study, without reading private rows.

    ε, noise, traffic and time follow from public numbers. The accuracy is forecast by running the study on
    public rows, or on synthetic rows with three strengths of signal.
    """
    study = read_study(study_file)
    sizes = planned_sizes(agents, rows)
    _check(study, repeats=repeats, goal=goal, seed=seed)
    if output is not None:
        from dpadmm.reporting.run_folder import check_folder

        check_folder(output)
    costs = costs_of(study, sizes)
    own = study.settings.epsilon if isinstance(study.settings.epsilon, float) else costs.epsilon
    given = numbers("epsilon", epsilon) if epsilon else (own / 2.0, own * 2.0)
    grid = grid_of(study, own, epsilons=given, rounds=[int(t) for t in numbers("rounds", rounds, whole=True)])
    if len(grid.cells) > MOST_CELLS:
        raise StudyError(
            f"{len(grid.cells)} combinations of ε and rounds are too many; the maximum is {MOST_CELLS}"
        )
    if public is not None:
        scenarios = [public_scenario(study, public, repeats=repeats, seed=seed)]
    else:
        scenarios = synthetic_scenarios(study, int(sizes.sum()), repeats=repeats, seed=seed)
    costs = costs_of(study, sizes, measured_seconds(study, scenarios[0].folds[0][0], sizes))
    higher = study.problem.loss.task != "regression"
    outlooks = _run(study, scenarios, sizes, grid, seed=seed, quiet=as_json)
    verdicts = [judged(each, grid, goal=goal, higher=higher) for each in outlooks]
    made = Plan(
        study,
        sizes,
        costs,
        grid,
        tuple(outlooks),
        tuple(verdicts),
        public,
        repeats,
        goal is not None,
        tuple(leakage_warnings(scenarios[0].telling)),
    )
    written = [] if output is None else _write(made, output)
    if as_json:
        answer = {**made.as_json(), "files": [str(path) for path in written]}
        echo_json(answer)
        return
    console = Console()
    show(console, made)
    for path in written:
        say_path(console, f"Written: {path}")


def planned_sizes(agents: int | None, rows: str) -> Integers:
    """The planned number of rows of every agent."""
    counts = [int(m) for m in numbers("rows", rows, whole=True, least=2, most=MOST_ROWS)]
    if agents is not None and not 1 <= agents <= MOST_AGENTS:
        raise StudyError(f"agents must be a whole number from 1 to {MOST_AGENTS:,}, not {agents}")
    if len(counts) == 1:
        if agents is None:
            raise StudyError("the number of agents is missing: give --agents, or --rows for every agent")
        return np.full(agents, counts[0])
    if agents not in (None, len(counts)):
        raise StudyError(f"--rows has {len(counts)} numbers for {agents} agents; give one for each")
    return np.array(counts)


def numbers(
    name: str, text: str, *, whole: bool = False, least: float = 1.0, most: float = 100_000.0
) -> tuple[float, ...]:
    """Numbers separated by commas."""
    low = least if whole else 0.0
    try:
        values = tuple(float(int(part) if whole else float(part)) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(v) and low <= v <= most and v > 0.0 for v in values):
        kind = f"whole numbers from {low:g} to {most:g}" if whole else "positive numbers"
        raise StudyError(f"{name} must be {kind}, separated by commas, not {text!r}")
    return values


def _check(study: Study, *, repeats: int, goal: float | None, seed: int) -> None:
    if not 2 <= repeats <= 100:
        raise StudyError(f"repeats must be a whole number from 2 to 100, not {repeats}")
    if seed < 0:
        raise StudyError(f"seed must be a whole number of at least 0, not {seed}")
    if goal is None:
        return
    if study.problem.loss.task == "regression":
        if not (0.0 < goal < math.inf):
            raise StudyError(f"goal must be a positive error in the units of the label, not {goal:g}")
    elif not 0.0 < goal < 1.0:
        raise StudyError(f"goal must be an accuracy between 0 and 1, such as 0.8, not {goal:g}")


def _run(
    study: Study, scenarios: Sequence[Scenario], sizes: Integers, grid: Grid, *, seed: int, quiet: bool
) -> list[Any]:
    total, done = n_runs(scenarios, grid), 0
    with progress_bar(quiet=quiet) as bar, CtrlC() as ctrl_c:
        task = bar.add_task("forecasting", total=total)

        def finished() -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            if ctrl_c.pressed:
                raise Interrupted(f"interrupted after {done} of {total} runs; nothing was written")

        return [make_outlook(study, each, sizes, grid, seed=seed, finished=finished) for each in scenarios]


def _write(made: Plan, folder: Path) -> list[Path]:
    from dpadmm.reporting.figures import forecast_figure, save_figure  # matplotlib takes its time

    title = f"{made.study.name}, {made.agents_in_words}"
    picture = forecast_figure(
        made.outlooks, made.grid, made.verdicts, title=title, measure=made.measure, percent=made.higher
    )
    with atomic_file(folder / "forecast.json") as out:
        out.write(json.dumps(made.as_json(), indent=2, allow_nan=False).encode())
    return [*save_figure(picture.figure, folder / "forecast"), folder / "forecast.json"]


SHOWN_SIZES = 6
STYLES = {"go": "bold green", "no-go": "bold red", "open": "bold yellow"}


@dataclass(frozen=True)
class Plan:
    """The cost and the forecast of a study."""

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
        """Whether a larger measure is better."""
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
        """The plan as plain values."""
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
            "source": "synthetic rows" if self.public is None else str(self.public),
            "repeats": self.repeats,
            "own": {"epsilon": self.grid.own[0], "n_rounds": self.grid.own[1]},
            "scenarios": scenarios,
            "verdict": self.verdict.word,
            "reason": self.verdict.reason,
            "warnings": list(self.warnings),
        }


def show(console: Console, plan: Plan) -> None:
    """Print the plan."""
    say(console, f"{plan.study.name}: {plan.agents_in_words}", style="bold")
    say(console, "No private rows were read.")
    _show_costs(console, plan.costs)
    say(console, f"Forecast of {plan.measure}", style="bold")
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
    out.add_row("traffic of one agent per round", size_in_words(costs.bytes_round))
    out.add_row(f"traffic of one agent in {costs.n_rounds} rounds", size_in_words(costs.bytes_total))
    out.add_row("time with all agents in one process", time_in_words(costs.seconds))
    console.print(out)
    noise = table("noise relative to the largest possible gradient", "agents", "per coordinate", "L2 norm")
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
        f"In every round, the noise on the mean gradient of all agents is {than} the longest possible "
        "gradient. Over the rounds, part of the noise averages out.",
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
            f"Cross-validated on {rows:,} rows of {plan.public.name}, which are assumed to be public; "
            f"{plan.repeats} repeats. ± is the standard deviation of a single run."
        )
    strengths = ", ".join(STRENGTHS)
    return (
        f"From synthetic rows: uniform cells within the bounds and values of the study, labels from random "
        f"linear models with {strengths} signal; {plan.repeats} repeats. Real rows may be anywhere in this "
        "range; --public TABLE gives a more precise forecast."
    )


def _grid_table(plan: Plan) -> Table:
    out = table("total ε", *(f"{t} rounds" for t in plan.grid.rounds))
    for epsilon in plan.grid.epsilons:
        cells = []
        for t in plan.grid.rounds:
            values = [each.at(epsilon, t) for each in plan.outlooks]
            text = forecast_text(values, percent=plan.higher)
            cells.append(f"[bold]{text}[/bold]*" if (epsilon, t) == plan.grid.own else text)
        out.add_row(f"{epsilon:.4g}", *cells)
    ceilings = [each.ceiling for each in plan.outlooks]
    out.caption = "* the study's ε and rounds. "
    if len(plan.outlooks) == 1:
        learns = "always the most frequent class" if plan.higher else "always the mean"
        baseline = value_text(plan.outlooks[0].baseline, percent=plan.higher)
        out.caption += (
            f"Without privacy {forecast_text(ceilings, percent=plan.higher)}; {learns}: {baseline}."
        )
    else:
        out.caption += "From weak to strong signal."
    out.caption_justify = "left"
    return out


def _strength_table(plan: Plan) -> Table:
    out = table("at the study's ε and rounds", "no learning", "forecast", "no privacy", "")
    for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True):
        own = outlook.at(*plan.grid.own)
        out.add_row(
            outlook.name,
            value_text(outlook.baseline, percent=plan.higher),
            forecast_text([own], percent=plan.higher),
            value_text(outlook.ceiling.mean, percent=plan.higher),
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


MUCH = 0.015
"""The standard error of an accuracy above which the plan asks for more public rows."""


def sentences(plan: Plan) -> list[str]:
    """The forecast and the goal, a better number of rounds, and what would reach the goal."""
    out, grid, percent = [], plan.grid, plan.higher
    several = len(plan.outlooks) > 1
    for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True):
        where = outlook.name if several else ""
        own, best = outlook.at(*grid.own), best_rounds(outlook, grid, higher=plan.higher)
        if not several:
            asked = "" if plan.goal_given else ", halfway between no learning and no privacy"
            out.append(
                f"At the study's ε = {grid.own[0]:.4g} and {grid.own[1]} rounds: "
                f"{forecast_text([own], percent=percent)} (luck of the noise "
                f"± {_spread(own.luck, percent=percent)}, few rows to test on "
                f"± {_spread(own.sampling, percent=percent)}). Goal: "
                f"{value_text(verdict.goal, percent=percent)}{asked}."
            )
            if percent and plan.public is not None and own.sampling > MUCH:
                out.append(_few_rows(outlook.rows, own.sampling))
        if best is not None:
            out.append(
                _of(
                    where,
                    f"With {best.n_rounds} rounds the same ε reaches "
                    f"{forecast_text([best.value], percent=percent)}{_beyond(best.n_rounds, grid)}.",
                )
            )
        elif not several:
            out.append("None of the other numbers of rounds is clearly better at this ε.")
        if verdict.word != "go":
            found = least_epsilon(outlook, grid, verdict, higher=plan.higher)
            if found is not None and found[0] > grid.own[0]:
                out.append(_of(where, f"The goal needs ε = {found[0]:.4g}, with {found[1]} rounds."))
            elif found is None:
                way_out = _way_out(outlook, grid, verdict, higher=plan.higher)
                out.append(
                    _of(where, f"None of the tried combinations of ε and rounds reaches the goal; {way_out}.")
                )
    return out


def but(plan: Plan) -> str:
    """A hint that another number of rounds would reach the goal."""
    found = [
        rounds_help(outlook, plan.grid, verdict, higher=plan.higher)
        for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True)
    ]
    if None in found or not found:
        return ""
    own = plan.grid.own[1]
    return f" in {own} rounds; with n_rounds = {max(each or 0 for each in found)} it is not: see above"


def _few_rows(rows: int, sampling: float) -> str:
    """The standard error due to few public rows, which falls with the root of their number."""
    wanted = rows * (100.0 * sampling) ** 2
    rounded = round(wanted, -2 if wanted > 1000 else -1)
    return (
        f"With only {rows:,} public rows, the forecast has a standard error of {100 * sampling:.1f} points; "
        f"about {rounded:,.0f} rows would reduce it to 1."
    )


def _of(where: str, sentence: str) -> str:
    return f"With {where}, {sentence[0].lower()}{sentence[1:]}" if where else sentence


def _way_out(outlook: Outlook, grid: Grid, verdict: Verdict, *, higher: bool) -> str:
    if (verdict.goal - outlook.ceiling.mean) * (1 if higher else -1) > 0:
        return "a model without privacy would not reach it either"
    if too_short(outlook, grid, higher=higher):
        return f"the run is too short for ε to matter: try --rounds {4 * grid.rounds[-1]}"
    return "more rows would help"


def _beyond(rounds: int, grid: Grid) -> str:
    return "; even more rounds may be better" if rounds == grid.rounds[-1] else ""


def forecast_text(values: Sequence[Value], *, percent: bool) -> str:
    """``78.3 ± 1.2%`` for one forecast, ``56–85%`` for several."""
    if len(values) > 1:
        low, high = min(v.mean for v in values), max(v.mean for v in values)
        return f"{100 * low:.0f}–{100 * high:.0f}%" if percent else f"{low:.3g}–{high:.3g}"
    mean, spread = values[0].mean, values[0].spread
    return f"{100 * mean:.1f} ± {100 * spread:.1f}%" if percent else f"{mean:.4g} ± {spread:.2g}"


def value_text(value: float, *, percent: bool) -> str:
    """An accuracy in percent, or an error in the units of the label."""
    return f"{100 * value:.1f}%" if percent else f"{value:.4g}"


def _spread(value: float, *, percent: bool) -> str:
    return f"{100 * value:.1f}" if percent else f"{value:.2g}"
