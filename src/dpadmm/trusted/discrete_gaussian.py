"""Exact noise: what a deployed agent adds to a sum over its rows, in whole numbers on a public grid.

No floating point between the rounded sum and the upload, none that decides about noise unless by a proved margin,
and no state between two releases: every bit comes fresh from the operating system, so a forked or restored process
never draws the same noise again.
Decision: docs/decisions/0007-exact-noise.md; proofs: docs/explanation/proofs.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.errors import DataError, StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.parameters.checks import require, require_whole

MARGIN = 1e-6
"""Relative extra noise; it pays for the discrete Gaussian not being the continuous one, and for rounding."""

SHARE_MARGIN = 2e-6
"""The same for a share of the noise, which is smaller, and has to do alone if all other sites collude."""

LEAST_SHARE = 1000
"""σ of a share, in steps: below, it is too coarse for its margin."""

REACH = 64
"""Noise is below REACH·σ: more has probability < 1e-880 and is drawn again, so that nothing can overflow."""

TOP = 57 * 2**64 // 100
"""Height of the curve ``TOP·exp(−y²/(2σ²))``: REACH stairs above it fit into 2⁶⁴."""

_HEIGHTS = (1 + math.floor(TOP * math.exp(-k * k / 2) * (1.0 + 2.0**-40)) for k in range(REACH - 1))
STAIRS = np.array([0, *_HEIGHTS], np.uint64).cumsum()
"""Stair k, of points ``STAIRS[k] … STAIRS[k + 1] − 1``, the last to 2⁶⁴, is at least ``TOP·exp(−k²/2)`` high."""

CLOSE = 2**32
"""Points so near to the curve are compared with it in exact arithmetic; floats err by less than 2²⁵ of 2⁶⁴."""

NOT_OF_GRID = "the sum over rows is not what its grid was made for; nothing is released"

Draw = Callable[[int, int], Integers]


@dataclass(frozen=True)
class Lattice:
    """The public grid of a sum over ``n_rows`` rows, each of which adds ``size`` numbers of norm ≤ R.

    Rows may be in ``n_parts`` parts, the sum of each of which is rounded to the grid.
    """

    row_norm: float
    size: int
    n_rows: int
    n_parts: int = 1

    def __post_init__(self) -> None:
        require("row_norm", self.row_norm, lambda c: (c >= 1e-30) & (c <= 1e30), "between 1e-30 and 1e30")
        for name, value in (("size", self.size), ("n_rows", self.n_rows), ("n_parts", self.n_parts)):
            require_whole(name, value, least=1)
            require(name, value, lambda v: v <= 1e8, "at most 100 million")

    @property
    def row_bound(self) -> float:
        """What computed contributions are clipped to, so that with all rounding they are at most R long."""
        return self.row_norm * (1.0 - 2.0**-40 - 8 * self.size * 2.0**-53)

    @cached_property
    def step(self) -> float:
        """g, the largest power of two with ``√size·g ≤ 1e-6·2·R``."""
        finest = 1e-6 * mean_sensitivity(self.row_norm, 1) / math.sqrt(self.size)
        return math.ldexp(0.5, math.frexp(finest)[1])

    @property
    def sensitivity(self) -> float:
        """``S = 2·R·(1 + m(m + 8)·2⁻⁵³) + √size·g`` of the rounded sum: a row, float summation, rounding.

        With several parts ``2·√size·g``, however many: a person with k rows is in the sums of 2k at most.
        """
        rows = mean_sensitivity(self.row_norm, 1)
        summation = self.n_rows * (self.n_rows + 8.0) * 2.0**-53
        return rows * (1.0 + summation) + min(self.n_parts, 2) * math.sqrt(self.size) * self.step

    @property
    def largest(self) -> int:
        """No entry of a rounded sum is larger, in steps."""
        return math.ceil(self.n_rows * (self.row_norm / self.step) * (1.0 + 1e-6)) + self.n_parts

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


def quantise(total: Floats, grid: Lattice) -> Integers:
    """``round(Σ_j f_j / g)``; whatever is wrong with the sum, the refusal reads the same."""
    with np.errstate(all="ignore"):
        fine = isinstance(total, np.ndarray) and total.dtype == np.float64 and total.size == grid.size
        steps = np.rint(total / grid.step) if fine else np.array(np.nan)
        if not (np.abs(steps) <= grid.largest).all():  # false for NaN
            raise DataError(NOT_OF_GRID)
    return steps.astype(np.int64)


def release_sum(
    total: Floats, grid: Lattice, noise_multiplier: float, *, shares: int = 1, draw: Draw | None = None
) -> Integers:
    """``round(Σ_j f_j / g) + N_Z(0, σ²)``, from a sum that is not rounded yet."""
    return with_noise(quantise(total, grid), grid, noise_multiplier, shares=shares, draw=draw)


def with_noise(
    steps: Integers, grid: Lattice, noise_multiplier: float, *, shares: int, draw: Draw | None = None
) -> Integers:
    """A sum in steps of its grid ``+ N_Z(0, σ²)``: the one line where rows meet exact noise, or a share of it.

    ``draw(σ, count)`` is :func:`discrete_gaussian`, unless a test puts noise of its own in.
    """
    fine = type(steps) is np.ndarray and steps.dtype == np.int64 and steps.size == grid.size
    if not fine or not ((-grid.largest <= steps) & (steps <= grid.largest)).all():
        raise DataError(NOT_OF_GRID)
    noise = (draw or discrete_gaussian)(grid.noise_scale(noise_multiplier, shares), grid.size)
    return steps + noise.reshape(steps.shape)


def as_mean(upload: Integers, grid: Lattice) -> Floats:
    """The noisy mean ``upload·g/m``, the same to the last bit at whoever decodes it."""
    return upload.astype(np.float64) * grid.step / grid.n_rows


def discrete_gaussian(scale: int, count: int) -> Integers:
    """``count`` independent integers with ``P(y) ∝ exp(−y²/(2σ²))``, σ a whole number below 2⁵⁶.

    Rejection under a staircase: a point below stair k (its width is σ) is kept if it is below the curve as well.
    """
    if not 1 <= scale < 2**56:
        raise StudyError(f"the noise's scale must be a whole number from 1 to 2⁵⁶ − 1, not {scale}")
    drawn = np.empty(0, np.int64)
    while (missing := count - drawn.size) > 0:
        drawn = np.concatenate([drawn, _attempts(scale, missing + missing // 2 + 8)])  # 71% are kept
    return drawn[:count]


def _attempts(scale: int, count: int) -> Integers:
    """What is kept of ``count`` attempts ``y = ±(kσ + u)``, in their order."""
    points, words = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(2, count)
    k = np.searchsorted(STAIRS, points, side="right") - 1
    heights = points - STAIRS[k]
    numbers, negative = words >> 1, (words & 1).astype(bool)
    quotients = numbers // np.uint64(scale)
    sizes: Integers = k * scale + (numbers - quotients * np.uint64(scale)).view(np.int64)
    above = heights - TOP * np.exp(-0.5 * np.square(sizes / scale))
    kept = above < 0.0
    for i in np.flatnonzero(~(np.abs(above) > CLOSE)):
        kept[i] = _is_below(int(heights[i]), int(sizes[i]), scale)
    kept &= quotients < 2**63 // scale  # beyond, small remainders are more frequent
    kept &= (sizes > 0) | ~negative  # zero has no second sign
    noise: Integers = np.where(negative, -sizes, sizes)[kept]
    return noise


def _is_below(height: int, size: int, scale: int) -> bool:
    """Whether ``height``, a whole number and a uniform fraction, is below ``TOP·exp(−y²/(2σ²))``: exact."""
    bits = 0
    while True:
        digits = Context(prec=60 + bits // 2)  # so that the limit is less than 2 off
        power = digits.exp(digits.divide(Decimal(-(size**2)), Decimal(2 * scale**2)))
        limit = int(digits.multiply(Decimal(TOP << bits), power))
        if abs(height - limit) > 2:
            return height < limit
        height, bits = height << 64 | int.from_bytes(os.urandom(8)), bits + 64
