"""The join service: the routes with which sites join a server with a token.

It answers anyone who reaches it, so it reveals nothing without a proved token: all answers to join requests have the
same size, and an unknown token, a wrong proof and an unknown name have the same answer. Bodies are at most 16 KiB, and
each source may send a limited number of requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from logging import ERROR, WARNING, Logger
from typing import Any

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.identity import certificates
from dpadmm.federation.identity.authority import Authority, TokenRefusedError
from dpadmm.federation.identity.join_client import ANSWER_FORMAT, REQUEST_FORMAT, SERVER_FORMAT
from dpadmm.federation.identity.joining import Request as SiteRequest
from dpadmm.federation.logs import RepeatLog
from dpadmm.federation.protocol import MissingPackagesError, check_name

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    raise MissingPackagesError from None

MAX_BODY, ANSWER_SIZE = 2**14, 2**14
"""Bytes of a request, and of every answer to a join request."""

BODY_SECONDS = 10.0
"""Seconds in which the body of a request must arrive."""

BURST, PER_SECOND, MAX_SOURCES = 90, 3.0, 4096
"""Requests that a source may send at once and per second, and the number of sources that are remembered."""


class RateLimit:
    """A token bucket for each source: an IPv4 address, or an IPv6 network of 64 bits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Requests left of each source, and the time of the last one; the source seen last is at the end."""

    def wait(self, source: str) -> float:
        """Count a request; return 0 if it is allowed, else the seconds to wait."""
        now = self._clock()
        left, at = self._left.pop(source, (float(BURST), now))
        left = min(float(BURST), left + PER_SECOND * (now - at))
        allowed = left >= 1.0
        self._left[source] = (left - 1.0 if allowed else left), now
        if len(self._left) > MAX_SOURCES:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / PER_SECOND


def source_of(host: str) -> str:
    """Return the source to which a request counts."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)


def join_routes(authority: Authority, log: Logger) -> list[Route]:
    """Return the routes of the join service: ``GET /join`` and ``POST /join``.

    ``GET`` returns the authority's certificate, which sites compare with the digest in their token, and the time.
    ``POST`` certifies the key of a site. Signing runs in one thread at a time.
    """
    service = _JoinService(authority, log)
    return [Route("/join", service.describe, methods=["GET"]), Route("/join", service.join, methods=["POST"])]


class _JoinService:
    def __init__(self, authority: Authority, log: Logger) -> None:
        self._authority, self._log, self._repeats = authority, log, RepeatLog(log)
        self._limit, self._signing = RateLimit(), asyncio.Lock()
        self._pem = certificates.pem(authority.certificate).decode("ascii")

    async def describe(self, request: Request) -> Response:
        if (limited := self._limited(request)) is not None:
            return limited
        return _json({"format": SERVER_FORMAT, "now": _now(), "authority": self._pem})

    async def join(self, request: Request) -> Response:
        if (limited := self._limited(request)) is not None:
            return limited
        try:
            body = await _body(request)
        except (TimeoutError, ClientDisconnect):
            return Response(status_code=408, headers={"Connection": "close"})
        if body is None:
            return Response(status_code=413, headers={"Connection": "close"})
        async with self._signing:
            status, answer = await asyncio.to_thread(self._answer, body, _source(request))
        return _json({"format": ANSWER_FORMAT, "now": _now(), **answer}, status, size=ANSWER_SIZE)

    def _limited(self, request: Request) -> Response | None:
        wait = self._limit.wait(_source(request))
        if not wait:
            return None
        return Response(status_code=429, headers={"Retry-After": f"{max(1.0, wait):.0f}", "Connection": "close"})

    def _answer(self, body: bytes, source: str) -> tuple[int, dict[str, str]]:
        """Return the status and the fields of the answer to a join request."""
        try:
            token_id, proof, site = _read(body)
            _ = site.public_key
        except (StudyError, ValueError, RecursionError):
            return 400, {"status": "malformed", "text": "the request is damaged", "invitation": ""}
        try:
            invitation = self._authority.redeem(token_id, proof, site)
        except TokenRefusedError as refusal:
            text = f"join request refused ({refusal.code})"
            known = "" if refusal.code == "unknown" else f" for {site.name}, key {site.fingerprint}"
            self._repeats.write(WARNING, f"{text}{known}", source)
            return 403, {"status": refusal.code, "text": str(refusal), "invitation": ""}
        except (DPADMMError, OSError) as problem:  # such as a full disk
            self._repeats.write(ERROR, f"cannot certify a site: {problem}", source)
            text = "the server cannot certify sites at the moment: ask the study coordinators, and repeat the command"
            return 503, {"status": "unavailable", "text": text, "invitation": ""}
        self._log.info("%s: joined from %s, key %s", site.name, source, site.fingerprint)
        return 200, {"status": "joined", "text": "", "invitation": invitation.as_bytes().decode("ascii")}


def _source(request: Request) -> str:
    return source_of(request.client.host) if request.client else ""


async def _body(request: Request) -> bytes | None:
    """Return the body, or None if it is too long. Nothing beyond the limit is read."""
    body = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY:
                return None
    return bytes(body)


def _read(body: bytes) -> tuple[str, str, SiteRequest]:
    """Return the id of the token, the proof and the certificate request; raise ``ValueError`` for other bodies."""
    table: Any = json.loads(body.decode("ascii"))
    if not isinstance(table, dict) or table.keys() != {"format", "token", "proof", "name", "request"}:
        raise ValueError("fields")
    texts = [table[name] for name in ("format", "token", "proof", "name", "request")]
    if not all(isinstance(text, str) and text.isascii() for text in texts) or texts[0] != REQUEST_FORMAT:
        raise ValueError("format")
    _, token_id, proof, name, csr = texts
    if len(bytes.fromhex(token_id)) != 8 or len(bytes.fromhex(proof)) != 32:
        raise ValueError("proof")
    return token_id, proof, SiteRequest(check_name(name), csr)


def _json(table: dict[str, Any], status: int = 200, *, size: int = 0) -> Response:
    """Return a JSON response of at least ``size`` bytes."""
    text = json.dumps(table)
    headers = {"Cache-Control": "no-store"}
    return Response(text.ljust(size), status, headers, media_type="application/json")


def _now() -> str:
    return certificates.now_or(None).isoformat()
