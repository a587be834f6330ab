"""Commands printed by alarms, status and errors work as printed, with two studies in the folder and real processes."""

from __future__ import annotations

import re
import shlex
from contextlib import chdir
from pathlib import Path
from typing import Any

from federations import NAMES, Federation, small_study, wait_for
from forked import ForkedProgram

from dpadmm.federation.health import STATUS, Alarm, now_text, server_alarms, site_alarms, study_alarms
from dpadmm.federation.server.process import begin
from dpadmm.federation.server.status import alarms_of, journal_of, status_of
from dpadmm.federation.site.decisions import decide

READY = {
    "site check": None,
    "site run": "no accepted study yet",
    "server start": "connected to",
    "server run": "Waiting for the sites",
    "server revoke": None,
}
"""Commands of alarms, with the output of those that run until they are stopped."""


def commands_in(text: str) -> list[list[str]]:
    """Return the words of every command that stands at the end of a line."""
    return [shlex.split(found) for found in re.findall(r"(?:^|: )(dpadmm .*)$", text, re.MULTILINE)]


def printed(text: str, word: str) -> list[str]:
    (found,) = [words[1:] for words in commands_in(text) if words[2] == word]
    return found


def test_command_of_the_alarm_continues_a_study_killed_before_round_1(tmp_path: Path, cli: Any) -> None:
    rounds, folder = 300, ("--folder", tmp_path / "aggregator")
    with Federation(tmp_path, small_study(rounds, name="first one"), limit=90.0) as all:
        all.accept()
        all.begin()
        all.start()
        all.serve()
        assert all.finished() == 0, all.output
        with chdir(tmp_path):
            cli(*printed(all.output, "export")).succeeded()
        assert (tmp_path / "MODEL.dpadmm").exists()

        second = small_study(rounds, name="second one")
        all.broker.start()
        path = begin(all.authority, second, list(NAMES))
        killed = ForkedProgram(["server", "run", *folder, "--no-page"], tmp_path / "killed.txt")
        wait_for(lambda: path.with_name(STATUS).exists())
        killed.kill()
        killed.wait()
        wait_for(lambda: not status_of(all.authority, path)["served"])
        seen = status_of(all.authority, path)
        assert (seen["state"], seen["headline"], seen["round"]) == ("interrupted", "Interrupted before round 1", 1)
        health = cli("server", "status", "--health", *folder)
        assert health.code == 1
        assert "error not-running: second one: Interrupted before round 1: no server runs this study" in health.out
        shown = cli("server", "status", *folder, columns=140).succeeded().out
        assert re.search(r"second one +[0-9a-f]{16} +interrupted", shown)
        assert re.search(r"first one +[0-9a-f]{16} +finished", shown)
        assert printed(shown, "run") == printed(health.out, "run")
        for words in ((*printed(shown, "status"),), ("server", "status", "second one", *folder)):
            assert "Interrupted before round 1" in cli(*words).succeeded().out

        for name in NAMES:
            decide(tmp_path / name, second, "accepted")
        resumed = ForkedProgram(printed(health.out, "run"), tmp_path / "resumed.txt")
        wait_for(lambda: status_of(all.authority, path)["rounds_done"] > 2)
        resumed.kill()
        resumed.wait()
        all.serve()  # dpadmm server run --folder: the only study that is not finished
        assert all.finished() == 0, all.output
        assert status_of(all.authority, path)["headline"] == f"Finished: {rounds} of {rounds} rounds"
        none = cli("server", "run", *folder)
        assert (none.code, none.err.count("\n")) == (2, 1)
        assert "there is no unfinished study; give one of:" in none.err
        several = cli("server", "export", "-o", tmp_path / "m.dpadmm", *folder)
        assert "there is more than one study; give one of:" in several.err
        wrong = cli("server", "status", "third one", *folder)
        assert (wrong.code, "no study with the file, name or hash 'third one'" in wrong.err) == (2, True)


def unconnected() -> dict[str, Any]:
    """The status of an agent without a connection."""
    return {
        "at": now_text(),
        "running": True,
        "connected": False,
        "broker": "tls://localhost:1",
        "connection_since": now_text(),
        "ledger_open": True,
        "ledger_works": True,
        "problems": [],
        "lease": "held",
        "contested": False,
        "studies": [],
        "certificate_expires": "2999-01-01T00:00:00+00:00",
        "clock_difference": None,
    }


def test_commands_of_all_alarms_can_be_run(tmp_path: Path, cli: Any) -> None:
    with Federation(tmp_path, small_study(5)) as all:
        folder = all.authority.folder
        begin(all.authority, all.study, list(NAMES))
        begin(all.authority, small_study(6, name="other"), list(NAMES))
        journal = journal_of(folder, all.study.hash)
        cloned = {"name": "a", "state": "present", "code": None, "doubt": "cloned", "left_out": True}
        site = cloned | {"clock_difference": 61.0, "last_seen": None}
        stalled = {"state": "stalled", "headline": "", "since": "2026", "live": {"connected": False, "broker": ""}}
        found: list[Alarm] = [
            *alarms_of(all.authority, [status_of(all.authority, journal) | {"state": "interrupted"}]),
            *study_alarms(stalled | {"sites": [site, site | {"state": "silent"}, site | {"state": "refused"}]}, folder),
            *server_alarms(folder, {}, studies=False),
            *site_alarms(None, tmp_path / "a"),
            *site_alarms(unconnected(), tmp_path / "a"),
        ]
        assert {alarm.code for alarm in found if alarm.command} == {"not-running", "not-connected", "site-cloned"}
        for alarm in found:
            assert alarm.action, alarm
            assert commands_in(alarm.line) == ([shlex.split(alarm.command)] if alarm.command else [])
            assert "dpadmm " not in alarm.text + alarm.action
        for number, words in enumerate(sorted({alarm.command for alarm in found if alarm.command})):
            out = tmp_path / f"{number}.txt"
            out.touch()
            ran = ForkedProgram(shlex.split(words)[1:], out)
            try:
                if (ready := READY[" ".join(words.split()[1:3])]) is None:
                    assert ran.wait(60) == (1 if "check" in words else 0), out.read_text()  # 1: no broker runs
                else:
                    wait_for(lambda out=out, ready=ready: ready in out.read_text())
            finally:
                ran.kill()
                ran.wait()
