"""Addresses of brokers: ``tls://host:port``, or ``wss://host:port`` for WebSocket."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from dpadmm.errors import StudyError


def check_urls(text: str) -> str:
    """Return valid addresses, each ``tls://host:port`` or ``wss://host:port``, or raise ``StudyError``."""
    urls = text.split(",")
    for url in urls:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            bare = parts.scheme in ("tls", "wss") and bool(host) and bool(port) and "@" not in url
            bare = bare and url == f"{parts.scheme}://{parts.netloc}"
        except ValueError:
            bare = False
        if not bare or len(url) > 300 or not url.isascii() or not url.isprintable() or " " in url:
            kinds = "such as tls://host:port, or wss://host:port for WebSocket"
            raise StudyError(f"{url[:60]!r} is not the address of a broker, {kinds}")
    if len(urls) > 20 or len(set(urls)) != len(urls):
        raise StudyError("addresses of brokers: at most 20, and each once")
    return text


def host_and_port(url: str) -> tuple[str, int]:
    """Return host and port of an address that :func:`check_urls` accepted."""
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def endpoints(urls: str, server_names: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return each address with the host name that the certificate of its server must contain.

    Without ``server_names`` that is the host of the address. Otherwise it is one of the names: the host itself if it
    is among them, else each in turn, because a relay may lead to any of these hosts.

    Examples
    --------
    >>> endpoints("tls://relay:1,tls://b:2", ["a", "b"])
    [('tls://relay:1', 'a'), ('tls://relay:1', 'b'), ('tls://b:2', 'b')]
    """
    result = []
    for url in urls.split(","):
        host = host_and_port(url)[0]
        result += [(url, name) for name in ([host] if host in server_names or not server_names else server_names)]
    return result
