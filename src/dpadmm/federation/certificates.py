"""The aggregator's authority: certifies the broker, the aggregator itself, and sites that people approved."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from dpadmm.errors import DpadmmError, StudyError
from dpadmm.federation import x509_forms as forms
from dpadmm.federation.aggregator_folder import Settings, begin_folder, read_settings, settings_of, url_of
from dpadmm.federation.approvals import (
    ApprovedSite,
    all_approvals,
    approvals_of,
    kept,
    taken_back,
    write_approvals,
)
from dpadmm.federation.invitation import Invitation, Request, read_invitation, read_request
from dpadmm.federation.joining import Identity, client_context, join, make_request, site_identity
from dpadmm.federation.names import AGGREGATOR, AGGREGATOR_USER, check_name, user_of
from dpadmm.federation.packages import MissingPackages
from dpadmm.federation.private_files import check_private, one_at_a_time, read_short, write_private

try:
    from cryptography import x509
except ImportError:
    raise MissingPackages from None

__all__ = [
    "ApprovedSite",
    "Authority",
    "Identity",
    "Invitation",
    "Request",
    "client_context",
    "join",
    "make_request",
    "read_invitation",
    "read_request",
    "site_identity",
]

YEAR = 397
"""Days that certificates hold unless told otherwise: a year and a month."""

_SOON = timedelta(days=30)


@dataclass(frozen=True)
class Authority:
    """An aggregator's folder, and the key in it that certifies."""

    folder: Path
    settings: Settings
    certificate: x509.Certificate

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        hosts: Sequence[str],
        port: int,
        listen: str | None = None,
        days: int = 3650,
        now: datetime | None = None,
    ) -> Authority:
        """Begin an authority in a new or empty folder; it certifies for so many days."""
        folder, settings = folder.absolute(), settings_of(hosts, port, listen)
        now, key = forms.now_or(now), forms.new_key()
        certificate = forms.authority_certificate(key, days=_days(days), now=now)
        files = {"authority/ca.pem": forms.pem(certificate), "authority/ca.key": forms.key_pem(key)}
        signer = (certificate, key)
        begin_folder(folder, settings, files | _server(signer, settings, now) | _aggregator(signer, now))
        return cls(folder, settings, certificate)

    @classmethod
    def open(cls, folder: Path, *, now: datetime | None = None) -> Authority:
        """The authority of a folder, if its keys are secret and it has not ended."""
        folder = folder.absolute()
        settings = read_settings(folder)
        for name in ("authority/ca.key", "server.key", "aggregator.key"):
            check_private(folder / name)
        certificate = forms.read_certificate(read_short(folder / "authority" / "ca.pem"))
        if certificate is None or not forms.is_authority(certificate):
            raise StudyError(
                f"{folder / 'authority' / 'ca.pem'}: is not an authority's certificate, or is damaged"
            )
        if forms.now_or(now) >= certificate.not_valid_after_utc:
            raise DpadmmError(
                f"{folder}: the authority ended {certificate.not_valid_after_utc:%Y-%m-%d}: begin a new one "
                "with dpadmm aggregator init in another folder, and invite the sites again"
            )
        authority = cls(folder, settings, certificate)
        authority._signer()
        return authority

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate: sites compare it before they join."""
        return forms.fingerprint_of(self.certificate)

    @property
    def url(self) -> str:
        """Where sites connect to."""
        return self.settings.url

    def own_url(self, port: int | None = None) -> str:
        """Where the aggregator itself connects to, on its own machine."""
        return url_of(self.settings.own_host, port or self.settings.port)

    def client_context(self) -> ssl.SSLContext:
        """How the aggregator connects to a broker."""
        self.renew_own()
        ca = self.folder / "authority" / "ca.pem"
        return client_context(self.folder / "aggregator.key", self.folder / "aggregator.pem", ca)

    def approve(self, request: Request, *, days: int = YEAR, now: datetime | None = None) -> Invitation:
        """Certify a site's key. Compare the request's fingerprint with the site's people first.

        A name that is in use is given to the same key again (a renewal), or to a new key after
        :meth:`revoke`; a key that was revoked is not certified again, since others may have it.
        """
        now, name, fingerprint = forms.now_or(now), check_name(request.name), request.fingerprint
        certificate = forms.leaf_certificate(
            self._signer(),
            request.public_key,
            name=name,
            names=[x509.RFC822Name(user_of(name, f"{(serial := forms.new_serial()):x}"))],
            serial=serial,
            days=_days(days),
            now=now,
        )
        approval = ApprovedSite(
            name=name,
            serial=forms.serial_hex(certificate),
            fingerprint=fingerprint,
            expires=certificate.not_valid_after_utc,
            approved_at=now,
        )
        with self._alone():
            before = approvals_of(self.folder, name)
            everyone = all_approvals(self.folder)
            if any(each.revoked and each.fingerprint == fingerprint for each in everyone):
                raise StudyError(
                    f"the key of this request was revoked, and is not certified again: {name} moves its "
                    "network folder away and makes a new key with dpadmm agent request"
                )
            if any(each.usable(now) and each.fingerprint != fingerprint for each in before):
                raise StudyError(
                    f"{name} has a certificate for another key: if this request is really theirs, first "
                    f"revoke it (dpadmm aggregator revoke {name}), or let them choose another name"
                )
            write_approvals(self.folder, [*kept(before, now), approval])
        return Invitation(
            name,
            self.url,
            forms.pem(self.certificate).decode("ascii"),
            forms.pem(certificate).decode("ascii"),
        )

    def revoke(self, name: str, *, now: datetime | None = None) -> None:
        """Take back all certificates of a site; the broker closes its connections at its next reload."""
        with self._alone():
            before = approvals_of(self.folder, name)
            if not before:
                known = ", ".join(each.name for each in self.sites()) or "none yet"
                raise StudyError(f"{name} is no site of this aggregator; those are: {known}")
            write_approvals(self.folder, taken_back(before, forms.now_or(now)))

    def sites(self) -> list[ApprovedSite]:
        """Every site by name, with the newest of its certificates."""
        return list({each.name: each for each in all_approvals(self.folder)}.values())

    def users(self, *, now: datetime | None = None) -> list[ApprovedSite]:
        """Every certificate that may connect: a renewed site has two until the older ends."""
        now = forms.now_or(now)
        return [each for each in all_approvals(self.folder) if each.usable(now)]

    def renew_own(self, *, now: datetime | None = None) -> bool:
        """Make the broker's and the aggregator's certificates anew where they end soon or hosts changed."""
        now, files = forms.now_or(now), dict[str, bytes]()
        if not self._holds("server.pem", now, forms.broker_names(self.settings.certified)):
            files |= _server(self._signer(), self.settings, now)
        if not self._holds("aggregator.pem", now, [x509.RFC822Name(AGGREGATOR_USER)]):
            files |= _aggregator(self._signer(), now)
        with self._alone():
            for name, data in files.items():
                write_private(self.folder / name, data)
        return bool(files)

    def _holds(self, name: str, now: datetime, names: Sequence[x509.GeneralName]) -> bool:
        path = self.folder / name
        if not path.exists():
            return False
        certificate = forms.read_certificate(read_short(path))
        if certificate is None or not forms.signed_by(certificate, self.certificate):
            return False
        key = forms.read_key(read_short(path.with_suffix(".key")))
        if key is None or key.public_key() != certificate.public_key():
            return False
        end = min(now + _SOON, self.certificate.not_valid_after_utc)
        return certificate.not_valid_after_utc >= end and forms.names_in(certificate) == list(names)

    def _signer(self) -> tuple[x509.Certificate, forms.Key]:
        path = self.folder / "authority" / "ca.key"
        check_private(path)
        key = forms.read_key(read_short(path))
        if key is None or key.public_key() != self.certificate.public_key():
            raise StudyError(
                f"{path}: is not the key of ca.pem beside it, or is damaged: put it back from a copy"
            )
        return self.certificate, key

    def _alone(self) -> AbstractContextManager[None]:
        return one_at_a_time(self.folder / "authority" / "lock")


def _server(
    signer: tuple[x509.Certificate, forms.Key], settings: Settings, now: datetime
) -> dict[str, bytes]:
    key, names = forms.new_key(), forms.broker_names(settings.certified)
    certificate = forms.leaf_certificate(
        signer,
        key.public_key(),
        name="dpadmm broker",
        names=names,
        serial=forms.new_serial(),
        days=YEAR,
        now=now,
        server=True,
    )
    return {"server.key": forms.key_pem(key), "server.pem": forms.pem(certificate)}


def _aggregator(signer: tuple[x509.Certificate, forms.Key], now: datetime) -> dict[str, bytes]:
    key, names = forms.new_key(), [x509.RFC822Name(AGGREGATOR_USER)]
    certificate = forms.leaf_certificate(
        signer, key.public_key(), name=AGGREGATOR, names=names, serial=forms.new_serial(), days=YEAR, now=now
    )
    return {"aggregator.key": forms.key_pem(key), "aggregator.pem": forms.pem(certificate)}


def _days(days: int) -> int:
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 7300:
        raise StudyError(f"days: {str(days)[:20]} is not one of 1 to 7300")
    return days
