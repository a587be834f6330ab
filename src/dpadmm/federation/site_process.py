"""A site's long-running process: connects out, answers the studies that its owner accepted, and logs here.

It listens on no port. Nothing that arrives can make it do anything but answer a round, or refuse it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from dpadmm.errors import DpadmmError
from dpadmm.federation.desk import Desk
from dpadmm.federation.joining import Identity, site_identity
from dpadmm.federation.nats_link import Link, Mailbox
from dpadmm.federation.site_studies import STATUS, Decision, decisions
from dpadmm.federation.tasks import ended
from dpadmm.files import atomic_file
from dpadmm.site import Site
from dpadmm.study import Study

LOOK_EVERY = 1.0
"""Seconds between two looks at what the owner decided."""

LOG = "agent.log"


class SiteProcess:
    """One site: its desk, its connection, and the owner's decisions as they change."""

    def __init__(self, site: Site, log: logging.Logger) -> None:
        self._site, self._log = site, log
        self._folder = site.path.parent
        self._identity: Identity = site_identity(self._folder)
        self._desk = Desk(site.guard, site.policy.unit.rows, log)
        self._mail: Mailbox | None = None
        self._decided: dict[str, Decision] = {}
        self._worries: set[str] = set()
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._joined: tuple[tuple[str, int, int], ...] = ()
        self._status: dict[str, Any] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop``; refused at once where the ledger is another's."""
        self._desk.open()
        self._mail = Mailbox(most=1)  # a newer request of a study makes an older one moot
        identity, pool = self._identity, ThreadPoolExecutor(1, thread_name_prefix="desk")
        try:
            async with Link(
                identity.url,
                self._context,
                self._heard,
                self._log,
                name=identity.name,
            ) as link:
                tasks = [
                    asyncio.create_task(self._look(link, pool)),
                    asyncio.create_task(self._answer(link, pool)),
                ]
                stopped = asyncio.create_task(stop.wait())
                done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
                await ended(*tasks, stopped)
                for task in done - {stopped}:
                    task.result()  # neither ends by itself
        finally:
            pool.shutdown(wait=True)
            self._desk.close()
            self._write_status(connected=False, running=False)

    def _context(self) -> ssl.SSLContext:
        """How to connect, with the certificate as it is now: it may be renewed."""
        self._identity = identity = site_identity(self._folder)
        if not identity.usable():
            text = (
                f"this site's certificate ended {identity.expires:%Y-%m-%d %H:%M} UTC, and the clock says "
                f"{datetime.now(UTC):%Y-%m-%d %H:%M}: send network/request.json to the aggregator again, and "
                "join with the new invitation"
            )
            raise DpadmmError(text)
        return identity.client_context()

    def _heard(self, subject: str, data: bytes) -> None:
        """Keep a message of a study that was decided about; others are none that this site asked for."""
        study = subject.removeprefix("dpadmm.").removesuffix(".down")
        if study in self._decided and self._mail is not None:
            self._mail.put(study, data)

    async def _answer(self, link: Link, pool: ThreadPoolExecutor) -> None:
        assert self._mail is not None
        loop = asyncio.get_running_loop()
        while True:
            received = await self._mail.take()
            if received is not None:
                study, data = received
                said = await loop.run_in_executor(pool, self._desk.answer, study, data)
                if said is not None:
                    await link.say(f"dpadmm.{study}.up.{self._identity.name}", said)

    async def _look(self, link: Link, pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(pool, self._heed)
        if not any(made.decision == "accepted" for made in self._decided.values()):
            self._log.info("no study is accepted yet: dpadmm agent review STUDY --accept")
        while True:
            await loop.run_in_executor(pool, self._heed)
            for hash, made in self._decided.items():
                if made.decision != "declined":  # who left says so
                    await link.hear(f"dpadmm.{hash}.down")
            self._write_status(connected=link.connected, running=True)
            await asyncio.sleep(LOOK_EVERY)

    def _heed(self) -> None:
        """Do what the owner decided since the last look."""
        seen = _dates(self._folder / "studies")
        if seen == self._seen:
            return
        self._seen = seen
        for made in decisions(self._folder, self._worry):
            known = self._decided.get(made.study.hash)
            if known is not None and known[:2] == made[:2]:
                continue
            if made.decision == "accepted":
                self._desk.accept(made.study)
            elif not self._left(made):
                self._seen = ()  # at the next look again
                continue
            self._decided[made.study.hash] = made

    def _left(self, made: Decision) -> bool:
        """Answer a study no more that the owner left or declined, whatever was decided before."""
        short = made.study.hash[:12]
        try:
            self._desk.leave(made.study, declined=made.decision == "declined")
        except DpadmmError as problem:  # a full disk, say; it is answered no more in any case
            text = (
                f"{short}: {made.decision}, but still open in the ledger: {problem}; tried again until it is"
            )
            self._worry(DpadmmError(text))
            return False
        self._log.info("%s: %s, as the owner decided", short, made.decision)
        return True

    def _worry(self, problem: DpadmmError) -> None:
        """A line in the log, once; it is looked at again until it is cured."""
        self._seen = ()
        if str(problem) not in self._worries:
            self._worries.add(str(problem))
            self._log.error("%s", problem)

    def _write_status(self, *, connected: bool, running: bool) -> None:
        rounds = self._desk.rounds() if running else {}
        joined = _dates(self._folder / "network")
        if joined != self._joined:
            self._joined = joined
            with suppress(DpadmmError):  # it may be renewed
                self._identity = site_identity(self._folder)
        table: dict[str, Any] = {
            "running": running,
            "pid": os.getpid() if running else None,
            "connected": connected,
            "site": self._identity.name,
            "broker": self._identity.url,
            "certificate_expires": self._identity.expires.isoformat(timespec="seconds"),
            "studies": [
                _about(made.study, made.decision, rounds.get(hash)) for hash, made in self._decided.items()
            ],
        }
        if table == self._status and running:
            return
        self._status = table
        at = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
        with suppress(OSError), atomic_file(self._folder / STATUS) as out:
            out.write(json.dumps(table | at, indent=2).encode() + b"\n")


def _dates(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What a look at a folder shows; the same again if nothing was changed."""
    with suppress(OSError), os.scandir(folder) as entries:
        found = ((entry.name, entry.stat()) for entry in entries)
        return tuple(sorted((name, about.st_ctime_ns, about.st_size) for name, about in found))
    return ()


def _about(study: Study, decision: str, last_round: int | None) -> dict[str, Any]:
    serving = decision == "accepted" and last_round is not None
    return {
        "name": study.name,
        "hash": study.hash,
        "decision": decision,
        "answering": serving,
        "last_round": last_round,
        "n_rounds": study.settings.n_rounds,
    }


class _NotHere:
    """A finder of modules that does not let some be found."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not loaded in agents", name=name)


def stay_small() -> None:
    """Keep pyarrow from loading pandas where it is installed, and from keeping memory that it has used.

    40 MB for what an agent never does, and 15 MB of a table that was read.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NotHere())


class _PrivateFile(RotatingFileHandler):
    """A log for its owner alone, also after it was begun anew."""

    def _open(self) -> Any:
        os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
        return super()._open()


def make_log(folder: Path, *, loud: bool) -> logging.Logger:
    """A log of this site: a file for its owner alone, and the terminal. Neither rows nor keys are in it."""
    log = logging.getLogger(f"dpadmm.site.{folder}")
    log.setLevel(logging.INFO)
    log.propagate = False
    form = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    path = folder / LOG
    handlers: list[logging.Handler] = [_PrivateFile(path, maxBytes=2**20, backupCount=3)]
    if loud:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(form)
        log.addHandler(handler)
    logging.raiseExceptions = False  # a full disk may cost lines, not answers
    return log
