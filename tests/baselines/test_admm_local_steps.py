"""Local steps: DP-ADMM for one, as written for several, what they cost, and an attack."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import PROBLEM, attack, budget_of, world
from written_admm import run, slope

from dpadmm import simulate
from dpadmm.accounting.events import Release
from dpadmm.accounting.gaussian import gaussian_mu
from dpadmm.baselines import AdmmLocalSteps
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2

N, D, RHO, ETA, STEPS = len(SIZES), 5, 0.2, 1.5, 3
LOGISTIC = Problem(Logistic(), L2(), 0.02)


@pytest.mark.parametrize("n_agents", [3, 40])
def test_one_step_is_dp_admm_to_the_last_bit(n_agents):
    runs = [
        simulate("synthetic", method=method, epsilon=1.0, delta=1e-3, n_agents=n_agents, n_rounds=8, seed=1)
        for method in ({"name": "admm_local_steps", "local_steps": 1}, "dp_admm")
    ]
    np.testing.assert_array_equal(runs[0].outcome.released, runs[1].outcome.released)
    assert runs[0].privacy.epsilon == runs[1].privacy.epsilon


def built(n: int, z: float = 0.0, problem: Problem = LOGISTIC) -> AdmmLocalSteps:
    method = AdmmLocalSteps(RHO, 3.0, "constant", ETA, local_steps=STEPS)
    return method.build(problem, world(1.0, n), budget_of(4, n, z))


def test_without_noise_it_is_written_out():
    rows, w, dual, models = cohort(Logistic()), np.zeros((D, 1)), np.zeros((N, D, 1)), np.zeros((N, D, 1))
    for _ in range(4):
        for i in range(N):
            for _ in range(STEPS):
                there = slope(LOGISTIC, rows.agent(i), models[i])
                models[i] = (models[i] / ETA + RHO * w + dual[i] - there) / (RHO + 1.0 / ETA)
        w = models.mean(axis=0)
        dual = dual - RHO * (models - w)
    np.testing.assert_allclose(run(built(N), LOGISTIC, rows, 4).consensus, w, atol=1e-12)


def test_without_noise_it_reaches_the_optimum():
    rows = cohort(Logistic())
    np.testing.assert_allclose(run(built(N), LOGISTIC, rows, 600).consensus, minimizer(LOGISTIC, rows), atol=1e-3)


def test_every_local_step_is_charged_and_a_round_costs_as_much_as_one_of_dp_admm():
    method = built(N, 2.0)
    release = method.plan(0, 4).at(1)
    assert release == Release(2.0 * np.sqrt(STEPS), count=STEPS)
    assert gaussian_mu([release]) == pytest.approx(0.5)
    assert method.plan(0, 4).n_releases == 4
    result = simulate("synthetic", method="admm_local_steps", epsilon=1.0, delta=1e-3, n_agents=4, n_rounds=9, seed=1)
    assert result.privacy.epsilon == pytest.approx(1.0, rel=1e-9)
    assert result.privacy.epsilon <= 1.0


def test_local_steps_have_noise_of_their_own():
    noise = SimulatedNoise(3, 2, (6, 1))
    assert not np.any(noise.draw(1, 0) == noise.draw(1, 1))
    method, rows = built(2000, 2.0, PROBLEM), world(0.0, 2000)
    released = run(method, PROBLEM, rows, 1).released
    decay = (1.0 / ETA) / (RHO + 1.0 / ETA)
    gains = np.array([decay**k for k in range(STEPS)]) / (RHO + 1.0 / ETA)
    scale = 2.0 * np.sqrt(STEPS) * 2.0 / 4.0  # z·2c1/m
    assert released.std() == pytest.approx(scale * np.sqrt(np.sum(gains**2)), rel=0.03)


def test_an_attack_finds_at_most_all_steps():
    """Only the last model is seen. With constant slopes it has a known share of what is charged."""
    found = attack(lambda n: built(n, 2.0, PROBLEM), lambda n: built(n, 0.0, PROBLEM), 2)
    decay = (1.0 / ETA) / (RHO + 1.0 / ETA)
    gains = decay ** np.arange(STEPS)
    mu = gains.sum() / np.linalg.norm(gains) / (2.0 * np.sqrt(STEPS)) * np.sqrt(2.0)
    assert found.mu == pytest.approx(mu, rel=0.05)
    charged = gaussian_mu([built(2, 2.0, PROBLEM).plan(0, 2).at(1)] * 2)
    assert mu < charged < 1.05 * mu
    assert 0.7 * charged < found.proven <= charged
    halved = attack(lambda n: built(n, 2.0, PROBLEM), lambda n: built(n, 0.0, PROBLEM), 2, share=0.5)
    assert halved.proven > charged


@pytest.mark.parametrize("steps", [0, -1, 1.5])
def test_a_bad_number_of_steps_is_named(steps):
    with pytest.raises(StudyError, match=r"^admm_local_steps: local_steps must be a whole number of at least 1, not "):
        AdmmLocalSteps(local_steps=steps)
