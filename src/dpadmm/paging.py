"""Features that live in a file: looked at portion by portion, and let go of after each.

Pages of a mapped file count as memory of the process while they are mapped in; given back, they stay in the
operating system's cache for as long as there is room.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpadmm.arrays import Features, Integers

PORTION_BYTES = 2**28


def portions(features: Features, sizes: Integers) -> Iterator[slice]:
    """Slices of consecutive units of ``sizes`` bytes: all at once, or about 256 MB each of a mapped file.

    Examples
    --------
    >>> list(portions(np.ones((4, 2)), np.array([32, 32])))
    [slice(0, 2, None)]
    """
    maps = list(_maps(features))
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


def is_mapped(features: Features) -> bool:
    """Whether a matrix lives in a mapped file."""
    return any(True for _ in _maps(features))


def _maps(features: Features) -> Iterator[Any]:
    """The file mappings that a matrix looks into."""
    for part in (features,) if isinstance(features, np.ndarray) else (features.data, features.indices):
        base = part
        while isinstance(base, np.ndarray):
            base = base.base
        if isinstance(base, mmap.mmap):
            yield base
