"""From an owner's file to the network: for tables that differ in one person, only noisy sums differ.

The tables are files with persons who have many rows, several spellings of an id, or no id. Cells may have any content.
Reading, encoding, guard, wire format and ledger are the real ones.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases import prove
from guards import memory_folder
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from looping import case
from neighbours import LONG, Outbound, allowed_steps, dense, steps_between, watched
from person_tables import ROUNDS, SPELLINGS, Neighbours, PersonTable, neighbours, person_study
from statistic_cases import all_statistics, grid_of, parameters_for

from dpadmm.accounting.release_plan import ReleasePlan, gaussian
from dpadmm.federation.health import STATUS, write_status
from dpadmm.federation.identity.authority import Authority
from dpadmm.federation.identity.joining import join, make_request
from dpadmm.federation.protocol import HEAD, Kind, Message, packed, unpacked
from dpadmm.federation.site.decisions import decide
from dpadmm.federation.site.process import SiteProcess
from dpadmm.sites.accounts import report_of_account
from dpadmm.sites.site import FORMAT, Site, read_site
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.guard import EnrolledStudy, Guard
from dpadmm.trusted.ledger import LedgerState, read_ledger

brief = settings(prove, phases=set(Phase) - {Phase.explain})
often = settings(brief, max_examples=20_000 if LONG else 160)
seldom = settings(brief, max_examples=2_000 if LONG else 16)

LIMITS = {
    "epsilon": 8.0,
    "delta": 1e-5,
    "methods": ["pgd", "newton", "dp_admm", "dp_sgd", "statistics", "evaluation"],
    "losses": ["logistic", "softmax", "squared", "huber", "poisson"],
    "max_rounds": 50,
    "min_rows": 2,
}


def site_of(folder: Path, table: PersonTable, person: dict[str, Any]) -> Site:
    """Return a site in a folder, read from its files."""
    folder.mkdir(mode=0o700)
    sections = {
        "data": {"table": table.write(folder), "label": "outcome"},
        "person": person,
        "limits": LIMITS,
    }
    lines = [f'format = "{FORMAT}"', 'ledger = "ledger"']
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    (folder / "site.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_site(folder / "site.toml")


def two_sites(folder: Path, pair: Neighbours) -> list[Site]:
    return [site_of(folder / name, table, pair.person) for name, table in (("a", pair.one), ("b", pair.other))]


# What the guard sums


def check_sums(pair: Neighbours) -> None:
    """Check the sums at all points, for any content of the cells: at most k rows leave and k rows enter."""
    study = pair.study
    with memory_folder() as folder:
        one, other = (site.open_rows(study) for site in two_sites(folder, pair))
    assert one.n_rows == other.n_rows
    assert one.n_features == other.n_features == study.shape[0]
    for statistic in all_statistics(study.problem.loss, study.shape[0]):
        grid = grid_of(statistic, one.n_rows)
        for asked in parameters_for(statistic):
            sums = [rows.total(statistic, asked, grid) for rows in (one, other)]
            assert steps_between(*sums) <= allowed_steps(grid, pair.k), statistic.name
    (a, b), (c, d) = dense(one._rows), dense(other._rows)
    there, came = a.any(axis=1), c.any(axis=1)
    weights = [np.ones(len(b)) if rows._rows.row_weights is None else rows._rows.row_weights for rows in (one, other)]
    moved = (a != c).any(axis=1) | (((b != d) | (weights[0] != weights[1])) & there & came)
    assert there[moved].sum() + came[moved].sum() <= 2 * pair.k
    assert one.n_rows == len(pair.one.rows)


@often
@given(neighbours())
def test_replacing_a_person_changes_a_sum_by_at_most_the_charged_amount(pair: Neighbours) -> None:
    check_sums(pair)


def test_person_with_an_id_that_collides_with_another_does_not_exceed_the_charge() -> None:
    """For the person who leaves and the person who enters: the other person's rows must not change in addition."""
    for way, form in product(SPELLINGS, ["csv", "parquet coded"]):
        with case(way, form):
            cells = ("100", "60", "north", "high", "yes", "")
            names = [name for name in ("7", "0", "éva", "ÉVA") if SPELLINGS[way](name) != name]
            assert names
            for name in names:
                rows = [("p0", *cells, "10"), (name, *cells, "10"), *4 * [("p1", *cells, "0")]]
                alike = [(SPELLINGS[way](name), *cells, "0"), *rows[1:]]
                left = [("p0", *cells, "0"), *rows[1:]]
                for one, other in ((rows, alike), (alike, left)):
                    tables = [PersonTable(tuple(item), form, "text") for item in (one, other)]
                    check_sums(Neighbours(*tables, 1, True, person_study("huber"), (0,)))


def test_labels_of_silent_rows_have_no_effect() -> None:
    """All but one of a person's rows are silent.

    They are replaced by rows of another person, with very different labels.
    """
    cells = ("100", "60", "north", "high", "yes", "")
    for loss, (here, there) in {"huber": ("10", "5"), "squared": ("0", "5"), "logistic": ("no", "yes")}.items():
        for schema, intercept in product(("mixed", "sparse"), (True, False)):
            with case(loss, schema, intercept):
                others = 3 * [("p1", *cells, here)]
                tables = [
                    PersonTable((*(40 * [(name, *cells, label)]), *others), "csv", "text")
                    for name, label in (("p0", here), ("q", there))
                ]
                study = person_study(loss, schema, intercept=intercept)
                check_sums(Neighbours(*tables, 1, True, study, tuple(range(40))))


# What leaves

CLOCKS = tuple(f"dpadmm.{name}" for name in ("trusted.ledger", "federation.site.process", "federation.health"))
HASHES = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(eq=False)
class Observed(Outbound):
    """Everything that a server receives from a site, public files, and answers by point."""

    wire: list[bytes | None] = field(default_factory=list)
    facts: list[Any] = field(default_factory=list)
    answers: list[tuple[Lattice, Any]] = field(default_factory=list)

    def receive(self, study: Study, message: bytes | None) -> None:
        """Store a message as it is; of an upload, its head and length, because its numbers are noisy."""
        if message is not None:
            kind = unpacked(message, study=study.hash, shape=study.upload_shape, from_site=True).kind
            message = message[: HEAD.size] + b"." * len(message[HEAD.size :]) if kind is Kind.UPLOAD else message
        self.wire.append(message)


@cache
def _joined() -> Path:
    """Return the ``network/`` folder of a site that has joined.

    It is shared by all tests because it does not depend on rows.
    """
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    authority = Authority.create(folder / "aggregator", hosts=["localhost"], port=4222)
    (folder / "site").mkdir(mode=0o700)
    join(folder / "site", authority.approve(make_request(folder / "site", "site")))
    return folder / "site" / "network"


def run_study(folder: Path, pair: Neighbours, table: PersonTable, sizes: list[float]) -> Observed:
    """Run a study at a site from start to end, with a restart and all kinds of other requests."""
    observed, study, network = Observed(), pair.study, _joined()
    direct = [replace(study, name="asked directly"), pgd_study(pair)]
    with watched(observed, seed=1, clocks=CLOCKS):
        site = site_of(folder / "site", table, pair.person)
        shutil.copytree(network, folder / "site" / "network")
        site.begin()
        _review(observed, site, study)
        decide(site.path.parent, study, "accepted")
        requests = [_request(study, i + 1, size) for i, size in enumerate(sizes)]
        with _serving(observed, site) as say:
            for data in (
                _call(study),
                requests[0],
                requests[0],
                *_refused(study),
                requests[1],
                requests[0],
            ):
                observed.receive(study, say(study.hash, data))
            observed.facts.append(say("ab" * 32, _call(study)))
        with site.guard() as guard:
            for item in direct:
                _direct(observed, guard, item)
            observed.answers += _comparable(guard, study)
        with _serving(observed, site) as say:
            for data in (_call(study), requests[1], *requests[2:], *_refused(study), _end(study)):
                observed.receive(study, say(study.hash, data))
        with site.guard() as guard:
            observed.answers += _comparable(guard, study)
        decide(site.path.parent, study, "left")
        with _serving(observed, site) as say:
            for data in (_call(study), requests[0], b"garbage"):
                observed.receive(study, say(study.hash, data))
        _check_ledger(observed, site, pair)
    observed.messages = [HASHES.sub("HASH", line.replace(str(folder), "FOLDER")) for line in observed.messages]
    return observed


@contextmanager
def _serving(observed: Observed, site: Site) -> Iterator[Callable[[str, bytes], bytes | None]]:
    """Return the site's process without its connection: responder, log and status."""
    process = SiteProcess(site, logging.getLogger("a site"))
    responder = process._responder
    responder.open()
    try:
        process._apply_decisions()
        yield responder.answer
        times = ("connection_since", "asked_at", "deadline_at")
        write_status(site.path.parent, process._status(SimpleNamespace(connected=True, seen={}, url="tls://hub")))
        status = json.loads((site.path.parent / STATUS).read_text())
        assert times[0] in status
        plain = [{name: value for name, value in study.items() if name not in times} for study in status["studies"]]
        observed.facts.append({**status, "at": None, times[0]: None, "studies": plain})
    finally:
        responder.close()


def _call(study: Study) -> bytes:
    return packed(Message(Kind.CALL, study.hash))


def _end(study: Study) -> bytes:
    return packed(Message(Kind.END, study.hash, ROUNDS))


def _request(study: Study, round: int, size: float) -> bytes:
    shape = study.broadcast_shape
    signs = np.where(np.arange(np.prod(shape)).reshape(shape) % 2, -1.0, 1.0)
    return packed(Message(Kind.REQUEST, study.hash, round, size * signs))


def _refused(study: Study) -> list[bytes]:
    """Send forked, skipped and invalid rounds, other shapes, non-numeric arrays and malformed messages."""
    right = _request(study, 2, 1.0)
    odd = [packed(Message(Kind.REQUEST, study.hash, 2, item)) for item in (np.ones((1, 1)), np.ones((40, 9)))]
    return [
        _request(study, 1, 0.125),
        _request(study, ROUNDS, 1.0),
        _request(study, ROUNDS + 1, 1.0),
        _request(study, 2, np.nan),
        _request(study, 2, np.inf),
        *odd,
        right[:-1],
        right + b"x",
        b"",
        b"dpAM",
        packed(Message(Kind.UPLOAD, study.hash, 2, np.ones(study.shape), n_rows=5, rows_per_person=1)),
        packed(Message(Kind.CALL, "cd" * 32)),
    ]


def _review(observed: Observed, site: Site, study: Study) -> None:
    """Record whether studies can be enrolled, by the dry run of ``site review``. No cell may change the result."""
    named = study.kind == "evaluation" or study.training.loss.name == "poisson"  # these studies name their columns
    bare = person_study("logistic", "plain") if named else study
    for candidate in (
        study,
        person_study("logistic", "plain"),
        replace(study, training=study.training.with_changes(n_rounds=51)),
        replace(study, training=study.training.with_changes(noise_multiplier=0.2)),
        Study(name="no such column", features=("height",), training=bare.training, **_kept(bare)),
        Study(name="ids", features=("id",), training=bare.training, **_kept(bare)),
    ):
        observed.ask(lambda candidate=candidate: _public(site.dry_run(candidate, LedgerState())))


def _kept(study: Study) -> dict[str, Any]:
    return {"classes": study.classes, "provenance": study.provenance}


def _public(enrolled: EnrolledStudy) -> Any:
    return enrolled.terms, enrolled.query_at(1).grid, enrolled.rows.n_features, enrolled.rows.n_rows


def _direct(observed: Observed, guard: Guard, study: Study) -> None:
    """Query the guard at the same points in both worlds."""
    enrolled = guard.enrol(study)
    observed.facts.append(_public(enrolled))
    for round in range(1, ROUNDS + 1):
        asked = enrolled.query_at(round)
        points = parameters_for(asked.statistic)
        observed.answers.append((asked.grid, guard.answer(study.hash, round, points[(round - 1) % len(points)])))
    shape = enrolled.query_at(2).statistic.parameter_shape
    for point in (np.ones(shape), np.full(shape, np.nan), np.full(shape, -1e300), np.ones((1, 1))):
        observed.ask(guard.answer, study.hash, 2, point)


def pgd_study(pair: Neighbours) -> Study:
    """Return a study of the same columns with the method that uses other statistics than the gradient."""
    if pair.study.kind != "training" or (pair.study.label and pair.study.label.times):
        return replace(pair.study, name="shaped")
    return replace(pair.study, name="shaped", training=pair.study.training.with_changes(method="auto"))


def _comparable(guard: Guard, study: Study) -> list[tuple[Lattice, Any]]:
    """Return the answers at points that are common to both worlds. Later points of DP-ADMM depend on the agent."""
    enrolled = guard.enrol(study)
    answers = [(enrolled.query_at(round).grid, answer) for round, answer, _ in guard.transcript(study.hash)]
    return answers[:1] if study.training.method.name == "dp_admm" else answers


def _check_ledger(observed: Observed, site: Site, pair: Neighbours) -> None:
    """Record the ledger's output, and check that all k rows of a person were charged."""
    state, k = read_ledger(site.ledger), pair.k
    observed.facts.append(
        (state.cap, state.spent, state.promised, state.seq, [record.kind for record in state.records])
    )
    account = state.accounts[pair.study.hash]
    observed.facts.append(report_of_account(pair.study.hash, account, site="site").to_bytes())
    for account in state.accounts.values():
        plan = ReleasePlan.from_list(account.about["plan"])
        prices = {
            round: Fraction((k / gaussian(plan.at(round)).noise_multiplier) ** 2) for round in range(1, ROUNDS + 1)
        }
        assert account.reservation.mu_squared == float(sum(prices.values()))
        assert account.spent == sum(prices[round] for round in account.rounds)
        observed.facts.append({name: value for name, value in account.about.items() if name != "rows"})
        # Request digests depend on the agent's point, which follows from noisy sums. Contents are hashes
        observed.facts.append([item._replace(content="", digest="") for item in account.rounds.values()])


@seldom
@given(neighbours(), st.lists(st.sampled_from((0.0, 1.0, -30.0, 1e6, 1e150)), min_size=3, max_size=3))
def test_only_noisy_sums_depend_on_a_person(pair: Neighbours, sizes: list[float]) -> None:
    observations = []
    for table in (pair.one, pair.other):
        with memory_folder() as folder:
            observations.append(run_study(folder, pair, table, sizes))
    one, other = observations
    assert one.wire == other.wire
    assert one.facts == other.facts
    assert one.messages == other.messages
    pairs = list(zip(one.answers, other.answers, strict=True))
    assert len(pairs) >= 2 * ROUNDS + 2
    for (grid, a), (twin, b) in pairs:
        assert grid == twin
        assert steps_between(a, b) <= allowed_steps(grid, pair.k)


def test_run_study_includes_uploads_and_all_refusals() -> None:
    """The comparison above would be empty without them."""
    row = ("7", "100", "60", "north", "high", "yes", "", "yes")
    table = PersonTable(6 * (row,), "csv", "text")
    messages = []
    for allow_missed_rounds in (False, True):
        study = person_study("logistic", method="dp_sgd", allow_missed_rounds=allow_missed_rounds)
        with memory_folder() as folder:
            observed = run_study(folder, Neighbours(table, table, 2, True, study, ()), table, [0.0, 1.0, 1e6])
        about = {"study": study.hash, "shape": study.upload_shape, "from_site": True}
        messages += [unpacked(message, **about) for message in observed.wire if message]
    assert {message.kind for message in messages} == {Kind.PRESENT, Kind.UPLOAD, Kind.REFUSED}
    codes = "request-malformed round-forked round-missed round-old round-over study-closed"
    assert sorted({message.code for message in messages} - {""}) == codes.split()
    assert {message.n_rows for message in messages} == {0, 6}
