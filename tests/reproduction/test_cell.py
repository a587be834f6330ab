"""A cell of a grid: its lines are the measurements of simulate, with budget and bound."""

from __future__ import annotations

import numpy as np
import pytest
from grids import small_rows

from dpadmm.accounting.gaussian import exact_epsilon, paper_epsilon
from dpadmm.methods.theory import nonsmooth_bound, smooth_bound
from dpadmm.studies.settings import Settings
from dpadmm.training.simulate import simulate
from reproduction.grid import Cell
from reproduction.results import MEASURES, SCHEMA, TIMING
from reproduction.runner import CellRuns

SETTINGS = Settings(n_agents=4, epsilon=1.0, delta=1e-3, n_rounds=7, metrics_every=3, seed=5)


@pytest.fixture(scope="module")
def bench():
    return CellRuns(small_rows())


def lines(bench, **changes):

    return bench.run(Cell("small", SETTINGS.with_changes(**changes))).to_pylist()


def test_lines_match_simulate(bench):
    result = simulate(small_rows(), settings=SETTINGS)
    found = lines(bench)
    assert [line["round"] for line in found] == [1, 3, 6, 7]
    for name in set(MEASURES) & set(result.trace.columns):
        assert [line[name] for line in found] == result.trace.columns[name].tolist(), name
    for line in found:
        assert (line["status"], line["reason"], line["data"], line["timed"]) == ("done", None, "small", False)
        assert (line["n_agents"], line["epsilon"], line["round_epsilon"]) == (4, 1.0, None)
        assert all(line[name] > 0.0 for name in TIMING)
        assert set(line) == set(SCHEMA.names)


def test_lines_contain_the_total_and_the_current_budget(bench):
    found = lines(bench)
    z = found[0]["z"]
    assert 1.0 - 1e-6 < found[0]["total_epsilon"] <= 1.0
    for line in found:
        k = line["round"]
        assert line["total_epsilon"] == found[0]["total_epsilon"]
        assert line["spent_epsilon"] == pytest.approx(exact_epsilon(np.sqrt(k) / z, 1e-3))
        assert line["spent_paper_epsilon"] == pytest.approx(paper_epsilon(z, k, 1e-3))
    assert found[-1]["spent_epsilon"] == pytest.approx(found[-1]["total_epsilon"])
    assert found[-1]["spent_paper_epsilon"] == pytest.approx(found[-1]["total_paper_epsilon"])
    assert found[0]["spent_epsilon"] < found[1]["spent_epsilon"]


@pytest.mark.parametrize(("regularizer", "theorem"), [("l2", smooth_bound), ("l1", nonsmooth_bound)])
def test_bound_follows_the_theorem(bench, regularizer, theorem):
    from dataclasses import replace

    result = simulate(small_rows(), settings=replace(SETTINGS, regularizer=regularizer))
    for line in lines(bench, regularizer=regularizer):
        assert line["bound"] == theorem(result.method.constants, n_rounds=line["round"], rho=0.1, beta=0.1)


def test_no_bound_where_the_theorem_does_not_apply(bench):
    for changes in ({"method": {"schedule": "constant"}}, {"participation": 0.5}):
        assert {line["bound"] for line in lines(bench, **changes)} == {None}


def test_runs_without_privacy_have_no_epsilon(bench):
    for changes in ({"method": "centralized", "epsilon": None}, {"epsilon": None, "noise_multiplier": 0.0}):
        for line in lines(bench, **changes):
            private = ("total_epsilon", "total_paper_epsilon", "spent_epsilon", "z", "accountant")
            assert [line[name] for name in private] == [None] * 5


def test_diverged_run_stores_its_reason(bench):
    (line,) = lines(bench, method={"name": "dp_sgd", "learning_rate": 1e9}, alpha=1.0, n_rounds=100)
    assert (line["status"], line["round"], line["test_error_global"]) == ("refused", 0, None)
    assert line["reason"].startswith("dp_sgd diverged in round ")


def test_inapplicable_method_stores_its_reason(bench):
    (line,) = lines(bench, epsilon=None, round_epsilon=5.0)
    assert (line["status"], line["round"], line["test_error_global"]) == ("refused", 0, None)
    assert "epsilon" in line["reason"]
    assert line["method"] == "dp_admm"


def test_rows_assigned_in_advance_give_the_same_result(bench):
    changes = [
        {},
        {"regularizer": "l1"},
        {"n_agents": 7},
        {"seed": 6},
        {"test_rows": 0.5},
        {"alpha": 0.1},
    ]
    for change in [*changes, *reversed(changes)]:
        fresh = lines(CellRuns(small_rows()), **change)
        for old, new in zip(lines(bench, **change), fresh, strict=True):
            assert {k: v for k, v in old.items() if k not in TIMING} == {
                k: v for k, v in new.items() if k not in TIMING
            }
