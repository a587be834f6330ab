"""DP-ADMM, the paper's Algorithm 1: one noisy gradient step per round in place of an exact local solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm import kernels, updates
from dpadmm.arrays import Floats
from dpadmm.methods.admm_state import (
    AdmmState,
    check_noise,
    check_rho,
    keep_absent,
    next_dual,
    zero_models,
)
from dpadmm.methods.base import Round
from dpadmm.privacy.noise import release
from dpadmm.privacy.releases import Release
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.problem import Problem, Rows
from dpadmm.schedules import Schedule


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
    local_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rho(self.rho)
        check_noise(self.noise_multiplier)

    def init(self, problem: Problem, rows: Rows) -> AdmmState:
        zeros = zero_models(problem, rows)
        return AdmmState(released=zeros, dual=zeros)

    def step(self, state: AdmmState, now: Round) -> tuple[AdmmState, Floats]:
        problem, rows, consensus, active = now.problem, now.rows, now.consensus, now.active
        dual = next_dual(state, consensus, self.rho)
        gradient = kernels.gradient(rows, state.released, problem.loss, active)
        if np.any(self.noise_multiplier):
            sensitivity = mean_gradient_sensitivity(problem.loss.lipschitz, rows.n_rows)
            noise_std = (self.noise_multiplier * sensitivity)[:, None, None]
            gradient = release(gradient, noise_std=noise_std, noise=now.noise.draw(now.number))
        released = updates.primal_step(
            gradient,
            problem.reg_share * problem.regularizer.gradient(state.released),
            released=state.released,
            dual=dual,
            consensus=consensus,
            rho=self.rho,
            step_size=self.schedule(now.number)[:, None, None],
        )
        new = AdmmState(keep_absent(released, state.released, active), keep_absent(dual, state.dual, active))
        return new, updates.upload(released, dual, self.rho)

    def aggregate(self, uploads: Floats, *, consensus: Floats, problem: Problem) -> Floats:
        return updates.consensus_step(uploads)

    def release(self, agent: int) -> Release:
        return Release(float(self.noise_multiplier[agent]))
