"""ADMM with primal variable perturbation, the paper's Algorithm 3: noise on the minimisers of local problems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.requirements import need_monotone_slopes, need_smooth
from dpadmm.baselines.solved_rounds import NoisyMinimizers, SolvedAdmm, SolverState
from dpadmm.engine.method import Rho, Round, SolverTolerance
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries.problem import Problem, Rows, Sizes


@checked_parameters
@dataclass(frozen=True)
class AdmmPvp(NoisyMinimizers[SolverState], SolvedAdmm):
    """The paper's Algorithm 3: primal variable perturbation.

    ``w̃_i = argmin_w L_ρ,i(w) + N(0, (zΔ)²I)`` with ``Δ = (2c1/m_i + 2·tol)/(ρ + λc/n)``.
    """

    rho: Rho = 0.1
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm_pvp"
    title: ClassVar[str] = "PVP"

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        return replace(self, noise_multiplier=budget.gaussian())

    def check(self, problem: Problem, rows: Rows) -> None:
        need_smooth(problem, self.name)
        need_monotone_slopes(problem, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        pull, tolerance = np.full(now.rows.n_agents, self.rho), self.solver_tolerance
        centers = now.consensus + dual / self.rho
        return LocalProblems(now.problem, now.rows, pull, centers, tolerances(now.problem, now.rows, tolerance))

    def event(self, agent: int) -> Release:
        return Release(float(self.noise_multiplier[agent]))
