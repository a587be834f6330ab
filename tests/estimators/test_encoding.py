"""Scaling by public constants: row norms within 1, and coefficients in the original units."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from looping import case
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from dpadmm.errors import DataError, StudyError
from dpadmm.estimators.encoding import _by_column, encoding_of, label_scale
from dpadmm.matrices.clipping import row_norms, with_intercept

RNG = np.random.default_rng(3)
X = RNG.uniform([0.0, -50.0, 1900.0], [1.0, 50.0, 2020.0], (40, 3))
BOUNDS = ([0.0, -50.0, 1900.0], [1.0, 50.0, 2020.0])
CASES = {
    "norm": {"data_norm": 2500.0, "bounds": None},
    "bounds": {"data_norm": None, "bounds": BOUNDS},
    "both": {"data_norm": 1.8, "bounds": BOUNDS},
    "scale": {"data_norm": 200.0, "bounds": None, "center": 0, "scale": [0.3, 20.0, 40.0]},
}


def test_scores_are_equal_in_scaled_and_original_units() -> None:
    for kind, scaling, intercept in product([np.float64, np.float32], CASES, [True, False]):
        with case(kind, scaling, intercept):
            encoding, read_off = encoding_of(X, **CASES[scaling], centred=intercept)
            weights = RNG.standard_normal((3 + intercept, 2))
            coef, constant = encoding.coefficients(weights, intercept)
            rows = encoding.rows(X.astype(kind))
            scores = (with_intercept(rows) if intercept else rows) @ weights
            assert_allclose(scores, X @ coef.T + constant, rtol=1e-10 if kind is np.float64 else 2e-4, atol=2e-4)
            assert not read_off
            assert rows.dtype == kind
            assert intercept or not constant.any()


def test_bounds_keep_row_norms_within_one() -> None:
    wild = RNG.normal(scale=1e6, size=(50, 3))
    encoding, _ = encoding_of(wild, data_norm=None, bounds=BOUNDS, centred=True)
    norms = row_norms(encoding.rows(wild))
    assert norms.max() <= 1.0 + 1e-12
    assert norms.max() == pytest.approx(1.0)  # attained: noise is not made for longer rows than there can be


def test_rows_are_clamped_and_then_standardised_by_public_numbers() -> None:
    public = {"center": [0.5, 0.0, 1960.0], "scale": [0.3, 25.0, 30.0]}
    wild = X * [1.0, 3.0, 1.0]
    for bounds, seen in [(None, wild), (BOUNDS, np.clip(wild, *BOUNDS))]:
        encoding, read_off = encoding_of(wild, data_norm=None, bounds=bounds, centred=True, **public)
        assert_allclose(encoding.rows(wild), (seen - public["center"]) / public["scale"] / np.sqrt(3.0), rtol=1e-12)
        assert not read_off
        weights = RNG.standard_normal((4, 2))
        coef, constant = encoding.coefficients(weights, True)
        assert_allclose(with_intercept(encoding.rows(wild)) @ weights, seen @ coef.T + constant, rtol=1e-9, atol=1e-9)


def test_numbers_by_column_name_follow_the_column_order() -> None:
    pandas = pytest.importorskip("pandas")
    names, usual = ["share", "angle", "year"], {"year": 1960.0, "share": 0.5, "angle": 0.0}
    wide = {"year": 30.0, "angle": 25.0, "share": 0.3}
    low, high = (dict(zip(names, each, strict=True)) for each in BOUNDS)
    plain, _ = encoding_of(X, data_norm=None, bounds=BOUNDS, center=[0.5, 0, 1960], scale=[0.3, 25, 30], centred=True)
    by_name = {name: (low[name], high[name]) for name in reversed(names)}
    series = pandas.Series
    for bounds, center, scale in [
        (by_name, usual, wide),
        ((low, high), usual, wide),
        (pandas.DataFrame(by_name), series(usual), series(wide)),
        ((series(low)[::-1], series(high)), series(usual), wide),
    ]:
        with case(bounds):
            found, _ = encoding_of(
                X, data_norm=None, bounds=bounds, center=center, scale=scale, centred=True, names=names
            )
            assert_array_equal(found.rows(X), plain.rows(X))
    assert_array_equal(_by_column("scale", series([1.0, 2.0, 3.0]), 3, None), [1.0, 2.0, 3.0])  # no names, so in order


def test_scaling_of_a_row_does_not_depend_on_other_rows() -> None:
    encoding, _ = encoding_of(X, data_norm=None, bounds=BOUNDS, centred=True)
    fewer, _ = encoding_of(X[:5], data_norm=None, bounds=BOUNDS, centred=True)
    assert_array_equal(encoding.rows(X)[:5], fewer.rows(X[:5]))


def test_sparse_rows_stay_sparse_and_equal_dense_ones_without_a_centre() -> None:
    some = np.where(RNG.random((30, 3)) < 0.5, 0.0, RNG.uniform(-5.0, 9.0, (30, 3)))
    bounds = (-1.0, [2.0, 4.0, 8.0])
    encoding, _ = encoding_of(csr_array(some), data_norm=None, bounds=bounds, centred=True)
    dense, _ = encoding_of(some, data_norm=None, bounds=bounds, centred=False)
    rows = encoding.rows(csr_array(some))
    assert isinstance(rows, csr_array)
    assert_allclose(rows.toarray(), dense.rows(some))


def test_sparse_rows_are_predicted_by_a_centred_encoding() -> None:
    some = np.array([[0.0, 1.0], [2.0, 0.0]])
    encoding, _ = encoding_of(some, data_norm=None, bounds=(1.0, 3.0), centred=True)
    assert_array_equal(encoding.rows(csr_array(some)), encoding.rows(some))


def test_missing_norm_is_inferred_with_a_warning() -> None:
    encoding, read_off = encoding_of(X, data_norm=None, bounds=None, centred=True)
    assert read_off
    assert encoding.norm == pytest.approx(np.linalg.norm(X, axis=1).max())
    assert encoding_of(np.zeros((2, 2)), data_norm=None, bounds=None, centred=True)[0].norm == 1.0


def test_invalid_bounds_give_one_sentence() -> None:
    for how, words in [
        ({"bounds": (1.0, 0.0)}, "bounds of feature 1 must have low <= high, not 1 > 0"),
        ({"bounds": ([0, 0, 5], [1, 1, 4])}, "bounds of feature 3 must have low <= high, not 5 > 4"),
        ({"bounds": ([0.0, 1.0], 2.0)}, "bounds must be a pair (low, high), each of one number or 3"),
        ({"bounds": 3.0}, "bounds must be a pair"),
        ({"bounds": (0.0, np.inf)}, "bounds must be finite numbers"),
        ({"data_norm": 0.0}, "data_norm must be a positive number, not 0.0"),
        ({"data_norm": "long"}, "data_norm must be a positive number, not 'long'"),
        ({"data_norm": np.inf}, "data_norm must be a positive number, not inf"),
        ({"data_norm": -1.0, "scale": 1.0}, "data_norm must be a positive number, not -1.0"),
        ({"center": 1.0}, "center needs scale"),
        ({"center": [0.0, np.nan, 0.0], "scale": 1.0}, "center of feature 2 must be a finite number"),
        ({"scale": [1.0, 2.0, np.inf]}, "scale of feature 3 must be a finite number"),
        ({"scale": [1.0, 0.0, 1.0]}, "scale of feature 2 must be a positive number"),
        ({"scale": -1.0, "names": ["a", "b", "c"]}, "scale of column 'a' must be a positive number"),
        ({"scale": [1.0, 2.0]}, "scale must be one number or 3, or one by column name, not [1.0, 2.0]"),
        ({"scale": "wide"}, "scale must be one number or 3, or one by column name, not 'wide'"),
        ({"scale": 1.0, "center": 5.0, "bounds": (0.0, 1.0)}, "center of feature 1 must lie within its bounds"),
        ({"scale": {"a": 1.0}}, "scale by column name needs an X with column names, such as a data frame"),
        ({"scale": {"age": 1.0}, "names": ["ages", "b", "c"]}, "scale: X has no column 'age'; did you mean 'ages'?"),
        (
            {"scale": {"b": 1.0}, "names": ["a", "b", "c"]},
            "scale must be given for every column of X; missing: 'a', 'c'",
        ),
        (
            {"bounds": {"b": (0, 1)}, "names": ["a", "b", "c"]},
            "bounds must be given for every column of X; missing: 'a'",
        ),
        ({"bounds": {"a": 1, "b": 1, "c": 1}, "names": ["a", "b", "c"]}, "bounds must be a pair (low, high)"),
    ]:
        with case(how, words), pytest.raises(StudyError, match=re.escape(words)):
            encoding_of(X, **({"data_norm": None, "bounds": None} | how), centred=True)


def test_unscalable_rows_give_one_sentence() -> None:
    with pytest.raises(StudyError, match="bounds of sparse rows must include 0"):
        encoding_of(csr_array(X), data_norm=None, bounds=(1.0, 2.0), centred=True)
    for rows, centred in ((csr_array(X), True), (X, False)):
        with pytest.raises(StudyError, match="center must be 0 for sparse rows and without an intercept"):
            encoding_of(rows, data_norm=None, bounds=None, centred=centred, center=1.0, scale=1.0)
        encoding_of(rows, data_norm=None, bounds=None, centred=centred, scale=1.0)
    with pytest.raises(DataError, match="norm of a row is not finite"):
        encoding_of(np.full((2, 2), 1e300), data_norm=None, bounds=None, centred=True)


def test_labels_are_scaled_to_their_bounds() -> None:
    y = np.array([1.0, 7.0])
    assert label_scale(y, (0.0, 10.0), centred=True) == (0.0, 10.0, 5.0, 5.0)
    assert label_scale(y, (-2.0, 10.0), centred=False) == (-2.0, 10.0, 0.0, 10.0)
    assert label_scale(y, None, centred=True) == (1.0, 7.0, 4.0, 3.0)
    assert label_scale(y, (4.0, 4.0), centred=True) == (4.0, 4.0, 4.0, 1.0)
    with pytest.raises(StudyError, match="y_bounds must have low <= high, not 2 > 1"):
        label_scale(y, (2.0, 1.0), centred=True)
