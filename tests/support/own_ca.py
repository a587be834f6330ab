"""An organisation's own CA: a root (P-384), an intermediate (RSA), and the certificates that it signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dpadmm.federation.identity import certificates as forms
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import join, make_request

DAY = timedelta(days=1)
BOTH = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
SERVER, CLIENT = BOTH[:1], BOTH[1:]


def named(name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Clinic"), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


class OwnCa:
    """``sign`` returns PEM of a certificate and of the intermediate one. All parties trust ``root``."""

    def __init__(self, name: str = "Clinic") -> None:
        key = ec.generate_private_key(ec.SECP384R1())
        self._key = rsa.generate_private_key(65537, 2048)
        self._root = self._issued(f"{name} Root", key.public_key(), (f"{name} Root", key), ca=1)
        self._middle = self._issued(f"{name} Issuing CA", self._key.public_key(), (f"{name} Root", key), ca=0)
        self.root = self._root.public_bytes(Encoding.PEM)

    @property
    def middle(self) -> bytes:
        return self._middle.public_bytes(Encoding.PEM)

    def sign(
        self, csr: bytes, *names: x509.GeneralName, usage: Sequence[x509.ObjectIdentifier] = CLIENT,
        first: datetime | None = None, last: datetime | None = None,
    ) -> bytes:  # fmt: skip
        """Sign a request, for these names or for the requested ones."""
        request = x509.load_pem_x509_csr(csr)
        if not names:
            names = tuple(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        signed = self._issued(
            "leaf", request.public_key(), (self._middle.subject, self._key),
            names=names, usage=usage, first=first, last=last,
        )  # fmt: skip
        return signed.public_bytes(Encoding.PEM) + self.middle

    def new(self, folder: Path, file: str, *names: x509.GeneralName, usage: Sequence[x509.ObjectIdentifier]) -> None:
        """Write a new key and certificate to files."""
        key = forms.new_key()
        assert load_pem_private_key(forms.key_pem(key), None)
        (folder / f"{file}.key").write_bytes(forms.key_pem(key))
        (folder / f"{file}.pem").write_bytes(self.sign(forms.pem(forms.new_request(key, file)), *names, usage=usage))

    @staticmethod
    def _issued(name, public_key, issuer, *, ca=None, names=(), usage=(), first=None, last=None):
        now = datetime.now(UTC).replace(microsecond=0)
        by = issuer[0] if isinstance(issuer[0], x509.Name) else named(issuer[0])
        uses = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
             "decipher_only"), False,
        )  # fmt: skip
        builder = (
            x509.CertificateBuilder(by, named(name), public_key, x509.random_serial_number())
            .not_valid_before(first or now - DAY)
            .not_valid_after(last or now + 100 * DAY)
            .add_extension(x509.BasicConstraints(ca=ca is not None, path_length=ca), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=ca is None, key_cert_sign=ca is not None, crl_sign=ca is not None, **uses
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer[1].public_key()), critical=False)
        )
        if usage:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(issuer[1], hashes.SHA256())


def install(hub: Authority, ca: OwnCa) -> None:
    """Install certificates of broker and server, as requested by them."""
    hub.install(ca.sign((hub.folder / "broker.csr").read_bytes(), usage=SERVER))
    hub.install(ca.sign((hub.folder / "server.csr").read_bytes()))


def join_with(hub: Authority, ca: OwnCa, folder: Path, name: str, **choices: object) -> Path:
    """Return the folder of a site whose key was certified by its own CA, with a DNS name."""
    make_request(folder, name)
    csr = (folder / "network" / "request.csr").read_bytes()
    chain = ca.sign(csr, x509.DNSName(f"{name}.clinic.example"), **choices)
    join(folder, hub.approve(make_request(folder, name, chain)))
    return folder
