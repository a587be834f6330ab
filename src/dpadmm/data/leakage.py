"""Find columns of a public table that alone determine the label. They may be known only after the outcome.

The label is predicted from a single column: by the majority of the other rows with the same value (so rare values
predict nothing), by one threshold, or, for a numeric label, by a straight line. A missing cell counts as a value,
because a column may be filled in only after the outcome.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpadmm.data.cells import as_numbers, as_words
from dpadmm.data.reader import Table, open_batches
from dpadmm.matrices.arrays import Integers

MIN_ROWS = 50
MIN_MINORITY_ROWS = 5
"""Minimum number of rows without the majority label. Fewer may be predicted by chance."""

MAX_ERROR, MAX_MINORITY_ERROR = 0.005, 0.1
"""Maximum error of a determined label, as a share of all rows and of the rows without the majority label."""

TOLERANCE = 0.005
"""Maximum error of a correct numeric prediction, as a share of the range of the labels."""

MAX_CELLS, MAX_ROWS = 20_000_000, 100_000
"""Limits of a sample. Of larger tables every k-th row is used."""


@dataclass(frozen=True)
class LeakyColumn:
    """A column that predicts ``n_correct`` of the ``n_rows`` labels of a sample."""

    name: str
    n_correct: int
    n_rows: int

    @property
    def question(self) -> str:
        return (
            f"alone determines the label in {self.n_correct:,} of {self.n_rows:,} rows: is it known before the outcome?"
        )


Sample: TypeAlias = dict[str, NDArray[Any]]
"""Cells of some rows: numbers (NaN if missing), and codes of text (−1 if missing)."""


def sample_cells(table: Table, columns: Collection[str], *, numbers: Collection[str], n_rows: int) -> Sample:
    """Return the cells of at most 100,000 rows. ``numbers`` are read as numbers, others as text."""
    room = min(MAX_ROWS, MAX_CELLS // (len(columns) + 1))
    return _sampled(table, list(columns), frozenset(numbers), every=-(-n_rows // max(room, 1)))


def leaky_columns(
    cells: Sample, columns: Collection[str], label: str, *, numbers: Collection[str]
) -> list[LeakyColumn]:
    """Return the columns that alone determine the label. ``numbers`` are compared as numbers, others as text."""
    wanted = [name for name in columns if name != label]
    labels = cells[label]
    has_label = np.isfinite(labels) if label in numbers else labels >= 0
    labels, n = labels[has_label], int(np.count_nonzero(has_label))
    if n < MIN_ROWS:
        return []
    if label in numbers:
        n_correct, wanted = _correct_by_line, [name for name in wanted if name in numbers]
        n_minority = n - _count_near(labels, np.full(n, np.median(labels)))
    else:
        n_correct, labels = _correct_by_value, np.unique(labels, return_inverse=True)[1]
        n_minority = n - int(np.bincount(labels).max())
    if n_minority < MIN_MINORITY_ROWS:
        return []
    candidates = [LeakyColumn(name, n_correct(cells[name][has_label], labels), n) for name in wanted]
    max_errors = min(MAX_ERROR * n, MAX_MINORITY_ERROR * n_minority)
    return [column for column in candidates if n - column.n_correct <= max_errors]


def _sampled(table: Table, names: list[str], numbers: frozenset[str], *, every: int) -> Sample:
    """Return every k-th row."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    codes: dict[str, dict[str, int]] = {name: {} for name in names}
    first_row = 0
    for batch in open_batches(table, names, numbers=numbers, invalid_as_missing=True):
        rows = batch.slice(-first_row % every)
        for name in names:
            values = (
                as_numbers(rows.column(name), name, invalid_as_missing=True)
                if name in numbers
                else _text_codes(rows.column(name), name, codes[name])
            )
            parts[name].append(values[::every].copy())
        first_row += batch.num_rows
    return {name: np.concatenate(part) if part else np.empty(0) for name, part in parts.items()}


def _text_codes(cells: Any, name: str, codes: dict[str, int]) -> Integers:
    words, places = as_words(cells, name)
    texts = [(text or "").strip().lower() for text in words.to_pylist()]
    numbers = [codes.setdefault(text, len(codes)) if text else -1 for text in texts]
    return np.asarray(np.array([*numbers, -1], dtype=np.int64)[places])


def _correct_by_value(cells: NDArray[Any], labels: NDArray[Any]) -> int:
    """Return the number of rows whose class is predicted by the value of a column."""
    places = np.unique(cells, return_inverse=True)[1]  # in ascending order
    counts = np.zeros((int(places.max()) + 1, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (places, labels), 1)
    by_value = _correct_by_majority(counts)
    if cells.dtype.kind != "f":
        return by_value
    filled = counts[:-1] if np.isnan(cells).any() else counts  # NaN is sorted last
    below = np.cumsum(filled, axis=0)
    if not len(below):
        return by_value
    by_threshold = int((below.max(axis=1) + (below[-1] - below).max(axis=1)).max())
    return max(by_value, by_threshold + _correct_by_majority(counts[len(filled) :]))


def _correct_by_majority(counts: Integers) -> int:
    """Return the number of rows whose label is the majority label of the other rows with their value."""
    if not len(counts):
        return 0
    ordered = np.sort(counts, axis=1)
    first, second = ordered[:, -1], ordered[:, -2]
    return int(first[first - 1 > second].sum())


def _correct_by_line(cells: NDArray[Any], labels: NDArray[Any]) -> int:
    """Return the number of rows whose label is close to ``a·x + b``, by least squares over rows with an x."""
    good = np.isfinite(cells)
    x, y = cells[good], labels[good]
    if len(x) < MIN_ROWS or x.min() == x.max():
        return 0
    with np.errstate(all="ignore"):
        x = (x - x.mean()) / np.abs(x - x.mean()).max()
        slope = (x @ (y - y.mean())) / (x @ x)
        return _count_near(y, y.mean() + slope * x)


def _count_near(labels: NDArray[Any], predicted: NDArray[Any]) -> int:
    return int(np.count_nonzero(np.abs(labels - predicted) <= TOLERANCE * (labels.max() - labels.min())))


def leakage_warnings(columns: Collection[LeakyColumn]) -> list[str]:
    """Return a warning for each column."""
    hint = "If not, leave it out, because a model with it predicts nothing new."
    return [f"column {column.name!r} {column.question} {hint}" for column in columns]
