"""The sum of rows, for counts, means and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import row_sums, squared, weighted_sum
from dpadmm.queries.problem import Problem, Rows

PORTION = 2**20
"""Feature entries that are processed together."""


@dataclass(frozen=True)
class ColumnSums:
    """``Σ_j clip(a_j, 1)``, (d,): the encoded rows, without their labels. There are no public parameters.

    Every row is clipped to norm 1. Replacing a row changes the sum by at most 2. Silencing a row, which makes it a row
    of zeros, changes it by at most 1.

    The rows of a statistics study (:mod:`dpadmm.data.tabulation`) are k indicators of bins, two moments of each of q
    numbers and p indicators of cells, divided by ``R = √(k + 2q + p)``, so their norm is at most 1. In counts, S is
    ``2R``. Two active rows differ by at most ``√2`` in an indicator. But a person whose id makes another person's id
    ambiguous silences two rows of the same bins at once, and changes their count by 2.
    """

    n_features: int

    name: ClassVar[str] = "column_sums"
    row_norm: ClassVar[float] = 1.0
    parameter_shape: ClassVar[tuple[int]] = (0,)

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> ColumnSums:
        return cls(n_features)

    @property
    def shape(self) -> tuple[int]:
        return (self.n_features,)

    def accepts(self, parameters: Floats) -> bool:
        return True

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        out = np.zeros((rows.n_agents, *self.shape))
        for i, features, _, _ in rows.portions(active, PORTION):
            part = features.astype(np.float64)
            norms = np.sqrt(row_sums(squared(part)))
            factor = np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny))
            out[i] += weighted_sum(part, factor[:, None])[:, 0]
        return out

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return self.sums(rows, parameters, active, bound=self.row_norm) / np.maximum(rows.n_rows, 1)[:, None]
