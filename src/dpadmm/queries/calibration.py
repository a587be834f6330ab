"""The sums of a directional derivative of the loss and of its change between two points, for the scale of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.losses.base import Loss, slopes
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import Features, products
from dpadmm.queries.problem import MIN_NORM, Problem, Rows

CHANGE_WEIGHT = 0.5
"""Weight of the change, relative to the derivative. Most rows have a small one, so its bound is smaller too."""

MAX_PARAMETER = 1e9
"""Bound on every public number. Clipping bounds are at least 1/MAX_PARAMETER."""

PORTION = 2**20
"""Feature entries that are processed together."""


@dataclass(frozen=True)
class Calibration:
    """``Σ_j ω_j·f_j``, (2,): the derivative of the loss along a public direction D, and its change between two points.

    Parameters are D, the public points P and Q (d, p), and the clipping bounds C and E: ``3dp + 2`` numbers. For a row
    a with label b, the slopes are ``r = ∂ℓ/∂s(b, Qᵀa)`` and ``r₀ = ∂ℓ/∂s(b, Pᵀa)``. With ``h = clip(Dᵀa, 1)``,
    ``f = (h·clip(r, C)/C, ½·h·clip(r − r₀, E)/E)/√(1 + ¼)``.

    *Bound.* By Cauchy-Schwarz, both products are at most ``‖h‖·1 ≤ 1``, so ``‖f‖² ≤ (1 + ¼)/(1 + ¼) = 1``. Every row's
    f is also clipped to norm 1 by its computed norm, and then multiplied by its weight ω in [0, 1] (1 if rows have
    none). So for all parameters, replacing a row changes the sum by at most 2. For a row of zeros h is 0, so silencing
    a row changes it by at most 1.

    *Bias.* h does not depend on the label. If slopes have mean 0 given the features, as at the true model, then ``h·r``
    has mean 0 however much h is clipped: clipping scores causes no bias. For a convex loss, ``h·r`` increases along D,
    because h is Dᵀa times a positive number.
    """

    loss: Loss
    n_features: int

    name: ClassVar[str] = "calibration"
    row_norm: ClassVar[float] = 1.0
    shape: ClassVar[tuple[int]] = (2,)

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> Calibration:
        return cls(problem.loss, n_features)

    @property
    def parameter_shape(self) -> tuple[int]:
        return (3 * self.n_features * self.loss.n_outputs + 2,)

    def accepts(self, parameters: Floats) -> bool:
        return bool((np.abs(parameters) <= MAX_PARAMETER).all() and (parameters[-2:] >= 1.0 / MAX_PARAMETER).all())

    def split(self, total: Floats) -> tuple[float, float]:
        """Return Σ h·clip(r, C)/C and Σ h·clip(r − r₀, E)/E from a release."""
        derivative, change = (total * math.hypot(1.0, CHANGE_WEIGHT)).tolist()
        return derivative, change / CHANGE_WEIGHT

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        out = np.zeros((rows.n_agents, *self.shape))
        for i, features, labels, weights in rows.portions(active, PORTION, width=self.n_features):
            terms = _clipped(self._terms(features.astype(np.float64), labels, parameters[i]), bound)
            out[i] += np.einsum("j,jk->k", np.broadcast_to(weights, len(terms)), terms)
        return out

    def _terms(self, rows: Features, labels: Floats, parameters: Floats) -> Floats:
        """Return f of every row, before it is clipped to its bound: (rows, 2)."""
        p, (slope_bound, change_bound) = self.loss.n_outputs, parameters[-2:].tolist()
        matrices = parameters[:-2].reshape(3, self.n_features, p)
        direction, start, end = np.split(products(rows, np.hstack(list(matrices))), 3, axis=1)
        labels = np.clip(labels, -1.0, 1.0) if self.loss.task == "regression" else labels
        slope, before = (np.nan_to_num(slopes(self.loss, labels, scores)) for scores in (end, start))
        clipped = _clipped(slope, slope_bound) / slope_bound, _clipped(slope - before, change_bound) / change_bound
        derivative, change = (np.einsum("jp,jp->j", _clipped(direction, 1.0), each) for each in clipped)
        return np.stack([derivative, CHANGE_WEIGHT * change], axis=1) / math.hypot(1.0, CHANGE_WEIGHT)

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return self.sums(rows, parameters, active, bound=self.row_norm) / np.maximum(rows.n_rows, 1)[:, None]


def _clipped(vectors: Floats, bound: float) -> Floats:
    """Clip each row to this norm. Entries are divided by the largest one first, so that squares cannot overflow."""
    largest = np.maximum(np.max(np.abs(vectors), axis=1, keepdims=True), MIN_NORM)
    norms = largest * np.sqrt(np.einsum("jp->j", np.square(vectors / largest)))[:, None]
    return np.asarray(vectors * np.minimum(1.0, bound / np.maximum(norms, MIN_NORM)))
