"""Masks that cancel in the sum over a round's members: an aggregator sees the sum of answers, and no answer.

Sites i and j agree on a secret by X25519. From it both derive one stream of numbers for each context of a
round, and i < j adds it where j subtracts it::

    prk_ij = HKDF-Extract("dpadmm-secagg/1", X25519(sk_i, pk_j))
    ctx    = SHA-256("dpadmm-mask/1" ‖ study ‖ round ‖ n ‖ request ‖ bitmap(U))
    k_ij   = HKDF-Expand(prk_ij, "dpadmm-mask/1" ‖ ctx ‖ min(i, j) ‖ max(i, j))
    y_i    = x_i + Σ_{j∈U, j>i} AES256-CTR(k_ij) − Σ_{j∈U, j<i} AES256-CTR(k_ij)   mod 2⁶⁴

Study and request are SHA-256 digests, numbers have 4 bytes, little-endian, and a stream is read as 64-bit numbers,
little-endian. U, the members of the round, is fixed before anyone masks; site 0 is the highest bit of its bitmap.
The roster is part of the study's hash, so everyone who masks has agreed to the same keys.

**What holds.** A site answers one context per round, which its ledger enforces. Let H be the honest members of U.
Every two of them share a stream that nobody else knows: unless all of H answer this very context, the answers of
those that do are uniform and independent; if all do, Σ_H x_i is learnt, once the streams that colluding members know
are taken off, and nothing else. Another U, point, round or study gives other keys, so an aggregator that tells sites
different stories gets numbers that never cancel. The guard answers only over at least q members; if at most q − h of
the roster work with the aggregator, every sum that can be opened has at least h honest shares of noise, and each x_i
is in at most one. Nothing is ever unmasked: if a member vanishes, the round is void.

**What does not.** This is computational: it rests on X25519, HMAC-SHA-256 and AES-256 (a key's stream of 10⁸
numbers differs from random numbers by less than 2⁻⁷⁷). Keys that leak later open what was recorded: then, and if
all others collude, what protects a site is its own share of the noise, √h/z, to which the ledger's second cap
belongs. An active aggregator can at most void rounds, or leave out sites down to q.
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
    """The 32 bytes that a roster has of a private key; any 32 random bytes are one."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def bitmap_of(members: Iterable[int], n: int) -> bytes:
    """Some of n sites, a bit each; zeros fill the last byte."""
    bits = np.zeros(n, bool)
    bits[list(members)] = True
    return np.packbits(bits).tobytes()


def members_of(bitmap: bytes, n: int) -> tuple[int, ...]:
    """The sites of a bitmap, in order; what :func:`bitmap_of` would not write is refused."""
    if type(bitmap) is bytes and len(bitmap) == (n + 7) // 8:
        members = np.flatnonzero(np.unpackbits(np.frombuffer(bitmap, np.uint8)))
        if (members < n).all():
            return tuple(members.tolist())
    raise RefusalError("members-malformed", f"the members of a round must be a bit for each of the {n} sites")


class Masks:
    """The masks of one site in a study, from its private key and the public keys of all sites, in their order."""

    def __init__(self, study: str, private_key: bytes, roster: Sequence[bytes]) -> None:
        if len(private_key) != 32 or (own := public_key(private_key)) not in roster:
            raise RefusalError("roster-not-mine", "the key of this site is not in the study's roster")
        try:
            mine = X25519PrivateKey.from_private_bytes(private_key)
            secrets = [mine.exchange(X25519PublicKey.from_public_bytes(key)) for key in roster]
        except ValueError:  # also for a key of low order, which would make everybody's secret zeros
            raise RefusalError("roster-unfit", "the study's roster has a key that is no X25519 key") from None
        if len(set(secrets)) < len(roster):  # of one key in two spellings too
            raise RefusalError("roster-unfit", "two sites of the study's roster have the same key")
        self.me, self.n_sites, self._study = roster.index(own), len(roster), bytes.fromhex(study)
        self._prks = [hmac.digest(SALT, secret, "sha256") for secret in secrets]

    @property
    def tags(self) -> bytes:
        """8 bytes for each site, zeros for this one: where both ends of a pair say the same, their keys agree."""
        sites = range(self.n_sites)
        return b"".join(bytes(8) if j == self.me else self.derived(j, PAIR + self._study)[:8] for j in sites)

    def over(self, round: int, request: str, members: bytes) -> Mask:
        """The mask of a round, for a request's digest and the bitmap of its members."""
        chosen, numbers = members_of(members, self.n_sites), (round, self.n_sites)
        head = MASK + self._study + b"".join(each.to_bytes(4, "little") for each in numbers)
        return Mask(self, chosen, sha256(head + bytes.fromhex(request) + members).digest())

    def derived(self, j: int, info: bytes) -> bytes:
        """32 bytes that this site and site j alone can derive, the same at both."""
        pair = b"".join(each.to_bytes(4, "little") for each in sorted((self.me, j)))
        return HKDFExpand(SHA256(), 32, info + pair).derive(self._prks[j])


class Mask(NamedTuple):
    """What a site adds to its answer in one context."""

    masks: Masks
    members: tuple[int, ...]
    context: bytes

    def numbers(self, size: int) -> Integers:
        """``size`` whole numbers; arithmetic with them is modulo 2⁶⁴."""
        total, zeros = np.zeros(size, np.uint64), bytes(8 * size)
        for j in self.members:
            if j != self.masks.me:
                key = self.masks.derived(j, MASK + self.context)
                stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(zeros)
                (np.add if j > self.masks.me else np.subtract)(total, np.frombuffer(stream, "<u8"), out=total)
        return total.view(np.int64)
