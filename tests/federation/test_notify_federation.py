"""Events of a whole study at its sites and at its server, in real processes; a program that hangs delays nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from federations import Federation, small_study, wait_for

from dpadmm.federation.protocol import ProposalReply, ReplyCode
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.site.process import SiteProcess
from dpadmm.federation.site.proposals import MAX_PROPOSALS, proposals

ROUNDS = 20
APPEND = "import sys; open('events', 'a').write(sys.stdin.read())"


def with_program(file: Path, *command: str) -> None:
    file.write_text(file.read_text() + f"\n[notify]\ncommand = {json.dumps(command)}\ndelay = 0\n")


def events(folder: Path, *kinds: str, **fields: str) -> list[dict[str, Any]]:
    path = folder / "events"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [item for item in found if item["kind"] in kinds and fields.items() <= item.items()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_events_of_a_study_and_a_program_that_hangs(tmp_path: Path) -> None:
    """The rows of one site change and are put back; one site is proposed the study; one has a program that hangs."""
    study = small_study(ROUNDS, allow_missed_rounds=False, quorum=None, deadline=None)
    with Federation(tmp_path, study) as all:
        hub, a, b, c = all.authority.folder, *(tmp_path / name for name in all.names)
        all.accept("a", "c")
        for file in (hub / "server.toml", a / "site.toml", b / "site.toml"):
            with_program(file, sys.executable, "-c", APPEND)
        with_program(c / "site.toml", "/bin/sh", "-c", "echo $$ >> pids; cat fifo")
        os.mkfifo(c / "fifo")
        rows = (a / "table.csv").read_text()
        (a / "table.csv").write_text(rows.replace("yes", "no", 1))
        all.begin()
        all.start("a", "c")
        all.serve()

        wait_for(lambda: events(a, "study-refused", code="data-changed", site="a", study_name="small"))
        wait_for(lambda: events(a, "alarm-raised", level="error", site="a", role="site"))
        wait_for(lambda: events(hub, "alarm-raised", code="site-silent", level="warning", role="server"))
        wait_for((c / "pids").exists)
        (a / "table.csv").write_text(rows)
        all.start("b")
        wait_for(lambda: events(b, "study-proposed", study=all.study.hash, site="b"))
        assert events(b, "study-proposed")[0]["study_name"] == "small"
        wait_for(lambda: events(hub, "alarm-cleared", code="site-silent"))
        wait_for(lambda: events(a, "study-accepted", study_name="small"))
        all.accept("b")
        assert all.finished() == 0, all.output

        (pid,) = map(int, (c / "pids").read_text().split())
        assert is_running(pid), "its first event is still not handled, and all rounds are over"
        with Journal.open(all.journal, read_only=True) as journal:
            assert {name: len(rounds) for name, rounds in journal.answered().items()} == dict.fromkeys("abc", ROUNDS)
        for site in (a, b):
            wait_for(lambda site=site: events(site, "study-finished", study=all.study.hash))  # type: ignore[misc]
        wait_for(lambda: events(a, "alarm-cleared", level="error"))
        assert len(events(b, "study-proposed")) == 1
        assert events(hub, "study-accepted", site="b", study=all.study.hash)
        assert [event["site"] for event in events(hub, "study-finished", study=all.study.hash)] == [None]
        all.check()
        wait_for(lambda: not is_running(pid))
        assert len((c / "pids").read_text().split()) == 1
        kinds = {"study-proposed", "study-accepted", "study-refused", "study-finished", "alarm-raised", "alarm-cleared"}
        for folder in (hub, a, b):
            lines = (folder / "events").read_text().splitlines()
            assert {json.loads(line)["kind"] for line in lines} <= kinds
            assert "table.csv" not in "".join(lines)


def test_a_file_that_others_can_change_names_no_program_to_run(tmp_path: Path) -> None:
    with Federation(tmp_path, small_study(), ("a",)) as all:
        site = all.sites["a"].path
        with_program(site, "/bin/true")
        site.chmod(0o664)
        all.start()
        assert all.agents["a"].process.wait(60) == 2
        assert f"{site}: others can change it" in all.agents["a"].output


def test_mistakes_in_the_file_of_the_server_are_one_sentence(tmp_path: Path, cli) -> None:
    with Federation(tmp_path, small_study(), ()) as all:
        file = all.authority.folder / "server.toml"
        before = file.read_text()
        for text, problem in (
            ("[notify]\ncommand = []", "notify.command must be a list of a program and its arguments"),
            ("[notify]\ncommand = ['x']", "notify.command must begin with the full path of a program"),
            ("[notify]\ncommand = ['/bin/true']\nmail = 1", "[notify]: unknown setting 'mail'"),
            ("notify = 'x'", "[notify] must be a section"),
        ):
            file.write_text(f"{before}\n{text}\n")
            said = cli("server", "sites", "--folder", all.authority.folder)
            assert said.code == 2
            assert problem in said.err


def test_a_server_cannot_flood_an_owner_with_proposals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Studies are stored only if they were asked for, up to a limit, and reported only without a decision."""
    caplog.set_level(logging.INFO)
    link = _Replies()
    with Federation(tmp_path, small_study(), ("a",)) as all:
        all.accept()
        process = SiteProcess(all.sites["a"], logging.getLogger("test"))

        def propose(hash: str, text: bytes | None = None) -> list[ReplyCode]:
            link.sent.clear()
            asyncio.run(process._take_proposal(link, hash, text))  # type: ignore[arg-type]
            return [reply.code for reply in link.sent]

        assert propose("ab" * 32) == [], "before the decisions are read"
        process._responder.open()
        process._apply_decisions()
        asyncio.run(process._report_replies(link))  # type: ignore[arg-type]
        process._latest = {"studies": []}
        assert propose(all.study.hash) == [ReplyCode.ACCEPTED]
        caplog.clear()
        studies = [small_study(name=f"study {n}") for n in range(MAX_PROPOSALS + 5)]
        texts = [json.dumps(study.as_json()).encode() for study in studies]
        assert propose(studies[0].hash, texts[0]) == [], "not asked for"
        for study, text in zip(studies, texts, strict=True):
            assert propose(study.hash) == [ReplyCode.WANTED]
            propose(study.hash, text)
        assert propose(studies[0].hash) == [ReplyCode.RECEIVED]
        stored = [record for record in caplog.records if "proposed; next" in record.getMessage()]
        assert (
            len(stored) == len(list(process._notices())) == len(proposals(all.sites["a"].path.parent)) == MAX_PROPOSALS
        )
        assert sum("there are 100 undecided proposals" in record.getMessage() for record in caplog.records) == 5
        process._responder.close()


class _Replies:
    """A link that keeps the replies."""

    def __init__(self) -> None:
        self.sent: list[ProposalReply] = []

    async def reply(self, reply: ProposalReply) -> bool:
        self.sent.append(reply)
        return True
