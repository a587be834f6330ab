"""What a study will reach, over a grid of ε and rounds: forecast on stand-in rows, with its spread.

Stand-in rows are those of a public table, each tested once, or synthetic ones made from the schema alone.
Noise and step sizes are those of the planned agents; only the number of rows that are computed with may be
smaller. An agent's noise is ``z·2c1/m``: with the planned m in it, a run on fewer rows has the same noise.

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
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import expit, softmax

from dpadmm._base.arrays import Features, Floats, Integers
from dpadmm._base.errors import ConvergenceWarning, DataError, StudyError
from dpadmm.data.encoded import encode_table
from dpadmm.data.encoder import Encoder
from dpadmm.data.leakage import LeakyColumn, leaky_columns
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal
from dpadmm.optim.features import clip_rows, with_intercept
from dpadmm.optim.problem import Problem, PublicSizes, make_rows
from dpadmm.privacy.releases import AnyRelease
from dpadmm.runs.run import run as run_cohort
from dpadmm.study.settings import Training
from dpadmm.study.study import Study
from dpadmm.training.methods.centralized import minimizer
from dpadmm.training.metrics import error
from dpadmm.training.metrics import spread as deviation
from dpadmm.training.oracles import Question, SimulatedNoise, with_normals

LEAST_PUBLIC = 30
LEAST_FOLDS = 3
MOST_PUBLIC = 100_000
"""Rows of a public table that are used; of a larger one a random choice."""

SYNTHETIC_TEST = 4_000
SYNTHETIC_TRAIN = 20_000

STRENGTHS = {"weak": (0.564, 0.1), "medium": (1.396, 0.4), "strong": (4.086, 0.8)}
"""Assumed signal: standard deviation of the logit (for two classes an AUC of 0.65, 0.80 and 0.95), and for
numbers the explained share of the label's variance."""

LABEL_SPREAD = 0.4
"""Standard deviation of synthetic numbers, where the label's bounds are −1 and 1."""

CEILING_ROWS = 20_000
MOST_AGENTS = 200
"""Agents that are computed with. Of more, this many stand for all, each with noise that is smaller by the
root of the share, so that the mean over agents has the noise of the plan."""

MOST_WEIGHTS, LEAST_AGENTS = 500_000, 10
"""Weights of all these agents together; it lowers their number where a model is wide, but not below ten."""

MOST_ENTRIES = 200_000
"""Numbers in the rows of all agents that are computed with."""

LEAST_ROWS = 50
"""Rows of every agent that are computed with, if it has as many."""


@dataclass(frozen=True)
class Value:
    """A forecast: accuracy, or the root mean square error in the label's units.

    ``luck`` is the standard deviation over noise and splits, ``sampling`` the standard error due to the
    number of distinct rows that it was tested on, ``spread`` the standard deviation of one run from both.
    """

    mean: float
    luck: float = 0.0
    sampling: float = 0.0

    @property
    def spread(self) -> float:
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


@dataclass(frozen=True, eq=False)
class Pool:
    """Encoded rows of length at most 1, with labels as the loss wants them."""

    features: Features
    labels: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Integers) -> Pool:
        """These rows, perhaps repeated."""
        return Pool(self.features[index], self.labels[index])


@dataclass(frozen=True)
class PlannedNoise:
    """Seeded noise of agents that will have ``n_rows`` rows, however many are computed with."""

    normals: SimulatedNoise
    n_rows: Integers
    scale: float = 1.0

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.normals.draw(round, stream, shape)

    def price(self, release: AnyRelease) -> None:
        """None: it is the noise of other agents than those computed with."""

    def answer(self, asked: Question) -> Floats:
        scaled = replace(asked, noise_multiplier=self.scale * asked.noise_multiplier)
        return with_normals(scaled, self, self.n_rows)


@dataclass(frozen=True, eq=False)
class Scenario:
    """Stand-in rows, dealt into (training, test) pairs, one per repeat.

    ``distinct`` says how many different rows a forecast rests on: the tested ones of all pairs. ``telling``
    are columns of a public table that alone tell its label.
    """

    name: str
    folds: tuple[tuple[Pool, Pool], ...]
    distinct: int
    telling: tuple[LeakyColumn, ...] = ()


def public_scenario(study: Study, table: Path, *, repeats: int, seed: int) -> Scenario:
    """A public table, dealt into folds: each repeat is tested on rows that it was not trained on.

    With as many repeats as folds every public row is tested exactly once.
    """
    if study.schema is None or study.label is None:
        raise StudyError(
            "a forecast from a public table needs a study with [columns] and [label], which say how to read "
            "it; without --public, made-up rows are used"
        )
    encoded = encode_table(table, study.schema, study.label, intercept=study.training.intercept)
    n = len(encoded.labels)
    if n < LEAST_PUBLIC:
        raise DataError(
            f"{table} has {n} rows, too few for a forecast; it needs at least {LEAST_PUBLIC} "
            "(without --public, made-up rows are used)"
        )
    rng = np.random.default_rng(seed)
    pool = Pool(encoded.features, encoded.labels).take(rng.permutation(n)[:MOST_PUBLIC])
    parts = np.array_split(np.arange(len(pool)), max(LEAST_FOLDS, repeats))
    folds = [(pool.take(np.concatenate([*parts[:k], *parts[k + 1 :]])), pool.take(parts[k])) for k in range(repeats)]
    numbers = [each.name for each in study.schema.columns if isinstance(each, Number)]
    numbers += [study.label.column] if study.label.classes is None else []
    names = [each.name for each in study.schema.columns]
    telling = leaky_columns(table, names, study.label.column, numbers=numbers, n_rows=n)
    return Scenario("public rows", tuple(folds), sum(len(test) for _, test in folds), tuple(telling))


def synthetic_scenarios(study: Study, n_rows: int, *, repeats: int, seed: int) -> list[Scenario]:
    """Synthetic rows at three assumed strengths of signal; every repeat has its own rows and true model."""
    out = []
    n_train = max(2, min(n_rows, SYNTHETIC_TRAIN))
    for name in STRENGTHS:
        folds = []
        for k in range(repeats):
            rng = np.random.default_rng([seed, k])  # the same rows at every strength
            features = synthetic_features(study, n_train + SYNTHETIC_TEST, rng)
            pool = Pool(features, synthetic_labels(study, features, name, rng))
            folds.append((pool.take(np.arange(n_train)), pool.take(np.arange(n_train, len(pool)))))
        out.append(Scenario(f"{name} signal", tuple(folds), SYNTHETIC_TEST * repeats))
    return out


def synthetic_features(study: Study, n: int, rng: np.random.Generator) -> Features:
    """Rows by the schema: numbers uniform within their bounds, all values of a category equally frequent."""
    if study.schema is None:
        plain = rng.standard_normal((n, len(study.features))) / np.sqrt(len(study.features))
        features = clip_rows(plain.astype(np.float32))
        return with_intercept(features) if study.training.intercept else features
    cells = {column.name: _cells(column, n, rng) for column in study.schema.columns}
    return Encoder(study.schema, intercept=study.training.intercept).encode(pa.record_batch(cells))


def _cells(column: Column, n: int, rng: np.random.Generator) -> pa.Array:
    if isinstance(column, Number):
        low, high = column.bounds
        if column.transform == "log":
            return pa.array(np.exp(rng.uniform(np.log(low), np.log(high), n)))
        return pa.array(rng.uniform(low, high, n))
    if isinstance(column, Category | Ordinal):
        codes: Integers = rng.integers(len(column.values), size=n)
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array([str(v) for v in column.values]))
    if isinstance(column, Boolean):
        return pa.array(rng.random(n) < 0.5).cast(pa.string())
    return pa.array(rng.standard_normal(n))


def synthetic_labels(study: Study, features: Features, strength: str, rng: np.random.Generator) -> Floats:
    """Labels of a random linear model of this strength."""
    loss, (spread, explained) = study.problem.loss, STRENGTHS[strength]
    weights = rng.standard_normal((features.shape[1], loss.n_outputs))
    scores = np.asarray(features @ weights, dtype=float)
    scores -= scores.mean(axis=0)
    scores /= np.maximum(scores.std(axis=0), 1e-12)
    if loss.task == "regression":
        rest = rng.standard_normal(len(scores))
        mixed = np.sqrt(explained) * scores[:, 0] + np.sqrt(1.0 - explained) * rest
        return np.asarray(np.clip(LABEL_SPREAD * mixed, -1.0, 1.0))
    if loss.task == "binary":
        return np.where(rng.random(len(scores)) < expit(spread * scores[:, 0]), 1.0, -1.0)
    reached = np.cumsum(softmax(spread * scores, axis=1), axis=1)
    codes = (rng.random((len(scores), 1)) > reached[:, :-1]).sum(axis=1)
    return np.asarray(codes, dtype=float)


def run(training: Training, problem: Problem, pool: Pool, sizes: Integers, *, seed: int) -> Floats:
    """The weights (d, p) that agents of these sizes would end with, were their rows like the pool's."""
    n_weights = pool.features.shape[1] * problem.loss.n_outputs
    chosen = stand_ins(sizes, n_weights)
    rng = np.random.default_rng(seed)
    dealt = pool.take(resampled(len(pool), int(computed(chosen, pool).sum()), rng))
    offsets = np.concatenate([[0], np.cumsum(computed(chosen, pool))])
    rows = make_rows(dealt.features, dealt.labels, offsets=offsets)
    shape = (rows.n_features, problem.loss.n_outputs)
    scale = float(np.sqrt(len(chosen) / len(sizes)))
    noise = PlannedNoise(SimulatedNoise(seed, len(chosen), shape), chosen, scale)
    return run_cohort(training, problem, rows, noise, sizes=PublicSizes(chosen, rows.n_features)).weights


def stand_ins(sizes: Integers, n_weights: int = 1) -> Integers:
    """The agents that are computed with: all, or some of every size.

    Examples
    --------
    >>> stand_ins(np.array([30, 10, 20])).tolist(), len(stand_ins(np.full(1000, 5)))
    ([30, 10, 20], 200)
    >>> len(stand_ins(np.full(1000, 5), n_weights=20_000))
    25
    """
    most = min(MOST_AGENTS, max(LEAST_AGENTS, MOST_WEIGHTS // n_weights))
    if len(sizes) <= most:
        return sizes
    places = (np.arange(most) + 0.5) * len(sizes) / most
    return np.asarray(np.sort(sizes)[places.astype(np.intp)])


def computed(sizes: Integers, pool: Pool) -> Integers:
    """Rows of every agent that are computed with: all, or the same share of each within the limit."""
    stored = pool.features.nnz / len(pool) if hasattr(pool.features, "nnz") else pool.features.shape[1]
    share = min(1.0, MOST_ENTRIES / (float(sizes.sum()) * max(1.0, stored)))
    wanted = np.maximum(np.ceil(sizes * share).astype(np.int64), LEAST_ROWS)
    return np.asarray(np.minimum(sizes, wanted))


def resampled(n_pool: int, n_rows: int, rng: np.random.Generator) -> Integers:
    """``n_rows`` of a pool in random order, every one of it as often as any other, give or take one.

    Drawing with replacement would add an error that neither the pool nor the plan has.

    Examples
    --------
    >>> np.bincount(resampled(3, 7, np.random.default_rng(0))).tolist()
    [2, 2, 3]
    """
    rounds = -(-n_rows // n_pool)
    return np.concatenate([rng.permutation(n_pool) for _ in range(rounds)])[:n_rows]


def grid_of(study: Study, epsilon: float, *, epsilons: Sequence[float], rounds: Sequence[int]) -> Grid:
    """The grid with the study's own numbers in it; ``epsilon`` is the study's total."""
    own = (epsilon, study.training.planned_rounds)
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
        settings = study.training.changed(epsilon=epsilon, round_epsilon=None, noise_multiplier=None, n_rounds=rounds)
        errors = []
        for k, (train, test) in enumerate(scenario.folds):
            weights = run(settings, study.problem, train, sizes, seed=seed + k)
            errors.append(_errors(study, train, test, weights))
            finished()
        made.append(Cell(epsilon, rounds, _value(study, scenario, errors, sizes)))
    optima = []
    for train, test in scenario.folds:
        optima.append(_optimum(study, train, test))
        finished()
    ceiling = _value(study, scenario, optima, sizes, alone=True)
    return Outlook(scenario.name, tuple(made), ceiling, _baseline(study, scenario), scenario.distinct)


def n_runs(scenarios: Sequence[Scenario], grid: Grid) -> int:
    """How often ``finished`` will be called."""
    return sum(len(each.folds) for each in scenarios) * (len(grid.cells) + 1)


Errors = tuple[float, float]
"""Mean error on the rows tested on and on those trained on: wrong labels, or squared residuals."""


def _errors(study: Study, train: Pool, test: Pool, weights: Floats) -> Errors:
    loss = study.problem.loss
    power = 2 if loss.task == "regression" else 1
    on_test, on_train = (
        error(loss, pool.labels, np.asarray(pool.features @ weights, dtype=float)) ** power for pool in (test, train)
    )
    return on_test, on_train


def _optimum(study: Study, train: Pool, test: Pool) -> Errors:
    train = train.take(np.arange(min(len(train), CEILING_ROWS)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a forecast needs no ten digits
        weights = minimizer(study.problem, make_rows(train.features, train.labels))
    return _errors(study, train, test, weights)


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
    sampling = unit * root * math.sqrt(0.5 / scenario.distinct)
    return Value(unit * root, unit * luck / (2.0 * root) if root else 0.0, sampling)


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
