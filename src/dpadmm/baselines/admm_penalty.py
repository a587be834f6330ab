"""ADMM with penalty perturbation, M-ADMM (Zhang, Khalili and Liu 2018): the penalty grows, and the noise with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np

from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.accounting.events import ObjectiveRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.baselines.calibration import ObjectivePlan, objective_schedule
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import (
    ROUNDING,
    ObjectiveNoise,
    need_perturbable,
    objective_smoothness,
    plan_objective_noise,
)
from dpadmm.baselines.solved_rounds import PerturbedObjective, SolvedAdmm, SolverState
from dpadmm.engine.method import Rho, Round, SolverTolerance, prepared
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import NotNegative, checked_parameters
from dpadmm.queries.problem import Problem, Rows, Sizes

MAX_FACTOR = 1e6


@checked_parameters
@dataclass(frozen=True)
class AdmmPenalty(PerturbedObjective[SolverState], SolvedAdmm):
    """Penalty perturbation.

    With ``ρ_k = ρ(1 + growth)^(k−1)``, an agent releases

    ``w_i^k = argmin_w f_i(w) − ⟨γ_i, w⟩ + (ρ_k/2)‖w − w^{k−1}‖² + (Φ/2)‖w‖² + ρ_k⟨ξ_i, w⟩``, ``ξ_i ~ N(0, s²I)``.

    The dual step has the length ρ in all rounds: ``γ_i ← γ_i − ρ(w_i^k − w^k)``. If nothing grows, this is
    :class:`dpadmm.baselines.AdmmDvp`.

    **Privacy.** Given the earlier messages, γ_i and w^{k−1} are fixed, so round k is a perturbed objective with
    ``σ_k = sρ_k`` and strong convexity ``q_k = ρ_k + αc + Φ``: an ``ObjectiveRelease`` with ``z_k = sρ_k/Δ`` and
    ``β_k = c3/(m q_k)``. Both its terms decrease in k. The cost of a run is the sum of the Rényi bounds of its rounds
    at the best order, and s is the smallest for which the total is ε. An agent that is planned for r of the t rounds
    is charged at most the first r, which are the most expensive ones.

    **The paper** adds the pure ε of all rounds. Its smaller bound for a growing penalty is a consequence of the larger
    noise ``sρ_k`` at the same s: at an equal total ε, a growing penalty means less noise than constant noise in early
    rounds and more in late ones. It also slows ADMM down. The paper's noise has density ∝ exp(−ζ‖ξ‖); here it is
    Gaussian, whose cost grows with the square root of the rounds.
    """

    rho: Rho = 0.1
    penalty_growth: Annotated[NotNegative, "Relative growth of the penalty, and of the noise, per round."] = 0.02
    solver_tolerance: SolverTolerance = 1e-3
    convexity: float = prepared()

    name: ClassVar[str] = "admm_penalty"
    title: ClassVar[str] = "M-ADMM"

    def factor(self, round: int) -> float:
        """Return ρ_k/ρ."""
        return float((1.0 + self.penalty_growth) ** (round - 1))

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        if np.log1p(self.penalty_growth) * budget.n_rounds > np.log(MAX_FACTOR):
            raise StudyError(
                f"{self.name}: with penalty_growth = {self.penalty_growth:g} the penalty grows by a factor above "
                f"{MAX_FACTOR:g} in {budget.n_rounds} rounds; use a smaller penalty_growth or fewer rounds"
            )
        if budget.epsilon is None:  # the noise of round 1; later rounds cost less
            noise = plan_objective_noise(problem, sizes, budget, self.name, rho=self.rho)
        else:
            noise = self._schedule(problem, sizes, budget)
        return replace(self, perturbation=noise, convexity=problem.alpha * problem.regularizer.convexity)

    def _schedule(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> ObjectiveNoise:
        """Return the noise of round 1 with which all rounds together have the total ε of the budget."""
        need_perturbable(problem, self.name, self.rho)
        own = problem.alpha * problem.regularizer.convexity
        factors = [self.factor(k) for k in range(1, budget.n_rounds + 1)]

        def plan(m: int, epsilon: float, n_rounds: int) -> ObjectivePlan:
            rounds = tuple((own + self.rho * factor, factor, 1) for factor in factors[:n_rounds])
            rounding = ROUNDING * total_noise_multiplier(epsilon, budget.delta, n_rounds)
            return objective_schedule(
                lipschitz=problem.loss.lipschitz, smoothness=objective_smoothness(problem), n_rows=m, rounds=rounds,
                epsilon=epsilon, delta=budget.delta, rounding_multiplier=rounding,
            )[0]  # fmt: skip

        agents = zip(sizes.n_rows.tolist(), budget.amounts.tolist(), budget.planned.tolist(), strict=True)
        return ObjectiveNoise(tuple(plan(*agent) for agent in agents))

    def check(self, problem: Problem, rows: Rows) -> None:
        self.perturbation.check(problem, rows, self.rho, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        factor = self.factor(now.number)
        penalty = self.rho * factor
        pull = penalty + self.perturbation.extra_ridge
        centers = (dual + penalty * now.consensus) / pull[:, None, None]
        tolerance = tolerances(now.problem, now.rows, self.solver_tolerance)
        xi = factor * self.perturbation.draw(now.noise, now.number)
        return LocalProblems(now.problem, now.rows, pull, centers, tolerance, linear=xi)

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        first = self.event(agent)
        if not isinstance(first, ObjectiveRelease):
            return ReleasePlan.constant(first, n_rounds)
        rest = self.convexity + float(self.perturbation.extra_ridge[agent])
        factors = (self.factor(k) for k in range(1, n_rounds + 1))
        return ReleasePlan.of(
            ObjectiveRelease(
                first.noise_multiplier * factor,
                first.curvature_ratio * (self.rho + rest) / (self.rho * factor + rest),
                first.rounding_multiplier,
            )
            for factor in factors
        )
