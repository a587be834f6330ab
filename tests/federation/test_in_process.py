"""A study through messages, journal and responders of sites, without a network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from cohorts import cohort
from guards import private
from in_process import InProcess

from dpadmm.engine.loop import PlannedParticipation, train
from dpadmm.engine.noise import ExactNoise
from dpadmm.federation.protocol import unpacked
from dpadmm.federation.server.coordinator import run_rounds
from dpadmm.federation.server.journal import Journal, result_of
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.federation.site.responder import Responder
from dpadmm.losses import LOSSES, Logistic
from dpadmm.matrices.arrays import Integers
from dpadmm.models.file import load_model
from dpadmm.models.model import model_of
from dpadmm.queries.problem import Rows
from dpadmm.studies.study import Study
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import Ledger
from dpadmm.trusted.policy import Policy

SIZES, D, ROUNDS = (7, 40, 300), 5, 6
NAMES = ("a", "b", "c")
POLICY = Policy(1e3, 1e-5, frozenset({"pgd", "newton", "dp_admm", "dp_sgd"}), frozenset(LOSSES), ROUNDS, 2)
LOG = logging.getLogger("test")


def study(**more: object) -> Study:
    training = {"method": "dp_admm", "n_rounds": ROUNDS, "noise_multiplier": 3.0, "intercept": False}
    return Study(name="together", features=tuple("vwxyz"), classes=(-1, 1), training=training, **more)  # type: ignore[arg-type]


def seeded(agent: int, round: int):
    def draw(scale: int, count: int) -> Integers:
        return np.rint(scale * np.random.default_rng([agent, round]).normal(size=count)).astype(np.int64)

    return draw


class Sites:
    """Three sites with their own rows, guards and ledgers. Their noise is a function of the round."""

    def __init__(self, folder: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.rows, self.turn, self.away = folder, rows, [0, 0], set[tuple[str, int]]()
        self.lost: set[tuple[str, int]] = set()
        self.responders: dict[str, Responder] = {}
        monkeypatch.setattr(exact_noise, "discrete_gaussian", lambda scale, count: seeded(*self.turn)(scale, count))

    def start(self, name: str, accepted: Study) -> None:
        alone = self.rows.agent(NAMES.index(name))
        own = private(alone.features[alone.order], alone.labels)

        def open_guard():
            from contextlib import contextmanager

            @contextmanager
            def opened() -> Iterator[Guard]:
                with Ledger.open(self.folder / name, cap=POLICY.cap, create=True) as ledger:
                    yield Guard(POLICY, ledger, lambda study: own)

            return opened()

        if name in self.responders:
            self.responders[name].close()
        self.responders[name] = Responder(open_guard, 1, LOG)
        self.responders[name].open()
        assert self.responders[name].accept(accepted) is None

    def answers(self, name: str, accepted: Study):
        def answer(data: bytes) -> bytes | None:
            message = unpacked(data, study=accepted.hash, shape=lambda _: accepted.broadcast_shape, from_site=False)
            if (name, message.round) in self.away:
                return None
            self.turn[:] = [NAMES.index(name), message.round]
            said = self.responders[name].answer(accepted.hash, data)
            return None if (name, message.round) in self.lost else said

        return answer

    def transport(self, accepted: Study) -> InProcess:
        return InProcess({name: self.answers(name, accepted) for name in NAMES})


@pytest.fixture
def rows() -> Rows:
    return cohort(Logistic(), sizes=SIZES, d=D)


@pytest.fixture
def sites(tmp_path: Path, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sites]:
    made = Sites(tmp_path, rows, monkeypatch)
    yield made
    for responder in made.responders.values():
        responder.close()


def reference(accepted: Study, rows: Rows, mask: np.ndarray) -> np.ndarray:
    method = accepted.training.build(accepted.problem, rows, np.full(len(SIZES), ROUNDS))
    history: list[np.ndarray] = []
    train(
        method, accepted.problem, rows, n_rounds=ROUNDS, noise=ExactNoise(seeded),
        participation=PlannedParticipation(mask),
        observers=[lambda view: history.append(view.consensus.copy())],
    )  # fmt: skip
    return np.array(history)


def run(accepted: Study, sites: Sites, file: Path) -> list[np.ndarray]:
    if not file.exists():
        Journal.begin(file, accepted, NAMES)
    with Journal.open(file) as journal:
        asyncio.run(run_rounds(coordinator_of(journal), sites.transport(accepted)))
        return list(journal.consensus())


def test_result_equals_a_cohort_in_one_process(sites: Sites, rows: Rows, tmp_path: Path) -> None:
    accepted = study()
    for name in NAMES:
        sites.start(name, accepted)
    got = run(accepted, sites, tmp_path / "s" / "journal.sqlite")
    assert np.array_equal(got, reference(accepted, rows, np.ones((ROUNDS, 3), bool)))
    with ExitStack() as held:
        journal = held.enter_context(Journal.open(tmp_path / "s" / "journal.sqlite", read_only=True))
        assert journal.answered() == {name: list(range(1, ROUNDS + 1)) for name in NAMES}
        assert [event.text for event in journal.events()][-1] == f"finished after {ROUNDS} rounds"


def test_intervals_equal_those_of_one_process(sites: Sites, rows: Rows, tmp_path: Path) -> None:
    training = {"method": {"name": "auto", "inference": True}, "n_rounds": ROUNDS, "noise_multiplier": 0.3}
    accepted = Study(name="together", features=tuple("vwxyz"), classes=(-1, 1), training=training)  # type: ignore[arg-type]
    for name in NAMES:
        sites.start(name, accepted)
    run(accepted, sites, tmp_path / "s" / "journal.sqlite")
    method = accepted.training.build(accepted.problem, rows, np.full(len(SIZES), ROUNDS))
    done = train(method, accepted.problem, rows, n_rounds=ROUNDS, noise=ExactNoise(seeded))
    released = method.covariance(done.broadcast)
    assert released is not None
    assert released.matrix is not None
    with Journal.open(tmp_path / "s" / "journal.sqlite", read_only=True) as journal:
        told = result_of(journal)
    assert released.hessian_snr > 1.0
    assert np.array_equal(told.weights, done.consensus)
    model = load_model(model_of(told).save(tmp_path / "m.dpadmm"))
    assert model.hessian_snr == released.hessian_snr
    assert np.array_equal(model.covariance, released.matrix)
    assert set(model.conf_int()) == {*"vwxyz", "intercept"}
    (group,) = told.privacy.groups
    assert [release.release.statistic for release in group.releases] == ["newton", "newton"]


def test_site_that_misses_rounds_and_returns(sites: Sites, rows: Rows, tmp_path: Path) -> None:
    accepted = study(allow_missed_rounds=True, quorum=2, deadline=0.1)
    for name in NAMES:
        sites.start(name, accepted)
    sites.away = {("b", 2), ("b", 3), ("c", 5)}
    mask = np.ones((ROUNDS, 3), bool)
    mask[[1, 2], 1] = mask[4, 2] = False
    got = run(accepted, sites, tmp_path / "s" / "journal.sqlite")
    assert np.array_equal(got, reference(accepted, rows, mask))
    with Journal.open(tmp_path / "s" / "journal.sqlite", read_only=True) as journal:
        answered = {"a": [1, 2, 3, 4, 5, 6], "b": [1, 4, 5, 6], "c": [1, 2, 3, 4, 6]}
        assert journal.answered() == answered
        told = [event.text for event in journal.events()]
    assert "b: missed the deadline of round 2" in told
    assert "b: reconnected" in told
