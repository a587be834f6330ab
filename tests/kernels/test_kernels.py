"""The compiled gradient, compared with NumPy: values, clipping, and bits."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numba
import numpy as np
import pytest
from cases import LOSS_CASES, coded, prove, random_labels, random_rows
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array

from dpadmm import kernels
from dpadmm.errors import PerformanceWarning
from dpadmm.kernels import formulas, passes
from dpadmm.losses import Loss, Poisson, Softmax, slopes
from dpadmm.losses.base import Index
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.features import Features
from dpadmm.queries import problem
from dpadmm.queries.problem import Rows, make_rows

SIZES = (2, 3, 7, 64, 65, 300, 1000)
D = 6
STORAGE = ["dense-f64", "dense-f32", "csr-f64", "csr-f32", "coded-f64", "coded-f32"]


@pytest.fixture(autouse=True, scope="module")
def compiled_kernels() -> Iterator[None]:
    """Compile the kernels for cohorts of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "MIN_COMPILED_ENTRIES", 0)
        yield


def stored(a: Floats, storage: str) -> Features:
    kind, width = storage.split("-")
    typed = a.astype(np.float64 if width == "f64" else np.float32)
    return {"dense": np.asarray, "csr": csr_array, "coded": coded}[kind](typed)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read through ``order`` instead of being copied; a large agent is cut into several blocks."""
    monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
    monkeypatch.setattr(kernels, "ENTRIES_PER_BLOCK", 1000)


def cohort(loss: Loss, storage: str, *, sizes: tuple[int, ...] = SIZES, d: int = D, seed: int = 0) -> Rows:
    rng = np.random.default_rng([seed, d])
    m = sum(sizes)
    a = random_rows(rng, m, d)
    a[rng.random(a.shape) < 0.4] = 0.0  # so that CSR rows differ in length; a few are empty
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    labels = random_labels(loss, rng, m)
    return make_rows(stored(a * 0.999999, storage), labels, order=rng.permutation(m), offsets=offsets)


def points_for(rows: Rows, loss: Loss, scale: float = 3.0, seed: int = 1) -> Floats:
    rng = np.random.default_rng(seed)
    return scale * rng.standard_normal((rows.n_agents, rows.n_features, loss.n_outputs))


def agrees(rows: Rows, loss: Loss, points: Floats, active: Any = None) -> None:
    np.testing.assert_allclose(
        kernels.gradient(rows, points, loss, active),
        kernels.reference_gradient(rows, points, loss, active),
        rtol=1e-12,
        atol=1e-13 * max(1.0, loss.lipschitz),
    )


@pytest.mark.usefixtures("in_place")
def test_gradient_is_the_reference() -> None:
    for loss, storage in product(LOSS_CASES, STORAGE):
        with case(loss, storage):
            rows = cohort(loss, storage)
            assert not np.array_equal(rows.order, np.arange(len(rows.order)))
            assert len(rows.blocks[0]) > rows.n_agents
            for scale in (0.0, 3.0, 300.0):
                if storage.endswith("f64"):
                    agrees(rows, loss, points_for(rows, loss, scale))
            exact = rows.features.astype(np.float64)
            wide = Rows(exact, rows.labels, rows.order, rows.offsets, rows.norms)
            points = points_for(rows, loss)
            np.testing.assert_allclose(
                kernels.gradient(rows, points, loss),
                kernels.reference_gradient(wide, points, loss),
                atol=1e-12,
            )


@pytest.mark.usefixtures("in_place")
def test_only_active_agents() -> None:
    for loss, active, storage in product(
        [LOSS_CASES[0], LOSS_CASES[2]],
        [[0], [6], [1, 3], [0, 5, 6], list(range(7)), []],
        STORAGE,
    ):
        with case(loss, active, storage):
            rows = cohort(loss, storage)
            chosen, points = np.array(active, dtype=np.int64), points_for(rows, loss)
            part = kernels.gradient(rows, points, loss, chosen)
            everyone = kernels.gradient(rows, points, loss)
            np.testing.assert_array_equal(part[chosen], everyone[chosen])
            assert not np.delete(part, chosen, axis=0).any()


@pytest.mark.usefixtures("in_place")
def test_as_many_active_blocks_as_agents() -> None:
    """Seven agents, of which one is active and cut into exactly seven blocks."""
    loss = LOSS_CASES[0]
    rows = cohort(loss, "dense-f64", sizes=(2, 2, 2, 2, 2, 2, 7 * 1000 // D - 5))
    active = np.array([6])
    assert np.count_nonzero(rows.blocks[0] == 6) == rows.n_agents
    agrees(rows, loss, points_for(rows, loss), active)


@pytest.mark.usefixtures("in_place")
def test_scores() -> None:
    for loss, storage in product([LOSS_CASES[0], LOSS_CASES[2]], STORAGE):
        with case(loss, storage):
            rows = cohort(loss, storage)
            points = points_for(rows, loss)
            owner = np.repeat(np.arange(rows.n_agents), rows.n_rows)
            a = rows.features[rows.order].astype(np.float64)
            dense = a.toarray() if isinstance(a, csr_array) else a
            expected = np.einsum("jd,jdp->jp", dense, points[owner])
            np.testing.assert_allclose(kernels.scores(rows, points), expected, atol=1e-12)


def test_any_number_of_features() -> None:
    for d in [1, 2, 7, 8, 9, 31, 104, 9000]:
        with case(d):
            loss = Softmax(n_outputs=3)
            for storage in ("dense-f64", "dense-f32", "csr-f64"):
                rows = cohort(loss, storage, sizes=(2, 5, 40), d=d)
                agrees(rows, loss, points_for(rows, loss))


def test_any_number_of_outputs() -> None:
    """Kernels process four or five outputs, two or four rows, and eight columns at a time."""
    for p, storage, d in product([4, 8, 10, 13], ["dense-f64", "dense-f32", "coded-f64", "coded-f32"], [D, 8, 21]):
        with case(p, storage, d):
            loss = Softmax(n_outputs=p)
            rows = cohort(loss, storage, sizes=(2, 3, 5, 126, 1031), d=d)
            agrees(rows, loss, points_for(rows, loss))


def test_points_may_be_of_any_type_and_layout() -> None:
    """Integers are converted, and not read as bits of floats."""
    loss = Softmax(n_outputs=4)
    for storage, kind in product(["dense-f64", "csr-f64", "coded-f64"], [np.int64, np.int32, np.float32, np.float64]):
        rows = cohort(loss, storage)
        points = np.rint(points_for(rows, loss)).astype(kind)
        for each in (points, np.asfortranarray(points)):
            with case(storage, kind):
                agrees(rows, loss, each)


# --- clipping ----------------------------------------------------------------------------------------------


def test_no_row_contributes_more_than_c1() -> None:
    """Agents of two rows, one of them zero: twice the mean gradient is the other row's gradient."""
    for scale, loss, storage in product([1.0, 1e3, 1e75, 1e150], LOSS_CASES, STORAGE):
        with case(scale, loss, storage):
            rng = np.random.default_rng(4)
            n = 60
            a = np.zeros((2 * n, D))
            a[::2] = random_rows(rng, n, D) * rng.choice([1.0, 1.0, 1e-3], size=(n, 1))
            labels = random_labels(loss, rng, 2 * n)
            rows = make_rows(stored(a, storage), labels, offsets=np.arange(0, 2 * n + 1, 2))
            points = scale * rng.standard_normal((n, D, loss.n_outputs))
            sizes = 2.0 * np.linalg.norm(kernels.gradient(rows, points, loss), axis=(1, 2))
            assert np.isfinite(sizes).all()
            assert sizes.max() <= loss.lipschitz * (1.0 + 1e-12)
            if loss.name in ("squared", "huber", "hinge") and scale > 1.0:  # clipped, not dropped
                assert sizes.max() >= 0.99 * loss.lipschitz


def test_rows_slightly_above_norm_1_are_clipped_to_c1() -> None:
    """A norm of 1 + 1e-6 is accepted (float32 rounding), but the gradient is clipped to c1."""
    loss = LOSS_CASES[4]
    assert loss.name == "hinge"
    rows = make_rows(np.array([[1.0 + 9e-7, 0.0], [0.0, 0.0]]), np.array([1.0, 1.0]))
    size = 2.0 * np.linalg.norm(kernels.gradient(rows, np.zeros((1, 2, 1)), loss))
    assert size <= 1.0 + 1e-15


def test_clipping_does_not_depend_on_neighbouring_rows() -> None:
    """Rows at the bound, with and without a row above it."""
    loss, rng = LOSS_CASES[4], np.random.default_rng(1)
    assert loss.name == "hinge"  # a slope of −1 at 0
    for norm in rng.uniform(0.3, 0.9, 300):
        bound = float(np.nextafter(norm, rng.choice([0.0, 1.0])))
        edge, long = np.array([[norm, 0.0], [norm, 0.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
        alone, beside = (
            kernels.gradient(make_rows(each, np.ones(len(each))), np.zeros((1, 2, 1)), loss, bound=bound)
            for each in (edge, np.concatenate([edge, long]))
        )
        assert alone[0, 0, 0] == 2.0 * beside[0, 0, 0]


def test_one_output_is_clipped_like_several() -> None:
    """The separate loop for one output returns the same bits for any slopes."""
    rng = np.random.default_rng(0)
    for n in (1, 4, 7, 250):
        slope = rng.standard_normal((1, n)) * 10.0 ** rng.choice([0.0, 0.0, 0.0, -200.0, 200.0], n)
        slope[0, rng.random(n) < 0.1] = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 1e308])
        norms = np.maximum(rng.random(n) * 10.0 ** rng.choice([0.0, 0.0, -9.0, -160.0], n), problem.MIN_NORM)
        for bound in (1.0, 0.3, 1e-3, 1e-120):
            alone, beside_zeros = slope.copy(), np.vstack([slope, np.zeros((1, n))])
            passes._clip(alone, norms, bound)
            passes._clip(beside_zeros, norms, bound)
            # as numbers: a slope of several that is -0.0 may lose its sign
            np.testing.assert_array_equal(alone[0], beside_zeros[0])
            assert (np.abs(alone[0]) * norms <= bound * (1.0 + 1e-15)).all()


def test_sums_for_exact_noise_are_clipped_to_the_given_bound() -> None:
    """On every path, the bound is slightly below c1 to allow for rounding."""
    for storage, small in product(["dense-f32", "csr-f64"], [0, 2**60]):
        with case(storage, small), pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(kernels, "MAX_NUMPY_ENTRIES", small)
            loss = Softmax(n_outputs=3)
            rows = cohort(loss, storage)
            points = points_for(rows, loss, scale=100.0)
            for bound in (0.125, 0.5):
                found = kernels.guarded_sums(rows, points, loss, bound=bound)
                expected = kernels.reference_gradient(rows, points, loss, bound=bound)
                expected *= rows.n_rows[:, None, None]
                np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
                wider = kernels.reference_gradient(rows, points, loss) * rows.n_rows[:, None, None]
                assert np.abs(found - wider).max() > 1e-7


def test_another_bound_and_no_bound() -> None:
    for loss in LOSS_CASES:
        with case(loss):
            rows = cohort(loss, "dense-f64")
            points = points_for(rows, loss, 5.0)
            for bound in (0.1, np.inf):
                np.testing.assert_allclose(
                    kernels.gradient(rows, points, loss, bound=bound),
                    kernels.reference_gradient(rows, points, loss, bound=bound),
                    atol=1e-12,
                )
            for i in range(rows.n_agents):
                mine = slice(rows.offsets[i], rows.offsets[i + 1])
                a = rows.features[rows.order[mine]]
                true = a.T @ slopes(loss, rows.labels[mine], a @ points[i]) / len(a)
                np.testing.assert_allclose(kernels.gradient(rows, points, loss, bound=np.inf)[i], true, atol=1e-12)


# --- the same bits -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_place", "all_threads")
def test_same_bits_for_any_number_of_threads_and_every_time() -> None:
    for loss, storage in product([LOSS_CASES[0], LOSS_CASES[3], LOSS_CASES[-1]], STORAGE):
        with case(loss, storage):
            rows = cohort(loss, storage, sizes=(2, 900, 31, 4000), d=11)
            points = points_for(rows, loss)
            first, first_scores = kernels.gradient(rows, points, loss), kernels.scores(rows, points)
            before = numba.get_num_threads()
            try:
                for threads in (1, min(2, before), before):
                    numba.set_num_threads(threads)
                    for _ in range(3):
                        np.testing.assert_array_equal(kernels.gradient(rows, points, loss), first)
                        np.testing.assert_array_equal(kernels.scores(rows, points), first_scores)
            finally:
                numba.set_num_threads(before)


@pytest.mark.usefixtures("in_place")
def test_an_agent_alone_has_the_bits_it_has_in_the_cohort() -> None:
    for loss, d, storage in product([LOSS_CASES[0], LOSS_CASES[3]], [1, 6, 33], STORAGE):
        with case(loss, d, storage):
            rows = cohort(loss, storage, sizes=(2, 900, 31, 4000, 5), d=d)
            points = points_for(rows, loss)
            together = kernels.gradient(rows, points, loss)
            for i in range(rows.n_agents):
                alone = kernels.gradient(rows.agent(i), points[i : i + 1], loss)
                np.testing.assert_array_equal(alone[0], together[i])


def test_a_copy_in_cohort_order_has_the_same_bits() -> None:
    for storage in STORAGE:
        with case(storage), pytest.MonkeyPatch.context() as monkeypatch:
            loss = LOSS_CASES[0]
            copied = cohort(loss, storage)
            monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
            in_place = cohort(loss, storage)
            points = points_for(copied, loss)
            np.testing.assert_array_equal(
                kernels.gradient(copied, points, loss), kernels.gradient(in_place, points, loss)
            )


def test_coded_rows_need_five_extra_bytes_and_others_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million agents of 20 coded rows fit into 1.5 times the memory of the rows (``make bench``)."""
    monkeypatch.setattr(problem, "COMPACT_BYTES", 0)
    for loss, storage, expected in (
        (Softmax(3), "coded-f64", 5),
        (Softmax(3), "coded-f32", 5),
        (Softmax(3), "dense-f64", 16),
        (Poisson(), "coded-f64", 12),  # labels of counts are no whole numbers
    ):
        with case(loss, storage):
            rows = cohort(loss, storage)
            assert rows.labels.itemsize + rows.order.itemsize == expected
    whole = coded(np.eye(6))
    for *labels, kind in ([0, 1, 2, 0, 1, 2, "i1"], [0.5, 1, 2, 0, 1, 2, "f8"], [0, 1, 128, 0, 0, 0, "f8"]):
        rows = make_rows(whole, np.array(labels, float), order=np.array([5, 4, 3, 2, 1, 0]), offsets=np.array([0, 6]))
        assert rows.labels.dtype == np.dtype(kind)
        assert rows.labels.tolist() == labels[::-1]


@prove
@given(
    st.lists(st.integers(2, 400), min_size=1, max_size=6),
    st.integers(1, 50),
    st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
)
def test_blocks_cover_every_row_once(sizes: list[int], d: int, entries: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    agent, start, stop = kernels.cut_blocks(offsets, np.array(entries[: len(sizes)]), d)
    assert start[0] == 0
    assert stop[-1] == offsets[-1]
    assert (start[1:] == stop[:-1]).all()
    assert (stop > start).all()
    assert (offsets[agent] <= start).all()
    assert (stop <= offsets[agent + 1]).all()
    assert set(agent.tolist()) == set(range(len(sizes)))


# --- compiled formulas -------------------------------------------------------------------------------------


@numba.njit
def _all_exp(x):  # type: ignore[no-untyped-def]
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels_exp(x[i])
    return out


kernels_exp = formulas._exp


def test_compiled_exp_is_within_4_ulp() -> None:
    rng = np.random.default_rng(0)
    edges = np.array([-708.0, 709.0, 0.0, -0.0, 1e-300, -1e-17, 0.34657359, -0.34657359])
    x = np.concatenate([edges, rng.uniform(-708.0, 709.0, 200_000), rng.uniform(-1.0, 1.0, 50_000)])
    true = np.exp(x)
    assert (np.abs(_all_exp(x) - true) <= 4.0 * np.spacing(true)).all()


def test_compiled_exp_is_limited_beyond_and_keeps_nan() -> None:
    low, high, nan = _all_exp(np.array([-1e9, 1e9, np.nan]))
    assert 0.0 <= low < 1e-300
    assert high > 1e300
    assert np.isnan(nan)


@dataclass(frozen=True)
class Stubborn:
    """A logistic loss with a function that numba cannot compile."""

    name: ClassVar[str] = "stubborn"
    task: ClassVar[str] = "binary"
    n_outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    parameters: ClassVar[tuple[float, ...]] = ()

    def value(self, labels: Floats, scores: Floats) -> Floats:
        return np.logaddexp(0.0, -labels * scores[:, 0])

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        out[0, i] = -labels[i] / (1.0 + np.exp(dict.fromkeys("a", labels[i] * scores[0, i]).pop("a")))
        getattr(out, "sum")()  # noqa: B009


def test_a_formula_that_cannot_be_compiled_falls_back_with_a_warning() -> None:
    loss, logistic = Stubborn(), LOSS_CASES[0]
    rows = cohort(logistic, "dense-f64")
    points = points_for(rows, logistic)
    with pytest.warns(PerformanceWarning, match=r"Stubborn\.formula cannot be compiled"):
        slow = kernels.gradient(rows, points, loss)
    np.testing.assert_allclose(slow, kernels.gradient(rows, points, logistic), atol=1e-13)
    part = kernels.gradient(rows, points, loss, np.array([2]))  # no second warning
    np.testing.assert_array_equal(part[2], slow[2])


def _scaled_hinge(factor: float) -> Any:
    class ScaledHinge:
        name, task, n_outputs, lipschitz, smoothness, parameters = "scaled", "binary", 1, 10.0, None, ()

        @staticmethod
        def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
            out[0, i] = -labels[i] * factor * (labels[i] * scores[0, i] < 1.0)

    return ScaledHinge()


def test_formulas_that_differ_in_a_captured_number_are_distinguished() -> None:
    rows = cohort(LOSS_CASES[0], "dense-f64")
    points = np.zeros((rows.n_agents, D, 1))
    one, two = (kernels.gradient(rows, points, _scaled_hinge(factor)) for factor in (1.0, 2.0))
    np.testing.assert_allclose(two, 2.0 * one, rtol=1e-12)


MODULE = """
import numpy as np
SLOPE = {constant}
def formula(i, labels, scores, parameters, out):
    out[0, i] = {factor} * SLOPE * labels[i]
"""


@numba.njit
def call(compiled, labels, scores, parameters, out):  # type: ignore[no-untyped-def]
    compiled(labels, scores, parameters, out)


def test_an_edited_formula_is_never_served_from_a_stale_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, cache = tmp_path / "my_loss.py", tmp_path / "cache"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(cache))
    # all texts are equally long and get the same time stamp: nothing but their content tells them apart
    for factor, constant in ((2, 1), (3, 1), (3, 5)):
        module.write_text(MODULE.format(factor=factor, constant=constant))
        os.utime(module, (1_600_000_000, 1_600_000_000))
        mine = runpy.run_path(str(module), run_name="my_loss")
        out = np.empty((1, 1))
        call(formulas.compiled_slopes(mine["formula"]), np.ones(1), np.ones((1, 1)), np.ones(0), out)
        assert out[0, 0] == factor * constant
    assert len([*cache.rglob("*.nbi")]) == 3


def test_numpy_replaces_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites have no compiler, whatever the size of the table."""
    for loss, storage in product(LOSS_CASES[:2], STORAGE[1::2]):
        with case(loss, storage):
            rows = cohort(loss, storage)
            points = points_for(rows, loss)
            weights = np.linspace(0.0, 1.0, rows.n_agents)

            def all_sums(rows=rows, points=points, weights=weights, loss=loss) -> list[Floats]:
                return [
                    kernels.guarded_sums(rows, points, loss, bound=0.5),
                    kernels.gradient(rows, points, loss, np.array([1, 4])),
                    kernels.weighted_gradient(rows, points[0], loss, weights, bound=0.5),
                    kernels.scores(rows, points),
                    kernels.scores(rows, np.broadcast_to(points[0], points.shape)),
                ]

            with monkeypatch.context() as patched:
                patched.setattr(kernels, "MAX_NUMPY_ENTRIES", 100)  # all but the smallest
                compiled = all_sums()
                patched.setitem(sys.modules, "numba", None)
                plain = all_sums()
            for a, b in zip(plain, compiled, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 if "f32" in storage else 1e-10)
