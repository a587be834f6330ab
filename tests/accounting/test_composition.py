"""Totals of every kind of release: limits, monotonicity, invalid input."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from looping import case

from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.composition import ORDERS, accountant_of, epsilon_from_renyi, total_epsilon
from dpadmm.accounting.events import (
    AnyRelease,
    ObjectiveRelease,
    PureRelease,
    Release,
    SampledRelease,
    UnpricedRelease,
)
from dpadmm.errors import StudyError

ONE_OF_EACH: list[AnyRelease] = [
    Release(20.0),
    SampledRelease(5.0, 0.2),
    ObjectiveRelease(20.0, 0.01),
    ObjectiveRelease(20.0, 0.01, 100.0),
    PureRelease(0.05),
]


def test_no_release_costs_nothing_and_more_releases_cost_more() -> None:
    for release in ONE_OF_EACH:
        with case(release):
            assert total_epsilon(release, 0, 1e-5) == 0.0
            totals = [total_epsilon(release, count, 1e-5) for count in (1, 2, 10, np.int64(100))]
            assert all(type(total) is float and 0.0 < total < math.inf for total in totals)
            assert totals == sorted(totals)
            assert totals[3] < 100 * totals[0]
            assert total_epsilon(release, 10, 1e-7) > totals[2]


def test_without_noise_there_is_no_privacy() -> None:
    for release in [Release(0.0), SampledRelease(0.0, 0.1), ObjectiveRelease(0.0, 0.1)]:
        with case(release):
            assert total_epsilon(release, 1, 1e-3) == math.inf
            assert total_epsilon(release, 0, 1e-3) == 0.0


def test_an_inexact_minimiser_needs_noise_for_its_tolerance() -> None:
    assert total_epsilon(ObjectiveRelease(5.0, 0.1, 0.0), 1, 1e-3) == math.inf


def test_gaussian_releases_are_exact() -> None:
    assert total_epsilon(Release(20.0), 100, 1e-5) == exact_epsilon(0.5, 1e-5)
    assert total_epsilon(Release(20.0, count=25), 4, 1e-5) == exact_epsilon(0.5, 1e-5)


def test_sampling_reduces_the_cost_and_sampling_all_rows_does_not() -> None:
    totals = [total_epsilon(SampledRelease(5.0, q), 50, 1e-5) for q in (0.01, 0.1, 0.5, 0.9, 1.0)]
    assert totals == sorted(totals)
    assert totals[0] < totals[4] / 20
    assert totals[4] == total_epsilon(Release(5.0), 50, 1e-5)


def test_a_delta_below_the_convolutions_precision_falls_back_to_all_rows() -> None:
    assert total_epsilon(SampledRelease(5.0, 0.1), 50, 1e-12) == total_epsilon(Release(5.0), 50, 1e-12)


def test_the_convolutions_error_grows_with_the_rounds() -> None:
    """After 10⁶ rounds the error was 7e-11, which exceeds such a δ."""
    z, q, t, delta = 100.0, 0.1, 10**6, 2.1e-11
    assert total_epsilon(SampledRelease(z, q), t, delta) == total_epsilon(Release(z), t, delta)
    assert total_epsilon(SampledRelease(z, q), 10, delta) < total_epsilon(Release(z), 10, delta)


def test_extreme_samples_stay_finite_and_below_all_rows() -> None:
    for z, q in [(1e-2, 0.5), (0.2, 1e-4), (1e4, 0.3), (1e3, 1e-5)]:
        with case(z, q):
            total = total_epsilon(SampledRelease(z, q), 3, 1e-5)
            assert 0.0 <= total <= total_epsilon(Release(z), 3, 1e-5)


def test_an_objective_costs_more_than_a_release_of_its_slope_and_more_with_curvature() -> None:
    totals = [total_epsilon(ObjectiveRelease(20.0, beta), 30, 1e-5) for beta in (0.0, 1e-3, 1e-2, 0.1, 10.0)]
    assert total_epsilon(Release(20.0), 30, 1e-5) < totals[0]
    assert totals == sorted(totals)
    covered = total_epsilon(ObjectiveRelease(20.0, 0.01, 400.0), 30, 1e-5)
    assert totals[2] < covered < 1.01 * totals[2]


def test_pure_rounds_add_up_by_the_better_composition() -> None:
    assert total_epsilon(PureRelease(0.7), 1, 1e-3) <= 0.7
    assert total_epsilon(PureRelease(0.7), 1, 1e-15) == pytest.approx(0.7)
    assert total_epsilon(PureRelease(3.0), 2, 1e-9) == pytest.approx(6.0, rel=1e-6)
    many = total_epsilon(PureRelease(0.01), 1000, 1e-5)
    advanced = 0.01 * math.sqrt(2 * 1000 * math.log(1e5)) + 1000 * 0.01 * math.expm1(0.01)
    assert many < advanced < 10.0
    assert total_epsilon(PureRelease(800.0), 5, 1e-5) == pytest.approx(4000.0)


def test_conversion_from_renyi_of_a_gaussian_is_close_to_exact_and_above() -> None:
    for mu, delta in ((0.1, 1e-3), (1.0, 1e-6), (5.0, 1e-9), (1e-4, 1e-5)):
        converted = epsilon_from_renyi((1.0 + ORDERS) * mu**2 / 2.0, 1.0 + ORDERS, delta)
        exact = exact_epsilon(mu, delta)
        assert exact <= converted
        assert converted < 1.5 * exact


def test_accountants_are_named() -> None:
    assert [accountant_of(release) for release in ONE_OF_EACH] == [
        "exact Gaussian composition",
        "privacy loss distribution (PLD)",
        "Rényi bound of objective perturbation",
        "Rényi bound of objective perturbation",
        "optimal composition of pure ε",
    ]


def test_counts_are_whole() -> None:
    for count in [-1, 1.5, math.nan]:
        with case(count), pytest.raises(StudyError, match="count"):
            total_epsilon(Release(1.0), count, 1e-3)  # type: ignore[arg-type]


def test_delta_is_a_probability() -> None:
    for delta in [0.0, 1.0, -1e-3, math.nan]:
        with case(delta), pytest.raises(StudyError, match="delta"):
            total_epsilon(PureRelease(1.0), 1, delta)


def test_sampling_is_a_share() -> None:
    for sampling in [0.0, -0.1, 1.1, math.nan]:
        with case(sampling):
            with pytest.raises(StudyError, match=r"^sampling must be above 0 and at most 1"):
                SampledRelease(1.0, sampling)
            assert SampledRelease(1.0, 1.0).sampling == 1.0


def test_pure_epsilon_is_positive() -> None:
    for epsilon in [0.0, -1.0, math.inf, math.nan]:
        with case(epsilon), pytest.raises(StudyError, match=r"^epsilon must be a positive number"):
            PureRelease(epsilon)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_noise_and_curvature_are_numbers_from_0_on(wrong: float) -> None:
    for kind in (lambda z: SampledRelease(z, 0.5), lambda z: ObjectiveRelease(z, 0.1)):
        with pytest.raises(StudyError, match=r"^noise_multiplier must be a finite number of at least 0"):
            kind(wrong)
    for ratio in (wrong, math.inf):
        with pytest.raises(StudyError, match=r"^curvature_ratio must be a finite number of at least 0"):
            ObjectiveRelease(1.0, ratio)
    with pytest.raises(StudyError, match=r"^rounding_multiplier must be a number of at least 0"):
        ObjectiveRelease(1.0, 0.1, wrong)


def test_every_kind_of_release_is_in_these_tests() -> None:
    priced = set(get_args(AnyRelease)) - {UnpricedRelease}
    assert {type(release) for release in ONE_OF_EACH} == priced
    assert total_epsilon(UnpricedRelease("mine"), 1, 0.5) == math.inf
    assert total_epsilon(UnpricedRelease("mine"), 0, 0.5) == 0.0


def test_a_release_is_one_gradient_by_default() -> None:
    assert Release(2.0) == Release(2.0, 1, "gradient")
    assert ObjectiveRelease(2.0, 0.1) == ObjectiveRelease(2.0, 0.1, math.inf)
