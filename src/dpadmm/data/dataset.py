"""A data set: a feature matrix and labels in the encoding that the losses expect."""

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
_HOW_TO_DECLARE = "declare the classes with classes=(...) or --classes"
_TRUTH = {"true": 1, "false": 0}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features (rows × d), dense or CSR, with encoded labels: ±1, 0..p−1 for p classes, or plain numbers.

    Counts over their largest one, and exposures, are labels by :func:`dpadmm.losses.poisson.coded`.

    ``classes`` are what labels stand for: (negative, positive), or the p classes; None for regression.
    ``groups`` has a value per row that names its owner, if the table says so; ``feature_names`` may be empty.
    ``row_weights``, if any, are what rows' losses are multiplied with: weights over their public bound, from 0 to 1.

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
        """d, the number of columns."""
        return int(self.features.shape[1])

    def take(self, indices: ArrayLike) -> Dataset:
        """The rows at ``indices``, in that order, as a new data set."""
        rows = np.asarray(indices)
        groups, weights = (None if each is None else each[rows] for each in (self.groups, self.row_weights))
        return replace(self, features=self.features[rows], labels=self.labels[rows], groups=groups, row_weights=weights)


def resolve_classes(task: Task, classes: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """The declared classes, checked; (−1, 1) when a binary task declares none; None for regression."""
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
            raise StudyError(f"a multiclass task needs its classes: {_HOW_TO_DECLARE}")
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
    """Numbers, text or truth values, one per row, as the numbers the losses expect.

    A binary task gives ±1, multiclass 0..p−1 in the order of ``classes``, regression the numbers; counts are to be
    divided by the largest one, so that they lie in [0, 1]. Classes are
    (negative, positive) for binary, by default (−1, 1). The text "1" means the same class as 1, 1.0 and True,
    so that classes can be given at the command line.

    Raises
    ------
    DataError
        A label is missing, not finite, or outside the declared classes; the first such row is named.
    StudyError
        The classes do not fit the task.

    Examples
    --------
    >>> encode_labels(["no", "yes", "yes"], task="binary", classes=("no", "yes")).tolist()
    [-1.0, 1.0, 1.0]
    >>> encode_labels([0, 1, 0], task="binary")
    Traceback (most recent call last):
        ...
    dpadmm.errors.DataError: row 1: label 0 is not one of the classes that hold ...
    """
    declared = resolve_classes(task, classes)
    if isinstance(values, list | tuple):  # NumPy would turn [1, "a"] into text and [1, None] into objects
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
                f"row {row + 1}: label {encoded[row]:g} is not between 0 and 1: divide counts, never negative, by "
                "a public largest one (in a study's [label]: bounds = [0, largest])"
            )
        return coded(encoded)
    if outside is not None:
        which = "declared classes" if classes is not None else "classes that hold when none are declared,"
        raise DataError(
            f"row {outside + 1}: label {_shown([raw[outside]])} is not one of the {which} "
            f"{_shown(declared or ())}: {_HOW_TO_DECLARE}, or correct the row"
        )
    return encoded


def _encode_numbers(raw: NDArray[Any], codes: dict[Any, float] | None) -> tuple[Floats, int | None]:
    """The encoded labels, and the first row outside the classes if there is one."""
    bad = ~np.isfinite(raw)
    if bad.any():
        raise _missing(raw, int(np.argmax(bad)))
    numbers = raw.astype(np.float64)
    if codes is None:
        return numbers, None
    known = sorted((float(key), code) for key, code in codes.items() if not isinstance(key, str))
    keys = np.array([key for key, _ in known] + [np.inf])  # the end of the list matches no label
    place = np.searchsorted(keys[:-1], numbers)
    outside = keys[place] != numbers
    if outside.any():
        return numbers, int(np.argmax(outside))
    return np.array([code for _, code in known], dtype=np.float64)[place], None


def _encode_objects(raw: NDArray[Any], codes: dict[Any, float] | None) -> tuple[Floats, int | None]:
    """As ``_encode_numbers``, for text and mixed values."""
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
    """One key for all spellings of a class: "1", 1, 1.0 and True agree. None if missing or not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, str):
        text = value.strip()
        value = _TRUTH.get(text.lower(), text)
        if value is text and "_" not in text:  # Python reads 1_000 as a number; data files do not mean that
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
    """Values as they are written in a message: text in quotes, numbers plain, long lists cut short."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    listed = ", ".join(repr(value)[:60] for value in plain[:10])
    return f"{listed} and {len(plain) - 10} more" if len(plain) > 10 else listed
