"""``dpadmm plan``: the expected cost and accuracy of a study, without reading private rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.filesize import decimal
from rich.text import Text
from typer import Option

from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.cli import InterruptedRunError, console
from dpadmm.cli.console import (
    WEIGHTS,
    AsJson,
    NoPublic,
    Row,
    StudyFile,
    chosen_public,
    echo,
    echo_json,
    echo_path,
    show_table,
    write,
)
from dpadmm.data.leakage import leakage_warnings
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Integers
from dpadmm.methods.hyperparameters import HYPERPARAMETERS
from dpadmm.models.description import load_description
from dpadmm.planning import forecast
from dpadmm.planning import plan as planning
from dpadmm.planning.intervals import forecast_intervals
from dpadmm.planning.measures import MEASURES, value_text
from dpadmm.planning.plan import Alternative, Plan
from dpadmm.studies.checks import study_warnings
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import Study
from dpadmm.training.run_folder import check_folder, write_text
from dpadmm.training.train import with_public_table

ROUNDS = (50, 200, 800)
FEW_ROUNDS = 5
"""Of ``auto``, for sites that answer by hand."""
MOST_CELLS = 200
MOST_ROWS = 10**12
MOST_AGENTS = 10**6
STYLES = {"recommended": "bold green", "not recommended": "bold red", "inconclusive": "bold yellow"}

PLAIN = ("accuracy", "rmse")
"""Measures whose values say what they are."""

HARDLY = 0.1
"""Sensitivity below which a model says yes to hardly anyone."""

MUCH = 0.015
"""The standard error of an accuracy above which the plan asks for more public rows."""


def plan(
    study_file: StudyFile,
    rows: str = Option(
        ..., "--rows", "-m", help="Rows of every agent: one number, or one per agent separated by commas.", metavar="M"
    ),
    agents: int | None = Option(None, "--agents", "-n", help="Number of agents.", metavar="N"),
    public: Path | None = Option(
        None,
        help="A public table with the same columns; without any, rows are synthetic.",
        metavar="TABLE",
        show_default="the study's public rows, if it has any",
    ),
    no_public: NoPublic = False,
    statistics: Path | None = Option(
        None,
        help="Private statistics (dpadmm describe): synthetic rows have their counts, and labels their share.",
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
        help="What to reach: an accuracy (0.8), auc=0.8, log_loss=0.4 or sensitivity=0.6; for regression the largest "
        "root mean square error.",
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
    the study on public rows, or on synthetic rows with three strengths of signal. The exit code is 0 whatever
    the recommendation; --json has it as "verdict".
    """
    given = read_study(study_file)
    _, public = with_public_table(given, chosen_public(public, no_public))
    if public is not None and statistics is not None:
        raise StudyError(
            "--statistics is for synthetic rows, and there are public ones: add --no-public, or leave it out"
        )
    sizes = planned_sizes(agents, rows)
    study = planning.for_sizes(given, sizes)
    _check(repeats=repeats, seed=seed)
    wanted = planning.goal_from(goal, study)
    if output is not None:
        check_folder(output)
    total = planning.costs_of(study, sizes).epsilon
    own = study.training.epsilon if isinstance(study.training.epsilon, float) else total
    epsilons = numbers("epsilon", epsilon) if epsilon else (own / 2.0, own * 2.0)
    others = [int(t) for t in numbers("rounds", rounds, whole=True)] if rounds else other_rounds(study)
    grid = forecast.grid_of(study, own, epsilons=epsilons, rounds=others)
    if len(grid.cells) > MOST_CELLS:
        raise StudyError(f"{len(grid.cells)} combinations of ε and rounds are too many; the maximum is {MOST_CELLS}")
    if public is not None:
        scenarios = [forecast.public_scenario(study, public, repeats=repeats, seed=seed)]
    else:
        known = None if statistics is None else load_description(statistics)
        scenarios = forecast.synthetic_scenarios(study, int(sizes.sum()), repeats=repeats, seed=seed, known=known)
    costs = planning.costs_of(study, sizes, planning.measured_seconds(study, scenarios[0].folds[0][0], sizes))
    compared = planning.alternatives(given, sizes, own)
    outlooks, found = _run(study, scenarios, sizes, grid, compared, seed=seed, quiet=as_json)
    intervals = None
    if study.training.has_inference:
        with console.waiting("forecasting intervals", quiet=as_json):
            intervals = forecast_intervals(study, scenarios, sizes, seed=seed)
    warnings = [f"{each}." for each in study_warnings(study, int(sizes.max()))]
    made = Plan(
        study=study,
        sizes=sizes,
        costs=costs,
        grid=grid,
        outlooks=outlooks,
        goal=wanted,
        public=public,
        repeats=repeats,
        warnings=(*leakage_warnings(scenarios[0].telling), *warnings),
        alternatives=found,
        known=statistics is not None,
        intervals=intervals,
    )
    written = [] if output is None else _write(made, output)
    if write_rounds:
        text = planning.with_n_rounds(study_file.read_bytes().decode(), made.n_rounds)
        write(study_file, text.encode())
        written.append(study_file)
    if as_json:
        return echo_json({**made.as_json(), "files": [str(path) for path in written]})
    show(made)
    if write_rounds:
        echo(f"The study says n_rounds = {made.n_rounds} now.")
    elif given.training.is_open:
        echo("The study leaves the number of rounds open. --write sets the best number, which sites require.")
    return echo_path(*(f"Written: {path}" for path in written))


def other_rounds(study: Study) -> Sequence[int]:
    """Numbers of rounds to compare with the study's."""
    own = study.training.planned_rounds
    if not study.training.method.sums_only:
        return ROUNDS
    return [t for t in (FEW_ROUNDS, own // 2, 2 * own) if t == FEW_ROUNDS or t >= 2 * FEW_ROUNDS]


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


def _check(*, repeats: int, seed: int) -> None:
    if not 2 <= repeats <= 100:
        raise StudyError(f"repeats must be a whole number from 2 to 100, not {repeats}")
    if seed < 0:
        raise StudyError(f"seed must be a whole number of at least 0, not {seed}")


def _run(
    study: Study,
    scenarios: Sequence[forecast.Scenario],
    sizes: Integers,
    grid: forecast.ForecastGrid,
    others: Sequence[Alternative],
    *,
    seed: int,
    quiet: bool,
) -> tuple[tuple[forecast.Outlook, ...], tuple[Alternative, ...]]:
    total, done = forecast.n_runs(scenarios, grid, len(others)), 0
    with console.progress_bar(quiet=quiet) as bar, console.CtrlC() as ctrl_c:
        task = bar.add_task("forecasting", total=total)

        def finished() -> None:
            nonlocal done
            done += 1
            bar.advance(task)
            if ctrl_c.pressed:
                raise InterruptedRunError(f"interrupted after {done} of {total} runs; nothing was written")

        outlooks = [forecast.outlook(study, each, sizes, grid, seed=seed, finished=finished) for each in scenarios]
        found = []
        for other in others:
            again = partial(forecast.reached, study, other.training, sizes=sizes, aborted_rounds=other.aborted_rounds)
            values = tuple(again(scenario=each, seed=seed, finished=finished) for each in scenarios)
            found.append(replace(other, values=values))
        return tuple(outlooks), tuple(found)


def _write(made: Plan, folder: Path) -> list[Path]:
    from dpadmm.figures.forecast import forecast_figure  # matplotlib takes its time
    from dpadmm.figures.style import save_figure

    title = f"{made.study.name}, {made.agents_in_words}"
    picture = forecast_figure(made, title=title)
    write_text(folder / "forecast.json", json.dumps(made.as_json(), indent=2, allow_nan=False))
    return [*save_figure(picture.figure, folder / "forecast"), folder / "forecast.json"]


def show(plan: Plan) -> None:
    echo(f"{plan.study.name}: {plan.agents_in_words}", style="bold")
    echo("No private rows were read.")
    _show_costs(plan.costs, plan.study.terms.plan)
    echo(f"Forecast for ε = {plan.grid.own[0]:.4g} and {plan.grid.own[1]} rounds", style="bold")
    echo(_source(plan))
    _show_measures(plan)
    echo(f"Forecast of {plan.measure}", style="bold")
    _show_grid(plan)
    if plan.costs.min_honest_sites is not None:
        _show_aggregation(plan)
    echo(*sentences(plan))
    echo(*(f"Warning: {warning}" for warning in plan.warnings), style="bold yellow")
    verdict = plan.verdict
    echo(f"{verdict.word.capitalize()}: {verdict.reason}.", style=STYLES[verdict.word])
    if plan.intervals is not None:
        alike = (
            "" if plan.public or plan.known else " Rare categories, which synthetic rows lack, make them less likely."
        )
        text = plan.intervals.text(plan.grid.own[0], int(plan.sizes.sum()))
        echo(f"{text}{alike}", style=STYLES["recommended" if plan.intervals.likely else "inconclusive"])


def _show_costs(costs: planning.Costs, releases: ReleasePlan) -> None:
    limit = HYPERPARAMETERS.max_noise
    drowned = f", too much to learn from (above {limit:g})" if costs.noise_all > limit else ""
    rows: list[Row] = [
        (f"total ε at δ = {costs.delta:g}, exact", console.rounded_up(costs.epsilon)),
        *console.aggregation_rows(costs),
        ("noise multiplier z", releases.describe_noise()),
        ("noise of a mean over all rows, ν", f"{costs.noise:.3g}"),
        (f"ν in all {costs.n_features} features, x", f"{costs.noise_all:.3g}{drowned}"),
        ("one agent in a round", f"hears {decimal(costs.bytes_heard)}, says up to {decimal(costs.bytes_said)}"),
        (f"traffic of one agent in {costs.n_rounds} rounds", decimal(costs.bytes_total)),
        ("time with all agents in one process", time_in_words(costs.seconds)),
    ]
    if math.isfinite(costs.epsilon_paper):
        rows.insert(1, ("the paper's bound for the same noise", console.rounded_up(costs.epsilon_paper)))
    show_table(("", ""), rows, fold=[1], show_header=False)


def _source(plan: Plan) -> str:
    if plan.public is not None:
        folds, least = f"{plan.repeats} of {forecast.LEAST_FOLDS} folds", f"--repeats {forecast.LEAST_FOLDS}"
        some = f" ({folds}; {least} or more tests all)" if plan.repeats < forecast.LEAST_FOLDS else ""
        return (
            f"Cross-validated on {plan.outlooks[0].rows:,} rows of {plan.public.name}{some}, which are assumed to "
            f"be public; {plan.repeats} repeats. ± is the standard deviation of a single run."
        )
    cells = (
        "cells as private statistics tell,"
        if plan.known
        else "uniform cells within the bounds and values of the study,"
    )
    return (
        f"From synthetic rows: {cells} labels from random "
        f"linear models with {', '.join(forecast.STRENGTHS)} signal; {plan.repeats} repeats. Real rows may "
        "be anywhere in this range; --public TABLE gives a more precise forecast."
    )


def _show_measures(plan: Plan) -> None:
    """All that is forecast at the study's own ε and rounds."""
    rows: list[Row] = []
    for name in (each for each in MEASURES if each in plan.outlooks[0].baseline):
        columns: list[list[forecast.Value]] = [
            [each.at(*plan.grid.own)[name] for each in plan.outlooks],
            [each.ceiling[name] for each in plan.outlooks],
            [forecast.Value(each.baseline[name]) for each in plan.outlooks],
        ]
        if plan.public is not None:
            columns.insert(1, [each.alone[name] for each in plan.outlooks if each.alone])
        rows.append((MEASURES[name].title, *(forecast_text(each, name) for each in columns)))
    alone = ("public rows alone",) if plan.public is not None else ()
    source = "public rows" if plan.public is not None else "synthetic rows"
    caption = "" if len(plan.outlooks) == 1 else " From weak to strong signal."
    caption = f"No noise: a model of the {source} without noise, for the planned number of rows.{caption}"
    show_table(("", "this study", *alone, f"{source}, no noise", "constant prediction"), rows, caption=caption)


def _show_grid(plan: Plan) -> None:
    rows: list[Row] = []
    for epsilon in plan.grid.epsilons:
        cells: list[str | Text] = []
        for t in plan.grid.rounds:
            text = forecast_text([each.at(epsilon, t)[plan.goal.name] for each in plan.outlooks], plan.goal.name)
            cells.append(Text.assemble((text, "bold"), "*") if (epsilon, t) == plan.grid.own else text)
        rows.append((f"{epsilon:.4g}", *cells))
    headings = ("total ε", *(f"{t} rounds" for t in plan.grid.rounds))
    show_table(headings, rows, caption="* the study's ε and rounds")


def _show_aggregation(plan: Plan) -> None:
    """What is reached where more or fewer agents are relied on, and where rounds are aborted."""
    rows: list[Row] = []
    for each in plan.alternatives:
        min_honest_sites, aborted_rounds = str(each.training.min_honest_sites), f"{each.aborted_rounds:.0%}"
        own = each.training.min_honest_sites == plan.costs.min_honest_sites and not each.aborted_rounds
        found = [forecast_text([values[name] for values in each.values], name) for name in plan.measures]
        shown = [
            min_honest_sites,
            aborted_rounds,
            str(each.training.planned_rounds),
            *found,
            f"{each.epsilon_if_others_collude:.4g}",
        ]
        rows.append(
            [Text.assemble((text, "bold"), "*" * (text is min_honest_sites)) for text in shown] if own else shown
        )
    echo("Forecast by honest agents and aborted rounds", style="bold")
    titles = [MEASURES[name].title for name in plan.measures]
    caption = "* this study. An aborted round is charged in full. ε alone: if all others work together."
    show_table(("min_honest_sites", "aborted", "rounds", *titles, "ε alone"), rows, caption=caption)


def time_in_words(seconds: float) -> str:
    """``about 3 minutes``."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.1f} {unit}"
    if seconds < 1.0:
        return "less than a second"
    return "about 1 second" if seconds < 1.5 else f"about {seconds:.0f} seconds"


def sentences(plan: Plan) -> list[str]:
    """What public rows do alone, a better number of rounds, what probabilities are worth, what would reach the goal."""
    out = []
    for outlook, verdict in zip(plan.outlooks, plan.verdicts, strict=True):
        found = [*_of_public(plan, outlook), *_of_rounds(plan, outlook), *_of_goal(plan, outlook, verdict)]
        if len(plan.outlooks) > 1:
            out.append(" ".join([f"With {outlook.name}, {verdict.word}: {verdict.reason}.", *found]))
        else:
            out += found
    return [*out, *_of_aggregation(plan)]


def _of_aggregation(plan: Plan) -> list[str]:
    """What a study of local trust would gain from secure aggregation."""
    if plan.costs.min_honest_sites is not None or not plan.alternatives or not plan.gains(plan.alternatives[0]):
        return []
    other = plan.alternatives[0]
    found = [(name, forecast_text([values[name] for values in other.values], name)) for name in plan.measures]
    reaches = ", ".join(text if name in PLAIN else f"{MEASURES[name].title} {text}" for name, text in found)
    return [
        f"With secure aggregation and at least {other.training.min_honest_sites} honest agents the same ε is "
        f"forecast to reach "
        f"{reaches} (docs/explanation/secure-aggregation.md)."
    ]


def _of_public(plan: Plan, outlook: forecast.Outlook) -> list[str]:
    """What the public rows alone reach; a warning if there are few of them."""
    if outlook.alone is None:
        return []
    own, names = outlook.at(*plan.grid.own), plan.measures
    main = names[0]
    alone, reached = (", ".join(_said(values[name], name) for name in names) for values in (outlook.alone, own))
    out = [f"The public rows alone reach {alone}; the study, which starts from them, is forecast to reach {reached}."]
    if plan.study.public_rows is None:
        out.append("The study does not list these rows: without train --public, training does not start from them.")
    sampling = own[main].sampling
    if main == "accuracy" and sampling > MUCH:
        wanted = outlook.rows * (100.0 * sampling) ** 2  # the error falls with the root of the rows
        rounded = round(wanted, -2 if wanted > 1000 else -1)
        out.append(
            f"With only {outlook.rows:,} public rows, the forecast has a standard error of "
            f"{100 * sampling:.1f} points; about {rounded:,.0f} rows would reduce it to 1."
        )
    return out


def _of_rounds(plan: Plan, outlook: forecast.Outlook) -> list[str]:
    best, grid = planning.best_rounds([outlook], plan.grid, plan.goal), plan.grid
    if best is None:
        return [] if len(plan.outlooks) > 1 else ["None of the other numbers of rounds is clearly better at this ε."]
    beyond = "; even more rounds may be better" if best == grid.rounds[-1] else ""
    reached = _said(outlook.at(grid.own[0], best)[plan.goal.name], plan.goal.name)
    return [f"With {best} rounds the same ε reaches {reached}{beyond}."]


def _of_goal(plan: Plan, outlook: forecast.Outlook, verdict: planning.Recommendation) -> list[str]:
    own, grid = outlook.at(*plan.grid.own), plan.grid
    out = []
    likely = verdict.word == "recommended"
    if likely and "log_loss" in own and own["log_loss"].mean >= outlook.baseline["log_loss"]:
        out.append(
            "Its log-loss is no better than that of a constant prediction: rank by its scores, and do not use its "
            "probabilities."
        )
    if verdict.word != "not recommended" and "sensitivity" in own and own["sensitivity"].mean < HARDLY:
        name = plan.study.classes[-1] if plan.study.classes else "the second class"
        instead = "use its probabilities" if "log_loss" in own else "rank by its scores"
        out.append(f"It will predict {name!s} for hardly anyone: {instead}, or class weights ({WEIGHTS}).")
    if plan.goal.target is not None and len(plan.outlooks) == 1:
        out.append(f"Goal: {value_text(plan.goal.target, plan.goal.name)}.")
    if verdict.word == "recommended":
        return out
    least = planning.least_epsilon(outlook, grid, plan.goal)
    reaches = "reaches the goal" if plan.goal.target is not None else "would be recommended"
    if least is None:
        margins = plan.goal.margin(outlook.ceiling, outlook), plan.goal.public_margin(outlook.ceiling, outlook)
        helps = all(gain > 0.0 for gain, _ in margins)
        way_out = "more rows would help" if helps else "a model without noise would not either"
        out.append(f"None of the tried combinations of ε and rounds {reaches}; {way_out}.")
    elif least[0] > grid.own[0] or least[1] != grid.own[1]:
        out.append(f"ε = {least[0]:.4g} with {least[1]} rounds {reaches}.")
    return out


def _said(value: forecast.Value, name: str) -> str:
    """``an AUC of 0.81``, or the value alone where it is an accuracy or an error of numbers."""
    text = value_text(value.mean, name)
    return text if name in PLAIN else f"{MEASURES[name].title} {text}"


def forecast_text(values: Sequence[forecast.Value], name: str) -> str:
    """``78.3 ± 1.2%`` for one forecast, ``56.0–85.1%`` for several."""
    low, high = (f(values, key=lambda value: value.mean) for f in (min, max))
    texts = [value_text(each.mean, name) for each in (low, high)]
    if texts[0] != texts[1]:
        return f"{texts[0].removesuffix('%')}–{texts[1]}"
    spread = f"{low.spread:.2g}" if name in ("rmse", "deviance") else value_text(low.spread, name)
    return f"{texts[0].removesuffix('%')} ± {spread}" if len(values) == 1 and low.spread else texts[0]
