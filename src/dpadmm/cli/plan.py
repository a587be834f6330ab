"""``dpadmm plan``: forecast the cost and accuracy of a study without reading private rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from typer import Option

from dpadmm.cli import InterruptedRunError, console
from dpadmm.cli.console import AsJson, NoPublic, StudyFile, chosen_public, echo_json, write
from dpadmm.data.leakage import leakage_warnings
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Integers
from dpadmm.models.description import load_description
from dpadmm.planning.costs import costs_of, measured_seconds, with_rounds_for
from dpadmm.planning.forecast import (
    ForecastGrid,
    ScenarioForecast,
    forecast_scenario,
    forecast_settings,
    grid_of,
    n_runs,
)
from dpadmm.planning.intervals import forecast_intervals
from dpadmm.planning.plan import Alternative, Plan, alternatives, with_n_rounds
from dpadmm.planning.recommendation import goal_from
from dpadmm.planning.scenarios import Scenario, public_scenario, synthetic_scenarios
from dpadmm.studies.checks import study_warnings
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import Study
from dpadmm.training.run_folder import check_folder, write_text
from dpadmm.training.train import with_public_table

ROUNDS = (50, 200, 800)
FEW_ROUNDS = 5
"""Rounds of ``auto`` for sites that answer by hand."""

MAX_CELLS = 200
MAX_ROWS = 10**12
MAX_AGENTS = 10**6


def plan(
    study_file: StudyFile,
    rows: str = Option(
        ..., "--rows", "-m", help="Rows of every agent: one number, or one per agent separated by commas.", metavar="M"
    ),
    agents: int | None = Option(None, "--agents", "-n", help="Number of agents.", metavar="N"),
    public: Path | None = Option(
        None,
        help="Public table with the same columns. Default: synthetic rows.",
        metavar="TABLE",
        show_default="the study's public rows, if it has any",
    ),
    no_public: NoPublic = False,
    statistics: Path | None = Option(
        None,
        help="Private statistics (from dpadmm describe) whose counts the synthetic rows have.",
        metavar="RESULTS.json",
    ),
    epsilon: str | None = Option(
        None,
        "--epsilon",
        "-e",
        help="Values of total ε, separated by commas.",
        show_default="half, one and two times the study's ε",
    ),
    rounds: str | None = Option(
        None,
        "--rounds",
        "-t",
        help="Numbers of rounds to compare, in addition to the study's.",
        show_default="for auto 5, and around its own; else 50,200,800",
    ),
    repeats: int = Option(5, help="Runs for every ε and number of rounds."),
    goal: str | None = Option(
        None,
        help="Goal: an accuracy (0.8), auc=0.8, log_loss=0.4 or sensitivity=0.6; for regression the maximum root mean "
        "square error.",
        show_default="clearly better than a constant prediction",
        metavar="GOAL",
    ),
    write_rounds: bool = Option(False, "--write", help="Write the best number of rounds into the study's file."),
    output: Path | None = Option(None, "--output", "-o", help="Folder for the figure and the numbers."),
    seed: int = Option(1, help="Seed of splits and simulated noise."),
    as_json: AsJson = False,
) -> None:
    """Forecast the cost and accuracy of a study without reading private rows.

    ε, noise, traffic and time follow from public numbers. Accuracy, AUC and log-loss are forecast by running
    the study on public rows, or on synthetic rows with three strengths of signal. The exit code does not depend on
    the recommendation; --json has it as "verdict".
    """
    given = read_study(study_file)
    _, public = with_public_table(given, chosen_public(public, no_public))
    if public is not None and statistics is not None:
        raise StudyError("--statistics applies to synthetic rows, but public rows are used; add --no-public")
    sizes = planned_sizes(agents, rows)
    study = with_rounds_for(given, sizes)
    _check(repeats=repeats, seed=seed)
    wanted = goal_from(goal, study)
    if output is not None:
        check_folder(output)
    total = costs_of(study, sizes).epsilon
    own = study.training.epsilon if isinstance(study.training.epsilon, float) else total
    epsilons = numbers("epsilon", epsilon) if epsilon else (own / 2.0, own * 2.0)
    others = [int(t) for t in numbers("rounds", rounds, whole=True)] if rounds else other_rounds(study)
    grid = grid_of(study, own, epsilons=epsilons, rounds=others)
    if len(grid.cells) > MAX_CELLS:
        raise StudyError(f"{len(grid.cells)} combinations of ε and rounds are too many; the maximum is {MAX_CELLS}")
    if public is not None:
        scenarios = [public_scenario(study, public, repeats=repeats, seed=seed)]
    else:
        counts = None if statistics is None else load_description(statistics)
        scenarios = synthetic_scenarios(study, int(sizes.sum()), repeats=repeats, seed=seed, statistics=counts)
    costs = costs_of(study, sizes, measured_seconds(study, scenarios[0].folds[0][0], sizes))
    forecasts, compared = _run(study, scenarios, sizes, grid, alternatives(given, sizes, own), seed=seed, quiet=as_json)
    intervals = None
    if study.training.has_inference:
        with console.waiting("forecasting intervals", quiet=as_json):
            intervals = forecast_intervals(study, scenarios, sizes, seed=seed)
    warnings = [f"{warning}." for warning in study_warnings(study, int(sizes.max()))]
    result = Plan(
        study=study,
        sizes=sizes,
        costs=costs,
        grid=grid,
        forecasts=forecasts,
        goal=wanted,
        public=public,
        repeats=repeats,
        warnings=(*leakage_warnings(scenarios[0].leaky_columns), *warnings),
        alternatives=compared,
        uses_statistics=statistics is not None,
        intervals=intervals,
    )
    written = [] if output is None else _write(result, output)
    if write_rounds:
        text = with_n_rounds(study_file.read_bytes().decode(), result.n_rounds)
        write(study_file, text.encode())
        written.append(study_file)
    if as_json:
        return echo_json({**result.to_dict(), "files": [str(path) for path in written]})
    notes = []
    if write_rounds:
        notes = [f"The study file now has n_rounds = {result.n_rounds}."]
    elif given.training.is_open:
        notes = ["The study leaves the number of rounds open. --write sets the best number, which sites require."]
    return console.show(result.rendering().extend(notes=notes, next_steps=[f"Written: {path}" for path in written]))


def other_rounds(study: Study) -> Sequence[int]:
    """Numbers of rounds to compare with the study's."""
    own = study.training.planned_rounds
    if not study.training.method.sums_only:
        return ROUNDS
    return [t for t in (FEW_ROUNDS, own // 2, 2 * own) if t == FEW_ROUNDS or t >= 2 * FEW_ROUNDS]


def planned_sizes(agents: int | None, rows: str) -> Integers:
    """Return the number of rows of every agent."""
    counts = [int(m) for m in numbers("rows", rows, whole=True, low=2, high=MAX_ROWS)]
    if agents is not None and not 1 <= agents <= MAX_AGENTS:
        raise StudyError(f"agents must be a whole number from 1 to {MAX_AGENTS:,}, not {agents}")
    if len(counts) == 1 and agents is None:
        raise StudyError("the number of agents is missing: give --agents, or --rows for every agent")
    if len(counts) > 1 and agents not in (None, len(counts)):
        raise StudyError(f"--rows has {len(counts)} numbers for {agents} agents; give one for each")
    return np.full(agents or 1, counts[0]) if len(counts) == 1 else np.array(counts)


def numbers(
    name: str, text: str, *, whole: bool = False, low: float = 1.0, high: float = 100_000.0
) -> tuple[float, ...]:
    """Return the numbers in a comma-separated list."""
    low = low if whole else 0.0
    try:
        values = tuple(float(int(part) if whole else float(part)) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(v) and low <= v <= high and v > 0.0 for v in values):
        kind = f"whole numbers from {low:g} to {high:g}" if whole else "positive numbers"
        raise StudyError(f"{name} must be {kind}, separated by commas, not {text!r}")
    return values


def _check(*, repeats: int, seed: int) -> None:
    if not 2 <= repeats <= 100:
        raise StudyError(f"repeats must be a whole number from 2 to 100, not {repeats}")
    if seed < 0:
        raise StudyError(f"seed must be a whole number of at least 0, not {seed}")


def _run(
    study: Study,
    scenarios: Sequence[Scenario],
    sizes: Integers,
    grid: ForecastGrid,
    others: Sequence[Alternative],
    *,
    seed: int,
    quiet: bool,
) -> tuple[tuple[ScenarioForecast, ...], tuple[Alternative, ...]]:
    """Forecast the grid and the alternatives, with a progress bar."""
    total, done = n_runs(scenarios, grid, len(others)), 0
    with console.progress_bar(quiet=quiet) as bar, console.CtrlC() as ctrl_c:
        task = bar.add_task("forecasting", total=total)

        def finished() -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            if ctrl_c.pressed:
                raise InterruptedRunError(f"interrupted after {done} of {total} runs; nothing was written")

        forecasts = [forecast_scenario(study, each, sizes, grid, seed=seed, finished=finished) for each in scenarios]
        compared = []
        for other in others:
            again = partial(forecast_settings, study, other.training, sizes=sizes, aborted_rounds=other.aborted_rounds)
            values = tuple(again(scenario=each, seed=seed, finished=finished) for each in scenarios)
            compared.append(replace(other, values=values))
        return tuple(forecasts), tuple(compared)


def _write(plan: Plan, folder: Path) -> list[Path]:
    """Write the figure and the numbers."""
    from dpadmm.figures.forecast import forecast_figure  # imports matplotlib
    from dpadmm.figures.style import save_figure

    title = f"{plan.study.name}, {plan.describe_agents()}"
    picture = forecast_figure(plan, title=title)
    write_text(folder / "forecast.json", json.dumps(plan.to_dict(), indent=2, allow_nan=False))
    return [*save_figure(picture.figure, folder / "forecast"), folder / "forecast.json"]
