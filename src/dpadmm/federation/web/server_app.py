"""The routes of a server's web application."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from dpadmm.federation.identity.authority import Authority


def server_routes(authority: Authority) -> Sequence[BaseRoute]:
    """Return the routes of ``dpadmm server start``. The routes of the join service belong here."""
    return [Route("/healthz", _healthz)]


def _healthz(request: Request) -> Response:
    return PlainTextResponse("ok\n")
