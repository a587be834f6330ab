"""The server's side of leases: which process of each site may answer, and the latest position of its ledger.

One process holds a site's lease. The lease becomes free when that process returns it or stops claiming it. It is then
granted to a process whose ledger continues from the site's latest mark, or whose owner restored a backup and was
charged for it. All server processes of a folder share the stored leases, but each measures silence on its own.
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
MAX_PAUSE = 2.0
"""Seconds without any claim after which this process may have lost its connection, so silence proves nothing."""

MAX_INSTANCES = 20
"""Processes of a site whose claims are stored."""

REPORTED_FOR = 60.0
"""Seconds for which a refused process is reported to the lease's holder and in the status."""


class Stored(NamedTuple):
    """The process that holds a site's lease, or None, and the site's latest mark."""

    instance: str | None
    mark: Mark


class Leases(AbstractContextManager["Leases"]):
    """Decides the claims of all sites. The broker authenticates the names of the sites."""

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
        """Times of the first and last claim of a site's latest processes."""
        self._listening = self._last = float("-inf")
        self._contested: dict[str, float] = {}
        self._behind: dict[str, float] = {}

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def doubts(self, now: float) -> dict[str, str]:
        """Return sites with a second process (``cloned``) or an old copy of their ledger (``ledger-behind``)."""
        times = {"ledger-behind": self._behind, "cloned": self._contested}
        return {site: code for code, sites in times.items() for site, at in sites.items() if now - at < REPORTED_FOR}

    def decide(self, site: str, claim: LeaseClaim, now: float) -> Grant | None:
        """Return the reply to a claim; None if the site returns its lease."""
        if now - self._last > MAX_PAUSE:
            self._listening = now
        self._last = now
        claims = self._claims.setdefault(site, {})
        first, before = claims.pop(claim.instance, (now, now))
        if now - before > LEASE_FREE_AFTER:
            first = now  # silent for too long: treated as a new process
        self._claims[site] = dict([*list(claims.items())[1 - MAX_INSTANCES :], (claim.instance, (first, now))])
        try:
            stored = self._stored(site)
            if claim.leaving:
                if stored.instance == claim.instance:
                    self._store(site, stored, Stored(None, max(claim.mark, stored.mark)))
                return None
            verdict = self._verdict(site, claim, stored, first, now)
            if verdict is LeaseReply.GRANTED:
                stored = self._store(site, stored, Stored(claim.instance, claim.mark))
                if stored.instance != claim.instance:  # another process of this folder was faster
                    verdict = LeaseReply.WAIT
        except sqlite3.Error as error:
            self._note("error", "", f"{self._failed(error)}; retrying")
            return None
        contested = now - self._contested.get(site, float("-inf")) < REPORTED_FOR
        return Grant(verdict, claim.instance, claim.number, stored.mark, contested)

    def _verdict(self, site: str, claim: LeaseClaim, stored: Stored, first: float, now: float) -> LeaseReply:
        if stored.instance not in (None, claim.instance):
            last = self._claims[site].get(str(stored.instance), (0.0, float("-inf")))[1]
            if last > first:  # both are running
                self._contested[site] = now
                text = "refused a second process with its certificate: does a copy of the site run?"
                self._note("warning", site, text)
                return LeaseReply.CLONED
            if now - max(last, self._listening) <= LEASE_FREE_AFTER:
                return LeaseReply.WAIT
        if claim.mark.place < stored.mark.place or (
            claim.mark.place == stored.mark.place and claim.mark != stored.mark
        ):
            if stored.instance != claim.instance:  # otherwise this may be an old claim, delivered late
                self._behind[site] = now
                self._note("warning", site, "does not answer: its ledger lacks earlier records. Restore the latest one")
            return LeaseReply.BEHIND
        self._behind.pop(site, None)
        continues = stored.instance == claim.instance or claim.proved == stored.mark.chain
        if stored.mark.seq == 0 or continues or claim.mark.restores > stored.mark.restores:
            return LeaseReply.GRANTED
        return LeaseReply.PROVE

    def _stored(self, site: str) -> Stored:
        query = "SELECT instance, restores, seq, chain FROM leases WHERE site = ?"
        row = self._database.execute(query, (site,)).fetchone()
        return Stored(None, Mark()) if row is None else Stored(row[0], Mark(*row[1:]))

    def _store(self, site: str, before: Stored, now: Stored) -> Stored:
        """Store a lease unless another process of this folder stored one meanwhile; return the stored lease."""
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
        return DPADMMError(f"cannot use {self._path} ({error}), so no site may answer")
