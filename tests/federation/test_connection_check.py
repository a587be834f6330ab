"""``dpadmm site check --connect`` distinguishes the causes of failed connections, with real servers."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from brokers import free_port, joined
from cryptography import x509
from federations import small_study, wait_for, write_rows
from forked import ForkedProgram
from looping import case
from own_ca import SERVER, OwnCa, join_with
from proxies import ConnectProxy
from tls_servers import failure, listening, tls_server

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import read_invitation
from dpadmm.federation.local import new_site
from dpadmm.federation.site.connection import CHECKS, ConnectionCheck, check_connections
from dpadmm.federation.transport.broker import Broker, broker_config, nats_server

DAY = timedelta(days=1)


@pytest.fixture
def hub(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), websocket_port=free_port())


@pytest.fixture
def site(hub: Authority, tmp_path: Path) -> Path:
    joined(hub, tmp_path / "site", "north")
    return tmp_path / "site"


@pytest.fixture
def broker(hub: Authority, site: Path) -> Iterator[Broker]:
    made = Broker(hub)
    made.start()
    yield made
    made.stop()


def run_checks(site: Path, url: str) -> list[ConnectionCheck]:
    """Return the checks of a site whose invitation has another address."""
    path = site / "network" / "invitation.json"
    before = path.read_bytes()
    path.write_bytes(replace(read_invitation(path), url=url).as_bytes())
    try:
        (found,) = check_connections(site).values()
    finally:
        path.write_bytes(before)
    assert [check.name for check in found] == list(CHECKS)
    return found


def test_working_connection_passes_every_check_over_tls_and_websocket(hub: Authority, tmp_path: Path, cli) -> None:
    folder = tmp_path / "north"
    folder.mkdir()
    write_rows(folder / "table.csv", 0)
    new_site(folder, small_study(), table="table.csv", epsilon=1.0)
    joined(hub, folder, "north")
    keeper = ForkedProgram(["server", "start", "--folder", hub.folder], tmp_path / "broker.txt")
    try:
        wait_for(lambda: Broker(hub).alive() and "connected to" in (tmp_path / "broker.txt").read_text())
        seen = json.loads(cli("site", "check", "--site", folder / "site.toml", "--connect", "--json").out)
    finally:
        keeper.send_signal(15)
        keeper.wait(30)
    assert seen["reachable"]
    assert [item["url"] for item in seen["brokers"]] == hub.url.split(",")
    for broker in seen["brokers"]:
        assert {check["name"]: check["ok"] for check in broker["checks"]} == dict.fromkeys(CHECKS, True), broker
    said = cli("site", "check", "--site", folder / "site.toml", "--connect", columns=400)
    assert said.code == 1
    assert said.out.count("nothing listens there, or a firewall rejects it") == 2


def test_unknown_names_closed_ports_and_missing_tls_are_distinguished(site: Path, tmp_path: Path) -> None:
    with listening(None) as web:
        for url, name, text in (
            ("tls://nowhere.invalid:4222", "name", "nowhere.invalid cannot be resolved"),
            (f"tls://localhost:{free_port()}", "port", "ask the study coordinators whether the broker runs"),
            (f"tls://localhost:{web}", "TLS", "no TLS there"),
        ):
            with case(url):
                failed, why = failure(run_checks(site, url))
                assert failed == name
                assert text in why


def test_inspected_tls_names_the_inspecting_party(site: Path, tmp_path: Path) -> None:
    OwnCa("Firewall").new(tmp_path, "false", x509.DNSName("localhost"), usage=SERVER)
    with listening(tls_server(tmp_path, "false")) as port:
        name, text = failure(run_checks(site, f"tls://localhost:{port}"))
    assert name == "TLS"
    assert "CN=Firewall Issuing CA,O=Clinic" in text
    assert f"exempt localhost:{port} from inspection" in text


def test_validity_errors_hint_at_clocks_and_name_errors_do_not(tmp_path: Path) -> None:
    ca, now = OwnCa(), datetime.now(UTC).replace(microsecond=0)
    hub = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), ca=ca.root)
    hub.install(ca.sign((hub.folder / "server.csr").read_bytes()))
    site, host = join_with(hub, ca, tmp_path / "site", "north"), x509.DNSName("localhost")
    for first, last, of, name, text in (
        (now + DAY, now + 2 * DAY, host, "clock", "is not valid yet"),
        (now - 2 * DAY, now - DAY, host, "clock", "has expired"),
        (now - DAY, now + DAY, x509.DNSName("elsewhere.example.org"), "TLS", "is for another host"),
    ):
        with case(text):
            csr = (hub.folder / "broker.csr").read_bytes()
            (hub.folder / "broker.pem").write_bytes(ca.sign(csr, of, usage=SERVER, first=first, last=last))
            with listening(tls_server(hub.folder, "broker")) as port:
                failed, why = failure(run_checks(site, f"tls://localhost:{port}"))
            assert failed == name
            assert text in why
            if name == "clock":
                assert f"the clock of this machine shows {now:%Y-%m-%d}" in why


def test_refused_certificates_are_reported(hub: Authority, broker: Broker, site: Path) -> None:
    hub.revoke("north")
    broker.reload()
    for url in hub.url.split(","):
        with case(url):
            name, text = failure(run_checks(site, url))
            assert name == "certificate"
            assert "may be revoked: ask the study coordinators" in text


def test_expired_certificate_is_reported_without_connecting(tmp_path: Path) -> None:
    hub = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), now=datetime.now(UTC) - 30 * DAY)
    site = joined(hub, tmp_path / "site", "north", days=5, now=datetime.now(UTC) - 10 * DAY)
    broker = Broker(hub)
    broker.start()
    try:
        name, text = failure(run_checks(tmp_path / "site", site.url))
    finally:
        broker.stop()
    assert name == "certificate"
    assert "the certificate of this site expired at" in text
    assert "ask the study coordinators for a join token" in text


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_missing_permissions_of_a_cluster_are_reported(hub: Authority, site: Path, tmp_path: Path) -> None:
    for subject in ("dpadmm.*.up.north", "dpadmm.*.down"):
        with case(subject):
            port = free_port()
            hub.renew_certificates()
            lines = broker_config(hub, port=port).replace(f'["{subject}"]', '["other"]')
            config = tmp_path / "cluster.conf"
            config.write_text(lines.replace("broker.pid", "other.pid").replace("broker.log", "other.log"))
            server = subprocess.Popen([nats_server(), "-c", config])
            try:
                wait_for(lambda port=port: listens(port))  # type: ignore[misc]
                name, text = failure(run_checks(site, f"tls://localhost:{port}"))
            finally:
                server.kill()
                server.wait()
            assert name == "permission"
            assert "dpadmm server sites --nats-users" in text


def test_proxy_errors_are_distinguished_from_broker_errors(
    broker: Broker, hub: Authority, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"tls://localhost.example:{hub.settings.port}"
    with ConnectProxy("secret") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        name, text = failure(run_checks(site, url))
        assert (name, "is for another host" in text) == ("TLS", True)  # it got through
        name, text = failure(run_checks(site, f"tls://localhost.example:{free_port()}"))
        assert (name, "let CONNECT to localhost.example" in text) == ("port", True)
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("secret", "wrong"))
        name, text = failure(run_checks(site, url))
        assert (name, "the proxy requires a password" in text) == ("port", True)
        assert "wrong" not in text
        monkeypatch.setenv("NO_PROXY", "localhost.example")
        assert failure(run_checks(site, url))[0] == "name"
    monkeypatch.delenv("NO_PROXY")
    name, text = failure(run_checks(site, url))
    assert (name, f"does the proxy 127.0.0.1:{proxy.port} run" in text) == ("port", True)
    monkeypatch.setenv("HTTPS_PROXY", "socks5://secret@127.0.0.1:1")
    with pytest.raises(Exception, match="is not the address of an HTTP proxy") as refused:
        run_checks(site, url)
    assert "secret" not in str(refused.value)
