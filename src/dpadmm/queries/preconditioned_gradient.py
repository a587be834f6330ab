"""The sum of gradients of preconditioned rows, each clipped to norm 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm import kernels
from dpadmm.losses.base import Loss
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.preconditioner import MAX_DIRECTION_FEATURES, Preconditioner
from dpadmm.queries.problem import Problem, Rows

MAX_PARAMETER = 1e9
"""Bound on every public number of preconditioner and point. Scales are at least 1/MAX_PARAMETER."""


@dataclass(frozen=True)
class PreconditionedGradient:
    """``Σ_j ω_j·clip(ℓ'(B·a_j, b_j, θ), 1)`` for a public preconditioner B and a public point θ (d, p).

    Parameters are s and q of :class:`~dpadmm.queries.preconditioner.Preconditioner` and θ: ``2d + dp`` numbers.
    A clipping bound C is part of B: ``clip(ℓ'(u, θ), C)/C`` is ``clip(ℓ'(u/C, Cθ), 1)``. Clipping uses the norm of the
    same row ``B·a_j`` that is summed. ω is the row's weight in [0, 1], or 1. So every row adds at most 1, and replacing
    a row changes the sum by at most 2, for every B and θ: no parameters that the server sends can increase the
    sensitivity.
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
        direction_fits = self.n_features <= MAX_DIRECTION_FEATURES or not direction.any()
        return bool(
            direction_fits and (np.abs(parameters) <= MAX_PARAMETER).all() and (scale >= 1.0 / MAX_PARAMETER).all()
        )

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        """Return ``B·Σ_j clip(ℓ'(a_j, b_j, Bᵀθ))``. Of a row ``B·a_j``, only the norm is stored.

        B can increase the rounding error of the sum by a factor of at most ``r = √(1 + ‖q‖²)``. The clipping bound is
        reduced accordingly, by public numbers only: docs/explanation/proofs.md.
        """
        preconditioner, points = self._unpack(parameters)
        map_error = preconditioner.spread * (3 * self.n_features + 16) * 2.0**-53
        sum_error = rows.n_rows * (map_error + preconditioner.spread * rows.n_rows * 2.0**-53)
        bounds = bound / ((1.0 + map_error) * (1.0 + 2.0 * sum_error))
        # One agent at a time, so that results equal those of a single agent
        plain = np.stack([preconditioner.transposed_times(point) for point in points])
        sums = kernels.guarded_sums(rows.with_transformed_norms(preconditioner), plain, self.loss, active, bound=bounds)
        return np.stack([preconditioner.times(total) for total in sums])

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        """Return the sums over m, without the reduced bound: simulated noise gives no protection."""
        preconditioner, points = self._unpack(parameters)
        if isinstance(rows.features, np.ndarray):
            return np.asarray(
                kernels.gradient(rows.transformed(preconditioner), points, self.loss, active, bound=self.row_norm)
            )
        plain = _map_points(preconditioner.transposed_times, points)
        gradients = kernels.gradient(
            rows.with_transformed_norms(preconditioner), plain, self.loss, active, bound=self.row_norm
        )
        return _map_points(preconditioner.times, gradients)

    def weighted_mean(self, rows: Rows, parameters: Floats, weights: Floats, active: Integers | None = None) -> Floats:
        """Return ``Σ_i weights_i·means_i`` at common parameters, over the participating agents; rows are not copied."""
        preconditioner, points = self._unpack(parameters[None])
        plain = preconditioner.transposed_times(points[0])
        cohort = rows.with_transformed_norms(preconditioner).cohort(active)
        return preconditioner.times(kernels.weighted_gradient(cohort, plain, self.loss, weights, bound=self.row_norm))

    def _unpack(self, parameters: Floats) -> tuple[Preconditioner, Floats]:
        d = self.n_features
        first = parameters[0]
        if (parameters[:, : 2 * d] != first[: 2 * d]).any():
            raise ValueError("all agents of a cohort share a preconditioner")
        return Preconditioner(first[:d], first[d : 2 * d]), parameters[:, 2 * d :].reshape(-1, *self.shape)


def _map_points(linear_map: Callable[[Floats], Floats], points: Floats) -> Floats:
    """Apply a linear map to every agent's point: (n, d, p) -> (n, d, p)."""
    n, d, p = points.shape
    return linear_map(points.transpose(1, 0, 2).reshape(d, n * p)).reshape(d, n, p).transpose(1, 0, 2)
