"""A private search: noise for the choice, sensitivity of the score, and no traces of other runs."""

from __future__ import annotations

import itertools
import math
import pickle
import random
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import chi2
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import make_pipeline

from dpadmm import (
    BudgetAccountant,
    DPADMMClassifier,
    DPADMMRegressor,
    PrivacyLeakWarning,
    PrivateSearch,
    PublicScaler,
    StudyError,
)
from dpadmm.accounting.selection import expected_runs, selection_epsilon
from dpadmm.engine import noise as oracles
from dpadmm.estimators import search as searching
from dpadmm.estimators.search import private_score
from dpadmm.trusted import discrete_gaussian as exact_noise
from dpadmm.trusted.discrete_gaussian import Lattice

RNG = np.random.default_rng(4)
X = RNG.uniform(-1.0, 1.0, (200, 3))
Y = (X[:, 0] > X[:, 1]).astype(int)
ROUNDS, DELTA = 4, 1e-5
MODEL = DPADMMClassifier(bounds=(-1, 1), classes=[0, 1], max_iter=ROUNDS)
NUMBERS = DPADMMRegressor(bounds=(-1, 1), y_bounds=(-1, 1), max_iter=ROUNDS)
CANDIDATES: list[dict[str, Any]] = [{"C": 0.01}, {"C": 1.0}, {"method": "dp_admm", "rho": 1.0}]


def search(candidates: Any = CANDIDATES, *, estimator: Any = MODEL, **more: Any) -> PrivateSearch:
    return PrivateSearch(estimator, candidates, **{"epsilon": 1.0, "delta": DELTA, **more})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Of every release in the order of time: how far one row can move the sum, over the noise that was really drawn."""
    seen: list[float] = []

    def release_sum(total: Any, grid: Lattice, z: float, **more: Any) -> Any:
        def draw(scale: int, count: int) -> Any:
            seen.append(2.0 * grid.row_norm / grid.step / scale)
            return exact_noise.discrete_gaussian(scale, count)

        return exact_noise.release_sum(total, grid, z, draw=draw)

    for module in (oracles, searching):
        monkeypatch.setattr(module, "release_sum", release_sum)
    return seen


def fixed_runs(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(searching, "draw_runs", lambda runs, below: count)


@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_noise_of_every_run_covers_training_score_and_choice(
    drawn: list[float], monkeypatch: pytest.MonkeyPatch, epsilon: float, runs: int
) -> None:
    fixed_runs(monkeypatch, 6)
    found = search(epsilon=epsilon, runs=runs).fit(X, Y)
    by_run = np.reshape(drawn, (6, ROUNDS + 1))
    for mu in np.sqrt((by_run**2).sum(axis=1)):
        total = selection_epsilon(float(mu), runs, DELTA)
        assert total <= epsilon
        assert total == pytest.approx(epsilon, rel=1e-4)
    told = found.privacy_
    assert told["epsilon"] == pytest.approx(epsilon, rel=1e-6)
    assert told["epsilon"] <= epsilon
    assert told["run_epsilon"] < 0.85 * epsilon
    assert told["expected_runs"] == expected_runs(runs)
    drawn.clear()
    clone(MODEL).set_params(epsilon=epsilon, delta=DELTA).fit(X, Y)
    assert math.sqrt(np.square(drawn).sum()) > 1.15 * np.sqrt((by_run**2).sum(axis=1)).max()  # one fit has less noise


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_score_changes_by_at_most_its_sensitivity_which_is_attained(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    model = clone(MODEL).fit(X, Y) if kind == "classes" else clone(NUMBERS).fit(X, X[:, 0])
    totals: list[float] = []

    def release_sum(total: Any, grid: Lattice, z: float, **more: Any) -> Any:
        assert (grid.row_norm, grid.size, grid.n_rows) == (0.5, 1, len(X))
        assert z == 7.0
        totals.append(float(total[0]))
        return exact_noise.release_sum(total, grid, z, draw=lambda scale, count: np.zeros(count, np.int64))

    monkeypatch.setattr(searching, "release_sum", release_sum)
    labels = model.predict(X)
    assert private_score(model, X, labels, 7.0) == pytest.approx(1.0)
    largest = 0.0
    for other in (0, 1) if kind == "classes" else (-1.0, 0.3, 1.0, 1e300, -1e308):
        for row in (X[5], np.ones(3), -np.ones(3), np.full(3, 1e9)):
            changed, rows = labels.copy(), X.copy()
            changed[5], rows[5] = other, row
            private_score(model, rows, changed, 7.0)
            largest = max(largest, abs(totals[0] - totals[-1]))
    assert largest == 1.0 < Lattice(0.5, 1, len(X)).sensitivity


def test_the_number_of_runs_does_not_depend_on_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    train = DPADMMClassifier._run
    monkeypatch.setattr(DPADMMClassifier, "_run", lambda self, *how: (trained.append(1), train(self, *how))[1])

    def runs(X: Any, y: Any, seed: int) -> int:
        trained.clear()
        with pytest.warns(PrivacyLeakWarning, match="provides no privacy"):
            search(random_state=seed).fit(X, y)
        return len(trained)

    counts = [runs(X, Y, seed) for seed in range(4)]
    assert counts == [runs(-X[::-1], 1 - Y, seed) for seed in range(4)]
    assert len(set(counts)) > 2


def tried(monkeypatch: pytest.MonkeyPatch, runs: int, seed: int) -> list[float]:
    """Return the candidate of every run in order. Each is drawn from all candidates."""
    found: list[float] = []
    score, candidates = searching.private_score, [{"C": 1.0}, {"C": 2.0}, {"C": 3.0}]

    class Checked(random.Random):
        def choice(self, seq: Any) -> Any:
            assert seq == candidates
            return super().choice(seq)

    def scored(model: Any, *rows: Any, **more: Any) -> float:
        found.append(model.C)
        return score(model, *rows, **more)

    with monkeypatch.context() as patch:
        patch.setattr(searching, "private_score", scored)
        patch.setattr(searching, "Random", Checked)
        fixed_runs(patch, runs)
        model = clone(MODEL).set_params(max_iter=2)
        with pytest.warns(PrivacyLeakWarning, match="provides no privacy"):
            search(candidates, estimator=model, random_state=seed).fit(X[:20], Y[:20])
    return found


def test_runs_draw_their_candidates_independently_and_uniformly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The theorem needs identical draws with replacement. With random seeds, one in 10,000 runs of this test fails."""
    of_seeds = [tried(monkeypatch, 60, seed) for seed in range(3)]
    assert len({tuple(each) for each in of_seeds}) == 3, "the order is drawn, not fixed"
    counts, limit = np.zeros((3, 3)), chi2.isf(1e-4, 8)
    for each in of_seeds:
        for one, other in itertools.pairwise(each):  # also 1, 1: a candidate may come twice in a row
            counts[int(one) - 1, int(other) - 1] += 1
    expected = counts.sum() / 9
    assert ((counts - expected) ** 2 / expected).sum() < limit


def test_search_stores_the_best_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[Any] = []

    def scored(model: Any, *_: Any, **__: Any) -> float:
        models.append(model)
        return [0.2, 0.9, 0.9, 0.4][(len(models) - 1) % 4]

    monkeypatch.setattr(searching, "private_score", scored)
    left: list[tuple[set[str], int, list[str]]] = []
    for count in (2, 40):
        fixed_runs(monkeypatch, count)
        models.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = search([{"C": 0.5}], estimator=DPADMMClassifier(max_iter=ROUNDS)).fit(X, Y)
        assert len(models) == count
        assert (found.best_estimator_, found.best_score_, found.best_params_) == (models[1], 0.9, {"C": 0.5})
        left.append((set(vars(found)), len(pickle.dumps(found)), [str(each.message) for each in said]))
    assert left[0][0] == left[1][0]
    assert abs(left[0][1] - left[1][1]) < 20
    assert left[0][2] == left[1][2]
    assert len(left[0][2]) == 1  # what was read off the data, said once
    assert "the classes" in left[0][2][0]
    assert "the classes" in found.privacy_["guarantee"]


def test_model_reports_the_cost_of_the_whole_search() -> None:
    best = search().fit(X, Y).best_estimator_
    assert best.epsilon == 1.0
    assert best.random_state is None
    assert best.privacy_["epsilon"] == best._model.privacy["epsilon"] == pytest.approx(1.0, rel=1e-6)
    assert best.privacy_["noise"].startswith("exact")


def test_better_candidate_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With little noise, and enough runs to try every candidate."""
    fixed_runs(monkeypatch, 40)
    rows = np.tile(X, (20, 1))
    penalties = ParameterGrid({"alpha": [1e6, 1.0]})
    for estimator, y in ((MODEL, rows[:, 0] > rows[:, 1]), (NUMBERS, rows[:, 0])):
        known = {} if estimator is NUMBERS else {"classes": [False, True]}
        candidates: Any = penalties if estimator is NUMBERS else [{"C": 1e-7, "loss": "hinge"}, {"C": 1.0}]
        found = search(candidates, estimator=clone(estimator).set_params(**known), epsilon=20.0).fit(rows, y)
        assert found.best_params_ == list(candidates)[1]
        assert found.best_score_ > 0.9


def test_search_follows_scikit_learn_conventions() -> None:
    model = search(runs=2, random_state=3)
    assert clone(model).get_params()["estimator__max_iter"] == ROUNDS
    assert repr(model).startswith("PrivateSearch(candidates=[{'C': 0.01}")
    assert is_classifier(model)
    assert is_regressor(search([{}], estimator=NUMBERS))
    pipeline = make_pipeline(PublicScaler(0.0, 1.0), search([{}], runs=1)).fit(X, Y)
    assert pipeline.predict(X).shape == (200,)
    assert pipeline.predict_proba(X).shape == pipeline[-1].predict_log_proba(X).shape == (200, 2)
    assert pipeline.score(X, Y) == pipeline[-1].best_estimator_.score(X, Y)
    assert pipeline.decision_function(X).shape == (200,)
    assert pipeline.classes_.tolist() == [0, 1]
    numbers = search([{}], estimator=NUMBERS, runs=1).fit(csr_array(X), X[:, 0], public=(X[:50], X[:50, 0]))
    assert not hasattr(numbers, "predict_proba")
    assert numbers.predict(X).shape == (200,)
    with pytest.warns(PrivacyLeakWarning, match="provides no privacy"):
        first, second = (clone(model).fit(X, Y) for _ in range(2))
    assert first.best_score_ == second.best_score_
    assert first.best_estimator_.coef_.tolist() == second.best_estimator_.coef_.tolist()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: search([]), "candidates must be a list of at least one dict"),
        (lambda: search({"C": [0.1, 1.0]}), "candidates must be a list of at least one dict"),
        (lambda: search(3), "candidates must be a list of at least one dict"),
        (
            lambda: search([{}, {"max_itre": 3}]),
            "candidate 2: DPADMMClassifier has no parameter 'max_itre'; .*max_iter",
        ),
        (lambda: search([{}, {"C": -1.0}]), "C must be a positive number"),
        (lambda: search(epsilon=0.0), "epsilon must be a positive number"),
        (lambda: search(epsilon=-1.0), "epsilon must be a positive number"),
        (lambda: search(delta=0.0), r"delta must be a number in \(0, 1\), not 0.0"),
        (lambda: search(runs=0), "runs must be a whole number of at least 1"),
        (lambda: search(epsilon=1e4), "there is no exact noise"),
        (
            lambda: search([{}], estimator=LogisticRegression()),
            "estimator must be a DPADMMClassifier or DPADMM.*last step",
        ),
        (
            lambda: search(estimator=clone(MODEL).set_params(accountant=BudgetAccountant(9.0, DELTA))),
            "cannot be charged to a BudgetAccountant",
        ),
    ],
)
def test_invalid_searches_are_refused_before_any_run(drawn: list[float], wrong: Any, sentence: str) -> None:
    with pytest.raises(StudyError, match=sentence):
        wrong().fit(X, Y)
    assert drawn == []


def test_candidates_cannot_set_shared_parameters() -> None:
    shared: list[dict[str, Any]] = [
        {"epsilon": 9.0}, {"delta": 0.1}, {"random_state": 1}, {"accountant": BudgetAccountant(9.0, DELTA)},
        {"classes": [0, 1]}, {"n_agents": 4}, {"aggregation": "secure"}, {"min_honest_sites": 3},
    ]  # fmt: skip
    for each, model in [*((each, MODEL) for each in shared), ({"y_bounds": (-9, 9)}, NUMBERS)]:
        with pytest.raises(StudyError, match=rf"candidate 2 sets {next(iter(each))}, which all runs share"):
            search([{}, each], estimator=model).fit(X, Y)


def test_agents_and_open_accountants_are_refused(drawn: list[float]) -> None:
    with pytest.raises(StudyError, match="other runs stay secret, but messages between agents show every run"):
        search().fit(X, Y, groups=np.arange(200) % 2)
    with pytest.raises(StudyError, match="n_agents: a search is private only while"):
        search(estimator=clone(MODEL).set_params(n_agents=4)).fit(X, Y)
    with BudgetAccountant(9.0, DELTA) as accountant, pytest.raises(StudyError, match="cannot be charged"):
        search().fit(X, Y)
    assert (len(accountant), drawn) == (0, [])
