"""Noise in a local problem, and the small noise that covers the solver's tolerance.

The minimiser of ``f(w) + ⟨ξ, w⟩ + (Φ/2)‖w‖²`` is private because of ξ. The proof is for the exact minimiser, and a
solver ends up to ``tol/q`` away from it. Additional noise on the release makes this difference a separate release,
whose cost is part of the total.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dpadmm.accounting.calibration import paper_noise_multiplier, total_noise_multiplier
from dpadmm.accounting.events import AnyRelease, ObjectiveRelease, PureRelease, Release
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.baselines.calibration import (
    ObjectivePlan,
    objective_plan,
    objective_round_plan,
    pure_objective_plan,
    pure_round_epsilon,
)
from dpadmm.baselines.requirements import (
    need_convex,
    need_monotone_slopes,
    need_one_score,
    need_smooth,
)
from dpadmm.engine.noise import Noise, release, spherical
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import NORM_SLACK
from dpadmm.methods.budget import PrivacyBudget, by_distinct_agent
from dpadmm.queries.problem import Problem, Rows, Sizes

ROUNDING = 20.0
"""Noise multiplier of the covering noise relative to a Gaussian release: it costs 1/400 of its μ²."""

PURE_ROUNDING = 0.02
"""Share of a pure ε for the covering noise."""


@dataclass(frozen=True)
class ObjectiveNoise:
    """ξ and Φ of every agent: one plan per agent, all Gaussian or all pure.

    The release of a pure plan is that of the whole round, including the share ``PURE_ROUNDING`` of ε for the covering
    noise.
    """

    plans: tuple[ObjectivePlan, ...]

    @cached_property
    def pure(self) -> bool:
        return isinstance(self.plans[0].release, PureRelease)

    @cached_property
    def noise_scale(self) -> Floats:
        """Scale of ξ: (n,); 0 means no noise."""
        return np.array([plan.noise_scale for plan in self.plans])

    @cached_property
    def extra_ridge(self) -> Floats:
        """Φ: (n,)."""
        return np.array([plan.extra_ridge for plan in self.plans])

    @cached_property
    def _covering_multiplier(self) -> Floats:
        """Scale of the covering noise over twice the solver's distance: (n,)."""
        events = [plan.release for plan in self.plans]
        return np.array(
            [1.0 / (PURE_ROUNDING * e.epsilon) if isinstance(e, PureRelease) else e.rounding_multiplier for e in events]
        )

    def draw(self, noise: Noise, round: int) -> Floats:
        """Return ξ of every agent in a round: (n, d, p)."""
        unit = spherical(noise, round) if self.pure else noise.draw(round)
        return np.asarray(unit * self.noise_scale[:, None, None])

    def cover(self, weights: Floats, distance: Floats, noise: Noise, round: int) -> Floats:
        """Return the release of minimisers with an error of at most ``distance`` (n,)."""
        if not np.any(self.noise_scale):
            return weights
        # Streams 0 to 3 are those of ξ
        unit = spherical(noise, round, first_stream=4) if self.pure else noise.draw(round, stream=4)
        noise_std = (self._covering_multiplier * 2.0 * distance)[:, None, None]
        return release(weights, noise_std=noise_std, noise=unit)

    def check(self, problem: Problem, rows: Rows, penalty: float, method: str) -> None:
        """Raise StudyError if the proof or this plan does not apply to a problem; ``penalty`` is ρ."""
        need_perturbable(problem, method, penalty)
        need_monotone_slopes(problem, method)
        kinds = {type(plan.release) for plan in self.plans}
        if len(self.plans) != rows.n_agents or len(kinds) > 1:
            raise StudyError(f"{method} needs one plan per agent, all Gaussian or all pure")
        convexity = penalty + problem.alpha * problem.regularizer.convexity + self.extra_ridge
        curvature = objective_smoothness(problem) / (rows.n_rows * convexity)
        sensitivity = mean_sensitivity(problem.loss.lipschitz, rows.n_rows)
        for plan, beta, unit in zip(self.plans, curvature, sensitivity, strict=True):
            if plan.noise_scale and not _covers(plan, float(beta), float(unit)):
                raise StudyError(
                    f"{method}: the noise was planned for another problem (other rows, rho, alpha or "
                    "loss); plan it for this one"
                )

    def release(self, agent: int) -> AnyRelease:
        plan = self.plans[agent]
        return plan.release if plan.noise_scale else Release(0.0)


def need_perturbable(problem: Problem, method: str, penalty: float) -> None:
    """Raise StudyError if noise in an objective with penalty ρ does not hide a row, whatever its amount."""
    need_smooth(problem, method)
    need_one_score(problem, method)
    need_convex(problem, method, penalty)


def objective_smoothness(problem: Problem) -> float:
    """Return c3 for rows of the maximum norm: curvature is not clipped, and grows with the squared norm of a row."""
    return (problem.loss.smoothness or 0.0) * (1.0 + NORM_SLACK) ** 2


def _covers(plan: ObjectivePlan, curvature: float, sensitivity: float) -> bool:
    """Return whether the release of a plan covers a problem with this β and this 2c1/m."""
    event, slack = plan.release, 1.0 + 1e-9
    if isinstance(event, PureRelease):
        inside = sensitivity / plan.noise_scale + np.log1p(curvature)
        return bool(inside <= (1.0 - PURE_ROUNDING) * event.epsilon * slack)
    enough = plan.noise_scale * slack >= event.noise_multiplier * sensitivity
    return bool(enough and curvature <= event.curvature_ratio * slack)


def pure_epsilons(budget: PrivacyBudget) -> Floats:
    """Return ε (n,) of one round of a pure mechanism."""
    if budget.noise_multiplier is not None:
        raise StudyError("the pure mechanism has no noise_multiplier; give epsilon or round_epsilon")
    if budget.epsilon is None:
        return budget.amounts
    return by_distinct_agent(lambda e, k: pure_round_epsilon(e, budget.delta, int(k)), budget.amounts, budget.planned)


def plan_objective_noise(
    problem: Problem, sizes: Sizes, budget: PrivacyBudget, method: str, *, rho: float = 0.0, pure: bool = False
) -> ObjectiveNoise:
    """Plan ξ and Φ of a perturbed objective with penalty ρ (0: none)."""
    need_perturbable(problem, method, rho)
    own, delta = rho + problem.alpha * problem.regularizer.convexity, budget.delta
    constants = {"lipschitz": problem.loss.lipschitz, "smoothness": objective_smoothness(problem)}

    def plan(m: int, amount: float, rounds: int) -> ObjectivePlan:
        arguments: dict[str, Any] = {**constants, "n_rows": m, "strong_convexity": own}
        if pure:
            inner = pure_objective_plan(**arguments, round_epsilon=amount * (1.0 - PURE_ROUNDING))
            return replace(inner, release=PureRelease(amount))
        if budget.noise_multiplier is not None:
            event = ObjectiveRelease(amount, constants["smoothness"] / (m * own), ROUNDING * amount)
            return ObjectivePlan(event, amount * mean_sensitivity(constants["lipschitz"], m), 0.0)
        if budget.epsilon is None and budget.calibration == "paper":
            rounding = ROUNDING * paper_noise_multiplier(amount, delta)
            return objective_round_plan(**arguments, round_epsilon=amount, delta=delta, rounding_multiplier=rounding)
        n = 1 if budget.epsilon is None else rounds
        rounding = ROUNDING * total_noise_multiplier(amount, delta, n)
        return objective_plan(**arguments, epsilon=amount, delta=delta, n_releases=n, rounding_multiplier=rounding)

    amounts = pure_epsilons(budget) if pure else budget.amounts
    agents = zip(sizes.n_rows.tolist(), amounts.tolist(), budget.planned.tolist(), strict=True)
    cached_plan = lru_cache(maxsize=None)(plan)
    return ObjectiveNoise(tuple(cached_plan(*agent) for agent in agents))
