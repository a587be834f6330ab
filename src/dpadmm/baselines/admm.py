"""ADMM, the paper's Algorithm 2: exact local solves, no noise. Not private: a reference, never a release."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.baselines.local_solver import LocalProblems, tolerances
from dpadmm.baselines.requirements import need_solvable
from dpadmm.baselines.solved_rounds import SolvedAdmm
from dpadmm.engine.method import Rho, Round, RoundResult, SolverTolerance
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries.problem import Problem, Rows
from dpadmm.regularizers import NoRegularizer


@checked_parameters
@dataclass(frozen=True)
class Admm(SolvedAdmm):
    """The paper's Algorithm 2, without noise.

    With ``split_regularizer`` the regularizer is in the consensus step: ``w = prox_{λR/(nρ)}(mean_i[w_i − γ_i/ρ])``.
    Then local problems are smooth whatever the regularizer.
    """

    rho: Rho = 0.1
    split_regularizer: Annotated[
        bool, "Put the regularizer into the consensus step, so that local problems are smooth."
    ] = False
    solver_tolerance: SolverTolerance = 1e-3

    name: ClassVar[str] = "admm"
    title: ClassVar[str] = "ADMM"
    private: ClassVar[bool] = False

    def check(self, problem: Problem, rows: Rows) -> None:
        need_solvable(problem, self.name)

    def problems(self, now: Round, dual: Floats) -> LocalProblems:
        problem, rows = now.problem, now.rows
        return LocalProblems(
            replace(problem, regularizer=NoRegularizer()) if self.split_regularizer else problem,
            rows,
            np.full(rows.n_agents, self.rho),
            now.consensus + dual / self.rho,
            tolerances(problem, rows, self.solver_tolerance),
            bound=np.inf,
        )

    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        return weights

    def event(self, agent: int) -> Release:
        return Release(0.0)

    def aggregate(self, result: RoundResult) -> Floats:
        mean, problem = super().aggregate(result), result.problem
        return problem.regularizer.prox(mean, problem.alpha / self.rho) if self.split_regularizer else mean
