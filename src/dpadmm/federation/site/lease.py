"""Whether this agent may answer for its site: the lease that the aggregator grants to one agent of a site.

Two agents with a copy of the same key and ledger would each answer a round, and spend its budget twice. So an agent
answers while it has the lease. With its claims it says how far its ledger is; the aggregator remembers that, and tells
it to whoever comes next, so that an old copy of a ledger finds out that it is one. Both need an honest aggregator: one
that grants the lease twice, or forgets a mark, undoes this and no other promise (docs/explanation/threat-model.md).
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

CONTESTED = (
    "another agent with this site's certificate wants to answer, and is refused: is there a copy of this folder?"
)
REFUSED = (
    "another agent of this site is answering, so this one does not: is this a copy of its folder? Stop one of them"
)
BEHIND = (
    "the ledger here lacks records that the aggregator knows of: it is an old copy. Nothing is answered. Stop the "
    "agent, and put the latest ledger back, or charge all that may have been released since: dpadmm ledger restore"
)


class Beginnings(NamedTuple):
    """When a claim was made, by two clocks: one may stand still while a machine is suspended."""

    monotonic: float
    wall: float

    def age(self) -> float:
        return max(time.monotonic() - self.monotonic, time.time() - self.wall)


class Lease:
    """``claim`` again and again, and take what is ``heard``; ``held`` says whether an answer may leave now."""

    def __init__(self, ledger: Path, restores: Callable[[], int | None], log: Logger) -> None:
        self._mark_file, self._restores, self._log = ledger / MARK, restores, log
        self._instance, self._number, self._proved = os.urandom(16).hex(), 0, NO_DIGEST
        self._claimed: dict[int, Beginnings] = {}
        self._held_since: Beginnings | None = None
        self._changed = asyncio.Event()
        self.state = "waiting"
        """waiting, held, cloned, behind or left."""
        self.contested = False
        """Whether another agent of this site was refused of late."""

    @property
    def held(self) -> bool:
        return self.state == "held" and self._held_since is not None and self._held_since.age() < LEASE_HOLDS

    async def settled(self, seconds: float) -> None:
        """Wait until the lease is held, or cannot be had."""
        end = time.monotonic() + seconds
        while not self.held and self.state in ("held", "waiting") and (left := end - time.monotonic()) > 0:
            self._changed.clear()
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                return

    def claim(self, *, leaving: bool = False) -> LeaseClaim | None:
        """The next claim; None while there is no ledger to speak of, and after the lease was given back."""
        restores, line = self._restores(), self._line(None)
        if restores is None or line is None or self.state == "left":
            return None
        if leaving:
            self.state = "left"
        self._number += 1
        recent = list(self._claimed.items())[-100:]
        self._claimed = dict([*recent, (self._number, Beginnings(time.monotonic(), time.time()))])
        return LeaseClaim(self._instance, self._number, Mark(restores, *line), self._proved, leaving)

    def heard(self, grant: Grant) -> bool:
        """Take a verdict; returns whether to claim again at once."""
        began = self._claimed.get(grant.number)
        if grant.instance != self._instance or began is None or self.state == "left":
            return False  # to another agent of this site
        before, again = self.state, False
        if grant.verdict is LeaseReply.CLONED:
            self.state = "cloned"
        elif grant.verdict is LeaseReply.WAIT:  # to answer now might disturb the other one
            self.state = "held" if self.held else "waiting"
        elif not self._goes_on_from(grant.mark):
            self.state = "behind"
        elif grant.verdict is LeaseReply.GRANTED:
            self.state, self._held_since = "held", max(began, self._held_since or began)
        elif grant.verdict is LeaseReply.PROVE:
            again, self.state, self._proved = self._proved != grant.mark.chain, "waiting", grant.mark.chain
        self._tell(before, contested=grant.contested)
        self._changed.set()
        return again

    def _goes_on_from(self, mark: Mark) -> bool:
        """Whether the ledger here has the record that a mark is of, or its owner put back an old copy since."""
        restores = self._restores() or 0
        if restores != mark.restores or mark.seq == 0:
            return restores >= mark.restores
        return self._line(mark.seq) == (mark.seq, mark.chain)

    def _line(self, seq: int | None) -> tuple[int, str] | None:
        """A line of the ledger's mark, or its last one: the number of a record, and its chain."""
        try:
            with self._mark_file.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                at = (size // LINE if seq is None else seq) - 1
                if not 0 <= at < size // LINE:
                    return None
                file.seek(at * LINE)
                number, _, chain = file.read(LINE).decode("ascii").strip().partition(" ")
                return int(number), chain
        except (OSError, ValueError):
            return None

    def _tell(self, before: str, *, contested: bool) -> None:
        if contested and not self.contested:
            self._log.error(CONTESTED)
        self.contested = contested
        if self.state != before and self.state in ("cloned", "behind"):
            self._log.error(REFUSED if self.state == "cloned" else BEHIND)
        elif self.state == "held" and before in ("cloned", "behind"):
            self._log.info("this agent answers for its site again")
