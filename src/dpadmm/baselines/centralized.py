"""The non-private optimum on pooled rows: the lower bound in every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.engine.method import Method, MethodSettings, NoState, Round
from dpadmm.engine.minimizer import minimizer
from dpadmm.matrices.arrays import Floats
from dpadmm.queries.problem import Problem, Rows

if TYPE_CHECKING:
    from dpadmm.methods.setup import Setup


@dataclass(frozen=True)
class Centralized(MethodSettings):
    """The non-private optimum on pooled rows."""

    name: ClassVar[str] = "centralized"
    title: ClassVar[str] = "optimum"
    local_models: ClassVar[bool] = False
    private: ClassVar[bool] = False
    one_round: ClassVar[bool] = True

    def rounds(self, setup: Setup) -> CentralizedRounds:
        return CentralizedRounds()


@dataclass(frozen=True)
class CentralizedRounds(Method[NoState]):
    """All rows in one place, solved in one round. Not private: a reference, never a release."""

    name: ClassVar[str] = "centralized"
    divergence_hint: ClassVar[str] = "a larger alpha"
    local_models: ClassVar[bool] = Centralized.local_models

    def init(self, problem: Problem, rows: Rows) -> NoState:
        return NoState.of(problem, rows)

    def step(self, state: NoState, now: Round) -> tuple[NoState, Floats]:
        everywhere = np.broadcast_to(minimizer(now.problem, now.rows), state.released.shape)
        return NoState(everywhere), everywhere

    def plan(self, agent: int, n_rounds: int) -> ReleasePlan:
        return ReleasePlan.constant(Release(0.0), n_rounds)
