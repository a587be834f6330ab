"""ADMM with dual variable perturbation (Zhang and Zhu): noise in the local problem, its exact minimiser out.

``w_i = argmin_w f_i(w) − ⟨γ_i, w⟩ + (ρ/2)‖w − w^{k−1}‖² + (Φ/2)‖w‖² + ⟨ξ_i, w⟩``. That is no Gaussian
release; :class:`dpadmm.accounting.events.ObjectiveRelease` says how it is accounted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import plan_objective_noise
from dpadmm.baselines.solved_rounds import PerturbedObjective, SolvedAdmm, SolverState
from dpadmm.engine.method import Mechanism, MethodSettings, Rho, Round, SolverTolerance
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem, Rows

if TYPE_CHECKING:
    from dpadmm.methods.setup import Setup


@dataclass(frozen=True)
class AdmmDvp(MethodSettings):
    """ADMM with dual variable perturbation."""

    rho: Rho = 0.1
    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm_dvp"
    title: ClassVar[str] = "DVP"

    def rounds(self, setup: Setup) -> AdmmDvpRounds:
        perturbation = plan_objective_noise(setup, self.name, rho=self.rho, pure=self.mechanism == "pure")
        return AdmmDvpRounds(self.rho, perturbation, self.solver_tolerance)


@dataclass(frozen=True)
class AdmmDvpRounds(PerturbedObjective[SolverState], SolvedAdmm):
    """Dual variable perturbation."""

    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "admm_dvp"

    def check(self, problem: Problem, rows: Rows) -> None:
        self.perturbation.check(problem, rows, self.rho, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        pull = self.rho + self.perturbation.extra_ridge
        centers = (dual + self.rho * now.consensus) / pull[:, None, None]
        tolerance = tolerances(now.problem, now.rows, self.solver_tolerance)
        xi = self.perturbation.draw(now.noise, now.number)
        return LocalProblems(now.problem, now.rows, pull, centers, tolerance, linear=xi)
