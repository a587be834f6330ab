"""Small cohorts with unequal agents and learnable labels, for tests that train."""

from __future__ import annotations

import numpy as np
from cases import random_rows
from scipy.special import softmax

from dpadmm.losses import Loss, Squared
from dpadmm.losses.poisson import coded
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Rows, make_rows

SIZES = (20, 40, 60, 30)


def learnable_labels(loss: Loss, features: Floats, rng: np.random.Generator) -> Floats:
    """Return noisy labels of a linear model. With squared loss, gradients are not clipped."""
    n, d = features.shape
    if loss.task == "regression":
        clean = (features @ rng.standard_normal((d, 1)))[:, 0]
        reach = min(1.0, 0.6 * loss.lipschitz) if isinstance(loss, Squared) else 1.0
        return reach * np.clip(0.6 * clean + 0.2 * rng.standard_normal(n), -1.0, 1.0)
    if loss.task == "count":
        clean = (features @ rng.standard_normal((d, 1)))[:, 0]
        return coded(np.minimum(rng.poisson(2.0 * np.exp(clean)) / 8.0, 1.0), rng.uniform(0.2, 1.0, n))
    p = max(2, loss.n_outputs)
    chances = softmax(1.5 * features @ rng.standard_normal((d, p)), axis=1).cumsum(axis=1)[:, :-1]
    codes = (rng.random(n)[:, None] > chances).sum(axis=1).astype(float)
    return codes if loss.task == "multiclass" else 2.0 * codes - 1.0


def cohort(loss: Loss, *, sizes: tuple[int, ...] = SIZES, d: int = 5, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    features = random_rows(rng, sum(sizes), d)
    labels = learnable_labels(loss, features, rng)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return make_rows(features, labels, order=rng.permutation(sum(sizes)), offsets=offsets)
