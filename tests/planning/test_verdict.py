"""Recommendations, goals, and rounds that are written into a study."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import planned
import pytest
from looping import case

from dpadmm.errors import StudyError
from dpadmm.planning.forecast import ForecastGrid, Outlook, Value
from dpadmm.planning.plan import (
    Goal,
    best_rounds,
    goal_from,
    joined,
    judged,
    least_epsilon,
    with_n_rounds,
)
from dpadmm.studies.reading import study_from

GRID = ForecastGrid((0.5, 1.0, 2.0), (10, 20), (1.0, 20))


def outlook(own, *, spread=0.01, ceiling=0.9, baseline=0.5, others=None, name="accuracy", alone=None, paired=0.01):
    means = {(e, t): own for e in GRID.epsilons for t in GRID.rounds} | (others or {})
    cells = {cell: {name: Value(mean, luck=spread)} for cell, mean in means.items()}
    best = {name: Value(ceiling, sampling=0.01, paired=paired)}
    public = None if alone is None else {name: Value(alone)}
    return Outlook("public rows", cells, best, {name: baseline}, 1000, public, None if alone is None else 14)


def test_a_goal_outside_the_spread_decides():
    for own, goal, word in [
        (0.80, 0.85, "not recommended"),
        (0.80, 0.78, "recommended"),
        (0.80, 0.805, "inconclusive"),
        (0.80, 0.795, "inconclusive"),
    ]:
        with case(own, goal, word):
            verdict = judged(outlook(own), GRID, Goal("accuracy", goal))
            assert (verdict.word, verdict.goal) == (word, goal)


def test_without_a_goal_a_constant_guess_must_be_clearly_beaten():
    for own, noise, word in [
        (0.53, 0.0, "recommended"),
        (0.53, 0.9, "recommended"),  # rows that are told apart are told apart
        (0.515, 0.4, "inconclusive"),
        (0.515, 0.7, "not recommended"),
        (0.49, 0.0, "not recommended"),
    ]:
        with case(own, noise, word):
            verdict = judged(outlook(own, name="auc"), GRID, Goal("auc"), noise_all=noise)
            assert (verdict.word, verdict.goal) == (word, 0.5)
            assert ("no better than a constant prediction" in verdict.reason) == (word == "not recommended")


def test_less_is_better_for_errors():
    errors = outlook(12.0, spread=0.5, ceiling=10.0, baseline=20.0, name="rmse")
    assert judged(errors, GRID, Goal("rmse")).word == "recommended"
    assert judged(errors, GRID, Goal("rmse", 11.0)).word == "not recommended"
    assert judged(errors, GRID, Goal("rmse", 13.0)).word == "recommended"


def test_what_cannot_be_reached_without_privacy_either_is_said():
    assert "out of reach without noise" in judged(outlook(0.8), GRID, Goal("accuracy", 0.95)).reason
    assert "out of reach without noise" not in judged(outlook(0.8), GRID, Goal("accuracy", 0.85)).reason
    nothing = outlook(0.51, ceiling=0.51)
    assert judged(nothing, GRID, Goal("accuracy")).word == "not recommended"
    assert judged(nothing, GRID, Goal("accuracy", 0.6)).word == "not recommended"
    assert judged(nothing, GRID, Goal("accuracy", 0.4)).word == "recommended"


def test_public_rows_alone_must_be_clearly_beaten_too():
    for alone, goal, word, reason in [
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
        with case(alone, goal):
            verdict = judged(outlook(0.8, name="auc", alone=alone), GRID, goal)
            assert (verdict.word, verdict.reason) == (word, reason)
    sure = outlook(0.8, name="auc", alone=0.798, spread=0.0005)
    assert judged(sure, GRID, Goal("auc")).word == "recommended"
    for alone, spread, word in [(0.798, 0.0039, "not recommended"), (0.798, 0.0041, "inconclusive")]:  # 0.002 + 2·0.004
        verdict = judged(outlook(0.8, name="auc", alone=alone, spread=spread), GRID, Goal("auc"))
        assert (verdict.word, "hardly better than" in verdict.reason) == (word, word == "not recommended")
    for spread, word in [(0.13, "not recommended"), (0.15, "inconclusive")]:  # 2·0.14 = 0.02·14
        errors = outlook(14.0, spread=spread, ceiling=10.0, baseline=20.0, name="rmse", alone=14.0)
        assert judged(errors, GRID, Goal("rmse")).word == word
    errors = outlook(12.0, spread=0.5, ceiling=10.0, baseline=20.0, name="rmse", alone=14.0)
    assert judged(errors, GRID, Goal("rmse")).reason.endswith("error 12, 2 below the model from public rows alone")


def test_the_difference_from_public_rows_has_its_own_standard_error():
    wide = outlook(0.8, name="auc", alone=0.77, spread=0.0)
    assert judged(wide, GRID, Goal("auc")).word == "recommended"
    cells = {cell: {"auc": Value(0.8, from_public=0.02)} for cell in wide.cells}
    assert judged(replace(wide, cells=cells), GRID, Goal("auc")).word == "inconclusive"


def test_few_public_rows_are_too_few_to_tell():
    few = "the 1,000 public rows (14 of the rarest class) are too few to tell"
    for ceiling, paired, word, reason in [
        (0.55, 0.08, "inconclusive", few),
        (0.42, 0.08, "inconclusive", few),  # below a half by chance
        (0.51, 0.01, "not recommended", "even without noise these rows show no signal"),
        (0.51, 0.02, "inconclusive", few),  # 0.51 + 2·0.02 = 0.55
        (0.49, 0.024, "not recommended", "even without noise these rows show no signal"),
    ]:
        with case(ceiling, paired):
            found = outlook(0.5, ceiling=ceiling, paired=paired, name="auc", alone=0.5)
            verdict = judged(found, GRID, Goal("auc"))
            assert (verdict.word, verdict.reason) == (word, reason)
    numbers = outlook(20.0, ceiling=19.5, baseline=20.0, paired=0.8, name="rmse", alone=20.0)
    assert judged(numbers, GRID, Goal("rmse")).word == "inconclusive"
    assert judged(replace(numbers, ceiling={"rmse": Value(19.5, paired=0.7)}), GRID, Goal("rmse")).word == (
        "not recommended"
    )
    synthetic = outlook(0.5, ceiling=0.55, paired=0.08, name="auc")
    assert judged(synthetic, GRID, Goal("auc")).word == "not recommended"


def test_scenarios_that_disagree_leave_it_open():
    go, no = (judged(outlook(own), GRID, Goal("accuracy", 0.7)) for own in (0.8, 0.6))
    assert joined([go, go]) == go
    assert joined([no, no]).word == "not recommended"
    assert joined([go, no]).word == "inconclusive"


def test_better_rounds_and_the_least_epsilon_are_named():
    goal, plain = Goal("accuracy", 0.84), outlook(0.75)
    assert best_rounds([plain], GRID, goal) is None
    better = outlook(0.75, others={(1.0, 10): 0.79, (2.0, 10): 0.85})
    assert best_rounds([better], GRID, goal) == 10
    assert best_rounds([better, plain], GRID, goal) == 10
    assert best_rounds([outlook(0.75, spread=0.05, others={(1.0, 10): 0.79})], GRID, goal) is None  # luck
    errors = outlook(0.75, others={(1.0, 10): 0.79}, name="log_loss")
    assert best_rounds([errors], GRID, Goal("log_loss", 0.5)) is None
    assert least_epsilon(better, GRID, goal) == (2.0, 10)
    assert least_epsilon(better, GRID, Goal("accuracy", 0.88)) is None
    assert least_epsilon(outlook(0.515, others={(2.0, 20): 0.53}), GRID, Goal("accuracy")) == (2.0, 20)
    beside = outlook(0.515, others={(1.0, 20): 0.53, (2.0, 20): 0.6}, alone=0.52)
    assert least_epsilon(beside, GRID, Goal("accuracy")) == (2.0, 20)
    assert least_epsilon(beside, GRID, Goal("accuracy", 0.525)) == (1.0, 20)


def test_goals_are_read():
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
        with case(text), pytest.raises(StudyError, match="say n_rounds = 33 by hand"):
            with_n_rounds(text, 33)
