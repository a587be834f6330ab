"""The round loop and its observers.

A round is: broadcast the consensus -> ``method.step`` at the participating agents -> ``method.aggregate``.
If an agent misses a round, its last upload stays in the mean for a few rounds, except in server-side methods. An agent
is charged only for rounds in which it participated.
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
    """The state after round k, for observers.

    Attributes
    ----------
    seconds : float
        Time in rounds so far, without observers.
    state : State
        State of the method's agents.
    uploads : (n, d, p), optional
        Last uploads, of earlier rounds for agents that missed this one. None if they are not stored.
    active : (present,), optional
        Agents that participated; None for all.
    local_models : bool
        Whether agents have local models. Otherwise their measures are those of the global model.
    broadcast : array
        The next broadcast: the consensus, or the state of a server-side method's aggregator.
    """

    round: int
    n_rounds: int
    consensus: Floats
    released: Floats
    seconds: float
    state: Any = None
    uploads: Floats | None = None
    active: Integers | None = None
    local_models: bool = True
    broadcast: Floats | None = None


Observer = Callable[[RoundView], None]
"""Called after every round. It cannot change the run."""


StopRule = Callable[[int, Floats, Floats], bool]
"""(round, consensus, previous consensus) -> whether to stop. It uses public values only."""


@dataclass(frozen=True)
class StopWhenStill:
    """Stop if the relative change of the consensus in a round is below ``tolerance``."""

    tolerance: float

    def __call__(self, round: int, consensus: Floats, before: Floats) -> bool:
        change = np.linalg.norm(consensus - before)
        return bool(change < self.tolerance * max(float(np.linalg.norm(consensus)), np.finfo(float).tiny))


Participation = Callable[[int], Integers | None]
"""round -> participating agents, or None for all."""


@dataclass(frozen=True)
class RandomParticipation:
    """Every agent participates in a round with probability ``chance``; at least one always does.

    If fewer than ``least`` > 1 agents are present, the round has no participants.
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
class RandomAborts:
    """Abort each round with probability ``chance``, as can happen with secure aggregation."""

    chance: float
    seed: int

    def __call__(self, round: int) -> bool:
        return bool(np.random.default_rng([self.seed, 3, round]).random() < self.chance)


@dataclass(frozen=True)
class PlannedParticipation:
    """A public plan: ``mask[k−1, i]`` is true if agent i participates in round k."""

    mask: np.ndarray[Any, np.dtype[np.bool_]]

    def __call__(self, round: int) -> Integers | None:
        return np.flatnonzero(self.mask[round - 1])


@dataclass
class Averages:
    """Averages over rounds: those of both theorems, and those that may be the released model."""

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
        """Return the global model: ``last`` w^t, mean of ``all`` rounds, or mean of the ``tail`` (second half)."""
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
    """Result of a run.

    Attributes
    ----------
    consensus : (d, p)
        w^t, the global model of the last round.
    released : (n, d, p)
        w̃_i^t, the public local models.
    rounds : int
        Completed rounds.
    charged_rounds : int
        Rounds with releases: the completed ones, and one more if it was interrupted after its release.
    attended : (rounds, n), optional
        Whether each agent participated, and is charged; None if all participated in every round.
    seconds : float
        Time in rounds, without observers.
    interrupted : bool
        Whether Ctrl-C ended the run. All other values hold for the completed rounds.
    state : State
        State of the method's agents.
    broadcast : array
        The next broadcast: the consensus, or the state of a server-side method's aggregator.
    """

    consensus: Floats
    released: Floats
    averages: Averages
    rounds: int
    charged_rounds: int
    attended: NDArray[np.bool_] | None
    seconds: float
    interrupted: bool
    state: State
    broadcast: Floats

    @property
    def n_attended(self) -> Integers:
        """Number of rounds in which each agent participated: (n,)."""
        if self.attended is None:
            return np.full(len(self.released), self.charged_rounds)
        return np.asarray(self.attended.sum(axis=0))

    def weights(self, average: AverageName = "last") -> Floats:
        """Return the global model; see :meth:`Averages.model`."""
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
    aborts: Callable[[int], bool] | None = None,
    seed: int = 0,
) -> Outcome:
    """Run a method over a cohort.

    Parameters
    ----------
    n_rounds : int
        Number of rounds, unless ``stop`` ends the run earlier.
    participation : callable, optional
        Participating agents of each round; by default all.
    warm_start : (d, p), optional
        Public weights to start from, such as those of an earlier model.
    keep_interrupted : bool
        Whether Ctrl-C ends the run and returns the completed rounds, instead of raising KeyboardInterrupt.
    sizes : Sizes, optional
        Sizes that the aggregator uses, if they differ from those of ``rows`` (forecasts).
    aborts : callable, optional
        Whether a round is aborted: its releases are charged, and its result is discarded.
    seed : int
        Seed of methods that sample rows.

    Raises
    ------
    DivergenceError
        If the consensus, or its mean over all rounds so far, is not finite.
    """
    averages = Averages() if averages is None else averages
    state, shape = method.init(problem, rows), (rows.n_features, problem.loss.n_outputs)
    uploads: Floats | LazyAnswers = np.broadcast_to(np.zeros(()), (rows.n_agents, *shape))  # needs no memory
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
            if active is not None and not len(active):  # too few agents: no query is sent
                done = charged = k
                continue
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # raised below
                new_state, sent = method.step(state, Round(k, problem, rows, broadcast, noise, active, seed))
                if active is not None and not method.server_side:
                    sent = keep_absent(np.asarray(sent), np.asarray(uploads), active)
                uploads = sent
                before = consensus
                if answered is not None:
                    answered[slice(None) if active is None else active] = k
                result = RoundResult(uploads, broadcast, k, problem, (sizes or rows).n_rows, active, answered)
                if isinstance(noise, SecureSumNoise):
                    result = result.pooled(noise.min_honest_sites)
                is_aborted = aborts is not None and aborts(k)
                next_broadcast = broadcast if is_aborted else method.aggregate(result)
                new_consensus = method.model(next_broadcast)
            if participation:  # charge first: an interruption may waste budget, but never exceeds it
                attended[k - 1, slice(None) if active is None else active] = True
            charged = k
            state, broadcast, consensus, done = new_state, next_broadcast, new_consensus, k
            seconds += perf_counter() - started
            local = local_models(method, state, consensus)
            stored = None if isinstance(uploads, LazyAnswers) else uploads
            view = RoundView(
                k, n_rounds, consensus, local, seconds, state, stored, active, method.local_models, broadcast
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
    mask = attended[:charged] if participation else None
    return Outcome(consensus, released, averages, done, charged, mask, seconds, interrupted, state, broadcast)


def tallies(plans: Sequence[ReleasePlan], attended: NDArray[np.bool_] | None, n_rounds: int) -> list[Tally]:
    """Return each agent's releases, from its plan and its participation (rounds, n); None: all in every round."""
    if attended is None:
        rounds = range(1, n_rounds + 1)
        by_plan = {id(plan): plan.tally(rounds) for plan in {id(plan): plan for plan in plans}.values()}
        return [by_plan[id(plan)] for plan in plans]
    return [plan.tally(np.flatnonzero(attended[:, i]) + 1) for i, plan in enumerate(plans)]


def local_models(method: Method[Any], state: State, consensus: Floats) -> Floats:
    """Return the agents' models (n, d, p): local models, or the consensus if the method has none."""
    return state.released if method.local_models else np.broadcast_to(consensus, state.released.shape)
