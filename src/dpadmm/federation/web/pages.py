"""The static files of the pages: HTML, scripts and styles."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from dpadmm.parameters.fields import for_json

TYPES = {"css": "text/css", "js": "text/javascript"}


def document(name: str, status: int = 200, **values: str) -> Response:
    """Return an HTML page; {{name}} is replaced with the value of that name."""
    return HTMLResponse(re.sub(r"\{\{(\w+)\}\}", lambda match: escape(values[match[1]]), _text(name)), status)


def json_response(value: object, status: int = 200) -> Response:
    text = json.dumps(for_json(value), allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def static_routes() -> list[BaseRoute]:
    """Return the route of scripts and styles. They contain no data, so they need no login."""
    return [Route("/static/{name}", _static, methods=["GET"])]


def _static(request: Request) -> Response:
    name = str(request.path_params["name"])
    kind = TYPES.get(name.rpartition(".")[2])
    if kind is None or not re.fullmatch(r"[a-z]+\.[a-z]+", name):
        raise HTTPException(404)
    try:
        return Response(_text(name), media_type=kind)
    except FileNotFoundError:
        raise HTTPException(404) from None


def _text(name: str) -> str:
    return files("dpadmm.federation.web").joinpath("static", name).read_text(encoding="utf-8")
