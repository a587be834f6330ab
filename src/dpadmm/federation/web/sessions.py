"""Login by one-time links: files in the private folder ``web`` of a server or site.

Each link and each session is an empty file whose name is the SHA-256 of its secret. Deleting the file is atomic, so a
link opens one session only. Any process of the folder's owner can issue a link, and restarts end no session.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from hashlib import sha256
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from dpadmm.federation.identity.private_files import check_unchanged_by_others, make_private_folder, write_private
from dpadmm.federation.web.hosting import read_body
from dpadmm.federation.web.pages import document

LINK_SECONDS, SESSION_SECONDS = 3600.0, 12 * 3600.0
"""Seconds for which a link can be used, and for which a session lasts."""

CLOCK_TOLERANCE = 60.0
"""Seconds by which a clock may be set back without ending sessions."""

MAX_SESSIONS = 100
"""Limit of sessions and of links; the oldest are deleted."""

MAX_FORM = 500
METRICS_TOKEN = "metrics-token"

LOGIN_NEEDED = "This page needs a one-time link. Print a new one at the machine that runs dpadmm:"
LINK_REFUSED = "This link was used before or has expired. Print a new one at the machine that runs dpadmm:"


def new_link(folder: Path) -> str:
    """Return the path and fragment of a new one-time link to the pages of a folder: ``login#CODE``."""
    return f"login#{_issue(_folder(folder, 'links'))}"


def metrics_token(folder: Path) -> str:
    """Return the token with which Prometheus reads ``/metrics``, stored in ``web/metrics-token``."""
    path = _folder(folder) / METRICS_TOKEN
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24).encode() + b"\n")
    return path.read_text(encoding="ascii").strip()


class Sessions:
    """Sessions of the pages of a folder."""

    def __init__(self, folder: Path, command: str) -> None:
        self._folder, self._command = folder, command
        """The folder, and the command that prints a new link, without the folder: anyone can see it."""
        metrics_token(folder)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/login", lambda _: self.login_page(""), methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
        ]

    def login_page(self, sentence: str, status: int = 200) -> Response:
        """Return the page that exchanges the link's code for a session, or explains how to get a link."""
        state = "refused" if sentence else "ready"
        return document("login.html", status, sentence=sentence or LOGIN_NEEDED, command=self._command, state=state)

    def secret(self, request: Request) -> str:
        """Return the secret of the request's session, or an empty text without a valid session."""
        given = _cookies(request).get(_cookie(request), "")
        return given if given and _is_valid(_folder(self._folder, "sessions") / _name(given), SESSION_SECONDS) else ""

    def csrf_token(self, request: Request) -> str:
        """Return the token that requests of this session must contain to change anything."""
        return sha256(b"csrf " + self.secret(request).encode()).hexdigest()

    def may_change(self, request: Request) -> bool:
        """Return whether a request comes from a page of this session: by its CSRF token and its origin."""
        given = request.headers.get("x-csrf-token", "").encode()
        same_origin = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
        return same_origin and bool(self.secret(request)) and compare_digest(given, self.csrf_token(request).encode())

    def refuse_metrics(self, request: Request) -> Response | None:
        """Return the refusal of a request for metrics that has neither a session nor the token, else None."""
        given = request.headers.get("authorization", "").encode()
        expected = f"Bearer {metrics_token(self._folder)}".encode()
        if self.secret(request) or compare_digest(given, expected):
            return None
        text = "Send the token in web/metrics-token: Authorization: Bearer TOKEN.\n"
        return PlainTextResponse(text, 401, headers={"WWW-Authenticate": "Bearer"})

    async def _login(self, request: Request) -> Response:
        code = (await read_body(request, MAX_FORM)).decode("ascii", "replace").removeprefix("code=")
        if not _consume(_folder(self._folder, "links") / _name(code)):
            return self.login_page(LINK_REFUSED, 403)
        response = RedirectResponse("./", 303)
        self._set_cookie(response, request, _issue(_folder(self._folder, "sessions")), SESSION_SECONDS)
        return response

    async def _logout(self, request: Request) -> Response:
        if not self.may_change(request):
            return Response(status_code=403)
        (_folder(self._folder, "sessions") / _name(self.secret(request))).unlink(missing_ok=True)
        response = Response(status_code=204)
        self._set_cookie(response, request, "", 0.0)
        return response

    def _set_cookie(self, response: Response, request: Request, value: str, seconds: float) -> None:
        """Set the cookie without a path: the browser uses that of the request, which includes a proxy's prefix."""
        secure = request.url.scheme == "https"
        response.set_cookie(
            _cookie(request), value, int(seconds), path=None, secure=secure, httponly=True, samesite="strict"
        )


def _cookie(request: Request) -> str:
    """Return the name of the cookie. Browsers share cookies between the ports of a host, so it has the port."""
    server = request.scope.get("server") or ("", 0)
    return f"dpadmm-{server[1]}"


def _cookies(request: Request) -> dict[str, str]:
    with suppress(CookieError):
        return {name: morsel.value for name, morsel in SimpleCookie(request.headers.get("cookie", "")).items()}
    return {}


def _folder(folder: Path, name: str = "") -> Path:
    """Return a subfolder of ``web``. Who can write there can log in, so nobody else may."""
    path = folder / "web"
    for each in (path, path / name) if name else (path,):
        if not each.exists():
            make_private_folder(each)
        check_unchanged_by_others(each)
    return path / name


def _name(secret: str) -> str:
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _issue(folder: Path) -> str:
    """Create the file of a new secret, delete old ones, and return the secret."""
    dated = sorted((path.stat().st_mtime, path) for path in folder.iterdir())
    expired = [path for at, path in dated if time.time() - at > SESSION_SECONDS]
    for path in {*expired, *(path for _, path in dated[: max(0, len(dated) - MAX_SESSIONS + 1)])}:
        path.unlink(missing_ok=True)
    secret = secrets.token_urlsafe(24)
    os.close(os.open(folder / _name(secret), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return secret


def _is_valid(path: Path, seconds: float) -> bool:
    with suppress(OSError):
        return -CLOCK_TOLERANCE < time.time() - path.stat().st_mtime < seconds
    return False


def _consume(path: Path) -> bool:
    """Delete the file of a link; return whether it was valid. Of two processes, one succeeds."""
    is_valid = _is_valid(path, LINK_SECONDS)
    try:
        path.unlink()
    except OSError:
        return False
    return is_valid
