"""An audit from start to end: batches of trials over worker processes, then the gates."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import dpadmm
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.audit.formulas import N_FEATURES
from dpadmm.audit.game import GAMES, Game
from dpadmm.audit.gates import Gate, Guesses, LowerBound, all_guesses, judge, lower_bound, sharpness, threshold
from dpadmm.audit.trials import PER_LEDGER, Batch, TrialOutcomes, memory_folder, play
from dpadmm.engine.workers import in_processes
from dpadmm.errors import StudyError
from dpadmm.parameters.checks import require_delta
from dpadmm.parameters.fields import for_json

MIN_TRIALS = 40


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """The games, numbers of trials, and error probabilities of an audit.

    A trial is a study of three rounds with two agents. Worlds alternate, so that both have the same number of guesses.
    ``shared`` divides the trials among the games.
    """

    games: tuple[str, ...] = tuple(GAMES)  # together they release every query
    trials: int = 10_000
    mu: float = 2.0  # of a whole study
    delta: float = 1e-5  # for which ε is computed
    confidence: float = 0.99  # of the lower bound of ε
    false_alarm: float = 1e-4  # maximum probability that correct code fails a statistical gate
    workers: int = 2  # processes; 1: in this process

    def __post_init__(self) -> None:
        if not self.games or len(set(self.games)) < len(self.games) or not set(self.games) <= set(GAMES):
            raise StudyError(f"games must be some of {', '.join(GAMES)}, not {', '.join(self.games) or 'none'}")
        if type(self.trials) is not int or not MIN_TRIALS <= self.trials <= 10**7:
            raise StudyError(
                f"trials must be a whole number of at least {MIN_TRIALS}, at most ten million, not {self.trials!r}"
            )
        if not 0.1 <= self.mu <= 10.0:
            raise StudyError(f"mu must be a number from 0.1 to 10, not {self.mu!r}")
        require_delta(self.delta)
        if type(self.workers) is not int or self.workers < 1:
            raise StudyError(f"workers must be a whole number of at least 1, not {self.workers!r}")
        for name, value in (("confidence", self.confidence), ("false_alarm", self.false_alarm)):
            if not 0.0 < value < 1.0:
                raise StudyError(f"{name} must lie between 0 and 1, not {value!r}")

    def shared(self) -> dict[str, int]:
        """Return the trials of each game: a third as many if its worlds are too similar to show the whole μ."""
        sharp = {name: sharpness(GAMES[name].parts[0]) for name in self.games}
        parts = {name: 3 if sharp[name] == max(sharp.values()) else 1 for name in self.games}
        trials = {name: self.trials * parts[name] // sum(parts.values()) for name in self.games}
        left = self.trials - sum(trials.values())
        return {name: trials[name] + (i < left) for i, name in enumerate(self.games)}


Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class Audit:
    """The outcomes of each game's studies, and the gates."""

    plan: AuditPlan
    outcomes: dict[str, TrialOutcomes]
    bound: LowerBound
    gates: tuple[Gate, ...]
    seconds: float

    @property
    def n_studies(self) -> int:
        """Number of studies played, including refused ones."""
        return sum(map(_count, self.outcomes.values()))

    @property
    def statistics(self) -> tuple[str, ...]:
        """The attacked queries."""
        return tuple(dict.fromkeys(name for game in self.outcomes for name in GAMES[game].statistics))

    @property
    def guesses(self) -> Guesses:
        """All guesses about whole studies."""
        return all_guesses(_played(self.outcomes), self.plan.mu)

    @property
    def outcome(self) -> Outcome:
        """Failed if one gate failed, else inconclusive if one gate needs more trials."""
        if any(gate.failed for gate in self.gates):
            return "failed"
        return "passed" if all(gate.passed for gate in self.gates) else "inconclusive"

    @property
    def epsilon(self) -> float:
        return exact_epsilon(self.plan.mu, self.plan.delta)

    @property
    def false_alarm(self) -> float:
        """Upper bound on the probability that an audit of correct code fails."""
        return sum(gate.false_alarm for gate in self.gates if gate.passed is not None)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the single trials, as plain values."""
        plan = self.plan
        return {
            "format": "dpadmm-audit/1",
            "version": dpadmm.__version__,
            "outcome": self.outcome,
            "statistics": self.statistics,
            "game": {
                "studies": self.n_studies,
                "agents": 2,
                "features": N_FEATURES,
                "neighbours": "replace-one",
            },
            "games": {name: self._game_as_json(GAMES[name], own) for name, own in self.outcomes.items()},
            "plan": asdict(plan),
            "epsilon": self.epsilon,
            "epsilon_lower_bound": self.bound.epsilon,
            "share_found": self.bound.epsilon / self.epsilon,
            "guesses": asdict(self.bound),
            "gates": [for_json(asdict(gate)) for gate in self.gates],
            "false_alarm": self.false_alarm,
            "seconds": self.seconds,
        }

    def _game_as_json(self, game: Game, outcomes: TrialOutcomes) -> dict[str, Any]:
        plan, parts = self.plan, {}
        for k, part in enumerate(game.parts):
            bound = lower_bound(Guesses.of(k, game, outcomes, plan.mu), delta=plan.delta, confidence=plan.confidence)
            mu = plan.mu * part.mu_share
            parts[part.name] = {
                "rounds": [round + 1 for round in part.rounds],
                "mu": mu,
                "worlds_apart": part.sharpness,
                "threshold": threshold(part, plan.mu),
                "epsilon": exact_epsilon(mu, plan.delta),
                "guesses": asdict(bound),
            }
        rounds = [
            {"statistic": round.statistic, "noise_multiplier": game.exposure * round.noise_multiplier(plan.mu)}
            for round in game.rounds
        ]
        coalition = game.coalition._asdict() if game.coalition else None
        description = {
            "method": game.method,
            "aggregation": game.aggregation,
            "coalition": coalition,
            "statistics": game.statistics,
        }
        return {"studies": _count(outcomes), **description, "rounds": rounds, "parts": parts}


def games_of(method: str, aggregation: str) -> tuple[str, ...]:
    """Return the games of a method and a mode of aggregation; ``all`` matches every one."""
    methods = dict.fromkeys(game.method for game in GAMES.values())
    aggregations = dict.fromkeys(game.aggregation for game in GAMES.values())
    for name, value, choices in (("method", method, methods), ("aggregation", aggregation, aggregations)):
        if value not in ("all", *choices):
            raise StudyError(f"{name} must be all or one of {', '.join(choices)}, not {value}")
    games = tuple(
        name
        for name, game in GAMES.items()
        if method in ("all", game.method) and aggregation in ("all", game.aggregation)
    )
    if not games:
        raise StudyError(
            f"there are no studies of {method} with {aggregation} aggregation; choose another method or aggregation"
        )
    return games


def run_audit(
    plan: AuditPlan, *, watch: Callable[[int], None] = lambda done: None, stop: Callable[[], bool] = lambda: False
) -> Audit:
    """Play all games and evaluate the gates. ``watch`` receives the number of finished studies; ``stop`` ends early."""
    start = time.perf_counter()
    run = secrets.token_hex(8)
    batches = [
        Batch(name, run, first, min(PER_LEDGER, trials - first), plan.mu, plan.delta)
        for name, trials in plan.shared().items()
        for first in range(0, trials, PER_LEDGER)
    ]
    batches.sort(key=lambda batch: batch.first)  # an interrupted audit has trials of each game
    parts: dict[Batch, TrialOutcomes] = {}
    played = _in_processes(batches, plan.workers, stop) if plan.workers > 1 else _here(batches, stop)
    for batch, part in played:
        parts[batch] = part
        watch(sum(map(_count, parts.values())))
    if not parts:
        raise KeyboardInterrupt
    outcomes = {}
    for name in plan.games:
        if own := [parts[batch] for batch in batches if batch in parts and batch.name == name]:
            outcomes[name] = TrialOutcomes.joined(own)
    level = {"delta": plan.delta, "confidence": plan.confidence}
    bound = lower_bound(all_guesses(_played(outcomes), plan.mu), **level)
    gates = judge(_played(outcomes), mu=plan.mu, **level, false_alarm=plan.false_alarm)
    return Audit(plan, outcomes, bound, tuple(gates), time.perf_counter() - start)


def _count(outcomes: TrialOutcomes) -> int:
    """Number of studies played, including refused ones."""
    return len(outcomes.worlds) + len(outcomes.refusals)


def _played(outcomes: dict[str, TrialOutcomes]) -> list[tuple[Game, TrialOutcomes]]:
    return [(GAMES[name], own) for name, own in outcomes.items()]


def _here(batches: list[Batch], stop: Callable[[], bool]) -> Iterator[tuple[Batch, TrialOutcomes]]:
    for batch in batches:
        if stop():
            return
        yield batch, play(batch)


def _in_processes(
    batches: list[Batch], workers: int, stop: Callable[[], bool]
) -> Iterator[tuple[Batch, TrialOutcomes]]:
    """Yield batches as they finish. At the end all processes and their files are removed in any case."""
    folder = Path(tempfile.mkdtemp(prefix="dpadmm-audit-", dir=memory_folder()))
    try:
        yield from in_processes(partial(_player, folder), batches, workers=workers, stop=stop)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _player(folder: Path) -> Callable[[Batch], TrialOutcomes]:
    return partial(play, folder=folder)
