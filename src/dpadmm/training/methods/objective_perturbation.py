"""Objective perturbation (Chaudhuri, Monteleoni, Sarwate) at every agent, then averaged.

``w̃_i = argmin_w f_i(w) + (Φ/2)‖w‖² + ⟨ξ_i, w⟩``, once: a round of dual variable perturbation without ADMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpadmm._base.arrays import Floats
from dpadmm.optim.problem import Problem, Rows
from dpadmm.privacy.plan import ReleasePlan
from dpadmm.training.methods.alone import AloneState, alone, start_alone
from dpadmm.training.methods.base import Mechanism, MethodSettings, Round, SolverTolerance, keep_absent
from dpadmm.training.methods.dp_admm import consensus_step
from dpadmm.training.methods.local_solver import solve
from dpadmm.training.methods.objective_noise import ObjectiveNoise

if TYPE_CHECKING:
    from dpadmm.training.setup import Setup


@dataclass(frozen=True)
class ObjectivePerturbation(MethodSettings):
    """The minimiser of every agent's own perturbed objective, averaged."""

    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "objective_perturbation"
    title: ClassVar[str] = "objective perturbation"
    one_round: ClassVar[bool] = True

    def rounds(self, setup: Setup) -> ObjectivePerturbationRounds:
        perturbation = setup.objective(self.name, pure=self.mechanism == "pure")
        return ObjectivePerturbationRounds(perturbation, self.solver_tolerance)


@dataclass(frozen=True)
class ObjectivePerturbationRounds:
    """Objective perturbation.

    Attributes
    ----------
    perturbation : ObjectiveNoise
        ξ, Φ and what they cost.
    solver_tolerance : float
        Where local solves stop; see :func:`dpadmm.training.methods.local_solver.tolerances`.
    """

    perturbation: ObjectiveNoise
    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "objective_perturbation"
    cure: ClassVar[str] = "a larger rho or reg_share, or less noise"
    local_models: ClassVar[bool] = True

    def init(self, problem: Problem, rows: Rows) -> AloneState:
        self.perturbation.check(problem, rows, 0.0, self.name)
        return start_alone(problem, rows)

    def step(self, state: AloneState, now: Round) -> tuple[AloneState, Floats]:
        problem, rows, active = now.problem, now.rows, now.active
        problems = alone(
            problem,
            rows,
            tolerance=self.solver_tolerance,
            ridge=self.perturbation.extra_ridge,
            linear=self.perturbation.draw(now.noise, now.number),
        )
        solved = solve(problems, problems.centers, active)
        distance = problems.tolerance / problems.convexity
        released = self.perturbation.cover(solved.weights, distance, now.noise, now.number)
        kept = keep_absent(released, state.released, active)
        return AloneState(kept, state.passes + solved.passes), kept

    def aggregate(self, uploads: Floats, *, consensus: Floats, round: int, problem: Problem) -> Floats:
        return consensus_step(uploads)

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(self.perturbation.release(agent), n_rounds)
