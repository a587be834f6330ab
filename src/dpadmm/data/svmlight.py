"""svmlight / libsvm text: one line ``label index:value index:value ... # comment`` per row."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import DataError, StudyError
from dpadmm.data.compact import compact_csr
from dpadmm.data.raw_table import RawTable, numbered

_LARGEST_INDEX = 2**31 - 2


def read_svmlight(
    path: Path, label: str | None, by: str | None, columns: Sequence[str] | None = None
) -> RawTable:
    """Rows as CSR. Indices count from 1, or from 0 if an index 0 occurs; ``qid`` tags may name the owners.

    Where ``columns`` are chosen, x1, x2, ... by their index, an index 0 is refused: one row with it would
    change the meaning of all others.
    """
    if label is not None:
        raise StudyError(f"{path}: the label is the first word of every line; leave label= / --label out")
    if by not in (None, "qid"):
        raise StudyError(f"{path}: only the tag 'qid' can name the owner of a row in this format, not {by!r}")
    labels: list[str] = []
    owners: list[str] = []
    values, places, starts = array("d"), array("q"), array("q", [0])
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                words = line.partition("#")[0].split()
                if not words:
                    continue
                where = f"{path}: row {len(labels) + 1}"
                labels.append(words[0])
                if by is not None:
                    owners.append(_owner(words, where))
                _append_entries(words, values, places, where)
                starts.append(len(values))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not svmlight text: it holds bytes that are not UTF-8") from None
    values_of_entries = np.array(values, dtype=np.float64)
    indices, offsets = np.array(places, dtype=np.int64), np.array(starts, dtype=np.int64)
    n_columns = 0
    if columns is not None:
        _refuse_zero(indices, offsets, path)
        values_of_entries, indices, offsets = _chosen(
            values_of_entries, indices - 1, offsets, numbered(columns, None, path)
        )
        n_columns = len(columns)
    elif len(indices):
        indices -= int(indices.min() > 0)
        n_columns = int(indices.max()) + 1
    features = compact_csr(values_of_entries, indices, offsets, (len(labels), n_columns))
    groups = np.array(owners, dtype=object) if by is not None else None
    return RawTable(features, labels, groups, tuple(columns or ()))


def _refuse_zero(indices: Integers, offsets: Integers, path: Path) -> None:
    zeros = np.flatnonzero(indices == 0)
    if len(zeros):
        row = int(np.searchsorted(offsets, zeros[0], side="right"))
        raise DataError(f"{path}: row {row} has an index 0; here indices must count from 1")


def _chosen(
    values: Floats, indices: Integers, offsets: Integers, wanted: list[int]
) -> tuple[Floats, Integers, Integers]:
    """The entries of the columns wanted, which may be many and far apart, in their new places."""
    order = np.argsort(wanted)
    ranked = np.asarray(wanted, dtype=np.int64)[order]
    place = np.searchsorted(ranked, indices)
    kept = np.append(ranked, -1)[place] == indices
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[kept]
    places = order[place[kept]]
    within = np.lexsort((places, rows))
    counts = np.bincount(rows, minlength=len(offsets) - 1)
    return values[kept][within], places[within], np.concatenate([[0], np.cumsum(counts)])


def _append_entries(words: list[str], values: Any, columns: Any, where: str) -> None:
    last = -1
    for word in words[1:]:
        index, _, value = word.partition(":")
        if index == "qid":
            continue
        try:
            column, number = int(index), float(value)
        except ValueError:
            raise DataError(f"{where}: {word[:40]!r} is not of the form index:value") from None
        if not math.isfinite(number):
            raise DataError(f"{where}, column {column}: the value {value!r} is not a finite number")
        if not (last < column <= _LARGEST_INDEX):
            raise DataError(f"{where}: index {column} is out of order; indices must ascend from 0 or 1")
        columns.append(column)
        values.append(number)
        last = column


def _owner(words: list[str], where: str) -> str:
    for word in words[1:]:
        if word.startswith("qid:") and len(word) > 4:
            return word[4:]
    raise DataError(f"{where} has no qid tag, so it has no owner")
