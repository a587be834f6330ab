"""Array types shared by all layers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm._base.coded import CodedRows

Floats = NDArray[np.float64]
"""Float64 array; shapes are given where it is used."""

Integers = NDArray[np.int64]

Features: TypeAlias = NDArray[np.floating[Any]] | csr_array | CodedRows
"""Feature matrix (rows × d) of float64 or float32: C-contiguous, CSR or coded. All know ``[rows]`` and ``@``."""


def layout(features: Features) -> tuple[str, tuple[NDArray[Any], ...]]:
    """How a matrix is stored (``dense``, ``sparse`` or ``coded``), and the arrays that it is made of."""
    if isinstance(features, np.ndarray):
        return "dense", (features,)
    if isinstance(features, CodedRows):
        return "coded", (features.values, features.codes, features.places)
    return "sparse", (features.data, features.indices, features.indptr)


def row_entries(features: Features) -> NDArray[Any]:
    """Stored entries of every row."""
    if isinstance(features, csr_array):
        return np.diff(features.indptr)
    stored = features.shape[1] if isinstance(features, np.ndarray) else features.n_stored
    return np.broadcast_to(stored, features.shape[:1])
