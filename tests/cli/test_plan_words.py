"""Sentences of ``dpadmm plan`` for given forecasts."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import planned
from looping import case
from printed import printed

from dpadmm.cli.console import show
from dpadmm.planning.costs import costs_of
from dpadmm.planning.forecast import ForecastGrid, ScenarioForecast, Value
from dpadmm.planning.intervals import Intervals
from dpadmm.planning.plan import Plan
from dpadmm.planning.recommendation import Goal
from dpadmm.planning.rendering import describe_time
from dpadmm.studies.reading import study_from
from dpadmm.training.plan import other_rounds

SIZES = np.array([400] * 5)
GRID = ForecastGrid((0.5, 1.0, 2.0), (20, 100), (1.0, 20))


def plan_of(means: dict[int, float], goal: Goal, *, log_loss=0.5, sensitivity=0.6, alone: float | None = None) -> Plan:
    """Return a plan with given accuracies by number of rounds, for every ε."""
    study = study_from(tomllib.loads(planned.STUDY))

    def both(mean: float, std: float = 0.0) -> dict[str, Value]:
        values = {"accuracy": mean, "log_loss": log_loss, "sensitivity": sensitivity}
        return {name: Value(each, std=std) for name, each in values.items()}

    cells = {(e, t): both(means[t], 0.01) for e, t in GRID.cells}
    forecast = ScenarioForecast(
        "public rows",
        cells,
        both(0.9),
        {"accuracy": 0.5, "log_loss": 0.69, "sensitivity": 0.0},
        1000,
        None if alone is None else both(alone),
    )
    public = None if alone is None else Path("public.csv")
    return Plan(study, SIZES, costs_of(study, SIZES, 1.2), GRID, (forecast,), goal, public, 2)


def shown(*given, **more) -> str:
    return " ".join(printed(100, show, plan_of(*given, **more)).split())


def test_rounds_that_would_reach_a_missed_goal_are_named():
    goal, missed = Goal("accuracy", 0.8), "Not recommended: forecast accuracy 70.0%, 10.0 points below the goal."
    text = shown({20: 0.70, 100: 0.84}, goal)
    assert text.endswith(f"Goal: 80.0%. ε = 0.5 with 100 rounds reaches the goal. {missed}")
    assert "With 100 rounds the same ε reaches 84.0%; even more rounds may be better." in text
    assert plan_of({20: 0.70, 100: 0.84}, goal).n_rounds == 100
    assert plan_of({20: 0.70, 100: 0.70}, goal).n_rounds == 20
    assert shown({20: 0.70, 100: 0.71}, goal).endswith(missed)


def test_settings_that_reach_a_goal_are_named():
    no_cell = "None of the tried combinations of ε and rounds reaches the goal; "
    assert f"{no_cell}more rows would help." in shown({20: 0.70, 100: 0.60}, Goal("accuracy", 0.8))
    beyond = f"{no_cell}a model without noise would not either."
    assert beyond in shown({20: 0.70, 100: 0.76}, Goal("accuracy", 0.95))


def test_public_rows_alone_are_compared_with_the_study():
    text = shown({20: 0.80, 100: 0.80}, Goal("accuracy", 0.7), alone=0.75)
    assert (
        "The public rows alone reach 75.0%; the study, which starts from them, is forecast to reach 80.0%. "
        "The study does not list these rows: without train --public, training does not start from them."
    ) in text
    verdict = "forecast accuracy 80.0%, 10.0 points above the goal, 5.0 points above the model from public rows alone."
    assert text.endswith(f"Recommended: {verdict}")
    text = shown({20: 0.80, 100: 0.80}, Goal("log_loss", 0.6), alone=0.85)
    assert "alone reach 85.0%, log-loss 0.500; the study, which" in text
    assert "forecast to reach 80.0%, log-loss 0.500." in text
    assert "Inconclusive: forecast log-loss 0.500, 0.100 below the goal, not clearly better than the model from" in text
    assert "No noise: a model of the public rows without noise" in text
    assert "no privacy" not in text


def test_a_study_is_not_recommended_if_its_intervals_are_unlikely():
    made = plan_of({20: 0.80, 100: 0.80}, Goal("accuracy"))
    assert made.recommendation.word == "recommended"
    assert replace(made, intervals=Intervals(8, 10, 2000)).recommendation == made.recommendation
    unlikely = replace(made, intervals=Intervals(7, 10, 4000))
    assert unlikely.recommendation.word == "not recommended"
    text = " ".join(printed(100, show, unlikely).split())
    assert (
        "Confidence intervals: unlikely at ε = 1 with 2,000 rows (7 of 10 runs had them); about 4,000 rows would do"
    ) in text
    assert text.endswith(
        "Not recommended: the requested confidence intervals are unlikely (7 of 10 runs); forecast accuracy 80.0%, "
        "30.0 points above a constant prediction."
    )
    assert made.to_dict()["verdict"] == "recommended"
    assert unlikely.to_dict()["verdict"] == "not recommended"


def test_uninformative_probabilities_are_reported():
    warning = "Its log-loss is no better than that of a constant prediction"
    assert warning in shown({20: 0.80, 100: 0.80}, Goal("accuracy"), log_loss=0.7)
    assert warning not in shown({20: 0.80, 100: 0.80}, Goal("accuracy"))


def test_a_class_that_is_rarely_predicted_is_reported():
    hardly = "It will predict yes for hardly anyone: use its probabilities, or class weights (docs/how-to/weights.md)."
    assert hardly in shown({20: 0.80, 100: 0.80}, Goal("accuracy"), sensitivity=0.09)
    assert "hardly anyone" not in shown({20: 0.80, 100: 0.80}, Goal("accuracy"), sensitivity=0.1)


def test_rounds_to_compare_depend_on_the_method():
    study = study_from(tomllib.loads(planned.STUDY))
    assert other_rounds(study) == (50, 200, 800)
    for n_rounds, others in [(13, [5, 26]), (40, [5, 20, 80])]:
        training = study.training.with_changes(method="auto", n_rounds=n_rounds)
        assert other_rounds(replace(study, training=training)) == others


def test_durations_are_formatted():
    for seconds, words in [
        (0.2, "less than a second"),
        (1.0, "about 1 second"),
        (1.4, "about 1 second"),
        (1.6, "about 2 seconds"),
        (89.0, "about 89 seconds"),
        (90.0, "about 1.5 minutes"),
        (7200.0, "about 2.0 hours"),
    ]:
        with case(seconds, words):
            assert describe_time(seconds) == words
