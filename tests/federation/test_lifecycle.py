"""A study at a site from acceptance to its end: states, ledger, and messages in each state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from guards import POLICY, STUDY, guarded, refusal, rows, tiny

from dpadmm.errors import RefusalError
from dpadmm.federation.protocol import Kind, Message, packed, unpacked
from dpadmm.federation.site.lifecycle import Participation, participation
from dpadmm.federation.site.responder import ALARM_AFTER_FAILURE, REOPEN_AFTER, Responder
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Account, Ledger, read_ledger

ROUNDS = STUDY.training.planned_rounds
GAPS = replace(STUDY, allow_missed_rounds=True, quorum=1, deadline=1.0)
"""Some rounds may be missed, so that a finished study has unused budget."""

CALL = Message(Kind.CALL, GAPS.hash)


def end(rounds: int) -> bytes:
    return packed(Message(Kind.END, GAPS.hash, rounds))


def request(round: int, value: float = 0.0) -> bytes:
    return packed(Message(Kind.REQUEST, GAPS.hash, round, np.full(GAPS.shape, value)))


class Site:
    """A responder over a ledger, with rows that can be replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seed, self.encoded, self.lines = folder, 0, 0, list[str]()
        log = logging.Logger("a site")
        log.addHandler(handler := logging.Handler())
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        self.responder = Responder(self._guard, 1, log)
        self.responder.open()

    def _guard(self) -> AbstractContextManager[Guard]:
        return guarded(self.folder, self._rows, policy=replace(POLICY, epsilon=3.0))

    def _rows(self, study: object) -> object:
        self.encoded += 1
        return tiny(*rows(self.seed))(study)  # type: ignore[arg-type]

    def restart(self) -> None:
        """Restart: only the ledger is kept."""
        self.responder.close()
        self.responder = Responder(self._guard, 1, self.responder._log)
        self.responder.open()

    def say(self, data: bytes) -> str | None:
        answer = self.responder.answer(GAPS.hash, data)
        if answer is None:
            return None
        message = unpacked(answer, study=GAPS.hash, shape=GAPS.upload_shape, from_site=True)
        return message.code or message.kind.name

    def answer(self, *rounds: int) -> None:
        for round in rounds:
            assert self.say(request(round)) == "UPLOAD"

    @property
    def account(self) -> Account:
        return read_ledger(self.folder).accounts[GAPS.hash]

    @property
    def state(self) -> Participation:
        ending, obstacle = self.responder.endings(), self.responder.obstacles()
        return participation("accepted", ending.get(GAPS.hash, ""), obstacle.get(GAPS.hash))

    def check_closed(self, state: Participation, spent: Fraction) -> None:
        """Check that nothing more can be released, now or in a later process, and that charges stay."""
        for restarted in (False, True):
            if restarted:
                self.restart()
                assert self.responder.accept(GAPS) is not None
            assert self.state is state
            assert self.responder.obstacles() == {}
            assert self.responder.rounds() == {GAPS.hash: max(self.account.rounds)}
            answered = set(self.account.rounds)
            for round in range(1, ROUNDS + 1):
                if round not in answered:
                    assert self.say(request(round)) == "study-closed"
            assert (self.account.spent, self.account.promised, set(self.account.rounds)) == (spent, spent, answered)
        self.responder.close()
        with self._guard() as guard:  # nor by the guard itself
            assert refusal(guard._ledger.spend, GAPS.hash, ROUNDS, digest="ab" * 32, mu_squared=1e-9, upload=b"x").code
            assert guard.ledger_state.spent == guard.ledger_state.promised == spent


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.responder.close()


def lines_about_the_end(site: Site) -> list[str]:
    return [line for line in site.lines if "unused budget released" in line]


def test_study_is_finished_after_its_last_round(site: Site) -> None:
    assert site.responder.accept(GAPS) is None
    assert site.state is Participation.ACTIVE
    site.answer(1, 2, ROUNDS)
    site.responder.try_again()
    site.responder.try_again()
    assert lines_about_the_end(site) == [
        f"{GAPS.hash[:12]}: finished: all rounds are over; study closed, unused budget released"
    ]
    price = Fraction(POLICY.release_cost(GAPS.terms.plan.at(1)))  # type: ignore[arg-type]
    assert site.account.ending == "finish"
    assert site.say(request(ROUNDS)) == "UPLOAD", "the last answer may have been lost"
    site.check_closed(Participation.FINISHED, 3 * price)


def test_last_answer_is_repeated_after_a_restart_unless_rows_changed(site: Site) -> None:
    site.responder.accept(GAPS)
    site.answer(1, ROUNDS)
    first = site.responder.answer(GAPS.hash, request(ROUNDS))
    site.responder.try_again()
    site.restart()
    site.responder.accept(GAPS)
    assert site.encoded == 1, "rows are encoded when an answer is to be repeated"
    assert site.responder.answer(GAPS.hash, request(ROUNDS)) == first
    site.restart()
    site.seed = 1
    site.responder.accept(GAPS)
    assert [site.say(request(ROUNDS)) for _ in range(3)] == ["study-closed"] * 3
    assert site.encoded == 3, "and once"
    assert site.responder.obstacles() == {}, "data that changed after the end are no alarm"
    assert site.state is Participation.FINISHED


def test_study_completed_by_an_earlier_process_is_finished_for_any_rows(site: Site) -> None:
    site.responder.accept(GAPS)
    site.answer(ROUNDS)
    site.restart()
    site.seed = 1
    site.responder.accept(GAPS)
    assert (site.account.ending, site.state) == ("finish", Participation.FINISHED)


@pytest.mark.parametrize(
    ("rounds", "ending", "state", "text"),
    [
        (ROUNDS, "finish", Participation.FINISHED, "finished: all rounds are over"),
        (ROUNDS - 1, "end", Participation.ENDED, "ended by the server"),
        (0, "end", Participation.ENDED, "ended by the server"),
    ],
)
def test_study_is_closed_when_the_server_reports_its_end(
    site: Site, rounds: int, ending: str, state: Participation, text: str
) -> None:
    site.responder.accept(GAPS)
    site.answer(1, 3)
    spent = site.account.spent
    assert site.account.promised > spent > 0
    for _ in range(3):
        assert site.say(end(rounds)) is None
    assert site.account.ending == ending
    assert lines_about_the_end(site) == [f"{GAPS.hash[:12]}: {text}; study closed, unused budget released"]
    assert site.say(packed(CALL)) == ("study-closed" if ending == "end" else "PRESENT")
    assert site.say(end(ROUNDS)) is None, "the first ending stays"
    site.check_closed(state, spent)


def test_end_closes_a_blocked_study_and_clears_its_obstacle(site: Site) -> None:
    site.responder.accept(GAPS)
    site.answer(1)
    site.restart()
    site.seed = 1
    refused = site.responder.accept(GAPS)
    assert refused is not None
    assert refused.code == "data-changed"
    assert (site.state, site.responder.obstacles()) == (Participation.BLOCKED, {GAPS.hash: "data-changed"})
    assert site.say(request(2)) == "study-blocked"
    site.say(end(2))
    assert site.responder.obstacles() == {}
    site.check_closed(Participation.ENDED, site.account.spent)


def test_end_of_an_unaccepted_study_has_no_effect(site: Site) -> None:
    before = read_ledger(site.folder).fingerprint
    assert site.say(end(3)) is None
    assert read_ledger(site.folder).fingerprint == before
    assert site.responder.accept(GAPS) is None
    assert site.say(end(3)[:-1] + b"x") == "request-malformed"
    assert site.say(end(3) + b"x") == "request-malformed"
    assert site.state is Participation.ACTIVE


def test_unrecorded_end_stops_answers_and_is_recorded_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("dpadmm.federation.site.responder.monotonic", lambda: now)
    site.responder.accept(GAPS)
    site.answer(1)

    def fail(*_: object) -> None:
        raise RefusalError("ledger-failed", "the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "close_study", fail)
        site.say(end(1))
        assert site.say(request(2)) == "study-closed"
        site.responder.try_again()
        now += REOPEN_AFTER
        site.responder.reopen()
        site.responder.try_again()
        assert not site.responder.is_open
    assert not site.account.closed
    assert lines_about_the_end(site) == []
    now += REOPEN_AFTER
    site.responder.reopen()
    site.responder.try_again()
    assert len(lines_about_the_end(site)) == 1
    site.check_closed(Participation.ENDED, site.account.spent)


def test_restore_charges_the_study_and_reports_it_as_closed(site: Site) -> None:
    site.responder.accept(GAPS)
    site.answer(1)
    site.responder.close()
    with Ledger.open(site.folder, cap=read_ledger(site.folder).cap) as ledger:
        ledger.record_restore(0.0, about={}, shares=1)
    site.restart()
    assert site.responder.accept(GAPS) is not None
    assert site.say(packed(CALL)) == "study-closed"
    assert site.account.spent == Fraction(site.account.reservation.mu_squared)
    site.say(end(1))
    assert site.account.ending == "restore"
    site.check_closed(Participation.CHARGED, site.account.spent)


def test_refused_round_is_an_obstacle_until_a_round_is_answered(site: Site) -> None:
    site.responder.accept(GAPS)
    site.answer(2)
    assert site.say(request(1)) == "round-old"
    assert (site.state, site.responder.obstacles()) == (Participation.BLOCKED, {GAPS.hash: "round-old"})
    site.answer(3)
    assert site.state is Participation.ACTIVE
    step = site.responder._active[GAPS.hash].agent.step
    site.responder._active[GAPS.hash].agent.step = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    assert site.say(request(4)) == "release-failed"
    assert site.responder.obstacles() == {GAPS.hash: "release-failed"}
    site.responder._active[GAPS.hash].agent.step = step  # type: ignore[method-assign]
    site.answer(4)
    assert site.responder.obstacles() == {}


def test_failed_write_is_an_obstacle_until_a_write_succeeds_or_for_a_minute(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("dpadmm.federation.site.responder.monotonic", lambda: now)
    site.responder.accept(GAPS)

    def fail(*_: object, **__: object) -> None:
        raise RefusalError("ledger-failed", "the disk is full")

    for written in (True, False):
        with monkeypatch.context() as broken:
            broken.setattr(Ledger, "spend", fail)
            assert site.say(request(1 if written else 2)) == "ledger-failed"
            assert not site.responder.ledger_works
            assert site.say(request(1 if written else 2)) == "ledger-failed", "as long as it is closed"
        now += REOPEN_AFTER
        site.responder.reopen()
        assert (site.responder.is_open, site.responder.ledger_works) == (True, False)
        assert site.responder.obstacles() == {GAPS.hash: "ledger-failed"}
        if written:
            site.answer(1)
        else:
            now += ALARM_AFTER_FAILURE - REOPEN_AFTER - 0.5
            assert not site.responder.ledger_works
            now += 0.5
        assert site.responder.ledger_works
        assert site.responder.obstacles() == {}


def test_unrecorded_enrolment_is_repeated(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("dpadmm.federation.site.responder.monotonic", lambda: now)

    def fail(*_: object, **__: object) -> None:
        raise RefusalError("ledger-failed", "the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Ledger, "reserve", fail)
        assert site.responder.accept(GAPS) is not None
        assert site.responder.obstacles() == {GAPS.hash: "ledger-failed"}
        assert site.say(packed(CALL)) == "ledger-failed"
    now += REOPEN_AFTER
    assert site.say(packed(CALL)) == "PRESENT"


def test_study_in_the_ledger_without_a_decision_is_refused_and_named(site: Site) -> None:
    assert site.responder.reserved() == {}
    site.responder.accept(GAPS)
    assert site.responder.reserved() == {}
    site.restart()
    assert site.responder.reserved() == {GAPS.hash: GAPS.name}
    assert site.say(packed(CALL)) == "study-blocked"
    site.responder.leave(GAPS)
    assert site.responder.reserved() == {}


@pytest.mark.parametrize("kind", ["accepted", "declined", "left"])
def test_ending_in_the_ledger_takes_precedence_over_the_decision(kind: str) -> None:
    endings = {"finish": "finished", "end": "ended", "close": "left", "restore": "charged"}
    for ending, state in endings.items():
        assert participation(kind, ending, "data-changed") == state
        assert participation(kind, ending, None) == state
    open_states = {participation(kind, "", obstacle) for obstacle in (None, "data-changed")}
    assert open_states == ({"active", "blocked"} if kind == "accepted" else {kind})
    assert {*Participation} - {*endings.values()} == {"active", "blocked", "declined"}
