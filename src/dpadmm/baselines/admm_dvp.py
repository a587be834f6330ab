"""ADMM with dual variable perturbation (Zhang and Zhu): noise in the local problem, whose minimiser is released.

``w_i = argmin_w f_i(w) − ⟨γ_i, w⟩ + (ρ/2)‖w − w^{k−1}‖² + (Φ/2)‖w‖² + ⟨ξ_i, w⟩``. This is not a Gaussian release;
:class:`dpadmm.accounting.events.ObjectiveRelease` describes its accounting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import plan_objective_noise
from dpadmm.baselines.solved_rounds import PerturbedObjective, SolvedAdmm, SolverState
from dpadmm.engine.method import Mechanism, Rho, Round, SolverTolerance
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries.problem import Problem, Rows, Sizes


@checked_parameters
@dataclass(frozen=True)
class AdmmDvp(PerturbedObjective[SolverState], SolvedAdmm):
    """ADMM with dual variable perturbation."""

    rho: Rho = 0.1
    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm_dvp"
    title: ClassVar[str] = "DVP"

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        pure = self.mechanism == "pure"
        return replace(
            self, perturbation=plan_objective_noise(problem, sizes, budget, self.name, rho=self.rho, pure=pure)
        )

    def check(self, problem: Problem, rows: Rows) -> None:
        self.perturbation.check(problem, rows, self.rho, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        pull = self.rho + self.perturbation.extra_ridge
        centers = (dual + self.rho * now.consensus) / pull[:, None, None]
        tolerance = tolerances(now.problem, now.rows, self.solver_tolerance)
        xi = self.perturbation.draw(now.noise, now.number)
        return LocalProblems(now.problem, now.rows, pull, centers, tolerance, linear=xi)
