"""No regularizer: ``R(w) = 0``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.matrices.arrays import Floats


@dataclass(frozen=True)
class NoRegularizer:
    """``R(w) = 0``; c2 = 0, c4 = 0."""

    name: ClassVar[str] = "none"
    smoothness: ClassVar[float] = 0.0
    convexity: ClassVar[float] = 0.0

    def lipschitz(self, n_weights: int, weight_radius: float) -> float:
        return 0.0

    def value(self, weights: Floats) -> Floats:
        return np.zeros(weights.shape[:-2])

    def gradient(self, weights: Floats) -> Floats:
        return np.zeros_like(weights)

    def prox(self, weights: Floats, step: float) -> Floats:
        return weights
