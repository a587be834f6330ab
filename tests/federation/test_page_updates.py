"""What open pages are told, from the first snapshot to the end of the run."""

from __future__ import annotations

import json
import logging
import threading
import time

import pytest
from page_visits import TOKEN, ask

from dpadmm.federation.server.page import Page

LIVE = f"/live?token={TOKEN}"


def shown(page):
    status, headers, body = ask(page, LIVE)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    return json.loads(body)


def test_a_page_is_told_at_once_and_then_what_changes(page, run):
    first = shown(page)
    assert abs(first["at"] - time.time()) < 60
    assert first["snapshot"]["state"] == "waiting"
    time.sleep(0.3)
    assert shown(page) == first  # with its time, since nothing is new
    run.arrive()
    run.play(5)
    time.sleep(0.3)
    told = shown(page)["snapshot"]
    assert told["rounds_done"] == 5
    assert [k for k, _ in told["changes"]] == [1, 2, 3, 4, 5]


def test_many_pages_are_one_question(page, run):
    shown(page)
    before, start = run.asked, time.monotonic()
    while time.monotonic() < start + 1.0:
        shown(page)
    assert run.asked - before <= (time.monotonic() - start) / 0.25 + 1


def test_open_pages_see_the_end_before_the_port_is_free(run):
    page, seen = Page(run, token=TOKEN), []
    page.start()

    def watch():
        try:
            while True:
                seen.append(shown(page)["snapshot"]["state"])
                time.sleep(0.5)
        except ConnectionError:
            pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    time.sleep(0.1)
    run.arrive()
    run.play(run.n_rounds)
    page.close()
    watcher.join(10)
    assert (seen[0], seen[-1]) == ("waiting", "finished")
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

    with caplog.at_level(logging.WARNING), Page(snapshot, token=TOKEN) as page:
        for path in (LIVE, f"/snapshot?token={TOKEN}", LIVE):
            status, _, body = ask(page, path)
            assert (status, body) == (503, "The state of the run could not be read. Try again.\n")
            time.sleep(0.3)
        broken[0] = False
        time.sleep(0.3)
        assert shown(page)["snapshot"]["state"] == "waiting"
    assert "secret" not in caplog.text
    assert caplog.text.count("RuntimeError") == 1
