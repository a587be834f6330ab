"""Status, health and metrics tell the truth: a study whose sites are cut off, in real processes; and each alarm."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from brokers import free_port
from federations import NAMES, Federation, small_study, wait_for
from looping import case
from page_visits import visitor
from proxies import Faults, Proxy

from dpadmm.cli import main
from dpadmm.errors import StudyError
from dpadmm.federation import health
from dpadmm.federation.health import (
    server_alarms,
    site_alarms,
    study_alarms,
    write_status,
)
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.settings import url_of
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.process import begin
from dpadmm.federation.server.status import overview
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.federation.states import SiteState, StudyState, headline, site_state, study_state
from dpadmm.federation.web.server_data import CONNECTION_STATES, FOLDER_SECONDS, ServerData


def command(*words: object) -> tuple[object, str]:
    """The exit code of a command, and what it prints."""
    out, before = io.StringIO(), sys.argv
    sys.argv = ["dpadmm", *map(str, words)]
    try:
        with redirect_stdout(out):
            main()
    except SystemExit as end:
        return end.code or 0, out.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("a command ends with its code")


def test_sites_that_are_cut_off_stall_a_study_which_is_said_and_heals(tmp_path: Path) -> None:
    port, metrics = free_port(), free_port()
    authority = Authority.create(tmp_path / "aggregator", hosts=["localhost"], port=port)
    folder = ("--folder", authority.folder)
    study = small_study(5_000, deadline=2.0, quorum=2)  # slow ones: it does not end by itself

    def status() -> dict[str, Any]:
        return json.loads(command("server", "status", *folder, "--json")[1])

    def within(seconds: float, done: Callable[[], object]) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, status()
            time.sleep(0.1)

    def agent(name: str) -> dict[str, Any]:
        return json.loads(command("site", "status", "--site", tmp_path / name / "site.toml", "--json")[1])

    async def run() -> None:
        async with Proxy("127.0.0.1", port, Faults(delay=0.2)) as proxy:
            with Federation(tmp_path, study, authority=authority, url=url_of("localhost", proxy.port)) as all:
                assert (status()["state"], status()["healthy"]) == ("none", False)  # before the first run
                assert agent("a")["running"] is False
                assert command("server", "status", "--health", *folder)[0] == 1
                all.accept()
                all.begin()
                all.start()
                all.serve("--log", "json", "--metrics", str(metrics))
                await asyncio.to_thread(all.after_round, 3)
                healthy = await asyncio.to_thread(status)
                assert (healthy["healthy"], healthy["served"], healthy["stalled"]) == (True, True, [])
                assert all_fresh(healthy)
                assert command("server", "status", "--health", *folder)[0] == 0
                assert command("site", "status", "--health", "--site", tmp_path / "a" / "site.toml")[0] == 0
                proxy.hold()
                await asyncio.to_thread(within, 20.0, lambda: status()["stalled"] == list(NAMES))
                seen = await asyncio.to_thread(status)
                assert [alarm["code"] for alarm in seen["alarms"] if alarm["level"] == "error"] == ["stalled"]
                assert [site["state"] for site in seen["sites"]] == ["silent"] * 3
                where = f"Stalled in round {seen['round']} of 5000: a silent, b silent, c silent"
                assert (seen["state"], seen["headline"]) == ("stalled", where)
                assert seen["since"] == min(stall["start"] for stall in seen["stalls"])
                assert (seen["seconds_left"], seen["deadline_in"], seen["stalls"][-1]["end"]) == (None, None, None)
                for words in (folder, ("--health", *folder)):
                    assert where in command("server", "status", *words)[1]
                assert command("server", "status", "--health", *folder)[0] == 1
                assert command("server", "status", "--health", *folder, "--live")[0] == 0
                assert 'dpadmm_alarm{code="stalled",level="error"} 1' in scraped(metrics)
                await asyncio.to_thread(within, 20.0, lambda: agent("a")["server_silent"])
                proxy.release()
                await asyncio.to_thread(within, 60.0, lambda: status()["healthy"])
                assert command("server", "status", "--health", *folder)[0] == 0
                assert "dpadmm_alarm{" not in scraped(metrics).replace('code="disk-small"', "")
                told = [json.loads(line) for line in all.output.splitlines() if line.startswith("{")]
                for name in NAMES:
                    start, end = [item for item in told if re.match(rf"{name}: .*stall", item["text"])]
                    assert start["level"] == "error"
                    assert re.match(rf"{name}: round \d+ stalled: silent since 20", start["text"])
                    assert re.match(rf"{name}: stall of round \d+ ended after \d+ s", end["text"])
                stalls = (await asyncio.to_thread(status))["stalls"]
                assert [stall["site"] for stall in stalls] == list(NAMES)
                assert not [stall for stall in stalls if stall["start"] > stall["end"]]
                shown = command("server", "status", *folder)[1]
                for stall in stalls:
                    line = f"{stall['site']} {stall['round']} {stall['start'][:19]} {stall['end'][:19]}"
                    assert line in " ".join(shown.split())
                all.aggregator.send_signal(signal.SIGSTOP)  # it holds its lock, and lives no more
                await asyncio.to_thread(within, 30.0, lambda: not status()["served"])
                assert command("server", "status", "--health", *folder, "--live")[0] == 1
                all.aggregator.send_signal(signal.SIGCONT)
                await asyncio.to_thread(within, 30.0, lambda: status()["served"])

    def all_fresh(seen: dict[str, Any]) -> bool:
        return all(
            not site["silent"] and abs(site["clock_difference"]) < 5 and site["certificate_days_left"] > 300
            for site in seen["sites"]
        )

    asyncio.run(run())


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return page.read().decode()


# Each alarm, without processes


def agent_status(**more: object) -> dict[str, Any]:
    fine: dict[str, Any] = {
        "at": health.now_text(),
        "running": True,
        "pid": 1,
        "connected": True,
        "connection_since": "2026-01-01T00:00:00+00:00",
        "server_silent": False,
        "clock_difference": 0.5,
        "ledger_works": True,
        "lease": "held",
        "contested": False,
        "site": "north",
        "broker": "tls://study.example.org:4222",
        "certificate_expires": later(days=90),
        "problems": [],
        "studies": [],
    }
    return {**fine, **more}


def study_status(**more: object) -> dict[str, Any]:
    fine = {"name": "s", "hash": "ab" * 32, "state": "active", "reason": None}
    return {**fine, "last_round": 1, "n_rounds": 9, "asked_at": None, "deadline_at": None, **more}


OF_A_STUDY = ("data-changed", "study-unfit", "policy-rounds", "round-missed", "release-failed", "decision-missing")
OF_THE_SITE = ("ledger-failed", "ledger-behind", "cloned", "not-connected", "decision-unusable")
"""Reasons why a study is blocked that have an alarm of their own."""


def later(**time: float) -> str:
    return (datetime.now(UTC) + timedelta(**time)).isoformat(timespec="seconds")


def test_every_alarm_of_an_agent_has_its_cause_and_is_an_error_where_nothing_can_be_answered(tmp_path: Path) -> None:
    causes: list[tuple[dict[str, Any] | None, list[tuple[str, str]]]] = [
        (agent_status(), []),
        (None, [("not-running", "error")]),
        (agent_status(running=False), [("not-running", "error")]),
        (agent_status(at=later(seconds=-11)), [("not-running", "error")]),
        (agent_status(at="2026-01-01"), [("not-running", "error")]),
        (agent_status(connected=False, connection_since=later(seconds=-61)), [("not-connected", "error")]),
        (agent_status(connected=False, connection_since=later(seconds=-50)), [("not-connected", "warning")]),
        (agent_status(server_silent=True), [("server-silent", "warning")]),
        (agent_status(ledger_works=False), [("ledger-closed", "error")]),
        (agent_status(certificate_expires=later(days=29)), [("certificate", "warning")]),
        (agent_status(certificate_expires=later(days=-1)), [("certificate", "error")]),
        (agent_status(clock_difference=-61.0), [("clock", "warning")]),
        (agent_status(lease="waiting"), []),
        (agent_status(lease="behind"), [("ledger-behind", "error")]),
        (agent_status(lease="cloned"), [("cloned", "error")]),
        (agent_status(contested=True), [("cloned", "error")]),
        (agent_status(studies=[study_status()]), []),
        *(
            (agent_status(studies=[study_status(state="blocked", reason=item)]), [("study-blocked", "error")])
            for item in OF_A_STUDY
        ),
        *((agent_status(studies=[study_status(state="blocked", reason=item)]), []) for item in OF_THE_SITE),
        *((agent_status(studies=[study_status(state=item)]), []) for item in ("finished", "ended", "left", "charged")),
        (agent_status(problems=["studies: others can change it"]), [("study-blocked", "error")]),
    ]
    for seen, expected in causes:
        with case(str(seen)):
            assert [alarm[:2] for alarm in site_alarms(seen, tmp_path) if alarm.code != "disk-small"] == expected


def test_the_runbook_has_an_entry_for_every_alarm_and_for_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("\n## Alarms\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    entries = [code for row in rows for code in re.findall("`([a-z-]+)`", row[0])]
    assert sorted(entries) == sorted(get_args(health.AlarmCode))
    for row in rows:
        with case(row[0]):
            level, where, meaning, todo = (cell.strip() for cell in row[1:])
            assert set(re.findall("error|warning", level))
            assert where in ("server", "site", "both")
            assert min(len(meaning), len(todo)) > 20
    made = re.findall(r'Alarm\(\s*"([a-z-]+)"', Path(health.__file__).read_text(encoding="utf-8"))
    assert set(made) == set(get_args(health.AlarmCode)), "no alarm that nothing raises"


def test_the_reference_has_every_state_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "states.md").read_text(encoding="utf-8")
    for title, states in (("Study", StudyState), ("Site", SiteState)):
        section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `([a-z]+)` \|", section, re.MULTILINE) == [str(state) for state in states]
    static = files("dpadmm.federation.web").joinpath("static")
    words, legend = (static.joinpath(name).read_text("utf-8") for name in ("words.js", "server.html"))
    site_states = {*map(str, SiteState), *CONNECTION_STATES}
    for name, states in (("RUN_SIGNS", set(map(str, StudyState))), ("SITE_STATES", site_states)):
        (listed,) = re.findall(rf"const {name} = new Map\(\[(.*?)\]\);", words, re.DOTALL)
        assert set(re.findall(r'\["([a-z]+)",', listed)) == states
    assert set(re.findall(r"</b> ([a-z]+)</dt>", legend)) == site_states
    connections = page.partition("\n## Connection\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z]+)` \|", connections, re.MULTILINE) == list(CONNECTION_STATES)


def test_the_state_of_a_study_and_its_headline() -> None:
    now = {"finished": False, "ended": False, "error": "", "served": True, "stalled": False, "started": True}
    site = {"name": "a", "state": "present"}
    status = {"round": 3, "rounds_done": 2, "study": {"n_rounds": 9}, "quorum": 1, "sites": [site], "stalled": ["a"]}
    for change, line in (
        ({}, "Running: round 3 of 9"),
        ({"started": False}, "Waiting for sites: 1 of 1 present, 1 needed"),
        ({"stalled": True}, "Stalled in round 3 of 9: a present"),
        ({"served": False, "stalled": True}, "Interrupted after round 2 of 9"),
        ({"error": "too few sites", "served": False}, "Stopped after round 2 of 9: too few sites"),
        ({"finished": True, "error": "late", "served": False}, "Finished: 2 of 9 rounds"),
        ({"ended": True, "error": "late", "served": False, "stalled": True}, "Ended for good after round 2 of 9"),
        ({"ended": True, "finished": True}, "Finished: 2 of 9 rounds"),
    ):
        state = study_state(**(now | change))
        assert headline(status | {"state": state, "error": "too few sites"}) == line
    assert headline(status | {"state": "interrupted", "rounds_done": 0}) == "Interrupted before round 1"
    states = [site_state(last, silent=silent) for last in ("unseen", "late", "refused") for silent in (False, True)]
    assert states == ["connected", "silent", "late", "silent", "refused", "refused"]


def test_a_disk_is_full_before_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, expected in (
        (2**30, []),
        (2**30 - 1, ["disk-small"]),
        (2**24, ["disk-small"]),
        (2**24 - 1, ["disk-full"]),
    ):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(health.shutil, "disk_usage", lambda _, usage=usage: usage)
        assert [alarm.code for alarm in site_alarms(agent_status(), tmp_path)] == expected
        assert ("disk_free_bytes", {}, float(free)) in list(health.site_samples(agent_status(), tmp_path))


def test_a_broker_that_should_run_a_site_that_refuses_and_a_clock_are_named(tmp_path: Path) -> None:
    soon = {"north": datetime.now(UTC) + timedelta(days=3, hours=1)}
    assert [alarm.code for alarm in server_alarms(tmp_path, {}) if alarm.code != "disk-small"] == []
    told = [alarm for alarm in server_alarms(tmp_path, soon) if alarm.code != "disk-small"]
    assert [alarm[:3] for alarm in told] == [("certificate", "warning", "the certificate of north expires in 3 days")]
    hub = {"running": True, "connected": False, "broker": "tls://x:1", "sites": {}}
    write_status(tmp_path, hub)
    assert next(alarm.code for alarm in server_alarms(tmp_path, {})) == "not-connected"
    site = {
        "name": "a",
        "state": "present",
        "code": None,
        "silent": False,
        "last_seen": None,
        "clock_difference": 61.0,
        "left_out": False,
        "doubt": None,
    }
    live = {"connected": True, "broker": "tls://x:1"}
    clone = {"name": "c", "clock_difference": None, "doubt": "cloned"}
    refusing = {"name": "b", "state": "refused", "code": "round-missed", "clock_difference": None, "left_out": True}
    away = {"name": "d", "state": "silent", "clock_difference": None}
    sites = [site, site | refusing, site | clone, site | away, site | away | {"last_seen": "2026-01-01T00:00:00+00:00"}]
    told = list(study_alarms({"state": "running", "live": live, "sites": sites}, tmp_path))
    assert [alarm.text for alarm in told] == [
        "the clock of a is 61 seconds ahead of this machine's",
        "b refused: round-missed",
        "b missed too many rounds; the model uses only the other sites",
        "two processes use the certificate of c: the second one is refused",
        "d silent, never connected",
        "d silent, since 2026-01-01T00:00:00+00:00",
    ]
    assert all(alarm.action for alarm in told)
    (lost,) = study_alarms({"state": "waiting", "live": live | {"connected": False}, "sites": []}, tmp_path)
    assert (lost.code, lost.level) == ("not-connected", "error")


def test_a_status_of_another_version_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text('{"running": true}')
    with pytest.raises(StudyError, match="written by another version"):
        health.read_status(tmp_path / "status.json")


def test_several_studies_have_a_line_each_and_alarms_with_their_names(tmp_path: Path, cli) -> None:
    with Federation(tmp_path, small_study(30, name="heart")) as all:
        folder = all.authority.folder
        begin(all.authority, all.study, list(all.names))
        alone = json.loads(cli("server", "status", "--folder", folder, "--json").succeeded().out)
        assert (alone["study"]["name"], alone["last_round_at"]) == ("heart", None)
        path = begin(all.authority, small_study(20, name="kidney"), list(all.names))
        with Journal.open(path) as journal:
            run = coordinator_of(journal)
            run.called, run.stalled = True, ("a", "b")
            run.stalls[1] = journal.begin_stall("a", 1, "silent")
            for name in ("a", "c"):
                run.members[name].state = "present"
            snapshot = {key: each for key, each in run.snapshot().items() if key not in ("changes", "events")}
            live = {"running": True, "connected": True, "broker": "tls://localhost:4222", "snapshot": snapshot}
            write_status(path.parent, live)
            begun = journal.dates()[0]
        shown = cli("server", "status", "--folder", folder, columns=120).succeeded().out
        lines = {
            line.split()[0]: line.split()
            for line in map(str.strip, shown.splitlines())
            if line[:5] in ("heart", "kidne")
        }
        assert lines["kidney"][2:] == ["stalled", "0", "of", "20", "0", "of", "3", begun[:10]]
        assert lines["heart"][1:9] == [all.study.hash[:16], "proposed", "0", "of", "30", "–", "of", "3"]
        assert "error stalled: kidney: Stalled in round 1 of 20: a silent, b silent, since" in shown
        assert "heart: " not in shown, "a proposed study has no alarm"
        proposed = cli("server", "status", "heart", "--folder", folder).succeeded().out
        assert "Proposed: no server has run this study yet" in proposed
        seen = json.loads(cli("server", "status", "--folder", folder, "--json").succeeded().out)
        assert seen["state"] == "several"
        assert {study["study"]["name"]: study["begun_at"] for study in seen["studies"]}["kidney"] == begun
        assert [item["name"] for item in overview(folder)] == ["kidney", "heart"]  # the latest first
        data = ServerData(all.authority)
        assert [study["state"] for study in data.snapshot()["studies"]] == ["stalled", "proposed"]
        path.write_bytes(b"no journal")
        time.sleep(FOLDER_SECONDS)
        assert len(data.snapshot()["studies"]) == 2, "the page keeps the last list"


def test_the_live_page_of_a_study_that_is_served_knows_the_others(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(30, name="heart", quorum=3)) as all:
        all.begin()
        all.serve("--page")
        said = tmp_path / "aggregator.txt"
        wait_for(lambda: said.exists() and "login#" in said.read_text())
        begin(all.authority, small_study(20, name="kidney"), list(NAMES))
        get = visitor(said.read_text())

        def shown() -> dict[str, str]:
            return {study["name"]: study["state"] for study in get("/snapshot")["studies"]}

        wait_for(lambda: shown() == {"heart": "waiting", "kidney": "proposed"})
        page = get("/snapshot")
        assert (page["study"]["state"], page["study"]["headline"]) == (
            "waiting",
            "Waiting for sites: 0 of 3 present, 3 needed",
        )
        alarms = [alarm for alarm in page["alarms"] if alarm["code"] == "site-silent"]
        assert [alarm["text"] for alarm in alarms] == [f"{name} silent, never connected" for name in NAMES]
        assert [alarm["action"][:6] for alarm in alarms] == [f"Call {name}" for name in NAMES]
        code, out = command("server", "status", "--folder", all.authority.folder)
        assert (code, "heart" in out, "kidney" in out) == (0, True, True)
