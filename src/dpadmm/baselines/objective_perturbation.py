"""Objective perturbation (Chaudhuri, Monteleoni, Sarwate) at every agent, then averaged.

``w̃_i = argmin_w f_i(w) + (Φ/2)‖w‖² + ⟨ξ_i, w⟩``, once: a round of dual variable perturbation without ADMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import plan_objective_noise
from dpadmm.baselines.solved_rounds import AloneState, PerturbedObjective, SolvedAlone
from dpadmm.engine.method import Mechanism, MethodSettings, Round, SolverTolerance, zero_models
from dpadmm.queries.problem import Problem, Rows

if TYPE_CHECKING:
    from dpadmm.methods.setup import Setup


@dataclass(frozen=True)
class ObjectivePerturbation(MethodSettings):
    """The minimiser of every agent's own perturbed objective, averaged."""

    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "objective_perturbation"
    title: ClassVar[str] = "objective perturbation"
    one_round: ClassVar[bool] = True

    def rounds(self, setup: Setup) -> ObjectivePerturbationRounds:
        perturbation = plan_objective_noise(setup, self.name, pure=self.mechanism == "pure")
        return ObjectivePerturbationRounds(perturbation, self.solver_tolerance)


@dataclass(frozen=True)
class ObjectivePerturbationRounds(PerturbedObjective[AloneState], SolvedAlone):
    """Objective perturbation."""

    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "objective_perturbation"

    def check(self, problem: Problem, rows: Rows) -> None:
        self.perturbation.check(problem, rows, 0.0, self.name)

    def problems(self, now: Round) -> LocalProblems:
        problem, rows, noise = now.problem, now.rows, self.perturbation
        tolerance = tolerances(problem, rows, self.solver_tolerance)
        xi = noise.draw(now.noise, now.number)
        return LocalProblems(problem, rows, noise.extra_ridge, zero_models(problem, rows), tolerance, linear=xi)
