"""Which agent of a site may answer, and how far the ledger of each site was: at the aggregator, for all of its studies.

A site's lease is with one agent at a time, and free when that one has given it back or has not claimed it for a while.
It goes to an agent whose ledger goes on from the latest mark of the site, or whose owner put back an old copy and was
charged for it. Processes of one folder share what is stored; that another agent is silent each hears for itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from dpadmm.errors import DPADMMError
from dpadmm.federation.protocol import LEASE_FREE_AFTER, Grant, LeaseClaim, LeaseReply, Mark

FILE = "leases.sqlite"
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS leases "
    "(site TEXT PRIMARY KEY, instance TEXT, restores INTEGER, seq INTEGER, chain TEXT)"
)
DEAF = 2.0
"""Seconds without any claim after which this process may have been deaf, and takes no silence for an answer."""

MOST_AGENTS = 20
"""Agents of a site that are remembered."""

TOLD_FOR = 60.0
"""Seconds for which the holder of a lease, and the status, are told that another agent was refused."""


class Stored(NamedTuple):
    """The agent that has the lease of a site, if one has, and the latest mark."""

    instance: str | None
    mark: Mark


class Leases(AbstractContextManager["Leases"]):
    """``heard`` a claim of a site, whose name the broker guarantees: the answer to it."""

    def __init__(self, folder: Path, note: Callable[[str, str, str], None] = lambda *_: None) -> None:
        self._note, self._path = note, folder / FILE
        try:
            self._database = sqlite3.connect(self._path, isolation_level=None, timeout=5.0, check_same_thread=False)
            self._path.chmod(0o600)
            for command in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", SCHEMA):
                self._database.execute(command).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._claims: dict[str, dict[str, tuple[float, float]]] = {}
        """First and last claim of the latest agents of a site."""
        self._listening = self._last = float("-inf")
        self._contested: dict[str, float] = {}
        self._behind: dict[str, float] = {}

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def doubts(self, now: float) -> dict[str, str]:
        """Sites of which a copy runs, or that have an old copy of their ledger: ``cloned`` or ``ledger-behind``."""
        seen = {"ledger-behind": self._behind, "cloned": self._contested}
        return {site: code for code, sites in seen.items() for site, at in sites.items() if now - at < TOLD_FOR}

    def heard(self, site: str, claim: LeaseClaim, now: float) -> Grant | None:
        if now - self._last > DEAF:
            self._listening = now
        self._last = now
        claims = self._claims.setdefault(site, {})
        first, before = claims.pop(claim.instance, (now, now))
        if now - before > LEASE_FREE_AFTER:
            first = now  # it was away, and is as good as new
        self._claims[site] = dict([*list(claims.items())[1 - MOST_AGENTS :], (claim.instance, (first, now))])
        try:
            stored = self._stored(site)
            if claim.leaving:
                if stored.instance == claim.instance:
                    self._kept(site, stored, Stored(None, max(claim.mark, stored.mark)))
                return None
            verdict = self._verdict(site, claim, stored, first, now)
            if verdict is LeaseReply.GRANTED:
                stored = self._kept(site, stored, Stored(claim.instance, claim.mark))
                if stored.instance != claim.instance:  # another process of this folder was faster
                    verdict = LeaseReply.WAIT
        except sqlite3.Error as error:
            self._note("error", "", f"{self._failed(error)}; trying again")
            return None
        contested = now - self._contested.get(site, float("-inf")) < TOLD_FOR
        return Grant(verdict, claim.instance, claim.number, stored.mark, contested)

    def _verdict(self, site: str, claim: LeaseClaim, stored: Stored, first: float, now: float) -> LeaseReply:
        if stored.instance not in (None, claim.instance):
            last = self._claims[site].get(str(stored.instance), (0.0, float("-inf")))[1]
            if last > first:  # both are there
                self._contested[site] = now
                text = "a second agent with its certificate is there, and is refused: does a copy of the site run?"
                self._note("warning", site, text)
                return LeaseReply.CLONED
            if now - max(last, self._listening) <= LEASE_FREE_AFTER:
                return LeaseReply.WAIT
        if claim.mark.place < stored.mark.place or (
            claim.mark.place == stored.mark.place and claim.mark != stored.mark
        ):
            if stored.instance != claim.instance:  # else it may be an older claim, of which another process knows more
                self._behind[site] = now
                self._note("warning", site, "its ledger lacks records that it had before, so that it does not answer")
            return LeaseReply.BEHIND
        self._behind.pop(site, None)
        goes_on = stored.instance == claim.instance or claim.proved == stored.mark.chain
        if stored.mark.seq == 0 or goes_on or claim.mark.restores > stored.mark.restores:
            return LeaseReply.GRANTED
        return LeaseReply.PROVE

    def _stored(self, site: str) -> Stored:
        query = "SELECT instance, restores, seq, chain FROM leases WHERE site = ?"
        row = self._database.execute(query, (site,)).fetchone()
        return Stored(None, Mark()) if row is None else Stored(row[0], Mark(*row[1:]))

    def _kept(self, site: str, before: Stored, now: Stored) -> Stored:
        """Store a lease unless another process of this folder did meanwhile; what is stored then."""
        if now != before:
            self._database.execute(
                "INSERT INTO leases VALUES (?, ?, ?, ?, ?) ON CONFLICT (site) DO UPDATE SET "
                "instance = excluded.instance, restores = excluded.restores, seq = excluded.seq, "
                "chain = excluded.chain "
                "WHERE instance IS ? AND (restores, seq) <= (excluded.restores, excluded.seq)",
                (site, now.instance, *now.mark, before.instance),
            )
        return self._stored(site)

    def _failed(self, error: sqlite3.Error) -> DPADMMError:
        return DPADMMError(f"{self._path} cannot be used ({error}), so that no site may answer")
