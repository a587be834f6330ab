"""Run the program of ``[notify]`` with one event on its standard input.

One thread starts one program at a time, so nothing here delays a round. Events contain public values only.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from logging import Logger
from pathlib import Path
from time import monotonic
from typing import Literal, NamedTuple, Self

from dpadmm.federation.health import Alarm, now_text
from dpadmm.sites.notify_settings import NotifySettings

FORMAT = "dpadmm-event/1"
EventKind = Literal[
    "study-proposed", "study-accepted", "study-refused", "study-finished", "study-closed",
    "alarm-raised", "alarm-cleared",
]  # fmt: skip
"""All kinds of events; docs/how-to/notifications.md documents them."""

MAX_WAITING = 100
"""Events in the queue; further ones are dropped."""

PROGRAM_SECONDS, CLOSE_SECONDS, UPDATE_SECONDS = 60.0, 5.0, 1.0
"""Time limit of a program, time to deliver events at the end, and the shortest interval between comparisons."""

_VOLATILE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.+-]+|(?<![\w-])\d[\d.,]*(?![\w-])")
"""Times and numbers, which change while an alarm lasts; digits in names of sites do not match."""


class StudyNotice(NamedTuple):
    """The current state of a study at a site, as the event that reports it."""

    kind: EventKind
    study: str
    study_name: str | None
    """None: the study's file is not here."""
    site: str | None = None
    code: str | None = None


def alarm_key(alarm: Alarm) -> tuple[str, str]:
    """Identify an alarm by its code and its text without times and numbers.

    Examples
    --------
    >>> alarm_key(Alarm("site-silent", "warning", "site-2 is silent since 2026-11-18T10:00:00+00:00, round 7"))
    ('site-silent', 'site-2 is silent since #, round #')
    """
    return alarm.code, _VOLATILE.sub("#", alarm.text)


class Notifier:
    """``with Notifier(...) as notifier``: ``send`` an event, or ``update`` alarms and studies.

    Without settings, nothing happens. Failures are logged, and never raised.
    """

    def __init__(
        self,
        settings: NotifySettings | None,
        folder: Path,
        log: Logger,
        *,
        role: Literal["site", "server"],
        site: str | None = None,
        time_limit: float = PROGRAM_SECONDS,
    ) -> None:
        self._settings, self._folder, self._log = settings, folder, log
        self._role, self._site, self._time_limit = role, site, time_limit
        self._events: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._deliver_all, name="notify", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False
        self._dropped, self._failures = 0, set[str]()
        self._raised: dict[tuple[str, str], Alarm] = {}
        """Reported alarms."""
        self._since: dict[tuple[str, str], float] = {}
        """When an alarm began to differ from its report."""
        self._studies: dict[tuple[str, str | None], StudyNotice] = {}
        self._update_at = 0.0

    def __enter__(self) -> Self:
        if self._settings is not None:
            for warning in self._settings.warnings():
                self._log.warning("%s", warning)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Deliver the events in the queue for a few seconds, then kill the program."""
        if self._settings is None:
            return
        end = monotonic() + CLOSE_SECONDS
        with suppress(queue.Full):
            self._events.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(max(0.0, end - monotonic()))
        self._is_closing = True
        while self._thread.is_alive():
            _kill(self._process)
            self._thread.join(0.1)

    def send(
        self,
        kind: EventKind,
        text: str,
        *,
        site: str | None = None,
        study: str | None = None,
        study_name: str | None = None,
        code: str | None = None,
        level: str | None = None,
    ) -> None:
        """Put an event into the queue; it is dropped if the queue is full."""
        if self._settings is None:
            return
        event = {"format": FORMAT, "kind": kind, "at": now_text(), "role": self._role, "site": site or self._site}
        event |= {"study": study, "study_name": study_name, "code": code, "level": level, "text": text}
        try:
            self._events.put_nowait(json.dumps(event).encode() + b"\n")
        except queue.Full:
            self._dropped += 1
            self._log_failure("events arrive faster than it handles them; further events are dropped")

    def update(
        self,
        alarms: Callable[[], Iterable[Alarm]],
        notices: Callable[[], Iterable[StudyNotice]] = tuple,
        *,
        final: bool = False,
    ) -> None:
        """Send events for what changed since the last call; ``final`` also reports cleared alarms without delay."""
        now = monotonic()
        if self._settings is None or (now < self._update_at and not final):
            return
        self._update_at = now + UPDATE_SECONDS
        try:
            current = {alarm_key(alarm): alarm for alarm in alarms()}
            studies = {(notice.study, notice.site): notice for notice in notices()}
        except Exception as error:  # a status that cannot be read must not end the process
            self._log_failure(f"alarms cannot be compared ({type(error).__name__})")
            return
        self._compare_studies(studies)
        self._compare_alarms(current, now, 0.0 if final else self._settings.delay, final=final)

    def _compare_studies(self, studies: Mapping[tuple[str, str | None], StudyNotice]) -> None:
        for key, notice in studies.items():
            before = self._studies.get(key)
            # a first state was reported before this process started, unless it needs a person
            is_new = notice.kind == "study-refused" or (notice.kind == "study-proposed" and self._role == "site")
            if before != notice and (before is not None or is_new):
                reason = "" if notice.code is None else f" ({notice.code})"
                whose = "" if notice.site is None else f"{notice.site}: "
                name = notice.study[:12] if notice.study_name is None else repr(notice.study_name)
                state = notice.kind.removeprefix("study-")
                self.send(text=f"{whose}study {name} {state}{reason}", **notice._asdict())
            self._studies[key] = notice

    def _compare_alarms(
        self, current: Mapping[tuple[str, str], Alarm], now: float, delay: float, *, final: bool
    ) -> None:
        for key in [*current, *(key for key in self._raised if key not in current)]:
            alarm, before = current.get(key), self._raised.get(key)
            if (alarm and alarm.level) == (before and before.level) or (final and alarm):
                self._since.pop(key, None)
            elif now - self._since.setdefault(key, now) >= delay:
                del self._since[key]
                if alarm is not None:
                    self._raised[key] = alarm
                    self.send("alarm-raised", alarm.text, code=alarm.code, level=alarm.level)
                elif before is not None:
                    del self._raised[key]
                    self.send("alarm-cleared", before.text, code=before.code, level=before.level)
        for key in self._since.keys() - current.keys() - self._raised.keys():
            del self._since[key]  # it ended before it was reported

    def _deliver_all(self) -> None:
        while (event := self._events.get()) is not None and not self._is_closing:
            problem = self._deliver(event)
            if problem is not None:
                self._log_failure(problem)
            elif self._failures:
                if self._dropped:
                    self._log.warning("notify: %d events were dropped", self._dropped)
                self._dropped = 0
                self._failures.clear()

    def _deliver(self, event: bytes) -> str | None:
        """Run the program with an event; return what failed."""
        assert self._settings is not None
        try:
            process = subprocess.Popen(
                self._settings.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._folder,
                env=_environment(),
                start_new_session=True,  # so that its children are killed with it
            )
        except OSError as error:
            return f"the program cannot be started ({error.strerror})"
        self._process = process
        try:
            process.communicate(event, self._time_limit)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return f"the program did not end within {self._time_limit:g} seconds and was killed"
        finally:
            self._process = None
        return f"the program ended with exit code {process.returncode}" if process.returncode else None

    def _log_failure(self, problem: str) -> None:
        """Log each kind of failure once, until an event is delivered again."""
        if problem not in self._failures:
            self._failures.add(problem)
            self._log.warning("notify: %s", problem)


def _environment() -> dict[str, str]:
    own = {name: os.environ[name] for name in ("HOME", "TZ") if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **own}


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a program and its children."""
    if process is not None and process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
