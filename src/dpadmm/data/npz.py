"""NPZ: NumPy arrays, or the parts of a CSR matrix, in one archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
from numpy.typing import NDArray

from dpadmm._base.archives import BROKEN_ARCHIVE, check_claim
from dpadmm._base.arrays import Features
from dpadmm._base.errors import DataError, StudyError
from dpadmm.data.compact import compact_csr
from dpadmm.data.raw_table import RawTable, first_nonfinite, numbered, unknown_name

_SPARSE = ("data", "indices", "indptr", "shape")


def read_npz(path: Path, label: str | None, by: str | None, columns: Sequence[str] | None = None) -> RawTable:
    """Arrays ``features`` (or a CSR matrix's parts) and ``labels``, perhaps ``groups``."""
    with path.open("rb") as file:  # NumPy would leave a damaged archive open
        try:
            archive = np.load(file, allow_pickle=False)
        except BROKEN_ARCHIVE as error:
            raise DataError(f"{path} cannot be read as NPZ: {_reason(error)}") from None
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
        elif all(name in names for name in _SPARSE):
            features = _sparse(path, *(_array(path, archive, name) for name in _SPARSE))
        else:
            raise StudyError(f"{path} has no array 'features' (and no {', '.join(_SPARSE)} of a CSR matrix)")
        if columns is not None:
            features = features[:, numbered(columns, features.shape[1], path)]
        labels = _array(path, archive, label_name)
        groups = None if group_name is None else _array(path, archive, group_name)
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
    return RawTable(features, labels, groups, tuple(columns or ()))


def _array(path: Path, archive: Any, name: str) -> NDArray[Any]:
    try:
        with catch_warnings(action="ignore"):  # of headers that Python 2 wrote
            check_claim(archive.zip, name if name in archive.zip.namelist() else f"{name}.npy")
            return np.asarray(archive[name])
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path}: array {name!r} cannot be read: {_reason(error)}") from None


def _dense(path: Path, values: NDArray[Any]) -> Features:
    if values.ndim != 2:
        raise DataError(f"{path}: array 'features' must be a matrix (rows × columns), not {values.ndim}-D")
    _check_numeric(path, "features", values)
    return np.ascontiguousarray(values, dtype=_float_type(values))


def _sparse(
    path: Path, data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: NDArray[Any]
) -> Features:
    _check_numeric(path, "data", data)
    if not all(part.dtype.kind in "iu" for part in (indices, indptr, shape)):
        raise DataError(
            f"{path}: the parts do not make a CSR matrix: indices, indptr and shape must be integers"
        )
    try:
        n_rows, n_columns = (int(length) for length in shape)
        values = data.astype(_float_type(data), copy=False)
        matrix = compact_csr(values, indices, indptr, (n_rows, n_columns))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path}: the parts do not make a CSR matrix: {_reason(error)}") from None
    matrix.sum_duplicates()
    return matrix


def _check_numeric(path: Path, name: str, values: NDArray[Any]) -> None:
    if values.dtype.kind not in "fiub":
        raise DataError(
            f"{path}: array {name!r} holds {values.dtype} values; features must be numeric or boolean"
        )


def _float_type(values: NDArray[Any]) -> type[np.float32] | type[np.float64]:
    return np.float32 if values.dtype == np.float32 else np.float64


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
