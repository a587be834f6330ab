"""Rows of L2 norm at most 1, which every sensitivity in this package relies on."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from dpadmm._base.arrays import Features
from dpadmm.optim.features import row_norms


def shrink_rows(features: Features) -> None:
    """Divide, in place, every row by its norm where that is more than 1.

    The divisor is larger than the norm by the rounding error of a sum of d squares, so that the norm comes
    out at most 1 in whichever order it is summed later.
    """
    dtype = features.dtype
    margin = 1.0 + (features.shape[1] + 4) * float(np.finfo(dtype).eps)
    divisors = np.maximum(row_norms(features) * margin, 1.0).astype(dtype)
    if isinstance(features, csr_array):
        features.data /= np.repeat(divisors, np.diff(features.indptr))
    else:
        features /= divisors[:, None]
