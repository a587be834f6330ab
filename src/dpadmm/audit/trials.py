"""Trials: whole studies with the real guard, agent, exact noise and ledger, observed from outside.

Several studies share a ledger, as at a site, and fill it to the owner's cap. The ledger is in memory if there is a
folder for that: fault tests show that records survive a crash.
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
from dpadmm.audit.game import GAMES, Game, Role
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
INSPECT_EVERY = 10
"""In one of this number of studies, the ledger is read after every upload, and the agent is restarted."""


@dataclass(frozen=True)
class Batch:
    """Studies to play: numbers ``first`` to ``first + count − 1`` of a game in a run."""

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
        """Return the private key of a site in rosters."""
        return sha256(f"audit {self.run}, key of {site}".encode()).digest()

    def study(self, name: str) -> Study:
        keys = {site: self.key_of(site) for site in self.game.sites}
        return self.game.study(f"audit {self.run}, {name}", mu=self.mu, delta=self.delta, keys=keys)


@dataclass(frozen=True)
class TrialOutcomes:
    """Outcomes of n studies of a game with two agents and t rounds, without refused studies.

    ``residuals`` are (noisy sum − sum of the agent's world at the public parameters) in σ of the round, for all rounds
    in order. They should be standard normal. ``scores`` are log-likelihood ratios of world 1 to world 0 in the rounds
    of each part of the game, scaled to N(0, 1) in world 0. ``masked`` is the sum without the last member's answer,
    which should be uniform in [−1/2, 1/2].
    """

    worlds: Integers  # (n, 2)
    residuals: Floats  # (n, 2, numbers)
    masked: Floats  # (n, 2, numbers), or none without secure aggregation
    scores: Floats  # (n, 2, parts)
    off_grid: Floats  # (n, 2, t): distance of the answers from whole numbers, in steps
    repeated: Integers  # (n, 2): whether a repeated request got the same bytes, and other members no answer
    unrecorded: Integers  # (k,): inspected uploads that arrived before their record
    inspected: Integers  # (k,): inspected uploads
    misspent: Integers  # (k,): accounts without exactly t rounds at 1/z² each, and ledgers above their cap
    overrun: Integers  # (k,): further rounds, or studies beyond the cap, that were not refused
    refusals: tuple[str, ...]  # codes of refused studies

    @staticmethod
    def joined(parts: Sequence[TrialOutcomes]) -> TrialOutcomes:
        """Return several batches as one."""
        values: dict[str, Any] = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(TrialOutcomes)
            if field.name != "refusals"
        }
        return TrialOutcomes(**values, refusals=tuple(code for part in parts for code in part.refusals))


def world_of(number: int, agent: int) -> int:
    """Return an agent's world in study ``number``. All four pairs of worlds take turns."""
    return number >> agent & 1


def memory_folder() -> str | None:
    """Return a folder in memory, or None."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def play(batch: Batch, folder: Path | None = None) -> TrialOutcomes:
    """Play the studies of a batch and return what the server sees."""
    with tempfile.TemporaryDirectory(prefix="dpadmm-audit-", dir=folder or memory_folder()) as path:
        return _Player(batch, Path(path)).play()


class _Player:
    """One batch: an owner with a ledger for each role, and for each honest partner."""

    def __init__(self, batch: Batch, folder: Path) -> None:
        self.batch, self.game, self.folder = batch, batch.game, folder
        self.sites = tuple(self._site(role, role.name) for role in self.game.roles)
        with_partner = self.game.roles if self.game.coalition and self.game.coalition.min_honest_sites > 1 else ()
        self.partners = tuple(self._site(role, f"partner-{role.name}") for role in with_partner)
        self.unrecorded = self.inspected = self.misspent = self.overrun = 0

    def play(self) -> TrialOutcomes:
        outcomes: list[list[dict[str, Any]]] = []
        refusals: list[str] = []
        with ExitStack() as resources:
            for site in (*self.sites, *self.partners):
                site.open(resources)
            for number in range(self.batch.first, self.batch.first + self.batch.count):
                try:
                    outcomes.append(self._study(number))
                except RefusalError as refusal:
                    refusals.append(refusal.code)
            if not refusals:
                self._exceed_limits()
        for site in (*self.sites, *self.partners):
            self.misspent += site.misspent()

        def stacked(name: str, *shape: int) -> Floats:
            values = [[outcome[name] for outcome in pair] for pair in outcomes]
            return np.array(values, dtype=float).reshape(len(outcomes), 2, *shape)

        return TrialOutcomes(
            worlds=stacked("world").astype(np.int64),
            residuals=stacked("residuals", self.game.cuts[-1].stop),
            masked=stacked("masked", self.game.cuts[-1].stop if self.game.coalition else 0),
            scores=stacked("scores", len(self.game.parts)),
            off_grid=stacked("off_grid", self.game.n_rounds),
            repeated=stacked("repeated").astype(np.int64),
            unrecorded=np.array([self.unrecorded]),
            inspected=np.array([self.inspected]),
            misspent=np.array([self.misspent]),
            overrun=np.array([self.overrun]),
            refusals=tuple(refusals),
        )

    def _study(self, number: int) -> list[dict[str, Any]]:
        """Play a study. Every round goes to both agents before the next one."""
        study = self.batch.study(f"study {number}")
        is_inspected = number % INSPECT_EVERY == 0
        members = [self._member(i, study, number) for i in (0, 1)]
        for round in range(1, self.game.n_rounds + 1):
            for member in members:
                member.request(round)
                if is_inspected:
                    self.inspected += 1
                    self.unrecorded += not member.site.recorded(study, round)
        for member in members:
            member.repeat(1 + number % self.game.n_rounds, restart=is_inspected)
        return [member.outcome() for member in members]

    def _site(self, role: Role, name: str) -> _Site:
        return _Site(role, self.folder / name, self.batch)

    def _member(self, i: int, study: Study, number: int) -> _Member:
        if self.game.coalition is None:
            return _Member(self.sites[i], study, world_of(number, i))
        return _Masked(self.sites[i], study, world_of(number, i), self.partners[i : i + 1])

    def _exceed_limits(self) -> None:
        """Request a round after the last one, and a study beyond the owner's cap. Both must be refused."""
        last = self.batch.first + self.batch.count - 1
        cap = "policy-collusion" if self.game.exposure > 1.0 else "budget-cap"
        studies = {"round-over": self.batch.study(f"study {last}"), cap: self.batch.study("one too many")}
        for i in (0, 1):
            for code, study in studies.items():
                try:
                    self._member(i, study, last).request_beyond()
                    self.overrun += 1
                except RefusalError as refusal:
                    self.overrun += refusal.code != code


class _Site:
    """A data owner: policy, ledger and guard."""

    def __init__(self, role: Role, folder: Path, batch: Batch) -> None:
        self.role, self.folder, self.batch = role, folder, batch
        self.world = 0
        self.rows = tuple(role.rows(world) for world in (0, 1))
        self.cached: dict[tuple[Formula, bytes], Floats] = {}

    def totals(self, formula: Formula, parameters: Floats) -> Floats:
        """Return the sums over the rows of both worlds, cached because most games repeat their parameters."""
        key = formula, parameters.tobytes()
        if key not in self.cached:
            self.cached[key] = np.array([formula.total(*rows, parameters) for rows in self.rows])
        return self.cached[key]

    def open(self, resources: ExitStack) -> None:
        """Open the guard with limits for half a study more than the batch has, on the sum that the game attacks."""
        game, delta, mu = self.batch.game, self.batch.delta, self.batch.mu * (self.batch.count + 0.5) ** 0.5
        own_mu, collusion_mu = (2.0 * mu, mu) if game.exposure > 1.0 else (mu, 2.0 * mu)
        policy = Policy(
            epsilon=exact_epsilon(own_mu, delta),
            delta=delta,
            methods=frozenset({game.method}),
            losses=frozenset({game.loss}),
            max_rounds=game.n_rounds,
            min_rows=2,
            masking=MaskingLimits(exact_epsilon(collusion_mu, delta), 2, 1) if game.coalition else None,
        )
        ledger = Ledger.open(self.folder, cap=policy.cap, collusion_cap=policy.collusion_cap, create=True)
        resources.enter_context(ledger)
        self.guard = Guard(policy, ledger, self._open_rows, lambda _: self.batch.key_of(self.folder.name))

    def _open_rows(self, study: Study) -> CheckedRows:
        return CheckedRows(protect(*self.rows[self.world], ONE_ROW))

    def recorded(self, study: Study, round: int) -> bool:
        """Return whether the files on disk contain this release now."""
        account = read_ledger(self.folder).accounts.get(study.hash)
        return account is not None and round in account.rounds

    def misspent(self) -> int:
        """Return the number of violations in the ledger: rounds of every study, their costs, the caps."""
        state, game = read_ledger(self.folder), self.batch.game
        cost = sum((game.exposure * round.noise_multiplier(self.batch.mu)) ** -2.0 for round in game.rounds)
        wrong = sum(
            set(account.rounds) != set(range(1, game.n_rounds + 1))
            or not math.isclose(account.spent, cost, rel_tol=1e-13)
            or account.shares != game.shares
            for account in state.accounts.values()
        )
        above = (state.spent > Fraction(state.cap)) + (state.collusion_spent > Fraction(state.collusion_cap))
        return wrong + (len(state.accounts) != self.batch.count) + above


class _Member:
    """One agent in one study, and the server's record of it."""

    def __init__(self, site: _Site, study: Study, world: int) -> None:
        self.site, self.study, self.world, self.game = site, study, world, site.batch.game
        site.world = world
        self.agent = Agent(site.guard, study)
        self.decoder, self.uploads, self.repeated = self.game.decoder(), dict[int, bytes](), False
        self.decoded: list[tuple[Floats, Floats]] = []
        self.masked: list[Floats] = []

    def request(self, round: int) -> None:
        upload = self._step(round)
        self.uploads[round] = upload.tobytes()
        self.decoded.append(self.decoder.decode(self.site.role.sent[round - 1], upload))

    def repeat(self, round: int, *, restart: bool) -> None:
        if restart:
            self.site.world = self.world
            self.agent = Agent(self.site.guard, self.study)
        self.repeated = self._step(round).tobytes() == self.uploads[round]

    def request_beyond(self) -> None:
        """Request a round after the last one."""
        self.agent.step(self.game.n_rounds + 1, self.site.role.sent[-1])

    def _step(self, round: int) -> Floats:
        return self.agent.step(round, self.site.role.sent[round - 1])

    def outcome(self) -> dict[str, Any]:
        """Return the values of :class:`TrialOutcomes` for this study and agent."""
        answers, means, off_grid = list[Floats](), list[Floats](), list[float]()
        for round, (parameters, noisy) in zip(self.game.rounds, self.decoded, strict=True):
            formula, steps = round.formula, noisy * (self.site.role.n_rows / round.formula.grid_step)
            scale = formula.noise_steps(round.noise_multiplier(self.site.batch.mu))
            totals = self.site.totals(formula, parameters) + self._others(formula, parameters)
            answers.append(steps / scale)
            means.append(totals / (formula.grid_step * scale))
            off_grid.append(float(np.abs(steps - np.rint(steps)).max()))
        released, by_world = np.concatenate(answers), np.concatenate(means, axis=1)
        shift = by_world[1] - by_world[0]
        scores = []
        for part in self.game.parts:
            toward = np.concatenate([shift[self.game.cuts[k]] for k in part.rounds])
            noise = np.concatenate([(released - by_world[0])[self.game.cuts[k]] for k in part.rounds])
            scores.append(float(noise @ toward / np.linalg.norm(toward)))
        masked = np.concatenate(self.masked[: self.game.n_rounds]) if self.masked else np.zeros(0)
        residuals, values = released - by_world[self.world], {"world": self.world, "repeated": self.repeated}
        return values | {"residuals": residuals, "masked": masked, "scores": scores, "off_grid": off_grid}

    def _others(self, formula: Formula, parameters: Floats) -> Floats:
        """Return the sum over the rows of the agent's partners."""
        return np.zeros(formula.size)


class _Masked(_Member):
    """One agent with secure aggregation, its partner, and a colluding site.

    If the partner is not honest, the server has its key too.
    """

    def __init__(self, site: _Site, study: Study, world: int, partners: Sequence[_Site]) -> None:
        from dpadmm.trusted.masking import Masks, bitmap_of  # needs cryptography, which other games do not

        super().__init__(site, study, world)
        self.partners, self.partner_agents = partners, [Agent(partner.guard, study) for partner in partners]
        roster, names = [bytes.fromhex(entry.key) for entry in study.roster], [entry.name for entry in study.roster]
        members = (site.role.name, f"partner-{site.role.name}", "colluding")
        self.masks = [Masks(study.hash, site.batch.key_of(name), roster) for name in members[1 + len(partners) :]]
        self.members, self.few, self.all = (
            bitmap_of([names.index(name) for name in group], len(names)) for group in (members, members[:2], names)
        )

    def repeat(self, round: int, *, restart: bool) -> None:
        super().repeat(round, restart=restart)
        for members, code in ((self.all, "round-forked"), (self.few, "members-few")):
            try:
                self._answer(self.agent, round, members)
                self.repeated = False
            except RefusalError as refusal:
                self.repeated &= refusal.code == code

    def request_beyond(self) -> None:
        self.agent.prepare(self.game.n_rounds + 1, self.site.role.sent[-1])

    def _step(self, round: int) -> Floats:
        """Return the honest sites' sum as a mean over the agent's rows: all answers without the colluders' masks."""
        answers = [self._answer(agent, round, self.members) for agent in (self.agent, *self.partner_agents)]
        (request,) = {answer[0] for answer in answers}
        sums = [answer[1] for answer in answers]
        formula = self.game.rounds[round - 1].formula
        colluding = [masks.for_round(round, request, self.members).numbers(formula.size) for masks in self.masks]
        masks = np.sum(colluding, axis=0)
        self.masked.append(np.asarray((sums[0] + masks if self.partners else sums[0]) * 2.0**-64))
        return np.asarray((np.sum(sums, axis=0) + masks) * (formula.grid_step / self.site.role.n_rows))

    def _answer(self, agent: Agent, round: int, members: bytes) -> tuple[str, Integers]:
        request = agent.prepare(round, self.site.role.sent[round - 1])
        return request, agent.mask(round, request, members).ravel()

    def _others(self, formula: Formula, parameters: Floats) -> Floats:
        return np.asarray(sum(formula.total(*partner.rows[0], parameters) for partner in self.partners))
