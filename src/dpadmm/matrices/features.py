"""Sums and products of feature matrices with any storage."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.coded import CodedRows

Features: TypeAlias = NDArray[np.floating[Any]] | csr_array | CodedRows
"""Feature matrix (rows × d) of float64 or float32: C-contiguous, CSR or coded. All support ``[rows]`` and ``@``."""


def layout(features: Features) -> tuple[str, tuple[NDArray[Any], ...]]:
    """Return the storage of a matrix (``dense``, ``sparse`` or ``coded``) and its arrays."""
    if isinstance(features, np.ndarray):
        return "dense", (features,)
    if isinstance(features, CodedRows):
        return "coded", (features.values, features.codes, features.places)
    return "sparse", (features.data, features.indices, features.indptr)


def row_entries(features: Features) -> NDArray[Any]:
    """Return the number of stored entries of each row."""
    if isinstance(features, csr_array):
        return np.diff(features.indptr)
    stored = features.shape[1] if isinstance(features, np.ndarray) else features.n_stored
    return np.broadcast_to(stored, features.shape[:1])


def products(features: Features, weights: Floats) -> Floats:
    """Return ``a·w`` of each row: (d, p) -> (rows, p). Without BLAS, whose sums depend on the number of threads."""
    if isinstance(features, np.ndarray):
        return np.asarray(np.einsum("ij,jp->ip", features, weights))
    return np.asarray(features @ weights)


def weighted_sum(features: Features, weights: Floats) -> Floats:
    """Return ``Σ_j w_j·a_j`` over the rows: (rows, p) -> (d, p). Without BLAS."""
    if isinstance(features, np.ndarray):
        return np.asarray(np.einsum("ij,ip->jp", features, weights))
    return np.asarray(features.T @ weights)


def squared(features: Features) -> Features:
    """Return the square of each entry."""
    return features.squared() if isinstance(features, CodedRows) else features * features


def row_sums(features: Features) -> Floats:
    """Return the sum of each row."""
    return np.asarray(np.einsum("ij->i", features) if isinstance(features, np.ndarray) else features.sum(axis=1))
