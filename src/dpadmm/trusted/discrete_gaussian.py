"""Exact noise: what a deployed agent adds to a sum over its rows, in whole numbers on a public grid.

No floating point between the rounded sum and the upload, and no state between two releases: every bit comes
fresh from the operating system, so a forked or restored process never draws the same noise again.
Proofs: docs/decisions/0007-exact-noise.md, and 0017-secure-aggregation.md for shares of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.checks import require, require_whole
from dpadmm._base.errors import DataError, StudyError
from dpadmm.privacy.sensitivity import mean_sensitivity

MARGIN = 1e-6
"""Relative extra noise; it pays for the discrete Gaussian not being the continuous one, and for rounding."""

SHARE_MARGIN = 2e-6
"""The same for a share of the noise, which is smaller, and has to do alone if all other sites collude."""

LEAST_SHARE = 1000
"""σ of a share, in steps: below, it is too coarse for its margin."""

REACH = 64
"""Noise is below REACH·σ: more has probability < 1e-880 and is drawn again, so that nothing can overflow."""

Draw = Callable[[int, int], Integers]
Coins = Callable[[Integers], NDArray[np.bool_]]  # one for each attempt named, independent of all before


@dataclass(frozen=True)
class Grid:
    """The public grid of a sum over ``n_rows`` rows, each of which adds ``size`` numbers of norm ≤ R."""

    row_norm: float
    size: int
    n_rows: int

    def __post_init__(self) -> None:
        require("row_norm", self.row_norm, lambda c: (c >= 1e-30) & (c <= 1e30), "between 1e-30 and 1e30")
        for name, value in (("size", self.size), ("n_rows", self.n_rows)):
            require_whole(name, value, least=1)
            require(name, value, lambda v: v <= 1e8, "at most 100 million")

    @property
    def row_bound(self) -> float:
        """What computed contributions are clipped to, so that with all rounding they are at most R long."""
        return self.row_norm * (1.0 - 2.0**-40 - 8 * self.size * 2.0**-53)

    @property
    def step(self) -> float:
        """g, the largest power of two with ``√size·g ≤ 1e-6·2·R``."""
        finest = 1e-6 * mean_sensitivity(self.row_norm, 1) / math.sqrt(self.size)
        return math.ldexp(0.5, math.frexp(finest)[1])

    @property
    def sensitivity(self) -> float:
        """``S = 2·R·(1 + m(m + 8)·2⁻⁵³) + √size·g`` of the rounded sum: a row, float summation, rounding."""
        rows = mean_sensitivity(self.row_norm, 1)
        summation = self.n_rows * (self.n_rows + 8.0) * 2.0**-53
        return rows * (1.0 + summation) + math.sqrt(self.size) * self.step

    @property
    def largest(self) -> int:
        """No entry of a rounded sum is larger, in steps."""
        return math.ceil(self.n_rows * (self.row_norm / self.step) * (1.0 + 1e-6)) + 1

    def noise_scale(self, z: float, shares: int = 1) -> int:
        """σ in steps: ``z·S/g`` and the margin, rounded up; refused if an upload might not fit 63 bits.

        Of several ``shares`` each is ``√shares`` smaller: the variances of so many add up to that of one.
        """
        require("noise_multiplier", z, lambda v: (v >= 0.1) & (v <= 1e9), "between 0.1 and 1e9")
        require_whole("shares", shares, least=1)
        margin = MARGIN if shares == 1 else SHARE_MARGIN
        scale = math.ceil(z * self.sensitivity / self.step * (1.0 + margin) / math.sqrt(shares))
        if scale < LEAST_SHARE:  # never a single one: z·S/g is 10⁵ at least
            raise StudyError(f"{shares} shares of the noise are too small; fewer honest sites, or more noise")
        if self.reach(scale).bit_length() > 62:
            raise StudyError("uploads might not fit 63 bits; take fewer rows or weights, or less noise")
        return scale

    def reach(self, scale: int) -> int:
        """No entry of an upload with noise of this scale is larger, in steps."""
        return self.largest + REACH * scale


def quantise(total: Floats, grid: Grid) -> Integers:
    """``round(Σ_j f_j / g)``; whatever is wrong with the sum, the refusal reads the same."""
    with np.errstate(all="ignore"):
        fine = isinstance(total, np.ndarray) and total.dtype == np.float64 and total.size == grid.size
        steps = np.rint(total / grid.step) if fine else np.array(np.nan)
        if not (np.abs(steps) <= grid.largest).all():  # false for NaN
            raise DataError("the sum over rows is not what its grid was made for; nothing is released")
    return steps.astype(np.int64)


def release_sum(
    total: Floats, grid: Grid, noise_multiplier: float, *, shares: int = 1, draw: Draw | None = None
) -> Integers:
    """``round(Σ_j f_j / g) + N_Z(0, σ²)``: the one line where rows meet exact noise, or a share of it.

    ``draw(σ, count)`` is :func:`discrete_gaussian`, unless a test puts noise of its own in.
    """
    noise = (draw or discrete_gaussian)(grid.noise_scale(noise_multiplier, shares), grid.size)
    return quantise(total, grid) + noise.reshape(total.shape)


def as_mean(upload: Integers, grid: Grid) -> Floats:
    """The noisy mean ``upload·g/m``, the same to the last bit at whoever decodes it."""
    return upload.astype(np.float64) * grid.step / grid.n_rows


def discrete_gaussian(scale: int, count: int) -> Integers:
    """``count`` independent integers with ``P(y) ∝ exp(−y²/(2σ²))``, σ a whole number below 2⁵⁶.

    Karney's algorithm (ACM TOMS 42, 2016), in integers and coins alone: ``y = ±(kσ + u)``, k with probability
    ∝ exp(−k/2), u uniform below σ, kept with probability ``exp(−k(k−1)/2)·exp(−ku/σ)·exp(−u²/(2σ²))``.
    """
    if not 1 <= scale < 2**56:
        raise StudyError(f"the noise's scale must be a whole number from 1 to 2⁵⁶ − 1, not {scale}")
    drawn = np.empty(0, np.int64)
    while drawn.size < count:
        drawn = np.concatenate([drawn, _attempts(scale, 2 * (count - drawn.size) + 16)])
    return drawn[:count]


def _attempts(scale: int, count: int) -> Integers:
    """What is kept of ``count`` attempts, in their order."""
    k, u, alive = np.zeros(count, np.int64), _below(scale, count), np.arange(count)
    half: Coins = lambda which: _below(2, which.size) == 0  # noqa: E731
    share: Coins = lambda which: _below(scale, which.size) < u[which]  # noqa: E731  probability u/σ
    going = alive
    while going.size:
        going = going[_exp_coins(half, going)]
        k[going] += 1
    alive = _kept(alive[k < REACH], k * (k - 1) // 2, lambda which: np.ones(which.size, bool))
    alive = _kept(alive, k, share)
    alive = alive[_exp_coins(lambda which: share(which) & share(which) & half(which), alive)]
    size, negative = k[alive] * scale + u[alive], half(alive)
    return np.where(negative, -size, size)[(size > 0) | ~negative]  # zero has no second sign


def _kept(alive: Integers, times: Integers, coins: Coins) -> Integers:
    """Keep attempt i with probability ``exp(−x_i)^times_i``, from coins of probability x_i."""
    turn = 0
    while (due := times[alive] > turn).any():
        passed = ~due
        passed[due] = _exp_coins(coins, alive[due])
        alive, turn = alive[passed], turn + 1
    return alive


def _exp_coins(coins: Coins, which: Integers) -> NDArray[np.bool_]:
    """``exp(−x)`` from coins of probability x ≤ 1: the first k whose coin of x/k fails is odd that often."""
    odd, running, k = np.ones(which.size, bool), np.arange(which.size), 1
    while running.size:
        running = running[coins(which[running]) & (_below(k, running.size) == 0)]
        k += 1
        odd[running] = k % 2 == 1
    return odd


def _below(bound: int, count: int) -> Integers:
    """Uniform on 0 … bound − 1, from the operating system; too large numbers are drawn again."""
    bits = (bound - 1).bit_length()
    if bits == 0:
        return np.zeros(count, np.int64)
    mask = np.uint64((1 << bits) - 1)
    drawn = np.frombuffer(os.urandom(8 * count), np.uint64) & mask
    while again := np.count_nonzero(over := drawn >= bound):
        drawn[over] = np.frombuffer(os.urandom(8 * int(again)), np.uint64) & mask
    return drawn.view(np.int64)
