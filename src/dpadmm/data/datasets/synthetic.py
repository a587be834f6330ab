"""Synthetic data: realistic rows with labels from a known linear model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import scipy  # submodules load on first use

from dpadmm.data.dataset import Dataset
from dpadmm.errors import StudyError
from dpadmm.losses import Task
from dpadmm.losses.poisson import coded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import Features
from dpadmm.matrices.storage import compact_csr, shrink_rows

Family = Literal["correlated", "sparse", "decaying", "separable"]
_HEADROOM = 1.25  # typical rows have norm 1/1.25, so that few need shrinking
_REGRESSION_NOISE = 0.1
MAX_COUNT = 20


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
    """Return synthetic rows with norms of at most 1, and labels drawn from the linear model ``true_weights``.

    Parameters
    ----------
    task : {"binary", "multiclass", "regression", "count"}
        Kind of label, for scores ``s = wᵀa``: binary ±1 with ``P(1) = σ(s)``, multiclass with ``P(h) = softmax(s)_h``,
        regression ``tanh(s/signal) + noise`` in [−1, 1], counts of at most 20 with the mean ``exp(s/signal)``.
    n_rows, n_features : int
        Shape of the features. The spread of column j is proportional to 1/√j.
    n_classes : int
        Number of classes (multiclass only).
    density : float
        Fraction of nonzero entries. Below 1 the matrix is CSR.
    signal : float
        Standard deviation of the scores. 0 gives labels of pure noise, except for counts.
    seed : int
        Seed of the random generator.

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
        labels = np.where(rng.random(n_rows) < scipy.special.expit(scores[:, 0]), 1.0, -1.0)
        classes = (-1, 1)
    elif task == "multiclass":
        thresholds = np.cumsum(scipy.special.softmax(scores, axis=1), axis=1)[:, :-1]
        labels = (rng.random(n_rows)[:, None] > thresholds).sum(axis=1).astype(np.float64)
        classes = tuple(range(n_classes))
    elif task == "count":
        labels = coded(np.minimum(rng.poisson(np.exp(scores[:, 0] / max(signal, 1e-12))) / MAX_COUNT, 1.0))
    else:
        clean = np.tanh(scores[:, 0] / max(signal, 1e-12))
        labels = np.clip(clean + _REGRESSION_NOISE * rng.standard_normal(n_rows), -1.0, 1.0)
    return Dataset(f"synthetic {task}", features, labels, classes)


def family(kind: Family, *, n_rows: int = 10_000, n_features: int = 40, seed: int = 0) -> Dataset:
    """Return rows with one difficult property, and binary labels of a linear model.

    ``correlated``: each pair of columns has a correlation of 0.8. ``sparse``: 5% of the entries are nonzero.
    ``decaying``: the spread of column j is proportional to 1/j, and all columns are equally important. ``separable``:
    the classes are linearly separable.

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
    chance = (scores > 0.0).astype(float) if kind == "separable" else scipy.special.expit(scores)
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
    """Return the weights (d × p) of ``synthetic`` with the same arguments."""
    if task not in get_args(Task):
        raise StudyError(f"unknown task {task!r}: choose one of {', '.join(get_args(Task))}")
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
    """Return indices of cells, each chosen with probability ``density``, in ascending order. Gaps are geometric."""
    batch = int(n_cells * density + 5.0 * math.sqrt(n_cells * density)) + 10
    cells = np.empty(0, dtype=np.int64)
    last = -1
    while last < n_cells:
        more = last + np.cumsum(rng.geometric(density, batch))
        cells = np.concatenate([cells, more])
        last = int(more[-1])
    return cells[: np.searchsorted(cells, n_cells)]
