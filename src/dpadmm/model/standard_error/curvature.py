"""The curvature that a mean loss has on given rows, along the public path of the consensus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from dpadmm._base.arrays import Floats
from dpadmm.model.standard_error.recursion import Recursion
from dpadmm.optim.losses.base import Loss, slopes

POINTS = 8
"""Places on the path where curvature is looked at."""

KINK_STEP = 0.3
"""Losses with kinks get their curvature from differences of slopes so far apart."""


@dataclass(frozen=True)
class Curvature:
    """``∂²ℓ/∂s∂s`` of every row, ``of_rows`` (n, p, p); its ``relative`` size by round (t,)."""

    of_rows: Floats
    relative: Floats


def spread_of_agents(recursion: Recursion, loss: Loss, n_features: int) -> Floats:
    """Standard deviation of agents' weights around the consensus before every round, roughly: (t,)."""
    return np.sqrt(recursion.local_variance(0.2 * (loss.smoothness or 0.5) / n_features))


def curvature_along(
    history: Floats, rows: Floats, *, loss: Loss, spread: Floats, rng: np.random.Generator
) -> Curvature:
    """Mean over the later part of a path (t + 1, d, p), with agents so widely ``spread`` around it (t,)."""
    rounds, lengths = len(spread), np.linalg.norm(rows, axis=1)
    at = np.unique(np.linspace(0, rounds - 1, min(POINTS, rounds)).astype(int))
    found = []
    for k in at:
        scores = rows @ history[k]
        # agents' gradients are taken at their own models, which lie around the consensus
        scores += spread[k] * lengths[:, None] * rng.normal(size=scores.shape)
        found.append(_curvatures(loss, scores, rng))
    sizes = np.array([np.einsum("nhh,n->", each, lengths**2) for each in found])
    late = 3 * at >= rounds - 1
    if not sizes[late].any():  # a loss with kinks may be flat there, on these rows
        late[:] = True
    size = sizes[late].mean()
    relative = np.interp(np.arange(rounds), at, sizes / size) if size > 0.0 else np.ones(rounds)
    return Curvature(
        np.mean([each for each, used in zip(found, late, strict=True) if used], axis=0), relative
    )


def mean_outer(left: Floats, right: Floats, curvature: Floats) -> Floats:
    """Mean of ``abᵀ ⊗ C`` over rows a of ``left`` and b of ``right``, for weights (d, p) laid out by row."""
    n, p = len(left), curvature.shape[1]
    out = np.empty((left.shape[1], p, right.shape[1], p))
    for h in range(p):
        for g in range(h, p):
            out[:, h, :, g] = (left * curvature[:, h, g, None]).T @ right / n
            out[:, g, :, h] = out[:, h, :, g]
    return out.reshape(left.shape[1] * p, right.shape[1] * p)


def mean_square(rows: Floats, curvature: Floats) -> Floats:
    """The diagonal of ``mean_outer(rows, rows, curvature)``."""
    return np.asarray((rows**2).T @ np.einsum("nhh->nh", curvature) / len(rows)).ravel()


def _curvatures(loss: Loss, scores: Floats, rng: np.random.Generator) -> Floats:
    """``∂²ℓ/∂s∂s`` of rows whose labels are as the scores say: (rows, p, p)."""
    n, p = scores.shape
    if loss.task == "binary":
        sharpness = 1.0 if loss.name == "logistic" else 2.0
        labels = np.where(rng.random(n) < expit(sharpness * scores[:, 0]), 1.0, -1.0)
    elif loss.task == "regression":
        labels = np.clip(scores[:, 0] + 0.4 * rng.normal(size=n), -1.0, 1.0)
    else:
        labels = np.zeros(n)  # the second derivative does not depend on it
    step, out = 1e-2 if loss.name in ("logistic", "softmax") else KINK_STEP, np.empty((n, p, p))
    for h in range(p):
        ahead, behind = scores.copy(), scores.copy()
        ahead[:, h] += step
        behind[:, h] -= step
        out[:, h] = (slopes(loss, labels, ahead) - slopes(loss, labels, behind)) / (2.0 * step)
    return out
