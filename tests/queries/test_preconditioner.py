"""The preconditioner: its inverse, and that a row's result depends only on this row."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from cases import prove, random_rows
from hypothesis import given
from hypothesis import strategies as st
from looping import case
from scipy.sparse import csr_array

from dpadmm.matrices import memmap
from dpadmm.matrices.clipping import row_norms
from dpadmm.queries import preconditioner as shape_module
from dpadmm.queries.preconditioner import Preconditioner
from dpadmm.queries.problem import make_rows


@st.composite
def moments(draw: Any) -> tuple[Any, Any, float]:
    """Draw variances (some zero, or negative because of noise), means and a ridge."""
    d = draw(st.integers(1, 7))
    number = st.floats(-1.0, 1.0, allow_subnormal=False)
    variances = np.array(draw(st.lists(st.sampled_from([-0.1, 0.0, 1e-6, 0.02, 0.4]), min_size=d, max_size=d)))
    means = np.array(draw(st.lists(st.one_of(st.just(0.0), number), min_size=d, max_size=d)))
    return variances, means, draw(st.sampled_from([1e-8, 1e-4, 0.03, 2.0]))


def matrix(shape: Preconditioner) -> Any:
    """Return B."""
    return shape.times(np.eye(len(shape.scale)))


@prove
@given(moments())
def test_rows_of_this_second_moment_become_isotropic(world: tuple[Any, Any, float]) -> None:
    variances, means, ridge = world
    shape, d = Preconditioner.of(variances, means, ridge), len(means)
    moment = np.diag(np.maximum(variances, 0.0)) + np.outer(means, means)
    b = matrix(shape)
    # What the smallest eigenvalue of a matrix of condition 1e8 allows
    np.testing.assert_allclose(b @ (moment + ridge * np.eye(d)) @ b.T, np.eye(d), atol=1e-7)
    eigenvalues = np.maximum(np.linalg.eigvalsh(moment), 0.0)
    assert shape.rank(ridge) == pytest.approx(np.sum(eigenvalues / (eigenvalues + ridge)), abs=1e-6)


@prove
@given(moments(), st.integers(0, 2**32), st.sampled_from([None, 1, 3]))
def test_products_equal_products_with_the_matrix(world: tuple[Any, Any, float], seed: int, columns: int | None) -> None:
    shape, d = Preconditioner.of(*world), len(world[0])
    rng, b = np.random.default_rng(seed), matrix(shape)
    x = rng.standard_normal(d if columns is None else (d, columns))
    size = np.abs(b).sum()
    np.testing.assert_allclose(shape.times(x), b @ x, atol=1e-12 * size)
    np.testing.assert_allclose(shape.transposed_times(x), b.T @ x, atol=1e-12 * size)
    theta = shape.solve_transposed(x)
    np.testing.assert_allclose(shape.transposed_times(theta), x, atol=1e-9 * np.abs(x).max() * size)
    features = random_rows(rng, 9, d)
    for rows in (features, csr_array(features), features.astype(np.float32)):
        result = shape.rows(rows)
        exact = rows.toarray() if isinstance(rows, csr_array) else rows.astype(np.float64)
        result = result.toarray() if isinstance(result, csr_array) else result
        np.testing.assert_allclose(result, exact @ b.T, atol=1e-11 * size)


@prove
@given(moments(), st.integers(0, 2**32), st.sampled_from([1, 3]), st.sampled_from([1e-3, 0.1, 1.0, 50.0]))
def test_filtered_equals_the_dense_formula(
    world: tuple[Any, Any, float], seed: int, columns: int, doubt: float
) -> None:
    """``M(M + cI)⁻¹x`` with M = BKBᵀ keeps directions in which rows vary, and removes those where K is zero."""
    variances, means, ridge = world
    shape, d = Preconditioner.of(variances, means, ridge), len(means)
    b, kernel = matrix(shape), np.diag(np.maximum(variances, 0.0)) + np.outer(means, means)
    x = np.random.default_rng(seed).standard_normal((d, columns))
    m = b @ kernel @ b.T
    expected = m @ np.linalg.solve(m + doubt * np.eye(d), x)
    found = shape.filtered(x, ridge, doubt)
    np.testing.assert_allclose(found, expected, atol=1e-7 * (1.0 + 1.0 / doubt) * np.abs(x).max())
    assert np.linalg.norm(found) <= np.linalg.norm(x) * (1.0 + 1e-6)


def test_filter_is_identity_at_zero_and_vanishes_for_large_noise() -> None:
    shape, x = (
        Preconditioner.of(np.array([0.3, 0.1, 0.02]), np.array([0.2, -0.5, 0.1]), 1e-3),
        np.arange(6.0).reshape(3, 2),
    )
    np.testing.assert_allclose(shape.filtered(x, 1e-3, 1e-12), x, atol=1e-9)
    assert np.abs(shape.filtered(x, 1e-3, 1e9)).max() < 1e-8


SHAPES = {
    "diagonal": Preconditioner(np.linspace(0.1, 3.0, 6), np.zeros(6)),
    "turned": Preconditioner(np.linspace(0.1, 3.0, 6), np.array([0.5, -1.0, 0.0, 2.0, 0.1, 0.0])),
    "far": Preconditioner(np.array([1e9, 1e-9, 1e9, 1.0, 1.0, 1e-9]), 1e9 * np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])),
}


def test_result_of_a_row_depends_on_this_row_only() -> None:
    rng = np.random.default_rng(3)
    features = random_rows(rng, 50, 6)
    features[rng.random(features.shape) < 0.3] = 0.0
    for name, storage in product(SHAPES, (np.asarray, csr_array, np.float32)):
        with case(name, storage), pytest.MonkeyPatch.context() as patch:
            rows, shape = storage(features), SHAPES[name]
            whole = _dense(shape.rows(rows))
            for place in (0, 7, 49):
                assert np.array_equal(_dense(shape.rows(rows[[place]]))[0], whole[place])
            patch.setattr(shape_module, "PORTION", 13)
            assert np.array_equal(_dense(shape.rows(rows)), whole)
            patch.setattr(memmap, "MEMORY_BYTES", 100)
            patch.setattr(memmap, "PORTION_BYTES", 1000)
            mapped = shape.rows(rows)
            assert memmap.is_unnamed(mapped) == (name != "diagonal" or storage is not csr_array)
            assert np.array_equal(_dense(mapped), whole)


def test_dense_and_sparse_results_agree() -> None:
    features = random_rows(np.random.default_rng(4), 30, 6)
    features[::2, 3] = 0.0
    for name, shape in SHAPES.items():
        with case(name):
            result = shape.rows(csr_array(features))
            assert isinstance(result, csr_array) == (name == "diagonal")
            assert np.array_equal(_dense(result), _dense(shape.rows(features)))


def _dense(features: Any) -> Any:
    return features.toarray() if isinstance(features, csr_array) else np.asarray(features)


# Cached preconditioned rows


def test_preconditioned_rows_are_cached_per_preconditioner() -> None:
    features = random_rows(np.random.default_rng(5), 12, 6)
    rows = make_rows(features, np.ones(12), order=np.arange(12)[::-1].copy(), offsets=np.array([0, 5, 12]))
    for shape in SHAPES.values():
        result = rows.transformed(shape)
        assert rows.transformed(shape.copy()) is result
        assert np.array_equal(result.features, shape.rows(rows.features))
        assert np.array_equal(result.norms, row_norms(result.features)[result.order])
        assert np.array_equal(result.labels, rows.labels)
        other = Preconditioner(np.nextafter(shape.scale, 2.0), shape.direction)
        turned = Preconditioner(other.scale, np.nextafter(shape.direction, 2.0))
        assert rows.transformed(other) is not result
        assert rows.transformed(turned) is not rows.transformed(other)
        assert np.array_equal(rows.transformed(turned).features, turned.rows(rows.features))


def test_cache_detects_changed_arrays() -> None:
    rows = make_rows(random_rows(np.random.default_rng(6), 12, 6), np.ones(12))
    scale, direction = np.ones(6), np.zeros(6)
    before = rows.transformed(Preconditioner(scale, direction)).features
    scale[:] = 2.0
    assert np.array_equal(rows.transformed(Preconditioner(scale, direction)).features, 2.0 * before)


def test_cache_is_not_shared_with_subsets_of_rows() -> None:
    rows = make_rows(random_rows(np.random.default_rng(7), 12, 6), np.ones(12), offsets=np.array([0, 5, 12]),
                     order=np.arange(12))  # fmt: skip
    shape = SHAPES["turned"]
    result = rows.transformed(shape)
    for chosen in (rows.agent(1), rows.subsample(0.9, seed=1, round=1)):
        assert not chosen._cache
    alone = rows.agent(1).transformed(shape)
    assert np.array_equal(alone.features[alone.order], result.features[result.order[5:]])
    assert np.array_equal(alone.norms, result.norms[5:])
    assert result.transformed(shape) is not result
