"""Forked children with a limit on their number, each with its own folder, session and time limit."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

Job = TypeVar("Job")
RESULT, BROKEN, DIED, LATE = "result", "broken", "died", "late"
_MEMORY = Path("/dev/shm")  # where tests create folders in memory


@dataclass
class _Child(Generic[Job]):
    job: Job
    pid: int
    folder: Path
    ends: float


def in_children(
    take: Callable[[], tuple[Job, float] | None],
    work: Callable[[Job, Path], Any],
    *,
    workers: int,
    until: float = float("inf"),
) -> Iterator[tuple[Job, str, Any]]:
    """Run ``work(job, folder)`` in a child for each (job, seconds). Yield the job, how it ended, and its result.

    Jobs are taken until there are none left and nothing runs. After ``until`` (of time.monotonic) no job is started,
    and the remaining ones are skipped.
    """
    running: dict[int, _Child[Job]] = {}
    try:
        while True:
            while len(running) < workers and time.monotonic() < until and (following := take()) is not None:
                child = _start(*following, work)
                running[child.pid] = child
            if not running:
                return
            time.sleep(0.002)
            for child in list(running.values()):
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                ended = pid != 0
                now = time.monotonic()
                if not ended and now < min(child.ends, until):
                    continue
                del running[child.pid]
                how, answer = _end(child, ended)
                if how == BROKEN:
                    raise RuntimeError(f"the runner itself failed:\n{answer}")
                endless = ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGPROF)
                if ended or now >= child.ends:
                    yield child.job, LATE if endless or not ended else how, answer
    finally:
        for child in running.values():
            _end(child, ended=False)


def _start(job: Job, seconds: float, work: Callable[[Job, Path], Any]) -> _Child[Job]:
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _settle(folder)
            _answer(folder, RESULT, work(job, folder))
        except BaseException:
            _answer(folder, BROKEN, traceback.format_exc())
        finally:
            os._exit(0)
    return _Child(job, pid, folder, time.monotonic() + seconds)


def _answer(folder: Path, how: str, value: Any) -> None:
    (folder / "result.part").write_text(json.dumps([how, value]), encoding="utf-8")
    (folder / "result.part").rename(folder / "result.json")


def _settle(folder: Path) -> None:
    """Make sure that nothing the child writes, prints or starts outlives it."""
    os.setsid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with its parent, if the system supports it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quiet = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    os.chdir(folder)
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"))
    os.environ.pop("XDG_CACHE_HOME", None)
    tempfile.tempdir, tempfile.template = str(folder / "tmp"), f"{folder.name}-"


def _end(child: _Child[Any], ended: bool) -> tuple[str, Any]:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if not ended:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)  # before it had its own process group
        os.waitpid(child.pid, 0)
    result = child.folder / "result.json"
    answer = tuple(json.loads(result.read_text(encoding="utf-8"))) if result.exists() else (DIED, _doing(child))
    shutil.rmtree(child.folder, ignore_errors=True)
    if _MEMORY.is_dir():
        for path in _MEMORY.glob(f"{child.folder.name}-*"):
            shutil.rmtree(path, ignore_errors=True)
    return answer


def note(folder: Path, doing: str) -> None:
    """Record the next action of a child, in case it does not return from it."""
    (folder / "doing").write_text(doing, encoding="utf-8")


def _doing(child: _Child[Any]) -> str:
    with suppress(OSError):
        return (child.folder / "doing").read_text(encoding="utf-8")
    return ""
