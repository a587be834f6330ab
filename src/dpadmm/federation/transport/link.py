"""A connection to a NATS broker that reconnects automatically.

Connections are outgoing and use mutual TLS. Messages sent without a connection are lost, so requests are repeated.
With several brokers, the next one is tried when a connection fails or is lost.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from logging import INFO, WARNING, Logger
from typing import TYPE_CHECKING, Any, Self

from dpadmm.errors import DPADMMError
from dpadmm.federation.logs import RepeatLog
from dpadmm.federation.protocol import (
    BEAT_EVERY,
    CLAIMS,
    LEASE_FREE_AFTER,
    REPLIES,
    SERVER,
    BadMessageError,
    LastContact,
    MissingPackagesError,
    ProposalReply,
    beat_subjects_of,
    clock_of_beat,
    grants_of,
    packed_beat,
    packed_claim,
    packed_grant,
    packed_reply,
    proposals_of,
    requests_of,
    unpacked_claim,
    unpacked_grant,
    unpacked_proposal,
    unpacked_reply,
)
from dpadmm.federation.transport.transports import dial
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
"""Seconds before the next attempt to connect, at first and at most. The pause grows by half each time."""

CHECK_EVERY = 0.5
"""Seconds between checks of the connection."""

OnMessage = Callable[[str, bytes], None]
OnProposal = Callable[[str, bytes | None], Awaitable[None]]
OnReply = Callable[[str, ProposalReply], Awaitable[None]]
OnError = Callable[[Exception], Awaitable[None]]
OnLost = Callable[[], Awaitable[None]]
Context = Callable[[], ssl.SSLContext]
"""Returns the TLS context. Called for every connection, because certificates are renewed."""


async def connect(
    url: str,
    context: ssl.SSLContext,
    *,
    name: str,
    on_error: OnError,
    on_lost: OnLost | None = None,
    server_name: str | None = None,
) -> Client:
    """Return a connected client that does not reconnect; ``server_name`` as in :func:`dial`."""
    client, transport = Client(), await dial(url, context, server_name)
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
    """Close a connection, and wait until all its tasks have ended.

    nats-py marks a client as closed before it cancels its tasks. If the connection breaks in between, the tasks of
    subscriptions stay pending and the socket stays open.
    """
    with suppress(Exception):  # the connection is abandoned in any case
        await client.close()
    own = client._reading_task, client._ping_interval_task, client._flusher_task, client._reconnection_task
    tasks = [*own, *(subscription._wait_for_msgs_task for subscription in list(client._subs.values()))]
    pending = [task for task in tasks if task is not None]
    await cancel(*pending)
    await asyncio.gather(*pending, return_exceptions=True)  # retrieves errors that asyncio would log otherwise
    transport: Any = client._transport
    if transport is not None:
        transport.close()
        with suppress(Exception):
            async with asyncio.timeout(1.0):
                await transport.wait_closed()


class Link:
    """``async with Link(...) as link``: stays connected in the background and sends heartbeats."""

    def __init__(
        self, url: str, context: Context, on_message: OnMessage, log: Logger, *, name: str,
        server_names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.url = url
        """Address of the current, last or next broker."""
        self._endpoints, self._context, self._on_message = deque(endpoints(url, server_names)), context, on_message
        self._log, self._name = RepeatLog(log), name
        self._beat_subject, received_beats = beat_subjects_of(name)
        self._subjects = {received_beats}
        self.seen: dict[str, LastContact] = {}
        """The last heartbeat of each site, or of ``SERVER``."""
        self._client: Client | None = None
        self._closed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(work) for work in (self._stay_connected(), self._send_heartbeats())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(*self._tasks)
        await self._lose()

    async def subscribe(self, subject: str) -> None:
        """Receive messages on this subject, also after reconnections."""
        if subject not in self._subjects:
            self._subjects.add(subject)
            if self._client is not None and self.connected:
                with suppress(nats.errors.Error, OSError):  # the next connection subscribes again
                    await self._client.subscribe(subject, cb=self._on_nats_message)

    async def publish(self, subject: str, data: bytes) -> bool:
        """Send a message; return whether the connection accepted it."""
        if self._client is None or not self.connected:
            return False
        try:
            await self._client.publish(subject, data)
        except (TimeoutError, nats.errors.Error, OSError) as problem:
            self._log.write(WARNING, f"cannot send a message: {reason_of(problem)}")
            return False
        return True

    async def _on_nats_message(self, message: Msg) -> None:
        if message.subject.startswith("dpadmm.alive."):
            self._on_beat(message.subject, message.data)
        elif message.subject.startswith("dpadmm.lease"):
            with suppress(BadMessageError):
                await self._on_lease(message.subject, message.data)
        elif message.subject.startswith("dpadmm.proposal"):
            with suppress(BadMessageError):
                await self._on_delivery(message.subject, message.data)
        else:
            self._on_message(message.subject, message.data)

    async def _on_lease(self, subject: str, data: bytes) -> None:
        """Process a claim of a site, or a grant of the server."""

    async def _on_delivery(self, subject: str, data: bytes) -> None:
        """Process a proposal of the server, or a site's reply to it."""

    def _on_beat(self, subject: str, data: bytes) -> None:
        sender = subject.rpartition(".")[2]
        with suppress(BadMessageError):
            contact = LastContact(time.monotonic(), clock_of_beat(data) - time.time())
            self.seen[SERVER if sender == "down" else sender] = contact

    async def _send_heartbeats(self) -> None:
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
            except Exception as problem:  # nats-py raises many types; retry after any of them
                self._log.write(WARNING, f"no connection to {self.url}: {reason_of(problem)}")
                failed += 1
            else:
                self._log.write(INFO, f"connected to {self.url}")
                await self._on_connected()
                began = asyncio.get_running_loop().time()
                await self._until_lost()
                self._log.write(WARNING, f"lost the connection to {self.url}")
                failed += 1
                if asyncio.get_running_loop().time() - began > 5.0:
                    pause, failed = FIRST_PAUSE, 1
            await self._lose()
            self._endpoints.rotate(-1)
            if failed >= len(self._endpoints):  # all failed; otherwise try the next one immediately
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause, failed = min(1.5 * pause, LAST_PAUSE), 0

    async def _on_connected(self) -> None:
        """Send the first messages of a new connection."""

    async def _until_lost(self) -> None:
        """Wait until the connection is lost.

        This also polls, because nats-py calls nothing if the connection breaks while it sends.
        """
        while self.connected:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY):
                    await self._closed.wait()
            self._closed.clear()  # it may have been the connection before a renewal

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
        """Connect with the current certificate and addresses, then close the old connection.

        For a moment, messages may arrive twice. If it fails, the old connection stays open.
        """
        new = endpoints(url, server_names)
        if set(new) != set(self._endpoints):
            self._endpoints = deque(new)
        before = self._client
        self.url, _ = self._endpoints[0]
        try:
            client = await self._connected()
        except Exception as problem:
            self._log.write(WARNING, f"cannot connect with the renewed certificate yet: {reason_of(problem)}")
            return False
        if self._client is not before or not self.connected:  # lost meanwhile: _stay_connected reconnects
            await self._disconnect(client)
            return True
        self._client = client
        self._log.write(INFO, f"connected to {self.url} with the renewed certificate")
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
        if self.connected:  # otherwise _stay_connected logs it
            self._log.write(WARNING, f"error from the broker: {reason_of(problem)}")

    async def _lost(self) -> None:
        self._closed.set()


DATES = _NOT_YET_VALID, _EXPIRED = 9, 10
OTHER_HOST = 62, 64
"""OpenSSL error codes of a certificate: invalid dates; wrong host name or address."""


def reason_of(problem: BaseException) -> str:
    """Describe why a connection failed, with the next step."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        now = f"the clock of this machine shows {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        if problem.verify_code == _NOT_YET_VALID:
            return f"its certificate is not valid yet ({now}): is that clock behind, or was the server's ahead?"
        if problem.verify_code == _EXPIRED:
            return f"its certificate has expired ({now}): is that clock ahead? If not, call the study coordinators"
        if problem.verify_code in OTHER_HOST:
            return f"its certificate is for another host: call the study coordinators ({problem.verify_message})"
        return (
            f"its certificate is not from the authority of this study ({problem.verify_message}): a proxy that "
            "inspects TLS, or another server; dpadmm site check --connect shows its issuer"
        )
    if isinstance(problem, ssl.SSLError):
        return f"it rejected the certificate ({problem.reason}): was it revoked, or is one of the clocks wrong?"
    if isinstance(problem, TimeoutError):
        return "no answer: a firewall may drop connections to this port, or the broker's machine is down"
    if isinstance(problem, DPADMMError):  # such as an expired certificate of this site
        return str(problem)
    text = str(problem) or type(problem).__name__
    if "authorization violation" in text.lower():
        return "it rejected the certificate, which may be revoked: ask the study coordinators"
    return text if text.isprintable() and len(text) <= 200 else ascii(text[:200])


class Mailbox:
    """A bounded queue of the latest messages of every sender. Senders are served in turn."""

    def __init__(self, max_messages: int) -> None:
        self._max_messages = max_messages
        self._waiting: dict[str, deque[bytes]] = {}
        self._not_empty = asyncio.Event()

    def put(self, sender: str, data: bytes) -> None:
        """Add a message. If the sender's queue is full, its oldest message is dropped."""
        self._waiting.setdefault(sender, deque(maxlen=self._max_messages)).append(data)
        self._not_empty.set()

    async def take(self, timeout: float | None = None) -> tuple[str, bytes] | None:
        """Return the next message and its sender, or None after ``timeout`` seconds."""
        if not self._waiting and timeout is not None and timeout <= 0.0:
            await asyncio.sleep(0)
        elif not self._waiting:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):  # wait_for of Python 3.11 can lose a cancellation
                    await self._not_empty.wait()
        if not self._waiting:
            return None
        sender = next(iter(self._waiting))
        messages = self._waiting.pop(sender)
        data = messages.popleft()
        if messages:
            self._waiting[sender] = messages  # after the other senders
        if not self._waiting:
            self._not_empty.clear()
        return sender, data


class SiteLink(Link):
    """A site's connection. It answers messages of the studies that it follows, while it holds the lease."""

    def __init__(
        self, name: str, url: str, context: Context, log: Logger, lease: Lease | None = None,
        server_names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(url, context, self._put, log, name=name, server_names=server_names)
        self.on_proposal: OnProposal = _ignore_proposal
        """Called with the hash of a proposed study, and with its text if the message contains it."""
        self._subjects.add(proposals_of(name))
        self._mail = Mailbox(max_messages=2)  # the latest REQUEST and MASK of a study
        self._lease = lease
        if lease is not None:
            self._subjects.add(grants_of(name))

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._tasks.append(asyncio.create_task(self._renew_lease()))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._claim(leaving=True)
        await super().__aexit__(*error)

    async def _renew_lease(self) -> None:
        while self._lease is not None:
            await self._claim()
            await asyncio.sleep(BEAT_EVERY)

    async def _on_connected(self) -> None:
        await self._claim()

    async def _claim(self, *, leaving: bool = False) -> None:
        if self._lease is not None and (claim := self._lease.claim(leaving=leaving)) is not None:
            await self.publish(f"{CLAIMS}.{self._name}", packed_claim(claim))

    async def _on_lease(self, subject: str, data: bytes) -> None:
        if self._lease is not None and self._lease.apply(unpacked_grant(data)):
            await self._claim()

    async def _on_delivery(self, subject: str, data: bytes) -> None:
        await self.on_proposal(*unpacked_proposal(data))

    async def reply(self, reply: ProposalReply) -> bool:
        """Reply to a proposal; return whether the connection accepted it."""
        return await self.publish(f"{REPLIES}.{self._name}", packed_reply(reply))

    def _put(self, subject: str, data: bytes) -> None:
        self._mail.put(subject.removeprefix("dpadmm.").removesuffix(".down"), data)

    async def follow(self, study: str) -> None:
        """Receive the messages of a study."""
        await self.subscribe(requests_of(study))

    async def answer(self, reply: Callable[[str, bytes], bytes | None], pool: Executor) -> None:
        """Answer messages until cancelled; ``reply(study, message)`` runs in the pool.

        Without the lease no answer is computed, and no answer is sent if the lease is lost meanwhile. This loses
        nothing, because requests are repeated. A claim with the ledger's mark is sent before each answer.
        """
        loop = asyncio.get_running_loop()
        while (received := await self._mail.take()) is not None:
            if not await self._may_answer():
                continue
            message = await loop.run_in_executor(pool, reply, *received)
            if message is not None and await self._may_answer():
                await self._claim()
                await self.publish(f"dpadmm.{received[0]}.up.{self._name}", message)

    async def _may_answer(self) -> bool:
        """Return whether this process may answer, or must report that its ledger is behind."""
        if self._lease is None:
            return True
        await self._lease.settled(LEASE_FREE_AFTER)
        return self._lease.held or self._lease.state == "behind"


class ServerLink(Link):
    """A connection of the server, which decides the lease claims of sites."""

    def __init__(self, url: str, context: Context, on_message: OnMessage, log: Logger, leases: Leases) -> None:
        super().__init__(url, context, on_message, log, name=SERVER)
        self._leases = leases
        self.on_reply: OnReply = _ignore_reply
        """Called with a site and its reply to a proposal. The broker guarantees the name of the site."""
        self._subjects |= {f"{CLAIMS}.*", f"{REPLIES}.*"}

    async def _on_delivery(self, subject: str, data: bytes) -> None:
        await self.on_reply(subject.rpartition(".")[2], unpacked_reply(data))

    async def _on_lease(self, subject: str, data: bytes) -> None:
        site = subject.rpartition(".")[2]
        if grant := self._leases.decide(site, unpacked_claim(data), time.monotonic()):
            await self.publish(grants_of(site), packed_grant(grant))


class NatsTransport(ServerLink):
    """The server's connection as the ``Transport`` of one study."""

    def __init__(self, study: str, url: str, context: Context, log: Logger, leases: Leases) -> None:
        super().__init__(url, context, self._put, log, leases)
        self._mail, self._study, self._down = Mailbox(max_messages=8), study, requests_of(study)
        self._subjects.add(f"dpadmm.{study}.up.*")

    def _put(self, subject: str, data: bytes) -> None:
        """Queue a message. The broker guarantees that a site publishes only under its own name."""
        self._mail.put(subject.rpartition(".")[2], data)

    async def send(self, data: bytes) -> None:
        await self.publish(self._down, data)

    async def receive(self, timeout: float) -> tuple[str, bytes] | None:
        return await self._mail.take(timeout)


async def _ignore_proposal(study: str, text: bytes | None) -> None: ...


async def _ignore_reply(site: str, reply: ProposalReply) -> None: ...


async def until_one_ends(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all coroutines until one ends or fails, then cancel the others."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    for task in tasks:
        if task in done:
            task.result()


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks repeatedly until they end, because nats-py swallows a cancellation while it connects."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.2)
