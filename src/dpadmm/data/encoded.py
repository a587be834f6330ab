"""A table larger than memory, perhaps -> features, labels and owners, by the public schema alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm.arrays import Features, Floats, Integers
from dpadmm.data.batches import open_batches
from dpadmm.data.cells import as_numbers, as_words, codes_of
from dpadmm.data.compact import compact_csr
from dpadmm.data.encoding import Encoder, Report
from dpadmm.data.growing import MEMORY_BYTES, GrowingArray
from dpadmm.data.schema import Label, Number, Plain, Schema
from dpadmm.errors import DataError


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Rows of length at most 1, labels as losses want them, whose each row is, and what was counted.

    Row j belongs to ``owners[groups[j]]``; owners are sorted.
    """

    features: Features
    labels: Floats
    groups: Integers | None
    owners: tuple[str, ...]
    report: Report


def encode_table(
    path: Path,
    schema: Schema,
    label: Label | None,
    *,
    by: str | None = None,
    intercept: bool = False,
    total: bool = False,
    memory_bytes: int = MEMORY_BYTES,
) -> EncodedTable:
    """Read a file once and encode it; ``by`` names a column that says whose a row is.

    ``intercept`` appends the constant column. Without a label, as for a table to predict on, there are none.

    ``total`` is for agents, whose "no" must not tell about a cell: every table with these columns is encoded.
    What is no number is missing, and a row whose label is none of the classes is a row of zeros, which has no
    gradient. It is counted in the report.
    """
    columns = [column.name for column in schema.columns]
    others = [name for name in (label.column if label else None, by) if name is not None]
    for name in others:
        if name in columns:
            raise DataError(
                f"column {name!r} cannot be a feature too: it is the label, or says whose a row is; "
                "take it out of the study's columns"
            )
    numeric = {c.name for c in schema.columns if isinstance(c, Number | Plain)}
    if label is not None and label.classes is None:
        numeric.add(label.column)
    numbers = frozenset() if total else frozenset(numeric)  # as text nothing is refused by the reader
    encoder = Encoder(schema, intercept=intercept, total=total)
    with (
        closing(_Growing(memory_bytes)) as growing,
        closing(GrowingArray(np.float64, 1)) as labels,
        closing(_Owners()) as owners,
    ):
        for batch in open_batches(path, [*columns, *others], numbers=numbers):
            where = f"{path}, rows {encoder.report.rows + 1} to {encoder.report.rows + batch.num_rows}"
            try:
                bad = np.zeros(batch.num_rows, dtype=bool)
                if label is not None:
                    values, bad = label_values(label, batch.column(label.column), total=total)
                    _check_labels(~bad | total, label, encoder.report.rows)
                    encoder.report.label.unknown += int(np.count_nonzero(bad))
                    labels.append(values)
                growing.append(_silent(encoder.encode(batch), bad))
            except DataError as error:
                raise DataError(f"{where}: {error}") from None
            if by is not None:
                owners.append(batch.column(by), by, where, total=total)
        if not encoder.report.rows:
            raise DataError(f"{path} has no rows")
        groups, names = owners.finish() if by is not None else (None, ())
        return EncodedTable(growing.finish(), labels.finish().reshape(-1), groups, names, encoder.report)


def encode_labels_of(label: Label, cells: Any, first: int = 0) -> Floats:
    """Labels as the losses want them; a cell that is none of the classes is named by its row."""
    values, bad = label_values(label, cells)
    _check_labels(~bad, label, first)
    return values


def label_values(label: Label, cells: Any, *, total: bool = False) -> tuple[Floats, NDArray[np.bool_]]:
    """Labels as the losses want them, and which cells are none (they get that of the first class, or 0)."""
    if label.classes is None:
        values = as_numbers(cells, label.column, total=total)
        bad = ~np.isfinite(values)
        values = np.where(bad, 0.0, values)
        if label.bounds is not None:
            low, high = label.bounds
            values = np.where(bad, 0.0, (np.clip(values, low, high) - low) / (high - low) * 2.0 - 1.0)
        return values, bad
    codes, _ = codes_of(cells, tuple(map(str, label.classes)), label.column)
    bad = codes < 0
    codes = np.where(bad, 0, codes)
    return codes * 2.0 - 1.0 if len(label.classes) == 2 else codes.astype(np.float64), bad


def _silent(features: Features, bad: NDArray[np.bool_]) -> Features:
    """Rows without a label as zeros, the constant column too: their gradient is 0 at any point."""
    if bad.any():
        if isinstance(features, csr_array):
            features.data.reshape(len(bad), -1)[bad] = 0.0
        else:
            features[bad] = 0.0
    return features


def _check_labels(good: NDArray[np.bool_], label: Label, first: int) -> None:
    if not good.all():
        row = first + int(np.argmin(good)) + 1
        classes = ", ".join(map(str, (label.classes or ())[:8]))
        what = f"is none of the classes {classes}" if classes else "is missing"
        raise DataError(
            f"the label {label.column!r} of row {row} {what}; correct the cell or leave the row out"
        )


class _Owners:
    """Whose rows are, as numbers: text is kept once for every owner."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._parts = GrowingArray(np.int32, 1)

    def append(self, cells: Any, by: str, where: str, *, total: bool) -> None:
        words, places = as_words(cells, by)
        names = [
            *((word or "").strip() for word in words.to_pylist()),
            "",
        ]  # the last is that of missing cells
        known = np.full(len(names), -1, dtype=np.int32)
        for place in np.unique(places).tolist():
            if not names[place] and not total:
                raise DataError(
                    f"{where}: column {by!r} has a missing cell, so it is not known whose that row is"
                )
            known[place] = self._numbers.setdefault(names[place], len(self._numbers))
        self._parts.append(known[places])

    def finish(self) -> tuple[Integers, tuple[str, ...]]:
        names = sorted(self._numbers)
        places = np.empty(len(names), np.int32)  # 4 bytes a row count in a large table
        places[[self._numbers[name] for name in names]] = np.arange(len(names))
        return places[self._parts.finish().reshape(-1)], tuple(names)

    def close(self) -> None:
        self._parts.close()


class _Growing:
    """A matrix that grows: dense rows, or rows with a fixed number of stored entries."""

    def __init__(self, memory_bytes: int) -> None:
        self._width, self._memory_bytes = 0, memory_bytes
        self._parts: list[GrowingArray] = []

    def append(self, features: Features) -> None:
        self._width = features.shape[1]
        blocks = list(self._blocks(features))
        if not self._parts:
            limit = self._memory_bytes // len(blocks)
            self._parts = [GrowingArray(b.dtype, b.shape[1], memory_bytes=limit) for b in blocks]
        for part, block in zip(self._parts, blocks, strict=True):
            part.append(block)

    def _blocks(self, features: Features) -> Iterator[NDArray[Any]]:
        if isinstance(features, csr_array):
            yield features.data.reshape(features.shape[0], -1)
            yield features.indices.reshape(features.shape[0], -1).astype(np.int32)
        else:
            yield features

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def finish(self) -> Features:
        first, *rest = [part.finish() for part in self._parts]
        if not rest:
            return first
        n, stored = first.shape
        pointers = np.arange(0, n * stored + 1, stored)
        return compact_csr(first.reshape(-1), rest[0].reshape(-1), pointers, (n, self._width))
