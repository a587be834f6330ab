"""Arrays that grow block by block: in memory while small, in a nameless file beyond."""

from __future__ import annotations

import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MEMORY_BYTES = 2**28
"""What is larger is kept in a file without a name, which vanishes with the process."""


class GrowingArray:
    """Rows of a fixed width and type.

    Examples
    --------
    >>> rows = GrowingArray(np.float32, 2)
    >>> rows.append(np.ones((3, 2))); rows.append(np.zeros((1, 2)))
    >>> rows.finish().shape
    (4, 2)
    """

    def __init__(self, dtype: DTypeLike, width: int, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._dtype, self._width, self._memory_bytes = np.dtype(dtype), width, memory_bytes
        self._blocks: list[NDArray[Any]] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, block: NDArray[Any]) -> None:
        """Add rows at the end."""
        block = np.ascontiguousarray(block, dtype=self._dtype).reshape(-1, self._width)
        self._bytes += block.nbytes
        if self._file is None and self._bytes <= self._memory_bytes:
            self._blocks.append(block)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the array
            for each in self._blocks:
                self._file.write(each.data)
            self._blocks = []
        self._file.write(block.data)

    def finish(self) -> NDArray[Any]:
        """All rows, (rows, width); of a file, a read-only view that is paged in when it is looked at."""
        if self._file is None:
            empty = np.empty((0, self._width), self._dtype)
            return np.concatenate(self._blocks) if self._blocks else empty
        self._file.flush()
        n_rows = self._bytes // (self._width * self._dtype.itemsize)
        mapped = np.memmap(self._file, self._dtype, "r+", shape=(n_rows, self._width))
        self.close()
        return mapped

    def close(self) -> None:
        """Let go of the file; what was mapped of it stays."""
        if self._file is not None:
            self._file.close()
