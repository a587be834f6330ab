"""Private selection: the bound, compared with dp_accounting and with the exact loss of the best of K runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, rdp
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from scipy.special import logsumexp
from scipy.stats import norm, poisson

from dpadmm import StudyError, exact_epsilon
from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.selection import (
    MAX_RUNS,
    draw_runs,
    expected_runs,
    run_mu,
    selected_renyi,
    selection_epsilon,
)
from dpadmm.matrices.arrays import Floats

DELTA = 1e-5
ORDERS = 1.0 + np.geomspace(0.01, 1000.0, 200)


@pytest.mark.parametrize("runs", [2, 5, 30])
@pytest.mark.parametrize("mu", [0.05, 0.2, 1.0])
def test_the_bound_is_dp_accountings_but_for_a_run_that_is_sure_and_an_exact_delta(mu: float, runs: int) -> None:
    oracle = rdp.RdpAccountant(orders=ORDERS)
    oracle.compose(RepeatAndSelectDpEvent(GaussianDpEvent(1.0 / mu), runs, math.inf))
    one = rdp.RdpAccountant(orders=ORDERS).compose(GaussianDpEvent(1.0 / mu))
    tails = np.array([one.get_delta(math.log1p(1.0 / (order - 1.0))) for order in ORDERS])
    at_least_one = -math.log(-math.expm1(-runs)) / (ORDERS - 1.0)
    np.testing.assert_allclose(selected_renyi(one.rdp, tails, ORDERS, runs), oracle.rdp + at_least_one, rtol=1e-12)
    assert exact_epsilon(mu, DELTA) < selection_epsilon(mu, runs, DELTA) < oracle.get_epsilon(DELTA)


def best_of(chances: Floats, runs: int) -> Floats:
    """The best of K by brute force, outcomes in the order of their scores: Σ_k P(K = k)·P(best of k)."""
    up_to = np.append(0.0, np.cumsum(chances))
    k = np.arange(1, 400)
    weights = poisson.pmf(k, runs) / -math.expm1(-runs)
    return np.diff((up_to[:, None] ** k) @ weights)


def renyi(one: Floats, other: Floats) -> Floats:
    logs = ORDERS * np.log(one[:, None]) + (1.0 - ORDERS) * np.log(other[:, None])
    return np.asarray(logsumexp(logs, axis=0) / (ORDERS - 1.0))


@pytest.mark.parametrize("runs", [1, 3, 10])
def test_with_pure_runs_the_bound_holds_and_none_of_its_terms_can_be_left_out(runs: int) -> None:
    """A rare outcome just below outcomes that are more likely for the neighbour."""
    odds, rare = math.exp(0.5), 1e-6
    missed = np.zeros(3, bool)
    for share in (0.01, 0.1, 0.3):
        one = np.array([1.0 - rare - share / odds, rare, share / odds])
        other = np.array([1.0 - rare / odds - share, rare / odds, share])
        assert max((one / other).max(), (other / one).max()) <= odds * (1.0 + 1e-12)
        tails = np.maximum(other[:, None] - ORDERS / (ORDERS - 1.0) * one[:, None], 0.0).sum(axis=0)
        true = renyi(best_of(one, runs), best_of(other, runs))
        bound = selected_renyi(renyi(one, other), tails, ORDERS, runs)
        assert (true <= bound * (1.0 + 1e-9)).all()
        logarithm = math.log(expected_runs(runs)) / (ORDERS - 1.0)
        without = [bound - runs * tails, bound - logarithm, bound - runs * tails - logarithm]
        missed |= [bool((true > each * (1.0 + 1e-6)).any()) for each in without]
    assert missed.all()


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_gaussian_runs_with_the_worst_scores_stay_within_the_total_and_come_near_it(epsilon: float) -> None:
    """Outcomes that favour the neighbour have the highest scores, then those against it."""
    runs = 5
    mu = run_mu(epsilon, DELTA, runs)
    edges = np.linspace(-9.0, 9.0, 200_001)
    one, other = (np.diff(norm.cdf(edges, loc)) for loc in (mu / 2.0, -mu / 2.0))
    at = (edges[1:] + edges[:-1]) / 2.0
    worst = 0.0
    for top in (0.1, 0.2, 0.3):
        order = np.argsort(np.where(at < norm.ppf(top), 2, at > 2.0), kind="stable")

        def tells(chances: Floats, order: Floats = order) -> Floats:
            up_to = np.append(0.0, np.cumsum(chances[order]))
            return np.diff(np.expm1(runs * up_to) / math.expm1(runs))

        losses = tells(one), tells(other)
        spent = np.linspace(0.0, epsilon, 400)
        beyond = np.array([np.maximum(losses[0] - math.exp(e) * losses[1], 0.0).sum() for e in spent])
        assert beyond[-1] <= DELTA
        worst = max(worst, spent[np.argmax(beyond <= DELTA)])
    assert worst > 0.8 * epsilon
    assert worst > 1.25 * exact_epsilon(mu, DELTA)  # what it would be with the choice for nothing


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 20.0])
def test_a_run_is_calibrated_to_the_total_and_never_above(epsilon: float) -> None:
    shares = [run_mu(epsilon, DELTA, runs) for runs in (1, 2, 5, MAX_RUNS)]
    assert [mu_from_epsilon(epsilon, DELTA), *shares] == sorted([mu_from_epsilon(epsilon, DELTA), *shares])[::-1]
    for mu, runs in zip(shares, (1, 2, 5, MAX_RUNS), strict=True):
        assert epsilon * (1.0 - 1e-9) < selection_epsilon(mu, runs, DELTA) <= epsilon
    assert selection_epsilon(math.inf, 5, DELTA) == math.inf


@pytest.mark.parametrize("runs", [1, 5, 40])
def test_the_number_of_runs_has_its_law_and_mean(runs: int) -> None:
    """Return its quantiles at 1,000 equally spaced probabilities."""
    steps = 1000
    none = math.exp(-runs)
    drawn = [draw_runs(runs, lambda n, i=i: n * (2 * i + 1) // (2 * steps)) for i in range(steps)]  # type: ignore[misc]
    quantiles = poisson.ppf(none + (1.0 - none) * (np.arange(steps) + 0.5) / steps, runs)
    np.testing.assert_array_equal(drawn, quantiles)
    assert np.mean(drawn) == pytest.approx(expected_runs(runs), rel=2e-3)
    assert min(drawn) >= 1


def test_invalid_numbers_are_refused() -> None:
    for wrong in (0, -1, 2.5, 101, math.nan):
        with pytest.raises(StudyError, match="runs must be"):
            selection_epsilon(0.1, wrong, DELTA)  # type: ignore[arg-type]
        with pytest.raises(StudyError, match="runs must be"):
            draw_runs(wrong, lambda n: 0)  # type: ignore[arg-type]
    for delta in (0.0, 1.0):
        with pytest.raises(StudyError, match="delta must be"):
            selection_epsilon(0.1, 5, delta)
    with pytest.raises(StudyError, match="mu must be"):
        selection_epsilon(-0.1, 5, DELTA)
    with pytest.raises(StudyError, match="epsilon must be"):
        run_mu(0.0, DELTA, 5)
