"""Shapes of columns in a public table: skewed amounts, codes that are written as numbers, and counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # submodules load on first use

from dpadmm.matrices.arrays import Floats

MAX_CODES = 30
"""Maximum number of distinct whole numbers that may be codes."""

MIN_ROWS_PER_CODE = 10
MAX_P_VALUE = 1e-6
MIN_UNORDERED_SHARE = 0.3
"""Minimum share of the variation of the label between codes that no rise or fall explains."""

MIN_AMOUNT_SKEWNESS, MIN_AMOUNT_RATIO = 2.0, 10.0
MIN_COUNT_SKEWNESS, MAX_COUNT = 1.0, 1000
MIN_AMOUNTS = 20
"""Minimum number of distinct amounts."""


@dataclass
class RunningMoments:
    """Running count, mean, central sums of squares and cubes, and range."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0
    cubes: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    @np.errstate(all="ignore")
    def add(self, values: Any, counts: Any) -> None:
        """Add values with their counts."""
        more = int(np.sum(counts))
        if not more:
            return
        mean = float(np.average(values, weights=counts))
        squares, cubes = (float(np.sum(counts * (values - mean) ** power)) for power in (2, 3))
        n, total, apart = self.n, self.n + more, mean - self.mean
        self.cubes += cubes + apart**3 * (n * more / total) * ((n - more) / total)
        self.cubes += 3.0 * apart * (n * squares - more * self.squares) / total
        self.squares += squares + apart**2 * (n * more / total)
        self.mean += apart * (more / total)
        self.n, self.low, self.high = total, min(self.low, float(min(values))), max(self.high, float(max(values)))

    @property
    def span(self) -> float:
        return self.high - self.low

    @property
    def skewness(self) -> float:
        """Standardised third moment: 0 for symmetric values, infinite if it cannot be computed."""
        try:
            value = math.sqrt(self.n) * self.cubes / self.squares**1.5
        except (OverflowError, ZeroDivisionError):
            return math.inf if self.squares else 0.0
        return value if math.isfinite(value) else math.inf


@dataclass
class Numbers(RunningMoments):
    """RunningMoments of numbers, and of the logarithms of positive ones."""

    logs: RunningMoments | None = None

    def add(self, values: Any, counts: Any) -> None:
        super().add(values, counts)
        positive = np.asarray(values, float) > 0.0
        self.logs = self.logs or RunningMoments()
        self.logs.add(np.log(np.asarray(values, float)[positive]), np.asarray(counts)[positive])

    @property
    def is_amount(self) -> bool:
        """Whether these are positive amounts with a long tail, whose logarithms are far less skewed."""
        logs = self.logs
        if logs is None or not self.low > 0.0 or self.high < MIN_AMOUNT_RATIO * self.low or logs.n != self.n:
            return False
        skewness = self.skewness
        return skewness > MIN_AMOUNT_SKEWNESS and abs(logs.skewness) < 0.5 * skewness

    @property
    def is_count(self) -> bool:
        """Whether whole numbers with these moments look like counts: from 0 or 1, with a long tail."""
        has_tail = self.skewness > MIN_COUNT_SKEWNESS and self.high > 3.0 * self.mean
        return self.low in (0.0, 1.0) and 3.0 < self.high <= MAX_COUNT and has_tail


def is_unordered(values: Floats, labels: Floats) -> bool:
    """Return whether the mean label differs between few whole numbers, but neither rises nor falls with them.

    Examples
    --------
    >>> codes = np.repeat([1.0, 2.0, 3.0, 4.0], 500)
    >>> label = np.random.default_rng(0).random(2000)
    >>> [is_unordered(codes, label < rate[codes.astype(int)]) for rate in (np.arange(5) / 5, np.array([0, 1, 0, 1, 0]))]
    [False, True]
    """
    good = np.isfinite(values) & np.isfinite(labels)
    distinct, places, counts = np.unique(values[good], return_inverse=True, return_counts=True)
    k, n, y = len(distinct), int(counts.sum()), labels[good].astype(float)
    if not 3 <= k <= MAX_CODES or n < MIN_ROWS_PER_CODE * k or n <= k:
        return False
    means = np.bincount(places, weights=y) / counts
    within = float(((y - means[places]) ** 2).sum())
    between = float((counts * (means - y.mean()) ** 2).sum())
    unexplained = min(_monotone_error(sign * means, counts) for sign in (1.0, -1.0))
    if between <= 0.0 or unexplained < MIN_UNORDERED_SHARE * between:
        return False
    ratio = (unexplained / (k - 1)) / max(within / (n - k), 1e-300)
    return bool(scipy.stats.f.sf(ratio, k - 1, n - k) < MAX_P_VALUE)


def _monotone_error(means: Floats, counts: Any) -> float:
    """Return the weighted squared error of the best fit that never falls."""
    fit = scipy.optimize.isotonic_regression(means, weights=counts).x
    return float((counts * (means - fit) ** 2).sum())


def round_log_bounds(low: float, high: float) -> tuple[float, float]:
    """Round positive bounds outwards to 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> round_log_bounds(13.4, 71_000), round_log_bounds(0.0031, 0.9), round_log_bounds(1, 10)
    ((10, 100000), (0.002, 1), (1, 10))
    """
    steps = [float(f"{digit}e{power}") for power in range(-300, 301) for digit in (1, 2, 5)]
    below = max((step for step in steps if step <= low), default=low)
    above = min((step for step in steps if step >= high), default=high)
    return _shortest(below), _shortest(above)


def _shortest(value: float) -> float:
    return int(value) if value.is_integer() and value < 1e15 else value
