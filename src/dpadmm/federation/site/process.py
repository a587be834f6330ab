"""The long-running process of a site: connects to the broker and answers the studies that its owner accepted.

It opens no port, and no message can make it do anything but answer a round or refuse it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from dpadmm._base.errors import DpadmmError
from dpadmm._base.files import atomic_file
from dpadmm.federation.nats.link import SiteLink, until_one_ends
from dpadmm.federation.pki.joining import site_identity
from dpadmm.federation.site.decisions import STATUS, Decision, decisions
from dpadmm.federation.site.responder import Responder
from dpadmm.site.site import Site

CHECK_EVERY = 1.0
"""Seconds between checks for new decisions of the owner."""

LOG = "agent.log"


class SiteProcess:
    """One site: its responder, its connection, and the decisions of its owner."""

    def __init__(self, site: Site, log: logging.Logger) -> None:
        self._site, self._log = site, log
        self._folder = site.path.parent
        self._identity = site_identity(self._folder)
        self._responder = Responder(site.guard, site.policy.unit.rows, log)
        self._decided: dict[str, Decision] = {}
        self._logged: set[str] = set()
        self._studies_seen: tuple[tuple[str, int, int], ...] = ()
        self._network_seen: tuple[tuple[str, int, int], ...] = ()
        self._status: dict[str, Any] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; refused if another process holds the ledger."""
        self._responder.open()
        identity, pool = self._identity, ThreadPoolExecutor(1, thread_name_prefix="responder")
        try:
            async with SiteLink(identity.name, identity.url, self._context, self._log) as link:
                answering = (self._follow_decisions(link, pool), link.answer(self._responder.answer, pool))
                await until_one_ends(stop.wait(), *answering)  # answering ends only by an error
        finally:
            pool.shutdown(wait=True)
            self._responder.close()
            self._write_status(connected=False, running=False)

    def _context(self) -> ssl.SSLContext:
        """The TLS context with the current certificate, which may have been renewed."""
        self._identity = identity = site_identity(self._folder)
        if not identity.usable():
            text = (
                f"this site's certificate expired at {identity.expires:%Y-%m-%d %H:%M} UTC (it is now "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M}): send network/request.json to the aggregator again, "
                "and join with the new invitation"
            )
            raise DpadmmError(text)
        return identity.client_context()

    async def _follow_decisions(self, link: SiteLink, pool: ThreadPoolExecutor) -> None:
        loop, first = asyncio.get_running_loop(), True
        while True:
            await loop.run_in_executor(pool, self._apply_decisions)
            if first and not any(decision.kind == "accepted" for decision in self._decided.values()):
                self._log.info("no accepted study yet; accept one with dpadmm agent review STUDY --accept")
            first = False
            for hash, decision in self._decided.items():
                if decision.kind != "declined":  # studies that were left get a refusal
                    await link.follow(hash)
            self._write_status(connected=link.connected, running=True)
            await asyncio.sleep(CHECK_EVERY)

    def _apply_decisions(self) -> None:
        seen = _fingerprint(self._folder / "studies")
        if seen == self._studies_seen:
            return
        self._studies_seen = seen
        for decision in decisions(self._folder, self._log_once):
            known = self._decided.get(decision.study.hash)
            if known is not None and known[:2] == decision[:2]:
                continue
            if decision.kind == "accepted":
                self._responder.accept(decision.study)
            elif not self._left(decision):
                continue
            self._decided[decision.study.hash] = decision

    def _left(self, decision: Decision) -> bool:
        """Stop to answer a study that the owner left or declined."""
        short = decision.study.hash[:12]
        try:
            self._responder.leave(decision.study, declined=decision.kind == "declined")
        except DpadmmError as problem:  # such as a full disk; it gets no more answers in any case
            self._log_once(f"{short}: {decision.kind}, but still open in the ledger; trying again: {problem}")
            return False
        self._log.info("%s: %s by the owner", short, decision.kind)
        return True

    def _log_once(self, problem: object) -> None:
        """Log a problem once, and check again until it is resolved."""
        self._studies_seen = ()
        if str(problem) not in self._logged:
            self._logged.add(str(problem))
            self._log.error("%s", problem)

    def _write_status(self, *, connected: bool, running: bool) -> None:
        rounds = self._responder.rounds() if running else {}
        joined = _fingerprint(self._folder / "network")
        if joined != self._network_seen:
            self._network_seen = joined
            with suppress(DpadmmError):  # the files are just being renewed
                self._identity = site_identity(self._folder)
        table: dict[str, Any] = {
            "running": running,
            "pid": os.getpid() if running else None,
            "connected": connected,
            "site": self._identity.name,
            "broker": self._identity.url,
            "certificate_expires": self._identity.expires.isoformat(timespec="seconds"),
            "studies": [_study_status(each, rounds.get(hash)) for hash, each in self._decided.items()],
        }
        if table == self._status and running:
            return
        self._status = table
        at = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
        with suppress(OSError), atomic_file(self._folder / STATUS) as out:
            out.write(json.dumps(table | at, indent=2).encode() + b"\n")


def _fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the files in a folder: equal unless something changed."""
    with suppress(OSError), os.scandir(folder) as entries:
        found = ((entry.name, entry.stat()) for entry in entries)
        return tuple(sorted((name, about.st_ctime_ns, about.st_size) for name, about in found))
    return ()


def _study_status(decision: Decision, last_round: int | None) -> dict[str, Any]:
    study = decision.study
    return {
        "name": study.name,
        "hash": study.hash,
        "decision": decision.kind,
        "answering": decision.kind == "accepted" and last_round is not None,
        "last_round": last_round,
        "n_rounds": study.training.planned_rounds,
    }


class _ForgivingHandler(logging.Handler):
    """A full disk or a closed terminal may cost log lines, but no answers."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the line."""


class _TerminalHandler(_ForgivingHandler, logging.StreamHandler[Any]):
    pass


class _PrivateFileHandler(_ForgivingHandler, RotatingFileHandler):
    """A rotating log that only its owner can read."""

    def _open(self) -> Any:
        os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
        return super()._open()


def make_log(folder: Path, *, terminal: bool) -> logging.Logger:
    """The log of this site: a private file and, on request, the terminal. It contains no rows and no keys."""
    log = logging.getLogger(f"dpadmm.agent.{folder}")
    log.setLevel(logging.INFO)
    log.propagate = False
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    handlers: list[logging.Handler] = [_PrivateFileHandler(folder / LOG, maxBytes=2**20, backupCount=3)]
    if terminal:
        handlers.append(_TerminalHandler())
    for handler in handlers:
        handler.setFormatter(form)
        log.addHandler(handler)
    return log
