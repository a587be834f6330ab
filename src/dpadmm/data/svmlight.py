"""svmlight / libsvm text: one line ``label index:value index:value ... # comment`` per row."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.data.compact import compact_csr
from dpadmm.data.raw_table import RawTable
from dpadmm.errors import DataError, StudyError

_LARGEST_INDEX = 2**31 - 2


def read_svmlight(path: Path, label: str | None, by: str | None) -> RawTable:
    """Rows as CSR. Indices count from 1, or from 0 if an index 0 occurs; ``qid`` tags may name the owners."""
    if label is not None:
        raise StudyError(f"{path}: the label is the first word of every line; leave label= / --label out")
    if by not in (None, "qid"):
        raise StudyError(f"{path}: only the tag 'qid' can name the owner of a row in this format, not {by!r}")
    labels: list[str] = []
    owners: list[str] = []
    values, columns, starts = array("d"), array("q"), array("q", [0])
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
                _append_entries(words, values, columns, where)
                starts.append(len(values))
    except UnicodeDecodeError:
        raise DataError(f"{path} is not svmlight text: it holds bytes that are not UTF-8") from None
    indices = np.array(columns, dtype=np.int64)
    if len(indices) and indices.min() > 0:
        indices -= 1
    shape = (len(labels), int(indices.max()) + 1 if len(indices) else 0)
    features = compact_csr(
        np.array(values, dtype=np.float64), indices, np.array(starts, dtype=np.int64), shape
    )
    return RawTable(features, labels, np.array(owners, dtype=object) if by is not None else None)


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
