"""The live page over real sockets: who may look, what they are told, and how it ends."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import time
from contextlib import closing, contextmanager

import numpy as np
import pytest

from dpadmm.errors import DpadmmError
from dpadmm.federation import page as page_module
from dpadmm.federation.news import EVENTS, POINTS, News, clean, thinned
from dpadmm.federation.page import STREAMS, Page
from live_run import LiveRun

TOKEN = "a-token-that-only-tests-know"


@pytest.fixture
def run():
    return LiveRun()


@pytest.fixture
def page(run):
    with Page(run, token=TOKEN) as page:
        yield page


@pytest.fixture(scope="module")
def calm():
    """A page for tests that leave its run as it is."""
    with Page(LiveRun(), token=TOKEN) as page:
        yield page


def ask(page, path, *, method="GET", host=None, headers=None):
    """(status, headers, body) of one request."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        connection.request(
            method, path, headers={"Host": host or f"127.0.0.1:{page.port}", **(headers or {})}
        )
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def raw(page, request):
    """Everything that is answered to these bytes."""
    with closing(socket.create_connection(("127.0.0.1", page.port), timeout=10)) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@contextmanager
def stream(page):
    """An open stream, as its response."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        connection.request("GET", f"/events?token={TOKEN}")
        with closing(connection.getresponse()) as answer:
            yield answer


def next_message(answer):
    """(kind, data) of the next event; comments and the retry time are passed over."""
    kind, data = None, None
    for line in iter(answer.readline, b""):
        text = line.decode().rstrip("\n")
        if text.startswith("event: "):
            kind = text[7:]
        elif text.startswith("data: "):
            data = json.loads(text[6:])
        elif not text and kind:
            return kind, data
    return None, None


def next_snapshot(answer, wanted):
    while True:
        kind, data = next_message(answer)
        assert kind == "snapshot", kind
        if wanted(data["snapshot"]):
            return data["snapshot"]


def test_the_address_opens_the_page(calm):
    assert calm.url == f"http://127.0.0.1:{calm.port}/?token={TOKEN}"
    status, headers, body = ask(calm, f"/?token={TOKEN}")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "{{" not in body
    assert TOKEN not in body
    assert not re.search(r"""(src|href)=["'](?!#|data:,)""", body)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", body)


def test_nothing_is_kept_sniffed_framed_or_run_but_its_own(calm):
    answers = [ask(calm, f"/?token={TOKEN}") for _ in range(2)]
    nonces = [
        re.search(r"script-src 'nonce-([\w-]+)'", headers["Content-Security-Policy"])[1]
        for _, headers, _ in answers
    ]
    assert nonces[0] != nonces[1]
    for nonce, (_, _, body) in zip(nonces, answers, strict=True):
        assert re.findall(r"<(?:script|style)[^>]*>", body) == [
            f'<style nonce="{nonce}">',
            f'<script nonce="{nonce}">',
        ]
    for path in (f"/?token={TOKEN}", "/", "/nothing", f"/snapshot?token={TOKEN}"):
        _, headers, _ = ask(calm, path)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Server"] == "dpadmm"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", ["/", "/events", "/snapshot"])
@pytest.mark.parametrize(
    "query",
    [
        "",
        "?token=",
        f"?token={TOKEN[:-1]}",
        f"?token={TOKEN}x",
        f"?token={TOKEN}&token={TOKEN}",
        "?token=%C3%A9%ff",
        "?" + "a=1&" * 99,
    ],
)
def test_without_the_token_there_is_a_sentence_and_no_news(calm, path, query):
    status, headers, body = ask(calm, path + query)
    assert status == 403
    assert headers["Content-Type"].startswith("text/plain")
    assert body == "This page opens with the whole address that the aggregator printed, token included.\n"


def test_a_browser_without_the_token_gets_the_sentence_as_a_page(calm):
    status, headers, body = ask(calm, "/", headers={"Accept": "text/html,*/*"})
    assert status == 403
    assert headers["Content-Type"].startswith("text/html")
    assert "opens with the whole address" in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
def test_it_can_be_read_and_nothing_else(calm, method):
    status, headers, _ = ask(calm, f"/?token={TOKEN}", method=method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/snapshot", "/events"])
def test_head_is_get_without_the_body(calm, path):
    status, headers, body = ask(calm, f"{path}?token={TOKEN}", method="HEAD")
    assert (status, body) == (200, "")
    if path != "/events":
        assert headers["Content-Length"] == ask(calm, f"{path}?token={TOKEN}")[1]["Content-Length"]


@pytest.mark.parametrize("path", ["/favicon.ico", "/live.js", "/../news.py", "/Events", "/%2e%2e/"])
def test_there_is_nothing_else(calm, path):
    assert ask(calm, f"{path}?token={TOKEN}")[0] == 404


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "127.0.0.1.attacker.example",
        "localhost.:80",
        "10.0.0.1",
        "127.0.0.1:x",
        "a@127.0.0.1",
    ],
)
def test_another_name_for_this_machine_is_turned_away(calm, host):
    status, _, body = ask(calm, f"/snapshot?token={TOKEN}", host=host)
    assert status == 403
    assert "this machine only" in body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:80", "LOCALHOST"])
def test_a_tunnel_may_have_another_port(calm, host):
    assert ask(calm, f"/snapshot?token={TOKEN}", host=host)[0] == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /snapshot?token=%b HTTP/1.1\r\n\r\n" % TOKEN.encode(),
        b"GET /snapshot?token=%b HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n" % TOKEN.encode(),
        b"GET /snapshot?token=%b\r\n\r\n" % TOKEN.encode(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a greeting of TLS\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ],
    ids=["no host", "two hosts", "version 0.9", "tls", "long line", "many headers", "version 9.9"],
)
def test_what_no_browser_sends_is_turned_away(calm, request_bytes, capfd):
    answer = raw(calm, request_bytes)
    assert b"study" not in answer
    assert ask(calm, f"/snapshot?token={TOKEN}")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_scripts_get_the_whole_snapshot(page, run):
    run.arrive()
    run.play(3)
    status, headers, body = ask(page, f"/snapshot?token={TOKEN}")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == run()


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
    monkeypatch.setattr(page_module, "BEAT", 0.0)
    with Page(run, token=TOKEN) as page, stream(page) as answer:
        assert [next_message(answer)[0] for _ in range(3)] == ["snapshot", "beat", "beat"]


def test_many_pages_are_one_question(page, run):
    with stream(page) as first, stream(page) as second, stream(page) as third:
        assert [next_message(answer)[0] for answer in (first, second, third)] == ["snapshot"] * 3
        before, start = run.asked, time.monotonic()
        time.sleep(1.0)
        assert run.asked - before <= (time.monotonic() - start) / 0.25 + 1


def test_streams_are_bounded_and_come_free(page):
    with stream(page) as kept:
        assert next_message(kept)[0] == "snapshot"
        extra = [http.client.HTTPConnection("127.0.0.1", page.port, timeout=10) for _ in range(STREAMS - 1)]
        for connection in extra:
            connection.request("GET", f"/events?token={TOKEN}")
        answers = [connection.getresponse() for connection in extra]
        status, _, body = ask(page, f"/events?token={TOKEN}")
        assert (status, body) == (503, "Too many of these pages are open: close some.\n")
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


def test_connections_are_bounded(run, monkeypatch):
    monkeypatch.setattr(page_module, "CONNECTIONS", 3)
    with Page(run, token=TOKEN) as page:
        idle = [socket.create_connection(("127.0.0.1", page.port), timeout=10) for _ in range(3)]
        assert raw(page, b"") == b""  # closed unread
        for connection in idle:
            connection.close()
        deadline = time.monotonic() + 10
        while True:
            try:
                assert ask(page, f"/snapshot?token={TOKEN}")[0] == 200
                break
            except (ConnectionError, http.client.HTTPException):
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_close_says_good_bye_and_frees_the_port(run):
    page = Page(run, token=TOKEN)
    page.start()
    with stream(page) as answer:
        next_message(answer)
        page.close()
        assert next_message(answer)[0] == "bye"
        assert answer.read() == b""
    with pytest.raises(ConnectionRefusedError):
        ask(page, "/")
    page.close()  # a second time does no harm
    with Page(run, port=page.port, token=TOKEN) as again:
        assert again.url == page.url
        assert ask(again, f"/snapshot?token={TOKEN}")[0] == 200


def test_close_does_not_wait_for_one_who_says_nothing(run):
    page = Page(run, token=TOKEN)
    page.start()
    with closing(socket.create_connection(("127.0.0.1", page.port), timeout=10)) as silent:
        assert ask(page, f"/snapshot?token={TOKEN}")[0] == 200  # so the silent one was taken in before
        page.close(patience=0.05)
        assert silent.recv(1) == b""


def test_a_page_that_was_never_started_closes():
    page = Page(LiveRun())
    page.close()
    assert len(page.url.partition("token=")[2]) >= 32
    again = Page(LiveRun(), port=page.port)
    again.close()
    assert again.url != page.url


def test_a_port_in_use_is_a_sentence(page, run):
    with pytest.raises(DpadmmError, match=rf"cannot be served on port {page.port} .*choose another"):
        Page(run, port=page.port)
    with pytest.raises(DpadmmError, match="choose one up to 65535"):
        Page(run, port=70000)
    with pytest.raises(DpadmmError, match="16 to 200 letters"):
        Page(run, token="short")


def test_it_listens_on_loopback_alone(calm):
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.2", calm.port))  # free: the page did not take every address


def test_a_run_that_cannot_be_read_is_said_and_comes_back(run, caplog):
    broken = [True]

    def snapshot():
        if broken[0]:
            raise RuntimeError("a secret of the run")
        return run()

    with caplog.at_level(logging.DEBUG), Page(snapshot, token=TOKEN) as page, stream(page) as answer:
        assert next_message(answer) == ("trouble", {})
        status, _, body = ask(page, f"/snapshot?token={TOKEN}")
        assert (status, body) == (503, "The state of the run could not be read; try again.\n")
        broken[0] = False
        assert next_message(answer)[0] == "snapshot"
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text


def test_the_token_is_in_no_log(calm, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        ask(calm, f"/?token={TOKEN}")
        ask(calm, f"/nothing?token={TOKEN}")
        raw(calm, f"NONSENSE {TOKEN}\r\n\r\n".encode())
    assert TOKEN not in caplog.text + "".join(capfd.readouterr())


def test_numbers_that_json_does_not_know_become_null():
    told = clean({"a": [np.float32(0.5), np.inf, np.int64(3), True], "b": ("x", None)})
    assert json.dumps(told) == '{"a": [0.5, null, 3, true], "b": ["x", null]}'
    with pytest.raises(TypeError, match="cannot hold a set"):
        clean({"a": {1}})


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
    told = News(lambda: state).latest()
    events = json.loads(told.message.decode().partition("data: ")[2])["snapshot"]["events"]
    assert [event["text"] for event in events] == [f"event {k}" for k in range(2 * EVENTS, 3 * EVENTS)]
    assert len(json.loads(told.whole)["events"]) == 3 * EVENTS
