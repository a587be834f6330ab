"""Go or no-go."""

from __future__ import annotations

import pytest
from looping import case

from dpadmm.runs.planning.forecast import Cell, Grid, Outlook, Value
from dpadmm.runs.planning.plan import best_rounds, joined, judged, least_epsilon, rounds_help, too_short

GRID = Grid((0.5, 1.0, 2.0), (10, 20), (1.0, 20))


def outlook(own, *, spread=0.01, ceiling=0.9, baseline=0.5, others=None):
    means = {(e, t): own for e in GRID.epsilons for t in GRID.rounds} | (others or {})
    cells = tuple(Cell(e, t, Value(mean, luck=spread)) for (e, t), mean in means.items())
    return Outlook("public rows", cells, Value(ceiling, sampling=0.01), baseline, 1000)


def test_a_goal_outside_the_spread_decides():
    for own, goal, word in [
        (0.80, None, "go"),
        (0.60, None, "no-go"),
        (0.705, None, "open"),
        (0.80, 0.85, "no-go"),
        (0.80, 0.78, "go"),
        (0.80, 0.805, "open"),
        (0.80, 0.795, "open"),
    ]:
        with case(own, goal, word):
            verdict = judged(outlook(own), GRID, goal=goal, higher=True)
            assert verdict.word == word
            assert verdict.goal == pytest.approx(0.7 if goal is None else goal)


def test_less_is_better_for_errors():
    errors = outlook(12.0, spread=0.5, ceiling=10.0, baseline=20.0)
    assert judged(errors, GRID, goal=None, higher=False).word == "go"
    assert judged(errors, GRID, goal=11.0, higher=False).word == "no-go"
    assert judged(errors, GRID, goal=13.0, higher=False).word == "go"


def test_what_cannot_be_reached_without_privacy_either_is_said():
    assert "even without privacy" in judged(outlook(0.8), GRID, goal=0.95, higher=True).reason
    assert "even without privacy" not in judged(outlook(0.8), GRID, goal=0.85, higher=True).reason
    nothing = outlook(0.51, ceiling=0.51)
    assert judged(nothing, GRID, goal=None, higher=True).word == "no-go"
    assert judged(nothing, GRID, goal=0.6, higher=True).word == "no-go"
    assert judged(nothing, GRID, goal=0.4, higher=True).word == "go"


def test_scenarios_that_disagree_leave_it_open():
    go, no = (judged(outlook(own), GRID, goal=0.7, higher=True) for own in (0.8, 0.6))
    assert joined([go, go]) == go
    assert joined([no, no]).word == "no-go"
    assert joined([go, no]).word == "open"


def test_better_rounds_and_the_least_epsilon_are_named():
    plain = outlook(0.75)
    assert best_rounds(plain, GRID, higher=True) is None
    better = outlook(0.75, others={(1.0, 10): 0.79, (2.0, 10): 0.85})
    assert best_rounds(better, GRID, higher=True).n_rounds == 10
    assert best_rounds(better, GRID, higher=False) is None
    verdict = judged(better, GRID, goal=0.84, higher=True)
    assert least_epsilon(better, GRID, verdict, higher=True) == (2.0, 10)
    verdict = judged(better, GRID, goal=0.88, higher=True)
    assert least_epsilon(better, GRID, verdict, higher=True) is None


def test_rounds_that_would_undo_a_no_go_are_found_where_there_are_any():
    def found(each, goal, higher=True):
        return rounds_help(each, GRID, judged(each, GRID, goal=goal, higher=higher), higher=higher)

    better = outlook(0.75, others={(1.0, 10): 0.79})
    assert found(better, 0.785) == 10
    assert found(better, 0.795) == 10  # within the spread, so open
    assert found(better, 0.85) is None  # not reached
    assert found(better, 0.70) is None  # not needed
    assert found(outlook(0.75), 0.785) is None
    assert found(outlook(12.0, spread=0.1, ceiling=9.0, baseline=20.0, others={(1.0, 10): 10.0}), 11.0, False) == 10
    hopeless = outlook(0.3, ceiling=0.51, others={(1.0, 10): 0.5})
    assert found(hopeless, None) is None  # nothing is learnt, in however many rounds


def test_a_run_is_too_short_where_the_most_rounds_do_best_and_more_epsilon_gives_nothing():
    grid = Grid(GRID.epsilons, GRID.rounds, (1.0, 10))
    longer = {(e, 20): 0.80 for e in GRID.epsilons}
    assert too_short(outlook(0.75, others=longer), grid, higher=True)
    assert not too_short(outlook(0.75), grid, higher=True)
    assert not too_short(outlook(0.75, others=longer | {(2.0, 10): 0.79}), grid, higher=True)
    assert not too_short(outlook(0.75, others={(1.0, 10): 0.80}), GRID, higher=True)  # fewer do best
    own_is_most = Grid((0.5, 1.0), GRID.rounds, (1.0, 10))  # no more ε was tried
    assert not too_short(outlook(0.75, others=longer), own_is_most, higher=True)
