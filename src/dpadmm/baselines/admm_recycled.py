"""Recycled ADMM, R-ADMM (Zhang, Khalili and Liu 2018): every second round reuses the release of the round before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np

from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.objective_noise import plan_objective_noise
from dpadmm.baselines.solved_rounds import PerturbedObjective, SolvedAdmm, SolverState
from dpadmm.engine.method import Rho, Round, SolverTolerance, keep_absent, merge_states
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.dp_admm import next_dual, primal_step, upload
from dpadmm.parameters.fields import Positive, checked_parameters
from dpadmm.queries.problem import Problem, Rows, Sizes


@dataclass(frozen=True)
class RecycledState(SolverState):
    """State of the ADMM baselines, and the slope h_i of the last release: (n, d, p)."""

    slope: Floats


@checked_parameters
@dataclass(frozen=True)
class AdmmRecycled(PerturbedObjective[SolverState], SolvedAdmm):
    """Recycled ADMM.

    Odd rounds are those of dual variable perturbation: agents release w_i, the minimiser of a perturbed problem. Its
    optimality condition gives the slope of the perturbed objective at w_i:

    ``h_i = γ_i − ρ(w_i^k − w^{k−1}) = f_i'(w_i^k) + Φw_i^k + ξ_i``.

    Even rounds linearise at w_i with this slope, as a round of DP-ADMM without a new gradient:
    ``w_i^{k+1} = (w_i^k/η + ρw^k + γ_i − h_i)/(ρ + 1/η)``.

    **Privacy.** An odd round is an ``ObjectiveRelease`` (``docs/explanation/proofs.md``). In an even round, the
    message is a function of w_i^k, w^{k−1}, w^k and γ_i, which are all public: it is post-processing, and the release
    plan has a gap. So t rounds cost ⌈t/2⌉ releases. h_i is computed from the release as sent, with the noise that
    covers the solver's tolerance; the slope at the private minimiser would be a second release. An agent that is
    planned for r of the t rounds releases at most min(r, ⌈t/2⌉) times.

    **The paper** has the same argument for exact minimisers, and adds the pure ε of the odd rounds. Its even rounds
    use no rows only because the slope contains the noise ξ_i.
    """

    rho: Rho = 0.1
    step_size: Annotated[
        Positive | None, "η of even rounds; default 1/(c3 + λc4/n + Φ), for which the linearised step descends."
    ] = None
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm_recycled"
    title: ClassVar[str] = "R-ADMM"

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        releases = replace(budget, planned=np.minimum(budget.planned, (budget.n_rounds + 1) // 2))
        noise = plan_objective_noise(problem, sizes, releases, self.name, rho=self.rho)
        return replace(self, perturbation=noise)

    def check(self, problem: Problem, rows: Rows) -> None:
        self.perturbation.check(problem, rows, self.rho, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        pull = self.rho + self.perturbation.extra_ridge
        centers = (dual + self.rho * now.consensus) / pull[:, None, None]
        tolerance = tolerances(now.problem, now.rows, self.solver_tolerance)
        xi = self.perturbation.draw(now.noise, now.number)
        return LocalProblems(now.problem, now.rows, pull, centers, tolerance, linear=xi)

    def init(self, problem: Problem, rows: Rows) -> RecycledState:
        state = super().init(problem, rows)
        return RecycledState(**vars(state), slope=state.dual)

    def step(self, state: SolverState, now: Round) -> tuple[SolverState, Floats]:
        assert isinstance(state, RecycledState)
        if now.number % 2 == 0:
            return self._recycle(state, now)
        new, uploads = super().step(state, now)
        slope = new.dual - self.rho * (new.released - now.consensus)
        return RecycledState(**vars(new), slope=keep_absent(slope, state.slope, now.active)), uploads

    def _recycle(self, state: RecycledState, now: Round) -> tuple[RecycledState, Floats]:
        """Run an even round, without rows."""
        dual = next_dual(state, now.consensus, self.rho)
        released = primal_step(
            state.slope,
            np.zeros(()),
            released=state.released,
            dual=dual,
            consensus=now.consensus,
            rho=self.rho,
            step_size=self._step_sizes(now.problem)[:, None, None],
        )
        new = merge_states(replace(state, released=released, dual=dual), state, now.active)
        return new, upload(released, dual, self.rho)

    def _step_sizes(self, problem: Problem) -> Floats:
        """Return η of every agent: (n,)."""
        ridge = self.perturbation.extra_ridge
        if self.step_size is not None:
            return np.full(len(ridge), self.step_size)
        own = (problem.loss.smoothness or 0.0) + problem.alpha * (problem.regularizer.smoothness or 0.0)
        return np.asarray(1.0 / (own + ridge))

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        release = self.event(agent)
        return ReleasePlan.of(release if k % 2 else None for k in range(1, n_rounds + 1))
