"""Every loss is convex and finite, and its slope is the derivative of its value."""

from __future__ import annotations

from itertools import product

import numpy as np
from cases import LOSS_CASES, grid, labels_of_all_sizes, of_all_sizes, random_labels, random_scores
from looping import case

from dpadmm.losses import LOSSES, Loss, slopes


def test_every_registered_case_is_covered():
    assert {loss.name for loss in LOSS_CASES} == set(LOSSES)
    assert all(isinstance(loss, Loss) for loss in LOSS_CASES)


def test_slopes_are_central_differences_of_the_value():
    for scale, loss in product([1.0, 30.0, 1e4], LOSS_CASES):
        with case(scale, loss):
            rng = np.random.default_rng(1)
            labels, scores = random_labels(loss, rng, 5000), random_scores(loss, rng, 5000, scale)
            step = min(1e-6 * max(1.0, scale), 1e-3)  # with this seed no row is that close to the hinge's kink
            measured = np.empty_like(scores)
            for h in range(loss.n_outputs):
                move = step * np.eye(loss.n_outputs)[h]
                measured[:, h] = (loss.value(labels, scores + move) - loss.value(labels, scores - move)) / (2.0 * step)
            # for far points, small losses of counts are differences of large numbers
            rounding = 1e-15 * loss.value(labels, scores).max() / step if loss.task == "count" else 0.0
            np.testing.assert_allclose(slopes(loss, labels, scores), measured, rtol=1e-6, atol=1e-5 + rounding)


def test_value_is_convex_and_slope_is_a_subgradient():
    for loss in LOSS_CASES:
        with case(loss):
            rng, n = np.random.default_rng(3), 3000
            labels = labels_of_all_sizes(loss, rng, n)
            here, there = of_all_sizes(rng, (2, n, loss.n_outputs), 1e3)
            middle = loss.value(labels, (here + there) / 2.0)
            value_here, value_there = loss.value(labels, here), loss.value(labels, there)
            slope = slopes(loss, labels, here)
            size = np.abs(here).max(axis=1) + np.abs(there).max(axis=1)
            rounding = 1e-14 * (1.0 + value_here + value_there + size * (1.0 + np.linalg.norm(slope, axis=1)))
            assert (np.minimum(value_here, value_there) >= -rounding).all()  # scores near the labels: see below
            assert (middle <= (value_here + value_there) / 2.0 + rounding).all()
            assert (value_there >= value_here + (slope * (there - here)).sum(axis=1) - rounding).all()


def test_values_are_not_negative_for_scores_close_to_labels():
    for loss in LOSS_CASES:
        with case(loss):
            labels, scores = grid(loss, [0.0, 1e-20, 2e-16, 1e-12, 1e-8], label_limit=2e-16)
            assert (loss.value(labels, scores) >= 0.0).all()


def test_huge_scores_do_not_overflow_or_give_nan():
    for loss in LOSS_CASES:
        with case(loss):
            huge = 1e150 if loss.name == "squared" else 1e300  # the square of 1e300 overflows
            labels, scores = grid(loss, [-huge, -750.0, 0.0, 750.0, huge])
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                assert np.isfinite(loss.value(labels, scores)).all()
                assert np.isfinite(slopes(loss, labels, scores)).all()
