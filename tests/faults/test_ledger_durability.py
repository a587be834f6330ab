"""A record is on disk before anything depends on it: observed in the system calls of a real process.

Data of a killed process survives whether it was synced or not, so kills cannot show what a power cut would lose. The
order of writes and syncs can, and ``strace`` shows it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ledgers import ABOUT, STUDY, digest

from dpadmm.trusted.ledger import DATABASE, LINE, MARK, Ledger

CALLS = (
    "open,openat,creat,mkdir,mkdirat,write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,ftruncate,truncate,"
    "fallocate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,msync,sync,syncfs,sync_file_range"
)
CHILD = Path(__file__).parents[1] / "support" / "durable_runs.py"
LASTING = (DATABASE, f"{DATABASE}-wal", MARK)
"""Files whose bytes a ledger is; SQLite's -shm is an index that is made anew."""

CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+|\?)(.*)$")


@dataclass
class Call:
    """One system call: its name, its file and the text that it wrote."""

    name: str
    path: Path
    text: str
    creates: bool = False


def traced(run: str, folder: Path) -> list[Call]:
    """Return the system calls of a process on files in and around a folder, and the lines that it printed."""
    strace = shutil.which("strace")
    out = folder / "trace"
    words = ["-f", "-y", "-s", "200", "-o", out, "-e", f"trace={CALLS}", "-e", "signal=none"]
    works = strace is not None and subprocess.run(
        [strace, "-f", "-y", "-o", os.devnull, "true"], capture_output=True, check=False
    )
    if strace is None or not works or works.returncode != 0:
        reason = "strace is not there, or may not watch processes here"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; CI must test what a ledger syncs")
        pytest.skip(reason)
    command = [strace, *words, sys.executable, CHILD, run, folder / "made" / "too" / "ledger"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    calls = [call for line in out.read_text(errors="replace").splitlines() if (call := _call(line))]
    begin = next(i for i, call in enumerate(calls) if call.text.startswith("@begin"))
    relevant = [c for c in calls[begin:] if c.text.startswith("@") or folder in (c.path, *c.path.parents)]
    assert "unfinished" not in out.read_text(errors="replace")  # one thread only, so the order is unambiguous
    return relevant


def _call(line: str) -> Call | None:
    found = CALL.match(line)
    if found is None or found[3].startswith("-") or found[3] == "?":
        return None
    name, arguments = found[1], found[2]
    quoted = re.search(r'"((?:[^"\\]|\\.)*)"', arguments)
    text = quoted[1] if quoted else ""
    if name in ("open", "openat", "creat"):
        return Call(name, Path(text), "", creates="O_CREAT" in arguments or name == "creat")
    if name in ("mkdir", "mkdirat"):
        return Call(name, Path(text), "", creates=True)
    if name.startswith(("rename", "link", "unlink")) or name == "truncate":
        return Call(name, Path(text), "")
    about = re.match(r"\d+<([^>]*)>", arguments)
    is_output = text.startswith("@") and arguments.startswith("1<")
    return Call(name, Path(about[1] if about else "."), text if is_output or name == "write" else "")


@dataclass
class Disk:
    """The guaranteed state of the disk after a power cut: data that is not synced may be lost."""

    unsynced: dict[str, str] = field(default_factory=dict)
    names: dict[Path, list[str]] = field(default_factory=dict)
    records: int = 0
    written: bool = False

    def take(self, call: Call) -> None:
        name = call.path.name
        if call.creates and not name.endswith(("-shm", "-journal")):
            self.names.setdefault(call.path.parent, []).append(name)
        elif call.name == "fsync" or (call.name == "fdatasync" and name in LASTING):
            self.names.pop(call.path, None)  # only fsync of a folder is documented to preserve its names
            self.unsynced.pop(name, None)
        elif call.name.startswith(("write", "pwrite")) and name in LASTING:
            if name == MARK and call.text:
                self._marked()
            self.written |= name != MARK
            if name != MARK or call.text:
                self.unsynced[name] = call.name
        elif call.name in ("ftruncate", "fallocate", "truncate") and name == MARK:
            self.unsynced[name] = call.name

    def _marked(self) -> None:
        assert self.written or self.records == 0, "a record was marked that was not written"
        assert not self.unsynced.keys() - {MARK}, "a record was marked before it was on the disk"
        self.records, self.written = self.records + 1, False

    def check(self, when: str) -> None:
        assert not self.unsynced, f"{when}: not on the disk yet: {self.unsynced}"
        assert not self.names, f"{when}: names of new files may be lost: {self.names}"


@pytest.fixture(scope="module")
def trace(once: Callable[[str, Callable[[Path], object]], Path]) -> dict[str, list[Call]]:
    """Traces of both runs. They are recorded once for all pytest workers."""

    def watch(folder: Path) -> None:
        calls = {}
        for run in ("records", "replies"):
            (folder / run).mkdir()
            calls[run] = [{**vars(item), "path": str(item.path)} for item in traced(run, folder / run)]
        (folder / "calls.json").write_text(json.dumps(calls))

    found = json.loads((once("traced ledger", watch) / "calls.json").read_text())
    return {run: [Call(**{**call, "path": Path(call["path"])}) for call in calls] for run, calls in found.items()}


RECORDS = {
    "records": ["opened", "reserve", "reserve", *(f"spend {i}" for i in range(1, 6)), "close", "another cap"],
    "replies": ["opened", "reserve", "reply", "reply", "reply", "left"],
}


@pytest.mark.parametrize("run", RECORDS)
def test_record_and_mark_are_on_disk_before_they_are_reported(trace: dict[str, list[Call]], run: str) -> None:
    disk, reported = Disk(), []
    before = 0
    for call in trace[run]:
        if not call.text.startswith("@"):
            disk.take(call)
            continue
        line = call.text.removeprefix("@").removesuffix(r"\n")
        if "lost" in line:  # created by the test; the next opening completes it
            disk.unsynced.clear()
            disk.written = True
            continue
        disk.check(line)
        if line.startswith("record: "):
            assert disk.records == before + 1, f"{line}: {disk.records - before} records were marked"
            reported.append(line.removeprefix("record: "))
        before = disk.records
    expected = RECORDS[run]
    assert len(reported) >= len(expected)
    assert all(found.startswith(wanted) for found, wanted in zip(reported, expected, strict=False))


def test_new_folders_are_synced_in_their_parents(trace: dict[str, list[Call]]) -> None:
    for calls in trace.values():
        opened = next(i for i, call in enumerate(calls) if "record: opened" in call.text)
        created = [(i, call.path) for i, call in enumerate(calls[:opened]) if call.name.startswith("mkdir")]
        assert [path.name for _, path in created] == ["made", "too", "ledger"]
        for i, path in created:
            assert any(call.name == "fsync" and call.path == path.parent for call in calls[i:opened]), path


def test_large_record_is_checkpointed_and_synced(trace: dict[str, list[Call]]) -> None:
    """This ensures that the test above covers a checkpoint."""
    calls = trace["records"]
    third = next(i for i, call in enumerate(calls) if "spend 3" in call.text)
    before = next(i for i, call in enumerate(calls) if "spend 2" in call.text)
    names = {(call.name, call.path.name) for call in calls[before:third]}
    assert ("pwrite64", DATABASE) in names
    assert ("fdatasync", DATABASE) in names


def test_connection_syncs_every_commit(tmp_path: Path) -> None:
    for create in (True, False):
        with Ledger.open(tmp_path / "ledger", cap=1.0, create=create) as ledger:
            ledger.reserve(STUDY, 0.5, about=ABOUT)
            for round in (1, 2) if create else (3,):
                ledger.spend(STUDY, round, digest=digest(round), mu_squared=0.01, upload=b"x")
                asked = {name: _pragma(ledger, name) for name in ("synchronous", "journal_mode")}
                assert asked == {"synchronous": 2, "journal_mode": "wal"}
            assert (tmp_path / "ledger" / MARK).stat().st_size == LINE * ledger.status().seq


@pytest.mark.parametrize("default", ["OFF", "NORMAL"])
def test_connection_syncs_every_commit_for_any_sqlite_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, default: str
) -> None:
    real = sqlite3.connect

    def connect(*words: Any, **more: Any) -> sqlite3.Connection:
        database = real(*words, **more)
        database.execute(f"PRAGMA synchronous = {default}")
        return database

    monkeypatch.setattr(sqlite3, "connect", connect)
    with Ledger.open(tmp_path / "ledger", cap=1.0, create=True) as ledger:
        assert _pragma(ledger, "synchronous") == 2
        ledger.reserve(STUDY, 0.5, about=ABOUT)
        assert _pragma(ledger, "synchronous") == 2


def _pragma(ledger: Ledger, name: str) -> object:
    return ledger._database.execute(f"PRAGMA {name}").fetchone()[0]
