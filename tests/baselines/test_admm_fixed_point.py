"""Fixed-point ADMM: as written with u_i, PVP at one half, and an attack; what the token's map does."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import PROBLEM, attack, budget_of, world
from written_admm import argmin, run

from dpadmm import simulate
from dpadmm.accounting.events import Release
from dpadmm.baselines import AdmmFixedPoint
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2

N, D, RHO = len(SIZES), 5, 0.2
LOGISTIC = Problem(Logistic(), L2(), 0.02)


def built(relaxation: float, n: int = N, z: float = 0.0, problem: Problem = LOGISTIC) -> AdmmFixedPoint:
    return AdmmFixedPoint(RHO, 1e-9, relaxation=relaxation).build(problem, world(1.0, n), budget_of(3, n, z))


@pytest.mark.parametrize("relaxation", [0.25, 0.5, 1.0])
def test_without_noise_it_is_the_iteration_of_u(relaxation):
    rows, u = cohort(Logistic()), np.zeros((N, D, 1))
    for _ in range(6):
        w = u.mean(axis=0)
        models = np.stack([argmin(LOGISTIC, rows, i, 2.0 * w - u[i], RHO) for i in range(N)])
        u = u + 2.0 * relaxation * (models - w)
    np.testing.assert_allclose(run(built(relaxation), LOGISTIC, rows, 6).consensus, u.mean(axis=0), atol=1e-7)


@pytest.mark.parametrize("relaxation", [0.25, 0.9])
def test_without_noise_it_reaches_the_optimum(relaxation):
    rows = cohort(Logistic())
    np.testing.assert_allclose(
        run(built(relaxation), LOGISTIC, rows, 400).consensus, minimizer(LOGISTIC, rows), atol=1e-3
    )


def test_one_half_is_primal_perturbation_to_the_last_bit():
    runs = [
        simulate("synthetic", method=method, epsilon=1.0, delta=1e-3, n_agents=5, n_rounds=9, seed=1)
        for method in ({"name": "admm_fixed_point", "relaxation": 0.5}, "admm_pvp")
    ]
    np.testing.assert_array_equal(runs[0].outcome.released, runs[1].outcome.released)
    assert runs[0].privacy.epsilon == runs[1].privacy.epsilon


@pytest.mark.parametrize("relaxation", [0.25, 0.5, 1.0])
def test_an_attack_finds_all_releases_whatever_the_relaxation(relaxation):
    mu = np.sqrt(3.0) / 2.0
    assert built(relaxation, z=2.0).plan(0, 3).at(2) == Release(2.0)
    found = attack(lambda n: built(relaxation, n, 2.0, PROBLEM), lambda n: built(relaxation, n, 0.0, PROBLEM), 3)
    assert found.mu == pytest.approx(mu, rel=0.05)
    assert 0.7 * mu < found.proven <= mu
    halved = attack(
        lambda n: built(relaxation, n, 2.0, PROBLEM), lambda n: built(relaxation, n, 0.0, PROBLEM), 3, share=0.5
    )
    assert halved.proven > mu


def test_the_map_of_a_token_alone_expands():
    """So amplification by iteration does not apply to it: prox of a flat function is the identity."""
    n, relaxation, u = 10, 0.5, 0.3

    def token(w: float, curvature: float) -> float:
        prox = (2.0 * w - u) * RHO / (RHO + curvature)
        return w + 2.0 * relaxation / n * (prox - w)

    expansion = [(token(1.0, c) - token(0.0, c)) for c in (0.0, RHO, 1e9)]
    assert expansion == pytest.approx([1.0 + 2.0 * relaxation / n, 1.0, 1.0 - 2.0 * relaxation / n])


@pytest.mark.parametrize("relaxation", [0.0, 1.1, np.nan])
def test_a_bad_relaxation_is_named(relaxation):
    with pytest.raises(StudyError, match=r"^admm_fixed_point: relaxation must be a number in \(0, 1\], not [^\n]*$"):
        AdmmFixedPoint(relaxation=relaxation)
