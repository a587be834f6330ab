"""Exact local solves of the ADMM baselines, for all agents of a cohort at once.

``w_i = argmin_w mean_j ℓ(a_ij, b_ij, w) + (λ/n)R(w) + (q_i/2)‖w − v_i‖² + ⟨ξ_i, w⟩``, where the centre v_i
holds the consensus and the dual, and ξ_i is some methods' noise. Every agent's solve is its own: who else is
in the cohort changes nothing. One pass of the gradient kernel serves all agents that are not done yet.

Smooth problems: limited-memory BFGS that accepts only steps which shrink the gradient, with a gradient step
in its place where one does not, and Newton's method for what is still left (ill-conditioned problems).
Kinked regularizers: accelerated proximal gradient (FISTA).

A solve that does not reach its tolerance raises :class:`NotSolvedError`. The text is made of public values: no
length of a gradient, and not whose problem it was. That it is raised at all, and how many passes a solve
takes, depends on rows, and no guarantee covers it. So methods that solve are for simulations: no study may
name them, and there is no exact noise for them. To deploy one, run a number of passes that is fixed
beforehand by public values (FISTA needs about √(c/q)·log(1/tolerance) of them, c the largest curvature and
q the strong convexity), and charge the tolerance which that many guarantee.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import scipy  # its parts load when they are first used
from numpy.typing import NDArray

from dpadmm import kernels
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.minimizer import data_hessian
from dpadmm.errors import DPADMMError, StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import Problem, Rows

MEMORY = 8
"""Pairs of steps and gradient changes that the quasi-Newton model is made of."""

_EASY_PASSES = 60  # beyond, a problem is ill-conditioned, and Newton's method takes over
_MOST_PASSES = 20_000
_NEWTON_WEIGHTS = 2000


class NotSolvedError(DPADMMError):
    """Some agent's local problem was not solved to its tolerance: that depends on its rows."""

    def __init__(self, hint: str) -> None:
        super().__init__(hint)

    def __str__(self) -> str:
        return (
            f"a local problem was not solved to its tolerance in {_MOST_PASSES} passes; use {self.args[0]} "
            "(that this happened tells about rows, and no epsilon covers it: keep it where the rows are)"
        )


@dataclass(frozen=True)
class Solved:
    """Minimisers (n, d, p), and how many gradient passes each took (n,)."""

    weights: Floats
    passes: Integers


@dataclass(frozen=True)
class LocalProblems:
    """The local problems of a cohort in one round."""

    problem: Problem
    rows: Rows
    pull: Floats  # (n,): q_i > 0 unless the regularizer is strongly convex
    centers: Floats  # (n, d, p): v_i
    tolerance: Floats  # (n,): a solve ends when its gradient is at most this long
    linear: Floats | None = None  # (n, d, p): ξ_i
    bound: float | None = None  # what row gradients are clipped to; None: c1, as whatever is released must be

    def agent(self, i: int) -> LocalProblems:
        """Agent i alone."""
        mine = slice(i, i + 1)
        return replace(
            self,
            rows=self.rows.agent(i),
            pull=self.pull[mine],
            centers=self.centers[mine],
            tolerance=self.tolerance[mine],
            linear=None if self.linear is None else self.linear[mine],
        )

    def data_gradient(self, weights: Floats, agents: Integers) -> Floats:
        active = None if len(agents) == self.rows.n_agents else agents
        slopes = kernels.gradient(self.rows, weights, self.problem.loss, active, bound=self.bound)
        slopes += self.pull[:, None, None] * (weights - self.centers)
        return slopes if self.linear is None else slopes + self.linear

    def gradient(self, weights: Floats, agents: Integers) -> Floats:
        """Gradients (n, d, p) of a smooth problem; only those of ``agents`` have a meaning."""
        problem = self.problem
        return self.data_gradient(weights, agents) + problem.alpha * problem.regularizer.gradient(weights)

    @property
    def convexity(self) -> Floats:
        """Strong convexity of every local problem without its rows: (n,)."""
        return self.pull + self.problem.alpha * self.problem.regularizer.convexity


def tolerances(problem: Problem, rows: Rows, share: float) -> Floats:
    """Gradient norms at which solves stop: ``share`` of the mean gradient's sensitivity 2c1/m_i.

    So the solver's inexactness adds at most 2·share to the sensitivity of a minimiser, relatively, whatever
    the size of an agent.
    """
    return np.asarray(share * mean_sensitivity(problem.loss.lipschitz, rows.n_rows))


def solve(problems: LocalProblems, start: Floats, active: Integers | None = None) -> Solved:
    """Minimise every local problem (of the agents in ``active``), each from its own start.

    Raises ``NotSolvedError`` if an agent did not reach its tolerance, which depends on its rows, and ``StudyError`` if
    the centres are too far out, which is public.
    """
    agents = np.arange(problems.rows.n_agents) if active is None else active
    _check_reachable(problems)
    regularizer = problems.problem.regularizer
    if regularizer.smoothness is None and problems.problem.alpha > 0.0:
        return _fista(problems, start, agents)
    return _quasi_newton(problems, start, agents)


def _check_reachable(problems: LocalProblems) -> None:
    """Refuse centres so far out that rounding hides the tolerance: a refusal that depends on no row."""
    weights = problems.centers.shape[1] * problems.centers.shape[2]
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.abs(problems.centers).max(axis=(1, 2)) * problems.pull * np.sqrt(weights) * 2.0**-52
    if not (far <= 0.01 * problems.tolerance).all():
        raise StudyError(
            "the consensus or a dual is too large, or not a number: local problems around it cannot be "
            "solved to their tolerance; check what the aggregator sent, or use a larger solver_tolerance"
        )


# --- smooth problems ---------------------------------------------------------------------------------------


@dataclass
class _Memory:
    """The newest steps s and gradient changes y of every agent; a pair with 1/⟨s,y⟩ = 0 counts as missing."""

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
        """``−Bg`` by the two loops; ``first_guess`` (n,) is the inverse curvature where nothing is known."""
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
    """L-BFGS for all agents together; a step that does not shrink an agent's gradient is taken back."""
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
    for _ in range(_EASY_PASSES):
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
        if len(stuck):  # a step of length 1/(largest curvature), after which the gradient is surely smaller
            points[stuck] -= steepest[stuck, None] * gradient[stuck]
            gradient[stuck] = slope(points, stuck)[stuck]
            size[stuck] = np.sqrt(_dot(gradient[stuck], gradient[stuck]))
        open_ = open_[~(size[open_] <= problems.tolerance[open_])]
    for i in open_:
        points[i] = _newton(problems, int(i), points[i].reshape(shape[1:]), passes).ravel()
    return Solved(points.reshape(shape), passes)


def _least_step(problems: LocalProblems) -> Floats:
    """1/(c3 + λc4/n + q_i): no curvature is larger."""
    problem = problems.problem
    most = (problem.loss.smoothness or 0.0) + problem.alpha * (problem.regularizer.smoothness or 0.0)
    return np.asarray(1.0 / (most + problems.pull))


def _newton(problems: LocalProblems, agent: int, weights: Floats, passes: Integers) -> Floats:
    """Newton's method for one agent, halving steps until the gradient shrinks."""
    alone = problems.agent(agent)
    only, shape = np.arange(1), weights.shape
    own = float(problems.problem.alpha * (problems.problem.regularizer.smoothness or 0.0))
    steepest = float(_least_step(alone)[0])
    gradient = alone.gradient(weights[None], only)[0]
    while not np.linalg.norm(gradient) <= alone.tolerance[0]:
        if passes[agent] > _MOST_PASSES:
            raise NotSolvedError("a larger rho, alpha or solver_tolerance")
        step = -steepest * gradient
        if weights.size <= _NEWTON_WEIGHTS:
            curved = data_hessian(problems.problem, alone.rows, weights)
            curved[np.diag_indices_from(curved)] += float(alone.pull[0]) + own
            with suppress(scipy.linalg.LinAlgError):  # flat within rounding: its text would tell where
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
            if length < 1e-3:  # a corner of the curvature: a gradient step always helps
                trial = weights - steepest * gradient
                there = alone.gradient(trial[None], only)[0]
                break
        weights, gradient = trial, there
    return weights


# --- kinked regularizers -----------------------------------------------------------------------------------


def _fista(problems: LocalProblems, start: Floats, agents: Integers) -> Solved:
    """Accelerated proximal gradient with the momentum that the strong convexity allows, the same for all.

    It ends when ``‖w − prox(w − s g)‖/s``, which is the gradient's length where there is no kink, is small.
    """
    problem, n = problems.problem, problems.rows.n_agents
    pull = float(problems.pull.max())
    if float(problems.pull.min()) != pull:
        raise DPADMMError("FISTA needs the same pull for all agents")
    most = (problem.loss.smoothness or 0.0) + pull
    step, passes = 1.0 / most, np.zeros(n, dtype=np.int64)
    root = np.sqrt(max(pull, 1e-12) / most)
    momentum = (1.0 - root) / (1.0 + root)
    points, ahead, open_ = start.copy(), start.copy(), agents
    for _ in range(_MOST_PASSES):
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
