"""A CSV or Parquet file as a stream of batches: named columns only, a few megabytes at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpadmm.data.raw_table import unknown_name
from dpadmm.errors import DataError

BLOCK_BYTES = 2**23
BATCH_ROWS = 2**16
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)  # what pyarrow raises for a bad file


def open_batches(
    path: Path, columns: Sequence[str], *, numbers: frozenset[str] = frozenset()
) -> Iterator[Any]:
    """Record batches with these columns; those in ``numbers`` are read as numbers, others of a CSV as text.

    What a cell becomes depends on no other cell: types are never guessed from the file.
    """
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise DataError(f"{path}: a study's table must be a .csv or .parquet file")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    wanted = list(dict.fromkeys(columns))
    return _csv(path, wanted, numbers) if suffix == ".csv" else _parquet(path, wanted)


def column_names(path: Path) -> list[str]:
    """The names of a file's columns."""
    try:
        if path.suffix.lower() == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                return list(file.schema_arrow.names)
        with pa.csv.open_csv(path, read_options=pa.csv.ReadOptions(block_size=BLOCK_BYTES)) as reader:
            return list(reader.schema.names)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _csv(path: Path, wanted: list[str], numbers: frozenset[str]) -> Iterator[Any]:
    _check(path, column_names(path), wanted)
    types = {name: pa.float64() if name in numbers else pa.string() for name in wanted}
    convert = pa.csv.ConvertOptions(include_columns=wanted, column_types=types)
    options = pa.csv.ReadOptions(block_size=BLOCK_BYTES)
    try:
        with pa.csv.open_csv(path, read_options=options, convert_options=convert) as reader:
            yield from (batch for batch in reader if batch.num_rows)
    except _UNREADABLE as error:
        raise _unreadable(path, error, column_names(path)) from None


def _parquet(path: Path, wanted: list[str]) -> Iterator[Any]:
    _check(path, column_names(path), wanted)
    try:
        with pa.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _check(path: Path, names: list[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise unknown_name("column", name, names, path)
        if names.count(name) > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once")


def _unreadable(path: Path, error: Exception, names: Sequence[str] = ()) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    found = re.match(r"In CSV column #(\d+): CSV conversion error to (?:double|string): (.*)", reason)
    if found and int(found[1]) < len(names):
        hint = "; decimals are written with a point" if re.search(r"\d,\d", found[2]) else ""
        return DataError(
            f"{path}: column {names[int(found[1])]!r} is a number in the study, but {found[2]}{hint}"
        )
    return DataError(f"{path} cannot be read as {path.suffix[1:].upper()}: {reason}")
