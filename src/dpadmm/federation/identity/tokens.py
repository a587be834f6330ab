"""Join tokens: one line of text with which a site joins a server.

A token contains the SHA-256 of the authority's certificate, which authenticates the server, and a one-time secret,
which authenticates the site. The secret is never sent: the site proves it with an HMAC over its own public key, so a
recorded request cannot be used for another key. The server stores a hash of the secret.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlsplit

from dpadmm.errors import StudyError
from dpadmm.federation.identity import certificates
from dpadmm.federation.protocol import check_name

PREFIX = "dpadmm-join-"
VERSION = 1
TOKEN_DAYS = 7
"""Default validity of a token in days."""

MAX_URLS = 8
_HEAD = struct.Struct(">BI8s16s32sB")
"""Version, expiry in seconds since 1970, id, secret, SHA-256 of the authority's certificate, length of the name."""

_CHECKSUM = 4


class JoinToken(NamedTuple):
    """The contents of a token. ``secret`` authenticates the site, ``ca_digest`` the server."""

    urls: tuple[str, ...]
    """Addresses of the join service, ``https://host:port``."""
    ca_digest: bytes
    name: str
    id: str
    secret: bytes
    expires: datetime

    @property
    def text(self) -> str:
        """The token as one line of URL-safe text, with a checksum."""
        name, urls = self.name.encode("ascii"), ",".join(self.urls).encode("ascii")
        seconds = int(self.expires.timestamp())
        head = _HEAD.pack(VERSION, seconds, bytes.fromhex(self.id), self.secret, self.ca_digest, len(name))
        payload = head + name + urls
        return PREFIX + urlsafe_b64encode(payload + _checksum(payload)).decode("ascii").rstrip("=")

    def proof(self, public_key: certificates.PublicKey) -> str:
        """Return the proof that the holder of this key has the token."""
        return proof_of(hash_of(self.secret), public_key, self.id)


def new_token(name: str, urls: Sequence[str], ca_digest: bytes, *, days: int, now: datetime) -> JoinToken:
    """Return a token with a random id and secret. It is valid for ``days`` from now."""
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= 90:
        raise StudyError(f"a token is valid for 1 to 90 days, not {str(days)[:20]}")
    expires = now + timedelta(days=days)
    return JoinToken(tuple(urls[:MAX_URLS]), ca_digest, name, secrets.token_hex(8), secrets.token_bytes(16), expires)


def read_token(text: str) -> JoinToken:
    """Return the contents of a token. White space inside, as e-mail programs insert it, is ignored."""
    text = "".join(text.split())
    if not text.startswith(PREFIX):
        raise StudyError(f"this is not a join token: it must begin with {PREFIX} (dpadmm server invite prints it)")
    damaged = StudyError("the join token is damaged: copy the whole line again")
    body = text.removeprefix(PREFIX)
    try:
        data = urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except ValueError:
        raise damaged from None
    payload, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
    canonical = urlsafe_b64encode(data).decode("ascii").rstrip("=") == body
    if not canonical or len(payload) < _HEAD.size or not hmac.compare_digest(_checksum(payload), checksum):
        raise damaged
    version, seconds, token_id, secret, digest, length = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise StudyError("the join token is from another version of dpadmm: install the server's version")
    try:
        name = check_name(payload[_HEAD.size : _HEAD.size + length].decode("ascii"))
        urls = tuple(payload[_HEAD.size + length :].decode("ascii").split(","))
    except ValueError:  # StudyError is one
        raise damaged from None
    if len(urls) > MAX_URLS or not all(map(_is_address, urls)):
        raise damaged
    return JoinToken(urls, digest, name, token_id.hex(), secret, datetime.fromtimestamp(seconds, UTC))


def hash_of(secret: bytes) -> bytes:
    """Return the hash of a secret, which the server stores."""
    return sha256(b"dpadmm join\0" + secret).digest()


def proof_of(secret_hash: bytes, public_key: certificates.PublicKey, token_id: str) -> str:
    """Return HMAC-SHA256 over the digest of a public key and the id of the token, in hexadecimal digits."""
    message = certificates.digest_of(public_key) + bytes.fromhex(token_id)
    return hmac.new(secret_hash, message, sha256).hexdigest()


def _checksum(payload: bytes) -> bytes:
    return sha256(payload).digest()[:_CHECKSUM]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        complete = bool(parts.scheme == "https" and parts.hostname and parts.port)
    except ValueError:
        return False
    return complete and url == f"https://{parts.netloc}" and "@" not in url and url.isprintable() and " " not in url
