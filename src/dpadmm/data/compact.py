"""CSR matrices with the smallest index type that fits, so that all sources look alike to the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array


def compact_csr(
    data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]
) -> csr_array:
    """A CSR matrix with 32-bit indices where they suffice: half the memory of 64-bit ones.

    Examples
    --------
    >>> compact_csr(np.ones(1), np.array([2]), np.array([0, 1]), (1, 3)).indices.dtype
    dtype('int32')
    """
    limit = np.iinfo(np.int32).max
    wide = [part for part in (indices, indptr) if part.size and part.dtype != np.int32]  # others need no look
    fits = max(len(data), *shape) < limit and all(
        -limit < int(part.min()) <= int(part.max()) < limit for part in wide
    )
    kind = np.int32 if fits else np.int64
    return csr_array((data, indices.astype(kind, copy=False), indptr.astype(kind, copy=False)), shape=shape)
