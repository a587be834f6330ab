"""What people see of a run: plain values for the live page, ``aggregator status`` and the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import numpy as np

from dpadmm.federation.coordinator import Coordinator, Seat
from dpadmm.federation.journal import Event, Journal
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.study import Study

MOST_EVENTS = 200


class View:
    """A running study; ``snapshot`` may be called by another thread, since it only looks."""

    def __init__(self, coordinator: Coordinator, events: Sequence[Event], clock: Callable[[], float]) -> None:
        self._coordinator, self._clock = coordinator, clock
        self.events = deque(events, maxlen=MOST_EVENTS)
        self.ended = ""
        """Why the run is over before its end."""

    @property
    def rounds_done(self) -> int:
        return self._coordinator.rounds_done

    def snapshot(self) -> dict[str, Any]:
        now, run = self._clock(), self._coordinator
        waited = None if run.opened is None else now - run.opened
        deadline = run.study.deadline
        state = "done" if run.done else "stopped" if self.ended else "running" if run.called else "waiting"
        seats = list(run.seats.values())
        return {
            "study": about_study(run.study),
            "state": state,
            "round": 0 if run.done else run.round,
            "rounds_done": run.rounds_done,
            "deadline_in": None if deadline is None or waited is None else max(0.0, deadline - waited),
            "quorum": run.quorum,
            "sites": _sites(run.study, seats, [_ago(seat.last_seen, now) for seat in seats]),
            "changes": list(run.changes),
            "events": [event._asdict() for event in list(self.events)],
            **_times(run.study, list(run.seconds)),
        }


def of_journal(journal: Journal) -> dict[str, Any]:
    """The same from a journal alone, of a run that may be going on elsewhere."""
    study, done = journal.study, journal.rounds_done
    last, answered, sizes = journal.last_uploads(), journal.answered(), journal.sizes()
    seats = []
    for name in journal.members:
        seat = Seat(name, "unseen" if name not in last else "present", answered.get(name, 0))
        seat.sizes = sizes.get(name)
        if name in last:
            seat.state = "present" if last[name].round == done else "absent"
        seats.append(seat)
    return {
        "study": about_study(study),
        "state": "done" if done == study.settings.n_rounds else "running" if done else "waiting",
        "round": 0 if done == study.settings.n_rounds else done + 1,
        "rounds_done": done,
        "deadline_in": None,
        "quorum": study.quorum_of(len(journal.members)),
        "sites": _sites(study, seats, [None] * len(seats)),
        "changes": journal.changes(),
        "events": [event._asdict() for event in journal.events(MOST_EVENTS)],
        **_times(study, journal.seconds()),
    }


def about_study(study: Study) -> dict[str, Any]:
    """A study in a few plain values; ε is that of all rounds at its own δ."""
    rounds, delta = study.settings.n_rounds, float(study.settings.delta)
    return {
        "name": study.name,
        "hash": study.hash,
        "method": study.settings.method,
        "loss": study.settings.loss,
        "n_rounds": rounds,
        "epsilon": float(exact_epsilon(rounds**0.5 / study.noise_multiplier, delta)),
        "delta": delta,
        "noise_multiplier": study.noise_multiplier,
        "shape": list(study.shape),
    }


def _sites(study: Study, seats: Sequence[Seat], seen: Sequence[str | None]) -> list[dict[str, Any]]:
    people = [1 if seat.sizes is None else seat.sizes[1] for seat in seats]
    mu = [k * seat.answered**0.5 / study.noise_multiplier for k, seat in zip(people, seats, strict=True)]
    epsilons = exact_epsilon(np.array(mu), np.full(len(mu), float(study.settings.delta))).tolist()
    return [
        {
            "name": seat.name,
            "state": seat.state,
            "answered": seat.answered,
            "rows": None if seat.sizes is None else seat.sizes[0],
            "epsilon": epsilon,
            "last_seen": last,
            "code": seat.code or None,
        }
        for seat, epsilon, last in zip(seats, epsilons, seen, strict=True)
    ]


def _times(study: Study, seconds: Sequence[float]) -> dict[str, float | None]:
    usual = median(seconds[-50:]) if seconds else None
    left = None if usual is None else usual * (study.settings.n_rounds - len(seconds))
    return {"median_seconds": usual, "seconds_left": left}


def _ago(seen: float | None, now: float) -> str | None:
    if seen is None:
        return None
    return (datetime.now(UTC) - timedelta(seconds=now - seen)).isoformat(timespec="seconds")
