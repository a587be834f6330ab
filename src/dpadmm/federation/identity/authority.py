"""The aggregator's folder and its certificate authority: settings, approved sites, and certificates.

The authority certifies the broker, the aggregator and approved sites; or an organisation's own CA does, whose key is
not here. ``sites/NAME.json`` lists the certificates of a site, and which of them were revoked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec import Meta, ValidationError, convert

from dpadmm.errors import ServiceUnavailableError, StudyError
from dpadmm.federation.identity import certificates as forms
from dpadmm.federation.identity import private_files
from dpadmm.federation.identity.certificates import x509
from dpadmm.federation.identity.joining import Invitation, Request, client_context
from dpadmm.federation.identity.private_files import check_private, read_fields, read_short, write_private
from dpadmm.federation.protocol import AGGREGATOR, AGGREGATOR_USER, check_name, user_of
from dpadmm.files.toml import read_toml
from dpadmm.sites.addresses import check_urls
from dpadmm.sites.notify_settings import NotifySettings, notify_settings

FORMAT = "dpadmm-aggregator/1"
LOOPBACK = "127.0.0.1"
_LABEL = re.compile("(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_TEXT = """\
# The settings of a dpadmm server. This folder contains its private keys: keep it secret.
format = "{format}"

# The address on which the broker listens; 0.0.0.0 means all addresses of this machine.
listen = "{listen}"
port = {port}

# The host names and addresses under which sites reach this machine; invitations contain the first. After a
# change, the broker gets a new certificate when it starts. If the first one changed, sites need a new
# invitation (dpadmm server invite).
hosts = [{hosts}]

# Also accept WebSocket connections on this port, for sites whose firewalls let nothing but HTTPS out.
{websocket}

# An existing NATS cluster instead of the built-in broker: the addresses for sites and for serve, which use the next
# one when one fails. See docs/how-to/networks-and-services.md for its configuration.
{brokers}

# Who signs certificates: "built-in", with authority/ca.key, or "external": your own CA, whose certificate is
# authority/ca.pem.
authority = "{authority}"

# A program that receives events (studies and alarms) as JSON on its standard input: docs/how-to/notifications.md
# [notify]
# command = ["/usr/local/bin/notify"]
"""
_NO_WEBSOCKET, _NO_BROKERS = "# websocket_port = 443", '# brokers = ["tls://nats-1.example.org:4222"]'


@dataclass(frozen=True)
class ServerSettings:
    """The contents of ``aggregator.toml``."""

    listen: str
    port: int
    hosts: tuple[str, ...]
    websocket_port: int | None = None
    brokers: tuple[str, ...] = ()
    external: bool = False
    """Whether certificates come from an organisation's own CA."""
    notify: NotifySettings | None = None
    """The program that receives events; None: there is none."""

    @property
    def urls(self) -> str:
        """The addresses to which sites connect, separated by commas."""
        own = [url_of(self.hosts[0], self.port)]
        if self.websocket_port is not None:
            own.append(url_of(self.hosts[0], self.websocket_port, "wss"))
        return ",".join(self.brokers or own)

    @property
    def own_host(self) -> str:
        """Where the aggregator connects to its broker; a CA certifies the names that it knows, not 127.0.0.1."""
        if self.external:
            return self.hosts[0]
        address = ip_address(self.listen)
        if address.is_unspecified:
            return LOOPBACK if address.version == 4 else "::1"
        return self.listen


def url_of(host: str, port: int, scheme: str = "tls") -> str:
    """``tls://host:port``, or ``tls://[2001:db8::1]:4222``."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def settings_of(
    hosts: Sequence[str], port: int, listen: str | None = None, *, websocket_port: int | None = None,
    brokers: Sequence[str] = (), authority: str = "built-in",
) -> ServerSettings:  # fmt: skip
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
    for what, number in (("port", port), ("websocket_port", websocket_port)):
        if number is None and what != "port":
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535:
            raise StudyError(f"{what}: {str(number)[:20]!r} is not a port number from 1 to 65535")
    if websocket_port == port:
        raise StudyError("websocket_port: must differ from port")
    if authority not in ("built-in", "external"):
        raise StudyError(f'authority: must be "built-in" or "external", not {str(authority)[:40]!r}')
    if isinstance(brokers, str) or not all(isinstance(each, str) and "," not in each for each in brokers):
        raise StudyError('brokers: must be a list of addresses, such as ["tls://host:port"]')
    if brokers:
        check_urls(",".join(brokers))
    return ServerSettings(listen, port, checked, websocket_port, tuple(brokers), authority == "external")


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


def read_settings(folder: Path) -> ServerSettings:
    """The settings of a folder that ``dpadmm server init`` created."""
    path = folder / "aggregator.toml"
    if not path.exists():
        raise StudyError(
            f"{folder}: not the folder of an aggregator; check --folder, or create a new aggregator with "
            "dpadmm server init"
        )
    private_files.check_unchanged_by_others(folder)
    private_files.check_unchanged_by_others(path)
    table = read_toml(path)
    if table.get("format") != FORMAT:
        raise StudyError(f'{path}: format must be "{FORMAT}"')
    optional = {key: table[key] for key in ("websocket_port", "brokers", "authority") if key in table}
    needed = table.keys() - optional.keys() - {"notify"}
    if needed != {"format", "listen", "port", "hosts"} or not isinstance(table["hosts"], list):
        raise StudyError(
            f"{path}: must have format, listen, port and a list of hosts, may have websocket_port, brokers, "
            "authority and [notify], and nothing else"
        )
    try:
        settings = settings_of(table["hosts"], table["port"], table["listen"], **optional)
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    if "notify" not in table:
        return settings
    if not isinstance(table["notify"], dict):
        raise StudyError(f"{path}: [notify] must be a section with command and, if you like, delay")
    return replace(settings, notify=notify_settings(table["notify"], str(path)))


def _create_folder(folder: Path, settings: ServerSettings, files: dict[str, bytes]) -> None:
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
        hosts, brokers = (", ".join(f'"{each}"' for each in all) for all in (settings.hosts, settings.brokers))
        text = _TEXT.format(
            format=FORMAT,
            listen=settings.listen,
            port=settings.port,
            hosts=hosts,
            websocket=f"websocket_port = {settings.websocket_port}" if settings.websocket_port else _NO_WEBSOCKET,
            brokers=f"brokers = [{brokers}]" if brokers else _NO_BROKERS,
            authority="external" if settings.external else "built-in",
        )
        for name, data in (*files.items(), ("aggregator.toml", text.encode())):
            write_private(folder / name, data)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if not new:
            folder.mkdir(mode=0o700, exist_ok=True)
        raise


APPROVALS_FORMAT = "dpadmm-approvals/1"
_Moment = Annotated[datetime, Meta(tz=True)]
_IDENTITY = r"^[A-Za-z0-9.@_+-]{1,254}$"
_LINE = {"serial", "fingerprint", "expires", "approved_at", "revoked_at"}


@dataclass(frozen=True, kw_only=True)
class ApprovedSite:
    """One certificate of a site; ``fingerprint`` is that of its key, which a renewal keeps."""

    name: str
    serial: Annotated[str, Meta(pattern="^[0-9a-f]{1,40}$")]
    fingerprint: Annotated[str, Meta(pattern="^([0-9A-F]{2}:){31}[0-9A-F]{2}$")]
    expires: _Moment
    approved_at: _Moment
    revoked_at: _Moment | None = None
    identity: Annotated[str, Meta(pattern=_IDENTITY)] | None = None
    """The e-mail or DNS name in a certificate of an external CA."""

    @property
    def user(self) -> str:
        return self.identity or user_of(self.name, self.serial)

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
        if table["name"] != name or not isinstance(lines, list) or not lines:
            raise ValueError(name)
        if any(line.keys() - {"identity"} != _LINE for line in lines):
            raise ValueError(name)
        return [convert({**line, "name": name}, ApprovedSite) for line in lines]
    except (AttributeError, TypeError, ValueError, ValidationError):
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
    lines = [asdict(each) for each in approvals]
    for line in lines:
        del line["name"]
        if line["identity"] is None:
            del line["identity"]
    table = {"format": APPROVALS_FORMAT, "name": name, "certificates": lines}
    text = json.dumps(table, indent=2, default=datetime.isoformat)
    write_private(folder / "sites" / f"{name}.json", f"{text}\n".encode())


YEAR = 397
"""Default validity of certificates in days: a year and a month."""

_RENEW_BEFORE = timedelta(days=30)
OWN_CERTIFICATES = ("server", "aggregator")
"""The certificates of the broker, and of the aggregator's own connection."""

_WHOSE = {"server": "the broker", "aggregator": "the aggregator"}


@dataclass(frozen=True)
class Authority:
    """The certificate authority of an aggregator's folder; with an external one, its key is elsewhere."""

    folder: Path
    settings: ServerSettings
    certificate: x509.Certificate

    @classmethod
    def create(
        cls, folder: Path, *, hosts: Sequence[str], port: int, listen: str | None = None,
        websocket_port: int | None = None, brokers: Sequence[str] = (), ca: bytes | None = None,
        days: int = 3650, now: datetime | None = None,
    ) -> Authority:  # fmt: skip
        """Create an authority in a new or empty folder, valid for ``days``.

        With ``ca``, the certificate of an organisation's own CA, there are keys and requests for its signature instead;
        see :meth:`install`.
        """
        kind = "built-in" if ca is None else "external"
        folder = folder.absolute()
        settings = settings_of(hosts, port, listen, websocket_port=websocket_port, brokers=brokers, authority=kind)
        now, files = forms.now_or(now), dict[str, bytes]()
        if ca is None:
            key = forms.new_key()
            certificate = forms.authority_certificate(key, days=_days(days), now=now)
            files["authority/ca.key"] = forms.key_pem(key)
            for name in OWN_CERTIFICATES:
                files |= _certified((certificate, key), settings, now, name)
        else:
            found = forms.read_chain(ca)
            if len(found) != 1 or not forms.is_authority(found[0]):
                raise StudyError("the CA's file must have one certificate, in PEM format, that may sign others")
            certificate = found[0]
            forms.check_dates(certificate, now=now, whose="the CA")
            for name in OWN_CERTIFICATES:
                key = forms.new_key()
                csr = forms.new_request(
                    key, settings.hosts[0] if name == "server" else AGGREGATOR, _names(settings, name)
                )
                files |= {f"{name}.key": forms.key_pem(key), f"{name}.csr": forms.pem(csr)}
        _create_folder(folder, settings, {"authority/ca.pem": forms.pem(certificate), **files})
        return cls(folder, settings, certificate)

    @classmethod
    def open(cls, folder: Path, *, now: datetime | None = None) -> Authority:
        """Open the authority of a folder; its keys must be private and its certificate valid."""
        folder = folder.absolute()
        settings = read_settings(folder)
        for name in ("server.key", "aggregator.key"):
            check_private(folder / name)
        path = folder / "authority" / "ca.pem"
        found = forms.read_chain(read_short(path))
        if len(found) != 1 or not forms.is_authority(found[0]):
            raise StudyError(f"{path}: damaged, or not the certificate of an authority")
        authority = cls(folder, settings, found[0])
        if not settings.external:
            authority._signer()
        authority._check_clock(forms.now_or(now))
        return authority

    def _check_clock(self, now: datetime) -> None:
        """Nothing is signed, renewed or started while the clock is outside of the authority's time."""
        first, last = self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc
        clock = f"the clock of this machine shows {now:%Y-%m-%d %H:%M} UTC"
        new = "create a new one with dpadmm server init in another folder, and invite the sites again"
        if now >= last:
            text = f"the authority expired on {last:%Y-%m-%d} ({clock}): correct the clock if it is wrong; else {new}"
        elif now < first:
            text = (
                f"the authority is valid only from {first:%Y-%m-%d %H:%M} UTC ({clock}): correct the clock; if it was"
            )
            text += f" wrong when the authority was created, {new}"
        else:
            return
        raise ServiceUnavailableError(f"{self.folder}: {text}")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, which sites compare before they join."""
        return forms.fingerprint_of(self.certificate)

    @property
    def url(self) -> str:
        """The addresses to which sites connect, separated by commas."""
        return self.settings.urls

    def own_url(self, port: int | None = None) -> str:
        """The address to which the aggregator itself connects."""
        return url_of(self.settings.own_host, port or self.settings.port)

    def client_context(self) -> ssl.SSLContext:
        self.renew_certificates()
        files = ("aggregator.key", "aggregator.pem", "authority/ca.pem")
        return client_context(*(self.folder / name for name in files))

    def users(self, *, now: datetime | None = None) -> list[ApprovedSite]:
        """All certificates that may connect; a renewed site has two until the older one expires."""
        now = forms.now_or(now)
        return [each for each in all_approvals(self.folder) if each.usable(now)]

    @property
    def aggregator_user(self) -> str:
        """The broker's user for the aggregator's own connection."""
        if not self.settings.external:
            return AGGREGATOR_USER
        return forms.identity_in(self._installed("aggregator")[0])

    def own_certificates(self) -> dict[str, datetime]:
        """When certificates expire that nobody here can renew."""
        if not self.settings.external:
            return {}
        there = [name for name in OWN_CERTIFICATES if (self.folder / f"{name}.pem").exists()]
        return {_WHOSE[name]: self._installed(name)[0].not_valid_after_utc for name in there}

    def _installed(self, name: str) -> list[x509.Certificate]:
        """The certificate of the broker or the aggregator that the external CA signed, and intermediate ones."""
        path = self.folder / f"{name}.pem"
        if not path.exists():
            raise StudyError(
                f"{path}: no certificate yet: have {path.with_suffix('.csr')} signed by your CA, then run "
                f"dpadmm server init {self.folder} --certificate FILE"
            )
        if not (chain := forms.read_chain(read_short(path))):
            raise StudyError(f"{path}: damaged; install it again: dpadmm server init {self.folder} --certificate FILE")
        return chain

    def install(self, data: bytes, *, now: datetime | None = None) -> str:
        """Store a certificate that the external CA signed for one of the two requests; returns whose it is.

        The running broker uses it for new connections; those that exist continue.
        """
        if not self.settings.external:
            raise StudyError("this aggregator has a built-in authority, which renews its certificates itself")
        chain = forms.read_chain(data)
        if not chain:
            raise StudyError("damaged, or not a certificate in PEM format")
        keys = {name: forms.read_key(read_short(self.folder / f"{name}.key")) for name in OWN_CERTIFICATES}
        names = [name for name, key in keys.items() if key and key.public_key() == chain[0].public_key()]
        if not names:
            raise StudyError("its first certificate is for another key than those of server.csr and aggregator.csr")
        (name,) = names
        forms.check_signatures(chain, self.certificate)
        for each in chain:
            forms.check_dates(each, now=forms.now_or(now), whose=_WHOSE[name])
        if name == "server":
            missing = [str(each.value) for each in _names(self.settings, name) if each not in forms.names_in(chain[0])]
            if missing or not forms.may_be(chain[0], server=True):
                what = f"is not for {', '.join(missing)}" if missing else "may not be used by a server"
                raise StudyError(f"the certificate {what}: server.csr asks for it")
        else:
            self._check_identity(forms.identity_in(chain[0]), AGGREGATOR)
        with self._lock():
            write_private(self.folder / f"{name}.pem", b"".join(map(forms.pem, chain)))
        return _WHOSE[name]

    def _check_identity(self, identity: str, name: str) -> None:
        """Refuse a certificate of an external CA whose holder the broker would take for somebody else."""
        if not re.fullmatch(_IDENTITY, identity):
            raise StudyError(
                "the certificate must be for clients, with one e-mail, or without any and with one DNS name, of "
                "letters, digits and . @ _ + -"
            )
        if identity.endswith("@dpadmm") and name != AGGREGATOR:
            raise StudyError(f"{identity} is a name of the built-in authority: let your CA choose another")
        for each in all_approvals(self.folder):
            if each.user == identity and (each.revoked or each.name != name):
                why = "was revoked" if each.revoked else f"is that of {each.name}"
                raise StudyError(f"the name {identity} in the certificate {why}: let your CA choose another")
        if name != AGGREGATOR and identity == self.aggregator_user:
            raise StudyError(f"the name {identity} in the certificate is the aggregator's: let your CA choose another")

    def approve(self, request: Request, *, days: int = YEAR, now: datetime | None = None) -> Invitation:
        """Certify the key of a site; compare its fingerprint with the site's owner first.

        A name in use can be renewed for the same key, or given to a new key after :meth:`revoke`. A revoked
        key is never certified again, because others may have it.
        """
        now, name, fingerprint = forms.now_or(now), check_name(request.name), request.fingerprint
        chain = (
            self._certified_elsewhere(request, now) if self.settings.external else [self._certify(request, days, now)]
        )
        certificate = chain[0]
        approval = ApprovedSite(
            name=name, serial=f"{certificate.serial_number:x}", fingerprint=fingerprint,
            expires=min(each.not_valid_after_utc for each in chain), approved_at=now,
            identity=forms.identity_in(certificate) if self.settings.external else None,
        )  # fmt: skip
        with self._lock():
            if approval.identity is not None:
                self._check_identity(approval.identity, name)
            before = approvals_of(self.folder, name)
            if any(each.revoked and each.fingerprint == fingerprint for each in all_approvals(self.folder)):
                raise StudyError(
                    f"the key in this request was revoked and cannot be certified again: {name} must move "
                    "its network folder away and create a new key with dpadmm site join --request NAME"
                )
            if any(each.usable(now) and each.fingerprint != fingerprint for each in before):
                raise StudyError(
                    f"{name} has a certificate for another key: if this request is really theirs, revoke the "
                    f"old one first (dpadmm server revoke {name} --folder {self.folder}), or let them choose "
                    "another name"
                )
            # without expired ones, so that files stay short over years of renewals
            kept = [each for each in before if each.revoked or now < each.expires]
            write_approvals(self.folder, [*kept, approval])
        pems = (forms.pem(self.certificate), b"".join(map(forms.pem, chain)))
        return Invitation(name, self.url, *(each.decode("ascii") for each in pems))

    def _certify(self, request: Request, days: int, now: datetime) -> x509.Certificate:
        self._check_clock(now)
        serial = forms.new_serial()
        return forms.leaf_certificate(
            self._signer(), request.public_key, name=request.name,
            names=[x509.RFC822Name(user_of(request.name, f"{serial:x}"))],
            serial=serial, days=_days(days), now=now,
        )  # fmt: skip

    def _certified_elsewhere(self, request: Request, now: datetime) -> list[x509.Certificate]:
        """The certificate in a request of a site with its own CA, and intermediate ones."""
        chain = forms.read_chain(request.chain_pem.encode("ascii"))
        if not chain:
            raise StudyError(
                f"the request has no certificate of your CA: {request.name} must have network/request.csr signed, "
                "and run dpadmm site join --request NAME --certificate FILE"
            )
        if chain[0].public_key() != request.public_key:
            raise StudyError("the certificate in the request is for another key")
        forms.check_signatures(chain, self.certificate)
        for each in chain:
            forms.check_dates(each, now=now, whose=request.name)
        return chain

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

    def renew_certificates(self, *, now: datetime | None = None) -> bool:
        """Renew certificates of broker and aggregator that expire soon, are not valid yet, or after hosts changed.

        Those of an external authority are checked only.
        """
        now, files = forms.now_or(now), dict[str, bytes]()
        self._check_clock(now)
        if self.settings.external:
            for name in OWN_CERTIFICATES:
                chain = self._installed(name)
                try:
                    forms.check_dates(chain[0], now=now, whose=_WHOSE[name])
                except StudyError as problem:  # no user error: a clock may be corrected
                    raise ServiceUnavailableError(f"{problem} (dpadmm server init --certificate FILE)") from None
            return False
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
        if now < certificate.not_valid_before_utc:  # it was made while the clock was ahead
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
    signer: tuple[x509.Certificate, forms.Key], settings: ServerSettings, now: datetime, file: str
) -> dict[str, bytes]:
    """A new key and certificate for the broker (``server``) or for the aggregator's own connection."""
    key, server = forms.new_key(), file == "server"
    certificate = forms.leaf_certificate(
        signer, key.public_key(), name="dpadmm broker" if server else AGGREGATOR,
        names=_names(settings, file),
        serial=forms.new_serial(), days=YEAR, now=now, server=server,
    )  # fmt: skip
    return {f"{file}.key": forms.key_pem(key), f"{file}.pem": forms.pem(certificate)}


def _names(settings: ServerSettings, file: str) -> list[x509.GeneralName]:
    if file == "aggregator":
        return [x509.RFC822Name(AGGREGATOR_USER)]
    return forms.broker_names(list(dict.fromkeys([*settings.hosts, settings.own_host])))


def _days(days: int) -> int:
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 7300:
        raise StudyError(f"days: {str(days)[:20]} is not a whole number from 1 to 7300")
    return days
