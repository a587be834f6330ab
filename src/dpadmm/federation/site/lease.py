"""The site's side of its lease: the server lets one process per site answer.

Two processes with copies of the same key and ledger would both answer a round and spend its budget twice. A process
therefore answers only while it holds the lease. Each claim contains the position of the ledger. The server stores it
and sends it to later claimants, so a process with an old copy of the ledger detects this. Both checks need an honest
server. A server that grants a lease twice or discards a mark disables these checks, but breaks no other guarantee
(docs/explanation/threat-model.md).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from logging import Logger
from pathlib import Path
from typing import NamedTuple

from dpadmm.federation.protocol import LEASE_HOLDS, NO_DIGEST, Grant, LeaseClaim, LeaseReply, Mark
from dpadmm.trusted.ledger import LINE, MARK

CONTESTED = "a second process with this site's certificate was refused: does a copy of this folder run? Stop it"
REFUSED = "refused: another process answers for this site. Is this a copy of its folder? Stop one of them"
BEHIND = (
    "no study is answered: the server has seen later records of this ledger, so it is an old copy. Stop this process, "
    "then put the latest ledger back, or charge all possible releases since this copy: dpadmm site restore"
)


class Beginnings(NamedTuple):
    """The time of a claim by two clocks. The monotonic clock may stop while a machine is suspended."""

    monotonic: float
    wall: float

    def age(self) -> float:
        return max(time.monotonic() - self.monotonic, time.time() - self.wall)


class Lease:
    """Send ``claim`` repeatedly and pass the replies to ``apply``; answer only while ``held``."""

    def __init__(self, ledger: Path, restores: Callable[[], int | None], log: Logger) -> None:
        self._mark_file, self._restores, self._log = ledger / MARK, restores, log
        self._instance, self._number, self._proved = os.urandom(16).hex(), 0, NO_DIGEST
        self._claimed: dict[int, Beginnings] = {}
        self._held_since: Beginnings | None = None
        self._changed = asyncio.Event()
        self.state = "waiting"
        """waiting, held, cloned, behind or left."""
        self.contested = False
        """Whether another process of this site was refused recently."""

    @property
    def held(self) -> bool:
        """Whether this process may answer now."""
        return self.state == "held" and self._held_since is not None and self._held_since.age() < LEASE_HOLDS

    async def settled(self, seconds: float) -> None:
        """Wait until the lease is held or refused, at most ``seconds``."""
        end = time.monotonic() + seconds
        while not self.held and self.state in ("held", "waiting") and (left := end - time.monotonic()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return

    def claim(self, *, leaving: bool = False) -> LeaseClaim | None:
        """Return the next claim; None while the ledger is not open, and after the lease was returned."""
        restores, line = self._restores(), self._line(None)
        if restores is None or line is None or self.state == "left":
            return None
        if leaving:
            self.state = "left"
        self._number += 1
        recent = list(self._claimed.items())[-100:]
        self._claimed = dict([*recent, (self._number, Beginnings(time.monotonic(), time.time()))])
        return LeaseClaim(self._instance, self._number, Mark(restores, *line), self._proved, leaving)

    def apply(self, grant: Grant) -> bool:
        """Apply the server's reply; return whether to claim again immediately."""
        began = self._claimed.get(grant.number)
        if grant.instance != self._instance or began is None or self.state == "left":
            return False  # for another process of this site
        before, again = self.state, False
        if grant.verdict is LeaseReply.CLONED:
            self.state = "cloned"
        elif grant.verdict is LeaseReply.WAIT:  # the other process may still answer
            self.state = "held" if self.held else "waiting"
        elif not self._continues_from(grant.mark):
            self.state = "behind"
        elif grant.verdict is LeaseReply.GRANTED:
            self.state, self._held_since = "held", max(began, self._held_since or began)
        elif grant.verdict is LeaseReply.PROVE:
            again, self.state, self._proved = self._proved != grant.mark.chain, "waiting", grant.mark.chain
        self._log_changes(before, contested=grant.contested)
        self._changed.set()
        return again

    def _continues_from(self, mark: Mark) -> bool:
        """Return whether this ledger contains the record of a mark, or its owner restored a backup since."""
        restores = self._restores() or 0
        if restores != mark.restores or mark.seq == 0:
            return restores >= mark.restores
        return self._line(mark.seq) == (mark.seq, mark.chain)

    def _line(self, seq: int | None) -> tuple[int, str] | None:
        """Return a line of the ledger's mark file (the last one for None): the number of a record and its chain."""
        try:
            with self._mark_file.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                index = (size // LINE if seq is None else seq) - 1
                if not 0 <= index < size // LINE:
                    return None
                file.seek(index * LINE)
                number, _, chain = file.read(LINE).decode("ascii").strip().partition(" ")
                return int(number), chain
        except (OSError, ValueError):
            return None

    def _log_changes(self, before: str, *, contested: bool) -> None:
        if contested and not self.contested:
            self._log.error(CONTESTED)
        self.contested = contested
        if self.state != before and self.state in ("cloned", "behind"):
            self._log.error(REFUSED if self.state == "cloned" else BEHIND)
        elif self.state == "held" and before in ("cloned", "behind"):
            self._log.info("lease granted: this process answers again")
