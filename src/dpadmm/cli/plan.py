"""``dpadmm plan``: forecast the cost and accuracy of a study without reading private rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from typer import Option

from dpadmm.cli import InterruptedRunError, console
from dpadmm.cli.console import AsJson, NoPublic, StudyFile, chosen_public, echo_json, write
from dpadmm.errors import StudyError
from dpadmm.planning.plan import Plan, with_n_rounds
from dpadmm.studies.reading import read_study
from dpadmm.training.plan import MAX_ROWS
from dpadmm.training.plan import plan as plan_study
from dpadmm.training.run_folder import check_folder, write_text


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
    if output is not None:
        check_folder(output)
    given, sizes = read_study(study_file), [int(m) for m in numbers("rows", rows, whole=True, low=2, high=MAX_ROWS)]
    if len(sizes) == 1 and agents is None:
        raise StudyError("the number of agents is missing: give --agents, or --rows for every agent")
    with console.progress_bar(quiet=as_json) as bar, console.CtrlC() as ctrl_c:

        def started(total: int) -> Callable[[], None]:
            task, done = bar.add_task("forecasting", total=total), 0

            def finished() -> None:
                nonlocal done
                done += 1
                bar.advance(task)
                if ctrl_c.pressed:
                    raise InterruptedRunError(f"interrupted after {done} of {total} runs; nothing was written")

            return finished

        found = plan_study(
            given,
            sizes,
            n_agents=agents,
            public=chosen_public(public, no_public),
            statistics=statistics,
            epsilons=numbers("epsilon", epsilon) if epsilon else None,
            rounds=[int(t) for t in numbers("rounds", rounds, whole=True)] if rounds else None,
            repeats=repeats,
            goal=goal,
            seed=seed,
            started=started,
        )
    written = [] if output is None else _write(found, output)
    if write_rounds:
        text = with_n_rounds(study_file.read_bytes().decode(), found.n_rounds)
        write(study_file, text.encode())
        written.append(study_file)
    if as_json:
        return echo_json({**found.to_dict(), "files": [str(path) for path in written]})
    notes = []
    if write_rounds:
        notes = [f"The study file now has n_rounds = {found.n_rounds}."]
    elif given.training.is_open:
        notes = ["The study leaves the number of rounds open. --write sets the best number, which sites require."]
    return console.show(found.rendering().extend(notes=notes, next_steps=[f"Written: {path}" for path in written]))


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


def _write(plan: Plan, folder: Path) -> list[Path]:
    """Write the figure and the numbers."""
    from dpadmm.figures.forecast import forecast_figure  # imports matplotlib
    from dpadmm.figures.style import save_figure

    title = f"{plan.study.name}, {plan.describe_agents()}"
    picture = forecast_figure(plan, title=title)
    write_text(folder / "forecast.json", json.dumps(plan.to_dict(), indent=2, allow_nan=False))
    return [*save_figure(picture.figure, folder / "forecast"), folder / "forecast.json"]
