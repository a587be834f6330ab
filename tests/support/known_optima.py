"""Problems with a known exact optimum, for any smooth loss."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from dpadmm.data.dataset import Dataset
from dpadmm.losses import Loss, Squared, slopes
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.storage import shrink_rows


def known_optimum(
    loss: Loss, *, n_features: int, rows_per_feature: int, l2: float = 0.0, seed: int = 0
) -> tuple[Dataset, Floats]:
    """Return data whose exact minimiser of ``mean loss + l2·½‖w‖²`` is known, and these weights (d × p).

    The rows are the columns ``q_j`` of a random orthogonal matrix Q, each repeated with different labels. Then the
    problem separates: with ``w = Qu`` a row's scores are ``u_j``, and ``u_j`` is the root of ``mean_k ℓ'(b_jk, u_j)/d +
    l2·u_j``, computed to machine precision.

    The loss must have no kinks. ``rows_per_feature`` is at least the number of classes, so that the optimum is finite.
    Without ``l2`` a softmax optimum is unique only up to a shift of all classes, and a smoothed hinge optimum may be
    one of several.
    """
    n_classes = {"binary": 2, "multiclass": loss.n_outputs, "regression": 1}[loss.task]
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((n_features, n_features)))
    labels = np.stack([_direction_labels(loss, n_classes, rows_per_feature, rng) for _ in range(n_features)])
    solve = _root if loss.n_outputs == 1 else _softmax_root
    # multiplied by d, the mean over all rows becomes the mean over one direction's rows
    optimum = np.stack([solve(loss, direction, n_features * l2) for direction in labels])
    shuffled = rng.permutation(labels.size)
    features = np.repeat(rotation.T, rows_per_feature, axis=0)[shuffled]
    shrink_rows(features)
    classes = {"binary": (-1, 1), "multiclass": tuple(range(n_classes)), "regression": None}[loss.task]
    data = Dataset(f"known optimum of {loss.name}", features, labels.ravel()[shuffled], classes)
    return data, rotation @ optimum


def _direction_labels(loss: Loss, n_classes: int, n_labels: int, rng: np.random.Generator) -> Floats:
    if loss.task == "regression":
        # squared loss is clipped at its declared bound, so keep the residuals at the optimum below it
        reach = min(1.0, loss.lipschitz / 2.0) if isinstance(loss, Squared) else 1.0
        return rng.uniform(-reach, reach, n_labels)
    rest = rng.choice(n_classes, n_labels - n_classes, p=rng.dirichlet(np.ones(n_classes)))
    codes = np.concatenate([np.arange(n_classes), rest]).astype(np.float64)
    return 2.0 * codes - 1.0 if loss.task == "binary" else codes


def _root(loss: Loss, labels: Floats, l2: float) -> Floats:
    def derivative(score: float) -> float:
        return float(np.mean(slopes(loss, labels, np.full((len(labels), 1), score)))) + l2 * score

    reach = 1.0
    while derivative(-reach) > 0.0 or derivative(reach) < 0.0:
        reach *= 2.0
    tightest = 4.0 * float(np.finfo(float).eps)
    return np.array([brentq(derivative, -reach, reach, xtol=1e-16, rtol=tightest)])


def _softmax_root(loss: Loss, labels: Floats, l2: float) -> Floats:
    """Newton's method on ``ln Σ exp(u) − fᵀu + l2·½‖u‖²`` with the class frequencies f."""
    frequencies = np.bincount(labels.astype(np.int64), minlength=loss.n_outputs) / len(labels)
    scores: Floats = np.log(frequencies)
    scores -= scores.mean()  # the optimum without the L2 term

    def gradient(point: Floats) -> Floats:
        return np.asarray(softmax(point) - frequencies + l2 * point, dtype=np.float64)

    for _ in range(100):
        current = gradient(scores)
        shares = np.asarray(softmax(scores))
        hessian = np.diag(shares) - np.outer(shares, shares) + l2 * np.eye(len(shares))
        step = np.linalg.lstsq(hessian, current, rcond=None)[0]
        length = 1.0
        while np.linalg.norm(gradient(scores - length * step)) >= np.linalg.norm(current):
            length /= 2.0
            if length < 1e-9:  # the step is within rounding: this is the root
                return scores
        scores = scores - length * step
    return scores
