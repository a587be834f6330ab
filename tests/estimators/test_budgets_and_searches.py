"""Estimators with an accountant: alone, in pipelines, searches, threads and other processes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import joblib
import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpadmm import BudgetAccountant, BudgetExceededError, DPADMMClassifier, DPADMMRegressor, PrivacyLeakWarning
from dpadmm.errors import StudyError

RNG = np.random.default_rng(2)
X = RNG.uniform(-1.0, 1.0, (120, 2))
Y = (X[:, 0] > X[:, 1]).astype(int)
KNOWN: dict[str, Any] = {"bounds": (-1.0, 1.0), "classes": [0, 1], "max_iter": 3}
SEARCH = pytest.mark.filterwarnings("ignore:each fit of a search:dpadmm.PrivacyLeakWarning")


def budget(epsilon: float = 2.0) -> BudgetAccountant:
    return BudgetAccountant(epsilon, 1e-5)


def test_fit_is_charged_and_refused_beyond_the_budget() -> None:
    accountant = budget()
    model = DPADMMClassifier(1.0, accountant=accountant, **KNOWN).fit(X, Y)
    weights = model.coef_
    assert accountant.spent.epsilon == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(BudgetExceededError):
        model.set_params(epsilon=1.9).fit(X, Y)
    assert model.coef_ is weights
    assert len(accountant) == 1
    DPADMMRegressor(1.6, bounds=(-1.0, 1.0), y_bounds=(0, 1), accountant=accountant, max_iter=3).fit(X, Y)
    assert len(accountant) == 2


def test_invalid_rows_and_parameters_are_not_charged() -> None:
    accountant = budget()
    with pytest.raises(ValueError, match="NaN"):
        DPADMMClassifier(accountant=accountant, **KNOWN).fit(np.full_like(X, np.nan), Y)
    with pytest.raises(StudyError):
        DPADMMClassifier(accountant=accountant, rho=-1.0, **KNOWN).fit(X, Y)
    with pytest.raises(StudyError, match="no exact noise"):
        DPADMMClassifier(1e5, accountant=accountant, **KNOWN).fit(X, Y)
    assert len(accountant) == 0


def test_open_blocks_are_charged_including_nested_ones() -> None:
    with budget() as outer:
        DPADMMClassifier(0.3, **KNOWN).fit(X, Y)
        with budget(0.5) as inner:
            DPADMMClassifier(0.3, **KNOWN).fit(X, Y)
            with pytest.raises(BudgetExceededError, match=r"allowed ε = 0\.5"):
                DPADMMClassifier(0.5, **KNOWN).fit(X, Y)
        own = budget()
        DPADMMClassifier(0.3, accountant=own, **KNOWN).fit(X, Y)
    DPADMMClassifier(0.3, **KNOWN).fit(X, Y)
    assert (len(outer), len(inner), len(own)) == (3, 1, 1)  # an own accountant does not replace a block's
    with own:
        DPADMMClassifier(0.3, accountant=own, **KNOWN).fit(X, Y)
    assert len(own) == 2  # and is not charged twice if it is the block's


def test_clones_and_copies_charge_the_same_accountant() -> None:
    accountant = budget()
    model = DPADMMClassifier(0.2, accountant=accountant, **KNOWN)
    for each in (model, clone(model), copy.deepcopy(model), clone(make_pipeline(model)).steps[0][1]):
        each.fit(X, Y)
    assert len(accountant) == 4


def test_search_is_charged_for_every_fit_with_a_warning() -> None:
    accountant = budget()
    share = accountant.remaining(2 * 2 + 1).epsilon
    model = DPADMMClassifier(share, accountant=accountant, **KNOWN)
    search = GridSearchCV(model, {"C": [0.1, 1.0]}, cv=2, error_score="raise")
    with pytest.warns(PrivacyLeakWarning, match=r"each fit of a search .* charged to BudgetAccountant"):
        search.fit(X, Y)
    assert len(accountant) == 5
    assert accountant.spent.epsilon == pytest.approx(2.0, rel=1e-5)
    assert search.predict(X).shape == Y.shape
    with pytest.raises(BudgetExceededError):
        clone(model).fit(X, Y)


def test_search_without_an_accountant_gives_a_warning() -> None:
    with pytest.warns(PrivacyLeakWarning, match="not added up: set accountant=") as caught:
        cross_val_score(DPADMMClassifier(**KNOWN), X, Y, cv=2)
    assert "model_selection" in caught[0].filename  # whoever called fit


@SEARCH
def test_too_long_search_stays_within_the_budget() -> None:
    accountant = budget(1.0)
    model = DPADMMClassifier(0.5, accountant=accountant, **KNOWN)
    with pytest.warns(FitFailedWarning, match="BudgetExceededError"):
        scores = cross_val_score(model, X, Y, cv=6)
    assert np.isfinite(scores).sum() == len(accountant) == 3
    assert accountant.spent.epsilon <= 1.0


@SEARCH
def test_threads_charge_the_open_block() -> None:
    with budget() as accountant, joblib.parallel_config("threading", n_jobs=2):
        cross_val_score(DPADMMClassifier(0.2, **KNOWN), X, Y, cv=4, error_score="raise")
    assert len(accountant) == 4


@pytest.mark.parametrize("own", [True, False], ids=["accountant=", "with"])
def test_estimator_in_another_process_can_predict_but_not_fit(own: bool) -> None:
    with budget() as accountant:
        model = DPADMMClassifier(0.2, accountant=accountant if own else None, **KNOWN).fit(X, Y)
        sent = pickle.dumps(model)
    there = pickle.loads(sent)
    np.testing.assert_array_equal(there.predict(X), model.predict(X))
    passed_on = pickle.loads(pickle.dumps(there))  # from a process where no block is open
    for each in (there, clone(there), passed_on):
        with pytest.raises(StudyError, match="another process created this BudgetAccountant"):
            each.fit(X, Y)
    assert len(accountant) == 1


@SEARCH
def test_worker_processes_are_refused() -> None:
    with (
        budget() as accountant,
        joblib.parallel_config("loky", n_jobs=2),
        pytest.raises(StudyError, match="use n_jobs=1"),
    ):
        cross_val_score(DPADMMClassifier(0.2, **KNOWN), X, Y, cv=2, error_score="raise")
    assert len(accountant) == 0


def test_pipelines_pass_groups_and_keep_names() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["dose", "age"])
    halves = FunctionTransformer(lambda rows: rows / 2.0, feature_names_out="one-to-one")
    pipeline = make_pipeline(halves, DPADMMClassifier(**KNOWN)).set_output(transform="pandas")
    pipeline.fit(table, Y, dpadmmclassifier__groups=np.arange(120) % 4)
    assert pipeline[-1].feature_names_in_.tolist() == ["dose", "age"]
    assert pipeline[-1].privacy_["n_agents"] == 4
    assert pipeline.predict_proba(table).shape == (120, 2)


def test_pipeline_routes_requested_groups() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        asking = DPADMMClassifier(**KNOWN).set_fit_request(groups=True)
        pipeline = make_pipeline(FunctionTransformer(), asking).fit(X, Y, groups=np.arange(120) % 4)
    assert pipeline[-1].privacy_["n_agents"] == 4


@SEARCH
def test_cross_validation_can_pass_groups_to_every_fit() -> None:
    owners = np.arange(120) % 3
    with budget() as accountant:
        scores = cross_val_score(DPADMMClassifier(0.2, **KNOWN), X, Y, cv=2, params={"groups": owners})
    assert np.isfinite(scores).all()
    assert len(accountant) == 2
