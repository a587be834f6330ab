"""A server and sites as real processes that join with tokens: what people type, from an empty folder."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokers import free_port
from federations import wait_for, write_rows
from forked import ForkedProgram

from dpadmm.federation.identity.approvals import record_of
from dpadmm.federation.identity.authority import Authority
from dpadmm.studies.study import Study

STUDY = """\
format = "dpadmm-study/2"
name = "{name}"
allow_missed_rounds = true
quorum = {quorum}
deadline = 5
{more}
[label]
column = "sick"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = [0, 100]
[columns.bmi]
kind = "number"
bounds = [10, 60]
[training]
n_rounds = {rounds}
[privacy]
epsilon = {epsilon}
delta = 1e-5
{privacy}
"""
MASKED = {"quorum": "3", "more": "max_rows_per_site = 100", "privacy": 'aggregation = "secure"\nmin_honest_sites = 2'}


class Joining:
    """``with Joining(folder) as all``: a server's folder; whatever runs is ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hub = folder, folder / "hub"
        self.authority = Authority.create(self.hub, hosts=["localhost"], port=free_port(), web_port=free_port())
        self._running: list[ForkedProgram] = []
        self._count = 0

    def __enter__(self) -> Joining:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._running:
            program.send_signal(signal.SIGTERM)
        for program in self._running:
            try:
                program.wait(timeout=10)
            except Exception:
                program.kill()

    def begin(self, *words: object) -> tuple[ForkedProgram, Path]:
        """Start a command; return it and the file of its output."""
        self._count += 1
        out = self.folder / f"output-{self._count}.txt"
        out.touch()
        program = ForkedProgram(words, out)
        self._running.append(program)
        return program, out

    def ask(self, *words: object, code: int | None = 0) -> str:
        """Run a command to its end and return its output."""
        program, out = self.begin(*words)
        found = program.wait(timeout=90)
        text = out.read_text()
        assert code is None or found == code, text
        return text

    def json(self, *words: object) -> Any:
        text = self.ask(*words, "--json")
        return json.loads(text[text.index("{") :])

    def start_server(self) -> ForkedProgram:
        program, out = self.begin("server", "start", "--folder", self.hub)
        wait_for(lambda: "connected to" in out.read_text() or program.poll() is not None)
        return program

    def token(self, name: str, *words: object) -> str:
        return self.ask("server", "invite", name, "--folder", self.hub, *words).split()[0]

    def join(self, name: str, token: str | None = None, *, folder: str | None = None, code: int | None = 0) -> str:
        """Join as a new site with a table; an existing one joins again."""
        site = self.folder / (folder or name)
        words = ["site", "join", token or self.token(name), "--site", site]
        if not (site / "site.toml").exists():
            site.mkdir(exist_ok=True)
            write_rows(site / "table.csv", sum(map(ord, name)))
            words += ["--table", site / "table.csv", "--label", "sick", "--rows-per-person", 1, "--min-rows", 20]
        return self.ask(*words, code=code)

    def run_site(self, name: str) -> ForkedProgram:
        return self.begin("site", "run", "--site", self.folder / name)[0]

    def log(self, name: str) -> str:
        path = self.folder / name / "site.log"
        return path.read_text() if path.exists() else ""

    def propose(self, name: str = "small", *, rounds: int = 20, epsilon: float = 0.5, **more: str) -> Path:
        path = self.folder / f"{name}.toml"
        values = {"more": "", "privacy": "", "quorum": "2", **more}
        path.write_text(STUDY.format(name=name, rounds=rounds, epsilon=epsilon, **values))
        self.ask("server", "propose", path, "--folder", self.hub)
        return path

    def has(self, site: str, name: str, state: str) -> Callable[[], bool]:
        """Whether a site lists a study of this name in this state."""

        def found() -> bool:
            listed = self.json("site", "studies", "--site", self.folder / site)["studies"]
            return any(study["name"] == name and study["state"] == state for study in listed)

        return found

    def serials(self, name: str) -> list[str]:
        return [site.serial for site in record_of(self.hub, name).certificates]


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read(study: Path) -> Study:
    from dpadmm.studies.reading import read_study

    return read_study(study)
