"""An unreliable network: a TCP proxy that delays, stalls, cuts and throttles connections, and an HTTP proxy."""

from __future__ import annotations

import asyncio
import random
import select
import socket
import struct
import threading
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHUNK = 16 * 1024
Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]


@dataclass(frozen=True)
class Faults:
    """Faults for each chunk of a connection: times in seconds, and probabilities."""

    delay: float = 0.0
    jitter: float = 0.0
    """The maximum of an additional random delay."""
    stall: float = 0.0
    """Probability of a pause of ``stall_seconds``, as after lost packets."""
    stall_seconds: float = 0.5
    loss: float = 0.0
    """Probability that the connection is reset after such a pause."""
    cut: float = 0.0
    """Probability that the connection is reset at once."""


NO_FAULTS = Faults()


class Proxy:
    """``async with Proxy("127.0.0.1", 4222) as proxy``: connect to ``proxy.port`` instead.

    ``faults`` may be changed at any time.
    """

    def __init__(self, host: str, port: int, faults: Faults = NO_FAULTS) -> None:
        self._target, self.faults = (host, port), faults
        self._random = random.Random(0)
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.seen = bytearray()
        """The first megabyte that an eavesdropper sees."""
        self.connections = self.stalls = self.cuts = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        for pair in list(self._pairs):
            self._cut(pair)

    def hold(self) -> None:
        """Stop all traffic without closing connections, until ``release``."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def _cut(self, pair: Pair) -> None:
        self.cuts += 1
        for writer in pair:
            with suppress(OSError, AttributeError):
                plain: socket.socket = writer.get_extra_info("socket")
                # closes with a TCP reset
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._pairs.add(pair)
        both = (self._carry(reader, far_writer, pair), self._carry(far_reader, writer, pair))
        ways = [asyncio.create_task(way) for way in both]
        for task in ways:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            self._pairs.discard(pair)
            for item in pair:
                item.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: Pair) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                faults = self.faults
                self.seen += data[: max(0, 2**20 - len(self.seen))]
                await self._open.wait()
                await asyncio.sleep(faults.delay + self._random.random() * faults.jitter)
                lost = self._random.random() < faults.loss
                if lost or self._random.random() < faults.stall:
                    self.stalls += 1
                    await asyncio.sleep(faults.stall_seconds)
                if lost or self._random.random() < faults.cut:
                    return self._cut(pair)
                writer.write(data)
                await writer.drain()
        return None


class ConnectProxy:
    """``with ConnectProxy(password=...) as proxy``: an HTTP proxy for CONNECT in a thread, as in firewalls.

    It resolves every name to the local machine, so connections that bypass it fail.
    """

    def __init__(self, password: str | None = None) -> None:
        self.password = password
        self.asked: list[str] = []
        self.seen = bytearray()
        """The first bytes of what passes through."""
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                outer.asked.append(self.path)
                words = b64encode(f"user:{outer.password}".encode()).decode()
                if outer.password is not None and self.headers["Proxy-Authorization"] != f"Basic {words}":
                    return self.send_error(407)
                try:
                    far = socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2])), 5)
                except OSError:
                    return self.send_error(502)
                with far:
                    self.send_response(200)
                    self.end_headers()
                    outer._carry(self.connection, far)
                return None

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])

    @property
    def url(self) -> str:
        user = "" if self.password is None else f"user:{self.password}@"
        return f"http://{user}127.0.0.1:{self.port}"

    def __enter__(self) -> ConnectProxy:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cut_all()

    def cut_all(self) -> None:
        for pair in list(self._pairs):
            for item in pair:
                with suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        self._pairs.add((near, far))
        try:
            while True:
                for item in select.select([near, far], [], [])[0]:
                    if not (data := item.recv(CHUNK)):
                        return
                    self.seen += data[: max(0, 2**20 - len(self.seen))]
                    (far if item is near else near).sendall(data)
        except OSError:
            pass
        finally:
            self._pairs.discard((near, far))
