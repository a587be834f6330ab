"""Guards with secure aggregation: each round answers one request for one set of members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guards import POLICY, ROUNDS, STUDY, D, M, TinyRows, Z, consensus, guarded, memory_folder, refusal, rows, tiny
from ledgers import Fault, failing, sqlite_vfs
from masked_sites import (
    ALL,
    HONEST,
    KEYS,
    MASKED,
    MASKING,
    OWNER,
    POINT,
    QUORUM,
    ROSTER,
    N,
    masked_study,
    site,
    sites,
    unmasked,
)

from dpadmm.accounting.events import Release
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.matrices.arrays import Integers
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import Lattice, discrete_gaussian
from dpadmm.trusted.guard import Guard
from dpadmm.trusted.ledger import read_ledger
from dpadmm.trusted.masking import bitmap_of, public_key
from dpadmm.trusted.policy import MaskingLimits
from dpadmm.trusted.unit import PrivacyUnit

HASH, PRICE = MASKED.hash, Fraction(OWNER.release_cost(MASKED.terms.plan.at(1)))
FEW = bitmap_of([0, 2, 3, 4], N)


@pytest.fixture
def folder():
    with memory_folder() as place:
        yield place


@pytest.fixture
def guard(folder):
    with site(folder) as guard:
        yield guard


def ledger_records(guard: Guard) -> tuple[Any, ...]:
    return tuple(guard._ledger.status().records)


def test_masked_answers_add_up_to_the_sum_of_the_unmasked_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unmasked answer is the rounded sum over rows plus a share of the noise, on the grid of max_rows_per_site."""
    drawn: list[tuple[int, Integers]] = []

    def kept(scale: int, count: int) -> Integers:
        drawn.append((scale, discrete_gaussian(scale, count)))
        return drawn[-1][1]

    monkeypatch.setattr(exact_noise, "discrete_gaussian", kept)
    grid = Lattice(1.0, D, MASKING.max_rows_per_site)
    for round, members in ((1, range(N)), (2, (0, 2, 3, 4))):
        with sites(folder) as guards:
            drawn.clear()
            point, bitmap = consensus(round), bitmap_of(members, N)
            requests = {guards[i].prepare(HASH, round, point) for i in members}
            assert len(requests) == 1
            (request,) = requests
            masked = {i: guards[i].mask(HASH, round, request, bitmap) for i in members}
            bare = {i: unmasked(guards[i], round, request, bitmap, masked[i]) for i in members}
        for i, (scale, noise) in zip(members, drawn, strict=True):
            total = TinyRows(*rows(i)).total(MASKED.terms.statistics["gradient"], point, grid)
            np.testing.assert_array_equal(bare[i], total + noise.reshape(D, 1))
            assert scale == grid.noise_scale(Z, shares=HONEST)
            assert scale * HONEST**0.5 == pytest.approx(grid.noise_scale(Z), rel=1e-5)
        np.testing.assert_array_equal(sum(masked.values()), sum(bare.values()))


def test_repeated_mask_returns_the_same_bytes_after_a_restart(folder: Path) -> None:
    with site(folder) as guard:
        request = guard.prepare(HASH, 1, POINT, b"memo")
        first, before = guard.mask(HASH, 1, request, FEW), ledger_records(guard)
        assert guard.prepare(HASH, 1, POINT, b"memo") == request
        assert guard.mask(HASH, 1, request, FEW).tobytes() == first.tobytes()
    with site(folder) as guard:
        for prepared in (False, True):
            if prepared:
                guard.prepare(HASH, 1, POINT, b"memo")
            assert guard.mask(HASH, 1, request, FEW).tobytes() == first.tobytes()
        assert ledger_records(guard) == before
        ((round, answer, memo),) = guard.transcript(HASH)
        assert (round, answer.tobytes(), memo) == (1, first.tobytes(), b"memo")
        ((_, stored),) = guard._ledger.transcript(HASH)
        assert stored == first.tobytes() + b"memo" + FEW


@pytest.mark.parametrize("n", [8, 9, 17])
def test_members_and_memo_are_stored_separately_for_any_number_of_sites(folder: Path, n: int) -> None:
    more = tuple((f"site-{k}", public_key(bytes([k] * 32))) for k in range(N, n))
    asked = masked_study(roster=(*ROSTER, *more))
    everybody = bitmap_of(range(n), n)
    with site(folder, study=asked) as guard:
        for round, memo in ((1, {"memo": b"heard"}), (2, {})):
            request = guard.prepare(asked.hash, round, POINT, **memo)
            answer = guard.mask(asked.hash, round, request, everybody)
            assert guard._ledger.transcript(asked.hash)[-1][1] == answer.tobytes() + memo.get("memo", b"") + everybody
        assert [memo for _, _, memo in guard.transcript(asked.hash)] == [b"heard", b""]


def test_answered_round_refuses_other_members_and_requests(guard: Guard) -> None:
    request = guard.prepare(HASH, 1, POINT)
    guard.mask(HASH, 1, request, FEW)
    before = ledger_records(guard)
    other = guard.prepare(HASH, 1, POINT + 1.0)
    for asked, members in ((request, ALL), (request, bitmap_of([0, 1, 2, 3], N)), (other, FEW), ("0" * 64, FEW)):
        assert refusal(guard.mask, HASH, 1, asked, members).code == "round-forked"
    assert ledger_records(guard) == before
    assert not guard._pending


def test_prepared_answer_is_used_once(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even if recording fails. A second mask on the same answer would reveal it."""
    request = guard.prepare(HASH, 1, POINT)
    with monkeypatch.context() as patch:
        patch.setattr(guard._ledger, "spend", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            guard.mask(HASH, 1, request, FEW)
    assert refusal(guard.mask, HASH, 1, request, ALL).code == "round-not-ready"


@pytest.mark.skipif(sqlite_vfs() is None, reason="this Python hides its SQLite library")
def test_unrecorded_answer_is_not_returned(folder: Path) -> None:
    with site(folder) as guard:
        request = guard.prepare(HASH, 1, POINT)
        with failing(Fault("EIO", 1)):
            assert refusal(guard.mask, HASH, 1, request, FEW).code == "ledger-failed"
        assert refusal(guard.mask, HASH, 1, request, FEW).code == "ledger-failed"
    with site(folder) as guard:
        if not guard._ledger.status().spent:
            assert refusal(guard.mask, HASH, 1, request, FEW).code == "round-not-ready"
            guard.prepare(HASH, 1, POINT)
        guard.mask(HASH, 1, request, FEW)
        assert guard._ledger.status().spent == PRICE


def test_crash_between_prepare_and_mask_leads_to_fresh_noise(folder: Path) -> None:
    seen = []
    for _ in range(2):
        with site(folder) as guard:
            request = guard.prepare(HASH, 1, POINT)
            seen.append(guard._pending[HASH].numbers)
    with site(folder) as guard:
        assert refusal(guard.mask, HASH, 1, request, ALL).code == "round-not-ready"
        assert not guard._ledger.status().spent
        assert guard.prepare(HASH, 1, POINT) == request
        assert guard._pending[HASH].numbers not in seen
        guard.mask(HASH, 1, request, ALL)
    assert len(set(seen)) == 2


def test_mask_requires_the_prepared_request_of_the_same_round_and_study(guard: Guard) -> None:
    other = masked_study("another")
    guard.enrol(other)
    request = guard.prepare(HASH, 1, POINT)
    foreign = guard.prepare(other.hash, 1, POINT)
    assert request != foreign
    for study, round, asked in ((HASH, 2, request), (HASH, 1, foreign), (other.hash, 1, request), (HASH, 1, "0" * 64)):
        assert refusal(guard.mask, study, round, asked, ALL).code == "round-not-ready"
    numbers = guard._pending[HASH].numbers
    assert guard.prepare(HASH, 1, POINT) == request
    assert guard._pending[HASH].numbers == numbers  # the same request draws no new noise
    assert not guard._ledger.status().spent
    guard.mask(HASH, 1, request, ALL)
    guard.mask(other.hash, 1, foreign, ALL)


def test_rows_are_summed_once_per_round(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without a charge could otherwise be timed without limit."""
    sums, total = [], TinyRows.total
    monkeypatch.setattr(TinyRows, "total", lambda *asked: sums.append(asked) or total(*asked))
    requests = {round: guard.prepare(HASH, round, POINT) for round in (2, 3)}
    for round, where in product((1, 2, 3), (0.0, 1.0, 2.0)):
        if (round, where) != (3, 0.0):
            assert refusal(guard.prepare, HASH, round, POINT + where).code == "round-forked"
    assert guard.prepare(HASH, 3, POINT) == requests[3]
    assert len(sums) == 2
    guard.mask(HASH, 3, requests[3], ALL)
    guard.prepare(HASH, 4, POINT)
    assert len(sums) == 3


@pytest.mark.parametrize(
    ("members", "code"),
    [
        (b"", "members-malformed"),
        (ALL + b"\0", "members-malformed"),
        (b"\xff", "members-malformed"),
        (bytes([ALL[0] | 1]), "members-malformed"),
        (bytearray(ALL), "members-malformed"),
        (None, "members-malformed"),
        (bitmap_of([1, 2, 3, 4], N), "members-without-me"),
        (bitmap_of([], N), "members-without-me"),
        (bitmap_of([0, 3, 4], N), "members-few"),
        (bitmap_of([0], N), "members-few"),
    ],
)
def test_members_are_checked_first(guard: Guard, members: Any, code: str) -> None:
    request = guard.prepare(HASH, 1, POINT)
    assert refusal(guard.mask, HASH, 1, request, members).code == code
    guard.mask(HASH, 1, request, FEW)
    assert refusal(guard.mask, HASH, 1, request, members).code == code  # also for an answered round
    assert guard._ledger.status().spent == PRICE


@pytest.mark.parametrize("request_digest", [None, b"0" * 64, "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"])
def test_request_must_be_a_sha256_digest(guard: Guard, request_digest: Any) -> None:
    assert refusal(guard.mask, HASH, 1, request_digest, ALL).code == "request-malformed"


def test_masked_and_plain_studies_use_different_calls(guard: Guard) -> None:
    guard.enrol(STUDY)
    for act in (
        lambda: guard.answer(HASH, 1, POINT),
        lambda: guard.prepare(STUDY.hash, 1, POINT),
        lambda: guard.mask(STUDY.hash, 1, "0" * 64, ALL),
    ):
        assert refusal(act).code == "request-malformed"
    for act in (lambda: guard.prepare("0" * 64, 1, POINT), lambda: guard.mask("0" * 64, 1, "0" * 64, ALL)):
        assert refusal(act).code == "study-unknown"
    guard.answer(STUDY.hash, 1, POINT)


def test_prepare_computes_nothing_for_a_refused_round(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    later = guard.prepare(HASH, 3, POINT)
    guard.mask(HASH, 3, later, ALL)
    with monkeypatch.context() as patch:
        patch.setattr(TinyRows, "total", None)
        assert guard.prepare(HASH, 3, POINT) == later
        assert refusal(guard.prepare, HASH, 2, POINT).code == "round-old"
        assert refusal(guard.prepare, HASH, ROUNDS + 1, POINT).code == "round-over"
        assert refusal(guard.prepare, HASH, 4, POINT * np.nan).code == "request-malformed"
        refused = refusal(guard.prepare, HASH, 4, POINT)
        assert refused.code == "release-failed"
        assert (refused.__cause__, refused.__context__) == (None, None)
    guard.leave(HASH)
    assert refusal(guard.prepare, HASH, 4, POINT).code == "study-closed"
    assert guard._ledger.status().spent == PRICE


def test_rounds_may_be_missed_only_if_the_study_allows_it(folder: Path) -> None:
    strict = masked_study(terms={"may_miss_rounds": False})
    with site(folder, study=strict) as guard:
        assert refusal(guard.prepare, strict.hash, 2, POINT).code == "round-missed"


def test_both_budgets_are_reserved_and_charged(folder: Path) -> None:
    policy = replace(limits(epsilon_if_others_collude=6.0), unit=PrivacyUnit(2), epsilon=3.0)
    price = Fraction(policy.release_cost(MASKED.terms.plan.at(1)))
    with site(folder, policy=policy, open_rows=tiny(*rows(), policy.unit)) as guard:
        guard.mask(HASH, 1, guard.prepare(HASH, 1, POINT), ALL)
    state = read_ledger(folder)
    assert (state.spent, state.collusion_spent) == (price, HONEST * price)
    assert float(state.promised) == policy.cost(MASKED.terms.plan)
    assert state.collusion_promised == HONEST * state.promised
    assert (state.cap, state.collusion_cap) == (policy.cap, policy.collusion_cap)
    assert policy.collusion_cap > policy.cap
    assert state.accounts[HASH].about["masking"] == {
        "min_honest_sites": HONEST,
        "quorum": QUORUM,
        "max_rows_per_site": 2 * M,
        "roster": [[name, key.hex()] for name, key in ROSTER],
    }


def limits(**changes: Any) -> Any:
    return replace(OWNER, masking=OWNER.masking._replace(**changes))


TOGETHER = exact_epsilon((HONEST * ROUNDS) ** 0.5 / Z, OWNER.delta)


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        (
            lambda place: guarded(place, policy=POLICY, key=KEYS[0]),
            "policy-aggregation",
            "does not allow secure aggregation",
        ),
        (lambda place: guarded(place, policy=limits(min_honest_sites=4), key=KEYS[0]), "policy-honest", "requires 4"),
        (lambda place: guarded(place, policy=limits(min_withstood=2), key=KEYS[0]), "policy-honest", "has 1, the"),
        (
            lambda place: guarded(place, policy=limits(epsilon_if_others_collude=1.0), key=KEYS[0]),
            "policy-collusion",
            f"if all other sites collude: requested {TOGETHER:.4f} (Σμ² 0.09), allowed 1.0000",
        ),
        (lambda place: guarded(place, policy=OWNER), "roster-not-mine", "no key"),
        (lambda place: guarded(place, policy=OWNER, key=bytes(31)), "roster-not-mine", "not in the study's roster"),
        (lambda place: guarded(place, policy=OWNER, key=bytes(32)), "roster-not-mine", "not in the study's roster"),
    ],
)
def test_enrolment_is_refused_without_permission_or_key(
    folder: Path, act: Callable[[Path], Any], code: str, words: str
) -> None:
    with act(folder) as guard:
        refused = refusal(guard.enrol, MASKED)
        assert refused.code == code
        assert words in str(refused)
        assert not guard._ledger.status().accounts


def test_limits_of_secure_aggregation_are_listed_for_masked_studies_only() -> None:
    zero, both = (Fraction(0), Fraction(0)), {"plain", "secure"}
    plain = [limit.name for limit in POLICY.evaluate(STUDY.terms, M, zero)]
    assert plain == ["method", "loss", "rounds", "rows", "budget"]
    assert [limit.name for limit in POLICY.evaluate(STUDY.terms, M, (zero[0], Fraction(1)))] == [
        *plain,
        "collusion_budget",
    ]
    limits = {limit.name: limit for limit in OWNER.evaluate(MASKED.terms, M, zero)}
    assert list(limits) == [*plain[:3], "aggregation", "min_honest_sites", "withstood", *plain[3:], "collusion_budget"]
    assert (limits["aggregation"].asked, set(limits["aggregation"].allowed)) == ("secure", both)
    assert [limits[name].sentence for name in ("budget", "collusion_budget")] == ["", ""]
    (refused,) = [limit for limit in POLICY.evaluate(MASKED.terms, None, None) if not limit.holds]
    assert (refused.name, refused.allowed) == ("aggregation", ("plain",))
    small = replace(OWNER, epsilon=0.1).evaluate(MASKED.terms, None, zero)[-2]
    assert small.sentence.startswith("exceeds the owner's total ε at δ = 1e-05: requested")
    assert (STUDY.terms.shares, STUDY.terms.quorum) == (1, 1)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (masked_study(roster=(*ROSTER, ("site-0", public_key(bytes(32))))), "roster-unfit"),
        (masked_study(roster=(*ROSTER, ("site-5", ROSTER[1][1]))), "roster-unfit"),
        (masked_study(roster=(*ROSTER, ("site-5", ROSTER[0][1]))), "roster-unfit"),
        (masked_study(roster=(*ROSTER, ("site-5", bytes(32)))), "roster-unfit"),
        (masked_study(roster=ROSTER[1:]), "roster-not-mine"),
        (masked_study(roster=()), "roster-not-mine"),
        (masked_study(max_rows_per_site=M - 1), "study-unfit"),
        (masked_study(terms={"plan": ReleasePlan.constant(Release(2e9), 3)}), "study-unfit"),
        (masked_study(quorum=3), "policy-honest"),
        (masked_study(min_honest_sites=1, quorum=2), "policy-honest"),
    ],
)
def test_study_with_unfit_roster_rows_or_noise_is_refused(folder: Path, asked: Any, code: str) -> None:
    with guarded(folder, policy=OWNER, key=KEYS[0]) as guard:
        assert refusal(guard.enrol, asked).code == code
        assert not guard._ledger.status().accounts


def test_sum_over_all_sites_must_fit_63_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer fits, and the answers of four sites fit up to a single step. The noise scale is that of a share."""
    four = masked_study(roster=ROSTER[:4])
    monkeypatch.setattr(Lattice, "noise_scale", lambda self, z, shares=1: shares)
    for reach, fits in ((2**61 - 1, True), (2**61, False)):
        monkeypatch.setattr(Lattice, "max_upload", lambda self, scale, reach=reach: reach + scale - HONEST)
        with guarded(folder / str(fits), policy=OWNER, key=KEYS[0]) as guard:
            if fits:
                guard.enrol(four)
            else:
                assert "63 bits" in str(refusal(guard.enrol, four).__cause__)


def test_site_with_max_rows_per_site_is_accepted(folder: Path) -> None:
    with guarded(folder, policy=OWNER, key=KEYS[0]) as guard:
        guard.enrol(masked_study(max_rows_per_site=M))


@pytest.mark.parametrize(
    "change", [{"min_honest_sites": 2}, {"quorum": 5}, {"max_rows_per_site": 99}, {"roster": ROSTER[::-1]}]
)
def test_changed_masking_terms_with_the_same_hash_are_refused(folder: Path, change: dict[str, Any]) -> None:
    with site(folder) as guard:
        guard.prepare(HASH, 1, POINT)
    forged = masked_study(**change)
    forged.terms = forged.terms._replace(hash=HASH)
    with guarded(folder, policy=OWNER, key=KEYS[0]) as guard:
        assert refusal(guard.enrol, forged).code == "study-changed"
        assert refusal(guard.mask, HASH, 1, "0" * 64, ALL).code == "study-unknown"


def test_collusion_budget_is_shared_by_all_studies(folder: Path) -> None:
    """Of two studies, the second fits the first budget, but not the collusion budget.

    The same holds for a study without masks.
    """
    policy = limits(epsilon_if_others_collude=1.1 * TOGETHER)
    with guarded(folder, policy=policy, key=KEYS[0]) as guard:
        guard.enrol(MASKED)
        assert policy.cap > 2 * policy.cost(MASKED.terms.plan)
        for asked in (masked_study("another"), STUDY):
            assert refusal(guard.enrol, asked).code == "policy-collusion"
        guard.leave(HASH)
        guard.enrol(masked_study("another"))
    with guarded(folder, policy=POLICY) as guard:
        assert guard._ledger.status().collusion_cap == POLICY.cap
        assert refusal(guard.enrol, STUDY).code == "policy-collusion"  # reservations of masked studies count


def test_lowered_limit_ends_a_masked_study_early(folder: Path) -> None:
    with site(folder) as guard:
        guard.mask(HASH, 1, guard.prepare(HASH, 1, POINT), ALL)
    lower = replace(OWNER, masking=MaskingLimits(exact_epsilon((2.5 * HONEST) ** 0.5 / Z, OWNER.delta), 2, 1))
    with site(folder, policy=lower) as guard:
        guard.mask(HASH, 2, guard.prepare(HASH, 2, POINT), ALL)
        request = guard.prepare(HASH, 3, POINT)
        assert refusal(guard.mask, HASH, 3, request, ALL).code == "policy-collusion"
        assert guard._ledger.status().collusion_spent == 2 * HONEST * PRICE
