"""A user's table in any format, read as a whole: what ``reader.py`` reads, or NPZ -> Dataset."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm.data.cells import NotANumberError, as_numbers
from dpadmm.data.dataset import Dataset, encode_labels, resolve_classes
from dpadmm.data.reader import ARROW, DATABASE, column_names, open_batches, reason_of, repeated, table_format
from dpadmm.data.sources import advice, check_no_address
from dpadmm.errors import DataError, StudyError
from dpadmm.files.archives import BROKEN_ARCHIVE, check_claim
from dpadmm.files.atomic import StrPath, expanded
from dpadmm.losses.base import Task
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.features import Features
from dpadmm.matrices.storage import compact_csr
from dpadmm.parameters.suggestions import listed, unknown_name

_CSR_PARTS = ("data", "indices", "indptr", "shape")


@dataclass(frozen=True, eq=False)
class RawTable:
    """What every format gives: features, labels as written, owners, names."""

    features: Features
    labels: NDArray[Any] | list[Any]
    groups: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()


def read_table(
    path: StrPath,
    *,
    task: Task,
    label: str | None = None,
    classes: Sequence[Any] | None = None,
    by: str | None = None,
) -> Dataset:
    """Read rows and labels from a file; its ending says the format. Classes are as for ``encode_labels``.

    ``.csv``, ``.tsv`` (both also ``.gz``), ``.parquet``, ``.arrow`` or ``.feather``, a folder of them, or a ``.toml``
    file that says where a database's table is: one column is the ``label``, all others but ``by``, the
    owner, are numeric features. ``.npz``: arrays ``features`` and ``labels``, and perhaps ``groups``, the owners; a
    sparse matrix is stored as ``data``, ``indices``, ``indptr`` and ``shape`` in place of ``features``, as
    scipy.sparse.save_npz does.

    Parameters
    ----------
    path : path
        The file or folder.
    task : "binary", "multiclass", "regression" or "count"
        What the labels are.
    label : str, optional
        The column to predict; not for ``.npz`` and ``.svm``.
    classes : sequence, optional
        Public list of the labels, negative first.
    by : str, optional
        The column that says who owns a row.

    Returns
    -------
    Dataset
        Features, labels and owners.

    Raises
    ------
    DataError
        The file cannot be used; the message names the column and the row, counted from 1 without the header.
    StudyError
        A needed setting is missing or names something that the file does not have.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "loans.csv"
    ...     _ = path.write_text("income,owner,repaid\\n0.5,north,yes\\n0.2,south,no\\n")
    ...     data = read_table(path, task="binary", label="repaid", classes=("no", "yes"), by="owner")
    >>> data.labels.tolist(), data.groups.tolist(), data.feature_names
    ([1.0, -1.0], ['north', 'south'], ('income',))
    """
    declared = resolve_classes(task, classes)  # before a large file is read
    source, raw = _read(path, label, by, None)
    if raw.features.shape[1] == 0:
        raise DataError(f"{source} has no feature columns beside the label")
    try:
        labels = encode_labels(raw.labels, task=task, classes=declared)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    return Dataset(source.name, raw.features, labels, declared, raw.groups, raw.feature_names)


def read_columns(path: StrPath, columns: Sequence[str], *, label: str | None = None, by: str | None = None) -> RawTable:
    """Only the columns that are named, in this order, with labels as written.

    What a cell means depends on no other row: owners are text where the file is. The columns of NPZ files are called
    x1, x2, ...

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "loans.csv"
    ...     _ = path.write_text("note,income,who,age,repaid\\nlate,0.5,07,30,yes\\n,0.2,7,31,no\\n")
    ...     raw = read_columns(path, ["age", "income"], label="repaid", by="who")
    >>> raw.features.tolist(), raw.labels, raw.groups.tolist()
    ([[30.0, 0.5], [31.0, 0.2]], ['yes', 'no'], ['07', '7'])
    """
    return _read(path, label, by, columns)[1]


def _read(path: StrPath, label: str | None, by: str | None, columns: Sequence[str] | None) -> tuple[Path, RawTable]:
    source = expanded(path)
    check_no_address(source)
    if not source.is_dir():
        _check_file(source)
    raw = (read_named if source.is_dir() else _READERS[table_format(source)])(source, label, by, columns)
    if raw.features.shape[0] == 0:
        raise DataError(f"{source} has no rows")
    return source, raw


def _check_file(path: Path) -> None:
    if table_format(path) not in _READERS:
        formats = f"the formats that can be read are {', '.join(_READERS)}, .csv.gz, .tsv.gz"
        raise DataError(f"{path}: unknown ending {path.suffix!r}: {advice(path) or formats}")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise DataError(f"{path} is empty")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


# CSV, Parquet, Arrow, databases: named columns, in batches


def read_named(path: Path, label: str | None, by: str | None, columns: Sequence[str] | None) -> RawTable:
    """A table with named columns; all of them, or those chosen."""
    names = column_names(path)
    if columns is None and (twice := repeated(names)):
        raise DataError(f"{path}: column {min(twice)!r} occurs more than once")
    if label is None:
        raise StudyError(f"{path}: name the label column with label= or --label; the columns are {listed(names)}")
    if label == by:
        raise StudyError(f"column {label!r} cannot be both the label and the owner of a row")
    others = [label] if by is None else [label, by]
    for name in others:
        if name not in names:
            raise unknown_name("column", name, names, path, used=[*(columns or ()), *others])
    features = tuple(name for name in names if name not in others) if columns is None else tuple(columns)
    for numbers in (frozenset(features) - {*others}, frozenset[str]()):  # if they are none, then truth values perhaps
        try:
            batches = [batch for batch in open_batches(path, [*features, *others], numbers=numbers) if batch.num_rows]
            break
        except DataError:
            if not numbers:
                raise
    rows, first = [np.empty((0, len(features)))], 0
    for batch in batches:
        block = np.empty((batch.num_rows, len(features)))
        for place, name in enumerate(features):
            block[:, place] = _feature(batch.column(name), name, path, first)
        rows.append(block)
        first += batch.num_rows
    labels, owners = ([batch.column(name) for batch in batches] for name in (label, others[-1]))
    # Chosen by a study, owners stay text: whether two rows have one must not depend on how others are written
    groups = None if by is None else _cells(owners) if columns is not None else _values(owners, by)
    if isinstance(groups, list):
        for row, owner in enumerate(groups, start=1):
            if owner is None or not str(owner).strip():
                raise DataError(f"{path}: column {by!r}, row {row}: the cell is missing, so the row has no owner")
        groups = np.array(groups, dtype=object)
    return RawTable(np.concatenate(rows), _values(labels, label), groups, features)


def _feature(cells: Any, name: str, path: Path, first: int) -> Floats:
    """A column of a batch as numbers; what is none, missing or not finite is named by its row."""
    where = f"{path}: column {name!r}"
    try:
        values = as_numbers(cells, name)
    except NotANumberError as error:
        with suppress(pa.ArrowInvalid):
            return np.asarray(pc.cast(pc.utf8_trim_whitespace(pc.cast(cells, pa.string())), pa.bool_()), dtype=float)
        raise DataError(
            f"{where}, row {first + error.place + 1}: {error.cell[:40]!r} is text; a feature must be numeric or "
            "boolean: encode the column, leave it out of the file, or name it with --by if it says who owns a row"
        ) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not np.isfinite(values).all():
        place = int(np.argmin(np.isfinite(values)))
        given = np.isinf(values[place]) or isinstance(cells[place].as_py(), float)
        problem = "not a finite number" if given else "missing"
        do = f" ({values[place]}): correct or remove the row" if given else ": fill it in or remove the row"
        raise DataError(f"{where}, row {first + place + 1}: the cell is {problem}{do}")
    return values


def _values(chunks: list[Any], name: str) -> NDArray[Any] | list[Any]:
    """Numbers where all cells are, whole ones if they all are; else the cells as they are."""
    with suppress(DataError, ValueError):
        numbers = np.concatenate([as_numbers(cells, name) for cells in chunks])
        if np.isfinite(numbers).all() and np.abs(numbers).max() < 2.0**53:
            return numbers.astype(np.int64) if (numbers == np.rint(numbers)).all() else numbers
    return _cells(chunks)


def _cells(chunks: list[Any]) -> list[Any]:
    return [cell for cells in chunks for cell in cells.to_pylist()]


# NPZ: NumPy arrays, or the parts of a CSR matrix, in one archive


def read_npz(path: Path, label: str | None, by: str | None, columns: Sequence[str] | None = None) -> RawTable:
    """Arrays ``features`` (or a CSR matrix's parts) and ``labels``, perhaps ``groups``."""
    with path.open("rb") as file:  # NumPy would leave a damaged archive open
        try:
            archive = np.load(file, allow_pickle=False)
        except BROKEN_ARCHIVE as error:
            raise DataError(f"{path} cannot be read as NPZ: {reason_of(error)}") from None
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
        raise DataError(f"{path}: array {name!r} cannot be read: {reason_of(error)}") from None


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
        raise DataError(f"{path}: the parts do not make a CSR matrix: {reason_of(error)}") from None
    matrix.sum_duplicates()
    return matrix


def _as_floats(path: Path, name: str, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "fiub":
        raise DataError(f"{path}: array {name!r} holds {values.dtype} values; features must be numeric or boolean")
    return values.astype(np.float32 if values.dtype == np.float32 else np.float64, copy=False)


def numbered(columns: Sequence[str], n_columns: int, where: object) -> list[int]:
    """Places (from 0) of columns that have no names of their own: x1, x2, ... in the order of the file."""
    places = []
    for name in columns:
        found = re.fullmatch("x([1-9][0-9]{0,8})", name)
        if found is None or int(found[1]) > n_columns:
            raise StudyError(f"{where} has no column {name!r}: its columns are called x1, x2 to x{n_columns}")
        places.append(int(found[1]) - 1)
    return places


def first_nonfinite(features: Features) -> tuple[int, int] | None:
    """Row and column (from 0) of the first NaN or infinity, or None."""
    if isinstance(features, csr_array):
        bad = np.flatnonzero(~np.isfinite(features.data))
        if len(bad) == 0:
            return None
        row = int(np.searchsorted(features.indptr, bad[0], side="right")) - 1
        return row, int(features.indices[bad[0]])
    finite = np.isfinite(features)
    return None if finite.all() else divmod(int(np.argmin(finite)), features.shape[1])


_READERS: dict[str, Callable[[Path, str | None, str | None, Sequence[str] | None], RawTable]] = {
    ".csv": read_named,
    ".tsv": read_named,
    ".parquet": read_named,
    ".npz": read_npz,
    **dict.fromkeys((*ARROW, DATABASE), read_named),
}
