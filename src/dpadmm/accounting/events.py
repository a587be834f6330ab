"""Privacy events: the release of one agent in one round, by mechanism. ``composition.py`` computes their cost.

The noise multiplier is z = noise standard deviation / sensitivity, for replacing one row (``sensitivity.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpadmm.parameters.checks import require, require_epsilon, require_noise_multiplier, require_whole


@dataclass(frozen=True)
class Release:
    """``count`` Gaussian releases of one statistic with noise multiplier z; z = 0 means no noise."""

    noise_multiplier: float
    count: int = 1
    statistic: str = "gradient"

    def __post_init__(self) -> None:
        require_noise_multiplier(self.noise_multiplier)
        require_whole("count", self.count, least=0)


@dataclass(frozen=True)
class SampledRelease:
    """A Gaussian release of a sum over a secret Poisson sample, in which each row is included with probability q.

    ``noise_multiplier`` is relative to the sensitivity ``2·c1`` of the sum, not to ``c1``.
    """

    noise_multiplier: float
    sampling: float

    def __post_init__(self) -> None:
        require_noise_multiplier(self.noise_multiplier)
        require("sampling", self.sampling, lambda q: (q > 0.0) & (q <= 1.0), "above 0 and at most 1")


@dataclass(frozen=True)
class ObjectiveRelease:
    """``argmin_w f(w) + ⟨ξ, w⟩`` with ``ξ ~ N(0, σ²I)``, for a smooth loss of one score ``aᵀw`` and rows ‖a‖ ≤ 1.

    Parameters
    ----------
    noise_multiplier : float
        ``z = σ/Δ`` with ``Δ = 2·c1/m``.
    curvature_ratio : float
        ``β = c3/(m q)``, where q is the strong convexity of all terms except the data term.
    rounding_multiplier : float
        Standard deviation of the Gaussian noise on the minimiser, divided by ``2·tol/q``, the largest distance
        between two solver errors. inf for an exact minimiser.
    """

    noise_multiplier: float
    curvature_ratio: float
    rounding_multiplier: float = math.inf

    def __post_init__(self) -> None:
        require_noise_multiplier(self.noise_multiplier)
        finite = "a finite number of at least 0"
        require("curvature_ratio", self.curvature_ratio, lambda b: (b >= 0.0) & np.isfinite(b), finite)
        require("rounding_multiplier", self.rounding_multiplier, lambda r: r >= 0.0, "a number of at least 0")


@dataclass(frozen=True)
class PureRelease:
    """A release that satisfies pure (ε, 0)-differential privacy."""

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon("epsilon", self.epsilon)


@dataclass(frozen=True)
class UnpricedRelease:
    """A release from a noise source of unknown privacy cost. Its ε is inf."""

    source: str


AnyRelease = Release | SampledRelease | ObjectiveRelease | PureRelease | UnpricedRelease
