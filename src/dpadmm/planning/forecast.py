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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.optimize import brentq
from scipy.special import expit, softmax

from dpadmm.accounting.events import AnyRelease
from dpadmm.data.encoded import encode_table, row_weights_of
from dpadmm.data.encoder import Encoder, Tally
from dpadmm.data.leakage import LeakyColumn, leaky_columns
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal
from dpadmm.engine.loop import RandomVoids
from dpadmm.engine.metrics import spread as deviation
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import Question, SimulatedNoise, with_normals
from dpadmm.errors import ConvergenceWarning, DataError, StudyError
from dpadmm.losses import Loss, Poisson
from dpadmm.losses.poisson import coded, decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.matrices.features import Features, row_entries
from dpadmm.methods import Auto
from dpadmm.methods.prior import need_every_class, plain_model
from dpadmm.models.description import ColumnSummary, Description
from dpadmm.models.evaluate import auc
from dpadmm.models.explain import explain
from dpadmm.models.model import PROBABILITIES, Model
from dpadmm.queries.problem import Problem, PublicSizes, Rows, make_rows
from dpadmm.regularizers import L2
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.training.run import Result
from dpadmm.training.run import run as run_cohort

LEAST_FOLDS = 3
LEAST_FORECAST = 30
"""Public rows that a forecast takes."""

MOST_PUBLIC = 20_000
"""Rows of a public table that are used; of a larger one a random choice."""

SYNTHETIC_TEST = 4_000
SYNTHETIC_TRAIN = 10_000

STRENGTHS = {"weak": (0.564, 0.1), "medium": (1.396, 0.4), "strong": (4.086, 0.8)}
"""Assumed signal: standard deviation of the logit (for two classes an AUC of 0.65, 0.80 and 0.95), and for
numbers the explained share of the label's variance."""

LABEL_SPREAD = 0.4
"""Standard deviation of synthetic numbers, where the label's bounds are −1 and 1."""

WEAK = 1e-6
"""Weight of an L2 penalty for the model without privacy: as good as none, where there are many rows."""

SHRUNK = 0.5
"""Of the way to own rows, for ``auto``: a shrunk model fits its own rows better by more than it does others worse."""

MOST_AGENTS = 200
"""Agents that are computed with. Of more, this many stand for all, each with noise that is smaller by the
root of the share, so that the mean over agents has the noise of the plan."""

MOST_WEIGHTS, LEAST_AGENTS = 500_000, 10
"""Weights of all these agents together; it lowers their number where a model is wide, but not below ten."""

MOST_ENTRIES, MOST_POOLED = 200_000, 1_000_000
"""Numbers in the rows of all agents that are computed with; and where these are pooled."""

LIKELY, MOST_TIMES = 0.8, 256
"""Share of runs with intervals from which they are likely; and the most that rows are multiplied by to get there."""

LEAST_ROWS = 50
"""Rows of every agent that are computed with, if it has as many."""


@dataclass(frozen=True)
class Measure:
    """Something that is forecast: its title, whether more is better, and whether it is a share."""

    title: str
    higher: bool
    percent: bool = False

    def gain(self, value: float, other: float) -> float:
        """By how much a value is better than another."""
        return value - other if self.higher else other - value


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("accuracy", higher=True, percent=True),
    "auc": Measure("AUC", higher=True),
    "log_loss": Measure("log-loss", higher=False),
    "sensitivity": Measure("sensitivity", higher=True, percent=True),
    "overconfidence": Measure("overconfidence", higher=False, percent=True),
    "rmse": Measure("root mean square error", higher=False),
    "deviance": Measure("mean deviance", higher=False),
}
"""All that is forecast, where a study's loss has it. The sensitivity is that for the second class, where its chance is
above one half; overconfidence is the mean probability of the predicted class less the share of right ones."""


@dataclass(frozen=True)
class Value:
    """The forecast of a measure.

    ``luck`` is the standard deviation over noise and splits, ``sampling`` the standard error due to the
    number of distinct rows that it was tested on, ``spread`` the standard deviation of one run from both.
    ``paired`` is the standard error of the difference from a constant guess on the same rows.
    """

    mean: float
    luck: float = 0.0
    sampling: float = 0.0
    paired: float = 0.0

    @property
    def spread(self) -> float:
        return math.hypot(self.luck, self.sampling)

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "spread": self.spread}


Values = Mapping[str, Value]
"""Forecasts by the name of the measure."""


@dataclass(frozen=True)
class Outlook:
    """What is reached with a total ε in so many rounds (``cells``), without privacy, and by a constant guess.

    ``alone`` is what a model of the public rows reaches, which takes no private row.
    """

    name: str
    cells: Mapping[tuple[float, int], Values]
    ceiling: Values
    baseline: Mapping[str, float]
    rows: int
    alone: Values | None = None

    def at(self, epsilon: float, n_rounds: int) -> Values:
        """The forecast of one cell."""
        return self.cells[epsilon, n_rounds]

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "baseline": dict(self.baseline),
            "ceiling": _as_json(self.ceiling),
            "public_rows_alone": None if self.alone is None else _as_json(self.alone),
            "cells": [{"epsilon": e, "n_rounds": t, **_as_json(values)} for (e, t), values in self.cells.items()],
            "name": self.name,
        }


def _as_json(values: Values) -> dict[str, Any]:
    return {name: value.as_json() for name, value in values.items()}


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
    """Encoded rows of length at most 1, with labels as the loss wants them, and weights if there are any."""

    features: Features
    labels: Floats
    row_weights: Floats | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Integers) -> Pool:
        """These rows, perhaps repeated."""
        weights = None if self.row_weights is None else self.row_weights[index]
        return Pool(self.features[index], self.labels[index], weights)

    def rows(self, offsets: Integers | None = None) -> Rows:
        """The rows of a cohort; without offsets, of one agent."""
        return make_rows(self.features, self.labels, offsets=offsets, row_weights=self.row_weights)


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

    ``telling`` are columns of a public table that alone tell its label.
    """

    name: str
    folds: tuple[tuple[Pool, Pool], ...]
    public: bool = False
    telling: tuple[LeakyColumn, ...] = ()

    @property
    def tested(self) -> int:
        """How many different rows a forecast rests on."""
        return sum(len(test) for _, test in self.folds)


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
    if n < LEAST_FORECAST:
        raise DataError(
            f"{table} has {n} rows, too few for a forecast; it needs at least {LEAST_FORECAST} "
            "(with --no-public, made-up rows are used)"
        )
    need_every_class(study.problem, encoded.labels)
    rng = np.random.default_rng(seed)
    pool = Pool(encoded.features, encoded.labels, encoded.row_weights).take(rng.permutation(n)[:MOST_PUBLIC])
    parts = np.array_split(np.arange(len(pool)), max(LEAST_FOLDS, repeats))
    folds = [(pool.take(np.concatenate([*parts[:k], *parts[k + 1 :]])), pool.take(parts[k])) for k in range(repeats)]
    numbers = [each.name for each in study.schema.columns if isinstance(each, Number)]
    numbers += [study.label.column] if study.label.classes is None else []
    names = [each.name for each in study.schema.columns]
    telling = leaky_columns(table, names, study.label.column, numbers=numbers, n_rows=n)
    return Scenario("public rows", tuple(folds), public=True, telling=tuple(telling))


def synthetic_scenarios(
    study: Study, n_rows: int, *, repeats: int, seed: int, known: Description | None = None
) -> list[Scenario]:
    """Synthetic rows at three assumed strengths of signal; every repeat has its own rows and true model.

    Columns that private statistics tell of are ``known``: their cells are drawn from the released counts.
    """
    out = []
    n_train = max(2, min(n_rows, SYNTHETIC_TRAIN))
    for name in STRENGTHS:
        folds = []
        for k in range(repeats):
            rng = np.random.default_rng([seed, k])  # the same rows at every strength
            features = synthetic_features(study, n_train + SYNTHETIC_TEST, rng, known)
            labels = synthetic_labels(study, features, name, rng, known)
            pool = Pool(features, labels, _synthetic_weights(study, labels, rng))
            folds.append((pool.take(np.arange(n_train)), pool.take(np.arange(n_train, len(pool)))))
        out.append(Scenario(f"{name} signal", tuple(folds)))
    return out


def synthetic_features(study: Study, n: int, rng: np.random.Generator, known: Description | None = None) -> Features:
    """Rows by the schema: as known, or numbers uniform within their bounds and all values of a category alike."""
    if study.schema is None:
        plain = rng.standard_normal((n, len(study.features))) / np.sqrt(len(study.features))
        features = clip_rows(plain.astype(np.float32))
        return with_intercept(features) if study.training.intercept else features
    told = known.columns if known else {}
    cells = {
        column.name: _drawn(told[column.name], n, rng) if column.name in told else _cells(column, n, rng)
        for column in study.schema.columns
    }
    return Encoder(study.schema, intercept=study.training.intercept).encode(pa.record_batch(cells))


def _drawn(known: ColumnSummary, n: int, rng: np.random.Generator) -> pa.Array:
    """Cells like those of a column whose counts were released; numbers uniform within their bins."""
    places = rng.choice(len(known.counts), size=n, p=known.counts / known.counts.sum())
    missing = places == len(known.counts) - 1
    if known.bins.edges:
        edges = np.array([*known.bins.edges, known.bins.edges[-1]])
        return pa.array(rng.uniform(edges[places], edges[np.minimum(places + 1, len(edges) - 1)]), mask=missing)
    return pa.array(np.array(known.bins.labels, dtype=object)[places], pa.string(), mask=missing)


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


def _synthetic_weights(study: Study, labels: Floats, rng: np.random.Generator) -> Floats | None:
    """Weights of labels, by their classes; those of a column between none and the largest."""
    label = study.label
    if label is None or not label.weighted:
        return None
    cells = None if label.weight_bound is None else pa.array(rng.uniform(0.0, label.weight_bound, len(labels)))
    return row_weights_of(label, labels, cells, Tally())[0]


def synthetic_labels(
    study: Study, features: Features, strength: str, rng: np.random.Generator, known: Description | None = None
) -> Floats:
    """Labels of a random linear model of this strength; of two classes, with the share that is ``known``, else half."""
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
        log_odds = spread * scores[:, 0]
        if known is not None and study.label is not None and study.label.column in known.columns:
            no, yes = known.columns[study.label.column].counts[:2]
            share = float(np.clip(yes / max(no + yes, 1.0), 0.005, 0.995))
            log_odds += brentq(lambda shift: float(expit(log_odds + shift).mean()) - share, -50.0, 50.0)
        return np.where(rng.random(len(scores)) < expit(log_odds), 1.0, -1.0)
    if isinstance(loss, Poisson):  # a twentieth of the largest count, by exposures between none and the largest
        exposures = rng.uniform(0.0, 1.0, len(scores)) if study.label is not None and study.label.exposure else 1.0
        means = exposures * np.exp(0.3 * spread * scores[:, 0]) * max(1.0, 0.05 / loss.unit)
        return coded(np.minimum(rng.poisson(means) * loss.unit, 1.0), exposures)
    reached = np.cumsum(softmax(spread * scores, axis=1), axis=1)
    codes = (rng.random((len(scores), 1)) > reached[:, :-1]).sum(axis=1)
    return np.asarray(codes, dtype=float)


def run(
    training: Training, problem: Problem, pool: Pool, sizes: Integers, *, seed: int, void_rounds: float = 0.0
) -> Floats:
    """The weights (d, p) that agents of these sizes would end with, were their rows like the pool's."""
    return _result(training, problem, pool, sizes, seed=seed, void_rounds=void_rounds).weights


def _result(
    training: Training, problem: Problem, pool: Pool, sizes: Integers, *, seed: int, void_rounds: float = 0.0
) -> Result:
    """The run itself.

    ``auto`` uses nothing but the mean over all rows, whose noise is that of one agent with ``Σm/√n`` rows, or
    ``Σm/√(n/h)`` where secure aggregation relies on h honest agents.
    """
    rng, total = np.random.default_rng(seed), int(sizes.sum())
    if isinstance(training.method, Auto):
        chosen, scale = np.array([max(1, round(total * math.sqrt((training.honest or 1) / len(sizes))))]), 1.0
        training = training.changed(trust="local", honest=None)
        counts = np.array([min(total, len(pool), max(LEAST_ROWS, int(MOST_POOLED / _entries(pool))))])
    else:
        chosen = stand_ins(sizes, pool.features.shape[1] * problem.loss.n_outputs)
        counts, scale = computed(chosen, pool), math.sqrt(len(chosen) / len(sizes))
    dealt = pool.take(resampled(len(pool), int(counts.sum()), rng))
    rows = dealt.rows(np.concatenate([[0], np.cumsum(counts)]))
    shape = (rows.n_features, problem.loss.n_outputs)
    noise = PlannedNoise(SimulatedNoise(seed, len(chosen), shape), chosen, scale)
    planned, voids = PublicSizes(chosen, rows.n_features), RandomVoids(void_rounds, seed) if void_rounds else None
    return run_cohort(training, problem, rows, noise, sizes=planned, voids=voids)


@dataclass(frozen=True)
class Intervals:
    """In how many of the runs every column had confidence intervals, and the total of rows with which that is likely.

    ``rows`` is the planned total, or that times a power of two; None where :data:`MOST_TIMES` that would not do.
    """

    having: int
    runs: int
    rows: int | None

    @property
    def likely(self) -> bool:
        return self.having >= LIKELY * self.runs

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "likely": self.likely}


def intervals(study: Study, scenarios: Sequence[Scenario], sizes: Integers, *, seed: int) -> Intervals:
    """Whether a study that asks for intervals will have them, from runs with the noise of the planned rows."""
    folds = [(k, train) for each in scenarios for k, (train, _) in enumerate(each.folds)]

    def having(times: int) -> int:
        ran = (_result(study.training, study.problem, train, times * sizes, seed=seed + k) for k, train in folds)
        return sum(_has_intervals(study, each) for each in ran)

    planned, n = having(1), int(sizes.sum())
    if planned >= LIKELY * len(folds):
        return Intervals(planned, len(folds), n)
    more = (2**k for k in range(1, MOST_TIMES.bit_length()))
    enough = next((times for times in more if having(times) >= LIKELY * len(folds)), None)
    return Intervals(planned, len(folds), None if enough is None else enough * n)


def _has_intervals(study: Study, result: Result) -> bool:
    """Whether all columns have intervals, but for those with values that no public row had."""
    clearance, covariance = result.inferred
    found = explain(
        Model(
            result.weights,
            task=study.problem.loss.task,
            loss=study.problem.loss.name,
            intercept=study.training.intercept,
            feature_names=study.features,
            schema=study.schema,
            label=study.label,
            covariance=covariance,
            clearance=clearance,
        )
    )
    unseen = {each.column for each in found.coefficients if each.unseen}
    told = {each.column for each in found.coefficients if each.interval()}
    return not found.unknown and told | unseen >= {each.column for each in found.coefficients}


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
    share = min(1.0, MOST_ENTRIES / (float(sizes.sum()) * _entries(pool)))
    wanted = np.maximum(np.ceil(sizes * share).astype(np.int64), LEAST_ROWS)
    return np.asarray(np.minimum(sizes, wanted))


def _entries(pool: Pool) -> float:
    """Numbers that a row has, on average."""
    return max(1.0, float(row_entries(pool.features).mean()))


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
    made = {}
    for epsilon, rounds in grid.cells:
        settings = study.training.changed(epsilon=epsilon, round_epsilon=None, noise_multiplier=None, n_rounds=rounds)
        made[epsilon, rounds] = reached(study, settings, scenario, sizes, seed=seed, finished=finished)
    optima, plain, guess = [], [], _guess(study, scenario)
    weak = Problem(study.problem.loss, L2(), WEAK)
    for train, test in scenario.folds:
        optima.append(_on_both(study, train, test, _unprotected(weak, train, minimizer), guess))
        if scenario.public:
            plain.append(
                _on_both(
                    study, train, test, _unprotected(study.problem, train, lambda *given: plain_model(*given)[0]), guess
                )
            )
        finished()
    labels = np.concatenate([test.labels for _, test in scenario.folds])
    constant = figures(study.problem.loss, labels, np.broadcast_to(guess, (len(labels), len(guess))), guess)
    return Outlook(
        scenario.name,
        made,
        ceiling=_values(study, scenario, optima, sizes, noise=False),
        baseline={name: _scaled(study, name, figure[0])[0] for name, figure in constant.items()},
        rows=scenario.tested,
        alone=_values(study, scenario, plain, None, noise=False) if plain else None,
    )


def reached(
    study: Study,
    training: Training,
    scenario: Scenario,
    sizes: Integers,
    *,
    seed: int,
    void_rounds: float = 0.0,
    finished: Callable[[], None] = lambda: None,
) -> Values:
    """What these settings reach on the folds of a scenario; ``finished`` is called after each of them."""
    found, guess = [], _guess(study, scenario)
    for k, (train, test) in enumerate(scenario.folds):
        weights = run(training, study.problem, train, sizes, seed=seed + k, void_rounds=void_rounds)
        found.append(_on_both(study, train, test, weights, guess))
        finished()
    return _values(study, scenario, found, sizes)


def n_runs(scenarios: Sequence[Scenario], grid: Grid, more: int = 0) -> int:
    """How often ``finished`` will be called, with so many settings beside the grid's."""
    return sum(len(each.folds) for each in scenarios) * (len(grid.cells) + 1 + more)


Figures = Mapping[str, tuple[float, float, float]]
"""By measure: the mean over rows, its variance, and that of the difference from a constant guess."""


def figures(loss: Loss, labels: Floats, scores: Floats, guess: Floats) -> Figures:
    """What these scores (rows, p) are worth beside those of a constant guess (p,)."""
    rows, guessed = (_of_rows(loss, labels, each) for each in (scores, np.broadcast_to(guess, scores.shape)))
    found = {
        name: (float(each.mean()), float(each.var() / len(each)), float((each - guessed[name]).var() / len(each)))
        for name, each in rows.items()
    }
    if loss.task in ("regression", "count"):
        return found
    if loss.task == "binary":
        areas = [_area(labels > 0.0, scores[:, 0])]
    else:  # as probabilities, which can be compared between rows
        areas = [_area(labels == k, softmax(scores, axis=1)[:, k]) for k in np.unique(labels.astype(int))]
    mean, variance = np.mean(areas, axis=0).tolist()
    return found | {"auc": (mean, variance, variance)}


def _of_rows(loss: Loss, labels: Floats, scores: Floats) -> dict[str, Floats]:
    """What is averaged over rows; the sensitivity over those of the second class."""
    if loss.task == "regression":
        return {"rmse": np.square(scores[:, 0] - labels)}
    if isinstance(loss, Poisson):
        return {"deviance": 2.0 / loss.unit * loss.value(labels, scores)}
    binary = loss.task == "binary"
    right = (scores[:, 0] > 0.0) == (labels > 0.0) if binary else scores.argmax(axis=1) == labels
    found = {"accuracy": right.astype(float)}
    if loss.name in PROBABILITIES:
        found["log_loss"] = loss.value(labels, scores)
        chances = expit(np.abs(scores)) if binary else softmax(scores, axis=1)
        found["overconfidence"] = chances.max(axis=1) - found["accuracy"]
    if binary:
        found["sensitivity"] = right[labels > 0.0].astype(float) if np.any(labels > 0.0) else np.zeros(1)
    return found


def _area(positive: Any, scores: Floats) -> tuple[float, float]:
    """AUC and its variance (Hanley and McNeil); ½ where rows of one class leave nothing to rank."""
    area, n, m = auc(positive, scores), int(positive.sum()), int((~positive).sum())
    if area is None:
        return 0.5, 0.25
    first, second = area / (2.0 - area), 2.0 * area**2 / (1.0 + area)
    spread = area * (1.0 - area) + (n - 1) * (first - area**2) + (m - 1) * (second - area**2)
    return area, max(spread, 0.25 / (n + m)) / (n * m)


def _guess(study: Study, scenario: Scenario) -> Floats:
    """Scores (p,) of the best constant model of the tested rows: shares of classes, or the mean."""
    labels, loss = np.concatenate([test.labels for _, test in scenario.folds]), study.problem.loss
    if loss.task == "regression":
        return np.array([labels.mean()])
    if isinstance(loss, Poisson):
        (counts, _), (exposures, ends) = decoded(labels), loss.spent(labels)
        events = np.maximum((counts[:, None] * ends).sum(axis=0), loss.unit / 2.0)
        return np.asarray(np.log(events / exposures.sum(axis=0)))
    classes = (-1, 1) if loss.task == "binary" else range(loss.n_outputs)
    counts = np.array([np.count_nonzero(labels == k) for k in classes])
    logits = np.log(np.maximum(counts, 0.5) / len(labels))
    return np.asarray(np.diff(logits) if loss.task == "binary" else logits)


def _on_both(study: Study, train: Pool, test: Pool, weights: Floats, guess: Floats) -> tuple[Figures, Figures]:
    """On the rows tested on, and on those trained on."""
    on_test, on_train = (
        figures(study.problem.loss, pool.labels, np.asarray(pool.features @ weights, dtype=float), guess)
        for pool in (test, train)
    )
    return on_test, on_train


def _unprotected(problem: Problem, train: Pool, fitted: Callable[[Problem, Rows], Floats]) -> Floats:
    """A model without privacy."""
    train = train.take(np.arange(min(len(train), max(LEAST_ROWS, int(MOST_POOLED / _entries(train))))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a forecast needs no ten digits
        return fitted(problem, train.rows())


def _values(
    study: Study,
    scenario: Scenario,
    found: Sequence[tuple[Figures, Figures]],
    sizes: Integers | None,
    *,
    noise: bool = True,
) -> Values:
    """From the measure on other rows towards that on own ones, as far as :func:`way_to_own_rows` says.

    Without sizes: of the rows that a scenario has, and no more.
    """
    tested = np.array([len(pool) for _, pool in scenario.folds])
    trained = np.array([len(pool) for pool, _ in scenario.folds])
    out = {}
    for name in found[0][0]:
        on_test, on_train = (np.array([both[k][name] for both in found]) for k in (0, 1))
        test, train = on_test[:, 0], on_train[:, 0]
        way = 0.0 if sizes is None else way_to_own_rows(study, name, int(trained[0]), int(sizes.sum()))
        way *= SHRUNK if noise and isinstance(study.training.method, Auto) else 1.0
        # On all rows of a scenario the folds differ by their noise, hardly by who was tested
        luck = float(deviation((test * tested + train * trained) / (tested + trained))) if noise else 0.0
        sampling, paired = np.sqrt(on_test[:, 1:].mean(axis=0) / len(found)).tolist()
        mean, slope = _scaled(study, name, float(test.mean() - way * (test.mean() - train.mean())))
        out[name] = Value(mean, slope * luck, slope * sampling, slope * paired)
    return out


def _scaled(study: Study, name: str, mean: float) -> tuple[float, float]:
    """A measure from its mean over rows, and the slope of that; errors of numbers are in the label's units."""
    if name != "rmse":
        return mean, 1.0
    low, high = (study.label and study.label.bounds) or (-1.0, 1.0)
    unit, root = (high - low) / 2.0, math.sqrt(max(mean, 0.0))
    return unit * root, unit / (2.0 * root) if root else 0.0


def way_to_own_rows(study: Study, measure: str, n_rows: int, n_planned: int) -> float:
    """``½·(1 − rows/planned)``, and divided by ``1 + weights/rows`` for what has a limit on other rows.

    In 300 trials on tables of 60 to 1,500 rows the divisor took away most of what was too hopeful on 200 rows
    and fewer, and changed nothing from 500 rows on (docs/decisions/0010-forecasts.md).
    """
    way = 0.5 * (1.0 - min(1.0, n_rows / n_planned))
    if measure in ("rmse", "log_loss", "deviance"):
        return way
    d, p = study.shape
    return way / (1.0 + d * max(1, p - 1) / n_rows)
