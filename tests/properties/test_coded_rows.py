"""Coded rows compared with the equivalent dense rows, for all schemas, statistics, losses and code paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import LOSS_CASES, prove, random_labels
from guards import private
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from statistic_cases import all_statistics, grid_of, parameters_for

from dpadmm import kernels
from dpadmm.data.cells import WordCache
from dpadmm.data.encoder import ENCODERS, Encoder, Tally
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Schema
from dpadmm.losses import Logistic, Softmax
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import as_matrix, clip_rows, row_norms, with_intercept
from dpadmm.matrices.coded import CodedRows, code_type
from dpadmm.matrices.features import row_entries
from dpadmm.queries.problem import make_rows

CELLS: dict[str, list[Any]] = {
    "number": [None, -1e9, -1.0, 0.0, 0.25, 1.0, 1e9],
    "category": [None, "v0", "v1", "v5", "v299", "unknown"],
    "ordinal": [None, "low", "middle", "high", "unknown"],
    "boolean": [None, "true", "no", "unknown"],
}


@st.composite
def columns(draw: Any, name: str) -> Column:
    missing = draw(st.sampled_from(["middle", "indicator"]))
    kind = draw(st.sampled_from(list(CELLS)))
    if kind == "number":
        return Number(name, (-1.0, 1.0), bins=draw(st.sampled_from([(), (0.0,), (-0.5, 0.5)])), missing=missing)
    if kind == "category":
        return Category(name, tuple(f"v{i}" for i in range(draw(st.sampled_from([2, 6, 300])))))
    if kind == "ordinal":
        return Ordinal(name, ("low", "middle", "high"), missing=missing)
    return Boolean(name, missing=missing)


@st.composite
def tables(draw: Any) -> tuple[Schema, Any, bool]:
    """Draw a schema with a category, the cells of a few rows, and whether there is an intercept.

    Some rows need clipping.
    """
    named = [draw(columns(f"c{i}")) for i in range(draw(st.integers(0, 4)))]
    named.insert(draw(st.integers(0, len(named))), Category("kind", ("v0", "v1")))
    schema = Schema(tuple(named), draw(st.sampled_from([None, 0.5, 1.0])))
    n = draw(st.integers(2, 9))
    cells = {item.name: draw(st.lists(st.sampled_from(CELLS[item.kind]), min_size=n, max_size=n)) for item in named}
    kinds = {item.name: pa.float64() if item.kind == "number" else pa.string() for item in named}
    batch = pa.record_batch({name: pa.array(values, kinds[name]) for name, values in cells.items()})
    return schema, batch, draw(st.booleans())


def plain(schema: Schema, batch: Any, intercept: bool) -> Floats:
    """Return the dense rows, feature by feature."""
    rows, first = np.zeros((batch.num_rows, len(schema.features))), 0
    for column in schema.columns:
        for place, value in ENCODERS[column.kind](column, batch.column(column.name), Tally(), WordCache()):
            rows[np.arange(len(rows)), first + place] = value
        first += len(column.features)
    rows /= schema.scale
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    return np.asarray(with_intercept(rows) if intercept else rows)


@prove
@given(tables())
def test_encoded_table_matches_its_features(table: tuple[Schema, Any, bool]) -> None:
    schema, batch, intercept = table
    coded = Encoder(schema, intercept=intercept).encode(batch)
    assert isinstance(coded, CodedRows)
    assert coded.codes.dtype == (np.uint8 if len(schema.features) <= 256 else np.uint16)
    np.testing.assert_allclose(coded.toarray(), plain(schema, batch, intercept), rtol=3e-6, atol=1e-7)
    alone = [Encoder(schema, intercept=intercept).encode(batch.slice(row, 1)) for row in range(batch.num_rows)]
    assert np.concatenate([item.toarray() for item in alone]).tobytes() == coded.toarray().tobytes()


@prove
@given(tables(), st.sampled_from(LOSS_CASES), st.sampled_from([np.float32, np.float64]), st.data())
def test_sums_over_coded_and_dense_rows_agree(table: tuple[Schema, Any, bool], loss: Any, kind: Any, data: Any) -> None:
    schema, batch, intercept = table
    coded = Encoder(schema, intercept=intercept).encode(batch)
    wide = coded.codes.dtype == np.uint16  # each pair of types is compiled on its own, which takes seconds
    coded = coded.astype(np.float64 if wide else kind)
    coded.values[data.draw(st.integers(0, 8)) % len(coded.values)] = 0.0  # a silent row
    labels = random_labels(loss, np.random.default_rng(0), batch.num_rows)
    short, dense, sparse = (make_rows(item, labels) for item in (coded, coded.toarray(), coded.tocsr()))
    assert np.array_equal(sparse.features.toarray(), dense.features)
    np.testing.assert_allclose(short.norms, dense.norms, rtol=1e-14)
    close = {"rtol": 1e-9, "atol": 1e-9}
    points = np.random.default_rng(1).normal(size=(1, short.n_features, loss.n_outputs))
    np.testing.assert_allclose(kernels.scores(short, points), kernels.scores(dense, points), **close)
    np.testing.assert_allclose(coded @ points[0], dense.features @ points[0], rtol=1e-5, atol=1e-6)
    for statistic in all_statistics(loss, short.n_features):
        for parameters in parameters_for(statistic)[:2]:
            bound = grid_of(statistic, len(labels)).row_bound
            found, wanted = (statistic.sums(rows, parameters[None], bound=bound) for rows in (short, dense))
            np.testing.assert_allclose(found, wanted, **close)
            found, wanted = (statistic.means(rows, parameters[None]) for rows in (short, dense))
            np.testing.assert_allclose(found, wanted, **close)


@prove
@given(tables(), st.sampled_from([0.1, 1.0, 30.0]))
def test_clipping_and_constant_column_match_dense_rows(table: tuple[Schema, Any, bool], length: float) -> None:
    schema, batch, _ = table
    coded = Encoder(schema).encode(batch).astype(np.float64)
    coded.values[:] *= length
    dense = coded.toarray()
    for change in (clip_rows, with_intercept, lambda rows: with_intercept(clip_rows(rows))):
        np.testing.assert_allclose(change(coded).toarray(), change(dense), rtol=1e-14)
    once = clip_rows(coded)
    assert row_norms(once).max() <= 1.0
    assert clip_rows(once) is once


def test_gradients_of_many_rows_and_categories_match_dense_rows() -> None:
    """More rows than one pass processes, agents of odd sizes, and more categories than one lookup table holds."""
    rng, sizes, offsets = np.random.default_rng(0), np.array([2, 3, 300, 5, 7, 4, 9]), np.array([0, 1001, 1004, 1600])
    codes = 3 + np.cumsum(sizes) - sizes + rng.integers(0, sizes, (1600, 7))
    coded = CodedRows(rng.uniform(-0.3, 0.3, (1600, 4)), codes.astype(np.uint16), np.arange(3), 333)
    for loss in (Logistic(), Softmax(n_outputs=10)):
        labels = random_labels(loss, rng, 1600)
        short, dense = (make_rows(item, labels, offsets=offsets) for item in (coded, coded.toarray()))
        points = rng.normal(size=(3, 333, loss.n_outputs))
        for bound in (0.01, loss.lipschitz):
            found, wanted = (kernels.gradient(rows, points, loss, bound=bound) for rows in (short, dense))
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-15)
            np.testing.assert_allclose(
                kernels.reference_gradient(short, points, loss, bound=bound), found, rtol=1e-11, atol=1e-15
            )


def test_two_entries_of_a_row_in_one_column_are_refused() -> None:
    """Their norm would be larger than computed."""
    values, places = np.full((3, 2), 0.5), np.array([0])
    for codes in ([[0], [1], [2]], [[1], [2], [3]], [[1, 2], [2, 3], [1, 3]]):
        with pytest.raises(ValueError, match="columns of its own"):
            as_matrix(CodedRows(values, np.array(codes, np.uint8), places, 3 + (len(codes[0]) > 1)))
    as_matrix(CodedRows(values, np.array([[1], [2], [2]], np.uint8), places, 3))
    with pytest.raises(ValueError, match="as many rows of codes"):
        CodedRows(values, np.array([1, 2, 2], np.uint8), places, 3).check()


def test_inconsistent_parts_are_refused() -> None:
    """A number stored in two columns would count once in the norm."""
    values, codes, places = np.full((3, 2), 0.5), np.array([[1], [2], [2]], np.uint8), np.array([0])
    for parts in (
        (values, codes, np.array([0, 3])),
        (values, codes, np.array([[0]])),
        (values, codes, np.array([-1])),
        (values[:, 0], codes, places),
        (values, codes[:2], places),
        (values, codes[:, 0], places),
        (values, codes.astype(np.uint64) + 2**63, places),
        (values, codes.astype(np.int8), places),
    ):
        with pytest.raises(ValueError, match="coded rows"):  # a message for each check
            as_matrix(CodedRows(*parts, width=4))


def test_checked_rows_are_copies() -> None:
    coded = CodedRows(np.full((3, 2), 0.5), np.array([[1], [2], [2]], np.uint8), np.array([0]), 4)
    checked = private(coded, np.ones(3))
    before = checked.digest()
    for part, value in ((coded.values, 0.1), (coded.codes, 3), (coded.places, 3)):
        part[...] = value
    assert checked.digest() == before


def test_products_equal_products_with_the_dense_matrix() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers([2, 5, 301], [5, 300, 310], (50, 3)).astype(np.uint16)
    coded = CodedRows(rng.normal(size=(50, 3)), codes, np.array([1, 300]), 312)
    dense, sparse = coded.toarray(), coded.tocsr()
    assert isinstance(sparse, csr_array)
    assert (sparse.shape, sparse.has_sorted_indices) == ((50, 312), True)
    np.testing.assert_array_equal(sparse.toarray(), dense)
    single = CodedRows(coded.values[:, 2:], codes[:, :1], np.array([], np.int64), 312)
    np.testing.assert_array_equal(single.tocsr().toarray(), single.toarray())
    assert row_entries(coded).tolist() == [5] * 50
    for outputs in ((), (1,), (4,)):
        weights, slopes = rng.normal(size=(312, *outputs)), rng.normal(size=(50, *outputs))
        np.testing.assert_allclose(coded @ weights, dense @ weights)
        np.testing.assert_allclose(coded.T @ slopes, dense.T @ slopes)
    np.testing.assert_allclose(coded.sum(axis=1), dense.sum(axis=1))
    np.testing.assert_array_equal(np.asarray(coded[3:9]), dense[3:9])
    with pytest.raises(ValueError, match="row by row"):
        coded.sum(axis=0)


def test_sums_and_products_are_computed_in_float64() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(1, 4, (20, 1)).astype(np.uint8)
    narrow = CodedRows(rng.normal(size=(20, 2)).astype(np.float32), codes, np.array([0]), 4)
    wide = narrow.astype(np.float64)
    weights, slopes = rng.normal(size=4).astype(np.float32), rng.normal(size=20).astype(np.float32)
    np.testing.assert_array_equal(narrow @ weights, wide @ weights.astype(np.float64))
    np.testing.assert_array_equal(narrow.T @ slopes, wide.T @ slopes.astype(np.float64))
    assert (np.asarray(narrow).dtype, np.asarray(narrow, np.float64).dtype) == (np.float32, np.float64)
    assert wide.astype(np.float64, copy=False).values is wide.values
    assert wide.astype(np.float64).values is not wide.values
    assert [code_type(width) for width in (256, 257, 2**16 + 1)] == [np.uint8, np.uint16, np.uint32]
