"""Serve Starlette routes over HTTP or HTTPS from a thread of the running process.

The thread has an event loop of its own, so that slow or hostile clients do not delay the round loop or the heartbeats
of the process. Connections are limited in number and in time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dpadmm.errors import StudyError
from dpadmm.federation.identity.authority import Authority

MAX_CONNECTIONS, MAX_SILENT = 200, 100
"""Limits of connections. Beyond the first, requests get status 503. Of those that have not sent a request, only the
latest ones stay open, so that a crowd of them keeps nobody out."""

HANDSHAKE_SECONDS, REQUEST_SECONDS = 5.0, 10.0
"""Seconds in which a client must complete the TLS handshake, and then send its first request."""

BACKLOG = 512
"""Connections that the system accepts ahead of the application."""

RELOAD_SECONDS = 5
"""Seconds between checks for a renewed certificate."""

CLOSE_SECONDS = 1
"""Seconds that open requests get at the end."""

_log = logging.getLogger(__name__)


class PortInUseError(StudyError):
    """An address and port on which the application cannot listen."""


@dataclass(frozen=True)
class Certificate:
    """The files of a TLS certificate: the chain that is sent to clients, and its key."""

    chain: tuple[Path, ...]
    key: Path

    @classmethod
    def of_server(cls, authority: Authority) -> Certificate:
        """Return the certificate of a server. Its chain ends with the authority, which sites compare when they join."""
        folder = authority.folder
        return cls((folder / "broker.pem", folder / "authority" / "ca.pem"), folder / "broker.key")


@dataclass(frozen=True)
class Listener:
    """An address and port on which the application listens; port 0 is any free port."""

    address: str
    port: int
    certificate: Certificate | None = None
    """Without it, the application serves HTTP."""
    setting: str = ""
    """Where the port is set, for the error message."""

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"


@contextmanager
def hosted(routes: Sequence[BaseRoute], *listeners: Listener) -> Iterator[list[Listener]]:
    """Serve the routes while the context is open, and yield the listeners with their actual ports.

    Raises ``PortInUseError`` before anything is served if one of the ports cannot be used.
    """
    app, bound, servers = application(routes), list[Listener](), list[_Server]()
    sockets = list[socket.socket]()
    try:
        for listener in listeners:
            sockets.append(_bind(listener))
            bound.append(replace(listener, port=sockets[-1].getsockname()[1]))
            servers.append(_Server(app, sockets[-1], listener.certificate))
        ready = threading.Event()
        thread = threading.Thread(target=_serve, args=(servers, ready), name="web application", daemon=True)
        thread.start()
        ready.wait()
        try:
            yield bound
        finally:
            for server in servers:
                server.should_exit = True
            thread.join()
    finally:
        for bound_socket in sockets:
            bound_socket.close()


def _serve(servers: Sequence[_Server], ready: threading.Event) -> None:
    async def serve() -> None:
        work = asyncio.gather(*(server.serve() for server in servers))
        while not all(server.started for server in servers) and not work.done():
            await asyncio.sleep(0.005)
        ready.set()
        await work

    try:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.get_loop().set_exception_handler(_log_loop_error)
            runner.run(serve())
    except Exception as error:  # the process continues without its page
        _log.error("the web application ended (%s)", type(error).__name__)
    finally:
        ready.set()


def _log_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what clients and a lack of file descriptors cause in one line, without a traceback."""
    _log.debug("web application: %s", context.get("message"))


def _bind(listener: Listener) -> socket.socket:
    family = socket.AF_INET6 if ip_address(listener.address).version == 6 else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listener.address, listener.port))
        bound.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        bound.close()
        number = error.errno if isinstance(error, OSError) else None
        reason = "the port is in use" if number == errno.EADDRINUSE else getattr(error, "strerror", None) or str(error)
        where = f" ({listener.setting})" if listener.setting else ""
        text = f"the web application cannot listen on {listener.address}:{listener.port}: {reason}"
        raise PortInUseError(f"{text}; choose another port{where}, or stop the program that uses it") from None
    return bound


class _Server(uvicorn.Server):
    """A uvicorn server on one socket, with limits in time and a certificate that can be renewed."""

    def __init__(self, app: ASGIApp, bound: socket.socket, certificate: Certificate | None) -> None:
        self._socket, self._certificate = bound, certificate
        self._context = None if certificate is None else _tls_context(certificate)
        self._loaded = _fingerprint(certificate)
        config = uvicorn.Config(
            app, loop="asyncio", http=H11Protocol, ws="none", lifespan="off", log_config=None, log_level="critical",
            access_log=False, server_header=False, headers=[("Server", "dpadmm")], limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=CLOSE_SECONDS, callback_notify=self._renew, timeout_notify=RELOAD_SECONDS,
        )  # fmt: skip
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Unlike the parent, limit the time of a TLS handshake."""
        loop = asyncio.get_running_loop()
        silent = dict[_Protocol, None]()
        protocol = partial(_Protocol, silent, self.config, self.server_state, {})
        seconds = None if self._context is None else HANDSHAKE_SECONDS
        server = await loop.create_server(
            protocol, sock=self._socket, ssl=self._context, backlog=BACKLOG, ssl_handshake_timeout=seconds
        )
        self.servers = [server]
        self.started = True

    async def _renew(self) -> None:
        """Use a renewed certificate for new connections."""
        if self._context is None or (found := _fingerprint(self._certificate)) == self._loaded:
            return
        with suppress(OSError, ssl.SSLError):  # being written; the next check loads it
            _load(self._context, cast(Certificate, self._certificate))
            self._loaded = found


def _tls_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # browsers and proxies
    _load(context, certificate)
    return context


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    """Load a chain from several files, which OpenSSL reads only from one."""
    with NamedTemporaryFile() as chain:
        chain.write(b"".join(path.read_bytes() for path in certificate.chain))
        chain.flush()
        context.load_cert_chain(chain.name, certificate.key)


def _fingerprint(certificate: Certificate | None) -> tuple[tuple[int, int], ...]:
    """Return times and sizes of the certificate's files, to detect changes."""
    if certificate is None:
        return ()
    with suppress(OSError):
        stats = [path.stat() for path in (*certificate.chain, certificate.key)]
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
    return ()


class _Protocol(H11Protocol):
    """HTTP/1.1 that closes connections whose first request does not arrive in time, or of which there are too many."""

    def __init__(self, silent: dict[_Protocol, None], *about: Any) -> None:
        super().__init__(*about)
        self._silent = silent
        """All connections without a request, oldest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit = self.loop.call_later(REQUEST_SECONDS, self._close_if_silent)
        self._silent[self] = None
        if len(self._silent) > MAX_SILENT:
            next(iter(self._silent))._close_if_silent()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        self._silent.pop(self, None)
        super().connection_lost(exc)

    def _close_if_silent(self) -> None:
        self._silent.pop(self, None)
        cycle: object = self.cycle  # None until the first header is complete
        if cycle is None:
            self.transport.close()


# ---- the application around the routes

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every answer. They forbid inline scripts, other origins, caching and framing."""


def application(routes: Sequence[BaseRoute]) -> ASGIApp:
    """Return the application of these routes: security headers, and one sentence for each error."""
    handlers = {HTTPException: _http_error, ClientDisconnect: _disconnected, Exception: _failure}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False  # redirects are absolute, which a proxy's prefix breaks
    return _Headers(app)


def _http_error(request: Request, error: Exception) -> Response:
    error = cast(HTTPException, error)
    sentence = {404: "Page not found.", 405: "This method is not allowed here."}.get(error.status_code, error.detail)
    return PlainTextResponse(f"{sentence}\n", error.status_code, headers=error.headers)


def _disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


def _failure(request: Request, error: Exception) -> Response:
    return PlainTextResponse("The server could not answer. Try again.\n", 500)


class _Headers:
    """Add the security headers, and turn an unexpected error into one line in the log and status 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                more = (pair for pair in _PAIRS if pair[0] not in own)
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            await self._app(scope, receive, send_secured)
        except Exception as error:  # already answered with status 500
            _log.warning("the web application failed at %s (%s)", scope["path"][:80], type(error).__name__)


_PAIRS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


async def read_body(request: Request, max_bytes: int, *, seconds: float = REQUEST_SECONDS) -> bytes:
    """Return the body of a request of limited size.

    Raises ``HTTPException`` with status 413 if it is too long, and 408 if it does not arrive in time.
    """
    too_long = HTTPException(413, f"The request is longer than {max_bytes:,} bytes.")
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 12 or int(length) > max_bytes:
        raise too_long
    body, end = bytearray(), time.monotonic() + seconds
    try:
        async with asyncio.timeout(max(0.0, end - time.monotonic())):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_long
    except TimeoutError:
        raise HTTPException(408, "The request did not arrive in time.") from None
    return bytes(body)
