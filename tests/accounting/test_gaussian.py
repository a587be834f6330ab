"""The Gaussian accountant: reference table, properties, extremes, invalid input."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.accounting import (
    Release,
    affordable_rounds,
    exact_delta,
    exact_epsilon,
    gaussian_mu,
    group_mu,
    paper_epsilon,
    paper_noise_multiplier,
    pld_epsilon,
    rdp_epsilon,
)
from dpadmm.errors import StudyError

REFERENCE = [  # ε per round, δ, paper, exact at t = 100 (PRIVACY.md)
    (0.01, 1e-3, 0.0988, 0.0369),
    (0.05, 1e-3, 0.5009, 0.2772),
    (0.1, 1e-3, 1.0193, 0.6339),
    (0.2, 1e-3, 2.1087, 1.4488),
    (0.05, 1e-5, 0.5006, 0.3526),
    (0.1, 1e-5, 1.0118, 0.7510),
    (0.1, 1e-6, 1.0098, 0.7837),
    (0.2, 1e-6, 2.0553, 1.6574),
]

few = settings(max_examples=60, deadline=None)
mus = st.floats(-6, 2).map(lambda power: 10.0**power)
deltas = st.floats(-15, math.log10(0.5)).map(lambda power: 10.0**power)
multipliers = st.floats(-1, 4).map(lambda power: 10.0**power)


def test_reference_table():
    for round_epsilon, delta, paper, exact in REFERENCE:
        with case(round_epsilon, delta, paper, exact):
            z = paper_noise_multiplier(round_epsilon, delta)
            assert round(paper_epsilon(z, 100, delta), 4) == paper
            assert round(exact_epsilon(gaussian_mu([Release(z, 100)]), delta), 4) == exact


@given(multipliers, st.integers(1, 10**6), deltas)
@few
def test_paper_formula_is_the_minimum_over_all_integers(z, t, delta):
    best = math.sqrt(2 * z * z * -math.log(delta) / t)
    orders = np.arange(1, min(int(best), 10**5) + 50, dtype=float)
    brute = np.min((t * orders * (orders + 1) / (2 * z * z) - math.log(delta)) / orders)
    assert paper_epsilon(z, t, delta) <= brute * (1 + 1e-12)
    if best < 1e5:
        assert paper_epsilon(z, t, delta) == pytest.approx(brute, rel=1e-12)


@given(multipliers, st.integers(1, 10**6), deltas)
@few
def test_paper_bound_never_below_exact(z, t, delta):
    assert paper_epsilon(z, t, delta) >= exact_epsilon(gaussian_mu([Release(z, t)]), delta) * (1 - 1e-12)


@given(mus, deltas, st.floats(1.0, 3.0), st.floats(1.0, 100.0))
@few
def test_epsilon_grows_with_mu_and_falls_with_delta(mu, delta, more_mu, less_delta):
    epsilon = exact_epsilon(mu, delta)
    assert exact_epsilon(mu * more_mu, delta) >= epsilon * (1 - 1e-12)
    assert exact_epsilon(mu, delta / less_delta) >= epsilon * (1 - 1e-12)


@given(mus, deltas)
@few
def test_delta_of_epsilon_is_the_delta(mu, delta):
    epsilon = exact_epsilon(mu, delta)
    if epsilon == 0.0:
        assert exact_delta(mu, 0.0) <= delta * (1 + 1e-11)
    else:
        # One ulp of ε moves ln δ by up to μ·10 ulp
        assert exact_delta(mu, epsilon) == pytest.approx(delta, rel=1e-9)


@given(st.lists(st.tuples(multipliers, st.integers(1, 500)), max_size=5), multipliers)
@few
def test_mu_squares_add_up(parts, z):
    releases = [Release(noise, count) for noise, count in parts]
    total = gaussian_mu([*releases, Release(z)])
    assert total**2 == pytest.approx(gaussian_mu(releases) ** 2 + 1.0 / z**2, rel=1e-12)


@given(multipliers, deltas, st.floats(-4, 2).map(lambda power: 10.0**power), st.sampled_from(["exact", "paper"]))
@few
def test_affordable_rounds_are_the_largest_number(z, delta, epsilon, accountant):
    def total(t):
        if t == 0:
            return 0.0
        return paper_epsilon(z, t, delta) if accountant == "paper" else exact_epsilon(math.sqrt(t) / z, delta)

    rounds = affordable_rounds(z, epsilon, delta, accountant=accountant)
    assert total(rounds) <= epsilon < total(rounds + 1)


def test_the_paper_affords_no_more_rounds_than_exact():
    z = paper_noise_multiplier(0.1, 1e-5)
    assert 0 < affordable_rounds(z, 1.0, 1e-5, accountant="paper") < affordable_rounds(z, 1.0, 1e-5)


@pytest.mark.parametrize("accountant", ["exact", "paper"])
def test_rounds_beyond_64_bits(accountant):
    assert affordable_rounds(1e12, 1.0, 1e-5, accountant=accountant) > 2**64


def test_not_even_one_round():
    assert affordable_rounds(0.1, 0.01, 1e-9) == 0
    assert affordable_rounds(0.0, 100.0, 1e-3) == 0
    assert affordable_rounds(0.0, 100.0, 1e-3, accountant="paper") == 0


def test_without_noise_everything_is_infinite_and_nothing_warns():
    release = Release(0.0, 3)
    assert gaussian_mu([release]) == math.inf
    assert exact_epsilon(math.inf, 1e-3) == math.inf
    assert exact_delta(math.inf, 5.0) == 1.0
    assert [exact_delta(mu, math.inf) for mu in (0.0, 1.0, math.inf)] == [0.0, 0.0, 0.0]
    assert paper_epsilon(0.0, 3, 1e-3) == math.inf
    assert rdp_epsilon([release], 1e-3) == math.inf
    assert pld_epsilon([release], 1e-3) == math.inf


def test_without_releases_everything_is_zero():
    assert gaussian_mu([]) == gaussian_mu([Release(0.0, count=0)]) == 0.0
    assert exact_epsilon(0.0, 1e-3) == exact_delta(0.0, 0.0) == 0.0
    assert rdp_epsilon([], 1e-3) == pld_epsilon([], 1e-3) == 0.0


@pytest.mark.parametrize("total", [rdp_epsilon, pld_epsilon])
def test_a_release_that_never_happened_costs_nothing(total):
    assert total([Release(0.0, count=0), Release(5.0, 10)], 1e-5) == total([Release(5.0, 10)], 1e-5)


def test_epsilon_is_zero_when_delta_alone_covers_it():
    at_zero = math.erf(1e-3 / 2 / math.sqrt(2))  # δ(0) = 2Φ(μ/2) − 1
    assert exact_epsilon(1e-3, at_zero * (1 + 1e-6)) == 0.0
    assert exact_epsilon(1e-3, at_zero * (1 - 1e-6)) > 0.0


def test_extremes_neither_warn_nor_give_nan():
    for delta, mu in product([5e-324, 1e-300, 1e-3, 0.5, 1 - 1e-16], [5e-324, 1e-300, 1e-12, 1e6, 1e154, 1e308]):
        with case(delta, mu):
            assert exact_epsilon(mu, delta) >= 0.0
            assert 0.0 <= exact_delta(mu, 1.0) <= 1.0
            assert paper_epsilon(min(1e308, 1 / max(mu, 1e-308)), 100, delta) >= 0.0


def test_where_two_halves_round_to_more_than_one_nothing_warns():
    """Φ(a) + φ(a)·R(b) = 1 − δ: with a δ this small, rounding can take it above 1."""
    assert np.all(exact_delta(1e-300, 1e-300 * np.linspace(0.0, 1.0, 20_001)) > 0.0)


def test_arrays_equal_single_calls():
    mu, delta = np.array([[0.0, 1e-4], [0.3, np.inf], [2.0, 50.0]]), np.array([1e-3, 1e-6])
    together = exact_epsilon(mu, delta)
    apart = [[exact_epsilon(float(m), float(d)) for m, d in zip(row, delta, strict=True)] for row in mu]
    np.testing.assert_array_equal(together, apart)
    np.testing.assert_array_equal(exact_delta(mu, 1.0), [[exact_delta(float(m), 1.0) for m in row] for row in mu])
    z = np.array([0.0, 5.0, 75.0])
    np.testing.assert_array_equal(paper_epsilon(z, 10, 1e-5), [paper_epsilon(float(v), 10, 1e-5) for v in z])
    assert isinstance(exact_epsilon(1.0, 1e-3), float)


def test_single_precision_numbers_are_converted():
    """Rounding to seven digits could decrease ε."""
    some, few = np.array([0.3, 3.0], np.float32), np.array([1e-3, 1e-7], np.float32)
    wide, long = some.astype(float), few.astype(float)
    np.testing.assert_array_equal(exact_epsilon(some, long), exact_epsilon(wide, long))
    np.testing.assert_array_equal(exact_epsilon(wide, few), exact_epsilon(wide, long))
    np.testing.assert_array_equal(exact_delta(some, few), exact_delta(wide, long))
    np.testing.assert_array_equal(paper_epsilon(some, 10, 1e-5), paper_epsilon(wide, 10, 1e-5))


def test_whole_numbers_may_be_longer_than_64_bits():
    assert exact_epsilon(10**30, 1e-5) == exact_epsilon(1e30, 1e-5)
    assert (exact_delta(10**30, 1.0), exact_delta(1.0, 10**30)) == (1.0, 0.0)
    assert paper_epsilon(10**30, 10**30, 1e-5) == paper_epsilon(1e30, 10**30, 1e-5)


@pytest.mark.parametrize("accountant", ["exact", "paper"])
def test_a_budget_that_is_met_exactly_is_enough(accountant):
    z, t, delta = 20.0, 37, 1e-5
    total = paper_epsilon(z, t, delta) if accountant == "paper" else exact_epsilon(math.sqrt(t) / z, delta)
    assert affordable_rounds(z, total, delta, accountant=accountant) == t


def test_rounds_are_counted_up_to_the_largest_noise_and_not_beyond():
    assert affordable_rounds(1e100, 1.0, 1e-5, accountant="paper") > 10**198
    with pytest.raises(StudyError, match="noise_multiplier must be at most 1e100 to count rounds"):
        affordable_rounds(1.1e100, 1.0, 1e-5, accountant="paper")


def test_group_privacy():
    assert group_mu(0.25, 4) == 1.0
    assert group_mu(0.25, 1) == 0.25
    with pytest.raises(StudyError, match="n_rows must be a whole number of at least 1, not 0"):
        group_mu(0.25, 0)


def test_invalid_delta():
    for call, delta in product(
        [
            lambda d: exact_epsilon(1.0, d),
            lambda d: paper_epsilon(1.0, 1, d),
            lambda d: rdp_epsilon([Release(1.0)], d),
            lambda d: pld_epsilon([Release(1.0)], d),
            lambda d: affordable_rounds(1.0, 1.0, d),
        ],
        [0.0, 1.0, -0.1, 2.0, math.nan],
    ):
        with (
            case(call, delta),
            pytest.raises(StudyError, match=f"^delta must be between 0 and 1, both excluded, not {delta}$"),
        ):
            call(delta)


def test_invalid_noise_multiplier():
    for call, z in product(
        [Release, lambda z: paper_epsilon(z, 1, 0.1), lambda z: affordable_rounds(z, 1.0, 0.1)],
        [-1.0, math.nan, math.inf],
    ):
        with (
            case(call, z),
            pytest.raises(StudyError, match=f"^noise_multiplier must be a finite number of at least 0, not {z}$"),
        ):
            call(z)


def test_invalid_input():
    for call, message in [
        (lambda: Release(1.0, -1), "count must be a whole number of at least 0, not -1"),
        (lambda: Release(1.0, 1.5), "count must be a whole number of at least 0, not 1.5"),
        (lambda: Release("1"), "noise_multiplier must be a finite number of at least 0, not '?1"),
        (lambda: Release(None), "noise_multiplier must be a finite number of at least 0, not None"),
        (lambda: paper_epsilon(1.0, 0, 0.1), "n_rounds must be a whole number of at least 1, not 0"),
        (lambda: affordable_rounds(1.0, 0.0, 0.1), "epsilon must be a positive number, not 0.0"),
        (lambda: affordable_rounds(1.0, math.inf, 0.1), "epsilon must be a positive number, not inf"),
        (lambda: affordable_rounds(1e200, 1.0, 0.1), "at most 1e100"),
        (lambda: affordable_rounds(1.0, 1.0, 0.1, accountant="rdp"), "accountant must be 'exact' or 'paper'"),
        (lambda: exact_epsilon(-1.0, 0.1), "mu must be a number of at least 0, not -1.0"),
        (lambda: exact_epsilon(math.nan, 0.1), "mu must be a number of at least 0, not nan"),
        (lambda: exact_delta(-1.0, 1.0), "mu must be a number of at least 0, not -1.0"),
        (lambda: group_mu(-1.0, 2), "mu must be a number of at least 0, not -1.0"),
        (lambda: exact_delta(1.0, -1.0), "epsilon must be a number of at least 0, not -1.0"),
        (lambda: exact_epsilon(np.array([1.0, -2.0]), 0.1), "mu must be a number of at least 0, not -2.0"),
    ]:
        with case(call, message), pytest.raises(StudyError, match=message):
            call()


def test_dp_accounting_is_imported_on_first_use():
    code = "import sys, dpadmm.accounting.gaussian; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
