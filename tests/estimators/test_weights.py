"""``sample_weight`` and ``class_weight``, compared with scikit-learn."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from looping import case
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor

from dpadmm.errors import DataError, PrivacyLeakWarning, StudyError
from dpadmm.estimators import DPADMMClassifier, DPADMMPoissonRegressor, DPADMMRegressor
from dpadmm.estimators.base import as_weights

pytestmark = pytest.mark.filterwarnings("ignore:random_state:dpadmm.PrivacyLeakWarning")

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (4000, 3))
Y = RNG.random(4000) < 1.0 / (1.0 + np.exp(2.5 - X @ [2.0, -1.0, 0.0]))
COUNTS = RNG.poisson(np.exp(0.5 + X @ [0.8, -0.5, 0.0]))
WEIGHTS = RNG.choice([0.5, 1.0, 2.0, 4.0], 4000)
PUBLIC: dict[str, Any] = {"bounds": (-1, 1), "random_state": 1, "weight_max": 4.0}


def classifier(**more: Any) -> DPADMMClassifier:
    return DPADMMClassifier(**{"epsilon": 1e5, **PUBLIC, "classes": [False, True], **more})


def test_without_noise_coefficients_match_scikit_learn() -> None:
    fit = {"sample_weight": WEIGHTS}
    within = {"rtol": 0.01, "atol": 0.01}
    model = classifier(inference=True).fit(X, Y, **fit)
    known = LogisticRegression(C=np.inf, tol=1e-10).fit(X, Y, **fit)
    np.testing.assert_allclose(model.coef_, known.coef_, **within)
    np.testing.assert_allclose(model.intercept_, known.intercept_, **within)
    assert "sampling weights" in model.summary()
    model = classifier(inference=True, class_weight={True: 5.0}).fit(X, Y)
    known = LogisticRegression(C=np.inf, tol=1e-10, class_weight={True: 5.0}).fit(X, Y)
    np.testing.assert_allclose(model.coef_, known.coef_, **within)
    np.testing.assert_allclose(model.intercept_, known.intercept_, **within)
    numbers = X @ [1.0, -0.5, 0.0] + 0.3 * RNG.normal(size=4000)
    regressor = DPADMMRegressor(1e5, y_bounds=(-4, 4), inference=True, **PUBLIC).fit(X, numbers, **fit)
    np.testing.assert_allclose(regressor.coef_, LinearRegression().fit(X, numbers, **fit).coef_, **within)
    counts = DPADMMPoissonRegressor(1e5, y_max=30, inference=True, **PUBLIC).fit(X, COUNTS, **fit)
    np.testing.assert_allclose(counts.coef_, PoissonRegressor(alpha=0.0).fit(X, COUNTS, **fit).coef_, **within)


def test_without_noise_weights_equal_repeated_rows() -> None:
    """scikit-learn checks this too, but noise differs for another number of rows."""
    copies = np.random.default_rng(1).integers(1, 4, 4000)
    one = classifier(inference=True, weight_max=3.0).fit(X, Y, sample_weight=copies)
    other = classifier(inference=True).fit(np.repeat(X, copies, axis=0), np.repeat(Y, copies))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-3, atol=1e-3)
    assert "sampling weights" in one.summary()
    assert "sampling weights" not in other.summary()


def test_scaling_weights_is_scaling_c() -> None:
    """Three times the weights equal three times C, to the last bit, with the same noise."""
    one = classifier(epsilon=2.0, C=0.03).fit(X, Y, sample_weight=3.0 * (WEIGHTS / 4.0))
    other = classifier(epsilon=2.0, C=0.09, weight_max=1.0).fit(X, Y, sample_weight=WEIGHTS / 4.0)
    assert one.weight_max == 4.0
    three = classifier(epsilon=2.0, C=0.03, weight_max=3.0).fit(X, Y, sample_weight=3.0 * (WEIGHTS / 4.0))
    np.testing.assert_allclose(three.coef_, other.coef_, rtol=1e-12)
    assert not np.allclose(one.coef_, three.coef_, rtol=1e-6)
    heavy = classifier(epsilon=2.0, class_weight={True: 2.0, False: 2.0}, C=0.05).fit(X, Y)
    np.testing.assert_allclose(heavy.coef_, classifier(epsilon=2.0, C=0.1).fit(X, Y).coef_, rtol=1e-12)


def test_class_weights_improve_recall_of_the_rare_class() -> None:
    for y in (Y, Y + 2 * (X[:, 2] > 0.9)):
        with case(len(np.unique(y))):
            classes, counts = np.unique(y, return_counts=True)
            by_class = dict(zip(classes.tolist(), (counts.max() / counts).tolist(), strict=True))
            found = []
            for class_weight in (None, by_class):
                model = classifier(epsilon=5.0, classes=classes, class_weight=class_weight).fit(X, y)
                chosen = model.predict(X)
                found.append(np.mean([np.mean(chosen[y == each] == each) for each in classes]))
            assert found[1] > found[0] + 0.1


def test_balanced_weights_are_computed_from_public_rows_only() -> None:
    with pytest.raises(StudyError, match="would be inferred from private labels; pass a dict of numbers"):
        classifier(class_weight="balanced").fit(X, Y)
    public = X[:500], Y[:500]
    share = float(np.mean(Y[:500]))
    one = classifier(class_weight="balanced", epsilon=2.0).fit(X, Y, public=public)
    by_class = {True: 0.5 / share, False: 0.5 / (1.0 - share)}
    other = classifier(class_weight=by_class, epsilon=2.0).fit(X, Y, public=public)
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-9)
    with pytest.raises(DataError, match="needs rows of every class"):
        classifier(class_weight="balanced").fit(X, Y, public=(X[~Y][:50], Y[~Y][:50]))


def test_maximum_weight_must_be_public_or_gives_a_warning() -> None:
    with pytest.warns(PrivacyLeakWarning, match="the largest weight \\(set weight_max=\\)"):
        model = classifier(weight_max=None, epsilon=1.0).fit(X, Y, sample_weight=WEIGHTS)
    assert "the largest weight" in model.privacy_["guarantee"]
    np.testing.assert_array_equal(model.coef_, classifier(epsilon=1.0).fit(X, Y, sample_weight=WEIGHTS).coef_)
    with pytest.raises(ValueError, match=r"non-zero|^weight_max must be"):
        classifier(weight_max=None).fit(X, Y, sample_weight=np.zeros(4000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPADMMClassifier(bounds=(-1, 1), classes=[False, True], weight_max=4.0).fit(X, Y, sample_weight=WEIGHTS)
    cut = classifier(epsilon=1.0).fit(X, Y, sample_weight=np.where(WEIGHTS == 4.0, 1e9, WEIGHTS))
    np.testing.assert_array_equal(cut.coef_, classifier(epsilon=1.0).fit(X, Y, sample_weight=WEIGHTS).coef_)


def test_public_rows_have_weights_if_private_rows_have() -> None:
    with pytest.raises(StudyError, match="public must be \\(X, y, weights\\) if there is a sample_weight"):
        classifier().fit(X, Y, public=(X[:99], Y[:99]), sample_weight=WEIGHTS)
    model = classifier(epsilon=0.5).fit(X, Y, public=(X[:99], Y[:99], WEIGHTS[:99]), sample_weight=WEIGHTS)
    for weight_max, public in [(4.0, np.where(WEIGHTS == 4.0, 1e9, WEIGHTS)), (8.0, 2.0 * WEIGHTS)]:
        with case(weight_max):
            by = weight_max / 4.0
            again = classifier(epsilon=0.5, weight_max=weight_max, C=1.0 / by)
            again.fit(X, Y, public=(X[:99], Y[:99], public[:99]), sample_weight=by * WEIGHTS)
            np.testing.assert_allclose(again.coef_, model.coef_, rtol=1e-12)
    for public in (WEIGHTS / 4.0, np.full(4000, 4.0)):
        other = classifier(epsilon=0.5).fit(X, Y, public=(X[:99], Y[:99], public[:99]), sample_weight=WEIGHTS)
        assert not np.allclose(other.coef_, model.coef_, rtol=1e-6)
    with pytest.raises(DataError, match=r"^public: sample_weight\[0\] is -1; weights must be at least 0"):
        classifier().fit(X, Y, public=(X[:99], Y[:99], -np.ones(99)), sample_weight=WEIGHTS)


def test_errors_are_one_sentence_before_any_charge() -> None:
    bad = WEIGHTS.copy()
    bad[0], bad[3] = 0.0, -1.0
    fine = as_weights(np.array([0.0, 0.1], dtype=np.float32), X[:2])  # a row may count for nothing
    assert (fine.dtype, fine.tolist()) == (np.float64, [0.0, float(np.float32(0.1))])
    for made, fit, words in [
        (classifier(), {"sample_weight": bad}, "sample_weight\\[3\\] is -1; weights must be at least 0"),
        (classifier(), {"sample_weight": WEIGHTS[:5]}, "sample_weight"),
        (classifier(), {"sample_weight": np.where(bad < 0.0, np.nan, bad)}, "NaN"),
        (classifier(weight_max=0.0), {"sample_weight": WEIGHTS}, "^weight_max must be"),
        (classifier(class_weight={"maybe": 2.0}), {}, "class_weight: 'maybe' is not one of the classes"),
        (classifier(class_weight={True: 0.0}), {}, "class_weight"),
        (classifier(weight_max=np.inf), {"sample_weight": WEIGHTS}, "weight_max must be a positive number, not inf"),
        (classifier(class_weight={True: np.inf}), {}, "class_weight must be a positive number, not inf"),
        (classifier(class_weight=3.0), {}, "class_weight must be a dict of numbers by class"),
        (
            DPADMMRegressor(1.0, y_bounds=(0, 1), inference=True, fit_intercept=False, **PUBLIC),
            {"sample_weight": WEIGHTS},
            "need fit_intercept=True, which gives the mean weight",
        ),
    ]:
        with case(words), pytest.raises(ValueError, match=words):
            made.fit(X, Y, **fit)
