"""``auto`` with intervals: plan, refusals before any release, and coverage of the intervals."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from looping import case
from sklearn.exceptions import NotFittedError

from dpadmm import simulate
from dpadmm.data import Dataset
from dpadmm.engine.noise import ExactNoise, SimulatedNoise
from dpadmm.errors import StudyError
from dpadmm.estimators import DPADMMClassifier, DPADMMRegressor
from dpadmm.losses import Poisson
from dpadmm.losses.poisson import coded, decoded
from dpadmm.matrices.clipping import INTERCEPT, clip_rows, with_intercept
from dpadmm.methods.newton import MAX_FEATURES, Newton, NewtonState
from dpadmm.methods.prior import Prior
from dpadmm.models.run import run
from dpadmm.queries.problem import make_rows
from dpadmm.studies.settings import Settings, Training
from dpadmm.studies.study import Study

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
with pytest.MonkeyPatch.context() as path:
    path.syspath_prepend(BENCHMARKS)
    from intervals import LARGEST_COUNT, LOSSES, Cell, coverage, data

INFERENCE = {"name": "auto", "inference": True}


def study(**more: Any) -> Study:
    training = {"method": INFERENCE, "epsilon": 1.0, **more.pop("training", {})}
    return Study(name="x", **{"features": tuple("abc"), "classes": (-1, 1), **more}, training=training)


def fitted(cell: Cell, *, noise: Any = None, n: int = 20, **more: Any) -> tuple[Any, Any, Any]:
    """Return a run on the rows of a cell, with those rows."""
    rows, labels, _ = data(cell, np.random.default_rng(1))
    training = Training(loss=LOSSES[cell.loss], method=INFERENCE, **{"epsilon": cell.epsilon, **more})
    problem = training.problem(2 if cell.loss == "logistic" else 0)
    held = make_rows(rows, labels, offsets=np.linspace(0, len(rows), n + 1).astype(int))
    made = SimulatedNoise(3, n, (rows.shape[1], 1)) if noise is None else noise
    return run(training, problem, held, made), rows, labels


# The plan


def test_last_round_has_most_of_the_budget_and_the_total_is_exact() -> None:
    agreed = study()
    plan = agreed.terms.plan
    assert plan.n_rounds == Newton.default_rounds == agreed.training.planned_rounds
    spent = [float(plan.mu_squared([k])) for k in range(1, Newton.default_rounds + 1)]
    assert spent[-1] == pytest.approx(0.6 * sum(spent))
    assert spent[:-1] == pytest.approx([0.1 * sum(spent)] * 4)
    assert agreed.epsilon == pytest.approx(1.0)
    assert set(agreed.terms.statistics) == {"newton"}
    assert agreed.hash != study(training={"method": "auto"}).hash
    assert agreed.as_json()["method"] == {"name": "newton"}
    again = study(training={"n_rounds": 3}).terms.plan
    assert [float(again.mu_squared([k])) for k in (1, 2, 3)] == pytest.approx(np.array([0.2, 0.2, 0.6]) * sum(spent))
    some = Training(method=INFERENCE, epsilon=1.0, n_rounds=4).build(
        agreed.problem, make_rows(np.eye(4), np.ones(4), offsets=np.array([0, 2, 4])), np.array([2, 3])
    )
    whole = float(plan.mu_squared())
    z = {name: float(each[0]) for name, each in (("last", some.last), ("earlier", some.earlier))}  # type: ignore[attr-defined]
    assert 1.0 / z["last"] ** 2 + 2.0 / z["earlier"] ** 2 == pytest.approx(whole)  # whichever two rounds it takes


def test_unsupported_intervals_are_refused_before_any_release() -> None:
    wide = tuple(f"x{j}" for j in range(MAX_FEATURES))
    study(features=wide)
    for made, words in [
        (lambda: study(features=(*wide, "more")), f"at most {MAX_FEATURES} features, not {MAX_FEATURES + 1}"),
        (
            lambda: study(training={"loss": "huber"}, classes=None),
            "need the loss logistic, squared or poisson, not huber",
        ),
        (
            lambda: study(training={"loss": "softmax"}, classes=(0, 1, 2)),
            "logistic, squared or poisson, not softmax",
        ),
        (lambda: study(training={"method": {"name": "dp_admm", "inference": True}}), "not of dp_admm; remove it"),
        (lambda: Settings(epsilon=1.0, method={"inference": True}), "inference is a parameter of auto, not of dp_admm"),
        (lambda: study(training={"average": "tail"}), 'inference requires average = "last"'),
        (
            lambda: study(training={"n_rounds": 1}),
            "at least 2 rounds: the last one starts from the result of the others",
        ),
    ]:
        with case(words), pytest.raises(StudyError, match=words):
            made()


def test_broadcast_contains_the_whole_state() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    told = NewtonState(0.3, 1.7, rng.normal(size=4), root @ root.T)
    again = NewtonState.unpacked(told.packed(), 4)
    assert (again.clip, again.hessian_snr) == (0.3, 1.7)
    assert np.array_equal(again.weights, told.weights)
    np.testing.assert_allclose(again.covariance, told.covariance, rtol=1e-15)
    assert np.array_equal(again.covariance, again.covariance.T)


# What the intervals say


def test_without_noise_estimates_and_standard_errors_match_statsmodels() -> None:
    for loss, family in (("logistic", sm.families.Binomial()), ("squared", sm.families.Gaussian())):
        for correlation in (0.3, 0.8):
            with case(loss, correlation):
                cell = Cell(loss, 6, correlation, "plain", 4_000, 1.0)
                found, rows, labels = fitted(cell, n=3, epsilon=None, noise_multiplier=1e-6, n_rounds=8)
                known = sm.GLM(labels > 0 if loss == "logistic" else labels, rows, family=family).fit()
                covariance = found.covariance
                errors = np.sqrt(np.diag(covariance))
                np.testing.assert_allclose(errors, known.bse, rtol=0.01)
                # of numbers, residuals beyond three standard deviations are clipped
                assert np.abs((found.weights[:, 0] - known.params) / known.bse).max() < 0.03


def test_without_noise_rates_match_statsmodels_with_an_offset() -> None:
    for correlation in (0.3, 0.8):
        with case(correlation):
            cell = Cell("poisson", 6, correlation, "plain", 4_000, 1.0)
            found, rows, labels = fitted(cell, n=3, epsilon=None, noise_multiplier=1e-6, n_rounds=8)
            counts, exposures = decoded(labels)
            known = sm.GLM(
                np.rint(LARGEST_COUNT * counts), rows, family=sm.families.Poisson(),
                offset=np.log(LARGEST_COUNT * exposures),
            ).fit()  # fmt: skip
            covariance = found.covariance
            np.testing.assert_allclose(np.sqrt(np.diag(covariance)), known.bse, rtol=0.01)
            np.testing.assert_allclose(found.weights[:, 0], known.params, rtol=0.01, atol=0.01 * known.bse.min())


def people(n: int, times: tuple[float, ...], seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Return rows of norm ≤ 1 with a constant, times and events, and encoded labels. Hazards vary with time."""
    rng = np.random.default_rng(seed)
    rows = np.asarray(with_intercept(clip_rows(rng.normal(size=(n, 3)) / 3.0)))
    levels, scores = np.array([0.1, 0.3, 0.2]), rows[:, :3] @ [1.5, -1.0, 0.0]
    edges, left = np.array([0.0, *times]), rng.exponential(size=n) / np.exp(scores)
    cumulated = np.concatenate([[0.0], np.cumsum(levels * np.diff(edges))])
    place = np.minimum(np.searchsorted(cumulated, left) - 1, 2)
    died = np.where(left > cumulated[-1], np.inf, edges[place] + (left - cumulated[place]) / levels[place])
    censored = rng.uniform(0.5, 2.0 * times[-1], n)
    time = np.minimum(np.minimum(died, censored), times[-1])
    event = (died <= np.minimum(censored, times[-1])).astype(float)
    return rows, time, event, coded(event, time / times[-1])


def expanded(rows: Any, time: Any, event: Any, times: tuple[float, ...]) -> Any:
    """Return one row for every interval of a person, and the fit of statsmodels."""
    parts = []
    for h, (low, high) in enumerate(pairwise([0.0, *times])):
        seen = time > low
        constant = np.zeros((np.count_nonzero(seen), len(times)))
        constant[:, h] = rows[seen, -1]
        parts.append((np.hstack([rows[seen, :-1], constant]), event[seen] * (time[seen] <= high),
                      np.minimum(time[seen], high) - low))  # fmt: skip
    x, y, spent = (np.concatenate([part[k] for part in parts]) for k in range(3))
    return sm.GLM(y, x, family=sm.families.Poisson(), offset=np.log(spent / times[-1])).fit()


def test_without_noise_hazards_match_the_expanded_rows() -> None:
    times = (1.0, 2.5, 5.0)
    rows, time, event, labels = people(5_000, times)
    known = expanded(rows, time, event, times)
    training = Training(loss=Poisson(cuts=(0.2, 0.5)), method=INFERENCE, noise_multiplier=1e-6, n_rounds=8)
    done = run(training, training.problem(0), make_rows(rows, labels), SimulatedNoise(1, 1, (4, 3)))
    covariance = done.covariance
    assert done.weights.shape == (4, 3)
    assert (done.weights[:3] == done.weights[:3, :1]).all()  # hazards are proportional
    np.testing.assert_allclose(np.append(done.weights[:3, 0], done.weights[3]), known.params, rtol=0.01)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), known.bse, rtol=0.01)


def test_coverage_of_hazard_ratio_intervals() -> None:
    times, hits = (1.0, 2.5, 5.0), []
    training = Training(loss=Poisson(cuts=(0.2, 0.5)), method=INFERENCE, epsilon=4.0)
    for seed in range(40):
        rows, _, _, labels = people(10_000, times, seed)
        done = run(training, training.problem(0), make_rows(rows, labels), SimulatedNoise(seed, 1, (4, 3)))
        covariance = done.covariance
        assert covariance is not None
        true = np.append([1.5, -1.0, 0.0], np.log(np.array([0.1, 0.3, 0.2]) * times[-1]) / INTERCEPT)
        estimate = np.append(done.weights[:3, 0], done.weights[3])
        hits.append(np.abs(estimate - true) <= 1.959964 * np.sqrt(np.diag(covariance)))
    assert 0.91 <= np.mean(hits) <= 0.985


def test_coverage_of_intervals() -> None:
    """The short version of ``python benchmarks/intervals.py``: 360 intervals per cell, with given seeds."""
    for cell in (
        Cell("logistic", 6, 0.8, "secure", 10_000, 2.0),
        Cell("squared", 6, 0.3, "secure", 10_000, 2.0),
        Cell("squared", 6, 0.3, "plain", 30_000, 2.0),
        Cell("poisson", 6, 0.3, "secure", 20_000, 2.0),
    ):
        with case(cell):
            told = coverage(cell, 60)
            assert told["given"] == 1.0
            assert 0.905 <= told["covered"] <= 0.985
            assert told["ratio"] > 1.1
            assert told["naive"] < told["covered"] + 0.005


def test_sites_are_weighted_by_budget_and_size() -> None:
    """If one of two sites has almost no noise and the other almost no weight, the fit is that of the first."""
    rows, labels, _ = data(Cell("logistic", 6, 0.3, "plain", 8_000, 1.0), np.random.default_rng(2))
    training = Training(method=INFERENCE, noise_multiplier=(0.01, 1000.0))
    held = make_rows(rows, labels, offsets=np.array([0, 5_000, 8_000]))
    found = run(training, training.problem(2), held, SimulatedNoise(1, 2, (6, 1)))
    known = sm.GLM(labels[:5_000] > 0, rows[:5_000], family=sm.families.Binomial()).fit()
    covariance = found.covariance
    assert covariance is not None
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), known.bse, rtol=0.02)
    assert np.abs((found.weights[:, 0] - known.params) / known.bse).max() < 0.5


def test_too_few_rows_give_a_model_without_intervals() -> None:
    cell = Cell("logistic", 11, 0.8, "plain", 4_000, 0.5)
    found, _, _ = fitted(cell)
    covariance = found.covariance
    assert covariance is None
    assert 0.0 < found.hessian_snr < 1.0
    assert np.isfinite(found.weights).all()
    assert found.weights.any()
    assert not np.any(found.method._state(found.outcome.broadcast).covariance)  # type: ignore[attr-defined]


def test_constant_or_duplicate_columns_do_not_affect_other_intervals() -> None:
    """A column of zeros, and a duplicate: the sum of both coefficients is identified, and neither alone is."""
    rows, labels, _ = data(Cell("logistic", 6, 0.3, "plain", 30_000, 4.0), np.random.default_rng(4))
    more = np.column_stack([rows[:, :5], rows[:, 0], np.zeros(len(rows)), rows[:, 5]]) / 1.5
    training = Training(method=INFERENCE, epsilon=4.0)
    held = make_rows(more, labels)
    found = run(training, training.problem(2), held, SimulatedNoise(5, 1, (8, 1)))
    covariance = found.covariance
    assert covariance is not None
    assert not covariance[6].any()
    both = np.eye(8)[0] + np.eye(8)[5]
    known = sm.GLM(labels > 0, rows / 1.5, family=sm.families.Binomial()).fit()
    error = np.sqrt(both @ covariance @ both)
    assert known.bse[0] < error < 2.0 * known.bse[0]
    assert abs(both @ found.weights[:, 0] - known.params[0]) < 4.0 * error
    assert np.linalg.eigvalsh(np.delete(np.delete(covariance, 6, 0), 6, 1))[0] == pytest.approx(0.0, abs=1e-9)


def test_aborted_last_round_gives_a_model_without_intervals() -> None:
    rows, labels, _ = data(Cell("logistic", 6, 0.3, "secure", 8_000, 2.0), np.random.default_rng(4))
    training = Training(method=INFERENCE, epsilon=2.0, aggregation="secure", min_honest_sites=3)
    held = make_rows(rows, labels, offsets=np.array([0, 2_000, 4_000, 8_000]))
    done = [
        run(
            training,
            training.problem(2),
            held,
            SimulatedNoise(1, 3, (6, 1)),
            aborts=lambda k, last=last: k == last,
        )
        for last in (Newton.default_rounds, Newton.default_rounds + 1)
    ]
    assert done[0].hessian_snr == 0.0
    assert done[0].covariance is None
    assert done[1].covariance is not None
    assert np.linalg.norm(done[0].weights - done[1].weights) < 0.3 * np.linalg.norm(done[1].weights)


def test_intervals_with_exact_noise_and_clipping_by_residuals() -> None:
    cell = Cell("squared", 6, 0.3, "plain", 20_000, 2.0)
    found, rows, labels = fitted(cell, noise=ExactNoise(), n=1)
    known = sm.OLS(labels, rows).fit()
    covariance = found.covariance
    errors = np.sqrt(np.diag(covariance))
    assert np.abs((found.weights[:, 0] - known.params) / errors).max() < 6.0
    state = found.method._state(found.outcome.broadcast)  # type: ignore[attr-defined]
    assert state.clip == pytest.approx(3.0 * known.mse_resid**0.5, rel=0.1)


# In Python


def test_estimators_report_intervals_in_the_units_of_rows_and_labels() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2)) * [2.0, 10.0] + [1.0, 50.0]
    score = 0.8 * (x[:, 0] - 1.0) - 0.05 * (x[:, 1] - 50.0)
    y = np.where(rng.random(len(x)) < 1.0 / (1.0 + np.exp(-score)), "ill", "well")
    common: dict[str, Any] = {"center": [1.0, 50.0], "scale": [2.0, 10.0], "data_norm": 4.0, "random_state": 1}
    with pytest.warns(UserWarning, match="random_state"):
        model = DPADMMClassifier(4.0, classes=["ill", "well"], inference=True, **common).fit(x, y)
    known = sm.GLM(y == "well", sm.add_constant(x), family=sm.families.Binomial()).fit()
    ends = model.conf_int()
    assert ends.shape == (3, 2)
    middle, width = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / (2.0 * 1.959964)
    np.testing.assert_allclose(middle, [*model.coef_[0], model.intercept_[0]], rtol=1e-9)
    expected = known.params[[1, 2, 0]], known.bse[[1, 2, 0]]
    assert np.abs((middle - expected[0]) / width).max() < 4.0
    assert (width > 0.98 * expected[1]).all()
    assert (width < 2.0 * expected[1]).all()
    assert (model.conf_int(0.5)[:, 1] < ends[:, 1]).all()
    assert np.array_equal(ends, model.conf_int(0.95))
    assert re.search("\nx1 +per unit", model.summary())
    assert "\nintercept" in model.summary()
    with pytest.raises(NotFittedError):
        DPADMMClassifier(inference=True).conf_int()
    silent = DPADMMClassifier(4.0, classes=["ill", "well"], inference=True, random_state=1, bounds=(-9, 99))
    with pytest.warns(UserWarning, match="random_state"):
        silent.fit(pd.DataFrame({"age": x[:, 1], "none": 45.0}), y)
    assert re.search("\nage +per unit", silent.summary())
    assert np.isnan(silent.conf_int()).tolist() == [[False] * 2, [True] * 2, [True] * 2]  # none is 0 in every row
    z = 30.0 + 2.0 * x[:, 0] - 0.1 * x[:, 1] + rng.normal(size=len(x))
    with pytest.warns(UserWarning, match="random_state"):
        number = DPADMMRegressor(4.0, y_bounds=(10, 45), inference=True, **common).fit(x, z)
    known = sm.OLS(z, sm.add_constant(x)).fit()
    ends = number.conf_int()
    middle, width = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / (2.0 * 1.959964)
    np.testing.assert_allclose(middle, [*number.coef_, number.intercept_], rtol=1e-9)
    assert np.abs((middle - known.params[[1, 2, 0]]) / width).max() < 4.0
    with pytest.warns(UserWarning, match="random_state"):
        plain = DPADMMRegressor(4.0, y_bounds=(10, 45), **common).fit(x[:500], z[:500])
    with pytest.raises(StudyError, match="fit with inference=True"):
        plain.conf_int()
    with pytest.raises(StudyError, match="does not support inference; use auto"):
        DPADMMRegressor(4.0, y_bounds=(10, 45), inference=True, method="dp_admm", **common).fit(x, z)


def test_public_rows_start_the_run_without_biasing_the_estimate() -> None:
    rows, labels, true = data(Cell("logistic", 6, 0.3, "plain", 20_000, 4.0), np.random.default_rng(6))
    dataset = Dataset("x", rows[:, :5] / 0.96, labels, (-1, 1))
    common: dict[str, Any] = {"method": INFERENCE, "epsilon": 4.0, "seed": 1, "test_rows": 0}
    found = [
        simulate(dataset, n_agents=1, intercept=True, warm_start=start, metrics_every=0, **common)
        for start in (None, -true[:, None])
    ]
    method, prior = found[0].method, Prior(-true[:, None], 100, np.zeros(6), np.zeros(6))
    assert np.array_equal(
        method.with_prior(prior).start((6, 1)), method.start((6, 1), -true[:, None])
    )  # as across sites
    errors = np.sqrt(np.diag(found[0].covariance))
    assert np.abs(found[0].weights - found[1].weights)[:, 0].max() < errors.max()
