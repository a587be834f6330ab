"""The site's side: a key that is made here and never leaves, a request, an invitation, and a way to connect.

All of it is in ``network/`` beside the ``site.toml``. What is taken from an invitation is an address, an
authority and a certificate for the own key; nothing that an aggregator could configure here.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dpadmm.errors import StudyError
from dpadmm.federation import x509_forms as forms
from dpadmm.federation.invitation import Invitation, Request, read_invitation, read_request
from dpadmm.federation.names import check_name
from dpadmm.federation.private_files import (
    check_private,
    check_unchanged_by_others,
    make_private_folder,
    read_short,
    write_private,
)


@dataclass(frozen=True)
class Identity:
    """Who a site is on the network; its secret key is at ``key``."""

    name: str
    url: str
    expires: datetime
    ca_fingerprint: str
    key: Path
    certificate: Path
    authority: Path

    def usable(self, now: datetime | None = None) -> bool:
        """Does the certificate hold now?"""
        return forms.now_or(now) < self.expires

    def client_context(self) -> ssl.SSLContext:
        """How this site connects."""
        return client_context(self.key, self.certificate, self.authority)


def make_request(folder: Path, name: str) -> Request:
    """Make ``network/key.pem``, once, and write ``network/request.json`` for the aggregator.

    Asked again, the same key asks again: for a renewal. A site that has joined keeps its name.
    """
    check_name(name)
    network = folder / "network"
    if (network / "invitation.json").exists() and (
        joined := read_invitation(network / "invitation.json").name
    ) != name:
        raise StudyError(f"{folder}: this site joined as {joined} and keeps this name; {_start_over(folder)}")
    make_private_folder(network)
    if not (network / "key.pem").exists():
        write_private(network / "key.pem", forms.key_pem(forms.new_key()), replace=False)
    csr = forms.new_request(_own_key(network), name)
    request = Request(name, forms.pem(csr).decode("ascii"))
    write_private(network / "request.json", request.as_bytes())
    return request


def join(folder: Path, invitation: Invitation, *, now: datetime | None = None) -> None:
    """Keep an invitation for this site's key and name, under the authority that it joined before, if any."""
    network, now = folder / "network", forms.now_or(now)
    if not (network / "key.pem").exists():
        raise StudyError(f"{folder}: this site has no key yet: make it with dpadmm agent request")
    asked = read_request(network / "request.json").name
    if asked != invitation.name:
        raise StudyError(f"the invitation is for the site {invitation.name}, and this site asked as {asked}")
    if forms.fingerprint_of(_own_key(network).public_key()) != invitation.key_fingerprint:
        raise StudyError(
            "the invitation is for another key than this site's network/key.pem: "
            "send network/request.json to the aggregator again, or take the newer invitation"
        )
    if (network / "ca.pem").exists():
        before = forms.read_certificate(read_short(network / "ca.pem"))
        if before is None or forms.fingerprint_of(before) != invitation.ca_fingerprint:
            raise StudyError(
                "the invitation is of another authority than the one that this site joined before: "
                f"if that is meant, {_start_over(folder)}"
            )
    _check_dates(invitation, now)
    write_private(network / "ca.pem", invitation.ca_pem.encode("ascii"))
    write_private(network / "certificate.pem", invitation.certificate_pem.encode("ascii"))
    write_private(network / "invitation.json", invitation.as_bytes())


def _check_dates(invitation: Invitation, now: datetime) -> None:
    clock = f"the clock of this machine says {now:%Y-%m-%d %H:%M} UTC"
    for what, certificate in (("authority's", invitation.authority), ("site's", invitation.certificate)):
        if now >= certificate.not_valid_after_utc:
            day = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
            raise StudyError(
                f"the {what} certificate in the invitation ended {day} UTC, and {clock}: ask for a new one"
            )
        if now < certificate.not_valid_before_utc:
            day = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M}"
            raise StudyError(
                f"the {what} certificate in the invitation begins {day} UTC, and {clock}: set the clock right"
            )


def site_identity(folder: Path) -> Identity:
    """Who this site is, as it joined; its files agree with each other, and no one else can read its key.

    An expired certificate is told by ``usable``: what to do about it is for the agent to say.
    """
    network = folder / "network"
    if not (network / "invitation.json").exists():
        raise StudyError(f"{folder}: this site has not joined yet: dpadmm agent join INVITATION")
    for trusted in (network, network / "invitation.json", network / "ca.pem", network / "certificate.pem"):
        check_unchanged_by_others(trusted)
    invitation = read_invitation(network / "invitation.json")
    same = read_short(network / "ca.pem") == invitation.ca_pem.encode("ascii")
    if not same or read_short(network / "certificate.pem") != invitation.certificate_pem.encode("ascii"):
        raise StudyError(
            f"{network}: the files are not of one invitation: run dpadmm agent join INVITATION again"
        )
    if forms.fingerprint_of(_own_key(network).public_key()) != invitation.key_fingerprint:
        raise StudyError(f"{network}: the certificate is not of key.pem; {_start_over(folder)}")
    return Identity(
        invitation.name,
        invitation.url,
        invitation.certificate.not_valid_after_utc,
        invitation.ca_fingerprint,
        network / "key.pem",
        network / "certificate.pem",
        network / "ca.pem",
    )


def client_context(key: Path, certificate: Path, ca: Path) -> ssl.SSLContext:
    """TLS 1.3 with the own certificate, to a broker that this authority certified for the host called.

    Connect with ``tls_handshake_first``: nats-py would otherwise believe a first line in the clear that says
    that the server wants no TLS, and go on without.
    """
    check_private(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cafile=str(ca))
        context.load_cert_chain(str(certificate), str(key), password=_no_password)
    except (OSError, ValueError):  # ssl's own errors are OSErrors
        text = f"{key}, {certificate.name} and {ca.name} do not fit together, or one is missing or damaged"
        raise StudyError(text) from None
    return context


def _no_password() -> str:
    return ""


def _own_key(network: Path) -> forms.Key:
    check_private(network / "key.pem")
    key = forms.read_key(read_short(network / "key.pem"))
    if key is None:
        raise StudyError(f"{network / 'key.pem'}: is not a key that dpadmm made, or is damaged")
    return key


def _start_over(folder: Path) -> str:
    return f"to start over, move {folder / 'network'} away and run dpadmm agent request"
