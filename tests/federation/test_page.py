"""The live page over real sockets: who may look, what they are told, and how it ends."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import threading
import time
from contextlib import ExitStack, closing
from itertools import product

import pytest
from live_run import LiveRun
from looping import case
from page_visits import TOKEN, ask, raw

from dpadmm.errors import DPADMMError
from dpadmm.federation.server import page as page_module
from dpadmm.federation.server.page import Page


@pytest.fixture(scope="module")
def calm():
    """A page for tests that leave its run as it is."""
    with Page(LiveRun(), token=TOKEN) as page:
        yield page


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
        re.search(r"script-src 'nonce-([\w-]+)'", headers["Content-Security-Policy"])[1] for _, headers, _ in answers
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


def test_without_the_token_there_is_a_sentence_and_no_news(calm):
    for query, path in product(
        [
            "",
            "?token=",
            f"?token={TOKEN[:-1]}",
            f"?token={TOKEN}x",
            f"?token={TOKEN}&token={TOKEN}",
            "?token=%C3%A9%ff",
            "?" + "a=1&" * 99,
        ],
        ["/", "/live", "/snapshot"],
    ):
        with case(query, path):
            status, headers, body = ask(calm, path + query)
            assert status == 403
            assert headers["Content-Type"].startswith("text/plain")
            assert body == "Open this page with the full address that the server printed, including the token.\n"


def test_a_browser_without_the_token_gets_the_sentence_as_a_page(calm):
    status, headers, body = ask(calm, "/", headers={"Accept": "text/html,*/*"})
    assert status == 403
    assert headers["Content-Type"].startswith("text/html")
    assert "with the full address" in body


def test_it_can_be_read_and_nothing_else(calm):
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"]:
        with case(method):
            status, headers, _ = ask(calm, f"/?token={TOKEN}", method=method)
            assert status == 405
            assert headers["Allow"] == "GET, HEAD"


def test_head_is_get_without_the_body(calm):
    for path in ["/", "/snapshot", "/live"]:
        with case(path):
            status, headers, body = ask(calm, f"{path}?token={TOKEN}", method="HEAD")
            assert (status, body) == (200, "")
            assert headers["Content-Length"] == ask(calm, f"{path}?token={TOKEN}")[1]["Content-Length"]


def test_there_is_nothing_else(calm):
    for path in ["/favicon.ico", "/live.js", "/../news.py", "/events", "/Live", "/%2e%2e/"]:
        with case(path):
            assert ask(calm, f"{path}?token={TOKEN}")[0] == 404


def test_another_name_for_this_machine_is_turned_away(calm):
    for host in [
        "attacker.example",
        "127.0.0.1.attacker.example",
        "localhost.:80",
        "10.0.0.1",
        "127.0.0.1:x",
        "a@127.0.0.1",
    ]:
        with case(host):
            status, _, body = ask(calm, f"/snapshot?token={TOKEN}", host=host)
            assert status == 403
            assert "this machine only" in body


def test_a_tunnel_may_have_another_port(calm):
    for host in ["127.0.0.1", "localhost:9000", "[::1]:80", "LOCALHOST"]:
        with case(host):
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


@pytest.fixture
def held():
    """Closes at the end what a test left open."""
    with ExitStack() as held:
        yield held


@pytest.fixture
def patient(run, monkeypatch):
    """A page that gives up nobody for being slow."""
    monkeypatch.setattr(page_module._RequestHandler, "timeout", 600.0)
    with Page(run, token=TOKEN, header_seconds=600.0) as page:
        yield page


def idle(page, held):
    return held.enter_context(closing(socket.create_connection(("127.0.0.1", page.port), timeout=10)))


def is_open(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)


def test_for_one_too_many_the_oldest_without_a_token_is_closed(patient, held, monkeypatch):
    monkeypatch.setattr(page_module, "CONNECTIONS", 3)
    waiting = [idle(patient, held) for _ in range(7)]
    for connection in waiting[:4]:
        assert connection.recv(1) == b""
    assert [is_open(connection) for connection in waiting[4:]] == [True, True, True]
    assert ask(patient, f"/snapshot?token={TOKEN}")[0] == 200
    assert waiting[4].recv(1) == b""
    assert [is_open(connection) for connection in waiting[5:]] == [True, True]


def test_an_owner_gets_in_whoever_stands_at_the_door(patient, held):
    crowd = [idle(patient, held) for _ in range(page_module.CONNECTIONS + 10)]
    begun = time.monotonic()
    assert ask(patient, f"/?token={TOKEN}")[0] == 200
    assert time.monotonic() - begun < 5.0
    assert crowd[0].recv(1) == b""


def test_one_with_a_token_is_closed_for_nobody(run, held, monkeypatch):
    """Two wait for a run that is slow to tell; a third is closed unread, and so is a crowd."""
    monkeypatch.setattr(page_module, "CONNECTIONS", 2)
    asked, told = threading.Semaphore(0), threading.Event()
    admit = page_module._Server.admit

    def admitted(self, request):
        admit(self, request)
        asked.release()

    monkeypatch.setattr(page_module._Server, "admit", admitted)
    with Page(lambda: told.wait(60) and run(), token=TOKEN, header_seconds=0.5) as page:
        waiting = [held.enter_context(closing(http.client.HTTPConnection("127.0.0.1", page.port))) for _ in range(2)]
        for connection in waiting:
            connection.request("GET", f"/snapshot?token={TOKEN}")
            assert asked.acquire(timeout=10)
        assert raw(page, b"") == b""
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            ask(page, f"/snapshot?token={TOKEN}")
        time.sleep(1.0)  # longer than those without a token may take
        told.set()
        assert [connection.getresponse().status for connection in waiting] == [200, 200]


def send_slowly(connection):
    """Every byte in good time, the whole in none."""
    for _ in range(200):
        connection.sendall(b"G")
        time.sleep(0.05)


def test_a_header_that_takes_too_long_is_not_waited_for(run, held):
    with Page(run, token=TOKEN, header_seconds=0.5) as page:
        silent, slow, begun = idle(page, held), idle(page, held), time.monotonic()
        with pytest.raises(ConnectionError):
            send_slowly(slow)
        assert 0.4 < time.monotonic() - begun < 8.0
        assert silent.recv(1) == b""
        assert ask(page, f"/snapshot?token={TOKEN}")[0] == 200


def test_close_does_not_wait_for_one_who_says_nothing(run):
    page = Page(run, token=TOKEN)
    page.start()
    with closing(socket.create_connection(("127.0.0.1", page.port), timeout=10)) as silent:
        assert ask(page, f"/snapshot?token={TOKEN}")[0] == 200  # so the silent one was taken in before
        page.close()
        assert silent.recv(1) == b""


def test_a_page_that_was_never_started_closes():
    page = Page(LiveRun())
    page.close()
    assert len(page.url.partition("token=")[2]) >= 32
    again = Page(LiveRun(), port=page.port)
    again.close()
    assert again.url != page.url


def test_a_port_in_use_is_a_sentence(page, run):
    with pytest.raises(DPADMMError, match=rf"cannot use port {page.port} .*choose another"):
        Page(run, port=page.port)
    with pytest.raises(DPADMMError, match="choose one up to 65535"):
        Page(run, port=70000)
    with pytest.raises(DPADMMError, match="16 to 200 letters"):
        Page(run, token="short")


def test_it_listens_on_loopback_alone(calm):
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.2", calm.port))  # free: the page did not take every address


def test_the_token_is_in_no_log(calm, caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        ask(calm, f"/?token={TOKEN}")
        ask(calm, f"/nothing?token={TOKEN}")
        raw(calm, f"NONSENSE {TOKEN}\r\n\r\n".encode())
    assert TOKEN not in caplog.text + "".join(capfd.readouterr())
