"""Recommendations, goals, and numbers of rounds written into a study."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import planned
import pytest
from looping import case

from dpadmm.errors import StudyError
from dpadmm.planning.forecast import ForecastGrid, ScenarioForecast, Value
from dpadmm.planning.plan import with_n_rounds
from dpadmm.planning.recommendation import (
    Goal,
    best_rounds,
    combine,
    goal_from,
    min_epsilon,
    recommend,
)
from dpadmm.studies.reading import study_from

GRID = ForecastGrid((0.5, 1.0, 2.0), (10, 20), (1.0, 20))


def forecast(
    own,
    *,
    spread=0.01,
    without_noise=0.9,
    constant=0.5,
    others=None,
    name="accuracy",
    public=None,
    std_error_vs_constant=0.01,
):
    means = {(e, t): own for e in GRID.epsilons for t in GRID.rounds} | (others or {})
    cells = {cell: {name: Value(mean, std=spread)} for cell, mean in means.items()}
    best = {name: Value(without_noise, std_error=0.01, std_error_vs_constant=std_error_vs_constant)}
    public_model = None if public is None else {name: Value(public)}
    return ScenarioForecast(
        "public rows", cells, best, {name: constant}, 1000, public_model, None if public is None else 14
    )


def test_a_goal_outside_the_spread_decides():
    for own, goal, word in [
        (0.80, 0.85, "not recommended"),
        (0.80, 0.78, "recommended"),
        (0.80, 0.805, "inconclusive"),
        (0.80, 0.795, "inconclusive"),
    ]:
        with case(own, goal, word):
            verdict = recommend(forecast(own), GRID, Goal("accuracy", goal))
            assert (verdict.word, verdict.goal) == (word, goal)


def test_without_a_goal_the_forecast_must_be_clearly_better_than_a_constant_prediction():
    for own, noise, word in [
        (0.53, 0.0, "recommended"),
        (0.53, 0.9, "recommended"),  # rows that are told apart are told apart
        (0.515, 0.4, "inconclusive"),
        (0.515, 0.7, "not recommended"),
        (0.49, 0.0, "not recommended"),
    ]:
        with case(own, noise, word):
            verdict = recommend(forecast(own, name="auc"), GRID, Goal("auc"), total_noise=noise)
            assert (verdict.word, verdict.goal) == (word, 0.5)
            assert ("no better than a constant prediction" in verdict.reason) == (word == "not recommended")


def test_smaller_errors_are_better():
    errors = forecast(12.0, spread=0.5, without_noise=10.0, constant=20.0, name="rmse")
    assert recommend(errors, GRID, Goal("rmse")).word == "recommended"
    assert recommend(errors, GRID, Goal("rmse", 11.0)).word == "not recommended"
    assert recommend(errors, GRID, Goal("rmse", 13.0)).word == "recommended"


def test_a_goal_out_of_reach_without_noise_is_reported():
    assert "out of reach without noise" in recommend(forecast(0.8), GRID, Goal("accuracy", 0.95)).reason
    assert "out of reach without noise" not in recommend(forecast(0.8), GRID, Goal("accuracy", 0.85)).reason
    nothing = forecast(0.51, without_noise=0.51)
    assert recommend(nothing, GRID, Goal("accuracy")).word == "not recommended"
    assert recommend(nothing, GRID, Goal("accuracy", 0.6)).word == "not recommended"
    assert recommend(nothing, GRID, Goal("accuracy", 0.4)).word == "recommended"


def test_the_forecast_must_be_clearly_better_than_public_rows_alone():
    for public, goal, word, reason in [
        (0.77, Goal("auc"), "recommended", "forecast AUC 0.800, 0.030 above the model from public rows alone"),
        (0.79, Goal("auc"), "inconclusive", "forecast AUC 0.800, not clearly better than the model from public rows "
         "alone (0.790)"),
        (0.80, Goal("auc"), "inconclusive", "forecast AUC 0.800, not clearly better than the model from public rows "
         "alone (0.800)"),
        (0.82, Goal("auc"), "not recommended", "forecast AUC 0.800, no better than the model from public rows alone "
         "(0.820)"),
        (0.77, Goal("auc", 0.75), "recommended", "forecast AUC 0.800, 0.050 above the goal, 0.030 above the model "
         "from public rows alone"),
        (0.82, Goal("auc", 0.75), "not recommended", "forecast AUC 0.800, 0.050 above the goal, no better than the "
         "model from public rows alone (0.820)"),
        (0.70, Goal("auc", 0.85), "not recommended", "forecast AUC 0.800, 0.050 below the goal"),
    ]:  # fmt: skip
        with case(public, goal):
            verdict = recommend(forecast(0.8, name="auc", public=public), GRID, goal)
            assert (verdict.word, verdict.reason) == (word, reason)
    sure = forecast(0.8, name="auc", public=0.798, spread=0.0005)
    assert recommend(sure, GRID, Goal("auc")).word == "recommended"
    for public, spread, word in [
        (0.798, 0.0039, "not recommended"),
        (0.798, 0.0041, "inconclusive"),
    ]:  # 0.002 + 2·0.004
        verdict = recommend(forecast(0.8, name="auc", public=public, spread=spread), GRID, Goal("auc"))
        assert (verdict.word, "hardly better than" in verdict.reason) == (word, word == "not recommended")
    for spread, word in [(0.13, "not recommended"), (0.15, "inconclusive")]:  # 2·0.14 = 0.02·14
        errors = forecast(14.0, spread=spread, without_noise=10.0, constant=20.0, name="rmse", public=14.0)
        assert recommend(errors, GRID, Goal("rmse")).word == word
    errors = forecast(12.0, spread=0.5, without_noise=10.0, constant=20.0, name="rmse", public=14.0)
    assert recommend(errors, GRID, Goal("rmse")).reason.endswith("error 12, 2 below the model from public rows alone")


def test_the_difference_from_public_rows_has_its_own_standard_error():
    wide = forecast(0.8, name="auc", public=0.77, spread=0.0)
    assert recommend(wide, GRID, Goal("auc")).word == "recommended"
    cells = {cell: {"auc": Value(0.8, std_error_vs_public=0.02)} for cell in wide.cells}
    assert recommend(replace(wide, cells=cells), GRID, Goal("auc")).word == "inconclusive"


def test_few_public_rows_are_inconclusive():
    few = "the 1,000 public rows (14 of the rarest class) are too few for a conclusion"
    for without_noise, std_error_vs_constant, word, reason in [
        (0.55, 0.08, "inconclusive", few),
        (0.42, 0.08, "inconclusive", few),  # below a half by chance
        (0.51, 0.01, "not recommended", "even without noise these rows show no signal"),
        (0.51, 0.02, "inconclusive", few),  # 0.51 + 2·0.02 = 0.55
        (0.49, 0.024, "not recommended", "even without noise these rows show no signal"),
    ]:
        with case(without_noise, std_error_vs_constant):
            found = forecast(
                0.5, without_noise=without_noise, std_error_vs_constant=std_error_vs_constant, name="auc", public=0.5
            )
            verdict = recommend(found, GRID, Goal("auc"))
            assert (verdict.word, verdict.reason) == (word, reason)
    numbers = forecast(20.0, without_noise=19.5, constant=20.0, std_error_vs_constant=0.8, name="rmse", public=20.0)
    assert recommend(numbers, GRID, Goal("rmse")).word == "inconclusive"
    assert recommend(
        replace(numbers, without_noise={"rmse": Value(19.5, std_error_vs_constant=0.7)}), GRID, Goal("rmse")
    ).word == ("not recommended")
    synthetic = forecast(0.5, without_noise=0.55, std_error_vs_constant=0.08, name="auc")
    assert recommend(synthetic, GRID, Goal("auc")).word == "not recommended"


def test_disagreeing_scenarios_are_inconclusive():
    go, no = (recommend(forecast(own), GRID, Goal("accuracy", 0.7)) for own in (0.8, 0.6))
    assert combine([go, go]) == go
    assert combine([no, no]).word == "not recommended"
    assert combine([go, no]).word == "inconclusive"


def test_better_rounds_and_the_least_epsilon_are_named():
    goal, plain = Goal("accuracy", 0.84), forecast(0.75)
    assert best_rounds([plain], GRID, goal) is None
    better = forecast(0.75, others={(1.0, 10): 0.79, (2.0, 10): 0.85})
    assert best_rounds([better], GRID, goal) == 10
    assert best_rounds([better, plain], GRID, goal) == 10
    assert best_rounds([forecast(0.75, spread=0.05, others={(1.0, 10): 0.79})], GRID, goal) is None  # std
    errors = forecast(0.75, others={(1.0, 10): 0.79}, name="log_loss")
    assert best_rounds([errors], GRID, Goal("log_loss", 0.5)) is None
    assert min_epsilon(better, GRID, goal) == (2.0, 10)
    assert min_epsilon(better, GRID, Goal("accuracy", 0.88)) is None
    assert min_epsilon(forecast(0.515, others={(2.0, 20): 0.53}), GRID, Goal("accuracy")) == (2.0, 20)
    beside = forecast(0.515, others={(1.0, 20): 0.53, (2.0, 20): 0.6}, public=0.52)
    assert min_epsilon(beside, GRID, Goal("accuracy")) == (2.0, 20)
    assert min_epsilon(beside, GRID, Goal("accuracy", 0.525)) == (1.0, 20)


def test_goals_are_parsed():
    study, numbers = (study_from(tomllib.loads(text)) for text in (planned.STUDY, planned.REGRESSION))
    for text, goal in [
        (None, Goal("auc")),
        ("0.8", Goal("accuracy", 0.8)),
        ("auc=0.8", Goal("auc", 0.8)),
        ("AUC = 0.8", Goal("auc", 0.8)),
        ("log-loss=1.2", Goal("log_loss", 1.2)),
        ("sensitivity=.6", Goal("sensitivity", 0.6)),
    ]:
        with case(text):
            assert goal_from(text, study) == goal
    assert goal_from(None, numbers) == Goal("rmse")
    assert goal_from("12", numbers) == goal_from("rmse=12", numbers) == Goal("rmse", 12.0)
    for text in ("1.5", "auc=", "auc=nan", "overconfidence=0.1", "rmse=2", "0"):
        with case(text), pytest.raises(StudyError, match="goal must be an accuracy"):
            goal_from(text, study)
    with pytest.raises(StudyError, match="goal must be a positive error"):
        goal_from("auc=0.8", numbers)


def test_rounds_are_written_and_nothing_else_is_touched():
    line = "n_rounds = 20"
    assert line in planned.STUDY
    for text, wanted in [
        (planned.STUDY, planned.STUDY.replace(line, "n_rounds = 33")),
        (planned.STUDY.replace(line, f"{line}  # few"), planned.STUDY.replace(line, "n_rounds = 33  # few")),
        (planned.STUDY.replace(f"{line}\n", "# n_rounds\n"), planned.STUDY.replace(line, "n_rounds = 33\n# n_rounds")),
        ('name = "x"\n[privacy]\nepsilon = 1', 'name = "x"\n[privacy]\nepsilon = 1\n\n[training]\nn_rounds = 33\n'),
        ("[training]\r\nintercept = true\r\n", "[training]\r\nn_rounds = 33\r\nintercept = true\r\n"),
        ("[ training ]", "[ training ]\nn_rounds = 33\n"),
    ]:
        with case(text):
            assert with_n_rounds(text, 33) == wanted
    for text in ("training = {n_rounds = 5}\n", "training.intercept = true\n"):
        with case(text), pytest.raises(StudyError, match="set n_rounds = 33 by hand"):
            with_n_rounds(text, 33)
