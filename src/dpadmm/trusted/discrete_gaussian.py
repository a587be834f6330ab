"""Exact noise of deployed agents: integers on a public grid, added to a sum over rows.

- No floating point is used between the rounded sum and the upload.
- Floating point decides about noise only beyond a proved margin of error.
- There is no state between two releases. Every bit comes fresh from the operating system, so a forked or restored
  process never draws the same noise again.

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
"""Relative extra noise. It covers the difference between discrete and continuous Gaussian, and rounding."""

SHARE_MARGIN = 2e-6
"""The same for a share of the noise, which is smaller, and is the only noise left if all other sites collude."""

MIN_SHARE_SCALE = 1000
"""Minimum σ of a share, in steps. A smaller share is too coarse for its margin."""

MAX_SIGMAS = 64
"""Noise is below MAX_SIGMAS·σ. Larger noise has probability < 1e-880 and is drawn again, so nothing can overflow."""

TOP = 57 * 2**64 // 100
"""Height of the curve ``TOP·exp(−y²/(2σ²))``: MAX_SIGMAS stairs above it fit into 2⁶⁴."""

_HEIGHTS = (1 + math.floor(TOP * math.exp(-k * k / 2) * (1.0 + 2.0**-40)) for k in range(MAX_SIGMAS - 1))
STAIRS = np.array([0, *_HEIGHTS], np.uint64).cumsum()
"""Stair k, of points ``STAIRS[k] … STAIRS[k + 1] − 1``, the last to 2⁶⁴, is at least ``TOP·exp(−k²/2)`` high."""

CLOSE = 2**32
"""Points at most this far from the curve are compared in exact arithmetic. Float errors are below 2²⁵ of 2⁶⁴."""

INVALID_SUM = "the sum over rows does not match its grid; nothing is released"

Draw = Callable[[int, int], Integers]


@dataclass(frozen=True)
class Lattice:
    """Public grid of a sum over ``n_rows`` rows. Each row adds ``size`` numbers of norm ≤ R (``row_norm``).

    The sum over each of ``n_parts`` parts of the rows is rounded to the grid.
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
        """Clipping bound of computed contributions. Including all rounding, their norm is then at most R."""
        return self.row_norm * (1.0 - 2.0**-40 - 8 * self.size * 2.0**-53)

    @cached_property
    def step(self) -> float:
        """Step g of the grid, the largest power of two with ``√size·g ≤ 1e-6·2·R``."""
        finest = 1e-6 * mean_sensitivity(self.row_norm, 1) / math.sqrt(self.size)
        return math.ldexp(0.5, math.frexp(finest)[1])

    @property
    def sensitivity(self) -> float:
        """Sensitivity ``S = 2·R·(1 + m(m + 8)·2⁻⁵³) + √size·g`` of the rounded sum: a row, float summation, rounding.

        With several parts, any number of them, the last term is ``2·√size·g``: a person with k rows changes the sums of
        at most 2k parts.
        """
        rows = mean_sensitivity(self.row_norm, 1)
        summation = self.n_rows * (self.n_rows + 8.0) * 2.0**-53
        return rows * (1.0 + summation) + min(self.n_parts, 2) * math.sqrt(self.size) * self.step

    @property
    def max_sum(self) -> int:
        """Maximum absolute value of an entry of a rounded sum, in steps."""
        return math.ceil(self.n_rows * (self.row_norm / self.step) * (1.0 + 1e-6)) + self.n_parts

    def noise_scale(self, z: float, shares: int = 1) -> int:
        """Return σ in steps: ``z·S/g`` and the margin, rounded up. Raise if an upload could exceed 63 bits.

        Each of several ``shares`` is smaller by ``√shares``: their variances add up to that of the whole noise.
        """
        require("noise_multiplier", z, lambda v: (v >= 0.1) & (v <= 1e9), "between 0.1 and 1e9")
        require_whole("shares", shares, least=1)
        margin = MARGIN if shares == 1 else SHARE_MARGIN
        scale = math.ceil(z * self.sensitivity / self.step * (1.0 + margin) / math.sqrt(shares))
        if scale < MIN_SHARE_SCALE:  # never with one share: z·S/g is at least 10⁵
            raise StudyError(f"{shares} shares of the noise are too small; use fewer honest sites, or more noise")
        if self.max_upload(scale).bit_length() > 62:
            raise StudyError("uploads could exceed 63 bits; use fewer rows or weights, or less noise")
        return scale

    def max_upload(self, scale: int) -> int:
        """Return the maximum absolute value of an entry of an upload with noise of this scale, in steps."""
        return self.max_sum + MAX_SIGMAS * scale


def quantise(total: Floats, grid: Lattice) -> Integers:
    """Return ``round(Σ_j f_j / g)``. Every invalid sum raises the same error."""
    with np.errstate(all="ignore"):
        valid = isinstance(total, np.ndarray) and total.dtype == np.float64 and total.size == grid.size
        steps = np.rint(total / grid.step) if valid else np.array(np.nan)
        if not (np.abs(steps) <= grid.max_sum).all():  # false for NaN
            raise DataError(INVALID_SUM)
    return steps.astype(np.int64)


def release_sum(
    total: Floats, grid: Lattice, noise_multiplier: float, *, shares: int = 1, draw: Draw | None = None
) -> Integers:
    """Return ``round(Σ_j f_j / g) + N_Z(0, σ²)`` from a sum that is not rounded yet."""
    return with_noise(quantise(total, grid), grid, noise_multiplier, shares=shares, draw=draw)


def with_noise(
    steps: Integers, grid: Lattice, noise_multiplier: float, *, shares: int, draw: Draw | None = None
) -> Integers:
    """Return a sum in steps of its grid ``+ N_Z(0, σ²)``: the only line that adds exact noise, or a share of it.

    ``draw(σ, count)`` is :func:`discrete_gaussian`, except in tests.
    """
    valid = type(steps) is np.ndarray and steps.dtype == np.int64 and steps.size == grid.size
    if not valid or not ((-grid.max_sum <= steps) & (steps <= grid.max_sum)).all():
        raise DataError(INVALID_SUM)
    noise = (draw or discrete_gaussian)(grid.noise_scale(noise_multiplier, shares), grid.size)
    return steps + noise.reshape(steps.shape)


def as_mean(upload: Integers, grid: Lattice) -> Floats:
    """Return the noisy mean ``upload·g/m``, identical to the last bit on every machine."""
    return upload.astype(np.float64) * grid.step / grid.n_rows


def discrete_gaussian(scale: int, count: int) -> Integers:
    """Return ``count`` independent integers with ``P(y) ∝ exp(−y²/(2σ²))``, σ an integer below 2⁵⁶.

    Rejection sampling under a staircase: a point below stair k, of width σ, is kept if it is also below the curve.
    """
    if not 1 <= scale < 2**56:
        raise StudyError(f"the scale of the noise must be an integer from 1 to 2⁵⁶ − 1, not {scale}")
    drawn = np.empty(0, np.int64)
    while (missing := count - drawn.size) > 0:
        drawn = np.concatenate([drawn, _attempts(scale, missing + missing // 2 + 8)])  # 71% are kept
    return drawn[:count]


def _attempts(scale: int, count: int) -> Integers:
    """Return the accepted values of ``count`` attempts ``y = ±(kσ + u)``, in their order."""
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
    kept &= quotients < 2**63 // scale  # above this, small remainders are more frequent
    kept &= (sizes > 0) | ~negative  # count zero once, not as +0 and −0
    noise: Integers = np.where(negative, -sizes, sizes)[kept]
    return noise


def _is_below(height: int, size: int, scale: int) -> bool:
    """Return whether ``height`` plus a uniform fraction is below ``TOP·exp(−y²/(2σ²))``, exactly."""
    bits = 0
    while True:
        digits = Context(prec=60 + bits // 2)  # the error of the limit is below 2
        power = digits.exp(digits.divide(Decimal(-(size**2)), Decimal(2 * scale**2)))
        limit = int(digits.multiply(Decimal(TOP << bits), power))
        if abs(height - limit) > 2:
            return height < limit
        height, bits = height << 64 | int.from_bytes(os.urandom(8)), bits + 64
