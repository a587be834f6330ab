"""An authority, joined sites and clients of a real nats-server on loopback, for tests."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import time
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
from cryptography import x509
from nats.aio.client import Client
from own_ca import BOTH, OwnCa

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import Identity, join, make_request, site_identity
from dpadmm.federation.transport.broker import nats_server, users_config

STUDY = "ab" * 32
DOWN = f"dpadmm.{STUDY}.down"


def up(name: str) -> str:
    return f"dpadmm.{STUDY}.up.{name}"


def free_port() -> int:
    """Return a free port below the range that the system uses for outgoing connections."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port


def new_authority(folder: Path) -> Authority:
    """Return an authority that is a month old, so that certificates can have expired."""
    began = datetime.now(UTC) - timedelta(days=30)
    return Authority.create(folder, hosts=["localhost"], port=free_port(), now=began)


def joined(authority: Authority, folder: Path, name: str, **choices: object) -> Identity:
    """Return a site that was approved and has joined, with its files in ``folder``."""
    invitation = authority.approve(make_request(folder, name), **choices)
    now = choices.get("now")
    join(folder, invitation, now=now if isinstance(now, datetime) else None)
    return site_identity(folder)


class RecordingClient:
    """A client that records the messages it received and the operations that the broker denied."""

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
    ears: list[RecordingClient] = []

    async def refused(error: Exception) -> None:
        for ear in ears:
            ear.refused.append(str(error))

    async def gone() -> None:
        for ear in ears:
            ear.gone.set()

    client = await nats.connect(
        (url or who.url).split(",")[0],
        tls=who.client_context(),
        tls_handshake_first=True,
        allow_reconnect=False,
        connect_timeout=5,
        error_cb=refused,
        disconnected_cb=gone,
        max_reconnect_attempts=1,  # also for the first connection
        reconnect_time_wait=0,
    )
    ear = RecordingClient(client)
    ears.append(ear)
    try:
        yield ear
    finally:
        await client.close()


class Cluster:
    """``with Cluster(folder) as cluster``: three nats-servers with TLS for clients and routes.

    Set ``authority`` first: its certificates contain the addresses. The configuration is that of an existing cluster in
    docs/how-to/networks-and-services.md. Routes use certificates of the operators' own CA, because servers are clients
    of each other there.
    """

    authority: Authority

    def __init__(self, folder: Path, n_servers: int = 3) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(n_servers)]
        self._routes = [free_port() for _ in range(n_servers)]
        self.servers: list[subprocess.Popen[bytes] | None] = [None] * n_servers
        ca = OwnCa("NATS operators")
        folder.mkdir()
        (folder / "ca.pem").write_bytes(ca.root)
        ca.new(folder, "route", x509.DNSName("localhost"), usage=BOTH)

    @property
    def urls(self) -> list[str]:
        return [f"tls://localhost:{port}" for port in self.ports]

    def __enter__(self) -> Cluster:
        for i in range(len(self.ports)):
            self.start(i)
        return self

    def __exit__(self, *_: object) -> None:
        for i in range(len(self.ports)):
            self.kill(i)

    def write_config(self) -> None:
        hub, others = self.authority.folder, ", ".join(f'"tls://localhost:{port}"' for port in self._routes)
        for i, (port, route) in enumerate(zip(self.ports, self._routes, strict=True)):
            (self.folder / f"{i}.conf").write_text(
                f"""
                server_name: n{i}, listen: "127.0.0.1:{port}", max_payload: 8MB, no_header_support: true
                log_file: "{self.folder}/{i}.log"
                tls {{ cert_file: "{hub}/broker.pem", key_file: "{hub}/broker.key", ca_file: "{hub}/authority/ca.pem"
                  verify_and_map: true, min_version: "1.3", handshake_first: true }}
                cluster {{ name: studies, listen: "127.0.0.1:{route}", routes: [{others}], pool_size: -1
                  tls {{ cert_file: "{self.folder}/route.pem", key_file: "{self.folder}/route.key"
                    ca_file: "{self.folder}/ca.pem", verify: true }} }}
                {users_config(self.authority)}
                """
            )

    def start(self, i: int) -> None:
        self.write_config()
        self.servers[i] = subprocess.Popen(
            [nats_server(), "-c", self.folder / f"{i}.conf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[i]), 1):
                return
            time.sleep(0.02)
        raise AssertionError((self.folder / f"{i}.log").read_text())

    def kill(self, i: int) -> None:
        server, self.servers[i] = self.servers[i], None
        if server is not None:
            server.kill()
            server.wait()

    def log(self, i: int) -> str:
        return (self.folder / f"{i}.log").read_text()
