"""What a method is made for, and how a budget becomes noise: public numbers only, before any row is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from dpadmm.accounting.calibration import (
    exact_round_noise_multiplier,
    paper_noise_multiplier,
    total_noise_multiplier,
)
from dpadmm.accounting.events import ObjectiveRelease, PureRelease
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.baselines.calibration import (
    ObjectivePlan,
    objective_plan,
    objective_round_plan,
    pure_objective_plan,
    pure_round_epsilon,
    sampled_noise_multiplier,
)
from dpadmm.baselines.objective_noise import (
    PURE_ROUNDING,
    ROUNDING,
    ObjectiveNoise,
    objective_smoothness,
)
from dpadmm.baselines.requirements import need_convex, need_one_score, need_smooth
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers, kinds
from dpadmm.methods.theory import Constants, constants_of
from dpadmm.queries.problem import Problem, Sizes

Budget = float | Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A problem, a cohort's public sizes, and its budget: ε in total or a round, or z itself.

    ``planned`` (n,) are the rounds that every agent's noise is for, of ``n_rounds``. Agents with the same public
    numbers share a calculation.
    """

    problem: Problem
    sizes: Sizes
    planned: Integers
    n_rounds: int = 100
    epsilon: Budget = None
    round_epsilon: Budget = None
    noise_multiplier: Budget = None
    delta: float = 1e-5
    calibration: Literal["paper", "exact"] = "paper"
    trust: str = "local"
    honest: int | None = None
    seed: int = 0

    @property
    def n_agents(self) -> int:
        return self.sizes.n_agents

    def constants(self, weight_radius: float, noise_multiplier: Floats) -> Constants:
        """c1 to c4 and the rest of what both theorems need."""
        return constants_of(
            self.problem,
            n_features=self.sizes.n_features,
            n_rows=self.sizes.n_rows,
            noise_multiplier=noise_multiplier,
            weight_radius=weight_radius,
        )

    def gaussian(self, sampling: float = 1.0) -> Floats:
        """z (n,) of a Gaussian release in every round, of a sample of the rows if need be."""
        if self.noise_multiplier is not None:
            return self._each("noise_multiplier")
        if self.epsilon is None:
            exact = self.calibration == "exact"
            calibrate = exact_round_noise_multiplier if exact else paper_noise_multiplier
            return _shared(lambda epsilon: calibrate(epsilon, self.delta), self._each("round_epsilon"))
        if sampling == 1.0:
            return _shared(
                lambda epsilon, rounds: total_noise_multiplier(epsilon, self.delta, int(rounds)),
                self._each("epsilon"),
                self.planned,
            )
        return _shared(
            lambda epsilon, rounds: sampled_noise_multiplier(epsilon, self.delta, int(rounds), sampling),
            self._each("epsilon"),
            self.planned,
        )

    def gaussian_apart(self, share: float) -> tuple[Floats, Floats]:
        """z (n,) of the one round that takes this share of the budget, in μ², and of each of the others.

        Together they cost what t equal rounds do: ``1/z_1² + (t − 1)/z_2² = t/z²``. For an agent that is to take part
        in fewer rounds than there are, any of them: ``t`` in place of ``t − 1``.
        """
        z, t = self.gaussian(), np.maximum(self.planned, 1)  # for no round, as for one
        others = np.maximum(np.where(t == self.n_rounds, t - 1, t), 1)
        return z / np.sqrt(share * t), z * np.sqrt(others / ((1.0 - share) * t))

    def pure_epsilons(self) -> Floats:
        """ε (n,) of one round of a pure mechanism."""
        if self.noise_multiplier is not None:
            raise StudyError("the pure mechanism has no noise_multiplier; give epsilon or round_epsilon")
        if self.epsilon is None:
            return self._each("round_epsilon")
        each = self._each("epsilon")
        return _shared(lambda e, k: pure_round_epsilon(e, self.delta, int(k)), each, self.planned)

    def objective(self, method: str, *, rho: float = 0.0, pure: bool = False) -> ObjectiveNoise:
        """ξ and Φ of a perturbed objective with penalty ρ (0: none)."""
        problem, delta = self.problem, self.delta
        need_smooth(problem, method)
        need_one_score(problem, method)
        need_convex(problem, method, rho)
        own = rho + problem.reg_share * problem.regularizer.convexity
        constants = {"lipschitz": problem.loss.lipschitz, "smoothness": objective_smoothness(problem)}

        def plan(m: int, budget: float, rounds: int) -> ObjectivePlan:
            known: dict[str, Any] = {**constants, "n_rows": m, "strong_convexity": own}
            if pure:
                made = pure_objective_plan(**known, round_epsilon=budget * (1.0 - PURE_ROUNDING))
                return replace(made, release=PureRelease(budget))
            if self.noise_multiplier is not None:
                event = ObjectiveRelease(budget, constants["smoothness"] / (m * own), ROUNDING * budget)
                return ObjectivePlan(event, budget * mean_sensitivity(constants["lipschitz"], m), 0.0)
            if self.epsilon is None and self.calibration == "paper":
                rounding = ROUNDING * paper_noise_multiplier(budget, delta)
                return objective_round_plan(**known, round_epsilon=budget, delta=delta, rounding_multiplier=rounding)
            n = 1 if self.epsilon is None else rounds
            rounding = ROUNDING * total_noise_multiplier(budget, delta, n)
            return objective_plan(**known, epsilon=budget, delta=delta, n_releases=n, rounding_multiplier=rounding)

        names = (name for name in ("noise_multiplier", "epsilon") if getattr(self, name) is not None)
        budgets = self.pure_epsilons() if pure else self._each(next(names, "round_epsilon"))
        agents = zip(self.sizes.n_rows.tolist(), budgets.tolist(), self.planned.tolist(), strict=True)
        each = lru_cache(maxsize=None)(plan)
        return ObjectiveNoise(tuple(each(*agent) for agent in agents))

    def _each(self, name: str) -> Floats:
        """The budget of every agent: (n,)."""
        values = np.asarray(getattr(self, name), dtype=float)
        if values.ndim and values.shape != (self.n_agents,):
            raise StudyError(
                f"{name} has {values.size} values, but there are {self.n_agents} agents; give one for each"
            )
        return np.broadcast_to(values, (self.n_agents,))


def _shared(calculate: Callable[..., float], *columns: Floats | Integers) -> Floats:
    """``calculate`` of every agent, once for agents with the same numbers."""
    first, which = kinds(*columns)
    return np.array([calculate(*row) for row in zip(*(each[first].tolist() for each in columns), strict=True)])[which]
