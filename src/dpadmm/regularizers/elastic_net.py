"""Elastic net: a mixture of L1 and L2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import Share, checked_parameters


@checked_parameters
@dataclass(frozen=True)
class ElasticNet:
    """``R(w) = r Σ|w_j| + (1 − r) ½‖w‖²`` with ``r = l1_ratio`` in [0, 1].

    c2 = ``r√(dp) + (1 − r) c_w`` on ``‖w‖ ≤ c_w`` (triangle inequality); c4 = ``1 − r`` only when r = 0.
    """

    l1_ratio: Annotated[Share, "Share of L1; the rest is L2."] = 0.5

    name: ClassVar[str] = "elastic_net"

    @property
    def smoothness(self) -> float | None:
        return 1.0 if self.l1_ratio == 0.0 else None

    @property
    def convexity(self) -> float:
        return 1.0 - self.l1_ratio

    def lipschitz(self, n_weights: int, weight_radius: float) -> float:
        return self.l1_ratio * float(np.sqrt(n_weights)) + (1.0 - self.l1_ratio) * weight_radius

    def value(self, weights: Floats) -> Floats:
        sizes = self.l1_ratio * np.abs(weights) + (0.5 * (1.0 - self.l1_ratio)) * weights * weights
        return np.asarray(np.sum(sizes, axis=(-2, -1)))

    def gradient(self, weights: Floats) -> Floats:
        return self.l1_ratio * np.sign(weights) + (1.0 - self.l1_ratio) * weights

    def prox(self, weights: Floats, step: float) -> Floats:
        threshold = step * self.l1_ratio
        shrunk = weights - np.clip(weights, -threshold, threshold)
        return shrunk / (1.0 + step * (1.0 - self.l1_ratio))
