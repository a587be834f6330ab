"""The prior of ``pgd`` from public rows: a start, its precision, moments and shrink factors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import scipy  # submodules load on first use
from scipy.special import expit, logit

from dpadmm import kernels
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import DataError
from dpadmm.losses.poisson import decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import squared, weighted_sum
from dpadmm.methods.hyperparameters import default_shrink
from dpadmm.queries.problem import Problem, Rows
from dpadmm.regularizers import L2

RIDGE = 0.5
"""Largest weight of ½‖w‖² relative to the sum of the losses of the public rows."""

MIN_RIDGE = 5e-4
FOLDS = 5
MAX_VALIDATION_ROWS = 5000
"""Public rows used to choose the ridge. More rows choose the same one."""

CLIPS = np.linspace(0.25, 1.1, 18)
"""Clipping bounds, divided by √rank, with a precomputed shrink factor."""

SCALES = (1e-3, 100.0)
"""Interval of the scale of scores that is searched."""

MIN_SHRINK = 0.35


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
    shrinks : (18,)
        Shrink factor s for each of ``CLIPS``.
    """

    weights: Floats
    n_rows: int
    means: Floats
    squares: Floats
    shrinks: Floats

    def shrink(self, clip: float) -> float:
        """Return s for two classes and gradients clipped to ``clip·√rank``."""
        return float(np.interp(clip, CLIPS, self.shrinks))

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; :meth:`from_json` restores the same bits."""
        return {field.name: np.asarray(getattr(self, field.name)).tolist() for field in fields(self)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], shape: tuple[int, int]) -> Prior:
        """Return the prior; raise ValueError unless its weights have this shape."""
        shapes = {"weights": shape, "means": shape[:1], "squares": shape[:1], "shrinks": CLIPS.shape}
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
    weights, labels, scores = plain_model(problem, rows)
    exposures = decoded(rows.labels)[1] if problem.loss.task == "count" else np.ones(n)
    row_weights = rows.weighted(exposures)[np.argsort(rows.order)][:, None] / n  # in the order of the features
    means, squares = (weighted_sum(x, row_weights)[:, 0] for x in (rows.features, squared(rows.features)))
    shrinks = _shrinks(labels, scores[:, 0]) if problem.loss.task == "binary" else default_shrink(CLIPS)
    return Prior(weights, n, means, squares, shrinks)


def plain_model(problem: Problem, rows: Rows) -> tuple[Floats, Floats, Floats]:
    """Fit a model (d, p) of public rows, with the ridge chosen by cross-validation.

    Returns
    -------
    weights : (d, p)
    labels : (k,)
        Labels of the validation rows.
    scores : (k, p)
        Their scores, by models that were fitted without them.
    """
    by_label = np.argsort(rows.labels, kind="stable")[:: -(-len(rows.labels) // MAX_VALIDATION_ROWS)]
    folds = [by_label[k::FOLDS] for k in range(min(FOLDS, len(by_label)))]
    splits = [(_take(rows, np.setdiff1d(by_label, fold)), _take(rows, fold)) for fold in folds]
    labels = rows.labels[np.concatenate(folds)]

    def validate(ridge: float) -> tuple[float, Floats]:
        scores = np.concatenate([kernels.scores(test, _fit(problem, train, ridge)[None]) for train, test in splits])
        return float(problem.loss.value(labels, scores).mean()), scores

    ridge, (loss, scores) = RIDGE, validate(RIDGE)
    while ridge > MIN_RIDGE and (smaller := validate(ridge / 4.0))[0] < loss:
        ridge, (loss, scores) = ridge / 4.0, smaller
    return _fit(problem, rows, ridge), labels, scores


def _shrinks(labels: Floats, scores: Floats) -> Floats:
    """Return s for every clipping bound: the inverse of the factor by which clipping lengthens scores.

    A scale of the scores is stationary if the clipped residuals times margins sum to 0. If all directions are
    equivalent, a gradient clipped to ``c·‖u‖`` is that of a residual clipped to c. Rows whose features do not predict
    the label, such as dummy rows, contain no information about s: if the scores are not significantly better than a
    constant, the default is returned.
    """
    margins, constant = labels * scores, logit(np.mean(labels > 0.0))
    gains = np.logaddexp(0.0, -labels * constant) - np.logaddexp(0.0, -margins)
    if gains.mean() <= gains.std() / math.sqrt(len(gains)):
        return default_shrink(CLIPS)

    def stationary_scale(clip: float) -> float:
        def slope(scale: float) -> float:
            return float(np.sum(np.minimum(expit(-scale * margins), clip) * margins))

        return float(scipy.optimize.brentq(slope, *SCALES)) if slope(SCALES[1]) < 0.0 else SCALES[1]

    return np.clip([stationary_scale(1.0) / stationary_scale(clip) for clip in CLIPS], MIN_SHRINK, 1.0)


def _fit(problem: Problem, rows: Rows, ridge: float) -> Floats:
    return minimizer(Problem(problem.loss, L2(), ridge / len(rows.labels)), rows)


def _take(rows: Rows, index: Integers) -> Rows:
    return rows.take(index, np.array([0, len(index)]))
