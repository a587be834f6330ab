"""The web application over real sockets: TLS with the server's certificate, limits, errors, and its end."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import time
from contextlib import ExitStack, closing

import pytest
from brokers import free_port
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.settings import settings_of
from dpadmm.federation.web import hosting
from dpadmm.federation.web.hosting import Certificate, Listener, PortInUseError, hosted, read_body


async def echo(request: Request) -> Response:
    return PlainTextResponse(await read_body(request, 100, seconds=0.3))


def fail(request: Request) -> Response:
    raise ValueError("a secret of the process")


ROUTES = [Route("/echo", echo, methods=["POST"]), Route("/fail", fail)]


@pytest.fixture(scope="module")
def plain():
    with hosted(ROUTES, Listener("127.0.0.1", 0)) as (listener,):
        yield listener.port


def ask(port: int, path: str, *, method: str = "GET", body: bytes | None = None, context: ssl.SSLContext | None = None):
    """(status, headers, body) of one request."""
    if context is None:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    else:
        made = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
    with closing(made) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def test_a_body_up_to_the_limit_is_read(plain):
    assert ask(plain, "/echo", method="POST", body=b"a" * 100)[::2] == (200, b"a" * 100)


def test_a_longer_body_is_refused_declared_or_not(plain):
    declared = ask(plain, "/echo", method="POST", body=b"a" * 101)
    streamed = ask(plain, "/echo", method="POST", body=iter([b"a" * 60, b"a" * 60]))
    assert declared[::2] == streamed[::2] == (413, b"The request is longer than 100 bytes.\n")


def test_a_body_that_does_not_arrive_is_not_awaited(plain):
    with closing(socket.create_connection(("127.0.0.1", plain), timeout=10)) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_an_error_is_one_line_without_its_text(plain, caplog, capfd):
    with caplog.at_level(logging.WARNING):
        status, headers, body = ask(plain, "/fail")
    assert (status, body) == (500, b"The server could not answer. Try again.\n")
    assert headers["X-Content-Type-Options"] == "nosniff"
    deadline = time.monotonic() + 5
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.01)
    assert caplog.messages == ["the web application failed at /fail (ValueError)"]
    assert capfd.readouterr() == ("", "")


def test_every_answer_has_the_security_headers(plain):
    for path, status in (("/echo", 405), ("/nothing", 404), ("/fail", 500)):
        answer = ask(plain, path)
        assert answer[0] == status
        policy = answer[1]["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert answer[1]["Cache-Control"] == "no-store"
        assert answer[1].get_all("Server") == ["dpadmm"]


def test_a_port_in_use_is_one_sentence_and_nothing_is_served(plain):
    other = free_port()
    with (
        pytest.raises(PortInUseError, match=r"cannot listen on 127\.0\.0\.1:\d+: the port is in use; .*\(web_port in"),
        hosted(ROUTES, Listener("127.0.0.1", other), Listener("127.0.0.1", plain, setting="web_port in server.toml")),
    ):
        pass
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", other))


def test_a_silent_client_is_disconnected_and_does_not_delay_the_end(monkeypatch):
    monkeypatch.setattr(hosting, "REQUEST_SECONDS", 0.2)
    with hosted(ROUTES, Listener("127.0.0.1", 0)) as (listener,):
        silent = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        silent.sendall(b"GET /echo HT")
        assert silent.recv(100) == b""
        silent.close()
    with hosted(ROUTES, Listener("127.0.0.1", 0)) as (listener,):
        silent = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
        began = time.monotonic()
    assert time.monotonic() - began < hosting.CLOSE_SECONDS + 1.5
    silent.close()


def test_a_crowd_that_says_nothing_keeps_nobody_out(monkeypatch):
    """Of the silent connections the oldest is closed; one with a request is not."""
    monkeypatch.setattr(hosting, "MAX_SILENT", 3)
    with hosted(ROUTES, Listener("127.0.0.1", 0)) as (listener,), ExitStack() as held:

        def connect():
            return held.enter_context(socket.create_connection(("127.0.0.1", listener.port), timeout=5))

        working = connect()
        working.sendall(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nab")
        time.sleep(0.1)
        silent = [connect() for _ in range(5)]
        assert [connection.recv(1) for connection in silent[:2]] == [b"", b""]
        assert ask(listener.port, "/nothing")[0] == 404
        assert working.recv(100).startswith(b"HTTP/1.1 408 ")


def test_one_client_too_many_is_told_so(monkeypatch):
    monkeypatch.setattr(hosting, "MAX_CONNECTIONS", 3)
    with hosted(ROUTES, Listener("127.0.0.1", 0)) as (listener,):
        waiting = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(3)]
        time.sleep(0.2)
        assert ask(listener.port, "/nothing")[0] == 503
        for connection in waiting:
            connection.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority.create(tmp_path_factory.mktemp("authority") / "server", hosts=["localhost"], port=free_port())


def test_the_chain_ends_with_the_authority_and_a_renewed_certificate_is_used(authority, monkeypatch):
    monkeypatch.setattr(hosting, "RELOAD_SECONDS", 0)
    context = ssl.create_default_context(cafile=authority.folder / "authority" / "ca.pem")
    with hosted(ROUTES, Listener("127.0.0.1", 0, Certificate.of_server(authority))) as (listener,):
        assert listener.url == f"https://127.0.0.1:{listener.port}"

        def sent() -> list[bytes]:
            with (
                socket.create_connection(("127.0.0.1", listener.port), timeout=5) as line,
                context.wrap_socket(line, server_hostname="localhost") as secured,
            ):
                inner = secured._sslobj  # SSLSocket.get_unverified_chain needs Python 3.13
                return [item.public_bytes(2) for item in inner.get_unverified_chain()]

        chain = sent()
        ca = ssl.PEM_cert_to_DER_cert((authority.folder / "authority" / "ca.pem").read_text())
        assert len(chain) == 2
        assert chain[-1] == ca
        assert ask(listener.port, "/nothing", context=context)[0] == 404
        for name in ("broker.key", "broker.pem"):
            (authority.folder / name).write_bytes(b"")  # Authority replaces a damaged certificate
        (authority.folder / "broker.pem").unlink()
        authority.renew_certificates()
        deadline = time.monotonic() + 10
        while sent()[0] == chain[0]:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_an_incomplete_handshake_ends(authority, monkeypatch):
    monkeypatch.setattr(hosting, "HANDSHAKE_SECONDS", 0.2)
    with hosted(ROUTES, Listener("127.0.0.1", 0, Certificate.of_server(authority))) as (listener,):
        with socket.create_connection(("127.0.0.1", listener.port), timeout=5) as silent:
            assert silent.recv(100) == b""
        with socket.create_connection(("127.0.0.1", listener.port), timeout=5) as plain_http:
            plain_http.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not plain_http.recv(100).startswith(b"HTTP/")


def test_the_web_port_is_next_to_the_broker_port_unless_set():
    assert settings_of(["localhost"], 4222).web_port == 4223
    assert settings_of(["localhost"], 4222, websocket_port=4223).web_port == 4224
    assert settings_of(["localhost"], 65535).web_port == 65534
    assert settings_of(["localhost"], 4222, web_port=443).web_port == 443
    for wrong in (4222, 0, 65536, "https"):
        with pytest.raises(ValueError, match="web_port"):
            settings_of(["localhost"], 4222, web_port=wrong)
