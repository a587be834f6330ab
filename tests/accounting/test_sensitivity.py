"""The sensitivity bounds the difference of neighbouring mean gradients, and is attained."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.special import expit

from dpadmm.accounting.sensitivity import mean_sensitivity, minimizer_sensitivity
from dpadmm.errors import StudyError
from dpadmm.losses import Hinge, Logistic, slopes


def clipped(gradients: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients * np.minimum(1.0, bound / np.maximum(norms, 1e-300))


def test_brute_force_over_replaced_rows_stays_below_and_attains():
    for n_rows, lipschitz in product([1, 2, 7], [0.5, 1.0, 3.0]):
        with case(n_rows, lipschitz):
            rng = np.random.default_rng(0)
            bound, largest = mean_sensitivity(lipschitz, n_rows), 0.0
            for _ in range(3000):
                rows = clipped(rng.normal(size=(n_rows, 2)) * 4 * lipschitz, lipschitz)
                neighbour = rows.copy()
                neighbour[rng.integers(n_rows)] = clipped(rng.normal(size=(1, 2)) * 4 * lipschitz, lipschitz)[0]
                largest = max(largest, float(np.linalg.norm(rows.mean(0) - neighbour.mean(0))))
            assert 0.99 * bound < largest <= bound * (1 + 1e-12)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()])
def test_real_losses_attain_it(loss):
    """The worst pair of the audit: y·x = c1(±cos θ, sin θ) at a distant point."""
    angle, weights, n_rows = 0.05, np.array([0.0, -400.0]), 20
    pair = [np.array([sign * np.cos(angle), np.sin(angle)]) for sign in (1.0, -1.0)]
    gradients = [slopes(loss, np.ones(1), np.array([[row @ weights]]))[0, 0] * row for row in pair]
    moved = np.linalg.norm(gradients[0] - gradients[1]) / n_rows
    bound = mean_sensitivity(loss.lipschitz, n_rows)
    assert 0.99 * bound < moved <= bound


@given(st.floats(1e-6, 1e6), st.integers(1, 10**9))
def test_formula(lipschitz, n_rows):
    assert mean_sensitivity(lipschitz, n_rows) == 2.0 * lipschitz / n_rows


def test_arrays_give_one_value_per_agent():
    np.testing.assert_array_equal(mean_sensitivity(1.0, np.array([2, 4])), [1.0, 0.5])
    assert isinstance(mean_sensitivity(1.0, 2), float)


def test_invalid_lipschitz():
    for lipschitz in [0.0, -1.0, np.nan, np.inf]:
        with case(lipschitz), pytest.raises(StudyError, match=r"lipschitz must be a positive number, not"):
            mean_sensitivity(lipschitz, 10)


def test_invalid_rows():
    for n_rows in [0, -1, 2.5, np.nan]:
        with (
            case(n_rows),
            pytest.raises(StudyError, match=f"n_rows must be a whole number of at least 1, not {n_rows}"),
        ):
            mean_sensitivity(1.0, n_rows)


def test_the_invalid_value_is_named():
    with pytest.raises(StudyError, match="not -7"):
        mean_sensitivity(1.0, np.array([3, -7]))


def slope(rows, w, q, center):
    """Of ``(1/m) Σ ln(1 + exp(−a_jᵀw)) + q/2 ‖w − center‖²``."""
    return -(expit(-rows @ w) @ rows) / len(rows) + q * (w - center)


def solved(rows, q, center):
    w = center.copy()
    for _ in range(200):
        p = expit(-rows @ w)
        w = w - np.linalg.solve((rows.T * (p * (1 - p))) @ rows / len(rows) + q * np.eye(2), slope(rows, w, q, center))
    assert np.linalg.norm(slope(rows, w, q, center)) < 1e-9
    return w


@pytest.mark.parametrize("n_rows", [1, 5])
def test_minimisers_of_neighbours_are_within_the_sensitivity(n_rows):
    rng = np.random.default_rng(1)
    for _ in range(100):
        q, center = np.exp(rng.uniform(-1, 2)), rng.normal(size=2) * 3.0
        rows = clipped(rng.normal(size=(n_rows, 2)) * 3.0, 1.0)
        neighbour = rows.copy()
        neighbour[0] = clipped(rng.normal(size=(1, 2)) * 3.0, 1.0)[0]
        moved = np.linalg.norm(solved(rows, q, center) - solved(neighbour, q, center))
        assert moved <= minimizer_sensitivity(1.0, n_rows, q)


def test_opposite_rows_and_an_inexact_solver_attain_the_sensitivity():
    """Rows ``(±cos θ, sin θ)`` far on the wrong side, and answers with the maximum error of the tolerance."""
    for n_rows, tolerance in product([1, 5], [0.0, 0.05]):
        with case(n_rows, tolerance):
            q, center = 0.7, np.array([0.0, -400.0])
            rows = np.tile([np.cos(0.05), np.sin(0.05)], (n_rows, 1))
            neighbour = rows.copy()
            neighbour[0, 0] *= -1.0
            off = np.array([tolerance / q, 0.0])
            answers = solved(rows, q, center) + off, solved(neighbour, q, center) - off
            for data, answer in zip((rows, neighbour), answers, strict=True):
                assert np.linalg.norm(slope(data, answer, q, center)) <= tolerance + 1e-8
            moved = np.linalg.norm(answers[0] - answers[1])
            limit = minimizer_sensitivity(1.0, n_rows, q, tolerance)
            assert 0.99 * limit < moved <= limit * (1 + 1e-8)


def test_a_solvers_tolerance_counts_twice():
    assert minimizer_sensitivity(1.0, 400, 0.5) == pytest.approx(0.01)
    assert minimizer_sensitivity(1.0, 400, 0.5, 0.001) == pytest.approx(0.014)
    by_agent = minimizer_sensitivity(1.0, np.array([10, 20]), np.array([1.0, 2.0]), np.array([0.0, 0.1]))
    np.testing.assert_allclose(by_agent, [0.2, 0.15])


def test_invalid_arguments_of_the_minimiser_are_refused():
    for convexity, tolerance in [(0.0, 0.0), (-1.0, 0.0), (1.0, -1.0), (1.0, np.nan)]:
        with (
            case(convexity, tolerance),
            pytest.raises(StudyError, match="^strong_convexity must be" if convexity <= 0 else "^tolerance must be"),
        ):
            minimizer_sensitivity(1.0, 10, convexity, tolerance)


def test_single_precision_sizes_are_converted():
    """Rounded to 24 bits, the noise could be too small for the sensitivity."""
    rows = np.float32([3, 3])
    assert mean_sensitivity(np.float32([1.0, 0.1]), rows).dtype == np.float64


def test_numbers_of_rows_may_be_unsigned():
    assert mean_sensitivity(1.0, np.array([4], np.uint8)).tolist() == [0.5]
