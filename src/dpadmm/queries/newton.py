"""The sums of row gradients and row Hessians at a point, for Newton steps and standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.losses.base import Loss
from dpadmm.losses.poisson import LARGEST_SCORE, Poisson, decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import products, row_sums, squared, weighted_sum
from dpadmm.queries.problem import Problem, Rows

LOSSES = ("logistic", "squared", "poisson")
"""Losses with a proved bound for the pair of gradient and Hessian."""

CURVATURE = ((1.0 + math.sqrt(5.0)) / 2.0) ** 2.5
"""κ of the logistic loss."""

SHARES = tuple(math.sqrt(share) for share in (0.6, 0.35, 0.05))
"""α, κ and β of the squared loss; their squares sum to 1."""

COUNT_SHARES = tuple(math.sqrt(share) for share in (0.5, 0.5))
"""α and κ of the Poisson loss; their squares sum to 1."""

MAX_PARAMETER = 1e9
"""Bound on every public number. Clipping bounds of residuals are between 1/MAX_PARAMETER and MAX_PARAMETER."""

PORTION = 2**20
"""Feature entries that are processed together."""


class Weights(NamedTuple):
    """Factors of gradients, Hessians and squared residuals in the release."""

    gradient: float
    hessian: float
    squares: float


@dataclass(frozen=True)
class NewtonQuery:
    """``Σ_j ω_j·clip(f_j, 1)``, f a row's gradient and Hessian at a public point w, as one vector; ω its weight.

    The release contains the Hessian's upper triangle, with entries off the diagonal times √2, so that ``aaᵀ`` has norm
    ``‖a‖²``.

    *Logistic loss*: ``f = (r·a, κ·h·aaᵀ)`` with slope r, ``|r| < 1``, and ``h = |r|(1 − |r|)``. With ``‖a‖ ≤ 1``,
    ``‖f‖² ≤ r² + κ²r²(1 − |r|)²``, which is at most 1 iff ``κ² ≤ (1 + |r|)/(r²(1 − |r|))``. The derivative of its
    logarithm, ``2/(1 − r²) − 2/|r|``, is 0 where ``r² = 1 − |r|``: at ``|r| = 1/φ``, φ the golden ratio, where it is
    ``φ/(φ⁻²·φ⁻²) = φ⁵``; it tends to ∞ at 0 and 1. So ``κ = φ^{5/2}`` is the largest possible, and releasing the
    Hessian with the gradient costs nothing more: where one is large, the other is small.

    *Squared loss*, labels clipped to [−1, 1]: ``f = (α·t·a, κ·aaᵀ, β·t²)`` with the residual over a public C,
    ``t = clip(r/C, −1, 1)``, so that ``‖f‖² ≤ α² + κ² + β² = 1``. ``t²`` is 0 for a row of zeros, which keeps
    its label, and this must not count.

    *Poisson loss*: a row is a person with features x, the constant c, and exposures e_h in p intervals (one, without
    cuts), at public weights (β, α_1 … α_p). Its mean in interval h is ``μ_h = e_h exp(xᵀβ + c·α_h)``, its count y
    belongs to the interval that it ends in, and it is the sum of p rows ``(x, c·u_h)``, u_h the unit vectors. With a
    public cap M, rows are weighted by ``ω = min(1, M/μ)``, where μ is ``Σ_h μ_h`` of the whole follow-up (of the row's
    own exposure, if there are no cuts). ω does not depend on the outcome, so ``ω(μ_h − y_h)`` has mean 0 for every M.
    Of ``g = (x·Σ_h r_h, c·r_1 … c·r_p)``, ``r_h = ω(μ_h − y_h)``, the norm is at most
    ``√(‖x‖² + c²)·ρ ≤ ρ``, ``ρ = max(|Σ_h r_h|, ‖r‖)``; r is clipped to ρ = C. The Hessian, the sum of ``ω·μ_h``
    times the squares of the p rows, has the squared norm ``‖x‖⁴(Σμ)² + 2‖x‖²c²Σμ_h² + c⁴Σμ_h²``, which is at most
    ``(‖x‖² + c²)²(Σμ)²``, and M² with the weight. So ``f = (α·g/C, κ·H/M)`` has ``‖f‖² ≤ α² + κ² = 1``: once for all
    intervals of a person together. C is a function of M (``residual_clip``).

    Row norms may exceed 1 by 10⁻⁶. So every row's f is clipped to 1 by its computed norm, and then multiplied by its
    weight ω in [0, 1] (1 if rows have none). For all w and C, replacing a row changes the sum by at most 2, and
    silencing a row by at most 1.
    """

    loss: Loss
    n_features: int

    name: ClassVar[str] = "newton"
    row_norm: ClassVar[float] = 1.0

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> NewtonQuery:
        if problem.loss.name not in LOSSES:
            raise StudyError(
                f"intervals need the loss {', '.join(LOSSES[:-1])} or {LOSSES[-1]}, not {problem.loss.name}"
            )
        return cls(problem.loss, n_features)

    @property
    def _is_numeric(self) -> bool:
        return self.loss.task == "regression"

    @property
    def n_weights(self) -> int:
        """Number of weights D: one per feature, but one per interval for the constant."""
        return self.n_features + self.loss.n_outputs - 1

    @property
    def parameter_shape(self) -> tuple[int]:
        """w, and C for the squared loss, M for the Poisson loss."""
        return (self.n_weights + (self.loss.task != "binary"),)

    @property
    def shape(self) -> tuple[int]:
        return (self.n_weights * (self.n_weights + 3) // 2 + self._is_numeric,)

    def accepts(self, parameters: Floats) -> bool:
        clip = parameters[self.n_weights :]
        return bool((np.abs(parameters) <= MAX_PARAMETER).all() and (clip >= 1.0 / MAX_PARAMETER).all())

    def weights(self, clip: float) -> Weights:
        """Return the factors in the release, for residuals clipped to C, or means to M."""
        if isinstance(self.loss, Poisson):
            gradient, hessian = COUNT_SHARES
            return Weights(gradient / residual_clip(self.loss, clip), hessian / clip, 0.0)
        if not self._is_numeric:
            return Weights(1.0, CURVATURE, 0.0)
        gradient, hessian, squares = SHARES
        return Weights(gradient / clip, hessian, squares / clip**2)

    def split(self, total: Floats, clip: float) -> tuple[Floats, Floats, float]:
        """Return Σ r·a (d,), Σ h·aaᵀ (d, d) and Σ r² (0 for classes) from a release."""
        d, weights = self.n_weights, self.weights(clip)
        hessian, (row, column) = np.zeros((d, d)), np.triu_indices(d)
        hessian[row, column] = total[d : d * (d + 3) // 2] / (weights.hessian * _off_diagonal(d))
        hessian = np.triu(hessian) + np.triu(hessian, 1).T
        return total[:d] / weights.gradient, hessian, float(total[-1]) / weights.squares if self._is_numeric else 0.0

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        out = np.zeros((rows.n_agents, *self.shape))
        for i, features, labels, weights in rows.portions(active, PORTION, width=self.n_features):
            dense = features if isinstance(features, np.ndarray) else features.toarray()
            add = self._sum_of_counts if isinstance(self.loss, Poisson) else self._sum
            out[i] += add(dense.astype(np.float64), labels, parameters[i], bound, weights)
        return out

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return self.sums(rows, parameters, active, bound=self.row_norm) / np.maximum(rows.n_rows, 1)[:, None]

    def _sum(
        self, rows: Floats, labels: Floats, parameters: Floats, bound: float, row_weights: Floats | float
    ) -> Floats:
        """Return the sum over a portion of rows, without BLAS: its sums depend on the number of threads."""
        d = self.n_features
        squared_norms = row_sums(squared(rows))
        slopes, curvatures, squares = self._parts(labels, products(rows, parameters[:d, None])[:, 0], parameters[d:])
        squares = np.where(squared_norms > 0.0, squares, 0.0)
        norms = np.sqrt(slopes * slopes * squared_norms + np.square(curvatures * squared_norms) + squares * squares)
        factor = np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny)) * row_weights
        gradient = weighted_sum(rows, (factor * slopes)[:, None])[:, 0]
        hessian = weighted_sum(rows, (factor * curvatures)[:, None] * rows)[np.triu_indices(d)] * _off_diagonal(d)
        return np.concatenate(
            [gradient, hessian, [np.sum(factor * squares)]] if self._is_numeric else [gradient, hessian]
        )

    def _sum_of_counts(
        self, rows: Floats, labels: Floats, parameters: Floats, bound: float, row_weights: Floats | float
    ) -> Floats:
        """Return the sum for the Poisson loss: x and the constant c separate, the intervals of a person together."""
        loss, d = self.loss, self.n_features - 1
        assert isinstance(loss, Poisson)
        x, c = rows[:, :d], rows[:, d:]
        exposures, ends = loss.spent(labels)
        counts, cap = decoded(labels)[0][:, None] * ends, parameters[-1]
        scores = products(x, parameters[:d, None]) + c * parameters[d:-1]
        rates = np.exp(np.minimum(scores, LARGEST_SCORE))
        planned = np.diff(loss.parameters) if loss.cuts else exposures
        weight = (cap / np.maximum(row_sums(planned * rates), cap))[:, None]
        means = weight * (exposures * rates)
        residuals = means - weight * counts
        clip, (gradient, hessian) = residual_clip(loss, cap), COUNT_SHARES
        sizes = np.maximum(np.abs(row_sums(residuals)), np.sqrt(row_sums(squared(residuals))))
        residuals = residuals * (gradient / np.maximum(sizes, clip))[:, None]
        means = means * (hessian / cap)
        length, square = row_sums(squared(x)), np.square(c[:, 0])
        total_mean, squared_means = row_sums(means), row_sums(squared(means))
        norms = length * np.square(row_sums(residuals)) + square * row_sums(squared(residuals))
        norms += np.square(length * total_mean) + (2.0 * length + square) * square * squared_means
        factor = (np.minimum(1.0, bound / np.maximum(np.sqrt(norms), np.finfo(float).tiny)) * row_weights)[:, None]
        residuals, means, hessian_sum = factor * residuals, factor * means, np.zeros((self.n_weights, self.n_weights))
        slope = weighted_sum(x, row_sums(residuals)[:, None])[:, 0]
        hessian_sum[:d, :d] = weighted_sum(x, row_sums(means)[:, None] * x)
        hessian_sum[:d, d:] = weighted_sum(x, c * means)
        hessian_sum[d:, d:] = np.diag(np.sum(c * c * means, axis=0))
        upper = hessian_sum[np.triu_indices(self.n_weights)] * _off_diagonal(self.n_weights)
        return np.concatenate([slope, np.sum(c * residuals, axis=0), upper])

    def _parts(self, labels: Floats, scores: Floats, clip: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the factors of a row, its square and 1, before clipping: (rows,) each."""
        if not self._is_numeric:
            size = 1.0 / (1.0 + np.exp(np.minimum(labels * scores, 700.0)))
            return -labels * size, CURVATURE * size * (1.0 - size), np.zeros(len(labels))
        gradient, hessian, squares = SHARES
        residuals = np.clip((scores - np.clip(labels, -1.0, 1.0)) / clip[0], -1.0, 1.0)
        return gradient * residuals, np.full(len(labels), hessian), squares * residuals * residuals


def residual_clip(loss: Poisson, cap: float) -> float:
    """Return C for means up to M: three standard deviations and one event, at most the largest residual."""
    return max(cap, min(1.0, loss.unit + 3.0 * math.sqrt(loss.unit * cap)))


def _off_diagonal(d: int) -> Floats:
    """Return 1 on the diagonal of an upper triangle and √2 off it."""
    row, column = np.triu_indices(d)
    return np.where(row == column, 1.0, math.sqrt(2.0))
