"""A public linear map of rows, ``u = B·a``, given by two vectors: no d × d matrix is stored or sent.

For ``K = diag(v) + ppᵀ`` and τ > 0, any B with ``BᵀB = (K + τI)⁻¹`` maps rows of second moment K to rows of nearly
isotropic second moment. All such B differ by a rotation, which changes neither row norms nor the distribution of
Gaussian noise. With ``s = (v + τ)^(−½)`` and ``q = s∘p`` one of them is ``B = (I − βqqᵀ)·diag(s)``,
``β = 1/(r(r + 1))``, ``r = √(1 + ‖q‖²)``, since ``(I − βqqᵀ)² = (I + qqᵀ)⁻¹``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array

from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features
from dpadmm.matrices.memmap import empty, row_portions

MAX_DIRECTION_FEATURES = 2000
"""Maximum number of features for a direction q, which makes sparse rows dense. With more features B is diagonal."""

PORTION = 2**17
"""Feature entries that are processed together; they fit into the cache."""


@dataclass(frozen=True)
class Preconditioner:
    """``B = (I − βqqᵀ)·diag(s)`` with ``scale`` s > 0 and ``direction`` q, both (d,).

    Examples
    --------
    >>> preconditioner = Preconditioner.of(np.array([0.5, 0.1]), np.array([0.3, 0.2]), 0.05)
    >>> b = np.stack([preconditioner.times(unit) for unit in np.eye(2)], axis=1)
    >>> moment = np.diag([0.5, 0.1]) + np.outer([0.3, 0.2], [0.3, 0.2]) + 0.05 * np.eye(2)
    >>> bool(np.allclose(b @ moment @ b.T, np.eye(2)))
    True
    """

    scale: Floats
    direction: Floats

    @classmethod
    def of(cls, variances: Floats, means: Floats, ridge: float) -> Preconditioner:
        """Return the preconditioner for rows of second moment ``diag(variances) + means·meansᵀ``, and τ = ``ridge``."""
        scale = 1.0 / np.sqrt(np.maximum(variances, 0.0) + ridge)
        return cls(scale, scale * means)

    def copy(self) -> Preconditioner:
        """Return a copy with its own arrays."""
        return Preconditioner(self.scale.copy(), self.direction.copy())

    def same(self, other: Preconditioner) -> bool:
        return np.array_equal(self.scale, other.scale) and np.array_equal(self.direction, other.direction)

    def rank(self, ridge: float) -> float:
        """Return ``Σ e/(e + τ)`` over the eigenvalues e of K, the effective rank."""
        inverse = np.square(self.scale)
        trace = np.sum(inverse) - np.sum(inverse * np.square(self.direction)) / self.spread**2
        return float(len(self.scale) - ridge * trace)

    def filtered(self, vectors: Floats, ridge: float, noise: float) -> Floats:
        """Return ``M(M + cI)⁻¹x`` with ``M = BKBᵀ = I − τBBᵀ``, c = ``noise`` and x of shape (d, p).

        This shrinks directions in which rows vary little. ``BBᵀ`` is diagonal except for two directions, so only a
        2 × 2 system is solved.
        """
        inverse, q, factor = np.square(self.scale), self.direction, 1.0 / (self.spread * (self.spread + 1.0))
        sides = np.stack([q, inverse * q])
        middle = np.array([[factor**2 * np.sum(sides[1] * q), -factor], [-factor, 0.0]])
        weights = 1.0 + noise - ridge * inverse
        plain, thin = vectors / weights[:, None], sides / weights
        system = np.eye(2) - ridge * middle @ np.einsum("id,jd->ij", sides, thin)
        inner = np.linalg.solve(system, ridge * middle @ np.einsum("id,dp->ip", sides, plain))
        solved = plain + np.einsum("id,ip->dp", thin, inner)
        across = np.einsum("id,ip->dp", sides, middle @ np.einsum("id,dp->ip", sides, solved))
        return np.asarray(solved - ridge * (inverse[:, None] * solved + across))

    @property
    def spread(self) -> float:
        """``r = √(1 + ‖q‖²)``, a bound on ``‖diag(s)·a‖/‖B·a‖``."""
        return float(np.sqrt(1.0 + np.sum(np.square(self.direction))))

    def times(self, vectors: Floats) -> Floats:
        """Return ``B·x`` for x of shape (d,) or (d, p)."""
        return self._shrink(_scale_rows(self.scale, vectors))

    def transposed_times(self, vectors: Floats) -> Floats:
        """Return ``Bᵀ·x``: convert weights of preconditioned rows to weights of rows."""
        return _scale_rows(self.scale, self._shrink(vectors))

    def solve_transposed(self, vectors: Floats) -> Floats:
        """Return θ with ``Bᵀθ = x``: convert weights of rows to weights of preconditioned rows."""
        plain = _scale_rows(1.0 / self.scale, vectors)
        return plain + _outer(self.direction, plain) / (self.spread + 1.0)

    def _shrink(self, vectors: Floats) -> Floats:
        return vectors - _outer(self.direction, vectors) / (self.spread * (self.spread + 1.0))

    def rows(self, features: Features) -> Features:
        """Return ``u = B·a`` of every row. Sparse rows stay sparse if the direction is zero.

        The result for a row depends on this row only, to the last bit. BLAS is not used: its sums depend on the number
        of threads.
        """
        has_direction = bool(np.any(self.direction))
        if isinstance(features, CodedRows) and features.width > MAX_DIRECTION_FEATURES:
            features = features.tocsr()
        if isinstance(features, csr_array) and not has_direction:
            return csr_array(features.astype(np.float64) @ diags_array(self.scale))
        out, factor = empty(features.shape), 1.0 / (self.spread * (self.spread + 1.0))
        step = max(1, PORTION // features.shape[1])
        for large in row_portions(out):
            for start in range(large.start, large.stop, step):
                part = slice(start, min(start + step, large.stop))
                portion = features[part] if isinstance(features, np.ndarray) else features[part].toarray()
                np.multiply(portion, self.scale, out=out[part])
                if has_direction:
                    along = np.einsum("ij,j->i", out[part], self.direction)
                    out[part] -= (factor * along)[:, None] * self.direction
        return out


def _scale_rows(scale: Floats, vectors: Floats) -> Floats:
    return np.asarray(scale.reshape(-1, *[1] * (vectors.ndim - 1)) * vectors)


def _outer(direction: Floats, vectors: Floats) -> Floats:
    """Return ``q·(qᵀx)``."""
    return _scale_rows(direction, np.broadcast_to(np.sum(_scale_rows(direction, vectors), axis=0), vectors.shape))
