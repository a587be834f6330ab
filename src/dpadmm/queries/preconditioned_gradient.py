"""The sum of row gradients in public coordinates of the rows, each clipped to norm 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm import kernels
from dpadmm.losses.base import Loss
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.preconditioner import WIDEST, Preconditioner
from dpadmm.queries.problem import Problem, Rows

MOST = 1e9
"""Bound of every public number of a shape and a point; scales lie between 1/MOST and MOST."""


@dataclass(frozen=True)
class PreconditionedGradient:
    """``Σ_j ω_j·clip(ℓ'(B·a_j, b_j, θ), 1)`` for a public shape B and a public point θ (d, p).

    Parameters are s and q of :class:`~dpadmm.queries.preconditioner.Preconditioner` and θ: ``2d + dp`` numbers.
    A clip C is part of the shape: ``clip(ℓ'(u, θ), C)/C`` is ``clip(ℓ'(u/C, Cθ), 1)``. The norm that clips is that of
    the very row ``B·a_j`` that is summed, and ω is the row's weight in [0, 1], or 1. So every row adds at most 1 and
    replacing one moves the sum by at most 2, whatever the shape and the point are: an aggregator cannot make it larger
    by what it sends.
    """

    loss: Loss
    n_features: int

    name: ClassVar[str] = "preconditioned_gradient"
    row_norm: ClassVar[float] = 1.0

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> PreconditionedGradient:
        return cls(problem.loss, n_features)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_features, self.loss.n_outputs

    @property
    def parameter_shape(self) -> tuple[int]:
        return (2 * self.n_features + self.n_features * self.loss.n_outputs,)

    def accepts(self, parameters: Floats) -> bool:
        scale, direction = parameters[: self.n_features], parameters[self.n_features : 2 * self.n_features]
        narrow = self.n_features <= WIDEST or not direction.any()
        return bool(narrow and (np.abs(parameters) <= MOST).all() and (scale >= 1.0 / MOST).all())

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        """``B·Σ_j clip(ℓ'(a_j, b_j, Bᵀθ))``: no row ``B·a_j`` is kept, only its norm.

        B can make the rounding of the sum larger, by ``r = √(1 + ‖q‖²)`` at most. Gradients are clipped to so much
        less, by public numbers alone: docs/explanation/proofs.md.
        """
        shape, points = self._asked(parameters)
        of_shape = shape.spread * (3 * self.n_features + 16) * 2.0**-53
        of_sum = rows.n_rows * (of_shape + shape.spread * rows.n_rows * 2.0**-53)
        bounds = bound / ((1.0 + of_shape) * (1.0 + 2.0 * of_sum))
        plain = np.stack([shape.transposed_times(each) for each in points])  # one by one: as an agent alone
        sums = kernels.guarded_sums(rows.with_transformed_norms(shape), plain, self.loss, active, bound=bounds)
        return np.stack([shape.times(each) for each in sums])

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        """The same sums over m, with no such care: simulated noise protects nobody."""
        shape, points = self._asked(parameters)
        if isinstance(rows.features, np.ndarray):
            return np.asarray(kernels.gradient(rows.transformed(shape), points, self.loss, active, bound=self.row_norm))
        plain = _of_all(shape.transposed_times, points)
        gradients = kernels.gradient(rows.with_transformed_norms(shape), plain, self.loss, active, bound=self.row_norm)
        return _of_all(shape.times, gradients)

    def weighted_mean(self, rows: Rows, parameters: Floats, weights: Floats, active: Integers | None = None) -> Floats:
        """``Σ_i weights_i·means_i`` for parameters that all share, over agents that take part; rows are not copied."""
        shape, points = self._asked(parameters[None])
        plain, measured = shape.transposed_times(points[0]), rows.with_transformed_norms(shape).cohort(active)
        return shape.times(kernels.weighted_gradient(measured, plain, self.loss, weights, bound=self.row_norm))

    def _asked(self, parameters: Floats) -> tuple[Preconditioner, Floats]:
        d = self.n_features
        first = parameters[0]
        if (parameters[:, : 2 * d] != first[: 2 * d]).any():
            raise ValueError("agents of one cohort share a shape")
        return Preconditioner(first[:d], first[d : 2 * d]), parameters[:, 2 * d :].reshape(-1, *self.shape)


def _of_all(change: Callable[[Floats], Floats], points: Floats) -> Floats:
    """A change of coordinates of every agent's point: (n, d, p) -> (n, d, p)."""
    n, d, p = points.shape
    return change(points.transpose(1, 0, 2).reshape(d, n * p)).reshape(d, n, p).transpose(1, 0, 2)
