"""Groups, curves and final values, compared with the columns of real results."""

from __future__ import annotations

import numpy as np
import pytest

from reproduction.series import (
    ONE_MODEL,
    at_end,
    budget_column,
    by_end,
    by_round,
    distinct,
    done,
    has_local,
    split,
    variants,
)


def test_curves_are_means_over_the_seeds(paper_results):
    lines = paper_results.select("fig7").select(method="dp_admm", round_epsilon=0.1, delta=1e-3)
    curve = by_round(lines, "train_loss_global")
    assert curve.x.tolist() == [1, 30, 60, 90, 100]
    assert curve.n_seeds == 2
    values = lines.frame["train_loss_global"].to_numpy().reshape(2, -1)  # lines are ordered by seed
    assert np.allclose(curve.mean, values.mean(axis=0))
    assert np.allclose(curve.std, values.std(axis=0, ddof=1))
    assert at_end(lines, "train_loss_global").to_dict() == {1: values[0, -1], 2: values[1, -1]}


def test_final_values_match_their_column(paper_results):
    lines = paper_results.select("fig4").select(method="dp_admm", round_epsilon=0.1)
    curve = by_end(lines, "test_error_global", "n_agents")
    assert curve.x.tolist() == [2, 8]
    at_eight = lines.select(n_agents=8, round=100).frame["test_error_global"]
    assert curve.mean[1] == pytest.approx(at_eight.mean())


def test_missing_values_can_be_selected_and_sort_last(paper_results):
    lines = done(paper_results.select("fig7"))
    assert set(distinct(lines.select(round_epsilon=None), "method")) == {"admm", "centralized"}
    groups = split(lines, "round_epsilon")
    assert list(groups) == [(0.05,), (0.1,), (None,)]
    assert sum(map(len, groups.values())) == len(lines)


def test_method_labels_contain_the_differing_settings(paper_results):
    assert list(variants(done(paper_results.select("fig7")))) == [
        "DP-ADMM",
        "ADMM",
        "PVP",
        "DVP",
        "DPSGD, rate 0.1",
        "DPSGD, rate 4, tail average",
        "optimum",
    ]
    labels = list(variants(paper_results.select("choices").select(method="dp_admm", round_epsilon=0.1)))
    assert labels[0] == "DP-ADMM, λ/n = 1e-06, c_w = 5"
    assert len(labels) == 4


def test_only_methods_with_local_models_have_local_curves(paper_results):
    for (method,), lines in split(done(paper_results.select("fig7")), "method").items():
        same = np.array_equal(lines.frame["train_loss_local"], lines.frame["train_loss_global"])
        assert same == (not has_local(lines)) == (method in ONE_MODEL), method


def test_budget_column_is_detected(paper_results, comparison_results):
    assert budget_column(paper_results.select("fig7")) == "round_epsilon"
    assert budget_column(comparison_results) == "epsilon"
