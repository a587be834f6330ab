"""Asynchronous DP-ADMM, the setting of Guo and Gong (2018): the aggregator does not wait for late answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpadmm.engine.method import Round, keep_absent, merge_states, prepared
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.dp_admm import AdmmState, DpAdmm
from dpadmm.methods.dp_sgd import noisy_gradient
from dpadmm.parameters.fields import Count, checked_parameters
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Problem, Sizes


@dataclass(frozen=True)
class AsynchronousState(AdmmState):
    """Local models and duals, the consensus that each agent works on, and its last upload: all (n, d, p)."""

    received: Floats
    uploads: Floats


@checked_parameters
@dataclass(frozen=True)
class AdmmAsynchronous(DpAdmm):
    """Algorithm 1 with late answers.

    An agent's answer takes 1 to ``max_delay`` rounds. It is computed from the consensus that the agent received after
    its last answer. In every round the aggregator takes the mean of the last uploads of all agents, and sends it to
    those that answered. If all answers take one round, this is DP-ADMM.

    **Privacy.** The query of an answer is a gradient at w̃_i, which is public, and the answer is a Gaussian release with
    multiplier z whether it is late or not: staleness changes accuracy only. The release plan of an agent has a release
    in the rounds in which it answers and gaps in the others, so agents have different costs at equal z, and the noise
    is calibrated to each agent's own number of answers. Delays are drawn from ``delay_seed`` before round 1 and are
    public. This models computing times that depend on no row; of others no guarantee covers what they reveal.

    **The paper** solves local problems and hides single answers: under secure computation, agents add shares of one
    noise. Shares that sum to the noise of a release must assume a number of answers in every round, which late answers
    do not have. Here every answer has its own noise.
    """

    max_delay: Annotated[Count, "Largest number of rounds that an answer takes; 1 for no delays."] = 4
    delay_seed: Annotated[Count, "Seed of the delays, which depend on no row."] = 1
    answers: NDArray[np.bool_] = prepared()
    """Whether agent i answers in round k: (n_rounds, n)."""

    name: ClassVar[str] = "admm_asynchronous"
    title: ClassVar[str] = "DP-ADMM, asynchronous"
    deployable: ClassVar[bool] = False

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        answers = draw_answers(self.delay_seed, self.max_delay, budget.n_rounds, sizes.n_agents)
        planned = np.clip(answers.sum(axis=0), 1, np.maximum(budget.planned, 1))
        built = super().build(problem, sizes, replace(budget, planned=planned))
        return replace(built, answers=answers)

    def release(self, round: int) -> tuple[str, Floats]:
        return Gradient.name, np.where(self.answers[round - 1], self.noise_multiplier, np.inf)

    def init(self, problem: Problem, sizes: Sizes) -> AsynchronousState:
        state = super().init(problem, sizes)
        return AsynchronousState(**vars(state), received=state.released, uploads=state.released)

    def step(self, state: AdmmState, now: Round) -> tuple[AdmmState, Floats]:
        assert isinstance(state, AsynchronousState)
        if now.active is not None:
            raise StudyError(f"{self.name} has delays of its own, so participation must be 1; use max_delay")
        if now.number == 1:  # all agents start at the first broadcast
            received = np.broadcast_to(now.consensus, state.released.shape)
            state = replace(state, received=received, uploads=state.released)
        else:
            received = keep_absent(
                np.broadcast_to(now.consensus, state.released.shape),
                state.received,
                np.flatnonzero(self.answers[now.number - 2]),
            )
            state = replace(state, received=received)
        present = np.flatnonzero(self.answers[now.number - 1])
        gradients = noisy_gradient(replace(now, active=present), state.released, self.noise_multiplier)
        new, sent = self.advance(state, gradients, state.received, round=now.number, problem=now.problem)
        late: Any = replace(state, released=new.released, dual=new.dual, uploads=sent)
        merged = merge_states(late, state, present)
        return merged, merged.uploads


def draw_answers(seed: int, max_delay: int, n_rounds: int, n_agents: int) -> NDArray[np.bool_]:
    """Return whether agent i answers in round k, with delays between answers uniform in 1 … max_delay."""
    answers = np.zeros((n_rounds, n_agents), dtype=bool)
    for i in range(n_agents):
        delays = np.random.default_rng([seed, 4, i]).integers(1, max_delay, size=n_rounds, endpoint=True)
        rounds = np.cumsum(delays) - 1
        answers[rounds[rounds < n_rounds], i] = True
    return answers
