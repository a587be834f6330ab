"""ADMM with primal variable perturbation, the paper's Algorithm 3: exact local solves, then noise on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.optim.problem import Problem, Rows
from dpadmm.privacy.plan import ReleasePlan
from dpadmm.privacy.releases import Release
from dpadmm.privacy.sensitivity import minimizer_sensitivity
from dpadmm.training.methods.admm_state import SolverState, advanced, start_solver
from dpadmm.training.methods.base import Broadcasts, MethodSettings, Rho, Round, SolverTolerance, check_noise
from dpadmm.training.methods.dp_admm import next_dual, upload
from dpadmm.training.methods.local_solver import LocalProblems, solve, tolerances
from dpadmm.training.methods.requirements import need_monotone_slopes, need_smooth
from dpadmm.training.oracles import release

if TYPE_CHECKING:
    from dpadmm.training.setup import Setup


@dataclass(frozen=True)
class AdmmPvp(MethodSettings):
    """The paper's Algorithm 3: primal variable perturbation."""

    rho: Rho = 0.1
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm_pvp"
    title: ClassVar[str] = "PVP"

    def rounds(self, setup: Setup) -> AdmmPvpRounds:
        return AdmmPvpRounds(self.rho, setup.gaussian(), self.solver_tolerance)


@dataclass(frozen=True)
class AdmmPvpRounds(Broadcasts):
    """Algorithm 3: ``w̃_i = argmin_w L_ρ,i(w) + N(0, (zΔ)²I)`` with ``Δ = (2c1/m_i + 2·tol)/(ρ + λc/n)``.

    Attributes
    ----------
    rho : float
        Penalty ρ.
    noise_multiplier : (n,)
        z of every agent; 0 means no noise.
    solver_tolerance : float
        Where local solves stop, and with it ``tol``; see :func:`.local_solver.tolerances`.
    """

    rho: float
    noise_multiplier: Floats
    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "admm_pvp"
    cure: ClassVar[str] = "a larger rho or reg_share, or less noise"
    local_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)

    def init(self, problem: Problem, rows: Rows) -> SolverState:
        need_smooth(problem, self.name)
        need_monotone_slopes(problem, self.name)
        return start_solver(problem, rows)

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        problem, rows, consensus, active = now.problem, now.rows, now.consensus, now.active
        dual = next_dual(state, consensus, self.rho)
        centers = consensus + dual / self.rho
        tolerance = tolerances(problem, rows, self.solver_tolerance)
        problems = LocalProblems(problem, rows, np.full(rows.n_agents, self.rho), centers, tolerance)
        solved = solve(problems, centers + state.offset, active)
        released = solved.weights
        if np.any(self.noise_multiplier):
            sensitivity = minimizer_sensitivity(
                problem.loss.lipschitz, rows.n_rows, problems.convexity, tolerance=tolerance
            )
            noise_std = (self.noise_multiplier * sensitivity)[:, None, None]
            released = release(solved.weights, noise_std=noise_std, noise=now.noise.draw(now.number))
        new = advanced(state, released=released, dual=dual, centers=centers, solved=solved, active=active)
        return new, upload(released, dual, self.rho)

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(Release(float(self.noise_multiplier[agent])), n_rounds)
