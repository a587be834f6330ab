"""The closed list of queries for tests over all of them, with parameters."""

from __future__ import annotations

import math

import numpy as np
from neighbours import points_for

from dpadmm.losses import Loss
from dpadmm.matrices.arrays import Floats
from dpadmm.queries import QUERIES, Query, make_query
from dpadmm.queries.calibration import Calibration
from dpadmm.queries.newton import LOSSES, NewtonQuery
from dpadmm.queries.preconditioned_gradient import MAX_PARAMETER, PreconditionedGradient
from dpadmm.queries.problem import Problem
from dpadmm.queries.score_histogram import ScoreHistogram
from dpadmm.regularizers import L2
from dpadmm.trusted.discrete_gaussian import Lattice


def all_statistics(loss: Loss, n_features: int) -> list[Query]:
    """Return one of each, for a loss and a number of columns."""
    problem = Problem(loss, L2(), 0.0)
    unfit = {NewtonQuery.name: loss.name not in LOSSES, ScoreHistogram.name: loss.task != "binary"}
    names = [name for name in QUERIES if not unfit.get(name, False)]
    return [make_query(name, problem, n_features) for name in names]


def grid_of(statistic: Query, n_rows: int) -> Lattice:
    """Return the grid of its sums, as the guard builds it."""
    return Lattice(statistic.row_norm, math.prod(statistic.shape), n_rows)


def parameters_for(statistic: Query) -> list[Floats]:
    """Return public parameters that an agent accepts: ordinary and extreme ones."""
    if statistic.name == PreconditionedGradient.name:
        return preconditioners_and_points(*statistic.shape)
    if statistic.name == Calibration.name:
        return directions_and_bounds(statistic.n_features, statistic.loss.n_outputs)  # type: ignore[attr-defined]
    shape = statistic.parameter_shape
    if statistic.name == NewtonQuery.name:
        return points_and_clips(statistic.n_weights, shape[0])  # type: ignore[attr-defined]
    if statistic.name == ScoreHistogram.name:
        return points_and_clips(statistic.n_features, shape[0])
    return points_for(shape) if len(shape) == 2 else [np.zeros(shape)]  # type: ignore[arg-type]


def points_and_clips(d: int, size: int) -> list[Floats]:
    """Return points near and far, with large and small clipping bounds for losses that have one."""
    signs = np.where(np.arange(d) % 2, -1.0, 1.0)
    points = [0.0 * signs, signs, 0.4812 * np.eye(d)[0], 1e5 * np.eye(d)[-1], MAX_PARAMETER * signs, 1e-300 * signs]
    clips = [1.0, 0.1, 2.0, 1.0 / MAX_PARAMETER, MAX_PARAMETER, 1.0]
    return [np.append(point, clip)[:size] for point, clip in zip(points, clips, strict=True)]


def directions_and_bounds(d: int, p: int) -> list[Floats]:
    """Return directions and points near and far, with small and large clipping bounds."""
    flat = np.where(np.arange(d * p) % 2, -1.0, 1.0)
    signs, steps, none = np.tile(flat, 3), np.concatenate([flat, -flat, 0.5 * flat]), np.zeros(d * p)
    ordinary = np.full(p, 1.0 / p) - np.eye(p)[min(1, p - 1)] if p > 1 else np.ones(1)  # a slope at equal chances
    opposed = np.eye(p)[0] - np.eye(p)[1] if p > 1 else np.ones(1)  # a slope far from them
    slope, far = 20.0 * np.tile(ordinary, d), 40.0 * np.tile(opposed, d)
    tiny, huge = 1.0 / MAX_PARAMETER, MAX_PARAMETER
    weights = [0.0 * signs, signs, 4.0 * steps, huge * signs, huge * steps, 1e-300 * signs, 30.0 * steps]
    weights += [np.concatenate([slope, none, none]), np.concatenate([far, -far, far])]
    bounds = [(1.0, 1.0), (1.0, 0.2), (0.1, 2.0), (tiny, tiny), (huge, huge), (1.0, 1.0), (0.5, tiny)]
    bounds += [(0.05, 1.0), (0.05, 0.05)]
    return [np.concatenate(parts) for parts in zip(weights, bounds, strict=True)]


def preconditioners_and_points(d: int, p: int) -> list[Floats]:
    """Return preconditioners (identity, extreme scales and directions), at points near and far."""
    signs, first = np.where(np.arange(d) % 2, -1.0, 1.0), np.eye(d)[0]
    one, none, far = np.ones(d), np.zeros(d), MAX_PARAMETER * np.where(np.arange(d * p) % 2, -1.0, 1.0)
    parts = [
        (one, none, 0.0 * far),
        (40.0 * one, 0.3 * signs, far / MAX_PARAMETER),
        (MAX_PARAMETER * one, none, far),
        (one / MAX_PARAMETER, none, far),
        (MAX_PARAMETER ** (signs * 1.0), MAX_PARAMETER * signs, 0.0 * far),
        (MAX_PARAMETER * one, MAX_PARAMETER * first, -far),
        (1e4 * one, 1e-300 * signs, 1e-320 * far),
        (one, -MAX_PARAMETER * one, far),
    ]
    return [np.concatenate(part) for part in parts]
