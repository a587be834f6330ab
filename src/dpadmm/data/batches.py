"""A CSV or Parquet file as a stream of batches: named columns only, a few megabytes at a time."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpadmm._base.errors import DataError
from dpadmm.data.ahead import ahead
from dpadmm.data.raw_table import unknown_name

BLOCK_BYTES = 2**20
"""Of a CSV at a time: larger blocks are slower and need more memory; a row must fit into one."""

WIDE_HEADER, WIDE_BLOCK_BYTES = 2**9, 2**25
"""Where the header alone is this long, rows may be too: blocks are as much larger, up to so many bytes."""

LONGEST_HEADER = 2**24
BATCH_ROWS = 2**14
MOST_COLUMNS = 100_000
MISSING = ("", *(word for word in pyarrow.csv.ConvertOptions().null_values if word))
"""Cells that say that there is no number."""

TEXT = pa.dictionary(pa.int32(), pa.string())
"""Text of a CSV: every different cell of a block once."""

_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)  # what pyarrow raises for a bad file
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def open_batches(
    path: Path, columns: Sequence[str], *, numbers: frozenset[str] = frozenset()
) -> Iterator[Any]:
    """Record batches with these columns; those in ``numbers`` are read as numbers, others of a CSV as text.

    What a cell becomes depends on no other cell: types are never guessed from the file. The next batches are
    read while one is looked at.
    """
    names = column_names(path)
    wanted = list(dict.fromkeys(columns))
    _check(path, names, wanted)
    return ahead(_csv(path, names, wanted, numbers) if _is_csv(path) else _parquet(path, wanted, numbers))


def column_names(path: Path) -> list[str]:
    """The names of a file's columns; a file that cannot be a table is refused in a sentence."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"{path}: a study's table must be a .csv or .parquet file")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    names = _header(path)[0] if _is_csv(path) else list(_parquet_schema(path).names)
    if len(names) > MOST_COLUMNS:
        raise DataError(
            f"{path} has {len(names):,} columns; at most {MOST_COLUMNS:,} can be read, one row per line"
        )
    return names


def column_types(path: Path) -> dict[str, Any]:
    """The Arrow types of a file's columns, by name; all of a CSV are text."""
    names = column_names(path)
    if _is_csv(path):
        return dict.fromkeys(names, TEXT)
    schema = _parquet_schema(path)
    return dict(zip(schema.names, schema.types, strict=True))


def repeated(names: Sequence[str]) -> list[str]:
    """Names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def _csv(path: Path, names: list[str], wanted: list[str], numbers: frozenset[str]) -> Iterator[Any]:
    types = {name: pa.float64() if name in numbers else TEXT for name in wanted}
    convert = pa.csv.ConvertOptions(include_columns=wanted, column_types=types)
    wide = _header(path)[1] // WIDE_HEADER
    options = pa.csv.ReadOptions(block_size=min(WIDE_BLOCK_BYTES, BLOCK_BYTES * max(1, wide)))
    # A line break within quotes must not depend on where a block happens to end
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    try:
        with pa.csv.open_csv(path, options, parse, convert) as reader:
            yield from (batch for batch in reader if batch.num_rows)
    except _UNREADABLE as error:
        raise _unreadable(path, error, names) from None


def _parquet(path: Path, wanted: list[str], numbers: frozenset[str]) -> Iterator[Any]:
    types, texts = column_types(path), (pa.string(), pa.large_string())
    words = [name for name in wanted if name not in numbers and types[name] in texts]
    try:
        with pa.parquet.ParquetFile(path, read_dictionary=words) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _parquet_schema(path: Path) -> Any:
    try:
        with pa.parquet.ParquetFile(path) as file:
            return file.schema_arrow
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _header(path: Path) -> tuple[list[str], int]:
    """Names in the first line of a CSV, and how many bytes that line has."""
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        encoding = _BOMS.get(start[:2]) or ("UTF-16" if b"\0" in start else None)
        if encoding:
            raise DataError(f"{path} is written in {encoding}; save it as CSV in UTF-8")
        raw = file.readline(LONGEST_HEADER)
    if len(raw) == LONGEST_HEADER:
        raise DataError(f"{path}: the first line, which names the columns, has more than 16 million bytes")
    try:
        text = raw.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{path}: the first line is not UTF-8 text; save it as CSV in UTF-8") from None
    if "\r" in text:  # lines that end as on old Macintoshes, which pyarrow knows
        text = text.partition("\r")[0]
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if separator in text and "," not in text:
            raise DataError(
                f"{path}: its columns are separated by {name}; save it with commas, and decimals with a point"
            )
    before = csv.field_size_limit(LONGEST_HEADER)
    try:
        return next(iter(csv.reader([text], strict=True)), []), len(raw)
    except csv.Error:
        raise DataError(
            f"{path}: the first line cannot be read as names with commas between: is a quotation mark open?"
        ) from None
    finally:
        csv.field_size_limit(before)


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _check(path: Path, names: list[str], wanted: Sequence[str]) -> None:
    counts = Counter(names)
    for name in wanted:
        if name not in counts:
            raise unknown_name("column", name, names, path)
        if counts[name] > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once")


def _unreadable(path: Path, error: Exception, names: Sequence[str] = ()) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    found = re.match(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): (.*)", reason)
    if found and int(found[1]) < len(names):
        name, row = names[int(found[1])], f", row {int(found[2]) - 1:,}" if found[2] else ""
        if found[3] == "string":
            return DataError(f"{path}: column {name!r}{row} is not UTF-8 text; save it as CSV in UTF-8")
        return DataError(f"{path}: {_no_number_of_file(path, name, found[4])}")
    if "straddling" in reason:
        return DataError(f"{path}: a row is too long to be one; is a quotation mark open?")
    reason = re.sub(r"(Expected \d+ columns, got \d+): .*", r"\1 in a row", reason)  # which it quotes
    return DataError(f"{path} cannot be read as {path.suffix[1:].upper()}: {reason}")


def no_number(name: str, row: int | None, cell: str) -> str:
    """What to do about a cell that is no number; it may be private, so it is not quoted."""
    which = "a cell" if row is None else f"the cell in row {row:,}"
    return (
        f"column {name!r}: {which} should be a number and is not{comma_hint(cell)}; correct it, or leave it "
        "empty if the number is not known"
    )


def _no_number_of_file(path: Path, name: str, cell: str) -> str:
    """The same with the row, for which the column is read again, as text."""
    from dpadmm.data.cells import NoNumber, as_numbers

    first = 0
    for batch in open_batches(path, [name]):
        try:
            as_numbers(batch.column(0), name)
        except NoNumber as error:
            return error.at(first)
        first += batch.num_rows
    return no_number(name, None, cell)


def comma_hint(cell: str) -> str:
    """What to do about a decimal comma."""
    return "; decimals are written with a point" if re.search(r"\d,\d", cell) else ""
