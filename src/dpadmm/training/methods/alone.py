"""What methods share in which every agent trains alone, speaks once, and the models are averaged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm.optim.problem import Problem, Rows
from dpadmm.training.methods.base import zero_models
from dpadmm.training.methods.local_solver import LocalProblems, tolerances


@dataclass(frozen=True)
class AloneState:
    """The models that agents gave away (n, d, p), and how many gradient passes each took (n,)."""

    released: Floats
    passes: Integers


def start_alone(problem: Problem, rows: Rows) -> AloneState:
    return AloneState(zero_models(problem, rows), np.zeros(rows.n_agents, dtype=np.int64))


def alone(
    problem: Problem, rows: Rows, *, tolerance: float, ridge: Floats, linear: Floats | None = None
) -> LocalProblems:
    """``argmin_w f_i(w) + (ridge_i/2)‖w‖² + ⟨linear_i, w⟩`` for every agent."""
    centers = zero_models(problem, rows)
    return LocalProblems(problem, rows, ridge, centers, tolerances(problem, rows, tolerance), linear=linear)
