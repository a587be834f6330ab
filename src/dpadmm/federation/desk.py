"""A site's side of its studies, without any network: a message comes in, an answer goes out.

What is said depends on the rows through the guard's answers alone. Reasons stay here, in the owner's log;
what leaves with a "no" is its code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from logging import Logger
from time import monotonic

from dpadmm.agent import Agent
from dpadmm.errors import DpadmmError, Refusal
from dpadmm.federation.messages import BadMessage, Kind, Message, digest_of, packed, unpacked
from dpadmm.privacy.guard import Guard
from dpadmm.study import Study

OpenGuard = Callable[[], AbstractContextManager[Guard]]

PAUSE = 60.0
"""Seconds between two equal warnings about one study."""

REOPEN_AFTER = 2.0
"""Seconds before a ledger that failed is opened again."""


@dataclass
class Served:
    """A study that is answered: its agent, and the last answer, by the digest of its request."""

    study: Study
    agent: Agent
    n_rows: int
    last: tuple[str, bytes] = ("", b"")


class Desk:
    """Answers for the studies that the owner accepted: ``answer(study, data)``; it never raises."""

    def __init__(self, open_guard: OpenGuard, rows_per_person: int, log: Logger) -> None:
        self._open_guard, self._rows_per_person, self._log = open_guard, rows_per_person, log
        self._held = ExitStack()
        self._guard: Guard | None = None
        self._wanted: dict[str, Study] = {}
        self._served: dict[str, Served] = {}
        self._left: set[str] = set()
        self._told: dict[str, tuple[str, float]] = {}
        self._again = 0.0
        self._one_at_a_time = threading.RLock()

    def open(self) -> None:
        """Hold the ledger; refused while another process does."""
        with self._one_at_a_time:
            self._guard = self._held.enter_context(self._open_guard())

    def close(self) -> None:
        """Let go of the ledger."""
        with self._one_at_a_time:
            self._served, self._guard = {}, None
            self._held.close()

    def accept(self, study: Study) -> Refusal | None:
        """Answer this study from now on; the reason where that cannot be, which is for the owner."""
        with self._one_at_a_time:
            self._wanted[study.hash] = study
            refusal = self._enrolled(study)
            if refusal is None:
                self._left.discard(study.hash)
            return refusal

    def leave(self, study: Study, *, declined: bool = False) -> None:
        """Answer it no more, and give back what it reserved.

        Where that fails it can be tried again; it is not answered in any case. Who took part is told that
        it is closed; of a study that was declined without ever taking part nothing is said.
        """
        with self._one_at_a_time:
            self._wanted.pop(study.hash, None)
            if self._served.pop(study.hash, None) is not None or not declined:
                self._left.add(study.hash)
            self._reopened()
            if self._guard is None:
                raise Refusal("ledger-closed", "the ledger is not open")
            try:
                self._guard.leave(study.hash)
                self._left.add(study.hash)
            except Refusal as refusal:
                if refusal.code != "study-unknown":  # where it never reserved anything, all is done
                    raise

    def rounds(self) -> dict[str, int]:
        """The last round that was answered, by study."""
        with self._one_at_a_time:
            return {name: served.agent.last_round for name, served in self._served.items()}

    def answer(self, study: str, data: bytes) -> bytes | None:
        """What to say to a message of a study; None for nothing."""
        with self._one_at_a_time:
            if study in self._left:
                return _no(study, data, "study-closed")
            self._reopened()
            served = self._served.get(study)
            if served is None:
                return _no(study, data, "study-unknown") if study in self._wanted else None
            digest = digest_of(data)
            if served.last[0] == digest:
                return served.last[1]
            try:
                said = self._said(served, digest, data)
            except BadMessage as problem:
                self._warn(study, f"a message was refused: {problem}")
                return _no(study, data, "request-malformed")
            except Refusal as refusal:
                self._warn(study, f"refused ({refusal.code}): {refusal}")
                if refusal.code in ("ledger-failed", "ledger-damaged"):
                    self._give_up(refusal)
                return _no(study, data, refusal.wire())
            except Exception as error:  # whatever it is: nobody learns of it, for its text might be of rows
                self._warn(study, f"could not be answered ({type(error).__name__})")
                return _no(study, data, "release-failed")
            if said is not None:
                served.last = (digest, said)
            return said

    def _said(self, served: Served, digest: str, data: bytes) -> bytes | None:
        study = served.study
        asked = unpacked(data, study=study.hash, shape=study.shape, from_site=False)
        k = min(self._rows_per_person, served.n_rows)
        answer = Message(Kind.PRESENT, study.hash, digest=digest, n_rows=served.n_rows, rows_per_person=k)
        if asked.kind is Kind.CALL:
            return packed(answer)
        if asked.kind is Kind.END or asked.values is None:
            self._log.info("%s: ended after %d rounds, says the aggregator", _short(study.hash), asked.round)
            return None
        upload = served.agent.step(asked.round, asked.values)
        return packed(answer._replace(kind=Kind.UPLOAD, round=asked.round, values=upload))

    def _enrolled(self, study: Study) -> Refusal | None:
        if self._guard is None:
            return Refusal("ledger-closed", "the ledger is not open")
        try:
            agent = Agent(self._guard, study)
            n_rows = self._guard.enrol(study).grid.n_rows
        except Refusal as refusal:  # its cause may be of rows, and is told by the command alone
            hint = "; dpadmm agent review says why" if refusal.__cause__ else ""
            text = "%s: not taken part in (%s): %s%s"
            self._log.error(text, _short(study.hash), refusal.code, refusal, hint)
            return refusal
        except Exception as error:
            self._log.error("%s: not taken part in (%s)", _short(study.hash), type(error).__name__)
            return Refusal("study-unfit", "the study could not be taken part in")
        self._served[study.hash] = Served(study, agent, n_rows)
        self._log.info("%s: taken part in, %d rounds answered", _short(study.hash), agent.last_round)
        return None

    def _warn(self, study: str, text: str) -> None:
        """A line in the log, unless there was the same one in the last minute: nobody can fill it."""
        now = monotonic()
        before, at = self._told.get(study, ("", 0.0))
        if text != before or now - at >= PAUSE:
            self._told[study] = (text, now)
            self._log.warning("%s: %s", _short(study), text)

    def _give_up(self, refusal: Refusal) -> None:
        self._log.error("the ledger is closed until it can be used again: %s", refusal)
        self.close()
        self._again = monotonic() + REOPEN_AFTER

    def _reopened(self) -> None:
        if self._guard is not None or monotonic() < self._again:
            return
        try:
            self.open()
        except (DpadmmError, OSError) as problem:
            self._again = monotonic() + REOPEN_AFTER
            self._log.error("the ledger cannot be opened: %s", problem)
            return
        for study in self._wanted.values():
            self._enrolled(study)


def _no(study: str, data: bytes, code: str) -> bytes:
    return packed(Message(Kind.REFUSED, study, digest=digest_of(data), code=code))


def _short(study: str) -> str:
    return study[:12]
