"""An owner's rows in the encoding of one study: what a guard computes gradients of."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from scipy.sparse import csr_array

from dpadmm import kernels
from dpadmm.arrays import Features, Floats
from dpadmm.features import clip_rows, with_intercept
from dpadmm.losses.base import Loss
from dpadmm.paging import is_nameless
from dpadmm.problem import Rows, make_rows


class OwnRows:
    """Rows of length at most 1 and their labels, checked and copied; see ``guard.PrivateRows``."""

    def __init__(self, features: Features, labels: Floats, loss: Loss, *, intercept: bool = False) -> None:
        matrix = clip_rows(features)
        matrix = with_intercept(matrix) if intercept else matrix
        # Of rows that others can change, lengths and digest would not be true for long
        self._rows: Rows = make_rows(matrix if is_nameless(matrix) else matrix.copy(), labels.copy())
        self._loss = loss

    @property
    def n_rows(self) -> int:
        return len(self._rows.labels)

    @property
    def shape(self) -> tuple[int, int]:
        return self._rows.n_features, self._loss.n_outputs

    def digest(self) -> str:
        """SHA-256 of the kind, the shape and the bytes of features and labels."""
        total = sha256(repr((type(self._rows.features).__name__, self._rows.features.shape)).encode())
        for part in self._parts():
            total.update(f"{part.dtype.str} {part.size}\n".encode())
            total.update(np.ascontiguousarray(part).data)
        return total.hexdigest()

    def gradient_sum(self, point: Floats, bound: float) -> Floats:
        """``Σ_j clip(ℓ'(a_j, b_j, point), bound)``, by the lines that simulations of exact noise use."""
        return np.asarray(kernels.guarded_sums(self._rows, point[None], self._loss, bound=bound)[0])

    def _parts(self) -> list[np.ndarray]:
        features = self._rows.features
        stored = (
            [features.data, features.indices, features.indptr]
            if isinstance(features, csr_array)
            else [features]
        )
        return [*stored, self._rows.labels]
