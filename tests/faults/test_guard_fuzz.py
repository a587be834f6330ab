"""Malformed requests: the result is a release, or a refusal with a known code that charges nothing.

``make torture`` runs the long version: 100,000 malformed requests.
"""

from __future__ import annotations

import enum
import math
import os
import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from guards import POLICY, STUDY, D, consensus, guarded, memory_folder, own, refusal, rows, study
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from looping import case
from scipy.sparse import csr_array

from dpadmm.data.schema import Label, Plain, Schema
from dpadmm.errors import RefusalError
from dpadmm.losses import LOSSES
from dpadmm.sites.agent import Agent
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import MAX_SIGMAS, Lattice
from dpadmm.trusted.guard import MAX_MEMO, Guard

LONG = os.environ.get("DPADMM_TORTURE") == "1"
LIMIT = 1.7e308
FUZZED = study(n_rounds=4000, noise_multiplier=300.0)
HASH, ROUNDS = FUZZED.hash, FUZZED.training.n_rounds
ABOUT_ROUNDS = {"round-forked", "round-old", "round-missed"}
MALFORMED = {"study-unknown", "round-over", "request-malformed"}


@pytest.fixture(scope="module")
def guard():
    with memory_folder() as folder, guarded(folder) as guard:
        guard.enrol(FUZZED)
        yield guard


def well_formed(study: Any, round: Any, point: Any, memo: Any) -> bool:
    """Return whether a request is well-formed, by an independent definition."""
    return (
        type(study) is str
        and study == HASH
        and type(round) is int
        and 0 < round <= ROUNDS
        and type(point) is np.ndarray
        and point.dtype.str == np.dtype("=f8").str
        and point.shape == (D, 1)
        and all(math.isfinite(x) for x in point.ravel().tolist())
        and type(memo) is bytes
        and len(memo) <= MAX_MEMO
    )


def ask(guard: Guard, study: Any, round: Any, point: Any, memo: Any) -> str:
    """Send a request, check all invariants, and return "released" or the code of the refusal."""
    good = well_formed(study, round, point, memo)
    before = guard._ledger.status().seq
    try:
        answer = guard.answer(study, round, point, memo)
    except RefusalError as refused:
        code = refused.code
    else:
        code = "released"
        grid = Lattice(1.0, D, 8)
        assert answer.dtype == np.int64
        assert np.abs(answer).max() <= grid.max_sum + MAX_SIGMAS * grid.noise_scale(FUZZED.noise_multiplier)
    assert code in ({"released"} | ABOUT_ROUNDS if good else MALFORMED)
    assert guard._ledger.status().seq - before in ((0, 1) if code == "released" else (0,))
    return code


# What to send


class StrSubclass(str):
    """A subclass of str."""


class NoHash(str):
    __hash__ = None  # type: ignore[assignment]


class Unreadable:
    """An object that raises on every access."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("do not touch")

    __array__ = __eq__ = __ne__ = __gt__ = __lt__ = __ge__ = __le__ = __len__ = __bool__ = _refuse  # type: ignore[assignment]
    __hash__ = __index__ = __float__ = __iter__ = __getitem__ = __str__ = __repr__ = _refuse  # type: ignore[assignment]


class UnreadableInt(int):
    __gt__ = __lt__ = __ge__ = __le__ = __eq__ = Unreadable._refuse  # type: ignore[assignment]
    __hash__ = int.__hash__


class One(enum.IntEnum):
    ONE = 1


class ArraySubclass(np.ndarray):
    """A subclass of ndarray."""


ANGRY_POINT = np.empty((D, 1), object)
ANGRY_POINT.fill(Unreadable())
PLAIN = np.arange(1.0, D + 1)[:, None]
FLOATS = [
    0.0, -0.0, 1.0, 5e-324, -2.2e-308, 1e-300, 1e154, -1e300, LIMIT, -LIMIT, math.nan, math.inf, -math.inf,
]  # fmt: skip
ODD_ROUNDS = [
    True, False, 0, -1, -(2**63), 2**62, 2**63, 2**64, 10**400, ROUNDS + 1, 1.0, math.nan, math.inf, "1",
    b"1", None, 1j, [1], (1,), {}, np.int64(1), np.float64(1), np.array(1), np.array([1]), np.bool_(True),
    One.ONE, Decimal(1), Fraction(1), UnreadableInt(1), Unreadable(), object(), int, range(3), memoryview(b"1"),
]  # fmt: skip
ODD_STUDIES = [
    None, 0, True, b"", HASH.encode(), HASH.upper(), HASH[:-1], HASH + "\0", HASH + "\n", " " + HASH, "",
    "\0", "\ud800", "ab" * 32, "x" * 10_000, [HASH], (HASH,), {HASH: 1}, {HASH}, StrSubclass(HASH), NoHash(HASH),
    np.str_(HASH), np.array(HASH), np.array([HASH]), Unreadable(), object(), math.nan, memoryview(HASH.encode()),
    STUDY, STUDY.hash,
]  # fmt: skip
ODD_MEMOS = [
    None, "", "memo", 0, bytearray(b"x"), memoryview(b"x"), [1], np.zeros(2), np.bytes_(b"x"), Unreadable(),
    object(),
]  # fmt: skip
DTYPES = [
    "f2", "f4", "g", ">f8", "c16", "i1", "i8", "u8", ">i8", "?", "O", "S8", "U3", "V8", "M8[s]", "m8[s]",
]  # fmt: skip
SHAPES = [(), (0,), (1,), (D,), (1, D), (D, 0), (0, 1), (D + 1, 1), (D - 1, 1), (D, 2), (D, 1, 1), (1, D, 1)]
LAYOUTS = ["Fortran", "strided", "backwards", "transposed", "repeated", "unaligned", "read-only", "metadata"]


def laid_out(how: str) -> Any:
    """Return plain float64 numbers in an unusual memory layout, which is valid."""
    data = np.random.default_rng().choice(FLOATS[:-3], (2 * D, 2))
    layouts = {
        "Fortran": lambda: np.asfortranarray(data[:D, :1]),
        "strided": lambda: data[::2, :1],
        "backwards": lambda: data[D - 1 :: -1, 1:],
        "transposed": lambda: data[:D, :1].T.copy().T,
        "repeated": lambda: np.broadcast_to(data[0, 0], (D, 1)),
        "unaligned": lambda: np.frombuffer(b"x" + data.tobytes(), "=f8", D, 1).reshape(D, 1),
        "read-only": lambda: np.frombuffer(data.tobytes(), "=f8", D).reshape(D, 1),
        "metadata": lambda: data[:D, :1].astype(np.dtype("f8", metadata={"unit": "m"})),
    }
    return layouts[how]()


def random_point(rng: random.Random) -> Any:
    """Return an invalid point, or sometimes a valid one."""
    kind = rng.randrange(6)
    if kind == 0:
        point = PLAIN.copy()
        point[rng.randrange(D), 0] = rng.choice(FLOATS)
        return point
    if kind == 1:
        return np.zeros((D, 1), rng.choice(DTYPES))
    if kind == 2:
        return np.zeros(rng.choice(SHAPES), rng.choice(["f8", "f4", "O", "f8", ">f8"]))
    if kind == 3:
        return laid_out(rng.choice(LAYOUTS))
    others = [
        None, 0.0, 1, "point", b"\0" * 8 * D, PLAIN.tolist(), tuple(PLAIN), memoryview(PLAIN),
        PLAIN.tobytes(), bytearray(PLAIN.tobytes()), PLAIN.view(ArraySubclass), np.ma.masked_array(PLAIN, [[1]] * D),
        np.ma.masked, np.matrix(PLAIN), csr_array(PLAIN), np.float64(1), Unreadable(), object(), np.ndarray,
        {"x": 1}, iter(PLAIN), range(D), np.rec.array(np.zeros((D, 1), [("x", "f8")])), ANGRY_POINT,
        np.zeros((D, 1), [("x", "f8")]), np.zeros((D, 1), "f8,f8"), np.array([[1.0]] * D, object),
        np.array([["1.0"]] * D),
    ]  # fmt: skip
    return rng.choice(others)


def random_request(rng: random.Random, last: int) -> tuple[Any, Any, Any, Any]:
    """Return a request with about one invalid part."""
    request: list[Any] = [HASH, max(1, last + rng.randint(-1, 2)), PLAIN, b""]
    for _ in range(rng.choice((1, 1, 2, 4))):
        which = rng.randrange(6)
        if which == 0:
            request[0] = rng.choice(ODD_STUDIES)
        elif which == 1:
            request[1] = rng.choice(ODD_ROUNDS)
        elif which == 2:
            request[3] = rng.choice(ODD_MEMOS)
        else:
            request[2] = random_point(rng)
    return request[0], request[1], request[2], request[3]


# Tests


@pytest.mark.filterwarnings("ignore:the matrix subclass is not:PendingDeprecationWarning")
def test_malformed_requests_are_refused_with_a_known_code_and_without_charge(guard):
    rng, codes, malformed = random.Random(), {}, 0
    wanted = 100_000 if LONG else 3_000
    while malformed < wanted:
        last = len(guard._ledger.status().accounts[HASH].rounds)
        if last > ROUNDS - 10:
            break
        request = random_request(rng, last)
        malformed += not well_formed(*request)
        if not LONG or malformed % 25 == 0 or not well_formed(*request):  # releases take time
            code = ask(guard, *request)
            codes[code] = codes.get(code, 0) + 1
    assert malformed == wanted
    assert codes.keys() == {"released"} | ABOUT_ROUNDS - {"round-old"} | MALFORMED
    account = guard._ledger.status().accounts[HASH]
    assert account.spent == len(account.rounds) * Fraction(POLICY.release_cost(FUZZED.terms.plan.at(1)))


def test_malformed_studies_are_refused(guard):
    for value in ODD_STUDIES:
        with case(value):
            assert ask(guard, value, 1, PLAIN, b"") == "study-unknown"


def test_malformed_rounds_are_refused(guard):
    for value in ODD_ROUNDS:
        with case(value):
            expected = "round-over" if type(value) is int and value > ROUNDS else "request-malformed"
            assert ask(guard, HASH, value, PLAIN, b"") == expected


def test_malformed_memos_are_refused(guard):
    for value in ODD_MEMOS:
        with case(value):
            assert ask(guard, HASH, 1, PLAIN, value) == "request-malformed"


def test_too_long_memo_is_refused(guard):
    assert ask(guard, HASH, 1, PLAIN, bytes(MAX_MEMO + 1)) == "request-malformed"


def test_points_of_other_types_are_refused(guard):
    for dtype in DTYPES:
        with case(dtype):
            assert ask(guard, HASH, 1, np.zeros((D, 1), dtype), b"") == "request-malformed"


def test_memory_layout_does_not_matter(guard):
    """The same numbers in another layout are the same request."""
    for how in LAYOUTS:
        with case(how):
            last = len(guard._ledger.status().accounts[HASH].rounds)
            point = laid_out(how)
            first = guard.answer(HASH, last + 1, point)
            assert guard.answer(HASH, last + 1, point.copy()).tobytes() == first.tobytes()


things = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=80),
    st.binary(max_size=80),
    st.lists(st.floats(), max_size=4),
    st.lists(st.lists(st.floats(), min_size=1, max_size=1), min_size=D, max_size=D),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(max_dims=3, max_side=D)),
    hnp.arrays(np.float64, st.sampled_from([(D, 1), (D,), (1, D)])),
    hnp.arrays(st.sampled_from([np.dtype(">f8"), np.dtype("f4")]), (D, 1)),
)


@settings(deadline=None, max_examples=2_000 if LONG else 150)
@given(
    st.one_of(st.just(HASH), things),
    st.one_of(st.integers(-1, 6), things),
    st.one_of(hnp.arrays(np.float64, (D, 1)), things),
    st.one_of(st.just(b""), things),
)
def test_arbitrary_requests(guard, study, round, point, memo):
    ask(guard, study, round, point, memo)


@pytest.mark.filterwarnings("ignore:the matrix subclass is not:PendingDeprecationWarning")
def test_agent_refuses_an_invalid_consensus():
    rng = random.Random()
    with memory_folder() as folder, guarded(folder) as guard:
        agent = Agent(guard, STUDY)
        agent.step(1, consensus(1))
        before = guard._ledger.status().seq
        n_malformed, wanted = 0, 10_000 if LONG else 400
        while n_malformed < wanted:
            round = rng.choice([1, 2, *ODD_ROUNDS])
            broadcast = random_point(rng) if type(round) is int and rng.random() < 0.8 else consensus(1)
            if well_formed(HASH, round, broadcast, b""):
                continue
            code = refusal(agent.step, round, broadcast).code
            assert code in {"request-malformed", "round-over"}
            n_malformed += 1
        assert guard._ledger.status().seq == before
        assert agent.last_round == 1
        agent.step(2, consensus(2))


HUGE = [LIMIT, -LIMIT, 1e308, -1e200, 1e154, 5e-324, -2e-310, 0.0, -0.0, 1.0]


def counted(training):
    """Return a study of counts. It needs a maximum count and a constant column."""
    schema, label = Schema(tuple(Plain(f"x{i}") for i in range(D)), row_norm=1.0), Label("y", bounds=(0, 1))
    return Study(name="counts", schema=schema, label=label, training=training.with_changes(intercept=True))


def test_extreme_points_are_answered_within_the_integer_range():
    """On the real kernel. Any point is safe, so none is refused."""
    for loss in sorted(LOSSES):
        with case(loss):
            task = LOSSES[loss].task
            classes = {"binary": (-1, 1), "multiclass": (0, 1, 2)}.get(task)
            training = STUDY.training.with_changes(loss=loss, n_rounds=200, noise_multiplier=100.0)
            far = replace(STUDY, training=training, classes=classes) if task != "count" else counted(training)
            features, labels = rows()
            labels = np.abs(labels) if task in ("multiclass", "count") else labels
            rng, policy = random.Random(), replace(POLICY, losses=frozenset(LOSSES))
            with memory_folder() as folder, guarded(folder, own(features, labels), policy) as guard:
                grid = guard.enrol(far).query_at(1).grid
                largest = grid.max_sum + MAX_SIGMAS * grid.noise_scale(far.noise_multiplier)
                for round in range(1, 200 if LONG else 40):
                    point = np.array([rng.choice(HUGE) for _ in range(grid.size)]).reshape(far.shape)
                    answer = guard.answer(far.hash, round, point)
                    assert answer.shape == far.shape
                    assert np.abs(answer).max() <= largest


@pytest.mark.parametrize("method", ["dp_admm", "dp_sgd"])
def test_agent_survives_extreme_broadcasts_and_restarts_identically(method):
    absurd = study(method=method, n_rounds=100, noise_multiplier=100.0)
    for _ in range(60 if LONG else 6):
        rng, uploads, codes = random.Random(), {}, set()
        spoken = {round: np.array([[rng.choice(HUGE)] for _ in range(D)]) for round in range(1, 7)}
        with memory_folder() as folder:
            with guarded(folder) as guard:
                agent = Agent(guard, absurd)
                for round, words in spoken.items():
                    try:
                        uploads[round] = agent.step(round, words).tobytes()
                    except RefusalError as refused:
                        codes.add(refused.code)
            assert codes <= {"request-malformed", "round-missed"}
            assert uploads
            with guarded(folder) as guard:
                agent = Agent(guard, absurd)
                assert agent.last_round == max(uploads)
                for round, upload in uploads.items():
                    assert agent.step(round, spoken[round]).tobytes() == upload
                assert len(guard._ledger.status().accounts[absurd.hash].rounds) == len(uploads)
