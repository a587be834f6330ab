"""What happens at sites: copied folders, old ledgers, full disks, coming late, leaving early, revocation."""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path

import pytest
from federations import Federation, agent_process, small_study, wait_for

from dpadmm.federation.aggregator.journal import Journal
from dpadmm.federation.site.decisions import decide
from dpadmm.site.site import read_site
from dpadmm.trusted.ledger import DATABASE, LedgerState, read_ledger

ALL_TIMES = {"allow_missed_rounds": False, "quorum": None, "deadline": None}


def test_two_agents_of_one_site_and_a_copied_ledger(tmp_path: Path) -> None:
    told = "a: its message was refused: a second, different answer to the same round"
    with Federation(tmp_path, small_study(30)) as all:
        all.accept()
        all.begin()
        shutil.copytree(tmp_path / "a", tmp_path / "copy")
        all.start()
        copied = agent_process(read_site(tmp_path / "copy" / "site.toml"))  # key and ledger in two places
        try:
            wait_for(lambda: "enrolled," in all.log("a"))
            second = agent_process(all.sites["a"])  # of the same folder
            assert second.process.wait(30) == 2
            assert "in use by another process" in second.output
            assert "Traceback" not in second.output
            wait_for(lambda: "connected" in all.log("copy"))
            all.serve()
            assert all.finished() == 0
        finally:
            copied.end()
            all.agents["a"].end()
        assert told in all.events()
        assert "do two agents share a certificate?" in all.said
        books = [read_ledger(tmp_path / place / "ledger") for place in ("a", "copy")]
        given = set[int]().union(*(book.accounts[all.study.hash].rounds for book in books))
        with Journal.open(all.journal, read_only=True) as journal:
            assert {each.round for _, each in journal.uploads() if each.site == "a"} <= given
        assert all_within(books)


def all_within(books: list[LedgerState]) -> bool:
    return max(float(book.spent) / book.cap for book in books) <= 1.0


def test_an_old_ledger_put_back(tmp_path: Path) -> None:
    study = small_study(120, **ALL_TIMES)
    with Federation(tmp_path, study) as all:
        all.accept()
        all.begin()
        old = tmp_path / "old"
        shutil.copytree(tmp_path / "a" / "ledger", old)
        all.start()
        all.serve()
        all.after_round(3)
        all.agents["a"].kill()
        newer = tmp_path / "newer"
        shutil.copytree(tmp_path / "a" / "ledger", newer)
        ledger = tmp_path / "a" / "ledger"
        for path in ledger.glob(f"{DATABASE}*"):
            path.unlink()
        shutil.copy(old / DATABASE, ledger / DATABASE)  # the mark is newer: it is missed
        all.start("a")
        assert all.agents["a"].process.wait(30) == 2
        assert "cannot be trusted" in all.agents["a"].output
        shutil.rmtree(ledger)
        shutil.copytree(old, ledger)  # with the mark: nobody can tell, but rounds without gaps do
        all.start("a")
        assert all.finished() == 2
        assert "a: refused: round-gap" in all.said
        assert "the study stops before round" in all.said
        assert "only 2 of 3 sites can still answer" in all.said
        assert "(round-gap)" in all.log("a")
        all.agents["a"].end()
        done = all.rounds_done
        shutil.rmtree(ledger)
        shutil.copytree(newer, ledger)  # the right one: it goes on as if nothing had been
        all.start("a")
        all.serve()
        assert all.finished() == 0
        assert done < 120
        all.check()


def limited(pid: int, size: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="files of another process cannot be limited")
def test_full_disks(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(40, **ALL_TIMES)) as all:
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        wait_for(lambda: "enrolled," in all.log("a"))
        agent = all.agents["a"].process.pid
        limited(agent, 4_000)  # less than a record needs, enough for some lines of the log
        limited(all.serve().pid, 120_000)
        wait_for(lambda: "a: refused: ledger-failed" in all.events())
        assert "(ledger-failed)" in all.log("a")
        assert all.rounds_done == 0
        limited(agent, resource.RLIM_INFINITY)
        assert all.finished() == 2  # now it is the journal that cannot grow
        assert 0 < all.rounds_done < 40
        assert "a: reconnected" in all.events()
        assert "closed rounds are safe: fix the cause, then resume" in " ".join(all.said.split())
        assert "Traceback" not in all.said
        all.serve()
        assert all.finished() == 0
        limited(agent, 20_000)  # to leave must be written down, too
        decide(tmp_path / "a", all.study, "left")
        wait_for(lambda: "left, but still open in the ledger" in all.log("a"))
        assert all.agents["a"].running()
        limited(agent, resource.RLIM_INFINITY)
        all.check()


def test_coming_late_leaving_early_and_revoked(tmp_path: Path, process) -> None:
    rounds, names = 150, ("a", "b", "early", "late", "out")
    with Federation(tmp_path, small_study(rounds, quorum=2, deadline=0.5), names) as all:
        all.accept("a", "b", "early", "out")
        all.begin()
        all.start_wait = 3.0
        all.start("a", "b", "early", "out")
        all.all_connected("a", "b", "early", "out")
        aggregator = all.serve()
        all.after_round(2)
        aggregator.send_signal(signal.SIGSTOP)  # so that there are rounds left for what comes now
        left = process("agent", "leave", all.study.hash, "--site", tmp_path / "early" / "site.toml")
        assert left.code == 0, left.err
        revoked = process("aggregator", "revoke", "out", "--folder", all.authority.folder)
        assert revoked.code == 0, revoked.err
        all.accept("late")
        all.start("late")
        all.all_connected("late")
        aggregator.send_signal(signal.SIGCONT)
        assert all.finished() == 0
        told = all.events()
        assert "out: its certificate was revoked" in told
        assert "late: connected" in told
        assert "left by the owner" in all.log("early")
        wait_for(lambda: "lost" in all.log("out"))
        with Journal.open(all.journal, read_only=True) as journal:
            answered = journal.answered()
        for name in ("early", "late", "out"):
            assert 0 < len(answered[name]) < rounds, name
        assert all.check() is not None
        assert read_ledger(all.sites["early"].ledger).accounts[all.study.hash].closed
