"""The faulty network proxy works as documented."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from proxies import NO_FAULTS, Faults, Proxy


@asynccontextmanager
async def echoing(faults: Faults = NO_FAULTS):
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with Proxy("127.0.0.1", server.sockets[0].getsockname()[1], faults) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, reader, writer
        writer.close()
    server.close()


def test_bytes_arrive_in_order():
    async def run() -> None:
        async with echoing(Faults(jitter=0.002, stall=0.2, stall_seconds=0.01)) as (proxy, reader, writer):
            sent = bytes(range(256)) * 200
            writer.write(sent)
            assert await asyncio.wait_for(reader.readexactly(len(sent)), 10) == sent
            assert proxy.connections == 1
            assert bytes(proxy.seen).startswith(sent[:100])

    asyncio.run(run())


@pytest.mark.parametrize("faults", [Faults(cut=1.0), Faults(loss=1.0, stall_seconds=0.05)])
def test_connections_are_cut_and_data_is_lost(faults: Faults):
    async def run() -> None:
        async with echoing(faults) as (proxy, reader, writer):
            writer.write(b"hello")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(5), 10)
            assert proxy.cuts == 1

    asyncio.run(run())


def test_hold_release_and_cut():
    async def run() -> None:
        async with echoing() as (proxy, reader, writer):
            proxy.hold()
            writer.write(b"hello")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.readexactly(5), 0.1)
            proxy.release()
            assert await asyncio.wait_for(reader.readexactly(5), 10) == b"hello"
            proxy.cut_all()
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(5), 10)

    asyncio.run(run())
