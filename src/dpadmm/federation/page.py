"""A read-only live page of a run, on this machine only: ``http://127.0.0.1:PORT/?token=...``.

The page needs the token and cannot change a run. A snapshot of the run is taken a few times a second, however
many pages are open, and sent to them as server-sent events.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from numbers import Integral, Real
from socketserver import TCPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from dpadmm._base.errors import DpadmmError

EVENTS = 200
"""The number of events that a page receives."""
POINTS = 2000
"""The maximum number of points of the curve."""

Snapshot = Callable[[], Mapping[str, Any]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """The state of a run; ``number`` grows with every change, ``whole`` is None if the snapshot failed."""

    number: int
    whole: bytes | None
    message: bytes


class EventFeed:
    """The latest snapshot as JSON (``whole``) and as a server-sent event (``message``).

    A snapshot is taken by the first request after ``period`` seconds, and shared by the others.
    """

    def __init__(self, snapshot: Snapshot, *, period: float = 0.25) -> None:
        self.period = period
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._due = -math.inf
        self._update = Update(0, None, b"")

    def latest(self, *, now: bool = False) -> Update:
        """An update not older than ``period``, or a new one."""
        with self._lock:
            if now or time.monotonic() >= self._due:
                self._update = self._ask(self._update)
                self._due = time.monotonic() + self.period
            return self._update

    def _ask(self, before: Update) -> Update:
        try:
            taken = clean(self._snapshot())
            whole = _json(taken)
            if whole == before.whole:
                return before
            changes, events = thinned(taken.get("changes", ())), taken.get("events", [])[-EVENTS:]
            shown = {**taken, "changes": changes, "events": events}
            message = _event("snapshot", {"at": time.time(), "snapshot": shown})
        except Exception as error:  # the page must survive any error of the run
            if before.whole is None and before.number:
                return before
            _log.warning("the live page could not read the state of the run (%s)", type(error).__name__)
            return Update(before.number + 1, None, _event("trouble"))
        return Update(before.number + 1, whole, message)


def _event(kind: str, value: Any = None) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _json(value or {}))


def clean(value: Any) -> Any:
    """The same value for JSON: NaN and infinities become null."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):  # most values of a snapshot: before the slower checks
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): clean(each) for key, each in value.items()}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return clean(float(value))
    if isinstance(value, Sequence):
        return [clean(each) for each in value]
    raise TypeError(f"a snapshot cannot hold a {type(value).__name__}")


def thinned(values: Sequence[float | None], most: int = POINTS) -> list[tuple[int, float]]:
    """(round, value) for a logarithmic axis; of too many, the extremes of each interval, and the last.

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


def security_headers(nonce: str = "") -> dict[str, str]:
    """HTTP headers that forbid caching, framing and all scripts and styles without the nonce."""
    own = f"'nonce-{nonce}'" if nonce else "'none'"
    policy = (
        f"default-src 'none'; script-src {own}; style-src {own}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Connection": "close",
    }


def document(name: str) -> str:
    """An HTML page of this package, with placeholders such as {{live.css}} replaced by the files."""

    def text(name: str) -> str:
        return files("dpadmm.federation").joinpath("live", name).read_text(encoding="utf-8")

    return re.sub(r"\{\{([a-z]+\.(?:css|js))\}\}", lambda found: text(found[1]), text(name))


STREAMS = 16
"""The maximum number of open pages."""
CONNECTIONS = 64
"""The maximum number of connections; beyond it, the oldest one without a token is closed."""
HEARTBEAT = 10.0
"""Seconds between messages to a page, which can thus tell a lost connection from a slow run."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_NO_TOKEN = "Open this page with the full address that the aggregator printed, including the token."


class Page:
    """Serves snapshots of a run until :meth:`close`; ``url`` contains the secret token.

    Connections that have not sent the token after ``header_seconds`` are closed.
    """

    def __init__(
        self, snapshot: Snapshot, *, port: int = 0, token: str | None = None, header_seconds: float = 3.0
    ) -> None:
        self._token = secrets.token_urlsafe(24) if token is None else token
        if not _TOKEN.fullmatch(self._token):
            raise DpadmmError("the token of the live page must have 16 to 200 letters, digits, - or _")
        if not 0 <= port <= 65535:
            raise DpadmmError(f"the live page cannot use port {port}: choose one up to 65535, or 0 for any free port")
        try:
            self._server = _Server(port, EventFeed(snapshot), self._token, header_seconds)
        except OSError as error:
            raise DpadmmError(
                f"the live page cannot use port {port} ({error.strerror}): choose another, or 0 for any"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="live page", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def start(self) -> None:
        self._thread.start()

    def close(self, *, timeout: float = 2.0) -> None:
        """Notify open pages and free the port; remaining connections are closed after ``timeout``."""
        self._server.closing.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.finish(timeout)

    def __enter__(self) -> Page:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, feed: EventFeed, token: str, header_seconds: float) -> None:
        self.feed, self.token, self._header_seconds = feed, token.encode(), header_seconds
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(STREAMS)
        self._connections: dict[socket.socket, float] = {}
        """Since when each waits for its token, oldest first; infinity for those that have sent it."""
        self._busy: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__(("127.0.0.1", port), _RequestHandler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without the DNS lookup of the parent class
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept a connection; if there are too many, replace the oldest one without a token."""
        with self._changed:
            if len(self._connections) >= CONNECTIONS and not self._drop(math.inf, 1):
                return False
            self._connections[request] = time.monotonic()
            return True

    def service_actions(self) -> None:
        """Close connections that did not send the token in time."""
        with self._changed:
            self._drop(time.monotonic() - self._header_seconds, CONNECTIONS)

    def admit(self, request: socket.socket) -> None:
        """Keep a connection that has sent the token."""
        with self._changed:
            if request in self._connections:  # otherwise it was just closed
                self._connections[request] = math.inf

    def _drop(self, before: float, most: int) -> bool:
        """Shut down the oldest connections without a token, whose threads then close them."""
        strangers = [each for each, since in self._connections.items() if since < before][:most]
        for each in strangers:
            del self._connections[each]
            _shut_down(each)
        return bool(strangers)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request to the live page failed")

    @contextmanager
    def answering(self, request: socket.socket) -> Iterator[None]:
        """Mark a request as active, so that ``finish`` waits for it."""
        with self._changed:
            self._busy.add(request)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(request)
                self._changed.notify_all()

    def finish(self, timeout: float) -> None:
        """Wait for active requests, then close all connections, also those that browsers open in advance."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout)
            for connection in self._connections:
                _shut_down(connection)


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed
        connection.shutdown(socket.SHUT_RDWR)


class _RequestHandler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 10.0  # of a connection that sends nothing
    _routes: ClassVar[dict[str, str]] = {"/": "_send_page", "/events": "_events", "/snapshot": "_snapshot"}

    def parse_request(self) -> bool:
        """Refuse requests for other hosts and other methods."""
        if not super().parse_request():
            return False
        host = self.headers.get_all("Host", [])
        if len(host) != 1 or not _HOST.fullmatch(host[0]):
            text = "This page is available on this machine only, as 127.0.0.1 or localhost."
            self._send_text(HTTPStatus.FORBIDDEN, text)
        elif self.command not in ("GET", "HEAD"):
            self._send_text(HTTPStatus.METHOD_NOT_ALLOWED, "This page is read-only.", Allow="GET, HEAD")
        else:
            return True
        return False

    def do_GET(self) -> None:
        with self.server.answering(self.connection):
            self._answer()

    do_HEAD = do_GET

    def _answer(self) -> None:
        address = urlsplit(self.path)
        if (route := self._routes.get(address.path)) is None:
            self._send_text(HTTPStatus.NOT_FOUND, "Page not found.")
        elif not self._has_token(address.query):
            if route == "_send_page" and "text/html" in self.headers.get("Accept", ""):
                self._send_page("again.html", HTTPStatus.FORBIDDEN, sentence=_NO_TOKEN)
            else:
                self._send_text(HTTPStatus.FORBIDDEN, _NO_TOKEN)
        else:
            self.server.admit(self.connection)
            getattr(self, route)()

    def _has_token(self, query: str) -> bool:
        try:
            given = parse_qs(query, max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return len(given) == 1 and hmac.compare_digest(given[0].encode("utf-8", "replace"), self.server.token)

    def _send_page(self, name: str = "live.html", status: HTTPStatus = HTTPStatus.OK, *, sentence: str = "") -> None:
        nonce = secrets.token_urlsafe(18)
        text = document(name).replace("{{nonce}}", nonce).replace("{{sentence}}", sentence)
        self._send(status, "text/html; charset=utf-8", text.encode(), nonce=nonce)

    def _snapshot(self) -> None:
        whole = self.server.feed.latest().whole
        if whole is None:
            text = "The state of the run could not be read. Try again."
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, text)
        else:
            self._send(HTTPStatus.OK, "application/json", whole)

    def _events(self) -> None:
        if self.command == "HEAD":
            self._send(HTTPStatus.OK, "text/event-stream", None)
        elif not self.server.streams.acquire(blocking=False):
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, "Too many live pages are open. Close some.")
        else:
            try:
                self._send(HTTPStatus.OK, "text/event-stream", None)
                self._stream()
            finally:
                self.server.streams.release()

    def _stream(self) -> None:
        """Send a snapshot, then every change and heartbeats, and a final message."""
        server, heard, sent = self.server, time.monotonic(), 0
        self.wfile.write(b"retry: 1000\n\n")
        while not server.closing.is_set() and not self._disconnected():
            update = server.feed.latest()
            if update.number != sent:
                self.wfile.write(update.message)
                sent, heard = update.number, time.monotonic()
            elif time.monotonic() - heard >= HEARTBEAT:
                self.wfile.write(b": nothing new\n" + _event("beat"))
                heard = time.monotonic()
            server.closing.wait(server.feed.period)
        if server.closing.is_set():  # how the run ended
            update = server.feed.latest(now=True)
            self.wfile.write((update.message if update.number != sent else b"") + _event("bye"))

    def _disconnected(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def _send_text(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(), **headers)

    def _send(self, status: HTTPStatus, kind: str, body: bytes | None, *, nonce: str = "", **headers: str) -> None:
        """Send headers and body; without a body, the headers of a stream that ends with the connection."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, **security_headers(nonce), **headers}.items():
            self.send_header(name, value)
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body is not None and self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an invalid request without repeating any part of it."""
        self.close_connection = True
        self.command = self.command or "GET"
        self._send_text(HTTPStatus(code), "Invalid request.")

    def version_string(self) -> str:
        return "dpadmm"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the request line contains the token."""
