"""All losses and regularizers from their registries, as one list of test cases, and rows for them."""

from __future__ import annotations

import itertools
import os
from functools import cache
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from dpadmm.errors import StudyError
from dpadmm.losses import LOSSES, Loss
from dpadmm.losses.poisson import coded as counted
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.coded import CodedRows
from dpadmm.parameters.fields import parameters
from dpadmm.regularizers import REGULARIZERS, Regularizer


def _variants(base: type) -> list[Any]:
    """Return a class with its defaults, and with each number smaller and larger; all numbers of classes."""
    if getattr(base, "task", "") == "multiclass":
        return [base(n_outputs=p) for p in (2, 3, 5)]
    found = [base(), base(cuts=(0.25, 0.6))] if getattr(base, "task", "") == "count" else [base()]
    for item in (parameter for parameter in parameters(base) if parameter.base is float):
        for value in (0.0, 0.2 * item.default, 4.0 * item.default, 1.0):
            try:
                found.append(base(**{item.name: value}))
            except StudyError:  # beyond its range
                continue
    return list(dict.fromkeys(found))


def _all(registry: dict[str, Any]) -> list[Any]:
    only = [name for name in os.environ.get("DPADMM_CASES", "").split(",") if name in registry]
    return [variant for name in only or registry for variant in _variants(registry[name])]


LOSS_CASES: list[Loss] = _all(LOSSES)
REGULARIZER_CASES: list[Regularizer] = _all(REGULARIZERS)
"""Of all, or of those whose names are in the variable DPADMM_CASES."""
BOUNDED_LOSS_CASES = [loss for loss in LOSS_CASES if loss.task != "count"]
"""Those whose c1 is more than declared: slopes of counts have no bound but the clipping."""
SMOOTH_LOSS_CASES = [loss for loss in LOSS_CASES if loss.smoothness is not None]
SMOOTH_REGULARIZER_CASES = [case_ for case_ in REGULARIZER_CASES if case_.smoothness is not None]


def random_labels(loss: Loss, rng: np.random.Generator, n: int) -> Floats:
    """Return (n,) labels for the loss: ±1, 0..p−1, numbers in [−1, 1], or counts with exposures."""
    if loss.task == "count":
        return counted(rng.integers(9, size=n) / 8.0, rng.choice([1.0, 0.25, 0.01, rng.uniform()], n))
    if loss.task == "binary":
        return rng.choice([-1.0, 1.0], size=n)
    if loss.task == "multiclass":
        return rng.integers(loss.n_outputs, size=n).astype(float)
    return rng.uniform(-1.0, 1.0, size=n)


def random_scores(loss: Loss, rng: np.random.Generator, n: int, scale: float = 1.0) -> Floats:
    """(n, p) scores, mostly within ±scale."""
    return scale * rng.standard_normal((n, loss.n_outputs))


def of_all_sizes(rng: np.random.Generator, shape: tuple[int, ...], limit: float) -> Floats:
    """Return numbers within ±limit: uniform, of every magnitude down to 1e-12 of it, and near turning points."""
    turns = rng.choice([0.0, 1.0, np.nextafter(1.0, 2.0), 1e-300, limit, np.nextafter(limit, 0.0)], shape)
    kinds = [rng.uniform(0.0, limit, shape), limit * 10.0 ** rng.uniform(-12.0, 0.0, shape), np.minimum(turns, limit)]
    return np.choose(rng.integers(3, size=shape), kinds) * rng.choice([-1.0, 1.0], shape)


def labels_of_all_sizes(loss: Loss, rng: np.random.Generator, n: int, limit: float = 1.0) -> Floats:
    return of_all_sizes(rng, (n,), limit) if loss.task == "regression" else random_labels(loss, rng, n)


def random_rows(rng: np.random.Generator, n: int, d: int) -> Floats:
    """Return (n, d) rows of L2 norm ≤ 1, many of them of norm 1 up to rounding."""
    rows = rng.standard_normal((n, d))
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))


def coded(rows: Floats) -> CodedRows:
    """Return the same rows in coded storage: the last column is a category with one value, the others are numbers."""
    n, d = rows.shape
    return CodedRows(np.ascontiguousarray(rows), np.full((n, 1), d - 1, np.uint8), np.arange(d - 1), d)


def grid(loss: Loss, levels: list[float], label_limit: float = 1.0) -> tuple[Floats, Floats]:
    """Return labels and scores: every extreme label with every choice of the p scores among the levels."""
    p = loss.n_outputs
    limits = {"binary": (-1.0, 1.0), "regression": (-label_limit, label_limit)}
    counts = counted(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 1.0, 0.5, 1.0])).tolist()
    labels = counts if loss.task == "count" else limits.get(loss.task, range(p))
    rows = [(b, *s) for b in labels for s in itertools.product(levels, repeat=p)]
    table = np.array(rows, dtype=float)
    return table[:, 0], table[:, 1:]


prove = settings(deadline=None, max_examples=25 if "DPADMM_CASES" in os.environ else 100, derandomize=True)
"""Decorator of hypothesis tests: the same examples every time, and no time limit on a busy machine; fewer where all
that is asked is whether a test knows a new case."""


@cache
def numbers(limit: float) -> st.SearchStrategy[float]:
    return st.floats(-limit, limit, allow_subnormal=False)
