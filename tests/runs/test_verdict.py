"""Go or no-go, goals, and rounds that are written into a study."""

from __future__ import annotations

import tomllib

import planned
import pytest
from looping import case

from dpadmm._base.errors import StudyError
from dpadmm.runs.planning.forecast import Grid, Outlook, Value
from dpadmm.runs.planning.plan import (
    Goal,
    best_rounds,
    goal_from,
    joined,
    judged,
    least_epsilon,
    with_n_rounds,
)
from dpadmm.study.study import study_from

GRID = Grid((0.5, 1.0, 2.0), (10, 20), (1.0, 20))


def outlook(own, *, spread=0.01, ceiling=0.9, baseline=0.5, others=None, name="accuracy"):
    means = {(e, t): own for e in GRID.epsilons for t in GRID.rounds} | (others or {})
    cells = {cell: {name: Value(mean, luck=spread)} for cell, mean in means.items()}
    return Outlook("public rows", cells, {name: Value(ceiling, sampling=0.01, paired=0.01)}, {name: baseline}, 1000)


def test_a_goal_outside_the_spread_decides():
    for own, goal, word in [
        (0.80, 0.85, "no-go"),
        (0.80, 0.78, "go"),
        (0.80, 0.805, "open"),
        (0.80, 0.795, "open"),
    ]:
        with case(own, goal, word):
            verdict = judged(outlook(own), GRID, Goal("accuracy", goal))
            assert (verdict.word, verdict.goal) == (word, goal)


def test_without_a_goal_a_constant_guess_must_be_clearly_beaten():
    for own, noise, word in [
        (0.53, 0.0, "go"),
        (0.53, 0.9, "go"),  # rows that are told apart are told apart
        (0.515, 0.4, "open"),
        (0.515, 0.7, "no-go"),
        (0.49, 0.0, "no-go"),
    ]:
        with case(own, noise, word):
            verdict = judged(outlook(own, name="auc"), GRID, Goal("auc"), noise_all=noise)
            assert (verdict.word, verdict.goal) == (word, 0.5)
            assert ("will not beat a constant guess" in verdict.reason) == (word == "no-go")


def test_less_is_better_for_errors():
    errors = outlook(12.0, spread=0.5, ceiling=10.0, baseline=20.0, name="rmse")
    assert judged(errors, GRID, Goal("rmse")).word == "go"
    assert judged(errors, GRID, Goal("rmse", 11.0)).word == "no-go"
    assert judged(errors, GRID, Goal("rmse", 13.0)).word == "go"


def test_what_cannot_be_reached_without_privacy_either_is_said():
    assert "even without privacy" in judged(outlook(0.8), GRID, Goal("accuracy", 0.95)).reason
    assert "even without privacy" not in judged(outlook(0.8), GRID, Goal("accuracy", 0.85)).reason
    nothing = outlook(0.51, ceiling=0.51)
    assert judged(nothing, GRID, Goal("accuracy")).word == "no-go"
    assert judged(nothing, GRID, Goal("accuracy", 0.6)).word == "no-go"
    assert judged(nothing, GRID, Goal("accuracy", 0.4)).word == "go"


def test_scenarios_that_disagree_leave_it_open():
    go, no = (judged(outlook(own), GRID, Goal("accuracy", 0.7)) for own in (0.8, 0.6))
    assert joined([go, go]) == go
    assert joined([no, no]).word == "no-go"
    assert joined([go, no]).word == "open"


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
