"""Problems of a table, collected by column, so that one run shows all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpadmm.rendering import Column, Table

MAX_SHOWN = 3
"""Number of rows and values that are shown for each problem."""


@dataclass
class Locations:
    """Number of rows with a problem, and the first of them (from 1), with their cells for the owner of the table."""

    rows: int = 0
    first: list[int] = field(default_factory=list, compare=False)
    values: list[str] = field(default_factory=list, compare=False)

    def add(self, bad: NDArray[np.bool_], first_row: int, cells: Any = None) -> None:
        """Add the bad rows of a batch that begins at ``first_row`` (from 0). ``cells`` are those of the column."""
        indices = np.flatnonzero(bad)
        self.rows += len(indices)
        for index in indices[: MAX_SHOWN - len(self.first)].tolist():
            self.first.append(first_row + index + 1)
            cell = None if cells is None else cells[index].as_py()
            if cell is not None and (text := str(cell).strip()) and text not in self.values:
                self.values.append(text[:40])

    def merge(self, other: Locations) -> None:
        """Add the rows of another file."""
        self.rows += other.rows
        self.first = self.first or other.first
        self.values = self.values or other.values

    @property
    def text(self) -> str:
        """``row 3``, ``rows 3 and 7``, or ``5 rows (3, 7, 12, …)``."""
        if self.rows == 1:
            return f"row {self.first[0]:,}"
        rows = ", ".join(f"{row:,}" for row in self.first)
        return f"{self.rows:,} rows ({rows}{', …' if self.rows > len(self.first) else ''})"


@dataclass(frozen=True)
class ColumnProblem:
    """A problem of a column. ``text`` is the full sentence, without cells.

    ``short`` is the problem in a few words, for a table. ``locations`` is None for a problem of the whole column.
    """

    column: str
    short: str
    text: str
    locations: Locations | None = None


def problems_table(problems: Sequence[ColumnProblem], *, values: bool = False) -> Table:
    """Return one table of problems by column. ``values``: with cells, which only the owner of the table may see."""
    columns = [Column("", "column", wrap=False), Column("", "problem"), Column("", "rows", ",d")]
    columns += [Column("", "first rows", wrap=False), *([Column("", "cells")] if values else [])]
    rows = []
    for each in problems:
        found = each.locations or Locations()
        first = ", ".join(f"{row:,}" for row in found.first)
        cells = [", ".join(map(repr, found.values))] if values else []
        rows.append((each.column, each.short, found.rows or None, first, *cells))
    return Table(columns, rows)
