"""Reading a user's file: CSV, Parquet, NPZ or svmlight text -> Dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpadmm._base.errors import DataError
from dpadmm._base.files import expanded
from dpadmm.data.columns import read_csv, read_parquet
from dpadmm.data.dataset import Dataset, encode_labels, resolve_classes
from dpadmm.data.npz import read_npz
from dpadmm.data.raw_table import RawTable
from dpadmm.data.svmlight import read_svmlight
from dpadmm.optim.losses.base import Task

_READERS: dict[str, Callable[[Path, str | None, str | None, Sequence[str] | None], RawTable]] = {
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".npz": read_npz,
    ".svm": read_svmlight,
    ".libsvm": read_svmlight,
    ".svmlight": read_svmlight,
}


def read_table(
    path: str | os.PathLike[str],
    *,
    task: Task,
    label: str | None = None,
    classes: Sequence[Any] | None = None,
    by: str | None = None,
) -> Dataset:
    """Read rows and labels from a file; its ending says the format.

    Parameters
    ----------
    path
        ``.csv`` or ``.parquet``: one column is the label, all others but ``by`` are numeric features.
        ``.npz``: arrays ``features`` and ``labels``, and perhaps ``groups``; a sparse matrix is stored as
        ``data``, ``indices``, ``indptr`` and ``shape`` in place of ``features``, as scipy.sparse.save_npz.
        ``.svm``, ``.libsvm``, ``.svmlight``: lines ``label index:value ...``; gives a sparse matrix.
    task
        "binary", "multiclass" or "regression".
    label
        Name of the label column (CSV, Parquet) or array (NPZ, by default ``labels``).
    classes
        Declared classes, as for ``encode_labels``.
    by
        Name of the column (CSV, Parquet), array (NPZ) or tag (svmlight: ``qid``) that says who owns a row.

    Raises
    ------
    DataError
        The file cannot be used; the message names the column and the row, counted from 1 without the header.
    StudyError
        A needed setting is missing or names something that the file does not have, or the path begins with
        ``~user`` and there is no such user.

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


def read_columns(
    path: str | os.PathLike[str], columns: Sequence[str], *, label: str | None = None, by: str | None = None
) -> RawTable:
    """Only the columns that are named, in this order, with labels as written.

    What a cell means depends on no other row: owners are text where the file is, and indices of svmlight
    text count from 1. Where columns have no names (NPZ, svmlight), they are called x1, x2, ...

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


def _read(
    path: str | os.PathLike[str], label: str | None, by: str | None, columns: Sequence[str] | None
) -> tuple[Path, RawTable]:
    source = expanded(path)
    _check_file(source)
    raw = _READERS[source.suffix.lower()](source, label, by, columns)
    if raw.features.shape[0] == 0:
        raise DataError(f"{source} has no rows")
    return source, raw


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in _READERS:
        raise DataError(
            f"{path}: unknown ending {path.suffix!r}: the formats that can be read are {', '.join(_READERS)}"
        )
    if path.is_dir():
        raise DataError(f"{path} is a directory, not a file")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise DataError(f"{path} is empty")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
