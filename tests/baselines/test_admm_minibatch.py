"""Mini-batch DP-ADMM: DP-ADMM at q = 1, unbiased samples, the cost of a sampled round, and an attack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cohorts import SIZES, cohort
from linear_games import CONFIDENCE, PROBLEM, M, budget_of, transcript, world
from written_admm import run

from dpadmm import simulate
from dpadmm.accounting.composition import total_epsilon
from dpadmm.accounting.events import Release, SampledRelease
from dpadmm.audit.gates import error_limit
from dpadmm.baselines import AdmmMinibatch
from dpadmm.engine.method import Round
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.losses import Logistic
from dpadmm.methods import DpAdmm
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L2

N = len(SIZES)
LOGISTIC = Problem(Logistic(), L2(), 0.02)


@pytest.mark.parametrize("n_agents", [3, 40])
def test_all_rows_are_dp_admm_to_the_last_bit(n_agents):
    """Small cohorts and those of the compiled pass."""
    runs = [
        simulate("synthetic", method=method, epsilon=1.0, delta=1e-3, n_agents=n_agents, n_rounds=8, seed=1)
        for method in ({"name": "admm_minibatch", "sampling": 1.0}, "dp_admm")
    ]
    np.testing.assert_array_equal(runs[0].outcome.released, runs[1].outcome.released)
    assert runs[0].privacy.epsilon == runs[1].privacy.epsilon


def quiet(sampling: float) -> AdmmMinibatch:
    return AdmmMinibatch(0.2, 3.0, sampling=sampling).build(LOGISTIC, cohort(Logistic()), budget_of(5, N, 0.0))


def test_without_noise_the_mean_over_samples_is_a_round_of_dp_admm():
    rows, noise, zeros = cohort(Logistic()), SimulatedNoise(1, N, (5, 1)), np.zeros((5, 1))
    method = quiet(0.5)
    start = replace(method.init(LOGISTIC, rows), released=np.ones((N, 5, 1)))
    sent = [method.step(start, Round(1, LOGISTIC, rows, zeros, noise, seed=seed))[1] for seed in range(2000)]
    whole = DpAdmm(0.2, step_sizes=method.step_sizes, noise_multiplier=np.zeros(N))
    exact = whole.step(start, Round(1, LOGISTIC, rows, zeros, noise))[1]
    error = np.mean(sent, axis=0) - exact
    assert np.abs(error).max() < 5.0 * np.std(sent, axis=0).max() / np.sqrt(2000)
    assert np.std(sent, axis=0).min() > 0.0


def test_without_noise_it_reaches_the_optimum():
    rows = cohort(Logistic(), sizes=(300, 300))
    method = AdmmMinibatch(0.2, 10.0, sampling=0.5).build(LOGISTIC, rows, budget_of(2, 2, 0.0))
    outcome = run(method, LOGISTIC, rows, 3000, seed=1)
    best = minimizer(LOGISTIC, rows)
    assert np.linalg.norm(outcome.averages.tail - best) < 0.05 * np.linalg.norm(best)


def test_a_round_is_a_sampled_release():
    method = AdmmMinibatch(sampling=0.3).build(LOGISTIC, cohort(Logistic()), budget_of(9, N, 1.5))
    assert method.plan(0, 9).tally() == ((SampledRelease(1.5, 0.3), 9),)
    whole = AdmmMinibatch(sampling=1.0).build(LOGISTIC, cohort(Logistic()), budget_of(9, N, 1.5))
    assert whole.plan(0, 9).tally() == ((Release(1.5), 9),)


def test_sampling_needs_less_noise_at_the_same_total():
    few, all_rows = (
        simulate("synthetic", method={"name": "admm_minibatch", "sampling": q}, epsilon=0.5, delta=1e-3, n_agents=4,
                 n_rounds=20, seed=1)
        for q in (0.1, 1.0)
    )  # fmt: skip
    assert 0.995 * 0.5 <= few.privacy.epsilon <= 0.5
    assert few.method.noise_multiplier[0] < all_rows.method.noise_multiplier[0] / 5.0


def test_a_row_moves_the_release_of_its_sample_by_twice_its_norm_over_q_m():
    sampling, seen = 0.5, []
    for sign in (1.0, -1.0):
        rows = world(sign, 50)
        method = AdmmMinibatch(0.05, 1.0, "constant", 20.0, sampling=sampling).build(
            PROBLEM, rows, budget_of(1, 50, 0.0)
        )
        uploads = transcript(method, rows, 1, seed=1)[:, 0] * (0.05 + 1.0 / 20.0)
        seen.append(uploads)
    apart = np.abs(seen[0] - seen[1])
    limit = 2.0 / (sampling * M)
    assert set(np.round(apart, 12)) == {0.0, round(limit, 12)}  # not in the sample, or in it


def rates(z: float, sampling: float, n: int, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Upload of one round in units of the sensitivity, in both worlds: one number per agent."""
    out = []
    for sign, seed in ((-1.0, 5), (1.0, 6)):
        rows = world(sign, n)
        method = AdmmMinibatch(0.05, 1.0, "constant", 20.0, sampling=sampling).build(PROBLEM, rows, budget_of(1, n, z))
        out.append(transcript(method, rows, 1, seed, share)[:, 0] * 0.1 / (2.0 / (sampling * M)))
    return out[0], out[1]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_an_attack_finds_the_sampled_release_and_not_more(share):
    """The best set of outcomes is a half-line; with half of the noise it proves more than is promised."""
    z, sampling, n = 0.4, 0.3, 40_000
    zero, one = rates(z, sampling, n, share)
    best = 0.0
    for threshold in np.linspace(0.5, 1.5, 11):
        hits, alarms = int(np.sum(one > threshold)), int(np.sum(zero > threshold))
        least = 1.0 - float(error_limit(np.array(n - hits), n, CONFIDENCE))
        most = float(error_limit(np.array(alarms), n, CONFIDENCE))
        delta = 1e-3
        best = max(best, np.log(max(least - delta, 1e-9) / most))
    promised = total_epsilon(SampledRelease(z, sampling), 1, 1e-3)
    assert (0.6 * promised < best <= promised) if share == 1.0 else best > promised


@pytest.mark.parametrize("sampling", [0.0, 1.5, np.nan])
def test_a_bad_sampling_is_named(sampling):
    with pytest.raises(StudyError, match=r"^admm_minibatch: sampling must be a number in \(0, 1\], not [^\n]*$"):
        AdmmMinibatch(sampling=sampling)
