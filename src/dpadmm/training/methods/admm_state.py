"""What the ADMM methods share that solve local problems exactly: the state of a round, and the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm.optim.problem import Problem, Rows
from dpadmm.training.methods.base import keep_absent, zero_models
from dpadmm.training.methods.dp_admm import AdmmState
from dpadmm.training.methods.local_solver import Solved


@dataclass(frozen=True)
class SolverState(AdmmState):
    """The same for methods that solve local problems exactly.

    Attributes
    ----------
    offset : (n, d, p)
        How far the last minimiser was from its centre: where the next solve starts. Private to the agent.
    passes : (n,)
        Gradient passes of all solves so far.
    """

    offset: Floats
    passes: Integers


def start_solver(problem: Problem, rows: Rows) -> SolverState:
    """Zero models and duals, no passes yet."""
    zeros = zero_models(problem, rows)
    return SolverState(zeros, zeros, zeros, np.zeros(rows.n_agents, dtype=np.int64))


def advanced(
    state: SolverState,
    *,
    released: Floats,
    dual: Floats,
    centers: Floats,
    solved: Solved,
    active: Integers | None,
) -> SolverState:
    """The state after a round in which the agents in ``active`` (None: all) solved and released."""
    return SolverState(
        keep_absent(released, state.released, active),
        keep_absent(dual, state.dual, active),
        keep_absent(solved.weights - centers, state.offset, active),
        state.passes + solved.passes,
    )
