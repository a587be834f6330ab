"""Notebooks and ``to_dict`` show a model, its evaluation and its coefficients."""

from __future__ import annotations

import json

import numpy as np

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.models.evaluate import evaluate_scores
from dpadmm.models.explain import explain
from dpadmm.models.model import Model

SCHEMA = Schema((Number("age", (0.0, 100.0)), Number("bmi", (10.0, 60.0))))
MODEL = Model(
    np.array([[2.0], [-1.0], [0.1]]), "binary", "logistic", classes=("no", "<b>yes</b>"), intercept=True, schema=SCHEMA,
    label=Label("ill", classes=("no", "<b>yes</b>")), feature_names=SCHEMA.features,
    privacy={"epsilon": 1.0, "delta": 1e-6, "noise": "exact"}, covariance=0.01 * np.eye(3), hessian_snr=2.0,
)  # fmt: skip


def test_a_model_is_shown_without_its_weights() -> None:
    values = MODEL.to_dict()
    json.dumps(values, allow_nan=False)
    assert (values["label"], values["n_features"], values["privacy"]["epsilon"]) == ("ill", 2, 1.0)
    page = MODEL._repr_html_()
    assert "ε = 1 at δ = 1e-06" in page
    assert "&lt;b&gt;yes&lt;/b&gt;" in page
    assert "<b>" not in page


def test_results_of_a_model_are_shown_in_notebooks() -> None:
    scores = np.linspace(-3.0, 3.0, 60)[:, None]
    evaluation = evaluate_scores(MODEL, (np.arange(60) % 3 > 0).astype(float), scores)
    for result, words in (
        (evaluation, ("accuracy", "mean predicted", "true class, predicted as", "contain no noise")),
        (explain(MODEL), ("age", "95% interval", "odds ratio", "per unit")),
    ):
        page = result._repr_html_()
        assert all(word in page for word in words)
        assert "<script" not in page
        assert "<b>" not in page
        json.dumps(result.to_dict(), allow_nan=False)
