"""Logs of sites and servers: text or JSON lines. Repeated lines are counted instead of written."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from time import monotonic
from typing import Any

from dpadmm.parameters.text import printable

FIRST_PAUSE, MAX_PAUSE, FORGET_AFTER = 60.0, 3600.0, 600.0
"""Seconds before a repeated line is written again (at first, at most), and after which its count restarts."""

MAX_LINES = 20
"""Different lines of a source per minute."""


@dataclass
class _Line:
    since: str
    written: float
    last: float
    pause: float = FIRST_PAUSE
    count: int = 1


class Repeats:
    """Counts identical lines of a source: the first is written at once, the next after 1, 2, 4 ... 60 minutes.

    A source writes at most ``MAX_LINES`` different lines per minute. One more line reports that others are omitted.

    Examples
    --------
    >>> repeats = Repeats()
    >>> [repeats.deduplicate("site a", "refused", now=float(second)) for second in range(60)].count(None)
    59
    >>> repeats.deduplicate("site a", "refused", now=60.0).partition(" since")[0]
    'refused (61 times'
    >>> repeats.deduplicate("site b", "refused", now=60.0)
    'refused'
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, _Line]] = {}
        self._number = 0

    def deduplicate(self, source: str, text: str, *, now: float, count: bool = True) -> str | None:
        """Return the line to write now, or None. Without ``count``, identical lines are different events."""
        lines = self._lines[source] = {
            key: line
            for key, line in self._lines.get(source, {}).items()
            if now - line.last < max(FORGET_AFTER, line.pause)
        }
        self._number += 1
        key = text if count else f"{self._number}"
        if key not in lines and sum(now - line.written < FIRST_PAUSE for line in lines.values()) >= MAX_LINES:
            key = text = f"more than {MAX_LINES} different events in a minute; further events are omitted"
        line = lines.get(key)
        if line is None:
            lines[key] = _Line(datetime.now(UTC).isoformat(timespec="seconds"), now, now)
            return text
        line.count, line.last = line.count + 1, now
        if now - line.written < line.pause:
            return None
        line.written, line.pause = now, min(2.0 * line.pause, MAX_PAUSE)
        return f"{text} ({line.count:,} times since {line.since})"


class RepeatLog:
    """Writes to a log, with repeated lines of a source counted."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._repeats = log, Repeats()

    def write(self, level: int, text: str, source: str = "") -> None:
        """Write a line, prefixed with its source, unless it repeats a recent one."""
        if (line := self._repeats.deduplicate(source, text, now=monotonic())) is not None:
            self._log.log(level, "%s", f"{source}: {line}" if source else line)


class _ForgivingHandler(logging.Handler):
    """Ignores errors: a full disk or a closed terminal loses log lines, but does not stop answers."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""


class _TerminalHandler(_ForgivingHandler, logging.StreamHandler[Any]):
    pass


class _PrivateFileHandler(_ForgivingHandler, RotatingFileHandler):
    """A rotating log that only its owner can read."""

    def _open(self) -> Any:
        os.close(os.open(self.baseFilename, os.O_CREAT | os.O_WRONLY, 0o600))
        return super()._open()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"at": at, "level": record.levelname.lower(), "text": record.getMessage()})


def make_log(name: str, *, terminal: bool, file: Path | None = None, as_json: bool = False) -> logging.Logger:
    """Return a log to the terminal, to a private file, or both. It must contain no rows and no keys."""
    log = logging.getLogger(f"dpadmm.{name}")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers.clear()
    if file is not None:
        log.addHandler(_PrivateFileHandler(file, maxBytes=2**20, backupCount=3))
    if terminal:
        log.addHandler(_TerminalHandler())
    text = _TextFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z")
    for handler in log.handlers:
        handler.setFormatter(_JsonFormatter() if as_json else text)
    return log
