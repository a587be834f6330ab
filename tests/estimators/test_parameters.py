"""Every numeric parameter of every estimator is checked in ``fit``, by the rules of a study's settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from looping import case
from sklearn.base import BaseEstimator

import dpadmm.estimators
from dpadmm import DPADMMClassifier, DPADMMPoissonRegressor, DPADMMRegressor, PrivateSearch, PublicScaler
from dpadmm.errors import StudyError
from dpadmm.estimators.validation import checked_parameters
from dpadmm.parameters.fields import parameters
from dpadmm.studies.settings import Settings, nested_parameters

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (60, 2))
CLASSES = X[:, 0] > 0.0
COUNTS = RNG.poisson(2.0, 60)

CLASSIFIER = {"bounds": (-1, 1), "classes": [False, True], "max_iter": 5}
ESTIMATORS: dict[str, tuple[Any, Any]] = {
    "DPADMMClassifier": (DPADMMClassifier(**CLASSIFIER), CLASSES),
    "DPADMMRegressor": (DPADMMRegressor(bounds=(-1, 1), y_bounds=(0, 9), max_iter=5), COUNTS),
    "DPADMMPoissonRegressor": (DPADMMPoissonRegressor(bounds=(-1, 1), y_max=9, max_iter=5), COUNTS),
    "PrivateSearch": (PrivateSearch(DPADMMClassifier(**CLASSIFIER), [{}], epsilon=1.0, delta=1e-5, runs=1), CLASSES),
    "PublicScaler": (PublicScaler(0.0, 1.0, bounds=(-1, 1)), None),
}
NO_NUMBERS = {
    *("method", "aggregation", "loss"),  # words
    *("estimator", "candidates", "classes", "accountant", "study"),
    "random_state",  # scikit-learn checks it
}
BY_COLUMN = {"bounds", "center", "scale", "y_bounds", "class_weight"}
FLAGS = {"fit_intercept", "inference"}

TEXT = ("1", "", "many", b"1", "nan", "inf")
ODD = (*TEXT, 1j, object(), {"a": 1}, [[1.0]], (1.0, 2.0), np.array([1.0, 2.0]))
NUMBERS = (math.nan, -math.inf, -1.0, -1, np.float32(-1), np.nan, -1e300)
WRONG = (*ODD, *NUMBERS, True, False, np.True_)

IN_A_STUDY = {
    "epsilon": "epsilon",
    "delta": "delta",
    "max_iter": "n_rounds",
    "n_agents": "n_agents",
    "min_honest_sites": "min_honest_sites",
    "rho": "method.rho",
    "weight_radius": "method.weight_radius",
    "l1_ratio": "regularizer.l1_ratio",
    "gradient_bound": "loss.gradient_bound",
    "fit_intercept": "intercept",
    "inference": "method.inference",
    "method": "method",
    "aggregation": "aggregation",
}


def fitted(name: str, **changes: Any) -> Any:
    estimator, y = ESTIMATORS[name]
    return type(estimator)(**{**estimator.get_params(deep=False), **changes}).fit(X, y)


def numeric(name: str) -> Iterator[str]:
    for each in ESTIMATORS[name][0].get_params(deep=False):
        if each not in NO_NUMBERS | BY_COLUMN | FLAGS:
            yield each


def test_every_estimator_is_covered() -> None:
    made = {name for name in dpadmm.estimators.__all__ if issubclass(getattr(dpadmm.estimators, name), BaseEstimator)}
    assert made == set(ESTIMATORS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_numeric_parameter_is_checked(name: str) -> None:
    checked = {each.name for each in checked_parameters(ESTIMATORS[name][0])}
    words = {"method", "aggregation", "loss"} & set(ESTIMATORS[name][0].get_params(deep=False))
    flags = FLAGS & set(ESTIMATORS[name][0].get_params(deep=False))
    assert checked == {*numeric(name)} | words | flags
    if name != "PublicScaler":
        assert {"epsilon", "delta"} <= checked


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_invalid_number_gives_one_sentence_with_its_name(name: str) -> None:
    for parameter in numeric(name):
        for wrong in (*WRONG, *((math.inf,) if parameter != "C" else ())):
            with case(parameter, wrong), pytest.raises(StudyError, match=f"^{parameter} must be a ") as refused:
                fitted(name, **{parameter: wrong})
            assert isinstance(refused.value, ValueError)
            assert str(refused.value).count(" must be ") == 1
            assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_invalid_flag_gives_one_sentence_with_its_name(name: str) -> None:
    for parameter in FLAGS & set(ESTIMATORS[name][0].get_params(deep=False)):
        for wrong in (*ODD, *NUMBERS, 0, 1, None):
            with case(parameter, wrong), pytest.raises(StudyError, match=f"^{parameter} must be true or false, not "):
                fitted(name, **{parameter: wrong})


@pytest.mark.parametrize("name", ESTIMATORS)
def test_invalid_number_for_columns_or_labels_gives_one_sentence_with_its_name(name: str) -> None:
    for parameter in BY_COLUMN & set(ESTIMATORS[name][0].get_params(deep=False)):
        for wrong in (*TEXT, True, 1j, object(), math.nan, -math.inf, ["1", "2"], [None, 1.0]):
            value: Any = wrong
            if parameter in ("bounds", "y_bounds"):
                value = (wrong, wrong)
            if parameter == "class_weight":
                value = {True: wrong}
            more = {"scale": 1.0} if parameter == "center" else {}
            with case(parameter, wrong), pytest.raises(StudyError, match=f"^{parameter}.* must be ") as refused:
                fitted(name, **{**more, parameter: value})
            assert isinstance(refused.value, ValueError)


def test_columns_accept_all_numeric_types() -> None:
    for kind in (np.float32, np.int64, np.uint8, object, lambda values: values):
        low, high = (kind([0, 0]), kind([1, 2])) if kind is not object else np.array([[0, 0], [1, 2]], dtype=object)
        with case(kind):
            scaled = PublicScaler(bounds=(low, high)).fit_transform([[1.0, 2.0]])
            assert scaled.tolist() == [[1.0, 1.0]]


def test_all_invalid_parameters_are_in_one_error() -> None:
    with pytest.raises(StudyError) as refused:
        DPADMMClassifier(epsilon="1", delta=2.0, C=-1.0, max_iter=True, loss="log").fit(X, CLASSES)
    assert str(refused.value).split("; ") == [
        "epsilon must be a positive number, not '1'",
        "delta must be a number in (0, 1), not 2.0",
        "max_iter must be a whole number of at least 1, not True",
        "C must be a positive number, not -1.0",
        "loss must be one of logistic, hinge, smoothed_hinge, not 'log'",
        "did you mean 'logistic'?",
    ]
    with pytest.raises(StudyError, match=r"^epsilon must be .*; delta must be .*; runs must be "):
        fitted("PrivateSearch", epsilon="1", delta="1", runs="1")


def test_parameters_are_checked_before_rows_and_not_changed() -> None:
    model = DPADMMClassifier(epsilon="1")  # type: ignore[arg-type]  # as scikit-learn: nothing is checked here
    assert model.get_params()["epsilon"] == "1"
    with pytest.raises(StudyError, match=r"^epsilon must be a positive number, not '1'$"):
        model.fit([["text"]], [None])
    assert model.epsilon == "1"


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name != "PublicScaler"])
def test_rules_equal_those_of_a_study(name: str) -> None:
    own = {each.name: each for each in checked_parameters(ESTIMATORS[name][0])}
    study = nested_parameters(Settings)
    compared = own.keys() & IN_A_STUDY.keys()
    assert {"epsilon", "delta"} <= compared
    for parameter in compared - {"method"}:  # estimators have fewer methods
        for value in (*WRONG, math.inf, 0, 0.5, 1, 1.0, 2, 1.5, 10**6, 10**7, 10**16, np.float64(0.5), np.int32(3)):
            with case(parameter, value):
                assert accepts(own[parameter], value) == accepts(study[IN_A_STUDY[parameter]].single(), value)


def accepts(parameter: Any, value: Any) -> bool:
    try:
        parameter.checked(value)
    except StudyError:
        return False
    return True


def test_numpy_numbers_are_accepted() -> None:
    model = fitted("DPADMMClassifier", epsilon=np.float32(2), max_iter=np.int64(4), fit_intercept=np.True_, C=np.inf)
    assert model.n_iter_ == 4
    assert model.privacy_["epsilon"] == pytest.approx(2.0)
    for name in ("DPADMMClassifier", "DPADMMRegressor", "DPADMMPoissonRegressor"):
        own = {each.name for each in checked_parameters(ESTIMATORS[name][0])}
        exact = {"epsilon": Decimal(2), "C": Decimal(1), "alpha": Decimal(1), "l1_ratio": Decimal("0.5")}
        given = {each: value for each, value in exact.items() if each in own}
        assert fitted(name, **given).privacy_["epsilon"] == pytest.approx(2.0)
    assert fitted("DPADMMClassifier", epsilon=2, C=np.float32(np.inf)).privacy_["epsilon"] == pytest.approx(2.0)


def test_only_dataclass_fields_that_are_parameters_are_checked() -> None:
    names = {each.name for each in parameters(DPADMMClassifier)}
    assert "_weighted" in names  # a boolean that is set by fit
    assert "_weighted" not in {each.name for each in checked_parameters(DPADMMClassifier())}
