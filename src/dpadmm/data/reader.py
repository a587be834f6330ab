"""Read tables as streams of Arrow record batches of a few megabytes.

A table is a CSV, TSV, Excel, ODS, Parquet or Arrow file, a folder of such files, a table of a database
(``database.py``), or a data frame, an Arrow table or a mapping of columns in memory.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc

from dpadmm.data.cells import NotANumberError, as_numbers, bad_number_hint
from dpadmm.data.database import check_not_an_address, format_hint, read_database_table
from dpadmm.data.dialect import Dialect, notes_on_index, without_index
from dpadmm.data.spreadsheet import SHEETS, Sheet, read_sheet
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
FRAMES = ("pandas", "polars")
"""Packages whose data frames are read column by column, without the index and without a copy of other columns."""

FILES = (*DELIMITERS, ".parquet", *ARROW, *SHEETS)
DATABASE = ".toml"
"""Suffix of a file that describes a table in a database."""

SUFFIXES = (
    ".csv or .tsv (also .gz), .xlsx, .ods, .parquet, .arrow or .feather file, a folder of them, or a .toml file for a "
    "database"
)
CHUNK = 2**20
NOT_UTF8 = "UTF-8 text; save it as CSV in UTF-8, or name its encoding with --encoding, such as cp1252"


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
        """Return the names of all columns, without the index of a data frame."""

    def notes(self) -> list[str]:
        """Return notes about how the table is read, which depend on its first line and its columns only."""
        return []

    @property
    def text_files(self) -> list[Path]:
        """Files whose lines are rows."""
        return []

    @abstractmethod
    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        """Yield record batches with these columns. In a CSV they have the given Arrow types."""

    def column_types(self) -> dict[str, Any]:
        """Return the Arrow type of each column. Columns of a CSV or a database are text."""
        return dict.fromkeys(self.column_names(), TEXT)

    def row_count(self) -> int | None:
        """Return the number of rows if it is stored in the table."""
        return None


def open_table(table: Table, dialect: Dialect | None = None) -> TableSource:
    """Return the source of a table. Raise DataError if it cannot be a table. ``dialect`` is that of text files."""
    if isinstance(table, TableSource):
        return table
    if isinstance(table, str | PathLike):
        return _open_path(Path(table), dialect or Dialect())
    if is_table(table):
        return MemoryTable(table)
    raise DataError(
        "a table must be the path of a file, a data frame, an Arrow table or a mapping of columns, not a "
        f"{type(table).__name__}"
    )


def reading_notes(table: Table) -> list[str]:
    """Return notes about how a table is read; none for an archive of arrays."""
    path = path_of(table)
    return open_table(table).notes() if path is None or has_named_columns(path) else []


def is_table(rows: object) -> bool:
    """Return whether rows in memory have named columns: a data frame, an Arrow table, or a mapping of columns."""
    return isinstance(rows, Mapping | DataFrame | ArrowStream)


def path_of(table: Table) -> Path | None:
    """Return the path of a table that is a file or a folder."""
    if isinstance(table, str | PathLike):
        return Path(table)
    location = table.location if isinstance(table, TableSource) else None
    return location if isinstance(location, Path) else None


def _open_path(path: Path, dialect: Dialect) -> TableSource:
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
        return TableFolder(path, dialect)
    suffix = table_format(path)
    if suffix in DELIMITERS:
        return CsvFile(path, dialect)
    if dialect != Dialect():
        raise DataError(f"{path}: --separator, --decimal and --encoding apply to .csv and .tsv files only")
    if suffix == DATABASE:
        return DatabaseSource(path)
    if suffix in SHEETS:
        return SheetFile(path)
    return ParquetFile(path) if suffix == ".parquet" else ArrowFile(path)


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


class Header(NamedTuple):
    """Column names in the first line of a text file, its dialect, and the bytes of that line."""

    names: list[str]
    dialect: Dialect
    n_bytes: int


class CsvFile(TableSource):
    """A CSV or TSV file, also compressed."""

    def __init__(self, path: Path, dialect: Dialect | None = None) -> None:
        self.location = self.path = path
        self._given = dialect or Dialect()
        self._skips_ragged_rows, self.n_skipped = False, 0

    def without_ragged_rows(self) -> CsvFile:
        """Return the same file, in which rows with a wrong number of cells are skipped."""
        file = CsvFile(self.path, self._given)
        file._skips_ragged_rows = True
        return file

    def _skip(self, row: object) -> str:
        self.n_skipped += 1
        return "skip"

    def ragged_rows(self) -> dict[int, int]:
        """Return the number of cells of each row, from 1, that has another number than the first line. Slow."""
        names, dialect, _ = self._header
        with io.TextIOWrapper(_open(self.path), dialect.encoding, errors="replace", newline="") as text:
            rows = (row for row in csv.reader(text, delimiter=dialect.separator or ",") if row)
            return {number: len(row) for number, row in enumerate(rows) if number and len(row) != len(names)}

    def column_names(self) -> list[str]:
        return without_index(self._header.names)

    def notes(self) -> list[str]:
        header = self._header
        return [*header.dialect.notes(DELIMITERS[table_format(self.path)]), *notes_on_index(header.names)]

    @property
    def text_files(self) -> list[Path]:
        return [self.path] if self._header.dialect.is_utf8 else []

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        path, (names, dialect, header_bytes) = self.path, self._header
        if dialect.has_decimal_comma:  # pyarrow knows one decimal mark only
            columns = {name: pa.string() if kind == pa.float64() else kind for name, kind in columns.items()}
        convert = pa.csv.ConvertOptions(include_columns=list(columns), column_types=columns)
        block_bytes = min(MAX_BLOCK_BYTES, BLOCK_BYTES * max(1, header_bytes // WIDE_HEADER))
        options = pa.csv.ReadOptions(block_size=block_bytes, encoding="utf8" if dialect.is_utf8 else dialect.encoding)
        # Without newlines_in_values, a line break in quotes would depend on where a block ends
        skip = self._skip if self._skips_ragged_rows else None
        parse = pa.csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True, invalid_row_handler=skip)
        compression = "gzip" if path.suffix.lower() == ".gz" else None
        try:
            with (
                pa.input_stream(path, compression=compression) as text,
                pa.csv.open_csv(text, options, parse, convert) as reader,
            ):
                for batch in reader:
                    if batch.num_rows and dialect.has_decimal_comma:
                        batch = pa.record_batch(list(map(dialect.with_points, batch.columns)), names=list(columns))
                    if batch.num_rows:
                        yield batch
        except UNREADABLE as error:
            raise self._unreadable(error, names) from None

    @cached_property
    def _header(self) -> Header:
        path = self.path
        try:
            with _open(path) as file:
                raw = file.readline(MAX_HEADER_BYTES)
            dialect = self._given.with_encoding(raw)
            if dialect.is_utf8 and b"\0" in raw[:4]:
                raise DataError(f"{path} seems to be written in UTF-16; read it with --encoding utf-16-le or utf-16-be")
            if dialect.is_utf8:
                text = raw.decode("utf-8-sig")
            else:
                with io.TextIOWrapper(_open(path), dialect.encoding, newline="\n") as lines:
                    text = lines.readline(MAX_HEADER_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(path, error) from None
        except UnicodeError:
            hint = NOT_UTF8 if self._given.encoding is None else f"text in {self._given.encoding}; correct --encoding"
            raise DataError(f"{path}: the first line is not {hint}") from None
        if len(raw) == MAX_HEADER_BYTES or len(text) == MAX_HEADER_BYTES:
            raise DataError(f"{path}: the first line, with the column names, has more than 16 million bytes")
        text = text.strip("\r\n").partition("\r")[0]  # pyarrow also accepts \r alone as the end of a line
        dialect = dialect.with_separator(text, DELIMITERS[table_format(path)])
        before = csv.field_size_limit(MAX_HEADER_BYTES)
        try:
            return Header(dialect.names_in(text), dialect, len(raw))
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
                return DataError(f"{path}: column {name!r}{row} is not {NOT_UTF8}")
            return DataError(f"{path}: {self._bad_number_message(name, match[4])}")
        if "straddling" in reason:
            return DataError(f"{path}: a row is too long; is a quotation mark open?")
        # The rest of the reason would quote a row
        return _unreadable(path, ValueError(re.sub(r"(Expected \d+ columns, got \d+): .*", r"\1 in a row", reason)))

    def _bad_number_message(self, name: str, cell: str) -> str:
        """Return the message for a cell that is not a number, with its row. Reads the column again, as text."""
        first_row = 0
        for batch in open_batches(self, [name]):
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
        return without_index(self._schema().names)

    def notes(self) -> list[str]:
        return notes_on_index(self._schema().names)

    def column_types(self) -> dict[str, Any]:
        schema = self._schema()
        return {name: schema.field(name).type for name in without_index(schema.names)}

    @abstractmethod
    def _schema(self) -> Any:
        """Return the Arrow schema."""


def _open_parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file. The import takes 5 MB, so it is for Parquet files only."""
    from pyarrow import parquet

    return parquet.ParquetFile(path, **options)


class ParquetFile(TypedFile):
    """A Parquet file."""

    def row_count(self) -> int | None:
        try:
            with _open_parquet(self.path) as file:
                return max(0, int(file.metadata.num_rows))
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        types, text = self.column_types(), (pa.string(), pa.large_string())
        words = [name for name, kind in columns.items() if kind == TEXT and types[name] in text]
        # Neither the whole file nor a whole row group, which may be as large, is held in memory
        options = {"read_dictionary": words, "pre_buffer": False, "buffer_size": PARQUET_BYTES}
        try:
            with _open_parquet(self.path, **options) as file:
                yield from file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns))
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None

    def _schema(self) -> Any:
        try:
            with _open_parquet(self.path) as file:
                return file.schema_arrow
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from None


class ArrowFile(TypedFile):
    """A file in Arrow's IPC file format (Feather version 2)."""

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        names, wanted = self._schema().names, list(columns)
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

    def __init__(self, path: Path, dialect: Dialect | None = None) -> None:
        self.location = self.path = path
        self._parts = [_open_path(part, dialect or Dialect()) for part in parts(path)]

    def notes(self) -> list[str]:
        return self._parts[0].notes()

    @property
    def text_files(self) -> list[Path]:
        return [file for part in self._parts for file in part.text_files]

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


class SheetFile(TableSource):
    """The first sheet of an Excel or ODS file. All columns are text, as in a CSV export."""

    def __init__(self, path: Path) -> None:
        self.location = self.path = path

    @cached_property
    def _sheet(self) -> Sheet:
        return read_sheet(self.path)

    def column_names(self) -> list[str]:
        return without_index(self._sheet.columns)

    def notes(self) -> list[str]:
        sheet = self._sheet
        others = f"The sheet {sheet.name!r} is read; other sheets are ignored." if sheet.others else ""
        return [*([others] if others else []), *notes_on_index(sheet.columns)]

    def row_count(self) -> int | None:
        return int(self._sheet.cells.num_rows)

    def batches(self, columns: Mapping[str, Any]) -> Iterator[Any]:
        sheet = self._sheet
        table = sheet.cells.select([sheet.columns.index(name) for name in columns]).rename_columns(list(columns))
        yield from (batch for batch in table.to_batches(max_chunksize=BATCH_ROWS) if batch.num_rows)


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
        is_frame = type(table).__module__.partition(".")[0] in FRAMES or not isinstance(table, ArrowStream)
        if not isinstance(table, pa.Table | pa.RecordBatch | Mapping) and not is_frame:
            table = pa.table(table)  # such as a query of DuckDB, or a stream that can be read only once
        is_arrow = isinstance(table, pa.Table | pa.RecordBatch)
        names = list(table.schema.names if is_arrow else table if isinstance(table, Mapping) else table.columns)
        self._table, self._keys = table, {str(name): name for name in names}
        self._names = without_index([str(name) for name in names])

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
        cells = self._table[self._keys[name]]
        try:
            if isinstance(cells, pa.Array | pa.ChunkedArray):
                return cells
            return pa.chunked_array(cells) if isinstance(cells, ArrowStream) else pa.array(cells, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            try:
                return pa.array([_as_text(cell) for cell in cells], pa.string())
            except TypeError:
                raise DataError(f"column {name!r} has values that are neither numbers nor text") from None


def _as_text(cell: Any) -> str | None:
    """Return a cell of a column with several types as a CSV has it. Raise TypeError if it is no number or text."""
    if cell is None or cell != cell:
        return None
    if isinstance(cell, bool | np.bool_):
        return "true" if cell else "false"
    if not isinstance(cell, str | int | float | np.integer | np.floating):
        raise TypeError
    return str(cell)


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
    path = path_of(table)
    if path is None or not has_named_columns(path):
        return []
    files = open_table(table).text_files
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
