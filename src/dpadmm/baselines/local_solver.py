"""Exact local solves of the ADMM baselines, for all agents of a cohort at once.

``w_i = argmin_w mean_j ℓ(a_ij, b_ij, w) + (λ/n)R(w) + (q_i/2)‖w − v_i‖² + ⟨ξ_i, w⟩``. The centre v_i contains the
consensus and the dual; ξ_i is the noise of some methods. The solve of an agent does not depend on the others. One pass
of the gradient kernel serves all agents that are not finished.

Smooth problems: limited-memory BFGS that accepts only steps which reduce the gradient and otherwise takes a gradient
step, then Newton's method for ill-conditioned problems. Regularizers with kinks: accelerated proximal gradient (FISTA).

A solve that does not reach its tolerance raises :class:`NotSolvedError`. Its message contains public values only: no
gradient norm and no agent. Whether it is raised, and the number of passes, depend on rows, and no guarantee covers
them. So these methods are for simulations: studies cannot use them, and there is no exact noise for them. A deployable
version would run a number of passes that is fixed by public values (FISTA needs about √(c/q)·log(1/tolerance), with the
largest curvature c and the strong convexity q), and charge the resulting tolerance.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import scipy  # submodules load on first use
from numpy.typing import NDArray

from dpadmm import kernels
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.minimizer import data_hessian
from dpadmm.errors import DPADMMError, StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import Problem, Rows

MEMORY = 8
"""Number of pairs of steps and gradient changes in the quasi-Newton model."""

_MAX_BFGS_PASSES = 60  # more passes mean an ill-conditioned problem, for which Newton's method is used
_MAX_PASSES = 20_000
_MAX_NEWTON_WEIGHTS = 2000


class NotSolvedError(DPADMMError):
    """A local problem was not solved to its tolerance, which depends on its rows."""

    def __init__(self, hint: str) -> None:
        super().__init__(hint)

    def __str__(self) -> str:
        return (
            f"a local problem was not solved to its tolerance in {_MAX_PASSES} passes; use {self.args[0]} "
            "(this depends on rows and no epsilon covers it, so do not publish it)"
        )


@dataclass(frozen=True)
class Solved:
    """Minimisers (n, d, p), and the gradient passes that each took (n,)."""

    weights: Floats
    passes: Integers


@dataclass(frozen=True)
class LocalProblems:
    """The local problems of a cohort in one round.

    Attributes
    ----------
    pull : (n,)
        q_i, which is positive unless the regularizer is strongly convex.
    centers : (n, d, p)
        v_i.
    tolerance : (n,)
        Gradient norms at which solves end.
    linear : (n, d, p), optional
        ξ_i.
    bound : float, optional
        Clipping bound of row gradients; None for c1, which releases require.
    """

    problem: Problem
    rows: Rows
    pull: Floats
    centers: Floats
    tolerance: Floats
    linear: Floats | None = None
    bound: float | None = None

    def agent(self, i: int) -> LocalProblems:
        """Return the problem of agent i."""
        own = slice(i, i + 1)
        return replace(
            self,
            rows=self.rows.agent(i),
            pull=self.pull[own],
            centers=self.centers[own],
            tolerance=self.tolerance[own],
            linear=None if self.linear is None else self.linear[own],
        )

    def data_gradient(self, weights: Floats, agents: Integers) -> Floats:
        active = None if len(agents) == self.rows.n_agents else agents
        slopes = kernels.gradient(self.rows, weights, self.problem.loss, active, bound=self.bound)
        slopes += self.pull[:, None, None] * (weights - self.centers)
        return slopes if self.linear is None else slopes + self.linear

    def gradient(self, weights: Floats, agents: Integers) -> Floats:
        """Return the gradients (n, d, p) of smooth problems; only those of ``agents`` are valid."""
        problem = self.problem
        return self.data_gradient(weights, agents) + problem.alpha * problem.regularizer.gradient(weights)

    @property
    def convexity(self) -> Floats:
        """Strong convexity of every local problem without its rows: (n,)."""
        return self.pull + self.problem.alpha * self.problem.regularizer.convexity


def tolerances(problem: Problem, rows: Rows, share: float) -> Floats:
    """Return the gradient norms at which solves stop: ``share`` of the mean gradient's sensitivity 2c1/m_i.

    The tolerance increases the sensitivity of a minimiser by a factor of at most 1 + 2·share, for agents of any size.
    """
    return np.asarray(share * mean_sensitivity(problem.loss.lipschitz, rows.n_rows))


def solve(problems: LocalProblems, start: Floats, active: Integers | None = None) -> Solved:
    """Minimise every local problem (of the agents in ``active``), each from its own start.

    Raises ``NotSolvedError`` if an agent did not reach its tolerance, which depends on its rows, and ``StudyError`` if
    the centres are too large, which is public.
    """
    agents = np.arange(problems.rows.n_agents) if active is None else active
    _check_reachable(problems)
    regularizer = problems.problem.regularizer
    if regularizer.smoothness is None and problems.problem.alpha > 0.0:
        return _fista(problems, start, agents)
    return _quasi_newton(problems, start, agents)


def _check_reachable(problems: LocalProblems) -> None:
    """Raise StudyError for centres so large that rounding exceeds the tolerance. This does not depend on rows."""
    weights = problems.centers.shape[1] * problems.centers.shape[2]
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.abs(problems.centers).max(axis=(1, 2)) * problems.pull * np.sqrt(weights) * 2.0**-52
    if not (far <= 0.01 * problems.tolerance).all():
        raise StudyError(
            "the consensus or a dual is too large, or not a number: local problems around it cannot be "
            "solved to their tolerance; check what the aggregator sent, or use a larger solver_tolerance"
        )


# Smooth problems


@dataclass
class _Memory:
    """The last steps s and gradient changes y of every agent; a pair with 1/⟨s,y⟩ = 0 is missing."""

    steps: list[Floats] = field(default_factory=list)
    changes: list[Floats] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)

    def add(self, step: Floats, change: Floats, usable: NDArray[np.bool_]) -> None:
        product = _dot(step, change)
        good = usable & (product > 1e-12 * np.sqrt(_dot(step, step) * _dot(change, change)))
        self.steps.append(step)
        self.changes.append(change)
        self.weights.append(np.where(good, 1.0 / np.where(good, product, 1.0), 0.0))
        if len(self.steps) > MEMORY:
            del self.steps[0], self.changes[0], self.weights[0]

    def direction(self, gradient: Floats, first_guess: Floats) -> Floats:
        """Return ``−Bg`` by the two-loop recursion; ``first_guess`` (n,) is the initial inverse curvature."""
        out, kept = gradient.copy(), []
        for step, change, weight in zip(
            reversed(self.steps), reversed(self.changes), reversed(self.weights), strict=True
        ):
            part = weight * _dot(step, out)
            out -= part[:, None] * change
            kept.append(part)
        scale = first_guess
        for change, weight in zip(self.changes, self.weights, strict=True):
            with np.errstate(divide="ignore"):
                scale = np.where(weight > 0.0, 1.0 / np.where(weight > 0.0, weight * _dot(change, change), 1.0), scale)
        out *= scale[:, None]
        for step, change, weight, part in zip(self.steps, self.changes, self.weights, reversed(kept), strict=True):
            out += (part - weight * _dot(change, out))[:, None] * step
        return -out


def _dot(a: Floats, b: Floats) -> Floats:
    return np.asarray((a * b).sum(axis=1))


def _quasi_newton(problems: LocalProblems, start: Floats, agents: Integers) -> Solved:
    """Run L-BFGS for all agents; a step that does not reduce an agent's gradient is rejected."""
    shape = start.shape
    n = shape[0]
    steepest = _least_step(problems)
    passes = np.zeros(n, dtype=np.int64)

    def slope(flat: Floats, which: Integers) -> Floats:
        passes[which] += 1
        return problems.gradient(flat.reshape(shape), which).reshape(n, -1)

    points = start.reshape(n, -1).copy()
    gradient = slope(points, agents)
    size = np.sqrt(_dot(gradient, gradient))
    memory, open_ = _Memory(), agents[~(size[agents] <= problems.tolerance[agents])]  # NaN is not done
    for _ in range(_MAX_BFGS_PASSES):
        if not len(open_):
            return Solved(points.reshape(shape), passes)
        step = np.zeros_like(points)
        step[open_] = memory.direction(gradient, steepest)[open_]
        trial = points + step
        there = slope(trial, open_)
        there_size = np.sqrt(_dot(there, there))
        shrunk = np.zeros(n, dtype=bool)
        shrunk[open_] = there_size[open_] <= 0.9 * size[open_]
        memory.add(step, there - gradient, np.isin(np.arange(n), open_))
        points[shrunk], gradient[shrunk], size[shrunk] = trial[shrunk], there[shrunk], there_size[shrunk]
        stuck = open_[~shrunk[open_]]
        if len(stuck):  # a step of length 1/(largest curvature) always reduces the gradient
            points[stuck] -= steepest[stuck, None] * gradient[stuck]
            gradient[stuck] = slope(points, stuck)[stuck]
            size[stuck] = np.sqrt(_dot(gradient[stuck], gradient[stuck]))
        open_ = open_[~(size[open_] <= problems.tolerance[open_])]
    for i in open_:
        points[i] = _newton(problems, int(i), points[i].reshape(shape[1:]), passes).ravel()
    return Solved(points.reshape(shape), passes)


def _least_step(problems: LocalProblems) -> Floats:
    """Return 1/(c3 + λc4/n + q_i), the inverse of the largest possible curvature."""
    problem = problems.problem
    curvature = (problem.loss.smoothness or 0.0) + problem.alpha * (problem.regularizer.smoothness or 0.0)
    return np.asarray(1.0 / (curvature + problems.pull))


def _newton(problems: LocalProblems, agent: int, weights: Floats, passes: Integers) -> Floats:
    """Run Newton's method for one agent, halving steps until the gradient decreases."""
    alone = problems.agent(agent)
    only, shape = np.arange(1), weights.shape
    own = float(problems.problem.alpha * (problems.problem.regularizer.smoothness or 0.0))
    steepest = float(_least_step(alone)[0])
    gradient = alone.gradient(weights[None], only)[0]
    while not np.linalg.norm(gradient) <= alone.tolerance[0]:
        if passes[agent] > _MAX_PASSES:
            raise NotSolvedError("a larger rho, alpha or solver_tolerance")
        step = -steepest * gradient
        if weights.size <= _MAX_NEWTON_WEIGHTS:
            curved = data_hessian(problems.problem, alone.rows, weights)
            curved[np.diag_indices_from(curved)] += float(alone.pull[0]) + own
            with suppress(scipy.linalg.LinAlgError):  # singular within rounding; its message depends on rows
                factors = scipy.linalg.cho_factor(curved)
                step = -scipy.linalg.cho_solve(factors, gradient.ravel()).reshape(shape)
        length = 1.0
        while True:
            passes[agent] += 1
            trial = weights + length * step
            there = alone.gradient(trial[None], only)[0]
            if np.linalg.norm(there) < (1.0 - 1e-4 * length) * np.linalg.norm(gradient):
                break
            length /= 2.0
            if length < 1e-3:  # the curvature is not smooth here; a gradient step always helps
                trial = weights - steepest * gradient
                there = alone.gradient(trial[None], only)[0]
                break
        weights, gradient = trial, there
    return weights


# Regularizers with kinks


def _fista(problems: LocalProblems, start: Floats, agents: Integers) -> Solved:
    """Run accelerated proximal gradient with the momentum of the strong convexity, which is the same for all agents.

    It ends when ``‖w − prox(w − s g)‖/s``, which is the gradient norm if there is no kink, is small.
    """
    problem, n = problems.problem, problems.rows.n_agents
    pull = float(problems.pull.max())
    if float(problems.pull.min()) != pull:
        raise DPADMMError("FISTA needs the same pull for all agents")
    curvature = (problem.loss.smoothness or 0.0) + pull
    step, passes = 1.0 / curvature, np.zeros(n, dtype=np.int64)
    root = np.sqrt(max(pull, 1e-12) / curvature)
    momentum = (1.0 - root) / (1.0 + root)
    points, ahead, open_ = start.copy(), start.copy(), agents
    for _ in range(_MAX_PASSES):
        passes[open_] += 1
        slope = problems.data_gradient(ahead, open_)
        moved = problem.regularizer.prox(ahead - step * slope, step * problem.alpha)
        length = np.linalg.norm((moved - ahead)[open_], axis=(1, 2)) / step
        ahead[open_] = moved[open_] + momentum * (moved[open_] - points[open_])
        points[open_] = moved[open_]
        open_ = open_[~(length <= problems.tolerance[open_])]
        if not len(open_):
            return Solved(points, passes)
    raise NotSolvedError("a larger rho or solver_tolerance, or split_regularizer")
