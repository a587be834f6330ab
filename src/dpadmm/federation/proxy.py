"""A bad network on purpose: a TCP proxy that delays, stalls, cuts and starves what goes through it.

It stands between agents and broker in demonstrations and tests. It sees what an eavesdropper sees.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

CHUNK = 16 * 1024


@dataclass(frozen=True)
class Faults:
    """What happens to a piece of a connection's bytes, up to 16 KB of them.

    Attributes
    ----------
    delay, jitter : float
        Seconds that it waits, and at most so many more.
    stall, stall_seconds : float
        Probability that it and all after it are held back for so long, as where packets are lost.
    loss : float
        Probability that it is held back for so long and then never delivered: the connection is reset.
    cut : float
        Probability that the connection is reset at once.
    rate : float, optional
        Bytes in a second, for a slow reader.
    """

    delay: float = 0.0
    jitter: float = 0.0
    stall: float = 0.0
    stall_seconds: float = 0.5
    loss: float = 0.0
    cut: float = 0.0
    rate: float | None = None


NONE = Faults()
ROUGH = Faults(delay=0.002, jitter=0.008, stall=0.01, stall_seconds=0.4, loss=0.002, cut=0.003)
"""A line over which a run still ends: every few hundred messages something breaks."""

SLOW = Faults(delay=0.01, rate=20_000.0)
"""A site that reads 20 KB in a second."""


class Proxy:
    """``async with Proxy("127.0.0.1", 4222) as proxy``: connect to ``proxy.port`` instead.

    ``faults`` may be changed at any time. ``slow_every``: every so many connections is a ``SLOW`` one.
    """

    def __init__(
        self, host: str, port: int, faults: Faults = NONE, *, seed: int = 0, slow_every: int = 0
    ) -> None:
        self._target, self.faults, self._slow_every = (host, port), faults, slow_every
        self._random = random.Random(seed)
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0
        self.seen = bytearray()
        """What an eavesdropper has, its first megabyte."""
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
        """Reset every connection."""
        for pair in list(self._pairs):
            self._cut(pair)

    def hold(self) -> None:
        """Nothing goes through until ``let_go``: a network that is away without anyone being told."""
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()

    def _cut(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.cuts += 1
        for writer in pair:
            with suppress(OSError, AttributeError):
                plain: socket.socket = writer.get_extra_info("socket")
                # without the goodbye of TCP: the other side gets a reset
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        slow = bool(self._slow_every) and self.connections % self._slow_every == 0
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._pairs.add(pair)
        ways = [
            asyncio.create_task(self._carry(reader, far_writer, pair, slow)),
            asyncio.create_task(self._carry(far_reader, writer, pair, slow)),
        ]
        for task in ways:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            self._pairs.discard(pair)
            for each in pair:
                each.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        slow: bool,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                faults = SLOW if slow else self.faults
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
                if faults.rate is not None:
                    await asyncio.sleep(len(data) / faults.rate)
        return None
