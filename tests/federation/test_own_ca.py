"""Certificates of an organisation's own CA in place of ours: a chain of root, intermediate and leaf."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
import pytest
from brokers import connected, free_port, joined
from cryptography import x509
from federations import NAMES, Federation, agent_process, small_study, write_rows
from looping import case
from own_ca import BOTH, CLIENT, DAY, SERVER, OwnCa, install, join_with

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import join, make_request, read_invitation, site_identity
from dpadmm.federation.local import new_site
from dpadmm.federation.server.process import begin
from dpadmm.federation.server.status import alarms_of
from dpadmm.federation.transport.broker import Broker
from dpadmm.federation.transport.link import Link

LOG = logging.getLogger("test")


@pytest.fixture(scope="module")
def ca() -> OwnCa:
    return OwnCa()


@pytest.fixture
def hub(tmp_path: Path, ca: OwnCa) -> Authority:
    made = Authority.create(
        tmp_path / "hub", hosts=["localhost"], port=free_port(), websocket_port=free_port(), ca=ca.root
    )
    install(made, ca)
    return made


def csr_of(folder: Path, name: str) -> bytes:
    make_request(folder, name)
    return (folder / "network" / "request.csr").read_bytes()


def test_a_study_with_certificates_of_an_own_ca_which_are_renewed_meanwhile(
    tmp_path: Path, hub: Authority, ca: OwnCa, cli
) -> None:
    """From the commands to the model: the sites, the broker and the aggregator all have the clinic's certificates."""
    assert not (hub.folder / "authority" / "ca.key").exists()
    with Federation(tmp_path, small_study(400), (), authority=hub) as all:
        all.names = NAMES
        for i, name in enumerate(NAMES):
            (tmp_path / name).mkdir()
            write_rows(tmp_path / name / "table.csv", i)
            all.sites[name] = site = new_site(tmp_path / name, all.study, table="table.csv", epsilon=3.0)
            joining = (
                *("site", "join", "--invitation"),
                tmp_path / f"{name}.json",
                "--site",
                site.path,
                "--fingerprint",
                hub.fingerprint,
            )
            for renewing in (False, True):
                if not renewing:
                    assert cli("site", "join", "--manual", name, "--site", site.path).code == 0
                csr = (tmp_path / name / "network" / "request.csr").read_bytes()
                (tmp_path / "signed.pem").write_bytes(ca.sign(csr, x509.RFC822Name(f"{name}@clinic.example")))
                words = (
                    "site",
                    "join",
                    "--manual",
                    name,
                    "--site",
                    site.path,
                    "--certificate",
                    tmp_path / "signed.pem",
                )
                assert cli(*words).code == 0
                (tmp_path / f"{name}.json").unlink(missing_ok=True)
                request = tmp_path / name / "network" / "request.json"
                words = (
                    "server",
                    "invite",
                    name,
                    "--manual",
                    request,
                    "--folder",
                    hub.folder,
                    "-o",
                    tmp_path / f"{name}.json",
                )
                assert cli(*words).code == 0
                if not renewing:
                    assert cli(*joining).code == 0
        all.accept()
        keeper = all.keep_broker()
        begin(hub, all.study, list(NAMES))
        for name in NAMES:
            all.agents[name] = agent_process(all.sites[name])
            all._all.append(all.agents[name])
        all.all_connected()
        all.serve()
        all.after_round(50)
        for name in NAMES:
            words = ("site", "join", "--invitation", tmp_path / f"{name}.json", "--site", all.sites[name].path, "--yes")
            assert cli(*words).code == 0
        for csr, usage in (("broker", SERVER), ("server", CLIENT)):
            (tmp_path / "signed.pem").write_bytes(ca.sign((hub.folder / f"{csr}.csr").read_bytes(), usage=usage))
            assert cli("server", "init", hub.folder, "--certificate", tmp_path / "signed.pem").code == 0
        assert all.finished(120) == 0, all.output
        for name in NAMES:
            assert "with the renewed certificate" in all.log(name)
            assert "lost the connection" not in all.log(name)
        keeper.send_signal(signal.SIGTERM)
        all.check()


def test_what_the_aggregator_refuses_to_install(tmp_path: Path, hub: Authority, ca: OwnCa) -> None:
    server, host = (hub.folder / "broker.csr").read_bytes(), x509.DNSName("localhost")
    client, now = (hub.folder / "server.csr").read_bytes(), datetime.now(UTC).replace(microsecond=0)
    before = {name: (hub.folder / f"{name}.pem").read_bytes() for name in ("broker", "server")}
    for chain, text in (
        (b"", "not a certificate in PEM format"),
        (server, "not a certificate in PEM format"),
        (ca.sign(csr_of(tmp_path / "x", "x"), host), "for another key"),
        (OwnCa("Other").sign(server, usage=SERVER), "was not signed by"),
        (ca.sign(server, usage=SERVER).split(b"-----END CERTIFICATE-----\n")[0] + b"-----END CERTIFICATE-----\n",
         "intermediate ones in order"),
        (ca.sign(server, x509.DNSName("elsewhere.org"), usage=SERVER), "is not for localhost"),
        (ca.sign(server, usage=CLIENT), "may not be used by a server"),
        (ca.sign(client, usage=SERVER), "must be for clients"),
        (ca.sign(client, host, x509.DNSName("two")), "with one e-mail"),
        (ca.sign(server, usage=SERVER, first=now - 2 * DAY, last=now - DAY), "expired at"),
        (ca.sign(server, usage=SERVER, first=now + DAY, last=now + 2 * DAY), "is valid only from"),
    ):  # fmt: skip
        with case(text), pytest.raises(StudyError, match=text):
            hub.install(chain)
    assert before == {name: (hub.folder / f"{name}.pem").read_bytes() for name in before}
    built_in = Authority.create(tmp_path / "built-in", hosts=["localhost"], port=free_port())
    with pytest.raises(StudyError, match="has a built-in authority, which renews"):
        built_in.install(before["broker"])
    for wrong in (b"", ca.root + ca.middle, before["broker"]):
        with pytest.raises(StudyError, match="must have one certificate"):
            Authority.create(tmp_path / "wrong", hosts=["localhost"], port=free_port(), ca=wrong)
    assert not (tmp_path / "wrong").exists()


def test_nothing_starts_before_the_certificates_are_there(tmp_path: Path, ca: OwnCa, cli) -> None:
    root = tmp_path / "root.pem"
    root.write_bytes(ca.root)
    folder = tmp_path / "new"
    made = cli("server", "init", folder, "--host", "localhost", "--ca", root, columns=300)
    assert "broker.csr" in made.out
    said = cli("server", "start", "--folder", folder, columns=300)
    assert said.code == 2
    assert "broker.pem: no certificate yet: have" in said.err
    assert "dpadmm server init" in said.err
    assert cli("server", "status", "--health", "--folder", folder).code == 1


def test_which_sites_are_approved(tmp_path: Path, hub: Authority, ca: OwnCa) -> None:
    def approve(name: str, *names: x509.GeneralName, by: OwnCa = ca, **choices: object) -> None:
        csr = csr_of(tmp_path / name, name)
        hub.approve(make_request(tmp_path / name, name, by.sign(csr, *names, **choices)))

    now = datetime.now(UTC).replace(microsecond=0)
    mail, host = x509.RFC822Name("north@clinic.example"), x509.DNSName("north.clinic.example")
    with pytest.raises(StudyError, match=r"has no certificate of your CA: a must have network/request.csr signed"):
        hub.approve(make_request(tmp_path / "a", "a"))
    for names, choices, text in (
        ((mail,), {"by": OwnCa("Other")}, "was not signed by the authority"),
        ((mail,), {"usage": SERVER}, "must be for clients"),
        ((mail, x509.RFC822Name("two@clinic.example")), {}, "with one e-mail"),
        ((x509.UniformResourceIdentifier("urn:x"),), {}, "with one e-mail"),
        ((x509.DNSName("*.clinic.example"),), {}, "letters, digits"),
        ((x509.RFC822Name("server@dpadmm"),), {}, "a name of the built-in authority"),
        ((mail,), {"first": now - 2 * DAY, "last": now - DAY}, "of a expired at"),
    ):
        with case(text), pytest.raises(StudyError, match=text):
            approve("a", *names, **choices)
    with pytest.raises(StudyError, match="is not for this site's key"):
        make_request(tmp_path / "a", "a", ca.sign(csr_of(tmp_path / "b", "b"), mail))
    approve("a", mail, host, usage=BOTH)
    approve("b", host)
    assert {user.user for user in hub.users()} == {"north@clinic.example", "north.clinic.example"}
    with pytest.raises(StudyError, match=r"the name north@clinic.example in the certificate is that of a"):
        approve("c", mail)
    hub.revoke("a")
    with pytest.raises(StudyError, match=r"the name north@clinic.example in the certificate was revoked"):
        approve("d", mail)
    hub.revoke("b")
    assert hub.users() == []


def test_the_broker_knows_sites_by_their_names_and_closes_revoked_ones(
    tmp_path: Path, hub: Authority, ca: OwnCa
) -> None:
    sites = {name: site_identity(join_with(hub, ca, tmp_path / name, name)) for name in ("a", "b")}
    stranger = join_with(hub, ca, tmp_path / "stranger", "stranger")
    (hub.folder / "sites" / "stranger.json").unlink()  # certified by the CA, but not approved here
    broker = Broker(hub)
    broker.start()

    async def run() -> None:
        async with connected(hub) as boss, connected(sites["a"]) as a:
            await boss.hear("dpadmm.*.up.*")
            await a.say("dpadmm.alive.up.a", b"mine")
            await a.say("dpadmm.alive.up.b", b"not mine")
            await boss.settled()
            assert [data for _, data in boss.heard] == [b"mine"]
            assert any("permissions violation" in item.lower() for item in a.refused)
            with pytest.raises((nats.errors.Error, ssl.SSLError, OSError)):
                async with connected(site_identity(stranger)):
                    pass
            hub.revoke("a")
            broker.reload()
            await asyncio.wait_for(a.gone.wait(), 10)

    try:
        asyncio.run(run())
    finally:
        broker.stop()


def test_a_new_certificate_is_used_by_a_broker_that_another_process_runs(hub: Authority, ca: OwnCa) -> None:
    """Commands may run in another container: the process that keeps the broker notices by itself."""
    broker = Broker(hub)
    broker.start()
    try:
        assert not broker.refresh()
        hub.install(ca.sign((hub.folder / "broker.csr").read_bytes(), usage=SERVER))
        assert broker.refresh()
        assert not broker.refresh()
    finally:
        broker.stop()


def test_certificates_that_nobody_here_can_renew_are_alarming_a_month_before(hub: Authority, ca: OwnCa) -> None:
    assert not [alarm for alarm in alarms_of(hub, []) if alarm.code == "certificate"]
    last = datetime.now(UTC).replace(microsecond=0) + 29 * DAY
    for csr, usage in (("broker", SERVER), ("server", CLIENT)):
        hub.install(ca.sign((hub.folder / f"{csr}.csr").read_bytes(), usage=usage, last=last))
    texts = [alarm.text for alarm in alarms_of(hub, []) if alarm.code == "certificate"]
    assert texts == [f"the certificate of the {who} expires in 28 days" for who in ("broker", "server")]
    with pytest.raises(DPADMMError, match=r"the certificate of the broker expired at .* a new one is needed"):
        hub.renew_certificates(now=last)


def test_an_intermediate_authority_can_be_all_that_is_trusted(tmp_path: Path, ca: OwnCa) -> None:
    hub = Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port(), ca=ca.middle)
    install(hub, ca)
    site, heard = site_identity(join_with(hub, ca, tmp_path / "a", "a")), list[bytes]()
    broker = Broker(hub)
    broker.start()

    async def run() -> None:
        link = Link(site.url, site.client_context, lambda _, data: heard.append(data), LOG, name="a")
        async with link, asyncio.timeout(10):
            while not link.connected:
                await asyncio.sleep(0.05)

    try:
        asyncio.run(run())
    finally:
        broker.stop()


def test_invitations_of_another_ca_are_noticed(tmp_path: Path, hub: Authority, ca: OwnCa) -> None:
    folder = join_with(hub, ca, tmp_path / "a", "a")
    invitation = read_invitation(folder / "network" / "invitation.json")
    assert invitation.ca_fingerprint == hub.fingerprint
    assert len(invitation.chain) == 2
    other = Authority.create(tmp_path / "other", hosts=["localhost"], port=free_port())
    with pytest.raises(StudyError, match="from another authority than the one that this site joined"):
        join(folder, other.approve(make_request(folder, "a")))
    assert joined(other, tmp_path / "fresh", "b").name == "b"
    with pytest.raises(StudyError, match="expired at"):
        site_identity(folder).check_dates(datetime.now(UTC) + timedelta(days=101))
