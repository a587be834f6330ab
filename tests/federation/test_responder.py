"""A site's responder: contents of refusals, contents of the owner's log, and valid decisions."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from guards import STUDY, guarded, refusal, rows, tiny
from guards import study as other_study

from dpadmm.errors import DataError, DPADMMError, RefusalError, StudyError
from dpadmm.federation.logs import MAX_LINES, make_log
from dpadmm.federation.protocol import Kind, Message, digest_of, packed, unpacked
from dpadmm.federation.site.decisions import decide, decisions
from dpadmm.federation.site.responder import Responder
from dpadmm.federation.transport.link import reason_of
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger, read_ledger


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.levels: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.levels.append(record.levelno)


@pytest.fixture
def heard() -> Iterator[Listener]:
    listener, log = Listener(), logging.getLogger("responder under test")
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield listener
    log.removeHandler(listener)


def responder_over(folder: Path, open_rows: object = None, k: int = 1) -> Responder:
    def open_guard() -> AbstractContextManager[Guard]:
        return guarded(folder, open_rows)  # type: ignore[arg-type]

    responder = Responder(open_guard, k, logging.getLogger("responder under test"))
    assert responder.restores is None
    responder.open()
    return responder


def call(study: str = STUDY.hash) -> bytes:
    return packed(Message(Kind.CALL, study))


def message_of(data: bytes | None) -> Message:
    assert data is not None
    return unpacked(data, study=STUDY.hash, shape=STUDY.upload_shape, from_site=True)


def test_reasons_about_rows_are_neither_sent_nor_logged(tmp_path: Path, heard: Listener) -> None:
    def bad(study: object) -> object:
        raise DataError("row 18 has the label 777")

    responder = responder_over(tmp_path, bad)
    refusal = responder.accept(STUDY)
    assert isinstance(refusal, RefusalError)
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-blocked"
    assert "777" not in " ".join(heard.lines)
    assert "run dpadmm site review for the reason" in " ".join(heard.lines)
    responder.close()


def test_failed_computation_is_logged_by_its_type_only(tmp_path: Path, heard: Listener) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    responder._active[STUDY.hash].agent.step = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    request = packed(Message(Kind.REQUEST, STUDY.hash, 1, np.zeros(STUDY.shape)))
    assert message_of(responder.answer(STUDY.hash, request)).code == "release-failed"
    assert heard.lines[-1].endswith("request failed (ZeroDivisionError)")
    responder.close()


def test_left_study_is_refused_as_closed(tmp_path: Path) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    assert message_of(responder.answer(STUDY.hash, call())).kind is Kind.PRESENT
    responder.leave(STUDY)
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-closed"
    assert responder.answer(other_study(n_rounds=3).hash, call()) is None
    responder.close()


def test_many_messages_cannot_fill_the_log(tmp_path: Path, heard: Listener) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    before = len(heard.lines)
    for _ in range(500):
        refused = message_of(responder.answer(STUDY.hash, b"garbage"))
        assert (refused.code, refused.digest) == ("request-malformed", digest_of(b"garbage"))
    assert len(heard.lines) == before + 1
    responder.close()


def test_varying_messages_cannot_fill_the_log(tmp_path: Path, heard: Listener, clock: Clock) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    heard.lines.clear()
    heard.levels.clear()
    for _ in range(100):
        for data in (b"garbage", b"rubbish!"):
            responder.answer(STUDY.hash, data)
    assert len(heard.lines) == 2
    for n in range(500):
        assert message_of(responder.answer(STUDY.hash, bytes(9 + n % 100))).code == "request-malformed"
    assert len(heard.lines) == MAX_LINES + 1 == 21
    assert heard.lines[-1].endswith("more than 20 different events in a minute; further events are omitted")
    clock.now = 60.0  # a minute later the owner is told again
    responder.answer(STUDY.hash, b"garbage")
    assert len(heard.lines) == MAX_LINES + 2
    responder.close()


class Clock:
    """Seconds since boot, advanced by tests only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("site.responder", "logs"):
        monkeypatch.setattr(f"dpadmm.federation.{module}.monotonic", made)
    return made


def request(round: int, value: float = 0.0) -> bytes:
    return packed(Message(Kind.REQUEST, STUDY.hash, round, np.full(STUDY.shape, value)))


def failing(responder: Responder, error: Exception) -> None:
    """Let the study's agent fail in this way from now on."""

    def step(*_: object) -> None:
        raise error

    responder._active[STUDY.hash].agent.step = step  # type: ignore[method-assign,assignment]


def test_warning_is_repeated_after_a_minute_and_a_new_one_immediately(
    tmp_path: Path, heard: Listener, clock: Clock
) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    heard.lines.clear()
    short, told = STUDY.hash[:12], []
    for at, data in ((0.0, b"garbage"), (59.9, b"garbage"), (60.0, b"garbage"), (61.0, request(3))):
        clock.now = at
        responder.answer(STUDY.hash, data)
        told.append(len(heard.lines))
    assert told == [1, 1, 2, 3]
    assert heard.lines[0] == f"{short}: refused an invalid message: invalid message size: 7 bytes"
    assert heard.lines[1].startswith(f"{heard.lines[0]} (3 times since 20")
    assert heard.lines[2].startswith(f"{short}: refused (round-missed): ")
    assert message_of(responder.answer(STUDY.hash, call())).kind is Kind.PRESENT
    responder.close()


def test_repeated_request_is_answered_from_the_cache(tmp_path: Path) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    assert responder.rounds() == {STUDY.hash: 0}
    first = responder.answer(STUDY.hash, request(1))
    assert message_of(first).kind is Kind.UPLOAD
    assert responder.rounds() == {STUDY.hash: 1}
    failing(responder, RuntimeError())
    assert responder.answer(STUDY.hash, request(1)) == first
    assert message_of(responder.answer(STUDY.hash, request(1, 0.5))).code == "release-failed"
    responder.close()


@pytest.mark.parametrize("code", ["ledger-failed", "ledger-damaged"])
def test_failed_ledger_is_closed_and_reopened_after_two_seconds(
    tmp_path: Path, heard: Listener, clock: Clock, code: str
) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    responder.answer(STUDY.hash, request(1))
    clock.now = 10.0
    failing(responder, RefusalError(code, "the disk is full"))
    assert message_of(responder.answer(STUDY.hash, request(2))).code == code
    assert heard.lines[-1] == "the ledger failed; closed, retrying: the disk is full"
    clock.now = 11.9
    with guarded(tmp_path):  # anybody may hold it now
        assert message_of(responder.answer(STUDY.hash, call())).code == code
        assert responder.obstacles() == {STUDY.hash: code}
        assert refusal(responder.leave, other_study(n_rounds=3)).code == "ledger-closed"
    clock.now = 12.0
    assert not responder.is_open
    if code == "ledger-failed":  # by itself, or by the next message
        responder.reopen()
        assert responder.is_open
    assert message_of(responder.answer(STUDY.hash, call())).kind is Kind.PRESENT
    assert responder.rounds() == {STUDY.hash: 1}
    responder.close()


@pytest.mark.parametrize("error", [RefusalError("ledger-locked", "held by another"), OSError("no such disk")])
def test_opening_the_ledger_is_retried_every_two_seconds(heard: Listener, clock: Clock, error: Exception) -> None:
    tried = []

    def open_guard() -> AbstractContextManager[Guard]:
        tried.append(clock.now)
        raise error

    responder = Responder(open_guard, 1, logging.getLogger("responder under test"))
    closed = responder.accept(STUDY)
    assert closed is not None
    assert closed.code == "ledger-closed"
    code = error.code if isinstance(error, RefusalError) else "ledger-failed"
    for clock.now in (0.0, 0.5, 1.9, 2.0, 3.9, 4.0):
        assert message_of(responder.answer(STUDY.hash, call())).code == code
    assert tried == [0.0, 2.0, 4.0]
    assert heard.lines == [f"cannot open the ledger; retrying: {error}"], "and not three times"
    assert heard.levels == [logging.ERROR]
    assert not responder.is_open


def test_owner_sees_the_reason_of_a_refused_study(tmp_path: Path, heard: Listener) -> None:
    responder, refused = responder_over(tmp_path), other_study(n_rounds=5001)
    reason = responder.accept(refused)
    assert reason is not None
    assert reason.code == "policy-rounds"
    assert heard.lines == [f"{refused.hash[:12]}: enrolment refused (policy-rounds): {reason}"]
    responder.close()


def test_failed_construction_of_an_agent_is_logged_by_its_type_only(
    tmp_path: Path, heard: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("row 18 has the label 777")

    monkeypatch.setattr("dpadmm.federation.site.responder.Agent", broken)
    responder = responder_over(tmp_path)
    refused = responder.accept(STUDY)
    assert refused is not None
    assert refused.code == "study-unfit"
    assert "777" not in str(refused)
    assert heard.lines == [f"{STUDY.hash[:12]}: enrolment failed (ValueError); retrying"]
    responder.close()


def reserved(folder: Path) -> bool:
    account = read_ledger(folder).accounts.get(STUDY.hash)
    return account is not None and not account.closed


def test_leaving_a_study_releases_its_reservation(tmp_path: Path) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    assert reserved(tmp_path)
    responder.leave(STUDY)
    assert not reserved(tmp_path)
    assert responder.rounds() == {}
    again = responder.accept(STUDY)  # it has ended in the ledger
    assert again is not None
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-closed"
    responder.close()


def test_declined_study_without_participation_gets_no_answer(tmp_path: Path) -> None:
    responder = responder_over(tmp_path)
    responder.leave(STUDY, declined=True)
    assert responder.answer(STUDY.hash, call()) is None
    assert responder.accept(STUDY) is None  # the owner's second thought
    responder.leave(STUDY, declined=True)
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-closed"
    responder.close()


def test_left_study_without_participation_is_refused_until_it_is_accepted(tmp_path: Path) -> None:
    responder = responder_over(tmp_path)
    responder.leave(STUDY)
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-closed"
    assert responder.accept(STUDY) is None
    assert message_of(responder.answer(STUDY.hash, call())).kind is Kind.PRESENT
    responder.close()


def test_declining_releases_the_reservation_of_an_earlier_process(tmp_path: Path) -> None:
    with guarded(tmp_path) as guard:
        guard.enrol(STUDY)
    responder = responder_over(tmp_path)
    responder.leave(STUDY, declined=True)
    assert not reserved(tmp_path)
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-closed"
    responder.close()


def test_study_is_not_answered_even_if_its_reservation_cannot_be_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)

    def leave(*_: object) -> None:
        raise RefusalError("ledger-failed", "the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Guard, "leave", leave)
        assert refusal(responder.leave, STUDY, declined=True).code == "ledger-failed"
    assert message_of(responder.answer(STUDY.hash, call())).code == "study-closed"
    assert reserved(tmp_path)
    responder.leave(STUDY)
    assert not reserved(tmp_path)
    responder.close()


def test_study_can_be_left_after_the_ledger_is_reopened(tmp_path: Path, clock: Clock) -> None:
    responder = responder_over(tmp_path)
    responder.accept(STUDY)
    failing(responder, RefusalError("ledger-failed", "the disk is full"))
    responder.answer(STUDY.hash, request(1))
    clock.now = 1.9
    assert refusal(responder.leave, STUDY).code == "ledger-closed"
    clock.now = 2.0
    responder.leave(STUDY)
    assert not reserved(tmp_path)
    assert responder.rounds() == {}
    responder.close()


def test_reported_rows_per_person_do_not_exceed_the_number_of_rows(tmp_path: Path) -> None:
    responder = responder_over(tmp_path, tiny(*rows(n_rows=8)), k=50)
    responder.accept(STUDY)
    answer = message_of(responder.answer(STUDY.hash, call()))
    assert (answer.n_rows, answer.rows_per_person) == (8, 8)
    assert answer.digest == digest_of(call())
    responder.close()


def test_log_is_readable_by_its_owner_only_after_rotation(tmp_path: Path) -> None:
    log = make_log("test", terminal=False, file=tmp_path / "site.log")
    for _ in range(20):
        log.info("x" * 2**17)
    files = list(tmp_path.glob("site.log*"))
    assert len(files) > 1
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in files)
    for handler in log.handlers:
        handler.close()


def test_decisions_writable_by_others_are_ignored(tmp_path: Path) -> None:
    decide(tmp_path, STUDY, "accepted")
    assert [made.kind for made in decisions(tmp_path)] == ["accepted"]
    for path in (tmp_path / "studies", tmp_path / "studies" / f"{STUDY.hash}.json", tmp_path):
        before = stat.S_IMODE(os.stat(path).st_mode)
        path.chmod(before | 0o020)
        with pytest.raises(StudyError, match="others can change it"):
            decisions(tmp_path)
        path.chmod(before)
    if os.geteuid() == 0:
        os.chown(tmp_path / "studies" / f"{STUDY.hash}.json", 1234, 1234)
        with pytest.raises(StudyError, match="belongs to another user"):
            decisions(tmp_path)


def test_invalid_decision_does_not_hide_the_others(tmp_path: Path) -> None:
    decide(tmp_path, STUDY, "accepted")
    (tmp_path / "studies" / "a.json").write_text("[" * 100_000)
    (tmp_path / "studies" / "b.json").write_text(json.dumps({"format": "other"}))
    told: list[DPADMMError] = []
    assert [made.study.hash for made in decisions(tmp_path, told.append)] == [STUDY.hash]
    assert len(told) == 2


def test_copied_decision_with_another_name_is_ignored(tmp_path: Path) -> None:
    """Otherwise an old copy could accept a study that its owner has left since."""
    decide(tmp_path, STUDY, "accepted")
    made = tmp_path / "studies" / f"{STUDY.hash}.json"
    (tmp_path / "studies" / f"{STUDY.hash} copy.json").write_bytes(made.read_bytes())
    decide(tmp_path, STUDY, "left")
    told: list[DPADMMError] = []
    assert [made.kind for made in decisions(tmp_path, told.append)] == ["left"]
    assert len(told) == 1
    with pytest.raises(DPADMMError, match="the file name is not the hash of the study"):
        decisions(tmp_path)


def test_broker_messages_are_escaped() -> None:
    assert "\x1b" not in reason_of(ValueError("\x1b[2J\rgone"))
    assert len(reason_of(ValueError("x" * 10**6))) < 300


def test_enrolment_is_retried_until_the_table_is_back(tmp_path: Path, heard: Listener, clock: Clock) -> None:
    there: dict[str, object] = {"rows": 0}
    tries = 0

    def open_rows(study: object) -> object:
        nonlocal tries
        tries += 1
        if there["rows"] is None:
            raise DataError("no such table")
        return tiny(*rows(there["rows"]))(study)  # type: ignore[arg-type]

    responder = responder_over(tmp_path, open_rows)
    assert responder.accept(STUDY) is None
    responder.close()
    for state, code in ((None, "study-unfit"), (1, "data-changed")):
        there["rows"] = state
        responder.open()
        refused = responder.accept(STUDY)
        assert refused is not None
        assert refused.code == code
        assert responder.obstacles() == {STUDY.hash: code}
        tries = 0
        for pause in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
            clock.now += pause - 0.25
            responder.try_again()
            before = tries
            clock.now += 0.25
            responder.try_again()
            assert tries == before + 1, pause
        assert tries == 7
        there["rows"] = 0
        clock.now += 61.0
        responder.try_again()
        assert responder.obstacles() == {}
        assert message_of(responder.answer(STUDY.hash, call())).kind is Kind.PRESENT
        responder.close()
    told = [line for line in heard.lines if "retrying" in line]
    assert 2 <= len(told) < 20
    levels = {level for line, level in zip(heard.lines, heard.levels, strict=True) if line in told}
    assert levels == {logging.ERROR}


def test_number_of_restores_is_available_while_the_ledger_is_open(tmp_path: Path) -> None:
    def restores_told() -> int | None:
        responder = responder_over(tmp_path)
        told = responder.restores
        responder.close()
        assert responder.restores is None
        return told

    assert restores_told() == 0
    with Ledger.open(tmp_path, cap=read_ledger(tmp_path).cap) as ledger:
        ledger.record_restore(0.0, about={}, shares=1)
    assert restores_told() == 1


def test_slow_attempts_are_retried_less_often(tmp_path: Path, clock: Clock) -> None:
    tries = 0

    def slow(study: object) -> object:
        nonlocal tries
        tries += 1
        clock.now += 30.0
        raise DataError("no such table")

    responder = responder_over(tmp_path, slow)
    responder.accept(STUDY)
    clock.now += 299.0
    responder.try_again()
    assert tries == 1
    clock.now += 2.0
    responder.try_again()
    assert tries == 2
    responder.leave(STUDY, declined=True)
    clock.now += 1_000.0
    responder.try_again()
    assert tries == 2, "nobody wants it any more"
    responder.close()


def test_permanent_failures_are_not_retried(tmp_path: Path, clock: Clock) -> None:
    too_long = other_study(n_rounds=10**6)
    responder = responder_over(tmp_path, lambda _: pytest.fail("rows were read"))
    assert responder.accept(too_long) is not None
    assert responder.obstacles() == {too_long.hash: "policy-rounds"}
    clock.now += 1e6
    responder.try_again()
    responder.close()
