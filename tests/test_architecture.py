"""docs/explanation/architecture.md lists the files that a profiler sees during a round, each once."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import dpadmm
from dpadmm.engine.loop import RoundView
from dpadmm.engine.noise import ExactNoise
from dpadmm.federation.server.coordinator import run_rounds
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.losses import Logistic
from dpadmm.models.run import run
from federation.test_in_process import NAMES, SIZES, Sites, study

SOURCES = Path(dpadmm.__file__).parent
PAGE = (Path(__file__).parents[1] / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
ON_THE_WIRE = {"federation/transport/link.py"}
"""What is between the two ends of a real deployment, and not in a process that holds both."""

SUPPORT = ("matrices", "parameters", "files", "errors.py")
"""Packages without a step of their own in a round."""

MAX_FILES = 21


class Visited:
    """Files of the project whose functions run while the profiler is active."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCES) and file.relative_to(SOURCES).parts[0] not in SUPPORT:
            self.files.add(str(file.relative_to(SOURCES)))


@contextmanager
def watching(visited: Visited) -> Iterator[None]:
    sys.setprofile(visited)
    try:
        yield
    finally:
        sys.setprofile(None)


def listed_files(heading: str) -> list[str]:
    """Return the files in the numbered points below a heading, in order."""
    section = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    points = section[section.index("\n1. ") :].split("\n\n")[0]
    return re.findall(r"`([\w/]+\.py)`", points)


def test_a_round_of_train_uses_the_listed_files() -> None:
    from cohorts import cohort

    visited, agreed = Visited(), study()

    def second_round_only(view: RoundView) -> None:
        sys.setprofile(visited if view.round == 1 else None)

    try:
        run(agreed.training, agreed.problem, cohort(Logistic(), sizes=SIZES, d=5), ExactNoise(),
            observers=[second_round_only])  # fmt: skip
    finally:
        sys.setprofile(None)
    page = listed_files("One round of `train`, file by file")
    assert len(page) == len(set(page)) <= MAX_FILES
    assert visited.files == set(page)


def test_a_federated_round_uses_the_listed_files(tmp_path: Path) -> None:
    from cohorts import cohort

    visited, agreed = Visited(), study()
    with pytest.MonkeyPatch.context() as monkeypatch:
        sites = Sites(tmp_path, cohort(Logistic(), sizes=SIZES, d=5), monkeypatch)
        monkeypatch.undo()  # the noise is that of the agents
        for name in NAMES:
            sites.start(name, agreed)
        Journal.begin(tmp_path / "s" / "journal.sqlite", agreed, NAMES)
        with Journal.open(tmp_path / "s" / "journal.sqlite") as journal:
            coordinator = coordinator_of(journal)
            close = coordinator.close_round

            def watched(seconds: float) -> None:
                close(seconds)
                sys.setprofile(visited if coordinator.rounds_done == 2 else None)

            monkeypatch.setattr(coordinator, "close_round", watched)
            try:
                asyncio.run(run_rounds(coordinator, sites.transport(agreed)))
            finally:
                sys.setprofile(None)
        for responder in sites.responders.values():
            responder.close()
    page = listed_files("One federated round, file by file")
    assert len(page) == len(set(page)) <= MAX_FILES
    assert visited.files | ON_THE_WIRE == set(page)


def test_page_lists_all_packages_and_existing_files() -> None:
    for name in re.findall(r"`([\w/]+\.py)`", PAGE):
        assert (SOURCES / name).is_file() or (SOURCES.parents[1] / name).is_file(), name
    packages = {path.name for path in SOURCES.iterdir() if (path / "__init__.py").exists()}
    table = PAGE.split("## Packages")[1].split("\n## ")[0]
    assert packages <= set(re.findall(r"`(\w+)`", table))
