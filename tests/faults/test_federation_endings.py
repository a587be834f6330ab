"""Endings of a study at sites and server, in real processes: finished, ended, restored, blocked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

import pytest
from federations import NAMES, Federation, small_study, wait_for

from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import begin
from dpadmm.trusted.ledger import read_ledger

ALL_ROUNDS = {"allow_missed_rounds": False, "quorum": None, "deadline": None}


@pytest.fixture
def ask(cli):
    """Run a command and return its exit code and its output in one line."""

    def run_command(*words: object) -> tuple[int, str]:
        answer = cli(*words, columns=200)
        return answer.code, " ".join((answer.out + answer.err).split())

    return run_command


def site_of(all: Federation, name: str) -> tuple[str, Path]:
    return "--site", all.folder / name / "site.toml"


def state_at(all: Federation, name: str) -> tuple[str, str | None] | None:
    """Return state and reason of the study in the status of a site."""
    path = all.folder / name / "status.json"
    if not path.exists():
        return None
    status = json.loads(path.read_text())
    found = [(study["state"], study["reason"]) for study in status["studies"] if study["hash"] == all.study.hash]
    return found[0] if found and status["running"] else None


def change_table(all: Federation, name: str) -> None:
    with (all.folder / name / "table.csv").open("a") as table:
        table.write("50.0,30.0,yes\n")


def test_finished_study_is_closed_at_every_site(tmp_path: Path, ask) -> None:
    """A site that was offline at the end is informed by the server's broker later. Then its table may change."""
    with Federation(tmp_path, small_study(60, quorum=2, deadline=0.5)) as all:
        all.accept()
        keeper = all.keep_broker()
        wait_for(all.broker.alive)
        begin(all.authority, all.study, list(NAMES))
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(3)
        all.agents["c"].kill()
        assert all.finished() == 0, all.output
        for name in ("a", "b"):
            wait_for(lambda name=name: state_at(all, name) == ("finished", None))  # type: ignore[misc]
            assert all.log(name).count("finished: all rounds are over; study closed") == 1
        for name in NAMES:
            change_table(all, name)
        for name in ("a", "b"):
            all.agents[name].end()
        all.start()
        for name in NAMES:  # for c, unused budget is released
            wait_for(lambda name=name: state_at(all, name) == ("finished", None))  # type: ignore[misc]
            wait_for(lambda name=name: ask("site", "status", "--health", *site_of(all, name))[0] == 0)  # type: ignore[misc]
            state = read_ledger(all.sites[name].ledger)
            assert (state.accounts[all.study.hash].ending, state.promised) == ("finish", state.spent)
        assert len(read_ledger(all.sites["c"].ledger).accounts[all.study.hash].rounds) < 60
        shown = ask("site", "status", *site_of(all, "c"))[1]
        assert "finished" in shown
        assert "blocked" not in shown
        left = ask("site", "leave", "small", *site_of(all, "a"))[1]
        assert "small, after 60 rounds: Finished: all rounds are over (already closed; nothing changed)." in left
        assert keeper.poll() is None


def test_ended_study_ends_at_every_site(tmp_path: Path, ask) -> None:
    with Federation(tmp_path, small_study(5_000)) as all:
        folder = ("--folder", all.authority.folder)
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(2)
        code, output = ask("server", "end", "small", *folder)
        assert (code, "Ended permanently: small, after" in output) == (0, True)
        assert all.finished() == 0, all.output
        assert "Ended for good after round" in " ".join(all.output.split())
        for name in NAMES:
            wait_for(lambda name=name: state_at(all, name) == ("ended", None))  # type: ignore[misc]
            state = read_ledger(all.sites[name].ledger)
            assert (state.accounts[all.study.hash].ending, state.promised) == ("end", state.spent)
            assert state.spent > 0
        rounds = all.rounds_done
        seen = json.loads(ask("server", "status", *folder, "--json")[1])
        assert (seen["state"], seen["rounds_done"], seen["round"]) == ("ended", rounds, 0)
        assert not [alarm for alarm in seen["alarms"] if alarm["code"] != "disk-small"]
        assert ask("server", "status", "--health", "small", *folder)[0] == 0
        assert f"Ended for good after round {rounds} of 5000" in ask("server", "status", *folder)[1]
        assert ask("server", "end", "small", *folder) == (0, "Already ended, nothing changed: small.")
        all.serve("small")  # a restarted service exits immediately
        assert all.finished() == 0, all.output
        assert all.rounds_done == rounds
        code, output = ask("server", "export", "-o", tmp_path / "model.dpadmm", *folder)
        assert (code, f"only {rounds} of 5000 rounds are completed: add --unfinished" in output) == (2, True)
        assert ask("server", "export", "-o", tmp_path / "model.dpadmm", *folder, "--unfinished")[0] == 0
        assert all.events().count("ended for good; no more rounds") == 1
        all.check(rounds=rounds, equal=False)


def test_restored_site_is_healthy_and_the_server_reports_a_study_that_cannot_continue(tmp_path: Path, ask) -> None:
    with Federation(tmp_path, small_study(5_000, **ALL_ROUNDS)) as all:
        folder = ("--folder", all.authority.folder)
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(2)
        all.agents["a"].end()
        code, output = ask("site", "restore", *site_of(all, "a"), "--none-since")
        assert (code, "small: charged in full and closed" in output) == (0, True)
        all.start("a")
        assert all.finished() == 2
        output = " ".join(all.output.split())
        assert "the study cannot continue after round" in output
        assert "only 2 of 3 sites can still answer, but the quorum is 3. a: refused: study-closed." in output
        assert "a: refused: study-closed; the study cannot continue with this site" in all.events()
        wait_for(lambda: state_at(all, "a") == ("charged", None))
        wait_for(lambda: ask("site", "status", "--health", *site_of(all, "a"))[0] == 0)
        account = read_ledger(all.sites["a"].ledger).accounts[all.study.hash]
        assert float(account.spent) == account.reservation.mu_squared
        left = ask("site", "leave", "small", *site_of(all, "a"))[1]
        assert "which charged its whole budget (already closed; nothing changed)." in left
        assert "This is its whole budget" in left
        assert "only for the rounds it released" not in left
        code, output = ask("server", "status", "--health", "small", *folder)
        assert code == 1
        assert f"To end it for good: dpadmm server end {all.study.hash[:16]} --folder {all.authority.folder}" in output
        assert ask(*output.partition("dpadmm ")[2].split()[:5])[0] == 0, "as printed"
        assert ask("server", "status", "--health", "small", *folder)[0] == 0
        with Journal.open(all.journal, read_only=True) as journal:
            assert journal.is_over


def test_study_with_allowed_dropouts_continues_without_a_restored_site(tmp_path: Path, ask) -> None:
    with Federation(tmp_path, small_study(300, quorum=2, deadline=0.5)) as all:
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(2)
        all.agents["a"].end()
        assert ask("site", "restore", *site_of(all, "a"), "--none-since")[0] == 0
        all.start("a")
        assert all.finished() == 0, all.output
        assert "a: refused: study-closed; the study cannot continue with this site" in all.events()


def test_unanswered_accepted_study_raises_an_alarm(tmp_path: Path, ask) -> None:
    """The folder may have been changed, or the decision lost. The server reports a refusal without a false reason."""
    with Federation(tmp_path, small_study(5_000, quorum=3)) as all:
        all.accept()
        all.begin()
        os.chmod(tmp_path / "a", 0o770)
        shutil.rmtree(tmp_path / "b" / "studies")
        change_table(all, "c")
        all.start()
        all.all_connected()
        all.start_wait = 10.0
        all.serve()
        assert all.finished() == 75
        output = " ".join(all.output.split())
        for name in NAMES:
            assert f"{name}: refused; see the site's log" in output
        assert "has its owner accepted" not in output
        reasons = {"a": "decision-unusable", "b": "decision-missing", "c": "data-changed"}
        for name, reason in reasons.items():
            wait_for(lambda name=name, reason=reason: state_at(all, name) == ("blocked", reason))  # type: ignore[misc]
            code, alarms = ask("site", "status", "--health", *site_of(all, name))
            assert (code, "study-blocked" in alarms) == (1, True)
            assert f"blocked ({reason})" in ask("site", "status", *site_of(all, name))[1]
        assert f"run chmod go-w {tmp_path / 'a'}" in ask("site", "status", "--health", *site_of(all, "a"))[1]
        os.chmod(tmp_path / "a", 0o700)
        wait_for(lambda: state_at(all, "a") in (("active", None), ("blocked", "not-connected")))


def test_revoked_site_raises_an_alarm_until_it_is_approved_again(tmp_path: Path, ask) -> None:
    with Federation(tmp_path, small_study(5_000, quorum=2, deadline=0.5)) as all:
        folder = ("--folder", all.authority.folder)
        all.accept()
        all.begin()
        all.start()
        all.all_connected()
        all.serve()
        all.after_round(2)
        assert ask("server", "revoke", "a", *folder)[0] == 0
        wait_for(lambda: "warning site-revoked" in ask("server", "status", *folder)[1])
        all.agents["a"].end()
        shutil.rmtree(tmp_path / "a" / "network")
        ask("site", "join", "--manual", "a", *site_of(all, "a"))
        request, invitation = tmp_path / "a" / "network" / "request.json", tmp_path / "again.json"
        assert ask("server", "invite", "a", "--manual", request, *folder, "-o", invitation)[0] == 0
        assert ask("site", "join", "--invitation", invitation, *site_of(all, "a"), "--yes")[0] == 0
        all.start("a")
        wait_for(lambda: "a: included again" in all.events())
        wait_for(lambda: "site-revoked" not in ask("server", "status", *folder)[1])
        shown = ask("server", "status", *folder)[1]
        assert "no longer takes part" not in shown
        assert shown.index("a: certificate revoked") < shown.index("a: included again")


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Mount a small file system over a folder, with its contents."""
    content = folder.with_name(f"{folder.name}.content")
    folder.rename(content)
    folder.mkdir(mode=0o700)
    mounted = run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        shutil.copytree(content, folder, dirs_exist_ok=True)
        yield
    finally:
        run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Use all space of a file system."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return path


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="only root may mount file systems")
def test_site_on_a_full_disk_reports_a_failed_ledger(tmp_path: Path, ask) -> None:
    with Federation(tmp_path, small_study(5_000, **ALL_ROUNDS)) as all:
        all.accept()
        all.begin()
        with small_disk(tmp_path / "a", 4):
            all.start()
            all.all_connected()
            all.serve()
            all.after_round(2)
            wait_for(lambda: state_at(all, "a") == ("active", None))
            filler = fill(tmp_path / "a")

            def alarms() -> str:
                return ask("site", "status", "--health", *site_of(all, "a"))[1]

            wait_for(lambda: "error ledger-closed" in alarms() or (fill(tmp_path / "a") and False))
            assert "error disk-full" in alarms()
            assert "not-running" not in alarms()
            assert ask("site", "status", "--health", *site_of(all, "a"), "--live")[0] == 0
            assert "blocked (ledger-failed)" in ask("site", "status", *site_of(all, "a"))[1]
            before = all.rounds_done
            filler.unlink()
            all.after_round(before + 2)
            wait_for(lambda: "ledger-closed" not in alarms())
            wait_for(lambda: state_at(all, "a") == ("active", None))
            all.kill_aggregator()
            all.agents["a"].end()
            state = read_ledger(tmp_path / "a" / "ledger")
            assert before < len(state.accounts[all.study.hash].rounds)
