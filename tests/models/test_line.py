"""The repr of a model: one line."""

from __future__ import annotations

import numpy as np
from looping import case

from dpadmm import Model, simulate


def test_of_a_run():
    shown = repr(simulate("synthetic", n_agents=3, epsilon=1.0, delta=1e-5, n_rounds=2, seed=1).model)
    assert shown == "<Model logistic, 20 features, classes -1, 1, ε = 1 at δ = 1e-05, simulated noise>"


def test_repr_is_one_line_for_any_content():
    for model, shown in [
        (
            Model(np.zeros((3, 1)), "binary", "hinge", classes=("no", "yes"), intercept=True),
            "<Model hinge, 2 features and a constant, classes no, yes, privacy unknown>",
        ),
        (
            Model(np.zeros((1, 1)), "regression", "squared", privacy={"private": False, "epsilon": None}),
            "<Model squared, 1 feature, predicts a number, not private>",
        ),
        (
            Model(np.zeros((20_000, 9)), "multiclass", "softmax", study={"name": "flu " * 50}),
            f"<Model '{('flu ' * 50)[:39]}…': softmax, 20,000 features, 9 classes, privacy unknown>",
        ),
        (
            Model(
                np.ones((1, 1)),
                "binary",
                "logistic",
                privacy={"epsilon": 0.5, "delta": 1e-6, "noise": "exact: whole numbers"},
            ),
            "<Model logistic, 1 feature, classes -1, 1, ε = 0.5 at δ = 1e-06>",
        ),
        (
            Model(np.ones((1, 1)), "binary", "logistic", privacy={"epsilon": "much", "noise": 3}),
            "<Model logistic, 1 feature, classes -1, 1, not private>",
        ),
    ]:
        with case(model, shown):
            assert repr(model) == shown
            assert len(shown.splitlines()) == 1
