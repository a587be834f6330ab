"""Columns of a public table that alone tell its label: known only after the outcome, perhaps.

A column tells by its values (each is judged by the other rows that have it, so rare values tell nothing), by
one threshold, or, where the label is a number, by a straight line. A missing cell is a value too: what is
filled in only after an outcome tells it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.cells import as_numbers, as_words
from dpadmm.data.reader import open_batches
from dpadmm.matrices.arrays import Integers

LEAST_ROWS = 50
LEAST_RARE = 5
"""Rows that do not have the most frequent label: fewer may be told by chance."""

UNTOLD, UNTOLD_RARE = 0.005, 0.1
"""Shares that may be told wrongly: of all rows, and of those that do not have the most frequent label."""

NEAR = 0.005
"""A number is told where it is known within this share of the range of all labels."""

MOST_CELLS, MOST_ROWS = 20_000_000, 100_000
"""Of larger tables every k-th row is looked at."""


@dataclass(frozen=True)
class LeakyColumn:
    """A column that tells the label in so many of the rows that were looked at."""

    name: str
    told: int
    rows: int

    @property
    def sentence(self) -> str:
        return f"alone tells the label in {self.told:,} of {self.rows:,} rows: is it known before the outcome?"


def leaky_columns(
    path: Path, columns: Collection[str], label: str, *, numbers: Collection[str], n_rows: int
) -> list[LeakyColumn]:
    """Those of the columns that alone tell the label; ``numbers`` are compared as such, others as text."""
    wanted = [name for name in columns if name != label]
    room = min(MOST_ROWS, MOST_CELLS // (len(wanted) + 1))
    cells = _sampled(path, [*wanted, label], frozenset(numbers), every=-(-n_rows // max(room, 1)))
    labels = cells[label]
    has_label = np.isfinite(labels) if label in numbers else labels >= 0
    labels, n = labels[has_label], int(np.count_nonzero(has_label))
    if n < LEAST_ROWS:
        return []
    if label in numbers:
        tell, wanted = _told_by_line, [name for name in wanted if name in numbers]
        rare = n - _near(labels, np.full(n, np.median(labels)))
    else:
        tell, labels = _told, np.unique(labels, return_inverse=True)[1]
        rare = n - int(np.bincount(labels).max())
    if rare < LEAST_RARE:
        return []
    found = [LeakyColumn(name, tell(cells[name][has_label], labels), n) for name in wanted]
    return [each for each in found if n - each.told <= min(UNTOLD * n, UNTOLD_RARE * rare)]


def _sampled(path: Path, names: list[str], numbers: frozenset[str], *, every: int) -> dict[str, NDArray[Any]]:
    """Every k-th row: numbers, with NaN where there is none, and the places of texts, −1 where missing."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    known: dict[str, dict[str, int]] = {name: {} for name in names}
    first = 0
    for batch in open_batches(path, names):
        rows = batch.slice(-first % every)
        for name in names:
            found = (
                as_numbers(rows.column(name), name, total=True)
                if name in numbers
                else _places(rows.column(name), name, known[name])
            )
            parts[name].append(found[::every].copy())
        first += batch.num_rows
    return {name: np.concatenate(each) if each else np.empty(0) for name, each in parts.items()}


def _places(cells: Any, name: str, known: dict[str, int]) -> Integers:
    words, places = as_words(cells, name)
    texts = [(text or "").strip().lower() for text in words.to_pylist()]
    numbers = [known.setdefault(text, len(known)) if text else -1 for text in texts]
    found: Integers = np.array([*numbers, -1], dtype=np.int64)[places]
    return found


def _told(cells: NDArray[Any], labels: NDArray[Any]) -> int:
    """In how many rows a column's value tells the class."""
    places = np.unique(cells, return_inverse=True)[1]  # values rise
    counts = np.zeros((int(places.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (places, labels), 1)
    by_value = _by_others(counts)
    if cells.dtype.kind != "f":
        return by_value
    filled = counts[:-1] if np.isnan(cells).any() else counts  # NaN is sorted last
    below = np.cumsum(filled, axis=0)
    if not len(below):
        return by_value
    by_threshold = int((below.max(axis=1) + (below[-1] - below).max(axis=1)).max())
    return max(by_value, by_threshold + _by_others(counts[len(filled) :]))


def _by_others(counts: Integers) -> int:
    """Rows whose label is the most frequent one among the other rows with their value."""
    if not len(counts):
        return 0
    ordered = np.sort(counts, axis=1)
    first, second = ordered[:, -1], ordered[:, -2]
    return int(first[first - 1 > second].sum())


def _told_by_line(cells: NDArray[Any], labels: NDArray[Any]) -> int:
    """Rows in which ``a·x + b`` is as good as the label, by least squares over rows that have an x."""
    good = np.isfinite(cells)
    x, y = cells[good], labels[good]
    if len(x) < LEAST_ROWS or x.min() == x.max():
        return 0
    with np.errstate(all="ignore"):
        x = (x - x.mean()) / np.abs(x - x.mean()).max()
        slope = (x @ (y - y.mean())) / (x @ x)
        return _near(y, y.mean() + slope * x)


def _near(labels: NDArray[Any], guess: NDArray[Any]) -> int:
    return int(np.count_nonzero(np.abs(labels - guess) <= NEAR * (labels.max() - labels.min())))


def leakage_warnings(found: Collection[LeakyColumn]) -> list[str]:
    """A warning for each."""
    tail = "If not, leave it out: a model of it knows nothing."
    return [f"column {each.name!r} {each.sentence} {tail}" for each in found]
