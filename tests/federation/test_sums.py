"""The server of masked answers: phases, storage before sending, aborted rounds and their causes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked import MOST_ROWS, NAMES, ROWS, key, masked_study

from dpadmm.accounting.release_plan import gaussian
from dpadmm.federation.protocol import Kind, Message, digest_of, packed
from dpadmm.federation.server.coordinator import StudyStoppedError
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.sums import Sums
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.masking import Masks, bitmap_of

STUDY = masked_study()
ALL = masked_study(allow_missed_rounds=False, quorum=None, deadline=None)


class Table:
    """A server, and sites whose messages are built by hand with real masks."""

    def __init__(self, file: Path, study: Study) -> None:
        self.file, self.study = file, study
        if not file.exists():
            Journal.begin(file, study, NAMES)
        self.journal = Journal.open(file)
        self.run = Sums(self.journal)

    def masks(self, name: str) -> Masks:
        return Masks(self.study.hash, key(name), [bytes.fromhex(item.key) for item in self.study.roster])

    def say(self, name: str, kind: Kind, to: bytes, **more: Any) -> None:
        message = Message(kind, self.study.hash, self.run.round, None, digest_of(to), ROWS[name], 1)
        self.run.take(name, packed(message._replace(**more)), 1.0)

    def present(self, *names: str, tags: bytes | None = None) -> None:
        for name in names:
            self.say(name, Kind.PRESENT, self.run.request, body=self.masks(name).tags if tags is None else tags)

    def ready(self, *names: str, **more: Any) -> None:
        for name in names:
            self.say(name, Kind.READY, self.run.request, **{"body": self.masks(name).tags, **more})

    def answer(self, name: str, members: str = "abcd", request: str = "00" * 32, value: int = 0) -> np.ndarray:
        """Send x = value, masked for the members, which are those of the round by default."""
        over = bitmap_of([NAMES.index(member) for member in members], len(NAMES))
        shape = self.study.upload_shape(self.run.round)
        mask = self.masks(name).for_round(self.run.round, request, over).numbers(int(np.prod(shape)))
        return (mask + value).reshape(shape)

    def masked(self, *names: str, members: str = "abcd", **more: Any) -> None:
        for name in names:
            numbers = more.get("masked", self.answer(name, members, value=1000 * (NAMES.index(name) + 1)))
            self.say(name, Kind.MASKED, self.mask, **{**more, "masked": numbers})

    @property
    def mask(self) -> bytes:
        """Return the message that requests masked answers."""
        return self.run.messages(again=False)[-1]

    def begin(self, *names: str) -> None:
        self.present(*names)
        assert self.run.over(11.0)
        self.run.proceed(0.1)

    def opened(self, *names: str, waited: float = 11.0) -> None:
        """Let these sites be ready and become the members of the round."""
        self.ready(*names)
        assert self.run.over(waited)
        self.run.proceed(0.1)

    def round(self, names: str = "abcd") -> None:
        """Run a round without faults."""
        self.opened(*names)
        self.masked(*names, members=names)
        assert self.run.over(0.0)
        self.run.proceed(0.1)

    @property
    def told(self) -> list[str]:
        return [event.text for event in self.journal.events()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Table] = []

    def _make(study: Study = STUDY) -> Table:
        made.append(Table(tmp_path / "s" / "journal.sqlite", study))
        return made[-1]

    yield _make
    for item in made:
        item.journal.close()


def test_round_is_ready_then_opened_then_summed(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    request = table.run.request
    assert table.run.messages(again=False) == [request]
    table.ready("a", "b", "c")
    assert not table.run.over(9.0)
    table.ready("d")
    assert table.run.over(0.0)
    assert table.journal.openings() == []
    table.run.proceed(0.25)
    (opening,) = table.journal.openings()
    assert (opening.round, opening.request) == (1, digest_of(request))
    expected = Message(Kind.MASK, STUDY.hash, 1, digest=digest_of(request), body=bitmap_of(range(4), 4))
    assert table.run.messages(again=False) == [packed(expected)]
    assert table.run.messages(again=True) == [request, packed(expected)]
    table.masked("a", "b", "c")
    assert not table.run.over(9.0)
    table.masked("d")
    assert table.run.over(0.0)
    table.run.proceed(0.5)
    assert table.run.rounds_done == 1
    assert np.all(table.journal.sums()[1] == 1000 + 2000 + 3000 + 4000)
    assert table.journal.seconds() == [0.75]
    assert table.run.members["a"].answered == [1]
    assert table.journal.answered() == {name: [1] for name in NAMES}


def test_quorum_opens_a_round_at_its_deadline(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    table.ready("a", "c", "d")
    assert not table.run.over(9.0)
    assert table.run.over(10.0)
    table.run.proceed(10.0)
    assert table.run.missing() == {"a", "c", "d"}
    table.ready("b")  # too late for this one
    table.masked("b", members="acd")
    assert "not a member of round 1" in table.told[-1]
    table.masked("a", "c", "d", members="acd")
    table.run.proceed(0.1)
    assert np.all(table.journal.sums()[1] == 1000 + 3000 + 4000)
    assert "b: missed the deadline of round 1" in table.told


def test_journal_contains_the_sum_but_no_masked_answers(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    table.opened(*NAMES)
    answers = {name: table.answer(name, value=12345 + NAMES.index(name)) for name in NAMES}
    for name in NAMES:
        table.masked(name, masked=answers[name])
    table.run.proceed(0.1)
    table.journal.close()
    files = b"".join(path.read_bytes() for path in table.file.parent.iterdir())
    for name in NAMES:
        numbers = (answers[name], np.full_like(answers[name], 12345 + NAMES.index(name)))  # y_i and x_i
        assert not any(number.astype("<i8").tobytes()[:8] in files for number in numbers)
    total = np.full_like(answers["a"], sum(12345 + i for i in range(4)))
    assert total.astype("<i8").tobytes() in files


def test_missing_member_aborts_the_round(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    table.round()
    before = table.run.consensus
    table.opened(*NAMES)
    late = table.answer("b", value=2000)
    mask = table.mask
    table.masked("a", "c", "d")
    assert not table.run.over(9.0)
    assert table.run.over(10.0)
    table.run.proceed(10.0)
    assert table.run.rounds_done == 2
    assert np.array_equal(table.run.consensus, before)
    assert [(aborted.round, aborted.reason, aborted.sites) for aborted in table.journal.aborted_rounds()] == [
        (2, "missing", ("b",))
    ]
    table.say("b", Kind.MASKED, mask, masked=late, round=2)  # completes it later: dropped
    assert table.journal.sums().keys() == {1}
    assert table.run.answered_now() == set()
    table.ready(*NAMES)
    assert table.run.answered_now() == {"a", "c", "d"}, "it sits out a round"
    assert table.run.over(0.0), "and is not waited for"
    table.run.proceed(0.1)
    table.masked("a", "c", "d", members="acd")
    table.run.proceed(0.1)
    table.ready(*NAMES)
    assert table.run.answered_now() == set(NAMES)
    assert table.run.rounds_done == 3


def test_site_is_excluded_after_two_aborted_rounds(make: Any) -> None:
    table = make(masked_study(quorum=3))
    table.begin(*NAMES)
    for _ in range(2):
        table.opened(*NAMES)
        table.masked("a", "b", "c")
        table.run.proceed(10.0)
        if table.run.rounds_done == 1:
            table.round("abc")
    assert len(table.journal.aborted_rounds()) == 2
    assert table.run.members["d"].state == "excluded"
    assert "d: excluded: it aborted 2 rounds" in table.told
    table.ready(*NAMES)
    assert table.run.answered_now() == {"a", "b", "c"}
    assert table.run.over(0.0)
    table.journal.close()
    again = make(table.study)
    assert again.run.active_sites() == {"a", "b", "c"}
    again.opened("a", "b", "c")
    again.masked("a", "b", members="abc")
    again.run.revoke("c")
    assert again.run.over(0.0), "a member that is out never answers"
    again.run.proceed(0.1)
    with pytest.raises(StudyStoppedError, match="only 2 of 4 sites can still answer, but the quorum is 3"):
        again.run.over(0.0)


def test_site_that_aborted_a_round_participates_if_the_quorum_needs_it(make: Any) -> None:
    table = make(masked_study(quorum=4))
    table.begin(*NAMES)
    table.opened(*NAMES)
    table.masked("a", "b", "c")
    table.run.proceed(10.0)
    table.ready(*NAMES)
    assert table.run.answered_now() == set(NAMES)


def test_site_that_aborted_a_round_participates_if_others_are_absent(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    table.opened(*NAMES)
    table.masked("a", "b", "c")
    table.run.proceed(10.0)
    table.ready("a", "b", "d")
    assert not table.run.over(9.0), "c is waited for"
    assert table.run.over(10.0)
    assert table.run.answered_now() == {"a", "b", "d"}


def test_study_without_missed_rounds_waits_for_all_members(make: Any) -> None:
    table = make(ALL)
    table.begin(*NAMES)
    table.opened(*NAMES, waited=0.0)
    table.masked("a", "b", "c")
    assert not table.run.over(1e9)
    table.masked("d")
    assert table.run.over(0.0)


@pytest.mark.parametrize("where", ["before the opening", "after the opening", "opening lost"])
def test_after_a_crash_the_same_bytes_are_asked_for(make: Any, where: str) -> None:
    table = make()
    table.begin(*NAMES)
    table.round()
    table.ready("a", "b", "c")
    if where != "before the opening":
        table.run.proceed(10.0)
        table.masked("a", members="abc")
    request, sent = table.run.request, table.run.messages(again=True)
    table.journal.close()
    if where == "opening lost":  # as by an old copy of the journal
        with sqlite3.connect(table.file) as database:
            database.execute("DELETE FROM openings WHERE round = 2")
        database.close()
    again = make()
    assert again.run.request == request
    if where == "after the opening":
        assert again.run.messages(again=False) == again.run.messages(again=True) == sent
        assert again.run.missing() == {"a", "b", "c"}
        again.masked("a", "b", "c", members="abc")
        again.run.proceed(0.1)
        assert np.all(again.journal.sums()[2] == 1000 + 2000 + 3000)
        return
    again.opened(*NAMES)
    if where == "opening lost":  # "a" masked over others before
        no = Message(Kind.REFUSED, STUDY.hash, digest=digest_of(again.mask), code="round-forked")
        again.run.take("a", packed(no), 1.0)
        assert again.run.over(0.0)
        again.run.proceed(0.1)
        assert again.journal.aborted_rounds()[0].sites == ("a",)
        assert again.run.active_sites() == set(NAMES), "it can answer other rounds"
    else:
        again.masked(*NAMES)
        again.run.proceed(0.1)
        assert np.all(again.journal.sums()[2] == 10_000)


def test_opening_is_stored_before_masks_are_requested(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    table.begin(*NAMES)
    table.ready(*NAMES)
    request = table.run.request

    def full(opening: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(table.journal, "open_round", full)
    with pytest.raises(OSError, match="no space"):
        table.run.proceed(0.1)
    assert table.run.messages(again=True) == [request]


def test_first_of_two_different_answers_of_a_site_counts(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    table.opened(*NAMES)
    table.masked(*NAMES)
    table.masked("a")
    assert "two agents" not in table.told[-1]
    table.masked("a", masked=table.answer("a", value=7))
    assert "do two processes use the site's certificate?" in table.told[-1]
    table.run.proceed(0.1)
    assert np.all(table.journal.sums()[1] == 10_000)


@pytest.mark.parametrize("story", ["other members", "other point", "wrong masks"])
def test_inconsistent_requests_or_wrong_masks_abort_the_round(make: Any, story: str) -> None:
    table = make()
    table.begin(*NAMES)
    table.opened(*NAMES)
    told = {"other members": {"members": "abc"}, "other point": {"request": "01" * 32}, "wrong masks": {}}[story]
    wrong = table.answer("b", **told) if told else np.zeros(STUDY.upload_shape(1), np.int64)
    table.masked("a", "c", "d")
    table.masked("b", masked=wrong)
    table.run.proceed(0.1)
    assert table.journal.sums() == {}
    assert [aborted.reason for aborted in table.journal.aborted_rounds()] == ["garbled"]
    table.ready(*NAMES)
    assert table.run.answered_now() == set(NAMES), "nobody can tell whose masks are wrong"


def test_garbled_rounds_stop_a_study_early(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    for k in (1, 2, 3):
        table.opened(*NAMES)
        table.masked(*NAMES, masked=np.full(STUDY.upload_shape(k), 2**61))
        table.run.proceed(0.1)
    with pytest.raises(StudyStoppedError, match="3 sums were garbled"):
        table.run.over(0.0)
    table.journal.close()
    with pytest.raises(StudyStoppedError, match="before round 4"):  # whatever starts it again
        make().run.over(0.0)


def test_bound_of_a_sum_depends_on_its_members(make: Any) -> None:
    """Just within and just beyond the range of rows and noise of these sites."""
    release = gaussian(STUDY.terms.plan.at(1))
    size = int(np.prod(STUDY.upload_shape(1)))
    grid = Lattice(STUDY.terms.statistics[release.statistic].row_norm, size, MOST_ROWS)
    most = 3 * (grid.max_sum + 64 * grid.noise_scale(release.noise_multiplier, 2))
    for beyond, aborted_rounds in ((0, 0), (1, 1)):
        table = make()
        if not table.run.called:
            table.begin("a", "b", "c")
        table.opened("a", "b", "c")
        table.masked("a", "b", members="abc", masked=np.zeros(STUDY.upload_shape(table.run.round), np.int64))
        sums = np.zeros(STUDY.upload_shape(1), np.int64)
        sums[0] = -(most + beyond)
        table.masked("c", masked=sums)
        table.run.close_round()
        assert len(table.journal.aborted_rounds()) == aborted_rounds
        table.journal.close()
        table.file.unlink()


def test_mismatched_keys_are_named_before_budget_is_spent(make: Any) -> None:
    table = make(ALL)
    table.present("a", "b", "c")
    right = table.masks("d").tags
    table.present("d", tags=right[:8] + bytes(8) + right[16:])
    assert [told for told in table.told if "does not match" in told] == [
        "d: its key does not match that of b: one of them does not use the key in the study"
    ]
    assert not table.run.over(1e9)
    assert table.journal.openings() == []
    table.present("d")  # with the right key
    assert table.run.over(0.0)


def test_site_with_a_mismatched_key_is_excluded_if_permitted(make: Any) -> None:
    table = make()
    table.present("a", "b", "c")
    table.present("d", tags=bytes(range(24)) + bytes(8))
    assert not table.run.over(9.0)
    assert table.run.over(10.0)
    table.run.proceed(10.0)
    table.ready("a", "b", "c")
    table.ready("d", body=bytes(range(24)) + bytes(8))
    assert table.run.over(0.0), "there is nothing more to wait for"
    table.run.proceed(0.1)
    assert table.run.missing() == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"round": 2}, "round 2, which was not requested"),
        ({"digest": "00" * 32}, "a different request for round 1"),
        ({"study": "00" * 32}, "another study"),
        ({"n_rows": 21}, "number of rows changed"),
        ({"body": b""}, "unexpected body"),
    ],
)
def test_what_is_not_an_answer_is_refused_and_its_site_named(make: Any, change: dict[str, Any], text: str) -> None:
    table = make()
    table.begin(*NAMES)
    table.ready("a", **change)
    assert table.run.answered_now() == set()
    assert any(told.startswith("a: message refused") and text in told for told in table.told)
    table.opened(*NAMES)
    if "body" not in change:
        table.masked("a", **change)
        assert table.run.answered_now() == set()


def test_site_with_too_many_rows_is_refused(make: Any) -> None:
    table = make()
    table.say("a", Kind.PRESENT, table.run.request, body=table.masks("a").tags, n_rows=MOST_ROWS + 1)
    assert f"{MOST_ROWS + 1} rows exceed the study's limit of {MOST_ROWS} per site" in table.told[-1]


def test_status_contains_members_aborted_rounds_and_both_epsilons(make: Any) -> None:
    table = make()
    table.begin(*NAMES)
    table.round("abc")
    table.opened(*NAMES)
    table.masked("a", "b", "c")
    table.run.proceed(10.0)
    seen = table.run.snapshot()
    by = {site["name"]: site for site in seen["sites"]}
    assert [aborted["round"] for aborted in seen["aborted_rounds"]] == [2]
    assert seen["min_honest_sites"] == 2
    assert by["a"]["epsilon"] > by["d"]["epsilon"] > 0.0, "an aborted round is charged"
    assert by["a"]["epsilon_if_others_collude"] > by["a"]["epsilon"]
    assert seen["study"]["epsilon_if_others_collude"] > seen["study"]["epsilon"]
    assert (by["a"]["answered"], by["d"]["answered"]) == (1, 0)
    assert by["d"]["member"]
