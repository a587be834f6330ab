"""The sum of row gradients at a point. Each gradient is clipped to the loss's Lipschitz constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm import kernels
from dpadmm.losses.base import Loss
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import Problem, Rows


@dataclass(frozen=True)
class Gradient:
    """``Σ_j ω_j·clip(ℓ'(a_j, b_j, w), c1)`` at a public point w of shape (d, p). ω is a row's weight in [0, 1], or 1.

    Every row's gradient is clipped to norm c1 and then multiplied by its weight. Replacing a row therefore changes the
    sum by at most ``‖g_j − g_j'‖ ≤ 2·c1`` at every point: no point that the server sends can increase the sensitivity.
    """

    loss: Loss
    n_features: int

    name: ClassVar[str] = "gradient"

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> Gradient:
        return cls(problem.loss, n_features)

    @property
    def row_norm(self) -> float:
        return float(self.loss.lipschitz)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_features, self.loss.n_outputs

    @property
    def parameter_shape(self) -> tuple[int, int]:
        return self.shape

    def accepts(self, parameters: Floats) -> bool:
        return True

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        return np.asarray(kernels.guarded_sums(rows, parameters, self.loss, active, bound=bound))

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return np.asarray(kernels.gradient(rows, parameters, self.loss, active))

    def weighted_mean(self, rows: Rows, point: Floats, weights: Floats, active: Integers | None = None) -> Floats:
        """Return ``Σ_i weights_i·means_i`` at one point for all, over the participating agents."""
        return kernels.weighted_gradient(rows.cohort(active), point, self.loss, weights, bound=self.row_norm)
