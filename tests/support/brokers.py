"""An authority, joined sites and clients of a real nats-server on loopback, for tests."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
from nats.aio.client import Client

from dpadmm.federation.pki.authority import Authority
from dpadmm.federation.pki.joining import Identity, join, make_request, site_identity

STUDY = "ab" * 32
DOWN = f"dpadmm.{STUDY}.down"


def up(name: str) -> str:
    return f"dpadmm.{STUDY}.up.{name}"


def free_port() -> int:
    """A port that is free, below those that the system gives to outgoing connections."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def new_authority(folder: Path) -> Authority:
    """One that is a month old, so that certificates can have ended."""
    began = datetime.now(UTC) - timedelta(days=30)
    return Authority.create(folder, hosts=["localhost"], port=free_port(), now=began)


def joined(authority: Authority, folder: Path, name: str, **choices: object) -> Identity:
    """A site that was approved and joined; its files are in ``folder``."""
    invitation = authority.approve(make_request(folder, name), **choices)
    now = choices.get("now")
    join(folder, invitation, now=now if isinstance(now, datetime) else None)
    return site_identity(folder)


class Ear:
    """A client, what it was told, and what the broker did not let it do."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.heard: list[tuple[str, bytes]] = []
        self.refused: list[str] = []
        self.gone = asyncio.Event()

    async def hear(self, subject: str) -> None:
        async def keep(message: object) -> None:
            self.heard.append((message.subject, message.data))  # type: ignore[attr-defined]

        await self.client.subscribe(subject, cb=keep)
        await self.settled()

    async def say(self, subject: str, data: bytes) -> None:
        await self.client.publish(subject, data)
        await self.settled()

    async def settled(self) -> None:
        """The broker has taken note of all that was sent before, and its objections are here.

        They come before the answer to a ping, but nats-py tells them in tasks of their own: hence three.
        """
        for _ in range(3):
            await self.client.flush(5)


@asynccontextmanager
async def connected(who: Identity | Authority, *, url: str | None = None):
    """A client as the agent's and the aggregator's are, but one that does not come back by itself."""
    ears: list[Ear] = []

    async def refused(error: Exception) -> None:
        for ear in ears:
            ear.refused.append(str(error))

    async def gone() -> None:
        for ear in ears:
            ear.gone.set()

    client = await nats.connect(
        url or who.url,
        tls=who.client_context(),
        tls_handshake_first=True,
        allow_reconnect=False,
        connect_timeout=5,
        error_cb=refused,
        disconnected_cb=gone,
        max_reconnect_attempts=1,  # of the first connection too
        reconnect_time_wait=0,
    )
    ear = Ear(client)
    ears.append(ear)
    try:
        yield ear
    finally:
        await client.close()
