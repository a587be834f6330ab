"""Feature matrices: formats, norms, clipping, intercept."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from cases import prove
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import coo_array, csc_array, csr_array, lil_array

from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import (
    NORM_SLACK,
    as_matrix,
    check_norms,
    clip_rows,
    row_norms,
    stacked,
    with_intercept,
    without_subnormals,
)
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features

STORAGE = ["dense-f64", "dense-f32", "csr-f64", "csr-f32"]


def stored(a: Floats, storage: str) -> Features:
    kind, width = storage.split("-")
    typed = np.asarray(a, dtype=np.float64 if width == "f64" else np.float32)
    return typed if kind == "dense" else csr_array(typed)


def dense(features: Features) -> Floats:
    array = features if isinstance(features, np.ndarray) else features.toarray()
    return np.asarray(array, dtype=np.float64)


def rounding(storage: str) -> float:
    return 1e-15 if storage.endswith("f64") else 2e-7


# --- form --------------------------------------------------------------------------------------------------


def test_valid_arrays_are_not_copied() -> None:
    for array in (np.eye(3), np.eye(3, dtype=np.float32)):
        assert as_matrix(array) is array
    sparse = csr_array(np.eye(3))
    assert as_matrix(sparse) is sparse


def test_other_forms_are_converted() -> None:
    for given_form in [
        np.asfortranarray(np.eye(3)),
        np.eye(3, dtype=int),
        np.eye(3, dtype=bool),
        np.eye(3, dtype=">f8"),
        np.eye(3, dtype=np.float16),
        np.eye(3).tolist(),
        csc_array(np.eye(3)),
        coo_array(np.eye(3)),
        csr_array(np.eye(3, dtype=int)),
    ]:
        with case(given_form):
            matrix = as_matrix(given_form)
            assert isinstance(matrix, np.ndarray | csr_array)
            assert matrix.dtype == np.float64
            if isinstance(matrix, np.ndarray):
                assert matrix.flags.c_contiguous
            np.testing.assert_array_equal(dense(matrix), np.eye(3))


def test_duplicate_sparse_entries_are_added_without_touching_the_callers_matrix() -> None:
    given_form = csr_array((np.array([0.25, 0.5, 1.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    matrix = as_matrix(given_form)
    np.testing.assert_array_equal(dense(matrix), [[0.0, 0.75], [1.0, 0.0]])
    np.testing.assert_allclose(row_norms(matrix), [0.75, 1.0])
    assert len(given_form.data) == 3


def test_invalid_forms_are_refused() -> None:
    for bad, said in [
        (np.ones(3), "two dimensions"),
        (np.ones((2, 2, 2)), "two dimensions"),
        (np.ones((0, 3)), "nothing to train on"),
        (np.ones((3, 0)), "nothing to train on"),
        (np.array([["a", "b"]]), "must be numbers"),
        (np.array([[1.0, "x"]], dtype=object), "must be numbers"),
    ]:
        with case(bad, said), pytest.raises(DataError, match=said):
            as_matrix(bad)


def test_sparse_entries_outside_of_the_shape_are_refused() -> None:
    """Compiled kernels do not check indices of columns and rows."""
    filled, empty = np.eye(3, 4) * 0.5, np.zeros((3, 4))
    filled[0, 3] = 0.25
    for kind in (csr_array, csc_array, coo_array, lil_array):
        np.testing.assert_array_equal(dense(as_matrix(kind(filled))), filled)
        np.testing.assert_array_equal(dense(as_matrix(kind(empty))), empty)
    for kind, part, place, wrong in [
        *product([csr_array, csc_array], ["indices"], [1], [-1, 4, 50_000_000]),
        *product([csr_array, csc_array], ["indptr"], [0, 1, 3], [-1, 7, 500_000_000]),
        *product([coo_array], ["row", "col"], [1], [-1, 4, 50_000_000]),
        (csc_array, "indices", 1, 3),
        (coo_array, "row", 1, 3),
    ]:
        for matrix in (kind(filled), *([kind(empty)] if part == "indptr" else [])):
            assert matrix.has_canonical_format  # which is remembered
            getattr(matrix, part)[place] = wrong
            with (
                case(kind, part, place, wrong),
                pytest.raises(DataError, match="outside of their shape"),
            ):
                as_matrix(matrix)
    for name in ("indices", "data", "indptr"):
        matrix = csr_array(filled)
        setattr(matrix, name, getattr(matrix, name)[:-1])
        with case(name), pytest.raises(DataError, match="outside of their shape"):
            as_matrix(matrix)


def test_duplicate_sparse_entries_are_detected_in_the_data() -> None:
    matrix = csr_array((np.array([0.7, 0.7]), np.array([0, 1]), np.array([0, 2, 2])), shape=(2, 3))
    assert matrix.has_canonical_format
    matrix.indices[1] = 0
    np.testing.assert_array_equal(row_norms(as_matrix(matrix)), [1.4, 0.0])
    assert matrix.data.tolist() == [0.7, 0.7]


# --- norms -------------------------------------------------------------------------------------------------


@prove
@given(st.lists(st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4), min_size=1, max_size=6))
def test_norms_are_the_same_for_every_storage(table: list[list[float]]) -> None:
    for storage in STORAGE:
        features = stored(np.array(table), storage)
        np.testing.assert_allclose(row_norms(features), np.linalg.norm(dense(features), axis=1), atol=1e-15)


def test_empty_sparse_rows_have_norm_zero() -> None:
    a = np.array([[0.0, 0.0], [0.6, 0.8], [0.0, 0.0], [0.3, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(row_norms(csr_array(a)), [0.0, 1.0, 0.0, 0.3, 0.0])
    assert row_norms(csr_array((3, 2))).tolist() == [0.0, 0.0, 0.0]


def test_nan_and_infinity_are_refused_by_row() -> None:
    for bad, storage in product([np.nan, np.inf, -np.inf], STORAGE):
        with case(bad, storage):
            a = np.full((5, 3), 0.1)
            a[3, 1] = bad
            with pytest.raises(DataError, match=r"row 4 has a NaN, infinite .*the only such row"):
                check_norms(row_norms(stored(a, storage)))


def test_rows_with_large_norms_are_named() -> None:
    for storage in STORAGE:
        with case(storage):
            a = np.full((5, 4), 0.1)
            a[2] = a[4] = 1.0
            with pytest.raises(DataError, match=r"row 3 has L2 norm 2 > 1 \(2 such rows\).*clip_rows=True"):
                check_norms(row_norms(stored(a, storage)))


def test_a_unit_row_may_exceed_1_by_rounding() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1000, 50))
    unit = (a / np.linalg.norm(a, axis=1, keepdims=True)).astype(np.float32)
    check_norms(row_norms(unit))
    check_norms(np.array([1.0 + NORM_SLACK]))
    with pytest.raises(DataError, match="row 1 has L2 norm"):
        check_norms(np.array([np.nextafter(1.0 + NORM_SLACK, 2.0)]))


# --- clipping ----------------------------------------------------------------------------------------------


def test_clipped_rows_have_norm_at_most_1() -> None:
    for storage in STORAGE:
        with case(storage):
            rng = np.random.default_rng(1)
            a = rng.standard_normal((400, 7)) * rng.choice([1e-3, 0.3, 1.0, 1e4, 1e12], size=(400, 1))
            a[rng.random(a.shape) < 0.3] = 0.0
            features = stored(a, storage)
            before = dense(features).copy()
            clipped = clip_rows(features)
            norms = np.linalg.norm(dense(clipped), axis=1)
            assert norms.max() <= 1.0 + rounding(storage)
            assert clipped.dtype == features.dtype
            assert type(clipped) is type(features)
            check_norms(row_norms(clipped))
            length = np.linalg.norm(before, axis=1, keepdims=True)
            expected = np.where(length > 1.0, before / np.maximum(length, 1.0), before)
            np.testing.assert_allclose(dense(clipped), expected, rtol=10 * rounding(storage), atol=1e-12)
            np.testing.assert_array_equal(dense(clipped)[length[:, 0] <= 1.0], before[length[:, 0] <= 1.0])
            np.testing.assert_array_equal(dense(features), before)  # the caller's rows stay


def test_nothing_is_copied_without_large_norms() -> None:
    for storage in STORAGE:
        with case(storage):
            features = stored(np.full((3, 3), 0.1), storage)
            data = lambda m: m.data if isinstance(m, csr_array) else m  # noqa: E731
            assert np.shares_memory(data(clip_rows(features)), data(features))
            unit = stored(np.eye(3), storage)
            assert np.shares_memory(data(clip_rows(unit)), data(unit))


def test_a_row_slightly_above_norm_1_is_clipped_and_one_of_norm_1_is_not() -> None:
    for storage in STORAGE:
        with case(storage):
            clipped = dense(clip_rows(stored(np.array([[1.5, 0.0], [0.0, 1.0]]), storage)))
            assert 1.0 - 1e-6 < clipped[0, 0] <= 1.0
            assert clipped[1].tolist() == [0.0, 1.0]


def test_clipping_does_not_hide_bad_numbers() -> None:
    for bad, storage in product([np.nan, np.inf], STORAGE):
        with case(bad, storage):
            a = np.full((3, 3), 0.1)
            a[1, 0] = bad
            a[2] = 5.0
            with pytest.raises(DataError, match="row 2 has a NaN"):
                clip_rows(stored(a, storage))


@pytest.mark.parametrize("storage", ["dense-f64", "csr-f64"])
def test_clipping_refuses_extremely_large_rows(storage: str) -> None:
    with pytest.raises(DataError, match="row 1 has a NaN, infinite or extremely large"):
        clip_rows(stored(np.array([[1e200, 1.0], [0.1, 0.1]]), storage))


# --- intercept ---------------------------------------------------------------------------------------------


def test_the_intercept_keeps_norms_at_most_1() -> None:
    for storage in STORAGE:
        with case(storage):
            rng = np.random.default_rng(2)
            a = rng.standard_normal((300, 5))
            a /= np.maximum(1.0, np.linalg.norm(a, axis=1, keepdims=True))
            features = clip_rows(stored(a, storage))
            wider = with_intercept(features)
            assert wider.shape == (300, 6)
            assert wider.dtype == features.dtype
            assert type(wider) is type(features)
            norms = np.linalg.norm(dense(wider), axis=1)
            assert norms.max() <= 1.0 + rounding(storage)
            np.testing.assert_allclose(
                norms**2, 0.96**2 * np.linalg.norm(dense(features), axis=1) ** 2 + 0.28**2, rtol=1e-6
            )
            np.testing.assert_allclose(dense(wider)[:, -1], 0.28, rtol=1e-7)
            np.testing.assert_allclose(dense(wider)[:, :-1], dense(features) * 0.96, rtol=1e-6)


def test_rows_may_exceed_norm_1_by_rounding_and_no_more():
    check_norms(np.array([1.0 + 0.9e-6]))
    with pytest.raises(DataError, match="row 1 has L2 norm"):
        check_norms(np.array([1.0 + 1.1e-6]))


def test_rows_are_stacked_as_they_are_stored() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(6, 3))
    coded = CodedRows(matrix[:, :2], np.array([[1], [2], [1], [2], [2], [1]], np.uint8), np.array([0]), 3)
    for rows in (matrix, csr_array(matrix), coded):
        for parts in ([rows], [rows[:2], rows[2:5], rows[5:]]):
            found = stacked(parts)
            assert type(found) is type(rows)
            np.testing.assert_array_equal(dense(found), dense(rows))


def test_norms_of_sparse_rows_are_the_same_portion_by_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = csr_array(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [0.0, 0.0], [5.0, 12.0]]))
    monkeypatch.setattr("dpadmm.matrices.clipping.row_portions", lambda _: [slice(0, 2), slice(2, 3), slice(3, 6)])
    assert row_norms(rows).tolist() == [5.0, 0.0, 2.0, 1.0, 0.0, 13.0]


# --- subnormal numbers ---------------------------------------------------------------------------------------


def matrices(a: Floats) -> dict[str, Features]:
    coded = CodedRows(np.hstack([a, np.ones((len(a), 1))]), np.zeros((len(a), 1), np.uint8), np.arange(1, 4), 4)
    single = CodedRows(coded.values.astype(np.float32), coded.codes, coded.places, 4)
    return {each: stored(a, each) for each in STORAGE} | {"coded-f64": coded, "coded-f32": single}


@pytest.mark.parametrize("storage", [*STORAGE, "coded-f64", "coded-f32"])
def test_subnormal_numbers_become_zeros_in_a_copy(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = float(np.finfo(np.float64 if storage.endswith("f64") else np.float32).tiny)
    a = np.random.default_rng(0).uniform(0.1, 0.5, (40, 3))
    a[:, 1] = 0.0
    a[5:8, 0] = tiny, -tiny, -0.3
    normal = matrices(a)[storage]
    assert without_subnormals(normal) is normal
    for value in (tiny / 2.0, -tiny / 2.0, 1.5 * tiny - tiny, -tiny, tiny):
        for row in (0, 20, 39):
            changed = a.copy()
            changed[row, 2] = value
            matrix = matrices(changed)[storage]
            before = dense(matrix).copy()
            for portion in (2**26, 64 * 24):  # also of several portions of rows
                monkeypatch.setattr("dpadmm.matrices.memmap.PORTION_BYTES", portion)
                out = without_subnormals(matrix)
                assert np.array_equal(dense(matrix), before), "the caller's rows stay as they are"
                assert type(out) is type(matrix)
                assert out.dtype == matrix.dtype
                assert (out is matrix) == (abs(value) == tiny)
                wanted = before.copy()
                wanted[np.abs(wanted) < tiny] = 0.0
                assert np.array_equal(dense(out), wanted)
                assert (row_norms(out) <= row_norms(matrix)).all()
