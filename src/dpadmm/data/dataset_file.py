"""Read a whole table file as a :class:`Dataset`, for simulations without a study."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpadmm.data.archive import ARCHIVE, check_file, read_archive
from dpadmm.data.cells import NotANumberError, as_numbers
from dpadmm.data.database import check_not_an_address, format_hint
from dpadmm.data.dataset import Dataset, encode_labels, resolve_classes
from dpadmm.data.reader import ARROW, DATABASE, column_names, open_batches, repeated, table_format
from dpadmm.data.spreadsheet import SHEETS
from dpadmm.errors import DataError, StudyError
from dpadmm.files.atomic import StrPath, expanded
from dpadmm.losses.base import Task
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.features import Features
from dpadmm.parameters.suggestions import listed, unknown_name

FORMATS = (".csv", ".tsv", ".parquet", ARCHIVE, *ARROW, *SHEETS, DATABASE)


def read_table(
    path: StrPath,
    *,
    task: Task,
    label: str | None = None,
    classes: Sequence[Any] | None = None,
    by: str | None = None,
) -> Dataset:
    """Read features, labels and owners from a file whose columns are all numeric, without a study.

    In a table with named columns (``.csv``, ``.tsv``, ``.xlsx``, ``.ods``, ``.parquet``, ``.arrow``, ``.feather``, a
    folder, or a ``.toml`` file for a database), all columns except ``label`` and ``by`` are numeric features. An
    ``.npz`` archive has the arrays ``features`` and ``labels``, and optionally ``groups`` with the owners. A sparse
    matrix is stored as ``data``, ``indices``, ``indptr`` and ``shape`` instead of ``features``, as by
    scipy.sparse.save_npz.

    Parameters
    ----------
    path : path
        File or folder.
    task : {"binary", "multiclass", "regression", "count"}
        Kind of label.
    label : str, optional
        Column to predict. In an archive: default ``labels``.
    classes : sequence, optional
        Public list of the classes, negative class first; see :func:`encode_labels`.
    by : str, optional
        Column with the owner of each row.

    Returns
    -------
    Dataset
        Features, labels and owners.

    Raises
    ------
    DataError
        If the file cannot be used. The message has the column and the row, counted from 1 without the header.
    StudyError
        If a setting is missing or names a column that does not exist.

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
    declared = resolve_classes(task, classes)
    source = expanded(path)
    check_not_an_address(source)
    if not source.is_dir():
        if table_format(source) not in FORMATS:
            hint = format_hint(source) or f"the formats that can be read are {', '.join(FORMATS)}, .csv.gz, .tsv.gz"
            raise DataError(f"{source}: unknown ending {source.suffix!r}: {hint}")
        check_file(source)
    names: tuple[str, ...] = ()
    features: Features
    raw: NDArray[Any] | list[Any]
    if table_format(source) == ARCHIVE and not source.is_dir():
        archive = read_archive(source, label, by)
        features, raw, groups = archive.features, archive.labels, archive.groups
    else:
        names, features, raw, groups = _read_columns(source, label, by)
    if features.shape[0] == 0:
        raise DataError(f"{source} has no rows")
    if features.shape[1] == 0:
        raise DataError(f"{source} has no feature columns, only the label")
    try:
        labels = encode_labels(raw, task=task, classes=declared)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    return Dataset(source.name, features, labels, declared, groups, names)


def _read_columns(
    path: Path, label: str | None, by: str | None
) -> tuple[tuple[str, ...], Floats, NDArray[Any] | list[Any], NDArray[Any] | None]:
    """Return feature names, features, labels and owners of a table with named columns."""
    names = column_names(path)
    if duplicates := repeated(names):
        raise DataError(f"{path}: column {min(duplicates)!r} occurs more than once")
    if label is None:
        raise StudyError(f"{path}: name the label column with label= or --label; the columns are {listed(names)}")
    if label == by:
        raise StudyError(f"column {label!r} cannot be both the label and the owner of a row")
    others = [label] if by is None else [label, by]
    for name in others:
        if name not in names:
            raise unknown_name("column", name, names, path, used=others)
    features = tuple(name for name in names if name not in others)
    for numbers in (frozenset(features), frozenset[str]()):  # the second as text, for columns of booleans
        try:
            batches = list(open_batches(path, [*features, *others], numbers=numbers))
            break
        except DataError:
            if not numbers:
                raise
    rows, first_row = [np.empty((0, len(features)))], 0
    for batch in batches:
        block = np.empty((batch.num_rows, len(features)))
        for j, name in enumerate(features):
            block[:, j] = _feature(batch.column(name), name, path, first_row)
        rows.append(block)
        first_row += batch.num_rows
    labels, owners = ([batch.column(name) for batch in batches] for name in (label, others[-1]))
    groups = None if by is None else _values(owners, by)
    if isinstance(groups, list):
        for row, owner in enumerate(groups, start=1):
            if owner is None or not str(owner).strip():
                raise DataError(f"{path}: column {by!r}, row {row}: the cell is missing, so the row has no owner")
        groups = np.array(groups, dtype=object)
    return features, np.concatenate(rows), _values(labels, label), groups


def _feature(cells: Any, name: str, path: Path, first_row: int) -> Floats:
    """Return a column of a batch as numbers. Raise DataError for a cell that is not a finite number."""
    column = f"{path}: column {name!r}"
    try:
        values = as_numbers(cells, name)
    except NotANumberError as error:
        with suppress(pa.ArrowInvalid):
            return np.asarray(pc.cast(pc.utf8_trim_whitespace(pc.cast(cells, pa.string())), pa.bool_()), dtype=float)
        raise DataError(
            f"{column}, row {first_row + error.index + 1}: {error.cell[:40]!r} is text; a feature must be numeric or "
            "boolean: encode the column, leave it out of the file, or name it with --by if it has the owner of each row"
        ) from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if not np.isfinite(values).all():
        index = int(np.argmin(np.isfinite(values)))
        is_missing = not np.isinf(values[index]) and not isinstance(cells[index].as_py(), float)
        problem = "missing" if is_missing else "not a finite number"
        hint = ": fill it in or remove the row" if is_missing else f" ({values[index]}): correct or remove the row"
        raise DataError(f"{column}, row {first_row + index + 1}: the cell is {problem}{hint}")
    return values


def _values(chunks: list[Any], name: str) -> NDArray[Any] | list[Any]:
    """Return numbers if all cells are numbers (integers if all are whole), or the cells as they are."""
    with suppress(DataError, ValueError):
        numbers = np.concatenate([as_numbers(cells, name) for cells in chunks])
        if np.isfinite(numbers).all() and np.abs(numbers).max() < 2.0**53:
            return numbers.astype(np.int64) if (numbers == np.rint(numbers)).all() else numbers
    return [cell for cells in chunks for cell in cells.to_pylist()]
