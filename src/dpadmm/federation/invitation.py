"""The two files that travel: a site's request, and the aggregator's invitation. No secret is in them.

A site compares the authority's fingerprint in its invitation, and the aggregator the key's fingerprint in a
request, over another way than the file came: who can replace both files cannot replace that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from dpadmm.errors import StudyError
from dpadmm.federation import x509_forms as forms
from dpadmm.federation.names import check_name, user_of
from dpadmm.federation.packages import MissingPackages
from dpadmm.federation.private_files import read_fields

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
except ImportError:
    raise MissingPackages from None

REQUEST_FORMAT = "dpadmm-request/1"
INVITATION_FORMAT = "dpadmm-invitation/1"


@dataclass(frozen=True)
class Request:
    """A site asks for a certificate: its name and its public key, signed with the key."""

    name: str
    csr_pem: str

    @cached_property
    def public_key(self) -> forms.PublicKey:
        """The key, once its signature was checked."""
        try:
            csr = x509.load_pem_x509_csr(self.csr_pem.encode("ascii"))
            key, named, signed = forms.public_key_of(csr), forms.common_name(csr), csr.is_signature_valid
        except (ValueError, x509.InvalidVersion, InvalidSignature, UnsupportedAlgorithm):
            raise StudyError("its certificate request is damaged") from None
        if key is None:
            raise StudyError("its key is not of the kind EC P-256, which dpadmm makes")
        if not signed:
            raise StudyError("its signature is not that of its key")
        if named != self.name:
            raise StudyError(f"it is signed for another name than {self.name}")
        return key

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, for both sides to compare."""
        return forms.fingerprint_of(self.public_key)

    def as_bytes(self) -> bytes:
        """The file."""
        return _file({"format": REQUEST_FORMAT, "name": self.name, "request": self.csr_pem})


def read_request(path: Path) -> Request:
    """A request from its file, with its signature checked; anything else is one sentence."""
    what = "a request of a site (dpadmm agent request)"
    table = read_fields(path, format=REQUEST_FORMAT, what=what, fields=("name", "request"))
    name, csr = _texts(path, table, "name", "request")
    try:
        request = Request(check_name(name), csr)
        _ = request.public_key
    except StudyError as error:
        raise StudyError(f"{path}: is not {what}: {error}") from None
    return request


@dataclass(frozen=True)
class Invitation:
    """What a site needs to take part: where the broker is, whom to trust, and its own certificate."""

    name: str
    url: str
    ca_pem: str
    certificate_pem: str

    @cached_property
    def authority(self) -> x509.Certificate:
        """The certificate of the aggregator's authority."""
        found = forms.read_certificate(self.ca_pem.encode("ascii", "replace"))
        if found is None or not forms.is_authority(found):
            raise StudyError("the certificate of its authority is damaged")
        return found

    @cached_property
    def certificate(self) -> x509.Certificate:
        """The site's certificate: signed by the authority, for this name, as a client."""
        found = forms.read_certificate(self.certificate_pem.encode("ascii", "replace"))
        if found is None:
            raise StudyError("its certificate is damaged")
        if not forms.signed_by(found, self.authority):
            raise StudyError("its certificate was not signed by its authority")
        if forms.user_in(found) != user_of(self.name, forms.serial_hex(found)):
            raise StudyError(f"its certificate is not for the site {self.name}")
        return found

    @property
    def ca_fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, to be compared with what the aggregator's people say."""
        return forms.fingerprint_of(self.authority)

    @property
    def key_fingerprint(self) -> str:
        """SHA-256 of the site's public key."""
        key = forms.public_key_of(self.certificate)
        assert key is not None  # else it would not have been read
        return forms.fingerprint_of(key)

    def as_bytes(self) -> bytes:
        """The file."""
        table = {"format": INVITATION_FORMAT, "name": self.name, "url": self.url}
        return _file({**table, "authority": self.ca_pem, "certificate": self.certificate_pem})


def read_invitation(path: Path) -> Invitation:
    """An invitation from its file, with its signature checked; anything else is one sentence."""
    what = "an invitation of an aggregator (dpadmm aggregator approve)"
    fields = ("name", "url", "authority", "certificate")
    table = read_fields(path, format=INVITATION_FORMAT, what=what, fields=fields)
    name, url, authority, certificate = _texts(path, table, *fields)
    try:
        invitation = Invitation(check_name(name), check_url(url), authority, certificate)
        _ = invitation.certificate
    except StudyError as error:
        raise StudyError(f"{path}: is not {what}: {error}") from None
    return invitation


def check_url(url: str) -> str:
    """``tls://host:port`` as it is: no password, no path, no other scheme."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        bare = parts.scheme == "tls" and bool(host) and bool(port) and url == f"tls://{parts.netloc}"
    except ValueError:
        bare = False
    if not bare or "@" in url or len(url) > 300 or not url.isascii() or not url.isprintable() or " " in url:
        raise StudyError(f"{url[:60]!r} is no address of a broker: it should be tls://host:port")
    return url


def _texts(path: Path, table: dict[str, object], *fields: str) -> list[str]:
    values = [table[field] for field in fields]
    if not all(isinstance(value, str) and value.isascii() for value in values):
        raise StudyError(f"{path}: {', '.join(fields)} should be plain texts")
    return [str(value) for value in values]


def _file(table: dict[str, str]) -> bytes:
    return (json.dumps(table, indent=2) + "\n").encode()


def same_fingerprint(one: str, other: str) -> bool:
    """Whether two people mean the same, with or without colons and capitals."""
    return len({text.replace(":", "").replace(" ", "").strip().lower() for text in (one, other)}) == 1
