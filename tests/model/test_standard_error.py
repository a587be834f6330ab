"""Noise standard errors: the recursion against the methods themselves, the estimate against many runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from looping import case
from mixed_tables import write_csv

from dpadmm._base.errors import DataError
from dpadmm.data.encoded import encode_table
from dpadmm.data.partition import of_codes
from dpadmm.data.schema import Boolean, Category, Label, Number, Ordinal, Schema
from dpadmm.model.explain import explain
from dpadmm.model.model import model_of
from dpadmm.model.standard_error import (
    NoiseError,
    average_weights,
    curvature_along,
    evidence,
    mean_outer,
    mean_square,
    noise_error_of,
    recursion_of,
    spread_of_agents,
    start_variance,
    transcript_of,
)
from dpadmm.model.typical_tables import TypicalTable
from dpadmm.optim.problem import PublicSizes, make_rows
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.runs.training import run_study
from dpadmm.study.study import Study
from dpadmm.training.loop import AVERAGES, Averages, RoundView, train
from dpadmm.training.oracles import SimulatedNoise

CURVATURE = 0.07


def one_weight(method="dp_admm", average="last", n_rounds=7):
    return Study(
        name="one",
        features=("x",),
        training={
            "method": method,
            "average": average,
            "n_rounds": n_rounds,
            "regularizer": "none",
            "noise_multiplier": 3.0,
        },
    )


def final(study, n_rows, noise):
    """(model, last local models, last consensus) of the method's own code, on losses of one curvature.

    ``noise`` (t, n) is added to the gradients.
    """
    sizes = PublicSizes(n_rows, 1)
    method = study.training.rounds(study.problem, sizes, np.full(len(n_rows), 1), seed=0)
    state, consensus, averages = method.init(study.problem, sizes), np.zeros((1, 1)), Averages()
    for k, each in enumerate(noise, 1):
        gradient = CURVATURE * method.parameters(state, consensus, round=k) + each[:, None, None]
        state, uploads = method.advance(state, gradient, consensus, round=k, problem=study.problem)
        consensus = method.aggregate(uploads, consensus=consensus, round=k, problem=study.problem)
        averages(RoundView(k, study.training.n_rounds, consensus, state.released, 0.0))
    return averages.model(study.training.average, consensus)[0, 0], state.released[:, 0, 0], consensus[0, 0]


def test_noise_travels_as_in_the_method_itself():
    for method, average in product(["dp_admm", "dp_sgd"], AVERAGES):
        with case(method, average):
            n_rows, t = np.array([50, 400, 50, 90]), 7
            study = one_weight(method, average, t)
            std = 3.0 * mean_gradient_sensitivity(study.problem.loss.lipschitz, n_rows)
            impulses = np.eye(t * 4).reshape(-1, t, 4) * std
            expected = sum(final(study, n_rows, impulse)[0] ** 2 for impulse in impulses)
            recursion = recursion_of(study, n_rows, t)
            assert recursion.variance(np.array([CURVATURE]), np.ones(t))[0] == pytest.approx(expected, rel=1e-9)
            assert recursion.variance(np.array([0.0]), np.ones(t))[0] > 1.05 * expected


def test_local_models_spread_around_the_consensus():
    n_rows, t = np.full(30, 50), 8
    study = one_weight(n_rounds=t)
    std = 3.0 * mean_gradient_sensitivity(study.problem.loss.lipschitz, 50)
    ends = [final(study, n_rows, impulse) for impulse in np.eye(t * 30).reshape(-1, t, 30) * std]
    expected = sum((local[0] - consensus) ** 2 for _, local, consensus in ends)
    found = recursion_of(study, n_rows, t + 1).local_variance(CURVATURE)[-1]
    assert found == pytest.approx(expected, rel=0.05)
    assert not recursion_of(study, n_rows[:1], t).local_variance(CURVATURE).any()


def test_averages_of_interrupted_runs():
    for rounds, average in product([1, 2, 3, 6], AVERAGES):
        with case(rounds, average):
            path, averages = np.arange(1.0, rounds + 1.0), Averages()
            for k, value in enumerate(path, 1):
                averages(RoundView(k, 6, np.full((1, 1), value), np.empty((0, 1, 1)), 0.0))
            expected = averages.model(average, np.full((1, 1), path[-1]))[0, 0]
            assert average_weights(average, rounds, 6) @ path == pytest.approx(expected)


SKEWED = Schema(
    (
        Number("age", (18, 90)),
        Category("sex", ("f", "m")),
        Number("dose", (0.1, 100.0), transform="log"),
        Category("ward", ("a", "b", "c", "d")),
    )
)


def skewed_cells(n):
    rng = np.random.default_rng(3)
    age, dose = rng.normal(45.0, 12.0, n), np.exp(rng.normal(1.0, 0.8, n))
    sex = rng.choice(["f", "m"], n, p=[0.7, 0.3])
    ill = rng.random(n) < 1.0 / (1.0 + np.exp(-(age - 50.0) / 10.0 + (sex == "m")))
    return {
        "age": age.tolist(),
        "sex": sex.tolist(),
        "dose": dose.tolist(),
        "ward": rng.choice(["a", "b", "c", "d"], n, p=[0.6, 0.2, 0.15, 0.05]).tolist(),
        "ill": np.where(ill, "yes", "no").tolist(),
        "site": [f"s{j % 3}" for j in range(n)],
    }


def skewed_study(**training):
    settings = {"epsilon": 2.0, "delta": 1e-5, "intercept": True, "n_rounds": 40, **training}
    return Study(name="skewed", schema=SKEWED, label=Label("ill", classes=("no", "yes")), training=settings)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = write_csv(tmp_path_factory.mktemp("rows") / "t.csv", skewed_cells(900))
    return encode_table(path, SKEWED, skewed_study().label, by="site", intercept=True)


def test_the_estimate_agrees_with_many_runs_on_the_same_rows(table):
    for training in [{}, {"method": "dp_sgd"}, {"epsilon": 1.0, "average": "tail", "regularizer": "l1"}]:
        with case(training):
            study, n_runs = skewed_study(**training), 60
            model = model_of(run_study(study, table, seed=1000))
            found = explain(model)
            deal = of_codes(table.groups, table.owners)
            rows = make_rows(table.features, table.labels, order=deal.order, offsets=deal.offsets)
            method = study.training.rounds(study.problem, rows, np.full(3, 40), seed=0)
            runs = []
            for seed in range(n_runs):
                noise = SimulatedNoise(seed, 3, study.shape)
                outcome = train(method, study.problem, rows, n_rounds=40, noise=noise)
                weights = outcome.weights(study.training.average)
                other = explain(replace(model, weights=weights, history=np.empty((0, 0, 0))))
                runs.append({each.name: each.coefficient for each in (*other.coefficients, *other.intercepts)})
            for each in (*found.coefficients, *found.intercepts):
                observed = np.std([run[each.name] for run in runs], ddof=1)
                assert observed / 1.6 < each.standard_error < 1.6 * observed, each  # so many runs know it within 9%


def test_only_public_values_count(table):
    study = skewed_study(n_rounds=8)
    result = run_study(study, table, seed=1)
    found = noise_error_of(study, result.history, np.array(result.n_rows))
    again = noise_error_of(study, result.history.copy(), np.array(result.n_rows[::-1]))
    assert np.array_equal(found.covariance, again.covariance)
    assert found.std.shape == study.shape
    more_rows = noise_error_of(study, result.history, 10 * np.array(result.n_rows))
    assert (more_rows.std < 0.5 * found.std).all()


def test_very_many_weights_one_by_one():
    values = tuple(f"v{j}" for j in range(700))
    schema = Schema((Category("code", values), Number("age", (0, 100))))
    study = Study(
        name="wide",
        schema=schema,
        label=Label("y", classes=("a", "b")),
        training={"epsilon": 1.0, "n_rounds": 5, "intercept": True},
    )
    history = np.random.default_rng(0).normal(size=(6, *study.shape))
    found = noise_error_of(study, history, np.array([100, 100]))
    assert found.covariance.shape == (703,)
    contrast = np.zeros((1, 703))
    contrast[0, :2] = 1.0, -1.0
    assert found.std_of(contrast)[0] == pytest.approx(np.hypot(*found.std[:2, 0]))


def test_combinations_use_the_covariance():
    error = NoiseError(np.array([[2.0, -1.0], [-1.0, 2.0]]), (2, 1))
    assert error.std_of(np.array([[1.0, 1.0], [1.0, 0.0]])).tolist() == pytest.approx([2**0.5, 2**0.5])


def test_a_history_that_is_not_of_the_study_is_refused():
    for shape in [(8, 2, 1), (1, 1, 1), (8, 1)]:
        with case(shape), pytest.raises(DataError, match="history"):
            noise_error_of(one_weight(), np.zeros(shape), np.array([50]))


@pytest.mark.parametrize("size", [0.0, 1e3])
def test_a_loss_that_is_flat_along_the_path_pulls_nothing_back(size):
    """A hinge's slope changes nowhere near scores of 0, nor near very large ones."""
    study = Study(
        name="flat",
        features=("x", "y"),
        training={"loss": "hinge", "regularizer": "none", "noise_multiplier": 3.0, "n_rounds": 5},
    )
    history = np.full((6, 2, 1), size)
    found, recursion = noise_error_of(study, history, np.array([50])), recursion_of(study, np.array([50]), 5)
    free = np.sqrt(recursion.variance(np.zeros(1), np.ones(5))[0])
    assert (found.std <= free * (1.0 + 1e-9)).all()
    assert (found.std > 0.8 * free).all()


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """(study, rows, a public history) of booleans that are true in half of the rows, with long steps."""
    rng, n = np.random.default_rng(8), 2000
    cells = {f"f{j}": (rng.random(n) < 0.5).tolist() for j in range(4)}
    cells["y"] = np.where(rng.random(n) < 0.3 + 0.4 * np.array(cells["f0"]), "b", "a").tolist()
    study = Study(
        name="flags",
        schema=Schema(tuple(Boolean(name) for name in cells if name != "y")),
        label=Label("y", classes=("a", "b")),
        training={"epsilon": 3.0, "n_rounds": 200, "rho": 0.01, "weight_radius": 20.0, "intercept": True},
        provenance={"rho": "assumed", "weight_radius": "assumed"},
    )
    path = write_csv(tmp_path_factory.mktemp("flags") / "t.csv", cells)
    table = encode_table(path, study.schema, study.label, intercept=True)
    return study, np.asarray(table.features, dtype=float), run_study(study, table, seed=4).history


def on_rows(study, rows, history):
    """(curvature matrix, its relative size by round) as only the owner of the rows could know it."""
    recursion, loss = recursion_of(study, np.array([len(rows)]), len(history) - 1), study.problem.loss
    found = curvature_along(
        history,
        rows,
        loss=loss,
        spread=spread_of_agents(recursion, loss, rows.shape[1]),
        rng=np.random.default_rng(0),
    )
    return mean_outer(rows, rows, found.of_rows), found.relative


def test_the_transcript_tells_more_than_the_schema(flags):
    """By the schema alone flags might be rare: that gives a ratio of 1.5."""
    study, rows, history = flags
    matrix, relative = on_rows(study, rows, history)
    size, directions = np.linalg.eigh(matrix + study.problem.reg_share * np.eye(len(matrix)))
    recursion = recursion_of(study, np.array([len(rows)]), len(history) - 1)
    exact = np.sqrt(directions**2 @ recursion.variance(size, relative))
    ratio = noise_error_of(study, history, np.array([len(rows)])).std[:-1, 0] / exact[:-1]
    assert 1.0 / 1.25 < np.exp(np.mean(np.log(ratio))) < 1.25, ratio


def test_the_likelihood_knows_the_size_of_curvature(flags):
    study, rows, history = flags
    matrix, relative = on_rows(study, rows, history)
    transcript = transcript_of(study.problem, recursion_of(study, np.array([len(rows)]), 200), history)
    seen = evidence(transcript, relative, start_variance(study.problem, matrix))
    right, *wrong = (seen.log_likelihood(factor * matrix) for factor in (1.0, 0.4, 2.5))
    assert right > max(wrong) + 5.0
    assert seen.log_likelihood(0.0 * matrix) == pytest.approx(0.5 * seen.seen @ seen.start @ seen.seen)


@pytest.mark.parametrize("row_norm", [None, 0.5])
def test_a_column_of_a_typical_table_with_its_own_parameters_is_the_one_in_its_rows(row_norm):
    columns = (
        *SKEWED.columns,
        Boolean("flag", missing="indicator"),
        Ordinal("grade", ("a", "b", "c")),
        Number("paid", (0, 10), bins=(3.0, 5.0)),
    )
    schema = Schema(columns) if row_norm is None else Schema(columns, row_norm=row_norm)
    training = {"epsilon": 1.0, "intercept": True}
    study = Study(name="t", schema=schema, label=Label("y", classes=("a", "b")), training=training)
    table = TypicalTable(study, np.random.default_rng(0))
    rows = table.rows()
    assert rows.shape[1] == study.shape[0]
    assert (np.linalg.norm(rows, axis=1) < 1.0 + 1e-9).all()
    for j, place in enumerate(table.places):
        assert table.column(j, table.parameters[j]) == pytest.approx(rows[:, place])


def test_curvature_in_parts_is_that_of_the_whole():
    rng = np.random.default_rng(0)
    rows, root = rng.normal(size=(30, 4)), rng.normal(size=(30, 3, 3))
    curvature = root @ root.transpose(0, 2, 1)
    whole = mean_outer(rows, rows, curvature)
    assert whole == pytest.approx(
        np.mean([np.kron(np.outer(a, a), c) for a, c in zip(rows, curvature, strict=True)], axis=0)
    )
    assert mean_outer(rows[:, 1:3], rows, curvature) == pytest.approx(whole[3:9])
    assert mean_square(rows, curvature) == pytest.approx(np.diag(whole))
