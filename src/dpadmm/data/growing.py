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
        self._width, self._memory_bytes = width, memory_bytes
        self._memory: NDArray[Any] = np.empty(0, dtype)
        self._filled = 0
        self._file: IO[bytes] | None = None

    def append(self, block: NDArray[Any]) -> None:
        """Add a copy of rows at the end."""
        block = np.ascontiguousarray(block, dtype=self._memory.dtype).reshape(-1)
        before, self._filled = self._filled, self._filled + block.size
        if self._file is None and self._filled * block.itemsize <= self._memory_bytes:
            if self._filled > self._memory.size:
                self._resize(self._filled + self._filled // 8)
            self._memory[before : self._filled] = block
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the array
            self._file.write(self._memory[:before].data)
            self._memory = np.empty(0, block.dtype)
        self._file.write(block.data)

    def finish(self) -> NDArray[Any]:
        """All rows, (rows, width); of a file, a view that is paged in when it is looked at."""
        if self._file is None:
            self._resize(self._filled)
            return self._memory.reshape(-1, self._width)
        self._file.flush()
        shape = (self._filled // self._width, self._width)
        mapped = np.memmap(self._file, self._memory.dtype, "r+", shape=shape)
        self.close()
        return mapped

    def _resize(self, size: int) -> None:
        """Large arrays are moved by the operating system, without ever being there twice."""
        self._memory.resize(size, refcheck=False)  # there is no view of it

    def close(self) -> None:
        """Let go of the file; what was mapped of it stays."""
        if self._file is not None:
            self._file.close()
