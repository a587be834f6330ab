"""A site's key, request and invitation: what does not fit is one sentence, and changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from brokers import joined, new_authority
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from looping import case

from dpadmm.errors import StudyError
from dpadmm.federation.identity import certificates as forms
from dpadmm.federation.identity.joining import (
    client_context,
    join,
    make_request,
    read_invitation,
    read_request,
    site_identity,
)
from dpadmm.federation.protocol import check_name


@pytest.fixture
def authority(tmp_path):
    return new_authority(tmp_path / "aggregator")


@pytest.fixture
def site(tmp_path):
    return tmp_path / "site"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "site_a",
        "-a",
        "a.b",
        "a b",
        "a\n",
        "*",
        ">",
        "é",
        "a" * 41,
        "../x",
        "a/b",
        "a@dpadmm",
        "server",
    ],
)
def test_names_that_could_mean_something_else_are_refused(name, site):
    with pytest.raises(StudyError, match=r"is not a valid site name|is reserved"):
        make_request(site, name)
    assert not site.exists()
    assert check_name("a" * 40)


def test_a_key_is_made_once_and_stays_secret(site):
    request = make_request(site, "site-a")
    key = site / "network" / "key.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    before = key.read_bytes()
    again = make_request(site, "site-a")
    assert key.read_bytes() == before
    assert again.fingerprint == request.fingerprint
    assert read_request(site / "network" / "request.json").fingerprint == request.fingerprint
    assert make_request(site.with_name("other"), "site-a").fingerprint != request.fingerprint


def test_a_key_that_others_may_read_is_refused(authority, site):
    identity = joined(authority, site, "site-a")
    identity.key.chmod(0o604)
    for use in (
        lambda: make_request(site, "site-a"),
        lambda: site_identity(site),
        identity.client_context,
        lambda: join(site, read_invitation(site / "network" / "invitation.json")),
    ):
        with pytest.raises(StudyError, match="others can read or change this secret: run chmod 600"):
            use()


def test_trust_that_others_may_change_is_refused(authority, site):
    identity = joined(authority, site, "site-a")
    for path in (identity.authority, identity.key.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        with pytest.raises(StudyError, match="others can change it"):
            site_identity(site)
        path.chmod(mode)
    site_identity(site)


def test_a_damaged_key_is_not_shown(authority, site):
    identity = joined(authority, site, "site-a")
    text = identity.key.read_text()
    identity.key.write_text(text.replace("\n", "\nx", 1))
    secret = text.splitlines()[1]
    for use in (lambda: make_request(site, "site-a"), lambda: site_identity(site), identity.client_context):
        with pytest.raises(StudyError) as refused:
            use()
        assert secret not in str(refused.value)
        assert refused.value.__cause__ is None
        assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_key_with_a_password_asks_nobody(authority, site):
    """OpenSSL would ask at the terminal, where an agent has none."""
    identity = joined(authority, site, "site-a")
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    identity.key.write_bytes(locked)
    with pytest.raises(StudyError, match="do not match"):
        client_context(identity.key, identity.certificate, identity.authority)
    with pytest.raises(StudyError, match="not a key from dpadmm site join"):
        site_identity(site)


def test_joining_again_with_a_renewed_certificate_replaces_it(authority, site):
    first = joined(authority, site, "site-a")
    second = joined(authority, site, "site-a", days=500)
    assert second.expires > first.expires
    assert (second.name, second.url) == ("site-a", authority.url)
    assert second.ca_fingerprint == authority.fingerprint
    second.check_dates()
    with pytest.raises(StudyError, match="of this site expired at"):
        second.check_dates(second.expires)


def test_a_site_keeps_its_name_and_authority(authority, site, tmp_path):
    joined(authority, site, "site-a")
    before = contents(site)
    with pytest.raises(StudyError, match="this site joined as site-a and must keep that name"):
        make_request(site, "site-b")
    other = new_authority(tmp_path / "other")
    foreign = other.approve(read_request(site / "network" / "request.json"))
    with pytest.raises(StudyError, match=r"another authority than the one that this site joined; .*move"):
        join(site, foreign)
    assert contents(site) == before
    shutil.move(site / "network", tmp_path / "away")
    other.revoke("site-a")
    joined(other, site, "site-a")


def test_invitations_for_others_are_refused(authority, site, tmp_path):
    with pytest.raises(StudyError, match="this site has no key yet"):
        join(site, authority.approve(make_request(tmp_path / "else", "site-x")))
    make_request(site, "site-a")
    before = contents(site)
    with pytest.raises(StudyError, match="is for the site site-b, but this site's request was for site-a"):
        join(site, authority.approve(make_request(tmp_path / "b", "site-b")))
    with pytest.raises(StudyError, match="does not match this site"):
        join(site, authority.approve(make_request(tmp_path / "e", "site-a")))
    authority.revoke("site-a")
    renamed = authority.approve(make_request(site, "site-c"))
    make_request(site, "site-a")
    with pytest.raises(StudyError, match="is for the site site-c, but this site's request was for site-a"):
        join(site, renamed)
    assert contents(site).keys() == before.keys()
    with pytest.raises(StudyError, match="has not joined yet"):
        site_identity(site)


def test_wrong_clocks_are_named(authority, site):
    invitation = authority.approve(make_request(site, "site-a"), days=10)
    now = datetime.now(UTC)
    join(site, invitation, now=now - timedelta(days=300))  # behind, but in the authority's time
    with pytest.raises(StudyError, match=r"only from .* UTC .the clock of this machine shows .*correct the clock"):
        join(site, invitation, now=now - timedelta(days=3000))
    with pytest.raises(
        StudyError, match=r"of this site expired .*the clock of this machine shows .*a new one is needed"
    ):
        join(site, invitation, now=now + timedelta(days=11))


def test_files_of_two_invitations_are_noticed(authority, site):
    joined(authority, site, "site-a")
    old = (site / "network" / "certificate.pem").read_bytes()
    joined(authority, site, "site-a")
    (site / "network" / "certificate.pem").write_bytes(old)
    with pytest.raises(StudyError, match="do not match the invitation"):
        site_identity(site)


def _request_table(key, name, signed=None):
    csr = forms.new_request(key, signed or name)
    return {"format": "dpadmm-request/1", "name": name, "request": forms.pem(csr).decode()}


def _forged_request():
    """The request of one key with the signature of another."""
    table = _request_table(forms.new_key(), "site-a")
    der = serialization.Encoding.DER
    from cryptography import x509

    good = x509.load_pem_x509_csr(table["request"].encode()).public_bytes(der)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    return {**table, "request": forms.pem(x509.load_der_x509_csr(bad)).decode()}


def test_requests_that_are_none_are_one_sentence(tmp_path):
    good = _request_table(forms.new_key(), "site-a")
    large = _request_table(ec.generate_private_key(ec.SECP384R1()), "site-a")
    other_kind = _request_table(rsa.generate_private_key(65537, 2048), "site-a")
    for table, sentence in (
        ([], 'it has no "format"'),
        ({"name": "x"}, 'it has no "format"'),
        ({**good, "format": "dpadmm-invitation/1"}, "its format must be 'dpadmm-request/1'"),
        ({**good, "format": ["x" * 500]}, "its format must be"),
        ({**good, "command": "rm"}, "and no others"),
        ({**good, "name": 7}, "must be ASCII strings"),
        ({**good, "name": "Site A"}, "is not a valid site name"),
        ({**good, "name": "site-b"}, "signed for another name than site-b"),
        ({**good, "request": "-----BEGIN"}, "is damaged"),
        ({**good, "request": "é"}, "must be ASCII strings"),
        (large, "must be an EC P-256 key"),
        (other_kind, "must be an EC P-256 key"),
        (_forged_request(), "the signature does not match the key"),
    ):
        path = tmp_path / "request.json"
        path.write_text(json.dumps(table))
        with pytest.raises(StudyError, match=sentence) as refused:
            read_request(path)
        assert str(path) in str(refused.value)
        assert len(str(refused.value)) < 400


def test_files_that_are_nothing_of_ours_are_one_sentence(tmp_path):
    path = tmp_path / "sent"
    for data, sentence in (
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 60_000, "not valid JSON"),
        (b'{"format": "a", "format": "b"}', "not valid JSON"),
        (b"9" * 60_000, "not valid JSON"),
        (b" " * (2**16 + 1), "larger than 65,536 bytes"),
    ):
        path.write_bytes(data)
        for read in (read_request, read_invitation):
            with pytest.raises(StudyError, match=sentence):
                read(path)
    path.unlink()
    with pytest.raises(StudyError, match="no such file"):
        read_request(path)
    with pytest.raises(StudyError, match="not a regular file"):
        read_request(tmp_path)
    os.mkfifo(path)
    with pytest.raises(StudyError, match="not a regular file"):  # and does not wait for somebody to write to it
        read_invitation(path)


def test_invitations_that_are_none_are_one_sentence(authority, site, tmp_path):
    good = authority.approve(make_request(site, "site-a"))
    other = new_authority(tmp_path / "other")
    theirs = other.approve(make_request(tmp_path / "theirs", "site-a"))
    named = authority.approve(make_request(tmp_path / "named", "site-b"))
    server = (authority.folder / "broker.pem").read_text()
    path = tmp_path / "invitation.json"
    for wrong, sentence in (
        ({"name": "site-b"}, "the certificate is not for the site site-b"),
        ({"certificate_pem": named.certificate_pem}, "the certificate is not for the site site-a"),
        ({"certificate_pem": server}, "the certificate is not for the site site-a"),
        ({"certificate_pem": theirs.certificate_pem}, "was not signed by the authority"),
        ({"ca_pem": theirs.ca_pem}, "was not signed by the authority"),
        ({"ca_pem": good.certificate_pem}, "the certificate of the authority is damaged"),
        ({"ca_pem": good.ca_pem + theirs.ca_pem}, "the certificate of the authority is damaged"),
        ({"certificate_pem": ""}, "the certificate of the site is damaged"),
        ({"url": "http://localhost:1"}, "is not the address of a broker"),
        ({"url": "nats://localhost:4222"}, "is not the address of a broker"),
        ({"url": "tls://me:secret@localhost:4222"}, "is not the address of a broker"),
        ({"url": "tls://localhost:99999"}, "is not the address of a broker"),
        ({"url": "tls://localhost"}, "is not the address of a broker"),
        ({"url": "tls://localhost:4222/x"}, "is not the address of a broker"),
        ({"url": "tls://a:4222,tls://b"}, "is not the address of a broker"),
        ({"url": "tls://a:4222, tls://b:4222"}, "is not the address of a broker"),
        ({"url": "tls://a:4222,tls://a:4222"}, "and each once"),
        ({"url": "ws://a:80"}, "is not the address of a broker"),
    ):
        path.write_bytes(replace(good, **wrong).as_bytes())
        with pytest.raises(StudyError, match=sentence):
            read_invitation(path)
    path.write_bytes(good.as_bytes())
    join(site, read_invitation(path))


def test_fingerprints_are_those_that_openssl_shows(authority):
    from hashlib import sha256

    certificate = authority.certificate.public_bytes(serialization.Encoding.DER)
    assert authority.fingerprint.replace(":", "") == sha256(certificate).hexdigest().upper()
    assert authority.certificate.fingerprint(hashes.SHA256()) == sha256(certificate).digest()


def test_missing_packages_are_one_sentence():
    for module in ["identity.authority", "identity.certificates", "identity.joining", "transport.broker"]:
        with case(module):
            code = (
                "import sys; sys.modules['cryptography'] = None\n"
                "from dpadmm.errors import DPADMMError\n"
                f"try: import dpadmm.federation.{module}\n"
                "except DPADMMError as error: print(error)"
            )
            said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            assert said == "federation needs more packages: pip install 'dpadmm[federation]'\n"


def shaken(client, key, certificate, *, host="localhost", newest=ssl.TLSVersion.TLSv1_3):
    """A handshake in memory with whoever has this key and certificate; the version agreed on."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    server.maximum_version = newest
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    for _ in range(5):
        for end in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ours.version()


def test_a_site_talks_to_the_broker_of_its_authority_and_host_alone(authority, site, tmp_path):
    """Whoever is on the line, another site with its own certificate among them, cannot play the broker."""
    context = joined(authority, site, "north").client_context()
    broker = (authority.folder / "broker.key", authority.folder / "broker.pem")
    assert shaken(context, *broker) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(context, *broker, host="elsewhere.example")
    other = new_authority(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(context, other.folder / "broker.key", other.folder / "broker.pem")
    rival = joined(authority, tmp_path / "south", "south")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shaken(context, rival.key, rival.certificate)
    with pytest.raises(ssl.SSLError):
        shaken(context, *broker, newest=ssl.TLSVersion.TLSv1_2)
