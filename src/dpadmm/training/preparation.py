"""From whatever holds data to rows dealt to agents: everything before privacy and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm import data as sources
from dpadmm.data import Dataset, Partition
from dpadmm.engine.metrics import TestRows
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import Loss
from dpadmm.losses.poisson import STEPS
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import as_matrix, clip_rows, with_intercept
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.studies.settings import Settings

DataSource = Dataset | str | tuple[Any, Any]

LEAST_COUNT = 1e-6 * STEPS
"""Labels of counts that are no smaller share of the largest one than a millionth."""


@dataclass(frozen=True)
class PreparedData:
    """Rows dealt to agents, test rows, and the problem: everything before privacy and training."""

    dataset: Dataset
    problem: Problem
    rows: Rows
    test: TestRows | None
    names: Sequence[str] = ()


def as_dataset(
    data: DataSource,
    settings: Settings,
    *,
    classes: Sequence[Any] | None = None,
    groups: ArrayLike | None = None,
) -> Dataset:
    """Turn whatever names or holds data into a :class:`Dataset` for the loss of these settings."""
    task = settings.loss.task
    if isinstance(data, str):
        if data == "adult":
            dataset = sources.load_adult()
        elif data == "synthetic":
            dataset = sources.synthetic(task, seed=0)
        else:
            raise DataError(f"there is no data set {data!r}; known are adult and synthetic (or give a Dataset)")
    elif isinstance(data, Dataset):
        dataset = data
    else:
        features, values = data
        labels = sources.encode_labels(np.asarray(values), task=task, classes=classes)
        names = tuple(classes) if classes is not None else ((-1, 1) if task == "binary" else None)
        dataset = Dataset("arrays", as_matrix(features), labels, names)
    if groups is not None:
        owners = np.asarray(groups)
        if owners.shape != dataset.labels.shape:
            raise DataError(f"groups have shape {owners.shape}, but there are {len(dataset.labels)} rows")
        if settings.partition != "groups":
            raise StudyError(f"groups say who owns a row, but partition is {settings.partition!r}; drop one of them")
        dataset = replace(dataset, groups=owners)
    _check_task(dataset, settings.loss)
    return dataset


def prepare(dataset: Dataset, settings: Settings) -> PreparedData:
    """Hold out test rows, deal the others to agents, check and lay them out."""
    rng = np.random.default_rng([seed_of(settings), 1])
    settings.check_intercept()
    n_test = _test_count(settings.test_rows, len(dataset.labels))
    matrix = clip_rows(dataset.features) if settings.clip_rows else as_matrix(dataset.features)
    features = with_intercept(matrix) if settings.intercept else matrix
    kept: Integers | slice = slice(None)
    if n_test:
        kept, held = sources.holdout(len(dataset.labels), n_test, rng)
    deal = _deal(dataset, kept, len(dataset.labels) - n_test, settings, rng)
    order = deal.order if isinstance(kept, slice) else kept[deal.order]
    weights = dataset.row_weights
    rows = make_rows(features, dataset.labels, order=order, offsets=deal.offsets, names=deal.names, row_weights=weights)
    test = None
    if n_test:
        test = TestRows(features, dataset.labels[held], held, None if weights is None else weights[held])
    n_classes = len(dataset.classes) if dataset.classes is not None else 0
    problem = replace(settings.problem(n_classes), weighted=weights is not None)
    return PreparedData(dataset, problem, rows, test, deal.names)


def seed_of(settings: Settings) -> int:
    """The seed that names a run; a run without one could not be told from another."""
    if settings.seed is None:
        raise StudyError("prepare() and run() need settings with a seed; simulate() draws one where it is missing")
    return settings.seed


def _test_count(test_rows: float, n_rows: int) -> int:
    count = int(test_rows) if test_rows >= 1 else round(test_rows * n_rows)
    if test_rows >= 1 and test_rows != count:
        raise StudyError(f"test_rows must be a whole number of rows or a share below 1, not {test_rows!r}")
    if count >= n_rows:
        raise StudyError(f"test_rows asks for {count} of {n_rows} rows, so none is left to train on")
    return count


def _deal(
    dataset: Dataset, kept: Integers | slice, n_kept: int, settings: Settings, rng: np.random.Generator
) -> Partition:
    n = settings.n_agents
    if settings.partition == "groups":
        if dataset.groups is None:
            raise DataError("partition by groups needs to know who owns a row: give groups= or --by COLUMN")
        return _deal_by_group(dataset.groups, kept)
    if settings.partition == "unequal":
        return sources.unequal(n_kept, n, rng, spread=settings.partition_spread)
    if settings.partition == "label_skewed":
        return sources.label_skewed(dataset.labels[kept], n, rng, concentration=settings.partition_spread)
    return sources.equal(n_kept, n, rng)


def _deal_by_group(groups: NDArray[Any], kept: Integers | slice) -> Partition:
    """By group; an agent with too few rows is refused whether or not its rows happen to be held out."""
    everyone, deal = sources.by_group(groups), sources.by_group(groups[kept])
    training = dict(zip(deal.names, deal.sizes.tolist(), strict=True))
    for name, owned in zip(everyone.names, everyone.sizes.tolist(), strict=True):
        if training.get(name, 0) < 2:
            rows = "one row" if owned == 1 else f"{owned} rows, {training.get(name, 0)} of them for training"
            raise DataError(
                f"agent {name} has {rows}; every agent needs at least 2 to train on "
                "(leave it out, or hold out fewer test rows)"
            )
    return deal


def _check_task(dataset: Dataset, loss: Loss) -> None:
    task, labels = loss.task, dataset.labels
    if task == "binary":
        fits, wanted = _only(labels, np.array([-1.0, 1.0])), "labels -1 and +1 (two classes)"
    elif task == "multiclass":
        n = len(dataset.classes or ())
        fits, wanted = n >= 2 and _only(labels, np.arange(float(n))), "labels 0..p-1 and their classes"
    else:
        fits, wanted = dataset.classes is None, "numbers as labels, not classes"
    if task == "count":  # plain counts would be taken for next to nothing
        fits, wanted = fits and bool(((labels < 1.0) | (labels >= LEAST_COUNT)).all()), "labels made by coded()"
    if not fits:
        raise DataError(f"loss {loss.name} needs {wanted}; data set {dataset.name!r} has none: choose another loss")


def _only(labels: Floats, allowed: Floats) -> bool:
    return bool(np.isin(labels, allowed).all())
