"""``auto`` selects a method and the number of rounds from public sizes and the budget, consistently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpadmm import DPADMMClassifier, simulate, train
from dpadmm.losses import Logistic
from dpadmm.methods import Auto, Newton, Pgd
from dpadmm.planning.costs import with_rounds_for
from dpadmm.queries.problem import Problem, PublicSizes
from dpadmm.regularizers import L2
from dpadmm.studies.reading import study_from
from dpadmm.studies.settings import Training


def test_number_of_rounds_follows_from_public_sizes() -> None:
    problem = Problem(Logistic(), L2(), 1e-6)
    rounds = []
    for m, epsilon in ((50, 0.1), (3000, 1.0), (10**6, 3.0)):
        training = Training(method="auto", epsilon=epsilon)
        found = training.resolved(problem, PublicSizes(np.full(4, m), 20))
        assert found.resolved(problem, PublicSizes(np.array([2]), 20)) is found
        rounds.append(found.n_rounds)
    assert rounds[0] == 14 < rounds[1] < rounds[2] == 200
    options: dict[str, Any] = {
        "method": "auto",
        "epsilon": 3.0,
        "n_agents": 3,
        "seed": 1,
        "test_rows": 0,
        "metrics_every": 0,
    }
    result = simulate("synthetic", **options)
    mask = np.ones((result.outcome.rounds, 3), dtype=bool)
    again = simulate("synthetic", participation=mask, **options)
    assert again.outcome.rounds == len(mask) != Pgd.default_rounds
    np.testing.assert_allclose(again.weights, result.weights)


def test_it_selects_newton_for_inference_and_pgd_otherwise() -> None:
    assert Auto().concrete() == Pgd()
    assert Auto(inference=True).concrete() == Newton()
    for training, name, n_rounds in (
        (Training(method="auto", epsilon=1.0, n_rounds=7), "pgd", 7),
        (Training(method="auto", round_epsilon=0.1), "pgd", Pgd.default_rounds),
        (Training(method=Auto(inference=True), epsilon=1.0), "newton", Newton.default_rounds),
    ):
        assert not training.is_open
        concrete = training.concrete()
        assert (concrete.method.name, concrete.n_rounds) == (name, n_rounds)
        assert concrete.alpha == training.alpha == 1e-6
    is_open = Training(method="auto", epsilon=1.0)
    assert is_open.is_open
    assert is_open.concrete() is is_open


STUDY = {
    "format": "dpadmm-study/2",
    "name": "rounds",
    "columns": {name: {"kind": "number", "bounds": [-1, 1]} for name in ("a", "b")},
    "label": {"column": "y", "classes": ["no", "yes"]},
    "training": {"intercept": True},
    "privacy": {"epsilon": 8.0, "delta": 1e-4},
}


@pytest.mark.parametrize("n_agents", [1, 4])
def test_plan_simulation_training_and_estimator_choose_the_same_rounds(n_agents: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    X = rng.uniform(-1.0, 1.0, (400, 2))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(400) > 0.0, "yes", "no")
    table = tmp_path / "table.csv"
    table.write_text("a,b,y\n" + "".join(f"{a:.5f},{b:.5f},{label}\n" for (a, b), label in zip(X, y, strict=True)))
    study = study_from(STUDY)
    assert study.training.is_open
    planned = with_rounds_for(study, np.full(n_agents, 400 // n_agents))
    trained = train(study, table, n_agents=n_agents, seed=1)
    simulated = simulate(study, table, n_agents=n_agents, test_rows=0, seed=1)
    model = DPADMMClassifier(
        epsilon=8.0, delta=1e-4, n_agents=n_agents, data_norm=2.0, classes=["no", "yes"], random_state=1
    )
    with pytest.warns(UserWarning, match="random_state"):
        model.fit(X, y)
    n_rounds = planned.training.n_rounds
    assert n_rounds is not None
    assert 14 < n_rounds < 200
    assert model.n_iter_ == n_rounds
    for result in (trained, simulated):
        assert result.outcome.rounds == n_rounds
        assert result.training.method == result.study.training.method == Pgd()
        assert result.study.training.n_rounds == n_rounds
        assert result.privacy.method == result.model.study["method"]["name"] == "pgd"
    assert trained.study.hash == simulated.study.hash == planned.hash
