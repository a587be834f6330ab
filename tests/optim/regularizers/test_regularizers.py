"""Every regularizer is convex, its gradient and prox belong to its value, and its constants are bounds."""

from __future__ import annotations

import numpy as np
import pytest
from cases import REGULARIZER_CASES, SMOOTH_REGULARIZER_CASES, prove, weights_within
from hypothesis import example, given
from hypothesis import strategies as st
from looping import case

from dpadmm._base.errors import StudyError
from dpadmm.optim.regularizers import L1, L2, REGULARIZERS, ElasticNet, NoRegularizer, Regularizer

WEIGHTS = weights_within(100.0)


def test_the_list_of_cases_is_complete():
    assert {entry.name for entry in REGULARIZER_CASES} == set(REGULARIZERS)
    assert all(isinstance(entry, Regularizer) for entry in REGULARIZER_CASES)


def test_gradient_is_the_central_difference_of_the_value():
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            weights = np.random.default_rng(1).standard_normal((4, 3))  # none within 1e-6 of the kink at 0
            moves = 1e-6 * np.eye(12).reshape(12, 4, 3)
            measured = (regularizer.value(weights + moves) - regularizer.value(weights - moves)) / 2e-6
            np.testing.assert_allclose(regularizer.gradient(weights).ravel(), measured, atol=1e-8)


@pytest.mark.parametrize("regularizer", REGULARIZER_CASES, ids=repr)
@prove
@given(here=WEIGHTS, there=WEIGHTS)
def test_value_is_convex_and_gradient_is_a_subgradient(regularizer, here, there):
    value_here, value_there = regularizer.value(here), regularizer.value(there)
    rounding = 1e-14 * (1.0 + (here * here).sum() + (there * there).sum())
    assert regularizer.value((here + there) / 2.0) <= (value_here + value_there) / 2.0 + rounding
    assert value_there >= value_here + np.vdot(regularizer.gradient(here), there - here) - rounding


@pytest.mark.parametrize("regularizer", REGULARIZER_CASES, ids=repr)
@prove
@given(weights=WEIGHTS, move=WEIGHTS, scale=st.sampled_from([1e-6, 1e-3, 1.0]), step=st.floats(1e-3, 1e3))
@example(weights=np.full((3, 2), 1e-12), move=np.full((3, 2), 1e-12), scale=1e-6, step=1.0)
def test_prox_minimises_its_objective(regularizer, weights, move, scale, step):
    def objective(point):
        return 0.5 * ((point - weights) ** 2).sum() + step * regularizer.value(point)

    best = regularizer.prox(weights, step)
    for point in (best + scale * move, best - scale * move):
        # the objective is 1-strongly convex: this holds for every point exactly when `best` is its minimum
        rounding = 1e-14 * (objective(point) + objective(best))
        assert objective(point) >= objective(best) + 0.5 * ((point - best) ** 2).sum() - rounding


@pytest.mark.parametrize("regularizer", REGULARIZER_CASES, ids=repr)
@prove
@given(weights=WEIGHTS, radius=st.floats(0.01, 100.0))
def test_lipschitz_bounds_the_gradient_on_the_ball_and_is_attained(regularizer, weights, radius):
    inside = weights * min(1.0, radius / max(np.linalg.norm(weights), 1e-300))
    bound = regularizer.lipschitz(weights.size, radius)
    assert np.linalg.norm(regularizer.gradient(inside)) <= bound * (1.0 + 1e-14)
    far, corner = 100.0 + radius, np.full(weights.shape, (100.0 + radius) / np.sqrt(weights.size))
    assert np.linalg.norm(regularizer.gradient(corner)) == pytest.approx(
        regularizer.lipschitz(weights.size, far), rel=1e-12
    )


@pytest.mark.parametrize("regularizer", SMOOTH_REGULARIZER_CASES, ids=repr)
@prove
@given(here=WEIGHTS, there=WEIGHTS)
def test_gradient_changes_at_most_as_fast_as_smoothness_and_so_fast_somewhere(regularizer, here, there):
    bound = regularizer.smoothness * np.linalg.norm(here - there)
    assert np.linalg.norm(regularizer.gradient(here) - regularizer.gradient(there)) <= bound * (1.0 + 1e-12) + 1e-14
    near = np.full((2, 3), 1e-6)
    change = np.linalg.norm(regularizer.gradient(near) - regularizer.gradient(-near))
    assert change == pytest.approx(regularizer.smoothness * np.linalg.norm(2.0 * near), rel=1e-12)


def test_smoothness_is_none_exactly_when_the_gradient_jumps():
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            tiny = np.full((1, 1), 1e-9)
            jump = np.abs(regularizer.gradient(tiny) - regularizer.gradient(-tiny)).max()
            assert (jump > 0.1) == (regularizer.smoothness is None)


def test_leading_axes_are_kept_and_the_weights_left_alone():
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            weights = np.random.default_rng(2).standard_normal((5, 2, 4, 3))
            weights.flags.writeable = False
            value, gradient, prox = (
                regularizer.value(weights),
                regularizer.gradient(weights),
                regularizer.prox(weights, 0.3),
            )
            assert (value.shape, gradient.shape, prox.shape) == ((5, 2), weights.shape, weights.shape)
            for index in np.ndindex(5, 2):
                assert value[index] == pytest.approx(regularizer.value(weights[index]), rel=1e-14)
                np.testing.assert_array_equal(gradient[index], regularizer.gradient(weights[index]))
                np.testing.assert_array_equal(prox[index], regularizer.prox(weights[index], 0.3))


def test_no_regularizer_is_zero():
    weights = np.random.default_rng(3).standard_normal((2, 4, 3))
    none = NoRegularizer()
    assert not none.value(weights).any()
    assert not none.gradient(weights).any()
    np.testing.assert_array_equal(none.prox(weights, 5.0), weights)
    assert (none.lipschitz(12, 7.0), none.smoothness) == (0.0, 0.0)


def test_values_and_soft_threshold_by_hand():
    weights = np.array([[-2.0, -0.5, 0.0], [0.5, 1.0, 3.0]])
    assert L1().value(weights) == np.abs(weights).sum() == 7.0
    assert L2().value(weights) == pytest.approx(0.5 * np.linalg.norm(weights) ** 2)
    assert ElasticNet(0.25).value(weights) == pytest.approx(0.25 * 7.0 + 0.75 * L2().value(weights))
    np.testing.assert_array_equal(L1().prox(weights, 1.0), [[-1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])


def test_elastic_net_ends_in_l2_and_l1():
    for ratio, end in [(0.0, L2()), (1.0, L1())]:
        with case(ratio, end):
            weights = np.random.default_rng(4).standard_normal((4, 3))
            mixed = ElasticNet(l1_ratio=ratio)
            np.testing.assert_allclose(mixed.value(weights), end.value(weights), rtol=1e-14)
            np.testing.assert_array_equal(mixed.gradient(weights), end.gradient(weights))
            np.testing.assert_array_equal(mixed.prox(weights, 0.4), end.prox(weights, 0.4))
            assert mixed.lipschitz(12, 5.0) == end.lipschitz(12, 5.0)
            assert mixed.smoothness == end.smoothness


def test_bad_parameter_is_named():
    for bad in [-0.1, 1.1, np.inf, np.nan]:
        with case(bad), pytest.raises(StudyError, match=rf"^elastic_net: l1_ratio .*{bad}"):
            ElasticNet(l1_ratio=bad)
