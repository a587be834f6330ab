"""ADMM with dual variable perturbation (Zhang and Zhu): noise in the local problem, its exact minimiser out.

``w_i = argmin_w f_i(w) − ⟨γ_i, w⟩ + (ρ/2)‖w − w^{k−1}‖² + (Φ/2)‖w‖² + ⟨ξ_i, w⟩``. That is no Gaussian
release; :class:`dpadmm.privacy.releases.ObjectiveRelease` says how it is accounted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpadmm._base.arrays import Floats
from dpadmm.optim.problem import Problem, Rows
from dpadmm.privacy.plan import ReleasePlan
from dpadmm.training.methods.admm_state import SolverState, advanced, start_solver
from dpadmm.training.methods.base import Broadcasts, Mechanism, MethodSettings, Rho, Round, SolverTolerance
from dpadmm.training.methods.dp_admm import next_dual, upload
from dpadmm.training.methods.local_solver import LocalProblems, solve, tolerances
from dpadmm.training.methods.objective_noise import ObjectiveNoise

if TYPE_CHECKING:
    from dpadmm.training.setup import Setup


@dataclass(frozen=True)
class AdmmDvp(MethodSettings):
    """ADMM with dual variable perturbation."""

    rho: Rho = 0.1
    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm_dvp"
    title: ClassVar[str] = "DVP"

    def rounds(self, setup: Setup) -> AdmmDvpRounds:
        perturbation = setup.objective(self.name, rho=self.rho, pure=self.mechanism == "pure")
        return AdmmDvpRounds(self.rho, perturbation, self.solver_tolerance)


@dataclass(frozen=True)
class AdmmDvpRounds(Broadcasts):
    """Dual variable perturbation.

    Attributes
    ----------
    rho : float
        Penalty ρ.
    perturbation : ObjectiveNoise
        ξ, Φ and what they cost.
    solver_tolerance : float
        Where local solves stop; see :func:`dpadmm.training.methods.local_solver.tolerances`.
    """

    rho: float
    perturbation: ObjectiveNoise
    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "admm_dvp"
    cure: ClassVar[str] = "a larger rho or reg_share, or less noise"
    local_models: ClassVar[bool] = True

    def init(self, problem: Problem, rows: Rows) -> SolverState:
        self.perturbation.check(problem, rows, self.rho, self.name)
        return start_solver(problem, rows)

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        problem, rows, consensus, active = now.problem, now.rows, now.consensus, now.active
        dual = next_dual(state, consensus, self.rho)
        pull = self.rho + self.perturbation.extra_ridge
        xi = self.perturbation.draw(now.noise, now.number)
        centers = (dual + self.rho * consensus) / pull[:, None, None]
        tolerance = tolerances(problem, rows, self.solver_tolerance)
        problems = LocalProblems(problem, rows, pull, centers, tolerance, linear=xi)
        solved = solve(problems, centers + state.offset, active)
        released = self.perturbation.cover(solved.weights, tolerance / problems.convexity, now.noise, now.number)
        new = advanced(state, released=released, dual=dual, centers=centers, solved=solved, active=active)
        return new, upload(released, dual, self.rho)

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(self.perturbation.release(agent), n_rounds)
