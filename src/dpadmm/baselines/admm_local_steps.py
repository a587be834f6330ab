"""DP-ADMM with several noisy local steps per round of communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from dpadmm.accounting.events import AnyRelease, Release
from dpadmm.engine.method import Round, merge_states
from dpadmm.engine.noise import LazyAnswers
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.dp_admm import AdmmState, DpAdmm, next_dual, primal_step, upload
from dpadmm.methods.dp_sgd import noisy_gradient
from dpadmm.parameters.fields import Count, checked_parameters
from dpadmm.queries.problem import Problem, Sizes


@checked_parameters
@dataclass(frozen=True)
class AdmmLocalSteps(DpAdmm):
    """Algorithm 1 with E local steps at the same consensus and dual.

    ``u_0 = w̃_i^{k−1}``, then ``u_e`` is the primal step from ``u_{e−1}`` with a new noisy gradient at ``u_{e−1}``, and
    ``w̃_i^k = u_E``. With E = 1 this is DP-ADMM, to the last bit.

    **Privacy.** A gradient is taken at a point that depends on earlier noisy gradients of the round, so the E releases
    compose adaptively, exactly as E rounds do: ``Release(z, count=E)`` per round, ``μ² = E/z²``. Only u_E is sent, and
    u_1 … u_{E−1} are functions of the releases, so this is an upper bound for everyone who sees all messages. (It is
    not always attained: with a constant slope, u_E contains only the sum of the E gradients, which has less
    information. For slopes that depend on u, no smaller bound is used here.) The noise is divided among the steps: z is
    √E times that of DP-ADMM, so a round costs the same for all E.
    """

    local_steps: Annotated[Count, "Noisy gradient steps of an agent per round."] = 4

    name: ClassVar[str] = "admm_local_steps"
    title: ClassVar[str] = "DP-ADMM, local steps"
    deployable: ClassVar[bool] = False

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        z = budget.gaussian() * np.sqrt(self.local_steps)
        return self.with_noise(problem, sizes, z, gradient_noise=z)

    def step(self, state: AdmmState, now: Round) -> tuple[AdmmState, Floats | LazyAnswers]:
        if self.local_steps == 1:
            return super().step(state, now)
        dual, local, problem = next_dual(state, now.consensus, self.rho), state.released, now.problem
        step_size = self.step_sizes(now.number)[:, None, None]
        for stream in range(self.local_steps):
            local = primal_step(
                noisy_gradient(now, local, self.noise_multiplier, stream=stream),
                problem.alpha * problem.regularizer.gradient(local),
                released=local,
                dual=dual,
                consensus=now.consensus,
                rho=self.rho,
                step_size=step_size,
            )
        return merge_states(AdmmState(local, dual), state, now.active), upload(local, dual, self.rho)

    def event(self, statistic: str, noise_multiplier: float) -> AnyRelease:
        return Release(noise_multiplier, count=self.local_steps, statistic=statistic)
