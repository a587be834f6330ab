"""Minimise the objective over the rows of all agents, without privacy.

``argmin_w mean_i mean_j ℓ(a_ij, b_ij, w) + alpha · R(w)``, by a proximal Newton method with line search. A hinge is
smoothed less in every solve, and each solve starts at the result of the one before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy  # submodules load on first use

from dpadmm import kernels
from dpadmm.errors import ConvergenceWarning
from dpadmm.losses import Hinge, SmoothedHinge, curvatures
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.coded import CodedRows
from dpadmm.queries.problem import Problem, Rows

_WIDTHS = (1.0, 1e-1, 1e-2)
_MAX_NEWTON_WEIGHTS = 2000  # with more weights the Hessian is too large, and L-BFGS is used
_MAX_STEPS, _MAX_EVALUATIONS = 200, 5000
_TOLERANCE = 1e-10

Smooth = Callable[[Floats], tuple[float, Floats]]


def minimizer(problem: Problem, rows: Rows) -> Floats:
    """Return the weights (d, p) that minimise the objective over all agents' rows. Not private.

    Examples
    --------
    >>> from dpadmm.losses import Squared
    >>> from dpadmm.queries.problem import make_rows
    >>> from dpadmm.regularizers import NoRegularizer
    >>> rows = make_rows(np.eye(2), np.array([0.5, -0.25]))
    >>> np.round(minimizer(Problem(Squared(), NoRegularizer(), 0.0), rows), 6).tolist()
    [[0.5], [-0.25]]
    """
    start = np.zeros((rows.n_features, problem.loss.n_outputs))
    solve = _newton if start.size <= _MAX_NEWTON_WEIGHTS else _quasi_newton
    if not isinstance(problem.loss, Hinge):
        return solve(problem, rows, start)
    # The hinge objective at a smoothed optimum is within width/2 of the minimum; on Adult, 0.01 gives 1e-5
    for width in _WIDTHS:
        start = solve(replace(problem, loss=SmoothedHinge(width)), rows, start)
    return start


def _newton(problem: Problem, rows: Rows, weights: Floats) -> Floats:
    """Take Newton steps on the data term, exact in the regularizer, until the predicted decrease is negligible.

    If the loss has no curvature (beyond a smoothed hinge's corner), a Newton step is far too long. It is then damped,
    up to the curvature bound of the loss, with which a step always decreases the objective.
    """
    value, slope = _data_term(problem, rows, weights)
    bound = problem.loss.smoothness or 1.0
    dampings = (0.0, 1e-6 * bound, 1e-4 * bound, 1e-2 * bound, bound)
    for _ in range(_MAX_STEPS):
        hessian, before = data_hessian(problem, rows, weights), _penalty(problem, weights)
        for damping in dampings:
            step = _model_step(problem, weights, slope, hessian + damping * np.eye(len(hessian)))
            decrease = -float(np.vdot(slope, step)) + before - _penalty(problem, weights + step)
            if decrease <= _TOLERANCE * max(1.0, abs(value)):
                return weights
            accepted = _line_search(problem, rows, weights, step, value + before, decrease)
            if accepted is not None:
                break
        if accepted is None:  # the decrease is below the floating-point precision
            return weights
        weights, value, slope = accepted
    _warn(f"{_MAX_STEPS} Newton steps")
    return weights


def _line_search(
    problem: Problem, rows: Rows, weights: Floats, step: Floats, before: float, decrease: float
) -> tuple[Floats, float, Floats] | None:
    """Return the first of ``w + u, w + u/2, ...`` that decreases enough, with its data term, or None."""
    length = 1.0
    while length > 1e-6:
        trial = weights + length * step
        value, slope = _data_term(problem, rows, trial)
        if value + _penalty(problem, trial) <= before - 1e-4 * length * decrease:
            return trial, value, slope
        length /= 2.0
    return None


def _model_step(problem: Problem, weights: Floats, slope: Floats, hessian: Floats) -> Floats:
    """Return ``argmin_u ⟨slope, u⟩ + ½uᵀHu + alpha · R(w + u)``."""
    shape, share, regularizer = weights.shape, problem.alpha, problem.regularizer
    if share == 0.0 or regularizer.smoothness is not None:
        curved = hessian + share * (regularizer.smoothness or 0.0) * np.eye(len(hessian))
        full_slope = slope + share * regularizer.gradient(weights)
        factors = scipy.linalg.cho_factor(curved)
        return np.asarray(-scipy.linalg.cho_solve(factors, full_slope.ravel()).reshape(shape))

    def smooth(point: Floats) -> tuple[float, Floats]:
        step = (point - weights).ravel()
        curved = hessian @ step
        return float(slope.ravel() @ step + step @ curved / 2.0), (slope.ravel() + curved).reshape(shape)

    return _split_solve(problem, smooth, weights, max_evaluations=500) - weights


def _quasi_newton(problem: Problem, rows: Rows, weights: Floats) -> Floats:
    share, regularizer = problem.alpha, problem.regularizer
    if regularizer.smoothness is None and share > 0.0:
        smooth = partial(_data_term, problem, rows)
        return _split_solve(problem, smooth, weights, max_evaluations=_MAX_EVALUATIONS, warn=True)

    def objective(flat: Floats) -> tuple[float, Floats]:
        point = flat.reshape(weights.shape)
        value, slope = _data_term(problem, rows, point)
        return value + _penalty(problem, point), (slope + share * regularizer.gradient(point)).ravel()

    options = {"gtol": 1e-8, "maxcor": 20}
    return _lbfgs(objective, weights.ravel(), _MAX_EVALUATIONS, warn=True, **options).reshape(weights.shape)


def _lbfgs(
    objective: Smooth, start: Floats, max_evaluations: int, *, warn: bool, bounds: Any = None, **options: float
) -> Floats:
    limits = {"maxiter": max_evaluations, "maxfun": max_evaluations, "ftol": 1e-12}
    answer = scipy.optimize.minimize(
        objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=limits | options
    )
    if warn and answer.nfev >= max_evaluations:
        _warn(f"{answer.nfev} evaluations")
    return np.asarray(answer.x, dtype=float)


def _split_solve(
    problem: Problem, smooth: Smooth, start: Floats, *, max_evaluations: int, warn: bool = False
) -> Floats:
    """Minimise ``smooth(w) + alpha·R(w)`` for a kinked R, as ``w = u − v`` with u, v ≥ 0.

    R grows with every ``|w_j|``, so at the optimum u or v is zero in each coordinate and R(w) = R(u) + R(v);
    on the box both halves are smooth.
    """
    shape, size, share, regularizer = start.shape, start.size, problem.alpha, problem.regularizer
    inside = np.full(shape, np.finfo(float).tiny)  # at 0: the one-sided derivative

    def halves(flat: Floats) -> tuple[float, Floats]:
        up, down = flat[:size].reshape(shape), flat[size:].reshape(shape)
        value, slope = smooth(up - down)
        value += share * float(regularizer.value(up) + regularizer.value(down))
        slope_up = slope + share * regularizer.gradient(np.maximum(up, inside))
        slope_down = share * regularizer.gradient(np.maximum(down, inside)) - slope
        return value, np.concatenate([slope_up.ravel(), slope_down.ravel()])

    first = np.concatenate([np.maximum(start, 0.0).ravel(), np.maximum(-start, 0.0).ravel()])
    bounds = [(0.0, None)] * (2 * size)
    best = _lbfgs(halves, first, max_evaluations, warn=warn, bounds=bounds, gtol=1e-12, maxcor=30)
    return np.asarray((best[:size] - best[size:]).reshape(shape))


def _data_term(problem: Problem, rows: Rows, weights: Floats) -> tuple[float, Floats]:
    """Return the mean loss and its gradient. Rows are not clipped, because nothing is released."""
    points = np.broadcast_to(weights, (rows.n_agents, *weights.shape))
    slope = kernels.gradient(rows, points, problem.loss, bound=np.inf)
    return float(problem.losses(rows, points).mean()), slope.mean(axis=0)


def data_hessian(problem: Problem, rows: Rows, weights: Floats) -> Floats:
    """Return the Hessian of the data term (dp × dp), in which all agents have the same weight.

    It includes a very small ridge, so that it can be factored.
    """
    d, p = weights.shape
    points = np.broadcast_to(weights, (rows.n_agents, d, p))
    curved = curvatures(problem.loss, rows.labels, kernels.scores(rows, points))
    curved /= (rows.n_agents * np.repeat(rows.n_rows, rows.n_rows))[:, None, None]
    if rows.row_weights is not None:
        curved *= rows.row_weights[:, None, None]
    total = np.zeros((d, p, d, p))
    for first in range(0, len(rows.labels), 8192):
        part = slice(first, first + 8192)
        a: Any = rows.features[rows.order[part]]
        a = a.tocsr() if isinstance(a, CodedRows) or scipy.sparse.issparse(a) else a
        for g in range(p):
            for h in range(g, p):
                block = _dense(a.T @ _scaled(a, curved[part, g, h]))
                total[:, g, :, h] += block
                if h > g:
                    total[:, h, :, g] += block
    matrix = total.reshape(d * p, d * p)
    ridge = 1e-9 * max(float(np.trace(matrix)) / len(matrix), 1e-9)
    return matrix + ridge * np.eye(len(matrix))


def _scaled(features: Any, factors: Floats) -> Any:
    """Return the rows, each times its factor."""
    if scipy.sparse.issparse(features):
        return features.multiply(factors[:, None]).tocsr()
    return features * factors[:, None]


def _dense(matrix: Any) -> Floats:
    return np.asarray(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix)


def _penalty(problem: Problem, weights: Floats) -> float:
    return problem.alpha * float(problem.regularizer.value(weights))


def _warn(after: str) -> None:
    warnings.warn(
        f"the non-private optimum was not reached to its tolerance after {after}; it is an upper estimate",
        ConvergenceWarning,
        stacklevel=5,
    )
