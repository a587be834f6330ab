"""The sensitivity is a true bound of neighbouring mean gradients, and attained: without the 2 this fails."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpadmm.errors import StudyError
from dpadmm.losses import Hinge, Logistic, slopes
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity


def clipped(gradients: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients * np.minimum(1.0, bound / np.maximum(norms, 1e-300))


@pytest.mark.parametrize("lipschitz", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("n_rows", [1, 2, 7])
def test_brute_force_over_replaced_rows_stays_below_and_attains(lipschitz, n_rows):
    rng = np.random.default_rng(0)
    bound, largest = mean_gradient_sensitivity(lipschitz, n_rows), 0.0
    for _ in range(3000):
        rows = clipped(rng.normal(size=(n_rows, 2)) * 4 * lipschitz, lipschitz)
        neighbour = rows.copy()
        neighbour[rng.integers(n_rows)] = clipped(rng.normal(size=(1, 2)) * 4 * lipschitz, lipschitz)[0]
        largest = max(largest, float(np.linalg.norm(rows.mean(0) - neighbour.mean(0))))
    assert 0.99 * bound < largest <= bound * (1 + 1e-12)


@pytest.mark.parametrize("loss", [Logistic(), Hinge()])
def test_real_losses_attain_it(loss):
    """The audit's worst pair: y·x = c1(±cos θ, sin θ) at a far away point."""
    angle, weights, n_rows = 0.05, np.array([0.0, -400.0]), 20
    pair = [np.array([sign * np.cos(angle), np.sin(angle)]) for sign in (1.0, -1.0)]
    gradients = [slopes(loss, np.ones(1), np.array([[row @ weights]]))[0, 0] * row for row in pair]
    moved = np.linalg.norm(gradients[0] - gradients[1]) / n_rows
    bound = mean_gradient_sensitivity(loss.lipschitz, n_rows)
    assert 0.99 * bound < moved <= bound


@given(st.floats(1e-6, 1e6), st.integers(1, 10**9))
def test_formula(lipschitz, n_rows):
    assert mean_gradient_sensitivity(lipschitz, n_rows) == 2.0 * lipschitz / n_rows


def test_arrays_give_one_value_per_agent():
    np.testing.assert_array_equal(mean_gradient_sensitivity(1.0, np.array([2, 4])), [1.0, 0.5])
    assert isinstance(mean_gradient_sensitivity(1.0, 2), float)


@pytest.mark.parametrize("lipschitz", [0.0, -1.0, np.nan, np.inf])
def test_bad_lipschitz(lipschitz):
    with pytest.raises(StudyError, match=r"lipschitz must be a positive number, not"):
        mean_gradient_sensitivity(lipschitz, 10)


@pytest.mark.parametrize("n_rows", [0, -1, 2.5, np.nan])
def test_bad_rows(n_rows):
    with pytest.raises(StudyError, match=f"n_rows must be a whole number of at least 1, not {n_rows}"):
        mean_gradient_sensitivity(1.0, n_rows)


def test_the_wrong_agent_is_the_one_named():
    with pytest.raises(StudyError, match="not -7"):
        mean_gradient_sensitivity(1.0, np.array([3, -7]))
