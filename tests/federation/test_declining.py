"""A declined study is not answered and never enrolled, whatever earlier decisions were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from federations import small_study, write_rows
from guards import STUDY, guarded
from guards import study as other_study

from dpadmm.errors import RefusalError
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.local import free_port, invite, new_site
from dpadmm.federation.protocol import Kind, Message, packed, unpacked
from dpadmm.federation.site import responder as responder_module
from dpadmm.federation.site.decisions import accept, decide
from dpadmm.federation.site.process import SiteProcess
from dpadmm.federation.site.responder import Responder
from dpadmm.sites import table
from dpadmm.sites.site import Site
from dpadmm.studies.study import Study
from dpadmm.trusted.ledger import Account, read_ledger

NUMBERS = count(1)


def request(round: int, study: Study) -> bytes:
    return packed(Message(Kind.REQUEST, study.hash, round, np.zeros(study.shape)))


def call(study: Study) -> bytes:
    return packed(Message(Kind.CALL, study.hash))


def answer_of(responder: Responder, study: Study, data: bytes) -> str | None:
    """Return the kind of an answer, the code of a refusal, or None for no answer."""
    answer = responder.answer(study.hash, data)
    if answer is None:
        return None
    message = unpacked(answer, study=study.hash, shape=study.upload_shape, from_site=True)
    return message.code or message.kind.name


def check_closed(responder: Responder, study: Study) -> None:
    """Check that every message is refused as closed, including one that was answered before."""
    for data in (call(study), request(1, study), request(2, study), b"garbage"):
        assert answer_of(responder, study, data) == "study-closed"


# --- the responder


@pytest.fixture
def responder(tmp_path: Path) -> Iterator[Responder]:
    made = Responder(lambda: guarded(tmp_path), 1, logging.getLogger("nobody listens"))
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize("declined", [True, False])
@pytest.mark.parametrize("rounds", [0, 2])
def test_declined_study_with_answers_is_closed(
    responder: Responder, tmp_path: Path, rounds: int, declined: bool
) -> None:
    responder.accept(STUDY)
    for round in range(1, rounds + 1):
        assert answer_of(responder, STUDY, request(round, STUDY)) == "UPLOAD"
    responder.leave(STUDY, declined=declined)
    check_closed(responder, STUDY)
    account = read_ledger(tmp_path).accounts[STUDY.hash]
    assert account.closed
    assert len(account.rounds) == rounds
    refusal = responder.accept(STUDY)
    assert refusal is not None
    assert refusal.code == "study-changed"
    check_closed(responder, STUDY)
    assert read_ledger(tmp_path).accounts[STUDY.hash].closed


def test_declined_study_that_never_participated_gets_no_answer(responder: Responder, tmp_path: Path) -> None:
    before = read_ledger(tmp_path).fingerprint
    responder.leave(STUDY, declined=True)
    assert answer_of(responder, STUDY, call(STUDY)) is None
    assert answer_of(responder, STUDY, request(1, STUDY)) is None
    assert read_ledger(tmp_path).fingerprint == before
    assert responder.accept(STUDY) is None  # the owner may still accept it
    assert answer_of(responder, STUDY, call(STUDY)) == "PRESENT"


def test_declined_study_is_not_enrolled_again(responder: Responder, tmp_path: Path) -> None:
    wrong = other_study(n_rounds=10**4)
    assert responder.accept(wrong) is not None
    assert answer_of(responder, wrong, call(wrong)) == "study-blocked"
    responder.leave(wrong, declined=True)
    assert answer_of(responder, wrong, call(wrong)) is None
    assert wrong.hash not in responder._accepted


def test_reservation_of_an_earlier_process_is_released(tmp_path: Path) -> None:
    with guarded(tmp_path) as guard:
        guard.enrol(STUDY)
    responder = Responder(lambda: guarded(tmp_path), 1, logging.getLogger("nobody listens"))
    responder.open()
    responder.leave(STUDY, declined=True)
    assert read_ledger(tmp_path).accounts[STUDY.hash].closed
    check_closed(responder, STUDY)
    responder.close()


def test_closing_is_retried_while_the_ledger_is_unavailable(
    responder: Responder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responder.accept(STUDY)
    assert answer_of(responder, STUDY, request(1, STUDY)) == "UPLOAD"
    responder._close_failed_ledger(RefusalError("ledger-failed", "a full disk, say"))
    with pytest.raises(RefusalError, match="not open"):
        responder.leave(STUDY, declined=True)
    assert answer_of(responder, STUDY, call(STUDY)) in (None, "study-closed")
    assert not read_ledger(tmp_path).accounts[STUDY.hash].closed
    monkeypatch.setattr(responder_module, "monotonic", lambda: 1e12)
    responder.leave(STUDY, declined=True)
    assert read_ledger(tmp_path).accounts[STUDY.hash].closed
    check_closed(responder, STUDY)


# --- the process of an agent, and decisions of its owner


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("hub")
    return Authority.create(folder / "aggregator", hosts=["localhost"], port=free_port())


@pytest.fixture
def small() -> Study:
    return small_study(5)


@pytest.fixture
def site(tmp_path: Path, authority: Authority, small: Study) -> Site:
    write_rows(tmp_path / "table.csv", 0)
    made = new_site(tmp_path, small, table="table.csv", epsilon=3.0)
    invite(authority, made, f"site-{next(NUMBERS)}")
    return made


class Running:
    """A site process without its connection. It applies decisions and answers."""

    def __init__(self, site: Site) -> None:
        self.process = SiteProcess(site, logging.getLogger("nobody listens"))
        self.responder = self.process._responder

    def __enter__(self) -> Running:
        self.responder.open()
        self.process._apply_decisions()
        return self

    def __exit__(self, *_: object) -> None:
        self.responder.close()

    def heed(self) -> None:
        self.process._apply_decisions()


def account(site: Site, study: Study) -> Account | None:
    return read_ledger(site.ledger).accounts.get(study.hash)


def closed(site: Site, study: Study) -> bool:
    found = account(site, study)
    return found is not None and found.closed


@pytest.mark.parametrize("rounds", [0, 2])
def test_declining_a_running_study(site: Site, small: Study, rounds: int) -> None:
    accept(site, small)
    with Running(site) as agent:
        for round in range(1, rounds + 1):
            assert answer_of(agent.responder, small, request(round, small)) == "UPLOAD"
        decide(site.path.parent, small, "declined")
        agent.heed()
        check_closed(agent.responder, small)
        assert closed(site, small)
        assert not agent.responder.rounds()
        decide(site.path.parent, small, "accepted")
        agent.heed()
        check_closed(agent.responder, small)
    found = account(site, small)
    assert found is not None
    assert len(found.rounds) == rounds


def test_declining_while_the_site_is_stopped(site: Site, small: Study) -> None:
    """Only the file was changed. The site's next start closes what is open in the ledger."""
    accept(site, small)
    decide(site.path.parent, small, "declined")
    with Running(site) as agent:
        check_closed(agent.responder, small)
        assert closed(site, small)
    with Running(site) as agent:
        check_closed(agent.responder, small)


def test_declining_before_accepting(site: Site, small: Study) -> None:
    decide(site.path.parent, small, "declined")
    with Running(site) as agent:
        assert answer_of(agent.responder, small, call(small)) is None
        assert account(site, small) is None
        decide(site.path.parent, small, "accepted")
        agent.heed()
        assert answer_of(agent.responder, small, call(small)) == "PRESENT"
        decide(site.path.parent, small, "declined")
        agent.heed()
        check_closed(agent.responder, small)
    assert closed(site, small)


def test_declined_study_stays_closed_after_a_ledger_failure(
    site: Site, small: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(site, small)
    with Running(site) as agent:
        agent.responder._close_failed_ledger(RefusalError("ledger-failed", "a full disk, say"))
        decide(site.path.parent, small, "declined")
        agent.heed()
        assert answer_of(agent.responder, small, call(small)) in (None, "study-closed")
        assert not closed(site, small)
        monkeypatch.setattr(responder_module, "monotonic", lambda: 1e12)
        agent.heed()  # it looks again until it is done
        assert closed(site, small)
        check_closed(agent.responder, small)


def test_table_is_encoded_once_per_enrolment(site: Site, small: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    accept(site, small)
    encoded, real = [], table.encode_table
    monkeypatch.setattr(table, "encode_table", lambda *a, **k: encoded.append(a[0]) or real(*a, **k))
    with Running(site) as agent:
        assert answer_of(agent.responder, small, call(small)) == "PRESENT"
        assert answer_of(agent.responder, small, request(1, small)) == "UPLOAD"
        assert encoded == [site.table]
        other = small_study(4, name="other")
        decide(site.path.parent, other, "accepted")
        agent.heed()
        assert len(encoded) == 2
