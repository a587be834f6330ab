"""Visits to the live page over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing, contextmanager

TOKEN = "a-token-that-only-tests-know"


def ask(page, path, *, method="GET", host=None, headers=None):
    """(status, headers, body) of one request."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)) as connection:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{page.port}", **(headers or {})})
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
