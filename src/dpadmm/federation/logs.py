"""Logs of agents and aggregators: lines with date and level, or JSON lines; identical lines are counted."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from dpadmm.parameters.text import printable

AGAIN_AFTER, LONGEST_PAUSE, FORGET_AFTER = 60.0, 3600.0, 600.0
"""Seconds before a line is written again, at first and at most, and after which a line is a new one."""

MAX_LINES = 20
"""Different lines of a source in a minute."""


@dataclass
class _Line:
    since: str
    said: float
    last: float
    pause: float = AGAIN_AFTER
    count: int = 1


class Repeats:
    """Counts identical lines of a source: the first is written at once, the next after 1, 2, 4 ... 60 minutes.

    A source writes at most ``MAX_LINES`` different lines in a minute. A line reports that others are left out.

    Examples
    --------
    >>> repeats = Repeats()
    >>> [repeats.said("site a", "refused", now=float(second)) for second in range(60)].count(None)
    59
    >>> repeats.said("site a", "refused", now=60.0).partition(" since")[0]
    'refused (61 times'
    >>> repeats.said("site b", "refused", now=60.0)
    'refused'
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, _Line]] = {}
        self._number = 0

    def said(self, source: str, text: str, *, now: float, count: bool = True) -> str | None:
        """Return the line to write now, or None; without ``count``, identical lines are different events."""
        lines = self._lines[source] = {
            key: line
            for key, line in self._lines.get(source, {}).items()
            if now - line.last < max(FORGET_AFTER, line.pause)
        }
        self._number += 1
        key = text if count else f"{self._number}"
        if key not in lines and sum(now - line.said < AGAIN_AFTER for line in lines.values()) >= MAX_LINES:
            key = text = f"more than {MAX_LINES} different events in a minute; the others are left out"
        line = lines.get(key)
        if line is None:
            lines[key] = _Line(datetime.now(UTC).isoformat(timespec="seconds"), now, now)
            return text
        line.count, line.last = line.count + 1, now
        if now - line.said < line.pause:
            return None
        line.said, line.pause = now, min(2.0 * line.pause, LONGEST_PAUSE)
        return f"{text} ({line.count:,} times since {line.since})"


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


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"at": at, "level": record.levelname.lower(), "text": record.getMessage()})


def make_log(name: str, *, terminal: bool, file: Path | None = None, as_json: bool = False) -> logging.Logger:
    """A log to the terminal, to a private file, or both. It contains no rows and no keys."""
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
