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
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.audit.formulas import Formula
from dpadmm.audit.game import GAMES, N_ROUNDS, Game, Role
from dpadmm.errors import RefusalError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.sites.agent import Agent
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger, read_ledger
from dpadmm.trusted.policy import MaskingLimits, Policy
from dpadmm.trusted.private_rows import CheckedRows, protect
from dpadmm.trusted.unit import ONE_ROW

PER_LEDGER = 20
READ_EVERY = 10
"""Of every so many studies the ledger is read whenever an upload arrives, and the agent starts anew."""


@dataclass(frozen=True)
class Batch:
    """Which studies to play: numbers ``first`` to ``first + count − 1`` of a game's in a run."""

    name: str
    run: str
    first: int
    count: int
    mu: float
    delta: float

    @property
    def game(self) -> Game:
        return GAMES[self.name]

    def key_of(self, site: str) -> bytes:
        """The private key of a site in rosters."""
        return sha256(f"audit {self.run}, key of {site}".encode()).digest()

    def study(self, name: str) -> Study:
        keys = {site: self.key_of(site) for site in self.game.sites}
        return self.game.study(f"audit {self.run}, {name}", mu=self.mu, delta=self.delta, keys=keys)


@dataclass(frozen=True)
class TrialOutcomes:
    """What was seen of n studies of a game, two agents and t rounds; studies that were refused are left out.

    ``residuals`` are (noisy sum − sum of the agent's world at the public parameters) in σ of its round, to be
    standard normal, all rounds one after the other; ``scores`` the log-likelihood ratio of world 1 to world 0 in the
    rounds of each of the game's parts, scaled to N(0, 1) in world 0. ``veiled`` is what is known of a masked answer
    before the last member has answered, to be uniform in [−1/2, 1/2].
    """

    worlds: Integers  # (n, 2)
    residuals: Floats  # (n, 2, numbers)
    veiled: Floats  # (n, 2, numbers), or none without secure aggregation
    scores: Floats  # (n, 2, parts)
    off_grid: Floats  # (n, 2, t): how far from whole numbers the answers are, in steps
    repeated: Integers  # (n, 2): whether the same request got the same bytes, and other members got nothing
    unrecorded: Integers  # (k,): uploads that came before their record,
    looks: Integers  # (k,): of so many looked at
    misspent: Integers  # (k,): accounts that do not say t rounds, each at its 1/z², and ledgers above their cap
    overrun: Integers  # (k,): a further round, or a study beyond the cap, that was not refused
    refusals: tuple[str, ...]  # codes of studies that were refused

    @staticmethod
    def joined(parts: Sequence[TrialOutcomes]) -> TrialOutcomes:
        """Several batches as one."""
        values: dict[str, Any] = {
            each.name: np.concatenate([getattr(part, each.name) for part in parts])
            for each in fields(TrialOutcomes)
            if each.name != "refusals"
        }
        return TrialOutcomes(**values, refusals=tuple(code for part in parts for code in part.refusals))


def world_of(number: int, agent: int) -> int:
    """The worlds of study ``number``: all four pairs in turn."""
    return number >> agent & 1


def memory_folder() -> str | None:
    """A folder in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def play(batch: Batch, folder: Path | None = None) -> TrialOutcomes:
    """Play the studies of a batch and write down what an aggregator sees."""
    with tempfile.TemporaryDirectory(prefix="dpadmm-audit-", dir=folder or memory_folder()) as place:
        return _Player(batch, Path(place)).play()


class _Player:
    """One batch: an owner with a ledger for each role, and for the honest sites beside them."""

    def __init__(self, batch: Batch, folder: Path) -> None:
        self.batch, self.game, self.folder = batch, batch.game, folder
        self.sites = tuple(self._site(role, role.name) for role in self.game.roles)
        aside = self.game.roles if self.game.coalition and self.game.coalition.min_honest_sites > 1 else ()
        self.beside = tuple(self._site(role, f"beside-{role.name}") for role in aside)
        self.unrecorded = self.looks = self.misspent = self.overrun = 0

    def play(self) -> TrialOutcomes:
        heard: list[list[dict[str, Any]]] = []
        refusals: list[str] = []
        with ExitStack() as held:
            for site in (*self.sites, *self.beside):
                site.open(held)
            for number in range(self.batch.first, self.batch.first + self.batch.count):
                try:
                    heard.append(self._study(number))
                except RefusalError as refusal:
                    refusals.append(refusal.code)
            if not refusals:
                self._one_too_many()
        for site in (*self.sites, *self.beside):
            self.misspent += site.misspent()

        def stacked(name: str, *shape: int) -> Floats:
            values = [[each[name] for each in pair] for pair in heard]
            return np.array(values, dtype=float).reshape(len(heard), 2, *shape)

        return TrialOutcomes(
            worlds=stacked("world").astype(np.int64),
            residuals=stacked("residuals", self.game.cuts[-1].stop),
            veiled=stacked("veiled", self.game.cuts[-1].stop if self.game.coalition else 0),
            scores=stacked("scores", len(self.game.parts)),
            off_grid=stacked("off_grid", N_ROUNDS),
            repeated=stacked("repeated").astype(np.int64),
            unrecorded=np.array([self.unrecorded]),
            looks=np.array([self.looks]),
            misspent=np.array([self.misspent]),
            overrun=np.array([self.overrun]),
            refusals=tuple(refusals),
        )

    def _study(self, number: int) -> list[dict[str, Any]]:
        """A whole study; every round goes to both agents before the next."""
        study = self.batch.study(f"study {number}")
        inspected = number % READ_EVERY == 0
        members = [self._member(i, study, number) for i in (0, 1)]
        for round in range(1, N_ROUNDS + 1):
            for member in members:
                member.ask(round)
                if inspected:
                    self.looks += 1
                    self.unrecorded += not member.site.recorded(study, round)
        for member in members:
            member.ask_again(1 + number % N_ROUNDS, restart=inspected)
        return [member.heard() for member in members]

    def _site(self, role: Role, name: str) -> _Site:
        return _Site(role, self.folder / name, self.batch)

    def _member(self, i: int, study: Study, number: int) -> _Member:
        if self.game.coalition is None:
            return _Member(self.sites[i], study, world_of(number, i))
        return _Masked(self.sites[i], study, world_of(number, i), self.beside[i : i + 1])

    def _one_too_many(self) -> None:
        """The owner's cap is used up, and the last study's rounds are over: both must be refused."""
        last = self.batch.first + self.batch.count - 1
        cap = "policy-collusion" if self.game.exposure > 1.0 else "budget-cap"
        studies = {"round-over": self.batch.study(f"study {last}"), cap: self.batch.study("one too many")}
        for i in (0, 1):
            for code, study in studies.items():
                try:
                    self._member(i, study, last).ask_beyond()
                    self.overrun += 1
                except RefusalError as refusal:
                    self.overrun += refusal.code != code


class _Site:
    """A data owner: policy, ledger and guard."""

    def __init__(self, role: Role, folder: Path, batch: Batch) -> None:
        self.role, self.folder, self.batch = role, folder, batch
        self.world = 0
        self.rows = tuple(role.rows(world) for world in (0, 1))
        self.known: dict[tuple[Formula, bytes], Floats] = {}

    def totals(self, formula: Formula, asked: Floats) -> Floats:
        """The sums over the rows of both worlds; what most games ask for is the same in every study."""
        key = formula, asked.tobytes()
        if key not in self.known:
            self.known[key] = np.array([formula.total(*rows, asked) for rows in self.rows])
        return self.known[key]

    def open(self, held: ExitStack) -> None:
        """Limits are for half a study more than there are: that on the promise that the game is about."""
        game, delta, mu = self.batch.game, self.batch.delta, self.batch.mu * (self.batch.count + 0.5) ** 0.5
        alone = game.exposure > 1.0
        policy = Policy(
            epsilon=exact_epsilon(2.0 * mu if alone else mu, delta),
            delta=delta,
            methods=frozenset({game.method}),
            losses=frozenset({game.loss}),
            max_rounds=N_ROUNDS,
            min_rows=2,
            masking=MaskingLimits(exact_epsilon(mu if alone else 2.0 * mu, delta), 2, 1) if game.coalition else None,
        )
        ledger = Ledger.open(self.folder, cap=policy.cap, collusion_cap=policy.collusion_cap, create=True)
        held.enter_context(ledger)
        self.guard = Guard(policy, ledger, self._open_rows, lambda _: self.batch.key_of(self.folder.name))

    def _open_rows(self, study: Study) -> CheckedRows:
        return CheckedRows(protect(*self.rows[self.world], ONE_ROW))

    def recorded(self, study: Study, round: int) -> bool:
        """Whether the files on disk know of this release, now."""
        account = read_ledger(self.folder).accounts.get(study.hash)
        return account is not None and round in account.rounds

    def misspent(self) -> int:
        """How much of the ledger is not as agreed: rounds of every study, their prices, the cap."""
        state, game = read_ledger(self.folder), self.batch.game
        price = sum((game.exposure * each.noise_multiplier(self.batch.mu)) ** -2.0 for each in game.rounds)
        wrong = sum(
            set(account.rounds) != set(range(1, N_ROUNDS + 1))
            or not math.isclose(account.spent, price, rel_tol=1e-13)
            or account.shares != game.shares
            for account in state.accounts.values()
        )
        above = (state.spent > Fraction(state.cap)) + (state.collusion_spent > Fraction(state.collusion_cap))
        return wrong + (len(state.accounts) != self.batch.count) + above


class _Member:
    """One agent in one study, and the aggregator's notes about it."""

    def __init__(self, site: _Site, study: Study, world: int) -> None:
        self.site, self.study, self.world, self.game = site, study, world, site.batch.game
        site.world = world
        self.agent = Agent(site.guard, study)
        self.listener, self.uploads, self.repeated = self.game.listener(), dict[int, bytes](), False
        self.asked: list[tuple[Floats, Floats]] = []
        self.veiled: list[Floats] = []

    def ask(self, round: int) -> None:
        upload = self._step(round)
        self.uploads[round] = upload.tobytes()
        self.asked.append(self.listener.hear(self.site.role.sent[round - 1], upload))

    def ask_again(self, round: int, *, restart: bool) -> None:
        if restart:
            self.site.world = self.world
            self.agent = Agent(self.site.guard, self.study)
        self.repeated = self._step(round).tobytes() == self.uploads[round]

    def ask_beyond(self) -> None:
        """A round that the study does not have."""
        self.agent.step(N_ROUNDS + 1, self.site.role.sent[-1])

    def _step(self, round: int) -> Floats:
        return self.agent.step(round, self.site.role.sent[round - 1])

    def heard(self) -> dict[str, Any]:
        """What the notes say, in σ: what :class:`TrialOutcomes` has of a study and an agent."""
        answers, means, off_grid = list[Floats](), list[Floats](), list[float]()
        for round, (asked, noisy) in zip(self.game.rounds, self.asked, strict=True):
            formula, steps = round.formula, noisy * (self.site.role.n_rows / round.formula.grid_step)
            scale = formula.noise_steps(round.noise_multiplier(self.site.batch.mu))
            totals = self.site.totals(formula, asked) + self._others(formula, asked)
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
        veiled = np.concatenate(self.veiled[:N_ROUNDS]) if self.veiled else np.zeros(0)
        residuals, about = said - by_world[self.world], {"world": self.world, "repeated": self.repeated}
        return about | {"residuals": residuals, "veiled": veiled, "scores": scores, "off_grid": off_grid}

    def _others(self, formula: Formula, asked: Floats) -> Floats:
        """What is known of the sum beside the agent's own part."""
        return np.zeros(formula.size)


class _Masked(_Member):
    """One agent with secure aggregation, a site beside it, and another that works with the aggregator.

    If the site beside is not ``min_honest_sites``, the aggregator has its key too.
    """

    def __init__(self, site: _Site, study: Study, world: int, min_honest_sites: Sequence[_Site]) -> None:
        from dpadmm.trusted.masking import Masks, bitmap_of  # needs cryptography, which other games do not

        super().__init__(site, study, world)
        self.min_honest_sites, self.beside = min_honest_sites, [Agent(each.guard, study) for each in min_honest_sites]
        roster, names = [bytes.fromhex(each.key) for each in study.roster], [each.name for each in study.roster]
        members = (site.role.name, f"beside-{site.role.name}", "colluding")
        self.masks = [
            Masks(study.hash, site.batch.key_of(name), roster) for name in members[1 + len(min_honest_sites) :]
        ]
        self.members, self.few, self.all = (
            bitmap_of([names.index(name) for name in some], len(names)) for some in (members, members[:2], names)
        )

    def ask_again(self, round: int, *, restart: bool) -> None:
        super().ask_again(round, restart=restart)
        for members, code in ((self.all, "round-forked"), (self.few, "members-few")):
            try:
                self._answer(self.agent, round, members)
                self.repeated = False
            except RefusalError as refusal:
                self.repeated &= refusal.code == code

    def ask_beyond(self) -> None:
        self.agent.prepare(N_ROUNDS + 1, self.site.role.sent[-1])

    def _step(self, round: int) -> Floats:
        """The sum of the honest, as a mean over the agent's rows: all answers, and the masks that are known."""
        answers = [self._answer(agent, round, self.members) for agent in (self.agent, *self.beside)]
        (request,) = {answer[0] for answer in answers}
        sums = [answer[1] for answer in answers]
        formula = self.game.rounds[round - 1].formula
        known = np.sum(
            [each.for_round(round, request, self.members).numbers(formula.size) for each in self.masks], axis=0
        )
        self.veiled.append(np.asarray((sums[0] + known if self.min_honest_sites else sums[0]) * 2.0**-64))
        return np.asarray((np.sum(sums, axis=0) + known) * (formula.grid_step / self.site.role.n_rows))

    def _answer(self, agent: Agent, round: int, members: bytes) -> tuple[str, Integers]:
        request = agent.prepare(round, self.site.role.sent[round - 1])
        return request, agent.masked(round, request, members).ravel()

    def _others(self, formula: Formula, asked: Floats) -> Floats:
        return np.asarray(sum(formula.total(*each.rows[0], asked) for each in self.min_honest_sites))
