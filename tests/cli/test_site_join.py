"""``dpadmm site join`` and ``server invite`` as people and scripts use them, without a server."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from federations import write_rows
from join_services import join_service, new_server

from dpadmm.federation.identity.tokens import read_token
from dpadmm.sites.setup import SiteSettings
from dpadmm.sites.site import read_site

COMMAND = [sys.executable, "-c", "from dpadmm.cli import main; main()"]


class Terminal:
    """A command in a terminal of 80 columns, and answers to its questions."""

    def __init__(self, *words: object) -> None:
        self._fd, other = pty.openpty()
        environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, words)],
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment,
            start_new_session=True,
        )
        os.close(other)
        self.text = ""

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self._fd], [], [], 0.2)[0]:
                self._read()

    def _read(self) -> None:
        try:
            self.text += os.read(self._fd, 65536).decode()
        except OSError:  # the command has ended
            time.sleep(0.1)

    def answer(self, question: str, answer: str) -> None:
        self.wait_for(question)
        self.text = self.text.partition(question)[2]
        os.write(self._fd, answer.encode() + b"\n")

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self, seconds: float = 60.0) -> tuple[int, str]:
        limit = time.monotonic() + seconds
        while self._process.poll() is None:
            if time.monotonic() > limit:
                self._process.kill()
            if select.select([self._fd], [], [], 0.2)[0]:
                self._read()
        while select.select([self._fd], [], [], 0.2)[0]:
            before = self.text
            self._read()
            if self.text == before:
                break
        os.close(self._fd)
        return self._process.wait(), self.text.replace("\r\n", "\n")


@pytest.fixture
def server(tmp_path):
    with join_service(new_server(tmp_path / "hub")) as authority:
        yield authority


def test_in_a_terminal_each_setting_is_asked_for_and_explained(server, tmp_path):
    write_rows(tmp_path / "rows.csv", 1, n_rows=150)
    terminal = Terminal("site", "join", server.create_token("ulm").text, "--site", tmp_path / "ulm")
    terminal.wait_for("Joining as ulm. Enter accepts the value in brackets.")
    terminal.answer("Table: ", str(tmp_path / "missing.csv"))
    terminal.answer("there is no such file.", "")
    terminal.answer("Table: ", str(tmp_path / "rows.csv"))
    terminal.wait_for("Columns: age, bmi, sick.")
    terminal.answer("Label: ", "sik")
    terminal.wait_for("did you mean 'sick'?")
    terminal.answer("Label: ", "sick")
    terminal.wait_for("The column that identifies a person.")
    terminal.answer("Person column: ", "")
    terminal.wait_for("You guarantee")
    terminal.answer("Rows per person [1]: ", "two")
    terminal.wait_for("Not accepted: this is not a number.")
    terminal.answer("Rows per person [1]: ", "2")
    terminal.wait_for("total privacy loss of any one person")
    terminal.answer("Limit of ε [1.0]: ", "1.5")
    terminal.answer("δ [1e-05]: ", "")
    terminal.answer("Rounds per study [1000]: ", "200")
    terminal.answer("Minimum number of rows [100]: ", "")
    code, text = terminal.end()
    assert code == 0, text
    assert "150 rows, all used. You guarantee that no person has more than 2 rows." in " ".join(text.split())
    assert "Joined https://localhost:" in text
    site = read_site(tmp_path / "ulm" / "site.toml")
    assert (site.label, site.policy.unit.column, site.policy.unit.rows) == ("sick", None, 2)
    assert (site.policy.epsilon, site.policy.delta, site.policy.max_rounds, site.policy.min_rows) == (
        1.5,
        1e-5,
        200,
        100,
    )
    assert site.table.resolve() == tmp_path / "rows.csv"


def test_ctrl_c_at_a_question_writes_nothing(server, tmp_path):
    terminal = Terminal("site", "join", server.create_token("ulm").text, "--site", tmp_path / "ulm")
    terminal.wait_for("Table: ")
    terminal.interrupt()
    code, text = terminal.end()
    assert code != 0, text
    assert "Traceback" not in text
    assert not (tmp_path / "ulm").exists()
    assert server.users() == []


def test_a_token_is_read_from_standard_input(server, tmp_path, cli, monkeypatch):
    write_rows(tmp_path / "rows.csv", 1)
    words = ["--table", tmp_path / "rows.csv", "--label", "sick", "--rows-per-person", 1]
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(server.create_token("ulm").text.encode())))
    cli("site", "join", "-", "--site", tmp_path / "ulm", *words).succeeded()
    assert [site.name for site in server.users()] == ["ulm"]


def test_an_existing_site_file_is_used_and_options_are_refused(server, tmp_path, cli):
    folder = tmp_path / "ulm"
    folder.mkdir()
    write_rows(folder / "table.csv", 1)
    text = SiteSettings(table=folder / "table.csv", label="sick", min_rows=30).text(folder)
    (folder / "site.toml").write_text(text)
    token = server.create_token("ulm").text
    answer = cli("site", "join", token, "--site", folder, "--epsilon", 2)
    assert answer.code == 2
    assert "exists: omit --epsilon" in answer.err
    cli("site", "join", token, "--site", folder).succeeded()
    assert (folder / "site.toml").read_text() == text
    cli("site", "join", token, "--site", folder).succeeded()  # the same key: repeated


def test_invite_prints_one_line_and_explains_on_standard_error(tmp_path, cli):
    server = new_server(tmp_path / "hub")
    answer = cli("server", "invite", "ulm", "--folder", server.folder).succeeded()
    assert answer.out.count("\n") == 1
    token = read_token(answer.out)
    assert (token.name, token.urls) == ("ulm", (f"https://localhost:{server.settings.web_port}",))
    assert "whoever" not in answer.err
    assert "Sites can join while the server runs" in answer.err
    several = (
        cli("server", "invite", "ulm", "bonn", "--folder", server.folder, "--days", 2).succeeded().out.splitlines()
    )
    assert [line.split()[0] for line in several] == ["ulm", "bonn"]
    assert len({read_token(line.split()[1]).id for line in several}) == 2
    withdrawn = cli("server", "invite", "ulm", "--revoke", "--folder", server.folder).succeeded()
    assert withdrawn.out == "Withdrawn: the join token of ulm.\n"
    assert list(server.invited()) == ["bonn"]
    listed = cli("server", "sites", "--folder", server.folder, "--json").succeeded().json["sites"]
    assert [(site["name"], site["state"]) for site in listed] == [("bonn", "invited")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b", "--manual", "r.json"), "--manual FILE is for one site"),
        (("a", "--output", "r.json"), "--output and --fingerprint belong to --manual FILE"),
        (("a", "--revoke", "--days", "3"), "--revoke cannot be combined"),
        (("a", "--days", "100"), "a token is valid for 1 to 90 days"),
        (("a", "B"), "not a valid site name"),
        (("a", "--revoke"), "a has no open join token"),
    ],
)
def test_mistakes_of_an_invitation_are_one_sentence(tmp_path, cli, words, message):
    server = new_server(tmp_path / "hub")
    answer = cli("server", "invite", *words, "--folder", server.folder)
    assert answer.code == 2
    assert message in answer.err
    assert server.invited() == {}


def test_the_written_settings_are_those_that_were_given(tmp_path):
    """A name with quotation marks stays what it is, and the table of another folder is absolute."""
    settings = SiteSettings(
        table=tmp_path / "else where" / 'a "table".csv', label='the "label"', person="who\\", rows_per_person=3,
        epsilon=0.75, delta=1e-7, max_rounds=12, min_rows=34,
    )  # fmt: skip
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "site.toml").write_text(settings.text(folder))
    site = read_site(folder / "site.toml")
    assert site.table == settings.table
    assert (site.label, site.policy.unit.column, site.policy.unit.rows) == (settings.label, settings.person, 3)
    assert (site.policy.epsilon, site.policy.delta, site.policy.max_rounds, site.policy.min_rows) == (
        0.75,
        1e-7,
        12,
        34,
    )
    inside = SiteSettings(table=folder / "rows.csv", rows_per_person=1).text(folder)
    assert re.search(r'^table = "rows.csv"', inside, re.MULTILINE)
    assert re.search(r"^# label = ", inside, re.MULTILINE)
