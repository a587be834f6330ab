"""Measures of a run: global and local models by average and method."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from looping import case

from dpadmm import simulate
from dpadmm.engine.metrics import COLUMNS
from dpadmm.models.run import Result

OPTIONS = {"n_agents": 4, "n_rounds": 10, "seed": 1, "epsilon": 2.0, "alpha": 0.05, "test_rows": 0.2}


def run(**options: object) -> Result:
    return simulate("synthetic", **{**OPTIONS, **options})  # type: ignore[arg-type]


def test_the_measured_global_model_is_the_released_one() -> None:
    for method, average in product(["dp_admm", "dp_sgd"], ["last", "all", "tail"]):
        with case(method, average):
            result = run(method=method, average=average)
            end, weights = result.trace.last(), result.model.weights
            assert end["objective_global"] == pytest.approx(result.problem.objective(result.rows, weights))
            penalty = 0.05 * float(result.problem.regularizer.value(weights))
            assert end["train_loss_global"] == pytest.approx(end["objective_global"] - penalty)
            assert end["weight_norm_global"] == pytest.approx(np.linalg.norm(weights))
            assert set(end) <= set(COLUMNS)


def test_averages_differ() -> None:
    losses = {average: run(average=average).trace.last()["train_loss_global"] for average in ("last", "all", "tail")}
    assert len(set(losses.values())) == 3


def test_local_measures_without_local_models_are_the_global_ones() -> None:
    end = run(method="dp_sgd", average="tail").trace.last()
    assert end["train_loss_local"] == end["train_loss_global"]
    assert end["test_error_local"] == end["test_error_global"]
    assert "augmented_objective" not in end


def test_local_models_are_measured_each_on_its_own_rows() -> None:
    result = run()
    local = result.problem.losses(result.rows, result.outcome.released).mean()
    assert result.trace.last()["train_loss_local"] == pytest.approx(float(local))


@pytest.mark.parametrize(("method", "some"), [("admm", True), ("dp_admm", False)])
def test_iterations_of_local_solves_are_counted(method: str, some: bool) -> None:
    result = run(method=method, epsilon=None if method == "admm" else 1.0)
    assert (result.iterations >= 1.0) == some
