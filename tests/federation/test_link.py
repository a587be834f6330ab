"""A connection that is re-established after every loss, with the real nats-server."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import DOWN, STUDY, connected, free_port, joined, new_authority
from proxies import ConnectProxy

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import Identity
from dpadmm.federation.logs import MAX_LINES
from dpadmm.federation.transport import link as nats_link
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import Link, cancel

LOG = logging.getLogger("test")


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    made = new_authority(tmp_path / "aggregator")
    broker = Broker(made)
    broker.start()
    yield made
    broker.stop()


@pytest.fixture
def site(authority: Authority, tmp_path: Path) -> Identity:
    made = joined(authority, tmp_path / "site", "a")
    Broker(authority).reload()
    return made


async def heard(authority: Authority, said: list[bytes]) -> None:
    """Say something until it is heard."""
    async with connected(authority) as boss:
        while not said:
            await boss.say(DOWN, b"hello")
            await asyncio.sleep(0.05)


def link_of(site: Identity, said: list[bytes]) -> Link:
    return Link(site.url, site.client_context, lambda _, data: said.append(data), LOG, name="a")


def test_silent_connection_loss_is_detected(authority: Authority, site: Identity) -> None:
    said: list[bytes] = []

    async def run() -> None:
        async with link_of(site, said) as link:
            await link.subscribe(DOWN)
            await heard(authority, said)
            client = link._client
            assert client is not None
            client._closed_cb = client._disconnected_cb = None  # as where it fails in closing
            await client._close(client.CLOSED)
            said.clear()
            await heard(authority, said)
            assert link._client is not client

    asyncio.run(asyncio.wait_for(run(), 30))


def test_subject_added_while_connecting_is_subscribed(
    authority: Authority, site: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bytes] = []

    async def run() -> None:
        link = link_of(site, said)
        await link.subscribe(f"dpadmm.{STUDY[::-1]}.down")
        flush = nats_link.Client.flush

        async def meanwhile(self: nats_link.Client, timeout: int = 10) -> None:
            await flush(self, timeout)
            if not link.connected:
                await link.subscribe(DOWN)

        monkeypatch.setattr(nats_link.Client, "flush", meanwhile)
        async with link:
            await heard(authority, said)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_brokers_that_drop_connections_are_retried_with_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def dropped(self: Link) -> nats_link.Client:
        asked.append(self.url)
        return nats_link.Client()

    async def run() -> None:
        monkeypatch.setattr(Link, "_connected", dropped)
        async with Link("tls://a:1,tls://b:1,wss://c:1", lambda: None, lambda *_: None, LOG, name="a"):  # type: ignore[arg-type,return-value]
            await asyncio.sleep(1.0)

    asyncio.run(run())
    assert asked[:4] == ["tls://a:1", "tls://b:1", "wss://c:1", "tls://a:1"]
    assert len(asked) < 40


@pytest.mark.parametrize("turns", range(4))
def test_waiting_for_messages_can_always_be_cancelled(turns: int) -> None:
    """Otherwise Ctrl-C would be lost if it coincides with an answer."""

    async def run() -> None:
        mail = nats_link.Mailbox(max_messages=1)
        waiting = asyncio.create_task(mail.take(10.0))
        for _ in range(3):
            await asyncio.sleep(0)
        mail.put("a", b"hello")
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(run())


def test_request_and_mask_wait_for_a_busy_site() -> None:
    async def run() -> None:
        link = nats_link.SiteLink("a", "tls://localhost:1", lambda: None, LOG)  # type: ignore[arg-type,return-value]
        for data in (b"old", b"request", b"mask"):
            link._put("dpadmm.x.down", data)
        assert [await link._mail.take(0.0) for _ in range(3)] == [("x", b"request"), ("x", b"mask"), None]

    asyncio.run(run())


def test_task_that_ignores_the_first_cancellation_ends() -> None:
    heard = []

    async def deaf() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.append(True)

    async def run() -> None:
        task = asyncio.create_task(deaf())
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await cancel(task)

    asyncio.run(run())
    assert len(heard) == 3


def test_varying_broker_errors_cannot_fill_the_log(site: Identity, caplog: pytest.LogCaptureFixture) -> None:
    async def flood() -> None:
        link = Link(site.url, site.client_context, lambda *_: None, LOG, name="a")
        for n in range(300):
            link._log.write(logging.WARNING, f"error {n % 2}")
        assert len(caplog.records) == 2
        for n in range(300):
            link._log.write(logging.WARNING, f"error {n}")
        assert len(caplog.records) == MAX_LINES + 1  # the last one reports that others are omitted
        assert "omitted" in caplog.messages[-1]

    asyncio.run(flood())


@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_broker_certificate_with_another_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A certificate of the authority is not sufficient: a site's own machine has one too."""
    host, ports = "study.example.org", {"tls": free_port(), "wss": free_port()}
    authority = Authority.create(
        tmp_path / "hub", hosts=[host], port=ports["tls"], listen="127.0.0.1", websocket_port=ports["wss"]
    )
    site, broker = joined(authority, tmp_path / "site", "a"), Broker(authority)

    async def on_error(problem: Exception) -> None:
        raise problem

    async def dial(name: str) -> None:
        url = f"{scheme}://{name}:{ports[scheme]}"
        client = await nats_link.connect(url, site.client_context(), name="a", on_error=on_error)
        await client.close()

    broker.start()
    try:
        with pytest.raises(ssl.SSLCertVerificationError) as refused:
            asyncio.run(dial("localhost"))
        assert nats_link.reason_of(refused.value).startswith("its certificate is for another host")
        with ConnectProxy() as proxy:  # which connects every name to this machine
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            asyncio.run(dial(host))
            with pytest.raises(ssl.SSLCertVerificationError):
                asyncio.run(dial("other.example.org"))
    finally:
        broker.stop()
