"""What open pages are told, from the first snapshot to the good-bye."""

from __future__ import annotations

import http.client
import logging
import time

import pytest
from live_run import LiveRun
from page_visits import TOKEN, ask, next_message, stream

from dpadmm.federation import page as page_module
from dpadmm.federation.page import STREAMS, Page


@pytest.fixture
def run():
    return LiveRun()


@pytest.fixture
def page(run):
    with Page(run, token=TOKEN) as page:
        yield page


def next_snapshot(answer, wanted):
    while True:
        kind, data = next_message(answer)
        assert kind == "snapshot", kind
        if wanted(data["snapshot"]):
            return data["snapshot"]


def test_a_stream_tells_at_once_and_then_what_changes(page, run):
    with stream(page) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        kind, first = next_message(answer)
        assert kind == "snapshot"
        assert abs(first["at"] - time.time()) < 60
        assert first["snapshot"]["state"] == "waiting"
        run.arrive()
        run.play(5)
        told = next_snapshot(answer, lambda told: told["rounds_done"] == 5)
        assert [k for k, _ in told["changes"]] == [1, 2, 3, 4, 5]


def test_a_quiet_stream_beats(run, monkeypatch):
    monkeypatch.setattr(page_module, "HEARTBEAT", 0.0)
    with Page(run, token=TOKEN) as page, stream(page) as answer:
        assert [next_message(answer)[0] for _ in range(3)] == ["snapshot", "beat", "beat"]


def test_many_pages_are_one_question(page, run):
    with stream(page) as first, stream(page) as second, stream(page) as third:
        assert [next_message(answer)[0] for answer in (first, second, third)] == ["snapshot"] * 3
        before, start = run.asked, time.monotonic()
        time.sleep(1.0)
        assert run.asked - before <= (time.monotonic() - start) / 0.25 + 1


def test_streams_are_bounded_and_come_free(page, monkeypatch):
    monkeypatch.setattr(page_module, "HEARTBEAT", 600.0)
    with stream(page) as kept:
        assert next_message(kept)[0] == "snapshot"
        extra = [http.client.HTTPConnection("127.0.0.1", page.port, timeout=10) for _ in range(STREAMS - 1)]
        for connection in extra:
            connection.request("GET", f"/events?token={TOKEN}")
        answers = [connection.getresponse() for connection in extra]
        status, _, body = ask(page, f"/events?token={TOKEN}")
        assert (status, body) == (503, "Too many live pages are open. Close some.\n")
        assert ask(page, f"/snapshot?token={TOKEN}")[0] == 200
        for answer, connection in zip(answers, extra, strict=True):
            answer.close()
            connection.close()
        deadline = time.monotonic() + 10
        while _stream_status(page) != 200:  # those that hung up are noticed, though nothing changes
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _stream_status(page):
    with stream(page) as answer:
        return answer.status


def test_close_says_good_bye_and_frees_the_port(run):
    page = Page(run, token=TOKEN)
    page.start()
    with stream(page) as answer:
        next_message(answer)
        run.play(run.n_rounds)
        page.close()
        assert next_snapshot(answer, lambda told: told["state"] == "done")
        assert next_message(answer)[0] == "bye"
        assert answer.read() == b""
    with pytest.raises(ConnectionRefusedError):
        ask(page, "/")
    page.close()  # a second time does no harm
    with Page(run, port=page.port, token=TOKEN) as again:
        assert again.url == page.url
        assert ask(again, f"/snapshot?token={TOKEN}")[0] == 200


def test_a_run_that_cannot_be_read_is_said_and_comes_back(run, caplog):
    broken = [True]

    def snapshot():
        if broken[0]:
            raise RuntimeError("a secret of the run")
        return run()

    with caplog.at_level(logging.DEBUG), Page(snapshot, token=TOKEN) as page, stream(page) as answer:
        assert next_message(answer) == ("trouble", {})
        status, _, body = ask(page, f"/snapshot?token={TOKEN}")
        assert (status, body) == (503, "The state of the run could not be read. Try again.\n")
        broken[0] = False
        assert next_message(answer)[0] == "snapshot"
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text
