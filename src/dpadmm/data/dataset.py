"""Data sets: a feature matrix, and labels in the encoding that the losses need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpadmm.errors import DataError, StudyError
from dpadmm.losses.base import Task
from dpadmm.losses.poisson import coded
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.features import Features

_BINARY_CLASSES = (-1, 1)
_HINT = "declare the classes with classes=(...) or --classes"
_TRUTH = {"true": 1, "false": 0}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A feature matrix with encoded labels.

    Attributes
    ----------
    name : str
        Name for messages and reports.
    features : (n_rows, n_features)
        Dense, CSR or coded rows.
    labels : (n_rows,)
        ±1 for two classes, 0..p−1 for p classes, numbers for regression. Counts and their exposures are encoded by
        :func:`dpadmm.losses.poisson.coded`.
    classes : tuple or None
        Classes in the order of the codes, negative class first. None for numbers.
    groups : (n_rows,), optional
        Owner of each row.
    feature_names : tuple of str
        May be empty.
    row_weights : (n_rows,), optional
        Factors in [0, 1] of the rows' losses: weights divided by their public bound.

    Examples
    --------
    >>> data = Dataset("two rows", np.eye(2), np.array([1.0, -1.0]), classes=("no", "yes"))
    >>> data.n_rows, data.n_features, data.take(np.array([1])).labels.tolist()
    (2, 2, [-1.0])
    """

    name: str
    features: Features
    labels: Floats
    classes: tuple[Any, ...] | None
    groups: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()
    row_weights: Floats | None = None

    def __post_init__(self) -> None:
        if self.features.ndim != 2:
            raise DataError(f"{self.name}: features must be a matrix (rows × columns), not {self.features.ndim}-D")
        for what, values in (("labels", self.labels), ("groups", self.groups), ("weights", self.row_weights)):
            if values is not None and values.shape != (self.n_rows,):
                raise DataError(
                    f"{self.name}: {self.n_rows} rows need {self.n_rows} {what} in one dimension, "
                    f"not an array of shape {values.shape}"
                )
        if self.feature_names and len(self.feature_names) != self.n_features:
            raise DataError(f"{self.name}: {self.n_features} columns but {len(self.feature_names)} feature names")

    @property
    def n_rows(self) -> int:
        return int(self.features.shape[0])

    @property
    def n_features(self) -> int:
        """Number of columns d."""
        return int(self.features.shape[1])

    def take(self, indices: ArrayLike) -> Dataset:
        """Return a data set with the rows at ``indices``, in that order."""
        rows = np.asarray(indices)
        groups, weights = (None if values is None else values[rows] for values in (self.groups, self.row_weights))
        return replace(self, features=self.features[rows], labels=self.labels[rows], groups=groups, row_weights=weights)


def resolve_classes(task: Task, classes: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """Return the declared classes. Default: (−1, 1) for a binary task, None for numbers."""
    if task in ("regression", "count"):
        if classes is not None:
            raise StudyError("a regression has no classes: leave classes= / --classes out")
        return None
    if task == "binary":
        declared = _BINARY_CLASSES if classes is None else tuple(classes)
        if len(declared) != 2:
            raise StudyError(
                f"a binary task needs exactly 2 classes (negative, positive), not {len(declared)}: {_shown(declared)}"
            )
    elif task == "multiclass":
        if classes is None:
            raise StudyError(f"a multiclass task needs its classes: {_HINT}")
        declared = tuple(classes)
        if len(declared) < 2:
            raise StudyError(f"a multiclass task needs at least 2 classes, not {len(declared)}")
    else:
        raise StudyError(f"unknown task {task!r}: choose binary, multiclass, regression or count")
    seen: set[Any] = set()
    for value in declared:
        key = _key(value)
        if key is None:
            raise StudyError(f"a class must be text or a finite number, not {value!r}")
        if key in seen:
            raise StudyError(f"class {_shown([value])} is declared twice in {_shown(declared)}")
        seen.add(key)
    return declared


def encode_labels(values: ArrayLike, *, task: Task, classes: Sequence[Any] | None = None) -> Floats:
    """Encode labels as the losses need them.

    Parameters
    ----------
    values : array-like of shape (n_rows,)
        Numbers, text or booleans. Counts must be divided by a public maximum.
    task : {"binary", "multiclass", "regression", "count"}
        Binary labels become ±1, multiclass labels 0..p−1 in the order of ``classes``. Numbers are unchanged.
    classes : sequence, optional
        Public classes, negative class first. Default for binary: (−1, 1). The text "1" is the same class as 1, 1.0 and
        True, so that classes can be set on the command line.

    Raises
    ------
    DataError
        If a label is missing, not finite, or not one of the classes. The message has the first such row.
    StudyError
        If the classes do not fit the task.

    Examples
    --------
    >>> encode_labels(["no", "yes", "yes"], task="binary", classes=("no", "yes")).tolist()
    [-1.0, 1.0, 1.0]
    >>> encode_labels([0, 1, 0], task="binary")
    Traceback (most recent call last):
        ...
    dpadmm.errors.DataError: row 1: label 0 is not one of the default classes -1, 1: declare ...
    """
    declared = resolve_classes(task, classes)
    if isinstance(values, list | tuple):  # NumPy would convert [1, "a"] to text
        raw = np.empty(len(values), dtype=object)
        raw[:] = values
    else:
        raw = np.asarray(values)
    if raw.ndim != 1:
        raise DataError(f"labels must be one value per row, not an array of shape {raw.shape}")
    codes: dict[Any, float] | None = None
    if declared is not None:
        numbers = (-1.0, 1.0) if task == "binary" else range(len(declared))
        codes = {_key(value): float(code) for value, code in zip(declared, numbers, strict=True)}
    encode = _encode_numbers if raw.dtype.kind in "fiub" else _encode_objects
    encoded, outside = encode(raw, codes)
    if task == "count":
        good = (encoded >= 0.0) & (encoded <= 1.0)
        if not good.all():
            row = int(np.argmin(good))
            raise DataError(
                f"row {row + 1}: label {encoded[row]:g} is not between 0 and 1: divide counts by "
                "a public upper bound (in a study's [label]: bounds = [0, upper])"
            )
        return coded(encoded)
    if outside is not None:
        which = "declared" if classes is not None else "default"
        raise DataError(
            f"row {outside + 1}: label {_shown([raw[outside]])} is not one of the {which} classes "
            f"{_shown(declared or ())}: {_HINT}, or correct the row"
        )
    return encoded


def _encode_numbers(raw: NDArray[Any], codes: dict[Any, float] | None) -> tuple[Floats, int | None]:
    """Return the encoded labels, and the first row that is none of the classes (None if there is none)."""
    bad = ~np.isfinite(raw)
    if bad.any():
        raise _missing(raw, int(np.argmax(bad)))
    numbers = raw.astype(np.float64)
    if codes is None:
        return numbers, None
    pairs = sorted((float(key), code) for key, code in codes.items() if not isinstance(key, str))
    keys = np.array([key for key, _ in pairs] + [np.inf])  # the last matches no label
    place = np.searchsorted(keys[:-1], numbers)
    outside = keys[place] != numbers
    if outside.any():
        return numbers, int(np.argmax(outside))
    return np.array([code for _, code in pairs], dtype=np.float64)[place], None


def _encode_objects(raw: NDArray[Any], codes: dict[Any, float] | None) -> tuple[Floats, int | None]:
    """Return the same as ``_encode_numbers``, for text and mixed values."""
    encoded = np.empty(len(raw))
    for row, value in enumerate(raw):
        key = _key(value)
        if key is None:
            raise _missing(raw, row)
        if codes is None:
            if isinstance(key, str):
                raise DataError(f"row {row + 1}: label {_shown([value])} is not a number, as regression needs")
            encoded[row] = key
        elif key in codes:
            encoded[row] = codes[key]
        else:
            return encoded, row
    return encoded, None


def _key(value: Any) -> str | int | float | None:
    """Return one key for all spellings of a class ("1", 1, 1.0, True), or None if it is missing or not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, str):
        text = value.strip()
        value = _TRUTH.get(text.lower(), text)
        if value is text and "_" not in text:  # Python would read 1_000 as a number
            for kind in (float, int):
                with suppress(ValueError):
                    value = kind(text)
    if isinstance(value, str):
        return value or None
    if isinstance(value, int):  # True counts as 1
        return int(value)
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    return None if value is None else str(value)


def _missing(raw: NDArray[Any], row: int) -> DataError:
    return DataError(
        f"row {row + 1}: the label is missing or not finite ({_shown([raw[row]])}): correct or remove the row"
    )


def _shown(values: Sequence[Any]) -> str:
    """Return values for a message: text in quotes, and at most ten of them."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    listed = ", ".join(repr(value)[:60] for value in plain[:10])
    return f"{listed} and {len(plain) - 10} more" if len(plain) > 10 else listed
