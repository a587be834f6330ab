"""Prepare data for a simulation: load it, hold out test rows, and assign the other rows to agents."""

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

MIN_COUNT_LABEL = 1e-6 * STEPS
"""Smallest label of a positive count: a millionth of the label of the largest count."""


@dataclass(frozen=True)
class PreparedData:
    """Rows of every agent, test rows, and the problem."""

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
    """Return a :class:`Dataset` whose labels fit the loss of these settings."""
    task = settings.loss.task
    if isinstance(data, str):
        if data == "adult":
            dataset = sources.load_adult()
        elif data == "synthetic":
            dataset = sources.synthetic(task, seed=0)
        else:
            raise DataError(f'unknown data set {data!r}; use "adult", "synthetic" or a Dataset')
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
            raise StudyError(f'groups need partition="groups", not {settings.partition!r}; leave one of them out')
        dataset = replace(dataset, groups=owners)
    _check_task(dataset, settings.loss)
    return dataset


def prepare(dataset: Dataset, settings: Settings) -> PreparedData:
    """Hold out test rows, assign the others to agents, and check them."""
    rng = np.random.default_rng([seed_of(settings), 1])
    settings.check_intercept()
    n_test = _test_count(settings.test_rows, len(dataset.labels))
    matrix = clip_rows(dataset.features) if settings.clip_rows else as_matrix(dataset.features)
    features = with_intercept(matrix) if settings.intercept else matrix
    train_indices: Integers | slice = slice(None)
    if n_test:
        train_indices, test_indices = sources.holdout(len(dataset.labels), n_test, rng)
    partition = _assign_rows(dataset, train_indices, len(dataset.labels) - n_test, settings, rng)
    order = partition.order if isinstance(train_indices, slice) else train_indices[partition.order]
    weights = dataset.row_weights
    rows = make_rows(
        features, dataset.labels, order=order, offsets=partition.offsets, names=partition.names, row_weights=weights
    )
    test = None
    if n_test:
        test_weights = None if weights is None else weights[test_indices]
        test = TestRows(features, dataset.labels[test_indices], test_indices, test_weights)
    n_classes = len(dataset.classes) if dataset.classes is not None else 0
    problem = replace(settings.problem(n_classes), weighted=weights is not None)
    return PreparedData(dataset, problem, rows, test, partition.names)


def seed_of(settings: Settings) -> int:
    """Return the seed. Raise StudyError if there is none, because the run would not be reproducible."""
    if settings.seed is None:
        raise StudyError("prepare() and run() need settings with a seed; simulate() draws one if it is missing")
    return settings.seed


def _test_count(test_rows: float, n_rows: int) -> int:
    count = int(test_rows) if test_rows >= 1 else round(test_rows * n_rows)
    if test_rows >= 1 and test_rows != count:
        raise StudyError(f"test_rows must be a whole number of rows or a share below 1, not {test_rows!r}")
    if count >= n_rows:
        raise StudyError(f"test_rows = {count} leaves no training rows (the data have {n_rows} rows); choose fewer")
    return count


def _assign_rows(
    dataset: Dataset, train_indices: Integers | slice, n_train: int, settings: Settings, rng: np.random.Generator
) -> Partition:
    n_agents, spread = settings.n_agents, settings.partition_spread
    if settings.partition == "groups":
        if dataset.groups is None:
            raise DataError('partition="groups" needs the owner of each row; pass groups= or --by COLUMN')
        return _assign_by_group(dataset.groups, train_indices)
    if settings.partition == "unequal":
        return sources.unequal(n_train, n_agents, rng, spread=spread)
    if settings.partition == "label_skewed":
        return sources.label_skewed(dataset.labels[train_indices], n_agents, rng, concentration=spread)
    return sources.equal(n_train, n_agents, rng)


def _assign_by_group(groups: NDArray[Any], train_indices: Integers | slice) -> Partition:
    """Assign rows by group. Raise DataError if an agent has fewer than 2 training rows, including agents with none."""
    total, partition = sources.by_group(groups), sources.by_group(groups[train_indices])
    n_train = dict(zip(partition.names, partition.sizes.tolist(), strict=True))
    for name, n_rows in zip(total.names, total.sizes.tolist(), strict=True):
        if n_train.get(name, 0) < 2:
            rows = "one row" if n_rows == 1 else f"{n_rows} rows, {n_train.get(name, 0)} of them for training"
            raise DataError(
                f"agent {name} has {rows}; every agent needs at least 2 to train on "
                "(leave it out, or hold out fewer test rows)"
            )
    return partition


def _check_task(dataset: Dataset, loss: Loss) -> None:
    """Raise DataError if the labels do not fit the loss."""
    task, labels = loss.task, dataset.labels
    if task == "binary":
        fits, required = _contains_only(labels, np.array([-1.0, 1.0])), "labels -1 and +1 (two classes)"
    elif task == "multiclass":
        n = len(dataset.classes or ())
        fits, required = n >= 2 and _contains_only(labels, np.arange(float(n))), "labels 0..p-1 and their classes"
    else:
        fits, required = dataset.classes is None, "numeric labels, not classes"
    if task == "count":  # uncoded counts would be read as counts close to 0
        fits, required = fits and bool(((labels < 1.0) | (labels >= MIN_COUNT_LABEL)).all()), "labels from coded()"
    if not fits:
        raise DataError(
            f"loss {loss.name} needs {required}, which data set {dataset.name!r} does not have; choose another loss"
        )


def _contains_only(labels: Floats, allowed: Floats) -> bool:
    return bool(np.isin(labels, allowed).all())
