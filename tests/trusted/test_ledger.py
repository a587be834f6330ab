"""Rules of the ledger: reservations, caps, rounds and replay, and a state machine compared with a model."""

from __future__ import annotations

import math
import os
import pickle
import re
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from looping import case

from dpadmm.accounting.calibration import mu_from_epsilon, total_noise_multiplier
from dpadmm.accounting.gaussian import Release, gaussian_mu
from dpadmm.errors import DPADMMError, RefusalError
from dpadmm.trusted.ledger import DATABASE, MARK, Account, Ledger, LedgerState, Record, read_ledger

A, B, C = (letter * 64 for letter in "abc")
DIGEST, OTHER_DIGEST = "1" * 64, "2" * 64


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        yield ledger


def spend(ledger, study=A, round=1, mu_squared=0.25, upload=b"upload", digest=DIGEST):
    ledger.spend(study, round, digest=digest, mu_squared=mu_squared, upload=upload)


def refusal(act, *words, **more) -> RefusalError:
    with pytest.raises(RefusalError) as refused:
        act(*words, **more)
    return refused.value


def test_refusal_has_a_code_and_a_message():
    refused = RefusalError("round-old", "too old")
    assert (refused.code, str(refused)) == ("round-old", "too old")
    assert isinstance(refused, DPADMMError)
    copy = pickle.loads(pickle.dumps(refused))
    assert (copy.code, str(copy)) == ("round-old", "too old")


def test_closing_a_study_frees_its_unspent_reservation(ledger):
    ledger.reserve(A, 0.75, about={"name": "first"})
    state = ledger.status()
    assert (state.cap, state.spent, state.promised) == (1.0, 0, 0.75)
    spend(ledger)
    assert (state.spent, state.promised) == (0.25, 0.75)
    ledger.close_study(A)
    ledger.close_study(A)
    assert (state.spent, state.promised) == (0.25, 0.25)
    assert refusal(spend, ledger, round=2).code == "study-closed"
    assert refusal(ledger.replay, A, 2, digest=DIGEST).code == "study-closed"
    assert ledger.replay(A, 1, digest=DIGEST) == b"upload"  # a late retransmission reveals nothing new
    assert refusal(ledger.reserve, A, 0.75, about={"name": "first"}).code == "study-changed"
    ledger.reserve(B, 0.75, about={})
    ledger.verify()


def test_two_studies_cannot_reserve_the_same_remainder(ledger):
    ledger.reserve(A, 0.75, about={})
    refused = refusal(ledger.reserve, B, 0.5, about={})
    assert refused.code == "budget-cap"
    assert "requested 0.5, allowed 1, left 0.25" in str(refused)
    ledger.reserve(B, 0.25, about={})
    assert ledger.status().promised == 1


def test_a_study_never_exceeds_its_reservation(ledger):
    ledger.reserve(A, 0.5, about={})
    spend(ledger)
    refused = refusal(spend, ledger, round=2, mu_squared=0.3)
    assert refused.code == "budget-reservation"
    assert "requested 0.3, allowed 0.5, left 0.25" in str(refused)
    spend(ledger, round=2)
    assert refusal(spend, ledger, round=3, mu_squared=1e-15).code == "budget-reservation"


@given(st.floats(1e-6, 0.9), st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_n_rounds_fit_a_reservation_of_n_rounds_exactly(mu_squared, n_rounds):
    state = LedgerState()
    state.apply(Record("cap", "", n_rounds * mu_squared), b"")
    reservation = Record("reserve", A, n_rounds * mu_squared)
    state.check(reservation, b"{}")
    state.accounts[A] = Account(reservation, about={}, may_miss_rounds=False)
    for round in range(1, n_rounds + 1):
        record = Record("spend", A, mu_squared, round, DIGEST)
        state.check(record, b"")
        state.apply(record, b"")
    assert refusal(state.check, Record("spend", A, mu_squared, n_rounds + 1), b"").code == "budget-reservation"


def test_collusion_cap_is_enforced_separately(tmp_path):
    """It is exact, at reservation and at every spend. The owner may lower it independently."""
    with Ledger.open(tmp_path, cap=1.0, collusion_cap=3.0, create=True) as ledger:
        ledger.reserve(A, 0.5, shares=4, about={})
        refused = refusal(ledger.reserve, B, 0.5, shares=3, about={})
        assert refused.code == "policy-collusion"
        assert "if all other sites collude (Σμ²: requested 1.5, allowed 3, left 1)" in str(refused)
        assert refusal(ledger.reserve, B, 0.25 + 2.0**-50, shares=4, about={}).code == "policy-collusion"
        assert refusal(ledger.reserve, B, 0.5 + 2.0**-50, about={}).code == "budget-cap"
        ledger.reserve(B, 0.5, shares=2, about={})
        spend(ledger)
        state = ledger.status()
        assert (state.spent, state.collusion_spent) == (Fraction(1, 4), 1)
        assert (state.promised, state.collusion_promised, state.cap, state.collusion_cap) == (1, 3, 1.0, 3.0)
        ledger.close_study(B)
        assert (state.promised, state.collusion_promised) == (Fraction(1, 2), 2)
    with Ledger.open(tmp_path, cap=1.0, collusion_cap=1.5) as ledger:
        assert read_ledger(tmp_path).collusion_spent == 1
        assert refusal(spend, ledger, round=2).code == "policy-collusion"
        spend(ledger, round=2, mu_squared=0.125)
    with Ledger.open(tmp_path, cap=1.0) as ledger:
        assert ledger.status().collusion_cap == 1.0
        assert refusal(ledger.reserve, C, 0.25, about={}).code == "policy-collusion"
        limits = [(record.kind, record.mu_squared) for record in ledger.status().records if record.kind.endswith("cap")]
    assert limits == [("cap", 1.0), ("collusion-cap", 3.0), ("collusion-cap", 1.5), ("collusion-cap", 1.0)]


def test_lowering_the_cap_also_lowers_the_collusion_cap_until_it_is_set(tmp_path, monkeypatch):
    """A crash between the two records leaves the stricter limit."""
    Ledger.open(tmp_path, cap=1.0, collusion_cap=3.0, create=True).close()
    real = Ledger._append

    def cut_short(self, record, payload=b""):
        if record.kind == "collusion-cap":
            raise KeyboardInterrupt
        real(self, record, payload)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_append", cut_short)
        with pytest.raises(KeyboardInterrupt):
            Ledger.open(tmp_path, cap=0.5, collusion_cap=3.0)
    assert (read_ledger(tmp_path).cap, read_ledger(tmp_path).collusion_cap) == (0.5, 0.5)
    Ledger.open(tmp_path, cap=0.5, collusion_cap=3.0).close()
    assert (read_ledger(tmp_path).cap, read_ledger(tmp_path).collusion_cap) == (0.5, 3.0)


def test_ledger_records_rows_per_person_and_the_highest_limits(tmp_path):
    def limits():
        state = read_ledger(tmp_path)
        return state.rows_per_person, state.max_rows_per_person, state.max_cap, state.max_collusion_cap

    Ledger.open(tmp_path, cap=1.0, create=True).close()
    assert limits() == (1, 1, 1.0, 1.0)
    assert read_ledger(tmp_path).seq == 1, "one row is what a new ledger has"
    Ledger.open(tmp_path, cap=2.0, collusion_cap=3.0, rows_per_person=4).close()
    assert limits() == (4, 4, 2.0, 3.0)
    before = read_ledger(tmp_path).seq
    Ledger.open(tmp_path, cap=2.0, collusion_cap=3.0, rows_per_person=4).close()
    assert read_ledger(tmp_path).seq == before, "nothing changed"
    with Ledger.open(tmp_path, cap=0.5, rows_per_person=2) as ledger:
        assert limits() == (2, 4, 2.0, 3.0)
        ledger.reserve(A, 0.25, about={})
        ledger.close_study(A)
        last = [
            (record.kind, record.study, record.mu_squared)
            for record in ledger.status().records
            if record.kind == "rows"
        ]
        assert last == [("rows", "", 0.0)] * 2
    assert limits() == (2, 4, 2.0, 3.0)


@pytest.mark.parametrize("rows", [0, -1, 1.0, True, "2", None])
def test_rows_per_person_must_be_a_positive_integer(tmp_path, rows):
    assert refusal(Ledger.open, tmp_path, cap=1.0, rows_per_person=rows, create=True).code == "request-malformed"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shares", [0, -1, 1.0, True, "2", 2**31])
def test_shares_must_be_a_positive_integer(ledger, shares):
    assert refusal(ledger.reserve, A, 0.25, about={}, shares=shares).code == "request-malformed"
    assert refusal(Ledger.open, ledger._folder, cap=0.25, collusion_cap=math.nan).code == "request-malformed"


def test_study_calibrated_to_the_cap_fits(tmp_path_factory: pytest.TempPathFactory):
    for n_rounds, epsilon in product([1, 7, 100, 1000], [0.1, 0.5, 1.0, 3.0, 8.0]):
        with case(n_rounds, epsilon):
            tmp_path = tmp_path_factory.mktemp("case")
            z = total_noise_multiplier(epsilon, 1e-5, n_rounds)
            with Ledger.open(tmp_path, cap=mu_from_epsilon(epsilon, 1e-5) ** 2, create=True) as ledger:
                ledger.reserve(A, n_rounds * gaussian_mu([Release(z)]) ** 2, about={})


def test_repeated_reservation_has_no_effect_and_a_changed_one_is_refused(ledger):
    ledger.reserve(A, 0.5, about={"name": "x", "rounds": 2}, may_miss_rounds=True)
    before = ledger.status().seq
    ledger.reserve(A, 0.5, about={"rounds": 2, "name": "x"}, may_miss_rounds=True)
    spend(ledger)
    ledger.reserve(A, 0.5, about={"rounds": 2, "name": "x"}, may_miss_rounds=True)
    assert ledger.status().seq == before + 1
    for mu_squared, about, gaps, shares in (
        (0.25, {"name": "x", "rounds": 2}, True, 1),
        (0.5, {"name": "y", "rounds": 2}, True, 1),
        (0.5, {"name": "x", "rounds": 2}, False, 1),
        (0.5, {"name": "x", "rounds": 2}, True, 2),
    ):
        more = {"about": about, "may_miss_rounds": gaps, "shares": shares}
        assert refusal(ledger.reserve, A, mu_squared, **more).code == "study-changed"


def test_same_request_returns_the_stored_bytes_and_another_is_refused(ledger):
    ledger.reserve(A, 1.0, about={})
    assert ledger.replay(A, 1, digest=DIGEST) is None
    spend(ledger, upload=b"one")
    assert ledger.replay(A, 1, digest=DIGEST) == b"one"
    assert refusal(ledger.replay, A, 1, digest=OTHER_DIGEST).code == "round-forked"
    assert refusal(spend, ledger, upload=b"again").code == "round-old"
    assert ledger.replay(A, 2, digest=DIGEST) is None
    assert refusal(ledger.replay, A, 3, digest=DIGEST).code == "round-missed"
    assert refusal(spend, ledger, round=3).code == "round-missed"
    spend(ledger, round=2, upload=b"")
    assert ledger.replay(A, 2, digest=DIGEST) == b""
    assert [(record.round, upload) for record, upload in ledger.transcript(A)] == [(1, b"one"), (2, b"")]


def test_rounds_may_be_missed_if_the_study_declares_it(ledger):
    ledger.reserve(A, 1.0, about={}, may_miss_rounds=True)
    spend(ledger, round=3)
    spend(ledger, round=7)
    assert refusal(ledger.replay, A, 5, digest=DIGEST).code == "round-old"
    assert ledger.replay(A, 3, digest=DIGEST) == b"upload"
    assert list(ledger.status().accounts[A].rounds) == [3, 7]


def test_study_without_reservation_is_unknown(ledger):
    for act in (
        lambda: ledger.replay(A, 1, digest=DIGEST),
        lambda: spend(ledger),
        lambda: ledger.close_study(A),
        lambda: ledger.transcript(A),
    ):
        assert refusal(act).code == "study-unknown"


@pytest.mark.parametrize(
    "change",
    [
        {"study": "A" * 64},
        {"study": "a" * 15},
        {"study": "a" * 64 + "\n"},
        {"study": None},
        {"digest": b"1" * 64},
        {"digest": ""},
        {"round": 0},
        {"round": -1},
        {"round": 1.0},
        {"round": True},
        {"round": 2**62},
        {"round": 2**63},
        {"mu_squared": 0.0},
        {"mu_squared": -0.1},
        {"mu_squared": math.nan},
        {"mu_squared": math.inf},
        {"mu_squared": 1e12},
        {"mu_squared": "0.1"},
        {"upload": "text"},
        {"upload": bytearray(b"x")},
    ],
)
def test_malformed_spend_is_refused_and_leaves_the_ledger_unchanged(ledger, change):
    ledger.reserve(A, 1.0, about={}, may_miss_rounds=True)
    before = ledger.status().fingerprint
    assert refusal(spend, ledger, **change).code == "request-malformed"
    assert ledger.status().fingerprint == before
    spend(ledger)
    spend(ledger, round=2**62 - 1)


@pytest.mark.parametrize(("study", "mu_squared"), [("A" * 64, 0.5), (None, 0.5), (A, 0.0), (A, -0.5), (A, math.nan)])
def test_a_malformed_reservation_is_refused(ledger, study, mu_squared):
    assert refusal(ledger.reserve, study, mu_squared, about={}).code == "request-malformed"
    assert not ledger.status().accounts


def test_study_description_must_be_standard_json(ledger):
    with pytest.raises(ValueError, match="JSON"):  # NaN is not valid JSON
        ledger.reserve(A, 0.5, about={"step": math.nan})
    assert not ledger.status().accounts


@pytest.mark.parametrize(
    ("study", "round", "digest"),
    [("a" * 15, 1, DIGEST), (A, 0, DIGEST), (A, True, DIGEST), (A, 1, ""), (A, 1, b"1" * 64)],
)
def test_malformed_replay_is_refused(ledger, study, round, digest):
    ledger.reserve(A, 1.0, about={})
    assert refusal(ledger.replay, study, round, digest=digest).code == "request-malformed"


def test_maximum_upload_is_256_mib(ledger, monkeypatch):
    ledger.reserve(A, 1.0, about={})
    assert refusal(spend, ledger, upload=bytes(2**28 + 1)).code == "request-malformed"
    monkeypatch.setattr("dpadmm.trusted.ledger.MAX_UPLOAD", 6)
    spend(ledger, upload=b"upload")


def test_cap_must_be_positive_and_finite(tmp_path_factory: pytest.TempPathFactory):
    for cap in [0.0, -1.0, math.nan, math.inf, "1"]:
        with case(cap):
            tmp_path = tmp_path_factory.mktemp("case")
            assert refusal(Ledger.open, tmp_path, cap=cap, create=True).code == "request-malformed"


def test_lowered_cap_stops_studies_with_larger_reservations(tmp_path):
    with Ledger.open(tmp_path, cap=1, create=True) as ledger:
        ledger.reserve(A, 0.75, about={})
        spend(ledger)
    with Ledger.open(tmp_path, cap=0.3) as ledger:
        refused = refusal(spend, ledger, round=2)
        assert refused.code == "budget-cap"
        assert "requested 0.25, allowed 0.3, left 0.05" in str(refused)
        assert refusal(ledger.reserve, B, 0.01, about={}).code == "budget-cap"
        spend(ledger, round=2, mu_squared=0.05)
    with Ledger.open(tmp_path, cap=1.0) as ledger:
        spend(ledger, round=3)
        assert [record.mu_squared for record in ledger.status().records if record.kind == "cap"] == [
            1,
            0.3,
            1,
        ]


def test_missing_ledger_is_created_only_on_request(tmp_path):
    folder = tmp_path / "not" / "mounted"
    assert refusal(Ledger.open, folder, cap=1.0).code == "ledger-missing"
    assert refusal(read_ledger, folder).code == "ledger-missing"
    assert not folder.exists()
    Ledger.open(folder, cap=1.0, create=True).close()
    Ledger.open(folder, cap=1.0).close()
    assert sorted(os.listdir(folder)) == [DATABASE, MARK]


def test_interrupted_creation_is_refused_until_it_is_repeated(tmp_path):
    (tmp_path / MARK).touch()
    assert refusal(Ledger.open, tmp_path, cap=1.0).code == "ledger-damaged"
    assert os.listdir(tmp_path) == [MARK]
    Ledger.open(tmp_path, cap=1.0, create=True).close()
    (tmp_path / MARK).write_bytes(b"")  # interrupted after the database was created
    Ledger.open(tmp_path, cap=1.0, create=True).close()
    assert read_ledger(tmp_path).seq == 1


def test_ledger_files_are_readable_by_their_owner_only(tmp_path):
    before = os.umask(0)
    try:
        with Ledger.open(tmp_path / "ledger", cap=1.0, create=True):
            paths = [tmp_path / "ledger", *(tmp_path / "ledger").iterdir()]
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    finally:
        os.umask(before)
    assert modes.pop("ledger") == 0o700
    assert modes.keys() >= {DATABASE, MARK, f"{DATABASE}-wal"}
    assert set(modes.values()) == {0o600}


@pytest.fixture
def events(monkeypatch):
    """Record the files that this process writes and syncs through Python, in order."""
    calls = []

    def recording(name, call):
        def record_and_call(file, *more):
            calls.append((name, Path(os.readlink(f"/proc/self/fd/{file}"))))
            return call(file, *more)

        return record_and_call

    for name, call in (("write", os.write), ("fsync", os.fsync)):
        monkeypatch.setattr(f"dpadmm.trusted.ledger.os.{name}", recording(name, call))
    return calls


def test_new_folders_are_synced_and_no_file_stays_open(tmp_path, events):
    """A power cut may lose a name whose folder was not synced, and the ledger with it."""
    open_before = len(os.listdir("/proc/self/fd"))
    folder = tmp_path / "new" / "ledger"
    for create, parents in ((True, [tmp_path / "new", tmp_path]), (True, []), (False, [])):
        events.clear()
        Ledger.open(folder, cap=1.0, create=create).close()
        synced = [path for call, path in events if call == "fsync" and path.name != MARK]
        assert synced == [folder, *parents]
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_record_is_committed_and_mark_is_synced_before_spend_returns(ledger, events):
    ledger._database.set_trace_callback(lambda statement: events.append(("sql", statement.split()[0])))
    ledger.reserve(A, 1.0, about={})
    spend(ledger)
    mark = ledger._folder / MARK
    assert events == [("sql", "INSERT"), ("write", mark), ("fsync", mark)] * 2


def test_records_contain_event_content_and_time(ledger):
    began = datetime.now(UTC).replace(microsecond=0)
    ledger.reserve(A, 1.0, about={})
    spend(ledger)
    ledger.close_study(A)
    records = ledger.status().records
    assert [record.kind for record in records] == ["cap", "reserve", "spend", "close"]
    assert [record.content for record in records[2:]] == [
        sha256(b"upload").hexdigest(),
        sha256(b"").hexdigest(),
    ]
    for record in records[1:]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record.at)
        assert began <= datetime.fromisoformat(record.at) <= datetime.now(UTC)


def test_two_new_ledgers_have_different_fingerprints(tmp_path):
    for name in "ab":
        Ledger.open(tmp_path / name, cap=1.0, create=True).close()
    assert read_ledger(tmp_path / "a").fingerprint != read_ledger(tmp_path / "b").fingerprint


def test_closed_ledger_refuses_all_calls(ledger):
    ledger.close()
    ledger.close()
    assert refusal(ledger.status).code == "ledger-closed"
    assert refusal(ledger.replay, A, 1, digest=DIGEST).code == "ledger-closed"


def test_ledger_of_process_1_can_be_closed(tmp_path, monkeypatch):
    monkeypatch.setattr("dpadmm.trusted.ledger.os.getpid", lambda: 1)  # as in a container
    ledger = Ledger.open(tmp_path, cap=1.0, create=True)
    ledger.close()
    assert refusal(ledger.status).code == "ledger-closed"


def test_reading_after_a_crash_changes_nothing(tmp_path):
    with Ledger.open(tmp_path / "running", cap=1.0, create=True) as ledger:
        ledger.reserve(A, 1.0, about={})
        spend(ledger)
        shutil.copytree(tmp_path / "running", tmp_path / "left")
    lasting = [tmp_path / "left" / name for name in (DATABASE, f"{DATABASE}-wal", MARK)]
    before = [path.read_bytes() for path in lasting]
    assert all(before)
    assert read_ledger(tmp_path / "left").spent == 0.25
    assert [path.read_bytes() for path in lasting] == before


def test_unreadable_database_is_refused(tmp_path):
    Ledger.open(tmp_path, cap=1.0, create=True).close()
    (tmp_path / DATABASE).unlink()
    (tmp_path / DATABASE).mkdir()
    assert refusal(read_ledger, tmp_path).code == "ledger-failed"


def test_mark_may_be_followed_by_zeros_only(tmp_path):
    Ledger.open(tmp_path, cap=1.0, create=True).close()
    mark = (tmp_path / MARK).read_bytes()
    for tail, fine in ((b"\0" * 9, True), (b"X", False), (b"\0X", False)):
        (tmp_path / MARK).write_bytes(mark + tail)
        if fine:
            assert read_ledger(tmp_path).cap == 1.0
        else:
            assert refusal(read_ledger, tmp_path).code == "ledger-damaged"


def test_mark_extended_by_another_process_stops_the_ledger(ledger):
    ledger.reserve(A, 1.0, about={})
    with (ledger._folder / MARK).open("ab") as mark:
        mark.write(b"\0")
    refused = refusal(spend, ledger)
    assert refused.code == "ledger-damaged"
    assert "another process changed the mark" in str(refused)


def test_replaced_ledger_is_detected(tmp_path):
    Ledger.open(tmp_path / "other", cap=1.0, create=True).close()
    with Ledger.open(tmp_path / "ours", cap=1.0, create=True) as ledger:
        ledger.verify()
        shutil.rmtree(tmp_path / "ours")
        shutil.copytree(tmp_path / "other", tmp_path / "ours")
        refused = refusal(ledger.verify)
    assert refused.code == "ledger-damaged"
    assert "another process changed it" in str(refused)


def test_upload_changed_on_disk_is_not_replayed(ledger):
    ledger.reserve(A, 1.0, about={})
    spend(ledger)
    with closing(sqlite3.connect(ledger._folder / DATABASE)) as database, database:
        database.execute("UPDATE records SET payload = ? WHERE kind = 'spend'", (b"uploaD",))
    refused = refusal(ledger.replay, A, 1, digest=DIGEST)
    assert refused.code == "ledger-damaged"
    assert "record 3 was changed" in str(refused)


def test_reading_is_read_only(tmp_path):
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        ledger.reserve(A, 1.0, about={})
        spend(ledger)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    tmp_path.chmod(0o500)
    try:
        assert read_ledger(tmp_path).spent == 0.25
    finally:
        tmp_path.chmod(0o700)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_large_upload_is_replayed_completely(ledger):
    ledger.reserve(A, 1.0, about={})
    upload = os.urandom(3_000_000)
    spend(ledger, upload=upload)
    assert ledger.replay(A, 1, digest=DIGEST) == upload


class LedgerMachine(RuleBasedStateMachine):
    """Reserve, spend, replay, close and reopen in any order, compared with a model of a few dictionaries."""

    @initialize()
    def begin(self):
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        self.caps = 1.0, 1.0
        self.reserved: dict[str, tuple[Fraction, int, bool]] = {}
        self.spent: dict[str, dict[int, tuple[str, Fraction, bytes]]] = {}
        self.closed: dict[str, str] = {}
        self.ledger = Ledger.open(self.folder, cap=1.0, create=True)

    def teardown(self):
        if hasattr(self, "ledger"):
            self.ledger.close()
            shutil.rmtree(self.folder)

    def total(self, study: str) -> Fraction:
        return sum((cost for _, cost, _ in self.spent[study].values()), Fraction(0))

    def both(self, amounts: dict[str, Fraction]) -> tuple[Fraction, Fraction]:
        """Return the sum over studies, without and with the factor ``shares`` of each study."""
        weighed = (amount * self.reserved[study][1] for study, amount in amounts.items())
        return sum(amounts.values(), Fraction(0)), sum(weighed, Fraction(0))

    def promised(self) -> tuple[Fraction, Fraction]:
        studies = self.reserved.items()
        return self.both(
            {study: self.total(study) if study in self.closed else asked for study, (asked, *_) in studies}
        )

    def within(self, sums: tuple[Fraction, Fraction], asked: Fraction, shares: int) -> bool:
        return sums[0] + asked <= self.caps[0] and sums[1] + shares * asked <= self.caps[1]

    @rule(
        study=st.sampled_from([A, B, C]),
        cost=st.integers(1, 12),
        shares=st.sampled_from([1, 1, 2, 3]),
        may_miss_rounds=st.booleans(),
    )
    def reserve(self, study, cost, shares, may_miss_rounds):
        asked, refused = Fraction(cost, 16), None
        if study in self.reserved:
            same = self.reserved[study] == (asked, shares, may_miss_rounds)
            fine = same and self.closed.get(study, "finish") == "finish"
        else:
            fine = self.within(self.promised(), asked, shares)
        try:
            self.ledger.reserve(study, float(asked), about={}, may_miss_rounds=may_miss_rounds, shares=shares)
        except RefusalError as error:
            refused = error.code
        assert (refused is None) == fine, refused
        if fine:
            self.reserved[study] = (asked, shares, may_miss_rounds)
            self.spent.setdefault(study, {})

    @rule(
        study=st.sampled_from([A, B, C]),
        ahead=st.sampled_from([-1, 0, 1, 1, 1, 1, 2]),
        cost=st.integers(1, 5),
        digest=st.sampled_from([DIGEST, OTHER_DIGEST]),
        upload=st.binary(max_size=40),
    )
    def answer(self, study, ahead, cost, digest, upload):
        rounds = self.spent.get(study, {})
        round, asked = max(1, max(rounds, default=0) + ahead), Fraction(cost, 32)
        stored = refused = None
        try:
            stored = self.ledger.replay(study, round, digest=digest)
            if stored is None:
                self.ledger.spend(study, round, digest=digest, mu_squared=float(asked), upload=upload)
        except RefusalError as error:
            refused = error.code
        assert (refused is None) == self.may(study, round, digest, asked), refused
        if refused is None:
            assert stored == (rounds[round][2] if round in rounds else None)
            rounds.setdefault(round, (digest, asked, upload))

    def may(self, study: str, round: int, digest: str, asked: Fraction) -> bool:
        if study not in self.reserved:
            return False
        rounds, (reserved, shares, gaps) = self.spent[study], self.reserved[study]
        if round in rounds:
            return rounds[round][0] == digest
        last = max(rounds, default=0)
        in_order = round == last + 1 or (round > last and gaps)
        everything = self.both({item: self.total(item) for item in self.spent})
        affordable = self.total(study) + asked <= reserved and self.within(everything, asked, shares)
        return study not in self.closed and in_order and affordable

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), ending=st.sampled_from(["close", "finish", "end"]))
    def close_study(self, data, ending):
        study = data.draw(st.sampled_from(sorted(self.reserved)))
        self.ledger.close_study(study, ending)
        assert self.ledger.status().accounts[study].ending == self.closed.setdefault(study, ending)

    @rule(caps=st.sampled_from([(0.5, 0.5), (1.0, 1.0), (1.0, 1.5), (1.0, 2.0), (2.0, 2.5)]))
    def reopen(self, caps):
        self.ledger.close()
        self.caps = caps
        self.ledger = Ledger.open(self.folder, cap=caps[0], collusion_cap=caps[1])

    @invariant()
    def adds_up(self):
        if not hasattr(self, "ledger"):
            return
        state = self.ledger.status()
        assert (state.spent, state.collusion_spent) == self.both({item: self.total(item) for item in self.spent})
        assert (state.promised, state.collusion_promised) == self.promised()
        assert set(state.accounts) == set(self.reserved)
        for study, rounds in self.spent.items():
            stored = [(record.round, record.digest, upload) for record, upload in self.ledger.transcript(study)]
            assert stored == [(round, digest, upload) for round, (digest, _, upload) in rounds.items()]
        assert read_ledger(self.folder).fingerprint == state.fingerprint


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_record_hash_is_stable():
    """Owners compare fingerprints over years."""
    assert Record("cap", "", 0.0) == ("cap", "", 0.0, 0, "", 0, "", "")
    record = Record("spend", A, 0.25, 3, DIGEST, 7, "2026-01-01T00:00:00+00:00", OTHER_DIGEST)
    assert record.chain("0" * 64) == "fdc27add469ca1e32e6c09e5b75206f0574ed21a25452fd3d7a760614b8c9f73"


def test_sums_of_an_empty_ledger_are_exact_fractions():
    state = LedgerState()
    sums = (state.spent, state.promised, state.collusion_spent, state.collusion_promised)
    assert (*sums, state.cap, state.collusion_cap) == (0, 0, 0, 0, 0, 0)
    assert {type(item) for item in sums} == {Fraction}


def test_refusal_names_the_limit(ledger):
    assert "would exceed the owner's cap" in str(refusal(ledger.reserve, A, 2.0, about={}))
    ledger.reserve(A, 0.25, about={})
    assert ledger.status().accounts[A].closed is False
    assert "would exceed the study's reservation" in str(refusal(spend, ledger, mu_squared=0.5))


def test_records_contain_study_and_cost(tmp_path):
    with Ledger.open(tmp_path, cap=2.0, collusion_cap=1e6, create=True) as ledger:
        ledger.reserve(A, 0.5, about={}, shares=1000)
        ledger.spend(A, 1, digest=DIGEST, mu_squared=0.25, upload=b"")
        ledger.close_study(A)
    records = [(record.kind, record.study, record.mu_squared) for record in read_ledger(tmp_path).records]
    caps = [("cap", "", 2.0), ("collusion-cap", "", 1e6)]
    assert records == [*caps, ("reserve", A, 0.5), ("spend", A, 0.25), ("close", A, 0.0)]


@pytest.mark.parametrize("ending", ["close", "finish", "end"])
def test_closed_study_keeps_its_first_ending_and_only_a_finished_one_may_be_enrolled_again(ledger, tmp_path, ending):
    """The second enrolment reserves and releases nothing. It may only repeat earlier releases."""
    ledger.reserve(A, 0.75, about={"name": "a"}, may_miss_rounds=True)
    spend(ledger, A, 1)
    ledger.close_study(A, ending)
    before = ledger.status().seq
    for other in ("close", "finish", "end"):
        ledger.close_study(A, other)
    if ending == "finish":
        ledger.reserve(A, 0.75, about={"name": "a"}, may_miss_rounds=True)
    else:
        again = refusal(ledger.reserve, A, 0.75, about={"name": "a"}, may_miss_rounds=True)
        assert (again.code, "closed and cannot be reopened" in str(again)) == ("study-changed", True)
    assert refusal(ledger.reserve, A, 0.5, about={"name": "a"}, may_miss_rounds=True).code == "study-changed"
    assert refusal(spend, ledger, A, 2).code == "study-closed"
    assert ledger.replay(A, 1, digest=DIGEST) == b"upload"
    for state in (ledger.status(), read_ledger(tmp_path)):
        assert (state.seq, state.records[-1].kind, state.accounts[A].ending) == (before, ending, ending)
        assert state.spent == state.promised == state.accounts[A].promised == Fraction(1, 4)


def test_restore_closes_open_studies_and_keeps_other_endings(ledger, tmp_path):
    for study, ending in ((A, "finish"), (B, ""), (C, "end")):
        ledger.reserve(study, 0.25, about={})
        if ending:
            ledger.close_study(study, ending)
    ledger.record_restore(0.0, about={}, shares=1)
    for state in (ledger.status(), read_ledger(tmp_path)):
        assert [account.ending for account in state.accounts.values()] == ["finish", "restore", "end", "restore"]
        assert state.spent == Fraction(1, 4), "of the open one"


def test_running_totals_equal_the_sums_over_all_rounds_and_studies(tmp_path):
    """The totals are stored in addition to the accounts.

    If a total omitted a round or study, a site could overspend.
    """
    with Ledger.open(tmp_path, cap=1.0, collusion_cap=2.0, create=True) as ledger:
        for study, shares in ((A, 3), (B, 1)):
            ledger.reserve(study, 0.25, about={}, shares=shares)
        for round, study in product((1, 2), (A, B)):
            spend(ledger, study, round, 0.1)
        for state in (ledger.status(), read_ledger(tmp_path)):
            assert state.spent == sum(account.spent for account in state.accounts.values()) == 4 * Fraction(0.1)
            assert state.collusion_spent == sum(account.shares * account.spent for account in state.accounts.values())
            assert state.collusion_spent == 8 * Fraction(0.1)


def test_restore_charges_everything_that_may_have_been_released(ledger, tmp_path):
    """Open studies are charged in full and closed. Records that the copy may lack are charged too."""
    ledger.reserve(A, 0.25, about={"name": "a"}, may_miss_rounds=True)
    spend(ledger, A, 1, 0.0625)
    ledger.reserve(B, 0.25, about={"name": "b"})
    spend(ledger, B, 1, 0.125)
    ledger.close_study(B)
    ledger.reserve(C, 0.125, about={"name": "c"}, shares=2)
    ledger.record_restore(0.0625, about={"name": "lost"}, shares=3)
    for state in (ledger.status(), read_ledger(tmp_path)):
        assert state.restores == 1
        assert [float(item.spent) for item in state.accounts.values()] == [0.25, 0.125, 0.125, 0.0625]
        assert all(item.closed for item in state.accounts.values())
        lost, account = list(state.accounts.items())[-1]
        assert re.fullmatch("[0-9a-f]{64}", lost)
        assert (account.about, account.may_miss_rounds, account.shares) == ({"name": "lost"}, False, 3)
        assert state.spent == state.promised == Fraction(9, 16)
        assert (
            state.collusion_spent
            == state.collusion_promised
            == Fraction(1, 4) + Fraction(1, 8) + 2 * Fraction(1, 8) + Fraction(3, 16)
        )
    for study in (A, C):
        assert refusal(spend, ledger, study, 2, 0.01).code == "study-closed"
        assert refusal(ledger.reserve, study, 0.01, about={}).code == "study-changed"
    assert refusal(ledger.reserve, "d" * 64, 0.5, about={}).code == "budget-cap"
    ledger.record_restore(0.0, about={}, shares=1)
    assert (ledger.status().restores, ledger.status().spent) == (2, Fraction(9, 16))


def test_restore_may_charge_more_than_the_cap(ledger):
    ledger.reserve(A, 1.0, about={"name": "a"})
    ledger.record_restore(5.0, about={}, shares=1)
    assert float(ledger.status().spent) == 6.0


def test_older_format_is_upgraded_and_a_newer_one_is_refused(tmp_path):
    with Ledger.open(tmp_path, cap=1.0, create=True) as ledger:
        ledger.reserve(A, 0.5, about={"name": "a"})
        before = ledger.status().fingerprint

    def version(new=None):
        with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as database:
            if new is not None:
                database.execute(f"PRAGMA user_version = {new}")
            return database.execute("PRAGMA user_version").fetchone()[0]

    assert version() == 1
    version(0)  # the format without restores
    assert read_ledger(tmp_path).fingerprint == before
    assert version() == 0, "readers change nothing"
    with Ledger.open(tmp_path, cap=1.0) as ledger:
        assert ledger.status().fingerprint == before
    assert version() == 1
    version(2)
    for act in (lambda: read_ledger(tmp_path), lambda: Ledger.open(tmp_path, cap=1.0)):
        refused = refusal(act)
        assert refused.code == "ledger-failed"
        assert "format 2 is from a newer dpadmm; upgrade dpadmm" in str(refused)
    assert version() == 2


def test_partial_write_of_the_mark_fails_the_spend(ledger, monkeypatch):
    """If a disk that is nearly full accepts only some bytes, the release must not be sent."""
    ledger.reserve(A, 1.0, about={"name": "a"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:-1]))
    with pytest.raises(RefusalError) as refused:
        spend(ledger)
    assert refused.value.code == "ledger-failed"
