"""Description of a plan for terminal and notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpadmm.methods.hyperparameters import HYPERPARAMETERS
from dpadmm.planning.forecast import ScenarioForecast, Value
from dpadmm.planning.measures import MEASURES, value_text
from dpadmm.planning.plan import Alternative, Plan
from dpadmm.planning.recommendation import Recommendation, best_rounds, min_epsilon
from dpadmm.planning.scenarios import MIN_FOLDS, STRENGTHS
from dpadmm.rendering import Block, Cell, Column, Fact, Facts, Paragraph, Rendering, Row, Style, Table
from dpadmm.rendering.formats import rounded_up

CLASS_WEIGHTS = "docs/how-to/weights.md"
SELF_EXPLANATORY = ("accuracy", "rmse")
"""Measures whose values need no title."""

MIN_SENSITIVITY = 0.1
"""Sensitivity below which the second class is hardly ever predicted."""

LARGE_ERROR = 0.015
"""Standard error of an accuracy above which more public rows are suggested."""

STYLES: dict[str, Style] = {"recommended": "good", "not recommended": "bad", "inconclusive": "warning"}


def render_plan(plan: Plan) -> Rendering:
    """Return the description of a plan; the verdict is last."""
    epsilon, n_rounds = plan.grid.own
    recommendation = plan.recommendation
    body: list[Block] = [
        Paragraph("No private rows were read."),
        _costs(plan),
        Paragraph(f"Forecast for ε = {epsilon:.4g} and {n_rounds} rounds", "bold"),
        Paragraph(_source(plan)),
        _measures(plan),
        Paragraph(f"Forecast of {plan.measure_title}", "bold"),
        _grid(plan),
    ]
    if plan.costs.min_honest_sites is not None:
        body += [Paragraph("Forecast by honest agents and aborted rounds", "bold"), _aggregation(plan)]
    body += [Paragraph(text) for text in describe_forecasts(plan)]
    if plan.intervals is not None:
        has_real_counts = plan.public or plan.uses_statistics
        rare = "" if has_real_counts else " Rare categories, which synthetic rows lack, make them less likely."
        text = plan.intervals.text(epsilon, int(plan.sizes.sum()))
        body.append(Paragraph(f"{text}{rare}", "good" if plan.intervals.is_likely else "warning"))
    return Rendering(
        f"{plan.study.name}: {plan.describe_agents()}",
        body,
        warnings=plan.warnings,
        verdict=Paragraph(f"{recommendation.word.capitalize()}: {recommendation.reason}.", STYLES[recommendation.word]),
    )


def _costs(plan: Plan) -> Facts:
    costs, limit = plan.costs, HYPERPARAMETERS.max_noise
    too_much = f", too much to learn from (above {limit:g})" if costs.total_noise > limit else ""
    facts = [Fact("", f"total ε at δ = {costs.delta:g}, exact", rounded_up(costs.epsilon))]
    if math.isfinite(costs.epsilon_paper):
        facts.append(Fact("", "the paper's bound for the same noise", rounded_up(costs.epsilon_paper)))
    if costs.min_honest_sites is not None:
        facts += [
            Fact("", f"  with at least {costs.min_honest_sites} honest agents", ""),
            Fact("", "  if all others collude", rounded_up(costs.epsilon_if_others_collude)),
        ]
    traffic = f"receives {describe_bytes(costs.bytes_received)}, sends up to {describe_bytes(costs.bytes_sent)}"
    return Facts(
        [
            *facts,
            Fact("", "noise multiplier z", plan.study.terms.plan.describe_noise()),
            Fact("", "noise of a mean over all rows, ν", f"{costs.noise:.3g}"),
            Fact("", f"ν in all {costs.n_features} features, x", f"{costs.total_noise:.3g}{too_much}"),
            Fact("", "one agent in a round", traffic),
            Fact("", f"traffic of one agent in {costs.n_rounds} rounds", describe_bytes(costs.bytes_total)),
            Fact("", "time with all agents in one process", describe_time(costs.seconds)),
        ]
    )


def _source(plan: Plan) -> str:
    """Describe the rows of the forecast."""
    if plan.public is not None:
        folds = f"{plan.repeats} of {MIN_FOLDS} folds; use --repeats {MIN_FOLDS} to test all rows"
        some = f" ({folds})" if plan.repeats < MIN_FOLDS else ""
        return (
            f"Cross-validated on {plan.forecasts[0].n_rows:,} rows of {plan.public.name}{some}, which are assumed to "
            f"be public; {plan.repeats} repeats. ± is the standard deviation of a single run."
        )
    uniform = "uniform cells within the bounds and values of the study"
    cells = "cells drawn from the counts of private statistics" if plan.uses_statistics else uniform
    return (
        f"From synthetic rows: {cells}, labels from random linear models with {', '.join(STRENGTHS)} signal; "
        f"{plan.repeats} repeats. Real rows may be anywhere in this range; --public TABLE gives a more precise "
        "forecast."
    )


def _measures(plan: Plan) -> Table:
    """Return all measures at the study's own ε and rounds."""
    has_public, forecasts = plan.public is not None, plan.forecasts
    rows: list[Row] = []
    for name in (name for name in MEASURES if name in forecasts[0].constant):
        columns = [
            [forecast.at(*plan.grid.own)[name] for forecast in forecasts],
            [forecast.without_noise[name] for forecast in forecasts],
            [Value(forecast.constant[name]) for forecast in forecasts],
        ]
        if has_public:
            columns.insert(1, [forecast.public_model[name] for forecast in forecasts if forecast.public_model])
        rows.append((MEASURES[name].title, *(forecast_text(values, name) for values in columns)))
    source = "public rows" if has_public else "synthetic rows"
    signal = "" if len(forecasts) == 1 else " From weak to strong signal."
    titles = (
        "this study",
        *(["public rows alone"] if has_public else []),
        f"{source}, no noise",
        "constant prediction",
    )
    return Table(
        [Column("", ""), *(Column("", title, align="right") for title in titles)],
        rows,
        caption=f"No noise: a model of the {source} without noise, for the planned number of rows.{signal}",
    )


def _grid(plan: Plan) -> Table:
    rows: list[Row] = []
    for epsilon in plan.grid.epsilons:
        cells: list[str | Cell] = []
        for t in plan.grid.rounds:
            values = [forecast.at(epsilon, t)[plan.goal.name] for forecast in plan.forecasts]
            text = forecast_text(values, plan.goal.name)
            cells.append(Cell(text=f"{text}*", style="bold") if (epsilon, t) == plan.grid.own else text)
        rows.append((f"{epsilon:.4g}", *cells))
    columns = [Column("", "total ε"), *(Column("", f"{t} rounds", align="right") for t in plan.grid.rounds)]
    return Table(columns, rows, caption="* the study's ε and rounds")


def _aggregation(plan: Plan) -> Table:
    """Return the forecasts for other numbers of honest agents, and with aborted rounds."""
    rows: list[Row] = []
    for other in plan.alternatives:
        is_own = other.training.min_honest_sites == plan.costs.min_honest_sites and not other.aborted_rounds
        texts = [
            f"{other.training.min_honest_sites}{'*' if is_own else ''}",
            f"{other.aborted_rounds:.0%}",
            str(other.training.planned_rounds),
            *(forecast_text([values[name] for values in other.values], name) for name in plan.shown_measures),
            f"{other.epsilon_if_others_collude:.4g}",
        ]
        rows.append([Cell(text=text, style="bold") for text in texts] if is_own else texts)
    titles = [MEASURES[name].title for name in plan.shown_measures]
    headings = ("min_honest_sites", "aborted", "rounds", *titles, "ε if others collude")
    caption = "* this study. An aborted round is charged in full."
    return Table([Column("", title, align="right") for title in headings], rows, caption=caption)


def describe_bytes(count: int) -> str:
    """Return ``440 bytes`` or ``1.2 kB``."""
    if count < 1000:
        return f"{count} bytes"
    power = min(3, int(math.log10(count) / 3))
    return f"{count / 1000**power:,.1f} {('kB', 'MB', 'GB')[power - 1]}"


def describe_time(seconds: float) -> str:
    """Return ``about 3 minutes``."""
    for unit, size in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * size:
            return f"about {seconds / size:.1f} {unit}"
    if seconds < 1.0:
        return "less than a second"
    return "about 1 second" if seconds < 1.5 else f"about {seconds:.0f} seconds"


def describe_forecasts(plan: Plan) -> list[str]:
    """Describe public rows, better numbers of rounds, probabilities, the goal, and secure aggregation."""
    texts = []
    for forecast, recommendation in zip(plan.forecasts, plan.recommendations, strict=True):
        notes = [
            *_describe_public_rows(plan, forecast),
            *_describe_rounds(plan, forecast),
            *_describe_goal(plan, forecast, recommendation),
        ]
        if len(plan.forecasts) > 1:
            texts.append(" ".join([f"With {forecast.name}, {recommendation.word}: {recommendation.reason}.", *notes]))
        else:
            texts += notes
    return [*texts, *_describe_aggregation(plan)]


def _describe_aggregation(plan: Plan) -> list[str]:
    """Describe the gain from secure aggregation for a study with plain aggregation."""
    if plan.costs.min_honest_sites is not None or not plan.alternatives or not plan.gains_from(plan.alternatives[0]):
        return []
    other: Alternative = plan.alternatives[0]
    texts = [
        _with_title(forecast_text([values[name] for values in other.values], name), name)
        for name in plan.shown_measures
    ]
    return [
        f"With secure aggregation and at least {other.training.min_honest_sites} honest agents the same ε is forecast "
        f"to reach {', '.join(texts)} (docs/explanation/secure-aggregation.md)."
    ]


def _describe_public_rows(plan: Plan, forecast: ScenarioForecast) -> list[str]:
    """Describe the model of public rows alone, and warn if there are few of them."""
    if forecast.public_model is None:
        return []
    own, names = forecast.at(*plan.grid.own), plan.shown_measures
    public, study = (
        ", ".join(_with_title(value_text(values[name].mean, name), name) for name in names)
        for values in (forecast.public_model, own)
    )
    texts = [f"The public rows alone reach {public}; the study, which starts from them, is forecast to reach {study}."]
    if plan.study.public_rows is None:
        texts.append("The study does not list these rows: without train --public, training does not start from them.")
    std_error = own[names[0]].std_error
    if names[0] == "accuracy" and std_error > LARGE_ERROR:
        needed = forecast.n_rows * (100.0 * std_error) ** 2  # the error falls with the root of the rows
        rounded = round(needed, -2 if needed > 1000 else -1)
        texts.append(
            f"With only {forecast.n_rows:,} public rows, the forecast has a standard error of "
            f"{100 * std_error:.1f} points; about {rounded:,.0f} rows would reduce it to 1."
        )
    return texts


def _describe_rounds(plan: Plan, forecast: ScenarioForecast) -> list[str]:
    best, grid, name = best_rounds([forecast], plan.grid, plan.goal), plan.grid, plan.goal.name
    if best is None:
        several = len(plan.forecasts) > 1
        return [] if several else ["None of the other numbers of rounds is clearly better at this ε."]
    more = "; even more rounds may be better" if best == grid.rounds[-1] else ""
    value = _with_title(value_text(forecast.at(grid.own[0], best)[name].mean, name), name)
    return [f"With {best} rounds the same ε reaches {value}{more}."]


def _describe_goal(plan: Plan, forecast: ScenarioForecast, recommendation: Recommendation) -> list[str]:
    own, grid, goal = forecast.at(*plan.grid.own), plan.grid, plan.goal
    texts = []
    if (
        recommendation.word == "recommended"
        and "log_loss" in own
        and own["log_loss"].mean >= forecast.constant["log_loss"]
    ):
        texts.append(
            "Its log-loss is no better than that of a constant prediction: rank by its scores, and do not use its "
            "probabilities."
        )
    if recommendation.word != "not recommended" and "sensitivity" in own and own["sensitivity"].mean < MIN_SENSITIVITY:
        name = plan.study.classes[-1] if plan.study.classes else "the second class"
        instead = "use its probabilities" if "log_loss" in own else "rank by its scores"
        texts.append(f"It will predict {name!s} for hardly anyone: {instead}, or class weights ({CLASS_WEIGHTS}).")
    if goal.target is not None and len(plan.forecasts) == 1:
        texts.append(f"Goal: {value_text(goal.target, goal.name)}.")
    if recommendation.word == "recommended":
        return texts
    smallest = min_epsilon(forecast, grid, goal)
    reaches = "reaches the goal" if goal.target is not None else "would be recommended"
    if smallest is None:
        without_noise = forecast.without_noise
        margins = goal.margin(without_noise, forecast), goal.public_margin(without_noise, forecast)
        more_rows = all(gain > 0.0 for gain, _ in margins)
        remedy = "more rows would help" if more_rows else "a model without noise would not either"
        texts.append(f"None of the tried combinations of ε and rounds {reaches}; {remedy}.")
    elif smallest[0] > grid.own[0] or smallest[1] != grid.own[1]:
        texts.append(f"ε = {smallest[0]:.4g} with {smallest[1]} rounds {reaches}.")
    return texts


def _with_title(text: str, name: str) -> str:
    """Return a value with the title of its measure: ``AUC 0.81``."""
    return text if name in SELF_EXPLANATORY else f"{MEASURES[name].title} {text}"


def forecast_text(values: Sequence[Value], name: str) -> str:
    """Return ``78.3 ± 1.2%`` for one forecast, ``56.0–85.1%`` for several."""
    low, high = (choose(values, key=lambda value: value.mean) for choose in (min, max))
    texts = [value_text(value.mean, name) for value in (low, high)]
    if texts[0] != texts[1]:
        return f"{texts[0].removesuffix('%')}–{texts[1]}"
    spread = f"{low.spread:.2g}" if name in ("rmse", "deviance") else value_text(low.spread, name)
    return f"{texts[0].removesuffix('%')} ± {spread}" if len(values) == 1 and low.spread else texts[0]
