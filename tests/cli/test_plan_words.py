"""Sentences of ``dpadmm plan`` about forecasts that are given here."""

from __future__ import annotations

import tomllib

import numpy as np
import planned
from looping import case
from printed import printed

from dpadmm.cli.plan import ROUNDS, show, time_in_words
from dpadmm.runs.planning.forecast import Cell, Grid, Outlook, Value
from dpadmm.runs.planning.plan import Plan, costs_of, judged
from dpadmm.study.study import study_from

SIZES = np.array([400] * 5)
GRID = Grid((0.5, 1.0, 2.0), (20, 100), (1.0, 20))


def shown(means: dict[int, float], *, goal: float) -> str:
    """What is shown where ε does not matter, and so many rounds reach so much."""
    study = study_from(tomllib.loads(planned.STUDY))
    cells = tuple(Cell(e, t, Value(means[t], luck=0.01)) for e, t in GRID.cells)
    outlook = Outlook("public rows", cells, Value(0.9, sampling=0.01), 0.5, 1000)
    verdict = judged(outlook, GRID, goal=goal, higher=True)
    costs = costs_of(study, SIZES, 1.2)
    plan = Plan(study, SIZES, costs, GRID, (outlook,), (verdict,), None, 2, goal_given=True)
    return " ".join(printed(100, show, plan).split())


def test_a_no_go_that_more_rounds_would_undo_says_so_in_its_line():
    text = shown({20: 0.70, 100: 0.84}, goal=0.8)
    missed = "NO-GO: the goal is missed by more than the spread"
    assert text.endswith(f"{missed} in 20 rounds; with n_rounds = 100 it is not: see above.")
    assert "With 100 rounds the same ε reaches 84.0 ± 1.0%" in text
    assert shown({20: 0.70, 100: 0.71}, goal=0.8).endswith(f"{missed}.")


def test_a_run_that_is_too_short_is_told_from_rows_that_are_too_few():
    no_cell = "None of the tried combinations of ε and rounds reaches the goal; "
    assert f"{no_cell}the run is too short for ε to matter: try --rounds 400." in shown({20: 0.70, 100: 0.76}, goal=0.8)
    assert f"{no_cell}more rows would help." in shown({20: 0.70, 100: 0.60}, goal=0.8)
    assert f"{no_cell}a model without privacy would not reach it either." in shown({20: 0.70, 100: 0.76}, goal=0.95)


def test_rounds_are_looked_at_up_to_four_times_those_of_a_draft():
    assert [int(each) for each in ROUNDS.split(",")] == [50, 100, 200, 800]


def test_time_is_told_in_words():
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
            assert time_in_words(seconds) == words
