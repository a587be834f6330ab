"""An attack on noise by its last bits: a float that no noise could have made of 0 was not made of 0.

After Haney et al. (Precision-based attacks and interval refining, 2022). One coordinate of a gradient is
exactly 0 for one neighbour and Δ for the other. ``σ·n`` leaves gaps between floats, and the attacker asks
whether what it sees lies in one. With float noise that happens to one neighbour only.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpadmm.accounting import exact_epsilon
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.trusted.discrete_gaussian import Lattice, as_mean, discrete_gaussian, release_sum

TRIALS = 10**6
DELTA = 1e-3
MU = 0.0265
SURE = 4.5
"""Standard errors given to chance."""


def in_a_gap(seen: Floats, noise_std: float) -> np.ndarray:
    """Whether no float n gives ``noise_std·n == seen``."""
    near = seen / noise_std
    candidates = (near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf))
    return ~np.any([noise_std * candidate == seen for candidate in candidates], axis=0)


def breaks_the_promise(zero: np.ndarray, moved: np.ndarray) -> bool:
    """Whether the event is surely likelier for one neighbour than ``e^ε·P + δ`` of the other, ε that of δ."""
    growth = math.exp(exact_epsilon(MU, DELTA))
    for one, other in ((zero, moved), (moved, zero), (~zero, ~moved), (~moved, ~zero)):
        p, q = one.mean(), other.mean()
        chance = SURE * math.sqrt((p * (1.0 - p) + growth**2 * q * (1.0 - q)) / TRIALS)
        if p - chance > growth * q + DELTA:
            return True
    return False


@pytest.mark.parametrize("parts", [1, 4])
def test_float_noise_is_told_apart_and_a_sum_of_four_is_no_cure(parts: int) -> None:
    rng = np.random.default_rng(1)
    shift = 2.0 / 400
    noise_std = shift / MU
    zero, moved = (
        in_a_gap(
            start + noise_std * (rng.standard_normal((parts, TRIALS)).sum(axis=0) / math.sqrt(parts)),
            noise_std,
        )
        for start in (0.0, shift)
    )
    assert not zero.any()
    assert moved.mean() > 6.5e-3  # far more than δ, and never for the neighbour
    assert breaks_the_promise(zero, moved)


@pytest.fixture(scope="module")
def uploads() -> tuple[Lattice, Integers, Integers]:
    """A million trials at once: coordinates are independent, and each plays the game by itself."""
    grid = Lattice(1.0, TRIALS, 400)
    z = 1.0 / MU
    return (
        grid,
        release_sum(np.zeros(TRIALS), grid, z),
        release_sum(np.full(TRIALS, 2.0 * grid.row_bound), grid, z),
    )


def test_exact_noise_is_not_told_apart(uploads: tuple[Lattice, Integers, Integers]) -> None:
    grid, zero, moved = uploads
    noise_std = grid.noise_scale(1.0 / MU) * grid.step / grid.n_rows
    gaps = [in_a_gap(as_mean(upload, grid), noise_std) for upload in (zero, moved)]
    assert 0.0 < gaps[0].mean() < 1.0  # the attack sees gaps, of both neighbours alike
    assert not breaks_the_promise(*gaps)
    floats = [as_mean(upload, grid) * grid.n_rows / grid.step for upload in (zero, moved)]
    for upload, decoded in zip((zero, moved), floats, strict=True):  # every value of one is one of the other
        np.testing.assert_array_equal(np.rint(decoded), upload)
    for bits in (1, 4, 8):
        table = [np.bincount(upload % 2**bits, minlength=2**bits) for upload in (zero, moved)]
        assert stats.chi2_contingency(table).pvalue > 1e-6
    assert not breaks_the_promise(zero % 2 == 0, moved % 2 == 0)


def test_the_promise_is_tight_enough_to_be_broken(uploads: tuple[Lattice, Integers, Integers]) -> None:
    """The best test of all, on the size of what is seen, reaches what the budget allows and no more."""
    grid, zero, moved = uploads
    shift = round(2.0 * grid.row_bound / grid.step)
    middle = shift // 2
    advantage = np.mean(moved > middle) - np.mean(zero > middle)
    allowed = 2.0 * stats.norm.cdf(MU / 2.0) - 1.0
    assert abs(advantage - allowed) < SURE * math.sqrt(0.5 / TRIALS)
    quarter = discrete_gaussian(int(shift / MU / 4.0), TRIALS)
    assert breaks_the_promise(quarter > middle, quarter + shift > middle)
