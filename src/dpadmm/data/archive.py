"""Read NPZ archives: the NumPy arrays ``features`` (or the parts of a CSR matrix), ``labels`` and ``groups``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm.data.reader import first_line
from dpadmm.errors import DataError, StudyError
from dpadmm.files.archives import BROKEN_ARCHIVE, check_claim
from dpadmm.matrices.features import Features
from dpadmm.matrices.storage import compact_csr
from dpadmm.parameters.suggestions import unknown_name

ARCHIVE = ".npz"
_CSR_PARTS = ("data", "indices", "indptr", "shape")


@dataclass(frozen=True, eq=False)
class Archive:
    """Arrays of an archive, with the labels and owners as written."""

    features: Features
    labels: NDArray[Any]
    groups: NDArray[Any] | None = None


def read_archive(
    path: Path, label: str | None = None, by: str | None = None, columns: Sequence[str] | None = None
) -> Archive:
    """Read an archive.

    Parameters
    ----------
    label, by : str, optional
        Arrays of labels and owners. Default: ``labels``, and ``groups`` if there is one.
    columns : sequence of str, optional
        Columns of the features to return. They are called x1, x2, ... in the order of the array. Default: all.
    """
    check_file(path)
    with path.open("rb") as file:  # NumPy would not close a damaged archive
        try:
            archive = np.load(file, allow_pickle=False)
        except BROKEN_ARCHIVE as error:
            raise DataError(f"{path} cannot be read as NPZ: {first_line(error)}") from None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is a single array, not an NPZ archive: write it with numpy.savez")
        names = list(archive.files)
        label_name = label or "labels"
        group_name = by or ("groups" if "groups" in names else None)
        for name in (label_name, group_name):
            if name is not None and name not in names:
                raise unknown_name("array", name, names, path)
        if "features" in names:
            features = _dense(path, _array(path, archive, "features"))
        elif all(name in names for name in _CSR_PARTS):
            features = _csr(path, *(_array(path, archive, name) for name in _CSR_PARTS))
        else:
            raise StudyError(f"{path} has no array 'features' (and no {', '.join(_CSR_PARTS)} of a CSR matrix)")
        if columns is not None:
            features = features[:, column_indices(columns, features.shape[1], path)]
        labels = _array(path, archive, label_name)
        groups = None if group_name is None else _array(path, archive, group_name)
    if features.shape[0] == 0:
        raise DataError(f"{path} has no rows")
    bad = first_nonfinite(features)
    if bad is not None:
        column = columns[bad[1]] if columns else bad[1] + 1
        raise DataError(
            f"{path}: array 'features', column {column}, row {bad[0] + 1}: the entry is not a finite number"
        )
    for name, values in ((label_name, labels), (group_name, groups)):
        if values is not None and values.shape != (features.shape[0],):
            raise DataError(
                f"{path}: {features.shape[0]} rows need {features.shape[0]} {name} in one dimension, "
                f"not an array of shape {values.shape}"
            )
    return Archive(features, labels, groups)


def check_file(path: Path) -> None:
    """Raise DataError if a file does not exist, is empty, or cannot be read."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise DataError(f"{path} is empty")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _array(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        with catch_warnings(action="ignore"):  # about headers written by Python 2
            check_claim(archive.zip, name if name in archive.zip.namelist() else f"{name}.npy")
            return np.asarray(archive[name])
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path}: array {name!r} cannot be read: {first_line(error)}") from None


def _dense(path: Path, values: NDArray[Any]) -> Features:
    if values.ndim != 2:
        raise DataError(f"{path}: array 'features' must be a matrix (rows × columns), not {values.ndim}-D")
    return np.ascontiguousarray(_as_floats(path, "features", values))


def _csr(path: Path, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: NDArray[Any]) -> Features:
    values = _as_floats(path, "data", data)
    if not all(part.dtype.kind in "iu" for part in (indices, indptr, shape)):
        raise DataError(f"{path}: the parts do not make a CSR matrix: indices, indptr and shape must be integers")
    try:
        n_rows, n_columns = (int(length) for length in shape)
        matrix = compact_csr(values, indices, indptr, (n_rows, n_columns))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path}: the parts do not make a CSR matrix: {first_line(error)}") from None
    matrix.sum_duplicates()
    return matrix


def _as_floats(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise DataError(f"{path}: array {name!r} holds {values.dtype} values; features must be numeric or boolean")
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)


def column_indices(columns: Sequence[str], n_columns: int, path: object) -> list[int]:
    """Return the indices of columns that are called x1, x2, ... in the order of the file."""
    indices = []
    for name in columns:
        match = re.fullmatch("x([1-9][0-9]{0,8})", name)
        if match is None or int(match[1]) > n_columns:
            raise StudyError(f"{path} has no column {name!r}: its columns are called x1, x2 to x{n_columns}")
        indices.append(int(match[1]) - 1)
    return indices


def first_nonfinite(features: Features) -> tuple[int, int] | None:
    """Return row and column (from 0) of the first NaN or infinity, or None."""
    if isinstance(features, csr_array):
        bad = np.flatnonzero(~np.isfinite(features.data))
        if len(bad) == 0:
            return None
        row = int(np.searchsorted(features.indptr, bad[0], side="right")) - 1
        return row, int(features.indices[bad[0]])
    finite = np.isfinite(features)
    return None if finite.all() else divmod(int(np.argmin(finite)), features.shape[1])
