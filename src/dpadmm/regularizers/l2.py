"""Squared L2 norm: ``R(w) = ½‖w‖²``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.matrices.arrays import Floats


@dataclass(frozen=True)
class L2:
    """``R(w) = ½‖w‖²``, ``R'(w) = w``.

    c4 = 1, since the Hessian is the identity. c2 = c_w on the ball ``‖w‖ ≤ c_w``, where ``‖R'(w)‖ = ‖w‖``.
    """

    name: ClassVar[str] = "l2"
    smoothness: ClassVar[float] = 1.0
    convexity: ClassVar[float] = 1.0

    def lipschitz(self, n_weights: int, weight_radius: float) -> float:
        return weight_radius

    def value(self, weights: Floats) -> Floats:
        return np.asarray(0.5 * np.sum(weights * weights, axis=(-2, -1)))

    def gradient(self, weights: Floats) -> Floats:
        return weights

    def prox(self, weights: Floats, step: float) -> Floats:
        return weights / (1.0 + step)
