"""The systemd unit of a site."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from dpadmm.sites.site import Site

HOMES = ("/home", "/root", "/run/user")
"""Folders that systemd hides from a service unless its unit allows them."""


def systemd_unit(site: Site, user: str, program: Path | None = None) -> str:
    """Return a systemd unit that runs a site. ``program`` defaults to the ``dpadmm`` of this installation."""
    path, program = site.path.absolute(), program or Path(sys.executable).with_name("dpadmm")
    needed = (path, site.table.absolute(), site.ledger.absolute(), program)
    hidden = not any(each.is_relative_to(home) for each in needed for home in HOMES)
    template = files("dpadmm.sites").joinpath("templates", "dpadmm-site.service").read_text(encoding="utf-8")
    return template.format(
        user=user,
        folder=_quoted(path.parent),
        working_directory=str(path.parent).replace("%", "%%"),
        site=_quoted(path),
        program=_quoted(program),
        protect_home="yes" if hidden else "read-only",
    )


def _quoted(path: Path) -> str:
    """Return a path for a systemd unit, in which % starts a specifier."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if any(map(str.isspace, text)) else text
