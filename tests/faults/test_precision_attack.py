"""An attack on the last bits of noise: some floats cannot result from adding noise to 0.

After Haney et al. (Precision-based attacks and interval refining, 2022). One coordinate of a gradient is exactly 0 for
one neighbouring table and Δ for the other. ``σ·n`` leaves gaps between floats. The attacker tests whether the answer
lies in a gap. With float noise this is possible for one of the two tables only.
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
    """Return whether no float n satisfies ``noise_std·n == seen``."""
    near = seen / noise_std
    candidates = (near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf))
    return ~np.any([noise_std * candidate == seen for candidate in candidates], axis=0)


def violates_privacy(zero: np.ndarray, moved: np.ndarray) -> bool:
    """Return whether the event violates (ε, δ) for one table with high confidence, ε at this δ."""
    growth = math.exp(exact_epsilon(MU, DELTA))
    for one, other in ((zero, moved), (moved, zero), (~zero, ~moved), (~moved, ~zero)):
        p, q = one.mean(), other.mean()
        chance = SURE * math.sqrt((p * (1.0 - p) + growth**2 * q * (1.0 - q)) / TRIALS)
        if p - chance > growth * q + DELTA:
            return True
    return False


@pytest.mark.parametrize("parts", [1, 4])
def test_precision_attack_succeeds_against_float_noise_and_sums_of_four(parts: int) -> None:
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
    assert moved.mean() > 6.5e-3  # far more often than δ, and never for the neighbouring table
    assert violates_privacy(zero, moved)


@pytest.fixture(scope="module")
def uploads() -> tuple[Lattice, Integers, Integers]:
    """Return a million trials at once. Coordinates are independent, and each is one trial."""
    grid = Lattice(1.0, TRIALS, 400)
    z = 1.0 / MU
    return (
        grid,
        release_sum(np.zeros(TRIALS), grid, z),
        release_sum(np.full(TRIALS, 2.0 * grid.row_bound), grid, z),
    )


def test_precision_attack_fails_against_exact_noise(uploads: tuple[Lattice, Integers, Integers]) -> None:
    grid, zero, moved = uploads
    noise_std = grid.noise_scale(1.0 / MU) * grid.step / grid.n_rows
    gaps = [in_a_gap(as_mean(upload, grid), noise_std) for upload in (zero, moved)]
    assert 0.0 < gaps[0].mean() < 1.0  # gaps are equally frequent for both tables
    assert not violates_privacy(*gaps)
    floats = [as_mean(upload, grid) * grid.n_rows / grid.step for upload in (zero, moved)]
    for upload, decoded in zip((zero, moved), floats, strict=True):  # both tables can produce every value
        np.testing.assert_array_equal(np.rint(decoded), upload)
    for bits in (1, 4, 8):
        table = [np.bincount(upload % 2**bits, minlength=2**bits) for upload in (zero, moved)]
        assert stats.chi2_contingency(table).pvalue > 1e-6
    assert not violates_privacy(zero % 2 == 0, moved % 2 == 0)


def test_best_threshold_attack_attains_the_budget(uploads: tuple[Lattice, Integers, Integers]) -> None:
    """The optimal test, on the size of the answer, reaches the budget and does not exceed it."""
    grid, zero, moved = uploads
    shift = round(2.0 * grid.row_bound / grid.step)
    middle = shift // 2
    advantage = np.mean(moved > middle) - np.mean(zero > middle)
    allowed = 2.0 * stats.norm.cdf(MU / 2.0) - 1.0
    assert abs(advantage - allowed) < SURE * math.sqrt(0.5 / TRIALS)
    quarter = discrete_gaussian(int(shift / MU / 4.0), TRIALS)
    assert violates_privacy(quarter > middle, quarter + shift > middle)
