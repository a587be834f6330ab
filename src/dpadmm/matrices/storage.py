"""Store feature matrices: compact CSR, arrays larger than memory, and rows in another order."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Integers
from dpadmm.matrices.clipping import row_norms
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features
from dpadmm.matrices.memmap import MEMORY_BYTES, row_portions

_PIECE = 2**20
_MAX_INT32 = np.iinfo(np.int32).max


def compact_csr(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]) -> csr_array:
    """Return a CSR matrix with 32-bit indices if they suffice, which halves their memory."""
    wide = [part for part in (indices, indptr) if part.size and part.dtype != np.int32]  # int32 always fits
    fits = max(len(data), *shape) < _MAX_INT32 and all(
        -_MAX_INT32 < int(part.min()) <= int(part.max()) < _MAX_INT32 for part in wide
    )
    kind = np.int32 if fits else np.int64
    return csr_array((data, indices.astype(kind, copy=False), indptr.astype(kind, copy=False)), shape=shape)


def shrink_rows(features: Features) -> None:
    """Clip rows to norm 1, in place.

    The divisor exceeds the norm by the rounding error of a sum of d squares, so that the norm is at most 1 for any
    order of summation.
    """
    dtype = features.dtype
    margin = 1.0 + (features.shape[1] + 4) * float(np.finfo(dtype).eps)
    divisors = np.maximum(row_norms(features) * margin, 1.0).astype(dtype)
    if isinstance(features, csr_array):
        features.data /= np.repeat(divisors, np.diff(features.indptr))
    else:
        entries = features.values if isinstance(features, CodedRows) else features
        entries /= divisors[:, None]


class GrowingArray:
    """An array to which blocks of rows are appended: in memory or, if it is large, in an unnamed file."""

    def __init__(
        self, dtype: DTypeLike, width: int, *, memory_bytes: int = MEMORY_BYTES, n_rows: int | None = None
    ) -> None:
        """Create an empty array. ``n_rows`` is the final number of rows, if it is known.

        Memory that is reserved at once is committed in large pages when it is filled. Memory that is added later is
        filled with zeros first.
        """
        self._width, self._memory_bytes = width, memory_bytes
        size = (n_rows or 0) * width
        self._memory: NDArray[Any] = np.empty(size if size * np.dtype(dtype).itemsize <= memory_bytes else 0, dtype)
        self._filled = 0
        self._file: IO[bytes] | None = None

    def append(self, block: NDArray[Any]) -> None:
        """Add a copy of rows at the end."""
        block = np.asarray(block, dtype=self._memory.dtype).reshape(-1, self._width)
        before, self._filled = self._filled, self._filled + block.size
        if self._file is None and self._filled * block.itemsize <= self._memory_bytes:
            if self._filled > self._memory.size:
                # The operating system moves it without a second copy; there is no view of it
                self._memory.resize(self._filled + self._filled // 8, refcheck=False)
            self._memory[before : self._filled].reshape(block.shape)[:] = block
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the array
            self._file.write(self._memory[:before].data)
            self._memory = np.empty(0, block.dtype)
        self._file.write(np.ascontiguousarray(block).data)

    def finish(self) -> NDArray[Any]:
        """Return all rows (rows, width). Rows in a file are mapped, and read on access."""
        if self._file is None:
            self._memory.resize(self._filled, refcheck=False)
            return self._memory.reshape(-1, self._width)
        self._file.flush()
        shape = (self._filled // self._width, self._width)
        mapped = np.memmap(self._file, self._memory.dtype, "r+", shape=shape)
        self.close()
        return mapped

    def close(self) -> None:
        """Close the file. Its mapping stays valid."""
        if self._file is not None:
            self._file.close()


def group_order(owners: NDArray[np.integer[Any]], n_owners: int) -> tuple[NDArray[Any], Integers]:
    """Return the position of each row in an order that groups rows by owner, and the offset of each owner.

    Owners 1, 0, 1, 0 give positions 2, 0, 3, 1 and offsets 0, 2, 4.
    """
    offsets = np.zeros(n_owners + 1, dtype=np.int64)
    pieces = [slice(start, start + _PIECE) for start in range(0, len(owners), _PIECE)]
    for piece in pieces:
        offsets[1:] += np.bincount(owners[piece], minlength=n_owners)
    np.cumsum(offsets, out=offsets)
    positions = np.empty(len(owners), np.int32 if len(owners) < _MAX_INT32 else np.int64)
    free = offsets[:-1].copy()
    for piece in pieces:
        part = owners[piece]
        order, counts = np.argsort(part, kind="stable"), np.bincount(part, minlength=n_owners)
        starts = np.cumsum(counts) - counts
        positions[piece][order] = np.arange(len(part)) + np.repeat(free - starts, counts)
        free += counts
    return positions, offsets


def reorder(features: Features, positions: NDArray[Any]) -> Features:
    """Write row j to ``positions[j]`` of a new unnamed file. Faster if runs of rows stay together."""
    if isinstance(features, np.ndarray):
        return _scattered(features, features, positions)
    if not isinstance(features, CodedRows):
        raise DataError("sparse rows cannot be written in another order")
    values, codes = (_scattered(part, features, positions) for part in (features.values, features.codes))
    return replace(features, values=values, codes=codes)


def _scattered(rows: NDArray[Any], features: Features, positions: NDArray[Any]) -> NDArray[Any]:
    """Write row j to ``positions[j]`` of a new file. Rows that become neighbours are written at once."""
    width = rows.shape[1] * rows.itemsize
    with tempfile.TemporaryFile() as file:
        file.truncate(max(1, rows.nbytes))
        for part in row_portions(features):
            part_positions = positions[part]
            order = np.argsort(part_positions, kind="stable")
            starts = np.flatnonzero(np.diff(part_positions[order], prepend=-2) != 1)
            for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
                run = order[start:stop]
                file.seek(int(part_positions[run[0]]) * width)
                file.write(rows[part][run].data)
        file.flush()
        return np.memmap(file, rows.dtype, "r+", shape=rows.shape)
