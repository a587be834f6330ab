"""A read-only page about a run, on this machine only: ``http://127.0.0.1:PORT/?token=...``.

Whoever is on this machine and knows the token may look. Nothing here changes a run.
"""

from __future__ import annotations

import hmac
import logging
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from dpadmm.errors import DpadmmError
from dpadmm.federation.news import News, Snapshot, message
from dpadmm.federation.page_parts import document, guarded

STREAMS = 16
"""At most so many pages are kept up to date at once."""
CONNECTIONS = 64
"""At most so many connections are open at once; for one more, the oldest without a token is closed."""
HEADER_SECONDS = 3.0
"""Who has not shown the token by then is closed, however busily it sends."""
BEAT = 10.0
"""A page hears something at least this often (seconds), and so knows a dead line from a slow run."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,200}")
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
_NO_TOKEN = "This page opens with the whole address that the aggregator printed, token included."
_log = logging.getLogger(__name__)


class Page:
    """Serves what ``snapshot`` tells until :meth:`close`; ``url`` is the address to open, and a secret."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        port: int = 0,
        token: str | None = None,
        header_seconds: float = HEADER_SECONDS,
    ) -> None:
        self._token = secrets.token_urlsafe(24) if token is None else token
        if not _TOKEN.fullmatch(self._token):
            raise DpadmmError(
                "the page's token must be 16 to 200 letters, digits, - or _; leave it out for a new one"
            )
        if not 0 <= port <= 65535:
            raise DpadmmError(
                f"the page cannot be served on port {port}: choose one up to 65535, or 0 for any free one"
            )
        try:
            self._server = _Server(port, News(snapshot), self._token, header_seconds)
        except OSError as error:
            raise DpadmmError(
                f"the page cannot be served on port {port} ({error.strerror}): "
                "choose another, or 0 for any free one"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="live page", daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def start(self) -> None:
        """Answer from now on, in threads that do not keep the process alive."""
        self._thread.start()

    def close(self, *, patience: float = 2.0) -> None:
        """Tell open pages good-bye and free the port; who does not listen is cut after ``patience``."""
        self._server.closing.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.finish(patience)

    def __enter__(self) -> Page:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, news: News, token: str, header_seconds: float) -> None:
        self.news, self.token, self._header_seconds = news, token.encode(), header_seconds
        self.closing = threading.Event()
        self.streams = threading.BoundedSemaphore(STREAMS)
        self._strangers: dict[socket.socket, float] = {}  # since when, oldest first
        self._known: set[socket.socket] = set()
        self._busy: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__(("127.0.0.1", port), _Visit)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without the look-up of this machine's name in the parent
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a connection in; where there are too many, instead of the oldest that showed no token."""
        with self._changed:
            if len(self._strangers) + len(self._known) >= CONNECTIONS:
                if not self._strangers:
                    return False
                self._drop(next(iter(self._strangers)))
            self._strangers[request] = time.monotonic()
            return True

    def service_actions(self) -> None:
        """Between two looks at the door: close those that took too long to say who they are."""
        with self._changed:
            latest = time.monotonic() - self._header_seconds
            for late in [each for each, since in self._strangers.items() if since < latest]:
                self._drop(late)

    def admit(self, request: socket.socket) -> None:
        """It has shown the token: from now on it is closed for nobody."""
        with self._changed:
            if self._strangers.pop(request, None) is not None:  # else it was closed a moment ago
                self._known.add(request)

    def _drop(self, stranger: socket.socket) -> None:
        """End the line; the thread that reads it notices, and closes it."""
        del self._strangers[stranger]
        _hang_up(stranger)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._strangers.pop(request, None)
            self._known.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a visit to the live page broke off")

    @contextmanager
    def answering(self, request: socket.socket) -> Iterator[None]:
        """While a request is answered, which the end waits for."""
        with self._changed:
            self._busy.add(request)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(request)
                self._changed.notify_all()

    def finish(self, patience: float) -> None:
        """Wait for answers under way, then end every connection (browsers open some ahead of need)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, patience)
            for connection in (*self._strangers, *self._known):
                _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already
        connection.shutdown(socket.SHUT_RDWR)


class _Visit(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 10.0  # a line that stands still this long is given up
    _ways: ClassVar[dict[str, str]] = {"/": "_page", "/events": "_events", "/snapshot": "_snapshot"}

    def parse_request(self) -> bool:
        """Read the request and turn away what is not a look from this machine."""
        if not super().parse_request():
            return False
        host = self.headers.get_all("Host", [])
        if len(host) != 1 or not _HOST.fullmatch(host[0]):
            self._say(
                HTTPStatus.FORBIDDEN,
                "This page is open to this machine only: call it 127.0.0.1 or localhost.",
            )
        elif self.command not in ("GET", "HEAD"):
            self._say(
                HTTPStatus.METHOD_NOT_ALLOWED, "This page can be read, and nothing else.", Allow="GET, HEAD"
            )
        else:
            return True
        return False

    def do_GET(self) -> None:
        with self.server.answering(self.connection):
            self._answer()

    do_HEAD = do_GET

    def _answer(self) -> None:
        address = urlsplit(self.path)
        way = self._ways.get(address.path)
        if way is None:
            self._say(HTTPStatus.NOT_FOUND, "There is no such page here.")
        elif not self._known(address.query):
            if way == "_page" and "text/html" in self.headers.get("Accept", ""):
                self._show("again.html", HTTPStatus.FORBIDDEN, sentence=_NO_TOKEN)
            else:
                self._say(HTTPStatus.FORBIDDEN, _NO_TOKEN)
        else:
            self.server.admit(self.connection)
            getattr(self, way)()

    def _known(self, query: str) -> bool:
        try:
            given = parse_qs(query, max_num_fields=8).get("token", [])
        except ValueError:
            return False
        return len(given) == 1 and hmac.compare_digest(given[0].encode("utf-8", "replace"), self.server.token)

    def _page(self) -> None:
        self._show("live.html", HTTPStatus.OK)

    def _show(self, name: str, status: HTTPStatus, *, sentence: str = "") -> None:
        nonce = secrets.token_urlsafe(18)
        text = document(name).replace("{{nonce}}", nonce).replace("{{sentence}}", sentence)
        self._send(status, "text/html; charset=utf-8", text.encode(), nonce=nonce)

    def _snapshot(self) -> None:
        whole = self.server.news.latest().whole
        if whole is None:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "The state of the run could not be read; try again.")
        else:
            self._send(HTTPStatus.OK, "application/json", whole)

    def _events(self) -> None:
        if self.command == "HEAD":
            self._send(HTTPStatus.OK, "text/event-stream", None)
        elif not self.server.streams.acquire(blocking=False):
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, "Too many of these pages are open: close some.")
        else:
            try:
                self._send(HTTPStatus.OK, "text/event-stream", None)
                self._stream()
            finally:
                self.server.streams.release()

    def _stream(self) -> None:
        """A snapshot at once, then every change, with a beat in between, and a good-bye."""
        server, heard, sent = self.server, time.monotonic(), 0
        self.wfile.write(b"retry: 1000\n\n")
        while not server.closing.is_set() and not self._gone():
            told = server.news.latest()
            if told.number != sent:
                self.wfile.write(told.message)
                sent, heard = told.number, time.monotonic()
            elif time.monotonic() - heard >= BEAT:
                self.wfile.write(b": nothing new\n" + message("beat", b"{}"))
                heard = time.monotonic()
            server.closing.wait(server.news.period)
        if server.closing.is_set():  # how the run ended, before the good-bye
            told = server.news.latest(now=True)
            self.wfile.write((told.message if told.number != sent else b"") + message("bye", b"{}"))

    def _gone(self) -> bool:
        """Whether the other end has hung up, told without waiting for the next write."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)

    def _say(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(), **headers)

    def _send(
        self, status: HTTPStatus, kind: str, body: bytes | None, *, nonce: str = "", **headers: str
    ) -> None:
        """Head and body; without a body, the head of a stream that ends with the connection."""
        self.send_response(status)
        for name, value in {"Content-Type": kind, **guarded(nonce), **headers}.items():
            self.send_header(name, value)
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body is not None and self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the parser turns away: a sentence that repeats nothing of the request."""
        self.close_connection = True
        self.command = self.command or "GET"
        self._say(HTTPStatus(code), "This request cannot be read.")

    def version_string(self) -> str:
        return "dpadmm"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request's line holds the token."""
