"""What public rows say before any private row is asked: a start, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from dpadmm import kernels
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import DataError
from dpadmm.losses.poisson import decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import squared, weighted_sum
from dpadmm.methods.auto import usual_shrink
from dpadmm.queries.problem import Problem, Rows
from dpadmm.regularizers import L2

RIDGE = 0.5
"""Weight of ½‖w‖² beside the sum of the losses of the public rows, unless less of it is better."""

LEAST_RIDGE = 5e-4
FOLDS = 5
MOST_JUDGED = 5000
"""Public rows that choose the weight; more of them would choose the same."""

CLIPS = np.linspace(0.25, 1.1, 18)
LENGTHS = (1e-3, 100.0)
LEAST_SHRINK = 0.35


@dataclass(frozen=True)
class Prior:
    """A plain model of public rows (d, p), how many there are, their means and mean squares (d,), s for ``CLIPS``."""

    weights: Floats
    n_rows: int
    means: Floats
    squares: Floats
    shrinks: Floats

    def shrink(self, clip: float) -> float:
        """What scores of two classes are shortened by, after training with gradients clipped to ``clip·√rank``."""
        return float(np.interp(clip, CLIPS, self.shrinks))

    def as_json(self) -> dict[str, Any]:
        """Plain values; :meth:`from_json` gives the same bits back."""
        return {each.name: np.asarray(getattr(self, each.name)).tolist() for each in fields(self)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], shape: tuple[int, int]) -> Prior:
        """The prior of weights of this shape."""
        shapes = {"weights": shape, "means": shape[:1], "squares": shape[:1], "shrinks": CLIPS.shape}
        arrays = {name: np.array(plain[name], dtype=np.float64) for name in shapes}
        if any(arrays[name].shape != wanted for name, wanted in shapes.items()):
            raise ValueError("no prior of this shape")
        return cls(n_rows=int(plain["n_rows"]), **arrays)


def need_every_class(problem: Problem, labels: Floats) -> None:
    """Refuse public rows that lack a class."""
    if problem.loss.task in ("binary", "multiclass") and len(np.unique(labels)) < max(2, problem.loss.n_outputs):
        raise DataError("the public rows must have rows of every class to start from; add some, or leave them out")


def prior_of(problem: Problem, rows: Rows) -> Prior:
    """The prior from public rows, encoded as private ones are. Nothing of it is private."""
    need_every_class(problem, rows.labels)
    n = len(rows.labels)
    weights, labels, scores = plain_model(problem, rows)
    exposures = decoded(rows.labels)[1] if problem.loss.task == "count" else np.ones(n)
    each = rows.weighted(exposures)[np.argsort(rows.order)][:, None] / n  # in the order of the features
    means, squares = (weighted_sum(x, each)[:, 0] for x in (rows.features, squared(rows.features)))
    shrinks = _shrinks(labels, scores[:, 0]) if problem.loss.task == "binary" else usual_shrink(CLIPS)
    return Prior(weights, n, means, squares, shrinks)


def plain_model(problem: Problem, rows: Rows) -> tuple[Floats, Floats, Floats]:
    """A model (d, p) of public rows, with as little of ½‖w‖² as is best for rows that it has not seen.

    With it the labels (k,) of the rows that chose, and scores (k, p) by models that had not seen them.
    """
    by_label = np.argsort(rows.labels, kind="stable")[:: -(-len(rows.labels) // MOST_JUDGED)]
    folds = [by_label[k::FOLDS] for k in range(min(FOLDS, len(by_label)))]
    parts = [(_some(rows, np.setdiff1d(by_label, fold)), _some(rows, fold)) for fold in folds]
    labels = rows.labels[np.concatenate(folds)]

    def judged(ridge: float) -> tuple[float, Floats]:
        each = [kernels.scores(test, _fitted(problem, rest, ridge)[None]) for rest, test in parts]
        scores = np.concatenate(each)
        return float(problem.loss.value(labels, scores).mean()), scores

    ridge, (loss, scores) = RIDGE, judged(RIDGE)
    while ridge > LEAST_RIDGE and (lighter := judged(ridge / 4.0))[0] < loss:
        ridge, (loss, scores) = ridge / 4.0, lighter
    return _fitted(problem, rows, ridge), labels, scores


def _shrinks(labels: Floats, scores: Floats) -> Floats:
    """s for every clip: how much longer than without it scores become until clipped residuals are in balance.

    Where all directions are alike, a gradient clipped to ``c·‖u‖`` is that of a residual clipped to c. Rows that do
    not tell their labels say nothing about it, such as dummies: scores must be worth more than a constant one.
    """
    margins, constant = labels * scores, logit(np.mean(labels > 0.0))
    gained = np.logaddexp(0.0, -labels * constant) - np.logaddexp(0.0, -margins)
    if gained.mean() <= gained.std() / math.sqrt(len(gained)):
        return usual_shrink(CLIPS)

    def length(clip: float) -> float:
        def slope(k: float) -> float:
            return float(np.sum(np.minimum(expit(-k * margins), clip) * margins))

        return float(brentq(slope, *LENGTHS)) if slope(LENGTHS[1]) < 0.0 else LENGTHS[1]

    return np.clip([length(1.0) / length(clip) for clip in CLIPS], LEAST_SHRINK, 1.0)


def _fitted(problem: Problem, rows: Rows, ridge: float) -> Floats:
    return minimizer(Problem(problem.loss, L2(), ridge / len(rows.labels)), rows)


def _some(rows: Rows, index: Integers) -> Rows:
    return rows.take(index, np.array([0, len(index)]))
