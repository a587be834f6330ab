"""What the ADMM methods share: local models and duals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import StudyError
from dpadmm.optim import updates
from dpadmm.optim.problem import Problem, Sizes


@dataclass(frozen=True)
class AdmmState:
    """Local models and duals of a cohort: released w̃_i and γ_i, both (n, d, p)."""

    released: Floats
    dual: Floats


def zero_models(problem: Problem, sizes: Sizes) -> Floats:
    """All local models at zero: (n, d, p)."""
    return np.zeros((sizes.n_agents, sizes.n_features, problem.loss.n_outputs))


def check_noise(noise_multiplier: Floats) -> None:
    if not (np.isfinite(noise_multiplier).all() and np.all(noise_multiplier >= 0.0)):
        raise StudyError(f"noise_multiplier must be numbers ≥ 0, not {noise_multiplier!r}")


def next_dual(state: AdmmState, consensus: Floats, rho: float) -> Floats:
    """γ^{k−1}, closed when the agent hears w^{k−1}.

    An agent that was away closes it with the consensus it returns to, so that the duals still sum to zero.
    """
    return updates.dual_step(state.dual, released=state.released, consensus=consensus, rho=rho)
