"""What the methods share whose agents solve local problems exactly: in every round of ADMM, or once and alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.accounting.events import AnyRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.accounting.sensitivity import minimizer_sensitivity
from dpadmm.baselines.local_solver import LocalProblems, solve
from dpadmm.baselines.objective_noise import ObjectiveNoise
from dpadmm.engine.method import Method, Round, S, check_noise, keep_absent, zero_models
from dpadmm.engine.noise import release
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.dp_admm import AdmmState, next_dual, upload
from dpadmm.queries.problem import Problem, Rows


class SolvedRounds(Method[S]):
    """Rounds in which agents release minimisers of local problems, which are averaged."""

    divergence_hint: ClassVar[str] = "a larger rho or alpha, or less noise"
    local_models: ClassVar[bool] = True

    @abstractmethod
    def check(self, problem: Problem, rows: Rows) -> None:
        """Refuse a problem that the method does not apply to."""

    @abstractmethod
    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        """What is released of the minimisers, (n, d, p)."""

    @abstractmethod
    def price(self, agent: int) -> AnyRelease:
        """What one round costs an agent."""

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(self.price(agent), n_rounds)


@dataclass(frozen=True)
class NoisyMinimizers(SolvedRounds[S]):
    """Noise on the minimisers: z of every agent (n,) times how far one row moves them; 0 means no noise."""

    noise_multiplier: Floats

    def __post_init__(self) -> None:
        check_noise(self.noise_multiplier)

    def unit_noise(self, now: Round) -> Floats:
        """Noise of size 1, (n, d, p)."""
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
    """Noise in the local problems: ξ, Φ and what they cost."""

    perturbation: ObjectiveNoise

    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        return self.perturbation.cover(weights, problems.tolerance / problems.convexity, now.noise, now.number)

    def price(self, agent: int) -> AnyRelease:
        return self.perturbation.release(agent)


# --- ADMM --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolverState(AdmmState):
    """Local models and duals; how far the last minimiser was from its centre, and all gradient passes so far.

    ``offset`` (n, d, p) is where the next solve starts, and private to the agent; ``passes`` are (n,).
    """

    offset: Floats
    passes: Integers


@dataclass(frozen=True)
class SolvedAdmm(SolvedRounds[SolverState]):
    """ADMM with penalty ρ."""

    rho: float

    @abstractmethod
    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        """The local problems of a round."""

    def init(self, problem: Problem, rows: Rows) -> SolverState:
        self.check(problem, rows)
        zeros = zero_models(problem, rows)
        return SolverState(zeros, zeros, zeros, np.zeros(rows.n_agents, dtype=np.int64))

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        dual = next_dual(state, now.consensus, self.rho)
        problems = self.problems(now, dual)
        solved = solve(problems, problems.centers + state.offset, now.active)
        released = self.protected(solved.weights, problems, now)
        new = SolverState(
            keep_absent(released, state.released, now.active),
            keep_absent(dual, state.dual, now.active),
            keep_absent(solved.weights - problems.centers, state.offset, now.active),
            state.passes + solved.passes,
        )
        return new, upload(released, dual, self.rho)


# --- every agent alone -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AloneState:
    """The models that agents gave away (n, d, p), and how many gradient passes each took (n,)."""

    released: Floats
    passes: Integers


class SolvedAlone(SolvedRounds[AloneState]):
    """Every agent trains alone and speaks once."""

    @abstractmethod
    def problems(self, now: Round) -> LocalProblems:
        """The local problems, around zero."""

    def init(self, problem: Problem, rows: Rows) -> AloneState:
        self.check(problem, rows)
        return AloneState(zero_models(problem, rows), np.zeros(rows.n_agents, dtype=np.int64))

    def step(self, state: AloneState, now: Round) -> tuple[AloneState, Floats]:
        problems = self.problems(now)
        solved = solve(problems, problems.centers, now.active)
        released = keep_absent(self.protected(solved.weights, problems, now), state.released, now.active)
        return AloneState(released, state.passes + solved.passes), released
