"""What every file format gives: features, labels as written, owners, names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm._base.arrays import Features
from dpadmm._base.errors import StudyError
from dpadmm._base.suggestions import near_name

_BLOCK_CELLS = 1 << 20


@dataclass(frozen=True, eq=False)
class RawTable:
    """A table before its labels are encoded."""

    features: Features
    labels: NDArray[Any] | list[Any]
    groups: NDArray[Any] | None = None
    feature_names: tuple[str, ...] = ()


def numbered(columns: Sequence[str], n_columns: int | None, where: object) -> list[int]:
    """Places (from 0) of columns that have no names of their own: x1, x2, ... in the order of the file.

    Examples
    --------
    >>> numbered(["x3", "x1"], 3, "a file")
    [2, 0]
    """
    places = []
    for name in columns:
        found = re.fullmatch("x([1-9][0-9]{0,8})", name)
        if found is None or (n_columns is not None and int(found[1]) > n_columns):
            there = "" if n_columns is None else f" to x{n_columns}"
            raise StudyError(f"{where} has no column {name!r}: its columns are called x1, x2{there}")
        places.append(int(found[1]) - 1)
    return places


def first_nonfinite(features: Features) -> tuple[int, int] | None:
    """Row and column (from 0) of the first NaN or infinity, or None.

    Examples
    --------
    >>> first_nonfinite(np.array([[0.0, 1.0], [2.0, np.nan]]))
    (1, 1)
    """
    if isinstance(features, csr_array):
        bad = np.flatnonzero(~np.isfinite(features.data))
        if len(bad) == 0:
            return None
        row = int(np.searchsorted(features.indptr, bad[0], side="right")) - 1
        return row, int(features.indices[bad[0]])
    step = max(1, _BLOCK_CELLS // max(1, features.shape[1]))  # blocks, so that the mask stays small
    for start in range(0, features.shape[0], step):
        block = ~np.isfinite(features[start : start + step])
        if block.any():
            row, column = divmod(int(np.argmax(block)), features.shape[1])
            return start + row, column
    return None


def unknown_name(kind: str, name: str, known: Sequence[str], where: object) -> StudyError:
    """The error for a column or array that the file does not have, with the nearest name that it has."""
    near = near_name(name, known)
    return StudyError(
        f"{where} has no {kind} {name!r}: "
        + (f"did you mean {near!r}?" if near else f"it has {listed(known)}")
    )


def listed(names: Iterable[str]) -> str:
    """Names as a message shows them: quoted, the first few only."""
    every = [repr(name)[:40] for name in names]
    return ", ".join(every[:8]) + (f" and {len(every) - 8} more" if len(every) > 8 else "") or "nothing"
