"""X.509 certificates of the authority, the broker, the server and sites. All keys are EC P-256.

The built-in authority signs only end-entity certificates (path length 0). The broker's certificate is for TLS servers
and contains its host names. The others are for clients and contain the e-mail of their user. Only the key of a
certificate request is used. Certificates of an organisation's own CA may have intermediates with keys of any kind;
their e-mail or DNS name identifies the holder.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from itertools import pairwise

from dpadmm.errors import StudyError
from dpadmm.federation.protocol import MissingPackagesError

try:
    from cryptography import x509 as x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingPackagesError from None

FIRST_DAY, SKEW = datetime(2025, 1, 1, tzinfo=UTC), timedelta(hours=1)
"""Start of the validity of certificates, or an hour before the authority is created if that is earlier.

A clock that was ahead at that time, or one that is behind now, therefore locks nobody out.
"""

_NO_EXTENSION = (
    x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError,
)  # fmt: skip
"""Raised for extensions that are missing, duplicated or of an unknown form."""

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def now_or(moment: datetime | None) -> datetime:
    """Return the given or the current time, in whole seconds as in certificates."""
    return (moment or datetime.now(UTC)).replace(microsecond=0)


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def new_serial() -> int:
    """Return an unpredictable serial number: a leading one and 127 random bits."""
    return secrets.randbits(127) | 1 << 127


def digest_of(certified: x509.Certificate | PublicKey) -> bytes:
    """Return the SHA-256 of a certificate, or of a public key (SubjectPublicKeyInfo)."""
    form = () if isinstance(certified, x509.Certificate) else (serialization.PublicFormat.SubjectPublicKeyInfo,)
    return sha256(certified.public_bytes(serialization.Encoding.DER, *form)).digest()


def fingerprint_of(certified: x509.Certificate | PublicKey) -> str:
    """Return the SHA-256 of a certificate or a public key as ``AB:CD:...``, for people to compare."""
    return digest_of(certified).hex(":").upper()


def key_pem(key: Key) -> bytes:
    """Return a private key as PEM, for a file of mode 0600."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def read_key(data: bytes) -> Key | None:
    """Return the key in a PEM text, or None unless it is a P-256 key without a password."""
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) and _p256(key.public_key()) else None


def public_key_of(signed: x509.Certificate | x509.CertificateSigningRequest) -> PublicKey | None:
    """Return the P-256 key of a certificate or request; None for other keys."""
    try:
        key = signed.public_key()
    except Exception:  # cryptography raises many types for unknown keys
        return None
    return key if isinstance(key, ec.EllipticCurvePublicKey) and _p256(key) else None


def _p256(key: PublicKey) -> bool:
    return isinstance(key.curve, ec.SECP256R1)


def pem(signed: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return signed.public_bytes(serialization.Encoding.PEM)


def read_chain(data: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM text, the holder's first; none if it is damaged."""
    try:
        return x509.load_pem_x509_certificates(data)
    except (ValueError, x509.InvalidVersion):
        return []


def check_signatures(chain: Sequence[x509.Certificate], authority: x509.Certificate) -> None:
    """Raise ``StudyError`` unless each certificate was signed by the next one, and the last by the authority.

    This gives an early message. Brokers and clients check the whole chain at every connection.
    """
    path = [item for item in chain if item != authority]
    for signed, signer in pairwise([*path, authority]):
        if not is_authority(signer) or not signed_by(signed, signer):
            by = "the authority" if signer is authority else _named(signer)
            raise StudyError(
                f"the certificate of {_named(signed)} was not signed by {by}; a file of certificates must have the "
                "holder's first, and then all intermediate ones in order"
            )


def check_dates(certificate: x509.Certificate, *, now: datetime, holder: str) -> None:
    """Raise ``StudyError`` unless a certificate is valid now. The message contains the time of this machine's clock."""
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    clock = f"the clock of this machine shows {now:%Y-%m-%d %H:%M} UTC"
    if now >= last:
        text = f"expired at {last:%Y-%m-%d %H:%M} UTC ({clock}): if the clock is right, a new one is needed"
    elif now < first:
        text = f"is valid only from {first:%Y-%m-%d %H:%M} UTC ({clock}): correct the clock"
    else:
        return
    raise StudyError(f"the certificate of {holder} {text}")


def _named(certificate: x509.Certificate) -> str:
    text = certificate.subject.rfc4514_string() or "(no name)"
    return text if text.isprintable() and len(text) <= 120 else ascii(text[:120])


def new_request(key: Key, name: str, names: Sequence[x509.GeneralName] = ()) -> x509.CertificateSigningRequest:
    """Return a certificate request for a name and a key, signed with the key."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_common_name(name))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256())


def read_csr(data: bytes) -> tuple[PublicKey | None, str, bool]:
    """Return the key and the name in a certificate request, and whether it is signed with that key."""
    try:
        csr = x509.load_pem_x509_csr(data)
        named = csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return public_key_of(csr), str(named[0].value) if len(named) == 1 else "", csr.is_signature_valid
    except (x509.InvalidVersion, InvalidSignature, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from None


def user_in(certificate: x509.Certificate) -> str:
    """Return the broker user of a client certificate; empty unless there is exactly one."""
    try:
        names = names_in(certificate)
        usage = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except _NO_EXTENSION:
        return ""
    if usage != [ExtendedKeyUsageOID.CLIENT_AUTH] or len(names) != 1:
        return ""
    return names[0].value if isinstance(names[0], x509.RFC822Name) else ""


def identity_in(certificate: x509.Certificate) -> str:
    """Return the only e-mail in a client certificate of any CA, else its only DNS name; empty if it has neither.

    The broker looks for users in the same order.
    """
    try:
        names = names_in(certificate)
    except _NO_EXTENSION:
        return ""
    for kind in (x509.RFC822Name, x509.DNSName):
        if matches := [str(name.value) for name in names if isinstance(name, kind)]:
            return matches[0] if len(matches) == 1 and may_be(certificate, server=False) else ""
    return ""


def may_be(certificate: x509.Certificate, *, server: bool) -> bool:
    """Return whether a certificate may be used by servers, or by clients. One without extended usage is for both."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except _NO_EXTENSION:
        return True
    return (ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH) in usage


def names_in(certificate: x509.Certificate) -> list[x509.GeneralName]:
    return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def is_authority(certificate: x509.Certificate) -> bool:
    """Return whether a certificate may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except _NO_EXTENSION:
        return False


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # wrong signatures, issuers and algorithms raise different types
        return False
    return True


def authority_certificate(key: Key, *, days: int, now: datetime) -> x509.Certificate:
    """Return the self-signed certificate that everyone in a federation trusts."""
    named, public_key = _common_name(f"dpadmm authority {secrets.token_hex(4)}"), key.public_key()
    builder = (
        x509.CertificateBuilder(issuer_name=named, subject_name=named, public_key=public_key)
        .serial_number(new_serial())
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return _signed(builder, key, public_key, min(FIRST_DAY, now - SKEW), "key_cert_sign", "crl_sign")


def broker_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Return host names and addresses as subject alternative names."""
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def leaf_certificate(
    authority: tuple[x509.Certificate, Key],
    public_key: PublicKey,
    *,
    name: str,
    names: Sequence[x509.GeneralName],
    serial: int,
    days: int,
    now: datetime,
    server: bool = False,
) -> x509.Certificate:
    """Return a certificate for the broker (``server``) or a client. It never outlives the authority.

    It is valid from the authority's first day, so that a clock that is ahead does not delay its use.
    """
    issuer, key = authority
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    issuer_key = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key)
    builder = (
        x509.CertificateBuilder(issuer.subject, _common_name(name), public_key)
        .serial_number(serial)
        .not_valid_after(min(now + timedelta(days=days), issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issued_by, critical=False)
    )
    return _signed(builder, key, public_key, issuer.not_valid_before_utc, "digital_signature")


def _signed(
    builder: x509.CertificateBuilder, key: Key, public_key: PublicKey, first: datetime, *allowed: str
) -> x509.Certificate:
    """Sign a certificate whose key may be used only in the ``allowed`` ways."""
    uses = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return (
        builder.not_valid_before(first)
        .add_extension(x509.KeyUsage(**{use: use in allowed for use in uses}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .sign(key, hashes.SHA256())
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
