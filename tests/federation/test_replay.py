"""The second run in one process detects equal and different results."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from federations import NAMES, small_study, write_rows
from in_process import InProcess
from replays import replay

from dpadmm.errors import DataError
from dpadmm.federation.local import new_site
from dpadmm.federation.protocol import unpacked
from dpadmm.federation.replay import Replay
from dpadmm.federation.server.coordinator import Uploads, run_rounds
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.federation.site.decisions import accept
from dpadmm.federation.site.responder import Responder
from dpadmm.methods.pgd import PublicState
from dpadmm.methods.prior import Prior
from dpadmm.sites.site import Site
from dpadmm.studies.public_rows import PublicRows
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.training.train import prior_from
from dpadmm.trusted import discrete_gaussian as exact_noise

ROUNDS = 12
LOG = logging.getLogger("test")


@pytest.fixture
def study() -> Study:
    return small_study(ROUNDS, deadline=0.1)


@pytest.fixture
def sites(tmp_path: Path, study: Study) -> dict[str, Site]:
    return enrolled(tmp_path, study)


def enrolled(folder: Path, study: Study) -> dict[str, Site]:
    made = {}
    for i, name in enumerate(NAMES):
        (folder / name).mkdir()
        write_rows(folder / name / "table.csv", i)
        made[name] = new_site(folder / name, study, table="table.csv", epsilon=3.0)
        accept(made[name], study)
    return made


class Line(InProcess):
    """Some answers are delayed until the next request, some are lost, and some sites are absent."""

    def __init__(self, study: Study, responders: dict[str, Responder], **faults: set[tuple[str, int]]) -> None:
        self._study, self._responders, self._faults = study, responders, faults
        self._held: list[tuple[str, bytes]] = []
        super().__init__({name: lambda data, name=name: self._answer(name, data) for name in responders})  # type: ignore[misc]

    async def send(self, data: bytes) -> None:
        held, self._held = self._held, []
        for item in held:
            self._answers.put_nowait(item)
        await super().send(data)

    def _answer(self, name: str, data: bytes) -> bytes | None:
        study = self._study
        message = unpacked(data, study=study.hash, shape=lambda _: study.broadcast_shape, from_site=False)
        what = (name, message.round)
        if what in self._faults.get("away", ()):
            return None
        said = self._responders[name].answer(study.hash, data)
        if what in self._faults.get("late", ()) and said is not None:
            self._held.append((name, said))
        return None if what in self._faults.get("late", set()) | self._faults.get("lost", set()) else said


class Killed(Exception):
    """The server's process ended."""


class Mortal(Uploads):
    """A journal that raises once, after round 4."""

    def close_round(self, seconds: float) -> None:
        super().close_round(seconds)
        if self.rounds_done == 4:
            raise Killed


def run(
    tmp_path: Path,
    study: Study,
    sites: dict[str, Site],
    *,
    prior: Prior | None = None,
    killed: bool = False,
    **faults: set[tuple[str, int]],
) -> Path:
    path = tmp_path / "journal" / "journal.sqlite"
    Journal.begin(path, study, NAMES, prior)
    responders = {name: Responder(site.guard, 1, LOG) for name, site in sites.items()}
    try:
        for responder in responders.values():
            responder.open()
            assert responder.accept(study) is None
        if killed:
            with Journal.open(path) as journal, pytest.raises(Killed):
                asyncio.run(run_rounds(Mortal(journal), Line(study, responders, **faults)))
        with Journal.open(path) as journal:
            asyncio.run(run_rounds(coordinator_of(journal), Line(study, responders, **faults)))
    finally:
        for responder in responders.values():
            responder.close()
    return path


def found(path: Path, sites: dict[str, Site]) -> Replay:
    with Journal.open(path, read_only=True) as journal:
        return replay(journal, sites)


def test_replay_of_a_complete_run(tmp_path: Path, study: Study, sites: dict[str, Site]) -> None:
    seen = found(run(tmp_path, study, sites), sites)
    assert seen.equal
    assert (seen.n_rounds, seen.n_releases, seen.n_late, seen.n_lost) == (ROUNDS, 3 * ROUNDS, 0, 0)
    assert 0.5 < seen.noise_scale < 1.5


def test_replay_with_absent_sites(tmp_path: Path, study: Study, sites: dict[str, Site]) -> None:
    seen = found(run(tmp_path, study, sites, away={("b", 2), ("b", 3), ("c", 5)}), sites)
    assert seen.equal
    assert (seen.n_releases, seen.n_late, seen.n_lost) == (3 * ROUNDS - 3, 0, 0)


def test_replay_with_late_and_lost_answers(tmp_path: Path, study: Study, sites: dict[str, Site]) -> None:
    seen = found(run(tmp_path, study, sites, late={("b", 2), ("c", 7)}, lost={("a", 4)}), sites)
    assert seen.equal
    assert (seen.n_releases, seen.n_lost) == (3 * ROUNDS, 1)
    assert seen.n_late >= 1


@pytest.mark.parametrize("late", [set(), {("b", 3)}])
def test_replay_with_public_rows_needs_no_file(tmp_path: Path, study: Study, late: set[tuple[str, int]]) -> None:
    """Only the server has the file, and only until there is a journal."""
    public = tmp_path / "public.csv"
    write_rows(public, 9, 200)
    training = Training(method="auto", epsilon=3.0, n_rounds=ROUNDS)
    study = replace(study, training=training, public_rows=PublicRows.of(public))
    sites, prior = enrolled(tmp_path, study), prior_from(study, public)
    public.unlink()
    path = run(tmp_path, study, sites, prior=prior, killed=True, late=late)
    seen = found(path, sites)
    assert seen.equal
    assert (seen.n_rounds, seen.n_releases, seen.n_late) == (ROUNDS, 3 * ROUNDS, len(late))
    with Journal.open(path, read_only=True) as journal:
        assert journal.study == study
        assert journal.prior is not None
        for field in fields(Prior):
            assert np.array_equal(getattr(journal.prior, field.name), getattr(prior, field.name))
        sent = PublicState.unpacked(next(journal.consensus()), study.shape)
    np.testing.assert_allclose(sent.weights, prior.weights)  # what every site hears in round 2


@pytest.fixture
def changed(tmp_path: Path, study: Study, sites: dict[str, Site]) -> Iterator[tuple[Path, sqlite3.Connection]]:
    path = run(tmp_path, study, sites)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        yield path, database


def test_one_changed_bit_of_a_consensus_is_detected(changed, sites: dict[str, Site]) -> None:
    path, database = changed
    ((blob,),) = database.execute("SELECT consensus FROM rounds WHERE round = 9").fetchall()
    values = np.frombuffer(blob, "<u8").copy()
    values[0] ^= 1
    database.execute("UPDATE rounds SET consensus = ? WHERE round = 9", (values.tobytes(),))
    seen = found(path, sites)
    assert not seen.equal
    assert seen.first_difference == 9


def test_upload_that_is_in_no_ledger_is_detected(changed, sites: dict[str, Site]) -> None:
    path, database = changed
    database.execute("UPDATE uploads SET round = 99 WHERE site = 'b' AND round = 9")
    with pytest.raises(DataError, match="upload of b for round 99 that is not in its ledger"):
        found(path, sites)


def test_too_little_noise_is_detected(
    tmp_path: Path, study: Study, sites: dict[str, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = exact_noise.discrete_gaussian
    monkeypatch.setattr(exact_noise, "discrete_gaussian", lambda scale, count: drawn(scale, count) // 10)
    seen = found(run(tmp_path, study, sites), sites)
    assert seen.first_difference == 0
    assert not seen.equal
