"""Noise inside a local problem, and the little noise that hides where its solver stopped.

The minimiser of ``f(w) + ⟨ξ, w⟩ + (Φ/2)‖w‖²`` is private because ξ is. That proof is for the exact minimiser;
a solver ends up to ``tol/q`` away from it. What is released gets noise on top that makes this difference a
release of its own, whose price is part of the total.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.errors import StudyError
from dpadmm.methods.local_solver import check_smooth
from dpadmm.privacy.baseline_calibration import ObjectivePlan
from dpadmm.privacy.noise import Noise, release, spherical
from dpadmm.privacy.releases import AnyRelease, ObjectiveRelease, PureRelease, Release
from dpadmm.problem import Problem

ROUNDING = 20.0
"""Noise multiplier of the covering noise over that of a plain Gaussian release: it costs 1/400 of its μ²."""

PURE_ROUNDING = 0.02
"""Share of a pure ε that the covering noise takes."""


@dataclass(frozen=True)
class ObjectiveNoise:
    """ξ and Φ of every agent, as planned: one plan per agent, all Gaussian or all pure.

    A pure plan's release is that of the whole round; its noise leaves the share ``PURE_ROUNDING`` of ε for
    the covering noise.
    """

    plans: tuple[ObjectivePlan, ...]

    @cached_property
    def pure(self) -> bool:
        return isinstance(self.plans[0].release, PureRelease)

    @cached_property
    def noise_scale(self) -> Floats:
        """Size of ξ: (n,); 0 means no noise."""
        return np.array([plan.noise_scale for plan in self.plans])

    @cached_property
    def extra_ridge(self) -> Floats:
        """Φ: (n,)."""
        return np.array([plan.extra_ridge for plan in self.plans])

    @cached_property
    def _covering_multiplier(self) -> Floats:
        """Size of the covering noise over twice the solver's distance: (n,)."""
        return np.array([_covering_multiplier(plan.release) for plan in self.plans])

    def draw(self, noise: Noise, round: int) -> Floats:
        """ξ of every agent in this round: (n, d, p)."""
        unit = spherical(noise, round) if self.pure else noise.draw(round)
        return np.asarray(unit * self.noise_scale[:, None, None])

    def cover(self, weights: Floats, distance: Floats, noise: Noise, round: int) -> Floats:
        """Minimisers that are up to ``distance`` (n,) off -> what may be released."""
        if not np.any(self.noise_scale):
            return weights
        # streams 0 to 3 made ξ
        unit = spherical(noise, round, first_stream=4) if self.pure else noise.draw(round, stream=4)
        noise_std = (self._covering_multiplier * 2.0 * distance)[:, None, None]
        return release(weights, noise_std=noise_std, noise=unit)

    def release(self, agent: int) -> AnyRelease:
        plan = self.plans[agent]
        return plan.release if plan.noise_scale else Release(0.0)


def _covering_multiplier(event: ObjectiveRelease | PureRelease) -> float:
    if isinstance(event, PureRelease):
        return 1.0 / (PURE_ROUNDING * event.epsilon)
    return event.rounding_multiplier


def check_one_output(problem: Problem, method: str) -> None:
    """Refuse where the privacy proof of a perturbed objective does not hold."""
    check_smooth(problem, method)
    if problem.loss.n_outputs != 1:
        raise StudyError(
            f"{method} does not apply: its privacy proof is for losses of one score, and {problem.loss.name} "
            f"has {problem.loss.n_outputs}; use dp_admm or dp_sgd"
        )
