"""The prior of ``pgd`` from public rows: a start, its precision and moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dpadmm import kernels
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import DataError
from dpadmm.losses.poisson import decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import squared, weighted_sum
from dpadmm.queries.problem import Problem, Rows
from dpadmm.regularizers import L2

RIDGE = 0.5
"""Largest weight of ½‖w‖² relative to the sum of the losses of the public rows."""

MIN_RIDGE = 5e-4
FOLDS = 5
MAX_VALIDATION_ROWS = 5000
"""Public rows used to choose the ridge. More rows choose the same one."""


@dataclass(frozen=True)
class Prior:
    """Prior from public rows.

    Attributes
    ----------
    weights : (d, p)
        Non-private model of the public rows.
    n_rows : int
        Number of public rows.
    means, squares : (d,)
        Means and mean squares of their features.
    """

    weights: Floats
    n_rows: int
    means: Floats
    squares: Floats

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; :meth:`from_json` restores the same bits."""
        return {field.name: np.asarray(getattr(self, field.name)).tolist() for field in fields(self)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], shape: tuple[int, int]) -> Prior:
        """Return the prior; raise ValueError unless its weights have this shape."""
        shapes = {"weights": shape, "means": shape[:1], "squares": shape[:1]}
        arrays = {name: np.array(plain[name], dtype=np.float64) for name in shapes}
        if any(arrays[name].shape != expected for name, expected in shapes.items()):
            raise ValueError(f"the prior is not for weights of shape {shape}")
        return cls(n_rows=int(plain["n_rows"]), **arrays)


def need_every_class(problem: Problem, labels: Floats) -> None:
    """Raise DataError if public rows lack a class."""
    if problem.loss.task in ("binary", "multiclass") and len(np.unique(labels)) < max(2, problem.loss.n_outputs):
        raise DataError("the public rows must contain every class; add rows of the missing ones, or use no public rows")


def prior_of(problem: Problem, rows: Rows) -> Prior:
    """Compute the prior from public rows, which are encoded like private ones."""
    need_every_class(problem, rows.labels)
    n = len(rows.labels)
    weights = plain_model(problem, rows)
    exposures = decoded(rows.labels)[1] if problem.loss.task == "count" else np.ones(n)
    row_weights = rows.weighted(exposures)[np.argsort(rows.order)][:, None] / n  # in the order of the features
    means, squares = (weighted_sum(x, row_weights)[:, 0] for x in (rows.features, squared(rows.features)))
    return Prior(weights, n, means, squares)


def plain_model(problem: Problem, rows: Rows) -> Floats:
    """Return a model (d, p) of public rows, with the ridge chosen by cross-validation."""
    by_label = np.argsort(rows.labels, kind="stable")[:: -(-len(rows.labels) // MAX_VALIDATION_ROWS)]
    folds = [by_label[k::FOLDS] for k in range(min(FOLDS, len(by_label)))]
    splits = [(_take(rows, np.setdiff1d(by_label, fold)), _take(rows, fold)) for fold in folds]
    labels = rows.labels[np.concatenate(folds)]

    def validate(ridge: float) -> float:
        scores = np.concatenate([kernels.scores(test, _fit(problem, train, ridge)[None]) for train, test in splits])
        return float(problem.loss.value(labels, scores).mean())

    ridge, loss = RIDGE, validate(RIDGE)
    while ridge > MIN_RIDGE and (smaller := validate(ridge / 4.0)) < loss:
        ridge, loss = ridge / 4.0, smaller
    return _fit(problem, rows, ridge)


def _fit(problem: Problem, rows: Rows, ridge: float) -> Floats:
    return minimizer(Problem(problem.loss, L2(), ridge / len(rows.labels)), rows)


def _take(rows: Rows, index: Integers) -> Rows:
    return rows.take(index, np.array([0, len(index)]))
