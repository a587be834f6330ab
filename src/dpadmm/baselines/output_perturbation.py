"""Output perturbation (Chaudhuri, Monteleoni, Sarwate) at every agent, then averaged.

``w̃_i = argmin_w f_i(w) + noise``, once. One row moves it by at most ``Δ = (2c1/m_i + 2·tol)/(λc/n)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpadmm.accounting.events import PureRelease, Release
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import pure_epsilons
from dpadmm.baselines.requirements import need_convex, need_monotone_slopes, need_solvable
from dpadmm.baselines.solved_rounds import AloneState, NoisyMinimizers, SolvedAlone
from dpadmm.engine.method import Mechanism, MethodSettings, Round, SolverTolerance, zero_models
from dpadmm.engine.noise import spherical
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem, Rows

if TYPE_CHECKING:
    from dpadmm.methods.setup import Setup


@dataclass(frozen=True)
class OutputPerturbation(MethodSettings):
    """Every agent's own minimiser with noise, averaged."""

    mechanism: Mechanism = "gaussian"
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "output_perturbation"
    title: ClassVar[str] = "output perturbation"
    one_round: ClassVar[bool] = True

    def rounds(self, setup: Setup) -> OutputPerturbationRounds:
        pure = self.mechanism == "pure"
        noise = 1.0 / pure_epsilons(setup) if pure else setup.gaussian()
        return OutputPerturbationRounds(noise, pure, self.solver_tolerance)


@dataclass(frozen=True)
class OutputPerturbationRounds(NoisyMinimizers[AloneState], SolvedAlone):
    """Output perturbation; ``pure`` noise has density ∝ exp(−‖ξ‖/(multiplier·Δ)): (1/multiplier)-private."""

    pure: bool = False
    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "output_perturbation"

    def check(self, problem: Problem, rows: Rows) -> None:
        need_solvable(problem, self.name)
        need_convex(problem, self.name)
        need_monotone_slopes(problem, self.name)

    def problems(self, now: Round) -> LocalProblems:
        problem, rows = now.problem, now.rows
        tolerance = tolerances(problem, rows, self.solver_tolerance)
        return LocalProblems(problem, rows, np.zeros(rows.n_agents), zero_models(problem, rows), tolerance)

    def unit_noise(self, now: Round) -> Floats:
        return spherical(now.noise, now.number) if self.pure else super().unit_noise(now)

    def price(self, agent: int) -> PureRelease | Release:
        z = float(self.noise_multiplier[agent])
        return PureRelease(1.0 / z) if self.pure else Release(z)
