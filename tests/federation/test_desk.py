"""A site's side: what leaves with a "no", what stays in the owner's log, and whose decisions count."""

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

from dpadmm.errors import DataError, DpadmmError, Refusal, StudyError
from dpadmm.federation.desk import Desk
from dpadmm.federation.messages import Kind, Message, digest_of, packed, unpacked
from dpadmm.federation.nats_link import _why
from dpadmm.federation.site_process import make_log
from dpadmm.federation.site_studies import decide, decisions
from dpadmm.privacy.guard import Guard
from guards import STUDY, guarded, rows, tiny
from guards import study as other_study


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[Listener]:
    listener, log = Listener(), logging.getLogger("desk under test")
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield listener
    log.removeHandler(listener)


def desk_over(folder: Path, open_rows: object = None, k: int = 1) -> Desk:
    def open_guard() -> AbstractContextManager[Guard]:
        return guarded(folder, open_rows)  # type: ignore[arg-type]

    desk = Desk(open_guard, k, logging.getLogger("desk under test"))
    desk.open()
    return desk


def call(study: str = STUDY.hash) -> bytes:
    return packed(Message(Kind.CALL, study))


def said(data: bytes | None) -> Message:
    assert data is not None
    return unpacked(data, study=STUDY.hash, shape=STUDY.shape, from_site=True)


def test_reasons_about_rows_reach_neither_the_wire_nor_the_log(tmp_path: Path, heard: Listener) -> None:
    def bad(study: object) -> object:
        raise DataError("row 18 has the label 777")

    desk = desk_over(tmp_path, bad)
    refusal = desk.accept(STUDY)
    assert isinstance(refusal, Refusal)
    assert said(desk.answer(STUDY.hash, call())).code == "study-unknown"
    assert "777" not in " ".join(heard.lines)
    assert "agent review says why" in " ".join(heard.lines)
    desk.close()


def test_a_computation_that_fails_is_named_by_its_kind_alone(tmp_path: Path, heard: Listener) -> None:
    desk = desk_over(tmp_path)
    desk.accept(STUDY)
    desk._served[STUDY.hash].agent.step = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    request = packed(Message(Kind.REQUEST, STUDY.hash, 1, np.zeros(STUDY.shape)))
    assert said(desk.answer(STUDY.hash, request)).code == "release-failed"
    assert heard.lines[-1].endswith("could not be answered (ZeroDivisionError)")
    desk.close()


def test_a_study_that_was_left_is_told_so(tmp_path: Path) -> None:
    desk = desk_over(tmp_path)
    desk.accept(STUDY)
    assert said(desk.answer(STUDY.hash, call())).kind is Kind.PRESENT
    desk.leave(STUDY)
    assert said(desk.answer(STUDY.hash, call())).code == "study-closed"
    assert desk.answer(other_study(n_rounds=3).hash, call()) is None
    desk.close()


def test_who_sends_much_cannot_fill_the_log(tmp_path: Path, heard: Listener) -> None:
    desk = desk_over(tmp_path)
    desk.accept(STUDY)
    before = len(heard.lines)
    for _ in range(500):
        desk.answer(STUDY.hash, b"garbage")
    assert len(heard.lines) == before + 1
    desk.close()


def test_no_more_rows_of_a_person_are_told_than_there_are(tmp_path: Path) -> None:
    desk = desk_over(tmp_path, tiny(*rows(n_rows=8)), k=50)
    desk.accept(STUDY)
    answer = said(desk.answer(STUDY.hash, call()))
    assert (answer.n_rows, answer.rows_per_person) == (8, 8)
    assert answer.digest == digest_of(call())
    desk.close()


def test_the_log_is_for_its_owner_alone_also_when_it_is_begun_anew(tmp_path: Path) -> None:
    log = make_log(tmp_path, loud=False)
    for _ in range(20):
        log.info("x" * 2**17)
    files = list(tmp_path.glob("agent.log*"))
    assert len(files) > 1
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in files)
    for handler in log.handlers:
        handler.close()


def test_decisions_that_others_could_have_made_do_not_count(tmp_path: Path) -> None:
    decide(tmp_path, STUDY, "accepted")
    assert [made.decision for made in decisions(tmp_path)] == ["accepted"]
    for path in (tmp_path / "studies", tmp_path / "studies" / f"{STUDY.hash}.json", tmp_path):
        before = stat.S_IMODE(os.stat(path).st_mode)
        path.chmod(before | 0o020)
        with pytest.raises(StudyError, match="others may change it"):
            decisions(tmp_path)
        path.chmod(before)
    if os.geteuid() == 0:
        os.chown(tmp_path / "studies" / f"{STUDY.hash}.json", 1234, 1234)
        with pytest.raises(StudyError, match="another user's"):
            decisions(tmp_path)


def test_one_bad_decision_does_not_hide_the_others(tmp_path: Path) -> None:
    decide(tmp_path, STUDY, "accepted")
    (tmp_path / "studies" / "a.json").write_text("[" * 100_000)
    (tmp_path / "studies" / "b.json").write_text(json.dumps({"format": "other"}))
    told: list[DpadmmError] = []
    assert [made.study.hash for made in decisions(tmp_path, told.append)] == [STUDY.hash]
    assert len(told) == 2


def test_a_copy_of_a_decision_under_another_name_is_none(tmp_path: Path) -> None:
    """Else a copy from before would accept again what its owner has left since."""
    decide(tmp_path, STUDY, "accepted")
    made = tmp_path / "studies" / f"{STUDY.hash}.json"
    (tmp_path / "studies" / f"{STUDY.hash} copy.json").write_bytes(made.read_bytes())
    decide(tmp_path, STUDY, "left")
    told: list[DpadmmError] = []
    assert [made.decision for made in decisions(tmp_path, told.append)] == ["left"]
    assert len(told) == 1
    with pytest.raises(DpadmmError, match="its name is not the hash of its study"):
        decisions(tmp_path)


def test_what_a_broker_says_cannot_write_on_the_terminal() -> None:
    assert "\x1b" not in _why(ValueError("\x1b[2J\rgone"))
    assert len(_why(ValueError("x" * 10**6))) < 300
