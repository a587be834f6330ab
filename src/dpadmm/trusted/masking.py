"""Masks that cancel in the sum over a round's members. The server sees the sum of the answers, and no single answer.

Sites i and j agree on a secret by X25519. From it both derive one stream of numbers for each context of a round. For
i < j, site i adds the stream and site j subtracts it::

    prk_ij = HKDF-Extract("dpadmm-secagg/1", X25519(sk_i, pk_j))
    ctx    = SHA-256("dpadmm-mask/1" ‖ study ‖ round ‖ n ‖ request ‖ bitmap(U))
    k_ij   = HKDF-Expand(prk_ij, "dpadmm-mask/1" ‖ ctx ‖ min(i, j) ‖ max(i, j))
    y_i    = x_i + Σ_{j∈U, j>i} AES256-CTR(k_ij) − Σ_{j∈U, j<i} AES256-CTR(k_ij)   mod 2⁶⁴

Study and request are SHA-256 digests. Numbers have 4 bytes, little-endian. A stream is read as 64-bit little-endian
numbers. U, the members of the round, is fixed before any site masks; site 0 is the highest bit of its bitmap. The
roster is part of the study's hash, so all sites that mask have agreed to the same keys.

**Guarantee.** A site answers one context per round, which its ledger enforces. Let H be the honest members of U. Every
two of them share a stream that is secret from all others.

- Unless all of H answer the same context, the answers of those that do are uniform and independent.
- If all of H answer, the server can remove the streams of colluding members. It then learns Σ_H x_i and nothing else.
- Another U, point, round or study gives other keys. A server that sends different values to different sites receives
  numbers that never cancel.
- The guard answers only over at least q members. If at most q − h sites of the roster collude with the server, every
  sum that it can learn has at least h honest shares of noise, and each x_i is in at most one such sum.
- Nothing is ever unmasked. If a member drops out, the sum of the round is lost.

**Limits.** The guarantee is computational: it depends on X25519, HMAC-SHA-256 and AES-256 (a key's stream of 10⁸
numbers differs from random numbers by less than 2⁻⁷⁷). Keys that leak later reveal recorded answers. In this case, and
if all others collude, a site is protected by its own share of the noise only, √h/z. The ledger's second cap limits the
cost of this case. An active server can at most prevent rounds, or exclude sites down to q.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from dpadmm.errors import RefusalError, StudyError
from dpadmm.matrices.arrays import Integers

try:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
except ImportError:
    raise StudyError("secure aggregation needs cryptography: pip install 'dpadmm[federation]'") from None

SALT, MASK, PAIR = b"dpadmm-secagg/1", b"dpadmm-mask/1", b"dpadmm-pair/1"


def public_key(private_key: bytes) -> bytes:
    """Return the public key for a roster, 32 bytes. Any 32 random bytes are a private key."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def bitmap_of(members: Iterable[int], n: int) -> bytes:
    """Return members as a bitmap over n sites. Zeros fill the last byte."""
    bits = np.zeros(n, bool)
    bits[list(members)] = True
    return np.packbits(bits).tobytes()


def members_of(bitmap: bytes, n: int) -> tuple[int, ...]:
    """Return the sites of a bitmap, in order. Bitmaps that :func:`bitmap_of` cannot produce are refused."""
    if type(bitmap) is bytes and len(bitmap) == (n + 7) // 8:
        members = np.flatnonzero(np.unpackbits(np.frombuffer(bitmap, np.uint8)))
        if (members < n).all():
            return tuple(members.tolist())
    raise RefusalError("members-malformed", f"members must be a bitmap with a bit for each of the {n} sites")


class Masks:
    """Masks of one site in a study, from its private key and the public keys of all sites in order."""

    def __init__(self, study: str, private_key: bytes, roster: Sequence[bytes]) -> None:
        if len(private_key) != 32 or (own := public_key(private_key)) not in roster:
            raise RefusalError("roster-not-mine", "the key of this site is not in the study's roster")
        try:
            own_key = X25519PrivateKey.from_private_bytes(private_key)
            secrets = [own_key.exchange(X25519PublicKey.from_public_bytes(key)) for key in roster]
        except ValueError:  # also for a key of low order, with which every secret would be zeros
            raise RefusalError("roster-unfit", "the study's roster has an invalid X25519 key") from None
        if len(set(secrets)) < len(roster):  # also for two encodings of one key
            raise RefusalError("roster-unfit", "two sites of the study's roster have the same key")
        self.me, self.n_sites, self._study = roster.index(own), len(roster), bytes.fromhex(study)
        self._prks = [hmac.digest(SALT, secret, "sha256") for secret in secrets]

    @property
    def tags(self) -> bytes:
        """8 bytes for each site, zeros for this one. If both sites of a pair have the same tag, their keys match."""
        sites = range(self.n_sites)
        return b"".join(bytes(8) if j == self.me else self.derive_key(j, PAIR + self._study)[:8] for j in sites)

    def for_round(self, round: int, request: str, members: bytes) -> Mask:
        """Return the mask of a round, for the digest of a request and the bitmap of the members."""
        sites, numbers = members_of(members, self.n_sites), (round, self.n_sites)
        head = MASK + self._study + b"".join(number.to_bytes(4, "little") for number in numbers)
        return Mask(self, sites, sha256(head + bytes.fromhex(request) + members).digest())

    def derive_key(self, j: int, info: bytes) -> bytes:
        """Return 32 bytes that only this site and site j can derive, the same at both."""
        pair = b"".join(site.to_bytes(4, "little") for site in sorted((self.me, j)))
        return HKDFExpand(SHA256(), 32, info + pair).derive(self._prks[j])


class Mask(NamedTuple):
    """Numbers that a site adds to its answer in one context."""

    masks: Masks
    members: tuple[int, ...]
    context: bytes

    def numbers(self, size: int) -> Integers:
        """Return ``size`` integers. Arithmetic with them is modulo 2⁶⁴."""
        total, zeros = np.zeros(size, np.uint64), bytes(8 * size)
        for j in self.members:
            if j != self.masks.me:
                key = self.masks.derive_key(j, MASK + self.context)
                stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(zeros)
                (np.add if j > self.masks.me else np.subtract)(total, np.frombuffer(stream, "<u8"), out=total)
        return total.view(np.int64)
