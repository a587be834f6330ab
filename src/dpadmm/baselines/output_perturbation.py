"""Output perturbation (Chaudhuri, Monteleoni, Sarwate) at every agent, then averaged.

``w̃_i = argmin_w f_i(w) + noise``, once. One row changes it by at most ``Δ = (2c1/m_i + 2·tol)/(λc/n)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from dpadmm.accounting.events import PureRelease, Release
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import pure_epsilons
from dpadmm.baselines.requirements import need_convex, need_monotone_slopes, need_solvable
from dpadmm.baselines.solved_rounds import NoisyMinimizers, SingleSolve, SingleState
from dpadmm.engine.method import Mechanism, Round, SolverTolerance, zero_models
from dpadmm.engine.noise import spherical
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries.problem import Problem, Rows, Sizes


@checked_parameters
@dataclass(frozen=True)
class OutputPerturbation(NoisyMinimizers[SingleState], SingleSolve):
    """Every agent's own minimiser with noise, averaged.

    Noise of the pure mechanism has density ∝ exp(−‖ξ‖/(multiplier·Δ)), which is (1/multiplier)-private.
    """

    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "output_perturbation"
    title: ClassVar[str] = "output perturbation"

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        return replace(self, noise_multiplier=1.0 / pure_epsilons(budget) if self.is_pure else budget.gaussian())

    @property
    def is_pure(self) -> bool:
        return self.mechanism == "pure"

    def check(self, problem: Problem, rows: Rows) -> None:
        need_solvable(problem, self.name)
        need_convex(problem, self.name)
        need_monotone_slopes(problem, self.name)

    def problems(self, now: Round) -> LocalProblems:
        problem, rows = now.problem, now.rows
        tolerance = tolerances(problem, rows, self.solver_tolerance)
        return LocalProblems(problem, rows, np.zeros(rows.n_agents), zero_models(problem, rows), tolerance)

    def unit_noise(self, now: Round) -> Floats:
        return spherical(now.noise, now.number) if self.is_pure else super().unit_noise(now)

    def event(self, agent: int) -> PureRelease | Release:
        z = float(self.noise_multiplier[agent])
        return PureRelease(1.0 / z) if self.is_pure else Release(z)
