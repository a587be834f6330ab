"""Models of counts and survival: studies, predictions, explanations, evaluations, files."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from looping import case
from sklearn.metrics import d2_tweedie_score, mean_poisson_deviance

from dpadmm import train
from dpadmm.data.schema import Boolean, Category, Label, Number, Schema
from dpadmm.errors import DataError, StudyError
from dpadmm.models.evaluate import evaluate
from dpadmm.models.explain import explain
from dpadmm.models.file import load_model
from dpadmm.models.model import Model
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study

SCHEMA = Schema((Number("age", (20, 80)), Boolean("smoker"), Category("ward", ("a", "b"))))
VISITS = Label("visits", bounds=(0, 30), exposure="years", exposure_bound=5.0)
DEATHS = Label("died", exposure="years", times=(1.0, 2.0, 5.0))
TRAINING: dict[str, Any] = {"loss": "poisson", "intercept": True, "epsilon": 8.0}


def study(label: Label = VISITS, *, inference: bool = True, **more: Any) -> Study:
    return Study(
        name="x",
        schema=SCHEMA,
        label=label,
        training={**TRAINING, "method": {"name": "auto", "inference": inference}, **more},
    )


@cache
def people(n: int = 20_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.uniform(20, 80, n), "smoker": rng.random(n) < 0.4})
    frame["ward"] = rng.choice(["a", "b"], n)
    rate = np.exp(-1.0 + 0.02 * (frame.age - 50.0) + 0.5 * frame.smoker)
    time, end = rng.exponential(3.0 / rate), rng.uniform(0.5, 5.0, n)
    frame["years"] = np.maximum(np.minimum(time, end), 0.01)
    frame["died"] = (time <= end).astype(int)
    frame["visits"] = rng.poisson(rate * frame.years)
    return frame


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counts") / "people.parquet"
    people().to_parquet(path)
    return path


@pytest.fixture(scope="module")
def models(table: Path) -> dict[str, Model]:
    made = {"counts": study(), "hazards": study(DEATHS), "plain": study(inference=False)}
    return {name: train(each, table, seed=1).model for name, each in made.items()}


def test_studies_of_counts_are_checked_before_anything_is_spent() -> None:
    plain = Label("visits", bounds=(0, 30))
    for made, words in [
        (lambda: study(replace(VISITS, bounds=(1.0, 30.0))), "counts start at 0, not 1"),
        (lambda: study(DEATHS, inference=False), "times require inference = true"),
        (lambda: study(VISITS, intercept=False), "requires intercept = true"),
        (lambda: study(VISITS, loss="squared"), "exposure and times require the poisson loss, not squared"),
        (lambda: study(replace(VISITS, exposure="age")), "'age' is the label's exposure; remove it from"),
        (lambda: study(Label("visits", classes=("a", "b"))), "poisson loss requires bounds under"),
        (lambda: Study(name="x", features=("a",), training=TRAINING), "requires .columns., and .label. with bounds"),
    ]:
        with case(words), pytest.raises(StudyError, match=words):
            made()
    assert study(plain).problem.loss.unit == 1.0 / 30.0  # type: ignore[attr-defined]
    assert study(DEATHS).shape == (len(SCHEMA.features) + 1, 3)
    for each in (study(), study(DEATHS)):
        again = study_from(each.as_json())
        assert again == each
        assert again.hash == each.hash


def test_rates_and_their_ratios_are_those_of_statsmodels(models: dict[str, Model]) -> None:
    frame = people()
    x = sm.add_constant(
        np.column_stack([frame.age, frame.smoker, np.where(frame.ward == "a", 0.5, -0.5)]).astype(float)
    )
    known = sm.GLM(frame.visits, x, family=sm.families.Poisson(), offset=np.log(frame.years)).fit()
    found = explain(models["counts"])
    assert (found.ratios, found.score) == ("rate ratio", "log rate of visits per unit of years")
    by_name = {each.name: each for each in (*found.coefficients, *found.intercepts)}
    for name, place in (("age", 1), ("smoker", 2), ("intercept", 0)):
        each = by_name[name]
        with case(name):
            assert each.standard_error is not None
            assert known.bse.iloc[place] < each.standard_error < 3.0 * known.bse.iloc[place]
            assert abs(each.coefficient - known.params.iloc[place]) < 4.0 * each.standard_error
    row = by_name["smoker"].to_dict(ratios=found.ratios)
    assert row["rate_ratio_low"] < row["rate_ratio"] == math.exp(by_name["smoker"].coefficient) < row["rate_ratio_high"]
    predicted = models["plain"].predict(frame)
    np.testing.assert_allclose(predicted.mean(), known.predict(x, offset=np.zeros(len(x))).mean(), rtol=0.05)


def test_deviance_is_that_of_scikit_learn(models: dict[str, Model], table: Path) -> None:
    frame, model = people(), models["plain"]
    figures = evaluate(model, table).metrics
    means = model.predict(frame) * frame.years
    assert figures["deviance"] == pytest.approx(mean_poisson_deviance(frame.visits, means), rel=1e-4)
    explained = d2_tweedie_score(frame.visits / frame.years, model.predict(frame), sample_weight=frame.years, power=1)
    assert figures["explained"] == pytest.approx(explained, rel=1e-3)
    assert figures["observed"] == pytest.approx(frame.visits.sum())
    assert figures["expected"] == pytest.approx(means.sum(), rel=1e-4)
    bad = table.parent / "bad.csv"
    frame.head(9).assign(years=0.0).to_csv(bad, index=False)
    with pytest.raises(DataError, match="the exposure 'years' is missing, 0 or negative in row 1"):
        evaluate(model, bad)


def test_hazards_have_a_level_for_every_interval_and_one_ratio(models: dict[str, Model], table: Path) -> None:
    model, frame = models["hazards"], people()
    found = explain(model)
    assert found.ratios == "hazard ratio"
    assert [each.name for each in found.intercepts] == [f"log hazard={each}" for each in ("0 to 1", "1 to 2", "2 to 5")]
    smoker = next(each for each in found.coefficients if each.name == "smoker")
    assert smoker.standard_error is not None
    assert abs(smoker.coefficient - 0.5) < 4.0 * smoker.standard_error
    assert all(each.standard_error for each in found.intercepts)
    figures = evaluate(model, table).metrics
    assert figures["expected"] == pytest.approx(figures["observed"], rel=0.1)
    risk = model.predict(frame)
    rate = np.exp(-1.0 + 0.02 * (frame.age - 50.0) + 0.5 * frame.smoker) / 3.0
    assert np.abs(risk - (1.0 - np.exp(-5.0 * rate))).mean() < 0.05


def test_models_of_counts_are_saved_and_exported(models: dict[str, Model], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    some = people().head(50)
    for name, model in models.items():
        with case(name):
            again = load_model(model.save(tmp_path / f"{name}.dpadmm"))
            np.testing.assert_array_equal(again.predict(some), model.predict(some))
            assert again.label == model.label
            assert explain(again).to_dict() == explain(model).to_dict()
            session = onnxruntime.InferenceSession(str(model.to_onnx(tmp_path / f"{name}.onnx")))
            cells = {"age": some[["age"]].to_numpy(), "ward": some[["ward"]].to_numpy().astype(str)}
            cells["smoker"] = np.where(some[["smoker"]], "true", "false")
            np.testing.assert_allclose(session.run(None, cells)[0], model.predict(some), rtol=1e-5)
            if name == "hazards":
                with pytest.raises(DataError, match="no hazard model"):
                    model.to_sklearn()
            else:
                np.testing.assert_allclose(model.to_sklearn().predict(some), model.predict(some), rtol=1e-5)
