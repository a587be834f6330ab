"""The runner finds exactly the gap in the tests of a toy project, applies reasons, and detects stale ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mutation.mutants import Mutant

TOY = '''\
"""A toy with a constant, a property, a context manager and a default."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property

LIMIT = 3


class Purse:
    size: int = 2

    @property
    def double(self):
        """
        >>> Purse().double
        4
        """
        return self.size * 2

    @cached_property
    def room(self):
        return LIMIT - self.size


@contextmanager
def opened(purse, log):
    log.append("open")
    yield purse
    log.append("shut")


def fits(n):
    return n <= LIMIT
'''
TESTS = """\
from toy import fits
from toy.purse import LIMIT, Purse, opened

EIGHT = 2 * Purse().double  # computed at import: a mutant of double is in here too


def test_constant():
    assert LIMIT == 3


def test_purse():
    assert (Purse().double, Purse().room, Purse.size) == (4, 1, 2)


def test_opened():
    log = []
    with opened(Purse(), log) as purse:
        assert isinstance(purse, Purse)
        assert log == ["open"]
    assert log == ["open", "shut"]


def test_fits():
    assert fits(2) is True
    assert fits(4) is False
"""
HOLE = "toy/purse.py::fits::swap_op::return n <= LIMIT => return n < LIMIT"
CONFIG = """
source = "src"
package = "src"
reasons = "reasons.toml"
killers = "killers.json"
targets = ["toy/purse.py"]
candidates = ["tests"]
"""


@dataclass
class Toy:
    """A project with one file, and the runner's output."""

    root: Path

    def run(self, *words: str, code: int) -> dict[str, Any]:
        output, places = self.root / "said.json", [f"--root={self.root}", f"--config={self.root / 'toy.toml'}"]
        done = subprocess.run(
            [sys.executable, "-m", "mutation", *places, f"--json={output}", *words],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        self.shown = done.stdout
        return json.loads(output.read_text())

    def excuse(self, mutant: Mutant, old: str | None = None) -> None:
        from mutation.reasons import as_entry

        entry = as_entry(mutant).replace('why = ""', 'why = "three never comes"')
        with (self.root / "reasons.toml").open("a") as file:
            file.write(entry.replace(mutant.old, old or mutant.old) + "\n")


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Import here, because every pytest worker imports this file and the parser takes a second to load."""
    from mutation import mutants

    return list(mutants.mutants_of(path, text))


def survivors(report: dict[str, Any]) -> list[str]:
    return [mutant["identity"] for mutant in report["mutants"] if mutant["result"] in ("survived", "not covered")]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    root = tmp_path_factory.mktemp("toy")
    for name, text in {
        "src/toy/__init__.py": "from toy.purse import fits as fits\n",
        "src/toy/purse.py": TOY,
        "tests/test_purse.py": TESTS,
        "toy.toml": CONFIG,
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib --doctest-modules\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Toy(root)


def test_the_gap_is_found_and_a_reason_closes_it(toy: Toy) -> None:
    report = toy.run("--keep-killers", code=1)
    assert survivors(report) == [HOLE]
    assert "  - return n <= LIMIT\n  + return n < LIMIT\n" in toy.shown
    assert {mutant["where"] for mutant in report["mutants"]} == {
        "<module>",
        "Purse",
        "Purse.double",
        "Purse.room",
        "opened",
        "fits",
    }

    [hole] = [mutant for mutant in mutants_of("toy/purse.py", TOY) if mutant.identity == HOLE]
    toy.excuse(hole)
    # a sample uses the killers of the first run, and needs no map
    (toy.root / ".mutation").rename(toy.root / "elsewhere")
    again = toy.run("--sample", "seed", code=0)
    assert {mutant["identity"] for mutant in again["mutants"]} == {mutant["identity"] for mutant in report["mutants"]}
    assert [mutant["identity"] for mutant in again["mutants"] if mutant["result"] != "killed"] == [HOLE]
    assert not (toy.root / ".mutation" / "map").exists()

    toy.excuse(hole, old="return n <= 3")
    assert toy.run("--only", "fits", code=1)["stale"] == ["toy/purse.py::fits: return n <= 3 => return n < LIMIT"]


def test_reason_for_a_killed_mutant_is_reported(toy: Toy) -> None:
    [other] = [mutant for mutant in mutants_of("toy/purse.py", TOY) if mutant.new == "LIMIT = 4"]
    (toy.root / "reasons.toml").unlink(missing_ok=True)
    toy.excuse(other)
    toy.run("--only", other.short, "--check-reasons", code=1)
    assert "a test finds what this reason excuses" in toy.shown


def identities(text: str) -> set[str]:
    return {f"{mutant.operator}: {mutant.old} => {mutant.new}" for mutant in mutants_of("x.py", text)}


def test_prose_types_and_imports_are_not_mutated() -> None:
    text = '''\
"""Module."""
from __future__ import annotations
from typing import TYPE_CHECKING, TypeVar, overload
if TYPE_CHECKING:
    from a import b
__all__ = ["f"]
Alias = dict[str, int]
Other: TypeAlias = dict[str, int] | None
T = TypeVar("T", bound=type)
@overload
def f(x: int = 1) -> None: ...
def f(x: "int"):
    """Two."""
    if x:
        raise ValueError(f"wrong by {x + 1} or so")
'''
    assert identities(text) == {
        "negated: if x: => if (not (x)):",
        'gone: raise ValueError(f"wrong by {x + 1} or so") => pass',
    }


def test_checks_operands_arguments_and_numbers_are_mutated() -> None:
    assert identities("check(a)\n") == {"gone: check(a) => pass"}
    assert identities("x = f(a or b, c=1.5)\n") == {
        "assignment: x = f(a or b, c=1.5) => x = None",
        "swap_op: x = f(a or b, c=1.5) => x = f(a and b, c=1.5)",
        "operand: x = f(a or b, c=1.5) => x = f(a, c=1.5)",
        "operand: x = f(a or b, c=1.5) => x = f(b, c=1.5)",
        "argument: x = f(a or b, c=1.5) => x = f(a or b)",
        "number: x = f(a or b, c=1.5) => x = f(a or b, c=2.5)",
        "number: x = f(a or b, c=1.5) => x = f(a or b, c=3.0)",
    }


def test_identity_survives_edits_elsewhere() -> None:
    before = [mutant.identity for mutant in mutants_of("x.py", TOY)]
    moved = TOY.replace("LIMIT = 3\n", "LIMIT = 3\n\n# a comment\n\n")
    assert [mutant.identity for mutant in mutants_of("x.py", moved)] == before
    assert len(set(before)) == len(before)


def test_constants_run_their_own_tests_first_after_earlier_killers(toy: Toy) -> None:
    """A test of a constant covers no line of the file, and other tests could use all the time available."""
    from mutation.coverage_map import TestFile
    from mutation.hunt import ENOUGH, Chooser
    from mutation.project import read_project

    used = TOY.split("\n").index("    return n <= LIMIT") + 1
    others = {f"tests/test_others.py::test_{i}": ENOUGH / 8 for i in range(20)}
    own = {f"tests/test_purse.py::test_{i}": 0.5 + i / 9 for i in range(2)}
    loads = {"src/toy/purse.py": ""}
    times = {
        "tests/test_others.py": TestFile(others, [], {"toy/purse.py": {used: list(others)}}, {}, loads),
        "tests/test_purse.py": TestFile(own, [], {}, {}, loads),
    }
    project = read_project(toy.root / "toy.toml", toy.root)
    [constant] = [mutant for mutant in mutants_of("toy/purse.py", TOY) if mutant.new == "LIMIT = 4"]
    task = Chooser(project, times, {}).task(constant)
    assert task is not None
    assert task.tests[:2] == tuple(own)
    assert len(task.tests) + task.n_cut == len(others) + len(own)
    assert task.n_cut > 0

    last = list(others)[-1]
    again = Chooser(project, times, {"toy/purse.py": {"<module>": {"fresh": [last]}}}).task(constant)
    assert again is not None
    assert again.tests[:3] == (last, *own)


def _spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_endless_tests_are_ended_and_slow_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mutation import sessions
    from mutation.children import LATE, RESULT, in_children

    monkeypatch.setattr(sessions, "slowed", lambda: 16.0)

    def work(job: tuple[Callable[[float], None], float], folder: Path) -> None:
        sessions.limit(0.1)
        job[0](job[1])
        sessions.limit(0.0)
        time.sleep(2.0 if job[0] is time.sleep else 0.0)  # lifted

    jobs = {"endless": (_spin, 60.0), "stuck": (time.sleep, 60.0), "on a busy machine": (time.sleep, 0.5)}
    waiting = iter(jobs.values())
    ended = in_children(lambda: next(((job, 30.0) for job in waiting), None), work, workers=len(jobs))
    assert {job: how for job, how, _ in ended} == dict(zip(jobs.values(), (LATE, LATE, RESULT), strict=True))
