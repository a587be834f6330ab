"""The web application of a server: status page, health and metrics. The routes of the join service are added to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from dpadmm.federation.health import Sample, Status
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.web.hosting import Certificate, Listener
from dpadmm.federation.web.metrics import metrics_response
from dpadmm.federation.web.pages import document, json_response, static_routes
from dpadmm.federation.web.server_data import ServerData
from dpadmm.federation.web.sessions import LOGIN_NEEDED, Sessions


class StatusPage:
    """The status page of a server. Everything except ``/healthz`` needs a session, or for metrics their token.

    ``snapshot`` returns the data of the page for a study's hash; an empty hash lets it choose.
    """

    def __init__(
        self,
        folder: Path,
        snapshot: Callable[[str], Status],
        samples: Callable[[], Iterable[Sample]] = tuple,
        is_healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        self._sessions = Sessions(folder, "dpadmm server status --link")
        self._snapshot_of, self._samples, self._is_healthy = snapshot, samples, is_healthy
        self.looked_at = -math.inf
        """Time of the last snapshot that was sent, by the monotonic clock."""

    @classmethod
    def of(cls, authority: Authority, is_healthy: Callable[[], bool]) -> StatusPage:
        data = ServerData(authority)
        return cls(authority.folder, data.snapshot, data.samples, is_healthy)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._page, methods=["GET"]),
            Route("/snapshot", self._snapshot, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *self._sessions.routes(),
            *static_routes(),
        ]

    def wait_for_last_look(self) -> None:
        """Give open pages, which ask twice a second, time to show the end of a study."""
        if time.monotonic() - self.looked_at < 2.0:
            time.sleep(1.0)

    def _page(self, request: Request) -> Response:
        if not self._sessions.secret(request):
            return self._sessions.login_page(LOGIN_NEEDED, 403)
        return document("server.html", csrf=self._sessions.csrf_token(request))

    def _snapshot(self, request: Request) -> Response:
        if not self._sessions.secret(request):
            return PlainTextResponse(f"{LOGIN_NEEDED} dpadmm server status --link\n", 403)
        snapshot = self._snapshot_of(request.query_params.get("study", ""))
        self.looked_at = time.monotonic()
        return json_response({"at": time.time(), **snapshot})

    def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n") if self._is_healthy() else PlainTextResponse("not connected\n", 503)

    def _metrics(self, request: Request) -> Response:
        if (refusal := self._sessions.refuse_metrics(request)) is not None:
            return refusal
        return metrics_response(self._samples())


def server_listeners(authority: Authority, page_port: int | None) -> list[Listener]:
    """Return where the application of ``server start`` listens.

    Everyone reaches it by HTTPS. On this machine it is also available by HTTP, for browsers that do not trust the
    server's own authority and for reverse proxies, unless ``page_port`` is None.
    """
    settings = authority.settings
    secured = Listener(settings.listen, settings.web_port, Certificate.of_server(authority), "web_port in server.toml")
    return [secured, *([] if page_port is None else [Listener("127.0.0.1", page_port, setting="--page-port")])]


def page_addresses(authority: Authority, listeners: Sequence[Listener]) -> list[str]:
    """Return the addresses of the status page as a browser reaches it, those of this machine first."""
    local = [f"{listener.url}/" for listener in listeners if listener.certificate is None]
    return [*local, *(f"{authority.settings.web_url}/" for listener in listeners if listener.certificate)]
