"""The web application of a site: a page for its owner on this machine, with decisions about studies.

Decisions use the same functions as the commands ``site accept``, ``decline`` and ``leave``.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from dpadmm.errors import DPADMMError, StudyError
from dpadmm.federation.health import Status, site_samples
from dpadmm.federation.site import decisions
from dpadmm.federation.site.proposals import clear_decided, find_study, withdraw_offer
from dpadmm.federation.web.hosting import read_body
from dpadmm.federation.web.metrics import metrics_response
from dpadmm.federation.web.pages import document, json_response, static_routes
from dpadmm.federation.web.server_data import Cached
from dpadmm.federation.web.sessions import LOGIN_NEEDED, Sessions
from dpadmm.federation.web.site_data import SiteData
from dpadmm.sites.site import Site, read_site

MAX_DECISION_BYTES = 1000
SNAPSHOT_SECONDS = 0.5


class SitePage:
    """The page of a site. Everything except ``/healthz`` needs a session, or for metrics their token."""

    def __init__(self, site: Site, status: Callable[[], Status]) -> None:
        self._site, self._status = site, status
        self._sessions = Sessions(site.path.parent, "dpadmm site status --link")
        self._data = SiteData(site, status)
        self._latest = Cached[Status](SNAPSHOT_SECONDS, self._data.snapshot, {})
        self._deciding = threading.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._page, methods=["GET"]),
            Route("/snapshot", self._snapshot, methods=["GET"]),
            Route("/studies/{hash}/{decision}", self._decide, methods=["POST"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *self._sessions.routes(),
            *static_routes(),
        ]

    def _page(self, request: Request) -> Response:
        if not self._sessions.secret(request):
            return self._sessions.login_page(LOGIN_NEEDED, 403)
        return document("site.html", csrf=self._sessions.csrf_token(request))

    def _snapshot(self, request: Request) -> Response:
        if not self._sessions.secret(request):
            return PlainTextResponse(f"{LOGIN_NEEDED} dpadmm site status --link\n", 403)
        snapshot = self._latest.get()
        return json_response({"at": time.time(), **snapshot})

    async def _decide(self, request: Request) -> Response:
        """Apply a decision of the owner and return one sentence."""
        if not self._sessions.may_change(request):
            raise HTTPException(403, "Reload the page: this request is not from an open session.")
        try:
            body = json.loads(await read_body(request, MAX_DECISION_BYTES) or b"{}")
            confirmed = str(body.get("hash", ""))
        except (ValueError, RecursionError, AttributeError):
            raise HTTPException(400, "The request is damaged.") from None
        hash, decision = request.path_params["hash"], request.path_params["decision"]
        try:
            sentence = await run_in_threadpool(self._apply, hash, decision, confirmed)
        except DPADMMError as problem:
            return json_response({"error": str(problem)}, 409)
        return json_response({"message": sentence})

    def _apply(self, hash: str, decision: str, confirmed: str) -> str:
        site = read_site(self._site.path)
        folder = site.path.parent
        with self._deciding:
            study = find_study(folder, hash)
            if study.hash != hash:
                raise StudyError("there is no such study at this site; reload the page")
            if decision == "accept":
                study.check_concrete()
                if study.is_draft:
                    raise StudyError(f"this is a draft: accept it with dpadmm site accept {hash[:12]}")
                if study.terms.masking is not None and "".join(confirmed.split()).lower() != hash:
                    raise StudyError(
                        "the hash differs from the one that you entered: compare it with the other owners, not through "
                        "the server"
                    )
                decisions.accept(site, study)
                sentence = f"Accepted: {study.name}. Do not change the table until the study has ended."
            elif decision in ("decline", "leave"):
                _, changed = decisions.decline(site, study)
                withdraw_offer(folder, hash)
                done = "Declined" if decision == "decline" else "Left"
                sentence = f"{done}: {study.name}." if changed else "Nothing changed."
            else:
                raise HTTPException(404)
            clear_decided(folder)
            self._data.refresh()
        return sentence

    def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n") if self._status()["connected"] else PlainTextResponse("not connected\n", 503)

    def _metrics(self, request: Request) -> Response:
        if (refusal := self._sessions.refuse_metrics(request)) is not None:
            return refusal
        return metrics_response(site_samples(self._status(), self._site.path.parent))
