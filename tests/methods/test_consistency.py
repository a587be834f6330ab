"""With little noise the default model is the optimum on the same encoded rows, for every kind of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpadmm import simulate
from dpadmm.data.datasets.synthetic import synthetic
from dpadmm.queries.problem import make_rows

LIMITS = {"binary": 0.002, "count": 0.002, "multiclass": 0.004}


@pytest.mark.parametrize(
    ("task", "loss", "shape"),
    [
        ("binary", "logistic", {"n_features": 10, "signal": 1.0}),
        ("count", "poisson", {"n_features": 10, "signal": 1.0}),
        ("multiclass", "softmax", {"n_features": 8, "n_classes": 4, "signal": 1.5}),
        ("multiclass", "softmax", {"n_features": 5, "n_classes": 3, "signal": 3.0}),
        ("regression", "squared", {"n_features": 10}),
    ],
)
@pytest.mark.parametrize("epsilon", [50.0, 200.0])
def test_the_excess_loss_is_below_the_sampling_error(task: Any, loss: str, shape: Any, epsilon: float) -> None:
    data = synthetic(task, n_rows=4000, seed=2, **shape)
    options: dict[str, Any] = {"loss": loss, "intercept": True, "alpha": 1e-6, "test_rows": 0, "metrics_every": 0}
    private = simulate(data, method="auto", epsilon=epsilon, n_agents=1, seed=1, **options)
    optimum = simulate(data, method="centralized", n_agents=1, **options)
    rows, problem = make_rows(private.rows.features, private.rows.labels, order=private.rows.order), private.problem
    excess = problem.objective(rows, private.weights) - problem.objective(rows, optimum.weights)
    if task == "regression":
        assert 2.0 * excess / np.var(private.rows.labels) <= 0.002  # R²
    else:
        assert excess <= LIMITS[task]
