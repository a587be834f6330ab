"""What public rows say before any private row is asked: a start, and how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import DataError
from dpadmm.optim.problem import Problem, Rows
from dpadmm.optim.regularizers import L2
from dpadmm.training.methods.centralized import minimizer

RIDGE = 0.5
"""Weight of ½‖w‖² beside the sum of the losses of the public rows."""


@dataclass(frozen=True)
class Prior:
    """A plain model of public rows (d, p), how many there are, and their means and mean squares (d,)."""

    weights: Floats
    n_rows: int
    means: Floats
    squares: Floats

    def as_json(self) -> dict[str, Any]:
        """Plain values; :meth:`from_json` gives the same bits back."""
        return {each.name: np.asarray(getattr(self, each.name)).tolist() for each in fields(self)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], shape: tuple[int, int]) -> Prior:
        """The prior of weights of this shape."""
        shapes = {"weights": shape, "means": shape[:1], "squares": shape[:1]}
        arrays = {name: np.array(plain[name], dtype=np.float64) for name in shapes}
        if any(arrays[name].shape != wanted for name, wanted in shapes.items()):
            raise ValueError("no prior of this shape")
        return cls(n_rows=int(plain["n_rows"]), **arrays)


def need_every_class(problem: Problem, labels: Floats) -> None:
    """Refuse public rows that lack a class."""
    if problem.loss.task != "regression" and len(np.unique(labels)) < max(2, problem.loss.n_outputs):
        raise DataError("the public rows must have rows of every class to start from; add some, or leave them out")


def prior_of(problem: Problem, rows: Rows) -> Prior:
    """The prior from public rows, encoded as private ones are. Nothing of it is private."""
    n = len(rows.labels)
    need_every_class(problem, rows.labels)
    features = rows.features if isinstance(rows.features, np.ndarray) else rows.features.toarray()
    features = features.astype(np.float64)
    weights = minimizer(Problem(problem.loss, L2(), RIDGE / n), rows)
    return Prior(weights, n, features.mean(axis=0), np.square(features).mean(axis=0))
