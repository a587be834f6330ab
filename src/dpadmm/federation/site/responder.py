"""Answers the messages of accepted studies at a site, without any network.

Replies depend on the rows only through the answers of the guard. A refusal leaves the site as a code; its
reason stays in the owner's log. An accepted study that cannot be enrolled is ``study-blocked``, because the reason
may depend on rows or on the owner's limits.

A study is closed when all its rounds are answered, or when the server reports its end: its unused budget is released,
and it gets no new answer. A dishonest server can thus end a study early and gains nothing.
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
from dpadmm.federation.logs import Repeats
from dpadmm.federation.protocol import WITHHELD, BadMessageError, Kind, Message, digest_of, packed, unpacked
from dpadmm.sites.agent import Agent
from dpadmm.studies.study import Study
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ending

OpenGuard = Callable[[], AbstractContextManager[Guard]]

REOPEN_AFTER = 2.0
"""Seconds before a failed ledger is opened again."""

HEALING = ("study-unfit", "data-changed")
"""Refusals of an enrolment that may heal by themselves: the table is away, or not as it was."""

FAILURES = ("ledger-failed", "ledger-damaged")
"""Refusals after which the ledger has to be opened again."""

ALARM_AFTER_FAILURE = 60.0
"""Seconds after a failed write during which the ledger counts as unusable; requests are repeated more often."""

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
        """The last answered rounds of closed studies."""
        self._unrecorded: dict[str, Ending] = {}
        """Endings that the ledger could not record yet."""
        self._not_enrolled: dict[str, Refused] = {}
        self.restores: int | None = None
        """How often an old copy of the ledger was put back; None while it is not open."""
        self._repeats = Repeats()
        self._reopen_at = 0.0
        self._failed: tuple[str, float] | None = None
        """Code and time of the last failure of the ledger, until a later write succeeds."""
        self._lock = threading.RLock()

    def open(self) -> None:
        """Open and lock the ledger; refused while another process holds it."""
        with self._lock:
            self._guard = self._resources.enter_context(self._open_guard())
            self.restores = self._guard.ledger_state.restores

    def close(self) -> None:
        with self._lock:
            self._active, self._guard, self.restores = {}, None, None
            self._resources.close()

    def accept(self, study: Study) -> RefusalError | None:
        """Start to answer a study; returns the reason, for the owner only, if that is refused."""
        with self._lock:
            self._accepted[study.hash] = study
            self._unrecorded.pop(study.hash, None)
            self._closed.pop(study.hash, None)
            return self._enrol(study)

    def leave(self, study: Study, *, declined: bool = False) -> None:
        """Stop to answer a study, and release its reservation.

        The study gets no more answers even if the release fails; call this again in that case. The
        aggregator learns that the study is closed, unless the site declined it without ever taking part.
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
        """Whether the ledger is open and no write failed of late: on a full disk it can be opened, but not written."""
        failed = self._failed is not None and monotonic() - self._failed[1] < ALARM_AFTER_FAILURE
        return self.is_open and not failed

    def rounds(self) -> dict[str, int]:
        """The last answered round of every study; does not wait while one is answered."""
        active = {name: each.agent.last_round for name, each in list(self._active.items())}
        return self._last_rounds | active

    def endings(self) -> dict[str, str]:
        """The kinds of ending of closed studies, by study."""
        return dict(self._closed)

    def obstacles(self) -> dict[str, str]:
        """The reasons why accepted studies are not answered, by study."""
        found = {study: active.refusal for study, active in list(self._active.items()) if active.refusal}
        found |= {study: refused.code for study, refused in list(self._not_enrolled.items())}
        if not self.ledger_works:
            found |= dict.fromkeys(list(self._accepted), self._ledger_code())
        return {study: code for study, code in found.items() if study not in self._closed}

    def reserved(self) -> dict[str, str]:
        """Open studies in the ledger that the owner's decisions do not have, with their names."""
        with self._lock:
            accounts = {} if self._guard is None else self._guard.ledger_state.accounts
            unknown = accounts.keys() - self._accepted.keys() - self._closed.keys()
            return {each: accounts[each].about.get("name", each[:12]) for each in unknown if not accounts[each].closed}

    def try_again(self) -> None:
        """Repeat what failed before, after a while: the table may be back, and the disk writable."""
        with self._lock:
            for study, ending in list(self._unrecorded.items()):
                self._close(study, ending)
            for study in [*self._active]:
                self._close_if_answered(study)
            now, closed = monotonic(), self._closed
            due = [each for each, refused in self._not_enrolled.items() if now >= refused.again_at]
            for study in due:
                if study not in closed:
                    self._enrol(self._accepted[study])

    def answer(self, study: str, data: bytes) -> bytes | None:
        """The reply to a message of a study, or None."""
        with self._lock:
            self.reopen()
            if study in self._accepted and (rounds := _rounds_at_end(study, data)) is not None:
                self._end(study, rounds)
                return None
            active = self._active.get(study) or self._repeatable(study)
            if active is None and study in self._closed:
                return refusal_of(study, data, "study-closed")
            if active is None:
                known = study in self._accepted or study in self.reserved()
                return refusal_of(study, data, self._blocked_code(study)) if known else None
            digest = digest_of(data)
            if digest in active.last:
                return active.last[digest]
            try:
                reply = self._reply(active, digest, data)
            except BadMessageError as problem:
                self._log_limited(study, f"refused an invalid message: {problem}")
                return refusal_of(study, data, "request-malformed")
            except RefusalError as refusal:
                if refusal.code == "members-without-me":  # a round of others
                    return None
                active.last, active.refusal = {}, refusal.code  # what was ready may be no more
                self._log_limited(study, f"refused ({refusal.code}): {refusal}")
                if refusal.code in FAILURES:
                    self._close_failed_ledger(refusal)
                return refusal_of(study, data, refusal.wire())
            except Exception as error:  # its text could reveal something about rows
                active.refusal = "release-failed"
                self._log_limited(study, f"the request could not be answered ({type(error).__name__})")
                return refusal_of(study, data, "release-failed")
            active.last = dict([*list(active.last.items())[-1:], (digest, reply)])  # ready, and masked
            active.refusal = None
            return reply

    def _reply(self, active: ActiveStudy, digest: str, data: bytes) -> bytes | None:
        study = active.study
        asked = unpacked(data, study=study.hash, shape=lambda _: active.heard, from_site=False, n_sites=active.n_masked)
        n_rows = active.agent.n_rows
        k = min(self._rows_per_person, n_rows)
        answer = Message(Kind.PRESENT, study.hash, asked.round, digest=digest, n_rows=n_rows, rows_per_person=k)
        before = active.agent.last_round
        reply = packed((_masked_reply if active.n_masked else _plain_reply)(active, asked, answer))
        if active.agent.last_round > before:  # it was recorded
            self._failed = None
        return reply

    def _end(self, study: str, rounds: int) -> None:
        """Close a study that the server reports as over after so many rounds."""
        self._active.pop(study, None)
        self._not_enrolled.pop(study, None)
        if study in self._closed:
            return
        n_rounds = self._accepted[study].training.planned_rounds
        self._close(study, "finish" if rounds >= n_rounds else "end")

    def _close_if_answered(self, study: str) -> bool:
        """Close a study if no later round can be requested; whether it is closed."""
        if self._guard is not None and (account := self._guard.ledger_state.accounts.get(study)) is not None:
            last = max(account.rounds, default=0)
            if account.closed:
                self._closed[study], self._last_rounds[study] = account.ending, last
            elif last >= self._accepted[study].training.planned_rounds:
                self._close(study, "finish")
        return study in self._closed

    def _close(self, study: str, ending: Ending) -> None:
        """Give a study no new answer, release its unused budget, and tell its owner once.

        If the ledger cannot record it, it is tried again.
        """
        self._closed[study] = self._unrecorded[study] = ending
        if self._guard is None:
            return
        try:
            self._guard.leave(study, ending)
            self._last_rounds[study] = max(self._guard.ledger_state.accounts[study].rounds, default=0)
        except RefusalError as refusal:
            if refusal.code != "study-unknown":  # that reserved nothing
                self._log_limited(study, f"over, but still open in the ledger; it is tried again: {refusal}", ERROR)
                self._close_failed_ledger(refusal)
                return
        del self._unrecorded[study]
        text = "finished: all rounds are over" if ending == "finish" else "ended by the server"
        self._log.info("%s: %s; the study is closed, and its unused budget is released", _short(study), text)

    def _repeatable(self, study: str) -> ActiveStudy | None:
        """A finished study, enrolled once to repeat an answer that was lost."""
        if self._closed.get(study) == "finish" and study in self._accepted and study not in self._not_enrolled:
            self._activate(self._accepted[study])
        return self._active.get(study)

    def _ledger_code(self) -> str:
        return "ledger-closed" if self._failed is None else self._failed[0]

    def _blocked_code(self, study: str) -> str:
        """What the server learns of a study that is not answered: nothing that may depend on rows or limits."""
        return self._ledger_code() if self._guard is None else WITHHELD

    def _enrol(self, study: Study) -> RefusalError | None:
        if self._guard is not None and self._close_if_answered(study.hash):
            return RefusalError("study-changed", "this study is closed here, which is for good")
        return self._activate(study)

    def _activate(self, study: Study) -> RefusalError | None:
        if self._guard is None:
            return RefusalError("ledger-closed", "the ledger is not open")
        began = monotonic()
        try:
            agent = Agent(self._guard, study)
        except RefusalError as refusal:  # only the command shows its cause, which may depend on rows
            if refusal.code in FAILURES:
                self._close_failed_ledger(refusal)
                return refusal
            hint = "; run dpadmm agent review for the reason" if refusal.__cause__ else ""
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

    def _close_failed_ledger(self, refusal: RefusalError) -> None:
        self._log.error("the ledger failed and is closed; it will be opened again: %s", refusal)
        self.close()
        self._failed = refusal.code, monotonic()
        self._reopen_at = monotonic() + REOPEN_AFTER

    def reopen(self) -> None:
        """Open a ledger that failed, after a while."""
        with self._lock:
            if self._guard is not None or monotonic() < self._reopen_at:
                return
            try:
                self.open()
            except (DPADMMError, OSError) as problem:
                self._reopen_at = monotonic() + REOPEN_AFTER
                self._failed = problem.code if isinstance(problem, RefusalError) else "ledger-failed", monotonic()
                self._log_limited("", f"the ledger cannot be opened: {problem}", ERROR)
                return
            for study in [*self._accepted.values()]:
                if self.is_open and study.hash not in self._closed:  # an enrolment may fail by the ledger again
                    self._enrol(study)


def _plain_reply(active: ActiveStudy, asked: Message, answer: Message) -> Message:
    if asked.values is None:
        return answer
    return answer._replace(kind=Kind.UPLOAD, values=active.agent.step(asked.round, asked.values))


def _masked_reply(active: ActiveStudy, asked: Message, answer: Message) -> Message:
    if asked.kind is Kind.MASK:
        if asked.digest not in active.ready:
            text = "asked to mask an answer that was not asked for before, or before a restart"
            raise RefusalError("round-not-ready", text)
        masked = active.agent.masked(asked.round, active.ready[asked.digest], asked.body)
        return answer._replace(kind=Kind.MASKED, masked=masked)
    if asked.values is not None:
        active.ready = {answer.digest: active.agent.prepare(asked.round, asked.values)}
        answer = answer._replace(kind=Kind.READY)
    return answer._replace(body=active.agent.tags)


def _rounds_at_end(study: str, data: bytes) -> int | None:
    """The number of rounds in the message that ends a study; None for other messages."""
    with suppress(BadMessageError):
        message = unpacked(data, study=study, shape=lambda _: (0,), from_site=False)
        return message.round if message.kind is Kind.END else None
    return None


def refusal_of(study: str, data: bytes, code: str) -> bytes:
    """The refusal of a message."""
    return packed(Message(Kind.REFUSED, study, digest=digest_of(data), code=code))


def _short(study: str) -> str:
    return study[:12]
