"""A site's side of joining with a token: find the server, verify it, and have the site's key certified.

The first answer of the server is not trusted: it contains the certificate of its authority, which must have the
digest in the token. The second connection accepts only certificates of that authority. Nothing about the site is sent
before. Connections are outgoing, through the proxy of the environment if there is one.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from datetime import datetime, timedelta
from http.client import HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dpadmm.errors import DPADMMError, ServiceUnavailableError, StudyError
from dpadmm.federation.identity import certificates
from dpadmm.federation.identity.joining import Invitation, Request, invitation_from
from dpadmm.federation.identity.tokens import JoinToken

SERVER_FORMAT, REQUEST_FORMAT, ANSWER_FORMAT = "dpadmm-join-server/1", "dpadmm-join-request/1", "dpadmm-join-answer/1"
TIMEOUT = 20.0
"""Seconds for each connection, and for each answer."""

MAX_ANSWER = 2**17
"""Bytes of an answer that are read."""

BUSY_SECONDS = 120.0
"""Seconds for which a request is repeated while the server limits requests of this network."""

MAX_CLOCK_DIFFERENCE = timedelta(minutes=10)


class TokenError(StudyError):
    """The server refuses the token, or is not the server of the token: another token is needed."""


class JoinServer(NamedTuple):
    """A verified server: its address and the certificate of its authority."""

    url: str
    authority: certificates.x509.Certificate

    def redeem(self, token: JoinToken, request: Request) -> Invitation:
        """Have the key of a request certified. A repeated call with the same key returns the same certificate.

        Raises ``TokenError`` if the server refuses the token.
        """
        fields = {"token": token.id, "proof": token.proof(request.public_key), "name": token.name}
        table = {"format": REQUEST_FORMAT, **fields, "request": request.csr_pem}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificates.pem(self.authority).decode("ascii"))
        answer = _fields(_fetch(self.url, context, json.dumps(table).encode("ascii")), ANSWER_FORMAT)
        if answer is None or not all(isinstance(answer.get(name), str) for name in ("status", "text", "invitation")):
            raise StudyError(f"{self.url} answers, but is not the join service of this version of dpadmm")
        if answer["status"] == "unavailable":
            raise ServiceUnavailableError(answer["text"])
        if answer["status"] != "joined":
            raise TokenError(answer["text"])
        invitation = invitation_from(answer["invitation"], f"the answer of {self.url}")
        if invitation.name != token.name or invitation.authority != self.authority:
            raise StudyError(f"the answer of {self.url} is for another site or from another authority")
        return invitation


def find_server(token: JoinToken, *, now: datetime | None = None) -> JoinServer:
    """Return the first server that answers at an address of the token and has its authority.

    Raises ``ServiceUnavailableError`` if none answers, ``TokenError`` if one has another authority or if the token
    has expired, and ``StudyError`` if the clocks differ.
    """
    problems = []
    for url in token.urls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the digest is checked instead
        try:
            answer = _fields(_fetch(url, context), SERVER_FORMAT)
        except ServiceUnavailableError as problem:
            problems.append(str(problem))
            continue
        if answer is None:
            problems.append(f"{url} answers, but is not the join service of this version of dpadmm")
            continue
        chain = certificates.read_chain(str(answer.get("authority")).encode("ascii", "replace"))
        if len(chain) != 1 or certificates.digest_of(chain[0]) != token.ca_digest:
            raise TokenError(
                f"the server at {url} is not the one that made this join token (its authority differs): nothing was "
                "sent; ask the study coordinators for a new token"
            )
        _check_times(token, _time_of(answer), certificates.now_or(now))
        return JoinServer(url, chain[0])
    raise ServiceUnavailableError("; ".join(problems))


def _check_times(token: JoinToken, server: datetime | None, now: datetime) -> None:
    if server is not None and abs(server - now) > MAX_CLOCK_DIFFERENCE:
        raise StudyError(
            f"the clock of this machine shows {now:%Y-%m-%d %H:%M} UTC, but that of the server {server:%Y-%m-%d %H:%M} "
            "UTC: correct the one that is wrong, then repeat the command"
        )
    if (server or now) >= token.expires:
        raise TokenError(
            f"the join token expired at {token.expires:%Y-%m-%d %H:%M} UTC: ask the study coordinators for a new one"
        )


def _time_of(answer: dict[str, Any]) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(answer.get("now")))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _fields(data: bytes, format: str) -> dict[str, Any] | None:
    """Return the fields of an answer, or None if it has another format."""
    try:
        table = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    return table if isinstance(table, dict) and table.get("format") == format else None


def _fetch(url: str, context: ssl.SSLContext, body: bytes | None = None) -> bytes:
    """Return the body of an answer. Waits while the server limits requests of this network."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        status, retry_after, data = _exchange(url, context, body)
        is_busy = status == 429 or (status == 503 and not data.startswith(b"{"))  # too many requests, or connections
        if not is_busy and status in (408, 500, 502, 504):
            raise ServiceUnavailableError(f"{url} could not answer (status {status}): repeat the command later")
        if not is_busy:
            return data
        if time.monotonic() + retry_after > end:
            raise ServiceUnavailableError(f"{url} is busy: repeat the command later")
        time.sleep(retry_after)


def _exchange(url: str, context: ssl.SSLContext, body: bytes | None) -> tuple[int, float, bytes]:
    """Send one request; return the status, the seconds to wait if the server is busy, and the body."""
    from dpadmm.federation.transport.link import reason_of
    from dpadmm.federation.transport.transports import proxy_for

    parts = urlsplit(url)
    host, port, proxy = str(parts.hostname), parts.port or 443, proxy_for(url)
    connection = HTTPSConnection(
        host if proxy is None else proxy.host, port if proxy is None else proxy.port, timeout=TIMEOUT, context=context
    )
    if proxy is not None:
        connection.set_tunnel(host, port, headers=proxy.headers)
    try:
        connection.request("GET" if body is None else "POST", "/join", body)
        answer = connection.getresponse()
        data = answer.read(MAX_ANSWER)
        wait = answer.headers.get("Retry-After", "1")
        return answer.status, min(float(wait), 30.0) if wait.isdigit() else 1.0, data
    except (ConnectionRefusedError, socket.gaierror) as problem:
        raise ServiceUnavailableError(
            f"no connection to {url} ({problem.strerror or problem}): check that dpadmm server start is running there, "
            "and that this network allows the connection"
        ) from None
    except (OSError, HTTPException, DPADMMError) as problem:
        raise ServiceUnavailableError(f"no connection to {url}: {reason_of(problem)}") from None
    finally:
        connection.close()
