"""Transports to a broker: TLS, or WebSocket inside TLS; direct, or through an HTTP proxy.

``dial`` opens the connection and passes nats-py a connected transport. The transports of nats-py do not support
proxies, and its WebSocket needs aiohttp, with seven more packages at every site. A proxy sees only a TLS connection to
the broker.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import abstractmethod
from base64 import b64encode
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from dpadmm.errors import StudyError
from dpadmm.federation.protocol import MissingPackagesError
from dpadmm.sites.addresses import host_and_port

try:
    from nats.aio.transport import Transport
except ImportError:
    raise MissingPackagesError from None

DIAL_TIMEOUT = 5.0
"""Seconds for name, port and TLS together; twice as many through a proxy."""

MAX_FRAME = 64 * 2**20
"""Bytes of a WebSocket frame, which may contain several messages of the broker."""


class HttpProxy(NamedTuple):
    """An HTTP proxy and the headers that authenticate to it."""

    host: str
    port: int
    headers: dict[str, str]

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(url: str) -> HttpProxy | None:
    """Return the proxy of ``HTTPS_PROXY`` or ``ALL_PROXY``; None for this machine and for hosts in ``NO_PROXY``."""
    host, proxies = host_and_port(url)[0], getproxies_environment()
    address = proxies.get("https") or proxies.get("all")
    if not address or _is_this_machine(host) or proxy_bypass_environment(host, proxies):
        return None
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(parts.scheme)
        port = parts.port or 80
    except ValueError:  # without the address, which may contain a password
        raise StudyError("HTTPS_PROXY (or ALL_PROXY) is not the address of an HTTP proxy: http://host:port") from None
    headers = {}
    if parts.username is not None:
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(words.encode()).decode()}"
    return HttpProxy(parts.hostname, port, headers)


def _is_this_machine(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def tunnel(proxy: HttpProxy, host: str, port: int, timeout: float = DIAL_TIMEOUT) -> socket.socket:
    """Return a connection to ``host`` through a proxy (HTTP CONNECT), or raise ``OSError``."""
    connection = HTTPConnection(proxy.host, proxy.port, timeout=timeout)
    connection.set_tunnel(host, port, headers=proxy.headers)
    try:
        connection.connect()
    except HTTPException as problem:
        connection.close()
        raise OSError(f"{type(problem).__name__} from the proxy") from None
    except BaseException:
        connection.close()
        raise
    return connection.sock


class OpenTransport(Transport):
    """A transport that is connected before nats-py receives it."""

    async def connect(self, *_: Any, **__: Any) -> None:
        """Do nothing: it is connected."""

    async def connect_tls(self, *_: Any, **__: Any) -> None:
        """Do nothing: it is connected."""

    def __bool__(self) -> bool:
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the connection. A second call does nothing."""

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))


class TlsStream(OpenTransport):
    """NATS inside TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def write(self, payload: bytes) -> None:
        self._writer.write(payload)

    async def read(self, buffer_size: int) -> bytes:
        return await self._reader.read(buffer_size)

    async def readline(self) -> bytes:
        return await self._reader.readline()

    async def drain(self) -> None:
        await self._writer.drain()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    def close(self) -> None:
        self._writer.close()

    def at_eof(self) -> bool:
        return self._reader.at_eof()


class WebSocket(OpenTransport):
    """NATS inside WebSocket inside TLS, which looks like HTTPS to firewalls."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._waiting = bytearray()
        self._ended = False
        self._closing: asyncio.Task[None] | None = None

    def write(self, payload: bytes) -> None:
        self._waiting += payload

    async def drain(self) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._waiting:
            data, self._waiting = bytes(self._waiting), bytearray()
            try:
                await self._connection.send(data)
            except ConnectionClosed:
                raise ConnectionResetError("the WebSocket was closed") from None

    async def read(self, buffer_size: int) -> bytes:
        return await self.readline()

    async def readline(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            data = await self._connection.recv(decode=False)
        except ConnectionClosed:
            self._ended = True
            return b""
        return bytes(data)

    async def wait_closed(self) -> None:
        if self._closing is not None:
            await self._closing

    def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._connection.close())

    def at_eof(self) -> bool:
        return self._ended


async def dial(url: str, context: ssl.SSLContext, server_name: str | None = None) -> OpenTransport:
    """Connect to ``tls://host:port`` or ``wss://host:port``, through a proxy if the environment names one.

    The server's certificate must be for ``server_name``; without it, for the host of ``url``.
    """
    (host, port), proxy = host_and_port(url), proxy_for(url)
    expected = server_name or host
    where: dict[str, Any] = {"host": host, "port": port, "happy_eyeballs_delay": 0.25}
    async with asyncio.timeout(DIAL_TIMEOUT if proxy is None else 2 * DIAL_TIMEOUT):
        if proxy is not None:
            opening = asyncio.get_running_loop().run_in_executor(None, tunnel, proxy, host, port)
            try:
                opened = await asyncio.shield(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_socket)
                raise
            opened.setblocking(False)
            where = {"sock": opened}
        try:
            if url.startswith("tls:"):
                return TlsStream(*await asyncio.open_connection(**where, ssl=context, server_hostname=expected))
            return await _web_socket(url, where, context, expected)
        except BaseException:
            if "sock" in where:
                where["sock"].close()
            raise


async def _web_socket(url: str, where: dict[str, Any], context: ssl.SSLContext, expected: str) -> WebSocket:
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException
    except ImportError:
        raise MissingPackagesError from None
    try:
        connection = await connect(
            url, **where, ssl=context, server_hostname=expected, proxy=None, compression=None, max_size=MAX_FRAME,
            open_timeout=None, close_timeout=1, ping_interval=None, user_agent_header=None,
        )  # fmt: skip
    except WebSocketException as problem:
        raise OSError(f"no WebSocket there: {problem}") from None
    return WebSocket(connection)


def _close_socket(opening: asyncio.Future[socket.socket]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
