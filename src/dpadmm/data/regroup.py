"""Rows in a file, written anew in another order: one pass, a few megabytes of memory at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm._base.arrays import Features, Integers
from dpadmm._base.errors import DataError
from dpadmm._base.memmap import row_portions
from dpadmm.data.compact import compact_csr


def in_order(features: Features, order: Integers) -> Features:
    """``features[order]`` in a file without a name; sparse rows must all have as many stored entries.

    ``order`` names every row once. It should be made of few rising runs, such as the rows of one agent after
    those of another: then every portion is written to few places.

    Examples
    --------
    >>> in_order(np.array([[1.0], [2.0], [3.0]]), np.array([2, 0, 1])).tolist()
    [[3.0], [1.0], [2.0]]
    """
    places = np.empty(len(order), _kind(len(order)))
    for start in range(0, len(order), 2**20):
        part = order[start : start + 2**20]
        places[part] = np.arange(start, start + len(part))
    return moved(features, places)


def grouped(owners: NDArray[np.integer[Any]], n_owners: int) -> tuple[NDArray[Any], Integers]:
    """Where every row goes when those of an owner follow those of another, and where each of them begins.

    Examples
    --------
    >>> places, offsets = grouped(np.array([1, 0, 1, 0]), 2)
    >>> places.tolist(), offsets.tolist()
    ([2, 0, 3, 1], [0, 2, 4])
    """
    offsets = np.zeros(n_owners + 1, dtype=np.int64)
    pieces = [slice(start, start + 2**20) for start in range(0, len(owners), 2**20)]
    for piece in pieces:
        offsets[1:] += np.bincount(owners[piece], minlength=n_owners)
    np.cumsum(offsets, out=offsets)
    places, free = np.empty(len(owners), _kind(len(owners))), offsets[:-1].copy()
    for piece in pieces:
        mine = owners[piece]
        order, counts = np.argsort(mine, kind="stable"), np.bincount(mine, minlength=n_owners)
        starts = np.cumsum(counts) - counts
        places[piece][order] = np.arange(len(mine)) + np.repeat(free - starts, counts)
        free += counts
    return places, offsets


def moved(features: Features, places: NDArray[Any]) -> Features:
    """Row j to ``places[j]`` of a new file without a name."""
    if not isinstance(features, csr_array):
        return _scattered(features, features, places)
    n, stored = features.shape[0], features.nnz // max(1, features.shape[0])
    if not all((np.diff(part) == stored).all() for part in _pieces(features.indptr)):
        raise DataError("sparse rows of different numbers of entries cannot be written in another order")
    data, indices = (
        _scattered(part.reshape(n, stored), features, places) for part in (features.data, features.indices)
    )
    return compact_csr(data.reshape(-1), indices.reshape(-1), features.indptr, features.shape)


def _kind(n: int) -> type[np.int32 | np.int64]:
    return np.int32 if n < np.iinfo(np.int32).max else np.int64


def _scattered(rows: NDArray[Any], features: Features, places: NDArray[Any]) -> NDArray[Any]:
    """Row j to ``places[j]`` of a new file: rows that become neighbours are written at once."""
    width = rows.shape[1] * rows.itemsize
    with tempfile.TemporaryFile() as file:
        file.truncate(max(1, rows.nbytes))
        for part in row_portions(features):
            mine = places[part]
            order = np.argsort(mine, kind="stable")
            starts = np.flatnonzero(np.diff(mine[order], prepend=-2) != 1)
            for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
                run = order[start:stop]
                file.seek(int(mine[run[0]]) * width)
                file.write(rows[part][run].data)
        file.flush()
        return np.memmap(file, rows.dtype, "r+", shape=rows.shape)


def _pieces(pointers: NDArray[Any], size: int = 2**20) -> Iterator[NDArray[Any]]:
    for start in range(0, len(pointers), size):
        yield pointers[start : start + size + 1]
