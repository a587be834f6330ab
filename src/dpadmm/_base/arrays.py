"""Array types shared by all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]
"""Float64 array; shapes are given where it is used."""

Integers = NDArray[np.int64]

Features = NDArray[np.floating[Any]] | csr_array
"""Feature matrix (rows × d): C-contiguous float64 or float32, or CSR with such values."""
