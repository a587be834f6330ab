"""ADMM with primal variable perturbation, the paper's Algorithm 3: exact local solves, then noise on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.requirements import need_monotone_slopes, need_smooth
from dpadmm.baselines.solved_rounds import NoisyMinimizers, SolvedAdmm, SolverState
from dpadmm.engine.method import MethodSettings, Rho, Round, SolverTolerance
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem, Rows

if TYPE_CHECKING:
    from dpadmm.methods.setup import Setup


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
class AdmmPvpRounds(NoisyMinimizers[SolverState], SolvedAdmm):
    """Algorithm 3: ``w̃_i = argmin_w L_ρ,i(w) + N(0, (zΔ)²I)`` with ``Δ = (2c1/m_i + 2·tol)/(ρ + λc/n)``."""

    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "admm_pvp"

    def check(self, problem: Problem, rows: Rows) -> None:
        need_smooth(problem, self.name)
        need_monotone_slopes(problem, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        pull, tolerance = np.full(now.rows.n_agents, self.rho), self.solver_tolerance
        centers = now.consensus + dual / self.rho
        return LocalProblems(now.problem, now.rows, pull, centers, tolerances(now.problem, now.rows, tolerance))

    def price(self, agent: int) -> Release:
        return Release(float(self.noise_multiplier[agent]))
