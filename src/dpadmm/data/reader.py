"""Read tables as streams of Arrow record batches of a few megabytes.

A table is a CSV, TSV, Parquet or Arrow file, a folder of such files, a table of a database (``database.py``), or a data
frame, an Arrow table or a mapping of columns in memory.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc

from dpadmm.data.cells import NotANumberError, as_numbers, bad_number_hint
from dpadmm.data.database import check_not_an_address, format_hint, read_database_table
from dpadmm.errors import DataError
from dpadmm.parameters.suggestions import unknown_name

T = TypeVar("T")
Table: TypeAlias = Any
"""A path; a data frame of pandas or polars; an Arrow table or another object with the Arrow PyCapsule interface; or a
mapping of columns."""

MAX_EXACT = 1e15
"""Whole numbers below it have the same text as floats and as integers."""

BLOCK_BYTES = 2**20
"""Bytes of a CSV that are read at once. Larger blocks are slower and need more memory. A row must fit into one."""

WIDE_HEADER, MAX_BLOCK_BYTES = 2**9, 2**25
"""A header longer than the first number increases the block in proportion, up to the second number."""

PARQUET_BYTES = 2**16
"""Bytes of each column of a Parquet file that are read at once."""

MAX_HEADER_BYTES = 2**24
BATCH_ROWS = 2**14
MAX_COLUMNS = 100_000
TEXT = pa.dictionary(pa.int32(), pa.string())
"""Type of text columns of a CSV: each distinct cell of a block is stored once."""

UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)
"""Errors of pyarrow for a file that does not match its suffix."""

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ARROW = (".arrow", ".feather")
FILES = (*DELIMITERS, ".parquet", *ARROW)
DATABASE = ".toml"
"""Suffix of a file that describes a table in a database."""

SUFFIXES = (
    ".csv or .tsv (also .gz), .parquet, .arrow or .feather file, a folder of them, or a .toml file for a database"
)
CHUNK = 2**20


@runtime_checkable
class ArrowStream(Protocol):
    """An object with the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


@runtime_checkable
class DataFrame(Protocol):
    """A data frame of pandas or polars: columns by name."""

    @property
    def columns(self) -> Any: ...
    def __getitem__(self, name: Any) -> Any: ...


class TableSource(ABC):
    """A table that can be read several times. ``location`` names it in messages."""

    location: object

    @abstractmethod
    def column_names(self) -> list[str]:
        """Return the names of all columns."""

    @abstractmethod
    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        """Yield record batches with these columns. In a CSV they have the given Arrow types."""

    def column_types(self) -> dict[str, Any]:
        """Return the Arrow type of each column. Columns of a CSV or a database are text."""
        return dict.fromkeys(self.column_names(), TEXT)

    def row_count(self) -> int | None:
        """Return the number of rows if it is stored in the table."""
        return None


def open_table(table: Table) -> TableSource:
    """Return the source of a table. Raise DataError if it cannot be a table."""
    if isinstance(table, TableSource):
        return table
    if isinstance(table, str | PathLike):
        return _open_path(Path(table))
    if is_table(table):
        return MemoryTable(table)
    raise DataError(
        "a table must be the path of a file, a data frame, an Arrow table or a mapping of columns, not a "
        f"{type(table).__name__}"
    )


def is_table(rows: object) -> bool:
    """Return whether rows in memory have named columns: a data frame, an Arrow table, or a mapping of columns."""
    return isinstance(rows, Mapping | DataFrame | ArrowStream)


def _open_path(path: Path) -> TableSource:
    check_not_an_address(path)
    if not has_named_columns(path):
        if not path.suffix and not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        raise DataError(f"{path}: unknown ending {path.suffix!r}; {format_hint(path) or f'a study needs a {SUFFIXES}'}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    if path.is_dir():
        return TableFolder(path)
    suffix = table_format(path)
    if suffix == DATABASE:
        return DatabaseSource(path)
    if suffix in DELIMITERS:
        return CsvFile(path)
    if suffix == ".parquet":
        return ParquetFile(path)
    return ArrowFile(path)


def column_names(table: Table) -> list[str]:
    """Return the column names of a table."""
    source = open_table(table)
    names = source.column_names()
    if len(names) > MAX_COLUMNS:
        raise DataError(
            f"{source.location} has {len(names):,} columns; at most {MAX_COLUMNS:,} can be read, one row per line"
        )
    return names


def open_batches(
    table: Table, columns: Sequence[str], *, numbers: frozenset[str] = frozenset(), invalid_as_missing: bool = False,
    roles: Mapping[str, str] | None = None,
) -> Generator[Any, None, None]:  # fmt: skip
    """Return record batches with these columns. The next batches are read in a thread.

    A cell is converted independently of other cells: types are never inferred from a file.

    Parameters
    ----------
    columns : sequence of str
        Columns to read.
    numbers : frozenset of str
        Columns of a CSV to read as numbers; others are read as text.
    invalid_as_missing : bool
        Whether ``numbers`` of a CSV are read as text, so that a cell that is not a number raises no error.
    roles : mapping, optional
        Role of a column, such as "label", for the error if it is missing.
    """
    source = open_table(table)
    names = column_names(source)
    wanted, counts = list(dict.fromkeys(columns)), Counter(names)
    for name in wanted:
        if name not in counts:
            raise unknown_name("column", name, names, source.location, role=(roles or {}).get(name), used=wanted)
        if counts[name] > 1:
            raise DataError(f"{source.location}: column {name!r} occurs more than once")
    number = pa.string() if invalid_as_missing else pa.float64()  # no dictionary, because most numbers are distinct
    return ahead(source.batches({name: number if name in numbers else TEXT for name in wanted}))


class CsvFile(TableSource):
    """A CSV or TSV file, also compressed."""

    def __init__(self, path: Path) -> None:
        self.location = self.path = path

    def column_names(self) -> list[str]:
        return self._header()[0]

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        path, (names, header_bytes) = self.path, self._header()
        convert = pa.csv.ConvertOptions(include_columns=list(columns), column_types=columns)
        block_bytes = min(MAX_BLOCK_BYTES, BLOCK_BYTES * max(1, header_bytes // WIDE_HEADER))
        options = pa.csv.ReadOptions(block_size=block_bytes)
        # Without newlines_in_values, a line break in quotes would depend on where a block ends
        parse = pa.csv.ParseOptions(delimiter=DELIMITERS[table_format(path)], newlines_in_values=True)
        compression = "gzip" if path.suffix.lower() == ".gz" else None
        try:
            with (
                pa.input_stream(path, compression=compression) as text,
                pa.csv.open_csv(text, options, parse, convert) as reader,
            ):
                yield from (batch for batch in reader if batch.num_rows)
        except UNREADABLE as error:
            raise self._unreadable(error, names) from None

    def _header(self) -> tuple[list[str], int]:
        """Return the names in the first line, and the bytes of that line."""
        path = self.path
        try:
            with _open(path) as file:
                raw = file.readline(MAX_HEADER_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from None
        if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in raw[:4]:
            raise DataError(f"{path} is written in UTF-16; save it as CSV in UTF-8")
        if len(raw) == MAX_HEADER_BYTES:
            raise DataError(f"{path}: the first line, with the column names, has more than 16 million bytes")
        try:
            text = raw.decode("utf-8-sig").strip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{path}: the first line is not UTF-8 text; save it as CSV in UTF-8") from None
        text = text.partition("\r")[0]  # pyarrow also accepts \r alone as the end of a line
        delimiter = DELIMITERS[table_format(path)]
        for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
            if separator in text and delimiter not in text:
                suffix = next((end for end, mark in DELIMITERS.items() if mark == separator), None)
                hint = f"let its name end in {suffix}" if suffix else "save it with commas, and decimals with a point"
                raise DataError(f"{path}: its columns are separated by {name}; {hint}")
        before = csv.field_size_limit(MAX_HEADER_BYTES)
        try:
            return next(iter(csv.reader([text], delimiter=delimiter, strict=True)), []), len(raw)
        except csv.Error:
            raise DataError(
                f"{path}: the first line cannot be read as comma-separated names: is a quotation mark open?"
            ) from None
        finally:
            csv.field_size_limit(before)

    def _unreadable(self, error: Exception, names: Sequence[str]) -> DataError:
        path, reason = self.path, first_line(error)
        match = re.match(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): (.*)", reason)
        if match and int(match[1]) < len(names):
            name, row = names[int(match[1])], f", row {int(match[2]) - 1:,}" if match[2] else ""
            if match[3] == "string":
                return DataError(f"{path}: column {name!r}{row} is not UTF-8 text; save it as CSV in UTF-8")
            return DataError(f"{path}: {self._bad_number_message(name, match[4])}")
        if "straddling" in reason:
            return DataError(f"{path}: a row is too long; is a quotation mark open?")
        # The rest of the reason would quote a row
        return _unreadable(path, ValueError(re.sub(r"(Expected \d+ columns, got \d+): .*", r"\1 in a row", reason)))

    def _bad_number_message(self, name: str, cell: str) -> str:
        """Return the message for a cell that is not a number, with its row. Reads the column again, as text."""
        first_row = 0
        for batch in open_batches(self.path, [name]):
            try:
                as_numbers(batch.column(0), name)
            except NotANumberError as error:
                return error.message(first_row)
            first_row += batch.num_rows
        return f"column {name!r}: a cell{bad_number_hint(cell)}"


class TypedFile(TableSource):
    """A file that stores the types of its columns."""

    def __init__(self, path: Path) -> None:
        self.location = self.path = path

    def column_names(self) -> list[str]:
        return list(self._schema().names)

    def column_types(self) -> dict[str, Any]:
        schema = self._schema()
        return dict(zip(schema.names, schema.types, strict=True))

    @abstractmethod
    def _schema(self) -> Any:
        """Return the Arrow schema."""


class ParquetFile(TypedFile):
    """A Parquet file."""

    def row_count(self) -> int | None:
        try:
            with pa.parquet.ParquetFile(self.path) as file:
                return max(0, int(file.metadata.num_rows))
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        types, text = self.column_types(), (pa.string(), pa.large_string())
        words = [name for name, kind in columns.items() if kind == TEXT and types[name] in text]
        # Neither the whole file nor a whole row group, which may be as large, is held in memory
        options = {"read_dictionary": words, "pre_buffer": False, "buffer_size": PARQUET_BYTES}
        try:
            with pa.parquet.ParquetFile(self.path, **options) as file:
                yield from file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns))
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None

    def _schema(self) -> Any:
        try:
            with pa.parquet.ParquetFile(self.path) as file:
                return file.schema_arrow
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None


class ArrowFile(TypedFile):
    """A file in Arrow's IPC file format (Feather version 2)."""

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        names, wanted = self.column_names(), list(columns)
        try:
            with self._opened([names.index(name) for name in wanted]) as reader:
                for batch in map(reader.get_batch, range(reader.num_record_batches)):
                    for start in range(0, batch.num_rows, BATCH_ROWS):  # a file may be a single batch
                        yield batch.slice(start, BATCH_ROWS).select(wanted)
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None

    def _schema(self) -> Any:
        try:
            with self._opened() as reader:
                return reader.schema
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None

    @contextmanager
    def _opened(self, indices: Sequence[int] | None = None) -> Iterator[Any]:
        """Yield a reader of the columns at these indices (default: all)."""
        with pa.OSFile(str(self.path)) as file:
            if file.read(6) != b"ARROW1":  # Arrow's stream format has no end mark, so a truncated file would be valid
                raise pa.ArrowInvalid("it is not in Arrow's file form (IPC file, Feather version 2)")
            with pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=indices)) as reader:
                yield reader


class TableFolder(TableSource):
    """A folder whose files are one table."""

    def __init__(self, path: Path) -> None:
        self.location = self.path = path
        self._parts = [_open_path(part) for part in parts(path)]

    def column_names(self) -> list[str]:
        first, *others = self._parts
        names, types = first.column_names(), first.column_types()
        for part in others:
            part_types = part.column_types()
            if sorted(part.column_names()) != sorted(names):
                raise DataError(
                    f"{part.location} has other columns than {self._first_name}; a folder's files are one table"
                )
            for name in names:
                if part_types[name] != types[name]:
                    raise DataError(
                        f"{part.location}: column {name!r} holds {part_types[name]} values, and {types[name]} in "
                        f"{self._first_name}; a folder's files are one table"
                    )
        return names

    @property
    def _first_name(self) -> str:
        return Path(str(self._parts[0].location)).name

    def column_types(self) -> dict[str, Any]:
        return self._parts[0].column_types()

    def row_count(self) -> int | None:
        counts = [part.row_count() for part in self._parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        for part in self._parts:
            yield from part.batches(columns)


class DatabaseSource(TableSource):
    """A table of a database, described by a TOML file. All columns are text, as in a CSV export."""

    def __init__(self, path: Path) -> None:
        self.location = path
        self._table = read_database_table(path)

    def column_names(self) -> list[str]:
        return self._table.column_names()

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        return self._table.batches(list(columns))


class MemoryTable(TableSource):
    """A table in memory. Its columns are used without a copy where Arrow has their type."""

    location: object = "the table"

    def __init__(self, table: Any) -> None:
        if not isinstance(table, pa.Table | pa.RecordBatch | Mapping | DataFrame):
            table = pa.table(table)
        is_arrow = isinstance(table, pa.Table | pa.RecordBatch)
        names = table.schema.names if is_arrow else table if isinstance(table, Mapping) else table.columns
        self._table, self._names = table, [str(name) for name in names]

    def column_names(self) -> list[str]:
        return self._names

    def column_types(self) -> dict[str, Any]:
        return {name: self._column(name).type for name in self._names}

    def row_count(self) -> int | None:
        has_unique_names = len(set(self._names)) == len(self._names)
        return len(self._column(self._names[0])) if self._names and has_unique_names else None

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        arrays = [self._column(name) for name in columns]
        for (name, kind), array in zip(columns.items(), arrays, strict=True):
            if kind == TEXT and pa.types.is_floating(array.type):
                _check_exact(name, array)
        if len({len(array) for array in arrays}) > 1:
            raise DataError("the table: its columns have different numbers of rows")
        batches = pa.table(arrays, names=list(columns)).to_batches(max_chunksize=BATCH_ROWS)
        yield from (batch for batch in batches if batch.num_rows)

    def _column(self, name: str) -> Any:
        cells = self._table[name]
        try:
            if isinstance(cells, pa.Array | pa.ChunkedArray):
                return cells
            return pa.chunked_array(cells) if isinstance(cells, ArrowStream) else pa.array(cells, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise DataError(f"column {name!r} mixes types, or its values are not numbers or text") from None


def _check_exact(name: str, numbers: Any) -> None:
    """Raise DataError if whole numbers are too large to be text without loss.

    Data frames store whole numbers as floats if another cell of the column is missing or a fraction.
    """
    from pyarrow import compute  # slow

    largest = compute.max(compute.abs(numbers), skip_nulls=True).as_py()
    if largest is not None and largest >= MAX_EXACT:
        raise DataError(
            f"column {name!r} has numbers from 10^15 that are stored as floating point, but the study needs text; "
            "convert the column to text"
        )


def table_format(path: Path) -> str:
    """Return the suffix of a table's file in lower case: ``.csv`` for ``a.csv`` and for ``a.CSV.gz``."""
    inner = Path(path.stem).suffix.lower()
    return inner if path.suffix.lower() == ".gz" and inner in DELIMITERS else path.suffix.lower()


def has_named_columns(path: Path) -> bool:
    """Return whether a path has the form of a table with named columns: a folder, or a file with such a suffix."""
    return path.is_dir() or table_format(path) in (*FILES, DATABASE)


def parts(folder: Path) -> list[Path]:
    """Return the files of a table in a folder, by name. Files that begin with a dot or ``_`` are ignored."""
    files = sorted((file for file in folder.iterdir() if file.name[0] not in "._"), key=lambda file: file.name)
    if not files:
        raise DataError(
            f"{folder} is a directory without files: put the table's files there; names that begin with . or _ are "
            "ignored"
        )
    for file in files:
        if not file.is_file() or table_format(file) not in FILES:
            raise DataError(
                f"{folder} is a directory, and {file.name!r} in it is no part of a table: keep only files that end in "
                f"{', '.join(FILES)} there, all of one kind"
            )
        if table_format(file) != table_format(files[0]):
            raise DataError(f"{folder}: {files[0].name!r} and {file.name!r} are of two kinds; keep one")
    return files


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as {table_format(path)[1:].upper()}: {first_line(error)}")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def ahead(items: Iterator[T], count: int = 3) -> Generator[T, None, None]:
    """Yield the same items, of which up to ``count`` are computed in advance in a thread. Errors keep their place."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead") as worker:
        pending: deque[Future[T]] = deque(worker.submit(next, items) for _ in range(count))
        try:
            while True:
                try:
                    item = pending.popleft().result()
                except StopIteration:
                    return
                pending.append(worker.submit(next, items))
                yield item
                del item
        finally:
            worker.shutdown(cancel_futures=True)
            if isinstance(items, Generator):
                items.close()


def line_warnings(table: Table, rows: int) -> list[str]:
    """Return a warning if a CSV has clearly more lines than rows, because an open quotation mark joins lines.

    The warning is for the owner only. A line break in quotation marks is part of its cell and never an error, because
    whether a table is accepted may not depend on its cells.
    """
    if not isinstance(table, str | PathLike):
        return []
    path = Path(table)
    files = [file for file in (parts(path) if path.is_dir() else [path]) if table_format(file) in DELIMITERS]
    lines = sum(map(count_lines, files))
    if lines - len(files) - rows <= max(3, rows // 100):
        return []
    return [
        f"{lines:,} lines of the file make {rows:,} row{'s' * (rows != 1)}: is a quotation mark open, or do cells have "
        "line breaks?"
    ]


def count_lines(path: Path) -> int:
    """Return the number of lines that are not empty, including the header."""
    count, at_start = 0, True
    with _open(path) as file:
        while chunk := file.read(CHUNK):
            marks = np.frombuffer(chunk, dtype=np.uint8)
            breaks = (marks == ord("\n")) | (marks == ord("\r"))
            count += int(np.count_nonzero(breaks[:-1] & ~breaks[1:])) + int(at_start and not breaks[0])
            at_start = bool(breaks[-1])
    return count
