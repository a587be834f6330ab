"""From settings to a method with its noise: calibrated on public numbers before any row is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import StudyError
from dpadmm.optim.constants import Constants, constants_of
from dpadmm.optim.problem import Problem, Sizes
from dpadmm.optim.schedules import Constant, theorem_schedule
from dpadmm.privacy.baseline_calibration import (
    ObjectivePlan,
    objective_plan,
    objective_round_plan,
    pure_objective_plan,
    pure_round_epsilon,
    sampled_noise_multiplier,
)
from dpadmm.privacy.calibration import (
    exact_round_noise_multiplier,
    paper_noise_multiplier,
    total_noise_multiplier,
)
from dpadmm.privacy.releases import ObjectiveRelease, PureRelease
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.study.settings import ONE_ROUND, Settings
from dpadmm.training.methods import (
    Admm,
    AdmmDvp,
    AdmmPvp,
    Centralized,
    DpAdmm,
    DpSgd,
    Method,
    ObjectivePerturbation,
    OutputPerturbation,
)
from dpadmm.training.methods.objective_noise import (
    PURE_ROUNDING,
    ROUNDING,
    ObjectiveNoise,
    objective_smoothness,
)
from dpadmm.training.methods.requirements import need_convex, need_one_score, need_smooth

_WITH_RHO = ("dp_admm", "admm", "admm_pvp", "admm_dvp")


def make_method(
    settings: Settings, problem: Problem, rows: Sizes, planned: Integers, seed: int
) -> tuple[Method[Any], Constants]:
    """The method that these settings name, with noise for ``planned`` (n,) rounds of every agent.

    Only public numbers of the rows count: how many an agent has, and how wide they are.
    """
    if settings.method in ONE_ROUND and settings.participation < 1.0:
        raise StudyError(
            f"in {settings.method} every agent speaks once, so participation must be 1, "
            f"not {settings.participation}"
        )
    plan = _Plan(settings, problem, rows, planned)
    tolerance = settings.solver_tolerance
    multipliers = np.zeros(rows.n_agents)
    if settings.method in ("dp_admm", "admm_pvp", "dp_sgd"):
        multipliers = plan.gaussian()
    constants = constants_of(
        problem,
        n_features=rows.n_features,
        n_rows=rows.n_rows,
        noise_multiplier=multipliers,
        weight_radius=settings.weight_radius,
    )

    def dp_admm() -> Method[Any]:
        theorem = settings.schedule == "theorem"
        schedule = theorem_schedule(constants) if theorem else Constant(settings.step_size, rows.n_agents)
        return DpAdmm(settings.rho, schedule, multipliers)

    def dp_sgd() -> Method[Any]:
        return DpSgd(_learning_rate(settings, problem), multipliers, settings.sampling, seed)

    def output_perturbation() -> Method[Any]:
        pure = settings.mechanism == "pure"
        noise = 1.0 / plan.pure_epsilons() if pure else plan.gaussian()
        return OutputPerturbation(noise, pure, tolerance)

    makers: dict[str, Callable[[], Method[Any]]] = {
        "dp_admm": dp_admm,
        "admm": lambda: Admm(settings.rho, settings.split_regularizer, tolerance),
        "admm_pvp": lambda: AdmmPvp(settings.rho, multipliers, tolerance),
        "admm_dvp": lambda: AdmmDvp(settings.rho, plan.objective(settings.rho), tolerance),
        "dp_sgd": dp_sgd,
        "output_perturbation": output_perturbation,
        "objective_perturbation": lambda: ObjectivePerturbation(plan.objective(0.0), tolerance),
        "centralized": Centralized,
    }
    return makers[settings.method](), constants


def rho_of(settings: Settings) -> float | None:
    """ρ of the methods that have one."""
    return settings.rho if settings.method in _WITH_RHO else None


def _learning_rate(settings: Settings, problem: Problem) -> float:
    if settings.learning_rate is not None:
        return settings.learning_rate
    if problem.loss.smoothness is None:
        raise StudyError(
            f"dp_sgd needs a learning_rate for the loss {problem.loss.name}, which has kinks; give one"
        )
    return 1.0 / (problem.loss.smoothness + problem.reg_share * (problem.regularizer.smoothness or 0.0))


class _Plan:
    """Noise of every agent for one run; agents with the same public numbers share a calculation."""

    def __init__(self, settings: Settings, problem: Problem, rows: Sizes, planned: Integers) -> None:
        self.settings, self.problem, self.rows, self.planned = settings, problem, rows, planned
        names = ("epsilon", "round_epsilon", "noise_multiplier")
        self.budget = next((name for name in names if getattr(settings, name) is not None), "")

    def each(self) -> Floats:
        """The budget of every agent: (n,)."""
        values, n = np.asarray(getattr(self.settings, self.budget), dtype=float), self.rows.n_agents
        if values.ndim and values.shape != (n,):
            raise StudyError(
                f"{self.budget} has {values.size} values, but there are {n} agents; give one for each"
            )
        return np.broadcast_to(values, (n,))

    def gaussian(self) -> Floats:
        """z of a Gaussian release (of a sample, where the method draws one)."""
        settings, delta, each = self.settings, self.settings.delta, self.each()
        if self.budget == "noise_multiplier":
            return each
        if self.budget == "epsilon":
            if settings.method == "dp_sgd" and settings.sampling < 1.0:
                return _shared(
                    lambda epsilon, rounds: sampled_noise_multiplier(
                        epsilon, delta, int(rounds), settings.sampling
                    ),
                    each,
                    self.planned,
                )
            return np.asarray(total_noise_multiplier(each, delta, self.planned))
        exact = settings.calibration == "exact"
        return np.asarray((exact_round_noise_multiplier if exact else paper_noise_multiplier)(each, delta))

    def pure_epsilons(self) -> Floats:
        """ε of one round of a pure mechanism."""
        each = self.each()
        if self.budget == "noise_multiplier":
            raise StudyError("the pure mechanism has no noise_multiplier; give epsilon or round_epsilon")
        if self.budget == "round_epsilon":
            return each
        delta = self.settings.delta
        return _shared(lambda e, k: pure_round_epsilon(e, delta, int(k)), each, self.planned)

    def objective(self, rho: float) -> ObjectiveNoise:
        """ξ and Φ of a perturbed objective with penalty ρ (0: none)."""
        problem, settings, delta = self.problem, self.settings, self.settings.delta
        need_smooth(problem, settings.method)
        need_one_score(problem, settings.method)
        need_convex(problem, settings.method, rho)
        own = rho + problem.reg_share * problem.regularizer.convexity
        constants = {"lipschitz": problem.loss.lipschitz, "smoothness": objective_smoothness(problem)}

        def pure(m: int, epsilon: float, rounds: int) -> ObjectivePlan:
            plan = pure_objective_plan(
                **constants, n_rows=m, strong_convexity=own, round_epsilon=epsilon * (1.0 - PURE_ROUNDING)
            )
            return replace(plan, release=PureRelease(epsilon))

        def total(m: int, epsilon: float, rounds: int) -> ObjectivePlan:
            return objective_plan(
                **constants,
                n_rows=m,
                strong_convexity=own,
                epsilon=epsilon,
                delta=delta,
                n_releases=rounds,
                rounding_multiplier=ROUNDING * total_noise_multiplier(epsilon, delta, rounds),
            )

        def by_round(m: int, epsilon: float, rounds: int) -> ObjectivePlan:
            return objective_round_plan(
                **constants,
                n_rows=m,
                strong_convexity=own,
                round_epsilon=epsilon,
                delta=delta,
                rounding_multiplier=ROUNDING * paper_noise_multiplier(epsilon, delta),
            )

        def as_told(m: int, z: float, rounds: int) -> ObjectivePlan:
            event = ObjectiveRelease(z, constants["smoothness"] / (m * own), ROUNDING * z)
            return ObjectivePlan(event, z * mean_gradient_sensitivity(constants["lipschitz"], m), 0.0)

        budgets = self.pure_epsilons() if settings.mechanism == "pure" else self.each()
        plan: Callable[[int, float, int], ObjectivePlan]
        if settings.mechanism == "pure":
            plan = pure
        elif self.budget == "noise_multiplier":
            plan = as_told
        elif self.budget == "epsilon":
            plan = total
        else:
            plan = by_round if settings.calibration == "paper" else partial(_one_release, total)
        agents = zip(self.rows.n_rows.tolist(), budgets.tolist(), self.planned.tolist(), strict=True)
        each = lru_cache(maxsize=None)(plan)  # agents with the same numbers share a plan
        return ObjectiveNoise(tuple(each(*agent) for agent in agents))


def _one_release(
    total: Callable[[int, float, int], ObjectivePlan], m: int, epsilon: float, rounds: int
) -> ObjectivePlan:
    """A plan for one round of this ε."""
    return total(m, epsilon, 1)


def _shared(calculate: Callable[[float, float], float], *columns: Floats | Integers) -> Floats:
    """``calculate`` of every agent, once for agents with the same numbers."""
    unique, index = np.unique(np.stack(columns, axis=1).astype(float), axis=0, return_inverse=True)
    return np.array([calculate(*row) for row in unique.tolist()])[index.ravel()]
