"""What a training method is: how agents start, what they do in a round, and what that releases."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from dpadmm.arrays import Floats, Integers
from dpadmm.privacy.accounting import Release
from dpadmm.privacy.noise import Noise
from dpadmm.problem import Problem, Rows


class State(Protocol):
    """What a cohort of agents remembers between rounds. It may depend on the public transcript only."""

    @property
    def released(self) -> Floats:
        """The local models w̃_i as others can know them: (n, d, p)."""


S = TypeVar("S", bound=State)


class Method(Protocol[S]):
    """A training method, for a cohort of any number of agents."""

    name: ClassVar[str]

    def init(self, problem: Problem, rows: Rows) -> S:
        """The agents before round 1; all models are zero."""

    def step(
        self,
        state: S,
        *,
        problem: Problem,
        rows: Rows,
        round: int,
        consensus: Floats,
        noise: Noise,
        active: Integers | None,
    ) -> tuple[S, Floats]:
        """Round k at the agents: the consensus w^{k−1} comes in, uploads (n, d, p) go out.

        Only agents listed in ``active`` (None: all) take part; the others' state and uploads stay untouched
        and must not be used.
        """

    def release(self, agent: int) -> Release:
        """What agent i gives away in one round it takes part in; a multiplier of 0 means everything."""
