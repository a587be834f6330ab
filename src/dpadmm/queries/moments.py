"""The sums of rows, of their squares, and of rows times labels, for a preconditioner and a starting point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.losses.base import Loss
from dpadmm.losses.poisson import Poisson, decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import Features, row_sums, squared, weighted_sum
from dpadmm.queries.problem import Problem, Rows

LABEL_WEIGHT = float(np.sqrt(3.0))
"""Weight of rows times labels, relative to rows and their squares."""

SQUARE_WEIGHT = 0.5
"""Weight of y², for numeric labels."""

PORTION = 2**20
"""Feature entries that are processed together."""


@dataclass(frozen=True)
class Moments:
    """``Σ_j ω_j·clip(f(a_j, b_j), 2)`` with ``f = (a, a∘a, √3·b·a)``. There are no public parameters.

    b is ±1, or the unit vector of a class (``e_b ⊗ a``), or a number clipped to [−1, 1]. For numbers, f has the
    additional entry ``y²/2``, which is 0 for a row of zeros: silent rows keep their labels, and these must not count.
    With ``‖a‖ ≤ 1`` and ``|b| ≤ 1`` the norm of f is at most ``√(1 + 1 + 3 + ¼)``, and about 2 for rows of many
    features. For counts the label is the count in [0, 1], and a and a∘a are multiplied by the exposure in (0, 1], which
    does not increase the norm. Every row's f is clipped to norm 2 and then multiplied by its weight ω in [0, 1] (1 if
    rows have none). Replacing a row changes the sum by at most 4, and silencing a row by at most 2. (Without clipping,
    4 would hold for replacing a row, by ``‖a∘a − a'∘a'‖² ≤ 2 − 2(aᵀa')²``, but 2 would not hold for silencing a row,
    which an id can do to a row of another person.)
    """

    loss: Loss
    n_features: int

    name: ClassVar[str] = "moments"
    row_norm: ClassVar[float] = 2.0
    parameter_shape: ClassVar[tuple[int]] = (0,)

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> Moments:
        return cls(problem.loss, n_features)

    @property
    def shape(self) -> tuple[int]:
        return (self.n_features * (2 + self.loss.n_outputs) + self._is_numeric,)

    @property
    def _is_numeric(self) -> bool:
        return self.loss.task in ("regression", "count")

    def accepts(self, parameters: Floats) -> bool:
        return True

    def split(self, total: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Return Σ a (d,), Σ a∘a (d,), Σ b·a (d, p) and Σ y² (0 for classes) from a release."""
        d, p = self.n_features, self.loss.n_outputs
        by_label = total[2 * d : (2 + p) * d].reshape(d, p) / LABEL_WEIGHT
        squares = float(total[-1]) / SQUARE_WEIGHT if self._is_numeric else 0.0
        return total[:d], total[d : 2 * d], by_label, squares

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        out = np.zeros((rows.n_agents, *self.shape))
        for i, features, labels, weights in rows.portions(active, PORTION):
            out[i] += self._sum(features, labels, bound, weights)
        return out

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return self.sums(rows, parameters, active, bound=self.row_norm) / np.maximum(rows.n_rows, 1)[:, None]

    def weighted_mean(self, rows: Rows, parameters: Floats, weights: Floats, active: Integers | None = None) -> Floats:
        """Return ``Σ_i weights_i·means_i`` over the participating agents, computed in portions of rows."""
        rows, out = rows.cohort(active), np.zeros(self.shape)
        agent_factors, step = weights / rows.n_rows, max(1, PORTION // rows.n_features)
        for start in range(0, len(rows.labels), step):
            part = np.arange(start, min(start + step, len(rows.labels)))
            factors = agent_factors[np.searchsorted(rows.offsets, part, side="right") - 1]
            factors = factors if rows.row_weights is None else factors * rows.row_weights[part]
            out += self._sum(rows.features[rows.order[part]], rows.labels[part], self.row_norm, factors)
        return out

    def _sum(self, features: Features, labels: Floats, bound: float, factors: Floats | float) -> Floats:
        """Return the sum over a portion of rows, times their factors. Sums of BLAS depend on the number of threads."""
        targets, exposures = self._targets(labels)
        rows = features.astype(np.float64)
        squares = squared(rows)
        squared_norms, fourth = row_sums(squares), row_sums(squared(squares))
        is_present = (squared_norms > 0.0) & self._is_numeric
        label_squares = np.square(targets).sum(axis=1)
        extra, by_label = np.where(is_present, SQUARE_WEIGHT * label_squares, 0.0), LABEL_WEIGHT**2 * label_squares
        squared_exposures = exposures * exposures
        norms = np.sqrt(squared_norms * (squared_exposures + by_label) + fourth * squared_exposures + extra * extra)
        factor = np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny)) * factors
        weights = np.column_stack([factor * exposures, LABEL_WEIGHT * factor[:, None] * targets])
        first, second = weighted_sum(rows, weights), weighted_sum(squares, (factor * exposures)[:, None])
        parts = [first[:, 0], second[:, 0], first[:, 1:].ravel()]
        return np.concatenate([*parts, [np.sum(extra * factor)]] if self._is_numeric else parts)

    def _targets(self, labels: Floats) -> tuple[Floats, Floats]:
        """Return the factors b of the rows (rows, p), of norm at most 1, and the factors of the other moments."""
        if isinstance(self.loss, Poisson):
            counts, exposures = decoded(labels)
            return counts[:, None] * self.loss.spent(labels)[1], exposures
        if self.loss.task == "multiclass":
            return np.asarray(labels[:, None] == np.arange(self.loss.n_outputs), dtype=float), np.ones(len(labels))
        return np.clip(labels, -1.0, 1.0)[:, None], np.ones(len(labels))
