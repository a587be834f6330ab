"""Ledger faults: processes that are killed while they spend, and writes that fail.

``python tests/support/ledgers.py kill_run FOLDER KILLS SEED`` and similar commands fork in their own process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpadmm.errors import RefusalError
from dpadmm.trusted.ledger import LINE, MARK, Ledger, read_ledger

STUDY, OTHER = "ab" * 32, "cd" * 32
ROUND_COST, ROUNDS, CAP = 0.01, 60, 1.0
ABOUT = {"name": "a small study"}


def digest(round: int, study: str = STUDY) -> str:
    """Return the hash of the only request of this round."""
    return sha256(f"{study} {round}".encode()).hexdigest()


def opened(folder: Path) -> Ledger:
    ledger = Ledger.open(folder, cap=CAP, create=True)
    try:
        ledger.reserve(STUDY, ROUNDS * ROUND_COST, about=ABOUT)
    except BaseException:
        ledger.close()
        raise
    return ledger


def answer(ledger: Ledger, round: int) -> bytes:
    """Answer a request as an agent does: return the stored upload, or record a fresh one first."""
    stored = ledger.replay(STUDY, round, digest=digest(round))
    if stored is not None:
        return stored
    upload = os.urandom(random.choice((16, 832, 5000)))
    ledger.spend(STUDY, round, digest=digest(round), mu_squared=ROUND_COST, upload=upload)
    return upload


def check(folder: Path, sent: dict[int, bytes]) -> int:
    """Open the ledger after a fault: nothing lost or overspent, all replies unchanged. Return its rounds."""
    with opened(folder) as ledger:
        assert read_ledger(folder).fingerprint == ledger.status().fingerprint
        state = ledger.status()
        account = state.accounts[STUDY]
        for round, upload in sent.items():
            assert ledger.replay(STUDY, round, digest=digest(round)) == upload, f"round {round} was altered"
        assert list(account.rounds) == list(range(1, len(account.rounds) + 1))
        assert account.rounds.keys() >= sent.keys()
        assert len(account.rounds) <= ROUNDS
        assert float(account.spent) <= ROUNDS * ROUND_COST
        assert float(state.promised) <= state.cap
        assert (folder / MARK).stat().st_size == LINE * state.seq
        ledger.verify()
        return len(account.rounds)


# A process that is killed


def kill_run(root: Path, n_kills: int, seed: int) -> dict[str, int]:
    """Kill a process that opens a ledger and answers, at random moments, and check after every kill."""
    rng, sent, n_rounds, replies, ledgers = random.Random(seed), {}, ROUNDS, 0, 0
    for _ in range(n_kills):
        if n_rounds == ROUNDS:
            folder, sent, ledgers = root / str(ledgers), {}, ledgers + 1
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _answer_forever(folder, writer)
        os.close(writer)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as replies_of_child:
            lines = replies_of_child.read().split("\n")[:-1]  # the last line is incomplete
        for round, upload in (json.loads(line) for line in lines):
            earlier = sent.setdefault(round, bytes.fromhex(upload))
            assert earlier == bytes.fromhex(upload), f"round {round} had two replies"
        replies += len(lines)
        n_rounds = check(folder, sent)
    return {"kills": n_kills, "replies": replies, "ledgers": ledgers}


def _answer_forever(folder: Path, pipe: int) -> None:
    try:
        with opened(folder) as ledger:
            n_rounds = len(ledger.status().accounts[STUDY].rounds)
            for round in range(max(1, n_rounds), ROUNDS + 1):
                os.write(pipe, f"{json.dumps([round, answer(ledger, round).hex()])}\n".encode())
    finally:
        os._exit(0)


# Writes that fail


class Fault:
    """Count writes, and let one of them fail or kill the process."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.at, self.calls = kind, at, 0

    def write(self, size: int, write: Callable[[int], int]) -> int:
        """Write ``size`` bytes or fewer with ``write(n)``, and return the system's result."""
        self.calls += 1
        if self.calls < self.at or (self.calls > self.at and self.kind in ("EIO", "part")):
            return write(size)
        if self.kind == "part":
            return write(size // 2)
        if self.calls == self.at and self.kind in ("kill half", "kill after", "full half"):
            write(size if self.kind == "kill after" else size // 2)
        if self.kind.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.EIO if self.kind == "EIO" else errno.ENOSPC, "injected")


@contextlib.contextmanager
def failing(fault: Fault) -> Iterator[None]:
    """Route every write of SQLite and of the mark through ``fault``, by replacing SQLite's system calls."""
    real_write, real_fsync, real_truncate = os.write, os.fsync, os.ftruncate

    def sqlite_write(file: int, data: int, size: int, offset: int) -> int:
        try:
            return fault.write(size, lambda n: os.pwrite(file, ctypes.string_at(data, n), offset) if n else 0)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1

    def sqlite_truncate(file: int, size: int) -> int:
        try:
            return fault.write(0, lambda n: real_truncate(file, size) or 0)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1

    writes = ctypes.CFUNCTYPE(
        ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
    )(sqlite_write)
    truncates = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int64, use_errno=True)(sqlite_truncate)
    os.write = lambda file, data: fault.write(len(data), lambda n: real_write(file, data[:n]))  # type: ignore
    os.fsync = lambda file: fault.write(0, lambda n: real_fsync(file) or 0) and None  # type: ignore
    os.ftruncate = lambda file, size: fault.write(0, lambda n: real_truncate(file, size) or 0) and None  # type: ignore
    try:
        for name in (b"pwrite", b"pwrite64"):
            _set_system_call(name, ctypes.cast(writes, ctypes.c_void_p))
        _set_system_call(b"ftruncate", ctypes.cast(truncates, ctypes.c_void_p))
        yield
    finally:
        os.write, os.fsync, os.ftruncate = real_write, real_fsync, real_truncate
        for name in (b"pwrite", b"pwrite64", b"ftruncate"):
            _set_system_call(name, None)


def _set_system_call(name: bytes, function: ctypes.c_void_p | None) -> None:
    vfs = sqlite_vfs()
    assert vfs is not None
    vfs.contents.xSetSystemCall(ctypes.cast(vfs, ctypes.c_void_p), name, function)


_POINTERS = (
    "pAppData xOpen xDelete xAccess xFullPathname xDlOpen xDlError xDlSym xDlClose xRandomness xSleep "
    "xCurrentTime xGetLastError xCurrentTimeInt64"
)


class _Vfs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("iVersion", "szOsFile", "mxPathname")),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
        (
            "xSetSystemCall",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        ),
    )


def sqlite_vfs() -> Any:
    """Return SQLite's file system interface in Python's own library; None if it is not accessible."""
    import _sqlite3

    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    names = {line.split()[-1] for line in lines if "libsqlite3" in line} or {getattr(_sqlite3, "__file__", None)}
    library = ctypes.CDLL(names.pop())
    if not hasattr(library, "sqlite3_vfs_find"):
        return None
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(None)
    return vfs if vfs.contents.iVersion >= 3 else None


SCENARIO_ROUNDS = 3


def scenario(folder: Path, sent: dict[int, bytes]) -> None:
    """Perform all operations that write: create, reserve, answer, change the cap, close and reopen."""
    for rounds in ((1, 2), (3,)):
        with opened(folder) as ledger:
            for round in rounds:
                sent[round] = answer(ledger, round)
    Ledger.open(folder, cap=2 * CAP).close()
    Ledger.open(folder, cap=CAP).close()


def killed_at(folder: Path, kind: str, at: int) -> bool:
    """Run the scenario in a process that is killed at write ``at``. Return whether that write was reached."""
    reader, writer = os.pipe()
    pid, send = os.fork(), os.write
    if pid == 0:
        try:
            with failing(Fault(kind, at)):
                scenario(folder, _Sender(lambda text: send(writer, text)))
        finally:
            os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as replies:
        lines = replies.read().split("\n")[:-1]
    check(folder, {round: bytes.fromhex(upload) for round, upload in map(json.loads, lines)})
    return os.WIFSIGNALED(status)


class _Sender(dict[int, bytes]):
    def __init__(self, send: Callable[[bytes], int]) -> None:
        self._send = send

    def __setitem__(self, round: int, upload: bytes) -> None:
        self._send(f"{json.dumps([round, upload.hex()])}\n".encode())


def kill_everywhere(root: Path, step: int) -> dict[str, int]:
    """Kill before, during and after every write of the scenario, or every ``step`` writes."""
    kills = 0
    for start, kind in enumerate(("kill before", "kill half", "kill after"), 1):
        at = start
        while killed_at(root / f"{kind} {at}", kind, at):
            kills, at = kills + 1, at + step
    return {"kills": kills}


def crash(folder: Path) -> dict[str, Any]:
    """Leave a ledger whose process was killed. SQLite's -wal file contains the newest records."""
    sent: dict[int, bytes] = {}
    scenario(folder, sent)
    ledger = opened(folder)
    sent |= {round: answer(ledger, round) for round in (4, 5, 6)}
    sys.stdout.write(json.dumps([[round, upload.hex()] for round, upload in sent.items()]))
    sys.stdout.flush()
    os._exit(0)


def fork_run(folder: Path) -> dict[str, Any]:
    """Check that a forked process cannot use its parent's ledger, and that the parent is not affected."""
    with opened(folder) as ledger:
        first = answer(ledger, 1)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            codes = []
            for act in (lambda: answer(ledger, 2), lambda: answer(ledger, 1), ledger.status, ledger.verify):
                try:
                    act()
                    codes.append("done")
                except RefusalError as refusal:
                    codes.append(refusal.code)
            ledger.close()
            try:
                Ledger.open(folder, cap=CAP)
            except RefusalError as refusal:
                codes.append(refusal.code)
            os.write(writer, json.dumps(codes).encode())
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as answers:
            codes = json.loads(answers.read())
        second = answer(ledger, 2)
        ledger.verify()
    check(folder, {1: first, 2: second})
    return {"codes": codes}


def hold(folder: Path) -> None:
    """Open the ledger, answer without end, and report it."""
    with opened(folder) as ledger:
        for round in range(1, ROUNDS + 1):
            answer(ledger, round)
            sys.stdout.write(f"{round}\n")
            sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    runs: dict[str, Callable[..., Any]] = {
        run.__name__: run for run in (kill_run, kill_everywhere, fork_run, crash, hold)
    }
    sys.stdout.write(json.dumps(runs[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))))
