"""How many rows of each class have a score in each of public bins: what the quality of a model is read off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import products, row_sums, squared
from dpadmm.queries.problem import Problem, Rows

EDGES = tuple(0.5 * step for step in range(-9, 10))
"""Of the bins of scores, each with its upper edge; 0, where the predicted class changes, is one of them."""

N_BINS = len(EDGES) + 1
MOST = 1e9
"""Bound of every public weight."""

PORTION = 2**20
"""Feature entries that are looked at together."""


@dataclass(frozen=True)
class ScoreHistogram:
    """``Σ_j e(b_j, bin of wᵀa_j)``, (2, bins), at public weights w: an indicator of class and bin, for two classes.

    A row adds 1 to one cell, or nothing if it is a row of zeros, whose label is still there and must not count. So
    replacing a row moves the sum by at most ``√2``, and silencing one by 1; S is twice that, 2. Rows count once each:
    weights have no say.
    What w is decides which cell a row is in, and no more: there is nothing to shorten but by the bound itself.
    """

    n_features: int

    name: ClassVar[str] = "score_histogram"
    row_norm: ClassVar[float] = 1.0
    shape: ClassVar[tuple[int, int]] = (2, N_BINS)

    @classmethod
    def of(cls, problem: Problem, n_features: int) -> ScoreHistogram:
        if problem.loss.task != "binary":
            raise StudyError(f"evaluation under privacy is for two classes, not for the loss {problem.loss.name}")
        return cls(n_features)

    @property
    def parameter_shape(self) -> tuple[int]:
        """w."""
        return (self.n_features,)

    def accepts(self, parameters: Floats) -> bool:
        return bool((np.abs(parameters) <= MOST).all())

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        out = np.zeros((rows.n_agents, *self.shape))
        for i, features, labels, _ in rows.portions(active, PORTION):
            some = features.astype(np.float64)
            counted = row_sums(squared(some)) > 0.0
            bins = np.searchsorted(EDGES, products(some, parameters[i][:, None])[:, 0])
            places = ((labels > 0.0) * N_BINS + bins)[counted]
            out[i] += np.bincount(places, minlength=out[i].size).reshape(self.shape)
        return out * min(1.0, bound)

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        return self.sums(rows, parameters, active, bound=self.row_norm) / np.maximum(rows.n_rows, 1)[:, None, None]
