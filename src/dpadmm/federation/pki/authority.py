"""The aggregator's folder and its certificate authority: settings, approved sites, and certificates.

The authority certifies the broker, the aggregator and approved sites. ``sites/NAME.json`` lists the
certificates of a site, and which of them were revoked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec import Meta, ValidationError, convert

from dpadmm._base.errors import DpadmmError, StudyError
from dpadmm._base.toml import read_toml
from dpadmm.federation.pki import certificates as forms
from dpadmm.federation.pki import private_files
from dpadmm.federation.pki.certificates import x509
from dpadmm.federation.pki.joining import Invitation, Request, client_context
from dpadmm.federation.pki.private_files import check_private, read_fields, read_short, write_private
from dpadmm.federation.protocol import AGGREGATOR, AGGREGATOR_USER, check_name, user_of

FORMAT = "dpadmm-aggregator/1"
LOOPBACK = "127.0.0.1"
_LABEL = re.compile("(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_TEXT = """\
# The settings of a dpadmm aggregator. This folder contains its private keys: keep it secret.
format = "{format}"

# The address on which the broker listens; 0.0.0.0 means all addresses of this machine.
listen = "{listen}"
port = {port}

# The host names and addresses under which sites reach this machine; invitations contain the first. After a
# change, the broker gets a new certificate when it starts. If the first one changed, sites need a new
# invitation (dpadmm aggregator approve).
hosts = [{hosts}]
"""


@dataclass(frozen=True)
class Settings:
    """The contents of ``aggregator.toml``."""

    listen: str
    port: int
    hosts: tuple[str, ...]

    @property
    def own_host(self) -> str:
        address = ip_address(self.listen)
        if address.is_unspecified:
            return LOOPBACK if address.version == 4 else "::1"
        return self.listen


def url_of(host: str, port: int) -> str:
    """``tls://host:port``, or ``tls://[2001:db8::1]:4222``."""
    return f"tls://[{host}]:{port}" if ":" in host else f"tls://{host}:{port}"


def settings_of(hosts: Sequence[str], port: int, listen: str | None = None) -> Settings:
    """Checked settings; ``listen`` defaults to loopback if all hosts are local, else to all addresses."""
    if isinstance(hosts, str) or not hosts:
        raise StudyError("hosts: give at least one host name or address under which sites reach this machine")
    checked = tuple(_host(host) for host in hosts)
    if listen is None:
        listen = LOOPBACK if all(host in ("localhost", LOOPBACK) for host in checked) else "0.0.0.0"
    try:
        if not isinstance(listen, str) or "%" in listen:  # 5 would be 0.0.0.5
            raise ValueError(listen)
        listen = str(ip_address(listen))
    except ValueError:
        raise StudyError(f"listen: {str(listen)[:60]!r} is not an IP address, such as 0.0.0.0") from None
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise StudyError(f"port: {str(port)[:20]!r} is not a port number from 1 to 65535")
    return Settings(listen, port, checked)


def _host(host: object) -> str:
    text = str(host)
    try:
        if "%" not in text:  # a local interface means nothing to sites
            return str(ip_address(text))
    except ValueError:
        pass
    labels = text.split(".")
    named = isinstance(host, str) and len(text) <= 253 and all(map(_LABEL.fullmatch, labels))
    if not named or labels[-1].isdigit():
        raise StudyError(f"hosts: {text[:60]!r} is not a host name or address, such as study.example.org or 192.0.2.7")
    return text.lower()


def read_settings(folder: Path) -> Settings:
    """The settings of a folder that ``dpadmm aggregator init`` created."""
    path = folder / "aggregator.toml"
    if not path.exists():
        raise StudyError(
            f"{folder}: not the folder of an aggregator; check --folder, or create a new aggregator with "
            "dpadmm aggregator init"
        )
    private_files.check_unchanged_by_others(folder)
    private_files.check_unchanged_by_others(path)
    table = read_toml(path)
    if table.get("format") != FORMAT:
        raise StudyError(f'{path}: format must be "{FORMAT}"')
    if table.keys() != {"format", "listen", "port", "hosts"} or not isinstance(table["hosts"], list):
        raise StudyError(f"{path}: must have format, listen, port and a list of hosts, and nothing else")
    try:
        return settings_of(table["hosts"], table["port"], table["listen"])
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None


def _create_folder(folder: Path, settings: Settings, files: dict[str, bytes]) -> None:
    """Create a folder; ``aggregator.toml`` is written last, so a folder that has it is complete."""
    if (folder / "aggregator.toml").exists():
        raise StudyError(
            f"{folder}: there is an aggregator already, and a new authority would lock out its sites: choose "
            "another folder"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StudyError(f"{folder}: not empty; choose a new or an empty folder")
    new = not folder.exists()
    private_files.make_private_folder(folder)
    try:
        os.chmod(folder, 0o700)
        for name in ("authority", "sites", "studies"):
            private_files.make_private_folder(folder / name)
        hosts = ", ".join(f'"{host}"' for host in settings.hosts)
        text = _TEXT.format(format=FORMAT, listen=settings.listen, port=settings.port, hosts=hosts)
        for name, data in (*files.items(), ("aggregator.toml", text.encode())):
            write_private(folder / name, data)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if not new:
            folder.mkdir(mode=0o700, exist_ok=True)
        raise


APPROVALS_FORMAT = "dpadmm-approvals/1"
_Moment = Annotated[datetime, Meta(tz=True)]


@dataclass(frozen=True, kw_only=True)
class ApprovedSite:
    """One certificate of a site; ``fingerprint`` is that of its key, which a renewal keeps."""

    name: str
    serial: Annotated[str, Meta(pattern="^[0-9a-f]{16,40}$")]
    fingerprint: Annotated[str, Meta(pattern="^([0-9A-F]{2}:){31}[0-9A-F]{2}$")]
    expires: _Moment
    approved_at: _Moment
    revoked_at: _Moment | None = None

    @property
    def user(self) -> str:
        return user_of(self.name, self.serial)

    @property
    def revoked(self) -> bool:
        return self.revoked_at is not None

    def usable(self, now: datetime) -> bool:
        """Whether its holder may connect."""
        return not self.revoked and now < self.expires


def approvals_of(folder: Path, name: str) -> list[ApprovedSite]:
    """All certificates of a site, oldest first."""
    path = folder / "sites" / f"{check_name(name)}.json"
    if not path.exists():
        return []
    fields = ("name", "certificates")
    table = read_fields(path, format=APPROVALS_FORMAT, what="a list of certificates", fields=fields)
    try:
        lines = table["certificates"]
        if table["name"] != name or not isinstance(lines, list) or not lines or any(len(each) != 5 for each in lines):
            raise ValueError(name)
        return [convert({**line, "name": name}, ApprovedSite) for line in lines]
    except (TypeError, ValueError, ValidationError):
        raise StudyError(
            f"{path}: damaged; it lists who may connect. Restore it from a backup, or delete it and approve "
            f"{name} again with a new key"
        ) from None


def all_approvals(folder: Path) -> list[ApprovedSite]:
    """All certificates of all sites; a damaged file is an error, because it may contain a revocation."""
    names = sorted(path.stem for path in (folder / "sites").glob("*.json") if not path.name.startswith("."))
    return [each for name in names for each in approvals_of(folder, name)]


def write_approvals(folder: Path, approvals: list[ApprovedSite]) -> None:
    name = approvals[0].name
    lines = [{key: value for key, value in vars(each).items() if key != "name"} for each in approvals]
    table = {"format": APPROVALS_FORMAT, "name": name, "certificates": lines}
    text = json.dumps(table, indent=2, default=datetime.isoformat)
    write_private(folder / "sites" / f"{name}.json", f"{text}\n".encode())


YEAR = 397
"""Default validity of certificates in days: a year and a month."""

_RENEW_BEFORE = timedelta(days=30)
OWN_CERTIFICATES = ("server", "aggregator")
"""The certificates of the broker, and of the aggregator's own connection."""


@dataclass(frozen=True)
class Authority:
    """The certificate authority in an aggregator's folder."""

    folder: Path
    settings: Settings
    certificate: x509.Certificate

    @classmethod
    def create(
        cls, folder: Path, *, hosts: Sequence[str], port: int, listen: str | None = None,
        days: int = 3650, now: datetime | None = None,
    ) -> Authority:  # fmt: skip
        """Create an authority in a new or empty folder, valid for ``days``."""
        folder, settings = folder.absolute(), settings_of(hosts, port, listen)
        now, key = forms.now_or(now), forms.new_key()
        certificate = forms.authority_certificate(key, days=_days(days), now=now)
        files = {"authority/ca.pem": forms.pem(certificate), "authority/ca.key": forms.key_pem(key)}
        for name in OWN_CERTIFICATES:
            files |= _certified((certificate, key), settings, now, name)
        _create_folder(folder, settings, files)
        return cls(folder, settings, certificate)

    @classmethod
    def open(cls, folder: Path, *, now: datetime | None = None) -> Authority:
        """Open the authority of a folder; its keys must be private and its certificate valid."""
        folder = folder.absolute()
        settings = read_settings(folder)
        for name in ("authority/ca.key", "server.key", "aggregator.key"):
            check_private(folder / name)
        path = folder / "authority" / "ca.pem"
        certificate = forms.read_certificate(read_short(path))
        if certificate is None or not forms.is_authority(certificate):
            raise StudyError(f"{path}: damaged, or not the certificate of an authority")
        if forms.now_or(now) >= certificate.not_valid_after_utc:
            raise DpadmmError(
                f"{folder}: the authority expired on {certificate.not_valid_after_utc:%Y-%m-%d}: create a "
                "new one with dpadmm aggregator init in another folder, and invite the sites again"
            )
        authority = cls(folder, settings, certificate)
        authority._signer()
        return authority

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, which sites compare before they join."""
        return forms.fingerprint_of(self.certificate)

    @property
    def url(self) -> str:
        """The address to which sites connect."""
        return url_of(self.settings.hosts[0], self.settings.port)

    def own_url(self, port: int | None = None) -> str:
        """The address to which the aggregator itself connects."""
        return url_of(self.settings.own_host, port or self.settings.port)

    def client_context(self) -> ssl.SSLContext:
        self.renew_certificates()
        files = ("aggregator.key", "aggregator.pem", "authority/ca.pem")
        return client_context(*(self.folder / name for name in files))

    def approve(self, request: Request, *, days: int = YEAR, now: datetime | None = None) -> Invitation:
        """Certify the key of a site; compare its fingerprint with the site's owner first.

        A name in use can be renewed for the same key, or given to a new key after :meth:`revoke`. A revoked
        key is never certified again, because others may have it.
        """
        now, name, fingerprint = forms.now_or(now), check_name(request.name), request.fingerprint
        serial = forms.new_serial()
        certificate = forms.leaf_certificate(
            self._signer(), request.public_key, name=name,
            names=[x509.RFC822Name(user_of(name, f"{serial:x}"))],
            serial=serial, days=_days(days), now=now,
        )  # fmt: skip
        approval = ApprovedSite(
            name=name, serial=f"{serial:x}", fingerprint=fingerprint,
            expires=certificate.not_valid_after_utc, approved_at=now,
        )  # fmt: skip
        with self._lock():
            before = approvals_of(self.folder, name)
            if any(each.revoked and each.fingerprint == fingerprint for each in all_approvals(self.folder)):
                raise StudyError(
                    f"the key in this request was revoked and cannot be certified again: {name} must move "
                    "its network folder away and create a new key with dpadmm agent request"
                )
            if any(each.usable(now) and each.fingerprint != fingerprint for each in before):
                raise StudyError(
                    f"{name} has a certificate for another key: if this request is really theirs, revoke the "
                    f"old one first (dpadmm aggregator revoke {name}), or let them choose another name"
                )
            # without expired ones, so that files stay short over years of renewals
            kept = [each for each in before if each.revoked or now < each.expires]
            write_approvals(self.folder, [*kept, approval])
        pems = (forms.pem(each).decode("ascii") for each in (self.certificate, certificate))
        return Invitation(name, self.url, *pems)

    def revoke(self, name: str, *, now: datetime | None = None) -> None:
        """Revoke all certificates of a site; the broker closes its connections at the next reload."""
        with self._lock():
            before = approvals_of(self.folder, name)
            if not before:
                known = ", ".join(each.name for each in self.sites()) or "none yet"
                raise StudyError(f"{name} is not a site of this aggregator; its sites: {known}")
            at = forms.now_or(now)
            revoked = [each if each.revoked else replace(each, revoked_at=at) for each in before]
            write_approvals(self.folder, revoked)

    def sites(self) -> list[ApprovedSite]:
        """The latest certificate of every site."""
        return list({each.name: each for each in all_approvals(self.folder)}.values())

    def users(self, *, now: datetime | None = None) -> list[ApprovedSite]:
        """All certificates that may connect; a renewed site has two until the older one expires."""
        now = forms.now_or(now)
        return [each for each in all_approvals(self.folder) if each.usable(now)]

    def renew_certificates(self, *, now: datetime | None = None) -> bool:
        """Renew certificates of broker and aggregator that expire soon, or after hosts changed."""
        now, files = forms.now_or(now), dict[str, bytes]()
        for name in OWN_CERTIFICATES:
            if not self._is_current(f"{name}.pem", now, _names(self.settings, name)):
                files |= _certified(self._signer(), self.settings, now, name)
        with self._lock():
            for name, data in files.items():
                write_private(self.folder / name, data)
        return bool(files)

    def _is_current(self, name: str, now: datetime, names: Sequence[x509.GeneralName]) -> bool:
        path = self.folder / name
        certificate = forms.read_certificate(read_short(path)) if path.exists() else None
        if certificate is None or not forms.signed_by(certificate, self.certificate):
            return False
        key = forms.read_key(read_short(path.with_suffix(".key")))
        if key is None or key.public_key() != certificate.public_key():
            return False
        end = min(now + _RENEW_BEFORE, self.certificate.not_valid_after_utc)
        return certificate.not_valid_after_utc >= end and forms.names_in(certificate) == list(names)

    def _signer(self) -> tuple[x509.Certificate, forms.Key]:
        path = self.folder / "authority" / "ca.key"
        check_private(path)
        key = forms.read_key(read_short(path))
        if key is None or key.public_key() != self.certificate.public_key():
            raise StudyError(f"{path}: damaged, or not the key of ca.pem beside it: restore it from a backup")
        return self.certificate, key

    def _lock(self) -> AbstractContextManager[None]:
        return private_files.exclusive_lock(self.folder / "authority" / "lock")


def _certified(
    signer: tuple[x509.Certificate, forms.Key], settings: Settings, now: datetime, file: str
) -> dict[str, bytes]:
    """A new key and certificate for the broker (``server``) or for the aggregator's own connection."""
    key, server = forms.new_key(), file == "server"
    certificate = forms.leaf_certificate(
        signer, key.public_key(), name="dpadmm broker" if server else AGGREGATOR,
        names=_names(settings, file),
        serial=forms.new_serial(), days=YEAR, now=now, server=server,
    )  # fmt: skip
    return {f"{file}.key": forms.key_pem(key), f"{file}.pem": forms.pem(certificate)}


def _names(settings: Settings, file: str) -> list[x509.GeneralName]:
    if file == "aggregator":
        return [x509.RFC822Name(AGGREGATOR_USER)]
    return forms.broker_names(list(dict.fromkeys([*settings.hosts, settings.own_host])))


def _days(days: int) -> int:
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 7300:
        raise StudyError(f"days: {str(days)[:20]} is not a whole number from 1 to 7300")
    return days
