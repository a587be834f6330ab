"""Answers the messages of accepted studies at a site, without network code.

Replies depend on rows only through the guard's releases. A refusal is sent as a code, and its reason stays in the
owner's log. If an accepted study cannot be enrolled, the code is ``study-blocked``, because the reason may depend on
rows or on the owner's limits.

A study is closed when all its rounds are answered or when the server reports its end. Its unused budget is released,
and it gets no new answer. A dishonest server can end a study early, but gains nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from logging import ERROR, WARNING, Logger
from math import inf
from time import monotonic
from typing import NamedTuple

from dpadmm.errors import DPADMMError, RefusalError
from dpadmm.federation.logs import RepeatLog
from dpadmm.federation.protocol import WITHHELD, BadMessageError, Kind, Message, digest_of, packed, unpacked
from dpadmm.sites.agent import Agent
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ending

OpenGuard = Callable[[], AbstractContextManager[Guard]]

REOPEN_AFTER = 2.0
"""Seconds before a failed ledger is opened again."""

TRANSIENT = ("study-unfit", "data-changed")
"""Enrolment refusals that may resolve themselves: the table is unavailable or changed."""

FAILURES = ("ledger-failed", "ledger-damaged")
"""Refusals after which the ledger must be opened again."""

ALARM_AFTER_FAILURE = 60.0
"""Seconds after a failed write during which the ledger counts as unusable. Requests are repeated more often."""

FIRST_RETRY, MAX_RETRY, RETRY_FACTOR = 2.0, 60.0, 10.0
"""Seconds before an enrolment is retried, at first and at most, but at least ``RETRY_FACTOR`` times its duration."""


class Refused(NamedTuple):
    """An accepted study that could not be enrolled: the code, and when to retry (infinity: never)."""

    code: str
    pause: float
    again_at: float


@dataclass
class ActiveStudy:
    """An enrolled study, with the site's state and its last replies."""

    study: Study
    agent: Agent
    broadcast_shape: tuple[int, ...]
    n_masked: int
    """Sites in the roster with secure aggregation, otherwise 0."""
    last: dict[str, bytes | None] = field(default_factory=dict)
    """The last replies, by the digest of their message."""
    ready: dict[str, str] = field(default_factory=dict)
    """With secure aggregation: the digest of the guard's request, by the digest of its message."""
    refusal: str | None = None
    """Code of the refusal of the last request; None after an answer."""


class Responder:
    """Answers messages of the studies that the owner accepted; ``answer`` never raises."""

    def __init__(self, open_guard: OpenGuard, rows_per_person: int, log: Logger) -> None:
        self._open_guard, self._rows_per_person, self._log = open_guard, rows_per_person, log
        self._resources = ExitStack()
        self._guard: Guard | None = None
        self._accepted: dict[str, Study] = {}
        self._active: dict[str, ActiveStudy] = {}
        self._closed: dict[str, str] = {}
        """Studies that get no new answer, with the kind of their ending in the ledger."""
        self._last_rounds: dict[str, int] = {}
        """The last answered round of each closed study."""
        self._unrecorded: dict[str, Ending] = {}
        """Endings that the ledger could not record yet."""
        self._not_enrolled: dict[str, Refused] = {}
        self.restores: int | None = None
        """Number of restored backups of the ledger; None while it is not open."""
        self._repeats = RepeatLog(log)
        self._reopen_at = 0.0
        self._failed: tuple[str, float] | None = None
        """Code and time of the last failure of the ledger, until a later write succeeds."""
        self._lock = threading.RLock()

    def open(self) -> None:
        """Open and lock the ledger; raise ``RefusalError`` while another process holds it."""
        with self._lock:
            self._guard = self._resources.enter_context(self._open_guard())
            self.restores = self._guard.ledger_state.restores

    def close(self) -> None:
        with self._lock:
            self._active, self._guard, self.restores = {}, None, None
            self._resources.close()

    def accept(self, study: Study) -> RefusalError | None:
        """Start answering a study. Return the refusal, which is only for the owner, or None."""
        with self._lock:
            self._accepted[study.hash] = study
            self._unrecorded.pop(study.hash, None)
            self._closed.pop(study.hash, None)
            return self._enrol(study)

    def leave(self, study: Study, *, declined: bool = False) -> None:
        """Stop answering a study, and release its reservation.

        If the release fails, the study still gets no more answers; call this again. The server receives
        ``study-closed``, unless the site declined the study without ever participating.
        """
        with self._lock:
            self._accepted.pop(study.hash, None)
            self._not_enrolled.pop(study.hash, None)
            if self._active.pop(study.hash, None) is not None or not declined:
                self._closed.setdefault(study.hash, "close")
            self.reopen()
            if self._guard is None:
                raise RefusalError("ledger-closed", "the ledger is not open")
            try:
                self._guard.leave(study.hash)
                self._closed[study.hash] = self._guard.ledger_state.accounts[study.hash].ending
            except RefusalError as refusal:
                if refusal.code != "study-unknown":  # it never reserved anything
                    raise

    @property
    def is_open(self) -> bool:
        """Whether the ledger is open; a failed one is opened again automatically."""
        return self._guard is not None

    @property
    def ledger_works(self) -> bool:
        """Whether the ledger is open and no write failed recently. On a full disk it opens, but cannot be written."""
        failed = self._failed is not None and monotonic() - self._failed[1] < ALARM_AFTER_FAILURE
        return self.is_open and not failed

    def rounds(self) -> dict[str, int]:
        """Return the last answered round of every study, without waiting for a round that is being answered."""
        active = {hash: study.agent.last_round for hash, study in list(self._active.items())}
        return self._last_rounds | active

    def endings(self) -> dict[str, str]:
        """Return the kind of ending of each closed study."""
        return dict(self._closed)

    def obstacles(self) -> dict[str, str]:
        """Return the code of the reason why each unanswered study is not answered."""
        codes = {study: active.refusal for study, active in list(self._active.items()) if active.refusal}
        codes |= {study: refused.code for study, refused in list(self._not_enrolled.items())}
        if not self.ledger_works:
            codes |= dict.fromkeys(list(self._accepted), self._ledger_code())
        return {study: code for study, code in codes.items() if study not in self._closed}

    def reserved(self) -> dict[str, str]:
        """Return the names of studies that are open in the ledger but have no decision of the owner."""
        with self._lock:
            accounts = {} if self._guard is None else self._guard.ledger_state.accounts
            unknown = accounts.keys() - self._accepted.keys() - self._closed.keys()
            return {hash: accounts[hash].about.get("name", hash[:12]) for hash in unknown if not accounts[hash].closed}

    def try_again(self) -> None:
        """Retry failed operations that are due: the table may be available again, and the disk writable."""
        with self._lock:
            for study, ending in list(self._unrecorded.items()):
                self._close(study, ending)
            for study in [*self._active]:
                self._close_if_answered(study)
            now, closed = monotonic(), self._closed
            due = [study for study, refused in self._not_enrolled.items() if now >= refused.again_at]
            for study in due:
                if study not in closed:
                    self._enrol(self._accepted[study])

    def answer(self, study: str, data: bytes) -> bytes | None:
        """Return the reply to a message of a study, or None."""
        with self._lock:
            self.reopen()
            if study in self._accepted and (rounds := _rounds_at_end(study, data)) is not None:
                self._end(study, rounds)
                return None
            active = self._active.get(study) or self._repeatable(study)
            if active is None and study in self._closed:
                return refusal_of(study, data, "study-closed")
            if active is None:
                is_blocked = study in self._accepted or study in self.reserved()
                return refusal_of(study, data, self._blocked_code()) if is_blocked else None
            digest = digest_of(data)
            if digest in active.last:
                return active.last[digest]
            try:
                reply = self._reply(active, digest, data)
            except BadMessageError as problem:
                self._repeats.write(WARNING, f"refused an invalid message: {problem}", _short(study))
                return refusal_of(study, data, "request-malformed")
            except RefusalError as refusal:
                if refusal.code == "members-without-me":  # this round is only for other sites
                    return None
                active.last, active.refusal = {}, refusal.code  # a prepared answer may be gone
                self._repeats.write(WARNING, f"refused ({refusal.code}): {refusal}", _short(study))
                if refusal.code in FAILURES:
                    self._close_failed_ledger(refusal)
                return refusal_of(study, data, refusal.wire())
            except Exception as error:  # its text could reveal something about rows
                active.refusal = "release-failed"
                self._repeats.write(WARNING, f"request failed ({type(error).__name__})", _short(study))
                return refusal_of(study, data, "release-failed")
            active.last = dict([*list(active.last.items())[-1:], (digest, reply)])  # ready, and masked
            active.refusal = None
            return reply

    def _reply(self, active: ActiveStudy, digest: str, data: bytes) -> bytes | None:
        study = active.study
        request = unpacked(
            data, study=study.hash, shape=lambda _: active.broadcast_shape, from_site=False, n_sites=active.n_masked
        )
        n_rows = active.agent.n_rows
        k = min(self._rows_per_person, n_rows)
        answer = Message(Kind.PRESENT, study.hash, request.round, digest=digest, n_rows=n_rows, rows_per_person=k)
        before = active.agent.last_round
        reply = packed((_masked_reply if active.n_masked else _plain_reply)(active, request, answer))
        if active.agent.last_round > before:  # the ledger recorded it
            self._failed = None
        return reply

    def _end(self, study: str, rounds: int) -> None:
        """Close a study that, according to the server, is over after ``rounds`` rounds."""
        self._active.pop(study, None)
        self._not_enrolled.pop(study, None)
        if study in self._closed:
            return
        n_rounds = self._accepted[study].training.planned_rounds
        self._close(study, "finish" if rounds >= n_rounds else "end")

    def _close_if_answered(self, study: str) -> bool:
        """Close a study if no later round can be requested; return whether it is closed."""
        if self._guard is not None and (account := self._guard.ledger_state.accounts.get(study)) is not None:
            last = max(account.rounds, default=0)
            if account.closed:
                self._closed[study], self._last_rounds[study] = account.ending, last
            elif last >= self._accepted[study].training.planned_rounds:
                self._close(study, "finish")
        return study in self._closed

    def _close(self, study: str, ending: Ending) -> None:
        """Stop answering a study, release its unused budget and log it once; retry if the ledger cannot record it."""
        self._closed[study] = self._unrecorded[study] = ending
        if self._guard is None:
            return
        try:
            self._guard.leave(study, ending)
            self._last_rounds[study] = max(self._guard.ledger_state.accounts[study].rounds, default=0)
        except RefusalError as refusal:
            if refusal.code != "study-unknown":  # an unknown study reserved nothing
                self._repeats.write(ERROR, f"over, but still open in the ledger; retrying: {refusal}", _short(study))
                self._close_failed_ledger(refusal)
                return
        del self._unrecorded[study]
        text = "finished: all rounds are over" if ending == "finish" else "ended by the server"
        self._log.info("%s: %s; study closed, unused budget released", _short(study), text)

    def _repeatable(self, study: str) -> ActiveStudy | None:
        """Return a finished study, enrolled once more to repeat a lost answer."""
        if self._closed.get(study) == "finish" and study in self._accepted and study not in self._not_enrolled:
            self._activate(self._accepted[study])
        return self._active.get(study)

    def _ledger_code(self) -> str:
        return "ledger-closed" if self._failed is None else self._failed[0]

    def _blocked_code(self) -> str:
        """Return the code for a study that is not answered. It must not depend on rows or limits."""
        return self._ledger_code() if self._guard is None else WITHHELD

    def _enrol(self, study: Study) -> RefusalError | None:
        if self._guard is not None and self._close_if_answered(study.hash):
            return RefusalError("study-changed", "this study is closed at this site, for good")
        return self._activate(study)

    def _activate(self, study: Study) -> RefusalError | None:
        if self._guard is None:
            return RefusalError("ledger-closed", "the ledger is not open")
        began = monotonic()
        try:
            agent = Agent(self._guard, study)
        except RefusalError as refusal:  # the cause may depend on rows: only the owner's command shows it
            if refusal.code in FAILURES:
                self._close_failed_ledger(refusal)
                return refusal
            hint = "; run dpadmm site review for the reason" if refusal.__cause__ else ""
            return self._refused(study, refusal, f"enrolment refused ({refusal.code}): {refusal}{hint}", began)
        except Exception as error:
            unfit = RefusalError("study-unfit", "the study could not be enrolled")
            return self._refused(study, unfit, f"enrolment failed ({type(error).__name__})", began)
        self._not_enrolled.pop(study.hash, None)
        masking = study.terms.masking
        n_masked = 0 if masking is None else len(masking.roster)
        self._active[study.hash] = ActiveStudy(study, agent, study.broadcast_shape, n_masked)
        self._log.info("%s: enrolled, %d rounds answered", _short(study.hash), agent.last_round)
        return None

    def _refused(self, study: Study, refusal: RefusalError, text: str, began: float) -> RefusalError:
        pause, again_at = FIRST_RETRY, inf
        if refusal.code in TRANSIENT:
            earlier, now = self._not_enrolled.get(study.hash), monotonic()
            pause = pause if earlier is None else min(2.0 * earlier.pause, MAX_RETRY)
            again_at = now + max(pause, RETRY_FACTOR * (now - began))
            text = f"{text}; retrying"
        self._not_enrolled[study.hash] = Refused(refusal.code, pause, again_at)
        self._repeats.write(ERROR, text, _short(study.hash))
        return refusal

    def _close_failed_ledger(self, refusal: RefusalError) -> None:
        self._log.error("the ledger failed; closed, retrying: %s", refusal)
        self.close()
        self._failed = refusal.code, monotonic()
        self._reopen_at = monotonic() + REOPEN_AFTER

    def reopen(self) -> None:
        """Open a failed ledger again if the pause is over."""
        with self._lock:
            if self._guard is not None or monotonic() < self._reopen_at:
                return
            try:
                self.open()
            except (DPADMMError, OSError) as problem:
                self._reopen_at = monotonic() + REOPEN_AFTER
                self._failed = problem.code if isinstance(problem, RefusalError) else "ledger-failed", monotonic()
                self._repeats.write(ERROR, f"cannot open the ledger; retrying: {problem}")
                return
            for study in [*self._accepted.values()]:
                if self.is_open and study.hash not in self._closed:  # an enrolment may close the ledger again
                    self._enrol(study)


def _plain_reply(active: ActiveStudy, request: Message, answer: Message) -> Message:
    if request.values is None:
        return answer
    return answer._replace(kind=Kind.UPLOAD, values=active.agent.step(request.round, request.values))


def _masked_reply(active: ActiveStudy, request: Message, answer: Message) -> Message:
    if request.kind is Kind.MASK:
        if request.digest not in active.ready:
            text = "no prepared answer to mask: its request is missing, or was sent before a restart"
            raise RefusalError("round-not-ready", text)
        masked = active.agent.mask(request.round, active.ready[request.digest], request.body)
        return answer._replace(kind=Kind.MASKED, masked=masked)
    if request.values is not None:
        active.ready = {answer.digest: active.agent.prepare(request.round, request.values)}
        answer = answer._replace(kind=Kind.READY)
    return answer._replace(body=active.agent.tags)


def _rounds_at_end(study: str, data: bytes) -> int | None:
    """Return the number of rounds in a message that ends a study; None for other messages."""
    with suppress(BadMessageError):
        message = unpacked(data, study=study, shape=lambda _: (0,), from_site=False)
        return message.round if message.kind is Kind.END else None
    return None


def refusal_of(study: str, data: bytes, code: str) -> bytes:
    """Return the refusal of a message."""
    return packed(Message(Kind.REFUSED, study, digest=digest_of(data), code=code))


def _short(study: str) -> str:
    return study[:12]
