"""Secure aggregation with real guards and ledgers: a run, its faults, and an active server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from guards import rows as made_rows
from in_process import InProcess
from looping import case
from masked import MOST_ROWS, NAMES, ROUNDS, ROWS, D, MaskedSite, masked_study

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.engine.loop import PlannedParticipation, train
from dpadmm.engine.noise import ExactNoise, SecureSumNoise
from dpadmm.federation.protocol import Kind, Message, digest_of, packed, unpacked
from dpadmm.federation.server.coordinator import run_rounds
from dpadmm.federation.server.journal import Journal
from dpadmm.federation.server.sums import coordinator_of
from dpadmm.matrices.arrays import Integers
from dpadmm.matrices.clipping import clip_rows
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.sites.table import SiteRows
from dpadmm.studies.study import Study
from dpadmm.training.train import encode
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.masking import bitmap_of
from dpadmm.trusted.private_rows import CheckedRows
from dpadmm.trusted.unit import ONE_ROW

QUICK = masked_study(deadline=0.3)


def seeded(agent: int, round: int) -> Callable[[int, int], Integers]:
    def draw(scale: int, count: int) -> Integers:
        return np.rint(scale * np.random.default_rng([agent, round]).normal(size=count)).astype(np.int64)

    return draw


class Sites:
    """All sites of a study, with a connection that loses some messages."""

    def __init__(self, folder: Path, study: Study = QUICK, held: Mapping[str, CheckedRows] | None = None) -> None:
        self.study = study
        self.sites = {name: MaskedSite(folder, name, study, (held or {}).get(name)) for name in NAMES}
        for site in self.sites.values():
            site.start()
        self.lost: set[tuple[str, int, Kind]] = set()
        """Answers that do not arrive, by the kind of the message that asks for them."""
        self.crash: set[tuple[str, int]] = set()
        """Sites that start again when they are asked to mask."""
        self.turn = [0, 0]
        self.seen: list[tuple[str, bytes, bytes | None]] = []

    def read(self, data: bytes, *, from_site: bool = False) -> Message:
        shape = self.study.upload_shape if from_site else lambda _: self.study.broadcast_shape
        return unpacked(data, study=self.study.hash, shape=shape, from_site=from_site, n_sites=len(NAMES))

    def ask(self, name: str, data: bytes) -> bytes | None:
        message = self.read(data)
        if message.kind is Kind.MASK and (name, message.round) in self.crash:
            self.crash.discard((name, message.round))
            self.sites[name].start()
        self.turn[:] = [NAMES.index(name), message.round]
        reply = self.sites[name](data)
        self.seen.append((name, data, reply))
        return None if (name, message.round, message.kind) in self.lost else reply

    def code(self, name: str, data: bytes) -> str:
        reply = self.sites[name](data)
        assert reply is not None
        return self.read(reply, from_site=True).code

    def run(self, file: Path) -> list[np.ndarray]:
        if not file.exists():
            Journal.begin(file, self.study, NAMES)
        transport = InProcess({name: lambda data, name=name: self.ask(name, data) for name in NAMES})  # type: ignore[misc]
        with Journal.open(file) as journal:
            asyncio.run(run_rounds(coordinator_of(journal), transport))
            return list(journal.consensus())

    def ledger_rounds(self, name: str) -> list[int]:
        self.sites[name].close()
        return list(read_ledger(self.sites[name].folder).accounts[self.study.hash].rounds)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    all_rows = Sites(tmp_path)
    yield all_rows
    for site in all_rows.sites.values():
        site.close()


OFFSETS = np.cumsum([0, *ROWS.values()])


def all_rows() -> Rows:
    """Return the rows of all sites."""
    parts = [made_rows(ord(name), ROWS[name], D) for name in NAMES]
    features, labels = (np.concatenate(item) for item in zip(*parts, strict=True))
    return make_rows(clip_rows(features), labels, offsets=OFFSETS)


def reference(study: Study, rows: Rows, mask: np.ndarray, aborted_rounds: set[int]) -> np.ndarray:
    """Run the same study in one process, with the same participants and aborted rounds."""
    history: list[np.ndarray] = []
    train(
        study.method(*ROWS.values()), study.problem, rows, n_rounds=ROUNDS,
        noise=SecureSumNoise(ExactNoise(seeded), 2, rows.n_rows, MOST_ROWS),
        participation=PlannedParticipation(mask), aborts=lambda round: round in aborted_rounds,
        observers=[lambda view: history.append(np.array(view.broadcast))],
    )  # fmt: skip
    return np.array(history)


def check_same_bits(sites: Sites, rows: Rows, file: Path) -> bytes:
    """Compare a run with an absent site and an aborted round with the run in one process; return the messages."""
    sites.lost = {("b", 2, Kind.REQUEST), ("c", 3, Kind.MASK)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_noise, "discrete_gaussian", lambda scale, count: seeded(*sites.turn)(scale, count))
        got = sites.run(file)
    mask = np.ones((ROUNDS, 4), bool)
    mask[1, 1] = mask[3, 2] = False  # not ready; sits out after the aborted round
    assert np.array_equal(got, reference(sites.study, rows, mask, {3}))
    return np.array(got).tobytes()


def test_run_with_dropouts_and_aborted_rounds_equals_one_process(sites: Sites, tmp_path: Path) -> None:
    check_same_bits(sites, all_rows(), tmp_path / "s" / "journal.sqlite")
    with Journal.open(tmp_path / "s" / "journal.sqlite", read_only=True) as journal:
        assert [(item.round, item.sites) for item in journal.aborted_rounds()] == [(3, ("c",))]
    assert [sites.ledger_rounds(name) for name in NAMES] == [
        [1, 2, 3, 4, 5], [1, 3, 4, 5], [1, 2, 3, 5], [1, 2, 3, 4, 5],
    ]  # fmt: skip


def test_weighted_run_equals_one_process(tmp_path: Path) -> None:
    """Each site reads its own table. The run in one process reads one table."""
    plain = Label("ill", classes=("no", "yes"))
    heavy = replace(plain, weight="w", weight_bound=4.0, class_weight={"yes": 12.0, "no": 1.0})
    rng = np.random.default_rng(3)
    cells = [
        f"{x:.3f},{y:.3f},{rng.choice(['no', 'yes'])},{rng.choice([0, 0.5, 4, 9])}" for x, y in rng.random((212, 2))
    ]
    for name, part in [("all", slice(None)), *zip(NAMES, map(slice, OFFSETS[:-1], OFFSETS[1:]), strict=True)]:
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y,ill,w", *cells[part]]) + "\n")
    said = set()
    for label in (plain, replace(heavy, class_weight=None), replace(heavy, weight=None, weight_bound=None), heavy):
        schema = Schema((Number("x", (0, 1)), Number("y", (0, 1))))
        training = QUICK.training.with_changes(intercept=True)
        study = replace(QUICK, schema=schema, label=label, features=(), classes=None, training=training)
        folder = tmp_path / study.hash
        tables = {name: SiteRows(folder, tmp_path / f"{name}.csv", "ill", ONE_ROW) for name in NAMES}
        with case(label):
            sites = Sites(folder, study, {name: CheckedRows(each.encoded(study)) for name, each in tables.items()})
            known = encode(study, tmp_path / "all.csv")
            rows = make_rows(known.features, known.labels, offsets=OFFSETS, row_weights=known.row_weights)
            said.add(check_same_bits(sites, rows, folder / "s" / "journal.sqlite"))
            for site in sites.sites.values():
                site.close()
    assert len(said) == 4


def test_site_restarted_after_ready_answers_the_repeated_request(tmp_path: Path) -> None:
    sites = Sites(tmp_path, masked_study(deadline=30.0))
    sites.crash = {("a", 2), ("d", 4)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpadmm.federation.server.coordinator.FIRST_REPEAT", 0.05)
        sites.run(tmp_path / "s" / "journal.sqlite")
    with Journal.open(tmp_path / "s" / "journal.sqlite", read_only=True) as journal:
        assert journal.aborted_rounds() == []
        assert "a: refused: round-not-ready" in [event.text for event in journal.events()]
    assert all(sites.ledger_rounds(name) == [1, 2, 3, 4, 5] for name in NAMES)


def test_restarted_server_continues_with_the_same_members(sites: Sites, tmp_path: Path) -> None:
    file = tmp_path / "s" / "journal.sqlite"
    Journal.begin(file, QUICK, NAMES)
    closed = 0
    for _ in range(40):  # one message of the aggregator, then it is killed
        with Journal.open(file) as journal:
            run = coordinator_of(journal)
            if run.done:
                break
            while not run.over(0.0):
                for message in run.messages(again=True):
                    for name in NAMES:
                        reply = sites.ask(name, message)
                        if reply is not None:
                            run.take(name, reply, 0.0)
            run.proceed(0.0)
            if not run.round:
                continue
            if run.round == 1 and not journal.openings():  # called: the next process calls again
                for message in run.messages(again=True):
                    for name in NAMES:
                        run.take(name, sites.ask(name, message) or b"", 0.0)
                run.proceed(0.0)
            closed = journal.rounds_done
    assert closed == ROUNDS
    with Journal.open(file, read_only=True) as journal:
        assert journal.aborted_rounds() == []
        assert len(journal.openings()) == ROUNDS
    masked = {(name, data): reply for name, data, reply in sites.seen if sites.read(data).kind is Kind.MASK}
    for name, data, reply in sites.seen:
        if sites.read(data).kind is Kind.MASK:
            assert masked[name, data] == reply, "to the same, the same"
    assert all(len(sites.ledger_rounds(name)) == ROUNDS for name in NAMES)


def request(study: Study, round: int = 1, value: float = 0.0) -> bytes:
    start = study.method(1).start(study.shape)
    return packed(Message(Kind.REQUEST, study.hash, round, start + value))


def mask(study: Study, asked: bytes, members: str, round: int = 1) -> bytes:
    body = bitmap_of([NAMES.index(member) for member in members], len(NAMES))
    return packed(Message(Kind.MASK, study.hash, round, digest=digest_of(asked), body=body))


def test_answers_to_different_requests_do_not_cancel(sites: Sites) -> None:
    """The server names members abcd to some sites and abc to others, or sends different points.

    No subset sums to a plain value.
    """
    for name in NAMES:
        sites.ask(name, request(QUICK))
    said = {}
    for name, members in {"a": "abcd", "b": "abcd", "c": "abc", "d": "abcd"}.items():
        reply = sites.ask(name, mask(QUICK, request(QUICK), members))
        assert reply is not None
        said[name] = sites.read(reply, from_site=True).masked
    for chosen in ("abcd", "abc", "abd", "ab", "cd", "a"):
        total = sum((said[name] for name in chosen), np.zeros(1, np.int64))  # type: ignore[misc]
        assert np.abs(total.astype(float)).max() > 2.0**58, chosen


def test_site_answers_one_set_of_members_per_round(sites: Sites, tmp_path: Path) -> None:
    asked = request(QUICK)
    assert sites.code("a", mask(QUICK, asked, "abcd")) == "round-not-ready", "before it was asked for anything"
    sites.ask("a", asked)
    first = sites.ask("a", mask(QUICK, asked, "abcd"))
    assert sites.ask("a", mask(QUICK, asked, "abcd")) == first
    assert sites.code("a", mask(QUICK, asked, "abc")) == "round-forked"
    other = request(QUICK, value=1e-9)
    sites.ask("a", other)
    assert sites.code("a", mask(QUICK, other, "abcd")) == "round-forked"
    sites.sites["a"].start()
    sites.ask("a", asked)
    assert sites.ask("a", mask(QUICK, asked, "abcd")) == first, "also after a restart"
    assert sites.code("b", mask(QUICK, asked, "abcd")) == "round-not-ready"
    sites.ask("b", asked)
    assert sites.ask("b", mask(QUICK, asked, "acd")) is None, "a round of others"
    assert sites.code("b", mask(QUICK, asked, "ab")) == "members-few"
    padded = packed(Message(Kind.MASK, QUICK.hash, 1, digest=digest_of(asked), body=b"\xf8"))
    assert sites.code("b", padded) == "members-malformed"
    assert sites.ledger_rounds("b") == []


def test_site_answers_the_first_point_of_a_round_only(sites: Sites) -> None:
    asked, other = request(QUICK), request(QUICK, value=1e-9)
    assert [sites.code("a", data) for data in (asked, other, asked)] == ["", "round-forked", ""]
    assert sites.code("a", mask(QUICK, other, "abcd")) == "round-not-ready"
    assert sites.code("a", mask(QUICK, asked, "abcd")) == ""
    assert sites.ledger_rounds("a") == [1]


def test_mask_request_of_another_round_or_study_is_refused(sites: Sites, tmp_path: Path) -> None:
    asked = request(QUICK)
    sites.ask("a", asked)
    assert sites.code("a", mask(QUICK, asked, "abcd", round=2)) != ""
    other = masked_study(deadline=7.0)
    assert sites.code("a", mask(other, request(other), "abcd")) == "request-malformed"
    assert sites.ledger_rounds("a") == []
