"""The aggregator's side of a study, without any network: what to ask, what to take, when a round is over.

It is told of messages and of time, and keeps everything that must outlive it in the journal. An absent site's
last upload stays in the mean; one that comes after its round was closed is in the next mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.errors import DpadmmError
from dpadmm.federation.journal import Event, Journal, Received
from dpadmm.federation.messages import BadMessage, Kind, Message, digest_of, packed, unpacked
from dpadmm.privacy.statement import MAX_MU, ROW_GROUPS

FOR_GOOD = (
    "study-closed", "study-changed", "round-forked", "round-old", "round-gap", "round-over",
    "budget-cap", "budget-reservation", "policy-method", "policy-loss", "policy-rounds", "policy-rows",
)  # fmt: skip
"""Refusals that asking again cannot change; after others a site is asked again."""


MOST_LATE, MOST_NOTES = 8, 20
"""Of one site in one round: late uploads that are kept, and events."""


class Stopped(DpadmmError):
    """The study cannot go on: too few sites are left. The journal keeps what was reached."""


@dataclass
class Seat:
    """A site that takes part, as the aggregator sees it."""

    name: str
    state: str = "unseen"
    """unseen, present, late, absent, refused or revoked."""
    answered: int = 0
    last_seen: float | None = None
    code: str = ""
    out: bool = False
    """It will not answer any more."""
    sizes: tuple[int, int] | None = None


class Coordinator:
    """One study: ``request`` goes to all sites, ``take`` answers, ``close_round`` when it is ``over``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.watchers: list[Callable[[Event], None]] = []
        self.study = journal.study
        self.members = journal.members
        self.quorum = self.study.quorum_of(len(self.members))
        self.seats = {name: Seat(name) for name in self.members}
        self._method = self.study.method(1)
        self._uploads = np.zeros((len(self.members), *self.study.shape))
        self._rounds = dict.fromkeys(self.members, 0)
        for name, received in journal.last_uploads().items():
            self._uploads[self.members.index(name)] = received.values
            self._rounds[name] = received.round
        for name, sizes in journal.sizes().items():
            self.seats[name].sizes = sizes
        for name, count in journal.answered().items():
            self.seats[name].answered = count
        self.rounds_done = journal.rounds_done
        self.consensus = journal.last_consensus()
        self.changes = journal.changes()
        self.seconds = journal.seconds()
        self.called = self.rounds_done > 0
        self.opened: float | None = None
        """When the open round was first asked for, by the loop's clock."""
        self._noted: dict[str, set[str]] = {}
        self._new: dict[str, Received] = {}
        self._late: list[Received] = []
        self._here: set[str] = set()
        self._digests: dict[int, str] = {}
        """What every round was asked with, so that a late answer is known to be one."""
        before = np.zeros(self.study.shape)
        for k, consensus in enumerate(journal.consensus(), 1):
            asked = Message(Kind.REQUEST, self.study.hash, k, before)
            self._digests[k], before = digest_of(packed(asked)), consensus
        self.request = self._request()

    # What to ask

    @property
    def round(self) -> int:
        """The open round; 0 while sites are called."""
        return self.rounds_done + 1 if self.called else 0

    @property
    def done(self) -> bool:
        return self.rounds_done == self.study.settings.n_rounds

    def _request(self) -> bytes:
        if self.done:
            message = Message(Kind.END, self.study.hash, self.rounds_done)
        elif not self.called:
            message = Message(Kind.CALL, self.study.hash)
        else:
            message = Message(Kind.REQUEST, self.study.hash, self.round, self.consensus)
        data = packed(message)
        self._digest = digest_of(data)
        if message.kind is Kind.REQUEST:
            self._digests[message.round] = self._digest
        return data

    # What to take

    def take(self, site: str, data: bytes, now: float) -> None:
        """An answer of a site, as the broker vouches for its name; what is wrong with it is noted."""
        seat = self.seats.get(site)
        if seat is None or seat.state == "revoked":
            return self.note("warning", site, "it is not asked here; its message was not read")
        first = seat.last_seen is None and not seat.answered
        seat.last_seen = now
        try:
            answer = unpacked(data, study=self.study.hash, shape=self.study.shape, from_site=True)
            if answer.kind is Kind.REFUSED:
                return self._refused(seat, answer)
            sizes = (answer.n_rows, answer.rows_per_person)
            self._check_sizes(seat, *sizes)
            if answer.kind is Kind.UPLOAD:
                self._uploaded(seat, answer)
            elif self.called:
                return None  # an old call's: only who answers rounds is waited for
            elif answer.digest != self._digest:
                raise BadMessage("it answers another call")
        except BadMessage as problem:
            return self.note("warning", site, f"its message was refused: {problem}")
        if seat.sizes is None:
            self._journal.met(site, *sizes)
            seat.sizes = sizes
        if seat.state in ("unseen", "absent", "late", "refused"):
            self.note("info", site, "is here" if first else "is back")
        seat.state, seat.code, seat.out = "present", "", False
        self._here.add(site)
        return None

    def _check_sizes(self, seat: Seat, n_rows: int, k: int) -> None:
        """A site's numbers are what a privacy statement can be made of, and stay as they are."""
        if seat.sizes not in (None, (n_rows, k)):
            raise BadMessage(f"it now says {n_rows:,} rows, up to {k:,} of a person, and said others before")
        mu = k * max(ROW_GROUPS) * self.study.settings.n_rounds**0.5 / self.study.noise_multiplier
        if k > n_rows or mu > MAX_MU:
            raise BadMessage(f"up to {k:,} rows of one person among {n_rows:,} cannot be protected here")

    def _uploaded(self, seat: Seat, answer: Message) -> None:
        assert answer.values is not None
        sizes = (answer.n_rows, answer.rows_per_person)
        received = Received(seat.name, answer.round, answer.values, *sizes)
        if answer.round > self.round or self.done:
            raise BadMessage(f"it answers round {answer.round}, which is not asked for")
        if answer.digest != self._digests[answer.round]:
            raise BadMessage(f"it answers another request for round {answer.round}")
        known = [each.values for each in (*self._late, *self._new.values()) if each[:2] == received[:2]]
        if not known and answer.round == self._rounds[seat.name]:  # it is in a mean already
            known = [self._uploads[self.members.index(seat.name)]]
        if known:
            if known[0].tobytes() != answer.values.tobytes():
                raise BadMessage("it is another answer to the same round; do two agents use one certificate?")
        elif answer.round == self.round:
            self._new[seat.name] = received
        elif answer.round > self._rounds[seat.name]:  # too late for its own round, in time for the next mean
            if sum(each.site == seat.name for each in self._late) >= MOST_LATE:
                raise BadMessage("too many of its answers are late at once")
            self._rounds[seat.name] = answer.round
            self._late.append(received)

    def _refused(self, seat: Seat, answer: Message) -> None:
        if answer.digest != self._digest:
            return  # to an earlier request
        seat.state, seat.code, seat.out = "refused", answer.code, answer.code in FOR_GOOD
        self._here.discard(seat.name)
        self.note("warning", seat.name, f"refuses: {answer.code}")

    def revoke(self, site: str) -> None:
        """This site's certificate is not good any more: it is not asked and not waited for."""
        seat = self.seats.get(site)
        if seat is not None and seat.state != "revoked":
            seat.state, seat.out = "revoked", True
            self._here.discard(site)
            self.note("warning", site, "its certificate was revoked or has expired; it is out of the study")

    def readmit(self, site: str) -> None:
        """This site has a certificate again."""
        seat = self.seats.get(site)
        if seat is not None and seat.state == "revoked":
            seat.state, seat.out = "absent", False
            self.note("info", site, "has a certificate again")

    # When a round is over

    def answered_now(self) -> set[str]:
        """Who has answered what is asked now."""
        if not self.called:
            return set(self._here)
        return {name for name, received in self._new.items() if received.round == self.round}

    def missing(self) -> set[str]:
        """Who is waited for: sites that are not out, and not away since the round before."""
        away = ("absent", "refused") if self.study.absences else ()
        waited = {name for name, seat in self.seats.items() if not seat.out and seat.state not in away}
        return waited - self.answered_now()

    def over(self, waited: float) -> bool:
        """Whether the round can be closed, after so many seconds: all are here, or enough and it is late."""
        able = sum(not seat.out for seat in self.seats.values())
        if able < self.quorum:
            text = f"only {able} of {len(self.members)} sites can still answer, and {self.quorum} are needed"
            raise Stopped(f"the study stops before round {self.rounds_done + 1}: {text}")
        if len(self.answered_now()) < self.quorum:
            return False
        if not self.missing():
            return True
        limit = self.study.deadline
        return self.study.absences and limit is not None and waited >= limit

    def begin(self) -> None:
        """Enough sites are here: the first round."""
        self.called = True
        for seat in self.seats.values():
            if seat.name not in self._here and not seat.out and self.study.absences:
                seat.state = "absent"
        self.note("info", "", f"round 1 begins with {len(self._here)} of {len(self.members)} sites")
        self._next()

    def close_round(self, seconds: float) -> None:
        """``w^k`` from the newest upload of every site, recorded before anyone is told of it."""
        new = [*self._late, *self._new.values()]
        uploads = self._uploads.copy()
        for received in new:
            uploads[self.members.index(received.site)] = received.values
        problem = self.study.problem
        consensus: Floats = self._method.aggregate(uploads, consensus=self.consensus, problem=problem)
        if not np.isfinite(consensus).all():
            raise Stopped(f"the consensus of round {self.round} is not finite: uploads are absurdly large")
        self._journal.close_round(self.round, consensus, new, seconds)
        answered = self.answered_now()
        self.changes.append(float(np.linalg.norm(consensus - self.consensus)))
        self.seconds.append(seconds)
        self._uploads, self.consensus, self.rounds_done = uploads, consensus, self.round
        for received in new:
            self._rounds[received.site] = received.round
            self.seats[received.site].answered += 1
        for seat in self.seats.values():
            if seat.name not in answered and seat.state in ("present", "late"):
                seat.state = "absent"
                self.note("warning", seat.name, f"was not there in time for round {self.rounds_done}")
        self._next()
        if self.done:
            self.note("info", "", f"done after {self.rounds_done} rounds")

    def _next(self) -> None:
        self._new, self._late, self._here, self._noted = {}, [], set(), {}
        self.request = self._request()

    # What people see

    def note(self, level: str, site: str, text: str) -> None:
        """Record an event, once a round: a site can fill neither the journal nor others' part of it."""
        noted = self._noted.setdefault(site if site in self.seats else "a stranger", set())
        if site and (text in noted or len(noted) >= MOST_NOTES):
            return
        noted.add(text)
        event = self._journal.note(level, f"{site}: {text}" if site else text)
        for watcher in self.watchers:
            watcher(event)

    def mark_late(self, sites: Collection[str]) -> None:
        """These have not answered for a while."""
        for name in sites:
            if self.seats[name].state == "present":
                self.seats[name].state = "late"
