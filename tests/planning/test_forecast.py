"""Forecasts: planned noise on substitute rows, folds, the correction for few rows, intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import planned
import pytest
from noise_queries import gradient_query

from dpadmm import kernels
from dpadmm.accounting import exact_epsilon
from dpadmm.data.encoder import Report
from dpadmm.data.table import EncodedTable, encode_table
from dpadmm.engine.metrics import error
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import Logistic
from dpadmm.methods import Auto
from dpadmm.methods.prior import prior_of
from dpadmm.models.explain import explain
from dpadmm.planning.costs import costs_of, measured_seconds, with_rounds_for
from dpadmm.planning.forecast import (
    MAX_AGENTS,
    ForecastGrid,
    PlannedNoise,
    forecast_scenario,
    forecast_settings,
    grid_of,
    n_runs,
    optimism_correction,
    prior_weight,
    resampled,
    run,
    simulated_sizes,
)
from dpadmm.planning.forecast import _values as values_of
from dpadmm.planning.intervals import forecast_intervals
from dpadmm.planning.measures import figures
from dpadmm.planning.plan import ABORTED_SHARE, alternatives
from dpadmm.planning.scenarios import MIN_ROWS, STRENGTHS, Pool, Scenario, public_scenario, synthetic_scenarios
from dpadmm.queries.problem import make_rows
from dpadmm.studies.reading import read_study
from dpadmm.studies.study import Study
from dpadmm.training.train import prior_from, run_study


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(planned.STUDY)
    return read_study(path)


@pytest.fixture
def pool(study, tmp_path):
    return pool_of(study, planned.table(tmp_path / "rows.csv", 600))


def pool_of(study, path):
    encoded = encode_table(path, study.schema, study.label, intercept=study.training.intercept)
    return Pool(encoded.features, encoded.labels)


def test_a_run_with_all_rows_is_the_study_itself(study, pool):
    sizes, seed = np.array([100, 300, 200]), 7
    order = resampled(600, 600, np.random.default_rng(seed))
    table = EncodedTable(
        pool.features[order], pool.labels[order], np.repeat([0, 1, 2], sizes), ("a", "b", "c"), Report()
    )
    expected = run_study(study, table, seed=seed).weights
    np.testing.assert_allclose(run(study.training, study.problem, pool, sizes, seed=seed).weights, expected, atol=1e-12)


def test_noise_is_that_of_the_planned_rows(pool):
    rows = make_rows(pool.features[:80], pool.labels[:80], offsets=np.array([0, 40, 80]))
    normals = SimulatedNoise(3, 2, (rows.n_features, 1))
    points, z = np.zeros((2, rows.n_features, 1)), np.array([5.0, 6.0])
    planned = PlannedNoise(normals, np.array([1000, 4000]), scale=0.5)
    noisy = planned.answer(gradient_query(rows, Logistic(), points, z, round=1))
    added = noisy - kernels.gradient(rows, points, Logistic())
    wanted = 0.5 * np.array([5.0 * 2.0 / 1000, 6.0 * 2.0 / 4000])
    np.testing.assert_allclose(added, wanted[:, None, None] * normals.draw(1), atol=1e-15)


def test_many_agents_and_rows_are_forecast_from_few():
    """After one round from zero the weights are −s·(gradient + noise), so their spread is that of the noise."""
    n, m = 2 * MAX_AGENTS, 1_000_000
    pool = Pool(np.eye(50), np.ones(50))
    method = {"name": "dp_admm", "schedule": "constant", "rho": 1.0}
    training = {"method": method, "noise_multiplier": 100.0, "n_rounds": 1}
    features, provenance = tuple(f"x{j}" for j in range(50)), {"method": {"rho": "assumed"}}
    settings = Study(name="x", features=features, training=training, provenance=provenance).training
    problem = settings.problem(2)
    ends = np.array([run(settings, problem, pool, np.full(n, m), seed=k).weights[:, 0] for k in range(60)])
    expected = 100.0 * 2.0 / m / math.sqrt(n) / 2.0  # s = 1/(ρ + 1/η)
    assert (ends - ends.mean(axis=0)).std() == pytest.approx(expected, rel=0.06)


def test_simulated_rows_are_limited_and_balanced(pool):
    few = simulated_sizes(np.array([90, 10**6, 2 * 10**6]), pool)
    assert few[0] == MIN_ROWS
    assert few[2] == pytest.approx(2 * few[1], rel=1e-3)
    assert few.sum() < 60_000
    assert simulated_sizes(np.array([5, 600]), pool).tolist() == [5, 600]


def test_every_public_row_is_tested_once_by_a_model_not_trained_on_it(study, tmp_path):
    path = planned.table(tmp_path / "public.csv", 103)
    pool = pool_of(study, path)
    scenario = public_scenario(study, path, repeats=5, seed=1)
    key = lambda each: sorted(map(tuple, np.column_stack([each.features, each.labels]).tolist()))  # noqa: E731
    tested = Pool(
        np.concatenate([test.features for _, test in scenario.folds]),
        np.concatenate([test.labels for _, test in scenario.folds]),
    )
    assert key(tested) == key(pool)
    assert scenario.n_tested == 103
    for train, test in scenario.folds:
        together = Pool(np.concatenate([train.features, test.features]), np.concatenate([train.labels, test.labels]))
        assert key(together) == key(pool)


def test_too_few_public_rows_and_studies_without_columns_are_refused(study, tmp_path):
    with pytest.raises(DataError, match="has 12 rows, too few for a forecast; it needs at least 30 "):
        public_scenario(study, planned.table(tmp_path / "few.csv", 12), repeats=5, seed=1)
    assert public_scenario(study, planned.table(tmp_path / "enough.csv", 30), repeats=5, seed=1).folds
    plain = Study(name="plain", features=("a", "b"), training={"method": "dp_admm", "epsilon": 1.0})
    with pytest.raises(StudyError, match="requires a study with"):
        public_scenario(plain, tmp_path / "few.csv", repeats=5, seed=1)


def test_synthetic_rows_have_the_stated_signal(study):
    scenarios = synthetic_scenarios(study, 8000, repeats=2, seed=1)
    grid = ForecastGrid((1.0,), (1,), (1.0, 1))
    ceilings = []
    for scenario in scenarios:
        train, _ = scenario.folds[0]
        assert len(train) == 8000
        assert np.linalg.norm(train.features, axis=1).max() <= 1.0 + 1e-6
        regions = np.asarray(train.features)[:, 1:5].mean(axis=0)
        np.testing.assert_allclose(regions[:3], regions[:3].mean(), rtol=0.1)
        assert regions[3] == 0.0
        ceilings.append(
            forecast_scenario(study, scenario, np.full(10, 800), grid, seed=1).without_noise["accuracy"].mean
        )
    np.testing.assert_allclose(ceilings, [0.607, 0.724, 0.874], atol=0.03)
    assert [each.name.split()[0] for each in scenarios] == list(STRENGTHS)


def test_synthetic_rows_of_plain_features_and_several_classes():
    study = Study(
        name="three",
        features=("a", "b"),
        classes=("x", "y", "z"),
        training={"method": "dp_admm", "epsilon": 1.0, "loss": "softmax", "n_rounds": 5},
    )
    (train, _), *_ = synthetic_scenarios(study, 3000, repeats=2, seed=0)[2].folds
    assert np.unique(train.labels).tolist() == [0.0, 1.0, 2.0]
    weights = run(study.training, study.problem, train, np.full(3, 1000), seed=0).weights
    assert error(study.problem.loss, train.labels, train.features @ weights) < 0.5


def fabricated(n_train, n_test):
    empty = lambda n: Pool(np.zeros((n, 1)), np.ones(n))  # noqa: E731
    return Scenario("fabricated", ((empty(n_train), empty(n_test)),) * 2)


def forecast_of(study, scenario, means, sizes, name="accuracy"):
    found = [({name: (test, 0.25 / 20, 0.01, 0.04)}, {name: (train, 0.0, 0.0, 0.0)}) for test, train in means]
    return values_of(study, scenario, found, sizes)[name]


def test_the_optimism_correction_depends_on_the_planned_rows(study):
    n = 7 * 10**6  # beside 7 weights
    scenario, means = fabricated(n, 20), [(0.7, 0.9), (0.7, 0.9)]
    assert forecast_of(study, scenario, means, np.array([n])).mean == pytest.approx(0.7)
    assert forecast_of(study, scenario, means, np.array([n, n])).mean == pytest.approx(0.75, abs=1e-6)
    assert forecast_of(study, scenario, means, np.array([10**15])).mean == pytest.approx(0.8, abs=1e-6)
    backwards = [(0.9, 0.7), (0.9, 0.7)]  # by chance: cut off, chance would have a direction
    assert forecast_of(study, scenario, backwards, np.array([10**15])).mean == pytest.approx(0.8, abs=1e-6)


def test_the_correction_of_accuracy_is_smaller_with_few_rows_per_weight(study, tmp_path):
    assert study.shape == (7, 1)
    assert optimism_correction(study, "accuracy", 7, (0.8, 0.0)) == pytest.approx(0.25)
    assert optimism_correction(study, "auc", 70, (0.8, 0.0)) == pytest.approx(0.5 / 1.1)
    assert optimism_correction(study, "accuracy", 70, (0.8, 0.5)) == pytest.approx(0.25 / 1.1)
    assert optimism_correction(study, "log_loss", 7, (0.8, 0.0)) == pytest.approx(0.5)
    assert optimism_correction(study, "log_loss", 7, (0.8, 0.1), 1.0) == pytest.approx(0.1)
    assert optimism_correction(study, "log_loss", 7, (0.8, 0.1), 0.5) == pytest.approx(0.5 * (1.0 - 0.2 - 0.025))
    three = Study(name="three", features=("a",), classes=("x", "y", "z"), training={"epsilon": 1.0, "loss": "softmax"})
    assert optimism_correction(three, "accuracy", 2, (0.8, 0.0)) == pytest.approx(0.25)


def test_the_weight_of_a_prior_is_its_effect_on_the_model(auto, tmp_path):
    pool = Pool(np.eye(3), np.ones(3))
    change = np.array([[1.0], [2.0], [0.0]])
    for share in (0.0, 0.3, 1.0):
        assert prior_weight(pool, share * change + np.array([[0.0], [0.0], [5.0]]), change) == pytest.approx(share)
    assert prior_weight(pool, -change, change) == 0.0
    assert prior_weight(pool, 2.0 * change, change) == 1.0
    assert prior_weight(pool, change, 0.0 * change) == 1.0
    scenario = public_scenario(auto, planned.table(tmp_path / "public.csv", 400), repeats=5, seed=1)
    first, second, (train, _) = *scenario.priors[:2], scenario.folds[0]

    def weight(epsilon):
        training = auto.training.with_changes(epsilon=epsilon, n_rounds=20)
        ran = (run(training, auto.problem, train, np.full(5, 400), seed=1, prior=each).weights
               for each in (first, replace(first, weights=second.weights)))  # fmt: skip
        before, after = ran
        return prior_weight(train, after - before, second.weights - first.weights)

    assert weight(0.02) > 0.9
    assert weight(20.0) < 0.2


def test_spread_combines_runs_and_test_rows(study):
    value = forecast_of(study, fabricated(80, 20), [(0.8, 0.8), (0.7, 0.7)], np.array([100]))
    assert value.std == pytest.approx(np.std([0.2, 0.3], ddof=1))
    assert value.std_error == pytest.approx(math.sqrt(0.25 / 40))
    assert value.std_error_vs_constant == pytest.approx(math.sqrt(0.01 / 2))
    assert value.std_error_vs_public == pytest.approx(math.sqrt(0.04 / 2))
    assert value.spread == pytest.approx(math.hypot(value.std, value.std_error))


def test_measures_are_those_of_evaluation_and_paired_with_a_constant_prediction():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((2000, 1))
    labels = np.where(rng.random(2000) < 1.0 / (1.0 + np.exp(-scores[:, 0])), 1.0, -1.0)
    guess = np.zeros(1)
    found = figures(Logistic(), labels, scores, guess)
    assert found["accuracy"][0] == np.mean(scores[:, 0] * labels > 0.0)
    assert found["log_loss"][0] == pytest.approx(np.log1p(np.exp(-labels * scores[:, 0])).mean())
    assert found["sensitivity"][0] == np.mean(scores[labels > 0.0, 0] > 0.0)
    assert found["overconfidence"][0] == pytest.approx(0.0, abs=0.03)
    assert figures(Logistic(), labels, 3.0 * scores, guess)["overconfidence"][0] > 0.1
    pairs = scores[labels > 0.0] > scores[labels < 0.0].T
    assert found["auc"][0] == pytest.approx(pairs.mean())
    bootstrapped = []
    for _ in range(200):
        k = rng.integers(2000, size=2000)
        bootstrapped.append([figures(Logistic(), labels[k], scores[k], guess)[name][0] for name in ("auc", "log_loss")])
    np.testing.assert_allclose(
        np.std(bootstrapped, axis=0), [found[n][1] ** 0.5 for n in ("auc", "log_loss")], rtol=0.2
    )
    better = np.log(2.0) - np.log1p(np.exp(-labels * scores[:, 0]))
    assert found["log_loss"][2] == pytest.approx(better.var() / 2000)
    alone = figures(Logistic(), np.ones(5), scores[:5], guess)
    assert alone["auc"][0] == 0.5
    assert figures(Logistic(), -np.ones(5), scores[:5], guess)["sensitivity"][0] == 0.0


def test_constant_prediction_and_optimum_are_optimal(study, tmp_path):
    """The result without privacy does not depend on the regularizer of the study."""
    scenario = public_scenario(study, planned.table(tmp_path / "public.csv", 600), repeats=3, seed=1)
    grid, sizes = ForecastGrid((1.0,), (5,), (1.0, 5)), np.full(4, 1000)
    found = forecast_scenario(study, scenario, sizes, grid, seed=1)
    heavy = study.training.with_changes(alpha=0.5)
    provenance = {"alpha": "assumed"}
    penalised = Study(name="x", schema=study.schema, label=study.label, training=heavy, provenance=provenance)
    assert forecast_scenario(penalised, scenario, sizes, grid, seed=1).without_noise == found.without_noise
    labels = np.concatenate([test.labels for _, test in scenario.folds])
    share = np.mean(labels > 0.0)
    assert found.constant["accuracy"] == max(share, 1.0 - share)
    assert found.constant["log_loss"] == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share))
    assert found.constant["auc"] == 0.5
    assert found.public_model["log_loss"].mean == pytest.approx(found.without_noise["log_loss"].mean, abs=0.02)
    assert found.public_model["accuracy"].mean > 0.75 > found.constant["accuracy"]


@pytest.fixture
def auto(study):
    training = study.training.with_changes(method="auto", n_rounds=None)
    return Study(name="auto", schema=study.schema, label=study.label, training=training)


def test_auto_is_forecast_as_one_agent_with_the_noise_of_the_mean(auto, pool):
    sizes = np.array([60, 240, 150, 150])
    is_forecast_as_it_is_trained(auto, pool, sizes)


def test_secure_aggregation_is_forecast_with_the_noise_of_the_sum(auto, pool):
    masked = replace(auto, training=auto.training.with_changes(aggregation="secure", min_honest_sites=3))
    is_forecast_as_it_is_trained(masked, pool, np.array([60, 240, 150, 150]))
    honest_and_fewer = [costs_of(each, np.full(4, 50)).noise for each in (masked, auto)]
    assert honest_and_fewer[1] == pytest.approx(math.sqrt(3) * honest_and_fewer[0])
    with pytest.raises(StudyError, match="a round may have only 3 sites"):
        with_rounds_for(masked, np.full(3, 50))


def is_forecast_as_it_is_trained(auto, pool, sizes):
    resolved = with_rounds_for(auto, sizes)
    assert resolved.training.n_rounds == resolved.training.planned_rounds >= 13
    assert with_rounds_for(resolved, sizes) is resolved
    table = EncodedTable(pool.features, pool.labels, np.repeat(range(4), sizes), tuple("abcd"), Report())
    trained, planned_weights = (
        np.array([each(seed)[:, 0] for seed in range(40)])
        for each in (
            lambda seed: run_study(resolved, table, seed=seed).weights,
            lambda seed: run(resolved.training, auto.problem, pool, sizes, seed=seed).weights,
        )
    )
    error_of_mean = trained.std(axis=0) * np.sqrt(2 / 40)
    assert np.all(np.abs(trained.mean(axis=0) - planned_weights.mean(axis=0)) < 4.0 * error_of_mean)
    ratio = planned_weights.std(axis=0) / trained.std(axis=0)
    assert 0.8 < np.exp(np.log(ratio).mean()) < 1.25


def test_intervals_are_forecast_where_training_has_them(auto, tmp_path):
    asking = replace(auto, training=auto.training.with_changes(method=Auto(inference=True)))
    sizes = np.full(2, 200)
    scenario = public_scenario(asking, planned.table(tmp_path / "public.csv", 1000, seed=1), repeats=5, seed=1)
    told = forecast_intervals(asking, [scenario], sizes, seed=1)
    assert (told.is_likely, told.n_with_intervals, told.n_runs) == (False, 0, 5)
    again = forecast_intervals(asking, [scenario], sizes * (told.n_rows_needed // 400), seed=1)
    assert (again.is_likely, again.n_rows_needed) == (True, told.n_rows_needed)
    for n_rows in (400, told.n_rows_needed):
        rows = encode_table(planned.table(tmp_path / f"{n_rows}.csv", n_rows, seed=2), asking.schema, asking.label,
                            intercept=asking.training.intercept)  # fmt: skip
        trained = [explain(run_study(asking, rows, n_agents=2, seed=seed).model) for seed in range(5)]
        columns = [
            {one.column for one in each.coefficients if one.interval()}
            for each in trained
            if not each.no_intervals_because
        ]
        having = sum(each == {"age", "region", "smoker"} for each in columns)
        assert having == 0 if n_rows == 400 else having >= 4
    hidden = replace(asking, training=asking.training.with_changes(epsilon=1e-4))
    assert forecast_intervals(hidden, [scenario], sizes, seed=1).n_rows_needed is None


def test_a_small_public_sample_forecasts_what_training_reaches(study, tmp_path):
    sizes = np.full(8, 1000)
    public = planned.table(tmp_path / "public.csv", 1000, seed=1)
    scenario, prior = public_scenario(study, public, repeats=5, seed=1), prior_from(study, public)
    grid = grid_of(study, 1.0, epsilons=[0.1], rounds=[])
    forecast = forecast_scenario(study, scenario, sizes, grid, seed=1)
    rows, other = (pool_of(study, planned.table(tmp_path / f"{k}.csv", 8000, seed=k)) for k in (2, 3))
    for (epsilon, _), values in forecast.cells.items():
        training = study.training.with_changes(epsilon=epsilon)
        again = Study(name="x", schema=study.schema, label=study.label, training=training)
        table = EncodedTable(rows.features, rows.labels, None, (), Report())
        reached = []
        for seed in range(4):
            weights = run_study(again, table, n_agents=8, seed=seed, prior=prior).weights
            reached.append(1.0 - error(study.problem.loss, other.labels, other.features @ weights))
        assert values["accuracy"].mean == pytest.approx(np.mean(reached), abs=0.03)
    little, more = (forecast.at(epsilon, 20)["accuracy"].mean for epsilon in (0.1, 1.0))
    assert forecast.constant["accuracy"] < min(little, more)
    assert more <= forecast.without_noise["accuracy"].mean + 0.01


def test_a_forecast_starts_from_public_rows_as_training_does(auto, tmp_path):
    """With a very small ε, training and forecast keep the model of the public rows."""
    noisy = replace(auto, training=auto.training.with_changes(epsilon=0.02))
    public, sizes = planned.table(tmp_path / "public.csv", 1000, seed=1), np.full(8, 250)
    prior, scenario = prior_from(noisy, public), public_scenario(noisy, public, repeats=5, seed=1)
    planned_study = with_rounds_for(noisy, sizes)
    found = forecast_scenario(
        planned_study, scenario, sizes, grid_of(planned_study, 0.02, epsilons=[], rounds=[]), seed=1
    )
    own = found.at(0.02, planned_study.training.planned_rounds)["log_loss"]
    rows, other = (pool_of(auto, planned.table(tmp_path / f"{k}.csv", 2000, seed=k)) for k in (2, 3))
    table = EncodedTable(rows.features, rows.labels, None, (), Report())

    def trained(start):
        each = [run_study(planned_study, table, n_agents=8, seed=seed, prior=start).weights for seed in range(4)]
        loss = auto.problem.loss
        return np.mean([loss.value(other.labels, other.features @ weights).mean() for weights in each])

    assert own.mean == pytest.approx(trained(prior), abs=2.0 * own.spread)
    assert trained(None) > own.mean + 4.0 * own.spread


def test_priors_exclude_their_test_rows(auto, tmp_path):
    public = planned.table(tmp_path / "public.csv", 300)
    scenario = public_scenario(auto, public, repeats=3, seed=1)
    for k, (train, _) in enumerate(scenario.folds):
        expected = prior_of(auto.problem, make_rows(train.features, train.labels))
        np.testing.assert_array_equal(scenario.prior(k).weights, expected.weights)
        assert scenario.prior(k).n_rows == 200
    shares = [np.mean(test.labels > 0.0) for _, test in scenario.folds]
    assert max(shares) - min(shares) <= 1.0 / 100 + 1e-12
    assert synthetic_scenarios(auto, 100, repeats=2, seed=1)[0].prior(0) is None


def test_one_row_of_a_class_is_too_few_for_a_forecast(auto, tmp_path):
    header, *rows = planned.table(tmp_path / "all.csv", 300).read_text().splitlines()
    of_class = {each: [row for row in rows if f'"{each}"' == row.split(",")[3]] for each in ("no", "yes")}
    few = tmp_path / "few.csv"
    for count in (1, 2):
        few.write_text("\n".join([header, *of_class["no"][:60], *of_class["yes"][:count]]) + "\n")
        if count == 1:
            with pytest.raises(DataError, match=r"only one row of a class, too few for a forecast.*--no-public"):
                public_scenario(auto, few, repeats=3, seed=1)
    scenario = public_scenario(auto, few, repeats=3, seed=1)
    grid, sizes = ForecastGrid((1.0,), (5,), (1.0, 5)), np.full(2, 100)
    assert forecast_scenario(auto, scenario, sizes, grid, seed=1).n_rarest_class == 2


def test_differences_of_aucs_are_paired():
    """DeLong's variance agrees with resampling."""
    rng, loss, guess = np.random.default_rng(0), Logistic(), np.zeros(1)
    scores = rng.standard_normal((1500, 1))
    labels = np.where(rng.random(1500) < 1.0 / (1.0 + np.exp(-scores[:, 0])), 1.0, -1.0)
    other = scores + 0.7 * rng.standard_normal((1500, 1))
    found = figures(loss, labels, scores, guess, other)

    def differences(k):
        one, two = (figures(loss, labels[k], each[k], guess) for each in (scores, other))
        return [one[name][0] - two[name][0] for name in ("auc", "log_loss", "accuracy")]

    drawn = np.array([differences(rng.integers(1500, size=1500)) for _ in range(300)])
    expected = [found[name][3] ** 0.5 for name in ("auc", "log_loss", "accuracy")]
    np.testing.assert_allclose(drawn.std(axis=0), expected, rtol=0.15)
    assert [figures(loss, labels, scores, guess)[name][3] for name in ("auc", "accuracy")] == [0.0, 0.0]
    tied = figures(loss, labels, np.zeros((1500, 1)), guess, scores)["auc"]
    assert tied[0] == 0.5
    assert tied[3] == pytest.approx(found["auc"][1], rel=0.1)


def test_a_seed_reproduces_the_forecast_and_every_run_is_counted(study, tmp_path):
    path = planned.table(tmp_path / "public.csv", 60)
    grid, sizes, told = ForecastGrid((0.5, 1.0), (3, 20), (1.0, 20)), np.full(4, 50), []
    scenario = public_scenario(study, path, repeats=3, seed=1)
    first = forecast_scenario(study, scenario, sizes, grid, seed=1, finished=lambda: told.append(1))
    assert len(told) == n_runs([scenario], grid) == 15
    assert forecast_scenario(study, public_scenario(study, path, repeats=3, seed=1), sizes, grid, seed=1) == first
    assert forecast_scenario(study, scenario, sizes, grid, seed=2) != first


def test_numbers_are_forecast_in_their_own_units(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(planned.REGRESSION)
    study, public = read_study(path), planned.table(tmp_path / "public.csv", 500)
    scenario = public_scenario(study, public, repeats=4, seed=1)
    forecast = forecast_scenario(study, scenario, np.full(5, 1000), grid_of(study, 1.0, epsilons=[], rounds=[]), seed=1)
    costs = np.concatenate([test.labels for _, test in scenario.folds]) * 100.0 + 100.0
    assert forecast.constant["rmse"] == pytest.approx(costs.std(), rel=1e-3)
    assert forecast.without_noise["rmse"].mean == pytest.approx(10.0 + 3.0, abs=3.0)  # noise, and missing ages
    assert forecast.without_noise["rmse"].mean < forecast.at(1.0, 20)["rmse"].mean < forecast.constant["rmse"]


def test_the_grid_has_the_studys_own_numbers_once(study):
    grid = grid_of(study, 1.0, epsilons=[2.0, 1.0000001, 0.5], rounds=[50, 20, 5])
    assert grid == ForecastGrid((0.5, 1.0, 2.0), (5, 20, 50), (1.0, 20))
    assert len(grid.cells) == 9


def test_costs_follow_from_public_numbers(study, auto, pool):
    sizes = np.array([400, 100, 400])
    costs, z = costs_of(study, sizes), study.noise_multiplier
    assert costs.epsilon == exact_epsilon(math.sqrt(20) / z, 1e-5)
    assert costs.epsilon <= 1.0 < costs.epsilon_paper
    assert costs.noise == pytest.approx(math.sqrt(3) / 900 * z / math.sqrt(20))
    assert costs.total_noise == pytest.approx(7 * costs.noise)  # age, 3 regions and others, smoker, 1
    assert costs.bytes_received == costs.bytes_sent == 8 * 7
    assert costs.bytes_total == 20 * 2 * 8 * 7
    assert costs.to_dict()["seconds"] is None
    assert 0.0 < measured_seconds(study, pool, sizes) < 60.0
    other = costs_of(with_rounds_for(auto, sizes), sizes)
    assert other.noise == pytest.approx(costs.noise, rel=1e-6)
    assert other.to_dict()["epsilon_paper"] is None  # rounds differ
    asked, moments = math.prod(auto.broadcast_shape), math.prod(auto.upload_shape(1))
    assert (other.bytes_received, other.bytes_sent) == (8 * asked, 8 * moments)
    gradients, calibration = (other.n_rounds - 2) * 7, 2
    assert other.bytes_total == 8 * (other.n_rounds * asked + moments + gradients + calibration)
    terms = {"aggregation": "secure", "min_honest_sites": 2, "n_rounds": other.n_rounds}
    masked = costs_of(replace(auto, training=auto.training.with_changes(**terms)), sizes)
    assert (masked.epsilon, masked.min_honest_sites) == (other.epsilon, 2)
    assert masked.epsilon_if_others_collude == exact_epsilon(math.sqrt(2 * 20) / z, 1e-5)
    # three sites: a byte of members, and a tag for each when called and when ready
    assert (masked.bytes_received, masked.bytes_sent) == (other.bytes_received + 1, other.bytes_sent + 24)
    assert masked.bytes_total == other.bytes_total + 25 * other.n_rounds + 24


def test_alternatives_are_other_numbers_of_honest_agents_and_aborted_rounds(auto, study):
    def told(training, n, **more):
        found = alternatives(replace(auto, training=training, **more), np.full(n, 50), 1.0)
        return [(each.training.min_honest_sites, each.aborted_rounds) for each in found]

    masked = auto.training.with_changes(aggregation="secure", min_honest_sites=3)
    assert told(masked, 20) == [(2, 0.0), (3, 0.0), (5, 0.0), (10, 0.0), (19, 0.0), (3, ABORTED_SHARE)]
    assert told(masked, 20, allow_missed_rounds=True, quorum=8) == [
        (2, 0.0),
        (3, 0.0),
        (5, 0.0),
        (7, 0.0),
        (3, ABORTED_SHARE),
    ]
    assert told(auto.training, 7) == [(4, 0.0)]
    assert told(auto.training, 2) == told(study.training, 7) == []
    sizes = np.full(50, 400)
    (other,) = alternatives(auto, sizes, 1.0)
    assert other.training.n_rounds > with_rounds_for(auto, sizes).training.n_rounds


def test_aborted_rounds_cost_accuracy(auto, pool):
    scenario, sizes = Scenario("synthetic rows", ((pool, pool),) * 3), np.full(4, 1000)
    masked = auto.training.with_changes(aggregation="secure", min_honest_sites=3, n_rounds=13)
    whole, most = (
        forecast_settings(auto, masked, scenario, sizes, seed=1, aborted_rounds=share) for share in (0.0, 0.7)
    )
    assert most["log_loss"].mean > whole["log_loss"].mean + 0.01
