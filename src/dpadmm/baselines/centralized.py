"""The non-private optimum on pooled rows: the lower bound in every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.engine.method import Method, NoState, Round
from dpadmm.engine.minimizer import minimizer
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem, Rows


@dataclass(frozen=True)
class Centralized(Method[NoState]):
    """The non-private optimum on pooled rows, computed in one round. Not private: a reference, never a release."""

    name: ClassVar[str] = "centralized"
    title: ClassVar[str] = "optimum"
    divergence_hint: ClassVar[str] = "a larger alpha"
    private: ClassVar[bool] = False
    one_round: ClassVar[bool] = True
    local_models: ClassVar[bool] = False

    def init(self, problem: Problem, rows: Rows) -> NoState:
        return NoState.of(problem, rows)

    def step(self, state: NoState, now: Round) -> tuple[NoState, Floats]:
        everywhere = np.broadcast_to(minimizer(now.problem, now.rows), state.released.shape)
        return NoState(everywhere), everywhere

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(Release(0.0), n_rounds)
