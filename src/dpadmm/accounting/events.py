"""What one agent gives away in one round. Events only say what happened; ``composition.py`` interprets them.

In every event the noise multiplier is z = noise standard deviation / sensitivity, and the sensitivity is that
of replacing one row (``sensitivity.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpadmm.parameters.checks import require, require_epsilon, require_noise_multiplier, require_whole


@dataclass(frozen=True)
class Release:
    """``count`` Gaussian releases of one statistic with the same noise multiplier; 0 means without noise."""

    noise_multiplier: float
    count: int = 1
    statistic: str = "gradient"

    def __post_init__(self) -> None:
        require_noise_multiplier(self.noise_multiplier)
        require_whole("count", self.count, least=0)


@dataclass(frozen=True)
class SampledRelease:
    """A Gaussian release of a sum over a secret Poisson sample: every row by its own coin of chance q.

    ``noise_multiplier`` is against the sensitivity ``2·c1`` of the sum, not against ``c1``.
    """

    noise_multiplier: float
    sampling: float

    def __post_init__(self) -> None:
        require_noise_multiplier(self.noise_multiplier)
        require("sampling", self.sampling, lambda q: (q > 0.0) & (q <= 1.0), "above 0 and at most 1")


@dataclass(frozen=True)
class ObjectiveRelease:
    """``argmin_w f(w) + ⟨ξ, w⟩`` with ``ξ ~ N(0, σ²I)``: a smooth loss of ONE score ``aᵀw``, rows ‖a‖ ≤ 1.

    Parameters
    ----------
    noise_multiplier : float
        ``z = σ/Δ`` with ``Δ = 2·c1/m``.
    curvature_ratio : float
        ``β = c3/(m q)``, q the strong convexity of everything but the data term.
    rounding_multiplier : float
        Standard deviation of Gaussian noise added to the answer itself, over the distance ``2·tol/q`` by
        which two solvers' errors can differ. inf claims that the minimiser is exact.
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
    """Any release that is (ε, 0)-private by itself."""

    epsilon: float

    def __post_init__(self) -> None:
        require_epsilon("epsilon", self.epsilon)


@dataclass(frozen=True)
class UnpricedRelease:
    """A release whose noise source states no price: nothing is known about its privacy, so ε is inf."""

    source: str


AnyRelease = Release | SampledRelease | ObjectiveRelease | PureRelease | UnpricedRelease
