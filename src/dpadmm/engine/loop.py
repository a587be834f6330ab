"""The one round loop, and what may watch it.

A round is: broadcast the consensus -> ``method.step`` at the agents that take part -> ``method.aggregate``.
An absent agent's last upload counts for a few rounds more, except in server-side methods, and it is charged only for
rounds it took part in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpadmm.accounting.release_plan import ReleasePlan, Tally
from dpadmm.engine.method import Method, Round, RoundResult, State, keep_absent
from dpadmm.engine.noise import LazyAnswers, Noise, SecureSumNoise
from dpadmm.errors import DivergenceError, StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import Problem, Rows, Sizes

AverageName = Literal["last", "all", "tail"]
AVERAGES: tuple[AverageName, ...] = ("last", "all", "tail")


@dataclass(frozen=True)
class RoundView:
    """The state after round k, as observers see it."""

    round: int
    n_rounds: int
    consensus: Floats
    released: Floats
    seconds: float  # spent in rounds so far, without the observers' own
    state: Any = None  # what the method's agents remember
    uploads: Floats | None = (
        None  # (n, d, p): what agents sent last; of an absent one, what it sent before; None: not kept
    )
    active: Integers | None = None  # who took part; None: all
    local_models: bool = True  # whether agents have some; else what is measured of them is the global model's
    broadcast: Floats | None = None  # next: the consensus, or all that a server-side method's aggregator knows


Observer = Callable[[RoundView], None]
"""Called after every round; it watches and cannot change the run."""


StopRule = Callable[[int, Floats, Floats], bool]
"""(round, consensus, consensus before) -> stop? It sees only what everyone sees."""


@dataclass(frozen=True)
class StopWhenStill:
    """Stop when the consensus moved less than ``tolerance`` (relative) in this round."""

    tolerance: float

    def __call__(self, round: int, consensus: Floats, before: Floats) -> bool:
        moved = np.linalg.norm(consensus - before)
        return bool(moved < self.tolerance * max(float(np.linalg.norm(consensus)), np.finfo(float).tiny))


Participation = Callable[[int], Integers | None]
"""round -> the agents that take part, or None for all."""


@dataclass(frozen=True)
class RandomParticipation:
    """Every agent takes part in a round with probability ``chance``; at least one always does.

    Where ``least`` are needed and fewer are there, nobody is asked.
    """

    chance: float
    n_agents: int
    seed: int
    least: int = 1

    def __call__(self, round: int) -> Integers | None:
        rng = np.random.default_rng([self.seed, 2, round])  # 1 is the split of the rows
        present = np.flatnonzero(rng.random(self.n_agents) < self.chance)
        if self.least > 1:
            return present if len(present) >= self.least else present[:0]
        return present if len(present) else np.array([rng.integers(self.n_agents)])


@dataclass(frozen=True)
class RandomVoids:
    """With secure aggregation: every round is void with probability ``chance``."""

    chance: float
    seed: int

    def __call__(self, round: int) -> bool:
        return bool(np.random.default_rng([self.seed, 3, round]).random() < self.chance)


@dataclass(frozen=True)
class PlannedParticipation:
    """A public plan: ``mask[k−1, i]`` says whether agent i takes part in round k."""

    mask: np.ndarray[Any, np.dtype[np.bool_]]

    def __call__(self, round: int) -> Integers | None:
        return np.flatnonzero(self.mask[round - 1])


@dataclass
class Averages:
    """The averages both theorems define, and those a released model may be made from."""

    with_released: bool = False
    rounds: int = 0
    tail_rounds: int = 0
    _consensus_sum: Any = 0.0
    _tail_sum: Any = 0.0
    _released_sum: Any = 0.0
    _released_last: Any = 0.0

    def __call__(self, view: RoundView) -> None:
        self.rounds += 1
        self._consensus_sum = self._consensus_sum + view.consensus
        if 2 * view.round > view.n_rounds:
            self.tail_rounds += 1
            self._tail_sum = self._tail_sum + view.consensus
        if self.with_released:
            self._released_sum = self._released_sum + view.released
            self._released_last = view.released

    @property
    def consensus(self) -> Floats:
        """``w̄ = mean_{k=1..t} w^k``, (d, p)."""
        return np.asarray(self._consensus_sum / self.rounds)

    @property
    def tail(self) -> Floats:
        """Mean of w^k over the second half of the planned rounds, (d, p)."""
        return np.asarray(self._tail_sum / self.tail_rounds) if self.tail_rounds else self.consensus

    def model(self, average: AverageName, last: Floats) -> Floats:
        """The global model: ``last`` w^t, mean of ``all`` rounds, or mean of the ``tail`` (second half)."""
        if average not in AVERAGES:
            raise StudyError(f"average must be one of {', '.join(AVERAGES)}, not {average!r}")
        if average == "last" or self.rounds == 0:
            return last
        return self.consensus if average == "all" else self.tail

    @property
    def released(self) -> Floats:
        """``w̄_i = mean_{k=1..t} w̃_i^k`` (Theorem 3), (n, d, p); only when ``with_released``."""
        return np.asarray(self._released_sum / self.rounds)

    @property
    def released_before(self) -> Floats:
        """``w̄_i = mean_{k=0..t−1} w̃_i^k`` (Theorem 2), (n, d, p); models start at zero."""
        return np.asarray((self._released_sum - self._released_last) / self.rounds)


@dataclass(frozen=True)
class Outcome:
    """What is left after training."""

    consensus: Floats  # (d, p): w^t, the global model of the last round
    released: Floats  # (n, d, p): w̃_i^t, the local models as everyone saw them
    averages: Averages
    rounds: int  # done
    charged_rounds: int  # released: those done, and one more where an interruption came between
    attended: NDArray[np.bool_] | None  # (rounds, n): who took part, and is charged for it; None: all in every round
    seconds: float  # in rounds, without observers
    interrupted: bool  # by Ctrl-C; everything above still holds for the rounds done
    state: State  # what the method's agents remember
    broadcast: Floats  # next: the consensus, or all that a server-side method's aggregator knows

    @property
    def n_attended(self) -> Integers:
        """Rounds that each agent took part in: (n,)."""
        if self.attended is None:
            return np.full(len(self.released), self.charged_rounds)
        return np.asarray(self.attended.sum(axis=0))

    def weights(self, average: AverageName = "last") -> Floats:
        """The global model; see :meth:`Averages.model`."""
        return self.averages.model(average, self.consensus)


def train(
    method: Method[Any],
    problem: Problem,
    rows: Rows,
    *,
    n_rounds: int,
    noise: Noise,
    participation: Participation | None = None,
    stop: StopRule | None = None,
    averages: Averages | None = None,
    observers: Sequence[Observer] = (),
    warm_start: Floats | None = None,
    keep_interrupted: bool = False,
    sizes: Sizes | None = None,
    voids: Callable[[int], bool] | None = None,
) -> Outcome:
    """Run ``n_rounds`` rounds of a method over a cohort, or fewer when ``stop`` says so.

    ``warm_start`` (d, p) are public weights to start from, such as those of an earlier model. With
    ``keep_interrupted`` Ctrl-C ends the run and returns what was done. ``sizes`` are what aggregators know, where
    that is not the size of ``rows`` (forecasts). ``voids`` says which rounds are void: agents have said their part
    and are charged, and nothing can be made of it. ``DivergenceError`` is raised when the consensus, or the mean of all
    so far, is not finite.
    """
    averages = Averages() if averages is None else averages
    state, shape = method.init(problem, rows), (rows.n_features, problem.loss.n_outputs)
    uploads: Floats | LazyAnswers = np.broadcast_to(np.zeros(()), (rows.n_agents, *shape))  # takes no room
    if warm_start is not None:
        warm_start = np.asarray(warm_start, dtype=float)
        if warm_start.shape != shape or not np.isfinite(warm_start).all():
            raise StudyError(f"warm_start must be finite weights of shape {shape}, not of {warm_start.shape}")
        state = replace(state, released=np.broadcast_to(warm_start, state.released.shape).copy())
    broadcast = method.start(shape, warm_start)
    consensus = method.model(broadcast)
    attended = np.zeros((n_rounds if participation else 0, rows.n_agents), dtype=bool)
    answered = np.zeros(rows.n_agents, dtype=np.int64) if participation else None
    done, charged, seconds, interrupted = 0, 0, 0.0, False
    try:
        for k in range(1, n_rounds + 1):
            started = perf_counter()
            active = participation(k) if participation else None
            if active is not None and not len(active):  # too few are there: nobody is asked
                done = charged = k
                continue
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # refused below
                new_state, sent = method.step(state, Round(k, problem, rows, broadcast, noise, active))
                if active is not None and not method.server_side:
                    sent = keep_absent(np.asarray(sent), np.asarray(uploads), active)
                uploads = sent
                before = consensus
                if answered is not None:
                    answered[slice(None) if active is None else active] = k
                result = RoundResult(uploads, broadcast, k, problem, (sizes or rows).n_rows, active, answered)
                if isinstance(noise, SecureSumNoise):
                    result = result.pooled(noise.honest)
                void = voids is not None and voids(k)
                next_broadcast = broadcast if void else method.aggregate(result)
                new_consensus = method.model(next_broadcast)
            if participation:  # charged first: an interruption may cost budget, never privacy
                attended[k - 1, slice(None) if active is None else active] = True
            charged = k
            state, broadcast, consensus, done = new_state, next_broadcast, new_consensus, k
            seconds += perf_counter() - started
            local = local_models(method, state, consensus)
            seen = None if isinstance(uploads, LazyAnswers) else uploads
            view = RoundView(
                k, n_rounds, consensus, local, seconds, state, seen, active, method.local_models, broadcast
            )
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                averages(view)
            if not (np.isfinite(broadcast).all() and np.isfinite(averages.consensus).all()):
                raise DivergenceError(method.name, k, n_rounds, method.divergence_hint)
            for observer in observers:
                observer(view)
            if stop and stop(k, consensus, before):
                break
    except KeyboardInterrupt:
        if not keep_interrupted:
            raise
        interrupted = True
    released = local_models(method, state, consensus)
    taken = attended[:charged] if participation else None
    return Outcome(consensus, released, averages, done, charged, taken, seconds, interrupted, state, broadcast)


def tallies(plans: Sequence[ReleasePlan], attended: NDArray[np.bool_] | None, n_rounds: int) -> list[Tally]:
    """What every agent releases, by its plan and who takes part when (rounds, n); None: all in so many rounds."""
    if attended is None:
        rounds = range(1, n_rounds + 1)
        known = {id(plan): plan.tally(rounds) for plan in {id(plan): plan for plan in plans}.values()}
        return [known[id(plan)] for plan in plans]
    return [plan.tally(np.flatnonzero(attended[:, i]) + 1) for i, plan in enumerate(plans)]


def local_models(method: Method[Any], state: State, consensus: Floats) -> Floats:
    """The agents' models (n, d, p): their own, or the consensus where a method knows no others."""
    return state.released if method.local_models else np.broadcast_to(consensus, state.released.shape)
