"""Leases without a network: which process of a site may answer, and how old copies of a ledger are detected."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from looping import case

from dpadmm.federation.protocol import LEASE_FREE_AFTER, LEASE_HOLDS, Grant, LeaseReply, Mark
from dpadmm.federation.server.leases import Leases
from dpadmm.federation.site import lease as lease_module
from dpadmm.federation.site.lease import Lease
from dpadmm.trusted.ledger import Ledger, read_ledger

STUDY = "ab" * 32


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lease_module, "time", made)
    return made


class Hub:
    """A server, and its messages to people."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        folder.mkdir(exist_ok=True)
        self.said: list[str] = []
        self.leases, self._clock = Leases(folder, lambda level, site, text: self.said.append(f"{site}: {text}")), clock

    def asked(self, agent: Lease, *, leaving: bool = False) -> Grant | None:
        """One claim and its answer, and the next one if that has to be proved."""
        claim = agent.claim(leaving=leaving)
        assert claim is not None
        grant = self.leases.decide("a", claim, self._clock.now)
        return self.asked(agent) if grant is not None and agent.apply(grant) else grant

    def seconds(self, seconds: int, *agents: Lease) -> list[list[str]]:
        """Let every process claim once a second, and return their states."""
        found = []
        for _ in range(seconds):
            self._clock.now += 1.0
            for agent in agents:
                self.asked(agent)
            found.append([agent.state for agent in agents])
        return found


def begun(folder: Path) -> Path:
    with Ledger.open(folder, cap=10.0, create=True) as ledger:
        ledger.reserve(STUDY, 5.0, about={"name": "s"}, may_miss_rounds=True)
    return folder


def spend(folder: Path, *rounds: int) -> None:
    with Ledger.open(folder, cap=10.0) as ledger:
        for round in rounds:
            ledger.spend(STUDY, round, digest="1" * 64, mu_squared=0.01, upload=os.urandom(8))


def agent_of(ledger: Path) -> Lease:
    return Lease(ledger, lambda: read_ledger(ledger).restores, logging.getLogger("nobody"))


def copied(ledger: Path, name: str) -> Path:
    shutil.copytree(ledger, ledger.with_name(name))
    return ledger.with_name(name)


def test_one_of_two_processes_has_the_lease_and_both_are_notified(tmp_path: Path, clock: Clock) -> None:
    ledger = begun(tmp_path / "ledger")
    hub, site, clone = Hub(tmp_path / "hub", clock), agent_of(ledger), agent_of(copied(ledger, "copy"))
    assert (site.held, clone.held) == (False, False)
    hub.asked(site)
    assert (site.state, site.held, site.contested) == ("held", True, False)
    assert hub.seconds(1, clone) == [["waiting"]], "the other may have ended"
    assert hub.seconds(3, site, clone)[1:] == [["held", "cloned"]] * 2
    assert site.held
    assert site.contested
    assert not clone.held
    assert any("refused a second process with its certificate" in text for text in hub.said)
    assert hub.leases.doubts(clock.now) == {"a": "cloned"}
    hub.seconds(61, site)
    assert not site.contested, "a minute after the clone was gone"
    assert hub.leases.doubts(clock.now) == {}


def test_lease_expires_before_it_can_be_granted_again(tmp_path: Path, clock: Clock) -> None:
    assert LEASE_HOLDS + 1.0 < LEASE_FREE_AFTER
    ledger = begun(tmp_path / "ledger")
    hub, site, other = Hub(tmp_path / "hub", clock), agent_of(ledger), agent_of(ledger)
    hub.seconds(2, site)
    killed = clock.now
    while other.state != "held":
        clock.now += 0.25
        assert clock.now < killed + 10.0
        hub.asked(other)
        assert not (site.held and other.held)
        assert other.state in ("waiting", "held")
    assert LEASE_FREE_AFTER < clock.now - killed <= LEASE_FREE_AFTER + 0.5
    assert not hub.said, "an agent that was killed and started again is no clone"


def test_grant_counts_from_its_claim_by_the_faster_clock(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, site = Hub(tmp_path / "hub", clock), agent_of(begun(tmp_path / "ledger"))
    claim = site.claim()
    assert claim is not None
    grant = hub.leases.decide("a", claim, clock.now)
    assert grant is not None
    clock.now += LEASE_HOLDS - 0.1
    site.apply(grant)
    assert site.held
    clock.now += 0.2
    assert not site.held
    site.apply(grant._replace(instance="ab" * 16))  # of another agent
    assert not site.held
    hub.asked(site)
    assert site.held
    monkeypatch.setattr(clock, "time", lambda: clock.now + 60.0)  # a suspended machine
    assert not site.held


MOVES = {
    "nothing": (0.0, 0.0, True),
    "not long enough": (LEASE_HOLDS - 0.1, LEASE_HOLDS - 0.1, True),
    "both clocks": (LEASE_HOLDS + 0.1, LEASE_HOLDS + 0.1, False),
    "the wall clock alone: a suspended machine": (0.0, LEASE_HOLDS + 0.1, False),
    "the monotonic clock alone: the wall clock was set back": (LEASE_HOLDS + 0.1, 0.0, False),
    "the wall clock was set back further": (LEASE_HOLDS + 0.1, -3_600.0, False),
    "the wall clock back, the monotonic clock not long enough": (LEASE_HOLDS - 0.1, -3_600.0, True),
}


def test_lease_ends_by_the_clock_that_is_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = begun(tmp_path / "ledger")
    for number, (name, (monotonic, wall, held)) in enumerate(MOVES.items()):
        with case(name):
            clock, moved = Clock(), [0.0, 0.0]
            times = SimpleNamespace(monotonic=lambda m=moved: 5.0 + m[0], time=lambda m=moved: 1.7e9 + m[1])
            monkeypatch.setattr(lease_module, "time", times)
            site = agent_of(ledger)
            Hub(tmp_path / f"hub-{number}", clock).asked(site)
            assert site.held
            moved[:] = monotonic, wall
            assert site.held is held


def test_returned_lease_is_free_immediately(tmp_path: Path, clock: Clock) -> None:
    ledger = begun(tmp_path / "ledger")
    hub, site, next_one = Hub(tmp_path / "hub", clock), agent_of(ledger), agent_of(ledger)
    hub.seconds(1, site)
    assert hub.asked(site, leaving=True) is None
    assert site.claim() is None
    assert not site.held
    hub.asked(next_one)
    assert next_one.held


def test_old_copy_is_refused_until_the_latest_ledger_or_a_restore(tmp_path: Path, clock: Clock) -> None:
    ledger = begun(tmp_path / "ledger")
    old = copied(ledger, "old")
    hub, site = Hub(tmp_path / "hub", clock), agent_of(ledger)
    spend(ledger, 1, 2)
    hub.seconds(1, site)
    hub.asked(site, leaving=True)
    snapshot = agent_of(old)
    assert hub.asked(snapshot) is not None
    assert (snapshot.state, snapshot.held) == ("behind", False)
    assert hub.leases.doubts(clock.now) == {"a": "ledger-behind"}
    assert Hub(tmp_path / "hub", clock).asked(agent_of(old)).verdict is LeaseReply.BEHIND  # type: ignore[union-attr]
    spend(old, 1, 2, 3)  # as many records and more, with other noise: found out by its chain
    forked = agent_of(old)
    hub.asked(forked)
    assert (forked.state, forked.held) == ("behind", False)
    assert hub.seconds(2, agent_of(copied(ledger, "latest"))) == [["held"], ["held"]], "nothing of the copy was kept"
    with Ledger.open(old, cap=10.0) as restored:
        restored.record_restore(0.0, about={}, shares=1)
    clock.now += 10.0
    assert hub.seconds(6, agent_of(old))[-1] == ["held"]
    clock.now += 10.0
    assert hub.seconds(6, agent_of(ledger))[-1] == ["behind"], "the old lineage does not come back"


def test_different_ledger_with_the_same_number_of_records_is_detected(tmp_path: Path, clock: Clock) -> None:
    hub, first = Hub(tmp_path / "hub", clock), begun(tmp_path / "first")
    site = agent_of(first)
    hub.seconds(1, site)
    hub.asked(site, leaving=True)
    other = agent_of(begun(tmp_path / "other"))  # begun anew, as many records
    hub.asked(other)
    assert (other.state, other.held) == ("behind", False)


def test_processes_of_one_server_grant_one_lease(tmp_path: Path, clock: Clock) -> None:
    ledger = begun(tmp_path / "ledger")
    one, two = Hub(tmp_path / "hub", clock), Hub(tmp_path / "hub", clock)
    site, clone = agent_of(ledger), agent_of(copied(ledger, "copy"))
    one.asked(site)
    two.asked(clone)
    assert (site.held, clone.held) == (True, False)
    spend(ledger, 1)
    for _ in range(5):
        clock.now += 1.0
        late = site.claim()
        assert late is not None
        spend(ledger, *[max(read_ledger(ledger).accounts[STUDY].rounds) + 1])
        one.asked(site)
        out_of_date = two.leases.decide("a", late, clock.now)  # of which the first process knows more
        assert out_of_date is not None
        site.apply(out_of_date)
        assert site.held
        two.asked(clone)
        assert clone.state in ("waiting", "cloned")
    assert not any("lacks records" in text for text in two.said)


def test_server_that_received_no_claims_restarts_its_waiting_times(tmp_path: Path, clock: Clock) -> None:
    ledger = begun(tmp_path / "ledger")
    hub, site, clone = Hub(tmp_path / "hub", clock), agent_of(ledger), agent_of(copied(ledger, "copy"))
    hub.seconds(2, site)
    clock.now += 60.0  # the aggregator's line was down, and the site may have been granted by another process
    assert hub.asked(clone).verdict is LeaseReply.WAIT  # type: ignore[union-attr]


def test_no_claim_without_a_mark_or_an_open_ledger(tmp_path: Path, clock: Clock) -> None:
    ledger = begun(tmp_path / "ledger")
    closed = Lease(ledger, lambda: None, logging.getLogger("nobody"))
    with case("the ledger failed"):
        assert closed.claim() is None
    with case("no mark"):
        assert agent_of(ledger).claim() is not None
        away = Lease(tmp_path / "nowhere", lambda: 0, logging.getLogger("nobody"))
        assert away.claim() is None
    state = read_ledger(ledger)
    claim: Any = agent_of(ledger).claim()
    assert claim.mark == Mark(0, state.seq, state.fingerprint)
