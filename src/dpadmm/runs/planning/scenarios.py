"""Rows to forecast with: of a public table, each tested once; or made up from the schema alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.special import expit, softmax

from dpadmm._base.arrays import Features, Floats, Integers
from dpadmm._base.errors import DataError, StudyError
from dpadmm.data.encoded import encode_table
from dpadmm.data.encoder import Encoder
from dpadmm.data.leakage import LeakyColumn, leaky_columns
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal
from dpadmm.optim.features import clip_rows, with_intercept
from dpadmm.runs.planning.trial import Pool
from dpadmm.study.study import Study

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
"""Standard deviation of made-up numbers, where the label's bounds are −1 and 1."""


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
    encoded = encode_table(table, study.schema, study.label, intercept=study.settings.intercept)
    n = len(encoded.labels)
    if n < LEAST_PUBLIC:
        raise DataError(
            f"{table} has {n} rows, too few for a forecast; it needs at least {LEAST_PUBLIC} "
            "(without --public, made-up rows are used)"
        )
    rng = np.random.default_rng(seed)
    pool = Pool(encoded.features, encoded.labels).take(rng.permutation(n)[:MOST_PUBLIC])
    parts = np.array_split(np.arange(len(pool)), max(LEAST_FOLDS, repeats))
    folds = [
        (pool.take(np.concatenate([*parts[:k], *parts[k + 1 :]])), pool.take(parts[k]))
        for k in range(repeats)
    ]
    numbers = [each.name for each in study.schema.columns if isinstance(each, Number)]
    numbers += [study.label.column] if study.label.classes is None else []
    names = [each.name for each in study.schema.columns]
    telling = leaky_columns(table, names, study.label.column, numbers=numbers, n_rows=n)
    return Scenario("public rows", tuple(folds), sum(len(test) for _, test in folds), tuple(telling))


def synthetic_scenarios(study: Study, n_rows: int, *, repeats: int, seed: int) -> list[Scenario]:
    """Made-up rows at three assumed strengths of signal; every repeat has its own rows and true model."""
    out = []
    n_train = max(2, min(n_rows, SYNTHETIC_TRAIN))
    for name in STRENGTHS:
        folds = []
        for k in range(repeats):
            rng = np.random.default_rng([seed, k])  # the same rows at every strength
            features = made_up_features(study, n_train + SYNTHETIC_TEST, rng)
            pool = Pool(features, made_up_labels(study, features, name, rng))
            folds.append((pool.take(np.arange(n_train)), pool.take(np.arange(n_train, len(pool)))))
        out.append(Scenario(f"{name} signal", tuple(folds), SYNTHETIC_TEST * repeats))
    return out


def made_up_features(study: Study, n: int, rng: np.random.Generator) -> Features:
    """Rows by the schema: numbers uniform within their bounds, all values of a category equally frequent."""
    if study.schema is None:
        plain = rng.standard_normal((n, len(study.features))) / np.sqrt(len(study.features))
        features = clip_rows(plain.astype(np.float32))
        return with_intercept(features) if study.settings.intercept else features
    cells = {column.name: _cells(column, n, rng) for column in study.schema.columns}
    return Encoder(study.schema, intercept=study.settings.intercept).encode(pa.record_batch(cells))


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


def made_up_labels(study: Study, features: Features, strength: str, rng: np.random.Generator) -> Floats:
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
