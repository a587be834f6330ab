"""Counts of rows by class and public bin of the score, for the evaluation of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import products, row_sums, squared
from dpadmm.queries.problem import Problem, Rows

EDGES = tuple(0.5 * step for step in range(-9, 10))
"""Edges of the bins of scores. A bin includes its upper edge. 0, where the predicted class changes, is an edge."""

N_BINS = len(EDGES) + 1
MAX_PARAMETER = 1e9
"""Bound on every public weight."""

PORTION = 2**20
"""Feature entries that are processed together."""


@dataclass(frozen=True)
class ScoreHistogram:
    """``Σ_j e(b_j, bin of wᵀa_j)``, (2, bins), at public weights w: an indicator of class and bin, for two classes.

    A row adds 1 to one cell. A row of zeros adds nothing: it keeps its label, and this must not count. So replacing a
    row changes the sum by at most ``√2``, and silencing a row by 1; S is twice that, 2. Each row counts once: row
    weights are not used. w determines only the cell of a row, so the norm of a contribution is 1, and clipping to
    ``bound`` is a factor.
    """

    n_features: int

    name: ClassVar[str] = "score_histogram"
    row_norm: ClassVar[float] = 1.0
    shape: ClassVar[tuple[int, int]] = (2, N_BINS)

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> ScoreHistogram:
        if problem.loss.task != "binary":
            raise StudyError(f"private evaluation needs a loss for two classes, not {problem.loss.name}")
        return cls(n_features)

    @property
    def parameter_shape(self) -> tuple[int]:
        """Shape of w."""
        return (self.n_features,)

    def accepts(self, parameters: Floats) -> bool:
        return bool((np.abs(parameters) <= MAX_PARAMETER).all())

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        out = np.zeros((rows.n_agents, *self.shape))
        for i, features, labels, _ in rows.portions(active, PORTION):
            part = features.astype(np.float64)
            is_present = row_sums(squared(part)) > 0.0
            bins = np.searchsorted(EDGES, products(part, parameters[i][:, None])[:, 0])
            cells = ((labels > 0.0) * N_BINS + bins)[is_present]
            out[i] += np.bincount(cells, minlength=out[i].size).reshape(self.shape)
        return out * min(1.0, bound)

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return self.sums(rows, parameters, active, bound=self.row_norm) / np.maximum(rows.n_rows, 1)[:, None, None]
