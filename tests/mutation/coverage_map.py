"""Which test runs which line of the targets, and how long it takes. Results are cached while the files stay the same.

Every test file is mapped alone, in a process that has not loaded the package. This determines the files it depends on,
and its map is measured again only when one of them changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import coverage

from mutation.children import RESULT, in_children
from mutation.project import Project
from mutation.sessions import Mapper, run_pytest

LONGEST = 10.0
"""Seconds of the processor under measurement, which is up to three times slower; tests above it are not used."""
VERSION = 2


@dataclass(frozen=True)
class TestFile:
    """Cached facts about a test file."""

    times: dict[str, float]
    failed: list[str]
    lines: dict[str, dict[int, list[str]]]
    """Target -> line -> tests."""
    imported: dict[str, list[int]]
    """Target -> lines that run when the file is collected."""
    loads: dict[str, str]
    """Every file of the project that it loads, with a digest."""

    def usable(self, test: str) -> bool:
        return test not in self.failed and self.times[test] <= LONGEST


Map = dict[str, TestFile]


@cache
def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def read_map(project: Project, files: Iterable[str]) -> Map:
    """Return the valid cached entries of these files."""
    found: Map = {}
    for file in files:
        kept = _place(project, file)
        if not kept.exists():
            continue
        entry = json.loads(kept.read_text(encoding="utf-8"))
        if entry["version"] == [VERSION, *project.targets] and all(
            _digest(project.root / path) == digest for path, digest in entry["loads"].items()
        ):
            lines = {
                target: {int(line): [entry["names"][i] for i in tests] for line, tests in numbered.items()}
                for target, numbered in entry["lines"].items()
            }
            found[file] = TestFile(entry["times"], entry["failed"], lines, entry["imported"], entry["loads"])
    return found


def complete_map(project: Project, files: list[str], *, workers: int, until: float, tell: Callable[[str], None]) -> Map:
    """Return the map of these files, measured where no valid entry is cached."""
    known_map = read_map(project, files)
    missing = [file for file in files if file not in known_map]
    _place(project, "x").parent.mkdir(parents=True, exist_ok=True)
    waiting = iter(missing)
    results = in_children(
        lambda: next(((file, 1800.0) for file in waiting), None),
        lambda file, at: _measure(project, file, at),
        workers=workers,
        until=until,
    )
    for done, (file, ended, answer) in enumerate(results, start=1):
        tell(f"map {done}/{len(missing)} {file}")
        if ended != RESULT:
            raise RuntimeError(f"{file} could not be mapped ({ended})")
        _place(project, file).write_text(json.dumps(answer), encoding="utf-8")
    return read_map(project, files)


def _place(project: Project, file: str) -> Path:
    return project.state / "map" / f"{file.replace('/', '.')}.json"


def _measure(project: Project, file: str, folder: Path) -> dict[str, Any]:
    paths = {str(project.path(target)): target for target in project.targets}
    before = set(sys.modules)
    measured = coverage.Coverage(data_file=None, include=list(paths), config_file=False, messages=False)
    mapper = Mapper(lambda context: measured.switch_context(context))
    measured.start()
    try:
        run_pytest(project, [file], mapper, folder)
    finally:
        measured.stop()
    names = {test: i for i, test in enumerate(mapper.times)}
    lines: dict[str, dict[int, list[int]]] = {}
    imported: dict[str, list[int]] = {}
    data = measured.get_data()
    for path, target in paths.items():
        for line, contexts in data.contexts_by_lineno(path).items():
            for context in contexts:
                kind, _, name = context.partition(":")
                if kind == "":
                    imported.setdefault(target, []).append(line)
                tests = [name] if kind == "test" else []
                tests += [test for test, wants in mapper.fixtures.items() if kind == "fixture" and name in wants]
                lines.setdefault(target, {}).setdefault(line, []).extend(names[test] for test in tests)
    return {
        "version": [VERSION, *project.targets],
        "times": {test: round(seconds, 4) for test, seconds in mapper.times.items()},
        "failed": sorted(mapper.failed),
        "names": list(mapper.times),
        "lines": {t: {n: sorted(set(tests)) for n, tests in counts.items() if tests} for t, counts in lines.items()},
        "imported": imported,
        "loads": _loaded(project, before, file),
    }


def _loaded(project: Project, before: set[str], file: str) -> dict[str, str]:
    inside = [project.root / project.package, project.root / "tests"]
    found = {project.root / file, *project.root.glob("tests/**/conftest.py")}
    for name in set(sys.modules) - before:
        path = Path(getattr(sys.modules[name], "__file__", None) or "/")
        if any(path.is_relative_to(node) for node in inside):
            found.add(path)
    return {str(path.relative_to(project.root)): _digest(path) for path in sorted(found)}
