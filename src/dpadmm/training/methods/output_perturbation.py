"""Output perturbation (Chaudhuri, Monteleoni, Sarwate) at every agent, then averaged.

``w̃_i = argmin_w f_i(w) + noise``, once. One row moves it by at most ``Δ = (2c1/m_i + 2·tol)/(λc/n)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.optim.problem import Problem, Rows
from dpadmm.privacy.plan import ReleasePlan
from dpadmm.privacy.releases import PureRelease, Release
from dpadmm.privacy.sensitivity import minimizer_sensitivity
from dpadmm.training.methods.alone import AloneState, alone, start_alone
from dpadmm.training.methods.base import (
    Broadcasts,
    Mechanism,
    MethodSettings,
    Round,
    SolverTolerance,
    check_noise,
    keep_absent,
)
from dpadmm.training.methods.local_solver import solve
from dpadmm.training.methods.requirements import need_convex, need_monotone_slopes, need_solvable
from dpadmm.training.oracles import release, spherical

if TYPE_CHECKING:
    from dpadmm.training.setup import Setup


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
        noise = 1.0 / setup.pure_epsilons() if pure else setup.gaussian()
        return OutputPerturbationRounds(noise, pure, self.solver_tolerance)


@dataclass(frozen=True)
class OutputPerturbationRounds(Broadcasts):
    """Output perturbation.

    Attributes
    ----------
    noise_multiplier : (n,)
        Gaussian: z. Pure: noise has density ∝ exp(−‖ξ‖/(multiplier·Δ)), which is (1/multiplier)-private.
    pure : bool
    solver_tolerance : float
        Where local solves stop; see :func:`dpadmm.training.methods.local_solver.tolerances`.
    """

    noise_multiplier: Floats
    pure: bool = False
    solver_tolerance: float = 1e-3

    name: ClassVar[str] = "output_perturbation"
    cure: ClassVar[str] = "a larger rho or reg_share, or less noise"
    local_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)

    def init(self, problem: Problem, rows: Rows) -> AloneState:
        need_solvable(problem, self.name)
        need_convex(problem, self.name)
        need_monotone_slopes(problem, self.name)
        return start_alone(problem, rows)

    def step(self, state: AloneState, now: Round) -> tuple[AloneState, Floats]:
        problem, rows, active = now.problem, now.rows, now.active
        problems = alone(problem, rows, tolerance=self.solver_tolerance, ridge=np.zeros(rows.n_agents))
        solved = solve(problems, problems.centers, active)
        sensitivity = minimizer_sensitivity(
            problem.loss.lipschitz, rows.n_rows, problems.convexity, tolerance=problems.tolerance
        )
        unit = spherical(now.noise, now.number) if self.pure else now.noise.draw(now.number)
        noise_std = (self.noise_multiplier * sensitivity)[:, None, None]
        released = release(solved.weights, noise_std=noise_std, noise=unit)
        kept = keep_absent(released, state.released, active)
        return AloneState(kept, state.passes + solved.passes), kept

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        z = float(self.noise_multiplier[agent])
        return ReleasePlan.constant(PureRelease(1.0 / z) if self.pure else Release(z), n_rounds)
