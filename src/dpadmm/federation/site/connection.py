"""Check each step of the connection from a site to its brokers (``dpadmm site check --connect``).

A failed check includes the next step. The check may run alongside the site's process. It reads no rows and releases
nothing.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dpadmm.errors import StudyError
from dpadmm.federation.health import CERTIFICATE_DAYS, clock_alarms, days_left
from dpadmm.federation.identity.certificates import x509
from dpadmm.federation.identity.joining import Identity, site_identity
from dpadmm.federation.protocol import BadMessageError, beat_subjects_of, clock_of_beat
from dpadmm.federation.transport.link import DATES, OTHER_HOST, close_client, connect, reason_of
from dpadmm.federation.transport.transports import DIAL_TIMEOUT, HttpProxy, proxy_for, tunnel
from dpadmm.sites.addresses import endpoints, host_and_port

CHECKS = ("name", "port", "TLS", "certificate", "permission", "round trip", "clock")


class ConnectionCheck(NamedTuple):
    """The result of one step. ``ok`` is None if it was not checked. On failure, ``text`` includes the next step."""

    name: str
    ok: bool | None
    text: str


class _FailedError(Exception):
    """The check with this name failed; the second argument describes the next step."""


def check_connections(folder: Path, addresses: Sequence[str] = ()) -> dict[str, list[ConnectionCheck]]:
    """Check each broker of a joined site, from ``addresses`` or its invitation; return the checks by address."""
    identity, checks = site_identity(folder, addresses), dict[str, list[ConnectionCheck]]()
    for url, server_name in endpoints(identity.url, identity.server_names):
        if url not in checks or not reachable(checks[url]):
            checks[url] = list(_checks(identity, url, server_name))
    return checks


def reachable(checks: list[ConnectionCheck]) -> bool:
    return all(check.ok is not False for check in checks) and any(
        check.name == "round trip" and check.ok for check in checks
    )


def _checks(identity: Identity, url: str, server_name: str) -> Iterator[ConnectionCheck]:
    remaining = iter(CHECKS)
    try:
        for check in _steps(identity, url, server_name):
            assert check.name == next(remaining)
            yield check
    except _FailedError as error:
        failed, text = error.args
        for name in remaining:
            if name == failed:
                yield ConnectionCheck(name, False, text)
                break
            yield ConnectionCheck(name, None, "not checked")
        yield from (ConnectionCheck(name, None, "not checked") for name in remaining)


def _steps(identity: Identity, url: str, server_name: str) -> Iterator[ConnectionCheck]:
    (host, port), proxy = host_and_port(url), proxy_for(url)
    yield ConnectionCheck("name", True, _resolved(host, proxy))
    began = time.perf_counter()
    with _port(host, port, proxy) as plain:
        how = f"through the proxy {proxy}" if proxy else "directly"
        yield ConnectionCheck(
            "port", True, f"{host}:{port} answers {how} after {1000 * (time.perf_counter() - began):.0f} ms"
        )
        yield ConnectionCheck("TLS", True, _secured(identity, plain, url, server_name))
    try:
        identity.check_dates()
    except StudyError as problem:
        raise _FailedError(
            "certificate",
            f"{problem}. To renew it, ask the study coordinators for a join token: dpadmm site join TOKEN",
        ) from None
    times, errors, clock = asyncio.run(_session(identity, url, server_name))
    days = days_left(identity.expires)
    soon = "; renew it now" if days < CERTIFICATE_DAYS else ""
    yield ConnectionCheck("certificate", True, f"accepted by the broker; this site's expires in {days} days{soon}")
    if refused := [error for error in errors if "permissions violation" in error.lower()]:
        raise _FailedError(
            "permission",
            f"the broker does not let {identity.name} use its subjects ({refused[0]}): the study coordinators must "
            "grant this site's user its permissions (dpadmm server sites --nats-users)",
        )
    yield ConnectionCheck("permission", True, "may receive studies and send answers")
    yield ConnectionCheck("round trip", True, f"{1000 * statistics.median(times):.0f} ms")
    if clock is None:
        text = "unknown: no heartbeat of the server; it runs neither a study nor dpadmm server start"
        yield ConnectionCheck("clock", None, text)
    elif alarms := list(clock_alarms("the server", clock)):
        yield ConnectionCheck("clock", False, f"{alarms[0].text}: start NTP on the one that is wrong")
    else:
        yield ConnectionCheck("clock", True, f"differs from the server's by {abs(clock):.1f} seconds")


def _resolved(host: str, proxy: HttpProxy | None) -> str:
    name = host if proxy is None else proxy.host
    try:
        addresses = sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as problem:
        hint = "check the name in the invitation, or server.addresses in site.toml, and the DNS of this network. "
        hint += "If sites have to go through an HTTP "
        hint += "proxy, set HTTPS_PROXY" if proxy is None else "proxy, HTTPS_PROXY must name it"
        raise _FailedError("name", f"{name} cannot be resolved ({problem.strerror or problem}): {hint}") from None
    if proxy is not None:
        return f"the proxy {proxy} is {', '.join(addresses)}, and resolves {host} itself"
    return f"{host} is {', '.join(addresses)}"


@contextmanager
def _port(host: str, port: int, proxy: HttpProxy | None) -> Iterator[socket.socket]:
    where = f"{host}:{port}"
    try:
        plain = tunnel(proxy, host, port) if proxy else socket.create_connection((host, port), DIAL_TIMEOUT)
    except TimeoutError:
        text = f"no answer from {where}: a firewall drops it. Ask your network's administrators to allow outgoing "
        text += f"connections to {where}, or to name a proxy (HTTPS_PROXY)"
        raise _FailedError("port", text) from None
    except OSError as problem:
        text = str(problem)
        if proxy is None:
            hint = "nothing listens there, or a firewall rejects it: ask the study coordinators whether the broker runs"
        elif "407" in text:
            hint = "the proxy requires a password: HTTPS_PROXY=http://user:password@host:port"
        elif "Tunnel connection failed" in text:
            hint = f"ask your network's administrators to let CONNECT to {where} through the proxy, or the study "
            hint += "coordinators whether the broker runs"
        else:
            hint = f"does the proxy {proxy} run, and is it an HTTP proxy?"
        raise _FailedError("port", f"no connection to {where} ({text}): {hint}") from None
    with plain:
        yield plain


def _secured(identity: Identity, plain: socket.socket, url: str, server_name: str) -> str:
    context, (host, port), proxy = identity.client_context(), host_and_port(url), proxy_for(url)
    try:
        with context.wrap_socket(plain, server_hostname=server_name) as secured:
            der = secured.getpeercert(binary_form=True) or b""
    except ssl.SSLCertVerificationError as problem:
        if problem.verify_code in DATES:
            raise _FailedError("clock", reason_of(problem)) from None
        wrong_host = problem.verify_code in OTHER_HOST
        raise _FailedError("TLS", reason_of(problem) if wrong_host else _describe_issuer(host, port, proxy)) from None
    except (OSError, EOFError) as problem:
        reason = problem.reason if isinstance(problem, ssl.SSLError) else problem
        text = f"no TLS there ({reason}): another program, or a firewall or proxy "
        text += f"that lets only web pages through. Ask your network's administrators to exempt {host}:{port}, or the "
        text += "study coordinators for an address with wss:// and port 443"
        raise _FailedError("TLS", text) from None
    return f"not inspected: the certificate is from {_issuer(der)}, the authority of the invitation"


def _describe_issuer(host: str, port: int, proxy: HttpProxy | None) -> str:
    """Describe the issuer of an untrusted certificate, from a second connection that sends no data."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    issuer = "an unknown authority"
    with suppress(OSError, _FailedError), _port(host, port, proxy) as plain, context.wrap_socket(plain) as secured:
        issuer = _issuer(secured.getpeercert(binary_form=True) or b"")
    return (
        f"the certificate is from {issuer}, not from the authority of the invitation: something on the way inspects "
        f"TLS, or {host}:{port} is another server. Nothing was sent. Ask your network's administrators to exempt "
        f"{host}:{port} from inspection"
    )


def _issuer(der: bytes) -> str:
    try:
        text = x509.load_der_x509_certificate(der).issuer.rfc4514_string()
    except ValueError:
        return "an unknown authority"
    return text if text.isprintable() and len(text) <= 200 else ascii(text[:200])


async def _session(identity: Identity, url: str, server_name: str) -> tuple[list[float], list[str], float | None]:
    """Return round-trip times, errors of the broker, and the seconds by which the server's clock is ahead."""
    errors, clocks = list[str](), list[float]()
    received = asyncio.Event()

    async def on_error(problem: Exception) -> None:
        errors.append(str(problem))

    async def on_beat(message: object) -> None:
        with suppress(BadMessageError):
            clocks.append(clock_of_beat(message.data) - time.time())  # type: ignore[attr-defined]
            received.set()

    try:
        context = identity.client_context()
        client = await connect(url, context, name=identity.name, on_error=on_error, server_name=server_name)
    except Exception as problem:  # nats-py raises many types
        raise _FailedError("certificate", f"the broker does not let this site in: {reason_of(problem)}") from None
    try:
        publish, subscribe = beat_subjects_of(identity.name)
        await client.subscribe(subscribe, cb=on_beat)
        await client.publish(publish, b"")  # tests the permission; not a valid heartbeat, so it is ignored
        times = []
        for _ in range(5):
            began = time.perf_counter()
            await client.flush(timeout=5)
            times.append(time.perf_counter() - began)
        if not errors:
            with suppress(TimeoutError):
                async with asyncio.timeout(3.0):
                    await received.wait()
    except Exception as problem:
        raise _FailedError(
            "round trip", f"the connection was lost again ({reason_of(problem)}): is the line unstable?"
        ) from None
    finally:
        await close_client(client)
    return times, errors, clocks[0] if clocks else None
