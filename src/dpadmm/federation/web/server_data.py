"""The data of a server's pages: its sites, its studies, and its alarms.

Everything comes from the files of the server's folder, so the process that runs a study does no work for the pages.
All values are public: nothing depends on rows except what sites have released.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from dpadmm.errors import DPADMMError
from dpadmm.federation.health import (
    STATUS,
    Alarm,
    Sample,
    ServerStatus,
    Status,
    is_live,
    read_status,
    server_alarms,
    server_samples,
    study_alarms,
    study_samples,
)
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.status import SHORT_HASH, certificates_of, journals, overview, status_of
from dpadmm.matrices.arrays import Floats

SNAPSHOT_SECONDS, FOLDER_SECONDS = 0.25, 2.0
"""Seconds for which a snapshot, and the list of studies with the alarms of the folder, are the latest."""

MAX_EVENTS, MAX_POINTS = 200, 2000
"""Limits of events and of points of the curve that a page receives."""

CONNECTION_STATES = ("connected", "silent", "revoked", "expired", "unknown")
"""States of a site outside of a study that runs (docs/reference/states.md)."""

T = TypeVar("T")


class Cached(Generic[T]):
    """A value that is computed at most once in a while, by one thread at a time. After an error it stays the same."""

    def __init__(self, seconds: float, compute: Callable[[], T], initial: T) -> None:
        self._seconds, self._compute, self._due, self._value = seconds, compute, -math.inf, initial
        self._lock = threading.Lock()

    def get(self) -> T:
        with self._lock:
            if time.monotonic() >= self._due:
                with suppress(DPADMMError, OSError):
                    self._value = self._compute()
                self._due = time.monotonic() + self._seconds
            return self._value


class ServerData:
    """Snapshots of a server's folder."""

    def __init__(self, authority: Authority) -> None:
        self._authority, self._folder = authority, authority.folder
        self._studies: dict[str, Cached[Status | None]] = {}
        self._listed = Cached[list[Status]](FOLDER_SECONDS, lambda: overview(self._folder), [])
        self._alarms = Cached[list[Alarm]](FOLDER_SECONDS, self._folder_alarms, [])
        self._server = Cached[Status | None](SNAPSHOT_SECONDS, self._read_server, None)

    def snapshot(self, requested: str = "") -> Status:
        """Return the state of the server, and of one study: the requested one, else the running or latest one."""
        listed, server = self._listed.get(), self._server.get()
        study = self._study(self._chosen(listed, requested))
        alarms = [*([] if study is None else study_alarms(study, self._folder)), *self._alarms.get()]
        is_running = is_live(server)
        return {
            "server": {
                "host": self._authority.settings.hosts[0],
                "running": is_running,
                "connected": is_running and server is not None and server["connected"],
            },
            "sites": self._sites(server if is_running else None),
            "studies": listed,
            "alarms": [alarm._asdict() for alarm in alarms],
            "study": study,
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the server and of the studies that a process runs."""
        server = self._server.get()
        if server is not None and is_live(server) and "sites" in server:
            yield from server_samples(server, self._folder)
        for listed in self._listed.get():
            if listed["served"] and (study := self._study(listed["hash"])) is not None and study["served"]:
                yield from study_samples(study, self._folder)

    def _chosen(self, listed: Sequence[Status], requested: str) -> str:
        for study in listed:
            if requested and study["hash"].startswith(requested[:SHORT_HASH]):
                return str(study["hash"])
        running = [study for study in listed if study["served"]]
        return str((running or listed)[0]["hash"]) if listed else ""

    def _study(self, hash: str) -> Status | None:
        path = self._folder / "studies" / hash[:SHORT_HASH] / "journal.sqlite"
        if not hash or not path.exists():
            return None
        if hash not in self._studies:
            self._studies[hash] = Cached[Status | None](SNAPSHOT_SECONDS, StudyReader(self._authority, path).read, None)
        return self._studies[hash].get()

    def _sites(self, server: Status | None) -> list[Status]:
        """Return all sites with their connection, which is unknown while ``server start`` does not run."""
        now, contacts = datetime.now(UTC), {} if server is None else server.get("sites", {})
        sites = []
        for site in self._authority.sites():
            contact = contacts.get(site.name)
            if site.revoked or not site.usable(now):
                state = "revoked" if site.revoked else "expired"
            else:
                state = "unknown" if contact is None else "silent" if contact["silent"] else "connected"
            last_seen = None if contact is None else contact["last_seen"]
            sites.append({"name": site.name, "state": state, "last_seen": last_seen})
        return sites

    def _read_server(self) -> Status | None:
        return read_status(self._folder / STATUS, ServerStatus)

    def _folder_alarms(self) -> list[Alarm]:
        studies = bool(journals(self._folder))
        return list(server_alarms(self._folder, certificates_of(self._authority), studies=studies))


class StudyReader:
    """Reads the status of a study, without replaying its journal each time."""

    def __init__(self, authority: Authority, path: Path) -> None:
        self._authority, self._path = authority, path
        self._journal: Journal | None = None
        """Open while a process runs the study."""
        self._changes: list[float] = []
        self._broadcast: Floats
        self._key: tuple[object, ...] = ()
        self._status: Status | None = None

    def read(self) -> Status | None:
        """Return the latest status; the previous one if a file cannot be read now."""
        try:
            live = read_status(self._path.with_name(STATUS), ServerStatus)
            self._status = self._served(live) if live is not None and is_live(live) else self._unserved(live)
        except (DPADMMError, OSError):
            self._close()
        return self._status

    def _served(self, live: Status) -> Status:
        if self._journal is None:
            self._journal, self._changes = Journal.open(self._path, read_only=True), []
        journal, method = self._journal, self._journal.method(1)
        if not self._changes:
            self._broadcast = method.start(journal.study.shape)
        for broadcast in journal.consensus(after=len(self._changes)):
            change = np.linalg.norm(method.model(broadcast) - method.model(self._broadcast))
            self._changes.append(float(change))
            self._broadcast = broadcast
        snapshot = live.pop("snapshot")
        stalls = [stall._asdict() for stall in journal.stalls()[-MAX_EVENTS:]]
        events = [event._asdict() for event in journal.events(MAX_EVENTS)]
        status = snapshot | {"changes": self._changes, "events": events, "stalls": stalls}
        return _for_page(status | {"served": True, "live": live})

    def _unserved(self, live: Status | None) -> Status | None:
        self._close()
        wal = self._path.with_name(f"{self._path.name}-wal")
        key = tuple((each.stat().st_mtime_ns, each.stat().st_size) for each in (self._path, wal) if each.exists())
        if self._status is None or self._key != (key, live):
            self._status = _for_page(status_of(self._authority, self._path))
            self._key = (key, live)
        return self._status

    def _close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def _for_page(status: Status) -> Status:
    """Return a status without numbers of rows, and with a curve of limited size."""
    sites = [{key: value for key, value in site.items() if key != "rows"} for site in status["sites"]]
    return status | {"sites": sites, "changes": thinned(status["changes"]), "events": status["events"][-MAX_EVENTS:]}


def thinned(values: Sequence[float | None], most: int = MAX_POINTS) -> list[tuple[int, float]]:
    """Return (round, value) for a logarithmic axis: at most ``most``, the extremes of each interval and the last one.

    Examples
    --------
    >>> thinned([3.0, None, 0.0, 1.0])
    [(1, 3.0), (4, 1.0)]
    >>> thinned([float(k) for k in range(1, 11)], most=5)
    [(1, 1.0), (5, 5.0), (6, 6.0), (10, 10.0)]
    """
    points = [(k, value) for k, value in enumerate(values, start=1) if value is not None and value > 0.0]
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / (most - 1))
    extremes: set[tuple[int, float]] = {points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        extremes.add(min(stretch, key=lambda point: point[1]))
        extremes.add(max(stretch, key=lambda point: point[1]))
    return sorted(extremes)
