"""Scenarios of a forecast: rows that stand for the private ones, in folds for training and testing.

They are the rows of a public table, or synthetic rows generated from the schema with three strengths of signal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import scipy  # submodules load on first use
from scipy.special import expit, softmax

from dpadmm.data.encoder import Encoder, Tally
from dpadmm.data.labels import LabelColumns
from dpadmm.data.leakage import LeakyColumn, leaky_columns, sample_cells
from dpadmm.data.reader import Table, open_table
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import Poisson
from dpadmm.losses.poisson import coded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.matrices.features import Features, row_entries
from dpadmm.methods.prior import Prior, need_every_class, prior_of
from dpadmm.models.description import ColumnSummary, Description
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.studies.study import Study

MIN_FOLDS = 3
MIN_FORECAST_ROWS = 30
"""Minimum number of public rows for a forecast."""

MAX_PUBLIC_ROWS = 20_000
"""Maximum number of public rows that are used. A larger table is sampled."""

SYNTHETIC_TEST = 4_000
SYNTHETIC_TRAIN = 10_000

STRENGTHS = {"weak": (0.564, 0.1), "medium": (1.396, 0.4), "strong": (4.086, 0.8)}
"""Assumed signal: standard deviation of the logit (an AUC of 0.65, 0.80 and 0.95 for two classes), and for numbers the
explained share of the label's variance."""

LABEL_SPREAD = 0.4
"""Standard deviation of synthetic numeric labels, whose bounds are −1 and 1."""

MAX_ENTRIES, MAX_POOLED_ENTRIES = 200_000, 1_000_000
"""Maximum number of values in the simulated rows of all agents; and if the rows are pooled."""

MIN_ROWS = 50
"""Minimum number of simulated rows per agent, if it has as many."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Encoded rows with a norm of at most 1, their labels, and their weights if there are any."""

    features: Features
    labels: Floats
    row_weights: Floats | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Integers) -> Pool:
        """Return these rows; an index may occur several times."""
        weights = None if self.row_weights is None else self.row_weights[index]
        return Pool(self.features[index], self.labels[index], weights)

    def rows(self, offsets: Integers | None = None) -> Rows:
        """Return the rows of a cohort; without offsets, of one agent."""
        return make_rows(self.features, self.labels, offsets=offsets, row_weights=self.row_weights)

    @property
    def entries(self) -> float:
        """Mean number of values per row."""
        return max(1.0, float(row_entries(self.features).mean()))

    def fitted(self) -> Pool:
        """Return the rows to which models without noise are fitted: all, or the first of very many."""
        return self.take(np.arange(min(len(self), max(MIN_ROWS, int(MAX_POOLED_ENTRIES / self.entries)))))


@dataclass(frozen=True, eq=False)
class Scenario:
    """Rows in pairs for training and testing, one pair per repeat.

    ``priors`` are those of the training rows of every fold of public rows. ``leaky_columns`` are columns of a public
    table that predict its label almost perfectly.
    """

    name: str
    folds: tuple[tuple[Pool, Pool], ...]
    priors: tuple[Prior, ...] = ()
    leaky_columns: tuple[LeakyColumn, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings about the columns of a public table."""

    @property
    def has_public_rows(self) -> bool:
        return bool(self.priors)

    def prior(self, fold: int) -> Prior | None:
        """Return the prior of a fold; None for synthetic rows."""
        return self.priors[fold] if self.priors else None

    @property
    def n_tested(self) -> int:
        """Number of distinct rows that are tested on."""
        return sum(len(test) for _, test in self.folds)

    @property
    def n_rows(self) -> int:
        """Number of training and test rows of a fold."""
        return sum(map(len, self.folds[0]))


def public_scenario(study: Study, table: Table, *, repeats: int, seed: int) -> Scenario:
    """Return the rows of a public table in folds: no repeat is tested on its training rows.

    With as many repeats as folds, every public row is tested once. Classes have similar shares in all folds.
    """
    if study.schema is None or study.label is None:
        raise StudyError(
            "a forecast from a public table requires a study with [columns] and [label]; without --public, synthetic "
            "rows are used"
        )
    encoded = encode_table(table, study.schema, study.label, intercept=study.training.intercept).labelled()
    n = len(encoded.labels)
    if n < MIN_FORECAST_ROWS:
        raise DataError(
            f"{open_table(table).location} has {n} rows, too few for a forecast; it needs at least {MIN_FORECAST_ROWS} "
            "(use --no-public for synthetic rows)"
        )
    _need_two_of_every_class(study.problem, encoded.labels)
    rng = np.random.default_rng(seed)
    pool = Pool(encoded.features, encoded.labels, encoded.row_weights).take(rng.permutation(n)[:MAX_PUBLIC_ROWS])
    n_folds = max(MIN_FOLDS, repeats)
    by_label = np.argsort(pool.labels, kind="stable")
    parts = [by_label[k::n_folds] for k in range(n_folds)]
    folds = [(pool.take(np.concatenate([*parts[:k], *parts[k + 1 :]])), pool.take(parts[k])) for k in range(repeats)]
    numbers = [each.name for each in study.schema.columns if isinstance(each, Number)]
    numbers += [study.label.column] if study.label.classes is None else []
    names = [each.name for each in study.schema.columns]
    cells = sample_cells(table, [*names, study.label.column], numbers=numbers, n_rows=n)
    leaky = leaky_columns(cells, names, study.label.column, numbers=numbers)
    priors = tuple(prior_of(study.problem, train.fitted().rows()) for train, _ in folds)
    return Scenario("public rows", tuple(folds), priors, tuple(leaky), tuple(encoded.report.nearly_constant()))


def _need_two_of_every_class(problem: Problem, labels: Floats) -> None:
    """Raise DataError if a fold of the public rows could lack a class."""
    need_every_class(problem, labels)
    if problem.loss.task in ("binary", "multiclass") and np.unique(labels, return_counts=True)[1].min() < 2:
        raise DataError(
            "the public rows have only one row of a class, too few for a forecast: add rows, or use synthetic ones "
            "(--no-public)"
        )


def synthetic_scenarios(
    study: Study, n_rows: int, *, repeats: int, seed: int, statistics: Description | None = None
) -> list[Scenario]:
    """Return synthetic rows with three strengths of signal. Every repeat has its own rows and true model.

    The cells of columns in the private ``statistics`` are drawn from the released counts.
    """
    scenarios = []
    n_train = max(2, min(n_rows, SYNTHETIC_TRAIN))
    for name in STRENGTHS:
        folds = []
        for k in range(repeats):
            rng = np.random.default_rng([seed, k])  # the same rows at every strength
            features = synthetic_features(study, n_train + SYNTHETIC_TEST, rng, statistics)
            labels = synthetic_labels(study, features, name, rng, statistics)
            pool = Pool(features, labels, _synthetic_weights(study, labels, rng))
            folds.append((pool.take(np.arange(n_train)), pool.take(np.arange(n_train, len(pool)))))
        scenarios.append(Scenario(f"{name} signal", tuple(folds)))
    return scenarios


def synthetic_features(
    study: Study, n: int, rng: np.random.Generator, statistics: Description | None = None
) -> Features:
    """Return encoded rows: from the statistics, or uniform numbers and equally frequent categories."""
    if study.schema is None:
        plain = rng.standard_normal((n, len(study.features))) / np.sqrt(len(study.features))
        features = clip_rows(plain.astype(np.float32))
        return with_intercept(features) if study.training.intercept else features
    summaries = statistics.columns if statistics else {}
    cells = {
        column.name: _cells_from_counts(summaries[column.name], n, rng)
        if column.name in summaries
        else _cells(column, n, rng)
        for column in study.schema.columns
    }
    return Encoder(study.schema, intercept=study.training.intercept).encode(pa.record_batch(cells))


def _cells_from_counts(summary: ColumnSummary, n: int, rng: np.random.Generator) -> pa.Array:
    """Draw cells from the released counts of a column; numbers are uniform within their bins."""
    places = rng.choice(len(summary.counts), size=n, p=summary.counts / summary.counts.sum())
    missing = places == len(summary.counts) - 1
    if summary.bins.edges:
        edges = np.array([*summary.bins.edges, summary.bins.edges[-1]])
        return pa.array(rng.uniform(edges[places], edges[np.minimum(places + 1, len(edges) - 1)]), mask=missing)
    return pa.array(np.array(summary.bins.labels, dtype=object)[places], pa.string(), mask=missing)


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
    """Return row weights: those of the classes, and uniform ones for a weight column."""
    label = study.label
    if label is None or not label.weighted:
        return None
    cells = None if label.weight_bound is None else pa.array(rng.uniform(0.0, label.weight_bound, len(labels)))
    return LabelColumns(label).weights(cells, labels, Tally())[0]


def synthetic_labels(
    study: Study, features: Features, strength: str, rng: np.random.Generator, statistics: Description | None = None
) -> Floats:
    """Return labels of a random linear model. Statistics set the share of the second class (default: half)."""
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
        if statistics is not None and study.label is not None and study.label.column in statistics.columns:
            no, yes = statistics.columns[study.label.column].counts[:2]
            share = float(np.clip(yes / max(no + yes, 1.0), 0.005, 0.995))
            log_odds += scipy.optimize.brentq(lambda shift: float(expit(log_odds + shift).mean()) - share, -50.0, 50.0)
        return np.where(rng.random(len(scores)) < expit(log_odds), 1.0, -1.0)
    if isinstance(loss, Poisson):  # means of about a twentieth of the largest count
        exposures = rng.uniform(0.0, 1.0, len(scores)) if study.label is not None and study.label.exposure else 1.0
        means = exposures * np.exp(0.3 * spread * scores[:, 0]) * max(1.0, 0.05 / loss.unit)
        return coded(np.minimum(rng.poisson(means) * loss.unit, 1.0), exposures)
    cumulative = np.cumsum(softmax(spread * scores, axis=1), axis=1)
    codes = (rng.random((len(scores), 1)) > cumulative[:, :-1]).sum(axis=1)
    return np.asarray(codes, dtype=float)
