"""R-ADMM: as written, even rounds without rows, and an attack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import PROBLEM, attack, budget_of, world
from written_admm import argmin, run, slope

from dpadmm import simulate
from dpadmm.accounting.composition import tally_epsilon, total_epsilon
from dpadmm.accounting.events import ObjectiveRelease
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.baselines import AdmmDvp, AdmmRecycled
from dpadmm.baselines.calibration import ObjectivePlan
from dpadmm.baselines.objective_noise import ObjectiveNoise
from dpadmm.engine.loop import PlannedParticipation
from dpadmm.engine.method import Round
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2

N, D, RHO, ETA = len(SIZES), 5, 0.2, 1.5
LOGISTIC = Problem(Logistic(), L2(), 0.02)


def quiet(n: int, step_size: float | None = ETA) -> AdmmRecycled:
    none = ObjectivePlan(ObjectiveRelease(0.0, 0.1), 0.0, 0.0)
    return AdmmRecycled(RHO, step_size, 1e-9, perturbation=ObjectiveNoise((none,) * n))


def test_without_noise_it_is_written_out():
    """Odd rounds solve; even rounds linearise at the last models, with their own slopes computed from the rows."""
    rows, w, dual, models = cohort(Logistic()), np.zeros((D, 1)), np.zeros((N, D, 1)), np.zeros((N, D, 1))
    for k in range(1, 8):
        for i in range(N):
            if k % 2:
                models[i] = argmin(LOGISTIC, rows, i, w + dual[i] / RHO, RHO)
            else:
                there = slope(LOGISTIC, rows.agent(i), models[i])
                models[i] = (models[i] / ETA + RHO * w + dual[i] - there) / (RHO + 1.0 / ETA)
        w = models.mean(axis=0)
        dual = dual - RHO * (models - w)
        np.testing.assert_allclose(run(quiet(N), LOGISTIC, rows, k).consensus, w, atol=1e-6)


def test_without_noise_it_reaches_the_optimum():
    rows = cohort(Logistic())
    outcome = run(quiet(N, None), LOGISTIC, rows, 300)
    np.testing.assert_allclose(outcome.consensus, minimizer(LOGISTIC, rows), atol=1e-3)


def test_even_rounds_send_the_same_whatever_the_rows():
    """They are computed from the state alone, which is public except for the solver's start."""
    noise = SimulatedNoise(1, N, (D, 1))
    method = AdmmRecycled(RHO).build(LOGISTIC, cohort(Logistic()), budget_of(4, N, 1.0))
    rows, others = cohort(Logistic()), cohort(Logistic(), seed=9)
    state, _ = method.step(method.init(LOGISTIC, rows), Round(1, LOGISTIC, rows, np.zeros((D, 1)), noise))
    sent = [method.step(state, Round(2, LOGISTIC, each, np.ones((D, 1)), noise))[1] for each in (rows, others)]
    np.testing.assert_array_equal(*sent)
    private = replace(state, offset=np.full_like(state.offset, np.nan))
    np.testing.assert_array_equal(sent[0], method.step(private, Round(2, LOGISTIC, rows, np.ones((D, 1)), noise))[1])


def test_the_slope_is_that_of_the_release_and_not_of_the_private_minimiser():
    """At a large tolerance they differ by the covering noise, and only the release may be used."""
    rows, noise = cohort(Logistic()), SimulatedNoise(1, N, (D, 1))
    method = AdmmRecycled(RHO, solver_tolerance=0.5).build(LOGISTIC, rows, budget_of(4, N, 1.0))
    state, _ = method.step(method.init(LOGISTIC, rows), Round(1, LOGISTIC, rows, np.zeros((D, 1)), noise))
    np.testing.assert_allclose(state.slope, -RHO * state.released)
    assert np.abs(state.released - state.offset).max() > 0.1  # the minimiser


@pytest.mark.parametrize(("n_rounds", "releases"), [(1, 1), (2, 1), (7, 4), (100, 50)])
def test_half_of_the_rounds_are_charged(n_rounds, releases):
    method = AdmmRecycled(RHO).build(LOGISTIC, cohort(Logistic()), budget_of(n_rounds, N, 2.0))
    plan = method.plan(0, n_rounds)
    assert (plan.n_rounds, plan.n_releases) == (n_rounds, releases)
    assert all((plan.at(k) is None) == (k % 2 == 0) for k in range(1, n_rounds + 1))
    same = AdmmDvp(RHO).build(LOGISTIC, cohort(Logistic()), budget_of(n_rounds, N, 2.0)).plan(0, n_rounds).at(1)
    assert tally_epsilon(plan.tally(), 1e-3) == total_epsilon(same, releases, 1e-3)


@pytest.mark.parametrize("epsilon", [0.02, 1.0])
def test_a_run_has_the_total_epsilon_and_not_more(epsilon):
    result = simulate(
        "synthetic", method="admm_recycled", epsilon=epsilon, delta=1e-3, n_agents=50, n_rounds=15, seed=1
    )
    assert epsilon * (1.0 - 1e-6) <= result.privacy.epsilon <= epsilon
    assert np.isfinite(result.model.weights).all()


def test_an_agent_that_is_planned_for_few_rounds_is_charged_for_no_more_than_its_odd_ones():
    """Its noise is for min(r, ⌈t/2⌉) releases, which the rounds in which it takes part may all be."""
    mask = np.ones((9, 50), dtype=bool)
    mask[[1, 3, 5, 7], 0] = False  # only odd rounds: five releases
    mask[4:, 1] = False  # two releases, though planned for four rounds
    result = simulate("synthetic", method="admm_recycled", epsilon=1.0, delta=1e-3, n_agents=50, n_rounds=9, seed=1,
                      participation=mask)  # fmt: skip
    assert isinstance(result.outcome.n_attended, np.ndarray)
    epsilons = [tally_epsilon(result.method.plan(i, 9).tally(np.flatnonzero(mask[:, i]) + 1), 1e-3) for i in (0, 1, 2)]
    assert max(epsilons) <= result.privacy.epsilon <= 1.0
    assert epsilons[0] == pytest.approx(1.0, rel=1e-6)
    assert epsilons[1] < 0.9
    assert PlannedParticipation(mask)(1).size == 50


def built(n: int) -> AdmmRecycled:
    return AdmmRecycled(RHO, ETA, 1e-9).build(PROBLEM, world(1.0, n), budget_of(5, n, 2.0))


def test_an_attack_on_all_five_messages_finds_three_releases():
    found, mu = attack(built, quiet, 5), np.sqrt(3.0) / 2.0
    assert found.mu == pytest.approx(mu, rel=0.05)
    assert 0.7 * mu < found.proven <= mu
    assert exact_epsilon(found.proven, 1e-3) <= tally_epsilon(built(2).plan(0, 5).tally(), 1e-3)
    assert attack(built, quiet, 5, share=0.5).proven > mu


@pytest.mark.parametrize("step_size", [0.0, -1.0, np.inf])
def test_a_bad_step_size_is_named(step_size):
    with pytest.raises(StudyError, match=r"^admm_recycled: step_size must be a positive number, not [^\n]*$"):
        AdmmRecycled(step_size=step_size)
