"""snapshot() -> bytes: what JSON cannot say, and what is too much for a page."""

from __future__ import annotations

import json

import numpy as np
import pytest
from live_run import LiveRun

from dpadmm.federation.server.page import EVENTS, POINTS, Snapshots, thinned
from dpadmm.parameters.fields import for_json


@pytest.fixture
def run():
    return LiveRun()


def test_numbers_that_json_does_not_know_become_null():
    told = for_json({"a": [np.float32(0.5), np.inf, np.int64(3), True], "b": ("x", None)})
    assert json.dumps(told) == '{"a": [0.5, null, 3, true], "b": ["x", null]}'
    with pytest.raises(TypeError, match="cannot hold a set"):
        for_json({"a": {1}})


def test_a_long_run_is_thinned_for_pages_and_keeps_its_extremes():
    rng = np.random.default_rng(1)
    values = list(rng.exponential(size=30_001))
    points = thinned(values)
    assert len(points) <= POINTS
    assert points == sorted(points)
    assert all(values[k - 1] == value for k, value in points)
    assert {min(values), max(values)} <= {value for _, value in points}
    assert points[-1][0] == len(values)


def test_a_page_gets_the_last_events_alone(run):
    for k in range(3 * EVENTS):
        run.say(f"event {k}")
    state = run() | {"events": run.events}
    whole, shown = Snapshots(lambda: state).latest()
    events = json.loads(shown)["snapshot"]["events"]
    assert [event["text"] for event in events] == [f"event {k}" for k in range(2 * EVENTS, 3 * EVENTS)]
    assert len(json.loads(whole)["events"]) == 3 * EVENTS
