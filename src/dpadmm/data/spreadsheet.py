"""Read the first sheet of an Excel or ODS file as text, as if the sheet had been saved as CSV."""

from __future__ import annotations

import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from dpadmm.errors import DataError

SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")

SIGNATURES = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
"""First bytes of a ZIP archive (.xlsx, .xlsm, .xlsb, .ods) and of an OLE file (.xls)."""


class Sheet(NamedTuple):
    """Name, column names and cells of a sheet; ``others`` are further sheets with cells."""

    name: str
    columns: list[str]
    cells: Any
    """Arrow table of text, whose columns are named 0, 1, ..."""
    others: list[str]


def read_sheet(path: Path) -> Sheet:
    """Return the first sheet with cells. The whole sheet is held in memory."""
    try:
        calamine = import_module("python_calamine")
    except ModuleNotFoundError:
        raise DataError(f"{path}: to read this file: pip install 'dpadmm[excel]'") from None
    try:
        workbook = calamine.CalamineWorkbook.from_path(str(path))
        sheets = {name: workbook.get_sheet_by_name(name) for name in workbook.sheet_names}
        sheets = {name: sheet for name, sheet in sheets.items() if sheet.start is not None}
        name = next(iter(sheets), None)
        rows = [] if name is None else sheets[name].to_python(skip_empty_area=True)
    except (calamine.CalamineError, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as {path.suffix[1:].upper()}: {_reason(path, error)}") from None
    if name is None or not rows:
        raise DataError(f"{path} is empty")
    names = [_text(cell).strip() for cell in rows[0]]
    body = [row for row in rows[1:] if any(cell != "" for cell in row)]
    columns = [[_text(row[j]) for row in body] for j in range(len(names))]
    used = [j for j, column in enumerate(columns) if names[j] or any(column)]
    if nameless := [j for j in used if not names[j] and j != 0]:
        raise DataError(
            f"{path}, sheet {name!r}: column {nameless[0] + 1} has no name; the first row must have the names of all "
            "columns: delete rows above it"
        )
    arrays = [pa.array(columns[j], pa.string()).dictionary_encode() for j in used]
    cells = pa.table(arrays, names=[str(k) for k in range(len(used))])
    return Sheet(name, [names[j] for j in used], cells, list(sheets)[1:])


def _reason(path: Path, error: Exception) -> str:
    """Return why a file cannot be read, and what to do."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if "assword" in f"{type(error).__name__} {error}":
        return "it has a password; remove the password"
    with path.open("rb") as file:
        start = file.read(max(map(len, SIGNATURES)))
    if not start.startswith(SIGNATURES):
        return "it is no Excel or ODS file; if it is text, rename it to .csv"
    return "it is damaged, or has the wrong suffix; save it again as .xlsx"


def _text(cell: Any) -> str:
    """Return a cell as a CSV has it."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else repr(cell)
    if isinstance(cell, datetime.datetime):
        return (cell.date() if cell.time() == datetime.time() else cell).isoformat()
    return cell.isoformat() if isinstance(cell, datetime.date | datetime.time) else str(cell)
