"""A site with a ledger, decisions and proposals, and its owner's page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from federations import small_study, write_rows
from page_visits import OpenPage

from dpadmm.federation.health import now_text
from dpadmm.federation.local import new_site
from dpadmm.federation.site.decisions import accept, decline
from dpadmm.federation.site.proposals import store_proposal
from dpadmm.federation.web.hosting import Listener, hosted
from dpadmm.federation.web.site_app import SitePage
from dpadmm.sites.site import Site
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import Ledger

OPEN, PROPOSED = small_study(60, name="heart failure"), small_study(40, name="readmission")
TOO_MUCH = replace(
    small_study(40, name="length of stay"), training=replace(small_study(40).training, epsilon=50.0, method="dp_admm")
)
DECLINED = small_study(30, name="<b>falls</b>")


def make_site(folder: Path) -> Site:
    """A site that has joined nothing yet: no study, no release."""
    folder.mkdir(exist_ok=True)
    write_rows(folder / "table.csv", 0)
    return new_site(folder, OPEN, table="table.csv", epsilon=8.0)


def propose(site: Site, *studies: Study) -> None:
    for study in studies:
        store_proposal(site.path.parent, study.hash, json.dumps(study.as_json()).encode())


def use(site: Site, rounds: int = 20) -> None:
    """Accept one study and release some rounds, decline another, and receive two more."""
    accept(site, OPEN)
    release(site, rounds)
    propose(site, PROPOSED, TOO_MUCH)
    decline(site, DECLINED)


def release(site: Site, last: int, first: int = 1) -> None:
    cost = site.policy.cost(OPEN.terms.plan) / OPEN.terms.plan.n_rounds
    with Ledger.open(site.ledger, cap=site.policy.cap) as ledger:
        for round in range(first, last + 1):
            ledger.spend(OPEN.hash, round, digest=f"{round:064x}", mu_squared=cost * 0.999999, upload=b"x")


def status_of_site(**more: Any) -> dict[str, Any]:
    """The status of a site's process that is connected."""
    return {
        "running": True,
        "connected": True,
        "connection_since": "2026-03-02T09:15:00+00:00",
        "server_silent": False,
        "clock_difference": None,
        "ledger_works": True,
        "lease": "held",
        "contested": False,
        "site": "north-hospital",
        "broker": "tls://study.example.org:4222",
        "pages": [],
        "at": "2026-03-02T09:15:00+00:00",
        "certificate_expires": "2099-01-01T00:00:00+00:00",
        "problems": [],
        "studies": [],
        **more,
    }


@contextmanager
def serving_site(site: Site, **more: Any) -> Iterator[OpenPage]:
    """The page of a site, with a status of its process that can be changed."""
    page = SitePage(site, lambda: status_of_site(**more) | {"at": now_text()})
    with hosted(page.routes(), Listener("127.0.0.1", 0)) as (listener,):
        yield OpenPage(listener.port, site.path.parent)
