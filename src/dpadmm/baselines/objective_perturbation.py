"""Objective perturbation (Chaudhuri, Monteleoni, Sarwate) at every agent, then averaged.

``w̃_i = argmin_w f_i(w) + (Φ/2)‖w‖² + ⟨ξ_i, w⟩``, once: a round of dual variable perturbation without ADMM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import plan_objective_noise
from dpadmm.baselines.solved_rounds import PerturbedObjective, SingleSolve, SingleState
from dpadmm.engine.method import Mechanism, Round, SolverTolerance, zero_models
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries.problem import Problem, Rows, Sizes


@checked_parameters
@dataclass(frozen=True)
class ObjectivePerturbation(PerturbedObjective[SingleState], SingleSolve):
    """The minimiser of every agent's own perturbed objective, averaged."""

    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "objective_perturbation"
    title: ClassVar[str] = "objective perturbation"

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        pure = self.mechanism == "pure"
        return replace(self, perturbation=plan_objective_noise(problem, sizes, budget, self.name, pure=pure))

    def check(self, problem: Problem, rows: Rows) -> None:
        self.perturbation.check(problem, rows, 0.0, self.name)

    def problems(self, now: Round) -> LocalProblems:
        problem, rows, noise = now.problem, now.rows, self.perturbation
        tolerance = tolerances(problem, rows, self.solver_tolerance)
        xi = noise.draw(now.noise, now.number)
        return LocalProblems(problem, rows, noise.extra_ridge, zero_models(problem, rows), tolerance, linear=xi)
