"""CSV and Parquet: tables of named columns, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import DataError, StudyError
from dpadmm.data.raw_table import RawTable, first_nonfinite, listed, unknown_name

# what pyarrow raises for a file that is not what its ending says
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)

PARSE = pa.csv.ParseOptions(newlines_in_values=True)
"""A line break within quotes must not depend on where a block of the file happens to end."""


def read_csv(path: Path, label: str | None, by: str | None, columns: Sequence[str] | None = None) -> RawTable:
    """A comma-separated file with a header line; all columns, or those chosen."""
    chosen: dict[str, Any] = {}
    if columns is not None:
        wanted = _wanted(path, _csv_names(path), (*columns, label, by))
        # As text: whether two rows have one owner must not depend on how the others are written
        chosen = {"include_columns": wanted, "column_types": {by: pa.string()} if by else {}}
    try:
        try:
            table = pa.csv.read_csv(
                path, parse_options=PARSE, convert_options=pa.csv.ConvertOptions(**chosen)
            )
        except pa.ArrowInvalid:
            # A column's type is guessed from its beginning: whole numbers may be followed by fractions or
            # text. Text always fits; the cells become numbers below, where a bad one can be named.
            names = chosen.get("include_columns") or pa.csv.open_csv(path, parse_options=PARSE).schema.names
            chosen["column_types"] = {name: pa.string() for name in names}
            table = pa.csv.read_csv(
                path, parse_options=PARSE, convert_options=pa.csv.ConvertOptions(**chosen)
            )
    except _UNREADABLE as error:
        raise _unreadable(path, "CSV", error) from None
    return _from_table(path, table, label, by, columns)


def read_parquet(
    path: Path, label: str | None, by: str | None, columns: Sequence[str] | None = None
) -> RawTable:
    """A Parquet file; all columns, or those chosen."""
    try:
        with pa.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            table = file.read() if columns is None else None
    except _UNREADABLE as error:
        raise _unreadable(path, "Parquet", error) from None
    if columns is not None:
        wanted = _wanted(path, names, (*columns, label, by))
        try:
            with pa.parquet.ParquetFile(path) as file:
                table = file.read(columns=wanted).select(wanted)
        except _UNREADABLE as error:
            raise _unreadable(path, "Parquet", error) from None
    return _from_table(path, table, label, by, columns)


def _csv_names(path: Path) -> list[str]:
    try:
        with pa.csv.open_csv(path, parse_options=PARSE) as file:
            return list(file.schema.names)
    except _UNREADABLE as error:
        raise _unreadable(path, "CSV", error) from None


def _wanted(path: Path, names: list[str], wanted: Iterable[str | None]) -> list[str]:
    """The columns that are wanted, each once; those of the file that are not do not matter at all."""
    chosen = list(dict.fromkeys(name for name in wanted if name is not None))
    for name in chosen:
        if name not in names:
            raise unknown_name("column", name, names, path)
        if names.count(name) > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once")
    return chosen


def _from_table(
    path: Path, table: Any, label: str | None, by: str | None, columns: Sequence[str] | None
) -> RawTable:
    try:
        names: list[str] = table.column_names
    except UnicodeDecodeError as error:
        raise _unreadable(path, "table", error) from None
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} occurs more than once")
    if label is None:
        raise StudyError(
            f"{path}: name the label column with label= or --label; the columns are {listed(names)}"
        )
    for name in (label, by):
        if name is not None and name not in names:
            raise unknown_name("column", name, names, path)
    if label == by:
        raise StudyError(f"column {label!r} cannot be both the label and the owner of a row")
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows")
    others = tuple(name for name in names if name not in (label, by))
    feature_names = others if columns is None else tuple(columns)
    features = np.empty((table.num_rows, len(feature_names)))
    for place, name in enumerate(feature_names):
        _fill(features[:, place], table.column(name), f"{path}: column {name!r}")
    bad = first_nonfinite(features)
    if bad is not None:
        raise DataError(
            f"{path}: column {feature_names[bad[1]]!r}, row {bad[0] + 1}: the cell is not a finite number "
            f"({features[bad]}): correct or remove the row"
        )
    groups = None if by is None else _groups(table.column(by), f"{path}: column {by!r}")
    return RawTable(features, _values(table.column(label)), groups, feature_names)


def _fill(out: Floats, column: Any, where: str) -> None:
    """Copy a column into the matrix, chunk by chunk."""
    if column.null_count:
        raise DataError(
            f"{where}, row {_first(column.is_null()) + 1}: the cell is missing: fill it in or remove the row"
        )
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = _parsed(column, where)
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{where} holds {kind} values; a feature must be numeric or boolean")
    start = 0
    for chunk in column.chunks:
        out[start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
        start += len(chunk)


def _parsed(column: Any, where: str) -> Any:
    """Text as numbers, or as truth values; the first cell that is not a number is named."""
    trimmed = pc.utf8_trim_whitespace(column)
    for kind in (pa.float64(), pa.bool_()):
        if _is_text_of(kind, trimmed):
            return trimmed.cast(kind)
    good, end = 0, len(trimmed)  # the first bad cell lies in between: halve until one is left
    while end - good > 1:
        middle = (good + end) // 2
        if _is_text_of(pa.float64(), trimmed.slice(good, middle - good)):
            good = middle
        else:
            end = middle
    cell = trimmed[good].as_py()
    problem = f"{cell[:40]!r} is text" if cell else "the cell is missing"
    raise DataError(
        f"{where}, row {good + 1}: {problem}; a feature must be numeric or boolean: "
        "encode the column, leave it out of the file, or name it with --by if it says who owns a row"
    )


def _is_text_of(kind: Any, column: Any) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _groups(column: Any, where: str) -> NDArray[Any]:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    missing = (
        pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True) if is_text else column.is_null()
    )
    if pc.any(missing).as_py():
        raise DataError(f"{where}, row {_first(missing) + 1}: the cell is missing, so the row has no owner")
    values = _values(column)
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=object)


def _values(column: Any) -> NDArray[Any] | list[Any]:
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if plain and not column.null_count:
        return np.asarray(column.to_numpy())
    values: list[Any] = column.to_pylist()
    return values


def _first(mask: Any) -> int:
    return int(pc.index(mask, True).as_py())


def _unreadable(path: Path, kind: str, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return DataError(f"{path} cannot be read as {kind}: {reason[:200]}")
