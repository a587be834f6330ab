"""Whole simulated runs: reproducible, calibrated, with clear errors and plain JSON."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest
from cases import coded
from looping import case
from scipy.sparse import csr_array

from dpadmm import Settings, simulate, synthetic
from dpadmm.accounting import exact_epsilon, exact_round_noise_multiplier, paper_noise_multiplier
from dpadmm.engine.loop import RoundView
from dpadmm.engine.minimizer import minimizer
from dpadmm.errors import DataError, DivergenceError, StudyError
from dpadmm.methods import DpAdmm, DpSgd
from dpadmm.models.run import Result

BINARY = synthetic("binary", n_rows=600, n_features=6, seed=1)
CLASSES = synthetic("multiclass", n_rows=600, n_features=6, n_classes=4, seed=1)
NUMBERS = synthetic("regression", n_rows=600, n_features=6, seed=1)
SMALL = {"n_agents": 5, "n_rounds": 12, "seed": 3}


def run(data: Any = BINARY, **changes: Any) -> Result:
    if not {"epsilon", "round_epsilon", "noise_multiplier", "method", "settings"} & set(changes):
        changes["epsilon"] = 1.0
    return simulate(data, **(SMALL | changes))


def same(one: Result, two: Result) -> bool:
    timeless = [name for name in one.trace.columns if name != "seconds"]
    return (
        np.array_equal(one.model.weights, two.model.weights)
        and np.array_equal(one.outcome.released, two.outcome.released)
        and all(np.array_equal(one.trace.columns[name], two.trace.columns[name]) for name in timeless)
    )


# --- divergence --------------------------------------------------------------------------------------------


def test_a_run_that_diverges_gives_no_model() -> None:
    for changes in [
        {"method": DpSgd(learning_rate=1e6), "alpha": 1.0, "epsilon": 1.0},
        {"method": DpAdmm(schedule="constant", step_size=1e6), "alpha": 10.0, "average": "tail", "epsilon": 1.0},
        {"method": "output_perturbation", "noise_multiplier": 1e308, "alpha": 1e-300},
    ]:
        with case(changes), pytest.raises(DivergenceError, match=r"diverged in round \d+ of \d+: .*; use a "):
            run(n_rounds=200, **changes)


# --- the same seed -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_threads")
def test_same_seed_same_bits_whatever_the_thread_count() -> None:
    for changes in [{}, {"participation": 0.6}, {"partition": "unequal"}, {"average": "tail"}]:
        with case(changes):
            first = run(**changes)
            assert same(first, run(**changes))
            before = numba.get_num_threads()
            try:
                for threads in {1, before}:
                    numba.set_num_threads(threads)
                    assert same(first, run(**changes))
            finally:
                numba.set_num_threads(before)
            assert not same(first, run(**changes, seed=4))


def test_without_a_seed_every_run_differs_and_records_its_seed() -> None:
    one, two = run(seed=None), run(seed=None)
    assert not same(one, two)
    assert one.settings.seed is not None
    assert same(one, run(seed=one.settings.seed))


def test_measuring_does_not_change_the_run() -> None:
    np.testing.assert_array_equal(run(metrics_every=0).model.weights, run(metrics_every=1).model.weights)
    assert len(run(metrics_every=0).trace) == 0
    assert run(metrics_every=5).trace.columns["round"].tolist() == [1, 5, 10, 12]


def test_the_split_does_not_depend_on_the_budget() -> None:
    one, two = run(epsilon=0.1), run(epsilon=10.0)
    np.testing.assert_array_equal(one.rows.labels, two.rows.labels)


# --- privacy -----------------------------------------------------------------------------------------------


def test_a_total_budget_is_met_exactly_and_never_exceeded() -> None:
    for delta, epsilon in product([1e-9, 1e-3], [0.01, 0.5, 3.0, 40.0]):
        with case(delta, epsilon):
            privacy = run(epsilon=epsilon, delta=delta).privacy
            assert privacy.epsilon <= epsilon
            assert privacy.epsilon == pytest.approx(epsilon, rel=1e-9)
            assert privacy.planned_epsilon == privacy.epsilon


def test_every_agent_may_have_its_own_budget() -> None:
    wanted = np.array([0.2, 0.5, 1.0, 2.0, 8.0])
    result = run(epsilon=wanted.tolist())
    assert (result.privacy.epsilon_by_agent <= wanted).all()
    np.testing.assert_allclose(result.privacy.epsilon_by_agent, wanted, rtol=1e-9)
    assert result.privacy.epsilon == result.privacy.epsilon_by_agent.max()
    np.testing.assert_array_equal(run(epsilon=wanted).model.weights, result.model.weights)


def test_a_list_of_the_wrong_length_is_refused() -> None:
    for name in ["epsilon", "round_epsilon", "noise_multiplier"]:
        with case(name), pytest.raises(StudyError, match=f"{name} has 3 values for 5 agents"):
            run(**{name: [0.5, 0.5, 0.5]})


def test_round_budgets_are_the_papers_or_exact() -> None:
    paper = run(round_epsilon=0.5, delta=1e-3).privacy
    np.testing.assert_allclose(paper.noise_multiplier, paper_noise_multiplier(0.5, 1e-3))
    assert paper.round_epsilon == pytest.approx(0.5)
    exact = run(round_epsilon=3.0, delta=1e-3, calibration="exact").privacy
    np.testing.assert_allclose(exact.noise_multiplier, exact_round_noise_multiplier(3.0, 1e-3))
    one = run(round_epsilon=3.0, delta=1e-3, calibration="exact", n_rounds=1).privacy
    assert one.epsilon == pytest.approx(3.0, rel=1e-9)


def test_more_than_1_per_round_needs_the_exact_calibration() -> None:
    with pytest.raises(StudyError, match=r"round_epsilon must be at most 1 .*needs ε ≤ 1; use the exact"):
        run(round_epsilon=1.01)


def test_a_planned_absence_is_calibrated_per_agent() -> None:
    plan = np.ones((12, 5), dtype=bool)
    plan[3:, 1] = plan[:8, 4] = False
    result = run(participation=plan)
    assert result.privacy.n_releases.tolist() == [12, 3, 12, 12, 4]
    assert [n for ((_, n),) in (agent.planned for agent in result.privacy.agents)] == [12, 3, 12, 12, 4]
    np.testing.assert_allclose(result.privacy.epsilon_by_agent, 1.0, rtol=1e-9)
    np.testing.assert_allclose(result.privacy.noise_multiplier**2, result.privacy.noise_multiplier[1] ** 2
                               * np.array([4, 1, 4, 4, 4 / 3]), rtol=1e-9)  # fmt: skip


def test_an_unplanned_absence_is_charged_for_its_releases_only() -> None:
    privacy = run(participation=0.5, n_rounds=40).privacy
    assert (privacy.n_releases < 40).all()
    assert privacy.planned_epsilon == pytest.approx(1.0, rel=1e-9)
    expected = exact_epsilon(np.sqrt(privacy.n_releases) / privacy.noise_multiplier, privacy.delta)
    np.testing.assert_allclose(privacy.epsilon_by_agent, expected)
    assert privacy.epsilon < 1.0


def test_invalid_plans() -> None:
    for plan, said in [
        (np.ones((11, 5), dtype=bool), r"shape \(11, 5\), but there are 12 rounds"),
        (np.ones(12, dtype=bool), "shape"),
        (np.tile([True, True, False, True, True], (12, 1)), "no round for agent 3"),
    ]:
        with case(plan, said), pytest.raises(StudyError, match=said):
            run(participation=plan)


def test_stopping_by_the_result_is_charged_in_full() -> None:
    """If the transcript decides the length of a run, only the guarantee for all planned rounds holds."""
    common = {"epsilon": 1.0, "delta": 1e-5, "n_agents": 5, "n_rounds": 200, "metrics_every": 0, "seed": 3}
    stopped = simulate("synthetic", **common, stop_tolerance=0.5)
    assert stopped.outcome.rounds < 200
    assert stopped.privacy.n_releases.max() == stopped.outcome.rounds
    assert stopped.privacy.charged_releases.tolist() == [200] * 5
    assert stopped.privacy.epsilon == stopped.privacy.planned_epsilon == pytest.approx(1.0, abs=1e-9)


def test_interrupting_is_charged_in_full() -> None:
    def interrupt(view):
        if view.round == 3:
            raise KeyboardInterrupt

    options = {"epsilon": 1.0, "n_agents": 5, "n_rounds": 50, "seed": 3, "observers": [interrupt]}
    result = simulate("synthetic", **options, keep_interrupted=True)
    assert result.outcome.rounds == 3
    assert result.privacy.epsilon == result.privacy.planned_epsilon


@pytest.mark.parametrize("noise", [{"epsilon": 1.0}, {"noise_multiplier": 0.0}])
def test_ctrl_c_keeps_a_usable_result(noise: dict[str, float]) -> None:
    def press(view: RoundView) -> None:
        if view.round == 5:
            raise KeyboardInterrupt

    result = run(observers=[press], keep_interrupted=True, **noise)
    assert result.interrupted
    assert result.outcome.rounds == 5
    assert result.privacy.n_releases.tolist() == [5] * 5
    assert result.trace.columns["round"].tolist() == [1, 2, 3, 4, 5]
    assert result.model.predict(BINARY.features).shape == (600,)
    assert json.loads(json.dumps(result.summary(), allow_nan=False))["interrupted"] is True


# --- methods and data --------------------------------------------------------------------------------------


def test_centralized_is_the_minimizer_and_not_private() -> None:
    result = run(method="centralized")
    np.testing.assert_allclose(result.model.weights, minimizer(result.problem, result.rows), rtol=1e-14)
    assert not result.privacy.private
    assert result.outcome.rounds == 1
    assert "augmented_objective" not in result.trace.columns


def test_centralized_takes_no_budget() -> None:
    for name in ["epsilon", "round_epsilon", "noise_multiplier"]:
        with case(name), pytest.raises(StudyError, match=f"is not private; remove {name}"):
            run(method="centralized", **{name: 0.5})


def test_without_noise_the_run_learns() -> None:
    floor = run(method="centralized").trace.last()["train_loss_global"]
    found = run(noise_multiplier=0.0, n_rounds=800, metrics_every=800).trace.last()["train_loss_global"]
    assert floor <= found + 1e-4
    assert found == pytest.approx(floor, rel=0.01)


def test_every_loss_runs_end_to_end() -> None:
    for regularizer, method, (data, loss) in product(
        ["none", "l2", "l1", "elastic_net"],
        ["dp_admm", "centralized"],
        [
            (BINARY, "logistic"),
            (BINARY, "hinge"),
            (BINARY, "smoothed_hinge"),
            (CLASSES, "softmax"),
            (NUMBERS, "squared"),
            (NUMBERS, "huber"),
        ],
    ):
        with case(regularizer, method, data, loss):
            budget = {} if method == "centralized" else {"epsilon": 5.0}
            result = run(data, loss=loss, method=method, regularizer=regularizer, n_rounds=4, **budget)
            assert result.model.weights.shape == (6, 4 if loss == "softmax" else 1)
            assert all(np.isfinite(value) for value in result.trace.last().values())
            predicted = result.model.predict(data.features)
            if data.classes is None:
                assert predicted.dtype == float
            else:
                assert set(predicted.tolist()) <= set(data.classes)
            json.dumps(result.summary(), allow_nan=False)


@pytest.mark.parametrize("form", [csr_array, coded, np.float32])
def test_other_storage_gives_nearly_the_same(form: Any) -> None:
    for settings in ({}, {"method": "auto", "epsilon": 1.0}, {"intercept": True}):
        other = run((form(BINARY.features), BINARY.labels), **settings)
        tolerance = 1e-4 if form is np.float32 else 1e-11
        np.testing.assert_allclose(other.model.weights, run(**settings).model.weights, atol=tolerance)


def test_named_data() -> None:
    assert run("synthetic", n_rounds=2).rows.n_features == 20
    with pytest.raises(DataError, match=r"unknown data set 'adlut'.*adult"):
        run("adlut")


def test_classes_are_declared_and_come_back() -> None:
    words = np.where(BINARY.labels > 0, "yes", "no")
    result = run((BINARY.features, words), classes=("no", "yes"))
    assert set(result.model.predict(BINARY.features).tolist()) <= {"no", "yes"}
    np.testing.assert_array_equal(result.model.weights, run().model.weights)
    with pytest.raises(DataError, match="row 1: label"):
        run((BINARY.features, words))
    with pytest.raises(DataError, match="not one of the declared classes"):
        run((BINARY.features, words), classes=("no", "maybe"))
    with pytest.raises(StudyError, match="needs its classes"):
        run((CLASSES.features, CLASSES.labels), loss="softmax")


def test_a_loss_for_another_task_is_refused() -> None:
    for data, loss in [(BINARY, "softmax"), (BINARY, "squared"), (NUMBERS, "logistic"), (CLASSES, "hinge")]:
        with case(data, loss):
            if loss == "softmax":  # two classes labelled ±1 are not 0 and 1
                assert set(data.labels.tolist()) == {-1.0, 1.0}
            with pytest.raises(DataError, match=f"loss {loss} needs"):
                run(data, loss=loss)


def test_groups_are_agents() -> None:
    owners = np.array(["north", "south", "west"])[np.arange(600) % 3]
    result = run(groups=owners, partition="groups", test_rows=0)
    assert result.rows.n_rows.tolist() == [200] * 3
    for i, name in enumerate(("north", "south", "west")):
        mine = result.rows.agent(i)
        np.testing.assert_array_equal(mine.features[mine.order], BINARY.features[owners == name])
    with pytest.raises(DataError, match="owner of each row"):
        run(partition="groups")
    with pytest.raises(DataError, match="groups have shape"):
        run(groups=owners[:5], partition="groups")
    lonely = owners.copy()
    lonely[7] = "isle"
    with pytest.raises(DataError, match="agent isle has one row"):
        run(groups=lonely, partition="groups")


def test_test_rows_as_count_or_share() -> None:
    for test_rows, left in [(0, 600), (0.25, 450), (100, 500), (100.0, 500)]:
        with case(test_rows, left):
            result = run(test_rows=test_rows)
            assert len(result.rows.labels) == left
            assert ("test_error_global" in result.trace.columns) == (left < 600)


def test_invalid_test_rows() -> None:
    for bad in [600, 10_000, 1.5]:
        with case(bad), pytest.raises(StudyError, match="test_rows"):
            run(test_rows=bad)


def test_train_and_test_rows_are_disjoint() -> None:
    features = np.diag(np.linspace(0.01, 1.0, 100))
    result = simulate((features, np.tile([1.0, -1.0], 50)), n_agents=4, epsilon=1.0, n_rounds=1, test_rows=30, seed=0)
    seen = result.rows.features[result.rows.order].max(axis=1).tolist()
    assert len(set(seen)) == len(seen) == 70


def test_rows_with_large_norms_are_refused_or_clipped() -> None:
    long = BINARY.features * 4.0
    with pytest.raises(DataError, match="L2 norm"):
        run((long, BINARY.labels))
    result = run((long, BINARY.labels), clip_rows=True)
    assert result.rows.norms.max() <= 1.0
    assert result.model.clip


def test_the_intercept_is_a_column_of_the_rows_and_hidden_in_the_model() -> None:
    result = run(intercept=True)
    assert result.rows.n_features == 7
    assert result.rows.norms.max() <= 1.0 + 1e-12
    assert result.model.predict(BINARY.features).shape == (600,)


@pytest.mark.parametrize("n_agents", [400, 700])
def test_too_many_agents(n_agents: int) -> None:
    with pytest.raises((DataError, StudyError), match="agent"):
        run(n_agents=n_agents)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_invalid_rows_are_refused_at_any_position(bad: float) -> None:
    for row in (0, 599):
        features = BINARY.features.copy()
        features[row, 2] = bad
        for clip in (False, True):
            with pytest.raises(DataError, match=f"row {row + 1} has a NaN"):
                run((features, BINARY.labels), clip_rows=clip)
    labels = BINARY.labels.copy()
    labels[7] = bad
    with pytest.raises(DataError, match="row 8"):
        run((BINARY.features, labels))


def test_wrong_shapes() -> None:
    with pytest.raises(DataError, match="599"):
        run((BINARY.features, BINARY.labels[1:]))
    with pytest.raises(DataError):
        run((BINARY.features[:, 0], BINARY.labels))


# --- settings and summaries --------------------------------------------------------------------------------


def test_settings_and_changes() -> None:
    base = Settings(epsilon=1.0, **SMALL)
    assert same(simulate(BINARY, settings=base), run())
    assert simulate(BINARY, settings=base, n_rounds=3).outcome.rounds == 3
    with pytest.raises(StudyError, match="unknown setting 'n_round'; did you mean 'n_rounds'"):
        simulate(BINARY, settings=base, n_round=3)
    with pytest.raises(StudyError, match=r"did you mean 'method\.weight_radius'"):
        run(weight_radus=3.0)


def test_averages_reach_the_model() -> None:
    for average in ("last", "all", "tail"):
        result = run(average=average)
        np.testing.assert_array_equal(result.model.weights, result.outcome.weights(average))


def test_summaries_are_json() -> None:
    for changes in [
        {},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": [0.0, 1.0, 2.0, 3.0, 4.0]},
        {"method": "centralized"},
        {"epsilon": np.array([1.0, 2.0, 3.0, 4.0, 5.0]), "method": {"rho": np.float32(0.5)}, "n_rounds": np.int64(3)},
        {"epsilon": np.float64(2.0), "seed": np.int32(4), "metrics_every": 0},
        {"round_epsilon": 0.5, "participation": np.float64(0.5), "intercept": np.bool_(True)},
        {"participation": np.ones((12, 5), dtype=int)},
        {"method": DpSgd(learning_rate=1.0), "noise_multiplier": 1e300},  # finite, but no norm is
    ]:
        with case(changes):
            result = run(**changes)
            said = json.loads(json.dumps(result.summary(), allow_nan=False))
            assert said["agents"] == 5
            assert said["settings"]["seed"] == result.settings.seed
            assert sum(len(agent["n_rows"]) for agent in said["privacy"]["agents"]) == result.rows.n_agents
            assert (None in said["measures"].values()) == (changes.get("noise_multiplier") == 1e300)
            assert (said["privacy"]["epsilon"] is None) == (not result.privacy.private)


def test_a_saved_model_contains_its_privacy_report(tmp_path: Any) -> None:
    from dpadmm import load_model

    result = run()
    again = load_model(result.model.save(tmp_path / "m"))
    assert again.privacy == result.privacy.to_dict()
    np.testing.assert_array_equal(again.predict(BINARY.features), result.model.predict(BINARY.features))


def test_groups_imply_the_partition_by_groups() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.uniform(-0.3, 0.3, (60, 3)), rng.choice([-1, 1], 60)
    owners = np.repeat(["north", "south", "west"], 20)
    result = simulate((features, labels), epsilon=1.0, groups=owners, n_rounds=2, seed=1)
    assert result.rows.n_agents == 3
    with pytest.raises(StudyError, match="not 'equal'"):
        simulate((features, labels), epsilon=1.0, groups=owners, partition="equal", n_rounds=2, seed=1)


def test_a_model_predicts_from_lists_too() -> None:
    result = simulate("synthetic", epsilon=1.0, n_rounds=2, seed=1, metrics_every=0)
    assert result.model.predict([[0.1] * 20]).shape == (1,)


def test_exact_noise_trains_and_is_named_in_the_report() -> None:
    result = simulate("synthetic", n_agents=3, epsilon=2.0, n_rounds=5, seed=1, exact_noise=True)
    again = simulate("synthetic", n_agents=3, epsilon=2.0, n_rounds=5, seed=1, exact_noise=True)
    assert result.model.privacy["noise"] == "exact-discrete-gaussian"
    assert not np.array_equal(result.model.weights, again.model.weights)  # a seed names no exact noise
    assert result.privacy.epsilon == simulate("synthetic", n_agents=3, epsilon=2.0, n_rounds=5, seed=1).privacy.epsilon


def test_exact_noise_is_refused_for_methods_without_it() -> None:
    with pytest.raises(StudyError, match="exact noise applies to sums over all rows only"):
        simulate("synthetic", method="admm_pvp", n_agents=3, epsilon=2.0, n_rounds=2, exact_noise=True)


def test_exact_noise_is_refused_if_the_partition_depends_on_labels():
    """A changed label would change the partition, and the numbers of rows are public."""
    with pytest.raises(StudyError, match="partition='label_skewed' they depend on the labels"):
        simulate("synthetic", n_agents=3, epsilon=2.0, n_rounds=2, exact_noise=True, partition="label_skewed")


def test_a_private_run_does_not_start_from_a_model_without_privacy() -> None:
    rows = {"n_agents": 2, "n_rounds": 2, "seed": 1}
    optimum = simulate("synthetic", method="centralized", **rows).model
    noisy = simulate("synthetic", epsilon=1.0, **rows).model
    with pytest.raises(StudyError, match="trained without privacy"):
        simulate("synthetic", epsilon=0.01, warm_start=optimum, **rows)
    assert simulate("synthetic", epsilon=0.01, warm_start=noisy, **rows).outcome.rounds == 2
    assert simulate("synthetic", method="admm", warm_start=optimum, **rows).outcome.rounds == 2


def test_a_result_is_shown_in_a_line_without_rows() -> None:
    result = simulate("synthetic", epsilon=1.0, n_rounds=2, n_agents=2, seed=1)
    assert repr(result) == "<Result of dp_admm: 2 agents, 2 rounds, ε = 1>"
    optimum = simulate("synthetic", method="centralized", n_agents=1, seed=1)
    assert repr(optimum) == "<Result of centralized: one agent, 1 rounds, no privacy>"


def test_an_agent_that_leaves_costs_no_more_than_its_rows() -> None:
    """One of three agents leaves after a quarter of the rounds: the loss is that of the other two."""
    rng, n_rounds, weights = np.random.default_rng(0), 200, np.linspace(-4.0, 4.0, 8)
    features = rng.normal(size=(1500, 8)) / np.sqrt(8) / 2.0
    labels = np.where(rng.random(1500) < 1.0 / (1.0 + np.exp(-4.0 * features @ weights)), 1.0, -1.0)
    owners = np.arange(1500) % 3
    plan = np.ones((n_rounds, 3), dtype=bool)
    plan[n_rounds // 4 :, 2] = False

    def loss(kept: Any, **options: Any) -> float:
        shared = {"epsilon": 1.0, "n_rounds": n_rounds, "test_rows": 0, "clip_rows": True, **options}
        model = simulate((features[kept], labels[kept]), groups=owners[kept], **shared).model
        return float(np.logaddexp(0.0, -labels * (features @ model.weights)[:, 0]).mean())

    left = [loss(owners < 3, participation=plan, seed=seed) for seed in range(4)]
    alone = [loss(owners < 2, seed=seed) for seed in range(4)]
    assert np.mean(left) <= 1.02 * np.mean(alone)


def test_a_report_states_whether_the_noise_was_exact() -> None:
    rows = (np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]))
    for exact in (True, False):
        result = simulate(rows, n_agents=2, n_rounds=2, epsilon=1.0, test_rows=0, exact_noise=exact)
        assert result.privacy.exact_noise is exact
