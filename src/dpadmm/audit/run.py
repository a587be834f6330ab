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
from dpadmm.audit.game import GAMES, N_ROUNDS, Game
from dpadmm.audit.gates import Gate, Guesses, LowerBound, all_guesses, judge, lower_bound, sharpness, threshold
from dpadmm.audit.trials import PER_LEDGER, Batch, TrialOutcomes, memory_folder, play
from dpadmm.engine.workers import in_processes
from dpadmm.errors import StudyError
from dpadmm.parameters.checks import require_delta
from dpadmm.parameters.fields import for_json

LEAST_TRIALS = 40


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """What to play, and how sure to be.

    A trial is a study of three rounds with two agents, and each agent has one of two worlds, so that there
    are as many guesses in either world. Trials are shared out among the games: see ``shared``.
    """

    games: tuple[str, ...] = tuple(GAMES)  # which between them release every statistic
    trials: int = 10_000
    mu: float = 2.0  # of a whole study
    delta: float = 1e-5  # at which ε is given
    confidence: float = 0.99  # of the lower limit of ε
    false_alarm: float = 1e-4  # how often sound code may fail in one of the statistical gates
    workers: int = 2  # processes; 1 plays in this one

    def __post_init__(self) -> None:
        if not self.games or len(set(self.games)) < len(self.games) or not set(self.games) <= set(GAMES):
            raise StudyError(f"games must be some of {', '.join(GAMES)}, not {', '.join(self.games) or 'none'}")
        if type(self.trials) is not int or not LEAST_TRIALS <= self.trials <= 10**7:
            raise StudyError(
                f"trials must be a whole number of at least {LEAST_TRIALS}, at most ten million, not {self.trials!r}"
            )
        if not 0.1 <= self.mu <= 10.0:
            raise StudyError(f"mu must be a number from 0.1 to 10, not {self.mu!r}")
        require_delta(self.delta)
        if type(self.workers) is not int or self.workers < 1:
            raise StudyError(f"workers must be a whole number of at least 1, not {self.workers!r}")
        for name in ("confidence", "false_alarm"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise StudyError(f"{name} must lie between 0 and 1, not {getattr(self, name)!r}")

    def shared(self) -> dict[str, int]:
        """Trials of each game; a third as many where worlds are too near each other to show the whole promise."""
        sharp = {name: sharpness(GAMES[name].parts[0]) for name in self.games}
        parts = {name: 3 if sharp[name] == max(sharp.values()) else 1 for name in self.games}
        trials = {name: self.trials * parts[name] // sum(parts.values()) for name in self.games}
        left = self.trials - sum(trials.values())
        return {name: trials[name] + (i < left) for i, name in enumerate(self.games)}


Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class Audit:
    """What was seen of each game's studies, and how it was judged."""

    plan: AuditPlan
    seen: dict[str, TrialOutcomes]
    bound: LowerBound
    gates: tuple[Gate, ...]
    seconds: float

    @property
    def n_studies(self) -> int:
        """Studies played, refused ones too."""
        return sum(_count(seen) for seen in self.seen.values())

    @property
    def statistics(self) -> tuple[str, ...]:
        """What was attacked."""
        return tuple(dict.fromkeys(name for game in self.seen for name in GAMES[game].statistics))

    @property
    def guesses(self) -> Guesses:
        """All guesses about whole studies."""
        return all_guesses(_played(self.seen), self.plan.mu)

    @property
    def outcome(self) -> Outcome:
        """Failed if one gate failed, else inconclusive if one gate needs more trials."""
        if any(gate.red for gate in self.gates):
            return "failed"
        return "passed" if all(gate.passed for gate in self.gates) else "inconclusive"

    @property
    def epsilon(self) -> float:
        return exact_epsilon(self.plan.mu, self.plan.delta)

    @property
    def false_alarm(self) -> float:
        """How often, at most, an audit of sound code is red."""
        return sum(gate.false_alarm for gate in self.gates if gate.passed is not None)

    def as_json(self) -> dict[str, Any]:
        """Everything but the single trials, as plain values."""
        plan = self.plan
        return {
            "format": "dpadmm-audit/1",
            "version": dpadmm.__version__,
            "outcome": self.outcome,
            "statistics": self.statistics,
            "game": {
                "studies": self.n_studies,
                "agents": 2,
                "rounds": N_ROUNDS,
                "features": N_FEATURES,
                "neighbours": "replace-one",
            },
            "games": {name: self._game_as_json(GAMES[name], seen) for name, seen in self.seen.items()},
            "plan": asdict(plan),
            "epsilon": self.epsilon,
            "epsilon_lower_bound": self.bound.epsilon,
            "share_found": self.bound.epsilon / self.epsilon,
            "guesses": asdict(self.bound),
            "gates": [for_json(asdict(gate)) for gate in self.gates],
            "false_alarm": self.false_alarm,
            "seconds": self.seconds,
        }

    def _game_as_json(self, game: Game, seen: TrialOutcomes) -> dict[str, Any]:
        plan, parts = self.plan, {}
        for k, part in enumerate(game.parts):
            bound = lower_bound(Guesses.of(k, game, seen, plan.mu), delta=plan.delta, confidence=plan.confidence)
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
            {"statistic": each.statistic, "noise_multiplier": game.exposure * each.noise_multiplier(plan.mu)}
            for each in game.rounds
        ]
        coalition = game.coalition._asdict() if game.coalition else None
        about = {
            "method": game.method,
            "aggregation": game.aggregation,
            "coalition": coalition,
            "statistics": game.statistics,
        }
        return {"studies": _count(seen), **about, "rounds": rounds, "parts": parts}


def games_of(method: str, aggregation: str) -> tuple[str, ...]:
    """The games with studies of a method and a mode of aggregation; ``all`` for either."""
    for name, asked in (("method", method), ("aggregation", aggregation)):
        known = dict.fromkeys(getattr(game, name) for game in GAMES.values())
        if asked not in ("all", *known):
            raise StudyError(f"{name} must be all or one of {', '.join(known)}, not {asked}")
    found = tuple(
        name
        for name, game in GAMES.items()
        if method in ("all", game.method) and aggregation in ("all", game.aggregation)
    )
    if not found:
        raise StudyError(
            f"there are no studies of {method} with {aggregation} aggregation; choose another method or aggregation"
        )
    return found


def run_audit(
    plan: AuditPlan, *, watch: Callable[[int], None] = lambda done: None, stop: Callable[[], bool] = lambda: False
) -> Audit:
    """Play and judge; ``watch`` hears how many studies are done, and ``stop`` ends it early."""
    start = time.perf_counter()
    run = secrets.token_hex(8)
    batches = [
        Batch(name, run, first, min(PER_LEDGER, trials - first), plan.mu, plan.delta)
        for name, trials in plan.shared().items()
        for first in range(0, trials, PER_LEDGER)
    ]
    batches.sort(key=lambda batch: batch.first)  # an audit that is stopped has seen something of each game
    parts: dict[Batch, TrialOutcomes] = {}
    played = _in_processes(batches, plan.workers, stop) if plan.workers > 1 else _here(batches, stop)
    for batch, part in played:
        parts[batch] = part
        watch(sum(_count(each) for each in parts.values()))
    if not parts:
        raise KeyboardInterrupt
    seen = {}
    for name in plan.games:
        if mine := [parts[batch] for batch in batches if batch in parts and batch.name == name]:
            seen[name] = TrialOutcomes.joined(mine)
    sure = {"delta": plan.delta, "confidence": plan.confidence}
    bound = lower_bound(all_guesses(_played(seen), plan.mu), **sure)
    gates = judge(_played(seen), mu=plan.mu, **sure, false_alarm=plan.false_alarm)
    return Audit(plan, seen, bound, tuple(gates), time.perf_counter() - start)


def _count(seen: TrialOutcomes) -> int:
    """Studies played, refused ones too."""
    return len(seen.worlds) + len(seen.refusals)


def _played(seen: dict[str, TrialOutcomes]) -> list[tuple[Game, TrialOutcomes]]:
    return [(GAMES[name], each) for name, each in seen.items()]


def _here(batches: list[Batch], stop: Callable[[], bool]) -> Iterator[tuple[Batch, TrialOutcomes]]:
    for batch in batches:
        if stop():
            return
        yield batch, play(batch)


def _in_processes(
    batches: list[Batch], workers: int, stop: Callable[[], bool]
) -> Iterator[tuple[Batch, TrialOutcomes]]:
    """Batches as they are finished; at the end the processes and their files are gone, whatever they did."""
    folder = Path(tempfile.mkdtemp(prefix="dpadmm-audit-", dir=memory_folder()))
    try:
        yield from in_processes(partial(_player, folder), batches, workers=workers, stop=stop)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _player(folder: Path) -> Callable[[Batch], TrialOutcomes]:
    return partial(play, folder=folder)
