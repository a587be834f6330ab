"""A site's process answers only while it has the lease, also if the lease ends after the link checked it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from federations import small_study, write_rows

from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.local import free_port, invite, new_site
from dpadmm.federation.protocol import LEASE_HOLDS, Grant, Kind, LeaseReply, Mark, Message, packed, unpacked
from dpadmm.federation.server.leases import Leases
from dpadmm.federation.site import lease as lease_module
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.site.process import SiteProcess
from dpadmm.sites.site import Site
from dpadmm.trusted.ledger import read_ledger

STUDY = small_study(5)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    write_rows(tmp_path / "table.csv", 0)
    made = new_site(tmp_path, STUDY, table="table.csv", epsilon=3.0)
    invite(Authority.create(tmp_path / "hub", hosts=["localhost"], port=free_port()), made, "a")
    accept(made, STUDY)
    return made


@pytest.fixture
def process(site: Site) -> Iterator[SiteProcess]:
    made = SiteProcess(site, logging.getLogger("test"))
    made._responder.open()
    try:
        made._apply_decisions()
        yield made
    finally:
        made._responder.close()


def answer(process: SiteProcess, round: int) -> str | None:
    """Return the kind of an answer, the code of a refusal, or None for no answer."""
    data = process._answer(STUDY.hash, packed(Message(Kind.REQUEST, STUDY.hash, round, np.zeros(STUDY.shape))))
    if data is None:
        return None
    message = unpacked(data, study=STUDY.hash, shape=STUDY.upload_shape, from_site=True)
    return message.code or message.kind.name


def grant(process: SiteProcess, leases: Leases, now: float) -> None:
    claim = process._lease.claim()
    assert claim is not None
    granted = leases.decide("a", claim, now)
    assert granted is not None
    process._lease.apply(granted)


def test_nothing_is_released_without_the_lease(
    site: Site, process: SiteProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(lease_module, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0]))
    leases = Leases(tmp_path / "hub", lambda *_: None)

    def released() -> list[int]:
        return list(read_ledger(site.ledger).accounts[STUDY.hash].rounds)

    assert (answer(process, 1), released()) == (None, []), "not granted yet"
    grant(process, leases, clock[0])
    assert (answer(process, 1), released()) == ("UPLOAD", [1])
    clock[0] += LEASE_HOLDS + 0.1
    assert (answer(process, 2), released()) == (None, [1]), "the lease has ended"
    assert answer(process, 1) is None, "nor is a stored answer sent again: another agent may be answering"
    grant(process, leases, clock[0])
    assert (answer(process, 2), released()) == ("UPLOAD", [1, 2])
    claim = process._lease.claim()
    assert claim is not None
    process._lease.apply(Grant(LeaseReply.BEHIND, claim.instance, claim.number, Mark(0, 10**6, "0" * 64)))
    assert (answer(process, 3), released()) == ("ledger-behind", [1, 2])
