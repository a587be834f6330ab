"""pytest sessions of three kinds: to map tests, and to run some of them on a mutant, fresh or collected before."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import default_plugins
from hypothesis import HealthCheck, Phase, settings

from mutation.children import note
from mutation.project import Project

NO_TESTS = 5
PATIENCE = 4.0
"""Seconds of the processor that any test may take on a mutant, beside five times its own."""
COLLECTING = 30.0
"""Seconds of the processor to collect a file."""
_PLUGINS = ("_hypothesis_pytestplugin", *(f"_pytest.{name}" for name in default_plugins), "doctest", "pdb")


def prepare(project: Project) -> None:
    """Set paths and import all heavy modules except the package, before the first fork."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    paths = [str(project.root / item) for item in (project.source, "tests", "tests/support")]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in (*project.preload, *_PLUGINS):
        with suppress(ImportError):
            __import__(name)
    # Without shrinking, because only failure matters
    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")


def run_pytest(project: Project, files: Sequence[str], plugin: object, folder: Path) -> int:
    options = [
        "-q",
        "--assert=plain",
        "--tb=native",
        "--capture=sys",
        "-p",
        "no:cacheprovider",
        "-p",
        "_hypothesis_pytestplugin",
        "-m",
        "not adult",
    ]
    places = [f"--rootdir={project.root}", f"--basetemp={folder / 'base'}"]
    config = next(
        (name for name in ("pytest.ini", "pyproject.toml") if (project.root / name).exists()),
        "pyproject.toml",
    )
    paths = [str(project.root / file) for file in files]
    return int(pytest.main([*options, "-c", str(project.root / config), *places, *paths], plugins=[plugin]))


def slowed() -> float:
    """Return the current slowdown: how many times longer than usual everything takes by the clock."""
    return 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def limit(seconds: float) -> None:
    """Let the system end this process after this much CPU time, also within C code, or after a longer wait.

    A limit by the clock alone would end slow tests on a busy machine, and each would count as a kill. 0 removes the
    limit.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, slowed() * seconds)


class Runner:
    """Run chosen tests until one fails. ``failed`` is its name."""

    def __init__(self, chosen: Sequence[str], times: Mapping[str, float], folder: Path) -> None:
        self.chosen, self.times, self.folder = list(chosen), times, folder
        self.failed: str | None = None
        self.ran = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        except (pytest.skip.Exception, pytest.xfail.Exception):
            raise
        except BaseException:
            if item.get_closest_marker("xfail") is None:
                self.failed = item.nodeid
            raise

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def run(self, items: Sequence[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=False):
            note(self.folder, item.nodeid)
            limit(PATIENCE + 5.0 * self.times.get(item.nodeid, 1.0))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            limit(0.0)
            self.ran += 1
            if self.failed is not None:
                with suppress(BaseException):
                    item.session._setupstate.teardown_exact(None)
                return


class Fresh(Runner):
    """Collect a file anew, then run the chosen tests."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self.failed is None:
            self.run(_matching(session.items, self.chosen))
        return True


def _matching(items: Sequence[pytest.Item], chosen: Sequence[str]) -> list[pytest.Item]:
    """Return the chosen items in order. If a mutant renames a case, return all cases of its test."""
    by_name = {item.nodeid: item for item in items}
    found: dict[pytest.Item, None] = {}
    for name in chosen:
        if name in by_name:
            found[by_name[name]] = None
        else:
            base = name.partition("[")[0]
            found.update(dict.fromkeys(item for item in items if item.nodeid.partition("[")[0] == base))
    return list(found)


class Collected:
    """Collect files once and pass the session to ``work``, which forks."""

    def __init__(self, work: Callable[[pytest.Session], None]) -> None:
        self.work, self.ran = work, False

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.ran = True
        self.work(session)
        return True


class Mapper:
    """Run all tests of a file and notify ``switch`` of each test. Record times and failures."""

    def __init__(self, switch: Callable[[str], None]) -> None:
        self.switch = switch
        self.times: dict[str, float] = {}
        self.failed: set[str] = set()
        self.fixtures: dict[str, list[str]] = {}
        self._current = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._current = f"test:{item.nodeid}"
        self.fixtures[item.nodeid] = list(getattr(item, "fixturenames", ()))
        self.switch(self._current)
        start, cpu = time.perf_counter(), time.process_time()
        try:
            return (yield)
        finally:
            waited = (time.perf_counter() - start) / slowed()  # a waiting test also costs time
            self.times[item.nodeid] = max(time.process_time() - cpu, waited)
            self._current = ""
            self.switch("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        self.switch(f"fixture:{fixturedef.argname}")  # every test that uses it depends on these lines
        try:
            return (yield)
        finally:
            self.switch(self._current)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def own_folder(config: Any, folder: Path) -> None:
    """Set ``tmp_path`` of a session that was collected by the parent."""
    factory = config._tmp_path_factory
    factory._given_basetemp, factory._basetemp = folder / "base", None
