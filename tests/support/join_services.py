"""A join service over real TLS, hosted as ``server start`` does, and sites that join it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import free_port

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.join_client import JoinServer, find_server
from dpadmm.federation.identity.join_service import join_routes
from dpadmm.federation.identity.joining import Identity, PendingJoin, site_identity
from dpadmm.federation.identity.tokens import JoinToken
from dpadmm.federation.web.hosting import Certificate, Listener, hosted


def new_server(folder: Path) -> Authority:
    return Authority.create(folder, hosts=["localhost"], port=free_port(), web_port=free_port())


@contextmanager
def join_service(authority: Authority) -> Iterator[Authority]:
    listener = Listener("127.0.0.1", authority.settings.web_port, Certificate.of_server(authority))
    with hosted(join_routes(authority, logging.getLogger("join")), listener):
        yield authority


def join_with(token: JoinToken, folder: Path, *, server: JoinServer | None = None) -> Identity:
    """What ``site join`` does about keys and certificates."""
    pending = PendingJoin(folder)
    pending.check(token.name, token.ca_digest)
    found = server or find_server(token)
    pending.finish(found.redeem(token, pending.request(token.name)))
    return site_identity(folder)
