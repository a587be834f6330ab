"""Estimators with a study: frames with categories, booleans and missing values, in scikit-learn's tools."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from looping import case
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpadmm import (
    DataError,
    DPADMMClassifier,
    DPADMMPoissonRegressor,
    DPADMMRegressor,
    PrivacyLeakWarning,
    PrivateSearch,
    Study,
    StudyError,
    draft_study,
)
from dpadmm.data.schema import Boolean, Category, Label, Number, Schema

N = 3000
RNG = np.random.default_rng(0)
X = pd.DataFrame(
    {
        "age": RNG.uniform(20, 80, N),
        "ward": RNG.choice(["a", "b", "c"], N),
        "smoker": RNG.choice([True, False, None], N),
        "note": ["x"] * N,
    }
)
X.loc[::10, "age"] = np.nan
Y = np.where((X["ward"] == "a") | (X["age"] > 60), "yes", "no")
SCHEMA = Schema((Number("age", (0, 100), missing="indicator"), Category("ward", ("a", "b", "c")), Boolean("smoker")))


def study(label: Label, **training: Any) -> Study:
    return Study(name="x", schema=SCHEMA, label=label, training={"epsilon": 9.0, "delta": 1e-3, **training})


CLASSES = study(Label("y", classes=("no", "yes")))


def test_a_classifier_needs_nothing_from_the_data() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DPADMMClassifier(2.0, study=CLASSES).fit(X, Y)
    assert model.score(X, Y) > 0.95
    assert model.privacy_["epsilon"] == pytest.approx(2.0)  # its own, not that of the study
    assert model.privacy_["read_off_the_data"] == []
    assert model.feature_names_in_.tolist() == [*X.columns]
    assert (model.n_features_in_, model.coef_.shape) == (4, (1, len(SCHEMA.features)))
    assert model.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(model.predict(pl.from_pandas(X)), model.predict(X))
    assert not model.is_clipped(X).any()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))
    assert clone(model).study == CLASSES


def test_labels_of_other_types() -> None:
    for classes, labels in [
        ((0, 1), (Y == "yes").astype(int)),
        ((0, 1), (Y == "yes").astype(float)),
        (("false", "true"), Y == "yes"),
        (("no", "yes"), pd.Series(Y, dtype="category")),
    ]:
        with case(classes):
            model = DPADMMClassifier(study=study(Label("y", classes=classes))).fit(X, labels)
            assert model.score(X, labels) > 0.9


def test_regressors_take_the_bounds_of_the_label() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = 10.0 + 5.0 * (X["ward"] == "a")
        model = DPADMMRegressor(study=study(Label("y", bounds=(0, 20)), loss="squared")).fit(X, y)
        counts = RNG.poisson(np.where(X["ward"] == "a", 5.0, 1.0))
        label = Label("y", bounds=(0, 20))
        poisson = DPADMMPoissonRegressor(study=study(label, loss="poisson", intercept=True)).fit(X, counts)
    assert model.score(X, y) > 0.9
    assert poisson.predict(X)[X["ward"] == "a"].mean() == pytest.approx(5.0, rel=0.2)


def test_public_rows_and_a_search_of_a_study() -> None:
    model = DPADMMClassifier(0.1, study=CLASSES).fit(X[:300], Y[:300], public=(X[300:], Y[300:]))
    assert model.score(X, Y) > 0.9
    search = PrivateSearch(DPADMMClassifier(study=CLASSES), [{}, {"C": 0.1}], epsilon=3.0, delta=1e-5, runs=1)
    assert search.fit(X, Y).score(X, Y) > 0.9


def test_intervals_have_the_names_of_the_features() -> None:
    labels = np.where(RNG.random(N) < 0.2, RNG.permutation(Y), Y)  # no column determines them
    schema = Schema((Number("age", (0, 100), missing="indicator"), Boolean("smoker")))
    declared = Study(name="x", schema=schema, label=CLASSES.label, training={"epsilon": 1.0})
    model = DPADMMClassifier(100.0, study=declared, inference=True).fit(X, labels)
    assert model.conf_int().shape == (4, 2)
    assert "age missing" in model.summary()


def test_tools_of_scikit_learn() -> None:
    model = DPADMMClassifier(2.0, study=CLASSES)
    frame = pd.DataFrame
    columns = ColumnTransformer(
        [("all", "passthrough", ["smoker", "age"]), ("ward", FunctionTransformer(lambda each: each), ["ward"])],
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    for tool in (
        make_pipeline(model),
        make_pipeline(columns, model),
        make_pipeline(FunctionTransformer(frame).set_output(transform="pandas"), model),
    ):
        assert tool.fit(X, Y).score(X, Y) > 0.95
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        assert GridSearchCV(make_pipeline(model), {"dpadmmclassifier__C": [0.1, 1.0]}, cv=2).fit(X, Y).best_score_ > 0.9


@pytest.mark.parametrize("kind", ["grid", "cross-validation"])
def test_a_search_warns_once(kind: str) -> None:
    small, labels = X[:600], Y[:600]
    for _ in range(2):  # each search by itself
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if kind == "grid":
                GridSearchCV(DPADMMClassifier(study=CLASSES), {"C": [0.1, 1.0, 10.0]}, cv=3).fit(small, labels)
            else:
                cross_val_score(make_pipeline(DPADMMClassifier(study=CLASSES)), small, labels, cv=3)
        (only,) = caught
        assert only.category is PrivacyLeakWarning
        assert "spends its own epsilon on the same rows" in str(only.message)


def test_leaks_of_a_search_are_in_the_same_warning() -> None:
    numbers = X[["age"]].fillna(50.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GridSearchCV(DPADMMClassifier(), {"C": [0.1, 1.0]}, cv=3).fit(numbers[:600], Y[:600])
    (only,) = caught
    assert "inferred from the data" in str(only.message)
    assert "spends its own epsilon" in str(only.message)


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    fitted = DPADMMClassifier(study=CLASSES).fit(X, Y)
    draft = draft_study(X.assign(y=Y), "y")
    bad = X.astype({"age": object})
    bad.loc[3, "age"] = "old"
    y: Any = Y.astype(object)
    y[[2, 5]] = None
    for call, words in [
        (lambda: fitted.fit(X.to_numpy(), Y), "with a study, X must have named columns: a data frame"),
        (lambda: fitted.predict(X.drop(columns="ward")), "(?s)feature names should match|no column 'ward'"),
        (lambda: fitted.fit(X, y), r"y is missing in 2 rows \(3, 6\); leave these rows out"),
        (
            lambda: DPADMMClassifier(study=CLASSES, bounds=(0, 1)).fit(X, Y),
            "declares the columns; leave bounds out",
        ),
        (lambda: DPADMMClassifier(study=draft).fit(X, Y), "the values of the draft are not confirmed"),
        (lambda: DPADMMClassifier(study=tmp_path / "no.toml").fit(X, Y), "no.toml: there is no such file"),
        (lambda: DPADMMClassifier(study=CLASSES).fit(bad, Y), "column 'age'"),
        (
            lambda: DPADMMClassifier(study=CLASSES).fit(X, np.arange(N) % 2),
            "y has numbers, but the classes of the study are no, yes",
        ),
        (
            lambda: DPADMMClassifier(study=Study(name="x", features=("age",), training={"epsilon": 1.0})).fit(X, Y),
            r"study has no \[columns\] and \[label\]",
        ),
    ]:
        with case(words), pytest.raises((StudyError, DataError, ValueError), match=words):
            call()


def test_a_scale_that_hides_a_column_is_a_warning() -> None:
    rows = X[["age"]].fillna(50.0)
    for given in ({"bounds": (0, 1e7)}, {"center": 50, "scale": 1e6}):
        with pytest.warns(UserWarning, match="column 'age' is nearly constant after scaling"):
            DPADMMClassifier(classes=["no", "yes"], **given).fit(rows, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPADMMClassifier(classes=["no", "yes"], bounds=(0, 100)).fit(rows, Y)
        DPADMMClassifier(classes=["no", "yes"], bounds=(0, 100)).fit(0.0 * rows, Y)
