"""Calibration: formulas, safety to the last bit, tightness, invalid input."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looping import case

from dpadmm.accounting import (
    Release,
    exact_epsilon,
    exact_round_noise_multiplier,
    gaussian_mu,
    mu_from_epsilon,
    paper_noise_multiplier,
    round_epsilon_from_noise,
    total_noise_multiplier,
)
from dpadmm.errors import StudyError

settings_ = settings(max_examples=150, deadline=None)
epsilons = st.floats(-6, 4).map(lambda power: 10.0**power)
deltas = st.floats(-15, math.log10(0.9)).map(lambda power: 10.0**power)


@given(epsilons, deltas, st.integers(1, 10**6))
@settings_
def test_total_is_safe_and_tight(epsilon, delta, t):
    z = total_noise_multiplier(epsilon, delta, t)
    assert exact_epsilon(math.sqrt(t) / z, delta) <= epsilon
    assert exact_epsilon(gaussian_mu([Release(z, t)]), delta) <= epsilon
    # 1e-9 less noise would break the promise
    assert exact_epsilon(math.sqrt(t) / (z * (1 - 1e-9)), delta) > epsilon


@given(epsilons, deltas)
@settings_
def test_round_is_safe_and_the_case_of_one_release(epsilon, delta):
    z = exact_round_noise_multiplier(epsilon, delta)
    assert exact_epsilon(1.0 / z, delta) <= epsilon
    assert z == pytest.approx(total_noise_multiplier(epsilon, delta, 1), rel=1e-14)


@given(st.floats(1e-6, 1.0), deltas)
@settings_
def test_the_papers_noise_is_enough_where_its_theorem_holds(epsilon, delta):
    z = paper_noise_multiplier(epsilon, delta)
    assert exact_epsilon(1.0 / z, delta) <= epsilon
    assert exact_round_noise_multiplier(epsilon, delta) <= z
    assert round_epsilon_from_noise(z, delta) == pytest.approx(epsilon, rel=1e-14)


@given(epsilons, deltas, st.floats(1.0, 10.0))
@settings_
def test_mu_grows_with_the_budget(epsilon, delta, more):
    assert mu_from_epsilon(epsilon * more, delta) >= mu_from_epsilon(epsilon, delta) * (1 - 1e-11)


def test_extremes_are_safe_and_do_not_warn():
    for delta, epsilon in product([1e-300, 1e-5, 1 - 1e-10], [1e-300, 1e-20, 1e8, 1e15]):
        with case(delta, epsilon):
            mu = mu_from_epsilon(epsilon, delta)
            assert mu > 0.0
            assert exact_epsilon(mu, delta) <= epsilon


def test_a_large_delta_is_safe_and_tight_too():
    for epsilon, delta in product([1e-3, 1.0, 30.0], [0.3, 0.7, 0.95]):
        with case(epsilon, delta):
            mu = mu_from_epsilon(epsilon, delta)
            assert exact_epsilon(mu, delta) <= epsilon < exact_epsilon(mu * (1 + 1e-9), delta)


def test_single_precision_input_is_converted():
    """Neither single precision nor the half precision that NumPy takes for the root of a small integer."""
    some, few = np.array([0.3, 3.0], np.float32), np.array([1e-3, 1e-7], np.float32)
    wide, long = some.astype(float), few.astype(float)
    np.testing.assert_array_equal(mu_from_epsilon(some, long), mu_from_epsilon(wide, long))
    np.testing.assert_array_equal(mu_from_epsilon(wide, few), mu_from_epsilon(wide, long))
    np.testing.assert_array_equal(
        total_noise_multiplier(1.0, 1e-5, np.array([3, 7], np.int8)),
        [total_noise_multiplier(1.0, 1e-5, 3), total_noise_multiplier(1.0, 1e-5, 7)],
    )


def test_the_papers_formula():
    assert paper_noise_multiplier(0.05, 1e-3) == pytest.approx(math.sqrt(2 * math.log(1.25 / 1e-3)) / 0.05)
    assert paper_noise_multiplier(1.0, 1e-3) > 0.0
    assert round_epsilon_from_noise(0.0, 1e-3) == round_epsilon_from_noise(5e-324, 1e-3) == math.inf


def test_known_value_of_the_analytic_gaussian_mechanism():
    """σ(ε = 1, δ = 1e-5) = 3.7304 (Balle and Wang 2018; 4.84 by the classical formula)."""
    assert exact_round_noise_multiplier(1.0, 1e-5) == pytest.approx(3.7304, abs=2e-3)


def test_every_agent_may_differ():
    epsilon, delta, t = np.array([0.1, 1.0, 8.0]), np.array([1e-3, 1e-5, 1e-7]), np.array([1, 50, 200])
    z = total_noise_multiplier(epsilon, delta, t)
    apart = [total_noise_multiplier(float(e), float(d), int(n)) for e, d, n in zip(epsilon, delta, t, strict=True)]
    np.testing.assert_array_equal(z, apart)
    assert np.all(exact_epsilon(np.sqrt(t) / z, delta) <= epsilon)
    assert total_noise_multiplier(1.0, 1e-5, t).shape == (3,)
    rounds = exact_round_noise_multiplier(epsilon, 1e-5)
    np.testing.assert_array_equal(rounds, [exact_round_noise_multiplier(float(e), 1e-5) for e in epsilon])
    assert isinstance(total_noise_multiplier(1.0, 1e-5, 10), float)


def test_paper_calibration_refuses_large_epsilon_with_a_hint():
    with pytest.raises(StudyError) as refusal:
        paper_noise_multiplier(1.5, 1e-3)
    text = str(refusal.value)
    assert "round_epsilon" in text
    assert "1.5" in text
    assert "needs ε ≤ 1" in text
    assert "--calibration exact" in text
    assert "--epsilon" in text
    assert exact_round_noise_multiplier(1.5, 1e-3) > 0.0


def test_invalid_epsilon():
    for (call, name), epsilon in product(
        [
            (lambda e: paper_noise_multiplier(e, 0.1), "round_epsilon"),
            (lambda e: exact_round_noise_multiplier(e, 0.1), "round_epsilon"),
            (lambda e: total_noise_multiplier(e, 0.1, 5), "epsilon"),
            (lambda e: mu_from_epsilon(e, 0.1), "epsilon"),
        ],
        [0.0, -1.0, math.nan, math.inf],
    ):
        with (
            case(call, name, epsilon),
            pytest.raises(StudyError, match=f"^{name} must be a positive number, not {epsilon}$"),
        ):
            call(epsilon)


def test_invalid_delta():
    for call, delta in product(
        [
            lambda d: paper_noise_multiplier(0.5, d),
            lambda d: exact_round_noise_multiplier(0.5, d),
            lambda d: total_noise_multiplier(0.5, d, 5),
            lambda d: mu_from_epsilon(0.5, d),
            lambda d: round_epsilon_from_noise(0.5, d),
        ],
        [0.0, 1.0, -0.1, math.nan],
    ):
        with (
            case(call, delta),
            pytest.raises(StudyError, match=f"^delta must be between 0 and 1, both excluded, not {delta}$"),
        ):
            call(delta)


def test_other_invalid_input():
    with pytest.raises(StudyError, match=r"^n_releases must be a whole number of at least 1, not 0$"):
        total_noise_multiplier(1.0, 0.1, 0)
    with pytest.raises(StudyError, match=r"^noise_multiplier must be a finite number of at least 0, not -1\.0$"):
        round_epsilon_from_noise(-1.0, 0.1)
