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
from time import monotonic

from dpadmm._base.errors import DpadmmError, Refusal
from dpadmm.federation.logs import Repeats
from dpadmm.federation.protocol import BadMessage, Kind, Message, digest_of, packed, unpacked
from dpadmm.site.agent import Agent
from dpadmm.study.study import Study
from dpadmm.trusted.guard import Guard

OpenGuard = Callable[[], AbstractContextManager[Guard]]

REOPEN_AFTER = 2.0
"""Seconds before a failed ledger is opened again."""


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
        self._repeats = Repeats()
        self._reopen_at = 0.0
        self._lock = threading.RLock()

    def open(self) -> None:
        """Open and lock the ledger; refused while another process holds it."""
        with self._lock:
            self._guard = self._resources.enter_context(self._open_guard())

    def close(self) -> None:
        with self._lock:
            self._active, self._guard = {}, None
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

    def answer(self, study: str, data: bytes) -> bytes | None:
        """The reply to a message of a study, or None."""
        with self._lock:
            if study in self._left:
                return _refusal(study, data, "study-closed")
            self.reopen()
            active = self._active.get(study)
            if active is None:
                return _refusal(study, data, "study-unknown") if study in self._accepted else None
            digest = digest_of(data)
            if digest in active.last:
                return active.last[digest]
            try:
                reply = self._reply(active, digest, data)
            except BadMessage as problem:
                self._log_limited(study, f"refused an invalid message: {problem}")
                return _refusal(study, data, "request-malformed")
            except Refusal as refusal:
                if refusal.code == "members-without-me":  # a round of others
                    return None
                active.last = {}  # what was ready may be no more
                self._log_limited(study, f"refused ({refusal.code}): {refusal}")
                if refusal.code in ("ledger-failed", "ledger-damaged"):
                    self._close_failed_ledger(refusal)
                return _refusal(study, data, refusal.wire())
            except Exception as error:  # its text could reveal something about rows
                self._log_limited(study, f"the request could not be answered ({type(error).__name__})")
                return _refusal(study, data, "release-failed")
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
        try:
            agent = Agent(self._guard, study)
        except Refusal as refusal:  # only the command shows its cause, which may depend on rows
            hint = "; run dpadmm agent review for the reason" if refusal.__cause__ else ""
            text = "%s: enrolment refused (%s): %s%s"
            self._log.error(text, _short(study.hash), refusal.code, refusal, hint)
            return refusal
        except Exception as error:
            self._log.error("%s: enrolment failed (%s)", _short(study.hash), type(error).__name__)
            return Refusal("study-unfit", "the study could not be enrolled")
        masking = study.terms.masking
        n_masked = 0 if masking is None else len(masking.roster)
        self._active[study.hash] = ActiveStudy(study, agent, study.broadcast_shape, n_masked)
        self._log.info("%s: enrolled, %d rounds answered", _short(study.hash), agent.last_round)
        return None

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


def _refusal(study: str, data: bytes, code: str) -> bytes:
    return packed(Message(Kind.REFUSED, study, digest=digest_of(data), code=code))


def _short(study: str) -> str:
    return study[:12]
