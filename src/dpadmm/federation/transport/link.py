"""A connection to a NATS broker that is restored whenever it is lost.

Outgoing only, mutual TLS only. Messages sent while there is no connection are lost: requests are repeated. With
several brokers, the next one is tried as soon as a connection fails or is lost.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from logging import INFO, WARNING, Logger
from typing import TYPE_CHECKING, Any, Self

from dpadmm.errors import DPADMMError
from dpadmm.federation.logs import Repeats
from dpadmm.federation.protocol import (
    AGGREGATOR,
    BEAT_EVERY,
    CLAIMS,
    LEASE_FREE_AFTER,
    BadMessageError,
    LastContact,
    MissingPackagesError,
    beat_subjects_of,
    clock_of_beat,
    grants_of,
    packed_beat,
    packed_claim,
    packed_grant,
    packed_proposal,
    proposals_of,
    requests_of,
    unpacked_claim,
    unpacked_grant,
    unpacked_proposal,
)
from dpadmm.federation.transport.transports import dialled
from dpadmm.sites.addresses import endpoints

try:
    import nats
    from nats.aio.client import Client
    from nats.aio.msg import Msg
except ImportError:
    raise MissingPackagesError from None

if TYPE_CHECKING:
    from dpadmm.federation.server.leases import Leases
    from dpadmm.federation.site.lease import Lease

FIRST_PAUSE, LAST_PAUSE = 0.2, 30.0
"""Seconds before a new attempt to connect; they grow by about a half each time."""

CHECK_EVERY = 0.5
"""Seconds between checks of the connection."""

OnMessage = Callable[[str, bytes], None]
OnError = Callable[[Exception], Awaitable[None]]
OnLost = Callable[[], Awaitable[None]]
Context = Callable[[], ssl.SSLContext]
"""Called for every connection, since certificates are renewed."""


async def connect(
    url: str,
    context: ssl.SSLContext,
    *,
    name: str,
    on_error: OnError,
    on_lost: OnLost | None = None,
    server_name: str | None = None,
) -> Client:
    """A client that is connected, and does not come back by itself; ``server_name`` as in :func:`dialled`."""
    client, transport = Client(), await dialled(url, context, server_name)
    client._transport = transport
    try:
        await client.connect(
            url,
            tls=context,
            tls_handshake_first=True,
            allow_reconnect=False,
            connect_timeout=5,
            ping_interval=10,
            max_outstanding_pings=2,
            name=name,
            error_cb=on_error,
            closed_cb=on_lost,
            disconnected_cb=on_lost,
        )
        await client.flush(timeout=5)
    except BaseException:
        await close_client(client)
        transport.close()
        raise
    return client


async def close_client(client: Client) -> None:
    """Close a connection, and wait until all of its tasks have ended.

    nats-py marks a client as closed before it cancels its tasks. If the connection breaks in between, it leaves the
    tasks of subscriptions pending and the socket open.
    """
    with suppress(Exception):  # the connection is abandoned in any case
        await client.close()
    own = client._reading_task, client._ping_interval_task, client._flusher_task, client._reconnection_task
    tasks = [*own, *(each._wait_for_msgs_task for each in list(client._subs.values()))]
    pending = [task for task in tasks if task is not None]
    await cancelled(*pending)
    await asyncio.gather(*pending, return_exceptions=True)  # also retrieves errors, which asyncio would log
    transport: Any = client._transport
    if transport is not None:
        transport.close()
        with suppress(Exception):
            async with asyncio.timeout(1.0):
                await transport.wait_closed()


class Link:
    """``async with Link(...) as link``: stays connected in the background, and gives signs of life."""

    def __init__(
        self,
        url: str,
        context: Context,
        on_message: OnMessage,
        log: Logger,
        *,
        name: str,
        server_names: Sequence[str] = (),
    ) -> None:
        self.url = url
        """The broker that it is or was last connected to, or tries."""
        self._endpoints, self._context, self._on_message = deque(endpoints(url, server_names)), context, on_message
        self._log, self._name = log, name
        self._beat_subject, hears = beat_subjects_of(name)
        self._subjects = {hears}
        self.seen: dict[str, LastContact] = {}
        """Who gave a sign of life: names of sites, or ``AGGREGATOR``."""
        self.on_proposal: Callable[[str], None] = lambda study: None
        """Called with the hash of a study that the server proposes to this site."""
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._repeats = Repeats()

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(each) for each in (self._stay_connected(), self._give_signs_of_life())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(*self._tasks)
        await self._lose()

    async def subscribe(self, subject: str) -> None:
        """Receive messages on this subject, now and after every reconnection."""
        if subject not in self._subjects:
            self._subjects.add(subject)
            if self._client is not None and self.connected:
                with suppress(nats.errors.Error, OSError):  # the next connection subscribes again
                    await self._client.subscribe(subject, cb=self._on_nats_message)

    async def publish(self, subject: str, data: bytes) -> bool:
        """Send a message; returns whether it could be handed to the connection."""
        if self._client is None or not self.connected:
            return False
        try:
            await self._client.publish(subject, data)
        except (TimeoutError, nats.errors.Error, OSError) as problem:
            self._say(WARNING, f"a message could not be sent: {reason_of(problem)}")
            return False
        return True

    async def _on_nats_message(self, message: Msg) -> None:
        if message.subject.startswith("dpadmm.alive."):
            self._on_beat(message.subject, message.data)
        elif message.subject.startswith("dpadmm.lease"):
            with suppress(BadMessageError):
                await self._on_lease(message.subject, message.data)
        elif message.subject.startswith("dpadmm.proposal-"):
            with suppress(BadMessageError):
                self.on_proposal(unpacked_proposal(message.data))
        else:
            self._on_message(message.subject, message.data)

    async def _on_lease(self, subject: str, data: bytes) -> None:
        """Take a claim of a site, or the aggregator's grant."""

    def _on_beat(self, subject: str, data: bytes) -> None:
        sender = subject.rpartition(".")[2]
        with suppress(BadMessageError):
            seen = LastContact(time.monotonic(), clock_of_beat(data) - time.time())
            self.seen[AGGREGATOR if sender == "down" else sender] = seen

    async def _give_signs_of_life(self) -> None:
        while True:
            await self.publish(self._beat_subject, packed_beat(time.time()))
            await asyncio.sleep(BEAT_EVERY)

    async def _stay_connected(self) -> None:
        pause, failed = FIRST_PAUSE, 0
        while True:
            self._closed.clear()
            self.url, _ = self._endpoints[0]
            try:
                self._client = await self._connected()
            except Exception as problem:  # nats-py raises many types; try again after any
                self._say(WARNING, f"no connection to {self.url}: {reason_of(problem)}")
                failed += 1
            else:
                self._say(INFO, f"connected to {self.url}")
                await self._on_connected()
                began = asyncio.get_running_loop().time()
                await self._until_lost()
                self._say(WARNING, f"the connection to {self.url} was lost")
                failed += 1
                if asyncio.get_running_loop().time() - began > 5.0:
                    pause, failed = FIRST_PAUSE, 1
            await self._lose()
            self._endpoints.rotate(-1)
            if failed >= len(self._endpoints):  # all of them; else another one is worth a try at once
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause, failed = min(1.5 * pause, LAST_PAUSE), 0

    async def _on_connected(self) -> None:
        """What is said first."""

    async def _until_lost(self) -> None:
        """Polls too, because nats-py does not call back if the connection broke while it was sending."""
        while self.connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY):
                    await self._closed.wait()
            self._closed.clear()  # or it was the connection before a renewal

    async def _connected(self) -> Client:
        subscribed, (url, server_name) = set[str](), self._endpoints[0]
        client = await connect(
            url,
            self._context(),
            name=self._name,
            on_error=self._failed,
            on_lost=self._lost,
            server_name=server_name,
        )
        try:
            while new := self._subjects - subscribed:  # more may be added meanwhile
                for subject in new:
                    await client.subscribe(subject, cb=self._on_nats_message)
                subscribed |= new
                await client.flush(timeout=5)
        except BaseException:
            await close_client(client)
            raise
        return client

    async def renew(self, url: str, server_names: Sequence[str] = ()) -> bool:
        """Connect with the certificate and addresses as they are now, and then leave the connection before.

        Messages of a moment may come twice. If it fails, the connection that there is stays.
        """
        new = endpoints(url, server_names)
        if set(new) != set(self._endpoints):
            self._endpoints = deque(new)
        before = self._client
        self.url, _ = self._endpoints[0]
        try:
            client = await self._connected()
        except Exception as problem:
            self._say(WARNING, f"no connection with the renewed certificate yet: {reason_of(problem)}")
            return False
        if self._client is not before or not self.connected:  # it was lost meanwhile, and is made again anyway
            await self._disconnect(client)
            return True
        self._client = client
        self._say(INFO, f"connected to {self.url} with the renewed certificate")
        await self._disconnect(before)
        return True

    async def _lose(self) -> None:
        client, self._client = self._client, None
        await self._disconnect(client)

    async def _disconnect(self, client: Client | None) -> None:
        if client is not None:
            if client.is_connected:
                with suppress(Exception):  # the connection is abandoned in any case
                    await client.flush(timeout=1)
            await close_client(client)

    async def _failed(self, problem: Exception) -> None:
        if self.connected:  # otherwise connecting reports it
            self._say(WARNING, f"error from the broker: {reason_of(problem)}")

    async def _lost(self) -> None:
        self._closed.set()

    def _say(self, level: int, text: str) -> None:
        if (said := self._repeats.deduplicate("", text, now=time.monotonic())) is not None:
            self._log.log(level, "%s", said)


DATES = _NOT_YET_VALID, _EXPIRED = 9, 10
OTHER_HOST = 62, 64
"""Codes of OpenSSL for what is wrong with a certificate: its dates, its host name or address."""


def reason_of(problem: BaseException) -> str:
    """Why there is no connection, in words that say what to do."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        now = f"the clock of this machine shows {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        if problem.verify_code == _NOT_YET_VALID:
            return f"its certificate is not valid yet ({now}): is that clock behind, or was the aggregator's ahead?"
        if problem.verify_code == _EXPIRED:
            return f"its certificate has expired ({now}): is that clock ahead? If not, tell the study coordinators"
        if problem.verify_code in OTHER_HOST:
            return f"its certificate is for another host: tell the study coordinators ({problem.verify_message})"
        return (
            f"its certificate is not from the authority of this study ({problem.verify_message}): a proxy that "
            "inspects TLS, or another server; dpadmm agent check --connect shows whose it is"
        )
    if isinstance(problem, ssl.SSLError):
        return f"it rejected the certificate ({problem.reason}): was it revoked, or is one of the clocks wrong?"
    if isinstance(problem, TimeoutError):
        return "no answer: a firewall may drop connections to this port, or the broker's machine is down"
    if isinstance(problem, DPADMMError):  # of our own, such as an expired certificate
        return str(problem)
    text = str(problem) or type(problem).__name__
    if "authorization violation" in text.lower():
        return "it rejected the certificate, which may have been revoked: ask the study coordinators"
    return text if text.isprintable() and len(text) <= 200 else ascii(text[:200])


class Mailbox:
    """A bounded queue: the latest messages of every sender, which are taken in turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[str, deque[bytes]] = {}
        self._some = asyncio.Event()

    def put(self, sender: str, data: bytes) -> None:
        """Add a message, which may replace the oldest one of the same sender."""
        self._waiting.setdefault(sender, deque(maxlen=self._most)).append(data)
        self._some.set()

    async def take(self, timeout: float | None = None) -> tuple[str, bytes] | None:
        """The next message and its sender, or None after ``timeout`` seconds."""
        if not self._waiting and timeout is not None and timeout <= 0.0:
            await asyncio.sleep(0)
        elif not self._waiting:
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


class SiteLink(Link):
    """A site's connection, which answers the messages of the studies that it follows while it has the lease."""

    def __init__(
        self,
        name: str,
        url: str,
        context: Context,
        log: Logger,
        lease: Lease | None = None,
        server_names: Sequence[str] = (),
    ) -> None:
        super().__init__(url, context, self._put, log, name=name, server_names=server_names)
        self._subjects.add(proposals_of(name))
        self._mail = Mailbox(most=2)  # a newer request of a study, and to mask its answer, replace older ones
        self._lease = lease
        if lease is not None:
            self._subjects.add(grants_of(name))

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._tasks.append(asyncio.create_task(self._keep_lease()))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._claim(leaving=True)
        await super().__aexit__(*error)

    async def _keep_lease(self) -> None:
        while self._lease is not None:
            await self._claim()
            await asyncio.sleep(BEAT_EVERY)

    async def _on_connected(self) -> None:
        await self._claim()

    async def _claim(self, *, leaving: bool = False) -> None:
        if self._lease is not None and (claim := self._lease.claim(leaving=leaving)) is not None:
            await self.publish(f"{CLAIMS}.{self._name}", packed_claim(claim))

    async def _on_lease(self, subject: str, data: bytes) -> None:
        if self._lease is not None and self._lease.heard(unpacked_grant(data)):
            await self._claim()

    def _put(self, subject: str, data: bytes) -> None:
        self._mail.put(subject.removeprefix("dpadmm.").removesuffix(".down"), data)

    async def follow(self, study: str) -> None:
        await self.subscribe(requests_of(study))

    async def answer(self, reply: Callable[[str, bytes], bytes | None], pool: Executor) -> None:
        """Answer for ever; ``reply(study, message)`` runs in the pool.

        Without the lease a message gets no answer, and an answer that took too long does not leave: requests are
        repeated. A claim with the ledger's mark goes ahead of each answer.
        """
        loop = asyncio.get_running_loop()
        while (received := await self._mail.take()) is not None:
            if not await self._may_speak():
                continue
            said = await loop.run_in_executor(pool, reply, *received)
            if said is not None and await self._may_speak():
                await self._claim()
                await self.publish(f"dpadmm.{received[0]}.up.{self._name}", said)

    async def _may_speak(self) -> bool:
        """Whether this is the agent to answer; also where it is to say that its ledger is behind."""
        if self._lease is None:
            return True
        await self._lease.settled(LEASE_FREE_AFTER)
        return self._lease.held or self._lease.state == "behind"


class HubLink(Link):
    """A connection of the aggregator, which grants sites' agents their leases."""

    def __init__(self, url: str, context: Context, on_message: OnMessage, log: Logger, leases: Leases | None) -> None:
        super().__init__(url, context, on_message, log, name=AGGREGATOR)
        self._leases = leases
        self._subjects.add(f"{CLAIMS}.*")

    async def _on_lease(self, subject: str, data: bytes) -> None:
        site = subject.rpartition(".")[2]
        if self._leases is not None and (grant := self._leases.heard(site, unpacked_claim(data), time.monotonic())):
            await self.publish(grants_of(site), packed_grant(grant))


class NatsTransport(HubLink):
    """The aggregator's connection, as the ``Transport`` of one study."""

    def __init__(self, study: str, url: str, context: Context, log: Logger, leases: Leases | None = None) -> None:
        super().__init__(url, context, self._put, log, leases)
        self._mail, self._study, self._down = Mailbox(most=8), study, requests_of(study)
        self._subjects.add(f"dpadmm.{study}.up.*")

    def _put(self, subject: str, data: bytes) -> None:
        """Keep a message of a site; the broker guarantees that its subject is its own."""
        self._mail.put(subject.rpartition(".")[2], data)

    async def send(self, data: bytes) -> None:
        await self.publish(self._down, data)

    async def propose(self, sites: Iterable[str]) -> None:
        """Tell sites that the study waits for their decision."""
        for name in sites:
            await self.publish(proposals_of(name), packed_proposal(self._study))

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        return await self._mail.take(timeout)


async def until_one_ends(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all until one ends or fails, then cancel the others."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(*tasks)
    for task in tasks:
        if task in done:
            task.result()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they end: nats-py swallows a cancellation while it connects."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=0.2)
