"""The estimator for counts, compared with scikit-learn and statsmodels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from looping import case
from sklearn.linear_model import PoissonRegressor

from dpadmm.errors import DataError, PrivacyLeakWarning, StudyError
from dpadmm.estimators import DPADMMPoissonRegressor, PrivateSearch

PUBLIC: dict[str, Any] = {"bounds": (-1, 1), "y_max": 40, "exposure_max": 5}


def rows(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    x, years = rng.uniform(-1, 1, (n, 3)), rng.uniform(0.5, 5.0, n)
    return x, rng.poisson(years * np.exp(0.2 + x @ [0.8, -0.5, 0.0])), years


def fitted(epsilon: float, n: int = 20_000, **more: Any) -> tuple[DPADMMPoissonRegressor, Any, Any, Any]:
    x, y, years = rows(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # of random_state
        model = DPADMMPoissonRegressor(epsilon, random_state=1, **{**PUBLIC, **more}).fit(x, y, exposure=years)
    return model, x, y, years


def test_explained_deviance_is_close_to_scikit_learn() -> None:
    for epsilon, lost in ((1.0, 0.01), (100.0, 0.002)):
        with case(epsilon):
            model, x, y, years = fitted(epsilon)
            known = PoissonRegressor(alpha=0.0).fit(x, y / years, sample_weight=years)
            best = known.score(x, y / years, sample_weight=years)
            assert model.score(x, y / years, sample_weight=years) > best - lost
            np.testing.assert_allclose(model.predict(x[:5]), np.exp(x[:5] @ model.coef_ + model.intercept_), rtol=1e-6)
            assert np.abs(np.log(model.predict(x) / known.predict(x))).max() < 0.6 / epsilon**0.5


def test_dp_admm_learns_counts() -> None:
    model, x, y, years = fitted(20.0, method="dp_admm", gradient_bound=0.3, weight_radius=10.0)
    assert model.score(x, y / years, sample_weight=years) > 0.1


def test_intervals_contain_and_exceed_those_of_statsmodels() -> None:
    model, x, y, years = fitted(4.0, inference=True)
    known = sm.GLM(y, sm.add_constant(x), family=sm.families.Poisson(), offset=np.log(years)).fit()
    ends = model.conf_int()
    middle, width = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / (2.0 * 1.959964)
    np.testing.assert_allclose(middle, [*model.coef_, model.intercept_], rtol=1e-9)
    assert np.abs((middle - known.params[[1, 2, 3, 0]]) / width).max() < 4.0
    assert (width > known.bse[[1, 2, 3, 0]]).all()
    assert (width < 6.0 * known.bse[[1, 2, 3, 0]]).all()
    assert "rate ratio" in model.summary()


def test_invalid_counts_and_exposures_are_named_before_any_charge() -> None:
    x, y, years = rows(50)
    for change, words in [
        ({"y": np.where(np.arange(50) == 7, -1, y)}, r"y\[7\] is -1; counts must be at least 0"),
        (
            {"exposure": np.where(np.arange(50) == 3, 0.0, years)},
            r"exposure\[3\] is 0; exposures must be finite and positive",
        ),
        ({"exposure": np.where(np.arange(50) == 3, np.nan, years)}, r"exposure\[3\] is nan"),
        ({"exposure": years[:9]}, "exposure has shape .9,., but there are 50 rows"),
    ]:
        with case(words), pytest.raises(DataError, match=words):
            DPADMMPoissonRegressor(**PUBLIC).fit(x, change.get("y", y), exposure=change.get("exposure", years))
    for more, words in [({"fit_intercept": False}, "fit_intercept must be True"), ({"y_max": -1}, "y_max")]:
        with case(words), pytest.raises(StudyError, match=words):
            DPADMMPoissonRegressor(**{**PUBLIC, **more}).fit(x, y)


def test_values_inferred_from_rows_give_a_warning() -> None:
    x, y, years = rows(200)
    with pytest.warns(PrivacyLeakWarning, match="the largest count .set y_max=., the largest exposure"):
        DPADMMPoissonRegressor(bounds=(-1, 1)).fit(x, y, exposure=years)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPADMMPoissonRegressor(**PUBLIC).fit(x, y, exposure=years)


def test_search_and_public_rows_accept_counts() -> None:
    x, y, _ = rows(2_000)
    search = PrivateSearch(DPADMMPoissonRegressor(**PUBLIC), [{"alpha": 0.0}, {"alpha": 1.0}], epsilon=3.0, delta=1e-5)
    assert search.fit(x, y).predict(x[:2]).shape == (2,)
    model = DPADMMPoissonRegressor(0.3, **PUBLIC).fit(x, y, public=rows(200, seed=1)[:2])
    assert np.isfinite(model.coef_).all()
