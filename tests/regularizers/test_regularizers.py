"""Every regularizer is convex, its gradient and prox match its value, and its constants are bounds."""

from __future__ import annotations

import numpy as np
import pytest
from cases import REGULARIZER_CASES, SMOOTH_REGULARIZER_CASES, of_all_sizes
from looping import case

from dpadmm.errors import StudyError
from dpadmm.regularizers import L1, L2, REGULARIZERS, ElasticNet, NoRegularizer, Regularizer

SHAPE = (2000, 3, 2)


def weights_of_all_sizes(seed):
    return of_all_sizes(np.random.default_rng(seed), (2, *SHAPE), 100.0)


def norms(weights):
    return np.linalg.norm(weights, axis=(1, 2))


def test_every_registered_case_is_covered():
    assert {entry.name for entry in REGULARIZER_CASES} == set(REGULARIZERS)
    assert all(isinstance(entry, Regularizer) for entry in REGULARIZER_CASES)


def test_gradient_is_the_central_difference_of_the_value():
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            weights = np.random.default_rng(1).standard_normal((4, 3))  # none within 1e-6 of the kink at 0
            moves = 1e-6 * np.eye(12).reshape(12, 4, 3)
            measured = (regularizer.value(weights + moves) - regularizer.value(weights - moves)) / 2e-6
            np.testing.assert_allclose(regularizer.gradient(weights).ravel(), measured, atol=1e-8)


def test_value_is_convex_and_gradient_is_a_subgradient():
    here, there = weights_of_all_sizes(1)
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            value_here, value_there = regularizer.value(here), regularizer.value(there)
            rounding = 1e-14 * (1.0 + norms(here) ** 2 + norms(there) ** 2)
            assert (regularizer.value((here + there) / 2.0) <= (value_here + value_there) / 2.0 + rounding).all()
            slope = (regularizer.gradient(here) * (there - here)).sum(axis=(1, 2))
            assert (value_there >= value_here + slope - rounding).all()


def test_prox_minimises_its_objective():
    """The objective is 1-strongly convex: the inequality holds for all other points iff prox is its minimum."""
    weights, moves = weights_of_all_sizes(2)
    moves *= np.random.default_rng(2).choice([1e-6, 1e-3, 1.0], (len(moves), 1, 1))
    weights[0], moves[0] = 1e-12, 1e-18
    for regularizer in REGULARIZER_CASES:
        for step in np.geomspace(1e-3, 1e3, 13):
            with case(regularizer, step):
                best = regularizer.prox(weights, step)
                points = np.stack([best + moves, best - moves])
                least = 0.5 * norms(best - weights) ** 2 + step * regularizer.value(best)
                others = 0.5 * ((points - weights) ** 2).sum(axis=(2, 3)) + step * regularizer.value(points)
                apart = 0.5 * ((points - best) ** 2).sum(axis=(2, 3))
                assert (others >= least + apart - 1e-14 * (others + least)).all()


def test_lipschitz_bounds_the_gradient_on_the_ball_and_is_attained():
    weights, _ = weights_of_all_sizes(3)
    for regularizer in REGULARIZER_CASES:
        for radius in np.geomspace(0.01, 100.0, 13):
            with case(regularizer, radius):
                inside = weights * np.minimum(1.0, radius / np.maximum(norms(weights), 1e-300))[:, None, None]
                bound = regularizer.lipschitz(6, radius)
                assert (norms(regularizer.gradient(inside)) <= bound * (1.0 + 1e-14)).all()
                far, corner = 100.0 + radius, np.full(SHAPE[1:], (100.0 + radius) / np.sqrt(6))
                attained = np.linalg.norm(regularizer.gradient(corner))
                assert attained == pytest.approx(regularizer.lipschitz(6, far), rel=1e-12)


def test_smoothness_bounds_the_change_of_the_gradient_and_is_attained():
    here, there = weights_of_all_sizes(4)
    for regularizer in SMOOTH_REGULARIZER_CASES:
        with case(regularizer):
            bound = regularizer.smoothness * norms(here - there)
            change = norms(regularizer.gradient(here) - regularizer.gradient(there))
            assert (change <= bound * (1.0 + 1e-12) + 1e-14).all()
            near = np.full((2, 3), 1e-6)
            change = np.linalg.norm(regularizer.gradient(near) - regularizer.gradient(-near))
            assert change == pytest.approx(regularizer.smoothness * np.linalg.norm(2.0 * near), rel=1e-12)


def test_smoothness_is_none_if_and_only_if_the_gradient_jumps():
    for regularizer in REGULARIZER_CASES:
        with case(regularizer):
            tiny = np.full((1, 1), 1e-9)
            jump = np.abs(regularizer.gradient(tiny) - regularizer.gradient(-tiny)).max()
            assert (jump > 0.1) == (regularizer.smoothness is None)


def test_leading_axes_are_supported_and_weights_are_not_changed():
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


def test_regularizer_none_is_zero():
    weights = np.random.default_rng(3).standard_normal((2, 4, 3))
    none = NoRegularizer()
    assert not none.value(weights).any()
    assert not none.gradient(weights).any()
    np.testing.assert_array_equal(none.prox(weights, 5.0), weights)
    assert (none.lipschitz(12, 7.0), none.smoothness) == (0.0, 0.0)


def test_values_and_soft_threshold_of_an_example():
    weights = np.array([[-2.0, -0.5, 0.0], [0.5, 1.0, 3.0]])
    assert L1().value(weights) == np.abs(weights).sum() == 7.0
    assert L2().value(weights) == pytest.approx(0.5 * np.linalg.norm(weights) ** 2)
    assert ElasticNet(0.25).value(weights) == pytest.approx(0.25 * 7.0 + 0.75 * L2().value(weights))
    np.testing.assert_array_equal(L1().prox(weights, 1.0), [[-1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])


def test_elastic_net_has_l2_and_l1_as_limits():
    for ratio, end in [(0.0, L2()), (1.0, L1())]:
        with case(ratio, end):
            weights = np.random.default_rng(4).standard_normal((4, 3))
            mixed = ElasticNet(l1_ratio=ratio)
            np.testing.assert_allclose(mixed.value(weights), end.value(weights), rtol=1e-14)
            np.testing.assert_array_equal(mixed.gradient(weights), end.gradient(weights))
            np.testing.assert_array_equal(mixed.prox(weights, 0.4), end.prox(weights, 0.4))
            assert mixed.lipschitz(12, 5.0) == end.lipschitz(12, 5.0)
            assert mixed.smoothness == end.smoothness


def test_invalid_parameter_is_named():
    for bad in [-0.1, 1.1, np.inf, np.nan]:
        with case(bad), pytest.raises(StudyError, match=rf"^elastic_net: l1_ratio .*{bad}"):
            ElasticNet(l1_ratio=bad)
