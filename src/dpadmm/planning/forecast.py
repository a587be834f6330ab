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

Where ``train`` starts from public rows, so does a forecast: from a prior of the training rows of the fold. These rows
also stand for the private ones, and the rows tested on are in neither. What the prior contributes has the error of the
public rows, however many private ones there are, so its weight in the model is measured (:func:`prior_weight`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy  # submodules load on first use
from scipy.special import expit, softmax

from dpadmm.accounting.events import AnyRelease
from dpadmm.data.encoded import encode_table, row_weights_of
from dpadmm.data.encoder import Encoder, Tally
from dpadmm.data.leakage import LeakyColumn, leaky_columns
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal
from dpadmm.engine.loop import RandomAborts
from dpadmm.engine.metrics import spread as deviation
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import CohortQuery, Noise, SimulatedNoise, with_normals
from dpadmm.errors import ConvergenceWarning, DataError, StudyError
from dpadmm.losses import Poisson
from dpadmm.losses.poisson import coded, decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.matrices.features import Features, row_entries
from dpadmm.methods.prior import Prior, need_every_class, prior_of
from dpadmm.models.description import ColumnSummary, Description
from dpadmm.models.run import Result
from dpadmm.models.run import run as run_cohort
from dpadmm.planning.measures import Figures, figures
from dpadmm.queries.problem import Problem, PublicSizes, Rows, make_rows
from dpadmm.regularizers import L2
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study

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

SHRUNK, SHRUNK_TO_PRIOR = 0.5, 0.75
"""Of the way to own rows, for ``auto`` without and with a prior: a shrunk model fits its own rows better by more than
it does others worse."""

MOST_AGENTS = 200
"""Agents that are computed with. Of more, this many stand for all, each with noise that is smaller by the
root of the share, so that the mean over agents has the noise of the plan."""

MOST_WEIGHTS, LEAST_AGENTS = 500_000, 10
"""Weights of all these agents together; it lowers their number where a model is wide, but not below ten."""

MOST_ENTRIES, MOST_POOLED = 200_000, 1_000_000
"""Numbers in the rows of all agents that are computed with; and where these are pooled."""

LEAST_ROWS = 50
"""Rows of every agent that are computed with, if it has as many."""


@dataclass(frozen=True)
class Value:
    """The forecast of a measure.

    ``luck`` is the standard deviation over noise and splits, ``sampling`` the standard error due to the
    number of distinct rows that it was tested on, ``spread`` the standard deviation of one run from both.
    ``paired`` is the standard error of the difference from a constant guess on the same rows, ``from_public`` that of
    the difference from the model of the public rows alone.
    """

    mean: float
    luck: float = 0.0
    sampling: float = 0.0
    paired: float = 0.0
    from_public: float = 0.0

    @property
    def spread(self) -> float:
        return math.hypot(self.luck, self.sampling)

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "spread": self.spread}


Values = Mapping[str, Value]
"""Forecasts by the name of the measure."""


@dataclass(frozen=True)
class Outlook:
    """Forecasts for a total ε and a number of rounds (``cells``), without noise, and of a constant prediction.

    ``alone`` is the model of the public rows alone. ``rarest`` is the number of rows of the rarest class that were
    tested on; None for numbers.
    """

    name: str
    cells: Mapping[tuple[float, int], Values]
    ceiling: Values
    baseline: Mapping[str, float]
    rows: int
    alone: Values | None = None
    rarest: int | None = None

    def at(self, epsilon: float, n_rounds: int) -> Values:
        """The forecast of one cell."""
        return self.cells[epsilon, n_rounds]

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "rows_of_rarest_class": self.rarest,
            "baseline": dict(self.baseline),
            "ceiling": _as_json(self.ceiling),
            "public_rows_alone": None if self.alone is None else _as_json(self.alone),
            "cells": [{"epsilon": e, "n_rounds": t, **_as_json(values)} for (e, t), values in self.cells.items()],
            "name": self.name,
        }


def _as_json(values: Values) -> dict[str, Any]:
    return {name: value.as_json() for name, value in values.items()}


@dataclass(frozen=True)
class ForecastGrid:
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
class PlannedNoise(Noise):
    """Seeded noise of agents that will have ``n_rows`` rows, however many are computed with."""

    normals: SimulatedNoise
    n_rows: Integers
    scale: float = 1.0

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.normals.draw(round, stream, shape)

    def price(self, release: AnyRelease) -> None:
        """None: it is the noise of other agents than those computed with."""

    def answer(self, asked: CohortQuery) -> Floats:
        scaled = replace(asked, noise_multiplier=self.scale * asked.noise_multiplier)
        return with_normals(scaled, self, self.n_rows)


@dataclass(frozen=True, eq=False)
class Scenario:
    """Stand-in rows, dealt into (training, test) pairs, one per repeat.

    ``priors`` are those of the training rows of every fold, for public rows, which ``train`` starts from as well.
    ``telling`` are columns of a public table that alone tell its label.
    """

    name: str
    folds: tuple[tuple[Pool, Pool], ...]
    priors: tuple[Prior, ...] = ()
    telling: tuple[LeakyColumn, ...] = ()

    @property
    def public(self) -> bool:
        return bool(self.priors)

    def prior(self, fold: int) -> Prior | None:
        """The start of a fold's runs; None for synthetic rows."""
        return self.priors[fold] if self.priors else None

    @property
    def tested(self) -> int:
        """How many different rows a forecast rests on."""
        return sum(len(test) for _, test in self.folds)

    @property
    def n_rows(self) -> int:
        """Rows of a fold, to train and to test on: of public rows, all."""
        return sum(map(len, self.folds[0]))


def public_scenario(study: Study, table: Path, *, repeats: int, seed: int) -> Scenario:
    """A public table, dealt into folds: each repeat is tested on rows that it was not trained on.

    With as many repeats as folds every public row is tested exactly once. All folds have about the same share of every
    class.
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
    _need_two_of_every_class(study.problem, encoded.labels)
    rng = np.random.default_rng(seed)
    pool = Pool(encoded.features, encoded.labels, encoded.row_weights).take(rng.permutation(n)[:MOST_PUBLIC])
    n_folds = max(LEAST_FOLDS, repeats)
    by_label = np.argsort(pool.labels, kind="stable")
    parts = [by_label[k::n_folds] for k in range(n_folds)]
    folds = [(pool.take(np.concatenate([*parts[:k], *parts[k + 1 :]])), pool.take(parts[k])) for k in range(repeats)]
    numbers = [each.name for each in study.schema.columns if isinstance(each, Number)]
    numbers += [study.label.column] if study.label.classes is None else []
    names = [each.name for each in study.schema.columns]
    telling = leaky_columns(table, names, study.label.column, numbers=numbers, n_rows=n)
    priors = tuple(prior_of(study.problem, _fitted_rows(train).rows()) for train, _ in folds)
    return Scenario("public rows", tuple(folds), priors, tuple(telling))


def _need_two_of_every_class(problem: Problem, labels: Floats) -> None:
    """Refuse public rows of which a fold could lack a class."""
    need_every_class(problem, labels)
    if problem.loss.task in ("binary", "multiclass") and np.unique(labels, return_counts=True)[1].min() < 2:
        raise DataError(
            "the public rows have only one row of a class, too few for a forecast: add rows, or use synthetic ones "
            "(--no-public)"
        )


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
            log_odds += scipy.optimize.brentq(lambda shift: float(expit(log_odds + shift).mean()) - share, -50.0, 50.0)
        return np.where(rng.random(len(scores)) < expit(log_odds), 1.0, -1.0)
    if isinstance(loss, Poisson):  # a twentieth of the largest count, by exposures between none and the largest
        exposures = rng.uniform(0.0, 1.0, len(scores)) if study.label is not None and study.label.exposure else 1.0
        means = exposures * np.exp(0.3 * spread * scores[:, 0]) * max(1.0, 0.05 / loss.unit)
        return coded(np.minimum(rng.poisson(means) * loss.unit, 1.0), exposures)
    reached = np.cumsum(softmax(spread * scores, axis=1), axis=1)
    codes = (rng.random((len(scores), 1)) > reached[:, :-1]).sum(axis=1)
    return np.asarray(codes, dtype=float)


def run(
    training: Training,
    problem: Problem,
    pool: Pool,
    sizes: Integers,
    *,
    seed: int,
    aborted_rounds: float = 0.0,
    prior: Prior | None = None,
) -> Result:
    """The run of agents of these sizes, were their rows like the pool's.

    ``auto`` uses nothing but the mean over all rows, whose noise is that of one agent with ``Σm/√n`` rows, or
    ``Σm/√(n/h)`` where secure aggregation relies on h honest agents.
    """
    rng, total = np.random.default_rng(seed), int(sizes.sum())
    if training.method.sums_only:
        chosen, scale = np.array([max(1, round(total * math.sqrt((training.min_honest_sites or 1) / len(sizes))))]), 1.0
        training = training.with_changes(aggregation="plain", min_honest_sites=None)
        counts = np.array([min(total, len(pool), max(LEAST_ROWS, int(MOST_POOLED / _entries(pool))))])
    else:
        chosen = stand_ins(sizes, pool.features.shape[1] * problem.loss.n_outputs)
        counts, scale = computed(chosen, pool), math.sqrt(len(chosen) / len(sizes))
    dealt = pool.take(resampled(len(pool), int(counts.sum()), rng))
    rows = dealt.rows(np.concatenate([[0], np.cumsum(counts)]))
    shape = (rows.n_features, problem.loss.n_outputs)
    noise = PlannedNoise(SimulatedNoise(seed, len(chosen), shape), chosen, scale)
    planned = PublicSizes(chosen, rows.n_features)
    aborts = RandomAborts(aborted_rounds, seed) if aborted_rounds else None
    return run_cohort(training, problem, rows, noise, sizes=planned, aborts=aborts, prior=prior)


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


def grid_of(study: Study, epsilon: float, *, epsilons: Sequence[float], rounds: Sequence[int]) -> ForecastGrid:
    """The grid with the study's own numbers in it; ``epsilon`` is the study's total."""
    own = (epsilon, study.training.planned_rounds)
    many = {e for e in epsilons if not math.isclose(e, epsilon, rel_tol=1e-3)}
    return ForecastGrid(tuple(sorted({epsilon, *many})), tuple(sorted({own[1], *rounds})), own)


def outlook(
    study: Study,
    scenario: Scenario,
    sizes: Integers,
    grid: ForecastGrid,
    *,
    seed: int,
    finished: Callable[[], None] = lambda: None,
) -> Outlook:
    """Run every cell of the grid on every fold; ``finished`` is called after each run."""
    made = {}
    for epsilon, rounds in grid.cells:
        budget = {"epsilon": epsilon, "round_epsilon": None, "noise_multiplier": None}
        settings = study.training.with_changes(**budget, n_rounds=rounds)
        made[epsilon, rounds] = reached(study, settings, scenario, sizes, seed=seed, finished=finished)
    optima, plain, guess = [], [], _guess(study, scenario)
    weak = Problem(study.problem.loss, L2(), WEAK)
    for k, (train, test) in enumerate(scenario.folds):
        optima.append(_on_both(study, train, test, _optimum(weak, train), guess))
        prior = scenario.prior(k)
        if prior is not None:
            plain.append(_on_both(study, train, test, prior.weights, guess))
        finished()
    labels = np.concatenate([test.labels for _, test in scenario.folds])
    constant = figures(study.problem.loss, labels, np.broadcast_to(guess, (len(labels), len(guess))), guess)
    return Outlook(
        scenario.name,
        made,
        ceiling=_values(study, scenario, optima, sizes, noise=False),
        baseline={name: _scaled(study, name, figure[0])[0] for name, figure in constant.items()},
        rows=scenario.tested,
        alone=_values(study, scenario, plain, sizes, noise=False, from_prior=1.0) if plain else None,
        rarest=_rarest(study, labels),
    )


def _rarest(study: Study, labels: Floats) -> int | None:
    """Rows of the rarest class; None for numbers."""
    if study.problem.loss.task not in ("binary", "multiclass"):
        return None
    return int(np.unique(labels, return_counts=True)[1].min())


def reached(
    study: Study,
    training: Training,
    scenario: Scenario,
    sizes: Integers,
    *,
    seed: int,
    aborted_rounds: float = 0.0,
    finished: Callable[[], None] = lambda: None,
) -> Values:
    """What these settings reach on the folds of a scenario; ``finished`` is called after each of them."""
    found, guess, from_prior = [], _guess(study, scenario), 0.0
    for k, (train, test) in enumerate(scenario.folds):
        prior = scenario.prior(k)
        ran = partial(run, training, study.problem, train, sizes, seed=seed + k, aborted_rounds=aborted_rounds)
        weights = ran(prior=prior).weights
        if prior is not None and k == 0:
            other = scenario.priors[1]
            changed = ran(prior=replace(prior, weights=other.weights)).weights
            from_prior = prior_weight(train, changed - weights, other.weights - prior.weights)
        found.append(_on_both(study, train, test, weights, guess, None if prior is None else prior.weights))
        finished()
    return _values(study, scenario, found, sizes, from_prior=from_prior)


def prior_weight(pool: Pool, moved: Floats, change: Floats) -> float:
    """The weight of a prior in a model, from 0 to 1: how far a change of its weights moves the model's predictions."""
    scores, wanted = (np.asarray(pool.features @ each, dtype=float) for each in (moved, change))
    size = float(np.sum(np.square(wanted)))
    return min(max(float(np.sum(scores * wanted)) / size, 0.0), 1.0) if size else 1.0


def n_runs(scenarios: Sequence[Scenario], grid: ForecastGrid, more: int = 0) -> int:
    """How often ``finished`` will be called, with so many settings beside the grid's."""
    return sum(len(each.folds) for each in scenarios) * (len(grid.cells) + 1 + more)


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


def _on_both(
    study: Study, train: Pool, test: Pool, weights: Floats, guess: Floats, public: Floats | None = None
) -> tuple[Figures, Figures]:
    """On the rows tested on, and on those trained on; ``public`` are the weights of the public model."""

    def of(pool: Pool) -> Figures:
        scores, others = (
            None if each is None else np.asarray(pool.features @ each, dtype=float) for each in (weights, public)
        )
        assert scores is not None
        return figures(study.problem.loss, pool.labels, scores, guess, others)

    return of(test), of(train)


def _fitted_rows(train: Pool) -> Pool:
    """The rows that models without noise are fitted on: all, or the first of very many."""
    return train.take(np.arange(min(len(train), max(LEAST_ROWS, int(MOST_POOLED / _entries(train))))))


def _optimum(problem: Problem, train: Pool) -> Floats:
    """A model without noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a forecast needs no ten digits
        return minimizer(problem, _fitted_rows(train).rows())


def _values(
    study: Study,
    scenario: Scenario,
    found: Sequence[tuple[Figures, Figures]],
    sizes: Integers,
    *,
    noise: bool = True,
    from_prior: float = 0.0,
) -> Values:
    """From the measure on other rows towards that on own ones, as far as :func:`way_to_own_rows` says."""
    tested = np.array([len(pool) for _, pool in scenario.folds])
    trained = np.array([len(pool) for pool, _ in scenario.folds])
    out = {}
    for name in found[0][0]:
        on_test, on_train = (np.array([both[k][name] for both in found]) for k in (0, 1))
        test, train = on_test[:, 0], on_train[:, 0]
        shares = int(trained[0]) / scenario.n_rows, min(1.0, int(trained[0]) / int(sizes.sum()))
        way = way_to_own_rows(study, name, int(trained[0]), shares, from_prior)
        if noise and study.training.method.sums_only:
            way *= SHRUNK_TO_PRIOR if scenario.public else SHRUNK
        # On all rows of a scenario the folds differ by their noise, hardly by who was tested
        luck = float(deviation((test * tested + train * trained) / (tested + trained))) if noise else 0.0
        sampling, paired, from_public = np.sqrt(on_test[:, 1:].mean(axis=0) / len(found)).tolist()
        mean, slope = _scaled(study, name, float(test.mean() - way * (test.mean() - train.mean())))
        out[name] = Value(mean, *(slope * each for each in (luck, sampling, paired, from_public)))
    return out


def _scaled(study: Study, name: str, mean: float) -> tuple[float, float]:
    """A measure from its mean over rows, and the slope of that; errors of numbers are in the label's units."""
    if name != "rmse":
        return mean, 1.0
    low, high = (study.label and study.label.bounds) or (-1.0, 1.0)
    unit, root = (high - low) / 2.0, math.sqrt(max(mean, 0.0))
    return unit * root, unit / (2.0 * root) if root else 0.0


def way_to_own_rows(
    study: Study, measure: str, n_rows: int, shares: tuple[float, float], from_prior: float = 0.0
) -> float:
    """``½·(1 − a²·s − (1 − a)²·t)``, and divided by ``1 + weights/rows`` for what has a limit on other rows.

    A prior of weight a has the squared error of the public rows, of which the share s was trained on, and the rest that
    of the planned rows, for which these rows stand with the share t. In 300 trials on tables of 60 to 1,500 rows the
    divisor took away most of what was too hopeful on 200 rows and fewer, and changed nothing from 500 rows on
    (docs/decisions/0010-forecasts.md).
    """
    way = 0.5 * (1.0 - from_prior**2 * shares[0] - (1.0 - from_prior) ** 2 * shares[1])
    if measure in ("rmse", "log_loss", "deviance"):
        return way
    d, p = study.shape
    return way / (1.0 + d * max(1, p - 1) / n_rows)
