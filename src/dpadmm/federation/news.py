"""snapshot() -> bytes for the live page, taken a few times a second however many pages are open."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

EVENTS = 200
"""So many of the last events reach a page."""
POINTS = 2000
"""At most so many points of the curve reach a page."""

Snapshot = Callable[[], Mapping[str, Any]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Told:
    """What there is to tell; ``number`` grows with every change, ``whole`` is missing if asking failed."""

    number: int
    whole: bytes | None
    message: bytes


class News:
    """The last snapshot as JSON (``whole``) and as a server-sent event (``message``).

    The snapshot is asked for by whoever comes first after ``period`` seconds, and shared by the rest.
    """

    def __init__(self, snapshot: Snapshot, *, period: float = 0.25) -> None:
        self.period = period
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._due = -math.inf
        self._told = Told(0, None, b"")

    def latest(self, *, now: bool = False) -> Told:
        """News not older than ``period``, or of this moment."""
        with self._lock:
            if now or time.monotonic() >= self._due:
                self._told = self._ask(self._told)
                self._due = time.monotonic() + self.period
            return self._told

    def _ask(self, before: Told) -> Told:
        try:
            taken = clean(self._snapshot())
            whole = _json(taken)
            if whole == before.whole:
                return before
            page = {
                **taken,
                "changes": thinned(taken.get("changes", ())),
                "events": taken.get("events", [])[-EVENTS:],
            }
            data = _json({"at": time.time(), "snapshot": page})
        except Exception as error:  # the page must outlive whatever goes wrong in the run
            if before.whole is None and before.number:
                return before
            _log.warning("the live page could not ask for the state of the run (%s)", type(error).__name__)
            return Told(before.number + 1, None, message("trouble", b"{}"))
        return Told(before.number + 1, whole, message("snapshot", data))


def message(kind: str, data: bytes) -> bytes:
    """One server-sent event; ``data`` is JSON in one line."""
    return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def clean(value: Any) -> Any:
    """The same value for JSON: NaN and infinities, which JSON does not know, become null.

    Examples
    --------
    >>> clean({"changes": (1.5, float("nan")), "round": 2})
    {'changes': [1.5, None], 'round': 2}
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):  # before the slower questions: most of a snapshot
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Sequence):
        return [clean(each) for each in value]
    raise TypeError(f"a snapshot cannot hold a {type(value).__name__}")


def thinned(values: Sequence[float | None], most: int = POINTS) -> list[tuple[int, float]]:
    """(round, value) for a logarithmic axis; of too many, the extremes of each stretch, and the last.

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
    kept: set[tuple[int, float]] = {points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept.add(min(stretch, key=lambda point: point[1]))
        kept.add(max(stretch, key=lambda point: point[1]))
    return sorted(kept)


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
