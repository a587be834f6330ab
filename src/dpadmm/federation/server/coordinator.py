"""The server's state machine of a study, without network code: requests, answers, round loop, status.

A coordinator processes messages and the time. Everything that must survive a restart is stored in the journal.
``Uploads`` averages answers that carry their own noise. ``Sums`` (``sums.py``) adds masked answers.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging import Logger, getLevelNamesMapping
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.report import MAX_MU, ROW_GROUPS
from dpadmm.engine.method import PATIENCE, RoundResult
from dpadmm.errors import DPADMMError, ServiceUnavailableError
from dpadmm.federation.health import contact_status, now_text
from dpadmm.federation.logs import Repeats
from dpadmm.federation.protocol import (
    SILENT_AFTER,
    BadMessageError,
    Kind,
    LastContact,
    Message,
    Transport,
    digest_of,
    packed,
    unpacked,
)
from dpadmm.federation.server.journal import Journal, Received, Stall
from dpadmm.federation.states import (
    CANNOT_CONTINUE,
    FAILURES,
    StudyState,
    headline,
    refusal_text,
    site_state,
    study_state,
)
from dpadmm.matrices.arrays import Floats

PERMANENT = (
    "study-closed", "study-changed", "round-forked", "round-old", "round-missed", "round-over",
    "budget-cap", "budget-reservation", "policy-method", "policy-loss", "policy-rounds", "policy-rows",
)  # fmt: skip
"""Refusals that a repeated request cannot change. After other refusals the request is repeated."""

MAX_LATE, SHOWN_EVENTS = 8, 200
"""Limits: late uploads of one site in a round, and events in a snapshot."""

SECOND_ANSWER = "second, different answer to the same round; do two processes use the site's certificate?"

STALLED_AFTER = 30.0
"""Seconds after which a round without enough answers is stalled, unless rounds usually take longer."""


class StudyStoppedError(DPADMMError):
    """The study cannot continue. The journal contains all closed rounds."""


@dataclass
class Member:
    """The server's record of a participating site."""

    name: str
    state: str = "unseen"
    """unseen (no answer yet), present, late, missing, refused, excluded or revoked; see ``site_state``."""
    answered: list[int] = field(default_factory=list)
    """The rounds whose answers arrived."""
    last_seen: float | None = None
    code: str = ""
    out: bool = False
    """Whether the site cannot answer further rounds."""
    sizes: tuple[int, int] | None = None
    """Rows, and rows per person; None before the first answer."""


class Coordinator(ABC):
    """One study: send ``messages`` to all sites, ``take`` their answers, ``proceed`` when the phase is ``over``."""

    n_masked = 0
    """Sites in the roster of a study with secure aggregation."""

    def __init__(self, journal: Journal, log: Logger | None = None) -> None:
        self._journal, self._log = journal, log
        self.events = deque(journal.events(), maxlen=SHOWN_EVENTS)
        self.stopped = ""
        """Why the run stopped early."""
        self.ended = journal.ended_at is not None
        """Whether the study was ended for good before its last round."""
        self.served = True
        """Whether a server runs this study; False if the status is read from the journal only."""
        self.stalls = {stall.id: stall for stall in journal.stalls()}
        self.study = journal.study
        self._names = journal.members
        self.quorum = self.study.quorum_of(len(self._names))
        self.members = {name: Member(name) for name in self._names}
        self._method = journal.method(1)
        self._n_rounds = self.study.training.planned_rounds
        lasts = np.cumsum([count for _, count in self.study.terms.plan.runs]).tolist()
        self._shapes = [(last, self.study.upload_shape(last)) for last in lasts]
        """The shape of uploads, and the last round that has it."""
        self.start_wait: float | None = None
        """Seconds for which the first phase waits for all sites, in place of the deadline; None afterwards."""
        self.seen: Mapping[str, LastContact] = {}
        """The last heartbeat of each site."""
        self.doubts: Callable[[], Mapping[str, str]] = dict
        """Sites with a second process (``cloned``) or an outdated ledger (``ledger-behind``)."""
        self.decisions: Callable[[], Mapping[str, str]] = dict
        """The last reply of each site to the proposal: received, accepted or declined."""
        self.gives_up = False
        """Whether the run fails if the quorum has not accepted after ``start_wait``, instead of waiting."""
        self._mu = max(ROW_GROUPS) * float(self.study.terms.plan.mu_squared()) ** 0.5
        """μ of the largest group of rows in a privacy report, for one row per person."""
        for name, sizes in journal.sizes().items():
            self.members[name].sizes = sizes
        for name, rounds in journal.answered().items():
            self.members[name].answered = rounds
        self.seconds = journal.seconds()
        self._dates = journal.dates()
        self.opened: float | None = None
        """Time of the phase's first request, by the clock of the event loop."""
        self._repeats = Repeats()
        self.stalled: tuple[str, ...] = ()
        """Sites whose answers the open round needs, and that do not answer."""
        self.expired: set[str] = set()
        """Sites whose certificates have expired."""
        self._present: set[str] = set()
        self._digests: dict[int, str] = {}
        """The digest of each round's request, to recognise late answers."""
        self.consensus, self.rounds_done = self._method.start(self.study.shape), 0
        """The broadcast: w^k, or the whole public state of a server-side method."""
        self.changes: list[float] = []
        """``‖w^k − w^{k−1}‖`` of all rounds."""
        for self.rounds_done, consensus in enumerate(journal.consensus(), 1):
            request = Message(Kind.REQUEST, self.study.hash, self.rounds_done, self.consensus)
            self._digests[self.rounds_done] = digest_of(packed(request))
            self.changes.append(self._change(consensus))
            self.consensus = consensus
        self.called = self.rounds_done > 0
        self.request = self._request()

    def _change(self, consensus: Floats) -> float:
        return float(np.linalg.norm(self._method.model(consensus) - self._method.model(self.consensus)))

    # Requests

    @property
    def round(self) -> int:
        """The open round; 0 while the server waits for sites."""
        return self.rounds_done + 1 if self.called else 0

    @property
    def done(self) -> bool:
        return self.rounds_done == self._n_rounds

    @property
    def is_over(self) -> bool:
        """Whether no more rounds are requested."""
        return self.done or self.ended

    def check_ended(self) -> bool:
        """Return whether another process ended the study for good, and update the state."""
        if not self.is_over and self._journal.ended_at is not None:
            self.ended, self.stalled = True, ()
            self.request = self._request()
        return self.ended

    def _shape(self, round: int) -> tuple[int, ...]:
        """Return the shape of a round's uploads. For an invalid round, return that of the first round."""
        return next((shape for last, shape in self._shapes if round <= last), self._shapes[0][1])

    def _request(self) -> bytes:
        if self.is_over:
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

    def messages(self, *, again: bool) -> Sequence[bytes]:
        """Return the messages to send now. ``again`` is set if some sites may have missed them."""
        return [self.request]

    # Answers

    def take(self, site: str, data: bytes, now: float) -> None:
        """Process a message. The broker authenticates the name of the site. Problems are recorded as events."""
        member = self.members.get(site)
        if member is None or member.state in ("revoked", "excluded"):
            text = "message ignored: not a member of this study, or revoked"
            return self.note_counted("warning", site, text)
        first = member.last_seen is None and not member.answered
        member.last_seen = now
        try:
            answer = unpacked(data, study=self.study.hash, shape=self._shape, from_site=True, n_sites=self.n_masked)
            if answer.kind is Kind.REFUSED:
                return self._refused(member, answer)
            sizes = (answer.n_rows, answer.rows_per_person)
            self._check_sizes(member, *sizes)
            if answer.kind is Kind.PRESENT and self.called:
                return None  # late answer to the call; it does not count as an answer to the round
            if answer.kind is Kind.PRESENT and answer.digest != self._digest:
                raise BadMessageError("answer to a different call")
            self._answered(member, answer)
        except BadMessageError as problem:
            return self.note_counted("warning", site, f"message refused: {problem}")
        if member.sizes is None:
            self._journal.add_site(site, *sizes)
            member.sizes = sizes
        if member.state in ("unseen", "missing", "late", "refused"):
            self.note_limited("info", site, "connected" if first else "reconnected")
        member.state, member.code, member.out = "present", "", False
        self._present.add(site)
        return None

    def _check_sizes(self, member: Member, n_rows: int, k: int) -> None:
        """Raise ``BadMessageError`` if the numbers of rows changed or do not fit a privacy report."""
        if member.sizes not in (None, (n_rows, k)):
            raise BadMessageError(f"number of rows changed to {n_rows:,}, with up to {k:,} per person")
        if k > n_rows or k * self._mu > MAX_MU:
            raise BadMessageError(f"this study cannot protect {k:,} rows per person among {n_rows:,} rows")

    @abstractmethod
    def _answered(self, member: Member, answer: Message) -> None:
        """Store an answer to the current or an earlier request; raise ``BadMessageError`` if it is neither."""

    def _refused(self, member: Member, answer: Message) -> None:
        if answer.digest not in self._digests_now():
            return  # refusal of an earlier request
        is_new = (member.state, member.code) != ("refused", answer.code)
        member.state, member.code, member.out = "refused", answer.code, self._is_final(answer.code)
        self._present.discard(member.name)
        if is_new:
            final = "; the study cannot continue with this site" if member.out else ""
            self.note_limited("warning", member.name, f"{refusal_text(answer.code)}{final}")

    def _digests_now(self) -> set[str]:
        return {self._digest}

    def _is_final(self, code: str) -> bool:
        """Return whether a site that refused with this code cannot answer further rounds."""
        return code in PERMANENT

    def revoke(self, site: str) -> None:
        """Exclude a site whose certificate was revoked."""
        member = self.members[site]
        if member.state != "revoked":
            member.state, member.out = "revoked", True
            self._present.discard(site)
            self.note("warning", site, "certificate revoked; excluded until it has a new certificate")

    def expire(self, sites: set[str]) -> None:
        """Record the sites with expired certificates.

        Rounds still wait for them: a renewed certificate or a corrected clock lets them connect again.
        """
        for site in sorted(sites - self.expired):
            self.note("warning", site, "certificate expired; it cannot connect until the certificate is renewed")
        self.expired = sites

    def readmit(self, site: str) -> None:
        """Include a revoked site that has a new certificate."""
        member = self.members[site]
        if member.state == "revoked":
            member.state, member.out = "missing", False
            self.note("warning", site, "included again: it has a new certificate")  # a warning, like its revocation

    # Rounds

    @abstractmethod
    def answered_now(self) -> set[str]:
        """Return the sites that answered the current request."""

    def active_sites(self) -> set[str]:
        """Return the sites that can still answer."""
        return {member.name for member in self.members.values() if not member.out}

    def missing(self) -> set[str]:
        """Return the sites to wait for: active, without an answer, and not missing since the previous round."""
        return self._expected() - self.answered_now()

    def _expected(self) -> set[str]:
        skipped = ("missing", "refused") if self.study.allow_missed_rounds else ()
        expected = {name for name in self.active_sites() if self.members[name].state not in skipped}
        if self.called:
            return expected
        # an owner who declined may accept later, but the start does not wait for it
        return expected - {name for name, decision in self.decisions().items() if decision == "declined"}

    def over(self, waited: float) -> bool:
        """Return whether all sites answered, or the quorum answered and the deadline has passed."""
        active = self.active_sites()
        if len(active) < self.quorum:
            raise StudyStoppedError(
                f"{CANNOT_CONTINUE} after round {self.rounds_done}: only {len(active)} of {len(self._names)} sites can "
                f"still answer, but the quorum is {self.quorum}. {self._describe_all_except(active)}. Closed rounds "
                "are stored"
            )
        enough = len(self.answered_now()) >= self.quorum
        if enough and (not self.missing() or self._too_late(waited)):
            return True
        if self.gives_up and not self.called and self.start_wait is not None and waited >= self.start_wait:
            raise ServiceUnavailableError(self._not_begun())
        return False

    @property
    def time_limit(self) -> float | None:
        """Seconds after which this phase ends if the quorum has answered."""
        if self.start_wait is None or (self.called and self.study.deadline is None):
            return self.study.deadline
        return max(self.start_wait, self.study.deadline or 0.0) if self.called else self.start_wait

    def _too_late(self, waited: float) -> bool:
        limit = self.time_limit
        return self.study.allow_missed_rounds and limit is not None and waited >= limit

    def _not_begun(self) -> str:
        connected = self.connected_sites()
        needed = self.quorum if self.study.allow_missed_rounds else len(self._names)
        return (
            f"the study did not start: {len(connected)} of {len(self._names)} sites connected within "
            f"{self.start_wait:g} seconds, {needed} needed. {self._describe_all_except(connected)}. Serve it again "
            "when they are connected, or with a longer --start-wait"
        )

    def _describe_all_except(self, sites: set[str]) -> str:
        return "; ".join(f"{name}: {self.missing_reason(name)}" for name in self._names if name not in sites)

    def connected_sites(self) -> set[str]:
        """Return the sites that answered the call; during the start, without those that are silent since."""
        return {name for name in self._present if self.start_wait is None or self.silent_for(name) is None}

    def silent_for(self, name: str) -> float | None:
        """Return the seconds since a site's last message, or None if it is not silent."""
        return since if (since := self._seconds_since_contact(name)) > SILENT_AFTER else None

    def _seconds_since_contact(self, name: str) -> float:
        last, seen = self.members[name].last_seen, self.seen.get(name)
        return monotonic() - max(-math.inf if last is None else last, -math.inf if seen is None else seen.at)

    def missing_reason(self, name: str) -> str:
        """Return the reason why a site has not answered, in words."""
        member, silent = self.members[name], self.silent_for(name)
        if member.state == "revoked":
            return "certificate revoked"
        if name in self.expired:
            return "certificate expired"
        if member.state == "excluded":
            return "excluded"
        if member.code:
            return refusal_text(member.code)
        if silent is not None:
            return "silent, never connected" if silent == math.inf else f"silent since {now_text(silent)}"
        if self.called:
            return "connected, but does not answer"
        decision = self.decisions().get(name)
        if decision == "declined":
            return "declined by its owner"
        if decision == "received":
            return "connected; its owner has not decided about the study"
        return "connected, but no answer; has its owner accepted the study? Run dpadmm site status at the site"

    @abstractmethod
    def proceed(self, seconds: float) -> None:
        """Store the result of a phase that took ``seconds``, and start the next phase."""

    def begin(self) -> None:
        """Start round 1 with the connected sites."""
        connected = self.connected_sites()
        self.study.check_rows(*(sizes[0] for name in sorted(connected) if (sizes := self.members[name].sizes)))
        self.called = True
        for member in self.members.values():
            if member.name not in connected and not member.out and self.study.allow_missed_rounds:
                member.state = "missing"
        self.note("info", "", f"round 1 starts with {len(connected)} of {len(self._names)} sites")
        self._next()

    def _close(self, consensus: Floats, seconds: float) -> None:
        """Start the next round with this broadcast, which the journal already contains."""
        self.changes.append(self._change(consensus))
        self.seconds.append(seconds)
        self._dates = self._dates[0], datetime.now(UTC).isoformat(timespec="seconds")
        self.consensus, self.rounds_done = consensus, self.round
        self._next()
        if self.done:
            self.note("info", "", f"finished after {self.rounds_done} rounds")

    def _aggregate(self, result: RoundResult) -> Floats:
        consensus = self._method.aggregate(result)
        if not np.isfinite(consensus).all():
            raise StudyStoppedError(f"the consensus of round {self.round} is not finite: some uploads are too large")
        return consensus

    def _missed(self, sites: Collection[str]) -> None:
        for name in sorted(sites):
            if self.members[name].state in ("present", "late"):
                self.members[name].state = "missing"
                self.note("warning", name, f"missed the deadline of round {self.round}")

    def _next(self) -> None:
        self._present = set()
        self.request = self._request()

    # Events

    def note(self, level: str, site: str, text: str) -> None:
        """Record an event in the journal and the log."""
        event = self._journal.note(level, f"{site}: {text}" if site else text)
        self.events.append(event)
        if self._log is not None:
            self._log.log(getLevelNamesMapping()[level.upper()], "%s", event.text)

    def note_counted(self, level: str, site: str, text: str) -> None:
        """Record an event that may repeat without limit: identical events of a site are counted."""
        self._note_repeated(level, site, text, count=True)

    def note_limited(self, level: str, site: str, text: str) -> None:
        """Record an event caused by a site's message, up to a limit per minute."""
        self._note_repeated(level, site, text, count=False)

    def _note_repeated(self, level: str, site: str, text: str, *, count: bool) -> None:
        if site and site not in self.members:
            site, text = "unknown site", f"{site}: {text}"
        if (line := self._repeats.deduplicate(site, text, now=monotonic(), count=count)) is not None:
            self.note(level, site, line)

    def mark_late(self, sites: Collection[str]) -> None:
        for name in sites:
            if self.members[name].state == "present":
                self.members[name].state = "late"

    # Status

    def watch(self) -> None:
        """Record the start and end of stalls. Called about once per second."""
        self.stalled = self._blocking_sites()
        stalled = {(name, self.round) for name in self.stalled}
        for stall in self._open_stalls():
            if (stall.site, stall.round) in stalled:
                stalled.remove((stall.site, stall.round))
            else:
                self.stalls[stall.id] = self._journal.end_stall(stall)
                self.note("info", stall.site, f"stall of round {stall.round} ended after {_seconds(stall)} s")
        for name, round in sorted(stalled):
            stall = self._journal.begin_stall(name, round, self.missing_reason(name))
            self.stalls[stall.id] = stall
            self.note("error", name, f"round {round} stalled: {stall.reason}")

    def _open_stalls(self) -> list[Stall]:
        return [stall for stall in list(self.stalls.values()) if stall.end is None]

    def _blocking_sites(self) -> tuple[str, ...]:
        """Return the sites that keep the open round from closing; none while answers can still be expected."""
        if self.is_over or not self.called or self.opened is None:
            return ()
        waited, answered, active = monotonic() - self.opened, self.answered_now(), self.active_sites()
        needed = self.quorum if self.study.allow_missed_rounds else len(active)
        starting = self.start_wait is not None and waited < 2.0 * SILENT_AFTER
        if len(answered) >= needed or starting:
            return ()
        unanswered = active - answered
        expected = {name for name in unanswered if self.silent_for(name) is None and not self.members[name].code}
        if len(answered) + len(expected) < needed:
            return tuple(sorted(unanswered - expected))
        usual = median(self.seconds[-20:]) if self.seconds else 0.0
        too_long = waited > max(STALLED_AFTER, self.study.deadline or 0.0, 10.0 * usual)
        return tuple(sorted(unanswered)) if too_long else ()

    def _charged(self, member: Member) -> Sequence[int]:
        """Return the rounds for which a site may have spent budget."""
        return list(member.answered)

    def _mu_so_far(self) -> Floats:
        """Return the μ spent so far on one person, for every site."""
        plan, members = self.study.terms.plan, list(self.members.values())
        spent = [float(plan.mu_squared(self._charged(member))) ** 0.5 for member in members]
        return np.array([(member.sizes or (0, 1))[1] * mu for member, mu in zip(members, spent, strict=True)])

    def snapshot(self) -> dict[str, Any]:
        """Return the status of the study as plain values. May be called from any thread."""
        study, now, training = self.study, monotonic(), self.study.training
        deadline_in = None
        if (limit := self.time_limit) is not None and self.opened is not None and not self.stalled:
            deadline_in = max(0.0, self.opened + limit - now)
        usual = median(self.seconds[-50:]) if self.seconds else None
        delta, plan, members = float(training.delta), study.terms.plan, list(self.members.values())
        epsilons = exact_epsilon(self._mu_so_far(), np.full(len(members), delta)).tolist()
        doubts, error, stalled = self.doubts(), self.stopped, list(self.stalled)
        state = study_state(
            finished=self.done,
            ended=self.ended,
            error=error,
            served=self.served,
            stalled=bool(stalled),
            started=self.called,
        )
        running = state == StudyState.RUNNING
        status = {
            "study": {
                "name": study.name,
                "hash": study.hash,
                "method": training.method.name,
                "loss": study.terms.loss,
                "n_rounds": self._n_rounds,
                "epsilon": float(exact_epsilon(float(plan.mu_squared()) ** 0.5, delta)),  # of all rounds
                "delta": delta,
                "noise_multiplier": study.noise_multiplier,
                "noise": plan.describe_noise(),
                "shape": list(study.shape),
            },
            "state": str(state),
            "failing": state in FAILURES,
            "error": error or None,
            "since": min((stall.start for stall in self._open_stalls()), default=None) if stalled else None,
            "round": 0 if self.is_over else self.round,
            "rounds_done": self.rounds_done,
            "deadline_in": deadline_in,
            "deadline_at": None if deadline_in is None or self.is_over else now_text(-deadline_in),
            "stalled": stalled,
            "stalls": [stall._asdict() for stall in list(self.stalls.values())[-SHOWN_EVENTS:]],
            "quorum": self.quorum,
            "sites": [
                self._site(member, epsilon) | {"doubt": doubts.get(member.name)}
                for member, epsilon in zip(members, epsilons, strict=True)
            ],
            "changes": list(self.changes),
            "events": [event._asdict() for event in list(self.events)],
            "median_seconds": usual,
            "seconds_left": usual * (self._n_rounds - len(self.seconds)) if usual is not None and running else None,
            "begun_at": self._dates[0],
            "last_round_at": self._dates[1],
        }
        return status | {"headline": headline(status)}

    def _site(self, member: Member, epsilon: float) -> dict[str, Any]:
        silent = self.silent_for(member.name) is not None
        return {
            "name": member.name,
            "state": str(site_state(member.state, silent=silent)) if self.served else member.state,
            "answered": len(member.answered),
            "rows": None if member.sizes is None else member.sizes[0],
            "epsilon": epsilon,
            **contact_status(self.seen.get(member.name), self._seconds_since_contact(member.name)),
            "code": member.code or None,
            "decision": self.decisions().get(member.name),
            "left_out": self._left_out(member),
        }

    def _left_out(self, member: Member) -> bool:
        """Return whether a site missed so many rounds that its last upload has left the mean."""
        return False


class Uploads(Coordinator):
    """Rounds whose answers carry their own noise.

    After a dropout, a site's last upload stays in the mean for ``PATIENCE`` rounds. A late upload enters the next
    mean. Server-side methods use only the answers of the current round.
    """

    def __init__(self, journal: Journal, log: Logger | None = None) -> None:
        super().__init__(journal, log)
        self._uploads: dict[str, Floats] = {}
        self._rounds = dict.fromkeys(self._names, 0)
        for name, received in journal.last_uploads().items():
            self._uploads[name] = received.values
            self._rounds[name] = received.round
        self._new: dict[str, Received] = {}
        self._late: list[Received] = []

    def answered_now(self) -> set[str]:
        if not self.called:
            return self.connected_sites()
        return {name for name, received in self._new.items() if received.round == self.round}

    def proceed(self, seconds: float) -> None:
        if self.called:
            self.close_round(seconds)
        else:
            self.begin()

    def _answered(self, member: Member, answer: Message) -> None:
        if answer.values is None:  # present
            return
        sizes = (answer.n_rows, answer.rows_per_person)
        received = Received(member.name, answer.round, answer.values, *sizes)
        if answer.round > self.round or self.done:
            raise BadMessageError(f"answer to round {answer.round}, which was not requested")
        if answer.digest != self._digests[answer.round]:
            raise BadMessageError(f"answer to a different request for round {answer.round}")
        earlier = [upload.values for upload in (*self._late, *self._new.values()) if upload[:2] == received[:2]]
        if not earlier and answer.round == self._rounds[member.name]:  # already in a mean
            earlier = [self._uploads[member.name]]
        if earlier:
            if earlier[0].tobytes() != answer.values.tobytes():
                raise BadMessageError(SECOND_ANSWER)
        elif answer.round == self.round:
            self._new[member.name] = received
        elif answer.round > self._rounds[member.name]:  # late: it enters the next mean
            if sum(upload.site == member.name for upload in self._late) >= MAX_LATE:
                raise BadMessageError("too many late answers")
            self._rounds[member.name] = answer.round
            self._late.append(received)

    def _left_out(self, member: Member) -> bool:
        return not self._method.server_side and self.rounds_done - self._rounds[member.name] >= PATIENCE

    def close_round(self, seconds: float) -> None:
        """Compute and store w^k, from the latest upload of every site or (server-side methods) this round's answers."""
        new = [*self._late, *self._new.values()]
        uploads = self._uploads | {received.site: received.values for received in new}
        rounds = self._rounds | {received.site: received.round for received in new}
        current = {received.site: received.values for received in self._new.values()}
        used = current if self._method.server_side else uploads
        zeros = np.zeros(self._shape(self.round))
        result = RoundResult(
            uploads=np.array([used.get(name, zeros) for name in self._names]),
            consensus=self.consensus,
            round=self.round,
            problem=self.study.problem,
            n_rows=np.array([member.sizes[0] if member.sizes else 0 for member in self.members.values()]),
            active=np.flatnonzero([name in current for name in self._names]),
            answered=np.array([rounds[name] for name in self._names]),
        )
        consensus = self._aggregate(result)
        self._journal.close_round(self.round, consensus, new, seconds)
        for received in new:
            self.members[received.site].answered.append(received.round)
        self._missed(set(self._names) - self.answered_now())
        self._uploads, self._rounds, self._new, self._late = uploads, rounds, {}, []
        self._close(consensus, seconds)
        for member in self.members.values():
            if self._left_out(member) and self.rounds_done - self._rounds[member.name] == PATIENCE:
                text = f"missed {PATIENCE} rounds: its last upload left the mean until it answers again"
                self.note("warning", member.name, text)


def _seconds(stall: Stall) -> str:
    return f"{(datetime.now(UTC) - datetime.fromisoformat(stall.start)).total_seconds():.0f}"


FIRST_REPEAT, LAST_REPEAT = 0.5, 15.0
"""A request is repeated after four times the usual duration of a round, within these limits (seconds)."""


async def run_rounds(coordinator: Coordinator, transport: Transport) -> None:
    """Run a study to its end, starting from its journal.

    A request is repeated until its round is over. Sites repeat their answers, so a lost message costs only time.
    """
    clock = asyncio.get_running_loop().time
    while not coordinator.is_over:
        opened = clock()
        await _gather(coordinator, transport, opened)
        coordinator.proceed(clock() - opened)
        coordinator.start_wait = None
    await transport.send(coordinator.request)


async def _gather(coordinator: Coordinator, transport: Transport, opened: float) -> None:
    clock = asyncio.get_running_loop().time
    usual = median(coordinator.seconds[-20:]) if coordinator.seconds else 0.0
    patience = min(max(FIRST_REPEAT, 4.0 * usual), LAST_REPEAT)
    coordinator.opened = opened
    send_at, is_repeated = opened, False
    while not coordinator.over(clock() - opened):
        now = clock()
        if now >= send_at:
            if is_repeated:
                coordinator.mark_late(coordinator.missing())
            for message in coordinator.messages(again=is_repeated):
                await transport.send(message)
            send_at, is_repeated = now + patience, True
        wait = send_at - now
        limit = coordinator.time_limit
        if limit is not None and now < opened + limit:
            wait = min(wait, max(0.01, opened + limit - now))
        if (received := await transport.receive(wait)) is not None:
            coordinator.take(*received, now=clock())
    while (received := await transport.receive(0.0)) is not None:  # answers that arrived before the deadline
        coordinator.take(*received, now=clock())
