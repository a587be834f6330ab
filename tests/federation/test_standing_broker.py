"""A broker that runs between studies, and when a study begins: real processes on loopback."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from federations import NAMES, Federation, small_study, wait_for
from forked import ForkedProgram

from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import begin

ROUNDS = 60


def kept_broker(all: Federation) -> ForkedProgram:
    return ForkedProgram(["server", "start", "--folder", all.authority.folder], all.folder / "broker.txt")


def test_sites_that_were_idle_answer_every_round_of_a_study_that_begins(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(ROUNDS, deadline=5.0, quorum=1)) as all:
        keeper, note = kept_broker(all), all.authority.folder / "broker.pid"
        try:
            all.accept()
            all.start()
            all.all_connected()
            assert kept_broker(all).wait(30) == 2
            assert "already runs this folder's broker" in (tmp_path / "broker.txt").read_text()
            pid = note.read_text()
            begin(all.authority, all.study, list(NAMES))
            all.serve()
            assert all.finished() == 0, all.output
            assert "using the broker of dpadmm server start" in all.output
            with Journal.open(all.journal, read_only=True) as journal:
                assert {name: len(rounds) for name, rounds in journal.answered().items()} == dict.fromkeys(
                    NAMES, ROUNDS
                )
            assert all.broker.alive()
            assert note.read_text() == pid, "the study left it as it was"
            assert not any("lost the connection" in all.log(name) for name in NAMES)
            os.kill(int(pid), signal.SIGKILL)
            wait_for(lambda: all.broker.alive() and note.read_text() != pid)
        finally:
            keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(30) == 0
        assert not all.broker.alive()
        all.check()


def test_a_study_does_not_begin_without_its_quorum_and_says_who_is_missing_and_why(tmp_path: Path) -> None:
    names = ("fine", "unasked", "never", "refusing", "gone")
    with Federation(tmp_path, small_study(30, quorum=4, deadline=0.5), names) as all:
        all.accept("fine", "refusing", "gone")
        with (tmp_path / "refusing" / "table.csv").open("a") as table:
            table.write("50.0,30.0,yes\n")  # the rows are not those it accepted the study with
        all.begin()
        running = [name for name in names if name != "never"]
        all.start(*running)
        all.all_connected(*running)
        all.start_wait = 8.0
        all.serve()
        wait_for(lambda: "gone: connected" in all.events())
        all.agents["gone"].kill()
        assert all.finished() == 75  # a service tries again
        said = " ".join(all.output.split())
        assert "starting a broker until the last study ends" in said
        assert "the study did not start: 1 of 5 sites connected within 8 seconds, 4 needed." in said
        assert "unasked: connected; its owner has not decided about the study" in said
        assert "never: silent, never connected" in said
        assert "refusing: refused; see the site's log" in said
        assert "gone: silent since" in said
        assert all.rounds_done == 0
        assert not all.broker.alive()
        all.begin()
        (tmp_path / "refusing" / "table.csv").write_text(
            "".join((tmp_path / "refusing" / "table.csv").read_text().splitlines(keepends=True)[:-1])
        )
        all.agents["refusing"].end()
        all.accept("unasked")
        all.start("gone", "refusing")
        all.all_connected("gone", "refusing")
        all.start_wait = 20.0  # agents that nobody heard end are waited for a few seconds
        all.serve()
        assert all.finished() == 0, all.output
        assert "round 1 starts with 4 of 5 sites" in all.events()
        all.check()
