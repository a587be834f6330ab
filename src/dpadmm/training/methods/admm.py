"""ADMM, the paper's Algorithm 2: exact local solves, no noise. Not private: a reference, never a release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.optim.problem import Problem, Rows
from dpadmm.optim.regularizers import NoRegularizer
from dpadmm.privacy.plan import ReleasePlan
from dpadmm.privacy.releases import Release
from dpadmm.training.methods.admm_state import SolverState, advanced, start_solver
from dpadmm.training.methods.base import Broadcasts, Gathered, MethodSettings, Rho, Round, SolverTolerance
from dpadmm.training.methods.dp_admm import next_dual, upload
from dpadmm.training.methods.local_solver import LocalProblems, solve, tolerances
from dpadmm.training.methods.requirements import need_solvable

if TYPE_CHECKING:
    from dpadmm.training.setup import Setup


@dataclass(frozen=True)
class Admm(MethodSettings):
    """The paper's Algorithm 2, without noise."""

    rho: Rho = 0.1
    split_regularizer: Annotated[
        bool, "Put the regularizer into the consensus step, so that local problems are smooth."
    ] = False
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "ADMM"
    private: ClassVar[bool] = False

    def rounds(self, setup: Setup) -> AdmmRounds:
        return AdmmRounds(self.rho, self.split_regularizer, self.solver_tolerance)


@dataclass(frozen=True)
class AdmmRounds(Broadcasts):
    """Algorithm 2.

    Attributes
    ----------
    rho : float
        Penalty ρ.
    split : bool
        Put the regularizer into the consensus step: ``w = prox_{λR/(nρ)}(mean_i[w_i − γ_i/ρ])``. Then local
        problems are smooth whatever the regularizer.
    solver_tolerance : float
        Where local solves stop; see :func:`dpadmm.training.methods.local_solver.tolerances`.
    """

    rho: float
    split: bool = False
    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "admm"
    cure: ClassVar[str] = "a larger rho or reg_share, or less noise"
    local_models: ClassVar[bool] = True

    def init(self, problem: Problem, rows: Rows) -> SolverState:
        need_solvable(problem, self.name)
        return start_solver(problem, rows)

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        problem, rows, consensus, active = now.problem, now.rows, now.consensus, now.active
        dual = next_dual(state, consensus, self.rho)
        centers = consensus + dual / self.rho
        local = replace(problem, regularizer=NoRegularizer()) if self.split else problem
        problems = LocalProblems(
            local,
            rows,
            np.full(rows.n_agents, self.rho),
            centers,
            tolerances(problem, rows, self.solver_tolerance),
            bound=np.inf,
        )
        solved = solve(problems, centers + state.offset, active)
        new = advanced(state, released=solved.weights, dual=dual, centers=centers, solved=solved, active=active)
        return new, upload(solved.weights, dual, self.rho)

    def aggregate(self, gathered: Gathered) -> Floats:
        mean, problem = super().aggregate(gathered), gathered.problem
        return problem.regularizer.prox(mean, problem.reg_share / self.rho) if self.split else mean

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(Release(0.0), n_rounds)
