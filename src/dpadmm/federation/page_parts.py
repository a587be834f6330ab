"""What the live page is made of: its texts from this package, and the headers that fence it in."""

from __future__ import annotations

import re
from importlib.resources import files


def guarded(nonce: str = "") -> dict[str, str]:
    """Headers of every answer: nothing is kept, guessed, framed or fetched; only what bears the nonce runs.

    Examples
    --------
    >>> guarded("abc")["Content-Security-Policy"].split("; ")[:3]
    ["default-src 'none'", "script-src 'nonce-abc'", "style-src 'nonce-abc'"]
    """
    own = f"'nonce-{nonce}'" if nonce else "'none'"
    policy = (
        f"default-src 'none'; script-src {own}; style-src {own}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Connection": "close",
    }


def document(name: str) -> str:
    """A page of this package as one text: what it names as {{live.css}} and the like is put in its place.

    Examples
    --------
    >>> "EventSource" in document("live.html"), "src=" in document("live.html")
    (True, False)
    """
    folder = files("dpadmm.federation").joinpath("live")
    return re.sub(
        r"\{\{([a-z]+\.(?:css|js))\}\}",
        lambda found: folder.joinpath(found[1]).read_text(encoding="utf-8"),
        folder.joinpath(name).read_text(encoding="utf-8"),
    )
