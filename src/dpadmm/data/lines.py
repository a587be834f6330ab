"""Lines of a CSV that became no rows: an open quotation mark makes one cell of many of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CHUNK = 2**20
_NEW_LINE, _RETURN = b"\n\r"


def swallowed(path: Path, rows: int) -> list[str]:
    """A sentence, where the file of a table has clearly more lines than rows: for the table's owner only.

    A line break within quotation marks is a part of its cell, so nothing is refused: whether a table is
    accepted may not depend on what is in a cell.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "t.csv")
    ...     _ = path.write_text('age,ill\\n20,"no\\n21,yes\\n22,no\\n23,yes\\n24,no\\n')
    ...     swallowed(path, 1)
    ['6 lines of the file make 1 row: is a quotation mark open, or do cells have line breaks?']
    """
    if path.suffix.lower() != ".csv":
        return []
    lines = n_lines(path)
    if lines - 1 - rows <= max(3, rows // 100):
        return []
    made = f"{rows:,} row{'s' * (rows != 1)}"
    return [
        f"{lines:,} lines of the file make {made}: is a quotation mark open, or do cells have line breaks?"
    ]


def n_lines(path: Path) -> int:
    """Lines with anything in them, the header among them."""
    count, at_start = 0, True
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            marks = np.frombuffer(chunk, dtype=np.uint8)
            breaks = (marks == _NEW_LINE) | (marks == _RETURN)
            count += int(np.count_nonzero(breaks[:-1] & ~breaks[1:])) + int(at_start and not breaks[0])
            at_start = bool(breaks[-1])
    return count
