"""The certificate authority of a server's folder.

It certifies the broker, the server and approved sites. An organisation's own CA may do so in its place; its key is
then elsewhere.
"""

from __future__ import annotations

import hmac
import re
import ssl
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from dpadmm.errors import ServiceUnavailableError, StudyError
from dpadmm.federation.identity import certificates, private_files
from dpadmm.federation.identity.approvals import (
    IDENTITY,
    ApprovedSite,
    SiteRecord,
    StoredToken,
    all_approvals,
    all_records,
    record_of,
    write_record,
)
from dpadmm.federation.identity.certificates import x509
from dpadmm.federation.identity.joining import Invitation, Request, client_context
from dpadmm.federation.identity.private_files import check_private, read_short, write_private
from dpadmm.federation.identity.settings import ServerSettings, create_folder, read_settings, settings_of, url_of
from dpadmm.federation.identity.tokens import TOKEN_DAYS, JoinToken, hash_of, new_token, proof_of
from dpadmm.federation.protocol import SERVER, SERVER_USER, check_name, user_of

YEAR = 397
"""Default validity of certificates in days: a year and a month."""

_RENEW_BEFORE = timedelta(days=30)
OWN_CERTIFICATES = {"broker": "the broker", "server": "the server"}
"""The certificates of the broker and of the server's own connection, by file, with their holders."""


class TokenRefusedError(StudyError):
    """A join token does not let this key join; ``code`` is ``unknown`` unless the secret of the token was proved."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Authority:
    """The certificate authority of a server's folder. The key of an external one is elsewhere."""

    folder: Path
    settings: ServerSettings
    certificate: x509.Certificate

    @classmethod
    def create(
        cls, folder: Path, *, hosts: Sequence[str], port: int, listen: str | None = None,
        websocket_port: int | None = None, web_port: int | None = None, brokers: Sequence[str] = (),
        ca: bytes | None = None, days: int = 3650, now: datetime | None = None,
    ) -> Authority:  # fmt: skip
        """Create an authority in a new or empty folder, valid for ``days``.

        With ``ca``, the certificate of an organisation's own CA, the folder gets keys and requests for its signature
        instead; see :meth:`install`.
        """
        kind = "built-in" if ca is None else "external"
        folder = folder.absolute()
        settings = settings_of(
            hosts, port, listen, websocket_port=websocket_port, brokers=brokers, authority=kind, web_port=web_port
        )
        now, files = certificates.now_or(now), dict[str, bytes]()
        if ca is None:
            key = certificates.new_key()
            certificate = certificates.authority_certificate(key, days=_days(days), now=now)
            files["authority/ca.key"] = certificates.key_pem(key)
            for name in OWN_CERTIFICATES:
                files |= _certified((certificate, key), settings, now, name)
        else:
            problem = "the CA's file must have one certificate, in PEM format, that may sign others"
            certificate = _only_authority(ca, problem)
            certificates.check_dates(certificate, now=now, holder="the CA")
            for name in OWN_CERTIFICATES:
                key = certificates.new_key()
                subject = settings.hosts[0] if name == "broker" else SERVER
                csr = certificates.new_request(key, subject, _names(settings, name))
                files |= {f"{name}.key": certificates.key_pem(key), f"{name}.csr": certificates.pem(csr)}
        create_folder(folder, settings, {"authority/ca.pem": certificates.pem(certificate), **files})
        return cls(folder, settings, certificate)

    @classmethod
    def open(cls, folder: Path, *, now: datetime | None = None) -> Authority:
        """Open the authority of a folder. Its keys must be private and its certificate valid."""
        folder = folder.absolute()
        settings = read_settings(folder)
        for name in OWN_CERTIFICATES:
            check_private(folder / f"{name}.key")
        path = folder / "authority" / "ca.pem"
        certificate = _only_authority(read_short(path), f"{path}: damaged, or not the certificate of an authority")
        authority = cls(folder, settings, certificate)
        if not settings.external:
            authority._signer()
        authority._check_clock(certificates.now_or(now))
        return authority

    def _check_clock(self, now: datetime) -> None:
        """Raise ``ServiceUnavailableError`` if the authority is not valid now: nothing is signed or started then."""
        first, last = self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc
        clock = f"the clock of this machine shows {now:%Y-%m-%d %H:%M} UTC"
        new = "create a new one with dpadmm server init in another folder, and invite the sites again"
        if now >= last:
            text = f"the authority expired on {last:%Y-%m-%d} ({clock}): correct the clock if it is wrong; else {new}"
        elif now < first:
            text = f"the authority is valid only from {first:%Y-%m-%d %H:%M} UTC ({clock}): correct the clock; if it "
            text += f"was wrong when the authority was created, {new}"
        else:
            return
        raise ServiceUnavailableError(f"{self.folder}: {text}")

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, which sites compare before they join."""
        return certificates.fingerprint_of(self.certificate)

    @property
    def url(self) -> str:
        """The addresses to which sites connect, separated by commas."""
        return self.settings.urls

    def own_url(self, port: int | None = None) -> str:
        """Return the address to which the server itself connects."""
        return url_of(self.settings.own_host, port or self.settings.port)

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context of the server's own connection."""
        self.renew_certificates()
        files = ("server.key", "server.pem", "authority/ca.pem")
        return client_context(*(self.folder / name for name in files))

    def users(self, *, now: datetime | None = None) -> list[ApprovedSite]:
        """Return all certificates that may connect. A renewed site has two until the older one expires."""
        now = certificates.now_or(now)
        return [approval for approval in all_approvals(self.folder) if approval.usable(now)]

    @property
    def server_user(self) -> str:
        """The broker's user for the server's own connection."""
        if not self.settings.external:
            return SERVER_USER
        return certificates.identity_in(self._installed("server")[0])

    def own_certificates(self) -> dict[str, datetime]:
        """Return the expiry dates of the server's certificates that an external CA must renew, by holder."""
        if not self.settings.external:
            return {}
        installed = [name for name in OWN_CERTIFICATES if (self.folder / f"{name}.pem").exists()]
        return {OWN_CERTIFICATES[name]: self._installed(name)[0].not_valid_after_utc for name in installed}

    def _installed(self, name: str) -> list[x509.Certificate]:
        """Return a certificate that the external CA signed for the server, and intermediate ones."""
        path = self.folder / f"{name}.pem"
        install = f"dpadmm server init {self.folder} --certificate FILE"
        if not path.exists():
            csr = path.with_suffix(".csr")
            raise StudyError(f"{path}: no certificate yet: have {csr} signed by your CA, then run {install}")
        if not (chain := certificates.read_chain(read_short(path))):
            raise StudyError(f"{path}: damaged; install it again: {install}")
        return chain

    def install(self, data: bytes, *, now: datetime | None = None) -> str:
        """Store a certificate that the external CA signed for one of the two requests; return its holder.

        The running broker uses it for new connections; existing ones continue.
        """
        if not self.settings.external:
            raise StudyError("this server has a built-in authority, which renews its certificates itself")
        chain = certificates.read_chain(data)
        if not chain:
            raise StudyError("damaged, or not a certificate in PEM format")
        keys = {name: certificates.read_key(read_short(self.folder / f"{name}.key")) for name in OWN_CERTIFICATES}
        names = [name for name, key in keys.items() if key and key.public_key() == chain[0].public_key()]
        if not names:
            raise StudyError("its first certificate is for another key than those of broker.csr and server.csr")
        (name,) = names
        self._check_chain(chain, OWN_CERTIFICATES[name], certificates.now_or(now))
        if name == "broker":
            in_certificate = certificates.names_in(chain[0])
            missing = [str(item.value) for item in _names(self.settings, name) if item not in in_certificate]
            if missing or not certificates.may_be(chain[0], server=True):
                problem = f"is not for {', '.join(missing)}" if missing else "may not be used by a server"
                raise StudyError(f"the certificate {problem}: broker.csr asks for it")
        else:
            self._check_identity(certificates.identity_in(chain[0]), SERVER)
        with self._lock():
            write_private(self.folder / f"{name}.pem", b"".join(map(certificates.pem, chain)))
        return OWN_CERTIFICATES[name]

    def _check_chain(self, chain: Sequence[x509.Certificate], holder: str, now: datetime) -> None:
        certificates.check_signatures(chain, self.certificate)
        for certificate in chain:
            certificates.check_dates(certificate, now=now, holder=holder)

    def _check_identity(self, identity: str, name: str) -> None:
        """Raise ``StudyError`` if the broker would take the holder of an external CA's certificate for another user."""
        if not re.fullmatch(IDENTITY, identity):
            raise StudyError(
                "the certificate must be for clients, with one e-mail, or without any and with one DNS name, of "
                "letters, digits and . @ _ + -"
            )
        if identity.endswith("@dpadmm") and name != SERVER:
            raise StudyError(f"{identity} is a name of the built-in authority: let your CA choose another")
        for approval in all_approvals(self.folder):
            if approval.user == identity and (approval.revoked or approval.name != name):
                why = "was revoked" if approval.revoked else f"is that of {approval.name}"
                raise StudyError(f"the name {identity} in the certificate {why}: let your CA choose another")
        if name != SERVER and identity == self.server_user:
            raise StudyError(f"the name {identity} in the certificate is the server's: let your CA choose another")

    def approve(self, request: Request, *, days: int = YEAR, now: datetime | None = None) -> Invitation:
        """Certify the key of a site. Compare its fingerprint with the site's owner first.

        A name in use can be renewed for the same key, or given to a new key after :meth:`revoke`. A revoked
        key is never certified again, because it may be stolen.
        """
        now, name = certificates.now_or(now), check_name(request.name)
        with self._lock():
            record, invitation = self._approved(record_of(self.folder, name), request, days, now)
            write_record(self.folder, record)
        return invitation

    def _approved(
        self, record: SiteRecord, request: Request, days: int, now: datetime
    ) -> tuple[SiteRecord, Invitation]:
        """Return the record of a site with a new certificate, and the invitation with it. The caller has the lock."""
        name, fingerprint = record.name, request.fingerprint
        chain = self._chain_of(request, now) if self.settings.external else [self._certify(request, days, now)]
        certificate = chain[0]
        approval = ApprovedSite(
            name=name, serial=f"{certificate.serial_number:x}", fingerprint=fingerprint,
            expires=min(item.not_valid_after_utc for item in chain), approved_at=now,
            identity=certificates.identity_in(certificate) if self.settings.external else None,
        )  # fmt: skip
        if approval.identity is not None:
            self._check_identity(approval.identity, name)
        if any(item.revoked and item.fingerprint == fingerprint for item in all_approvals(self.folder)):
            raise StudyError(
                f"the key in this request was revoked and cannot be certified again: {name} must move "
                "its network folder away and join again, which creates a new key"
            )
        if any(item.usable(now) and item.fingerprint != fingerprint for item in record.certificates):
            raise StudyError(
                f"{name} has a certificate for another key: if this request is really theirs, revoke the "
                f"old one first (dpadmm server revoke {name} --folder {self.folder}), or let them choose "
                "another name"
            )
        # without expired ones, so that files stay short over years of renewals
        current = [item for item in record.certificates if item.revoked or now < item.expires]
        invitation = self._invitation(name, b"".join(map(certificates.pem, chain)).decode("ascii"))
        return replace(record, certificates=[*current, approval]), invitation

    def _invitation(self, name: str, chain_pem: str) -> Invitation:
        return Invitation(name, self.url, certificates.pem(self.certificate).decode("ascii"), chain_pem)

    def create_token(self, name: str, *, days: int = TOKEN_DAYS, now: datetime | None = None) -> JoinToken:
        """Create the join token of a site. It replaces an earlier one, which can no longer be used."""
        now = certificates.now_or(now)
        self._check_clock(now)
        digest = certificates.digest_of(self.certificate)
        urls = [url_of(host, self.settings.web_port, "https") for host in self.settings.hosts]
        token = new_token(check_name(name), urls, digest, days=days, now=now)
        stored = StoredToken(
            id=token.id, secret_hash=hash_of(token.secret).hex(), created_at=now, expires=token.expires
        )
        with self._lock():
            write_record(self.folder, replace(record_of(self.folder, name), token=stored))
        return token

    def withdraw_token(self, name: str, *, now: datetime | None = None) -> None:
        """Withdraw the open join token of a site."""
        now = certificates.now_or(now)
        with self._lock():
            record = record_of(self.folder, name)
            if record.token is None or not record.token.is_open(now):
                used = record.token is not None and record.token.used_at is not None
                revoke = f"; to exclude the site: dpadmm server revoke {name} --folder {self.folder}"
                raise StudyError(f"{name} has no open join token{' (it was used)' + revoke if used else ''}")
            write_record(self.folder, replace(record, token=replace(record.token, withdrawn_at=now)))

    def redeem(self, token_id: str, proof: str, request: Request, *, now: datetime | None = None) -> Invitation:
        """Certify the key of a site that proves its join token.

        The certificate and the use of the token are recorded in one durable write. If the answer is lost, the same
        key receives the same certificate again. Raises ``TokenRefusedError``.
        """
        now, key = certificates.now_or(now), request.public_key
        with self._lock():
            found = [record for record in all_records(self.folder) if record.token and record.token.id == token_id]
            record = found[0] if found else SiteRecord(request.name)
            token = record.token
            secret_hash = bytes.fromhex("00" * 32 if token is None else token.secret_hash)
            proved = hmac.compare_digest(proof_of(secret_hash, key, token_id), proof)
            if token is None or not proved or record.name != request.name:
                raise TokenRefusedError(
                    "unknown",
                    "the server does not know this join token: it was replaced by a newer one, or is from an earlier "
                    "state of the server; ask the study coordinators for a new one",
                )
            if token.used_at is not None:
                return self._repeated(record, token, request)
            if token.withdrawn_at is not None:
                raise TokenRefusedError("withdrawn", "the join token was withdrawn: ask the study coordinators")
            if now >= token.expires:
                raise TokenRefusedError(
                    "expired",
                    f"the join token expired at {token.expires:%Y-%m-%d %H:%M} UTC (the server's clock shows "
                    f"{now:%Y-%m-%d %H:%M} UTC): ask the study coordinators for a new one",
                )
            try:
                joined, invitation = self._approved(record, request, YEAR, now)
            except StudyError as problem:
                raise TokenRefusedError("refused", str(problem)) from None
            used = replace(token, used_at=now, fingerprint=request.fingerprint, certificate=invitation.certificate_pem)
            write_record(self.folder, replace(joined, token=used))
        return invitation

    def _repeated(self, record: SiteRecord, token: StoredToken, request: Request) -> Invitation:
        """Return the invitation that a used token gave, if this is the key that used it."""
        if token.fingerprint != request.fingerprint or token.certificate is None:
            at = "" if token.used_at is None else f" at {token.used_at:%Y-%m-%d %H:%M} UTC"
            raise TokenRefusedError(
                "used",
                f"the join token was used{at}, with another key: if that was not you, call the study coordinators now; "
                "else ask them for a new one",
            )
        if any(item.revoked and item.fingerprint == request.fingerprint for item in record.certificates):
            raise TokenRefusedError(
                "revoked", "the certificate that this join token gave was revoked: ask the study coordinators"
            )
        return self._invitation(record.name, token.certificate)

    def _certify(self, request: Request, days: int, now: datetime) -> x509.Certificate:
        self._check_clock(now)
        serial = certificates.new_serial()
        return certificates.leaf_certificate(
            self._signer(), request.public_key, name=request.name,
            names=[x509.RFC822Name(user_of(request.name, f"{serial:x}"))],
            serial=serial, days=_days(days), now=now,
        )  # fmt: skip

    def _chain_of(self, request: Request, now: datetime) -> list[x509.Certificate]:
        """Return the certificate in a request of a site with its own CA, and intermediate ones."""
        chain = certificates.read_chain(request.chain_pem.encode("ascii"))
        if not chain:
            raise StudyError(
                f"the request has no certificate of your CA: {request.name} must have network/request.csr signed, "
                "and run dpadmm site join --manual NAME --certificate FILE"
            )
        if chain[0].public_key() != request.public_key:
            raise StudyError("the certificate in the request is for another key")
        self._check_chain(chain, request.name, now)
        return chain

    def revoke(self, name: str, *, now: datetime | None = None) -> None:
        """Revoke all certificates of a site. The broker closes its connections at the next reload."""
        with self._lock():
            record = record_of(self.folder, name)
            if not record.certificates:
                approved = ", ".join(site.name for site in self.sites()) or "none yet"
                raise StudyError(f"{name} is not a site of this server; its sites: {approved}")
            at = certificates.now_or(now)
            revoked = [item if item.revoked else replace(item, revoked_at=at) for item in record.certificates]
            token = record.token
            if token is not None and token.is_open(at):
                token = replace(token, withdrawn_at=at)
            write_record(self.folder, replace(record, certificates=revoked, token=token))

    def invited(self, *, now: datetime | None = None) -> dict[str, datetime]:
        """Return the names with an open join token, and when it expires."""
        now = certificates.now_or(now)
        tokens = ((record.name, record.token) for record in all_records(self.folder))
        return {name: token.expires for name, token in tokens if token is not None and token.is_open(now)}

    def sites(self) -> list[ApprovedSite]:
        """Return the latest certificate of every site."""
        return list({approval.name: approval for approval in all_approvals(self.folder)}.values())

    def renew_certificates(self, *, now: datetime | None = None) -> bool:
        """Renew certificates of broker and server that expire soon, are not valid yet, or lack a changed host.

        Certificates of an external authority are only checked.
        """
        now, files = certificates.now_or(now), dict[str, bytes]()
        self._check_clock(now)
        for name, holder in OWN_CERTIFICATES.items():
            if self.settings.external:
                certificate = self._installed(name)[0]
                try:
                    certificates.check_dates(certificate, now=now, holder=holder)
                except StudyError as problem:  # no user error: a clock may be corrected
                    raise ServiceUnavailableError(f"{problem} (dpadmm server init --certificate FILE)") from None
            elif not self._is_current(f"{name}.pem", now, _names(self.settings, name)):
                files |= _certified(self._signer(), self.settings, now, name)
        with self._lock():
            for name, data in files.items():
                write_private(self.folder / name, data)
        return bool(files)

    def _is_current(self, name: str, now: datetime, names: Sequence[x509.GeneralName]) -> bool:
        path = self.folder / name
        chain = certificates.read_chain(read_short(path)) if path.exists() else []
        if len(chain) != 1 or not certificates.signed_by(chain[0], self.certificate):
            return False
        certificate = chain[0]
        key = certificates.read_key(read_short(path.with_suffix(".key")))
        if key is None or key.public_key() != certificate.public_key():
            return False
        if now < certificate.not_valid_before_utc:  # created while the clock was ahead
            return False
        end = min(now + _RENEW_BEFORE, self.certificate.not_valid_after_utc)
        return certificate.not_valid_after_utc >= end and certificates.names_in(certificate) == list(names)

    def _signer(self) -> tuple[x509.Certificate, certificates.Key]:
        path = self.folder / "authority" / "ca.key"
        check_private(path)
        key = certificates.read_key(read_short(path))
        if key is None or key.public_key() != self.certificate.public_key():
            raise StudyError(f"{path}: damaged, or not the key of ca.pem in this folder: restore it from a backup")
        return self.certificate, key

    def _lock(self) -> AbstractContextManager[None]:
        return private_files.exclusive_lock(self.folder / "authority" / "lock")


def _only_authority(data: bytes, message: str) -> x509.Certificate:
    """Return the only certificate in a PEM text, which may sign others, or raise ``StudyError`` with this message."""
    chain = certificates.read_chain(data)
    if len(chain) != 1 or not certificates.is_authority(chain[0]):
        raise StudyError(message)
    return chain[0]


def _certified(
    signer: tuple[x509.Certificate, certificates.Key], settings: ServerSettings, now: datetime, name: str
) -> dict[str, bytes]:
    """Return a new key and certificate for the broker or for the server's own connection."""
    key, is_broker = certificates.new_key(), name == "broker"
    certificate = certificates.leaf_certificate(
        signer, key.public_key(), name="dpadmm broker" if is_broker else SERVER, names=_names(settings, name),
        serial=certificates.new_serial(), days=YEAR, now=now, server=is_broker,
    )  # fmt: skip
    return {f"{name}.key": certificates.key_pem(key), f"{name}.pem": certificates.pem(certificate)}


def _names(settings: ServerSettings, name: str) -> list[x509.GeneralName]:
    if name == "server":
        return [x509.RFC822Name(SERVER_USER)]
    return certificates.broker_names(list(dict.fromkeys([*settings.hosts, settings.own_host])))


def _days(days: int) -> int:
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 7300:
        raise StudyError(f"days: {str(days)[:20]} is not a whole number from 1 to 7300")
    return days
