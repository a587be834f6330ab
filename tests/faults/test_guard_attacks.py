"""Attacks on a guard: forks, replays, changed studies and rows, old copies, damage, two processes.

``make torture`` runs the long version: 10,000 flips and truncations.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import guard_runs
import numpy as np
import pytest
from guards import (
    POLICY,
    ROUNDS,
    STUDY,
    D,
    Z,
    consensus,
    guarded,
    memory_folder,
    play,
    private,
    process,
    refusal,
    rows,
    study,
    tiny,
)
from masked_sites import MASKING

from dpadmm.accounting.events import Release
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.errors import DPADMMError, RefusalError
from dpadmm.losses import Huber, Logistic
from dpadmm.queries.gradient import Gradient
from dpadmm.sites.agent import Agent
from dpadmm.studies.checks import provenance_parameters
from dpadmm.studies.reading import study_from
from dpadmm.studies.settings import nest
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import DATABASE, MARK, Ledger, read_ledger
from dpadmm.trusted.policy import Terms
from dpadmm.trusted.unit import PrivacyUnit
from studies import DEPLOYABLE_OWNERS, FIXED

LONG = os.environ.get("DPADMM_TORTURE") == "1"
HASH, PRICE = STUDY.hash, POLICY.release_cost(STUDY.terms.plan.at(1))
POINT = np.zeros((D, 1))


@pytest.fixture
def folder():
    with memory_folder() as place:
        yield place


@pytest.fixture
def guard(folder):
    with guarded(folder) as guard:
        guard.enrol(STUDY)
        yield guard


def ledger_records(guard: Guard) -> tuple[Any, ...]:
    """Return everything that the ledger stores."""
    return tuple(guard._ledger.status().records)


# The same round again


def test_repeated_request_returns_the_same_bytes_at_no_cost(guard):
    first = guard.answer(HASH, 1, POINT, b"memo")
    before = ledger_records(guard)
    for _ in range(5):
        again = guard.answer(HASH, 1, POINT.copy(), b"memo")
        assert again.tobytes() == first.tobytes()
        again[:] = 0  # the returned answer is a copy
    assert ledger_records(guard) == before


@pytest.mark.parametrize(
    ("point", "memo"),
    [(POINT + 1e-300, b""), (-POINT, b""), (POINT, b"x"), (POINT, b"\0"), (np.full((D, 1), 1.7e308), b"")],
)
def test_answered_round_refuses_another_request(guard, point, memo):
    guard.answer(HASH, 1, POINT)
    before = ledger_records(guard)
    assert refusal(guard.answer, HASH, 1, point, memo).code == "round-forked"
    assert ledger_records(guard) == before


def test_memo_and_point_are_separated_in_the_request_digest(guard):
    """Bytes moved from the point to the memo, or back, make another request."""
    guard.answer(HASH, 1, POINT, POINT[:1].tobytes())
    assert refusal(guard.answer, HASH, 1, POINT, b"").code == "round-forked"
    assert refusal(guard.answer, HASH, 1, POINT, b"12345678").code == "round-forked"


def test_one_of_many_concurrent_forked_requests_is_answered(guard):
    def ask(i: int) -> bytes | str:
        try:
            return guard.answer(HASH, 1, POINT + i % 4).tobytes()
        except RefusalError as refused:
            return refused.code

    with ThreadPoolExecutor(8) as pool:
        results = set(pool.map(ask, range(16)))
    assert len(results) == 2
    assert "round-forked" in results
    assert guard._ledger.status().spent == Fraction(PRICE)


def test_two_guards_on_one_ledger_answer_a_round_once(folder):
    with Ledger.open(folder, cap=POLICY.cap, create=True) as ledger, ThreadPoolExecutor(2) as pool:
        guards = [Guard(POLICY, ledger, tiny(*rows())) for _ in range(2)]
        for item in guards:
            item.enrol(STUDY)

        def ask(guard: Guard, round: int) -> bytes | str:
            try:
                return guard.answer(HASH, round, POINT + guards.index(guard)).tobytes()
            except RefusalError as refused:
                return refused.code

        for round in range(1, ROUNDS + 1):
            results = list(pool.map(ask, guards, [round, round]))
            assert sum(isinstance(result, bytes) for result in results) == 1
            assert {result for result in results if isinstance(result, str)} <= {"round-forked", "round-old"}
        assert ledger.status().spent == ROUNDS * Fraction(PRICE)


# Rounds out of order


def test_rounds_must_be_consecutive_and_within_the_plan(guard):
    assert refusal(guard.answer, HASH, 2, POINT).code == "round-missed"
    for round in range(1, ROUNDS + 1):
        guard.answer(HASH, round, POINT)
    before = ledger_records(guard)
    for round in (ROUNDS + 1, 2**62, 2**63, 10**400):
        assert refusal(guard.answer, HASH, round, POINT).code == "round-over"
    for round in (0, -1, -(10**400)):
        assert refusal(guard.answer, HASH, round, POINT).code == "request-malformed"
    assert ledger_records(guard) == before
    assert guard._ledger.status().spent == ROUNDS * Fraction(PRICE)


def test_missed_rounds_cannot_be_answered_later(folder):
    absent = replace(STUDY, allow_missed_rounds=True)
    with guarded(folder) as guard:
        agent = Agent(guard, absent)
        uploads = {round: agent.step(round, consensus(round)).tobytes() for round in (2, 5, ROUNDS)}
        for round in (1, 3, ROUNDS - 1):
            assert refusal(agent.step, round, consensus(round)).code == "round-old"
        assert refusal(agent.step, ROUNDS + 1, POINT).code == "round-over"
    with guarded(folder) as guard:
        agent = Agent(guard, absent)
        assert agent.last_round == ROUNDS
        for round, upload in uploads.items():
            assert agent.step(round, consensus(round)).tobytes() == upload
        assert guard._ledger.status().spent == 3 * Fraction(PRICE)


def test_study_that_was_left_cannot_be_continued(folder):
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        uploads = play(agent, 2)
        guard.leave(HASH)
        guard.leave(HASH)
        assert guard.ledger_state.accounts[HASH].ending == "close"
        assert refusal(agent.step, 3, consensus(3)).code == "study-closed"
        assert agent.step(2, consensus(2)).tobytes() == uploads[2]
        assert refusal(agent.step, 2, POINT).code == "round-forked"
        assert refusal(guard.enrol, STUDY).code == "study-changed"
    with guarded(folder) as guard:
        assert refusal(guard.enrol, STUDY).code == "study-changed"
        assert refusal(guard.answer, HASH, 3, POINT).code == "study-unknown"
        assert guard._ledger.status().promised == 2 * Fraction(PRICE)
    with guarded(folder / "ended") as guard:
        play(Agent(guard, STUDY), 1)
        guard.leave(HASH, "end")
        assert guard.ledger_state.accounts[HASH].ending == "end"


# Another study under an old name


class ForgedStudy:
    """A study whose terms do not match its hash."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms


OTHER_TERMS: dict[str, Any] = {
    "hash": "ab" * 32,
    "name": "another",
    "method": "dp_sgd",
    "loss": "huber",
    "plan": ReleasePlan.constant(Release(Z * (1 + 2**-52)), ROUNDS),
    "plan, longer": ReleasePlan.constant(Release(Z), ROUNDS + 1),
    "plan, shorter": ReleasePlan.constant(Release(Z), ROUNDS - 1),
    "plan, with a pause": ReleasePlan(((Release(Z), ROUNDS - 1), (None, 1))),
    "statistics": {"gradient": Gradient(Huber(0.5), D)},
    "statistics, wider": {"gradient": Gradient(Logistic(), D + 1)},
    "delta": 2e-5,
    "may_miss_rounds": True,
    "masking": MASKING,
}


def field(name: str) -> str:
    return name.partition(",")[0]


def test_all_fields_of_the_terms_are_covered():
    assert {field(name) for name in OTHER_TERMS} == set(Terms._fields)
    assert all(value != getattr(STUDY.terms, field(name)) for name, value in OTHER_TERMS.items())


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", OTHER_TERMS)
def test_changed_terms_with_the_same_hash_are_refused(folder, name, restart):
    forged = ForgedStudy(STUDY.terms._replace(**{field(name): OTHER_TERMS[name]}))
    with guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        uploads = play(agent, 1)
        before = ledger_records(guard)
        if not restart:
            _check_forged(guard, forged, name, before)
            assert agent.step(1, consensus(1)).tobytes() == uploads[1]
    if restart:
        with guarded(folder) as guard:
            _check_forged(guard, forged, name, before)
            if name != "hash":
                assert refusal(guard.answer, HASH, 2, POINT).code == "study-unknown"


def _check_forged(guard: Guard, forged: ForgedStudy, name: str, before: tuple[Any, ...]) -> None:
    if name == "hash":  # a separate study with its own reservation
        guard.enrol(forged)
        assert ledger_records(guard)[: len(before)] == before
        assert [record.kind for record in ledger_records(guard)[len(before) :]] == ["reserve"]
    else:
        expected = {"statistics, wider": "study-unfit", "masking": "policy-aggregation"}.get(name, "study-changed")
        assert refusal(guard.enrol, forged).code == expected
        assert ledger_records(guard) == before


OTHER_TRAINING: dict[str, Any] = {
    "method": "dp_sgd", "loss": "huber", "loss.width": 0.25, "loss.delta": 2.0, "loss.gradient_bound": 3.0,
    "regularizer": "l1", "regularizer.l1_ratio": 0.25, "alpha": 0.5, "intercept": True, "epsilon": 0.9,
    "round_epsilon": 0.01, "noise_multiplier": Z + 1e-9, "delta": 1e-6, "calibration": "exact",
    "n_rounds": ROUNDS - 1, "method.rho": 0.25, "method.weight_radius": 2.5, "method.schedule": "constant",
    "method.step_size": 0.125,
    "method.learning_rate": 0.1, "average": "tail", "method.inference": True,
}  # fmt: skip
BUDGETS = ("epsilon", "round_epsilon", "noise_multiplier")


def changed_studies() -> dict[str, Callable[[], Any]]:
    """Yield the small study with one change, for every setting of a study."""

    def trained(name: str) -> Any:
        own = DEPLOYABLE_OWNERS.get(name, {})
        spent = dict.fromkeys(BUDGETS) if name in BUDGETS else {}
        training = STUDY.training.with_changes(**nest({**own, **spent, name: OTHER_TRAINING[name]}))
        constants = [parameter.name for parameter in provenance_parameters()]
        more: dict[str, Any] = {"provenance": {name: "assumed"}} if name in constants else {}
        if training.loss.task == "regression":
            more["classes"] = None
        if name == "method.step_size":
            training, more["provenance"] = training.with_changes(method={"schedule": "constant"}), {name: "assumed"}
        return replace(STUDY, training=training, **more)

    changes: dict[str, Callable[[], Any]] = {
        "name": lambda: replace(STUDY, name="a small study "),
        "features, another": lambda: replace(STUDY, features=("x0", "x1", "y")),
        "features, order": lambda: replace(STUDY, features=("x1", "x0", "x2")),
        "features, more": lambda: replace(STUDY, features=("x0", "x1", "x2", "x3")),
        "classes": lambda: replace(STUDY, classes=(0, 1)),
        "classes, order": lambda: replace(STUDY, classes=(1, -1)),
        "provenance": lambda: replace(STUDY, provenance={"method": {"rho": "public"}}),
        "allow_missed_rounds": lambda: replace(STUDY, allow_missed_rounds=True),
    }
    return changes | {name: lambda name=name: trained(name) for name in FIXED}


def test_all_settings_of_a_study_are_covered():
    assert OTHER_TRAINING.keys() == set(FIXED)


@pytest.mark.parametrize("name", changed_studies())
def test_any_changed_setting_changes_the_study_hash(guard, name):
    guard.answer(HASH, 1, POINT)
    before = ledger_records(guard)
    try:
        other = changed_studies()[name]()
    except DPADMMError:
        assert name == "method.schedule", "this change should make a study"
        return
    assert other.hash != HASH
    assert study_from(other.as_json()).hash == other.hash
    code = ""
    try:
        guard.enrol(other)
    except RefusalError as refused:
        code = refused.code
    if code:
        assert code in ("study-unfit", "budget-cap", "policy-loss", "policy-method")
        assert ledger_records(guard) == before
    else:
        assert ledger_records(guard)[: len(before)] == before
        assert guard._ledger.status().accounts[HASH].spent == Fraction(PRICE)
        assert len(guard._ledger.status().accounts) == 2


# Rows and policies changed between restarts


def _bit(features, labels):
    features.view(np.uint64)[3, 1] ^= 1
    return features, labels


CHANGED_ROWS = {
    "one bit": _bit,
    "one label": lambda a, b: (a, b * np.where(np.arange(len(b)) == 2, -1.0, 1.0)),
    "a row more": lambda a, b: rows(n_rows=len(b) + 1),
    "a row less": lambda a, b: (a[:-1], b[:-1]),
    "two rows swapped": lambda a, b: (a[[1, 0, *range(2, len(b))]], b),
    "a row twice": lambda a, b: (a[[0, 0, *range(2, len(b))]], b[[0, 0, *range(2, len(b))]]),
    "the sign of a zero": lambda a, b: (np.where(a == 0.0, -0.0, a), b),
}


@pytest.mark.parametrize("kind", ["tiny", "own", "sparse"])
@pytest.mark.parametrize("change", CHANGED_ROWS)
def test_changed_rows_are_refused_during_a_study(folder, change, kind):
    def opened(features, labels):
        if kind == "tiny":
            return tiny(features, labels)
        from scipy.sparse import csr_array

        matrix = csr_array(features) if kind == "sparse" else features
        return lambda study: private(matrix, labels)

    features, labels = rows()
    features[0, 0] = 0.0
    other = CHANGED_ROWS[change](features.copy(), labels.copy())
    with guarded(folder, opened(features, labels)) as guard:
        uploads = play(Agent(guard, STUDY), 1)
    if not (kind == "sparse" and change == "the sign of a zero"):  # zeros are not stored
        with guarded(folder, opened(*other)) as guard:
            before = ledger_records(guard)
            assert refusal(guard.enrol, STUDY).code == "data-changed"
            assert refusal(guard.answer, HASH, 2, POINT).code == "study-unknown"
            assert ledger_records(guard) == before
    with guarded(folder, opened(features, labels)) as guard:
        assert Agent(guard, STUDY).step(1, consensus(1)).tobytes() == uploads[1]


def test_guard_ignores_changes_of_rows_in_memory(folder):
    features, labels = rows()
    with guarded(folder, lambda study: private(features, labels)) as guard:
        rows_held = guard.enrol(STUDY).rows
        before = rows_held.digest()
        features[:], labels[:] = 0.0, 1.0
        assert rows_held.digest() == before
        assert refusal(guard.enrol, STUDY).code == "data-changed"


def test_guard_ignores_changes_of_rows_in_a_mapped_file(folder):
    """Row norms are computed once, so a row that grew afterwards would not be clipped."""
    features, labels = rows()
    np.save(folder / "rows.npy", features)
    mapped = np.load(folder / "rows.npy", mmap_mode="r")
    with guarded(folder, lambda study: private(mapped, labels)) as guard:
        rows_held = guard.enrol(STUDY).rows
        before = rows_held.digest()
        np.load(folder / "rows.npy", mmap_mode="r+")[:] = 1e6
        assert rows_held.digest() == before


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"methods": frozenset({"dp_sgd"})}, "policy-method"),
        ({"losses": frozenset({"huber"})}, "policy-loss"),
        ({"max_rounds": ROUNDS - 1}, "policy-rounds"),
        ({"min_rows": 9}, "policy-rows"),
        ({"unit": PrivacyUnit(2)}, "study-changed"),
    ],
)
def test_stricter_policy_stops_a_running_study(folder, change, code):
    with guarded(folder) as guard:
        play(Agent(guard, STUDY), 1)
    with guarded(folder, policy=replace(POLICY, **change)) as guard:
        before = ledger_records(guard)
        assert refusal(guard.enrol, STUDY).code == code
        assert ledger_records(guard) == before
    with guarded(folder) as guard:
        play(Agent(guard, STUDY), 2)


def test_lowered_epsilon_ends_a_study_early(folder):
    with guarded(folder) as guard:
        play(Agent(guard, STUDY), 4)
    smaller = replace(POLICY, epsilon=0.5)
    affordable = int(smaller.cap / PRICE)
    assert 4 < affordable < ROUNDS
    with guarded(folder, policy=smaller) as guard:
        agent = Agent(guard, STUDY)
        play(agent, affordable)
        assert refusal(agent.step, affordable + 1, consensus(affordable + 1)).code == "budget-cap"
        assert refusal(guard.enrol, replace(STUDY, name="another")).code == "budget-cap"
        assert float(guard._ledger.status().spent) <= smaller.cap
    with guarded(folder, policy=replace(smaller, delta=1e-9)) as guard:  # a stricter δ is a smaller cap
        assert refusal(Agent(guard, STUDY).step, affordable + 1, POINT).code == "budget-cap"


def test_three_rows_per_person_cost_nine_times_as_much(folder):
    policy = replace(POLICY, unit=PrivacyUnit(3))
    few = study(n_rounds=3)
    with guarded(folder, policy=policy) as guard:
        refused = refusal(guard.enrol, study(n_rounds=4))
        assert refused.code == "budget-cap"
        play(Agent(guard, few), 3)
        assert guard._ledger.status().spent == 3 * Fraction((3 / Z) ** 2)
        assert float(guard._ledger.status().spent) == pytest.approx(3 * 9 / Z**2)


@pytest.mark.parametrize("error", [DPADMMError, ValueError, KeyError, OSError, MemoryError])
def test_errors_of_rows_are_not_revealed(folder, error):
    def unreadable(study: Any) -> Any:
        raise error("row 17 has 0.7263")

    with guarded(folder, unreadable) as guard:
        refused = refusal(guard.enrol, STUDY)
        assert refused.code == "study-unfit"
        assert "17" not in repr(refused)
        assert not guard._ledger.status().accounts


@pytest.mark.parametrize("error", [DPADMMError, FloatingPointError, MemoryError, KeyError])
def test_failed_gradient_is_refused_without_charge_or_details(guard, monkeypatch, error):
    def fail(*_: object) -> None:
        raise error("row 17 has 0.7263")

    before = ledger_records(guard)
    with monkeypatch.context() as patch:
        patch.setattr("guards.TinyRows.total", fail)
        refused = refusal(guard.answer, HASH, 1, POINT)
    assert refused.code == "release-failed"
    assert "17" not in repr(refused)
    assert refused.__cause__ is None
    assert refused.__context__ is None or refused.__suppress_context__
    assert ledger_records(guard) == before
    guard.answer(HASH, 1, POINT)


@pytest.mark.parametrize(
    "total", [np.zeros((D, 1)), np.full((D, 1), 2**62), np.full((D, 1), -(2**63)), np.zeros(D + 1, np.int64), None]
)
def test_invalid_sum_is_refused_without_charge(guard, monkeypatch, total):
    before = ledger_records(guard)
    monkeypatch.setattr("guards.TinyRows.total", lambda *_: total)
    assert refusal(guard.answer, HASH, 1, POINT).code == "release-failed"
    assert ledger_records(guard) == before


# Processes and copies


def test_second_process_is_refused_until_the_first_has_ended(folder):
    words = [sys.executable, guard_runs.__file__, "hold", str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "two rounds\n"
            for _ in range(3):
                assert refusal(guarded(folder).__enter__).code == "ledger-locked"
        finally:
            holder.kill()
    assert guard_runs.check(folder, {}) == 2


def test_forked_process_cannot_answer_and_draws_different_noise(folder):
    done = process("fork_run", folder)
    assert done == {
        "codes": ["ledger-closed"] * 5 + ["ledger-locked"],
        "same_noise": False,
        "rounds": 2,
    }


def _old_and_live(folder: Path) -> tuple[Path, Path, str]:
    live, old = folder / "live", folder / "old"
    with guarded(live) as guard:
        play(Agent(guard, STUDY), 2)
    shutil.copytree(live, old)
    with guarded(live) as guard:
        play(Agent(guard, STUDY), 4)
        return live, old, guard._ledger.status().fingerprint


def test_old_database_is_refused(folder):
    live, old, _ = _old_and_live(folder)
    shutil.copy(old / DATABASE, live / DATABASE)
    assert refusal(guarded(live).__enter__).code == "ledger-damaged"


def test_old_mark_is_refused(folder):
    live, old, _ = _old_and_live(folder)
    shutil.copy(old / MARK, live / MARK)
    assert refusal(guarded(live).__enter__).code == "ledger-damaged"


@pytest.mark.parametrize("lost", [DATABASE, MARK])
def test_incomplete_ledger_is_refused(folder, lost):
    live, _, _ = _old_and_live(folder)
    (live / lost).unlink()
    assert refusal(guarded(live).__enter__).code == "ledger-damaged"


def test_restored_folder_is_visible_in_the_fingerprint_only(folder):
    """This is the limit that docs/explanation/threat-model.md names."""
    live, old, noted = _old_and_live(folder)
    shutil.rmtree(live)
    shutil.copytree(old, live)
    with guarded(live) as guard:
        assert Agent(guard, STUDY).last_round == 2
        assert guard._ledger.status().fingerprint != noted


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    """Ledgers of an agent that closed normally and of one that was killed, with their answers."""
    crashed, closed = (tmp_path_factory.mktemp("guard") / name for name in ("crashed", "closed"))
    sent = {int(round): bytes.fromhex(upload) for round, upload in process("crash", crashed).items()}
    shutil.copytree(crashed, closed)
    with guarded(closed):
        pass
    assert (crashed / f"{DATABASE}-wal").stat().st_size > 0
    assert sorted(path.name for path in closed.iterdir()) == [DATABASE, MARK]
    return {"crashed": (crashed, sent), "closed": (closed, sent)}


@pytest.mark.parametrize("part", range(4 if LONG else 1))
@pytest.mark.parametrize("name", ["closed", "crashed"])
def test_flipped_bit_or_truncated_file_is_harmless_or_refused(intact, folder, name, part):
    place, sent = intact[name]
    truth, rng, ended = read_ledger(place), random.Random(), Counter()
    for copy, what in _damaged(place, folder, 10_000 // 8 if LONG else 50, rng):
        try:
            with guarded(copy) as guard:
                agent = Agent(guard, guard_runs.STUDY)
                for round, upload in sent.items():
                    assert agent.step(round, consensus(round)).tobytes() == upload, what
                assert refusal(agent.step, 5, -consensus(5)).code == "round-forked", what
                state = guard._ledger.status()
                assert (state.fingerprint, state.spent) == (truth.fingerprint, truth.spent), what
                agent.step(6, consensus(6))
        except RefusalError as refused:
            ended[refused.code] += 1
        else:
            assert guard_runs.check(copy, sent) == 6, what
            ended["as before"] += 1
    assert ended.keys() <= {"as before", "ledger-damaged", "ledger-failed"}
    assert ended["ledger-damaged"] > 10
    assert ended["as before"] > 1


def _damaged(place: Path, folder: Path, n_copies: int, rng: random.Random):
    files = sorted(path for path in place.iterdir() if path.stat().st_size)
    for i in range(n_copies):
        copy, name = folder / str(i), files[i % len(files)].name
        shutil.copytree(place, copy)
        data = bytearray((copy / name).read_bytes())
        where, bit = rng.randrange(len(data)), rng.randrange(8)
        if i % 5 == 4:
            what, data = f"{name} cut to {where}", data[:where]
        else:
            what = f"{name} bit {bit} of byte {where}"
            data[where] ^= 1 << bit
        (copy / name).write_bytes(data)
        yield copy, what
        shutil.rmtree(copy)
