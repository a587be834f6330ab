"""A simulated run: snapshots for the status page, with the headline of the server."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import RLock
from typing import Any

from dpadmm.federation.states import FAILURES, headline
from dpadmm.federation.web.server_data import thinned

HASH = "0123456789abcdef" * 4


@dataclass
class LiveRun:
    """Call it for a snapshot. The other methods simulate events."""

    n_sites: int = 10
    n_rounds: int = 100
    name: str = "Income above 50,000"
    state: str = "waiting"
    done: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0
    min_honest_sites: int | None = None
    begun_at: str = "2026-03-02T09:15:00.000+00:00"
    last_round_at: str | None = None
    others: list[dict[str, Any]] = field(default_factory=list)
    """Other studies of the aggregator."""
    since: str | None = None
    stalled: list[str] = field(default_factory=list)
    alarms: list[dict[str, Any]] = field(default_factory=list)
    has_study: bool = True
    more_sites: list[dict[str, Any]] = field(default_factory=list)
    """Sites that are not in the study."""
    lock: Any = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self.sites = [self._site(f"site-{i:02d}") for i in range(1, self.n_sites + 1)]

    def _site(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "state": "silent",
            "answered": 0,
            "epsilon": 0.0,
            "last_seen": None,
            "code": None,
        }

    def arrive(self) -> None:
        with self.lock:
            for site in self.sites:
                site.update(state="present", last_seen=_now())
        self.say(f"all {self.n_sites} sites are here")

    def play(self, rounds: int) -> None:
        """Simulate more rounds, answered by all present sites. The last round ends the run."""
        with self.lock:
            self._play(rounds)

    def _play(self, rounds: int) -> None:
        self.state = "running"
        for _ in range(rounds):
            self.done += 1
            for site in self.sites:
                if site["state"] == "present":
                    site["answered"] += 1
                    spent = math.sqrt(site["answered"] / self.n_rounds)
                    site.update(epsilon=0.9987 * spent, last_seen=_now())
        self.last_round_at = _now() if self.done else None
        if self.done == self.n_rounds:
            self.state = "finished"
            self.say("the study is finished")

    def stall(self, *indices: int) -> None:
        """Let the open round stall because these sites do not answer."""
        with self.lock:
            for index in indices:
                self.sites[index].update(state="silent", last_seen=_now(95))
            self.state, self.since = "stalled", _now(90)
            self.stalled = [self.sites[index]["name"] for index in indices]
            self.alarms = [
                {
                    "code": "stalled",
                    "level": "error",
                    "text": f"{headline(self._plain())}, since {self.since}",
                    "action": "Call these sites",
                    "command": "",
                },
                {
                    "code": "site-cloned",
                    "level": "warning",
                    "text": "two agents have the certificate of site-04: the second one is refused",
                    "action": "Call site-04. If nobody there copied its folder, its key is stolen and must be revoked",
                    "command": "dpadmm server revoke site-04 --folder /srv/dpadmm/a-folder-with-a-long-name",
                },
            ]

    def resume(self) -> None:
        """The silent sites answer again."""
        with self.lock:
            for site in self.sites:
                if site["name"] in self.stalled:
                    site.update(state="present", last_seen=_now())
            self.state, self.since, self.stalled, self.alarms = "running", None, [], []

    def turn(self, index: int, state: str, *, code: str | None = None, ago: float = 0.0) -> None:
        """Change the state of a site."""
        site = self.sites[index]
        site.update(state=state, code=code, last_seen=_now(ago))
        self.say(f"{site['name']} is {state}", "info" if state == "present" else "warning")

    def say(self, text: str, level: str = "info") -> None:
        self.events.append({"seq": len(self.events) + 1, "at": _now(), "level": level, "text": text})

    def changes(self) -> list[float]:
        return [2.0 / k * (1.0 + 0.5 * math.sin(12.9898 * k * k)) + 0.004 for k in range(1, self.done + 1)]

    def studies(self) -> list[dict[str, Any]]:
        here = sum(site["state"] == "present" for site in self.sites)
        own = {
            "name": self.name,
            "hash": HASH,
            "state": self.state,
            "rounds_done": self.done,
            "n_rounds": self.n_rounds,
        }
        own |= {"sites_present": here, "n_sites": self.n_sites, "begun_at": self.begun_at, "last_round_at": None}
        spent = max(site["epsilon"] for site in self.sites)
        return [own | {"seconds_left": None, "epsilon": spent, "planned_epsilon": 1.0}, *self.others]

    def __call__(self, requested: str = "") -> dict[str, Any]:
        with self.lock:
            study = self._snapshot() if self.has_study else None
            return {
                "server": {"host": "study.example.org", "running": True, "connected": True},
                "sites": [*map(_link, self.sites), *self.more_sites],
                "studies": self.studies() if self.has_study else [],
                "alarms": list(self.alarms),
                "study": study,
            }

    def _snapshot(self) -> dict[str, Any]:
        self.asked += 1
        snapshot = self._plain()
        if self.min_honest_sites is None:
            return snapshot
        for i, site in enumerate(snapshot["sites"]):  # secure aggregation
            site.update(epsilon_if_others_collude=2.4 * site["epsilon"], member=i != 1)
        snapshot["study"]["epsilon_if_others_collude"] = 2.4
        rounds = [
            {"round": 3, "reason": "missing", "sites": ["site-02"]},
            {"round": 7, "reason": "garbled", "sites": []},
        ]
        return snapshot | {"min_honest_sites": self.min_honest_sites, "aborted_rounds": rounds[: self.done // 3]}

    def _plain(self) -> dict[str, Any]:
        running = self.state == "running"
        status: dict[str, Any] = {
            "study": {
                "name": self.name,
                "hash": HASH,
                "method": "auto",
                "loss": "logistic",
                "n_rounds": self.n_rounds,
                "epsilon": 1.0,
                "delta": 1e-5,
                "noise_multiplier": 41.7,
                "noise": "41.7000 in round 1 (moments), 65.5000 from round 2 on (preconditioned_gradient)",
                "shape": [104, 1],
            },
            "state": self.state,
            "failing": self.state in FAILURES,
            "error": None,
            "since": self.since,
            "stalled": list(self.stalled),
            "served": True,
            "round": self.done + 1,
            "rounds_done": self.done,
            "deadline_in": 27.0 if running else None,
            "quorum": max(1, self.n_sites * 7 // 10),
            "median_seconds": 0.043 if self.done else None,
            "seconds_left": 0.7 * (self.n_rounds - self.done) if running else None,
            "sites": [dict(site) for site in self.sites],
            "begun_at": self.begun_at,
            "last_round_at": self.last_round_at,
            "changes": thinned(self.changes()),
            "events": list(self.events[-200:]),
        }
        return status | {"headline": headline(status)}


def _link(site: dict[str, Any]) -> dict[str, Any]:
    here = site["state"] in ("present", "late", "missing", "connected")
    return {"name": site["name"], "state": "connected" if here else "silent", "last_seen": site["last_seen"]}


def _now(ago: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="milliseconds")
