"""Features that live in a nameless file: looked at portion by portion, and let go of after each.

Pages of a mapped file count as memory of the process while they are mapped in; given back, they stay in the
operating system's cache for as long as there is room.
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
"""What is larger is kept in a file without a name, which vanishes with the process."""


def empty(shape: tuple[int, int]) -> Floats:
    """Room for a matrix: in memory while small, in a nameless file beyond."""
    if 8 * shape[0] * shape[1] <= MEMORY_BYTES:
        return np.empty(shape)
    with tempfile.TemporaryFile() as file:
        file.truncate(8 * shape[0] * shape[1])
        return np.memmap(file, np.float64, "r+", shape=shape)


def portions(features: Features, sizes: Integers) -> Iterator[slice]:
    """Slices of consecutive units of ``sizes`` bytes: all at once, or about 64 MB each of a nameless file.

    Other mappings are somebody else's: to let go of a page can undo what was written to it (copy on write).
    """
    maps = list(_maps(features)) if is_nameless(features) else []
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
    """The same for rows: about 64 MB at a time, so that what is made of them stays small beside them."""
    n = features.shape[0]
    some = max(1, PORTION_BYTES // 64 // max(1, sum(part.nbytes for part in _parts(features)) // max(1, n)))
    if not is_mapped(features):
        yield from (slice(start, min(n, start + 64 * some)) for start in range(0, n, 64 * some))
        return
    sizes = np.full(-(-n // some), PORTION_BYTES // 64)
    for part in portions(features, sizes):
        yield slice(part.start * some, min(n, part.stop * some))


def is_mapped(features: Features) -> bool:
    """Whether a matrix looks into a mapped file."""
    return any(True for _ in _maps(features))


def is_nameless(features: Features) -> bool:
    """Whether a matrix lives in mapped files without a name, to which nobody else can write."""
    mapped = ([each for each in _chain(part) if isinstance(each, np.memmap)] for part in _parts(features))
    return all(maps and all(each.filename is None for each in maps) for maps in mapped)


def _maps(features: Features) -> Iterator[Any]:
    """The file mappings that a matrix looks into."""
    for part in _parts(features):
        yield from (each for each in _chain(part) if isinstance(each, mmap.mmap))


def _parts(features: Features) -> tuple[Any, ...]:
    """The arrays that are large: a CSR matrix's pointers are not, nor are the places of coded numbers."""
    return layout(features)[1][:2]


def _chain(part: Any) -> Iterator[Any]:
    """An array, and whatever it is a view of."""
    yield part
    while isinstance(part, np.ndarray):
        part = part.base
        yield part
