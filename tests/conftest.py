"""Fixtures that run ``dpadmm``, in this process for speed or as a real process where this matters."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Shells start background jobs with Ctrl-C ignored, and all child processes inherit this
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Ledgers and journals sync thousands of times, which is fast in memory
if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 2**32:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# Doctests are collected from the package only: collecting them from a helper imports it a second time
collect_ignore_glob = ["support/*.py", "mutation/[!t]*.py", "fuzz/[!t]*.py", "audit/mutants.py"]

COMMAND = [sys.executable, "-c", "from dpadmm.cli import main; main()"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Limit compiled functions to one thread, because workers of pytest-xdist share the cores."""
    import numba

    numba.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(request: pytest.FixtureRequest, one_thread: None, once: Once) -> None:
    """Let the workers of pytest-xdist compile the kernels of a fresh clone in parallel, before all tests.

    Otherwise every process that starts early compiles them again, in vain if it is killed.
    """
    if not hasattr(request.config, "workerinput"):
        return
    kinds = ["float32", "float64", "coded", "sparse"]
    first = int(request.config.workerinput["workerid"].removeprefix("gw")) % len(kinds)
    for kind in (*kinds[first:], *kinds[:first]):
        once(f"compiled {kind}", lambda _, kind=kind: _compile(kind))


def _compile(kind: str) -> None:
    import numpy as np
    from cases import coded
    from scipy.sparse import csr_array

    from dpadmm import kernels
    from dpadmm.losses import Logistic
    from dpadmm.queries.problem import make_rows

    dense = np.eye(4, dtype="float64" if kind in ("float64", "sparse") else "float32")
    rows = make_rows({"coded": coded, "sparse": csr_array}.get(kind, np.asarray)(dense), np.ones(4))
    kernels.gradient(rows, np.zeros((1, 4, 1)), Logistic())
    kernels.scores(rows, np.zeros((1, 4, 1)))


@pytest.fixture
def all_threads() -> Iterator[None]:
    """Use all threads, for tests that do not depend on their number."""
    import numba

    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    yield
    numba.set_num_threads(1)


@dataclass(frozen=True)
class CommandResult:
    """Result of a command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, parsed as JSON without NaN."""
        return json.loads(self.out, parse_constant=_no_constant)

    def succeeded(self) -> CommandResult:
        assert self.code == 0, self.err
        return self


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


Cli = Callable[..., CommandResult]


@pytest.fixture
def cli(in_process: Callable[..., Cli]) -> Cli:
    """``cli("simulate", "--data", path)`` runs the command in this process."""
    from dpadmm.cli import main

    return in_process(main, "dpadmm")


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Cli]:
    """``in_process(main, "dpadmm")`` returns a function that runs a program's ``main`` with arguments."""

    def runner(main: Callable[[], None], program: str) -> Cli:
        def run(*words: object, columns: int = 80) -> CommandResult:
            monkeypatch.setenv("COLUMNS", str(columns))
            monkeypatch.setattr(sys, "argv", [program, *map(str, words)])
            capsys.readouterr()
            with pytest.raises(SystemExit) as end:
                main()
            shown = capsys.readouterr()
            code = end.value.code
            assert code is None or isinstance(code, int)
            return CommandResult(code or 0, shown.out, shown.err)

        return run

    return runner


@pytest.fixture
def process() -> Cli:
    """``process("demo", env={...})`` runs the command as a real process."""

    def run(*words: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> CommandResult:
        done = subprocess.run(
            [*COMMAND, *map(str, words)],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def command() -> list[str]:
    """Arguments that start ``dpadmm`` as a process."""
    return COMMAND


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write empty figure files, for tests of everything else in a folder of results."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda self, out, **options: out.write(b"no picture"))


@pytest.fixture
def workers_forked() -> Iterator[None]:
    """Fork the workers of grids from a server, for tests that do not depend on their processes."""
    from quick_workers import quick_workers

    with quick_workers():
        yield


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Once:
    """``once(name, make)`` returns a folder that the first worker of pytest-xdist creates and the others read."""
    base = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        base = base.parent

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        whole = base / name
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                part = tmp_path_factory.mktemp(name)
                make(part)
                part.rename(whole)
        return whole

    return folder
