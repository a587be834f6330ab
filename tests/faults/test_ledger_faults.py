"""Ledgers that are killed, out of disk, damaged, shared or replaced: budget may be lost, privacy never.

``make torture`` runs the long version: 10,000 kills, 10,000 flips and truncations, every write.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import ledgers
import pytest
from ledgers import CAP, ROUND_COST, STUDY, Fault, answer, check, digest, failing, opened, scenario

from dpadmm.errors import RefusalError
from dpadmm.trusted.ledger import DATABASE, LINE, MARK, Ledger, read_ledger

LONG = os.environ.get("DPADMM_TORTURE") == "1"
WAL = f"{DATABASE}-wal"


@pytest.fixture
def folder():
    """A folder in memory if possible: kills need no disk, and syncing a disk is slow."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def run(*words: object) -> object:
    done = subprocess.run(
        [sys.executable, ledgers.__file__, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("part", range(8 if LONG else 1))
def test_random_kills_lose_alter_and_overspend_nothing(folder, part):
    kills, seed = (10_000 // 8 if LONG else 120), random.randrange(2**32)
    done = run("kill_run", folder, kills, seed)
    assert done["kills"] == kills
    assert done["replies"] > kills / 4  # on an idle machine most kills occur during an answer


needs_hooks = pytest.mark.skipif(
    ledgers.sqlite_vfs() is None,
    reason="this Python hides its SQLite library, so its writes cannot be made fail",
)


@needs_hooks
def test_kills_at_every_write_lose_nothing(folder):
    assert run("kill_everywhere", folder, 1 if LONG else 4)["kills"] > (250 if LONG else 50)


@needs_hooks
@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "full half", "part"])
def test_failed_write_is_a_refusal_and_reopening_continues(folder, kind):
    at, step, failed = 1, 1 if LONG else 2 if kind == "part" else 4, 0
    while True:
        here, sent, fault = folder / str(at), {}, Fault(kind, at)
        code = None
        try:
            with failing(fault):
                scenario(here, sent)
        except RefusalError as refusal:
            code = refusal.code
        assert code in (None, "ledger-failed")
        failed += code is not None
        if fault.calls < at:
            break
        n_rounds = check(here, sent)
        with opened(here) as ledger:
            answer(ledger, n_rounds + 1)
        shutil.rmtree(here)
        at += step
    assert at > 80
    assert failed > (5 if kind == "part" else 60 // step)


@needs_hooks
def test_ledger_refuses_all_calls_between_a_failed_write_and_reopening(folder):
    with opened(folder) as ledger:
        first = answer(ledger, 1)
        with pytest.raises(RefusalError), failing(Fault("EIO", 1)):
            answer(ledger, 2)
        for act in (
            lambda: answer(ledger, 2),
            lambda: answer(ledger, 1),
            ledger.status,
            lambda: ledger.close_study(STUDY),
        ):
            with pytest.raises(RefusalError, match="open it again") as refused:
                act()
            assert refused.value.code == "ledger-failed"
    check(folder, {1: first})


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_spend_counts_if_interrupted_between_commit_and_mark(folder, monkeypatch, interrupt):
    def stop(*_: object) -> None:
        raise interrupt

    with opened(folder) as ledger:
        monkeypatch.setattr(ledger, "_extend_mark", stop)
        with pytest.raises(interrupt):
            answer(ledger, 1)
        monkeypatch.undo()
        with pytest.raises(RefusalError, match="earlier write"):
            answer(ledger, 1)
    assert check(folder, {}) == 1


# Damage


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Two ledgers, one closed normally and one whose process was killed, with their answers."""
    crashed, closed = (tmp_path_factory.mktemp("whole") / name for name in ("crashed", "closed"))
    sent = {round: bytes.fromhex(upload) for round, upload in run("crash", crashed)}
    shutil.copytree(crashed, closed)
    opened(closed).close()
    assert not (closed / WAL).exists()
    assert (crashed / WAL).stat().st_size > 0
    return {"crashed": (crashed, sent), "closed": (closed, sent)}


def damaged_copies(place: Path, folder: Path, n_copies: int, rng: random.Random):
    """Yield copies with one bit flipped or one file truncated."""
    files = sorted(path.name for path in place.iterdir())
    for i in range(n_copies):
        name = files[i % len(files)]
        copy = folder / str(i)
        shutil.copytree(place, copy)
        data = bytearray((copy / name).read_bytes())
        if not data:
            continue
        where = rng.randrange(len(data))
        if i % 5 == 4:
            what, data = f"{name} cut to {where}", data[:where]
        else:
            bit = rng.randrange(8)
            what = f"{name} bit {bit} of byte {where}"
            data[where] ^= 1 << bit
        (copy / name).write_bytes(data)
        yield copy, what
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["closed", "crashed"])
def test_flipped_bit_or_truncated_ledger_file_is_refused_or_harmless(intact, folder, name):
    place, sent = intact[name]
    truth, rng = read_ledger(place), random.Random()
    refused = harmless = 0
    for copy, what in damaged_copies(place, folder, 5_000 if LONG else 160, rng):
        before = {path.name: path.read_bytes() for path in copy.iterdir() if not path.name.endswith("-shm")}
        try:
            ledger = Ledger.open(copy, cap=CAP)
        except RefusalError:
            refused += 1
            after = {path.name: path.read_bytes() for path in copy.iterdir() if path.name in before}
            assert after == before, what  # damaged files are left for inspection
            continue
        with ledger:
            harmless += 1
            assert ledger.status().fingerprint == truth.fingerprint, what
            assert ledger.status().spent == truth.spent, what
            for round, upload in sent.items():
                assert ledger.replay(STUDY, round, digest=digest(round)) == upload, what
    assert refused > 20
    assert harmless > 5


def test_every_flipped_bit_of_the_mark_is_detected(intact, folder):
    place, _ = intact["closed"]
    copy = folder / "copy"
    shutil.copytree(place, copy)
    data = (place / MARK).read_bytes()
    for i in range(0, 8 * len(data), 1 if LONG else 37):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        (copy / MARK).write_bytes(flipped)
        with pytest.raises(RefusalError) as refused:
            Ledger.open(copy, cap=CAP)
        assert refused.value.code == "ledger-damaged", i


def test_truncated_mark_is_completed_within_its_last_line_and_refused_beyond(intact, folder):
    place, sent = intact["closed"]
    copy = folder / "copy"
    shutil.copytree(place, copy)
    data = (place / MARK).read_bytes()
    for cut in (1, 40, LINE):
        for rest in (b"", b"\0" * 7):
            (copy / MARK).write_bytes(data[:-cut] + rest)
            check(copy, sent)
            assert (copy / MARK).read_bytes() == data
    for cut in (LINE + 1, 2 * LINE, len(data)):
        (copy / MARK).write_bytes(data[:-cut])
        with pytest.raises(RefusalError, match="mark"):
            Ledger.open(copy, cap=CAP, create=True)


def test_edited_records_are_detected(intact, folder):
    import sqlite3

    place, _ = intact["closed"]
    for i, change in enumerate(
        (
            "UPDATE records SET mu_squared = mu_squared / 2 WHERE kind = 'spend'",
            "UPDATE records SET payload = x'00' WHERE seq = 4",
            "UPDATE records SET payload = CAST(replace(payload, 'false', 'true') AS BLOB) WHERE kind = 'reserve'",
            "UPDATE records SET kind = 'collusion-cap' WHERE kind = 'cap' AND seq > 1",
            "DELETE FROM records WHERE seq = 4",
            "DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)",
            "UPDATE records SET kind = 'close' WHERE seq = 4",
            "UPDATE records SET study = NULL WHERE seq = 4",
            "UPDATE records SET round = 'x' WHERE seq = 4",
            "INSERT INTO records SELECT kind, study, mu_squared, 7, digest, seq + 1, at, content, payload, "
            "chain FROM records ORDER BY seq DESC LIMIT 1",
            "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
            "DROP TABLE records",
        )
    ):
        copy = folder / str(i)
        shutil.copytree(place, copy)
        with sqlite3.connect(copy / DATABASE) as database:
            database.execute(change)
        database.close()
        with pytest.raises(RefusalError) as refused:
            Ledger.open(copy, cap=CAP, create=True)
        assert refused.value.code == "ledger-damaged"


def test_damage_outside_records_is_detected_by_sqlite(intact, folder):
    place, _ = intact["closed"]
    shutil.copytree(place, folder / "copy")
    with (folder / "copy" / DATABASE).open("r+b") as file:
        file.seek(36)  # SQLite's count of free pages
        file.write(b"\0\0\0\1")
    with pytest.raises(RefusalError, match="SQLite reports damage"):
        Ledger.open(folder / "copy", cap=CAP)


def test_reservation_above_the_collusion_cap_is_refused_even_with_valid_hashes(folder, monkeypatch):
    with opened(folder) as ledger:
        monkeypatch.setattr("dpadmm.trusted.ledger.LedgerState.check", lambda *_: None)
        ledger.reserve(ledgers.OTHER, 0.1 * CAP, about={}, shares=10)
    monkeypatch.undo()
    with pytest.raises(RefusalError, match="if all other sites collude"):
        Ledger.open(folder, cap=CAP)


@pytest.mark.parametrize(("round", "mu_squared"), [(1, ROUND_COST), (3, ROUND_COST), (2, CAP / 2), (2, 2 * CAP)])
def test_records_that_violate_the_rules_are_refused_even_with_valid_hashes(folder, monkeypatch, round, mu_squared):
    with opened(folder) as ledger:
        answer(ledger, 1)
        ledger.reserve(ledgers.OTHER, 0.4 * CAP, about={})
        monkeypatch.setattr("dpadmm.trusted.ledger.LedgerState.check", lambda *_: None)
        more = {"digest": digest(9), "mu_squared": mu_squared, "upload": b""}
        ledger.spend(ledgers.OTHER, 1, **more | {"mu_squared": ROUND_COST})
        ledger.spend(ledgers.OTHER, round, **more)
    monkeypatch.undo()
    with pytest.raises(RefusalError) as refused:
        Ledger.open(folder, cap=CAP)
    assert refused.value.code == "ledger-damaged"


# Copies put back


def test_old_database_with_a_newer_mark_is_refused(folder):
    live, old = folder / "live", folder / "old"
    with opened(live) as ledger:
        answer(ledger, 1)
    shutil.copytree(live, old)
    with opened(live) as ledger:
        answer(ledger, 2)
    shutil.copy(old / DATABASE, live / DATABASE)
    for create in (False, True):
        with pytest.raises(RefusalError, match="lost or changed") as refused:
            Ledger.open(live, cap=CAP, create=create)
        assert refused.value.code == "ledger-damaged"


def test_diverged_copy_is_refused(folder):
    live, fork = folder / "live", folder / "fork"
    with opened(live) as ledger:
        answer(ledger, 1)
    shutil.copytree(live, fork)
    for place in (live, fork):
        with opened(place) as ledger:
            answer(ledger, 2)
    shutil.copy(fork / DATABASE, live / DATABASE)
    with pytest.raises(RefusalError, match="lost or changed"):
        Ledger.open(live, cap=CAP)


def test_lost_database_can_be_replaced_by_an_up_to_date_copy_only(folder):
    live, old, new = (folder / name for name in ("live", "old", "new"))
    with opened(live) as ledger:
        answer(ledger, 1)
    shutil.copytree(live, old)
    with opened(live) as ledger:
        reply = answer(ledger, 2)
    shutil.copytree(live, new)
    (live / DATABASE).write_bytes(b"lost")
    for copy in (None, old):
        if copy:
            shutil.copy(copy / DATABASE, live / DATABASE)
        with pytest.raises(RefusalError, match=f"restore a copy of {DATABASE} with all records"):
            Ledger.open(live, cap=CAP)
    shutil.copy(new / DATABASE, live / DATABASE)
    assert check(live, {2: reply}) == 2


@pytest.mark.parametrize("missing", [DATABASE, MARK])
def test_ledger_without_database_or_mark_is_refused(folder, missing):
    with opened(folder) as ledger:
        answer(ledger, 1)
    (folder / missing).unlink()
    for create in (False, True):
        with pytest.raises(RefusalError) as refused:
            Ledger.open(folder, cap=CAP, create=create)
        assert refused.value.code == "ledger-damaged"


def test_rollback_of_database_and_mark_is_visible_in_the_fingerprint_only(folder):
    """This is a known limit: without noted fingerprints, a person who can write both files can roll them back."""
    live, old = folder / "live", folder / "old"
    with opened(live) as ledger:
        answer(ledger, 1)
    shutil.copytree(live, old)
    with opened(live) as ledger:
        answer(ledger, 2)
        noted = ledger.status().fingerprint
    shutil.rmtree(live)
    shutil.copytree(old, live)
    with opened(live) as ledger:
        assert list(ledger.status().accounts[STUDY].rounds) == [1]
        assert ledger.status().fingerprint != noted


def test_replaced_mark_stops_a_running_ledger(folder):
    with opened(folder) as ledger:
        answer(ledger, 1)
        copy = folder / "copy"
        shutil.copy(folder / MARK, copy)
        copy.replace(folder / MARK)
        with pytest.raises(RefusalError) as refused:
            answer(ledger, 2)
        assert refused.value.code == "ledger-damaged"


# Several processes


def test_one_process_holds_the_lock_until_it_ends_and_others_may_read(folder):
    words = [sys.executable, ledgers.__file__, "hold", str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "1\n"
            with pytest.raises(RefusalError) as refused:
                Ledger.open(folder, cap=CAP, create=True)
            assert refused.value.code == "ledger-locked"
            seen = [1]
            while seen[-1] < ledgers.ROUNDS:  # while the other process continues spending
                seen.append(len(read_ledger(folder).accounts[STUDY].rounds))
            assert seen == sorted(seen)
        finally:
            holder.kill()
    assert check(folder, {}) == ledgers.ROUNDS


def test_process_cannot_open_a_ledger_twice(folder):
    with opened(folder), pytest.raises(RefusalError) as refused:
        Ledger.open(folder, cap=CAP)
    assert refused.value.code == "ledger-locked"
    opened(folder).close()


def test_forked_process_cannot_use_its_parents_ledger(folder):
    assert run("fork_run", folder)["codes"] == ["ledger-closed"] * 4 + ["ledger-locked"]


def test_threads_are_serialised(folder):
    from concurrent.futures import ThreadPoolExecutor

    def spend(ledger: Ledger, study: str) -> None:
        ledger.reserve(study, 10 * ROUND_COST, about={})
        for round in range(1, 11):
            ledger.spend(study, round, digest=digest(round), mu_squared=ROUND_COST, upload=study.encode())

    studies = [f"{i:064x}" for i in range(4)]
    with Ledger.open(folder, cap=CAP, create=True) as ledger, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda study: spend(ledger, study), studies))
        assert [len(ledger.transcript(study)) for study in studies] == [10] * 4
        ledger.verify()
