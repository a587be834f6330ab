"""Capabilities of an attacker on the connection between a site and the broker."""

from __future__ import annotations

import asyncio

import nats
import numpy as np
import pytest
from brokers import DOWN, STUDY, connected, joined, new_authority, up

from dpadmm.federation.transport.broker import Broker


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """A running broker and a site."""
    folder = tmp_path_factory.mktemp("ground")
    authority = new_authority(folder / "aggregator")
    site = joined(authority, folder / "site-a", "site-a")
    broker = Broker(authority)
    broker.start()
    yield authority, site
    broker.stop()


class Eavesdropper:
    """A forwarder between a client and the broker that stores all bytes of both directions."""

    def __init__(self, port: int) -> None:
        self.target, self.seen, self.tasks = port, bytearray(), set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        await asyncio.gather(*self.tasks)

    async def _serve(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._copy(reader, to_writer), self._copy(to_reader, writer))

    async def _copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                self.seen += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


def test_an_eavesdropper_sees_no_plaintext(ground):
    authority, site = ground
    numbers = np.linspace(-1.0, 1.0, 104)
    payload = b"MARKER" + numbers.tobytes()

    async def talk():
        async with Eavesdropper(authority.settings.port) as line:
            async with connected(site, url=f"tls://localhost:{line.port}") as a:
                await a.hear(DOWN)
                for _ in range(3):
                    await a.say(up("site-a"), payload)
                assert a.refused == []
            await asyncio.sleep(0)
        return bytes(line.seen)

    seen = asyncio.run(talk())
    assert len(seen) > 3 * len(payload)
    words = [b"MARKER", b"INFO", b"CONNECT", b"PUB", b"PING", b"dpadmm", b"site-a", STUDY.encode()]
    for secret in [*words, *(number.tobytes() for number in numbers[numbers != 0])]:
        assert secret not in seen


def test_site_sends_nothing_to_a_server_without_tls(ground):
    """An attacker on the connection cannot disable TLS by announcing that it is not required."""
    _, site = ground
    heard = bytearray()

    async def strip(reader, writer):
        writer.write(b'INFO {"server_id":"x","version":"2.10.25","max_payload":1048576,"tls_required":false}\r\n')
        heard.extend(await reader.read(65536))
        writer.close()

    async def talk():
        server = await asyncio.start_server(strip, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises((OSError, nats.errors.Error)):
            async with connected(site, url=f"tls://localhost:{port}"):
                pass
        server.close()
        await server.wait_closed()

    asyncio.run(talk())
    assert b"CONNECT" not in heard
    assert b"site-a" not in heard
