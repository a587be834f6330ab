"""``dpadmm plan``: what a study will cost and reach, before any private row is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from dpadmm.arrays import Integers
from dpadmm.cli.plan_table import Plan, show
from dpadmm.cli.screen import CtrlC, Interrupted, progress_bar, say_path
from dpadmm.data.telltale import in_words
from dpadmm.errors import StudyError
from dpadmm.files import atomic_file
from dpadmm.planning.costs import costs_of, measured_seconds
from dpadmm.planning.forecast import Grid, grid_of, n_runs, outlook
from dpadmm.planning.scenarios import Scenario, public_scenario, synthetic_scenarios
from dpadmm.planning.verdict import judged
from dpadmm.study import Study, read_study

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
            help="Rows of every agent: one number, or one per agent with commas between.",
            show_default=False,
            metavar="M",
        ),
    ],
    agents: Annotated[
        int | None,
        typer.Option(
            "--agents", "-n", help="How many agents will take part.", show_default=False, metavar="N"
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            "--public",
            help="A public (or older, open) table of the same kind; without it rows are made up.",
            show_default=False,
            metavar="TABLE",
        ),
    ] = None,
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            "-e",
            help="Total ε to look at, with commas between.",
            show_default="half, own, twice",
        ),
    ] = None,
    rounds: Annotated[
        str, typer.Option("--rounds", "-t", help="Numbers of rounds to look at, beside the study's own.")
    ] = ROUNDS,
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of every ε and number of rounds.")] = 5,
    goal: Annotated[
        float | None,
        typer.Option(
            "--goal",
            help="Accuracy wanted (0.8), or for numbers the largest root mean square error.",
            show_default="half-way from no learning to no privacy",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the figure and the numbers.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of splits and simulated noise.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Plain JSON on standard output.")] = False,
) -> None:
    """Forecast what a study costs and reaches, before any private row is read.

    ε, noise, bytes and time follow from public numbers. What will be reached is forecast by running the
    study on public rows, or on made-up ones at three strengths of signal.
    """
    study = read_study(study_file)
    sizes = planned_sizes(agents, rows)
    _check(study, repeats=repeats, goal=goal, seed=seed)
    if output is not None:
        _check_output(output)
    costs = costs_of(study, sizes)
    own = study.settings.epsilon if isinstance(study.settings.epsilon, float) else costs.epsilon
    given = numbers("epsilon", epsilon) if epsilon else (own / 2.0, own * 2.0)
    grid = grid_of(study, own, epsilons=given, rounds=[int(t) for t in numbers("rounds", rounds, whole=True)])
    if len(grid.cells) > MOST_CELLS:
        raise StudyError(f"{len(grid.cells)} combinations of ε and rounds are too many; ask for {MOST_CELLS}")
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
        tuple(in_words(scenarios[0].telling)),
    )
    written = [] if output is None else _write(made, output)
    if as_json:
        answer = {**made.as_json(), "files": [str(path) for path in written]}
        typer.echo(json.dumps(answer, indent=2, allow_nan=False))
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
            raise StudyError("how many agents will there be? Give --agents, or a number of --rows for each")
        return np.full(agents, counts[0])
    if agents not in (None, len(counts)):
        raise StudyError(f"there are {len(counts)} numbers of rows for {agents} agents; give one for each")
    return np.array(counts)


def numbers(
    name: str, text: str, *, whole: bool = False, least: float = 1.0, most: float = 100_000.0
) -> tuple[float, ...]:
    """Numbers with commas between."""
    low = least if whole else 0.0
    try:
        values = tuple(float(int(part) if whole else float(part)) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(v) and low <= v <= most and v > 0.0 for v in values):
        kind = f"whole numbers from {low:g} to {most:g}" if whole else "positive numbers"
        raise StudyError(f"{name} must be {kind} with commas between, not {text!r}")
    return values


def _check(study: Study, *, repeats: int, goal: float | None, seed: int) -> None:
    if not 2 <= repeats <= 100:
        raise StudyError(f"repeats must be a whole number from 2 to 100, not {repeats}: one shows no spread")
    if seed < 0:
        raise StudyError(f"seed must be a whole number of at least 0, not {seed}")
    if goal is None:
        return
    if study.problem.loss.task == "regression":
        if not (0.0 < goal < math.inf):
            raise StudyError(f"goal must be the largest error wanted, in the label's units, not {goal:g}")
    elif not 0.0 < goal < 1.0:
        raise StudyError(f"goal must be an accuracy between 0 and 1, such as 0.8, not {goal:g}")


def _check_output(folder: Path) -> None:
    from dpadmm.reporting.run_folder import check_folder

    check_folder(folder)


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

        watch: Callable[[], None] = finished
        return [outlook(study, each, sizes, grid, seed=seed, finished=watch) for each in scenarios]


def _write(made: Plan, folder: Path) -> list[Path]:
    from dpadmm.reporting.convergence import save_figure  # matplotlib takes its time
    from dpadmm.reporting.forecast_figure import forecast_figure

    title = f"{made.study.name}, {made.agents_in_words}"
    picture = forecast_figure(
        made.outlooks, made.grid, made.verdicts, title=title, measure=made.measure, percent=made.higher
    )
    with atomic_file(folder / "forecast.json") as out:
        out.write(json.dumps(made.as_json(), indent=2, allow_nan=False).encode())
    return [*save_figure(picture.figure, folder / "forecast"), folder / "forecast.json"]
