"""A connection to the broker that is made again whenever it is lost; the only file that knows NATS.

Outwards only, mutual TLS only. What is said while there is no connection is lost: whoever asked asks again.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR, Logger, getLogger
from typing import Any

from dpadmm.federation.packages import MissingPackages
from dpadmm.federation.tasks import ended

try:
    import nats
    from nats.aio.client import Client
    from nats.aio.msg import Msg
except ImportError:
    raise MissingPackages from None

getLogger("asyncio").setLevel(ERROR)  # it warns of a TLS detail of nats-py at every lost connection

FIRST_PAUSE, LAST_PAUSE = 0.2, 30.0
"""Seconds before a lost connection is made again; they grow by half each time, more or less."""

LOOK_EVERY = 0.5
"""Seconds between two looks at whether the connection is still there."""

OnMessage = Callable[[str, bytes], None]
Context = Callable[[], ssl.SSLContext]
"""Made anew for every connection: certificates are renewed."""


class Link:
    """``async with Link(...) as link``: kept up in the background until it is left."""

    def __init__(self, url: str, context: Context, on_message: OnMessage, log: Logger, *, name: str) -> None:
        self._url, self._context, self._on_message = url, context, on_message
        self._log, self._name = log, name
        self._subjects: set[str] = set()
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._said = ""

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def __aenter__(self) -> Link:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._keeper is not None
        await ended(self._keeper)
        await self._drop()

    async def hear(self, subject: str) -> None:
        """From now on, messages on this subject too."""
        if subject not in self._subjects:
            self._subjects.add(subject)
            if self.connected and self._client is not None:
                with suppress(nats.errors.Error, OSError):  # lost just now: the next connection has it
                    await self._client.subscribe(subject, cb=self._heard)

    async def say(self, subject: str, data: bytes) -> bool:
        """Whether it could be handed to the broker's connection."""
        client = self._client
        if client is None or not client.is_connected:
            return False
        try:
            await client.publish(subject, data)
        except (TimeoutError, nats.errors.Error, OSError) as problem:
            self._tell(f"could not send: {_why(problem)}")
            return False
        return True

    async def _heard(self, message: Msg) -> None:
        self._on_message(message.subject, message.data)

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            self._closed.clear()
            try:
                self._client = await self._connected()
            except Exception as problem:  # whatever it is, and nats-py has many: it is tried again
                self._tell(f"no connection to {self._url}: {_why(problem)}")
            else:
                self._said = ""
                self._log.info("connected to %s", self._url)
                began = asyncio.get_running_loop().time()
                await self._until_lost()
                self._log.warning("the connection to %s was lost", self._url)
                if asyncio.get_running_loop().time() - began > 5.0:
                    pause = FIRST_PAUSE
            await self._drop()
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(1.5 * pause, LAST_PAUSE)

    async def _until_lost(self) -> None:
        """nats-py does not always call back: not where the connection broke with something left to send."""
        while self.connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._closed.wait()
                return

    async def _connected(self) -> Client:
        client = await nats.connect(
            self._url,
            tls=self._context(),
            tls_handshake_first=True,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # pauses are made here
            reconnect_time_wait=0,
            connect_timeout=5,
            ping_interval=10,
            max_outstanding_pings=2,
            name=self._name,
            error_cb=self._failed,
            closed_cb=self._lost,
            disconnected_cb=self._lost,
        )
        heard = set[str]()
        try:
            await client.flush(timeout=5)
            while new := self._subjects - heard:  # some may be added meanwhile
                for subject in new:
                    await client.subscribe(subject, cb=self._heard)
                heard |= new
                await client.flush(timeout=5)
        except BaseException:
            with suppress(Exception):
                await client.close()
            raise
        return client

    async def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            with suppress(Exception):  # it is given up in any case
                if client.is_connected:
                    await client.flush(timeout=1)
                await client.close()

    async def _failed(self, problem: Exception) -> None:
        if self.connected:  # else whoever connects says it
            self._tell(f"the broker says: {_why(problem)}")

    async def _lost(self) -> None:
        self._closed.set()

    def _tell(self, text: str) -> None:
        if text != self._said:  # a broker that is away for hours is one line
            self._said = text
            self._log.warning(text)


def _why(problem: BaseException) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not of the joined authority, or of another host ({problem.reason})"
    if isinstance(problem, ssl.SSLError):
        return f"it does not accept this certificate ({problem.reason})"
    said = str(problem) or type(problem).__name__
    if "authorization violation" in said.lower():
        return "it does not accept this certificate any more; was it revoked? Ask the aggregator's people"
    return said if said.isprintable() and len(said) <= 200 else ascii(said[:200])


class Mailbox:
    """Messages by sender, the newest few of each, so that nobody can fill the memory; taken in turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[bytes]] = {}
        self._some = asyncio.Event()

    def put(self, sender: str, data: bytes) -> None:
        """Keep a message; the oldest of its sender goes if there are too many."""
        self._waiting.setdefault(sender, deque(maxlen=self._most)).append(data)
        self._some.set()

    async def take(self, timeout: float | None = None) -> tuple[str, bytes] | None:
        """The next message and its sender; None when there was none for so many seconds."""
        if not self._waiting:
            if timeout is not None and timeout <= 0.0:
                await asyncio.sleep(0)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):  # wait_for of Python 3.11 can lose a cancellation
                        await self._some.wait()
        if not self._waiting:
            return None
        sender = next(iter(self._waiting))
        messages = self._waiting.pop(sender)
        data = messages.popleft()
        if messages:
            self._waiting[sender] = messages  # behind the others
        if not self._waiting:
            self._some.clear()
        return sender, data


class NatsTransport:
    """An aggregator's way to the sites of one study; see ``transport.Transport``."""

    def __init__(self, study: str) -> None:
        self._down = f"dpadmm.{study}.down"
        self.hears = f"dpadmm.{study}.up.*"
        self._mail = Mailbox(most=8)
        self.link: Any = None

    def received(self, subject: str, data: bytes) -> None:
        """A message of a site: the broker lets nobody use another's subject."""
        self._mail.put(subject.rpartition(".")[2], data)

    async def send(self, data: bytes) -> None:
        await self.link.say(self._down, data)

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        return await self._mail.take(timeout)
