"""What a study will reach, over a grid of ε and rounds: forecast on stand-in rows, with its spread.

Models are tested on rows that they were not trained on. Where there are fewer distinct stand-in rows than the
plan has, a model fits them too well: it does better on its own rows and worse on others than one that is
trained on many. To first order in 1/rows both are off by the same amount (for a maximum-likelihood fit of a
right model), so the forecast lies half-way between them, or less where the plan has hardly more rows. With
few rows for every weight it lies closer to other rows: wrong labels there have an upper limit, a guess, while
own rows are told ever better.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpadmm._base.arrays import Integers
from dpadmm._base.errors import ConvergenceWarning
from dpadmm.optim.problem import make_rows
from dpadmm.runs.planning.scenarios import Scenario
from dpadmm.runs.planning.trial import Pool, run
from dpadmm.study.settings import Training
from dpadmm.study.study import Study
from dpadmm.training.methods.centralized import minimizer
from dpadmm.training.metrics import error
from dpadmm.training.metrics import spread as deviation

CEILING_ROWS = 20_000


@dataclass(frozen=True)
class Value:
    """A forecast: accuracy, or the root mean square error in the label's units.

    Attributes
    ----------
    mean : float
    luck : float
        Standard deviation that another noise (and another split) gives one run.
    sampling : float
        Standard error from the number of distinct rows that it was tested on.
    """

    mean: float
    luck: float = 0.0
    sampling: float = 0.0

    @property
    def spread(self) -> float:
        """Standard deviation of what one run will reach, as far as is known."""
        return math.hypot(self.luck, self.sampling)

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "spread": self.spread}


@dataclass(frozen=True)
class Cell:
    """What is reached with a total ε in so many rounds."""

    epsilon: float
    n_rounds: int
    value: Value

    def as_json(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "n_rounds": self.n_rounds, **self.value.as_json()}


@dataclass(frozen=True)
class Outlook:
    """A scenario's grid, between what is reached without privacy and without learning."""

    name: str
    cells: tuple[Cell, ...]
    ceiling: Value
    baseline: float
    rows: int

    def at(self, epsilon: float, n_rounds: int) -> Value:
        """The forecast of one cell."""
        return next(c.value for c in self.cells if (c.epsilon, c.n_rounds) == (epsilon, n_rounds))

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "baseline": self.baseline,
            "ceiling": self.ceiling.as_json(),
            "cells": [cell.as_json() for cell in self.cells],
            "name": self.name,
        }


@dataclass(frozen=True)
class Grid:
    """Total ε and numbers of rounds to look at; the study's own are among them."""

    epsilons: tuple[float, ...]
    rounds: tuple[int, ...]
    own: tuple[float, int]

    @property
    def cells(self) -> list[tuple[float, int]]:
        return [(epsilon, rounds) for epsilon in self.epsilons for rounds in self.rounds]


def grid_of(study: Study, epsilon: float, *, epsilons: Sequence[float], rounds: Sequence[int]) -> Grid:
    """The grid with the study's own numbers in it; ``epsilon`` is the study's total."""
    own = (epsilon, study.settings.n_rounds)
    many = {e for e in epsilons if not math.isclose(e, epsilon, rel_tol=1e-3)}
    return Grid(tuple(sorted({epsilon, *many})), tuple(sorted({own[1], *rounds})), own)


def outlook(
    study: Study,
    scenario: Scenario,
    sizes: Integers,
    grid: Grid,
    *,
    seed: int,
    finished: Callable[[], None] = lambda: None,
) -> Outlook:
    """Run every cell of the grid on every fold; ``finished`` is called after each run."""
    made = []
    for epsilon, rounds in grid.cells:
        settings = replace(
            study.settings, epsilon=epsilon, round_epsilon=None, noise_multiplier=None, n_rounds=rounds
        )
        errors = []
        for k, (train, test) in enumerate(scenario.folds):
            errors.append(_private(study, settings, train, test, sizes, seed + k))
            finished()
        made.append(Cell(epsilon, rounds, _value(study, scenario, errors, sizes)))
    optima = []
    for train, test in scenario.folds:
        optima.append(_optimum(study, train, test))
        finished()
    return Outlook(
        name=scenario.name,
        cells=tuple(made),
        ceiling=_value(study, scenario, optima, sizes, alone=True),
        baseline=_baseline(study, scenario),
        rows=scenario.distinct,
    )


def n_runs(scenarios: Sequence[Scenario], grid: Grid) -> int:
    """How often ``finished`` will be called."""
    return sum(len(each.folds) for each in scenarios) * (len(grid.cells) + 1)


Errors = tuple[float, float]
"""Mean error on the rows tested on and on those trained on: wrong labels, or squared residuals."""


def _private(study: Study, settings: Training, train: Pool, test: Pool, sizes: Integers, seed: int) -> Errors:
    weights = run(settings, study.problem, train, sizes, seed=seed)
    return _error(study, test, weights), _error(study, train, weights)


def _optimum(study: Study, train: Pool, test: Pool) -> Errors:
    train = train.take(np.arange(min(len(train), CEILING_ROWS)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a forecast needs no ten digits
        weights = minimizer(study.problem, make_rows(train.features, train.labels))
    return _error(study, test, weights), _error(study, train, weights)


def _error(study: Study, pool: Pool, weights: Any) -> float:
    loss = study.problem.loss
    value = error(loss, pool.labels, np.asarray(pool.features @ weights, dtype=float))
    return value**2 if loss.task == "regression" else value


def _value(
    study: Study, scenario: Scenario, errors: Sequence[Errors], sizes: Integers, *, alone: bool = False
) -> Value:
    """From the error on other rows towards the error on own ones, as far as :func:`way_to_own_rows` says."""
    test, train = np.array(errors).T
    way = way_to_own_rows(study, len(scenario.folds[0][0]), int(sizes.sum()))
    mean = test.mean() - way * (test.mean() - train.mean())
    tested = np.array([len(pool) for _, pool in scenario.folds])
    trained = np.array([len(pool) for pool, _ in scenario.folds])
    # On all rows of a scenario the folds differ by their noise, hardly by who was tested
    everywhere = (test * tested + train * trained) / (tested + trained)
    luck = 0.0 if alone else float(deviation(everywhere))
    if study.problem.loss.task != "regression":
        sampling = math.sqrt(max(mean * (1.0 - mean), 0.0) / scenario.distinct)
        return Value(1.0 - float(mean), luck, sampling)
    root, unit = math.sqrt(mean), label_unit(study)
    # the squared error of nearly normal residuals has a relative standard error of √(2/rows)
    return Value(
        unit * root,
        unit * luck / (2.0 * root) if root else 0.0,
        unit * root * math.sqrt(0.5 / scenario.distinct),
    )


def way_to_own_rows(study: Study, n_rows: int, n_planned: int) -> float:
    """``½·(1 − rows/planned)``, and for classes divided by ``1 + weights/rows``.

    In 300 trials on tables of 60 to 1,500 rows the divisor took away most of what was too hopeful on 200 rows
    and fewer, and changed nothing from 500 rows on (docs/decisions/0010).
    """
    way = 0.5 * (1.0 - min(1.0, n_rows / n_planned))
    if study.problem.loss.task == "regression":
        return way
    d, p = study.shape
    return way / (1.0 + d * max(1, p - 1) / n_rows)


def label_unit(study: Study) -> float:
    """What 1 of an encoded label is in its own units."""
    bounds = study.label.bounds if study.label is not None else None
    return (bounds[1] - bounds[0]) / 2.0 if bounds is not None else 1.0


def _baseline(study: Study, scenario: Scenario) -> float:
    """The most frequent class everywhere, or the mean of the labels."""
    labels = np.concatenate([test.labels for _, test in scenario.folds])
    if study.problem.loss.task == "regression":
        return label_unit(study) * float(labels.std())
    return float(np.unique(labels, return_counts=True)[1].max() / len(labels))
