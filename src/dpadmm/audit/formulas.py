"""Independent formulas of all queries in the closed list, without the code under test.

Everything except rows and noise is public. This module must not import the code that it verifies, so it repeats
bounds of rows, the grid, and the factor 2 of replace-one neighbours. A query without a formula cannot be audited; a
test fails for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from dpadmm.matrices.arrays import Floats

N_FEATURES = 16
MAX_COUNT = 8.0
CUTS = (0.5,)
"""Interval boundaries of survival times."""


@dataclass(frozen=True)
class Formula:
    """A sum over rows: its size, the bound of a row's norm, and ``(features, labels, parameters) -> sum``."""

    size: int
    row_norm: float
    total: Callable[[Floats, Floats, Floats], Floats]

    @property
    def grid_step(self) -> float:
        """The public grid of the sums: the largest power of two with ``√size·g ≤ 1e-6·2·R``."""
        return 2.0 ** math.floor(math.log2(1e-6 * 2.0 * self.row_norm / math.sqrt(self.size)))

    def noise_steps(self, noise_multiplier: float) -> float:
        """σ of the noise on the sum, in steps of the grid: ``z·2·R/g``."""
        return noise_multiplier * 2.0 * self.row_norm / self.grid_step


def gradient(features: Floats, labels: Floats, point: Floats) -> Floats:
    """``Σ_j a_j (a_jᵀw − b_j)`` of the squared loss, every term clipped to norm 1: (d,)."""
    slopes = features @ point - labels
    norms = np.abs(slopes) * np.linalg.norm(features, axis=1)
    return np.asarray((slopes / np.maximum(norms, 1.0)) @ features)


def preconditioned_gradient(features: Floats, labels: Floats, parameters: Floats) -> Floats:
    """The same for rows ``(I − qqᵀ/(r(r + 1)))·(s∘a_j)``, ``r = √(1 + ‖q‖²)``, for the parameters s, q and w: (d,)."""
    scale, direction, point = np.split(parameters, 3)
    root = math.sqrt(1.0 + float(direction @ direction))
    matrix = np.diag(scale) - np.outer(direction, direction * scale) / (root * (root + 1.0))
    return gradient(features @ matrix.T, labels, point)


def moments(features: Floats, labels: Floats, parameters: Floats) -> Floats:
    """``Σ_j (a_j, a_j∘a_j, √3·y_j·a_j, y_j²/2)``, y clipped to ±1, every term to norm 2; rows of zeros add nothing."""
    y = np.clip(labels, -1.0, 1.0)[:, None]
    terms = np.hstack([features, features**2, math.sqrt(3.0) * y * features, y**2 / 2.0])
    terms[~features.any(axis=1)] = 0.0
    norms = np.linalg.norm(terms, axis=1)[:, None]
    return np.asarray((terms * 2.0 / np.maximum(norms, 2.0)).sum(axis=0))


def calibration(features: Floats, labels: Floats, parameters: Floats) -> Floats:
    """``Σ_j h_j·(clip(r_j, C)/C, ½·clip(r_j − r'_j, E)/E)/√(5/4)`` of the squared loss, h_j = clip(a_jᵀD, 1): (2,).

    r_j and r'_j are the slopes at Q and P, for the parameters D, P, Q, C and E.
    """
    direction, start, end = (features @ part for part in np.split(parameters[:-2], 3))
    slope_bound, change_bound = parameters[-2:].tolist()
    slopes = end - np.clip(labels, -1.0, 1.0)
    derivative = np.clip(direction, -1.0, 1.0) @ np.clip(slopes / slope_bound, -1.0, 1.0)
    change = np.clip(direction, -1.0, 1.0) @ np.clip((end - start) / change_bound, -1.0, 1.0)
    return np.array([derivative, 0.5 * change]) / math.sqrt(1.25)


def newton(features: Floats, labels: Floats, point: Floats) -> Floats:
    """``Σ_j (r_j·a_j, φ^{5/2}·|r_j|(1 − |r_j|)·a_j a_jᵀ)`` of the logistic loss, φ the golden ratio: ``d(d + 3)/2``.

    The matrix is its upper triangle, row by row, with √2 off the diagonal.
    """
    size = 1.0 / (1.0 + np.exp(np.clip(labels * (features @ point), -700.0, 700.0)))
    curvature = (0.5 + math.sqrt(1.25)) ** 2.5 * size * (1.0 - size)
    matrix = (features.T * curvature) @ features * (math.sqrt(2.0) - (math.sqrt(2.0) - 1.0) * np.eye(N_FEATURES))
    return np.concatenate([(-labels * size) @ features, *(matrix[j, j:] for j in range(N_FEATURES))])


def counts_pair(
    features: Floats, labels: Floats, parameters: Floats, *, max_count: float, cuts: tuple[float, ...]
) -> Floats:
    """``Σ_j √½·(g_j/C, H_j/M)`` of the Poisson loss, every term clipped to norm 1, row by row and interval by interval.

    A row is x and the constant c. Its label contains its count over the maximum and its exposure over the maximum. In
    interval h, with exposure e_h, its vector is ``v_h = (x, c·u_h)`` and its mean ``m_h = e_h·exp(v_hᵀw)``. With
    ``ω = min(1, M/Σm)`` over the whole follow-up, ``g = Σ_h r_h v_h``, ``r_h = ω(m_h − y_h)``, is clipped if
    ``max(|Σr|, ‖r‖)`` exceeds ``C = max(M, min(1, (1 + 3√(M·max_count))/max_count))``, and ``H = Σ_h ω·m_h·v_h v_hᵀ``.
    """
    point, cap, width = parameters[:-1], float(parameters[-1]), N_FEATURES + len(cuts)
    bound = max(cap, min(1.0, (1.0 + 3.0 * math.sqrt(cap * max_count)) / max_count))
    scaled = math.sqrt(2.0) - (math.sqrt(2.0) - 1.0) * np.eye(width)
    edges, out = [0.0, *cuts, 1.0], np.zeros(width * (width + 3) // 2)
    for row, label in zip(features, labels, strict=True):
        count, exposure = math.floor(label) / 2.0**26, 1.0 - (label - math.floor(label))
        intervals, planned = list[tuple[Floats, float, float]](), 0.0
        for h, (low, high) in enumerate(pairwise(edges)):
            vector = np.append(row[:-1], row[-1] * (np.arange(len(cuts) + 1) == h))
            rate, spent = math.exp(min(float(vector @ point), 15.0)), min(max(exposure - low, 0.0), high - low)
            planned += rate * (high - low if cuts else spent)
            intervals.append((vector, rate * spent, count if low < exposure <= high else 0.0))
        weight = cap / max(planned, cap)
        slopes = np.array([weight * (mean - count) for _, mean, count in intervals])
        slopes *= bound / max(bound, abs(float(slopes.sum())), float(np.linalg.norm(slopes)))
        gradient = np.sum([slope * vector for slope, (vector, _, _) in zip(slopes, intervals, strict=True)], axis=0)
        hessian = np.sum([weight * mean * np.outer(vector, vector) for vector, mean, _ in intervals], axis=0) * scaled
        term = np.concatenate([gradient / bound, *(hessian[j, j:] / cap for j in range(width))]) * math.sqrt(0.5)
        out += term / max(1.0, float(np.linalg.norm(term)))
    return out


def column_sums(features: Floats, labels: Floats, parameters: Floats) -> Floats:
    """``Σ_j a_j``, every row clipped to norm 1: (d,)."""
    norms = np.linalg.norm(features, axis=1)[:, None]
    return np.asarray((features / np.maximum(norms, 1.0)).sum(axis=0))


def score_histogram(features: Floats, labels: Floats, point: Floats) -> Floats:
    """Counts by class and ``⌈2·a_jᵀw⌉`` clipped to −9 … 10, negative labels first, without rows of zeros: 40."""
    counted = features.any(axis=1)
    bins = np.clip(np.ceil(2.0 * (features @ point)), -9.0, 10.0).astype(int) + 9
    return np.array(
        [np.sum(counted & ((labels > 0.0) == yes) & (bins == k)) for yes in (False, True) for k in range(20)]
    )


FORMULAS: Mapping[str, Formula] = {
    "gradient": Formula(N_FEATURES, 1.0, gradient),
    "preconditioned_gradient": Formula(N_FEATURES, 1.0, preconditioned_gradient),
    "calibration": Formula(2, 1.0, calibration),
    "moments": Formula(3 * N_FEATURES + 1, 2.0, moments),
    "newton": Formula(N_FEATURES * (N_FEATURES + 3) // 2, 1.0, newton),
    "newton of counts": Formula(
        N_FEATURES * (N_FEATURES + 3) // 2, 1.0, partial(counts_pair, max_count=MAX_COUNT, cuts=())
    ),
    "newton of times": Formula(
        (N_FEATURES + len(CUTS)) * (N_FEATURES + len(CUTS) + 3) // 2, 1.0,
        partial(counts_pair, max_count=1.0, cuts=CUTS),
    ),
    "column_sums": Formula(N_FEATURES, 1.0, column_sums),
    "score_histogram": Formula(40, 1.0, score_histogram),
}  # fmt: skip
"""By the name of the query, with the kind of label if the formula depends on it."""
