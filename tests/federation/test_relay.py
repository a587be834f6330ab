"""``[server] addresses``: a site reaches the broker through a relay, with an unchanged certificate check."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import free_port, joined
from cryptography import x509
from federations import NAMES, Federation, small_study
from looping import case
from own_ca import SERVER, OwnCa, join_with
from proxies import Proxy
from tls_servers import failure, listening, tls_server

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import site_identity
from dpadmm.federation.site.connection import check_connections
from dpadmm.federation.transport.link import connect

HOST = "study.example.org"


@contextmanager
def relay(port: int) -> Iterator[Proxy]:
    """Run a TCP relay to a local port, in a thread."""
    made, started, stop = list[Proxy](), threading.Event(), asyncio.Event()

    async def run() -> None:
        made.append(Proxy("127.0.0.1", port))
        async with made[0]:
            loops.append(asyncio.get_running_loop())
            started.set()
            await stop.wait()

    loops = list[asyncio.AbstractEventLoop]()
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    started.wait(10)
    try:
        yield made[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


def test_study_through_a_relay(tmp_path: Path, cli) -> None:
    """No site can resolve the host of the invitation, and the relay has another name and port."""
    authority = Authority.create(tmp_path / "hub", hosts=[HOST], port=free_port(), listen="127.0.0.1")
    study = small_study(20, allow_missed_rounds=False, quorum=None, deadline=None)
    with relay(authority.settings.port) as there, Federation(tmp_path, study, authority=authority) as all:
        url = f"tls://localhost:{there.port}"
        for site in all.sites.values():
            site.path.write_text(site.path.read_text() + f'\n[server]\naddresses = ["tls://localhost:1", "{url}"]\n')
        all.accept()
        all.begin()
        seen = json.loads(cli("site", "check", "--site", all.sites["a"].path, "--connect", "--json").out)
        assert [(broker["url"], broker["reachable"]) for broker in seen["brokers"]] == [
            ("tls://localhost:1", False),
            (url, True),
        ]
        all.start()
        all.all_connected()
        all.serve()
        assert all.finished() == 0, all.output
        for name in NAMES:
            assert f"connected to {url}" in all.log(name)
        assert there.connections >= 4, "the check and three agents"
        all.check()


def test_relay_to_another_server_is_refused(tmp_path: Path) -> None:
    """The certificate must be from the invitation's authority and for its host, not for the relay's."""
    ca = OwnCa()
    hub = Authority.create(tmp_path / "hub", hosts=[HOST], port=free_port(), ca=ca.root)
    hub.install(ca.sign((hub.folder / "server.csr").read_bytes()))
    site, csr = join_with(hub, ca, tmp_path / "site", "north"), (hub.folder / "broker.csr").read_bytes()
    OwnCa("Firewall").new(tmp_path, "false", x509.DNSName(HOST), usage=SERVER)

    async def on_error(problem: Exception) -> None: ...

    async def dial(url: str) -> None:
        identity = site_identity(site, [url])
        await connect(url, identity.client_context(), name="north", on_error=on_error, server_name=HOST)

    for name, passes, text in (
        (HOST, True, ""),
        ("localhost", False, "its certificate is for another host"),
        ("false", False, "not from the authority of the invitation"),
    ):
        with case(name):
            context = tls_server(tmp_path, "false")
            if name != "false":
                (hub.folder / "broker.pem").write_bytes(ca.sign(csr, x509.DNSName(name), usage=SERVER))
                context = tls_server(hub.folder, "broker")
            with listening(context) as port:
                url = f"tls://localhost:{port}"
                (found,) = check_connections(site, [url]).values()
                failed, why = failure(found)
                assert (failed != "TLS") == passes, found
                assert text in why
                if not passes:
                    with pytest.raises(ssl.SSLCertVerificationError):
                        asyncio.run(dial(url))


def test_server_names_come_from_the_invitation(tmp_path: Path) -> None:
    urls = ["tls://one.example.org:4222", "wss://one.example.org:443", "tls://two.example.org:4222"]
    hub = Authority.create(tmp_path / "hub", hosts=["one.example.org"], port=free_port(), brokers=urls)
    joined(hub, site := tmp_path / "site", "north")
    assert site_identity(site).url == ",".join(urls)
    moved = site_identity(site, ["tls://relay:1", "tls://relay:2"])
    assert moved.url == "tls://relay:1,tls://relay:2"
    assert moved.server_names == site_identity(site).server_names == ["one.example.org", "two.example.org"]
