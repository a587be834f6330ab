"""The aggregator: what it takes, what it refuses and notes, when a round is over, and after a crash."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import DataError, ServiceUnavailableError, StudyError
from dpadmm.federation.protocol import Kind, LastContact, Message, digest_of, packed, unpacked
from dpadmm.federation.server import journal as journals
from dpadmm.federation.server.coordinator import StudyStoppedError, Uploads
from dpadmm.federation.server.journal import Journal, JournalError, result_of
from dpadmm.matrices.arrays import Floats
from dpadmm.studies.study import Study

ROUNDS = 4
TRAINING = {"method": "dp_admm", "n_rounds": ROUNDS, "noise_multiplier": 3.0}


def study(**more: Any) -> Study:
    return Study(name="three", features=("x", "y"), classes=(-1, 1), training=TRAINING, **more)


ALL = study()
SOME = study(allow_missed_rounds=True, quorum=2, deadline=10.0)


class Table:
    """An aggregator, and sites whose answers are written by hand."""

    def __init__(self, file: Path, agreed: Study) -> None:
        self.file, self.study = file, agreed
        if not file.exists():
            Journal.begin(file, agreed, ("a", "b", "c"))
        self.journal = Journal.open(file)
        self.run = Uploads(self.journal)

    def upload(self, site: str, value: float, **more: Any) -> bytes:
        values = np.full(self.study.shape, value)
        message = Message(Kind.UPLOAD, self.study.hash, self.run.round, values, digest_of(self.run.request), 10, 1)
        return packed(message._replace(**more))

    def say(self, site: str, value: float, **more: Any) -> None:
        self.run.take(site, self.upload(site, value, **more), 1.0)

    def here(self, *sites: str) -> None:
        answer = Message(
            Kind.PRESENT, self.study.hash, digest=digest_of(self.run.request), n_rows=10, rows_per_person=1
        )
        for site in sites:
            self.run.take(site, packed(answer), 1.0)

    def begin(self, *sites: str) -> None:
        self.here(*sites)
        assert self.run.over(11.0)
        self.run.begin()

    def refuse(self, site: str, code: str) -> None:
        no = Message(Kind.REFUSED, self.study.hash, digest=digest_of(self.run.request), code=code)
        self.run.take(site, packed(no), 1.0)

    @property
    def told(self) -> list[str]:
        return [event.text for event in self.journal.events()]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Table] = []

    def _make(agreed: Study = ALL) -> Table:
        made.append(Table(tmp_path / "s" / "journal.sqlite", agreed))
        return made[-1]

    yield _make
    for item in made:
        item.journal.close()


def mean(*values: float) -> Floats:
    return np.full(ALL.shape, np.mean(values))


def test_a_round_needs_everyone_unless_absences_are_agreed(make: Any) -> None:
    table = make()
    table.here("a", "b")
    assert not table.run.over(1e6)
    table.here("c")
    assert table.run.over(0.0)
    table.run.begin()
    table.say("a", 1.0)
    table.say("b", 2.0)
    assert not table.run.over(1e6)
    table.say("c", 6.0)
    assert table.run.over(0.0)
    table.run.close_round(0.1)
    assert table.run.rounds_done == 1
    assert np.array_equal(table.run.consensus, mean(1.0, 2.0, 6.0))


def test_enough_and_late_is_over(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    table.say("a", 1.0)
    assert not table.run.over(11.0)
    table.say("b", 2.0)
    assert not table.run.over(9.0)
    assert table.run.over(10.0)
    table.run.close_round(10.0)
    assert table.run.members["c"].state == "missing"
    table.say("a", 1.0)
    assert not table.run.over(0.0)
    table.say("b", 2.0)
    assert table.run.over(0.0), "who is away is not waited for"


def test_an_absent_sites_last_upload_stays_in_the_mean(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    for site, value in (("a", 1.0), ("b", 2.0), ("c", 6.0)):
        table.say(site, value)
    table.run.close_round(0.1)
    table.say("a", 3.0)
    table.say("b", 3.0)
    table.run.close_round(10.0)
    assert np.array_equal(table.run.consensus, mean(3.0, 3.0, 6.0))


def test_an_upload_after_its_round_is_in_the_next_mean_and_on_record(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    late = table.upload("c", 9.0)
    table.say("a", 1.0)
    table.say("b", 2.0)
    table.run.close_round(10.0)
    assert np.array_equal(table.run.consensus, mean(1.0, 2.0))
    table.run.take("c", late, 1.0)
    assert table.run.missing() == {"a", "b", "c"}, "it is back, and waited for"
    table.say("a", 1.0)
    table.say("b", 2.0)
    table.run.close_round(10.0)
    assert np.array_equal(table.run.consensus, mean(1.0, 2.0, 9.0))
    assert [(k, each.site, each.round) for k, each in table.journal.uploads()][-3:] == [
        (2, "a", 2), (2, "b", 2), (2, "c", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"round": 2}, "round 2, which was not requested"),
        ({"digest": "00" * 32}, "a different request"),
        ({"study": "00" * 32}, "another study"),
        ({"values": np.full(ALL.shape, np.nan)}, "not finite"),
        ({"values": np.zeros((5, 1))}, "shape"),
        ({"n_rows": 11}, "number of rows changed"),
        ({"kind": Kind.REQUEST, "n_rows": 0, "rows_per_person": 0, "digest": "00" * 32}, "is not allowed"),
    ],
)
def test_what_is_not_an_answer_is_refused_and_its_site_named(make: Any, change: dict[str, Any], text: str) -> None:
    table = make()
    table.begin("a", "b", "c")
    table.say("b", 1.0, **change)
    assert table.run.answered_now() == set()
    assert any(told.startswith("b: message refused") and text in told for told in table.told)


@pytest.mark.parametrize("data", [b"", b"garbage", bytes(10**6)])
def test_garbage_is_refused(make: Any, data: bytes) -> None:
    table = make()
    table.begin("a", "b", "c")
    table.run.take("b", data, 1.0)
    assert table.told[-1].startswith("b: message refused")


def test_two_different_answers_of_one_site(make: Any) -> None:
    table = make()
    table.begin("a", "b", "c")
    table.say("a", 1.0)
    table.say("a", 1.0)
    assert "two agents" not in table.told[-1]
    table.say("a", 2.0)
    assert "do two processes use the site's certificate?" in table.told[-1]
    table.say("b", 1.0)
    table.say("c", 1.0)
    table.run.close_round(0.1)
    assert np.array_equal(table.run.consensus, mean(1.0, 1.0, 1.0)), "the first counts"


def test_strangers_are_not_read(make: Any) -> None:
    table = make()
    table.begin("a", "b", "c")
    table.say("d", 1.0)
    text = "message ignored: not a member of this study, or revoked"
    assert table.told[-1] == f"unknown site: d: {text}"
    assert table.run.answered_now() == set()


def test_a_site_cannot_fill_the_journal(make: Any) -> None:
    table = make()
    table.begin("a", "b", "c")
    for i in range(1000):
        table.say("a", 1.0, round=5 + i)
    assert len(table.told) < 110


def test_refusals_that_last_and_those_that_do_not(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    table.refuse("c", "ledger-failed")
    assert not table.run.members["c"].out
    table.say("c", 1.0)
    assert table.run.members["c"].state == "present"
    table.refuse("b", "budget-cap")
    assert table.run.members["b"].out
    table.say("a", 1.0)
    assert table.run.over(0.0)
    table.run.close_round(0.1)
    table.refuse("c", "study-closed")
    with pytest.raises(StudyStoppedError, match="only 1 of 3 sites can still answer, but the quorum is 2"):
        table.run.over(0.0)


def test_a_refusal_of_an_earlier_request_is_old_news(make: Any) -> None:
    table = make()
    no = Message(Kind.REFUSED, ALL.hash, digest="00" * 32, code="budget-cap")
    table.run.take("a", packed(no), 1.0)
    assert table.run.members["a"].state == "unseen"


def test_a_revoked_site_is_out_at_once_and_may_come_back(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    table.run.revoke("c")
    table.say("c", 5.0)
    assert table.run.answered_now() == set()
    table.say("a", 1.0)
    table.say("b", 1.0)
    assert table.run.over(0.0)
    table.run.close_round(0.1)
    table.run.readmit("c")
    table.say("c", 5.0)
    assert table.run.answered_now() == {"c"}


def test_after_a_crash_the_same_bytes_are_asked_for(make: Any) -> None:
    table = make()
    table.begin("a", "b", "c")
    for site in "abc":
        table.say(site, 1.0 / 3.0)
    table.run.close_round(0.1)
    table.say("a", 7.0)  # of the open round nothing is on record
    asked = table.run.request
    table.journal.close()
    again = make()
    assert again.run.request == asked
    assert again.run.answered_now() == set()
    assert again.run.members["a"].answered == [1]
    message = unpacked(asked, study=ALL.hash, shape=lambda _: ALL.broadcast_shape, from_site=False)
    assert message.round == 2


def test_a_round_that_cannot_be_recorded_is_not_closed(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    table.begin("a", "b", "c")
    for site in "abc":
        table.say(site, 1.0)
    asked = table.run.request
    with sqlite3.connect(table.file) as other:  # a writer that holds it, as a full disk would fail it
        other.execute("BEGIN EXCLUSIVE")
        table.journal._database.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(JournalError, match="closed rounds are stored"):
            table.run.close_round(0.1)
        other.rollback()
    other.close()
    assert (table.run.rounds_done, table.run.request) == (0, asked)
    table.run.close_round(0.1)
    assert table.run.rounds_done == table.journal.rounds_done == 1


def test_one_aggregator_at_a_time(make: Any) -> None:
    table = make()
    with pytest.raises(JournalError, match="another server process"):
        Journal.open(table.file)
    with Journal.open(table.file, read_only=True) as looking:
        assert looking.members == ("a", "b", "c")
    with pytest.raises(JournalError, match="resume it"):
        Journal.begin(table.file, ALL, ("a",))


def test_a_quorum_beyond_the_sites_is_refused(tmp_path: Path) -> None:
    Journal.begin(tmp_path / "journal.sqlite", study(allow_missed_rounds=True, quorum=4), ("a", "b", "c"))
    with (
        Journal.open(tmp_path / "journal.sqlite") as journal,
        pytest.raises(StudyError, match="quorum = 4, but only 3"),
    ):
        Uploads(journal)


def test_absurd_uploads_stop_the_study_with_a_reason(make: Any) -> None:
    table = make()
    table.begin("a", "b", "c")
    for site in "abc":
        table.say(site, 1.7e308)
    with np.errstate(over="ignore"), pytest.raises(StudyStoppedError, match="too large"):
        table.run.close_round(0.1)


@pytest.mark.parametrize("k", [11, 2**32 - 1])
def test_numbers_that_no_privacy_report_allows_are_refused_before_they_count(make: Any, k: int) -> None:
    table = make()
    answer = Message(Kind.PRESENT, ALL.hash, digest=digest_of(table.run.request), n_rows=10, rows_per_person=k)
    table.run.take("a", packed(answer), 1.0)
    assert "this study cannot protect" in table.told[-1]
    assert table.journal.sizes() == {}


def test_a_site_that_spent_and_was_not_heard_is_in_the_privacy_report(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    for _ in range(ROUNDS):
        table.say("a", 1.0)
        table.say("b", 1.0)
        table.run.close_round(1.0)
    privacy = result_of(table.journal).privacy
    assert privacy.members(1) == {"c": 10}
    group, silent = privacy.groups
    assert (silent.releases[0].charged, silent.releases[0].released) == (ROUNDS, 0)
    assert group.releases[0].released == ROUNDS


def test_a_run_that_ended_early_is_reported_for_all_its_rounds_and_all_rows_of_a_person(make: Any) -> None:
    """Of every site with its own numbers: whoever ends a run may have seen why."""
    table = make()
    asked = {"digest": digest_of(table.run.request)}
    for site, (n_rows, k) in {"a": (10, 1), "b": (40, 3), "c": (20, 3)}.items():
        present = Message(Kind.PRESENT, ALL.hash, **asked, n_rows=n_rows, rows_per_person=k)
        table.run.take(site, packed(present), 1.0)
    table.run.begin()
    for site, (n_rows, k) in {"a": (10, 1), "b": (40, 3), "c": (20, 3)}.items():
        table.say(site, 1.0, n_rows=n_rows, rows_per_person=k)
    table.run.close_round(0.1)
    result = result_of(table.journal)
    stated = {
        name: (rows, group.rows_per_person, z, each.charged, each.released)
        for i, group in enumerate(result.privacy.groups)
        for name, rows in result.privacy.members(i).items()
        for _, z, each in group.gaussian_counts
    }
    assert stated == {
        "a": (10, 1, 3.0, ROUNDS, 1),
        "b": (40, 3, 3.0, ROUNDS, 1),
        "c": (20, 3, 3.0, ROUNDS, 1),
    }
    assert result.privacy.charged_releases.tolist() == [ROUNDS] * 3
    assert result.privacy.epsilon == result.privacy.planned_epsilon
    document = result.privacy.to_dict()
    one = exact_epsilon(ROUNDS**0.5 / 3.0, float(ALL.training.delta))
    assert document["epsilon"] == pytest.approx(one) == result.privacy.epsilon
    person = exact_epsilon(3 * ROUNDS**0.5 / 3.0, float(ALL.training.delta))
    assert document["epsilon_of_person"] == pytest.approx(person)


def test_saying_here_without_answering_holds_nobody_up(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    here = Message(Kind.PRESENT, SOME.hash, digest="00" * 32, n_rows=10, rows_per_person=1)
    table.say("a", 1.0)
    table.say("b", 1.0)
    table.run.close_round(10.0)
    table.run.take("c", packed(here), 1.0)
    table.say("a", 1.0)
    table.say("b", 1.0)
    assert table.run.over(0.0)


def test_one_site_cannot_crowd_out_what_is_told_of_others(make: Any) -> None:
    table = make(SOME)
    table.begin("a", "b", "c")
    for i in range(300):
        table.say("b", 1.0, round=5 + i)
        table.say(f"stranger-{i}", 1.0)
    table.run.revoke("a")
    assert table.told[-1].startswith("a: certificate revoked")
    assert len(table.told) < 60


def test_late_uploads_of_one_site_are_limited(make: Any) -> None:
    long = study(allow_missed_rounds=True, quorum=2, deadline=10.0)
    long = replace(long, training={**TRAINING, "n_rounds": 30})
    table = make(long)
    table.begin("a", "b", "c")
    late = []
    for _ in range(12):
        late.append(table.upload("c", 1.0))
        table.say("a", 1.0)
        table.say("b", 1.0)
        table.run.close_round(10.0)
    for data in late:
        table.run.take("c", data, 1.0)
    assert "too many late answers" in table.told[-1]
    assert len(table.run._late) == 8


class Seconds:
    """The monotonic clock of the coordinator, which passes only when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        monkeypatch.setattr("dpadmm.federation.server.coordinator.monotonic", lambda: self.now)


def test_the_first_phase_has_a_wait_of_its_own_and_ends_with_who_is_missing(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, table = Seconds(monkeypatch), make(SOME)
    run, run.start_wait = table.run, 60.0
    run.gives_up = True
    table.here("a", "b")
    assert not run.over(59.9), "the deadline is that of rounds"
    assert run.over(60.0)
    clock.now = 5.0  # all are silent now
    table.refuse("b", "ledger-failed")
    run.seen = {"b": LastContact(5.0, 0.0), "c": LastContact(5.0, 0.0)}
    assert not run.over(59.9)
    with pytest.raises(ServiceUnavailableError, match="0 of 3 sites connected within 60 seconds, 2 needed") as told:
        run.over(60.0)
    assert "a: silent since 20" in str(told.value)
    assert "b: refused: ledger-failed; c: connected, but no answer; has its owner accepted the study?" in str(
        told.value
    )
    clock.now = 1.0
    table.here("b", "c")
    run.begin()
    table.say("a", 1.0)
    table.say("b", 1.0)
    assert not run.over(59.9), "so has the first round after a restart"
    run.start_wait = None
    assert run.over(10.0)


def test_a_round_is_stalled_once_too_many_are_silent_or_refuse_or_it_takes_too_long(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, table = Seconds(monkeypatch), make(SOME)
    run = table.run
    run.watch()
    assert run.stalled == ()
    table.begin("a", "b", "c")
    run.opened = 1.0

    def at(seconds: float, **seen: float) -> tuple[str, ...]:
        clock.now, run.seen = seconds, {name: LastContact(when, 0.0) for name, when in seen.items()}
        run.watch()
        return run.stalled

    assert at(4.5, a=4.0) == (), "all spoke at 1.0"
    assert at(4.6, a=4.0, b=4.0) == (), "two are enough"
    assert at(4.6, a=4.0) == ("b", "c")
    assert at(31.0, a=31.0, b=31.0, c=31.0) == ()
    assert at(31.1, a=31.0, b=31.0, c=31.0) == ("a", "b", "c"), "they live, and do not answer"
    table.say("a", 1.0)
    table.say("b", 1.0)
    assert at(50.0) == ()
    told = [text.partition(" since 20")[0] for text in table.told if "stall" in text]
    ends = [f"{name}: stall of round 1 ended after 0 s" for name in "abc"]
    slow = [f"{name}: round 1 stalled: connected, but does not answer" for name in "abc"]
    gone = [f"{name}: round 1 stalled: silent" for name in "bc"]
    assert told == [*gone, *ends[1:], *slow, *ends], "each stall of each site, although they are seconds apart"


def test_a_refusal_is_an_event_when_it_begins_and_when_its_code_changes(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, table = Seconds(monkeypatch), make(SOME)
    table.begin("a", "b", "c")
    for clock.now in range(1, 200):
        table.refuse("a", "ledger-failed")
        table.refuse("b", "ledger-failed")
    table.refuse("a", "ledger-behind")
    table.say("a", 1.0)
    table.refuse("a", "ledger-behind")
    assert [text for text in table.told if text.startswith(("a: re", "b: re"))] == [
        "a: refused: ledger-failed",
        "b: refused: ledger-failed",
        "a: refused: ledger-behind",
        "a: reconnected",
        "a: refused: ledger-behind",
    ]


def test_every_missed_round_of_every_site_is_in_the_journal(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four incidents at three sites within seconds: none hides another."""
    table = make(replace(SOME, training={**TRAINING, "n_rounds": 12}))
    Seconds(monkeypatch)
    table.begin("a", "b", "c")
    for missing in ("a", "", "b", "", "c", "", "a"):
        for site in "abc":
            if site != missing:
                table.say(site, 1.0)
        table.run.close_round(0.1)
    missed = [f"{site}: missed the deadline of round {k}" for site, k in (("a", 1), ("b", 3), ("c", 5), ("a", 7))]
    back = [f"{site}: reconnected" for site in "abc"]
    assert [text for text in table.told if "missed" in text] == missed
    assert [text for text in table.told if "reconnected" in text] == back


def test_stalls_are_stored_with_their_ends_and_a_restart_ends_those_that_are_open(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, table = Seconds(monkeypatch), make(SOME)
    table.begin("a", "b", "c")
    table.run.opened, clock.now = 1.0, 31.1
    table.run.watch()
    table.say("b", 1.0)
    table.run.watch()  # b and c: the round needs two answers
    stalls = {stall.site: stall for stall in table.journal.stalls()}
    assert set(stalls) == {"a", "b", "c"}
    assert stalls["a"].end is stalls["c"].end is None
    assert (stalls["b"].end or "") >= stalls["b"].start
    assert stalls["b"].reason.startswith("silent since")
    shown = table.run.snapshot()
    assert (shown["state"], shown["since"]) == ("stalled", stalls["a"].start)
    assert shown["stalls"][1] == stalls["b"]._asdict()
    table.journal.close()
    again = make()
    again.run.watch()
    assert all(stall.end is not None for stall in again.journal.stalls())
    assert again.run.snapshot()["stalls"] == [stall._asdict() for stall in again.journal.stalls()]


def test_of_what_repeats_there_is_a_line_a_minute_with_its_number(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, table = Seconds(monkeypatch), make(SOME)
    table.begin("a", "b", "c")
    for clock.now in range(1, 62):
        table.run.note_counted("warning", "a", "wrong")
    told = [text for text in table.told if "wrong" in text]
    assert told[0] == "a: wrong"
    assert told[1].startswith("a: wrong (61 times since 20")
    assert len(told) == 2
    for n in range(100):
        table.run.note_counted("warning", "b", f"lie {n}")
        table.run.note_limited("info", "c", "reconnected")
    for site, text in (("b", "lie"), ("c", "reconnected")):
        assert sum(text in told for told in table.told) == 20
        assert table.told.count(f"{site}: more than 20 different events in a minute; further events are omitted") == 1


def test_a_site_that_is_away_for_ten_rounds_leaves_the_mean_which_is_said(make: Any) -> None:
    table = make(replace(SOME, training={**TRAINING, "n_rounds": 12}))
    table.begin("a", "b", "c")
    for k in range(1, 12):
        for site in ("a", "b") if k > 1 else ("a", "b", "c"):
            table.say(site, 4.0 if site == "c" else 1.0)
        table.run.close_round(0.1)
        left = [site["name"] for site in table.run.snapshot()["sites"] if site["left_out"]]
        assert left == (["c"] if k >= 11 else [])
        assert np.array_equal(table.run.consensus, mean(1.0) if k >= 11 else mean(1.0, 1.0, 4.0))
    text = "c: missed 10 rounds: its last upload left the mean until it answers again"
    assert table.told.count(text) == 1


def test_an_older_journal_is_brought_up_to_date_as_a_whole_and_a_newer_one_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.sqlite"
    Journal.begin(path, ALL, ("a", "b", "c"))

    def read(query: str) -> Any:
        with closing(sqlite3.connect(path)) as database:
            return database.execute(query).fetchall()

    format = "SELECT value FROM about WHERE name = 'format'"
    monkeypatch.setattr(journals, "VERSION_HERE", 3)
    steps = {1: "ALTER TABLE events ADD COLUMN site TEXT; UPDATE events SET site = 'x'", 2: "SELECT broken"}
    monkeypatch.setattr(journals, "MIGRATIONS", steps)
    with pytest.raises(JournalError, match="written by an older version of dpadmm: to update it: dpadmm server run"):
        Journal.open(path, read_only=True)
    with pytest.raises(JournalError, match="broken"):
        Journal.open(path)
    assert read(format) == [("dpadmm-journal/2",)], "the first step is whole, and nothing of the second is left"
    steps[2] = "CREATE TABLE more (a); INSERT INTO more VALUES (1); SELECT broken"
    with pytest.raises(JournalError, match="broken"):
        Journal.open(path)
    assert read("SELECT name FROM sqlite_master WHERE name = 'more'") == []
    steps[2] = "CREATE TABLE more (a)"
    with Journal.open(path) as journal:
        assert journal.members == ("a", "b", "c")
    assert read(format) == [("dpadmm-journal/3",)]
    monkeypatch.setattr(journals, "VERSION_HERE", 1)
    for read_only in (True, False):
        with pytest.raises(JournalError, match="written by a newer version of dpadmm: install that version"):
            Journal.open(path, read_only=read_only)
    assert read(format) == [("dpadmm-journal/3",)]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE about SET value = 'something else' WHERE name = 'format'")
    with pytest.raises(DataError, match="not a dpadmm journal"):
        Journal.open(path)
