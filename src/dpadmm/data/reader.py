"""A table as a stream of record batches: named columns only, a few megabytes at a time.

A CSV, TSV, Parquet or Arrow file, a folder of such files, or a table of a database (``sources.py``).
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from dpadmm.data.cells import NotANumberError, as_numbers, no_number
from dpadmm.data.sources import advice, check_no_address, read_database_table
from dpadmm.errors import DataError
from dpadmm.parameters.suggestions import unknown_name

T = TypeVar("T")

BLOCK_BYTES = 2**20
"""Of a CSV at a time: larger blocks are slower and need more memory; a row must fit into one."""

WIDE_HEADER, WIDE_BLOCK_BYTES = 2**9, 2**25
"""Where the header alone is this long, rows may be too: blocks are as much larger, up to so many bytes."""

PARQUET_BYTES = 2**16
"""Of every column of a Parquet file at a time."""

LONGEST_HEADER = 2**24
BATCH_ROWS = 2**14
MOST_COLUMNS = 100_000
TEXT = pa.dictionary(pa.int32(), pa.string())
"""Text of a CSV: every different cell of a block once."""

UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)
"""What pyarrow raises for a file that is not what its ending says."""

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ARROW = (".arrow", ".feather")
FILES = (*DELIMITERS, ".parquet", *ARROW)
DATABASE = ".toml"
"""A file that says where a table of a database is."""

ENDINGS = ".csv or .tsv (also .gz), .parquet, .arrow or .feather file, a folder of them, or a .toml file for a database"
CHUNK = 2**20


def table_format(path: Path) -> str:
    """How a file's name ends, in small letters: ``.csv`` of ``a.csv`` and of ``a.CSV.gz``."""
    inner = Path(path.stem).suffix.lower()
    return inner if path.suffix.lower() == ".gz" and inner in DELIMITERS else path.suffix.lower()


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def open_batches(
    path: Path, columns: Sequence[str], *, numbers: frozenset[str] = frozenset(), total: bool = False,
    roles: Mapping[str, str] | None = None,
) -> Iterator[Any]:  # fmt: skip
    """Record batches with these columns; those in ``numbers`` are read as numbers, others of a CSV as text.

    What a cell becomes depends on no other cell: types are never guessed from the file. The next batches are
    read while one is looked at. ``total`` leaves numbers of a CSV as the text of every cell, so that none is refused.
    ``roles`` say what a study wants columns for, such as ``label``, to name them where they are missing.
    """
    names = column_names(path)
    wanted, counts = list(dict.fromkeys(columns)), Counter(names)
    for name in wanted:  # others of the file do not matter
        if name not in counts:
            raise unknown_name("column", name, names, path, role=(roles or {}).get(name), used=wanted)
        if counts[name] > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once")
    number = pa.string() if total else pa.float64()  # cells that are mostly different: no dictionary
    types = {name: number if name in numbers else TEXT for name in wanted}
    return ahead(_batches(path, names, types, numbers))


def _batches(path: Path, names: list[str], types: dict[str, Any], numbers: frozenset[str]) -> Iterator[Any]:
    if path.is_dir():
        for part in parts(path):
            yield from _batches(part, column_names(part), types, numbers)
    elif _is_database(path):
        yield from read_database_table(path).batches(list(types))
    elif _is_csv(path):
        yield from _csv(path, names, types)
    else:
        yield from (_parquet if table_format(path) == ".parquet" else _arrow)(path, list(types), numbers)


def column_names(path: Path) -> list[str]:
    """The names of a table's columns; what cannot be a table is refused in a sentence."""
    check_no_address(path)
    if not has_named_columns(path):
        if not path.suffix and not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        raise DataError(f"{path}: {advice(path) or f'a study needs a {ENDINGS}'}")
    if not path.exists():
        raise DataError(f"{path}: there is no such file")
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    if path.is_dir():
        names = _same_columns(parts(path))
    elif _is_database(path):
        names = read_database_table(path).names()
    else:
        names = _header(path)[0] if _is_csv(path) else list(_schema(path).names)
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(names):,} columns; at most {MOST_COLUMNS:,} can be read, one row per line")
    return names


def column_types(path: Path) -> dict[str, Any]:
    """The Arrow types of a table's columns, by name; all of a CSV and of a database are text."""
    names = column_names(path)
    if path.is_dir():
        return column_types(parts(path)[0])
    if _is_csv(path) or _is_database(path):
        return dict.fromkeys(names, TEXT)
    schema = _schema(path)
    return dict(zip(schema.names, schema.types, strict=True))


def known_count(path: Path) -> int | None:
    """The number of rows, where a file says it before they are read, as Parquet does."""
    if path.is_dir():
        counts = [known_count(part) for part in parts(path)]
        return None if None in counts else sum(each or 0 for each in counts)
    if _is_database(path) or _is_csv(path) or table_format(path) != ".parquet":
        return None
    try:
        with pa.parquet.ParquetFile(path) as file:
            return max(0, int(file.metadata.num_rows))
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def parts(folder: Path) -> list[Path]:
    """The files of a table in a folder, by name; those that begin with a dot or ``_`` are no part of it."""
    found = sorted((each for each in folder.iterdir() if each.name[0] not in "._"), key=lambda each: each.name)
    if not found:
        told = "put the table's files there; names that begin with . or _ are passed over"
        raise DataError(f"{folder} is a directory without files: {told}")
    for each in found:
        if not each.is_file() or table_format(each) not in FILES:
            said = f"{folder} is a directory, and {each.name!r} in it is no part of a table"
            raise DataError(f"{said}: keep only files that end in {', '.join(FILES)} there, all of one kind")
        if table_format(each) != table_format(found[0]):
            raise DataError(f"{folder}: {found[0].name!r} and {each.name!r} are of two kinds; keep one")
    return found


def _same_columns(files: list[Path]) -> list[str]:
    """The columns of the first file, which all others must have, with the same types."""
    names, types = column_names(files[0]), column_types(files[0])
    for each in files[1:]:
        others = column_types(each)
        if sorted(column_names(each)) != sorted(names):
            raise DataError(f"{each} has other columns than {files[0].name}; a folder's files are one table")
        for name in names:
            if others[name] != types[name]:
                said = f"column {name!r} holds {others[name]} values, and {types[name]} in {files[0].name}"
                raise DataError(f"{each}: {said}; a folder's files are one table")
    return names


def repeated(names: Sequence[str]) -> list[str]:
    """Names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def _csv(path: Path, names: list[str], types: dict[str, Any]) -> Iterator[Any]:
    convert = pa.csv.ConvertOptions(include_columns=list(types), column_types=types)
    wide = _header(path)[1] // WIDE_HEADER
    options = pa.csv.ReadOptions(block_size=min(WIDE_BLOCK_BYTES, BLOCK_BYTES * max(1, wide)))
    # a line break within quotes must not depend on where a block of the file happens to end
    parse = pa.csv.ParseOptions(delimiter=DELIMITERS[table_format(path)], newlines_in_values=True)
    packed = "gzip" if path.suffix.lower() == ".gz" else None
    try:
        with (
            pa.input_stream(path, compression=packed) as text,
            pa.csv.open_csv(text, options, parse, convert) as reader,
        ):
            yield from (batch for batch in reader if batch.num_rows)
    except UNREADABLE as error:
        raise _unreadable(path, error, names) from None


def _parquet(path: Path, wanted: list[str], numbers: frozenset[str]) -> Iterator[Any]:
    types, texts = column_types(path), (pa.string(), pa.large_string())
    words = [name for name in wanted if name not in numbers and types[name] in texts]
    try:
        # neither the whole file nor a whole row group, which may be as large, is held in memory
        with pa.parquet.ParquetFile(path, read_dictionary=words, pre_buffer=False, buffer_size=PARQUET_BYTES) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def _arrow(path: Path, wanted: list[str], _: frozenset[str]) -> Iterator[Any]:
    names = _schema(path).names
    try:
        with _open_arrow(path, [names.index(name) for name in wanted]) as reader:
            for batch in map(reader.get_batch, range(reader.num_record_batches)):
                for first in range(0, batch.num_rows, BATCH_ROWS):  # a file may be a single batch
                    yield batch.slice(first, BATCH_ROWS).select(wanted)
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


@contextmanager
def _open_arrow(path: Path, places: Sequence[int] | None = None) -> Iterator[Any]:
    """A reader of the columns at these places, or of all."""
    with pa.OSFile(str(path)) as file:  # of Arrow's stream form nobody sees that its end is missing
        if file.read(6) != b"ARROW1":
            raise pa.ArrowInvalid("it is not in Arrow's file form (IPC file, Feather version 2)")
        with pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=places)) as reader:
            yield reader


def _schema(path: Path) -> Any:
    try:
        if table_format(path) in ARROW:
            with _open_arrow(path) as reader:
                return reader.schema
        with pa.parquet.ParquetFile(path) as file:
            return file.schema_arrow
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def _header(path: Path) -> tuple[list[str], int]:
    """Names in the first line of a CSV, and how many bytes that line has."""
    try:
        with _open(path) as file:
            raw = file.readline(LONGEST_HEADER)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in raw[:4]:
        raise DataError(f"{path} is written in UTF-16; save it as CSV in UTF-8")
    if len(raw) == LONGEST_HEADER:
        raise DataError(f"{path}: the first line, which names the columns, has more than 16 million bytes")
    try:
        text = raw.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise DataError(f"{path}: the first line is not UTF-8 text; save it as CSV in UTF-8") from None
    text = text.partition("\r")[0]  # lines may end as on old Macintoshes, which pyarrow knows
    delimiter = DELIMITERS[table_format(path)]
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
        if separator in text and delimiter not in text:
            named = next((f"let its name end in {end}" for end, mark in DELIMITERS.items() if mark == separator), None)
            do = named or "save it with commas, and decimals with a point"
            raise DataError(f"{path}: its columns are separated by {name}; {do}")
    before = csv.field_size_limit(LONGEST_HEADER)
    try:
        return next(iter(csv.reader([text], delimiter=delimiter, strict=True)), []), len(raw)
    except csv.Error:
        raise DataError(
            f"{path}: the first line cannot be read as names with commas between: is a quotation mark open?"
        ) from None
    finally:
        csv.field_size_limit(before)


def _is_csv(path: Path) -> bool:
    return table_format(path) in DELIMITERS


def _is_database(path: Path) -> bool:
    return table_format(path) == DATABASE


def has_named_columns(path: Path) -> bool:
    """Whether a study can read it: a folder, or a file with such a name."""
    return path.is_dir() or table_format(path) in (*FILES, DATABASE)


def _unreadable(path: Path, error: Exception, names: Sequence[str] = ()) -> DataError:
    reason = reason_of(error)
    found = re.match(r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to (\w+): (.*)", reason)
    if found and int(found[1]) < len(names):
        name, row = names[int(found[1])], f", row {int(found[2]) - 1:,}" if found[2] else ""
        if found[3] == "string":
            return DataError(f"{path}: column {name!r}{row} is not UTF-8 text; save it as CSV in UTF-8")
        return DataError(f"{path}: {_no_number_of_file(path, name, found[4])}")
    if "straddling" in reason:
        return DataError(f"{path}: a row is too long to be one; is a quotation mark open?")
    reason = re.sub(r"(Expected \d+ columns, got \d+): .*", r"\1 in a row", reason)  # which it quotes
    return DataError(f"{path} cannot be read as {table_format(path)[1:].upper()}: {reason}")


def _no_number_of_file(path: Path, name: str, cell: str) -> str:
    """The sentence for a cell that is no number, with its row: the column is read again, as text."""
    first = 0
    for batch in open_batches(path, [name]):
        try:
            as_numbers(batch.column(0), name)
        except NotANumberError as error:
            return error.at(first)
        first += batch.num_rows
    return no_number(name, None, cell)


def reason_of(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def ahead(items: Iterator[T], count: int = 3) -> Generator[T, None, None]:
    """The same items, up to ``count`` of them made beforehand in a thread; errors come in their place."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead") as worker:
        coming: deque[Future[T]] = deque(worker.submit(next, items) for _ in range(count))
        try:
            while True:
                try:
                    item = coming.popleft().result()
                except StopIteration:
                    return
                coming.append(worker.submit(next, items))
                yield item
                del item
        finally:
            worker.shutdown(cancel_futures=True)
            if hasattr(items, "close"):
                items.close()


def line_warnings(path: Path, rows: int) -> list[str]:
    """A warning where a CSV has clearly more lines than rows: an open quotation mark joins many lines.

    It is for the table's owner only. A line break within quotation marks is a part of its cell, so nothing is
    refused: whether a table is accepted may not depend on what is in a cell.
    """
    files = [each for each in (parts(path) if path.is_dir() else [path]) if _is_csv(each)]
    lines = sum(map(count_lines, files))
    if lines - len(files) - rows <= max(3, rows // 100):
        return []
    made = f"{rows:,} row{'s' * (rows != 1)}"
    return [f"{lines:,} lines of the file make {made}: is a quotation mark open, or do cells have line breaks?"]


def count_lines(path: Path) -> int:
    """Lines that are not empty, the header among them."""
    count, at_start = 0, True
    with _open(path) as file:
        while chunk := file.read(CHUNK):
            marks = np.frombuffer(chunk, dtype=np.uint8)
            breaks = (marks == ord("\n")) | (marks == ord("\r"))
            count += int(np.count_nonzero(breaks[:-1] & ~breaks[1:])) + int(at_start and not breaks[0])
            at_start = bool(breaks[-1])
    return count
