"""Metrics of models, compared with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from looping import case
from sklearn import metrics
from sklearn.calibration import calibration_curve

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.errors import DataError, StudyError
from dpadmm.models.evaluate import auc, evaluate, evaluate_scores
from dpadmm.models.model import Model, Scorer, score_table
from dpadmm.models.private_evaluation import histogram_metrics

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
with pytest.MonkeyPatch.context() as path:
    path.syspath_prepend(BENCHMARKS)
    from evaluation import FIGURES, POPULATIONS, Population, coverage, histogram, truth

RNG = np.random.default_rng(0)
SCHEMA = Schema((Number("x", (-2.0, 2.0)), Number("y", (-2.0, 2.0))))
PARAMETERS = {"smoothed_hinge": {"width": 0.5}, "squared": {"gradient_bound": 2.0}, "huber": {"delta": 0.3}}


def binary(loss: str = "logistic") -> Model:
    return Model(
        np.array([[3.0], [-2.0], [0.1]]), "binary", loss, classes=("no", "yes"), intercept=True,
        schema=SCHEMA, label=Label("z", classes=("no", "yes")), feature_names=SCHEMA.features,
        study={"loss": {"name": loss, **PARAMETERS.get(loss, {})}},
    )  # fmt: skip


def several() -> Model:
    names = ("a", "b", "c")
    return Model(
        RNG.normal(size=(2, 3)) * 3.0, "multiclass", "softmax", classes=names,
        schema=SCHEMA, label=Label("z", classes=names), feature_names=SCHEMA.features,
    )  # fmt: skip


def number(loss: str = "squared") -> Model:
    return Model(
        np.array([[1.0], [-0.3]]), "regression", loss, schema=SCHEMA, label=Label("z", bounds=(0.0, 50.0)),
        feature_names=SCHEMA.features, study={"loss": {"name": loss, **PARAMETERS.get(loss, {})}},
    )  # fmt: skip


def test_binary_metrics_agree_with_scikit_learn() -> None:
    model, scores = binary(), RNG.normal(size=(500, 1)).round(1) + 0.03  # with ties
    truth = (RNG.random(500) < 0.3).astype(float)
    found, chances = evaluate_scores(model, truth, scores), model.probabilities(scores)
    assert found.metrics["accuracy"] == metrics.accuracy_score(truth, scores[:, 0] > 0.0)
    assert found.metrics["auc"] == pytest.approx(metrics.roc_auc_score(truth, scores[:, 0]), rel=1e-12)
    assert found.metrics["loss"] == pytest.approx(metrics.log_loss(truth, chances), rel=1e-9)
    assert found.metrics["majority_class_accuracy"] == max(truth.mean(), 1.0 - truth.mean())
    np.testing.assert_array_equal(found.confusion, metrics.confusion_matrix(truth, scores[:, 0] > 0.0))
    observed, predicted = calibration_curve(truth, chances[:, 1], n_bins=10, strategy="quantile")
    np.testing.assert_allclose([each.observed for each in found.bins], observed)
    np.testing.assert_allclose([each.predicted for each in found.bins], predicted)
    assert found.metrics["log_loss"] == found.metrics["loss"]
    assert found.metrics["brier"] == pytest.approx(metrics.brier_score_loss(truth, chances[:, 1]))
    counts = np.array([each.rows for each in found.bins])
    assert counts.sum() == 500
    assert found.metrics["calibration_error"] == pytest.approx((counts * abs(observed - predicted)).sum() / 500)


def test_multiclass_metrics_agree_with_scikit_learn() -> None:
    model, scores = several(), RNG.normal(size=(500, 3))
    truth = RNG.integers(3, size=500).astype(float)
    found, chances = evaluate_scores(model, truth, scores), model.probabilities(scores)
    assert found.metrics["accuracy"] == metrics.accuracy_score(truth, scores.argmax(axis=1))
    assert found.metrics["auc"] == pytest.approx(
        metrics.roc_auc_score(truth, chances, multi_class="ovr", average="macro"), rel=1e-12
    )
    assert found.metrics["loss"] == pytest.approx(metrics.log_loss(truth, chances), rel=1e-9)
    np.testing.assert_array_equal(found.confusion, metrics.confusion_matrix(truth, scores.argmax(axis=1)))
    assert found.metrics["log_loss"] == found.metrics["loss"]
    assert found.metrics["brier"] == pytest.approx(np.square(chances - np.eye(3)[truth.astype(int)]).sum(axis=1).mean())
    assert [each.rows for each in found.bins] == [50] * 10  # top-label: of the likeliest class
    assert all(each.low <= each.predicted <= each.high for each in found.bins)
    right = truth == scores.argmax(axis=1)
    observed, predicted = calibration_curve(right, chances.max(axis=1), n_bins=10, strategy="quantile")
    np.testing.assert_allclose([each.observed for each in found.bins], observed)
    assert found.metrics["calibration_error"] == pytest.approx(np.abs(observed - predicted).mean())


def test_regression_metrics_agree_with_scikit_learn() -> None:
    model, scores = number(), RNG.normal(size=(300, 1)) / 2.0
    truth = RNG.uniform(-5.0, 60.0, 300)
    found, predicted = evaluate_scores(model, truth, scores), 25.0 * scores[:, 0] + 25.0
    assert found.metrics["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, predicted))
    assert found.metrics["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted))
    assert found.metrics["r2"] == pytest.approx(metrics.r2_score(truth, predicted))
    residuals = np.clip(truth, 0.0, 50.0) / 25.0 - 1.0 - scores[:, 0]
    assert found.metrics["loss"] == pytest.approx((residuals**2).mean() / 2.0)


def test_the_loss_has_the_parameters_of_the_study() -> None:
    scores, truth = np.array([[0.9], [0.2]]), np.array([1.0, 0.0])
    hinge = evaluate_scores(binary("hinge"), truth, scores)
    assert hinge.metrics["loss"] == pytest.approx((0.1 + 1.2) / 2.0)
    assert [hinge.metrics[name] for name in ("log_loss", "brier", "calibration_error")] == [None] * 3
    assert not hinge.bins
    assert evaluate_scores(number("huber"), np.array([25.0, 50.0]), scores).metrics["loss"] == pytest.approx(
        (0.3 * (0.9 - 0.15) + 0.3 * (0.8 - 0.15)) / 2.0
    )
    unknown = Model(np.ones((2, 1)), "regression", "huber")
    assert evaluate_scores(unknown, np.zeros(2), scores).metrics["loss"] is None


def test_undefined_metrics_are_none() -> None:
    assert auc(np.array([True, True]), np.array([0.1, 0.2])) is None
    assert evaluate_scores(binary(), np.ones(3), np.ones((3, 1))).metrics["auc"] is None
    assert evaluate_scores(several(), np.zeros(3), RNG.normal(size=(3, 3))).metrics["auc"] is None
    assert evaluate_scores(number(), np.full(3, 7.0), RNG.normal(size=(3, 1))).metrics["r2"] is None


# --- tables ------------------------------------------------------------------------------------------------


def write(path: Path, labels: list[object], name: str = "z") -> Path:
    rows = RNG.normal(size=(len(labels), 2))
    lines = [f"x,y,{name}", *(f"{x},{y},{z}" for (x, y), z in zip(rows, labels, strict=True))]
    path.write_text("\n".join(lines))
    return path


def test_a_table_has_the_metrics_of_its_scores(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["yes", "no", "no"] * 30)
    found = evaluate(binary(), path)
    truth = np.array([1.0, 0.0, 0.0] * 30)
    assert (found.n_rows, found.confusion.sum()) == (90, 90)
    (scored,) = score_table(Scorer(binary()), path)
    again = evaluate_scores(binary(), truth, scored[0])
    assert found.metrics == again.metrics
    assert found.report.columns["x"].clamped > 0
    assert np.mean(binary().predict_table(path) == np.where(truth, "yes", "no")) == found.metrics["accuracy"]
    other = evaluate(binary(), write(tmp_path / "u.csv", ["yes", "no"] * 9, "other"), label="other")
    assert other.n_rows == 18


def test_softmax_of_two_classes_counts_them_in_order(tmp_path: Path) -> None:
    model = Model(
        np.array([[0.0, 4.0], [0.0, 0.0]]), "multiclass", "softmax", classes=("no", "yes"),
        schema=SCHEMA, label=Label("z", classes=("no", "yes")), feature_names=SCHEMA.features,
    )  # fmt: skip
    (tmp_path / "t.csv").write_text("x,y,z\n1,0,yes\n-1,0,no\n1,0,no\n")
    assert evaluate(model, tmp_path / "t.csv").confusion.tolist() == [[1, 1], [0, 1]]


def test_classes_that_are_numbers(tmp_path: Path) -> None:
    model = Model(np.ones((2, 1)), "binary", "logistic", classes=(0.0, 1.0), feature_names=("x", "y"))
    (tmp_path / "t.csv").write_text("x,y,z\n1,0,1\n-1,0,0\n-1,0,1\n")
    assert evaluate(model, tmp_path / "t.csv", label="z").confusion.tolist() == [[1, 0], [1, 1]]


def test_every_error_is_one_sentence(tmp_path_factory: pytest.TempPathFactory) -> None:
    for model, labels, label, sentence in [
        (
            binary(),
            ["yes", "maybe"],
            None,
            "is none of the classes no, yes in row 2; correct the classes",
        ),
        (number(), [1.0, ""], None, "label 'z' of row 2 is missing"),
        (binary(), ["yes", "no"], "x", "column 'x' is a feature of the model"),
        (binary(), ["yes", "no"], "q", "has no column 'q'"),
        (Model(np.ones((2, 1)), "binary", "hinge", feature_names=("x", "y")), ["1", "-1"], None, "--label"),
        (Model(np.ones((2, 1)), "binary", "hinge"), ["1", "-1"], "z", "no column names"),
    ]:
        with case(model, labels, label, sentence):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises((DataError, StudyError), match=sentence):
                evaluate(model, write(tmp_path / "t.csv", labels), label=label)


# --- under privacy ------------------------------------------------------------------------------------------


def test_intervals_of_an_evaluation_cover_the_true_values() -> None:
    """The short form of ``python benchmarks/evaluation.py``, of given seeds."""
    for population in POPULATIONS:
        if population.name in ("usual", "narrow"):
            told = coverage(population, 250)
            for figure in FIGURES:
                with case(population.name, figure):
                    covered, given = told[figure]
                    assert 0.915 <= covered <= 0.985
                    assert given > 0.98


def test_metrics_of_a_histogram_are_those_of_the_scores() -> None:
    """With the middles of the bins, the Brier score would be too large by 0.001 or more."""
    for population in POPULATIONS:
        right, counts = truth(population), histogram(*population.draw(1_000_000, np.random.default_rng(0)))
        found = histogram_metrics(counts, 0.0, all_count=True, probabilities=True)
        for figure, near in (("accuracy", 1e-12), ("auc", 2e-3), ("brier", 3e-4), ("mean_probability", 2e-3)):
            with case(population.name, figure):
                assert found[figure] is not None
                assert found[figure].value == pytest.approx(right[figure], abs=near)  # type: ignore[union-attr]


def test_without_noise_the_interval_of_a_slope_is_that_of_a_large_sample() -> None:
    counts = histogram(*Population("", 0.0, 1.5, 0.2, 0.8).draw(200_000, np.random.default_rng(3)))
    slope = histogram_metrics(counts, 0.0, all_count=True, probabilities=True)["calibration_slope"]
    assert slope is not None
    assert slope.noise_se == 0.0
    assert slope.low == pytest.approx(slope.value - 1.96 * slope.se, abs=0.02 * slope.se)
    assert slope.high == pytest.approx(slope.value + 1.96 * slope.se, abs=0.02 * slope.se)


def test_the_interval_of_a_noisy_slope_may_be_open() -> None:
    counts = histogram(*Population("", 0.0, 0.2, 0.0, 1.0).draw(300, np.random.default_rng(3)))
    found = [
        histogram_metrics(counts + 12.0 * rng.standard_normal(counts.shape), 12.0, all_count=False, probabilities=True)
        for rng in map(np.random.default_rng, range(12))
    ]
    slopes = [each["calibration_slope"] for each in found]
    assert any(each is not None and None in (each.low, each.high) for each in slopes)
    assert all(each is None or each.low is None or each.low < each.value for each in slopes)
