"""Read-only live page of a run, on this machine only: ``http://127.0.0.1:PORT/?token=...``.

The page requires the token and cannot change a run. It requests a snapshot twice a second. All open pages share one
snapshot, taken a few times a second at most.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dpadmm.errors import DPADMMError
from dpadmm.parameters.fields import for_json

EVENTS = 200
"""The number of events that a page receives."""
POINTS = 2000
"""The maximum number of points of the curve."""
PERIOD = 0.25
"""Seconds for which a snapshot is the latest."""

Snapshot = Callable[[], Mapping[str, Any]]
_log = logging.getLogger(__name__)


class Snapshots:
    """The latest snapshot as JSON: the whole of it for scripts, and the part for the page; None if it failed.

    The first request after ``PERIOD`` seconds takes a new snapshot, which the other requests share.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._due = -math.inf
        self._taken: tuple[bytes, bytes] | None = None

    def latest(self) -> tuple[bytes, bytes] | None:
        with self._lock:
            if time.monotonic() >= self._due:
                self._taken = self._take()
                self._due = time.monotonic() + PERIOD
            return self._taken

    def _take(self) -> tuple[bytes, bytes] | None:
        try:
            taken = for_json(self._snapshot())
            whole = _json(taken)
            if self._taken and self._taken[0] == whole:
                return self._taken  # with its time, which shows a page that nothing is new
            changes, events = thinned(taken.get("changes", ())), taken.get("events", [])[-EVENTS:]
            return whole, _json({"at": time.time(), "snapshot": {**taken, "changes": changes, "events": events}})
        except Exception as error:  # the page must survive any error of the run
            if self._taken or self._due < 0.0:  # once
                _log.warning("the live page could not read the state of the run (%s)", type(error).__name__)
            return None


def thinned(values: Sequence[float | None], most: int = POINTS) -> list[tuple[int, float]]:
    """Return (round, value) for a logarithmic axis: at most ``most``, the extremes of each interval and the last one.

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
    extremes: set[tuple[int, float]] = {points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        extremes.add(min(stretch, key=lambda point: point[1]))
        extremes.add(max(stretch, key=lambda point: point[1]))
    return sorted(extremes)


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
        return files("dpadmm.federation.server").joinpath("live", name).read_text(encoding="utf-8")

    return re.sub(r"\{\{([a-z]+\.(?:css|js))\}\}", lambda match: text(match[1]), text(name))


CONNECTIONS = 64
"""The maximum number of connections; beyond it, the oldest one without a token is closed."""
LAST_LOOK = 1.0
"""Seconds for which open pages, which request twice as often, can show the end of a run."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_NO_TOKEN = "Open this page with the full address that the server printed, including the token."


class Page:
    """Serves snapshots of a run until :meth:`close`; ``url`` contains the secret token.

    Connections that have not sent the token after ``header_seconds`` are closed.
    """

    def __init__(
        self, snapshot: Snapshot, *, port: int = 0, token: str | None = None, header_seconds: float = 3.0
    ) -> None:
        self._token = secrets.token_urlsafe(24) if token is None else token
        if not _TOKEN.fullmatch(self._token):
            raise DPADMMError("the token of the live page must have 16 to 200 letters, digits, - or _")
        if not 0 <= port <= 65535:
            raise DPADMMError(f"the live page cannot use port {port}: choose one up to 65535, or 0 for any free port")
        try:
            self._server = _Server(port, Snapshots(snapshot), self._token, header_seconds)
        except OSError as error:
            raise DPADMMError(
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

    def close(self) -> None:
        """Wait until open pages show the end of the run, then free the port."""
        if self._thread.is_alive():
            if time.monotonic() - self._server.looked_at < 2.0 * LAST_LOOK:
                time.sleep(LAST_LOOK)
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.hang_up()

    def __enter__(self) -> Page:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, snapshots: Snapshots, token: str, header_seconds: float) -> None:
        self.snapshots, self.token, self._header_seconds = snapshots, token.encode(), header_seconds
        self.looked_at = -math.inf
        """Time of the last snapshot that was sent to a page."""
        self._connections: dict[socket.socket, float] = {}
        """Start of each connection without a token, oldest first; infinity for those that sent it."""
        self._changed = threading.Lock()
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
        unknown = [connection for connection, since in self._connections.items() if since < before][:most]
        for connection in unknown:
            del self._connections[connection]
            _shut_down(connection)
        return bool(unknown)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._connections.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request to the live page failed")

    def hang_up(self) -> None:
        """Close all connections, also those that browsers open in advance."""
        with self._changed:
            for connection in self._connections:
                _shut_down(connection)


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # already closed
        connection.shutdown(socket.SHUT_RDWR)


class _RequestHandler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 10.0  # of a connection that sends nothing

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
        address = urlsplit(self.path)
        if address.path not in ("/", "/live", "/snapshot"):
            self._send_text(HTTPStatus.NOT_FOUND, "Page not found.")
        elif not self._has_token(address.query):
            if address.path == "/" and "text/html" in self.headers.get("Accept", ""):
                self._send_page("again.html", HTTPStatus.FORBIDDEN, sentence=_NO_TOKEN)
            else:
                self._send_text(HTTPStatus.FORBIDDEN, _NO_TOKEN)
        else:
            self.server.admit(self.connection)
            match address.path:
                case "/":
                    self._send_page()
                case "/live":
                    self._send_snapshot(shown=True)
                    self.server.looked_at = time.monotonic()
                case _:
                    self._send_snapshot()

    do_HEAD = do_GET

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

    def _send_snapshot(self, *, shown: bool = False) -> None:
        if (latest := self.server.snapshots.latest()) is None:
            text = "The state of the run could not be read. Try again."
            self._send_text(HTTPStatus.SERVICE_UNAVAILABLE, text)
        else:
            self._send(HTTPStatus.OK, "application/json", latest[shown])

    def _send_text(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(), **headers)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, *, nonce: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **security_headers(nonce), **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
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
