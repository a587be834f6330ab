"""TLS servers that are not brokers, and the failed check that a connection check reports."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpadmm.federation.site.connection import ConnectionCheck, reachable


def failure(found: list[ConnectionCheck]) -> tuple[str, str]:
    """Return the failed check. Checks after it must be skipped."""
    (failed,) = [check for check in found if check.ok is False]
    after = found[found.index(failed) + 1 :]
    assert all(check.ok is None for check in after)
    assert not reachable(found)
    return failed.name, failed.text


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[int]:
    """Run a server that is not a broker: with a TLS handshake, or without TLS."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            with plain:
                try:
                    if context is None:
                        plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        plain.recv(1000)
                    else:
                        context.wrap_socket(plain, server_side=True).close()
                except OSError:
                    pass

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def tls_server(folder: Path, file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{file}.pem", folder / f"{file}.key")
    return context
