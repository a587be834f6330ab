"""Forecast of a study over a grid of ε and rounds, from runs on the rows of a scenario.

Noise and step sizes are those of the planned agents. Only the number of simulated rows may be smaller: an agent's noise
is ``z·2c1/m`` with the planned m, so a run on fewer rows has the same noise.

Models are tested on rows that they were not trained on. If there are fewer distinct rows than planned, a model
overfits them: it is too good on its own rows and too bad on others. To first order in 1/rows both errors are equal, so
the forecast is half-way between the two results, see :func:`optimism_correction`.

With public rows, every run starts from a prior of the training rows of its fold. These rows also stand for the private
ones, and the test rows are in neither. The prior's contribution has the error of the public rows, however many private
rows there are, so its weight in the model is measured (:func:`prior_weight`).

Context: docs/decisions/0010-forecasts.md.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpadmm.accounting.events import AnyRelease
from dpadmm.engine.loop import RandomAborts
from dpadmm.engine.metrics import spread as deviation
from dpadmm.engine.minimizer import minimizer
from dpadmm.engine.noise import CohortQuery, Noise, SimulatedNoise, with_normals
from dpadmm.errors import ConvergenceWarning
from dpadmm.losses import Poisson
from dpadmm.losses.poisson import decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.prior import Prior
from dpadmm.models.run import Result
from dpadmm.models.run import run as run_cohort
from dpadmm.planning.measures import Figures, figures
from dpadmm.planning.scenarios import MAX_ENTRIES, MAX_POOLED_ENTRIES, MIN_ROWS, Pool, Scenario
from dpadmm.queries.problem import Problem, PublicSizes
from dpadmm.regularizers import L2
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study

WEAK_PENALTY = 1e-6
"""Weight of the L2 penalty of models without noise."""

CORRECTION_SHRUNK, CORRECTION_WITH_PRIOR = 0.5, 0.75
"""Factors of the correction for ``pgd``, without and with a prior: a shrunk model overfits less."""

MAX_AGENTS = 200
"""Maximum number of simulated agents. If there are more, these stand for all, with noise that is smaller by the root
of the share, so that the mean over agents has the planned noise."""

MAX_WEIGHTS, MIN_AGENTS = 500_000, 10
"""Maximum number of weights of all agents together. Wide models are simulated with fewer agents, but at least ten."""


@dataclass(frozen=True)
class Value:
    """Forecast of a measure.

    Attributes
    ----------
    mean : float
        The forecast.
    std : float
        Standard deviation over noise and splits.
    std_error : float
        Standard error from the number of distinct test rows.
    std_error_vs_constant, std_error_vs_public : float
        Standard errors of the differences from a constant prediction, and from the model of the public rows alone.
    """

    mean: float
    std: float = 0.0
    std_error: float = 0.0
    std_error_vs_constant: float = 0.0
    std_error_vs_public: float = 0.0

    @property
    def spread(self) -> float:
        """Standard deviation of the measured result of a single run."""
        return math.hypot(self.std, self.std_error)

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "spread": self.spread}


Values = Mapping[str, Value]
"""Forecasts by the name of the measure."""


@dataclass(frozen=True)
class ScenarioForecast:
    """Forecast in one scenario.

    Attributes
    ----------
    cells : mapping
        Forecasts by total ε and number of rounds.
    without_noise : mapping
        Forecasts of a model without noise.
    constant : mapping
        Measures of the best constant prediction.
    n_rows : int
        Number of distinct test rows.
    public_model : mapping, optional
        Forecasts of the model from public rows alone.
    n_rarest_class : int, optional
        Number of test rows of the rarest class.
    """

    name: str
    cells: Mapping[tuple[float, int], Values]
    without_noise: Values
    constant: Mapping[str, float]
    n_rows: int
    public_model: Values | None = None
    n_rarest_class: int | None = None

    def at(self, epsilon: float, n_rounds: int) -> Values:
        """Return the forecast for a total ε and a number of rounds."""
        return self.cells[epsilon, n_rounds]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "name": self.name,
            "n_rows": self.n_rows,
            "n_rarest_class": self.n_rarest_class,
            "constant": dict(self.constant),
            "without_noise": values_to_dict(self.without_noise),
            "public_model": None if self.public_model is None else values_to_dict(self.public_model),
            "cells": [{"epsilon": e, "n_rounds": t, **values_to_dict(values)} for (e, t), values in self.cells.items()],
        }


def values_to_dict(values: Values) -> dict[str, dict[str, float]]:
    """Return the forecasts by measure as JSON values."""
    return {name: value.to_dict() for name, value in values.items()}


@dataclass(frozen=True)
class ForecastGrid:
    """Values of total ε and numbers of rounds, including the study's ``own``."""

    epsilons: tuple[float, ...]
    rounds: tuple[int, ...]
    own: tuple[float, int]

    @property
    def cells(self) -> list[tuple[float, int]]:
        return [(epsilon, rounds) for epsilon in self.epsilons for rounds in self.rounds]


@dataclass(frozen=True)
class PlannedNoise(Noise):
    """Seeded noise of agents with the planned ``n_rows``, whatever the number of simulated rows."""

    normals: SimulatedNoise
    n_rows: Integers
    scale: float = 1.0

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.normals.draw(round, stream, shape)

    def price(self, release: AnyRelease) -> None:
        """Record nothing: the simulated agents have no ledger."""

    def answer(self, asked: CohortQuery) -> Floats:
        scaled = replace(asked, noise_multiplier=self.scale * asked.noise_multiplier)
        return with_normals(scaled, self, self.n_rows)


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
    """Run the settings for agents of these sizes on rows of the pool.

    Some methods need only the mean over all rows, so one agent is simulated: its noise is that of ``Σm/√n`` rows, or of
    ``Σm/√(n/h)`` rows with secure aggregation and h honest agents.
    """
    rng, total = np.random.default_rng(seed), int(sizes.sum())
    if training.method.sums_only:
        simulated, scale = (
            np.array([max(1, round(total * math.sqrt((training.min_honest_sites or 1) / len(sizes))))]),
            1.0,
        )
        training = training.with_changes(aggregation="plain", min_honest_sites=None)
        counts = np.array([min(total, len(pool), max(MIN_ROWS, int(MAX_POOLED_ENTRIES / pool.entries)))])
    else:
        simulated = representative_sizes(sizes, pool.features.shape[1] * problem.loss.n_outputs)
        counts, scale = simulated_sizes(simulated, pool), math.sqrt(len(simulated) / len(sizes))
    sampled = pool.take(resampled(len(pool), int(counts.sum()), rng))
    rows = sampled.rows(np.concatenate([[0], np.cumsum(counts)]))
    shape = (rows.n_features, problem.loss.n_outputs)
    noise = PlannedNoise(SimulatedNoise(seed, len(simulated), shape), simulated, scale)
    planned = PublicSizes(simulated, rows.n_features)
    aborts = RandomAborts(aborted_rounds, seed) if aborted_rounds else None
    return run_cohort(training, problem, rows, noise, sizes=planned, aborts=aborts, prior=prior)


def representative_sizes(sizes: Integers, n_weights: int = 1) -> Integers:
    """Return the sizes of the simulated agents: all, or evenly spaced quantiles.

    Examples
    --------
    >>> representative_sizes(np.array([30, 10, 20])).tolist(), len(representative_sizes(np.full(1000, 5)))
    ([30, 10, 20], 200)
    >>> len(representative_sizes(np.full(1000, 5), n_weights=20_000))
    25
    """
    limit = min(MAX_AGENTS, max(MIN_AGENTS, MAX_WEIGHTS // n_weights))
    if len(sizes) <= limit:
        return sizes
    places = (np.arange(limit) + 0.5) * len(sizes) / limit
    return np.asarray(np.sort(sizes)[places.astype(np.intp)])


def simulated_sizes(sizes: Integers, pool: Pool) -> Integers:
    """Return the number of simulated rows per agent: all, or the same share of each within the limit."""
    share = min(1.0, MAX_ENTRIES / (float(sizes.sum()) * pool.entries))
    wanted = np.maximum(np.ceil(sizes * share).astype(np.int64), MIN_ROWS)
    return np.asarray(np.minimum(sizes, wanted))


def resampled(n_pool: int, n_rows: int, rng: np.random.Generator) -> Integers:
    """Return ``n_rows`` indices of a pool in random order. Frequencies differ by at most one.

    Sampling with replacement would add variance that the planned rows do not have.

    Examples
    --------
    >>> np.bincount(resampled(3, 7, np.random.default_rng(0))).tolist()
    [2, 2, 3]
    """
    rounds = -(-n_rows // n_pool)
    return np.concatenate([rng.permutation(n_pool) for _ in range(rounds)])[:n_rows]


def grid_of(study: Study, epsilon: float, *, epsilons: Sequence[float], rounds: Sequence[int]) -> ForecastGrid:
    """Return the grid, including the study's total ``epsilon`` and rounds."""
    own = (epsilon, study.training.planned_rounds)
    others = {e for e in epsilons if not math.isclose(e, epsilon, rel_tol=1e-3)}
    return ForecastGrid(tuple(sorted({epsilon, *others})), tuple(sorted({own[1], *rounds})), own)


def forecast_scenario(
    study: Study,
    scenario: Scenario,
    sizes: Integers,
    grid: ForecastGrid,
    *,
    seed: int,
    finished: Callable[[], None] = lambda: None,
) -> ScenarioForecast:
    """Forecast every cell of the grid. ``finished`` is called after each run."""
    cells = {}
    for epsilon, rounds in grid.cells:
        budget = {"epsilon": epsilon, "round_epsilon": None, "noise_multiplier": None}
        settings = study.training.with_changes(**budget, n_rounds=rounds)
        cells[epsilon, rounds] = forecast_settings(study, settings, scenario, sizes, seed=seed, finished=finished)
    optima, plain, constant = [], [], _constant_scores(study, scenario)
    weak = Problem(study.problem.loss, L2(), WEAK_PENALTY)
    for k, (train, test) in enumerate(scenario.folds):
        optima.append(_evaluate(study, train, test, _optimum(weak, train), constant))
        prior = scenario.prior(k)
        if prior is not None:
            plain.append(_evaluate(study, train, test, prior.weights, constant))
        finished()
    labels = np.concatenate([test.labels for _, test in scenario.folds])
    scores = np.broadcast_to(constant, (len(labels), len(constant)))
    baseline = figures(study.problem.loss, labels, scores, constant)
    return ScenarioForecast(
        scenario.name,
        cells,
        without_noise=_values(study, scenario, optima, sizes, noise=False),
        constant={name: _in_label_units(study, name, figure[0])[0] for name, figure in baseline.items()},
        n_rows=scenario.n_tested,
        public_model=_values(study, scenario, plain, sizes, noise=False, from_prior=1.0) if plain else None,
        n_rarest_class=_n_rarest_class(study, labels),
    )


def _n_rarest_class(study: Study, labels: Floats) -> int | None:
    """Return the number of rows of the rarest class; None for numbers."""
    if study.problem.loss.task not in ("binary", "multiclass"):
        return None
    return int(np.unique(labels, return_counts=True)[1].min())


def forecast_settings(
    study: Study,
    training: Training,
    scenario: Scenario,
    sizes: Integers,
    *,
    seed: int,
    aborted_rounds: float = 0.0,
    finished: Callable[[], None] = lambda: None,
) -> Values:
    """Forecast these settings in a scenario. ``finished`` is called after each fold."""
    results, constant, from_prior = [], _constant_scores(study, scenario), 0.0
    for k, (train, test) in enumerate(scenario.folds):
        prior = scenario.prior(k)
        run_fold = partial(run, training, study.problem, train, sizes, seed=seed + k, aborted_rounds=aborted_rounds)
        weights = run_fold(prior=prior).weights
        if prior is not None and k == 0:
            other = scenario.priors[1]
            changed = run_fold(prior=replace(prior, weights=other.weights)).weights
            from_prior = prior_weight(train, changed - weights, other.weights - prior.weights)
        public = None if prior is None else prior.weights
        results.append(_evaluate(study, train, test, weights, constant, public))
        finished()
    return _values(study, scenario, results, sizes, from_prior=from_prior)


def prior_weight(pool: Pool, model_change: Floats, prior_change: Floats) -> float:
    """Return the weight of a prior in a model, 0 to 1: the change of its predictions per change of the prior's."""
    scores, expected = (np.asarray(pool.features @ each, dtype=float) for each in (model_change, prior_change))
    size = float(np.sum(np.square(expected)))
    return min(max(float(np.sum(scores * expected)) / size, 0.0), 1.0) if size else 1.0


def n_runs(scenarios: Sequence[Scenario], grid: ForecastGrid, more: int = 0) -> int:
    """Return the number of calls of ``finished``, with ``more`` settings in addition to the grid."""
    return sum(len(each.folds) for each in scenarios) * (len(grid.cells) + 1 + more)


def _constant_scores(study: Study, scenario: Scenario) -> Floats:
    """Return the scores (p,) of the best constant prediction: class frequencies, or the mean."""
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


def _evaluate(
    study: Study, train: Pool, test: Pool, weights: Floats, constant: Floats, public: Floats | None = None
) -> tuple[Figures, Figures]:
    """Return the measures on test and training rows. ``public`` are the weights of the public model."""

    def measure(pool: Pool) -> Figures:
        scores, others = (
            None if each is None else np.asarray(pool.features @ each, dtype=float) for each in (weights, public)
        )
        assert scores is not None
        return figures(study.problem.loss, pool.labels, scores, constant, others)

    return measure(test), measure(train)


def _optimum(problem: Problem, train: Pool) -> Floats:
    """Fit a model without noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a forecast needs no ten digits
        return minimizer(problem, train.fitted().rows())


def _values(
    study: Study,
    scenario: Scenario,
    results: Sequence[tuple[Figures, Figures]],
    sizes: Integers,
    *,
    noise: bool = True,
    from_prior: float = 0.0,
) -> Values:
    """Return the forecasts from the measures on test and training rows, with :func:`optimism_correction`."""
    tested = np.array([len(pool) for _, pool in scenario.folds])
    trained = np.array([len(pool) for pool, _ in scenario.folds])
    values = {}
    for name in results[0][0]:
        on_test, on_train = (np.array([both[k][name] for both in results]) for k in (0, 1))
        test, train = on_test[:, 0], on_train[:, 0]
        shares = int(trained[0]) / scenario.n_rows, min(1.0, int(trained[0]) / int(sizes.sum()))
        way = optimism_correction(study, name, int(trained[0]), shares, from_prior)
        if noise and study.training.method.sums_only:
            way *= CORRECTION_WITH_PRIOR if scenario.has_public_rows else CORRECTION_SHRUNK
        # On all rows of a scenario, folds differ by their noise and hardly by the test rows
        std = float(deviation((test * tested + train * trained) / (tested + trained))) if noise else 0.0
        std_error, std_error_vs_constant, std_error_vs_public = np.sqrt(
            on_test[:, 1:].mean(axis=0) / len(results)
        ).tolist()
        mean, slope = _in_label_units(study, name, float(test.mean() - way * (test.mean() - train.mean())))
        values[name] = Value(
            mean, *(slope * each for each in (std, std_error, std_error_vs_constant, std_error_vs_public))
        )
    return values


def _in_label_units(study: Study, name: str, mean: float) -> tuple[float, float]:
    """Return a measure from its mean over rows, with its derivative. RMSE is in the units of the label."""
    if name != "rmse":
        return mean, 1.0
    low, high = (study.label and study.label.bounds) or (-1.0, 1.0)
    unit, root = (high - low) / 2.0, math.sqrt(max(mean, 0.0))
    return unit * root, unit / (2.0 * root) if root else 0.0


def optimism_correction(
    study: Study, measure: str, n_rows: int, shares: tuple[float, float], from_prior: float = 0.0
) -> float:
    """Return the weight of the training rows in the forecast: ``½·(1 − a²·s − (1 − a)²·t)``.

    a is the weight of the prior, s the share of the public rows that were trained on, and t the share of the planned
    rows that these rows are. Bounded measures such as accuracy divide it by ``1 + weights/rows``, since test results
    are bounded from below by a constant prediction.
    """
    way = 0.5 * (1.0 - from_prior**2 * shares[0] - (1.0 - from_prior) ** 2 * shares[1])
    if measure in ("rmse", "log_loss", "deviance"):
        return way
    d, p = study.shape
    return way / (1.0 + d * max(1, p - 1) / n_rows)
