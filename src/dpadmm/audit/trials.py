"""Trials: whole studies through the real guard, agent, exact noise and ledger, seen from outside.

Some studies share a ledger, as they would at a site, and fill it to the owner's cap. It lies in memory where
there is a folder for that: that records survive a crash is for the fault tests to show.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import Refusal
from dpadmm.audit.game import GAMES, N_ROUNDS, Game, Role
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.site.agent import Agent
from dpadmm.study.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger, read_ledger
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW

PER_LEDGER = 20
READ_EVERY = 10
"""Of every so many studies the ledger is read whenever an upload arrives, and the agent starts anew."""


@dataclass(frozen=True)
class Batch:
    """Which studies to play: numbers ``first`` to ``first + count − 1`` of a method's in a run."""

    method: str
    run: str
    first: int
    count: int
    mu: float
    delta: float

    @property
    def game(self) -> Game:
        return GAMES[self.method]


@dataclass(frozen=True)
class Seen:
    """What was seen of n studies of a game, two agents and t rounds; studies that were refused are left out.

    ``residuals`` are (noisy sum − sum of the agent's world at the public parameters) in σ of its round, to be
    standard normal, all rounds one after the other; ``scores`` the log-likelihood ratio of world 1 to world 0 in the
    rounds of each of the game's parts, scaled to N(0, 1) in world 0.
    """

    worlds: Integers  # (n, 2)
    residuals: Floats  # (n, 2, numbers)
    scores: Floats  # (n, 2, parts)
    off_grid: Floats  # (n, 2, t): how far from whole numbers the answers are, in steps
    repeated: Integers  # (n, 2): whether the same request got the same bytes
    unrecorded: Integers  # (k,): uploads that came before their record,
    looks: Integers  # (k,): of so many looked at
    misspent: Integers  # (k,): accounts that do not say t rounds, each at its 1/z², and ledgers above their cap
    overrun: Integers  # (k,): a further round, or a study beyond the cap, that was not refused
    refusals: tuple[str, ...]  # codes of studies that were refused

    @staticmethod
    def joined(parts: Sequence[Seen]) -> Seen:
        """Several batches as one."""
        values: dict[str, Any] = {
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(Seen)
            if each.name != "refusals"
        }
        return Seen(**values, refusals=tuple(code for part in parts for code in part.refusals))


def world_of(number: int, agent: int) -> int:
    """The worlds of study ``number``: all four pairs in turn."""
    return number >> agent & 1


def memory_folder() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def play(batch: Batch, folder: Path | None = None) -> Seen:
    """Play the studies of a batch and write down what an aggregator sees."""
    with tempfile.TemporaryDirectory(prefix="dpadmm-audit-", dir=folder or memory_folder()) as place:
        return _Player(batch, Path(place)).play()


class _Player:
    """One batch: an owner with a ledger for each role."""

    def __init__(self, batch: Batch, folder: Path) -> None:
        self.batch, self.game = batch, batch.game
        self.sites = tuple(_Site(role, folder / role.name, batch) for role in self.game.roles)
        self.unrecorded = self.looks = self.misspent = self.overrun = 0

    def play(self) -> Seen:
        heard: list[list[_Heard]] = []
        refusals: list[str] = []
        with ExitStack() as held:
            for site in self.sites:
                site.open(held)
            for number in range(self.batch.first, self.batch.first + self.batch.count):
                try:
                    heard.append(self._study(number))
                except Refusal as refusal:
                    refusals.append(refusal.code)
            if not refusals:
                self._one_too_many()
        for site in self.sites:
            self.misspent += site.misspent()

        def stacked(name: str, *shape: int) -> Floats:
            values = [[getattr(each, name) for each in pair] for pair in heard]
            return np.array(values, dtype=float).reshape(len(heard), 2, *shape)

        return Seen(
            worlds=stacked("world").astype(np.int64),
            residuals=stacked("residuals", self.game.cuts[-1].stop),
            scores=stacked("scores", len(self.game.parts)),
            off_grid=stacked("off_grid", N_ROUNDS),
            repeated=stacked("repeated").astype(np.int64),
            unrecorded=np.array([self.unrecorded]),
            looks=np.array([self.looks]),
            misspent=np.array([self.misspent]),
            overrun=np.array([self.overrun]),
            refusals=tuple(refusals),
        )

    def _study(self, number: int) -> list[_Heard]:
        """A whole study; every round goes to both agents before the next."""
        study = self._named(f"study {number}")
        inspected = number % READ_EVERY == 0
        members = [_Member(site, study, world_of(number, i)) for i, site in enumerate(self.sites)]
        for round in range(1, N_ROUNDS + 1):
            for member in members:
                member.ask(round)
                if inspected:
                    self.looks += 1
                    self.unrecorded += not member.site.recorded(study, round)
        for member in members:
            member.ask_again(1 + number % N_ROUNDS, restart=inspected)
        return [member.heard() for member in members]

    def _named(self, name: str) -> Study:
        return self.game.study(f"audit {self.batch.run}, {name}", mu=self.batch.mu, delta=self.batch.delta)

    def _one_too_many(self) -> None:
        """The owner's cap is used up, and the last study's rounds are over: both must be refused."""
        last = self.batch.first + self.batch.count - 1
        studies = {"round-over": self._named(f"study {last}"), "budget-cap": self._named("one too many")}
        for i, site in enumerate(self.sites):
            for code, study in studies.items():
                try:
                    member = _Member(site, study, world_of(last, i))
                    member.agent.step(N_ROUNDS + 1, site.role.sent[-1])
                    self.overrun += 1
                except Refusal as refusal:
                    self.overrun += refusal.code != code


class _Heard(NamedTuple):
    world: int
    residuals: Floats
    scores: list[float]
    off_grid: Floats
    repeated: bool


class _Site:
    """A data owner: policy, ledger and guard."""

    def __init__(self, role: Role, folder: Path, batch: Batch) -> None:
        self.role, self.folder, self.batch = role, folder, batch
        self.world = 0
        self.rows = tuple(role.rows(world) for world in (0, 1))

    def open(self, held: ExitStack) -> None:
        mu, delta = self.batch.mu, self.batch.delta
        policy = Policy(
            epsilon=exact_epsilon(mu * (self.batch.count + 0.5) ** 0.5, delta),
            delta=delta,
            methods=frozenset({self.batch.method}),
            losses=frozenset({"squared"}),
            max_rounds=N_ROUNDS,
            min_rows=2,
        )
        ledger = held.enter_context(Ledger.open(self.folder, cap=policy.cap, create=True))
        self.guard = Guard(policy, ledger, self._open_rows)

    def _open_rows(self, study: Study) -> CheckedRows:
        return CheckedRows(protect(*self.rows[self.world], ONE_ROW))

    def recorded(self, study: Study, round: int) -> bool:
        """Whether the files on disk know of this release, now."""
        account = read_ledger(self.folder).accounts.get(study.hash)
        return account is not None and round in account.rounds

    def misspent(self) -> int:
        """How much of the ledger is not as agreed: rounds of every study, their prices, the cap."""
        state = read_ledger(self.folder)
        price = sum(each.noise_multiplier(self.batch.mu) ** -2.0 for each in self.batch.game.rounds)
        wrong = sum(
            set(account.rounds) != set(range(1, N_ROUNDS + 1)) or not math.isclose(account.spent, price, rel_tol=1e-13)
            for account in state.accounts.values()
        )
        return wrong + (len(state.accounts) != self.batch.count) + (state.spent > Fraction(state.cap))


class _Member:
    """One agent in one study, and the aggregator's notes about it."""

    def __init__(self, site: _Site, study: Study, world: int) -> None:
        self.site, self.study, self.world, self.game = site, study, world, site.batch.game
        site.world = world
        self.agent = Agent(site.guard, study)
        self.listener, self.uploads, self.repeated = self.game.listener(), dict[int, bytes](), False
        self.asked: list[tuple[Floats, Floats]] = []

    def ask(self, round: int) -> None:
        upload = self._step(round)
        self.uploads[round] = upload.tobytes()
        self.asked.append(self.listener.hear(self.site.role.sent[round - 1], upload))

    def ask_again(self, round: int, *, restart: bool) -> None:
        if restart:
            self.site.world = self.world
            self.agent = Agent(self.site.guard, self.study)
        self.repeated = self._step(round).tobytes() == self.uploads[round]

    def _step(self, round: int) -> Floats:
        return self.agent.step(round, self.site.role.sent[round - 1])

    def heard(self) -> _Heard:
        """What the notes say, in σ."""
        answers, means, off_grid = list[Floats](), list[Floats](), list[float]()
        for round, (asked, noisy) in zip(self.game.rounds, self.asked, strict=True):
            formula, steps = round.formula, noisy * (self.site.role.n_rows / round.formula.grid_step)
            scale = formula.noise_steps(round.noise_multiplier(self.site.batch.mu))
            totals = np.array([formula.total(*rows, asked) for rows in self.site.rows])
            answers.append(steps / scale)
            means.append(totals / (formula.grid_step * scale))
            off_grid.append(float(np.abs(steps - np.rint(steps)).max()))
        said, by_world = np.concatenate(answers), np.concatenate(means, axis=1)
        shift = by_world[1] - by_world[0]
        scores = []
        for part in self.game.parts:
            toward = np.concatenate([shift[self.game.cuts[k]] for k in part.rounds])
            noise = np.concatenate([(said - by_world[0])[self.game.cuts[k]] for k in part.rounds])
            scores.append(float(noise @ toward / np.linalg.norm(toward)))
        return _Heard(self.world, said - by_world[self.world], scores, np.array(off_grid), self.repeated)
