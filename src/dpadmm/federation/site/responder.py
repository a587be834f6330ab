"""Answers the messages of accepted studies at a site, without any network.

Replies depend on the rows only through the answers of the guard. A refusal leaves the site as a code; its
reason stays in the owner's log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from logging import ERROR, INFO, WARNING, Logger
from math import inf
from time import monotonic
from typing import NamedTuple

from dpadmm._base.errors import DpadmmError, Refusal
from dpadmm.federation.logs import Repeats
from dpadmm.federation.protocol import BadMessage, Kind, Message, digest_of, packed, unpacked
from dpadmm.site.agent import Agent
from dpadmm.study.study import Study
from dpadmm.trusted.guard import Guard

OpenGuard = Callable[[], AbstractContextManager[Guard]]

REOPEN_AFTER = 2.0
"""Seconds before a failed ledger is opened again."""

HEALING = ("study-unfit", "data-changed")
"""Refusals of an enrolment that may heal by themselves: the table is away, or not as it was."""

FIRST_TRY, LAST_TRY, TRY_SHARE = 2.0, 60.0, 10.0
"""Seconds before such an enrolment is tried again, at first and at most, but so many times as long as a try takes."""


class Refused(NamedTuple):
    """An accepted study that could not be enrolled: why, and when to try again, if that may help."""

    code: str
    pause: float
    again_at: float


@dataclass
class ActiveStudy:
    """A study with its agent, the shape of what it hears, and its last replies with the digests of the messages.

    With secure aggregation ``ready`` has the digest of the guard's request, by that of the message which asked it.
    """

    study: Study
    agent: Agent
    heard: tuple[int, ...]
    n_masked: int
    last: dict[str, bytes | None] = field(default_factory=dict)
    ready: dict[str, str] = field(default_factory=dict)


class Responder:
    """Answers messages of the studies that the owner accepted; ``answer`` never raises."""

    def __init__(self, open_guard: OpenGuard, rows_per_person: int, log: Logger) -> None:
        self._open_guard, self._rows_per_person, self._log = open_guard, rows_per_person, log
        self._resources = ExitStack()
        self._guard: Guard | None = None
        self._accepted: dict[str, Study] = {}
        self._active: dict[str, ActiveStudy] = {}
        self._left: set[str] = set()
        self._not_enrolled: dict[str, Refused] = {}
        self.restores: int | None = None
        """How often an old copy of the ledger was put back; None while it is not open."""
        self._repeats = Repeats()
        self._reopen_at = 0.0
        self._lock = threading.RLock()

    def open(self) -> None:
        """Open and lock the ledger; refused while another process holds it."""
        with self._lock:
            self._guard = self._resources.enter_context(self._open_guard())
            self.restores = self._guard.restores

    def close(self) -> None:
        with self._lock:
            self._active, self._guard, self.restores = {}, None, None
            self._resources.close()

    def accept(self, study: Study) -> Refusal | None:
        """Start to answer a study; returns the reason, for the owner only, if that is refused."""
        with self._lock:
            self._accepted[study.hash] = study
            if (refusal := self._enrol(study)) is None:
                self._left.discard(study.hash)
            return refusal

    def leave(self, study: Study, *, declined: bool = False) -> None:
        """Stop to answer a study, and release its reservation.

        The study gets no more answers even if the release fails; call this again in that case. The
        aggregator learns that the study is closed, unless the site declined it without ever taking part.
        """
        with self._lock:
            self._accepted.pop(study.hash, None)
            self._not_enrolled.pop(study.hash, None)
            if self._active.pop(study.hash, None) is not None or not declined:
                self._left.add(study.hash)
            self.reopen()
            if self._guard is None:
                raise Refusal("ledger-closed", "the ledger is not open")
            try:
                self._guard.leave(study.hash)
                self._left.add(study.hash)
            except Refusal as refusal:
                if refusal.code != "study-unknown":  # it never reserved anything
                    raise

    @property
    def is_open(self) -> bool:
        """Whether it has the ledger; it opens a failed one again by itself."""
        return self._guard is not None

    def rounds(self) -> dict[str, int]:
        """The last round of every study; does not wait while one is answered."""
        return {name: active.agent.last_round for name, active in list(self._active.items())}

    def refusals(self) -> dict[str, str]:
        """Why accepted studies are not answered, by study."""
        return {study: refused.code for study, refused in list(self._not_enrolled.items())}

    def try_again(self) -> None:
        """Enrol what could not be enrolled, after a while: the table may be back."""
        with self._lock:
            due = [study for study, refused in self._not_enrolled.items() if monotonic() >= refused.again_at]
            for study in due:
                self._enrol(self._accepted[study])

    def answer(self, study: str, data: bytes) -> bytes | None:
        """The reply to a message of a study, or None."""
        with self._lock:
            if study in self._left:
                return refusal_of(study, data, "study-closed")
            self.reopen()
            active = self._active.get(study)
            if active is None:
                return refusal_of(study, data, "study-unknown") if study in self._accepted else None
            digest = digest_of(data)
            if digest in active.last:
                return active.last[digest]
            try:
                reply = self._reply(active, digest, data)
            except BadMessage as problem:
                self._log_limited(study, f"refused an invalid message: {problem}")
                return refusal_of(study, data, "request-malformed")
            except Refusal as refusal:
                if refusal.code == "members-without-me":  # a round of others
                    return None
                active.last = {}  # what was ready may be no more
                self._log_limited(study, f"refused ({refusal.code}): {refusal}")
                if refusal.code in ("ledger-failed", "ledger-damaged"):
                    self._close_failed_ledger(refusal)
                return refusal_of(study, data, refusal.wire())
            except Exception as error:  # its text could reveal something about rows
                self._log_limited(study, f"the request could not be answered ({type(error).__name__})")
                return refusal_of(study, data, "release-failed")
            active.last = dict([*list(active.last.items())[-1:], (digest, reply)])  # ready, and masked
            return reply

    def _reply(self, active: ActiveStudy, digest: str, data: bytes) -> bytes | None:
        study = active.study
        asked = unpacked(data, study=study.hash, shape=lambda _: active.heard, from_site=False, n_sites=active.n_masked)
        if asked.kind is Kind.END:
            text = f"the aggregator ended the study after {asked.round} rounds"
            self._log_limited(study.hash, text, INFO)
            return None
        n_rows = active.agent.n_rows
        k = min(self._rows_per_person, n_rows)
        answer = Message(Kind.PRESENT, study.hash, asked.round, digest=digest, n_rows=n_rows, rows_per_person=k)
        reply = _masked_reply if active.n_masked else _plain_reply
        return packed(reply(active, asked, answer))

    def _enrol(self, study: Study) -> Refusal | None:
        if self._guard is None:
            return Refusal("ledger-closed", "the ledger is not open")
        began = monotonic()
        try:
            agent = Agent(self._guard, study)
        except Refusal as refusal:  # only the command shows its cause, which may depend on rows
            hint = "; run dpadmm agent review for the reason" if refusal.__cause__ else ""
            return self._refused(study, refusal, f"enrolment refused ({refusal.code}): {refusal}{hint}", began)
        except Exception as error:
            unfit = Refusal("study-unfit", "the study could not be enrolled")
            return self._refused(study, unfit, f"enrolment failed ({type(error).__name__})", began)
        self._not_enrolled.pop(study.hash, None)
        masking = study.terms.masking
        n_masked = 0 if masking is None else len(masking.roster)
        self._active[study.hash] = ActiveStudy(study, agent, study.broadcast_shape, n_masked)
        self._log.info("%s: enrolled, %d rounds answered", _short(study.hash), agent.last_round)
        return None

    def _refused(self, study: Study, refusal: Refusal, text: str, began: float) -> Refusal:
        pause, again_at = FIRST_TRY, inf
        if refusal.code in HEALING:
            known, now = self._not_enrolled.get(study.hash), monotonic()
            pause = pause if known is None else min(2.0 * known.pause, LAST_TRY)
            again_at = now + max(pause, TRY_SHARE * (now - began))
            text = f"{text}; it is tried again"
        self._not_enrolled[study.hash] = Refused(refusal.code, pause, again_at)
        self._log_limited(study.hash, text, ERROR)
        return refusal

    def _log_limited(self, study: str, text: str, level: int = WARNING) -> None:
        if (said := self._repeats.said(study, text, now=monotonic())) is not None:
            self._log.log(level, "%s", f"{_short(study)}: {said}" if study else said)

    def _close_failed_ledger(self, refusal: Refusal) -> None:
        self._log.error("the ledger failed and is closed; it will be opened again: %s", refusal)
        self.close()
        self._reopen_at = monotonic() + REOPEN_AFTER

    def reopen(self) -> None:
        """Open a ledger that failed, after a while."""
        with self._lock:
            if self._guard is not None or monotonic() < self._reopen_at:
                return
            try:
                self.open()
            except (DpadmmError, OSError) as problem:
                self._reopen_at = monotonic() + REOPEN_AFTER
                self._log_limited("", f"the ledger cannot be opened: {problem}", ERROR)
                return
            for study in self._accepted.values():
                self._enrol(study)


def _plain_reply(active: ActiveStudy, asked: Message, answer: Message) -> Message:
    if asked.values is None:
        return answer
    return answer._replace(kind=Kind.UPLOAD, values=active.agent.step(asked.round, asked.values))


def _masked_reply(active: ActiveStudy, asked: Message, answer: Message) -> Message:
    if asked.kind is Kind.MASK:
        if asked.digest not in active.ready:
            text = "asked to mask an answer that was not asked for before, or before a restart"
            raise Refusal("round-not-ready", text)
        masked = active.agent.masked(asked.round, active.ready[asked.digest], asked.body)
        return answer._replace(kind=Kind.MASKED, masked=masked)
    if asked.values is not None:
        active.ready = {answer.digest: active.agent.prepare(asked.round, asked.values)}
        answer = answer._replace(kind=Kind.READY)
    return answer._replace(body=active.agent.tags)


def refusal_of(study: str, data: bytes, code: str) -> bytes:
    """The refusal of a message."""
    return packed(Message(Kind.REFUSED, study, digest=digest_of(data), code=code))


def _short(study: str) -> str:
    return study[:12]
