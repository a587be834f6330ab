"""Permissions to connect, publish and subscribe, checked against the real nats-server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import nats
import pytest
from brokers import DOWN, STUDY, connected, joined, new_authority, up

from dpadmm.errors import StudyError
from dpadmm.federation.identity.joining import Identity as SiteIdentity
from dpadmm.federation.identity.joining import site_identity
from dpadmm.federation.transport.broker import Broker, broker_config


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """A running broker with two sites."""
    folder = tmp_path_factory.mktemp("ground") / 'with "quotes", blanks and ü'
    authority = new_authority(folder / "aggregator")
    sites = {name: joined(authority, folder / name, name) for name in ("site-a", "site-b")}
    broker = Broker(authority)
    broker.start()
    yield authority, broker, sites
    broker.stop()
    assert not broker.alive()


async def refused_to_connect(who, url=None):
    """The broker ends the connection: in the handshake, or after it with an authorization violation."""
    with pytest.raises((OSError, nats.errors.Error, asyncio.TimeoutError)):
        async with connected(who, url=url):
            pass


def test_sites_and_server_can_exchange_messages(ground):
    authority, broker, sites = ground

    async def talk():
        async with (
            connected(authority, url=broker.url) as aggregator,
            connected(sites["site-a"]) as a,
            connected(sites["site-b"]) as b,
        ):
            await aggregator.hear(f"dpadmm.{STUDY}.up.*")
            await a.hear(DOWN)
            await b.hear(DOWN)
            await aggregator.say(DOWN, b"request")
            await a.say(up("site-a"), b"from a")
            await b.say(up("site-b"), b"from b")
            for item in (aggregator, a, b):
                await item.settled()
            assert sorted(aggregator.heard) == [(up("site-a"), b"from a"), (up("site-b"), b"from b")]
            assert a.heard == b.heard == [(DOWN, b"request")]
            assert aggregator.refused == a.refused == b.refused == []

    asyncio.run(talk())


def test_site_cannot_publish_as_another_site_or_the_server(ground):
    authority, broker, sites = ground

    async def talk():
        async with connected(authority, url=broker.url) as aggregator, connected(sites["site-a"]) as a:
            await aggregator.hear("dpadmm.*.up.*")
            async with connected(sites["site-b"]) as b:
                await b.hear(DOWN)
                for subject in (
                    up("site-b"),
                    DOWN,
                    "$SYS.REQ.SERVER.PING",
                    "_INBOX.x",
                    "dpadmm",
                    f"{up('site-a')}.x",
                ):
                    await a.say(subject, b"a lie")
                await a.say(up("site-a"), b"the truth")
                await b.settled()
                assert b.heard == []
            await aggregator.settled()
            assert aggregator.heard == [(up("site-a"), b"the truth")]
            assert len(a.refused) == 6
            assert all("permissions violation for publish" in text.lower() for text in a.refused)

    asyncio.run(talk())


def test_site_cannot_receive_uploads_of_others(ground):
    authority, broker, sites = ground
    secrets = [">", "*", "dpadmm.>", "dpadmm.*.up.*", up("site-a"), up("site-b"), "$SYS.>", "_INBOX.>"]

    async def talk():
        async with connected(sites["site-a"]) as a, connected(sites["site-b"]) as b:
            for subject in secrets:
                await a.hear(subject)
            await b.say(up("site-b"), b"mine")
            await a.settled()
            assert a.heard == []
            assert len(a.refused) == len(secrets)
        async with connected(authority, url=broker.url) as aggregator:
            await aggregator.hear(">")
            await aggregator.hear("dpadmm.*.down")
            await aggregator.say(up("site-a"), b"what a said")
            assert len(aggregator.refused) == 3  # the aggregator neither

    asyncio.run(talk())


def test_connection_without_a_certificate_is_refused(ground):
    authority, _, sites = ground
    context = ssl.create_default_context(cafile=str(sites["site-a"].authority))
    address = ("localhost", authority.settings.port)
    for secure in (True, False):
        with socket.create_connection(address, timeout=5) as line, ExitStack() as opened:
            try:
                if secure:
                    line = opened.enter_context(context.wrap_socket(line, server_hostname="localhost"))
                line.sendall(b'CONNECT {"user":"server@dpadmm"}\r\nPING\r\n')
                said = line.recv(1000)
            except OSError:  # an alert or a reset: an end
                said = b""
        assert b"INFO" not in said
        assert b"PONG" not in said


def test_tls_before_1_3_is_refused(ground):
    authority, _, sites = ground
    context = sites["site-a"].client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        pytest.raises(OSError),  # noqa: PT011
        socket.create_connection(("localhost", authority.settings.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="localhost"),
    ):
        pass


def test_certificates_of_another_authority_or_kind_are_refused(ground, tmp_path):
    authority, _, sites = ground
    other = new_authority(tmp_path / "other")
    theirs = joined(other, tmp_path / "site-a", "site-a")
    ours = sites["site-a"].authority
    mixed = SiteIdentity(
        "site-a", authority.url, theirs.expires, "", theirs.key, theirs.certificate, ours, theirs.invitation
    )
    asyncio.run(refused_to_connect(mixed))  # another authority's certificate
    asyncio.run(refused_to_connect(theirs, url=authority.url))  # which does not trust our broker either
    folder = authority.folder
    as_client = SiteIdentity(
        "x", authority.url, theirs.expires, "", folder / "broker.key", folder / "broker.pem", ours, theirs.invitation
    )
    asyncio.run(refused_to_connect(as_client))  # the broker's own certificate is no client's


def test_expired_and_unlisted_certificates_are_refused(ground, tmp_path):
    authority, broker, _ = ground
    long_ago = datetime.now(UTC) - timedelta(days=10)
    expired = joined(authority, tmp_path / "late", "late", days=5, now=long_ago)
    with pytest.raises(StudyError, match="expired at"):
        expired.check_dates()
    asyncio.run(refused_to_connect(expired))
    unlisted = joined(authority, tmp_path / "unlisted", "unlisted")  # the broker was not reloaded yet
    asyncio.run(refused_to_connect(unlisted))
    broker.reload()
    assert expired.name not in broker_config(authority)

    async def talk():
        async with connected(unlisted) as now_listed:
            await now_listed.settled()

    asyncio.run(talk())
    assert unlisted.name not in broker_config(authority, now=datetime.now(UTC) + timedelta(days=400))


def test_message_above_8_mb_closes_the_connection_and_is_not_delivered(ground):
    authority, broker, sites = ground

    async def talk():
        async with connected(authority, url=broker.url) as aggregator:
            await aggregator.hear("dpadmm.*.up.*")
            async with connected(sites["site-a"]) as a:
                assert a.client.max_payload == 8 * 2**20
                await a.say(up("site-a"), bytes(8 * 2**20))
                await aggregator.settled()
                a.client._max_payload = 2**40  # a client that does not obey
                await a.client.publish(up("site-a"), bytes(8 * 2**20 + 1))
                await asyncio.wait_for(a.gone.wait(), 5)
            await aggregator.settled()
            assert [len(data) for _, data in aggregator.heard] == [8 * 2**20]

    asyncio.run(talk())


def test_revoked_site_is_disconnected_and_others_continue(ground, tmp_path):
    authority, broker, sites = ground
    old = joined(authority, tmp_path / "shaky", "shaky")
    broker.reload()

    async def talk():
        async with connected(sites["site-b"]) as b, connected(authority, url=broker.url) as aggregator:
            await aggregator.hear("dpadmm.*.up.*")
            async with connected(old) as shaky:
                await shaky.say(up("shaky"), b"before")
                authority.revoke("shaky")
                broker.reload()
                await asyncio.wait_for(shaky.gone.wait(), 5)
            await refused_to_connect(old)
            await b.say(up("site-b"), b"still here")
            await aggregator.settled()
            assert [data for _, data in aggregator.heard] == [b"before", b"still here"]
            assert not b.gone.is_set()

    asyncio.run(talk())
    shutil.move(tmp_path / "shaky", tmp_path / "stolen")
    stolen = site_identity(tmp_path / "stolen")
    new = joined(authority, tmp_path / "shaky", "shaky")
    broker.reload()

    async def again():
        async with connected(new) as back:
            await back.say(up("shaky"), b"with a new key")
            assert back.refused == []
        await refused_to_connect(stolen)

    asyncio.run(again())


def test_renewed_and_old_certificate_both_work_and_can_be_revoked(ground, tmp_path):
    authority, broker, _ = ground
    old = joined(authority, tmp_path / "steady", "steady")
    shutil.copytree(tmp_path / "steady", tmp_path / "before")
    new = joined(authority, tmp_path / "steady", "steady", days=500)
    before = site_identity(tmp_path / "before")
    assert new.expires > old.expires == before.expires
    assert broker.refresh()
    assert not broker.refresh()

    async def talk():
        async with connected(before) as first, connected(new) as second:
            await first.settled()
            await second.settled()
            authority.revoke("steady")
            assert broker.refresh()
            await asyncio.wait_for(first.gone.wait(), 5)
            await asyncio.wait_for(second.gone.wait(), 5)

    asyncio.run(talk())
