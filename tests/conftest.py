"""Running ``dpadmm``: in this process for speed, as a real process where the process matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# A shell starts background jobs with Ctrl-C ignored, and every process below would inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMMAND = [sys.executable, "-c", "from dpadmm.cli import main; main()"]


@dataclass(frozen=True)
class Answer:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON, which knows no NaN."""
        return json.loads(self.out, parse_constant=_no_constant)

    def succeeded(self) -> Answer:
        assert self.code == 0, self.err
        return self


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Cli = Callable[..., Answer]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``cli("simulate", "--data", path)``: the command in this process."""
    from dpadmm.cli import main

    def run(*words: object, columns: int = 80) -> Answer:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["dpadmm", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        shown = capsys.readouterr()
        code = end.value.code
        assert code is None or isinstance(code, int)
        return Answer(code or 0, shown.out, shown.err)

    return run


@pytest.fixture
def process() -> Cli:
    """``process("demo", env={...})``: the command as a real process."""

    def run(*words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Answer:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def command() -> list[str]:
    """Words that start ``dpadmm`` as a process."""
    return COMMAND


@pytest.fixture(scope="session")
def paper_results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results of the paper's experiments on a few synthetic rows, made by the runner."""
    from paper_runs import PAPER_SHAPED, make_results

    return make_results(PAPER_SHAPED, tmp_path_factory.mktemp("paper"))


@pytest.fixture(scope="session")
def paper_page(paper_results: Any) -> str:
    """The report on those results."""
    from dpadmm.paper.report import report_html

    return report_html(paper_results, source="runs/small")


@pytest.fixture(scope="session")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results that are no experiment of the paper's: two methods, budgets, agents."""
    from paper_runs import COMPARISON, make_results

    folder = tmp_path_factory.mktemp("comparison")
    make_results(COMPARISON, folder)
    return folder


@pytest.fixture(scope="session")
def comparison_results(comparison_folder: Path) -> Any:
    """Those results."""
    from dpadmm.experiments.results import read_results

    return read_results(comparison_folder)
