"""L1 norm: ``R(w) = Σ|w_j|``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.matrices.arrays import Floats


@dataclass(frozen=True)
class L1:
    """``R(w) = Σ|w_j|``, subgradient ``sgn(w)`` (0 at 0).

    c2 = √(dp), since every entry of ``sgn(w)`` is at most 1 in size. No c4: it has kinks.
    """

    name: ClassVar[str] = "l1"
    smoothness: ClassVar[None] = None
    convexity: ClassVar[float] = 0.0

    def lipschitz(self, n_weights: int, weight_radius: float) -> float:
        return float(np.sqrt(n_weights))

    def value(self, weights: Floats) -> Floats:
        return np.asarray(np.sum(np.abs(weights), axis=(-2, -1)))

    def gradient(self, weights: Floats) -> Floats:
        return np.sign(weights)

    def prox(self, weights: Floats, step: float) -> Floats:
        return weights - np.clip(weights, -step, step)
