"""Joining: a site's key and request, the server's invitation, and TLS contexts.

Requests and invitations contain no secret. The owner and the study coordinators compare fingerprints over a second
channel, because the files could be replaced in transit. All files of a site are in ``network/``, in the folder of its
``site.toml``. Its key is created there and never leaves.
"""

from __future__ import annotations

import json
import shutil
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from dpadmm.errors import StudyError
from dpadmm.federation.identity import certificates, private_files
from dpadmm.federation.identity.private_files import check_private, fields_of, read_fields, read_short, write_private
from dpadmm.federation.protocol import check_name, user_of
from dpadmm.files.atomic import sync_folder
from dpadmm.sites.addresses import check_urls, host_and_port

REQUEST_FORMAT = "dpadmm-request/1"
INVITATION_FORMAT = "dpadmm-invitation/1"
_END_OF_CSR = "-----END CERTIFICATE REQUEST-----\n"


@dataclass(frozen=True)
class Request:
    """A site's request for a certificate: its name and its public key, signed with the key."""

    name: str
    csr_pem: str
    """The request, and the certificates of the organisation's own CA for it, if any."""

    @property
    def chain_pem(self) -> str:
        """The certificates after the request."""
        return self.csr_pem.partition(_END_OF_CSR)[2].lstrip("\n")

    @cached_property
    def public_key(self) -> certificates.PublicKey:
        """The key; its signature is checked."""
        try:
            key, named, signed = certificates.read_csr(self.csr_pem.encode("ascii"))
        except ValueError:
            raise StudyError("the certificate request is damaged") from None
        if key is None:
            raise StudyError("the key must be an EC P-256 key")
        if not signed:
            raise StudyError("the signature does not match the key")
        if named != self.name:
            raise StudyError(f"it was signed for another name than {self.name}")
        return key

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, which both sides compare."""
        return certificates.fingerprint_of(self.public_key)

    def as_bytes(self) -> bytes:
        return _file({"format": REQUEST_FORMAT, "name": self.name, "request": self.csr_pem})


def read_request(path: Path) -> Request:
    """Read a request and check its signature."""
    what = "a request from dpadmm site join --manual"
    table = read_fields(path, format=REQUEST_FORMAT, what=what, fields=("name", "request"))
    with _texts(table, path, what, "name", "request") as (name, csr):
        request = Request(check_name(name), csr)
        _ = request.public_key
    return request


@dataclass(frozen=True)
class Invitation:
    """The data with which a site connects: addresses of brokers, the authority, and its own certificate."""

    name: str
    url: str
    """Addresses, separated by commas."""
    ca_pem: str
    certificate_pem: str

    @cached_property
    def authority(self) -> certificates.x509.Certificate:
        chain = certificates.read_chain(self.ca_pem.encode("ascii", "replace"))
        if len(chain) != 1 or not certificates.is_authority(chain[0]):
            raise StudyError("the certificate of the authority is damaged")
        return chain[0]

    @cached_property
    def certificate(self) -> certificates.x509.Certificate:
        """The site's client certificate, signed by the authority for this name."""
        chain = self.chain
        if not chain or certificates.public_key_of(chain[0]) is None:
            raise StudyError("the certificate of the site is damaged")
        certificates.check_signatures(chain, self.authority)
        user = certificates.identity_in(chain[0])
        if user.endswith("@dpadmm") or not user:  # otherwise it is an organisation's own name
            user = certificates.user_in(chain[0])
            if user != user_of(self.name, f"{chain[0].serial_number:x}"):
                raise StudyError(f"the certificate is not for the site {self.name}")
        return chain[0]

    @cached_property
    def chain(self) -> list[certificates.x509.Certificate]:
        """The site's certificate and the intermediate ones."""
        return certificates.read_chain(self.certificate_pem.encode("ascii", "replace"))

    @property
    def ca_fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, to be compared with the study coordinators."""
        return certificates.fingerprint_of(self.authority)

    @property
    def key_fingerprint(self) -> str:
        key = certificates.public_key_of(self.certificate)
        assert key is not None  # the certificate was checked
        return certificates.fingerprint_of(key)

    def as_bytes(self) -> bytes:
        table = {"format": INVITATION_FORMAT, "name": self.name, "url": self.url}
        return _file({**table, "authority": self.ca_pem, "certificate": self.certificate_pem})


def read_invitation(path: Path) -> Invitation:
    """Read an invitation and check its signature."""
    return invitation_from(read_short(path), str(path))


def invitation_from(data: bytes | str, where: str) -> Invitation:
    """Return the invitation in a text, which may come from the network, and check its signature."""
    what, fields = "an invitation from dpadmm server invite", ("name", "url", "authority", "certificate")
    table = fields_of(data, where, format=INVITATION_FORMAT, what=what, fields=fields)
    with _texts(table, where, what, *fields) as (name, url, *pems):
        invitation = Invitation(check_name(name), check_urls(url), *pems)
        _ = invitation.certificate
    return invitation


@contextmanager
def _texts(table: Mapping[str, object], path: object, what: str, *fields: str) -> Iterator[list[str]]:
    """Yield the fields of a file, which must be ASCII strings. Errors raised meanwhile are prefixed with the file."""
    values = [table[field] for field in fields]
    if not all(isinstance(value, str) and value.isascii() for value in values):
        raise StudyError(f"{path}: {', '.join(fields)} must be ASCII strings")
    try:
        yield [str(value) for value in values]
    except StudyError as error:
        raise StudyError(f"{path}: not {what}: {error}") from None


def _file(table: dict[str, str]) -> bytes:
    return (json.dumps(table, indent=2) + "\n").encode()


def same_fingerprint(one: str, other: str) -> bool:
    """Return whether two fingerprints are equal, ignoring colons, spaces and case."""
    return len({text.replace(":", "").replace(" ", "").strip().lower() for text in (one, other)}) == 1


@dataclass(frozen=True)
class Identity:
    """The identity of a site on the network, and the paths of its key and certificates."""

    name: str
    url: str
    """Addresses of the brokers, separated by commas: from ``site.toml``, or else from the invitation."""
    expires: datetime
    ca_fingerprint: str
    key: Path
    certificate: Path
    authority: Path
    invitation: Invitation

    def check_dates(self, now: datetime | None = None) -> None:
        """Raise ``StudyError`` unless its certificates are valid now."""
        _check_dates(self.invitation, certificates.now_or(now))

    @property
    def server_names(self) -> list[str]:
        """The host names of the invitation. The certificate of a broker must have one of them, at any address."""
        return list(dict.fromkeys(host_and_port(url)[0] for url in self.invitation.url.split(",")))

    def client_context(self) -> ssl.SSLContext:
        return client_context(self.key, self.certificate, self.authority)


def make_request(folder: Path, name: str, certificate: bytes | None = None) -> Request:
    """Create ``network/key.pem`` if there is none, and write ``network/request.json``.

    A repeated request uses the same key, for a renewal. A site that has joined keeps its name. ``certificate`` is
    the certificate of the organisation's own CA for ``network/request.csr``, with intermediate ones after it.
    """
    check_name(name)
    before = folder / "network" / "invitation.json"
    if before.exists() and (joined := read_invitation(before).name) != name:
        raise StudyError(f"{folder}: this site joined as {joined} and must keep that name; {_start_over(folder)}")
    return _request_in(folder / "network", name, certificate)


def _request_in(network: Path, name: str, certificate: bytes | None) -> Request:
    private_files.make_private_folder(network)
    if not (network / "key.pem").exists():
        write_private(network / "key.pem", certificates.key_pem(certificates.new_key()), replace=False)
    key = _own_key(network)
    csr, chain = certificates.pem(certificates.new_request(key, name)), list[certificates.x509.Certificate]()
    if certificate is not None:
        chain = certificates.read_chain(certificate)
        if not chain:
            raise StudyError("the certificate is damaged, or not in PEM format")
        if chain[0].public_key() != key.public_key():
            text = "the first certificate is not for this site's key: have network/request.csr signed by your CA"
            raise StudyError(text)
    request = Request(name, b"".join([csr, *map(certificates.pem, chain)]).decode("ascii"))
    write_private(network / "request.csr", csr)
    write_private(network / "request.json", request.as_bytes())
    return request


def join(folder: Path, invitation: Invitation, *, now: datetime | None = None) -> None:
    """Store an invitation. It must match this site's key and name, and the authority that it joined before."""
    network = folder / "network"
    if not (network / "key.pem").exists():
        raise StudyError(f"{folder}: this site has no key yet: create one with dpadmm site join --manual NAME")
    _store(network, invitation, certificates.now_or(now))


def _store(network: Path, invitation: Invitation, now: datetime) -> None:
    name = read_request(network / "request.json").name
    if name != invitation.name:
        raise StudyError(f"the invitation is for the site {invitation.name}, but this site's request was for {name}")
    if certificates.fingerprint_of(_own_key(network).public_key()) != invitation.key_fingerprint:
        raise StudyError(
            "the invitation does not match this site's network/key.pem: use the latest invitation, or send "
            "network/request.json to the study coordinators again"
        )
    joined = network / "ca.pem"
    if joined.exists() and certificates.read_chain(read_short(joined)) != [invitation.authority]:
        raise StudyError(
            f"the invitation comes from another authority than the one that this site joined; "
            f"{_start_over(network.parent)}"
        )
    _check_dates(invitation, now)
    write_private(network / "ca.pem", invitation.ca_pem.encode("ascii"))
    write_private(network / "certificate.pem", invitation.certificate_pem.encode("ascii"))
    write_private(network / "invitation.json", invitation.as_bytes())


class PendingJoin:
    """A site's key between its creation and the answer of the server.

    The key of a new site is in ``joining/`` until it has joined: the folder then becomes ``network/`` at once. If the
    answer was lost, the next attempt uses the same key, to which the server repeats its answer.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_new = not (folder / "network" / "key.pem").exists()
        self._network = folder / ("joining" if self._is_new else "network")

    def check(self, name: str, ca_digest: bytes) -> None:
        """Raise ``StudyError`` if the site joined before under another name, or another server."""
        before = self._folder / "network" / "invitation.json"
        if not before.exists():
            return
        joined = read_invitation(before)
        if certificates.digest_of(joined.authority) != ca_digest:
            text = "the join token is for another server than the one that this site joined"
            raise StudyError(f"{self._folder}: {text}; {_start_over(self._folder)}")
        if joined.name != name:
            text = f"the join token is for {name}, but this site joined as {joined.name} and must keep that name"
            raise StudyError(f"{self._folder}: {text}; {_start_over(self._folder)}")

    def request(self, name: str, certificate: bytes | None = None) -> Request:
        """Create the key unless there is one, and return a request for it."""
        return _request_in(self._network, check_name(name), certificate)

    def discard(self) -> None:
        """Delete the key of a site that the server refused."""
        if self._is_new:
            shutil.rmtree(self._network, ignore_errors=True)

    def finish(self, invitation: Invitation, *, now: datetime | None = None) -> None:
        """Store the answer of the server."""
        _store(self._network, invitation, certificates.now_or(now))
        if self._is_new:
            self._network.rename(self._folder / "network")
            sync_folder(self._folder)


def _check_dates(invitation: Invitation, now: datetime) -> None:
    certificates.check_dates(invitation.authority, now=now, holder="the authority")
    for item in invitation.chain:
        certificates.check_dates(item, now=now, holder="this site" if item is invitation.chain[0] else "its own CA")


def site_identity(folder: Path, addresses: Sequence[str] = ()) -> Identity:
    """Return the identity of a site that joined. Its files must be consistent and its key private.

    ``addresses`` replace the broker addresses of the invitation. The certificate may have expired; see
    ``check_dates``.
    """
    network = folder / "network"
    if not (network / "invitation.json").exists():
        raise StudyError(f"{folder}: this site has not joined yet: run dpadmm site join TOKEN")
    for path in (network, network / "invitation.json", network / "ca.pem", network / "certificate.pem"):
        private_files.check_unchanged_by_others(path)
    invitation = read_invitation(network / "invitation.json")
    pems = (invitation.ca_pem.encode("ascii"), invitation.certificate_pem.encode("ascii"))
    if (read_short(network / "ca.pem"), read_short(network / "certificate.pem")) != pems:
        text = "the files do not match the invitation: join again with dpadmm site join TOKEN"
        raise StudyError(f"{network}: {text}")
    if certificates.fingerprint_of(_own_key(network).public_key()) != invitation.key_fingerprint:
        raise StudyError(f"{network}: the certificate does not match key.pem; {_start_over(folder)}")
    expires = min(item.not_valid_after_utc for item in invitation.chain)
    files = (network / "key.pem", network / "certificate.pem", network / "ca.pem")
    url = ",".join(addresses) or invitation.url
    return Identity(invitation.name, url, expires, invitation.ca_fingerprint, *files, invitation)


def client_context(key: Path, certificate: Path, ca: Path) -> ssl.SSLContext:
    """Return a TLS 1.3 context with a client certificate, for brokers that this authority certified.

    Connect with ``tls_handshake_first``: otherwise nats-py would trust an unencrypted first line that claims
    that the server does not use TLS.
    """
    check_private(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # an organisation may trust one of its intermediate authorities, and not all that its root signs
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=str(ca))
        context.load_cert_chain(str(certificate), str(key), password=lambda: "")  # never ask for one
    except (OSError, ValueError):  # ssl's own errors are OSErrors
        text = f"{key}, {certificate.name} and {ca.name} do not match, or one is missing or damaged"
        raise StudyError(text) from None
    return context


def _own_key(network: Path) -> certificates.Key:
    check_private(network / "key.pem")
    key = certificates.read_key(read_short(network / "key.pem"))
    if key is None:
        raise StudyError(f"{network / 'key.pem'}: damaged, or not a key from dpadmm site join")
    return key


def _start_over(folder: Path) -> str:
    return f"to start over, move {folder / 'network'} away and run dpadmm site join TOKEN"
