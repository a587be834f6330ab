"""Noise of the baselines meets the target closely and never exceeds it."""

from __future__ import annotations

import math
from itertools import product

import pytest
from looping import case

from dpadmm.accounting import total_noise_multiplier
from dpadmm.accounting.calibration import sampled_noise_multiplier
from dpadmm.accounting.composition import total_epsilon
from dpadmm.accounting.events import ObjectiveRelease, PureRelease, SampledRelease
from dpadmm.baselines.calibration import (
    objective_plan,
    objective_round_plan,
    pure_objective_plan,
    pure_round_epsilon,
)
from dpadmm.errors import StudyError

LOGISTIC = {"lipschitz": 1.0, "smoothness": 0.25}


def test_sampled_rounds() -> None:
    for epsilon, delta, count, sampling in [
        (0.5, 1e-3, 100, 0.1),
        (1.0, 1e-5, 200, 0.01),
        (0.277, 1e-3, 100, 0.5),
        (8.0, 1e-5, 10, 0.01),
    ]:
        with case(epsilon, delta, count, sampling):
            z = sampled_noise_multiplier(epsilon, delta, count, sampling)
            assert total_epsilon(SampledRelease(z, sampling), count, delta) <= epsilon
            assert total_epsilon(SampledRelease(z / 1.001, sampling), count, delta) > epsilon
            assert z < total_noise_multiplier(epsilon, delta, count)


@pytest.mark.parametrize(("delta", "count", "sampling"), [(1e-3, 10, 1e-6), (0.5, 1, 0.1)])
def test_rarely_sampled_rows_still_get_noise(delta: float, count: int, sampling: float) -> None:
    """If δ alone covers revealing a sampled row, no noise would suffice. The minimum is 0.1."""
    assert sampled_noise_multiplier(1.0, delta, count, sampling) == 0.1


def test_sampling_rate_1_is_the_plain_calibration() -> None:
    assert sampled_noise_multiplier(0.5, 1e-3, 100, 1.0) == total_noise_multiplier(0.5, 1e-3, 100)


def test_pure_rounds() -> None:
    for epsilon, count in product([1e-3, 0.5, 20.0], [2, 10, 1000]):
        with case(epsilon, count):
            one = pure_round_epsilon(epsilon, 1e-5, count)
            assert one >= epsilon / count * (1 - 1e-9)
            assert total_epsilon(PureRelease(one), count, 1e-5) <= epsilon
            assert total_epsilon(PureRelease(one * (1 + 1e-6)), count, 1e-5) > epsilon


def test_one_pure_round_is_the_whole_budget() -> None:
    assert pure_round_epsilon(0.3, 1e-3, 1) == 0.3


def test_objective_plans() -> None:
    for epsilon, convexity, count, rounding in product([0.277, 3.0], [10.0, 0.1, 1e-6], [1, 100], [math.inf, 2000.0]):
        with case(epsilon, convexity, count, rounding):
            plan = objective_plan(
                **LOGISTIC,
                n_rows=400,
                strong_convexity=convexity,
                epsilon=epsilon,
                delta=1e-3,
                n_releases=count,
                rounding_multiplier=rounding,
            )
            event = plan.release
            assert isinstance(event, ObjectiveRelease)
            assert event.rounding_multiplier == rounding
            assert event.curvature_ratio == pytest.approx(0.25 / (400 * (convexity + plan.extra_ridge)))
            assert plan.noise_scale == pytest.approx(event.noise_multiplier * 2.0 / 400)
            assert total_epsilon(event, count, 1e-3) <= epsilon
            less_noise = ObjectiveRelease(event.noise_multiplier * (1 - 1e-6), event.curvature_ratio, rounding)
            assert total_epsilon(less_noise, count, 1e-3) > epsilon
            curvature_alone = total_epsilon(ObjectiveRelease(1e15, event.curvature_ratio), count, 1e-3)
            if plan.extra_ridge > 0.0:
                assert curvature_alone == pytest.approx(epsilon / 2.0, rel=1e-4)
            else:
                assert curvature_alone <= epsilon / 2.0 * (1 + 1e-9)


def test_ridge_is_added_only_if_the_curvature_costs_too_much() -> None:
    given = {**LOGISTIC, "epsilon": 0.5, "delta": 1e-3, "n_releases": 100}
    steep = objective_plan(n_rows=100_000, strong_convexity=0.1, **given)  # type: ignore[arg-type]
    flat = objective_plan(n_rows=10, strong_convexity=0.1, **given)  # type: ignore[arg-type]
    assert steep.extra_ridge == 0.0
    assert flat.extra_ridge > 1.0
    # hardly any curvature: little more than a plain Gaussian release of the slope needs
    z = steep.release.noise_multiplier  # type: ignore[union-attr]
    assert 1.0 < z / total_noise_multiplier(0.5, 1e-3, 100) < 1.35


def test_tolerance_noise_above_the_budget_is_refused() -> None:
    with pytest.raises(StudyError, match="solver's tolerance"):
        objective_plan(
            **LOGISTIC,
            n_rows=400,
            strong_convexity=1.0,
            epsilon=0.1,
            delta=1e-3,
            n_releases=10,
            rounding_multiplier=5.0,
        )


def test_papers_calibration_with_budget_left_after_the_curvature() -> None:
    given = {**LOGISTIC, "n_rows": 400, "strong_convexity": 0.1, "round_epsilon": 0.05, "delta": 1e-3}
    plan = objective_round_plan(**given, rounding_multiplier=900.0)  # type: ignore[arg-type]
    left, event = 0.05 - math.log1p(0.25 / 40.0), plan.release
    assert isinstance(event, ObjectiveRelease)
    assert plan.extra_ridge == 0.0
    assert plan.noise_scale == pytest.approx(math.sqrt(2 * math.log(1250)) * 2.0 / (400 * left))
    assert event.noise_multiplier == pytest.approx(plan.noise_scale * 200.0)
    assert event.curvature_ratio == pytest.approx(0.25 / 40.0)
    assert event.rounding_multiplier == 900.0


def test_papers_calibration_with_a_ridge() -> None:
    plan = objective_round_plan(**LOGISTIC, n_rows=400, strong_convexity=0.001, round_epsilon=0.05, delta=1e-3)
    assert plan.extra_ridge == pytest.approx(0.25 / (400 * math.expm1(0.025)) - 0.001)
    assert math.log1p(plan.release.curvature_ratio) == pytest.approx(0.025)  # type: ignore[union-attr]
    assert plan.noise_scale == pytest.approx(math.sqrt(2 * math.log(1250)) * 2.0 / (400 * 0.025))


def test_papers_calibration_is_refused_outside_its_theorem() -> None:
    with pytest.raises(StudyError, match="at most 1"):
        objective_round_plan(**LOGISTIC, n_rows=400, strong_convexity=1.0, round_epsilon=1.5, delta=1e-3)


@pytest.mark.parametrize(("convexity", "left"), [(0.1, 0.05 - math.log1p(0.25 / 40.0)), (0.001, 0.025)])
def test_pure_plans(convexity: float, left: float) -> None:
    plan = pure_objective_plan(**LOGISTIC, n_rows=400, strong_convexity=convexity, round_epsilon=0.05)
    assert plan.release == PureRelease(0.05)
    assert plan.noise_scale == pytest.approx(2.0 / (400 * left))  # 1/ζ
    assert (plan.extra_ridge > 0.0) == (convexity == 0.001)
    det = math.log1p(0.25 / (400 * (convexity + plan.extra_ridge)))
    assert 2.0 / 400 / plan.noise_scale + det == pytest.approx(0.05)


def test_invalid_arguments_are_refused() -> None:
    for wrong in [
        {"lipschitz": 0.0},
        {"smoothness": math.inf},
        {"n_rows": 0},
        {"strong_convexity": 0.0},
        {"round_epsilon": -1.0},
    ]:
        with case(wrong):
            given = {**LOGISTIC, "n_rows": 400, "strong_convexity": 0.1, "round_epsilon": 0.5, **wrong}
            with pytest.raises(StudyError, match=next(iter(wrong))):
                pure_objective_plan(**given)  # type: ignore[arg-type]
