"""Faults at sites: copied folders, old ledgers, full disks, joining late, leaving early, revocation."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from pathlib import Path

import pytest
from federations import Federation, agent_process, small_study, wait_for

from dpadmm.federation.health import (
    STALE_AFTER,
    STATUS,
    ServerStatus,
    is_live,
    read_status,
    seconds_since,
    site_alarms,
)
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.site.decisions import accept, decide
from dpadmm.sites.backup import restore
from dpadmm.sites.site import read_site
from dpadmm.trusted.ledger import DATABASE, read_ledger

ALL_TIMES = {"allow_missed_rounds": False, "quorum": None, "deadline": None}


def rounds_of(all: Federation, *places: str) -> list[set[int]]:
    """Return the rounds charged in the ledgers of these folders."""
    books = [read_ledger(all.folder / place / "ledger") for place in places]
    return [set(state.accounts[all.study.hash].rounds) for state in books]


def alarms_at(folder: Path) -> list[str]:
    return [alarm.code for alarm in site_alarms(read_status(folder / "status.json"), folder)]


def test_clone_of_a_running_site_is_refused_and_both_are_notified(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(5_000)) as all:
        all.accept()
        all.begin()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(1)
        second = agent_process(all.sites["a"])  # of the same folder
        assert second.process.wait(30) == 75
        assert "in use by another process" in second.output
        assert "Traceback" not in second.output
        copied = agent_process(read_site(tmp_path / "copy" / "site.toml"))  # two copies of key and ledger
        try:
            wait_for(lambda: "another process answers for this site" in all.log("copy"))
            wait_for(lambda: "was refused: does a copy of this folder run?" in all.log("a"))
            for place in ("a", "copy"):
                wait_for(lambda place=place: "cloned" in alarms_at(tmp_path / place))  # type: ignore[misc]
            all.after_round(all.rounds_done + 3)
            all.kill_aggregator()
        finally:
            copied.end()
        assert "a: refused a second process with its certificate" in all.events()
        all.check(rounds=all.rounds_done, equal=False)
        original, clone = rounds_of(all, "a", "copy")
        assert clone == set()
        with Journal.open(all.journal, read_only=True) as journal:
            assert set(journal.answered()["a"]) <= original


def test_clone_takes_over_from_a_stopped_site_which_is_then_refused(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(2_000, quorum=2, deadline=0.5)) as all:
        all.accept()
        all.begin()
        all.start()
        all.serve()
        all.after_round(3)
        all.agents["a"].end()  # a moved site: the copy has all records
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        copied = agent_process(read_site(tmp_path / "copy" / "site.toml"))
        try:
            wait_for(lambda: rounds_of(all, "a", "copy")[1] > rounds_of(all, "a", "copy")[0])
            copied.kill()
            all.start("a")
            wait_for(lambda: "it is an old copy" in all.log("a"))
            wait_for(lambda: "a: refused: ledger-behind" in all.events())
            wait_for(lambda: "ledger-behind" in alarms_at(tmp_path / "a"))
        finally:
            copied.end()
        before, after = rounds_of(all, "a", "copy")
        assert before < after
        with Journal.open(all.journal, read_only=True) as journal:
            assert set(journal.answered()["a"]) <= after


def test_old_ledger_is_detected_and_can_be_restored(tmp_path: Path) -> None:
    """This includes a study with allowed dropouts, where round numbers do not reveal it, and what its owner can do."""
    with Federation(tmp_path, small_study(4_000, quorum=2, deadline=0.5)) as all:
        all.accept()
        all.begin()
        old, ledger = tmp_path / "old", tmp_path / "a" / "ledger"
        shutil.copytree(ledger, old)
        all.start()
        all.serve()
        all.after_round(3)
        all.agents["a"].kill()
        newer = tmp_path / "newer"
        shutil.copytree(ledger, newer)
        for path in ledger.glob(f"{DATABASE}*"):
            path.unlink()
        shutil.copy(old / DATABASE, ledger / DATABASE)  # the mark is newer, so the missing records are detected
        all.start("a")
        assert all.agents["a"].process.wait(30) == 2
        assert "cannot be trusted" in all.agents["a"].output
        shutil.rmtree(ledger)
        shutil.copytree(old, ledger)  # with the mark: only the server can detect it
        all.start("a")
        wait_for(lambda: "a: refused: ledger-behind" in all.events())
        all.agents["a"].end()
        assert not rounds_of(all, "a")[0]
        shutil.rmtree(ledger)
        shutil.copytree(newer, ledger)  # the right one: the study continues
        answered = rounds_of(all, "a")[0]
        all.start("a")
        wait_for(lambda: rounds_of(all, "a")[0] > answered)
        all.agents["a"].end()
        shutil.rmtree(ledger)
        shutil.copytree(old, ledger)
        restore(all.sites["a"], None, [])  # the owner confirms, and the whole study is charged
        all.start("a")
        wait_for(lambda: "a: refused: study-closed" in all.events())
        wait_for(lambda: not {"ledger-behind", "study-blocked"} & set(alarms_at(tmp_path / "a")))
        account = read_ledger(ledger).accounts[all.study.hash]
        assert float(account.spent) == account.reservation.mu_squared


def limited(pid: int, size: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="files of another process cannot be limited")
def test_full_disks_stop_sites_and_server_without_loss(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(40, **ALL_TIMES), limit=9.0) as all:
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        wait_for(lambda: "enrolled," in all.log("a"))
        agent = all.agents["a"].process.pid
        limited(agent, 4_000)  # too little for a record, enough for some log lines
        limited(all.serve().pid, 120_000)
        wait_for(lambda: "a: refused: ledger-failed" in all.events())
        assert "(ledger-failed)" in all.log("a")
        wait_for(lambda: "ledger-closed" in alarms_at(tmp_path / "a"))
        assert "not-running" not in alarms_at(tmp_path / "a")
        assert all.rounds_done == 0
        limited(agent, resource.RLIM_INFINITY)
        assert all.finished() == 75  # the journal cannot grow: a service manager restarts the server
        assert 0 < all.rounds_done < 40
        assert "a: reconnected" in all.events()
        assert "closed rounds are stored: fix the cause, then resume" in " ".join(all.output.split())
        assert "Traceback" not in all.output
        all.serve()
        assert all.finished() == 0
        other = small_study(5, name="other")
        accept(all.sites["a"], other)
        limited(agent, 20_000)  # leaving must also be recorded
        decide(tmp_path / "a", other, "left")
        wait_for(lambda: "left, but still open in the ledger" in all.log("a"))
        assert all.agents["a"].running()
        limited(agent, resource.RLIM_INFINITY)
        all.check()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="files of another process cannot be limited")
def test_broker_on_a_full_disk_is_reported_as_running(tmp_path: Path, process) -> None:
    with Federation(tmp_path, small_study()) as all:
        keeper, status = all.keep_broker(), all.authority.folder / STATUS
        wait_for(lambda: status.exists() and is_live(read_status(status, ServerStatus)))
        limited(keeper.pid, 10)
        wait_for(lambda: seconds_since(json.loads(status.read_text())["at"]) > STALE_AFTER)
        health = process("server", "status", "--health", "--folder", all.authority.folder)
        assert "not-running" not in health.out
        shown = process("server", "status", "--folder", all.authority.folder).succeeded()
        assert "Broker (running): " in shown.out
        limited(keeper.pid, resource.RLIM_INFINITY)
        keeper.kill()
        keeper.wait()
        wait_for(lambda: process("server", "status", "--health", "--folder", all.authority.folder).code == 1)


def test_sites_that_join_late_leave_early_or_are_revoked(tmp_path: Path, process) -> None:
    rounds, names = 150, ("a", "b", "early", "late", "out")
    with Federation(tmp_path, small_study(rounds, quorum=2, deadline=0.5), names) as all:
        all.accept("a", "b", "early", "out")
        all.begin()
        all.start_wait = 3.0
        all.start("a", "b", "early", "out")
        all.all_connected("a", "b", "early", "out")
        aggregator = all.serve()
        all.after_round(2)
        aggregator.send_signal(signal.SIGSTOP)  # leaves rounds for the rest of the test
        left = process("site", "leave", all.study.hash, "--site", tmp_path / "early" / "site.toml")
        assert left.code == 0, left.err
        revoked = process("server", "revoke", "out", "--folder", all.authority.folder)
        assert revoked.code == 0, revoked.err
        all.accept("late")
        all.start("late")
        all.all_connected("late")
        aggregator.send_signal(signal.SIGCONT)
        assert all.finished() == 0
        events = all.events()
        assert "out: certificate revoked" in events
        assert "late: connected" in events
        assert "left by the owner" in all.log("early")
        wait_for(lambda: "lost" in all.log("out"))
        with Journal.open(all.journal, read_only=True) as journal:
            answered = journal.answered()
        for name in ("early", "late", "out"):
            assert 0 < len(answered[name]) < rounds, name
        assert all.check() is not None
        assert read_ledger(all.sites["early"].ledger).accounts[all.study.hash].closed


def test_dropout_of_a_site_matches_the_simulation(tmp_path: Path) -> None:
    """``benchmarks/absences.py`` contains the losses of simulations, which this run reproduces bit by bit."""
    rounds = 200
    with Federation(tmp_path, small_study(rounds, method="auto", quorum=2, deadline=2.0)) as all:
        all.accept()
        all.begin()
        all.start()
        all.serve()
        all.after_round(rounds // 4)
        all.agents["c"].kill()
        all.after_round(3 * rounds // 4)
        all.start("c")
        assert all.finished() == 0, all.output
        with Journal.open(all.journal, read_only=True) as journal:
            answered = journal.answered()
        assert 0 < len(answered["c"]) <= rounds - rounds // 3 < len(answered["a"])
        assert all.check() is not None
