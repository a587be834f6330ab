"""``dpadmm plan``: the expected cost and accuracy of a study, without reading private rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from typer import Option

from dpadmm._base.arrays import Integers
from dpadmm._base.errors import StudyError
from dpadmm.cli import Interrupted, screen
from dpadmm.cli.screen import AsJson, Row, StudyFile, echo_json, say, say_path, show_table
from dpadmm.data.leakage import leakage_warnings
from dpadmm.reporting.run_folder import check_folder, write_text
from dpadmm.runs.planning import forecast
from dpadmm.runs.planning import plan as planning
from dpadmm.runs.planning.plan import Plan
from dpadmm.study.study import Study, read_study

ROUNDS = "50,100,200,800"
MOST_CELLS = 200
MOST_ROWS = 10**12
MOST_AGENTS = 10**6
SHOWN_SIZES = 6
STYLES = {"go": "bold green", "no-go": "bold red", "open": "bold yellow"}

MUCH = 0.015
"""The standard error of an accuracy above which the plan asks for more public rows."""


def plan(
    study_file: StudyFile,
    rows: str = Option(
        ..., "--rows", "-m", help="Rows of every agent: one number, or one per agent separated by commas.", metavar="M"
    ),
    agents: int | None = Option(None, "--agents", "-n", help="Number of agents.", metavar="N"),
    public: Path | None = Option(
        None, help="A public table with the same columns; without it, rows are synthetic.", metavar="TABLE"
    ),
    epsilon: str | None = Option(
        None,
        "--epsilon",
        "-e",
        help="Values of total ε, separated by commas.",
        show_default="half, one and two times the study's ε",
    ),
    rounds: str = Option(ROUNDS, "--rounds", "-t", help="Numbers of rounds to compare, in addition to the study's."),
    repeats: int = Option(5, help="Runs for every ε and number of rounds."),
    goal: float | None = Option(
        None,
        help="The accuracy to reach (such as 0.8), or for regression the largest root mean square error.",
        show_default="halfway between no learning and no privacy",
    ),
    output: Path | None = Option(None, "--output", "-o", help="Folder for the figure and the numbers."),
    seed: int = Option(1, help="Seed of splits and simulated noise."),
    as_json: AsJson = False,
) -> None:
    """Forecast the cost and the accuracy of a study, without reading private rows.

    ε, noise, traffic and time follow from public numbers. The accuracy is forecast by running the study on
    public rows, or on synthetic rows with three strengths of signal.
    """
    study = read_study(study_file)
    sizes = planned_sizes(agents, rows)
    higher = study.problem.loss.task != "regression"
    _check(higher=higher, repeats=repeats, goal=goal, seed=seed)
    if output is not None:
        check_folder(output)
    total = planning.costs_of(study, sizes).epsilon
    own = study.training.epsilon if isinstance(study.training.epsilon, float) else total
    given = numbers("epsilon", epsilon) if epsilon else (own / 2.0, own * 2.0)
    grid = forecast.grid_of(study, own, epsilons=given, rounds=[int(t) for t in numbers("rounds", rounds, whole=True)])
    if len(grid.cells) > MOST_CELLS:
        raise StudyError(f"{len(grid.cells)} combinations of ε and rounds are too many; the maximum is {MOST_CELLS}")
    if public is not None:
        scenarios = [forecast.public_scenario(study, public, repeats=repeats, seed=seed)]
    else:
        scenarios = forecast.synthetic_scenarios(study, int(sizes.sum()), repeats=repeats, seed=seed)
    costs = planning.costs_of(study, sizes, planning.measured_seconds(study, scenarios[0].folds[0][0], sizes))
    outlooks = _run(study, scenarios, sizes, grid, seed=seed, quiet=as_json)
    made = Plan(
        study=study,
        sizes=sizes,
        costs=costs,
        grid=grid,
        outlooks=outlooks,
        verdicts=tuple(planning.judged(each, grid, goal=goal, higher=higher) for each in outlooks),
        public=public,
        repeats=repeats,
        goal_given=goal is not None,
        warnings=tuple(leakage_warnings(scenarios[0].telling)),
    )
    written = [] if output is None else _write(made, output)
    if as_json:
        return echo_json({**made.as_json(), "files": [str(path) for path in written]})
    show(made)
    return say_path(*(f"Written: {path}" for path in written))


def planned_sizes(agents: int | None, rows: str) -> Integers:
    counts = [int(m) for m in numbers("rows", rows, whole=True, least=2, most=MOST_ROWS)]
    if agents is not None and not 1 <= agents <= MOST_AGENTS:
        raise StudyError(f"agents must be a whole number from 1 to {MOST_AGENTS:,}, not {agents}")
    if len(counts) == 1 and agents is None:
        raise StudyError("the number of agents is missing: give --agents, or --rows for every agent")
    if len(counts) > 1 and agents not in (None, len(counts)):
        raise StudyError(f"--rows has {len(counts)} numbers for {agents} agents; give one for each")
    return np.full(agents or 1, counts[0]) if len(counts) == 1 else np.array(counts)


def numbers(
    name: str, text: str, *, whole: bool = False, least: float = 1.0, most: float = 100_000.0
) -> tuple[float, ...]:
    low = least if whole else 0.0
    try:
        values = tuple(float(int(part) if whole else float(part)) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(v) and low <= v <= most and v > 0.0 for v in values):
        kind = f"whole numbers from {low:g} to {most:g}" if whole else "positive numbers"
        raise StudyError(f"{name} must be {kind}, separated by commas, not {text!r}")
    return values


def _check(*, higher: bool, repeats: int, goal: float | None, seed: int) -> None:
    if not 2 <= repeats <= 100:
        raise StudyError(f"repeats must be a whole number from 2 to 100, not {repeats}")
    if seed < 0:
        raise StudyError(f"seed must be a whole number of at least 0, not {seed}")
    if goal is not None and not 0.0 < goal < (1.0 if higher else math.inf):
        accuracy, error = "an accuracy between 0 and 1, such as 0.8", "a positive error in the units of the label"
        raise StudyError(f"goal must be {accuracy if higher else error}, not {goal:g}")


def _run(
    study: Study,
    scenarios: Sequence[forecast.Scenario],
    sizes: Integers,
    grid: forecast.Grid,
    *,
    seed: int,
    quiet: bool,
) -> tuple[forecast.Outlook, ...]:
    total, done = forecast.n_runs(scenarios, grid), 0
    with screen.progress_bar(quiet=quiet) as bar, screen.CtrlC() as ctrl_c:
        task = bar.add_task("forecasting", total=total)

        def finished() -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            if ctrl_c.pressed:
                raise Interrupted(f"interrupted after {done} of {total} runs; nothing was written")

        return tuple(forecast.outlook(study, each, sizes, grid, seed=seed, finished=finished) for each in scenarios)


def _write(made: Plan, folder: Path) -> list[Path]:
    from dpadmm.reporting.figures import forecast_figure, save_figure  # matplotlib takes its time

    title = f"{made.study.name}, {made.agents_in_words}"
    picture = forecast_figure(
        made.outlooks, made.grid, made.verdicts, title=title, measure=made.measure, percent=made.higher
    )
    write_text(folder / "forecast.json", json.dumps(made.as_json(), indent=2, allow_nan=False))
    return [*save_figure(picture.figure, folder / "forecast"), folder / "forecast.json"]


def show(plan: Plan) -> None:
    say(f"{plan.study.name}: {plan.agents_in_words}", style="bold")
    say("No private rows were read.")
    _show_costs(plan.costs)
    say(f"Forecast of {plan.measure}", style="bold")
    say(_source(plan))
    _show_grid(plan)
    if len(plan.outlooks) > 1:
        _show_strengths(plan)
    say(*sentences(plan))
    say(*(f"Warning: {warning}" for warning in plan.warnings), style="bold yellow")
    verdict = plan.verdict
    say(f"{verdict.word.upper()}: {verdict.reason}{but(plan)}.", style=STYLES[verdict.word])


def _show_costs(costs: planning.Costs) -> None:
    rows: list[Row] = [
        (f"total ε at δ = {costs.delta:g}, exact", screen.rounded_up(costs.epsilon)),
        ("the paper's bound for the same noise", screen.rounded_up(costs.epsilon_paper)),
        ("noise multiplier z", f"{costs.noise_multiplier:.4f}"),
        ("traffic of one agent per round", size_in_words(costs.bytes_round)),
        (f"traffic of one agent in {costs.n_rounds} rounds", size_in_words(costs.bytes_total)),
        ("time with all agents in one process", time_in_words(costs.seconds)),
    ]
    show_table(("", ""), rows, fold=[1], show_header=False)
    shown, last, length = min(len(costs.agents), SHOWN_SIZES), len(costs.agents) - 1, costs.noise_length_mean
    rows = []
    for each in (costs.agents[round(k * last / max(1, shown - 1))] for k in range(shown)):
        shares = [f"{100 * share:.3g}%" for share in (each.noise_coordinate, each.noise_length)]
        rows.append((f"agent with {each.n_rows:,} rows", f"{each.agents:,}", *shares))
    if costs.n_agents > 1:
        rows.append(("mean over all agents", f"{costs.n_agents:,}", "", f"{100 * length:.3g}%"))
    show_table(("noise relative to the largest possible gradient", "agents", "per coordinate", "L2 norm"), rows)
    than = f"{length:.1f} times as long as" if length >= 1.0 else f"{100 * length:.2g}% as long as"
    say(
        f"In every round, the noise on the mean gradient of all agents is {than} the longest possible "
        "gradient. Over the rounds, part of the noise averages out.\n"
    )


def _source(plan: Plan) -> str:
    if plan.public is not None:
        return (
            f"Cross-validated on {plan.outlooks[0].rows:,} rows of {plan.public.name}, which are assumed to "
            f"be public; {plan.repeats} repeats. ± is the standard deviation of a single run."
        )
    return (
        f"From synthetic rows: uniform cells within the bounds and values of the study, labels from random "
        f"linear models with {', '.join(forecast.STRENGTHS)} signal; {plan.repeats} repeats. Real rows may "
        "be anywhere in this range; --public TABLE gives a more precise forecast."
    )


def _show_grid(plan: Plan) -> None:
    rows: list[Row] = []
    for epsilon in plan.grid.epsilons:
        cells = []
        for t in plan.grid.rounds:
            text = forecast_text([each.at(epsilon, t) for each in plan.outlooks], percent=plan.higher)
            cells.append(f"[bold]{text}[/bold]*" if (epsilon, t) == plan.grid.own else text)
        rows.append((f"{epsilon:.4g}", *cells))
    caption = "From weak to strong signal."
    if len(plan.outlooks) == 1:
        (only,) = plan.outlooks
        learns = "always the most frequent class" if plan.higher else "always the mean"
        baseline = value_text(only.baseline, percent=plan.higher)
        caption = f"Without privacy {forecast_text([only.ceiling], percent=plan.higher)}; {learns}: {baseline}."
    headings = ("total ε", *(f"{t} rounds" for t in plan.grid.rounds))
    show_table(headings, rows, caption=f"* the study's ε and rounds. {caption}")


def _show_strengths(plan: Plan) -> None:
    rows = [
        (
            outlook.name,
            value_text(outlook.baseline, percent=plan.higher),
            forecast_text([outlook.at(*plan.grid.own)], percent=plan.higher),
            value_text(outlook.ceiling.mean, percent=plan.higher),
            f"[{STYLES[verdict.word]}]{verdict.word}[/]",
        )
        for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True)
    ]
    show_table(("at the study's ε and rounds", "no learning", "forecast", "no privacy", ""), rows)


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


def sentences(plan: Plan) -> list[str]:
    """The forecast and the goal, a better number of rounds, and what would reach the goal."""
    out, grid, percent = [], plan.grid, plan.higher
    several = len(plan.outlooks) > 1
    for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True):
        own, best = outlook.at(*grid.own), planning.best_rounds(outlook, grid, higher=plan.higher)
        if not several:
            out += _at_own(plan, outlook, own, verdict.goal)
        found = []
        if best is not None:
            beyond = "; even more rounds may be better" if best.n_rounds == grid.rounds[-1] else ""
            reached = forecast_text([best.value], percent=percent)
            found.append(f"With {best.n_rounds} rounds the same ε reaches {reached}{beyond}.")
        elif not several:
            found.append("None of the other numbers of rounds is clearly better at this ε.")
        if verdict.word != "go":
            least = planning.least_epsilon(outlook, grid, verdict, higher=plan.higher)
            if least is None:
                way_out = _way_out(outlook, grid, verdict, higher=plan.higher)
                found.append(f"None of the tried combinations of ε and rounds reaches the goal; {way_out}.")
            elif least[0] > grid.own[0]:
                found.append(f"The goal needs ε = {least[0]:.4g}, with {least[1]} rounds.")
        out += [f"With {outlook.name}, {each[0].lower()}{each[1:]}" for each in found] if several else found
    return out


def _at_own(plan: Plan, outlook: forecast.Outlook, own: forecast.Value, goal: float) -> list[str]:
    """The forecast at the study's own ε and rounds; a warning if there are few public rows."""
    percent, (epsilon, n_rounds) = plan.higher, plan.grid.own
    luck, sampling = (f"{100 * x:.1f}" if percent else f"{x:.2g}" for x in (own.luck, own.sampling))
    asked = "" if plan.goal_given else ", halfway between no learning and no privacy"
    out = [
        f"At the study's ε = {epsilon:.4g} and {n_rounds} rounds: {forecast_text([own], percent=percent)} "
        f"(luck of the noise ± {luck}, few rows to test on ± {sampling}). Goal: "
        f"{value_text(goal, percent=percent)}{asked}."
    ]
    if percent and plan.public is not None and own.sampling > MUCH:
        wanted = outlook.rows * (100.0 * own.sampling) ** 2  # the error falls with the root of the rows
        rounded = round(wanted, -2 if wanted > 1000 else -1)
        out.append(
            f"With only {outlook.rows:,} public rows, the forecast has a standard error of "
            f"{100 * own.sampling:.1f} points; about {rounded:,.0f} rows would reduce it to 1."
        )
    return out


def but(plan: Plan) -> str:
    """A hint that another number of rounds would reach the goal."""
    found = [
        planning.rounds_help(outlook, plan.grid, verdict, higher=plan.higher)
        for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True)
    ]
    if None in found or not found:
        return ""
    own = plan.grid.own[1]
    return f" in {own} rounds; with n_rounds = {max(each or 0 for each in found)} it is not: see above"


def _way_out(outlook: forecast.Outlook, grid: forecast.Grid, verdict: planning.Verdict, *, higher: bool) -> str:
    if (verdict.goal - outlook.ceiling.mean) * (1 if higher else -1) > 0:
        return "a model without privacy would not reach it either"
    if planning.too_short(outlook, grid, higher=higher):
        return f"the run is too short for ε to matter: try --rounds {4 * grid.rounds[-1]}"
    return "more rows would help"


def forecast_text(values: Sequence[forecast.Value], *, percent: bool) -> str:
    """``78.3 ± 1.2%`` for one forecast, ``56–85%`` for several."""
    if len(values) > 1:
        low, high = min(v.mean for v in values), max(v.mean for v in values)
        return f"{100 * low:.0f}–{100 * high:.0f}%" if percent else f"{low:.3g}–{high:.3g}"
    mean, spread = values[0].mean, values[0].spread
    return f"{100 * mean:.1f} ± {100 * spread:.1f}%" if percent else f"{mean:.4g} ± {spread:.2g}"


def value_text(value: float, *, percent: bool) -> str:
    """An accuracy in percent, or an error in the units of the label."""
    return f"{100 * value:.1f}%" if percent else f"{value:.4g}"
