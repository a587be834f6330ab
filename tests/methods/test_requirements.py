"""Requirements of methods: smooth losses, single scores, convexity after clipping, matching plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from cases import LOSS_CASES, SMOOTH_LOSS_CASES
from cohorts import SIZES, cohort
from looping import case

from dpadmm.accounting.events import PureRelease
from dpadmm.baselines import AdmmDvp, AdmmPvp, ObjectivePerturbation, OutputPerturbation
from dpadmm.baselines.calibration import ObjectivePlan, objective_plan, pure_objective_plan
from dpadmm.baselines.objective_noise import ObjectiveNoise
from dpadmm.baselines.requirements import need_monotone_slopes, need_smooth, need_solvable
from dpadmm.errors import StudyError
from dpadmm.losses import Hinge, Logistic
from dpadmm.losses.base import Index, Task
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem
from dpadmm.regularizers import L1, L2

N, RHO, SHARE = len(SIZES), 0.2, 0.05


def test_losses_with_kinks_are_refused_with_the_reason() -> None:
    with pytest.raises(StudyError, match=r"admm .*hinge has them: use smoothed_hinge"):
        need_solvable(Problem(Hinge(), L2(), 0.1), "admm")
    for kinked in (Problem(Hinge(), L2(), 0.1), Problem(Logistic(), L1(), 0.1)):
        with pytest.raises(StudyError, match=r"admm_pvp does not apply: .* smooth objective"):
            need_smooth(kinked, "admm_pvp")


def test_registered_losses_pass() -> None:
    for loss in SMOOTH_LOSS_CASES:
        with case(loss):
            need_monotone_slopes(Problem(loss, L2(), 0.1), "admm_pvp")


@dataclass(frozen=True)
class Overflowing:
    """Logistic loss with overflow: for large scores its slope is inf/inf, which clipping turns into 0."""

    name: ClassVar[str] = "overflowing"
    task: ClassVar[Task] = "binary"
    n_outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    parameters: ClassVar[tuple[float, ...]] = ()

    def value(self, labels: Floats, scores: Floats) -> Floats:
        return np.logaddexp(0.0, -labels * scores[:, 0])

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        large = np.exp(-labels[i] * scores[0, i])
        out[0, i] = -labels[i] * large / (1.0 + large)


@dataclass(frozen=True)
class TwoScores:
    """Two scores and a gradient of norm above c1. After clipping it is not the gradient of a convex function."""

    name: ClassVar[str] = "two_scores"
    task: ClassVar[Task] = "regression"
    n_outputs: ClassVar[int] = 2
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 60.0
    parameters: ClassVar[tuple[float, ...]] = ()

    def value(self, labels: Floats, scores: Floats) -> Floats:
        return np.asarray(0.5 * (scores[:, 0] - labels) ** 2 + 30.0 * (scores[:, 1] - labels) ** 2)

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        out[0, i] = scores[0, i] - labels[i]
        out[1, i] = 60.0 * (scores[1, i] - labels[i])


@dataclass(frozen=True)
class Decreasing(Overflowing):
    """A slope that decreases with the score: not convex."""

    name: ClassVar[str] = "falling"

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        out[0, i] = -np.tanh(scores[0, i])


def test_loss_that_violates_the_sensitivity_of_minimisers_is_refused() -> None:
    for loss in [Overflowing(), TwoScores(), Decreasing()]:
        with case(loss):
            problem, rows = Problem(loss, L2(), SHARE), cohort(Logistic())
            for method in (AdmmPvp(RHO, noise_multiplier=np.ones(N)), OutputPerturbation(noise_multiplier=np.ones(N))):
                with pytest.raises(StudyError, match=f"{method.name} does not apply: .* and {loss.name} has others"):
                    method.init(problem, rows)
            with pytest.raises(StudyError, match="admm_dvp does not apply"):
                AdmmDvp(RHO, perturbation=plans(RHO)).init(problem, rows)


# --- a plan is for one problem -----------------------------------------------------------------------------


def plans(rho: float, *, pure: bool = False, share: float = SHARE, rows: float = 1.0) -> ObjectiveNoise:
    def one(m: int) -> ObjectivePlan:
        about = {"lipschitz": 1.0, "smoothness": 0.25 * (1.0 + 1e-6) ** 2, "n_rows": int(rows * m)}
        if pure:
            plan = pure_objective_plan(**about, strong_convexity=rho + share, round_epsilon=0.98)
            return ObjectivePlan(PureRelease(1.0), plan.noise_scale, plan.extra_ridge)
        return objective_plan(
            **about,
            strong_convexity=rho + share,
            epsilon=1.0,
            delta=1e-3,
            n_releases=2,
            rounding_multiplier=99.0,
        )

    return ObjectiveNoise(tuple(one(m) for m in SIZES))


PROBLEM = Problem(Logistic(), L2(), SHARE)


def test_noise_calibrated_for_another_problem_is_refused() -> None:
    for make, pure in product([partial(AdmmDvp, RHO), ObjectivePerturbation], [False, True]):
        with case(make, pure):
            rows = cohort(Logistic())
            own = RHO if make().name == "admm_dvp" else 0.0
            make(perturbation=plans(own, pure=pure)).init(PROBLEM, rows)
            for wrong in (
                plans(own + 1.0, pure=pure),
                plans(own, pure=pure, share=2.0 * SHARE),
                plans(own, pure=pure, rows=2.0),
            ):
                with pytest.raises(StudyError, match="planned for another problem"):
                    make(perturbation=wrong).init(PROBLEM, rows)


def test_plans_must_be_one_per_agent_and_of_one_kind() -> None:
    rows, good, other = cohort(Logistic()), plans(RHO).plans, plans(RHO, pure=True).plans
    for wrong in (good[:-1], (*good, good[0]), (*good[:-1], other[-1])):
        with pytest.raises(StudyError, match="one plan per agent, all Gaussian or all pure"):
            AdmmDvp(RHO, perturbation=ObjectiveNoise(tuple(wrong))).init(PROBLEM, rows)


def test_every_smooth_loss_with_one_score_is_covered() -> None:
    assert len(SMOOTH_LOSS_CASES) < len(LOSS_CASES)
