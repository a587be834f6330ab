"""Weighted studies, compared with scikit-learn, statsmodels and studies without weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from cases import LOSS_CASES, coded
from cohorts import cohort
from guards import private
from looping import case
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression, Ridge
from typer.testing import CliRunner

from dpadmm import Dataset, simulate
from dpadmm.cli import app
from dpadmm.data import table as table_module
from dpadmm.data.schema import Label, Number, Schema
from dpadmm.engine.noise import ExactNoise, SimulatedNoise
from dpadmm.errors import DataError
from dpadmm.losses.poisson import coded as counted
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.models.evaluate import evaluate
from dpadmm.models.explain import explain
from dpadmm.models.private_evaluation import evaluation_study
from dpadmm.models.run import run
from dpadmm.planning.scenarios import public_scenario, synthetic_scenarios
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.sites.site import FORMAT, read_site
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study
from dpadmm.training import train as in_one_process
from dpadmm.training.train import encode, prior_from, train
from reproduction.results import data_stamp

COLUMNS = tuple("abcd")
SCHEMA = Schema(tuple(Number(name, (-1, 1)) for name in COLUMNS))
ILL = Label("ill", classes=("no", "yes"))

INFERENCE = {"name": "auto", "inference": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of twelve is ill; weights of 4 at most, of which the column ``full`` has no other."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (6000, 4))
    ill = rng.random(6000) < 1.0 / (1.0 + np.exp(3.0 - x @ [2.0, -1.0, 0.5, 1.0]))
    weights = rng.choice([0.5, 1.0, 2.0, 4.0], 6000, p=[0.4, 0.3, 0.2, 0.1])
    lines = [
        ",".join([*(f"{cell:.6f}" for cell in row), "yes" if one else "no", f"{weight:g}", "4"])
        for row, one, weight in zip(x, ill, weights, strict=True)
    ]
    found = tmp_path_factory.mktemp("weights") / "t.csv"
    found.write_text("\n".join(["a,b,c,d,ill,w,full", *lines]) + "\n")
    return found


def study(label: Label = ILL, **training: Any) -> Study:
    return Study(name="weighted", schema=SCHEMA, label=label, training={"epsilon": 3.0, "intercept": True, **training})


def weighted(column: str = "w", **more: Any) -> Label:
    return replace(ILL, weight=column, weight_bound=4.0, **more)


@pytest.mark.filterwarnings("ignore:Confidence intervals. unlikely")
def test_weights_at_the_bound_have_no_effect(path: Path) -> None:
    for training in ({}, {"method": INFERENCE}, {"method": "dp_admm", "n_rounds": 8}, {"n_rounds": 8, "epsilon": 0.05}):
        for agents in (1, 3):
            with case(training, agents):
                one, other = (
                    train(study(label, **training), path, n_agents=agents, seed=4).model.weights
                    for label in (ILL, weighted("full", class_weight={"no": 2.0, "yes": 2.0}))
                )
                assert np.array_equal(one, other)


def test_class_weights_predict_the_rare_class(path: Path) -> None:
    for method, least in (("auto", 0.7), ("dp_admm", 0.65)):
        with case(method):
            found = {}
            for label in (ILL, replace(ILL, class_weight={"yes": 12.0, "no": 1.0})):
                model = train(study(label, method=method), path, seed=1).model
                said = evaluate(model, path)
                found[label.weighted] = float(np.mean(np.diag(said.confusion) / said.confusion.sum(axis=1)))
                assert ("balanced_accuracy" in said.metrics) == ("weighted_accuracy" in said.metrics) == label.weighted
            assert found[False] < 0.6
            assert found[True] > least
            assert said.metrics["balanced_accuracy"] == pytest.approx(found[True])


def test_small_weights_cost_auto_no_more_than_fewer_rows(path: Path) -> None:
    """Weights of 1 with a bound of 4: rows contribute a quarter of the maximum, with the same steps."""
    light = replace(ILL, weight="light", weight_bound=4.0)
    table = path.with_name("light.csv")
    lines = path.read_text().splitlines()
    table.write_text("\n".join([f"{lines[0]},light", *(f"{line},1" for line in lines[1:])]) + "\n")
    for epsilon, lost in ((3.0, 0.03), (50.0, 0.004)):
        with case(epsilon):
            plain, small = (
                np.mean([
                    evaluate(train(study(label, epsilon=epsilon), table, seed=k).model, table).metrics["auc"] or 0.0
                    for k in range(3)
                ])
                for label in (ILL, light)
            )  # fmt: skip
            assert small > plain - lost


# Beside others, without noise


def rows_of(loss: str, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    rows = np.asarray(with_intercept(clip_rows(rng.normal(size=(4000, 4)) / 3.0)))
    scores = rows @ [2.0, -1.0, 0.5, 0.0, 1.0]
    labels = {
        "logistic": lambda: np.where(rng.random(4000) < 1.0 / (1.0 + np.exp(-scores)), 1.0, -1.0),
        "squared": lambda: np.clip(0.1 * scores + 0.1 * rng.normal(size=4000), -1.0, 1.0),
        "poisson": lambda: np.minimum(rng.poisson(np.exp(scores)), 20).astype(float),
    }[loss]()
    return rows, labels, rng.choice([0.0625, 0.125, 0.25, 0.5, 1.0], 4000)


def test_without_noise_estimates_and_standard_errors_are_those_of_statsmodels_for_such_weights() -> None:
    """They are at least the standard errors of sampling weights, which use ω² instead of ω."""
    families = {"logistic": sm.families.Binomial(), "squared": sm.families.Gaussian(), "poisson": sm.families.Poisson()}
    for loss, family in families.items():
        with case(loss):
            rows, labels, weights = rows_of(loss)
            training = Training(loss=loss, method=INFERENCE, noise_multiplier=1e-6, n_rounds=8, intercept=True)
            label = Label("y", bounds=(0, 20)) if loss == "poisson" else None
            problem = replace(training.problem(2 if loss == "logistic" else 0, label), weighted=True)
            held = make_rows(
                rows, counted(labels / 20.0) if loss == "poisson" else labels,
                offsets=np.array([0, 1000, 4000]), row_weights=weights,
            )  # fmt: skip
            found = run(training, problem, held, SimulatedNoise(1, 2, (5, 1)))
            outcome = labels > 0 if loss == "logistic" else labels
            known = sm.GLM(outcome, rows, family=family, freq_weights=weights).fit()
            covariance = found.covariance
            assert covariance is not None
            errors, level = np.sqrt(np.diag(covariance)), np.eye(5)[4] * (np.log(20.0) / 0.28 if label else 0.0)
            np.testing.assert_allclose(errors, known.bse, rtol=0.01)
            assert np.abs((found.weights[:, 0] + level - known.params) / known.bse).max() < 0.03
            design = sm.GLM(outcome, rows, family=family, var_weights=weights).fit(cov_type="HC0")
            assert (errors > design.bse).all()


def test_without_noise_the_optimum_is_that_of_scikit_learn_with_its_penalty() -> None:
    for loss in ("logistic", "squared"):
        with case(loss):
            rows, labels, weights = rows_of(loss)
            data = Dataset("w", rows, labels, (-1, 1) if loss == "logistic" else None, row_weights=weights)
            found = simulate(
                data, loss=loss, method="centralized", alpha=1e-3, n_agents=1, test_rows=0, seed=1, intercept=False
            )
            strength = 1e-3 * len(rows)
            if loss == "logistic":
                known = LogisticRegression(C=1.0 / strength, fit_intercept=False, tol=1e-10, max_iter=1000)
            else:
                known = Ridge(strength, fit_intercept=False)
            known.fit(rows, labels, sample_weight=weights)
            np.testing.assert_allclose(found.model.weights[:, 0], np.ravel(known.coef_), rtol=0.002, atol=1e-4)


def test_intervals_of_weighted_rows_are_conservative() -> None:
    """Rows are sampled from a population with probabilities inverse to their weights. The mean of ω is 0.4."""
    truth, covered, widths = np.array([2.0, -1.0, 0.5, 0.0, 1.0]), [], []
    training = Training(method=INFERENCE, epsilon=4.0, n_rounds=5, intercept=True)
    problem = replace(training.problem(2), weighted=True)
    for seed in range(60):
        rng = np.random.default_rng([7, seed])
        rows = np.asarray(with_intercept(clip_rows(rng.normal(size=(20_000, 4)) / 3.0)))
        labels = np.where(rng.random(len(rows)) < 1.0 / (1.0 + np.exp(-rows @ truth)), 1.0, -1.0)
        weights = np.where(labels > 0.0, 0.5, 1.0) * np.where(rows[:, 0] > 0.0, 1.0, 0.5)
        kept = rng.random(len(rows)) < 0.25 / weights  # heavy rows were seldom asked
        held = make_rows(rows[kept], labels[kept], row_weights=weights[kept])
        found = run(training, problem, held, SimulatedNoise(seed, 1, (5, 1)))
        covariance = found.covariance
        assert covariance is not None
        errors = np.sqrt(np.diag(covariance))
        covered.append(np.abs(found.weights[:, 0] - truth) < 1.96 * errors)
        design = sm.GLM(labels[kept] > 0, rows[kept], family=sm.families.Binomial(), var_weights=weights[kept])
        widths.append(errors / design.fit(cov_type="HC0").bse)
    assert np.mean(covered) > 0.94
    assert 1.0 < np.median(widths) < 6.0


# From files, at sites and in one process


def test_a_site_has_the_weighted_sums_of_one_process(path: Path, tmp_path: Path) -> None:
    """With all cells of the weights, including invalid ones, and the same statistics."""
    rows = path.read_text().splitlines()[:301]
    rows[5] = rows[5].rpartition(",")[0].rpartition(",")[0] + ",-1,4"
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    limits = 'epsilon = 8.0\ndelta = 1e-5\nmethods = ["pgd"]\nlosses = ["logistic"]\nmax_rounds = 50\nmin_rows = 2'
    (tmp_path / "site.toml").write_text(
        f'format = "{FORMAT}"\nledger = "ledger"\n[data]\ntable = "t.csv"\nlabel = "ill"\n'
        f"[person]\nrows = 1\n[limits]\n{limits}\n"
    )
    site, agreed = read_site(tmp_path / "site.toml"), study(weighted(class_weight={"yes": 12.0, "no": 1.0}))
    held: Rows = site.open_rows(agreed)._rows  # type: ignore[attr-defined]
    (tmp_path / "good.csv").write_text("\n".join([*rows[:5], *rows[6:]]) + "\n")
    known = encode(agreed, tmp_path / "good.csv")
    others = np.arange(300) != 4
    assert held.row_weights is not None
    assert np.array_equal(held.row_weights[others], known.row_weights)  # type: ignore[arg-type]
    assert np.array_equal(held.features[others], known.features)
    assert not held.features[4].any()
    (said,) = [each for each in site.rows.warnings(agreed) if "weight" in each]
    assert said == "1 of 300 rows have an unknown label or weight; they are replaced with zeros."


def test_a_guard_detects_changed_weights(path: Path) -> None:
    rows, weights = encode(study(), path), np.linspace(0.0, 1.0, 6000)
    other = weights.copy()
    other[17] = np.nextafter(other[17], 0.0)
    digests = {private(rows.features, rows.labels, row_weights=each).digest() for each in (None, weights, other)}
    assert len(digests) == 3
    held, mine = private(rows.features, rows.labels, row_weights=weights), weights
    before = held.digest()
    mine[0] = 1.0  # of who gave them away
    assert held.digest() == before
    data = [Dataset("t", rows.features, rows.labels, (-1, 1), row_weights=each) for each in (None, weights, other)]
    assert len({data_stamp(each)["digest"] for each in data}) == 3  # of files of results


def test_exact_and_simulated_noise_and_all_storages_have_weights() -> None:
    """Every loss and storage: without noise, weights of 0 leave the rows out."""
    for loss in LOSS_CASES:
        if getattr(loss, "cuts", ()):
            continue
        rows = cohort(loss, sizes=(40, 60))
        dense, n = np.asarray(rows.features)[rows.order], 100
        weights = np.random.default_rng(0).choice([0.0, 1.0], n)
        weights[:2] = weights[40:42] = 1.0
        training = Training(loss=loss, method="dp_admm", noise_multiplier=1e-9, n_rounds=4, intercept=True)
        for storage in (np.asarray, csr_array, coded):
            with case(loss, storage):
                held = make_rows(storage(dense), rows.labels, offsets=rows.offsets, row_weights=weights)
                silent = make_rows(storage(dense * weights[:, None]), rows.labels, offsets=rows.offsets)
                problem = replace(training.problem(loss.n_outputs), loss=loss)
                shape = (dense.shape[1], loss.n_outputs)
                found = [run(training, problem, each, SimulatedNoise(1, 2, shape)).weights for each in (held, silent)]
                np.testing.assert_allclose(*found, atol=1e-6)
    training = Training(method="auto", epsilon=1.0, n_rounds=4)
    assert np.isfinite(run(training, training.problem(2), rows_of_two(), ExactNoise()).weights).all()


def rows_of_two() -> Rows:
    rows, labels, weights = rows_of("logistic")
    return make_rows(rows, labels, offsets=np.array([0, 2000, 4000]), row_weights=weights)


def test_large_tables_in_files_keep_weights_with_their_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in a file are rewritten by agent."""
    monkeypatch.setattr("dpadmm.kernels.MIN_COMPILED_ENTRIES", 0)
    label = weighted(class_weight={"yes": 12.0, "no": 1.0})
    one = train(study(label), path, n_agents=3, seed=2).model.weights
    monkeypatch.setattr(
        in_one_process, "encode_table", lambda *a, **k: table_module.encode_table(*a, **k, memory_bytes=2**12)
    )
    assert np.array_equal(one, train(study(label), path, n_agents=3, seed=2).model.weights)


def test_simulate_and_public_rows_take_weights_too(path: Path) -> None:
    label = weighted(class_weight={"yes": 12.0, "no": 1.0})
    plain, found = (simulate(study(each), path, n_agents=2, seed=1, test_rows=0.2) for each in (ILL, label))
    assert found.rows.row_weights is not None
    assert found.trace.last()["train_loss_global"] < plain.trace.last()["train_loss_global"]  # weights are below 1
    assert found.trace.last()["test_loss_global"] < plain.trace.last()["test_loss_global"]
    priors = [prior_from(study(each), path) for each in (ILL, label)]
    assert priors[1].means[-1] < 0.5 * priors[0].means[-1]  # the constant, times weights
    assert (priors[1].weights[-1] > priors[0].weights[-1]).all()  # the rare class counts for more
    public = train(study(label), path, public=_other(path), seed=1).model
    assert evaluate(public, path).metrics["balanced_accuracy"] > 0.7  # type: ignore[operator]


def _other(path: Path) -> Path:
    """Public rows."""
    lines = path.read_text().splitlines()
    other = path.with_name("public.csv")
    other.write_text("\n".join([lines[0], *lines[1:800:2]]) + "\n")
    return other


def test_forecasts_weigh_rows_as_training_does(path: Path) -> None:
    label = weighted(class_weight={"yes": 12.0, "no": 1.0})
    for scenario in (
        public_scenario(study(label), path, repeats=2, seed=1),
        synthetic_scenarios(study(label), 500, repeats=1, seed=1)[0],
    ):
        train_pool, test_pool = scenario.folds[0]
        for pool in (train_pool, test_pool):
            assert pool.row_weights is not None
            assert 0.0 < pool.row_weights.mean() < 0.9
            assert pool.rows().row_weights is not None
            yes = pool.labels > 0.0
            assert pool.row_weights[yes].mean() > 6.0 * pool.row_weights[~yes].mean()
    assert synthetic_scenarios(study(), 500, repeats=1, seed=1)[0].folds[0][0].row_weights is None


# What is said


def test_explanations_and_evaluations_report_weights(path: Path, tmp_path: Path) -> None:
    label = weighted(class_weight={"yes": 12.0, "no": 1.0})
    for training, words in (({}, False), ({"method": INFERENCE, "epsilon": 30.0}, True)):
        model = train(study(label, **training), path, seed=1).model
        said = explain(model)
        assert said.weighting.startswith("Rows were weighted by w (up to 4) and by class (no 1, yes 12): coefficients")
        assert "shift the intercept" in said.weighting
        assert ("sampling weights" in said.weighting) == words
        assert said.weighting in said.to_dict()["notes"]
        assert said.to_dict()["weights"] == said.weighting
    assert explain(train(study(), path, seed=1).model).weighting == ""
    rest = path.with_name("without.csv")
    lines = [line.rpartition(",")[0].rpartition(",")[0] for line in path.read_text().splitlines()]
    rest.write_text("\n".join(lines) + "\n")
    assert "weighted_accuracy" not in evaluate(model, rest).metrics  # which has no weights
    evaluated = evaluation_study(model, "later", epsilon=1.0)
    assert evaluated.label == ILL  # a histogram counts rows
    bad = path.with_name("bad.csv")
    bad.write_text("\n".join([*path.read_text().splitlines()[:3], "0,0,0,0,yes,-1,4"]) + "\n")
    with pytest.raises(DataError, match="the weight 'w' is missing, negative or infinite in row 3"):
        evaluate(model, bad)


def test_the_command_line_supports_weights(path: Path, tmp_path: Path) -> None:
    def said(*command: str, fine: bool = True) -> str:
        found = CliRunner().invoke(app, [*map(str, command)])
        assert (found.exit_code == 0) == fine, found.output
        return " ".join(found.output.split())

    text = """
        format = "dpadmm-study/2"
        name = "weighted"
        [label]
        column = "ill"
        classes = ["no", "yes"]
        weight = "w"
        weight_bound = 4.0
        class_weight = { yes = 12.0, no = 1.0 }
        [training]
        intercept = true
        [privacy]
        epsilon = 3.0
    """ + "".join(f'[columns.{name}]\nkind = "number"\nbounds = [-1, 1]\n' for name in COLUMNS)
    file = tmp_path / "study.toml"
    file.write_text(text)
    assert "weights w up to 4; class weights no 1, yes 12" in said("study", "show", str(file))
    said("study", "check", str(file), "--data", str(path))
    model = tmp_path / "m.npz"
    said("train", str(file), "--data", str(path), "-o", str(model))
    assert "Rows were weighted by w (up to 4)" in said("explain", str(model))
    assert "accuracy, weighted" in said("evaluate", str(model), "--data", str(path))
    assert "weights" in json.loads(CliRunner().invoke(app, ["explain", str(model), "--json"]).output)
    file.write_text(text.replace('weight = "w"', 'weight = "a"'))
    assert "'a' is the label's weight; remove it from" in said("study", "check", str(file), fine=False)
