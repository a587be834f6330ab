"""Reaching a broker: clusters with failing servers, WebSocket, HTTP proxies; real servers and processes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import nats
import pytest
from brokers import Cluster, free_port, joined, new_authority
from federations import NAMES, Federation, small_study, wait_for
from looping import case
from nats.aio.msg import Msg
from proxies import ConnectProxy

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import client_context
from dpadmm.federation.identity.settings import read_settings
from dpadmm.federation.local import invite
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import begin
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import connect
from dpadmm.federation.transport.transports import proxy_for
from dpadmm.federation.web.server_data import ServerData

ROUNDS = 400


def answered(all: Federation) -> dict[str, int]:
    with Journal.open(all.journal, read_only=True) as journal:
        return {name: len(rounds) for name, rounds in journal.answered().items()}


def test_no_round_is_lost_when_cluster_servers_are_killed(tmp_path: Path) -> None:
    """The study waits for all sites in every round."""
    cluster = Cluster(tmp_path / "cluster")
    cluster.authority = authority = Authority.create(
        tmp_path / "hub", hosts=["localhost"], port=free_port(), brokers=cluster.urls
    )
    study = small_study(ROUNDS, allow_missed_rounds=False, quorum=None, deadline=None)
    with Federation(tmp_path, study, authority=authority) as all, cluster:
        all.accept()
        all.start()
        all.all_connected()
        all.keep_broker()  # the web application, with the brokers of the cluster
        page = ServerData(authority)
        wait_for(lambda: [site["state"] for site in page.snapshot()["sites"]] == ["connected"] * 3)
        begin(authority, all.study, list(NAMES))
        all.serve()
        for i in range(3):
            all.after_round(all.rounds_done + 20)
            cluster.kill(i)
            done = all.rounds_done
            all.after_round(done + 20)
            cluster.start(i)
            wait_for(lambda i=i: cluster.log(i).count("Route connection created") >= 2)  # type: ignore[misc]
        assert all.finished(180) == 0, all.output
        assert answered(all) == dict.fromkeys(NAMES, ROUNDS)
        for port in cluster.ports:
            for name in NAMES:
                assert f"lost the connection to tls://localhost:{port}" in all.log(name), (name, port)
        all.check()


def test_study_over_websocket_and_tls_through_an_http_proxy(tmp_path: Path) -> None:
    """Only the proxy can resolve the broker's name, and it requires a password."""
    web, host = free_port(), "study.example.org"
    authority = Authority.create(
        tmp_path / "hub", hosts=[host], port=free_port(), listen="127.0.0.1", websocket_port=web
    )
    tls, wss = f"tls://{host}:{authority.settings.port}", f"wss://{host}:{web}"
    assert authority.url == f"{tls},{wss}"
    study = small_study(150, allow_missed_rounds=False, quorum=None, deadline=None)
    with Federation(tmp_path, study, authority=authority, url=wss) as all, ConnectProxy("se:cr et") as proxy:
        invite(authority, all.sites["b"], "b", url=tls)
        invite(authority, all.sites["c"], "c", url=f"tls://{host}:1,{wss}")
        all.accept()
        all.begin()
        all.start(HTTPS_PROXY=proxy.url.replace("se:cr et", "se%3Acr%20et"))
        all.all_connected()
        all.serve()
        all.after_round(50)
        proxy.cut_all()
        assert all.finished(180) == 0, all.output
        assert answered(all) == dict.fromkeys(NAMES, 150)
        assert set(proxy.asked) == {f"{host}:{port}" for port in (authority.settings.port, web, 1)}
        assert proxy.asked.count(f"{host}:{web}") >= 4
        for text in (b"dpadmm", b"CONNECT", b"GET /", b"INFO", b"Upgrade"):
            assert text not in proxy.seen, "the proxy sees TLS only"
        assert f"no connection to tls://{host}:1: Tunnel connection failed: 502" in all.log("c")
        assert "se:cr et" not in "".join(map(all.log, NAMES))
        all.check()


def test_websocket_has_the_same_access_rules(tmp_path: Path) -> None:
    web = free_port()
    authority = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), websocket_port=web)
    site = joined(authority, tmp_path / "a", "a")
    theirs = joined(new_authority(tmp_path / "other"), tmp_path / "b", "a")
    unlisted = joined(authority, tmp_path / "c", "c")
    (authority.folder / "sites" / "c.json").unlink()
    without = ssl.create_default_context(cafile=str(site.authority))
    mixed = client_context(theirs.key, theirs.certificate, site.authority)
    errors, heard, url = list[str](), list[bytes](), f"wss://localhost:{web}"

    async def on_error(problem: Exception) -> None:
        errors.append(str(problem))

    async def run() -> None:
        for context in (without, mixed, unlisted.client_context(), theirs.client_context()):
            with pytest.raises((OSError, nats.errors.Error)):
                await connect(url, context, name="a", on_error=on_error)
        errors.clear()
        boss = await connect(url, authority.client_context(), name="server", on_error=on_error)
        client = await connect(url, site.client_context(), name="a", on_error=on_error)

        async def hear(message: Msg) -> None:
            heard.append(message.data)

        await boss.subscribe("dpadmm.*.up.*", cb=hear)
        await boss.flush()
        big = bytes(range(256)) * 2**14  # 4 MB
        await client.publish("dpadmm.x.up.b", b"not mine")
        await client.publish("dpadmm.x.up.a", big)
        for item in (client, boss, client, boss):
            await item.flush()
        await client.close()
        await boss.close()
        assert heard == [big]
        assert ["permissions violation" in error.lower() for error in errors] == [True]

    broker = Broker(authority)
    broker.start()
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        broker.stop()


def test_selection_of_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    url = "tls://study.example.org:4222"
    assert proxy_for(url) is None
    monkeypatch.setenv("ALL_PROXY", "proxy.example")
    assert proxy_for(url) == ("proxy.example", 80, {})
    monkeypatch.setenv("https_proxy", "http://me:p%40ss@10.0.0.1:3128/")
    assert proxy_for(url) == ("10.0.0.1", 3128, {"Proxy-Authorization": "Basic bWU6cEBzcw=="})
    assert "p@ss" not in str(proxy_for(url))
    for near in ("tls://localhost:1", "tls://127.0.0.1:1", "tls://[::1]:1"):
        assert proxy_for(near) is None
    monkeypatch.setenv("no_proxy", ".example.org")
    assert proxy_for(url) is None
    for wrong in ("https://proxy.example:1", "socks5://proxy.example", "http://:80", "http://proxy.example:x"):
        monkeypatch.setenv("https_proxy", wrong)
        with case(wrong), pytest.raises(StudyError, match="is not the address of an HTTP proxy"):
            proxy_for("tls://elsewhere.example.com:4222")


def test_used_websocket_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        web = int(taken.getsockname()[1])
        authority = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), websocket_port=web)
        with pytest.raises(DPADMMError, match=f"port {web} is in use by another program"):
            Broker(authority).start()


def test_addresses_of_a_server(tmp_path: Path, cli) -> None:
    hub = tmp_path / "hub"
    words = ("--host", "study.example.org", "--websocket-port", 443)
    assert (
        "tls://study.example.org:4222,wss://study.example.org:443"
        in cli("server", "init", hub, *words, columns=300).out
    )
    assert read_settings(hub).websocket_port == 443
    said = cli("server", "sites", "--nats-users", "--folder", hub).out
    assert '{user: "server@dpadmm", permissions: {publish: ["dpadmm.*.down"]' in said
    cluster = tmp_path / "cluster"
    brokers = ("tls://a.example.org:4222", "wss://b.example.org:443")
    words = ("--host", "a.example.org", "--broker", brokers[0], "--broker", brokers[1])
    assert cli("server", "init", cluster, *words).code == 0
    assert Authority.open(cluster).url == ",".join(brokers)
    refused = cli("server", "start", "--port", 4333, "--folder", cluster, columns=300)
    assert (refused.code, "names existing brokers" in refused.err) == (2, True)
    for wrong, text in (
        (("--websocket-port", 4222), "must differ from port"),
        (("--websocket-port", 0), "is not a port number"),
        (("--broker", "nats://a:1"), "is not the address of a broker"),
        (("--broker", "tls://a:1,tls://b:2"), "must be a list of addresses"),
        (("--ca", tmp_path / "none.pem"), "no such file"),
    ):
        with case(text):
            refused = cli("server", "init", tmp_path / "x", "--host", "localhost", *wrong, columns=300)
            assert refused.code == 2
            assert text in refused.err
            assert not (tmp_path / "x").exists()
