"""The authority's folder and its certificates: each certificate has one purpose, and a name has one owner."""

from __future__ import annotations

import json
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from brokers import free_port, joined, new_authority
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from looping import case

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.identity import certificates as forms
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import make_request, read_invitation


@pytest.fixture
def authority(tmp_path):
    return new_authority(tmp_path / "aggregator")


def certificate_in(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def extension(certificate, kind):
    return certificate.extensions.get_extension_for_class(kind)


def test_new_folder_is_private_and_complete(authority):
    folder = authority.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert Authority.open(folder).fingerprint == authority.fingerprint
    assert authority.url == f"tls://localhost:{authority.settings.port}"
    assert authority.settings.listen == "127.0.0.1"  # all its hosts are this machine itself
    assert len(authority.fingerprint.split(":")) == 32


def test_each_certificate_has_one_purpose(authority, tmp_path):
    site = joined(authority, tmp_path / "site", "site-a")
    ca = certificate_in(authority.folder / "authority" / "ca.pem")
    server = certificate_in(authority.folder / "broker.pem")
    aggregator = certificate_in(authority.folder / "server.pem")
    client = certificate_in(site.certificate)
    basic = extension(ca, x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    usage = extension(ca, x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)
    for leaf, purpose in (
        (server, ExtendedKeyUsageOID.SERVER_AUTH),
        (aggregator, ExtendedKeyUsageOID.CLIENT_AUTH),
        (client, ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        assert list(extension(leaf, x509.ExtendedKeyUsage).value) == [purpose]
        usage = extension(leaf, x509.KeyUsage).value
        assert (usage.digital_signature, usage.key_cert_sign, usage.key_agreement) == (True, False, False)
        assert not extension(leaf, x509.BasicConstraints).value.ca
        leaf.verify_directly_issued_by(ca)
        assert isinstance(leaf.public_key().curve, ec.SECP256R1)
    assert [str(name.value) for name in forms.names_in(server)] == ["localhost", "127.0.0.1"]
    assert [name.value for name in forms.names_in(aggregator)] == ["server@dpadmm"]
    assert [name.value for name in forms.names_in(client)] == [f"site-a.{client.serial_number:x}@dpadmm"]
    serials = {item.serial_number for item in (ca, server, aggregator, client)}
    assert len(serials) == 4
    assert all(number.bit_length() == 128 for number in serials)
    assert client.not_valid_before_utc <= datetime.now(UTC) - timedelta(minutes=59)


def test_request_determines_only_the_key(authority, tmp_path):
    """A site that requests a certificate as server or authority gets a site certificate."""
    from cryptography.hazmat.primitives import hashes

    from dpadmm.federation.identity.joining import Request

    key = forms.new_key()
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site-a")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.RFC822Name("server@dpadmm")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    invitation = authority.approve(Request("site-a", forms.pem(greedy).decode()))
    assert forms.user_in(invitation.certificate).startswith("site-a.")
    assert not extension(invitation.certificate, x509.BasicConstraints).value.ca


def test_invalid_settings_write_nothing(tmp_path_factory: pytest.TempPathFactory):
    for choices, sentence in [
        ({"hosts": []}, "give at least one host name"),
        ({"hosts": "localhost"}, "give at least one host name"),
        ({"hosts": ["bad host"]}, "is not a host name or address"),
        ({"hosts": ['x"\nlisten = "evil']}, "is not a host name or address"),
        ({"hosts": ["-x.org"]}, "is not a host name or address"),
        ({"hosts": ["999.1.1.1"]}, "is not a host name or address"),
        ({"hosts": ["ü.example"]}, "is not a host name or address"),
        ({"hosts": ["*.example.org"]}, "is not a host name or address"),
        ({"port": 0}, "is not a port number from 1 to 65535"),
        ({"port": True}, "is not a port number from 1 to 65535"),
        ({"hosts": ['fe80::1%x"\nlisten = "evil']}, "is not a host name or address"),
        ({"listen": "everywhere"}, "is not an IP address"),
        ({"listen": "::1%x\ny"}, "is not an IP address"),
        ({"listen": 5}, "is not an IP address"),
        ({"days": 0}, "is not a whole number from 1 to 7300"),
    ]:
        with case(choices, sentence):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(StudyError, match=sentence):
                Authority.create(tmp_path / "a", **({"hosts": ["localhost"], "port": 4222} | choices))
            assert not (tmp_path / "a").exists()


def test_hosts_are_names_and_addresses(tmp_path):
    authority = Authority.create(tmp_path / "a", hosts=["2001:DB8::1", "Study.Example.org"], port=4222)
    assert authority.url == "tls://[2001:db8::1]:4222"
    assert authority.settings.listen == "0.0.0.0"
    assert authority.own_url() == "tls://127.0.0.1:4222"
    names = [str(name.value) for name in forms.names_in(certificate_in(tmp_path / "a" / "broker.pem"))]
    assert names == ["2001:db8::1", "study.example.org", "127.0.0.1"]


def test_an_authority_is_never_overwritten(authority, tmp_path):
    before = authority.fingerprint
    with pytest.raises(StudyError, match="there is a server already"):
        Authority.create(authority.folder, hosts=["localhost"], port=4222)
    assert Authority.open(authority.folder).fingerprint == before
    (authority.folder / "server.toml").unlink()
    with pytest.raises(StudyError, match="not empty"):
        Authority.create(authority.folder, hosts=["localhost"], port=4222)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StudyError, match="not empty"):
        Authority.create(tmp_path / "file", hosts=["localhost"], port=4222)
    (tmp_path / "empty").mkdir(mode=0o755)
    Authority.create(tmp_path / "empty", hosts=["localhost"], port=4222)
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700


def test_failed_creation_leaves_no_partial_folder(tmp_path, monkeypatch):
    from dpadmm.federation.identity import private_files

    written = []

    def full_disk(path, data, **_):
        if len(written) == 4:
            raise StudyError("the disk is full")
        written.append(path)
        path.write_bytes(data)

    monkeypatch.setattr(private_files, "write_private", full_disk)
    with pytest.raises(StudyError, match="the disk is full"):
        Authority.create(tmp_path / "a", hosts=["localhost"], port=4222)
    assert len(written) == 4
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["authority/ca.key", "broker.key", "server.key"])
def test_keys_readable_by_others_are_refused(authority, name):
    path = authority.folder / name
    path.chmod(0o640)
    with pytest.raises(StudyError, match="others can read or change this secret: run chmod 600") as refused:
        Authority.open(authority.folder)
    assert "PRIVATE" not in str(refused.value)
    path.chmod(0o400)
    Authority.open(authority.folder)


def test_folder_writable_by_others_is_refused(authority):
    authority.folder.chmod(0o770)
    with pytest.raises(StudyError, match="others can change it"):
        Authority.open(authority.folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_keys_of_another_user_are_refused(authority):
    os.chown(authority.folder / "broker.key", 12345, -1)
    with pytest.raises(StudyError, match="belongs to user 12345"):
        Authority.open(authority.folder)


def test_damaged_files_give_one_sentence(authority, tmp_path):
    folder = authority.folder
    with pytest.raises(StudyError, match="not the folder of a server"):
        Authority.open(tmp_path)
    good = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for name, data, sentence in (
        ("authority/ca.pem", b"", "not the certificate of an authority"),
        ("authority/ca.pem", good[folder / "broker.pem"], "not the certificate of an authority"),
        ("authority/ca.key", b"-----BEGIN PRIVATE KEY-----", "not the key of ca.pem"),
        ("authority/ca.key", good[folder / "broker.key"], "not the key of ca.pem"),
        ("server.toml", b"format = 1", "format must be"),
        ("server.toml", b"x" * 100, "not valid TOML"),
        ("server.toml", good[folder / "server.toml"] + b"\nadmin = true\n", "and nothing else"),
        (
            "server.toml",
            good[folder / "server.toml"].replace(b"port = ", b"port = 9"),
            "is not a ",
        ),
    ):
        path = folder / name
        path.write_bytes(data)
        with pytest.raises(StudyError, match=sentence):
            Authority.open(folder)
        path.write_bytes(good[path])
    (folder / "authority" / "ca.pem").unlink()
    with pytest.raises(StudyError, match="no such file"):
        Authority.open(folder)


def test_expired_authority_is_reported(authority):
    with pytest.raises(DPADMMError, match="the authority expired on 20"):
        Authority.open(authority.folder, now=datetime.now(UTC) + timedelta(days=4000))


def test_own_certificates_are_renewed_before_they_expire(authority):
    server, key = authority.folder / "broker.pem", authority.folder / "broker.key"
    before = server.read_bytes()
    assert not authority.renew_certificates()
    assert authority.renew_certificates(now=datetime.now(UTC) + timedelta(days=350))
    assert server.read_bytes() != before
    key.write_bytes((authority.folder / "server.key").read_bytes())  # cut off between two files
    assert authority.renew_certificates()
    authority.client_context().load_cert_chain(server, key)


def test_no_certificate_is_valid_longer_than_its_authority(tmp_path):
    authority = Authority.create(tmp_path / "a", hosts=["localhost"], port=free_port(), days=20)
    invitation = authority.approve(make_request(tmp_path / "s", "site-a"))
    assert invitation.certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
    assert not authority.renew_certificates()


def test_a_name_has_one_key_until_it_is_revoked(authority, tmp_path):
    first = make_request(tmp_path / "one", "site-a")
    second = make_request(tmp_path / "two", "site-a")
    authority.approve(first)
    with pytest.raises(StudyError, match="site-a has a certificate for another key"):
        authority.approve(second)
    authority.approve(first, days=500)
    (site,) = authority.sites()
    assert (site.name, site.fingerprint, site.revoked) == ("site-a", first.fingerprint, False)
    assert len(authority.users()) == 2
    authority.revoke("site-a")
    assert authority.users() == []
    assert [item.revoked for item in authority.sites()] == [True]
    with pytest.raises(StudyError, match="the key in this request was revoked"):
        authority.approve(first)
    authority.approve(second)
    (user,) = authority.users()
    assert user.fingerprint == second.fingerprint
    assert not user.usable(user.expires)


def test_expired_certificate_frees_its_name(authority, tmp_path):
    long_ago = datetime.now(UTC) - timedelta(days=20)
    authority.approve(make_request(tmp_path / "one", "site-a"), days=5, now=long_ago)
    assert authority.users() == []
    authority.approve(make_request(tmp_path / "two", "site-a"))
    table = json.loads((authority.folder / "sites" / "site-a.json").read_text())
    assert len(table["certificates"]) == 1


def test_an_unknown_site_cannot_be_revoked(authority, tmp_path):
    authority.approve(make_request(tmp_path / "one", "site-a"))
    with pytest.raises(StudyError, match="site-b is not a site of this server; its sites: site-a"):
        authority.revoke("site-b")
    with pytest.raises(StudyError, match="is not a valid site name"):
        authority.revoke("../authority/ca")


def test_damaged_approval_stops_the_broker(authority, tmp_path):
    authority.approve(make_request(tmp_path / "one", "site-a"))
    path = authority.folder / "sites" / "site-a.json"
    good = json.loads(path.read_text())
    (line,) = good["certificates"]
    for bad in (
        {**good, "name": "site-b"},
        {**good, "certificates": []},
        {**good, "certificates": [{**line, "serial": '"}'}]},
        {**good, "certificates": [{**line, "expires": "2099-01-01"}]},
        {**good, "certificates": [{**line, "admin": True}]},
        {**good, "certificates": "all"},
    ):
        path.write_text(json.dumps(bad))
        with pytest.raises(StudyError, match="damaged; it lists who may connect"):
            authority.users()


def test_concurrent_approvals_are_all_stored(authority, tmp_path):
    request = make_request(tmp_path / "one", "site-a")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: authority.approve(request), range(16)))
    assert len(authority.users()) == 16


def test_invitation_contains_no_secret(authority, tmp_path):
    invitation = authority.approve(make_request(tmp_path / "one", "site-a"))
    path = tmp_path / "invitation.json"
    path.write_bytes(invitation.as_bytes())
    assert b"PRIVATE" not in path.read_bytes()
    assert b"PRIVATE" not in (tmp_path / "one" / "network" / "request.json").read_bytes()
    assert read_invitation(path) == invitation
    assert read_invitation(path).ca_fingerprint == authority.fingerprint


def test_a_revoked_key_is_not_certified_under_another_name(authority, tmp_path):
    first = make_request(tmp_path / "a", "site-a")
    authority.approve(first)
    authority.revoke("site-a")
    (tmp_path / "a" / "network" / "request.json").unlink()
    with pytest.raises(StudyError, match="the key in this request was revoked"):
        authority.approve(make_request(tmp_path / "a", "site-b"))


def test_revoked_key_stays_revoked_after_expiry(authority, tmp_path):
    """A stolen key may be used at any later time."""
    long_ago = datetime.now(UTC) - timedelta(days=20)
    first = make_request(tmp_path / "one", "site-a")
    authority.approve(first, days=5, now=long_ago)
    authority.revoke("site-a", now=long_ago)
    authority.approve(make_request(tmp_path / "two", "site-a"))
    for folder, name in ((tmp_path / "one", "site-a"), (tmp_path / "three", "site-b")):
        if name == "site-b":
            (folder / "network").mkdir(mode=0o700, parents=True)
            shutil.copy2(tmp_path / "one" / "network" / "key.pem", folder / "network" / "key.pem")
        with pytest.raises(StudyError, match="the key in this request was revoked"):
            authority.approve(make_request(folder, name))
