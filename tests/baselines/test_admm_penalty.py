"""M-ADMM: as written, what the growing noise costs, and an attack."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import PROBLEM, attack, budget_of, world
from written_admm import argmin, run

from dpadmm import simulate
from dpadmm.accounting.composition import objective_renyi, tally_epsilon, total_epsilon
from dpadmm.accounting.events import ObjectiveRelease
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.baselines import AdmmDvp, AdmmPenalty
from dpadmm.baselines.calibration import ObjectivePlan
from dpadmm.baselines.objective_noise import ObjectiveNoise
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2
from dpadmm.studies.settings import Settings

N, D, RHO, GROWTH = len(SIZES), 5, 0.2, 0.3
LOGISTIC = Problem(Logistic(), L2(), 0.02)


def quiet(n: int, growth: float = GROWTH) -> AdmmPenalty:
    none = ObjectivePlan(ObjectiveRelease(0.0, 0.1), 0.0, 0.0)
    return AdmmPenalty(RHO, growth, 1e-8, convexity=0.02, perturbation=ObjectiveNoise((none,) * n))


def test_without_noise_it_is_written_out_with_a_growing_penalty_and_a_constant_dual_step():
    rows, w, dual = cohort(Logistic()), np.zeros((D, 1)), np.zeros((N, D, 1))
    for k in range(6):
        penalty = RHO * (1.0 + GROWTH) ** k
        models = np.stack([argmin(LOGISTIC, rows, i, w + dual[i] / penalty, penalty) for i in range(N)])
        w = models.mean(axis=0)
        dual = dual - RHO * (models - w)
    np.testing.assert_allclose(run(quiet(N), LOGISTIC, rows, 6).consensus, w, atol=1e-7)


def test_without_noise_it_reaches_the_optimum():
    rows = cohort(Logistic())
    outcome = run(quiet(N, 0.01), LOGISTIC, rows, 300)
    np.testing.assert_allclose(outcome.consensus, minimizer(LOGISTIC, rows), atol=1e-3)


def test_without_growth_it_is_dual_perturbation_to_the_last_bit():
    rows, runs = cohort(Logistic()), []
    for method in ({"name": "admm_penalty", "penalty_growth": 0.0}, {"name": "admm_dvp"}):
        settings = Settings(method=method, epsilon=1.0, delta=1e-3, n_rounds=5)
        runs.append(run(settings.build(LOGISTIC, rows, np.full(N, 5)), LOGISTIC, rows, 5).consensus)
    np.testing.assert_array_equal(*runs)


def test_every_round_is_charged_its_own_noise_and_curvature():
    rows, z = cohort(Logistic()), 3.0
    method = AdmmPenalty(RHO, GROWTH).build(LOGISTIC, rows, budget_of(7, N, z))
    for agent, m in enumerate(SIZES):
        for k in range(1, 8):
            release = method.plan(agent, 7).at(k)
            factor = 1.3 ** (k - 1)
            assert release.noise_multiplier == pytest.approx(z * factor)
            assert release.curvature_ratio == pytest.approx(0.25 / (m * (RHO * factor + 0.02)), rel=1e-5)
        costs = [objective_renyi(method.plan(agent, 7).at(k), np.array([2.0, 30.0])) for k in range(1, 8)]
        assert all((later < earlier).all() for earlier, later in pairwise(costs))  # so the first r rounds cost most


def test_rounds_with_different_noise_compose_by_their_renyi_divergences():
    """Not each with a share of δ, which would cost more than all rounds at the noise of the first."""
    releases = [(ObjectiveRelease(20.0 * 1.01**k, 0.01 / 1.01**k), 1) for k in range(100)]
    total = tally_epsilon(tuple(releases), 1e-3)
    assert total_epsilon(releases[-1][0], 100, 1e-3) < total < total_epsilon(releases[0][0], 100, 1e-3)
    assert total > exact_epsilon(np.sqrt(sum(each.noise_multiplier**-2.0 for each, _ in releases)), 1e-3)
    equal = tally_epsilon(((ObjectiveRelease(20.0, 0.01), 60), (ObjectiveRelease(20.0, 0.01, 1e300), 40)), 1e-3)
    assert equal == pytest.approx(total_epsilon(ObjectiveRelease(20.0, 0.01), 100, 1e-3), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.02, 1.0])
def test_a_run_has_the_total_epsilon_and_not_more(epsilon):
    """At ε = 0.02 the curvature alone costs more than half, and Φ is added."""
    result = simulate("synthetic", method="admm_penalty", epsilon=epsilon, delta=1e-3, n_agents=50, n_rounds=12, seed=1)
    assert epsilon * (1.0 - 1e-6) <= result.privacy.epsilon <= epsilon
    assert (result.method.perturbation.extra_ridge > 0.0).all() == (epsilon < 0.1)


def test_round_epsilon_is_that_of_the_first_round():
    rows = cohort(Logistic())
    for budget in (budget_of(6, N, round_epsilon=0.5), budget_of(6, N, round_epsilon=0.5, calibration="exact")):
        first = AdmmPenalty(RHO, GROWTH).build(LOGISTIC, rows, budget).plan(0, 6).at(1)
        same = AdmmDvp(RHO).build(LOGISTIC, rows, budget).plan(0, 6).at(1)
        assert first == same


def built(n: int) -> AdmmPenalty:
    return AdmmPenalty(RHO, GROWTH, 1e-9).build(PROBLEM, world(1.0, n), budget_of(3, n, 2.0))


def test_an_attack_finds_the_noise_of_all_rounds_and_not_more():
    found, plan = attack(built, quiet, 3), built(2).plan(0, 3)
    mu = np.sqrt(sum(plan.at(k).noise_multiplier ** -2.0 for k in (1, 2, 3)))
    assert found.mu == pytest.approx(mu, rel=0.05)
    assert 0.7 * mu < found.proven <= mu
    assert exact_epsilon(found.proven, 1e-3) <= tally_epsilon(plan.tally(), 1e-3)
    assert attack(built, quiet, 3, share=0.5).proven > mu


@pytest.mark.parametrize("growth", [-0.1, np.nan, np.inf, "1"])
def test_a_bad_growth_is_named(growth):
    with pytest.raises(StudyError, match=r"^admm_penalty: penalty_growth must be a number of at least 0, not [^\n]*$"):
        AdmmPenalty(penalty_growth=growth)


def test_too_much_growth_is_refused_before_rows_are_read():
    with pytest.raises(StudyError, match=r"penalty_growth = 1 .* in 100 rounds; use a smaller penalty_growth or fewer"):
        AdmmPenalty(penalty_growth=1.0).build(LOGISTIC, cohort(Logistic()), budget_of(100, N, 1.0))
