"""Tests that killed mutants of a function in the last full run. A sample runs these if there is no map."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable

from mutation.hunt import Killers, Task
from mutation.mutants import Mutant
from mutation.project import Project

A_TEST = 1.0
"""Seconds that a test is taken to need."""


def read_killers(project: Project) -> Killers:
    path = project.root / project.killers
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_killers(project: Project, files: Iterable[str], kills: Iterable[tuple[Mutant, bool, str]]) -> None:
    """Update the entries of these files. A kill is a mutant, whether its function was live, and the test."""
    counts: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    for mutant, live, test in kills:
        if "::" in test:
            counts[mutant.file, mutant.where, "live" if live else "fresh"][test] += 1
    table = {file: entry for file, entry in read_killers(project).items() if file in project.targets}
    table |= {file: {} for file in files}
    for (file, where, kind), tests in sorted(counts.items()):
        table[file].setdefault(where, {})[kind] = [test for test, _ in tests.most_common()]
    text = json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False)
    (project.root / project.killers).write_text(text + "\n", encoding="utf-8")


class KillerChooser:
    """Choose the tests that killed mutants of the same function, then those of the same file."""

    def __init__(self, project: Project) -> None:
        self.table = read_killers(project)

    def task(self, mutant: Mutant) -> Task | None:
        """Return a task; None if nothing is recorded."""
        entry = self.table.get(mutant.file, {})
        places = [entry.get(mutant.where, {}), *entry.values()]
        live, fresh = (
            tuple(dict.fromkeys(test for place in places for test in place.get(kind, ()))) for kind in ("live", "fresh")
        )
        if mutant.function is None:
            fresh, live = tuple(dict.fromkeys([*fresh, *live])), ()
        tests, later = (live, fresh) if live else (fresh, ())
        if not tests:
            return None
        return Task(mutant.file, mutant, tests, A_TEST * len(tests), bool(live), later=later)

    def probe(self, task: Task, test: str) -> Task:
        return Task(task.target, None, (test,), A_TEST, task.live)
