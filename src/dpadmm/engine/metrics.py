"""The paper's measures of a simulated run. They are not private; deployed agents do not compute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpadmm import kernels
from dpadmm.engine.loop import AverageName, Averages, RoundView
from dpadmm.losses.base import Loss
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import Features
from dpadmm.queries.problem import Problem, Rows

COLUMNS = {
    "round": "round k",
    "seconds": "time in rounds so far",
    "augmented_objective": "Σ_i (f_i(w̄_i) + ρ‖w̄_i − w̄‖), training rows",
    "train_loss_local": "mean loss of local models w̃_i, each on its own rows",
    "train_loss_global": "mean loss of the global model, training rows",
    "train_error_global": "error of the global model, training rows",
    "objective_global": "mean loss + (λ/n)R of the global model, training rows",
    "weight_norm_global": "norm of the global model's weights",
    "test_loss_global": "mean loss of the global model, test rows",
    "test_error_local": "mean error of the local models, test rows",
    "test_error_global": "error of the global model, test rows",
}
"""Columns of a trace. The global model is the one that the run would release.

The error is the share of wrong labels, or the root mean square residual in regression. Row weights multiply losses, but
not errors.
"""


def errors(loss: Loss, labels: Floats, scores: Floats) -> Floats:
    """Return the summed errors of several models: labels (rows,), scores (rows, models, p) -> (models,).

    The error of a row is 0 or 1 for a class, the squared residual in regression, or half the deviance of a count over
    the largest count.
    """
    if loss.task == "count":
        return np.array([float(np.sum(loss.value(labels, model))) for model in scores.transpose(1, 0, 2)])
    if loss.task == "regression":
        return np.asarray(np.sum((scores[:, :, 0] - labels[:, None]) ** 2, axis=0))
    binary = loss.task == "binary"
    wrong = (scores[:, :, 0] > 0.0) != (labels > 0.0)[:, None] if binary else scores.argmax(axis=2) != labels[:, None]
    return np.asarray(np.count_nonzero(wrong, axis=0), dtype=float)


def rate(loss: Loss, summed: Floats, n_rows: int) -> Floats:
    """Return the classification error rate, or the root mean square residual, from summed errors."""
    mean = summed / n_rows
    return np.sqrt(mean) if loss.task == "regression" else mean


def error(loss: Loss, labels: Floats, scores: Floats) -> float:
    """Return the error of one model: labels (rows,), scores (rows, p) -> number."""
    return float(rate(loss, errors(loss, labels, scores[:, None]), len(labels))[0])


def spread(values: ArrayLike, axis: int | None = None) -> Floats:
    """Return the standard deviation of a sample (n − 1); 0 for a single value.

    Examples
    --------
    >>> float(spread([1.0, 2.0, 3.0])), float(spread([5.0]))
    (1.0, 0.0)
    """
    numbers = np.asarray(values, dtype=float)
    n = numbers.size if axis is None else numbers.shape[axis]
    return np.asarray(numbers.std(axis=axis, ddof=1 if n > 1 else 0))


@dataclass(frozen=True)
class TestRows:
    """Held-out rows: their indices in a matrix, read in parts.

    ``labels`` and ``row_weights`` are those of the held-out rows only.
    """

    __test__ = False  # pytest takes the name for a test case

    features: Features
    labels: Floats
    index: Integers
    row_weights: Floats | None = None

    def parts(self, size: int = 2048) -> Iterator[tuple[Features, Floats, Floats | float]]:
        """Yield rows, labels and weights of each part."""
        for first in range(0, len(self.index), size):
            part = slice(first, first + size)
            weights = 1.0 if self.row_weights is None else self.row_weights[part]
            yield self.features[self.index[part]], self.labels[part], weights


@dataclass(frozen=True)
class Trace:
    """Measures by round; ``columns["round"]`` has the rounds that were measured."""

    columns: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.columns.get("round", ()))

    def last(self) -> dict[str, float]:
        """Return the last value of every column."""
        return {name: float(values[-1]) for name, values in self.columns.items() if len(values)}


@dataclass
class Metrics:
    """Observer that measures every ``every`` rounds, in round 1, and in the last planned round.

    ``rho`` is ρ of the augmented objective; None for methods without it. ``average`` is that of the global model.
    """

    problem: Problem
    rows: Rows
    averages: Averages
    rho: float | None
    test: TestRows | None = None
    every: int = 1
    average: AverageName = "last"
    _table: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, view: RoundView) -> None:
        if view.round % self.every == 0 or view.round in (1, view.n_rounds):
            with np.errstate(over="ignore", invalid="ignore"):  # measures of huge weights
                self._table.append(self.measure(view))

    @property
    def trace(self) -> Trace:
        names = self._table[0].keys() if self._table else ()
        return Trace({name: np.array([row[name] for row in self._table]) for name in names})

    def measure(self, view: RoundView) -> dict[str, float]:
        problem, rows = self.problem, self.rows
        weights = self.averages.model(self.average, view.consensus)
        everywhere = np.broadcast_to(weights, view.released.shape)
        global_scores = kernels.scores(rows, everywhere)
        per_agent = np.add.reduceat(rows.weighted(problem.loss.value(rows.labels, global_scores)), rows.offsets[:-1])
        out = {
            "round": float(view.round),
            "seconds": view.seconds,
            "train_loss_local": float(problem.losses(rows, view.released).mean()) if view.local_models else 0.0,
            "train_loss_global": float((per_agent / rows.n_rows).mean()),
            "train_error_global": error(problem.loss, rows.labels, global_scores),
            "weight_norm_global": float(np.linalg.norm(weights)),
        }
        if not view.local_models:
            out["train_loss_local"] = out["train_loss_global"]
        penalty = problem.alpha * float(problem.regularizer.value(weights))
        out["objective_global"] = out["train_loss_global"] + penalty
        if self.rho is not None:
            out["augmented_objective"] = self._augmented_objective(self.rho)
        if self.test is not None:
            out |= self._on_test(self.test, view.released if view.local_models else weights[None], weights)
        return out

    def _augmented_objective(self, rho: float) -> float:
        averages = self.averages
        local = averages.released if self.problem.smooth else averages.released_before
        spread = np.linalg.norm(local - averages.consensus, axis=(1, 2))
        return float((self.problem.objectives(self.rows, local) + rho * spread).sum())

    def _on_test(self, test: TestRows, local: Floats, weights: Floats) -> dict[str, float]:
        loss = self.problem.loss
        n_agents, d, p = local.shape
        models = np.concatenate([local, weights[None]]).transpose(1, 0, 2).reshape(d, -1)
        loss_sum, error_sums = 0.0, np.zeros(n_agents + 1)
        for features, labels, row_weights in test.parts():
            scores = np.asarray(features @ models).reshape(len(labels), n_agents + 1, p)
            loss_sum += float((row_weights * loss.value(labels, scores[:, -1])).sum())
            error_sums += errors(loss, labels, scores)
        rates = rate(loss, error_sums, len(test.labels))
        return {
            "test_loss_global": loss_sum / len(test.labels),
            "test_error_local": float(rates[:-1].mean()),
            "test_error_global": float(rates[-1]),
        }
