"""A CSV, TSV or Parquet file as a stream of record batches: named columns only, a few megabytes at a time."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from dpadmm._base.errors import DataError
from dpadmm._base.suggestions import unknown_name
from dpadmm.data.cells import NoNumber, as_numbers, no_number

T = TypeVar("T")

BLOCK_BYTES = 2**20
"""Of a CSV at a time: larger blocks are slower and need more memory; a row must fit into one."""

WIDE_HEADER, WIDE_BLOCK_BYTES = 2**9, 2**25
"""Where the header alone is this long, rows may be too: blocks are as much larger, up to so many bytes."""

LONGEST_HEADER = 2**24
BATCH_ROWS = 2**14
MOST_COLUMNS = 100_000
TEXT = pa.dictionary(pa.int32(), pa.string())
"""Text of a CSV: every different cell of a block once."""

UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError)
"""What pyarrow raises for a file that is not what its ending says."""

DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = ".csv or .tsv (also .gz) or .parquet"
CHUNK = 2**20


def table_format(path: Path) -> str:
    """How a file's name ends, in small letters: ``.csv`` of ``a.csv`` and of ``a.CSV.gz``."""
    inner = Path(path.stem).suffix.lower()
    return inner if path.suffix.lower() == ".gz" and inner in DELIMITERS else path.suffix.lower()


def _open(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def open_batches(path: Path, columns: Sequence[str], *, numbers: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Record batches with these columns; those in ``numbers`` are read as numbers, others of a CSV as text.

    What a cell becomes depends on no other cell: types are never guessed from the file. The next batches are
    read while one is looked at.
    """
    names = column_names(path)
    wanted, counts = list(dict.fromkeys(columns)), Counter(names)
    for name in wanted:  # others of the file do not matter
        if name not in counts:
            raise unknown_name("column", name, names, path)
        if counts[name] > 1:
            raise DataError(f"{path}: column {name!r} occurs more than once")
    return ahead(_csv(path, names, wanted, numbers) if _is_csv(path) else _parquet(path, wanted, numbers))


def column_names(path: Path) -> list[str]:
    """The names of a file's columns; a file that cannot be a table is refused in a sentence."""
    if not has_named_columns(path):
        raise DataError(f"{path}: a study's table must be a {ENDINGS} file")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    names = _header(path)[0] if _is_csv(path) else list(_parquet_schema(path).names)
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(names):,} columns; at most {MOST_COLUMNS:,} can be read, one row per line")
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
        with pa.parquet.ParquetFile(path, read_dictionary=words) as file:
            yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)
    except UNREADABLE as error:
        raise _unreadable(path, error) from None


def _parquet_schema(path: Path) -> Any:
    try:
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


def has_named_columns(path: Path) -> bool:
    """Whether a study can read the file, by its name."""
    return _is_csv(path) or table_format(path) == ".parquet"


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
        except NoNumber as error:
            return error.at(first)
        first += batch.num_rows
    return no_number(name, None, cell)


def reason_of(error: Exception) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def ahead(items: Iterator[T], count: int = 2) -> Generator[T, None, None]:
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
    lines = count_lines(path) if _is_csv(path) else 0
    if lines - 1 - rows <= max(3, rows // 100):
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
