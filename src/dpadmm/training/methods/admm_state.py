"""What the ADMM methods share: local models, duals, and the exact local solve of a round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import StudyError
from dpadmm.optim import updates
from dpadmm.optim.problem import Problem, Rows, Sizes
from dpadmm.training.methods.base import keep_absent
from dpadmm.training.methods.local_solver import Solved


@dataclass(frozen=True)
class AdmmState:
    """Local models and duals of a cohort: released w̃_i and γ_i, both (n, d, p)."""

    released: Floats
    dual: Floats


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


def zero_models(problem: Problem, sizes: Sizes) -> Floats:
    """All local models at zero: (n, d, p)."""
    return np.zeros((sizes.n_agents, sizes.n_features, problem.loss.n_outputs))


def start_solver(problem: Problem, rows: Rows) -> SolverState:
    """Zero models and duals, no passes yet."""
    zeros = zero_models(problem, rows)
    return SolverState(zeros, zeros, zeros, np.zeros(rows.n_agents, dtype=np.int64))


def check_noise(noise_multiplier: Floats) -> None:
    if not (np.isfinite(noise_multiplier).all() and np.all(noise_multiplier >= 0.0)):
        raise StudyError(f"noise_multiplier must be numbers ≥ 0, not {noise_multiplier!r}")


def next_dual(state: AdmmState, consensus: Floats, rho: float) -> Floats:
    """γ^{k−1}, closed when the agent hears w^{k−1}.

    An agent that was away closes it with the consensus it returns to, so that the duals still sum to zero.
    """
    return updates.dual_step(state.dual, released=state.released, consensus=consensus, rho=rho)


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
