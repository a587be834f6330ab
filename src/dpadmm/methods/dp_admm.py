"""DP-ADMM, the paper's Algorithm 1: one noisy gradient step per round in place of an exact local solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm import kernels, updates
from dpadmm.arrays import Floats, Integers
from dpadmm.errors import StudyError
from dpadmm.privacy.accounting import Release
from dpadmm.privacy.noise import Noise, release
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.problem import Problem, Rows
from dpadmm.schedules import Schedule


@dataclass(frozen=True)
class AdmmState:
    """Local models and duals of a cohort: released w̃_i and γ_i, both (n, d, p)."""

    released: Floats
    dual: Floats


@dataclass(frozen=True)
class DpAdmm:
    """Algorithm 1.

    Attributes
    ----------
    rho : float
        Penalty ρ.
    schedule : Schedule
        Step sizes η_i^k.
    noise_multiplier : (n,)
        z of every agent: its gradient gets Gaussian noise of z times the sensitivity 2c1/m_i. 0 means none.
    """

    rho: float
    schedule: Schedule
    noise_multiplier: Floats

    name: ClassVar[str] = "dp_admm"

    def __post_init__(self) -> None:
        if not (0.0 < self.rho < np.inf):
            raise StudyError(f"rho (the penalty ρ) must be a positive number, not {self.rho!r}")
        if not (np.isfinite(self.noise_multiplier).all() and np.all(self.noise_multiplier >= 0.0)):
            raise StudyError(f"noise_multiplier must be numbers ≥ 0, not {self.noise_multiplier!r}")

    def init(self, problem: Problem, rows: Rows) -> AdmmState:
        zeros = np.zeros((rows.n_agents, rows.n_features, problem.loss.n_outputs))
        return AdmmState(released=zeros, dual=zeros)

    def step(
        self,
        state: AdmmState,
        *,
        problem: Problem,
        rows: Rows,
        round: int,
        consensus: Floats,
        noise: Noise,
        active: Integers | None,
    ) -> tuple[AdmmState, Floats]:
        # The dual of an agent's last round is closed when it hears the next consensus. An agent that was
        # away closes it with the consensus it returns to, so that the duals still sum to zero.
        dual = updates.dual_step(state.dual, released=state.released, consensus=consensus, rho=self.rho)
        gradient = kernels.gradient(rows, state.released, problem.loss, active)
        if np.any(self.noise_multiplier):
            sensitivity = mean_gradient_sensitivity(problem.loss.lipschitz, rows.n_rows)
            noise_std = (self.noise_multiplier * sensitivity)[:, None, None]
            gradient = release(gradient, noise_std=noise_std, noise=noise.draw(round))
        released = updates.primal_step(
            gradient,
            problem.reg_share * problem.regularizer.gradient(state.released),
            released=state.released,
            dual=dual,
            consensus=consensus,
            rho=self.rho,
            step_size=self.schedule(round)[:, None, None],
        )
        uploads = updates.upload(released, dual, self.rho)
        if active is None:
            return AdmmState(released, dual), uploads
        kept = AdmmState(state.released.copy(), state.dual.copy())
        kept.released[active] = released[active]
        kept.dual[active] = dual[active]
        return kept, uploads

    def release(self, agent: int) -> Release:
        return Release(float(self.noise_multiplier[agent]))
