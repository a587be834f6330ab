"""Health of a site or server: status files, alarms, and the samples of metrics.

A running process writes its status file every second, and counts as live while the file is recent. Process IDs are
not used because they mean nothing across containers. All values are public: rounds, times, certificates, disk space.
None depends on rows.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec

from dpadmm.errors import StudyError
from dpadmm.federation.protocol import SILENT_AFTER, LastContact
from dpadmm.federation.states import CANNOT_CONTINUE, SiteState, StudyState, refusal_text
from dpadmm.files.atomic import atomic_file

STATUS = "status.json"
STALE_AFTER = 10.0
"""Age in seconds from which a status counts as stale."""

FULL_DISK, SMALL_DISK = 2**24, 2**30
"""Free bytes below which ``disk-full`` (writes are about to fail) and ``disk-small`` are raised."""

CERTIFICATE_DAYS, MAX_CLOCK_DIFFERENCE, UNCONNECTED_AFTER = 30, 60.0, 60.0
"""Limits for alarms: days until a certificate expires, seconds between clocks, seconds without a connection."""

Status = dict[str, Any]


AlarmCode = Literal[
    "not-running", "not-connected", "stalled", "site-silent", "site-left-out", "site-refused", "site-cloned",
    "site-revoked", "server-silent", "ledger-closed", "ledger-behind", "cloned", "study-blocked",
    "disk-full", "disk-small", "certificate", "clock",
]  # fmt: skip
"""All alarm codes. docs/how-to/operations.md has an entry for each."""


class Alarm(NamedTuple):
    """A condition that needs action, see docs/how-to/operations.md. Only an ``error`` makes the process unhealthy."""

    code: AlarmCode
    level: str
    text: str
    action: str = ""
    """Next step for the administrator."""
    command: str = ""
    """Complete command for this step."""

    @property
    def line(self) -> str:
        """The alarm as one line. The command comes last, so it can be copied."""
        parts = [f"{self.level} {self.code}: {self.text}", *([self.action] if self.action else [])]
        return ". ".join(parts) + (f": {self.command}" if self.command else "")


def command_line(*words: object) -> str:
    """Return a ``dpadmm`` command, quoted for a shell.

    Examples
    --------
    >>> command_line("server", "revoke", "a", "--folder", Path("/srv/my server"))
    "dpadmm server revoke a --folder '/srv/my server'"
    """
    return shlex.join(["dpadmm", *(str(word.absolute() if isinstance(word, Path) else word) for word in words)])


def now_text(seconds_ago: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="seconds")


def contact_status(contact: LastContact | None, seconds_ago: float) -> Status:
    """Return the status fields of a site whose last heartbeat or answer arrived ``seconds_ago``."""
    return {
        "last_seen": None if seconds_ago == math.inf else now_text(seconds_ago),
        "silent": seconds_ago > SILENT_AFTER,
        "clock_difference": None if contact is None else round(contact.clock_difference, 1),
    }


def write_status(folder: Path, table: Status) -> None:
    """Write the current status. On a full disk, overwrite the file within its allocated space."""
    text = json.dumps(table | {"at": now_text()}, indent=2, allow_nan=False).encode() + b"\n"
    data = text.ljust(BLOCK * (1 + (len(text) + SPARE) // BLOCK))
    try:
        with atomic_file(folder / STATUS, durable=False) as out:
            out.write(data)
    except OSError:
        with suppress(OSError):
            _overwrite(folder / STATUS, text)


BLOCK, SPARE = 4096, 1024
"""Bytes: a status file is padded to whole blocks, with at least ``SPARE`` bytes for a longer status."""


def _overwrite(path: Path, text: bytes) -> None:
    """Overwrite a file in place. If the text needs more space, update only the file's time."""
    with path.open("r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if len(text) <= size:
            file.seek(0)
            file.write(text.ljust(size))
    os.utime(path)


class ServerStatus(TypedDict):
    """Status file of ``server run`` (with ``snapshot``) and ``server start`` (with ``sites``)."""

    at: str
    running: bool
    connected: bool
    broker: str
    snapshot: NotRequired[dict[str, Any]]
    sites: NotRequired[dict[str, Any]]
    decisions: NotRequired[dict[str, dict[str, str]]]
    """The last reply of each site to each open proposal, by the hash of the study."""
    pages: NotRequired[list[str]]
    """Addresses of the status page, which need a one-time link."""


class StudyStatus(TypedDict):
    """A study in the status of a site."""

    name: str
    hash: str
    state: str
    """One of ``Participation``."""
    reason: str | None
    """Code of the reason if it is blocked."""
    last_round: int | None
    n_rounds: int | None
    asked_at: str | None
    deadline_at: str | None


class SiteStatus(TypedDict):
    """Status file of a site."""

    at: str
    running: bool
    pid: int | None
    connected: bool
    connection_since: str
    server_silent: bool
    clock_difference: float | None
    ledger_works: bool
    lease: str
    contested: bool
    site: str
    broker: str
    pages: list[str]
    certificate_expires: str
    problems: list[str]
    """Problems of the owner's decision files."""
    studies: list[StudyStatus]


def read_status(path: Path, kind: type = SiteStatus) -> Status | None:
    """Return the last status of a process, or None if it has no status file."""
    try:
        if not path.exists():
            return None
        status: Status = dict(msgspec.json.decode(path.read_bytes(), type=kind))
        return status | {"at": _latest(status["at"], path.stat().st_mtime)}
    except (OSError, ValueError, RecursionError):
        text = "damaged, or written by another version; restart the process that writes it, or delete the file"
        raise StudyError(f"{path}: {text}") from None


def _latest(at: str, modified: float) -> str:
    """Return the time of a status, or that of its file if only the file's time could be updated (full disk)."""
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
    """Return whether the process that wrote this status is running."""
    return status is not None and bool(status["running"]) and abs(seconds_since(status["at"])) < STALE_AFTER


def days_left(expires: datetime | str) -> int:
    end = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
    return (end - datetime.now(UTC)).days


def disk_alarms(folder: Path) -> Iterator[Alarm]:
    free = shutil.disk_usage(folder).free
    if free < SMALL_DISK:
        text, action = f"{free / 2**20:,.0f} MB free for {folder}", "Free disk space"
        if free < FULL_DISK:
            yield Alarm("disk-full", "error", text, action)
        else:
            yield Alarm("disk-small", "warning", text, action)


def certificate_alarms(owner: str, expires: datetime | str, *, own: bool) -> Iterator[Alarm]:
    if (days := days_left(expires)) < CERTIFICATE_DAYS:
        when = f"expires in {days} days" if days >= 0 else f"expired {-days} days ago"
        level, text = "error" if own and days < 0 else "warning", f"the certificate of {owner} {when}"
        yield Alarm("certificate", level, text, "Renew it: docs/how-to/renew-revoke-back-up.md")


def clock_alarms(owner: str, difference: float | None) -> Iterator[Alarm]:
    if difference is not None and abs(difference) > MAX_CLOCK_DIFFERENCE:
        side = "ahead of" if difference > 0 else "behind"
        text = f"the clock of {owner} is {abs(difference):,.0f} seconds {side} this machine's"
        yield Alarm("clock", "warning", text, "Start NTP on the machine whose clock is wrong")


class Clock:
    """Detects jumps of this machine's clock, which decides whether certificates are valid."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def jump(self) -> str | None:
        """Describe a jump of more than a minute since the last call, or return None."""
        before, self._offset = self._offset, time.time() - time.monotonic()
        change = self._offset - before
        if abs(change) <= MAX_CLOCK_DIFFERENCE:
            return None
        direction = "ahead" if change > 0 else "back"
        return (
            f"clock jumped {direction} by {abs(change):,.0f} seconds, or this machine was suspended; it is now "
            f"{now_text()}. If this is wrong, set the clock: sites whose certificates are invalid now cannot connect"
        )


def not_running(process: str, status: Status | None, action: str, command: str) -> Alarm:
    when = "is not running" if status is None else f"has not responded since {status['at']}"
    if status is not None and not status["running"]:
        when = f"was stopped at {status['at']}"
    return Alarm("not-running", "error", f"{process} {when}", action, command)


def has_site_alarm(reason: str) -> bool:
    """Return whether an alarm of the whole site covers the reason why a study is blocked."""
    return reason.startswith("ledger-") or reason in ("cloned", "not-connected", "decision-unusable")


def site_alarms(status: Status | None, folder: Path) -> list[Alarm]:
    """Return the alarms of a site from its last status."""
    alarms = list(disk_alarms(folder))
    site = folder / "site.toml"
    if status is None or not is_live(status):
        start = command_line("site", "run", "--site", site)
        return [not_running("the site's process", status, "To start it", start), *alarms]
    if not status["connected"]:
        level = "error" if seconds_since(status["connection_since"]) > UNCONNECTED_AFTER else "warning"
        text = f"no connection to {status['broker']} since {status['connection_since']}"
        command = command_line("site", "check", "--connect", "--site", site)
        alarms.append(Alarm("not-connected", level, text, "To find the cause", command))
    elif status["server_silent"]:
        alarms.append(Alarm("server-silent", "warning", "connected to the broker, but no heartbeat of the server"))
    if not status["ledger_works"]:
        alarms.append(Alarm("ledger-closed", "error", "the ledger failed; no study is answered", "See site.log"))
    if status["lease"] == "behind":
        text = "the server has seen later records of this ledger: it is an old copy; no study is answered"
        alarms.append(Alarm("ledger-behind", "error", text))
    if status["lease"] == "cloned" or status["contested"]:
        refused, active = ("this", "the other") if status["lease"] == "cloned" else ("the other", "this")
        text = f"two processes use this site's certificate: {active} one answers, {refused} one is refused"
        alarms.append(Alarm("cloned", "error", text))
    for study in status["studies"]:
        if study["state"] == "blocked" and not has_site_alarm(study["reason"]):
            text = f"{study['name']!r} is accepted, but not answered ({study['reason']})"
            action = "See site.log; docs/how-to/operations.md lists all reasons"
            alarms.append(Alarm("study-blocked", "error", text, action))
    alarms += [Alarm("study-blocked", "error", problem) for problem in status["problems"]]
    alarms += certificate_alarms("this site", status["certificate_expires"], own=True)
    return [*alarms, *clock_alarms("the server", status["clock_difference"])]


def study_alarms(status: Status, folder: Path) -> Iterator[Alarm]:
    """Yield the alarms of a study from its status at the server, whose folder is ``folder``."""
    state = status["state"]
    if state in (StudyState.PROPOSED, StudyState.FINISHED, StudyState.ENDED):
        return
    if state in (StudyState.INTERRUPTED, StudyState.STOPPED):
        since = "" if status["since"] is None else f" since {status['since'][:19]} UTC"
        text = f"{status['headline']}: no server runs this study{since}"
        which = status["study"]["hash"][:16], "--folder", folder
        if str(status["error"]).startswith(CANNOT_CONTINUE):
            yield Alarm("not-running", "error", text, "To end it for good", command_line("server", "end", *which))
            return
        action = "To continue with the same round"
        yield Alarm("not-running", "error", text, action, command_line("server", "run", *which))
        return
    if not status["live"]["connected"]:
        action = f"See {folder.absolute() / 'broker.log'}; the server retries automatically"
        yield Alarm("not-connected", "error", f"no connection to the broker {status['live']['broker']}", action)
    if state == StudyState.STALLED:
        text = f"{status['headline']}, since {status['since'][:19]} UTC"
        action = "Call these sites; waiting costs no budget, and the study continues when enough of them answer"
        yield Alarm("stalled", "error", text, action)
    for site in status["sites"]:
        yield from _member_alarms(site, folder)


def _member_alarms(site: Status, folder: Path) -> Iterator[Alarm]:
    name = site["name"]
    if site["state"] == SiteState.REFUSED:
        action = f"Ask the owner of {name}: the reason is in site.log"
        yield Alarm("site-refused", "warning", f"{name} {refusal_text(site['code'])}", action)
    elif site["state"] == SiteState.REVOKED:
        action = f"To include it again, approve a new request of {name}"
        yield Alarm("site-revoked", "warning", f"the certificate of {name} is revoked; the site is excluded", action)
    elif site["state"] == SiteState.SILENT:
        since = "never connected" if site["last_seen"] is None else f"since {site['last_seen']}"
        action = f"Call {name}: is its process running, and does its network reach the broker?"
        yield Alarm("site-silent", "warning", f"{name} silent, {since}", action)
    if site["doubt"] == "cloned":
        text = f"two processes use the certificate of {name}: the second one is refused"
        action = f"Call {name}. If nobody there copied its folder, its key is stolen and must be revoked"
        yield Alarm("site-cloned", "warning", text, action, command_line("server", "revoke", name, "--folder", folder))
    if site["left_out"]:
        text = f"{name} missed too many rounds; the model uses only the other sites"
        yield Alarm("site-left-out", "warning", text, f"Call {name}: its next answer includes it again")
    yield from clock_alarms(name, site["clock_difference"])


def server_alarms(folder: Path, certificates: Mapping[str, datetime], *, studies: bool = True) -> Iterator[Alarm]:
    """Yield the alarms of a server that belong to no study: broker, disk, certificates.

    Without ``studies`` the broker must be running. With them, it is an alarm only if the broker was not stopped
    on purpose.
    """
    broker = read_status(folder / STATUS, ServerStatus)
    if not is_live(broker) and (not studies or (broker is not None and broker["running"])):
        yield not_running("the broker", broker, "To start it", command_line("server", "start", "--folder", folder))
    elif is_live(broker) and broker is not None and not broker["connected"]:
        action = f"See {folder.absolute() / 'broker.log'}"
        yield Alarm("not-connected", "error", f"the broker {broker['broker']} does not answer", action)
    yield from disk_alarms(folder)
    for owner, expires in certificates.items():
        yield from certificate_alarms(owner, expires, own=False)


Sample = tuple[str, Mapping[str, str], float]


def site_samples(status: Status, folder: Path) -> Iterator[Sample]:
    yield "connected", {}, float(status["connected"])
    yield "server_silent", {}, float(status["server_silent"])
    yield "certificate_days_left", {}, float(days_left(status["certificate_expires"]))
    if status["clock_difference"] is not None:
        yield "clock_difference_seconds", {"of": "server"}, status["clock_difference"]
    for study in status["studies"]:
        labels = {"study": study["hash"][:16]}
        yield "study_answering", labels, float(study["state"] == "active")
        yield "study_last_round", labels, float(study["last_round"] or 0)
    yield from _common_samples(site_alarms(status, folder), folder)


def server_samples(status: Status, folder: Path) -> Iterator[Sample]:
    yield "connected", {}, float(status["connected"])
    for name, site in status["sites"].items():
        yield from _contact_samples(name, site, {})
    yield from _common_samples(list(disk_alarms(folder)), folder)


def study_samples(status: Status, folder: Path) -> Iterator[Sample]:
    study = {"study": status["study"]["hash"][:16]}
    yield "connected", {}, float(status["live"]["connected"])
    yield "rounds_done", study, float(status["rounds_done"])
    yield "rounds_planned", study, float(status["study"]["n_rounds"])
    yield "stalled", study, float(bool(status["stalled"]))
    for site in status["sites"]:
        yield "site_rounds_answered", study | {"site": site["name"]}, float(site["answered"])
        yield from _contact_samples(site["name"], site, study)
    yield from _common_samples([*study_alarms(status, folder), *disk_alarms(folder)], folder)


def _contact_samples(name: str, site: Status, labels: Mapping[str, str]) -> Iterator[Sample]:
    yield "site_silent", {**labels, "site": name}, float(site["silent"])
    if site["clock_difference"] is not None:
        yield "clock_difference_seconds", {"of": name}, site["clock_difference"]


def _common_samples(alarms: Sequence[Alarm], folder: Path) -> Iterator[Sample]:
    yield "disk_free_bytes", {}, float(shutil.disk_usage(folder).free)
    for code, level in sorted({alarm[:2] for alarm in alarms}):
        yield "alarm", {"code": code, "level": level}, 1.0
