"""Process features in unnamed temporary files in portions, and release the memory of each portion.

Mapped pages of a file count as memory of the process. After their release they stay in the cache of the operating
system while there is room.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import Features, layout

PORTION_BYTES = 2**26
MEMORY_BYTES = 2**28
"""Larger arrays are stored in an unnamed file, which is deleted with the process."""


def empty(shape: tuple[int, int]) -> Floats:
    """Return an uninitialised matrix, in memory or, if it is large, in an unnamed file."""
    if 8 * shape[0] * shape[1] <= MEMORY_BYTES:
        return np.empty(shape)
    with tempfile.TemporaryFile() as file:
        file.truncate(8 * shape[0] * shape[1])
        return np.memmap(file, np.float64, "r+", shape=shape)


def portions(features: Features, sizes: Integers) -> Iterator[slice]:
    """Yield slices of consecutive units of ``sizes`` bytes: about 64 MB each for an unnamed file, otherwise one slice.

    Pages of other mappings are not released, because that can undo writes to them (copy on write).
    """
    maps = list(_maps(features)) if is_unnamed(features) else []
    if not maps:
        yield slice(0, len(sizes))
        return
    start, total = 0, np.cumsum(sizes)
    while start < len(sizes):
        before = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, before + PORTION_BYTES, side="right")))
        yield slice(start, stop)
        for each in maps:
            each.madvise(mmap.MADV_DONTNEED)
        start = stop


def row_portions(features: Features) -> Iterator[slice]:
    """Yield slices of about 64 MB of rows, so that temporary arrays stay small compared with the matrix."""
    n = features.shape[0]
    some = max(1, PORTION_BYTES // 64 // max(1, sum(part.nbytes for part in _parts(features)) // max(1, n)))
    if not is_mapped(features):
        yield from (slice(start, min(n, start + 64 * some)) for start in range(0, n, 64 * some))
        return
    sizes = np.full(-(-n // some), PORTION_BYTES // 64)
    for part in portions(features, sizes):
        yield slice(part.start * some, min(n, part.stop * some))


def is_mapped(features: Features) -> bool:
    """Return whether a matrix is a view of a mapped file."""
    return any(True for _ in _maps(features))


def is_unnamed(features: Features) -> bool:
    """Return whether a matrix is in unnamed mapped files, to which no other process can write."""
    mapped = ([each for each in _chain(part) if isinstance(each, np.memmap)] for part in _parts(features))
    return all(maps and all(each.filename is None for each in maps) for maps in mapped)


def _maps(features: Features) -> Iterator[Any]:
    """Yield the file mappings of a matrix."""
    for part in _parts(features):
        yield from (each for each in _chain(part) if isinstance(each, mmap.mmap))


def _parts(features: Features) -> tuple[Any, ...]:
    """Return the large arrays of a matrix, without the pointers of CSR and the columns of coded numbers."""
    return layout(features)[1][:2]


def _chain(part: Any) -> Iterator[Any]:
    """Yield an array and the objects that it is a view of."""
    yield part
    while isinstance(part, np.ndarray):
        part = part.base
        yield part
