"""The accountant compared with dp_accounting and with 60-digit arithmetic."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
import scipy.stats
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    get_epsilon_gaussian,
    get_sigma_gaussian,
    pld,
    rdp,
)
from looping import case

from dpadmm.accounting import (
    Release,
    exact_delta,
    exact_epsilon,
    gaussian_mu,
    mu_from_epsilon,
    paper_epsilon,
    paper_noise_multiplier,
    pld_epsilon,
    rdp_epsilon,
    total_noise_multiplier,
)

PLANS = [
    [Release(75.53, 100)],
    [Release(20.0, 10), Release(50.0, 200), Release(5.0)],
    [Release(1.0)],
    [Release(0.3, 2)],
    [Release(4000.0, 10)],
]


def precise_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper = mpmath.ncdf(-epsilon / mu + mu / 2)
        return upper - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2)


def test_epsilon_in_60_digits_is_an_upper_bound_and_tight():
    for mu, delta in product(
        [1e-6, 1e-4, 1e-2, 0.3, 0.4999, 0.5, 0.7, 1.0, 4.0, 20.0, 100.0, 1e5],
        [1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5],
    ):
        with case(mu, delta):
            epsilon = exact_epsilon(mu, delta)
            assert precise_delta(mu, epsilon) <= delta
            if epsilon > 0.0:
                assert precise_delta(mu, epsilon * (1 - 1e-9)) > delta


def test_delta_in_60_digits():
    for ratio, mu in product(
        [-1.0, -0.25, -0.1, 0.0, 0.1, 1.0, 3.0, 6.0], [1e-6, 1e-3, 0.1, 0.4999, 0.5, 0.7, 1.2, 2.0, 30.0]
    ):
        with case(ratio, mu):
            epsilon = max(0.0, mu * (mu / 2 + ratio))
            precise = precise_delta(mu, epsilon)
            assert precise <= exact_delta(mu, epsilon) <= precise * (1 + mpmath.mpf("1.5e-12"))


def test_cap_leaves_room_for_rounding_in_the_ledger():
    """A sum of rounded μ² may exceed the cap by less than 2⁻⁵¹ of it. The total is still (ε, δ)-private."""
    for epsilon, delta in product([1e-6, 1e-3, 0.1, 1.0, 3.0, 20.0, 100.0], [1e-100, 1e-12, 1e-5, 1e-2]):
        with case(epsilon, delta), mpmath.workdps(60):
            cap = mu_from_epsilon(epsilon, delta) ** 2
            assert precise_delta(mpmath.sqrt(mpmath.mpf(cap) * (1 + mpmath.mpf(2) ** -51)), epsilon) <= delta


def test_the_papers_formula_in_60_digits_is_rounded_up_by_a_few_last_bits():
    for (z, t), delta in product([(0.3, 2), (5.0, 10), (75.53, 100), (3e4, 10**6)], [1e-12, 1e-5, 0.3]):
        with case(z, t, delta), mpmath.workdps(60):
            best = int(z * math.sqrt(-2 * math.log(delta) / t))
            orders = [mpmath.mpf(order) for order in range(max(1, best - 2), best + 4)]
            noise, leak = mpmath.mpf(z), mpmath.log(1 / mpmath.mpf(delta))
            precise = min(t * (order + 1) / (2 * noise**2) + leak / order for order in orders)
            assert precise <= paper_epsilon(z, t, delta) <= precise * (1 + mpmath.mpf("1e-14"))


def test_noise_for_epsilon_0_is_tight():
    """At ε = 0, δ = erf(μ/√8), so the maximum μ is known. 3e-12 of δ is the margin for rounding."""
    for delta in (1e-9, 1e-5, 1e-3):
        with mpmath.workdps(60):
            largest = mpmath.sqrt(8) * mpmath.erfinv(mpmath.mpf(delta))
            assert largest * (1 - mpmath.mpf("3.5e-12")) <= mu_from_epsilon(1e-300, delta) <= largest


def test_delta_by_integrating_the_densities():
    """``δ(ε) = ∫ max(0, N(μ,1) − e^ε N(0,1))``: the definition, without the closed form."""
    for mu in [0.2, 1.0, 5.0]:
        with case(mu):
            points = np.linspace(-40.0, 45.0, 2_000_001)
            for epsilon in (0.0, 0.5, 2.0):
                gap = scipy.stats.norm.pdf(points, mu) - math.exp(epsilon) * scipy.stats.norm.pdf(points)
                assert exact_delta(mu, epsilon) == pytest.approx(
                    float(np.trapezoid(np.maximum(gap, 0.0), points)), rel=1e-7, abs=1e-12
                )


def test_dp_accounting_closed_form():
    for mu, delta in product([0.01, 0.1, 1.0, 10.0, 100.0], [1e-12, 1e-6, 1e-3, 0.1]):
        with case(mu, delta):
            assert exact_epsilon(mu, delta) == pytest.approx(get_epsilon_gaussian(1.0 / mu, delta), rel=1e-9, abs=1e-11)


def test_dp_accounting_calibration():
    for epsilon, delta in product([0.05, 0.5, 1.0, 8.0], [1e-9, 1e-5, 1e-3]):
        with case(epsilon, delta):
            expected = get_sigma_gaussian(epsilon, delta) * math.sqrt(100)
            assert total_noise_multiplier(epsilon, delta, 100) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-3])  # separate cases, because mutation runs skip slow tests
def test_rdp_above_pld_above_exact(delta):
    for releases in PLANS:
        with case(releases):
            exact = exact_epsilon(gaussian_mu(releases), delta)
            by_pld, by_rdp = pld_epsilon(releases, delta), rdp_epsilon(releases, delta)
            assert exact <= by_rdp
            assert exact * (1 - 1e-7) <= by_pld
            assert by_pld == pytest.approx(exact, rel=1e-4, abs=1e-8)
            assert by_rdp <= 1.0005 * _by_many_orders(releases, delta)


def _by_many_orders(releases, delta):
    around = math.sqrt(-2.0 * math.log(delta)) / gaussian_mu(releases)
    accountant = rdp.RdpAccountant(orders=1.0 + around * np.geomspace(1e-3, 1e3, 4001))
    for release in releases:
        accountant.compose(GaussianDpEvent(release.noise_multiplier), release.count)
    return accountant.get_epsilon(delta)


def test_the_papers_bound_is_the_classical_rdp_conversion_at_integer_orders():
    z, t, delta = paper_noise_multiplier(0.1, 1e-5), 100, 1e-5
    orders = np.arange(2, 400)
    accountant = rdp.RdpAccountant(orders=orders)
    accountant.compose(GaussianDpEvent(z), t)
    classical = np.min(accountant._rdp + math.log(1 / delta) / (orders - 1))
    assert paper_epsilon(z, t, delta) == pytest.approx(classical, rel=1e-12)


def test_dp_accounting_replace_one_doubles_sensitivity_for_pld_but_not_for_rdp():
    """For this reason ``pld_epsilon`` and ``rdp_epsilon`` keep the default relation: the sensitivity contains the 2."""
    z, t, delta = paper_noise_multiplier(0.05, 1e-3), 100, 1e-3
    found = {}
    for name, kind in (("pld", pld.PLDAccountant), ("rdp", rdp.RdpAccountant)):
        for relation in (NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE):
            accountant = kind(neighboring_relation=relation)
            accountant.compose(GaussianDpEvent(z), t)
            found[name, relation.name] = accountant.get_epsilon(delta)
    mu = math.sqrt(t) / z
    assert found["pld", "REPLACE_ONE"] == pytest.approx(exact_epsilon(2 * mu, delta), rel=1e-4)
    assert found["pld", "ADD_OR_REMOVE_ONE"] == pytest.approx(exact_epsilon(mu, delta), rel=1e-4)
    assert found["rdp", "REPLACE_ONE"] == found["rdp", "ADD_OR_REMOVE_ONE"]
    assert pld_epsilon([Release(z, t)], delta) == pytest.approx(found["pld", "ADD_OR_REMOVE_ONE"], rel=1e-4)
