"""Choose the tests for each mutant, run them, and judge the results."""

from __future__ import annotations

import ast
import gc
import json
import os
import signal
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

from mutation.apply import Misfit, substitute, transplant
from mutation.children import LATE, RESULT, in_children, note
from mutation.coverage_map import Map
from mutation.mutants import Mutant
from mutation.project import Project
from mutation.sessions import COLLECTING, NO_TESTS, Collected, Fresh, Runner, limit, own_folder, run_pytest, slowed

KILLED, TIMED_OUT, SURVIVED, NOT_COVERED, EQUIVALENT = (
    "killed",
    "timed out",
    "survived",
    "not covered",
    "equivalent",
)
ENOUGH = 20.0
"""Seconds of tests that a mutant meets, by their measured times."""
A_FILE = 0.4
"""Seconds to collect one test file anew."""


@dataclass(frozen=True)
class Task:
    """A mutant and its tests, the most likely killers first. Without a mutant: do the tests pass in this mode?"""

    target: str
    mutant: Mutant | None
    tests: tuple[str, ...]
    seconds: float
    live: bool
    n_cut: int = 0
    times: Mapping[str, float] = field(default_factory=dict)
    later: tuple[str, ...] = ()
    """Tests that can only be run in the other way. Files that run the line when they are imported need an
    import of their own, since what they computed then was computed without the mutant."""


Killers = dict[str, dict[str, dict[str, list[str]]]]
"""Target -> function -> live or fresh -> the tests that found mutants of it."""
Verdict = tuple[str, str | None]
"""How a mutant ended, and the test that did it."""


class ChoosesTests(Protocol):
    """Interface of classes that choose tests."""

    def task(self, mutant: Mutant) -> Task | None:
        """Return a task; None if no test covers the mutant."""

    def probe(self, task: Task, test: str) -> Task:
        """Return a task with the test that killed a mutant, without the mutant."""


# --- the choice of tests -----------------------------------------------------------------------------------


class Chooser:
    """Choose tests by the map, first those that killed a mutant of the same function before."""

    def __init__(self, project: Project, known_map: Map, killers: Killers) -> None:
        self.project, self.known, self.killers = project, known_map, killers
        self.times: dict[str, float] = {}
        self.by_line: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for item in known_map.values():
            self.times.update({test: time for test, time in item.times.items() if item.usable(test)})
            for target, lines in item.lines.items():
                for line, tests in lines.items():
                    self.by_line[target][line] += [test for test in tests if item.usable(test)]

    def task(self, mutant: Mutant) -> Task | None:
        """Return a task; None if no test covers the mutant."""
        target, covered = mutant.file, self.by_line[mutant.file]
        span = range(mutant.lines[0], mutant.lines[1] + 1)
        groups = [{test for line in span for test in covered.get(line, ())}]
        own = self.project.own_files(target)
        # import-time code: its own tests, then tests of functions that use its names, then tests that load the module
        if mutant.function is None:
            uses = _uses(self.project, target, mutant.names)
            path = f"{self.project.package}/{target}"
            loads = [(file, entry) for file, entry in self.known.items() if path in entry.loads]
            # A test of a constant runs no line of the target
            groups += [{test for file, entry in loads if file in own for test in entry.times if test in self.times}]
            groups += [{test for line in uses for test in covered.get(line, ())}]
            groups += [{test for tests in covered.values() for test in tests}]
            groups += [{test for _, entry in loads for test in entry.times if test in self.times}]
        before = {t for tests in self.killers.get(target, {}).get(mutant.where, {}).values() for t in tests}
        groups = [before & set().union(*groups), *groups]
        ordered: dict[str, None] = {}
        for group in groups:
            ordered.update(dict.fromkeys(sorted(group, key=lambda test: self._rank(test, own))))
        affected = {
            file
            for file in {_file(test) for test in ordered}
            if mutant.function is None or any(line in self.known[file].imported.get(target, ()) for line in span)
        }
        chosen, seconds, files = list[str](), 0.0, set[str]()
        for test in ordered:
            file = _file(test)
            cost = self.times[test] + (A_FILE if file in affected and file not in files else 0.0)
            if seconds + cost <= ENOUGH or not chosen:
                chosen.append(test)
                seconds += cost
                files.add(file)
        if not chosen:
            return None
        live = tuple(test for test in chosen if _file(test) not in affected)
        later = tuple(test for test in chosen if _file(test) in affected)
        n_cut = len(ordered) - len(chosen)
        if _file(chosen[0]) in affected:
            return Task(target, mutant, later, seconds, False, n_cut, self.times, live)
        return Task(target, mutant, live, seconds, True, n_cut, self.times, later)

    def probe(self, task: Task, test: str) -> Task:
        """Return a task with the test that killed a mutant, without the mutant."""
        return Task(task.target, None, (test,), self.times.get(test, 1.0), task.live, times=self.times)

    def _rank(self, test: str, own: list[str]) -> tuple[int, bool, str, float]:
        file = _file(test)
        strange = file not in own
        price = self.times[test] * (8.0 if strange else 1.0)
        return (price > 0.4) + (price > 4.0), strange, file, self.times[test]


def _file(test: str) -> str:
    return test.partition("::")[0]


@cache
def _uses(project: Project, target: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the lines of functions that use one of the names."""
    lines: set[int] = set()
    for item in ast.walk(ast.parse(project.text(target))):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            names_used = {node.id for node in ast.walk(item) if isinstance(node, ast.Name)}
            names_used |= {node.attr for node in ast.walk(item) if isinstance(node, ast.Attribute)}
            if names_used & set(names):
                lines.update(range(item.body[0].lineno, (item.end_lineno or item.lineno) + 1))
    return tuple(sorted(lines))


# --- the run -----------------------------------------------------------------------------------------------


MOST_TRIES = 8
"""How often a mutant is begun again without tests that turned out to fail by themselves."""


@dataclass
class _Judge:
    """Hand out tasks. A failing test counts as a kill only if it passes without the mutant."""

    chooser: ChoosesTests
    queue: deque[Task]
    killers: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    trusted: set[tuple[str, str]] = field(default_factory=set)
    unfair: set[tuple[str, str]] = field(default_factory=set)
    waiting: dict[tuple[str, str], list[tuple[Task, str]]] = field(default_factory=lambda: defaultdict(list))
    tries: Counter[Mutant] = field(default_factory=Counter)

    def take(self) -> tuple[Task, float] | None:
        if not self.queue:
            return None
        task = self.queue.popleft()
        if task.mutant is not None:
            fair = [test for test in task.tests if not self._is_unfair(task.target, test)]
            recent = [*self.killers[task.target, task.mutant.where][:4], *self.killers[task.target, ""][:4]]
            recent = [test for test in recent if test in fair]
            task = replace(task, tests=tuple(dict.fromkeys([*recent, *fair])))
        return task, slowed() * (60.0 + 10.0 * task.seconds)  # each test has its own shorter limit

    def _is_unfair(self, target: str, test: str) -> bool:
        return not self.unfair.isdisjoint({(target, test), (target, _file(test))})

    def receive(self, task: Task, how: str, test: str | None) -> Iterator[tuple[Task, Verdict]]:
        """Process a result. ``test`` failed, died or timed out; None if all tests passed."""
        if task.mutant is None:
            yield from self._receive_probe((task.target, task.tests[0]), passed=how == RESULT and test is None)
            return
        if test is None:
            yield task, (SURVIVED if task.tests else NOT_COVERED, None)
            return
        key, end = (task.target, test), TIMED_OUT if how == LATE else KILLED
        if key in self.trusted:
            yield task, self._killed(task, test, end)
        elif key in self.unfair:
            self.tries[task.mutant] += 1
            if self.tries[task.mutant] > MOST_TRIES:  # its failures do not depend on the choice of tests
                yield task, (SURVIVED, None)
            else:
                self.queue.appendleft(task)
        else:
            if not self.waiting[key]:
                self.queue.appendleft(self.chooser.probe(task, test))
            self.waiting[key].append((task, end))

    def _receive_probe(self, key: tuple[str, str], *, passed: bool) -> Iterator[tuple[Task, Verdict]]:
        (self.trusted if passed else self.unfair).add(key)
        for task, end in self.waiting.pop(key, []):
            if passed:
                yield task, self._killed(task, key[1], end)
            else:
                self.queue.appendleft(task)

    def _killed(self, task: Task, test: str, end: str) -> Verdict:
        assert task.mutant is not None
        for place in (task.mutant.where, "") if end == KILLED else ():
            killers = self.killers[task.target, place]
            if test in killers:
                killers.remove(test)
            killers.insert(0, test)
        return end, test


def run_fresh(
    project: Project, chooser: ChoosesTests, tasks: Sequence[Task], *, workers: int, until: float
) -> Iterator[tuple[Task, Verdict]]:
    """Run each mutant with its own import."""
    judge = _Judge(chooser, deque(tasks))

    def work(task: Task, folder: Path) -> str | None:
        path, source = project.path(task.target), project.text(task.target)
        mutated = source if task.mutant is None else task.mutant.source(source)
        substitute(project.module(task.target), path, mutated)
        for file in dict.fromkeys(_file(test) for test in task.tests):
            runner = Fresh([test for test in task.tests if _file(test) == file], task.times, folder)
            note(folder, file)
            limit(COLLECTING)
            code = run_pytest(project, [file], runner, folder)
            if runner.failed is not None or code not in (0, 1, NO_TESTS):
                return runner.failed or file
        return None

    for task, how, answer in in_children(judge.take, work, workers=workers, until=until):
        yield from judge.receive(task, how, answer)


def run_live(
    project: Project, chooser: ChoosesTests, tasks: Sequence[Task], *, workers: int, until: float
) -> Iterator[tuple[Task, Verdict | None]]:
    """Run each mutant in a fork of one process that has collected all tests. Return None if this is impossible."""
    read, write = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            os.close(read)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            with os.fdopen(write, "w", encoding="utf-8") as out:
                _serve(
                    project,
                    chooser,
                    tasks,
                    workers,
                    until,
                    lambda message: print(json.dumps(message), file=out, flush=True),
                )
        finally:
            os._exit(0)
    os.close(write)
    n_received = 0
    try:
        with os.fdopen(read, encoding="utf-8") as lines:
            for line in lines:
                result = json.loads(line)
                if isinstance(result, str):
                    raise RuntimeError(result)
                number, verdict = result
                n_received += 1
                yield tasks[number], verdict if verdict is None else tuple(verdict)
    finally:
        os.kill(server, signal.SIGTERM)
        os.waitpid(server, 0)
    if n_received < len(tasks) and time.monotonic() < until:
        raise RuntimeError(f"the process that has the tests ended after {n_received} of {len(tasks)} mutants")


_MISFIT = "misfit"


def _serve(
    project: Project,
    chooser: ChoosesTests,
    tasks: Sequence[Task],
    workers: int,
    until: float,
    tell: Callable[[Any], None],
) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    numbers = {task.mutant: i for i, task in enumerate(tasks)}
    texts = {task.target: project.text(task.target) for task in tasks}
    judge = _Judge(chooser, deque(tasks))

    def serve(session: pytest.Session) -> None:
        gc.freeze()  # the parent's memory is shared with all children
        items = {item.nodeid: item for item in session.items}

        def work(task: Task, folder: Path) -> str | None:
            mutant, source = task.mutant, texts[task.target]
            try:
                for function in [mutant.function] if mutant else _functions(tasks, task.target):
                    transplant(
                        project.module(task.target),
                        project.path(task.target),
                        source if mutant is None else mutant.source(source),
                        function,
                    )
            except Misfit:
                if mutant is not None:
                    return _MISFIT
            own_folder(session.config, folder)
            runner = Runner(task.tests, task.times, folder)
            session.config.pluginmanager.register(runner)
            try:
                runner.run([items[test] for test in task.tests if test in items])
            except BaseException:
                if runner.failed is None:
                    raise
            return runner.failed

        for task, how, answer in in_children(judge.take, work, workers=workers, until=until):
            if answer == _MISFIT:
                tell([numbers[task.mutant], None])
                continue
            for done, verdict in judge.receive(task, how, answer):
                tell([numbers[done.mutant], verdict])

    def serve_or_say(session: pytest.Session) -> None:
        try:
            serve(session)
        except Exception as error:
            tell(f"{type(error).__name__}: {error}")

    # A file of doctests that is not loaded yet is loaded twice by pytest, and tests may have the other copy
    for target in texts:
        import_module(project.module(target))
    files = sorted({_file(test) for task in tasks for test in task.tests})
    plugin = Collected(serve_or_say)
    code = run_pytest(project, files, plugin, Path(os.environ["MUTATION_FOLDER"]))
    if not plugin.ran:
        tell(f"the tests could not be collected together: pytest ended with {code}")


def _functions(tasks: Sequence[Task], target: str) -> list[Any]:
    return list(dict.fromkeys(task.mutant.function for task in tasks if task.target == target and task.mutant))
