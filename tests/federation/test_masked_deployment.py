"""Secure aggregation with a process per site, over a broker, checked by a second run and a search of the disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from federations import Federation, small_study, write_rows
from in_process import InProcess

from dpadmm.accounting.verification import verify_report
from dpadmm.errors import DataError
from dpadmm.federation.local import new_site, with_keys
from dpadmm.federation.protocol import Kind, unpacked
from dpadmm.federation.replay import Replay, answers_of, replay
from dpadmm.federation.server.coordinator import run_rounds
from dpadmm.federation.server.journal import Journal, result_of, write_transcript
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.site.responder import Responder
from dpadmm.studies.study import Study
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.ledger import Ledger, read_ledger

NAMES, ROUNDS = ("a", "b", "c", "d"), 10
MASKED = {"max_rows_per_site": 60, "quorum": 3}


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="memory is read in /proc")
def test_masked_run_with_a_killed_site_and_a_returning_site(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(40, **MASKED, deadline=2.0), NAMES) as all:
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(3)
        all.agents["d"].kill()
        all.after_round(8)
        all.agents["b"].kill()
        all.start("b")
        all.after_round(12)
        assert all.aggregator is not None
        all.aggregator.send_signal(signal.SIGSTOP)
        in_memory = memory_of(all.aggregator.pid)
        all.aggregator.send_signal(signal.SIGCONT)
        assert all.finished(120) == 0, all.output
        found = all.check()
        assert found is not None
        on_disk = b"".join(path.read_bytes() for path in (tmp_path / "aggregator").rglob("*") if path.is_file())
        with Journal.open(all.journal, read_only=True) as journal:
            sums, answered = journal.sums(), journal.answered()
            assert len(answered["d"]) < len(answered["a"])
            known = list(journal.consensus())
            assert any(contains(in_memory, item.view(np.int64)) for item in known[10:20]), (
                "this is not the server's memory"
            )
            assert {name for aborted in journal.aborted_rounds() for name in aborted.sites} <= {"b", "d"}
        for total in sums.values():
            assert total.astype("<i8").tobytes() in on_disk
        for name, site in all.sites.items():
            said = answers_of(site, all.study)
            assert said
            for round, (numbers, _) in said.items():  # x_i; and then y_i, as its ledger has it
                assert not any(item.astype("<i8").tobytes() in on_disk for item in numbers.ravel())
                assert round > 15 or not contains(in_memory, numbers)
            with Ledger.open(site.ledger, cap=site.policy.cap, collusion_cap=site.policy.collusion_cap) as ledger:
                masked = [stored[:8] for _, stored in ledger.transcript(all.study.hash)]
            assert not any(item in on_disk for item in masked), name


def memory_of(pid: int) -> bytes:
    """Return the current writable memory of a process."""
    found = []
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            start, stop = (int(part, 16) for part in span.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                with contextlib.suppress(OSError):  # not there any more
                    found.append(memory.read(stop - start))
    return b"".join(found)


def contains(memory: bytes, numbers: np.ndarray) -> bool:
    """Return whether these numbers are stored consecutively, in an array or a message."""
    pattern = numbers.astype("<i8").tobytes()
    for offset in (0, 4):
        words = np.frombuffer(memory, "<i8", len(memory) // 8 - 1, offset)
        places = np.flatnonzero(words == numbers.ravel()[0])
        starts = (8 * places + offset).tolist()
        if any(memory[start : start + len(pattern)] == pattern for start in starts):
            return True
    return False


class Line(InProcess):
    """Sites whose answers to a request or to a mask are lost in some rounds."""

    def __init__(self, study: Study, responders: dict[str, Responder], lost: set[tuple[str, int, Kind]]) -> None:
        self._study, self._lost = study, lost

        def answer(name: str, data: bytes) -> bytes | None:
            shape = study.broadcast_shape
            asked = unpacked(data, study=study.hash, shape=lambda _: shape, from_site=False, n_sites=len(NAMES))
            reply = responders[name].answer(study.hash, data)
            return None if (name, asked.round, asked.kind) in lost else reply

        super().__init__({name: lambda data, name=name: answer(name, data) for name in responders})  # type: ignore[misc]


class Run:
    """A complete run with lost messages: its sites and its journal."""

    def __init__(self, folder: Path, lost: set[tuple[str, int, Kind]] = frozenset()) -> None:  # type: ignore[assignment]
        self.sites = {}
        draft = small_study(ROUNDS, **MASKED, deadline=0.3)
        for i, name in enumerate(NAMES):
            (folder / name).mkdir()
            write_rows(folder / name / "table.csv", i, 60 - i)
            self.sites[name] = new_site(folder / name, draft, table="table.csv", epsilon=3.0)
        self.study = with_keys(draft, self.sites)
        self.path = folder / "journal" / "journal.sqlite"
        Journal.begin(self.path, self.study, NAMES)
        responders = {}
        for name, site in self.sites.items():
            accept(site, self.study)
            responders[name] = Responder(site.guard, 1, logging.getLogger("test"))
            responders[name].open()
            assert responders[name].accept(self.study) is None
        with Journal.open(self.path) as journal:
            asyncio.run(run_rounds(coordinator_of(journal), Line(self.study, responders, lost)))
        for responder in responders.values():
            responder.close()

    def replayed(self) -> Replay:
        with Journal.open(self.path, read_only=True) as journal:
            return replay(journal, self.sites)


def test_masked_run_equals_the_unmasked_run_in_one_process(tmp_path: Path) -> None:
    """This includes a site that was not ready, and one that vanished."""
    run = Run(tmp_path, {("b", 3, Kind.REQUEST), ("c", 5, Kind.MASK), ("d", 1, Kind.MASK)})
    seen = run.replayed()
    assert seen.equal
    with Journal.open(run.path, read_only=True) as journal:
        assert [aborted.round for aborted in journal.aborted_rounds()] == [1, 5]
        members = 4 * ROUNDS - 3  # not ready; d and c sit out a round each
        assert (seen.n_releases, seen.n_lost) == (members, 8)
        result = result_of(journal)
        write_transcript(journal, tmp_path / "t.npz")
    assert 0.5 < seen.noise_scale < 1.5
    assert result.privacy.min_honest_sites == 2
    assert set(result.privacy.charged_releases.tolist()) == {ROUNDS}
    (tmp_path / "s.json").write_bytes(result.privacy.to_bytes())
    verify_report(tmp_path / "s.json")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as transcript:
        assert transcript["aborted"].tolist() == [1, 5]
        assert transcript["members"].sum() == members - 8
        assert transcript["sum"].size == transcript["sum_size"].sum()
    for name, site in run.sites.items():
        account = read_ledger(site.ledger).accounts[run.study.hash]
        assert account.shares == 2, name


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_wrong_sum_is_detected(run: Run) -> None:
    with closing(sqlite3.connect(run.path, isolation_level=None)) as database:
        ((blob,),) = database.execute("SELECT sum FROM sums WHERE round = 4").fetchall()
        changed = np.frombuffer(blob, "<i8").copy()
        changed[0] += 1
        database.execute("UPDATE sums SET sum = ? WHERE round = 4", (changed.tobytes(),))
    with pytest.raises(DataError, match="the sum of round 4 in the journal is not the sum of its members' answers"):
        run.replayed()


def test_too_small_noise_shares_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = exact_noise.discrete_gaussian
    monkeypatch.setattr(exact_noise, "discrete_gaussian", lambda scale, count: drawn(scale, count) // 10)
    seen = Run(tmp_path).replayed()
    assert seen.first_difference == 0
    assert not seen.equal
