"""A live page of a simulated run, and requests to it over real sockets."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing

import pytest
from live_run import LiveRun

from dpadmm.federation.server.page import Page

TOKEN = "a-token-that-only-tests-know"


@pytest.fixture
def run():
    return LiveRun()


@pytest.fixture
def page(run):
    with Page(run, token=TOKEN) as page:
        yield page


def ask(page, path, *, method="GET", host=None, headers=None):
    """(status, headers, body) of one request."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{page.port}", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def raw(page, request):
    """Return the whole answer to these bytes."""
    with closing(socket.create_connection(("127.0.0.1", page.port), timeout=10)) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
