"""How an agent or an aggregator is: status files, alarms, and metrics for Prometheus.

A running process writes its status every second; it lives if that is not long ago. A process ID says nothing where
processes are in containers. All numbers are public: rounds, times, certificates, disk space; nothing is about rows.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec

from dpadmm.errors import StudyError
from dpadmm.federation.protocol import SILENT_AFTER, LastContact
from dpadmm.federation.states import CANNOT_CONTINUE, SiteState, StudyState, refusal_text
from dpadmm.files.atomic import atomic_file

STATUS = "status.json"
STALE_AFTER = 10.0
"""Seconds after which a status is no sign of life any more."""

FULL_DISK, SMALL_DISK = 2**24, 2**30
"""Free bytes below which nothing can be recorded soon, and below which an owner should know."""

CERTIFICATE_DAYS, MAX_CLOCK_DIFFERENCE, UNCONNECTED_AFTER = 30, 60.0, 60.0
"""Days before a certificate expires, seconds between clocks, and seconds without a connection, that are alarming."""

Status = dict[str, Any]


AlarmCode = Literal[
    "not-running", "not-connected", "stalled", "site-silent", "site-left-out", "site-refused", "site-cloned",
    "site-revoked", "aggregator-silent", "ledger-closed", "ledger-behind", "cloned", "study-blocked",
    "disk-full", "disk-small", "certificate", "clock",
]  # fmt: skip
"""All there are: docs/how-to/operations.md has an entry for each."""


class Alarm(NamedTuple):
    """A condition to act on, as docs/how-to/operations.md explains. An ``error`` is unhealthy, a ``warning`` is not."""

    code: AlarmCode
    level: str
    text: str
    action: str = ""
    """What to do."""
    command: str = ""
    """A command for that, complete with its arguments."""

    @property
    def line(self) -> str:
        """The alarm in one line, which ends with the command so that it can be copied."""
        parts = [f"{self.level} {self.code}: {self.text}", *([self.action] if self.action else [])]
        return ". ".join(parts) + (f": {self.command}" if self.command else "")


def command_line(*words: object) -> str:
    """A command that works in a shell as printed.

    Examples
    --------
    >>> command_line("aggregator", "revoke", "a", "--folder", Path("/srv/my hub"))
    "dpadmm aggregator revoke a --folder '/srv/my hub'"
    """
    return shlex.join(["dpadmm", *(str(word.absolute() if isinstance(word, Path) else word) for word in words)])


def now_text(seconds_ago: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds")


def sign_of_life(seen: LastContact | None, since: float) -> Status:
    """What is told of a site that was last heard so many seconds ago, by a sign of life or by an answer."""
    return {
        "last_seen": None if since == math.inf else now_text(since),
        "silent": since > SILENT_AFTER,
        "clock_difference": None if seen is None else round(seen.clock_difference, 1),
    }


def write_status(folder: Path, table: Status) -> None:
    """Write the current status. On a full disk, replace the file's content within the space that it has."""
    text = json.dumps(table | {"at": now_text()}, indent=2, allow_nan=False).encode() + b"\n"
    data = text.ljust(BLOCK * (1 + (len(text) + SPARE) // BLOCK))
    try:
        with atomic_file(folder / STATUS, durable=False) as out:
            out.write(data)
    except OSError:
        with suppress(OSError):
            _overwrite(folder / STATUS, text)


BLOCK, SPARE = 4096, 1024
"""A status file has whole blocks, with so many bytes left for a longer status."""


def _overwrite(path: Path, text: bytes) -> None:
    """Replace the content of a file. If the text needs more space, only the file's time changes."""
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if len(text) <= size:
            file.seek(0)
            file.write(text.ljust(size))
    os.utime(path)


class AggregatorStatus(TypedDict):
    """What ``serve`` (with a ``snapshot``) and ``broker`` (with ``sites``) write."""

    at: str
    running: bool
    connected: bool
    broker: str
    snapshot: NotRequired[dict[str, Any]]
    sites: NotRequired[dict[str, Any]]


class StudyStatus(TypedDict):
    """A study in the status of an agent."""

    name: str
    hash: str
    state: str
    """One of ``Participation``."""
    reason: str | None
    """Why it is blocked."""
    last_round: int | None
    n_rounds: int | None
    asked_at: str | None
    deadline_at: str | None


class AgentStatus(TypedDict):
    """What an agent writes."""

    at: str
    running: bool
    pid: int | None
    connected: bool
    connection_since: str
    aggregator_silent: bool
    clock_difference: float | None
    ledger_works: bool
    lease: str
    contested: bool
    site: str
    broker: str
    certificate_expires: str
    problems: list[str]
    """What is wrong with files of the owner's decisions."""
    studies: list[StudyStatus]


def read_status(path: Path, kind: type = AgentStatus) -> Status | None:
    """The last status of a process, or None if there is none."""
    try:
        if not path.exists():
            return None
        status: Status = dict(msgspec.json.decode(path.read_bytes(), type=kind))
        return status | {"at": _latest(status["at"], path.stat().st_mtime)}
    except (OSError, ValueError, RecursionError):
        text = "damaged, or not a status of this version; restart the process that writes it, or delete it"
        raise StudyError(f"{path}: {text}") from None


def _latest(at: str, modified: float) -> str:
    """The time of a status, or that of its file if the disk was too full to write another status."""
    written = datetime.fromtimestamp(modified, UTC)
    return (
        at if seconds_since(at) <= seconds_since(written.isoformat()) + 1.0 else written.isoformat(timespec="seconds")
    )


def seconds_since(at: str) -> float:
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
    except (TypeError, ValueError):  # not a time with its zone
        return math.inf


def is_live(status: Status | None) -> bool:
    """Whether its process gave a sign of life in the last seconds."""
    return status is not None and bool(status["running"]) and abs(seconds_since(status["at"])) < STALE_AFTER


def days_left(expires: datetime | str) -> int:
    end = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
    return (end - datetime.now(UTC)).days


def disk_alarms(folder: Path) -> Iterator[Alarm]:
    free = shutil.disk_usage(folder).free
    if free < SMALL_DISK:
        text, action = f"{free / 2**20:,.0f} MB are free for {folder}", "Make room on this disk"
        if free < FULL_DISK:
            yield Alarm("disk-full", "error", text, action)
        else:
            yield Alarm("disk-small", "warning", text, action)


def certificate_alarms(whose: str, expires: datetime | str, *, own: bool) -> Iterator[Alarm]:
    if (days := days_left(expires)) < CERTIFICATE_DAYS:
        when = f"expires in {days} days" if days >= 0 else f"expired {-days} days ago"
        level, text = "error" if own and days < 0 else "warning", f"the certificate of {whose} {when}"
        yield Alarm("certificate", level, text, "Renew it: docs/how-to/renew-revoke-back-up.md")


def clock_alarms(whose: str, difference: float | None) -> Iterator[Alarm]:
    if difference is not None and abs(difference) > MAX_CLOCK_DIFFERENCE:
        side = "ahead of" if difference > 0 else "behind"
        text = f"the clock of {whose} is {abs(difference):,.0f} seconds {side} this machine's"
        yield Alarm("clock", "warning", text, "Start NTP on the machine whose clock is wrong")


class Clock:
    """Notices when the clock of this machine is set, since certificates are judged by it."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def jump(self) -> str | None:
        """What happened since the last call, if the clock was set by more than a minute."""
        before, self._offset = self._offset, time.time() - time.monotonic()
        by = self._offset - before
        if abs(by) <= MAX_CLOCK_DIFFERENCE:
            return None
        way = "ahead" if by > 0 else "back"
        return (
            f"the clock of this machine jumped {way} by {abs(by):,.0f} seconds, or the machine was suspended: it shows "
            f"{now_text()}. If that is wrong, correct it: sites whose certificates are not valid then cannot connect"
        )


def not_running(what: str, seen: Status | None, action: str, command: str) -> Alarm:
    when = "is not running" if seen is None else f"gave no sign of life since {seen['at']}"
    if seen is not None and not seen["running"]:
        when = f"was stopped at {seen['at']}"
    return Alarm("not-running", "error", f"{what} {when}", action, command)


def has_site_alarm(reason: str) -> bool:
    """Whether an alarm of the whole site covers the reason why a study is blocked."""
    return reason.startswith("ledger-") or reason in ("cloned", "not-connected", "decision-unusable")


def agent_alarms(seen: Status | None, folder: Path) -> list[Alarm]:
    """The alarms of a site, of its last status."""
    found = list(disk_alarms(folder))
    site = folder / "site.toml"
    if seen is None or not is_live(seen):
        return [not_running("the agent", seen, "To start it", command_line("agent", "run", "--site", site)), *found]
    if not seen["connected"]:
        level = "error" if seconds_since(seen["connection_since"]) > UNCONNECTED_AFTER else "warning"
        text = f"no connection to {seen['broker']} since {seen['connection_since']}"
        command = command_line("agent", "check", site, "--connect")
        found.append(Alarm("not-connected", level, text, "To find the cause", command))
    elif seen["aggregator_silent"]:
        text = "connected to the broker, but the aggregator gives no sign of life"
        found.append(Alarm("aggregator-silent", "warning", text))
    if not seen["ledger_works"]:
        found.append(Alarm("ledger-closed", "error", "the ledger failed, so that nothing is answered", "See agent.log"))
    if seen["lease"] == "behind":
        text = "the ledger is an old copy, by what the aggregator knows, so that nothing is answered"
        found.append(Alarm("ledger-behind", "error", text))
    if seen["lease"] == "cloned" or seen["contested"]:
        here, there = ("this", "the other") if seen["lease"] == "cloned" else ("the other", "this")
        text = f"two agents have this site's certificate: {there} one answers, and {here} one is refused"
        found.append(Alarm("cloned", "error", text))
    for study in seen["studies"]:
        if study["state"] == "blocked" and not has_site_alarm(study["reason"]):
            text = f"{study['name']!r} is accepted, and not answered ({study['reason']})"
            found.append(
                Alarm("study-blocked", "error", text, "See agent.log; docs/how-to/operations.md has each reason")
            )
    found += [Alarm("study-blocked", "error", problem) for problem in seen["problems"]]
    found += certificate_alarms("this site", seen["certificate_expires"], own=True)
    return [*found, *clock_alarms("the aggregator", seen["clock_difference"])]


def study_alarms(seen: Status, folder: Path) -> Iterator[Alarm]:
    """The alarms of a study at the server, from its status; ``folder`` is the server's."""
    state = seen["state"]
    if state in (StudyState.FINISHED, StudyState.ENDED):
        return
    if state in (StudyState.INTERRUPTED, StudyState.STOPPED):
        since = "" if seen["since"] is None else f" since {seen['since'][:19]} UTC"
        text = f"{seen['headline']}: no server runs this study{since}"
        which = seen["study"]["hash"][:16], "--folder", folder
        if str(seen["error"]).startswith(CANNOT_CONTINUE):
            yield Alarm("not-running", "error", text, "To end it for good", command_line("aggregator", "end", *which))
            return
        action = "To continue with the same round"
        yield Alarm("not-running", "error", text, action, command_line("aggregator", "resume", *which))
        return
    if not seen["live"]["connected"]:
        action = f"See {folder.absolute() / 'broker.log'}; the server tries again by itself"
        yield Alarm("not-connected", "error", f"no connection to the broker {seen['live']['broker']}", action)
    if state == StudyState.STALLED:
        text = f"{seen['headline']}, since {seen['since'][:19]} UTC"
        action = "Call these sites; the study waits at no cost and continues when enough of them answer"
        yield Alarm("stalled", "error", text, action)
    for site in seen["sites"]:
        yield from _site_alarms(site, folder)


def _site_alarms(site: Status, folder: Path) -> Iterator[Alarm]:
    name = site["name"]
    if site["state"] == SiteState.REFUSED:
        action = f"Ask the owner of {name}: the reason is in agent.log"
        yield Alarm("site-refused", "warning", f"{name} {refusal_text(site['code'])}", action)
    elif site["state"] == SiteState.REVOKED:
        action = f"To include it again, approve a new request of {name}"
        yield Alarm("site-revoked", "warning", f"the certificate of {name} is revoked, and it takes no part", action)
    elif site["state"] == SiteState.SILENT:
        since = "never connected" if site["last_seen"] is None else f"since {site['last_seen']}"
        action = f"Call {name}: is its agent running, and does its network reach the broker?"
        yield Alarm("site-silent", "warning", f"{name} silent, {since}", action)
    if site["doubt"] == "cloned":
        text = f"two agents have the certificate of {name}: the second one is refused"
        action = f"Call {name}. If nobody there copied its folder, its key is stolen and must be revoked"
        yield Alarm(
            "site-cloned", "warning", text, action, command_line("aggregator", "revoke", name, "--folder", folder)
        )
    if site["left_out"]:
        text = f"{name} was away for long, and the model is that of the others"
        yield Alarm("site-left-out", "warning", text, f"Call {name}: it is included again with its next answer")
    yield from clock_alarms(name, site["clock_difference"])


def hub_alarms(folder: Path, certificates: Mapping[str, datetime], *, studies: bool = True) -> Iterator[Alarm]:
    """The alarms of an aggregator beside those of its studies: its broker, its disk, and certificates.

    Without ``studies`` a broker should run; with them, only one that was not stopped.
    """
    hub = read_status(folder / STATUS, AggregatorStatus)
    if not is_live(hub) and (not studies or (hub is not None and hub["running"])):
        yield not_running("the broker", hub, "To start it", command_line("aggregator", "broker", "--folder", folder))
    elif is_live(hub) and hub is not None and not hub["connected"]:
        action = f"See {folder.absolute() / 'broker.log'}"
        yield Alarm("not-connected", "error", f"the broker {hub['broker']} does not answer", action)
    yield from disk_alarms(folder)
    for whose, expires in certificates.items():
        yield from certificate_alarms(whose, expires, own=False)


Sample = tuple[str, Mapping[str, str], float]


def agent_samples(seen: Status, folder: Path) -> Iterator[Sample]:
    yield "connected", {}, float(seen["connected"])
    yield "aggregator_silent", {}, float(seen["aggregator_silent"])
    yield "certificate_days_left", {}, float(days_left(seen["certificate_expires"]))
    if seen["clock_difference"] is not None:
        yield "clock_difference_seconds", {"of": "aggregator"}, seen["clock_difference"]
    for study in seen["studies"]:
        labels = {"study": study["hash"][:16]}
        yield "study_answering", labels, float(study["state"] == "active")
        yield "study_last_round", labels, float(study["last_round"] or 0)
    yield from _common_samples(agent_alarms(seen, folder), folder)


def hub_samples(seen: Status, folder: Path) -> Iterator[Sample]:
    yield "connected", {}, float(seen["connected"])
    for name, site in seen["sites"].items():
        yield "site_silent", {"site": name}, float(site["silent"])
        if site["clock_difference"] is not None:
            yield "clock_difference_seconds", {"of": name}, site["clock_difference"]
    yield from _common_samples(list(disk_alarms(folder)), folder)


def study_samples(seen: Status, folder: Path) -> Iterator[Sample]:
    study = {"study": seen["study"]["hash"][:16]}
    yield "connected", {}, float(seen["live"]["connected"])
    yield "rounds_done", study, float(seen["rounds_done"])
    yield "rounds_planned", study, float(seen["study"]["n_rounds"])
    yield "stalled", study, float(bool(seen["stalled"]))
    for site in seen["sites"]:
        labels = study | {"site": site["name"]}
        yield "site_rounds_answered", labels, float(site["answered"])
        yield "site_silent", labels, float(site["silent"])
        if site["clock_difference"] is not None:
            yield "clock_difference_seconds", {"of": site["name"]}, site["clock_difference"]
    yield from _common_samples([*study_alarms(seen, folder), *disk_alarms(folder)], folder)


def _common_samples(alarms: Sequence[Alarm], folder: Path) -> Iterator[Sample]:
    yield "disk_free_bytes", {}, float(shutil.disk_usage(folder).free)
    for code, level in sorted({alarm[:2] for alarm in alarms}):
        yield "alarm", {"code": code, "level": level}, 1.0


def prometheus_text(samples: Iterable[Sample]) -> str:
    """The text format of Prometheus: all are gauges.

    Examples
    --------
    >>> print(prometheus_text([("rounds_done", {"study": "ab"}, 3.0), ("connected", {}, 1.0)]), end="")
    # TYPE dpadmm_rounds_done gauge
    dpadmm_rounds_done{study="ab"} 3
    # TYPE dpadmm_connected gauge
    dpadmm_connected 1
    """
    families: dict[str, list[str]] = {}
    for name, labels, value in samples:
        inside = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
        line = f"dpadmm_{name}{f'{{{inside}}}' if inside else ''} {value:.15g}"
        families.setdefault(name, [f"# TYPE dpadmm_{name} gauge"]).append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def metrics_address(text: str) -> tuple[str, int]:
    """``9100`` on loopback, or ``192.0.2.7:9100``."""
    host, _, port = text.rpartition(":")
    try:
        address = str(ip_address(host.strip("[]") or "127.0.0.1"))
        if not 0 <= int(port) <= 65535:
            raise ValueError(port)
    except ValueError:
        raise StudyError(f"--metrics: {text!r} is not a port, or an address and a port (127.0.0.1:9100)") from None
    return address, int(port)


@contextmanager
def metrics_server(where: str | None, samples: Callable[[], Iterable[Sample]]) -> Iterator[int | None]:
    """Serve ``/metrics`` in the background, or nothing without an address; yields the port."""
    if where is None:
        yield None
        return

    address, port = metrics_address(where)

    class Page(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            if self.path != "/metrics":
                return self.send_error(404)
            body = prometheus_text(samples()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are not logged."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True

    try:
        server = Server((address, port), Page)
    except OSError as error:
        raise StudyError(f"--metrics: cannot listen on {address}:{port} ({error.strerror})") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
