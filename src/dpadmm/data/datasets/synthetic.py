"""Made-up data: realistic rows from a known linear model, and problems whose exact optimum is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import scipy  # its parts load when they are first used
from scipy.special import expit, softmax

from dpadmm._base.arrays import Features, Floats, Integers
from dpadmm._base.errors import StudyError
from dpadmm.data.dataset import Dataset
from dpadmm.data.matrices import compact_csr, shrink_rows
from dpadmm.optim.losses import Loss, Squared, Task, slopes

Family = Literal["correlated", "sparse", "decaying", "separable"]
_HEADROOM = 1.25  # typical rows have norm 1/1.25, so that few need shrinking
_REGRESSION_NOISE = 0.1


def synthetic(
    task: Task,
    *,
    n_rows: int = 20_000,
    n_features: int = 20,
    n_classes: int = 3,
    density: float = 1.0,
    signal: float = 3.0,
    seed: int = 0,
) -> Dataset:
    """Rows of norm ≤ 1 with labels drawn from the linear model ``true_weights``.

    Columns have unequal spreads (∝ 1/√j), as real ones do. Labels: binary ±1 with ``P(1) = σ(s)``, multiclass
    with ``P(h) = softmax(s)_h``, regression ``tanh(s/signal) + noise`` within [−1, 1], with scores
    ``s = wᵀa`` of standard deviation ``signal``: 0 gives labels of pure noise. ``density`` is the fraction of
    entries that are not 0; below 1 the matrix is CSR. ``n_classes`` is for multiclass only.

    Examples
    --------
    >>> data = synthetic("binary", n_rows=100, n_features=5)
    >>> data.features.shape, sorted(set(data.labels.tolist()))
    ((100, 5), [-1.0, 1.0])
    """
    weights = true_weights(task, n_features=n_features, n_classes=n_classes, density=density, signal=signal, seed=seed)
    if n_rows < 1:
        raise StudyError(f"synthetic: n_rows must be at least 1, not {n_rows}")
    rng = np.random.default_rng([seed, 1])
    features = _rows(n_rows, _column_spreads(n_features, density), density, rng)
    scores: Floats = features @ weights
    classes: tuple[int, ...] | None = None
    if task == "binary":
        labels = np.where(rng.random(n_rows) < expit(scores[:, 0]), 1.0, -1.0)
        classes = (-1, 1)
    elif task == "multiclass":
        thresholds = np.cumsum(softmax(scores, axis=1), axis=1)[:, :-1]
        labels = (rng.random(n_rows)[:, None] > thresholds).sum(axis=1).astype(np.float64)
        classes = tuple(range(n_classes))
    else:
        clean = np.tanh(scores[:, 0] / max(signal, 1e-12))
        labels = np.clip(clean + _REGRESSION_NOISE * rng.standard_normal(n_rows), -1.0, 1.0)
    return Dataset(f"synthetic {task}", features, labels, classes)


def family(kind: Family, *, n_rows: int = 10_000, n_features: int = 40, seed: int = 0) -> Dataset:
    """Binary labels of a linear model on rows that are hard in one way.

    ``correlated``: every two columns have a correlation of 0.8. ``sparse``: one entry in twenty is not 0.
    ``decaying``: spreads of columns fall as 1/j, and all count alike. ``separable``: a line divides the classes.

    Examples
    --------
    >>> family("correlated", n_rows=100, n_features=5).features.shape
    (100, 5)
    """
    rng = np.random.default_rng([seed, 2])
    if kind == "sparse":
        return replace(synthetic("binary", n_rows=n_rows, n_features=n_features, density=0.05, seed=seed), name=kind)
    features = rng.standard_normal((n_rows, n_features))
    if kind == "correlated":
        features = math.sqrt(0.2) * features + math.sqrt(0.8) * rng.standard_normal((n_rows, 1))
    scores = features @ rng.standard_normal(n_features)
    scores *= 3.0 / float(np.std(scores))
    chance = (scores > 0.0).astype(float) if kind == "separable" else expit(scores)
    if kind == "decaying":
        features /= np.arange(1, n_features + 1)
    features /= _HEADROOM * math.sqrt(float(np.mean(np.sum(np.square(features), axis=1))))
    shrink_rows(features)
    return Dataset(kind, features, np.where(rng.random(n_rows) < chance, 1.0, -1.0), (-1, 1))


def true_weights(
    task: Task,
    *,
    n_features: int,
    n_classes: int = 3,
    density: float = 1.0,
    signal: float = 3.0,
    seed: int = 0,
) -> Floats:
    """The weights (d × p) behind ``synthetic`` with the same arguments."""
    if task not in ("binary", "multiclass", "regression"):
        raise StudyError(f"unknown task {task!r}: choose binary, multiclass or regression")
    if n_features < 1:
        raise StudyError(f"synthetic: n_features must be at least 1, not {n_features}")
    if task == "multiclass" and n_classes < 2:
        raise StudyError(f"synthetic: n_classes must be at least 2, not {n_classes}")
    if not (0.0 < density <= 1.0):
        raise StudyError(f"synthetic: density must lie in (0, 1], not {density!r}")
    if not (0.0 <= signal < math.inf):
        raise StudyError(f"synthetic: signal must be a number of at least 0, not {signal!r}")
    if seed < 0:
        raise StudyError(f"synthetic: seed must be at least 0, not {seed}")
    n_outputs = n_classes if task == "multiclass" else 1
    weights = np.random.default_rng([seed, 0]).standard_normal((n_features, n_outputs))
    spreads = _column_spreads(n_features, density)[:, None]
    score_std = np.linalg.norm(spreads * weights, axis=0) * np.sqrt(density)
    scaled: Floats = signal * weights / score_std
    return scaled


def known_optimum(
    loss: Loss, *, n_features: int, rows_per_feature: int, l2: float = 0.0, seed: int = 0
) -> tuple[Dataset, Floats]:
    """Data whose exact minimiser of ``mean loss + l2·½‖w‖²`` is known, and these weights (d × p).

    The rows are the columns ``q_j`` of a random orthogonal matrix Q, each repeated with different labels.
    Then the problem separates: with ``w = Qu`` a row's scores are ``u_j``, and ``u_j`` is the root of
    ``mean_k ℓ'(b_jk, u_j)/d + l2·u_j``, found to machine precision.

    The loss must have no kinks. ``rows_per_feature`` is at least the number of classes, so that the optimum
    is finite. Without ``l2`` a softmax optimum is unique only up to a shift of all classes, and a smoothed
    hinge optimum may be one of several.

    Examples
    --------
    >>> from dpadmm.optim.losses import Logistic
    >>> data, weights = known_optimum(Logistic(), n_features=3, rows_per_feature=4, l2=0.1)
    >>> slope = slopes(Logistic(), data.labels, data.features @ weights)
    >>> bool(np.abs(data.features.T @ slope / 12 + 0.1 * weights).max() < 1e-14)
    True
    """
    n_classes = {"binary": 2, "multiclass": loss.n_outputs, "regression": 1}[loss.task]
    if loss.smoothness is None:
        raise StudyError(f"known_optimum: the loss {loss.name} has kinks; choose a smooth one")
    if n_features < 1:
        raise StudyError(f"known_optimum: n_features must be at least 1, not {n_features}")
    if rows_per_feature < n_classes:
        raise StudyError(
            f"known_optimum: {loss.name} needs rows_per_feature of at least {n_classes}, not {rows_per_feature}"
        )
    if not (0.0 <= l2 < math.inf):
        raise StudyError(f"known_optimum: l2 must be a number of at least 0, not {l2!r}")
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


def _column_spreads(n_features: int, density: float) -> Floats:
    spreads: Floats = 1.0 / np.sqrt(np.arange(1, n_features + 1))
    return spreads / (_HEADROOM * math.sqrt(density) * float(np.linalg.norm(spreads)))


def _rows(n_rows: int, spreads: Floats, density: float, rng: np.random.Generator) -> Features:
    features: Features
    if density == 1.0:
        features = rng.standard_normal((n_rows, len(spreads)))
        features *= spreads
    else:
        cells = _random_cells(n_rows * len(spreads), density, rng)
        columns = cells % len(spreads)
        starts = np.searchsorted(cells, np.arange(n_rows + 1) * len(spreads))
        values = rng.standard_normal(len(cells)) * spreads[columns]
        features = compact_csr(values, columns, starts, (n_rows, len(spreads)))
    shrink_rows(features)
    return features


def _random_cells(n_cells: int, density: float, rng: np.random.Generator) -> Integers:
    """Each of ``n_cells`` cells with probability ``density``, ascending: the gaps are geometric."""
    batch = int(n_cells * density + 5.0 * math.sqrt(n_cells * density)) + 10
    cells = np.empty(0, dtype=np.int64)
    last = -1
    while last < n_cells:
        more = last + np.cumsum(rng.geometric(density, batch))
        cells = np.concatenate([cells, more])
        last = int(more[-1])
    return cells[: np.searchsorted(cells, n_cells)]


def _direction_labels(loss: Loss, n_classes: int, n_labels: int, rng: np.random.Generator) -> Floats:
    if loss.task == "regression":
        # a squared loss is clipped at its declared bound: keep the residuals at the optimum below it
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
    return np.array([scipy.optimize.brentq(derivative, -reach, reach, xtol=1e-16, rtol=tightest)])


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
            if length < 1e-9:  # no step is shorter than rounding: this is the root
                return scores
        scores = scores - length * step
    return scores
