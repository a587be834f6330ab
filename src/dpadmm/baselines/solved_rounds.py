"""Methods whose agents solve local problems exactly: in every round of ADMM, or once without the others."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from dpadmm.accounting.events import AnyRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.accounting.sensitivity import minimizer_sensitivity
from dpadmm.baselines.local_solver import LocalProblems, solve
from dpadmm.baselines.objective_noise import ObjectiveNoise
from dpadmm.engine.method import Method, Round, keep_absent, prepared, zero_models
from dpadmm.engine.noise import release
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.dp_admm import AdmmState, next_dual, upload
from dpadmm.queries.problem import Problem, Rows


@dataclass(frozen=True)
class SingleState:
    """Released models (n, d, p), and the gradient passes that each took (n,)."""

    released: Floats
    passes: Integers


@dataclass(frozen=True)
class SolverState(AdmmState):
    """Local models and duals; the offset of the last minimiser from its centre, and all gradient passes so far.

    ``offset`` (n, d, p) is where the next solve starts, and private to the agent; ``passes`` are (n,).
    """

    offset: Floats
    passes: Integers


S = TypeVar("S", SingleState, SolverState)


class SolvedRounds(Method[S]):
    """Rounds in which agents release minimisers of local problems, which are averaged."""

    divergence_hint: ClassVar[str] = "a larger rho or alpha, or less noise"

    @abstractmethod
    def check(self, problem: Problem, rows: Rows) -> None:
        """Raise StudyError if the method does not apply to a problem."""

    @abstractmethod
    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        """Return the release (n, d, p) from the minimisers."""

    @abstractmethod
    def event(self, agent: int) -> AnyRelease:
        """Return the privacy event of one round of an agent."""

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(self.event(agent), n_rounds)


@dataclass(frozen=True)
class NoisyMinimizers(SolvedRounds[S]):
    """Noise on the minimisers: z of every agent (n,) times the sensitivity of its minimiser; 0 means no noise."""

    noise_multiplier: Floats = prepared()

    def unit_noise(self, now: Round) -> Floats:
        """Return noise of scale 1, (n, d, p)."""
        return now.noise.draw(now.number)

    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        if not np.any(self.noise_multiplier):
            return weights
        lipschitz, n_rows = now.problem.loss.lipschitz, now.rows.n_rows
        sensitivity = minimizer_sensitivity(lipschitz, n_rows, problems.convexity, tolerance=problems.tolerance)
        noise_std = (self.noise_multiplier * sensitivity)[:, None, None]
        return release(weights, noise_std=noise_std, noise=self.unit_noise(now))


@dataclass(frozen=True)
class PerturbedObjective(SolvedRounds[S]):
    """Noise in the local problems: ξ, Φ and their cost."""

    perturbation: ObjectiveNoise = prepared()

    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        return self.perturbation.cover(weights, problems.tolerance / problems.convexity, now.noise, now.number)

    def event(self, agent: int) -> AnyRelease:
        return self.perturbation.release(agent)


class SolvedAdmm(SolvedRounds[SolverState]):
    """ADMM with penalty ρ."""

    rho: float

    @property
    def dual_steps(self) -> float | Floats:
        """Length of the dual step: a number, or (n, 1, 1)."""
        return self.rho

    @abstractmethod
    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        """Return the local problems of a round."""

    def init(self, problem: Problem, rows: Rows) -> SolverState:
        self.check(problem, rows)
        zeros = zero_models(problem, rows)
        return SolverState(zeros, zeros, zeros, np.zeros(rows.n_agents, dtype=np.int64))

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        dual = next_dual(state, now.consensus, self.dual_steps)
        problems = self.problems(now, dual)
        solved = solve(problems, problems.centers + state.offset, now.active)
        released = self.protected(solved.weights, problems, now)
        new = SolverState(
            keep_absent(released, state.released, now.active),
            keep_absent(dual, state.dual, now.active),
            keep_absent(solved.weights - problems.centers, state.offset, now.active),
            state.passes + solved.passes,
        )
        return new, upload(released, dual, self.dual_steps)


class SingleSolve(SolvedRounds[SingleState]):
    """Every agent trains without the others and releases its model once."""

    one_round: ClassVar[bool] = True

    @abstractmethod
    def problems(self, now: Round) -> LocalProblems:
        """Return the local problems, centred at zero."""

    def init(self, problem: Problem, rows: Rows) -> SingleState:
        self.check(problem, rows)
        return SingleState(zero_models(problem, rows), np.zeros(rows.n_agents, dtype=np.int64))

    def step(self, state: SingleState, now: Round) -> tuple[SingleState, Floats]:
        problems = self.problems(now)
        solved = solve(problems, problems.centers, now.active)
        released = keep_absent(self.protected(solved.weights, problems, now), state.released, now.active)
        return SingleState(released, state.passes + solved.passes), released
