"""DPADMMClassifier: objective, noise, warnings about privacy, and refusals."""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from looping import case
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils import check_random_state, get_tags

from dpadmm import BudgetAccountant, DPADMMClassifier, DPADMMRegressor, PrivacyLeakWarning
from dpadmm.accounting import exact_epsilon
from dpadmm.accounting.calibration import total_noise_multiplier
from dpadmm.errors import DataError, StudyError
from dpadmm.estimators.base import PrivateLinearModel
from dpadmm.losses import Logistic
from dpadmm.methods.prior import prior_of
from dpadmm.queries.problem import Problem, make_rows
from dpadmm.regularizers import L2
from dpadmm.studies.settings import Settings
from dpadmm.training import simulate as simulation

RNG = np.random.default_rng(11)
X = RNG.uniform(-2.0, 2.0, (240, 3))
Y = np.where(X @ [1.0, -1.0, 0.5] + RNG.logistic(size=240) * 0.5 > 0.3, "yes", "no")
THREE = np.digitize(X[:, 0] + 0.3 * RNG.standard_normal(240), [-0.7, 0.7])
NORM = float(np.sqrt(12.0))
PUBLIC = {"data_norm": NORM, "classes": ["no", "yes"]}
FEW: dict[str, Any] = {"max_iter": 5}
SEEDED = pytest.mark.filterwarnings("ignore:random_state makes the noise:dpadmm.PrivacyLeakWarning")
LOUD = 1e7
"""An ε at which simulated noise is next to nothing."""


# --- what is minimised -------------------------------------------------------------------------------------


@SEEDED
def test_C_matches_logistic_regression() -> None:
    for how, C in product(["plain", "bounds", "intercept", "softmax"], [0.01, 0.1]):
        with case(how, C):
            y, rows, classes = (THREE, X, [0, 1, 2]) if how == "softmax" else (Y, X, ["no", "yes"])
            scaling: dict[str, Any] = {"data_norm": NORM}
            if how == "bounds":  # C is for rows that are mapped to [−1, 1]
                scaling, rows = {"bounds": (-2.0, 2.0)}, X / 2.0
            if how == "intercept":  # it is penalised, as the weight of a constant column of 0.28/0.96 of data_norm
                rows = np.column_stack([X, np.full(len(X), 0.28 / 0.96 * NORM)])
            oracle = LogisticRegression(C=C, fit_intercept=False, tol=1e-8, max_iter=1000).fit(rows, y)
            model = DPADMMClassifier(
                LOUD,
                C=C,
                fit_intercept=how == "intercept",
                method="dp_admm",
                max_iter=1500,
                random_state=0,
                classes=classes,
                **scaling,
            ).fit(X, y)
            scores = oracle.decision_function(rows)
            assert_allclose(model.decision_function(X), scores, atol=0.02 * np.abs(scores).max())
            if how == "intercept":
                assert model.intercept_ == pytest.approx(0.28 / 0.96 * NORM * oracle.coef_[:, -1], rel=0.02)


@SEEDED
@pytest.mark.parametrize("l1_ratio", [0.5, 1.0])
def test_l1_ratio_matches_logistic_regression(l1_ratio: float) -> None:
    C = 0.1
    oracle = LogisticRegression(
        C=C, l1_ratio=l1_ratio, solver="saga", fit_intercept=False, tol=1e-7, max_iter=5000
    ).fit(X, Y)
    model = DPADMMClassifier(
        LOUD, C=C, l1_ratio=l1_ratio, fit_intercept=False, method="dp_admm", max_iter=2000, random_state=0, **PUBLIC
    ).fit(X, Y)
    # steps with kinks converge slowly, so the objective is compared and not the weights

    def objective(w: Any) -> float:
        loss = np.logaddexp(0.0, -np.where(Y == "yes", 1.0, -1.0) * (X @ w)).mean()
        penalty = l1_ratio * np.abs(w).sum() + (1.0 - l1_ratio) / 2.0 * np.square(w).sum()
        return float(loss + penalty / (C * len(X)))

    best, worst = objective(oracle.coef_[0]), objective(np.zeros(3))
    assert objective(model.coef_[0]) < best + 0.01 * (worst - best)


# --- units, kinds of input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [Y, THREE], ids=["two", "three"])
def test_scores_are_linear_in_the_units_of_the_rows(y: Any) -> None:
    model = DPADMMClassifier(bounds=(-2.0, 2.0), classes=np.unique(y), **FEW).fit(X, y)
    scores = X @ model.coef_.T + model.intercept_
    assert_allclose(model.decision_function(X), scores[:, 0] if y is Y else scores, rtol=1e-9, atol=1e-12)
    assert model.coef_.shape == ((1, 3) if y is Y else (3, 3))
    chances = model.predict_proba(X)
    assert_allclose(chances.sum(axis=1), 1.0)
    assert_allclose(np.exp(model.predict_log_proba(X)), chances)
    assert_array_equal(model.predict(X), model.classes_[chances.argmax(axis=1)])


def test_prediction_clips_rows_above_the_norm() -> None:
    model = DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y)
    along = np.array([[NORM, 0.0, 0.0], [50.0 * NORM, 0.0, 0.0]])
    scores = model.decision_function(along)
    assert model.is_clipped(along).tolist() == [False, True]
    assert scores[1] == pytest.approx(scores[0])
    assert scores[0] == pytest.approx((along @ model.coef_.T + model.intercept_)[0, 0])


def test_standardised_rows_are_clipped_and_coefficients_use_original_units() -> None:
    far = X * [1.0, 10.0, 100.0] + [0.0, 50.0, 1000.0]
    public: dict[str, Any] = {"center": [0.0, 50.0, 1000.0], "scale": [1.2, 12.0, 120.0]}
    for method in ("auto", "dp_admm"):
        with case(method), warnings.catch_warnings():
            warnings.simplefilter("error")
            model = DPADMMClassifier(classes=["no", "yes"], method=method, **public, **FEW).fit(far, Y)
            long = np.linalg.norm((far - public["center"]) / public["scale"], axis=1) > np.sqrt(3.0)
            assert_array_equal(model.is_clipped(far), long)
            assert 0 < long.sum() < len(long)
            scores = far @ model.coef_[0] + model.intercept_
            same = np.isclose(model.decision_function(far), scores, rtol=1e-9, atol=1e-12)
            assert_array_equal(same, ~long)
            wide = DPADMMClassifier(classes=["no", "yes"], data_norm=4.0, **public, **FEW).fit(far, Y)
            assert not wide.is_clipped(far).any()
            assert_allclose(wide.decision_function(far), far @ wide.coef_[0] + wide.intercept_, rtol=1e-9, atol=1e-12)


@SEEDED
def test_public_numbers_by_column_name() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["age", "dose", "days"])
    by_name = {"scale": {"days": 3.0, "age": 1.0, "dose": 2.0}, "bounds": dict.fromkeys(table.columns, (-2, 2))}
    model = DPADMMClassifier(random_state=0, classes=["no", "yes"], **by_name, **FEW).fit(table, Y)
    same = DPADMMClassifier(random_state=0, classes=["no", "yes"], scale=[1, 2, 3], bounds=(-2, 2), **FEW).fit(X, Y)
    assert_array_equal(model.coef_, same.coef_)
    with pytest.raises(StudyError, match="bounds: X has no column 'days'"):
        DPADMMClassifier(classes=["no", "yes"], **by_name).fit(table[["age", "dose"]], Y)


@SEEDED
def test_sparse_rows_and_float32_give_the_same_model() -> None:
    models = [
        DPADMMClassifier(random_state=1, **PUBLIC).fit(rows, Y) for rows in (X, csr_array(X), X.astype(np.float32))
    ]
    for other in models[1:]:
        assert_allclose(other.coef_, models[0].coef_, rtol=1e-3, atol=1e-4)
    assert_allclose(models[1].decision_function(csr_array(X)), models[1].decision_function(X))
    assert get_tags(models[0]).input_tags.sparse


@SEEDED
def test_groups_are_the_agents() -> None:
    owners = np.where(np.arange(240) < 60, "north", "south")
    model = DPADMMClassifier(random_state=1, **PUBLIC, **FEW).fit(X, Y, groups=owners)
    assert model.privacy_["n_agents"] == 2
    same = DPADMMClassifier(random_state=1, **PUBLIC, **FEW).fit(X, Y, groups=owners.tolist())
    assert_array_equal(model.coef_, same.coef_)
    assert not np.array_equal(model.coef_, DPADMMClassifier(random_state=1, **PUBLIC, **FEW).fit(X, Y).coef_)


MASKED = {"n_agents": 8, "aggregation": "secure", "min_honest_sites": 5}


def test_secure_aggregation_is_simulated_and_reported() -> None:
    """The noise is exact, and that of a sum: with h honest of n agents, √h times less than each agent adds alone."""
    model = DPADMMClassifier(0.5, **MASKED, **PUBLIC, **FEW)
    assert {name: model.get_params()[name] for name in MASKED} == MASKED
    model = clone(model).fit(X, Y)
    told = model.privacy_
    assert (round(told["epsilon"], 6), told["aggregation"], told["min_honest_sites"]) == (0.5, "secure", 5)
    assert told["noise"].startswith("exact")
    assert "at least 5 honest agents in every round" in told["guarantee"]
    assert told["simulated_agents"] == "8 simulated in one process, which has the rows of all agents"
    mu = 1.0 / total_noise_multiplier(0.5, 1e-5, 1)
    assert told["epsilon_if_others_collude"] == pytest.approx(exact_epsilon(math.sqrt(5.0) * mu, 1e-5))
    two = DPADMMClassifier(0.5, n_agents=2, **PUBLIC, **FEW).fit(X, Y).privacy_
    assert two["simulated_agents"] == "2 simulated in one process, which has the rows of all agents"
    alone = DPADMMClassifier(0.5, **PUBLIC, **FEW).fit(X, Y).privacy_
    assert (alone["aggregation"], "simulated_agents" in alone) == ("plain", False)


@SEEDED
def test_secure_aggregation_is_between_plain_and_pooled_accuracy() -> None:
    kinds: list[dict[str, Any]] = [{"n_agents": 8}, MASKED, {}]
    local, masked, pooled = (
        np.mean(
            [DPADMMClassifier(0.5, random_state=k, **how, **PUBLIC, **FEW).fit(X, Y).score(X, Y) for k in range(30)]
        )
        for how in kinds
    )
    assert local + 0.03 < masked < pooled


def test_invalid_agents_are_refused_before_any_charge() -> None:
    accountant = BudgetAccountant(epsilon=1.0, delta=1e-5)
    for given, groups, words in (
        (
            {"n_agents": 4, "aggregation": "secure", "min_honest_sites": 5},
            None,
            "min_honest_sites = 5, but there are 4 agents",
        ),
        ({"n_agents": 4, "aggregation": "secure"}, None, "secure aggregation requires min_honest_sites"),
        ({**MASKED, "method": "dp_admm"}, None, "does not support secure aggregation"),
        ({"n_agents": 4}, THREE, "groups determine the agents"),
        ({"n_agents": 0}, None, "n_agents must be a whole number of at least 1"),
        ({**MASKED, "min_honest_sites": 1.5}, None, "min_honest_sites must be a whole number of at least 2"),
    ):
        with pytest.raises(StudyError, match=words):
            DPADMMClassifier(accountant=accountant, **given, **PUBLIC).fit(X, Y, groups=groups)
    assert accountant.spent == BudgetAccountant(epsilon=1.0, delta=1e-5).spent


def test_a_declared_class_without_rows_is_a_class() -> None:
    model = DPADMMClassifier(data_norm=NORM, classes=["yes", "maybe", "no"], **FEW).fit(X, Y)
    assert model.classes_.tolist() == ["maybe", "no", "yes"]
    assert model.predict_proba(X).shape == (240, 3)


@pytest.mark.parametrize("loss", ["hinge", "smoothed_hinge"])
@SEEDED
def test_hinge_losses_give_scores_and_no_probabilities(loss: str) -> None:
    model = DPADMMClassifier(10.0, loss=loss, random_state=0, **PUBLIC).fit(X, Y)
    assert model.score(X, Y) > 0.75
    assert not hasattr(model, "predict_proba")
    with pytest.raises(StudyError, match=f"loss {loss} is for two classes, not 3"):
        DPADMMClassifier(loss=loss, data_norm=NORM, classes=[0, 1, 2]).fit(X, THREE)


def test_column_names_of_tables_are_stored() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["age", "dose", "days"])
    model = DPADMMClassifier(**PUBLIC, **FEW).fit(table, pandas.Series(Y), groups=pandas.Series(THREE))
    assert model.feature_names_in_.tolist() == ["age", "dose", "days"]
    assert model.privacy_["n_agents"] == 3
    assert_array_equal(model.predict(table[:7]), model.predict(table)[:7])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["dose", "age", "days"]])


def test_polars_tables() -> None:
    polars = pytest.importorskip("polars")
    table = polars.DataFrame(X, schema=["age", "dose", "days"])
    model = DPADMMClassifier(**PUBLIC, **FEW).fit(table, polars.Series(Y))
    assert model.feature_names_in_.tolist() == ["age", "dose", "days"]
    assert model.predict(table).shape == (240,)


@SEEDED
def test_public_rows_start_the_run_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Any] = []

    def run(*given: Any, prior: Any, **more: Any) -> Any:
        starts.append(prior)
        return simulation.run_prepared(*given, prior=prior, **more)

    monkeypatch.setattr("dpadmm.estimators.base.run_prepared", run)
    for kind, y, more in [
        (DPADMMClassifier, Y, {"classes": ["no", "yes"]}),
        (DPADMMClassifier, THREE, {"classes": [0, 1, 2]}),
        (DPADMMClassifier, Y, {"classes": ["no", "yes"], "C": np.inf, "loss": "hinge", "method": "dp_admm"}),
        (DPADMMRegressor, X[:, 0] - X[:, 1], {"y_bounds": (-4.0, 4.0)}),
    ]:
        with case(kind, more):
            known = {"scale": 1.2, "data_norm": 3.0, "random_state": 0, **more}
            plain, started = (kind(0.8, **known).fit(X, y, public=rows) for rows in (None, (X[:200], y[:200])))
            assert started.score(X, y) >= plain.score(X, y)
            assert not np.array_equal(started.coef_, plain.coef_)
            assert started.privacy_ == plain.privacy_
            assert starts[-2] is None
            if y is Y and "loss" not in more:
                rows = np.column_stack([0.96 * X / 1.2 / 3.0, np.full(240, 0.28)])[:200]
                known_rows = make_rows(rows, np.where(y[:200] == "yes", 1.0, -1.0))
                expected = prior_of(Problem(Logistic(), L2(), 0.0), known_rows)
                assert_allclose(starts[-1].weights, expected.weights, rtol=1e-4)
                assert_allclose(starts[-1].means, rows.mean(axis=0), rtol=1e-6)
    for rows, words in [
        (X, "public must be a pair"),
        (5, "public must be a pair"),
        ({"X": X, "y": Y}, "public must be a pair"),
        ((X, Y, Y), "public must be a pair"),
        ((X[:, :2], Y), "public: X has 2 features"),
        ((np.where(X > 0.0, np.nan, X), Y), "public: Input X contains NaN"),
        ((X, np.full(240, "maybe")), "public: row 1: label 'maybe' is not one of the declared classes"),
        ((X[Y == "no"], Y[Y == "no"]), "public: the public rows must contain every class"),
    ]:
        with case(words), pytest.raises(ValueError, match=f"^{words}"):
            DPADMMClassifier(**PUBLIC).fit(X, Y, public=rows)


def test_public_rows_have_no_owner() -> None:
    """They may be fewer than the agents, and are in no group."""
    few = (X[:6], np.array(["no", "yes"] * 3))
    DPADMMClassifier(n_agents=8, **PUBLIC, **FEW).fit(X, Y, public=few)
    DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y, groups=THREE, public=few)


# --- privacy -----------------------------------------------------------------------------------------------


def test_public_bounds_and_exact_noise_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DPADMMClassifier(0.7, delta=1e-6, **PUBLIC, **FEW).fit(X, Y)
    report = model.privacy_
    assert json.loads(json.dumps(report)) == report
    assert report["epsilon"] == pytest.approx(0.7, rel=1e-9)
    assert report["epsilon"] <= 0.7
    assert report["delta"] == 1e-6
    assert report["noise"].startswith("exact")
    assert report["read_off_the_data"] == []
    assert model.n_iter_ == 5


def test_exact_noise_varies_and_seeded_noise_repeats() -> None:
    first, second = (DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y).coef_ for _ in range(2))
    assert not np.array_equal(first, second)
    with pytest.warns(PrivacyLeakWarning, match="provides no privacy"):
        third = DPADMMClassifier(random_state=4, **PUBLIC, **FEW).fit(X, Y)
    with pytest.warns(PrivacyLeakWarning, match="provides no privacy"):
        fourth = DPADMMClassifier(random_state=4, **PUBLIC, **FEW).fit(X, Y)
    assert_array_equal(third.coef_, fourth.coef_)
    assert third.privacy_["noise"].startswith("simulated")
    with pytest.warns(PrivacyLeakWarning, match="provides no privacy") as caught:
        fifth = DPADMMClassifier(random_state=np.random.RandomState(4), **PUBLIC, **FEW).fit(X, Y)
    assert caught[0].filename == __file__
    assert_array_equal(fifth.coef_, third.coef_)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Record the settings of every fit."""
    seen: list[Settings] = []

    def run(prepared: Any, settings: Settings, **more: Any) -> Any:
        seen.append(settings)
        assert prepared.test is None
        return simulation.run_prepared(prepared, settings, **more)

    monkeypatch.setattr("dpadmm.estimators.base.run_prepared", run)
    return seen


def test_fit_trains_on_all_rows_and_measures_nothing(used: list[Settings]) -> None:
    model = DPADMMClassifier(delta=1e-6, method="dp_admm", rho=0.3, weight_radius=1e-3, **PUBLIC, **FEW).fit(X, Y)
    assert model.privacy_["n_agents"] == 1  # without groups there is one owner
    (settings,) = used
    assert (settings.n_agents, settings.test_rows, settings.metrics_every) == (1, 0, 0)
    assert (settings.delta, settings.method.rho, settings.method.weight_radius) == (1e-6, 0.3, 1e-3)


@SEEDED
def test_seeds_come_from_random_state_or_the_operating_system(used: list[Settings]) -> None:
    DPADMMClassifier(random_state=4, **PUBLIC, **FEW).fit(X, Y)
    assert used.pop().seed == 2005877882  # for good: published results name their random_state
    shared = check_random_state(None)  # NumPy's own, which whoever seeds it knows
    before = shared.get_state(legacy=False)["state"]["pos"]
    for _ in range(2):
        DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y)
    assert shared.get_state(legacy=False)["state"]["pos"] == before
    assert used[0].seed != used[1].seed


@pytest.mark.parametrize(
    ("C", "l1_ratio", "penalty"),
    [  # 1/(C·n) = 2; a scaled weight is twice the coefficient, since data_norm is 2
        (1.0 / 480.0, 0.0, ("l2", 2.0 * 0.25)),
        (1.0 / 480.0, 1.0, ("l1", 2.0 * 0.5)),
        (1.0 / 480.0, 0.25, ("elastic_net", 2.0 * (0.25 * 0.5 + 0.75 * 0.25))),
        (np.inf, 0.0, ("none", 0.0)),
        (np.inf, 0.5, ("none", 0.0)),
    ],
)
def test_penalties_are_in_the_units_of_the_rows(
    used: list[Settings], C: float, l1_ratio: float, penalty: tuple[str, float]
) -> None:
    known = {"data_norm": 2.0, "classes": ["no", "yes"], "fit_intercept": False}
    DPADMMClassifier(C=C, l1_ratio=l1_ratio, **known, **FEW).fit(X, Y)
    (settings,) = used
    assert (settings.regularizer.name, settings.alpha) == (penalty[0], pytest.approx(penalty[1], rel=1e-12))
    if penalty[0] == "elastic_net":
        assert settings.regularizer.l1_ratio == pytest.approx(0.25 * 0.5 / (0.25 * 0.5 + 0.75 * 0.25), rel=1e-12)


def test_values_inferred_from_the_data_give_a_warning() -> None:
    for given, words in [
        ({"classes": ["no", "yes"]}, ["the norm of rows"]),
        ({"data_norm": NORM}, ["the classes"]),
        ({"bounds": (-2.0, 2.0)}, ["the classes"]),
        ({}, ["the classes", "the norm of rows"]),
    ]:
        with case(given, words):
            model = DPADMMClassifier(**given, **FEW)
            with pytest.warns(PrivacyLeakWarning, match="inferred from the data") as caught:
                model.fit(X, Y)
            assert len(caught) == 1
            assert caught[0].filename == __file__
            report = model.privacy_
            assert [text.split(" (")[0] for text in report["read_off_the_data"]] == words
            assert all(word in report["guarantee"] and word in str(caught[0].message) for word in words)
            quiet = DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y).privacy_["guarantee"]
            assert report["guarantee"].startswith(f"{quiet} It does not cover")


def test_fit_does_not_change_parameters() -> None:
    model = DPADMMClassifier(bounds=[[-2, -2, -2], [2, 2, 2]], classes=("no", "yes"), **FEW)
    before = {name: (id(value), repr(value)) for name, value in model.get_params().items()}
    model.fit(X, Y)
    assert {name: (id(value), repr(value)) for name, value in model.get_params().items()} == before


def test_fitted_model_can_be_pickled() -> None:
    model = DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert again.privacy_ == model.privacy_


# --- refusals ----------------------------------------------------------------------------------------------


def test_invalid_parameters_give_one_sentence() -> None:
    for given, words in [
        ({"epsilon": 0.0}, "epsilon must be a positive number, not 0.0"),
        ({"epsilon": [1.0, 2.0]}, "epsilon must be a positive number, not (1.0, 2.0)"),
        ({"epsilon": np.inf}, "epsilon must be a positive number"),
        ({"epsilon": 1e6}, "there is no exact noise for epsilon=1e+06 in 5 rounds"),
        ({"delta": 1.0}, "delta must be a number in (0, 1)"),
        ({"C": 0.0}, "C must be a positive number, not 0.0"),
        ({"C": "strong"}, "C must be a positive number, not 'strong'"),
        ({"l1_ratio": 1.5}, "l1_ratio must be a number in [0, 1], not 1.5"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1, not 0"),
        ({"max_iter": True}, "max_iter must be a whole number of at least 1, not True"),
        ({"max_iter": "5"}, "max_iter must be a whole number of at least 1, not '5'"),
        ({"l1_ratio": -0.5}, "l1_ratio must be a number in [0, 1], not -0.5"),
        ({"C": 1e-320}, "the penalty must be finite"),
        ({"C": 1e-320, "l1_ratio": 1.0}, "the penalty must be finite"),
        ({"max_iter": 2.5}, "max_iter must be a whole number of at least 1, not 2.5"),
        ({"loss": "log"}, "loss must be one of logistic, hinge, smoothed_hinge, not 'log'"),
        ({"rho": -1.0}, "rho must be"),
        ({"method": "centralized"}, "method must be one of auto, dp_admm, not 'centralized'"),
        ({"max_iter": 1}, "pgd needs at least 2 rounds"),
        ({"accountant": 3.0}, "accountant must be a BudgetAccountant or None, not 3.0"),
    ]:
        with case(given, words), pytest.raises(StudyError, match=re.escape(words)):
            DPADMMClassifier(**({**PUBLIC, **FEW} | given)).fit(X, Y)


def test_other_names_of_a_parameter_give_a_suggestion() -> None:
    with pytest.raises(TypeError, match=r"^DPADMMClassifier has no parameter 'n_rounds'; did you mean 'max_iter'\?$"):
        DPADMMClassifier(epsilon=1.0, n_rounds=20)  # type: ignore[call-arg]


def test_no_penalty_is_allowed() -> None:
    assert DPADMMClassifier(C=np.inf, **PUBLIC, **FEW).fit(X, Y).n_iter_ == 5


def test_errors_about_missing_cells_and_text_do_not_quote_them() -> None:
    pandas = pytest.importorskip("pandas")
    holes = X.copy()
    holes[3, 1] = np.nan
    fitted = DPADMMClassifier(**PUBLIC, **FEW).fit(X, Y)
    for refused in (lambda: DPADMMClassifier(**PUBLIC).fit(holes, Y), lambda: fitted.predict(holes)):
        with pytest.raises(DataError, match=r"Input X contains NaN.* middle of their public bounds.* leak"):
            refused()
    for cells in (["secret"] * 240, pandas.Categorical(["secret"] * 240)):
        table = pandas.DataFrame({"age": X[:, 0], "ward": cells})
        with pytest.raises(DataError, match=r"columns 'ward' of X must be numbers; .* from a public list") as said:
            DPADMMClassifier(**PUBLIC).fit(table, Y)
        assert "secret" not in str(said.value)
    for kind in (object, str):
        with pytest.raises(DataError, match="all columns of X must be numbers"):
            DPADMMClassifier(**PUBLIC).fit(np.full((240, 2), "secret", dtype=kind), Y)
    with pytest.raises(DataError, match=r"y must be numbers, but a label is text$"):
        DPADMMRegressor().fit(X, np.full(240, "secret", dtype=object))


def test_rows_of_wrong_shape_give_one_sentence() -> None:
    with pytest.raises(NotFittedError):
        DPADMMClassifier(**PUBLIC).predict(X)
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        DPADMMClassifier(**PUBLIC, **FEW).fit(X[:1], Y[:1])
    assert DPADMMClassifier(**PUBLIC, **FEW).fit(X[:2], Y[:2]).n_features_in_ == 3
    with pytest.raises(DataError, match="label 'yes' is not one of the declared classes"):
        DPADMMClassifier(data_norm=NORM, classes=["no", "never"]).fit(X, Y)
    with pytest.raises(DataError, match="agent c has one row"):
        DPADMMClassifier(**PUBLIC).fit(X, Y, groups=["a"] * 200 + ["b"] * 39 + ["c"])
    with pytest.raises(DataError, match="240 groups in one dimension"):
        DPADMMClassifier(**PUBLIC).fit(X, Y, groups=["a", "b"])


def test_defaults_are_stable() -> None:
    shared = {
        "epsilon": 1.0, "delta": 1e-5, "data_norm": None, "bounds": None, "center": None, "scale": None,
        "l1_ratio": 0.0, "fit_intercept": True, "method": "auto", "max_iter": None, "rho": 0.1, "random_state": None,
        "accountant": None, "n_agents": None, "aggregation": "plain", "min_honest_sites": None, "inference": False,
        "weight_max": None, "study": None,
    }  # fmt: skip
    classifier = {"C": 1.0, "classes": None, "loss": "logistic", "weight_radius": 30.0, "class_weight": None}
    regressor = {"alpha": 1.0, "y_bounds": None, "loss": "squared", "gradient_bound": 1.0, "weight_radius": 3.0}
    assert DPADMMClassifier().get_params() == {**shared, **classifier}
    assert DPADMMRegressor().get_params() == {**shared, **regressor}
    assert PrivateLinearModel.weight_radius == 30.0
