"""c1 and c3 of every loss are valid and attained bounds."""

from __future__ import annotations

import numpy as np
from cases import BOUNDED_LOSS_CASES, SMOOTH_LOSS_CASES, grid, labels_of_all_sizes, of_all_sizes
from looping import case

from dpadmm.losses import Huber, SmoothedHinge, slopes


def _limit(loss):
    """Return the maximum size of scores and labels. Squared loss: the maximum at which its bound does not clip."""
    return loss.lipschitz / 2.0 if loss.name == "squared" else 1e3


N = 3000


def test_row_gradient_norms_are_at_most_lipschitz():
    for loss in BOUNDED_LOSS_CASES:
        with case(loss):
            rng = np.random.default_rng(1)
            labels, limit = labels_of_all_sizes(loss, rng, N, _limit(loss)), _limit(loss)
            slope = slopes(loss, labels, of_all_sizes(rng, (N, loss.n_outputs), limit))
            rows = of_all_sizes(rng, (N, 3), 1.0)
            rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
            lengths = np.linalg.norm(rows[:, :, None] * slope[:, None, :], axis=(1, 2))
            assert (lengths <= loss.lipschitz * (1.0 + 1e-14)).all()


def test_lipschitz_is_attained():
    for loss in BOUNDED_LOSS_CASES:
        with case(loss):
            labels, scores = grid(loss, [-_limit(loss), _limit(loss)], label_limit=_limit(loss))
            longest = np.linalg.norm(slopes(loss, labels, scores), axis=1).max()
            assert 0.99 * loss.lipschitz < longest <= loss.lipschitz * (1.0 + 1e-14)


def test_slopes_change_at_most_as_fast_as_smoothness():
    """Near and far: a bound on the Hessian is visible at short distances, where slopes are not saturated."""
    for loss in SMOOTH_LOSS_CASES:
        with case(loss):
            rng, shape = np.random.default_rng(2), (N, loss.n_outputs)
            labels, here = labels_of_all_sizes(loss, rng, N), of_all_sizes(rng, shape, 1e3)
            there = here + rng.choice([1e-3, 1.0, 1e3], (N, 1)) * of_all_sizes(rng, shape, 1.0)
            change = np.linalg.norm(slopes(loss, labels, here) - slopes(loss, labels, there), axis=1)
            rounding = 1e-15 * (1.0 + np.abs(here).max(axis=1) + np.abs(there).max(axis=1))
            assert (change <= loss.smoothness * (np.linalg.norm(here - there, axis=1) + rounding) + 1e-15).all()


NEAR = [label + side * far for label in (-1.0, 1.0) for side in (-1.0, 1.0) for far in (1e-4, 1e-3, 1e-2, 0.03, 0.1)]
"""Scores on both sides of the labels: a loss may bend within a narrow band of residuals only."""


def test_smoothness_is_attained():
    for loss in [*SMOOTH_LOSS_CASES, Huber(0.002), SmoothedHinge(0.002)]:
        with case(loss):
            labels, scores = grid(loss, [-30.0, 0.0, 0.97, *(NEAR if loss.n_outputs == 1 else [])])
            step = 1e-5
            columns = [
                (slopes(loss, labels, scores + move) - slopes(loss, labels, scores - move)) / (2.0 * step)
                for move in step * np.eye(loss.n_outputs)
            ]
            steepest = np.linalg.norm(np.stack(columns, axis=2), ord=2, axis=(1, 2)).max()
            assert 0.95 * loss.smoothness < steepest <= loss.smoothness * (1.0 + 1e-6)


def test_smoothness_is_none_if_and_only_if_the_slope_jumps():
    for loss in BOUNDED_LOSS_CASES:
        with case(loss):
            line = np.linspace(-2.0, 2.0, 401)
            scores = np.zeros((len(line), loss.n_outputs))
            scores[:, 0] = line
            move = 1e-9 * np.eye(loss.n_outputs)[0]
            labels = np.ones(len(line))
            jump = np.abs(slopes(loss, labels, scores + move) - slopes(loss, labels, scores - move)).max()
            assert (jump > 0.5) == (loss.smoothness is None)
