"""Rows that scikit-learn refuses, in words that do not lead to a leak."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpadmm._base.errors import DataError

MISSING = (
    "Input X contains NaN, and a cell must be a number: fill missing ones with the middle of their public "
    "bounds, or use a study, which does so. An imputer fitted on the rows leaks, and nothing counts it"
)
TEXT = (
    "must be numbers: encode categories from a public list (OneHotEncoder with categories=), or use a study. "
    "An encoder that is fitted on the rows leaks which values there are"
)


def told(error: ValueError, rows: Any) -> ValueError:
    """A sentence for missing cells and for text; any other error as it is."""
    said = str(error)
    if said.startswith("Input X contains NaN"):
        return DataError(MISSING)
    if said.startswith("could not convert string to float"):  # and it quotes the cell
        names = _no_numbers(rows)
        if not names and _is_number(rows):
            return DataError("y must be numbers, and a label is text")
        which = f"columns {', '.join(map(repr, names[:8]))} of X" if names else "all columns of X"
        return DataError(f"{which} {TEXT}")
    return error


def _no_numbers(table: Any) -> list[str]:
    """Columns of a data frame that are no numbers; none of an array, which has no names."""
    names = list(getattr(table, "columns", ()))
    return [str(name) for name in names if not _is_number(table[name])]


def _is_number(cells: Any) -> bool:
    try:
        np.asarray(cells, dtype=float)
    except (TypeError, ValueError):
        return False
    return True
