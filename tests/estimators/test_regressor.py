"""DPADMMRegressor: the objective, labels in their own units, clamping."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from looping import case
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Lasso, Ridge

from dpadmm import DPADMMRegressor, PrivacyLeakWarning
from dpadmm.errors import StudyError

RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (300, 3))
Y = 100.0 + X @ [4.0, -3.0, 0.0] + RNG.standard_normal(300)
NORM = float(np.sqrt(12.0))
PUBLIC = {"data_norm": NORM, "y_bounds": (70.0, 130.0)}
LOUD = 1e7
SEEDED = pytest.mark.filterwarnings("ignore:random_state makes the noise:dpadmm.PrivacyLeakWarning")


@SEEDED
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_alpha_matches_ridge(loss: str) -> None:
    y, alpha = Y - 100.0, 30.0
    oracle = Ridge(alpha=alpha, fit_intercept=False).fit(X, y)
    model = DPADMMRegressor(
        LOUD, alpha=alpha, data_norm=NORM, y_bounds=(-30.0, 30.0), loss=loss, fit_intercept=False,
        max_iter=1000, weight_radius=10.0, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert_allclose(model.coef_, oracle.coef_, atol=0.05)
    assert model.intercept_ == 0.0


@SEEDED
def test_l1_ratio_matches_lasso() -> None:
    y, alpha = Y - 100.0, 300.0
    oracle = Lasso(alpha=alpha / len(y), fit_intercept=False).fit(X, y)
    model = DPADMMRegressor(
        LOUD, alpha=alpha, l1_ratio=1.0, data_norm=NORM, y_bounds=(-30.0, 30.0), fit_intercept=False,
        max_iter=2000, random_state=0,
    ).fit(X, y)  # fmt: skip
    assert np.abs(oracle.coef_[2]) < 0.01 < np.abs(oracle.coef_[1])
    assert_allclose(model.coef_, oracle.coef_, atol=0.1)


@SEEDED
@pytest.mark.parametrize("l1_ratio", [0.0, 1.0])
def test_model_does_not_depend_on_the_unit_of_the_labels(l1_ratio: float) -> None:
    """The alpha of a lasso is in units of the labels, that of a ridge has no unit."""
    models = [
        DPADMMRegressor(
            alpha=30.0 * unit**l1_ratio, l1_ratio=l1_ratio, data_norm=NORM,
            y_bounds=(-30.0 * unit, 30.0 * unit), fit_intercept=False, max_iter=5, random_state=0,
        ).fit(X, unit * (Y - 100.0))
        for unit in (1.0, 4.0)
    ]  # fmt: skip
    assert_allclose(models[1].coef_, 4.0 * models[0].coef_, rtol=1e-9)


@SEEDED
def test_line_and_intercept_are_learnt_with_little_noise() -> None:
    model = DPADMMRegressor(LOUD, alpha=0.0, max_iter=1000, random_state=0, **PUBLIC).fit(X, Y)
    assert_allclose(model.coef_, [4.0, -3.0, 0.0], atol=0.2)
    assert model.intercept_ == pytest.approx(100.0, abs=0.3)
    assert model.score(X, Y) > 0.95


def test_predictions_are_linear_in_the_units_of_rows_and_labels() -> None:
    for intercept, scaling in product([True, False], [{"data_norm": NORM}, {"bounds": ([-2.0, -2.0, -2.5], 2.0)}]):
        with case(intercept, scaling):
            model = DPADMMRegressor(y_bounds=(70, 130), fit_intercept=intercept, max_iter=5, **scaling).fit(X, Y)
            assert model.coef_.shape == (3,)
            assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)
            assert intercept or model.intercept_ == 0.0


@SEEDED
def test_labels_beyond_their_bounds_are_clamped() -> None:
    wild = np.where(Y > 105.0, 1e9, Y)
    models = [
        DPADMMRegressor(data_norm=NORM, y_bounds=(95.0, 105.0), max_iter=5, random_state=0).fit(X, labels)
        for labels in (wild, Y)
    ]
    assert_array_equal(models[0].coef_, models[1].coef_)


def test_missing_label_bounds_are_inferred_with_a_warning() -> None:
    with pytest.warns(PrivacyLeakWarning, match=r"the bounds of y \(set y_bounds=\)"):
        model = DPADMMRegressor(data_norm=NORM, max_iter=5).fit(X, Y)
    assert model.privacy_["read_off_the_data"] == ["the bounds of y (set y_bounds=)"]


@SEEDED
def test_noise_is_proportional_to_the_gradient_bound() -> None:
    far = [
        np.linalg.norm(
            DPADMMRegressor(0.1, gradient_bound=bound, method="dp_admm", max_iter=1, random_state=0, **PUBLIC)
            .fit(np.zeros((300, 3)), np.full(300, 100.0))
            .coef_
        )
        for bound in (1e-3, 2e-3)
    ]
    assert far[1] / far[0] == pytest.approx(2.0, rel=0.01)


def test_invalid_parameters_give_one_sentence() -> None:
    for given, words in [
        ({"y_bounds": (2.0, 1.0)}, "y_bounds must have low <= high"),
        ({"y_bounds": 3.0}, r"y_bounds must be a pair \(low, high\)"),
        ({"alpha": -1.0}, "alpha must be a number of at least 0, not -1.0"),
        ({"gradient_bound": 0.0}, "gradient_bound must be a positive number, not 0.0"),
        ({"loss": "hinge"}, "loss must be one of squared, huber, not 'hinge'"),
    ]:
        with case(given, words), pytest.raises(StudyError, match=words):
            DPADMMRegressor(**(PUBLIC | given)).fit(X, Y)
