"""Coefficients in the units of the columns give the scores of the model, to the last digits."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from looping import case
from mixed_tables import COLUMNS, CROSSED, GRADES, LABELS, SCHEMA, make_cells, make_study, write_csv

from dpadmm import train
from dpadmm.data.encoder import Encoder
from dpadmm.data.schema import OTHER, Boolean, Category, Interaction, Label, Number, Ordinal, Plain, Schema
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError
from dpadmm.models.explain import NO_INTERVAL, NO_LAST_RELEASE, NOT_CLEAR, explain
from dpadmm.models.explanation import Coefficient, alike
from dpadmm.models.file import load_model
from dpadmm.models.model import Model, model_of
from dpadmm.studies.reading import study_from
from dpadmm.training.train import run_study


def random_model(loss, *, schema=SCHEMA, intercept=True):
    rng, label = np.random.default_rng(5), LABELS[loss]
    outputs = len(label.classes) if loss == "softmax" else 1
    task = {"softmax": "multiclass", "huber": "regression"}.get(loss, "binary")
    return Model(
        rng.normal(size=(len(schema.features) + intercept, outputs)),
        task,
        loss,
        classes=label.classes,
        intercept=intercept,
        feature_names=schema.features,
        schema=schema,
        label=label,
    )


def values_of(schema, term, cells, row):
    """Return the products of the values of both columns of an interaction."""
    if not isinstance(term, Interaction):
        return value_of(term, cells[term.name][row])
    ours, theirs = (values_of(schema, each, cells, row) for each in (term.left, term.right))
    return {" × ".join(filter(None, (a, b))): x * y for a, x in ours.items() for b, y in theirs.items()}


def value_of(column, cell):
    """(value, name of the value) -> what a cell counts for, in the terms of the module's docstring."""
    known = cell is not None
    if isinstance(column, Number) and column.knots:
        nodes = [column.bounds[0], *column.knots, column.bounds[1]]
        if not known:
            return {"missing": 1.0}
        at = np.log(nodes) if column.transform == "log" else nodes
        here = np.log(cell) if column.transform == "log" else cell
        return {f"at {node:g}": np.interp(here, at, row) for node, row in zip(nodes, np.eye(len(nodes)), strict=True)}
    if isinstance(column, Category):
        return {cell if cell in column.values else "other": 1.0}
    if isinstance(column, Number) and column.bins:
        edges = [column.bounds[0], *column.bins, column.bounds[1]]
        place = int(np.searchsorted(column.bins, cell, "right")) if known else 0
        return {f"{edges[place]:g} to {edges[place + 1]:g}" if known else "missing": 1.0}
    if isinstance(column, Number):
        low, high = column.bounds
        if column.transform == "log":
            return {"": math.log2(cell) if known else 0.5 * (math.log2(low) + math.log2(high))}
        return {"": cell if known else 0.5 * (low + high), "missing": float(not known)}
    if isinstance(column, Ordinal):
        known = cell in column.values
        middle = 0.5 * (len(column.values) - 1)
        return {"": column.values.index(cell) if known else middle, "missing": float(not known)}
    return {"": {"true": 1.0, "false": 0.0}.get(cell, 0.5), "missing": float(not known)}


def within_bounds(cells):
    """Clamp numbers to their bounds, because scores are exact for such rows only."""
    for column in COLUMNS:
        if isinstance(column, Number):
            low, high = column.bounds
            cells[column.name] = [None if v is None else min(max(v, low), high) for v in cells[column.name]]
    return {column.name: cells[column.name] for column in COLUMNS}


def test_coefficients_times_values_are_the_scores():
    for loss, intercept, schema in product(["logistic", "hinge", "softmax", "huber"], [True, False], [SCHEMA, CROSSED]):
        with case(loss, intercept, len(schema.terms)):
            model, cells = random_model(loss, schema=schema, intercept=intercept), within_bounds(make_cells(60, seed=8))
            found = explain(model).to_dict()
            outputs = [each["class"] for each in found["intercept"]]
            slopes = {(each["column"], each["value"] or "", each["class"]): each["coefficient"]
                      for each in found["coefficients"]}  # fmt: skip
            sums = np.array([[each["coefficient"] for each in found["intercept"]]] * 60)
            for term, row in product(schema.terms, range(60)):
                for value, size in values_of(schema, term, cells, row).items():
                    for h, output in enumerate(outputs):
                        if size and ((term.name, value, output) in slopes or "missing" not in value):
                            sums[row, h] += slopes[term.name, value, output] * size
            scores = model.decision_function(pa.table(cells))
            if loss == "softmax":
                assert outputs == list(GRADES)
                np.testing.assert_allclose(sums, scores - scores.mean(axis=1, keepdims=True), atol=1e-5)
            elif loss == "huber":
                np.testing.assert_allclose(sums[:, 0], model.predict(pa.table(cells)), atol=1e-3)  # 0 … 100
            else:
                np.testing.assert_allclose(sums, scores, atol=1e-5)


def test_largest_effect_over_the_range_first():
    found = explain(random_model("logistic"))
    effects = [abs(each.effect) for each in found.coefficients]
    assert effects == sorted(effects, reverse=True)
    assert len(effects) == len(SCHEMA.features)
    age = {each.value: each for each in found.coefficients if each.column == "age"}
    assert sum(age[f"{a} to {b}"].coefficient for a, b in ((18, 30), (30, 50), (50, 70), (70, 90))) == (
        pytest.approx(0.0, abs=1e-12)
    )
    income = next(each for each in found.coefficients if each.column == "income")
    assert income.per == "per doubling"
    assert income.effect == pytest.approx(income.coefficient * math.log2(1000.0))


def test_unseen_values_come_last(tmp_path):
    schema = Schema((Category("race", ("a", "b"), unseen=("b", "other")), Category("ward", ("x", "y")), Boolean("c")))
    model = replace(random_model("logistic", schema=schema), weights=np.array([[1, 5, -9, 2, 1, 5, 0.5, 1]]).T / 1.0)
    model.save(tmp_path / "m.dpadmm")
    found = explain(load_model(tmp_path / "m.dpadmm")).coefficients
    assert (
        [each.name for each in found if each.unseen] == [each.name for each in found[-2:]] == ["race=other", "race=b"]
    )
    assert found[0].name == "ward=other"  # nobody said that it is unseen


def test_p_values_agree_with_intervals():
    def p_value(coefficient, error):
        return Coefficient("a", "", "per unit", "", coefficient, error, 1.0).p_value

    assert p_value(-1.959964, 1.0) == pytest.approx(0.05, abs=1e-7)
    assert p_value(2.575829, 1.0) == pytest.approx(0.01, abs=1e-7)
    assert p_value(0.0, 1.0) == 1.0
    assert p_value(1.0, None) is None
    assert p_value(1.0, 0.0) is None


def test_a_single_public_value_is_compared_with_all_others():
    schema = Schema((Category("flag", ("yes",)), Boolean("b")))
    found = explain(random_model("logistic", schema=schema))
    yes, other = (next(e for e in found.coefficients if e.value == value) for value in ("yes", "other"))
    assert yes.coefficient == pytest.approx(-other.coefficient)
    assert yes.coefficient != 0.0


def test_clipped_rows_are_noted():
    for schema, said in [
        (Schema((Number("a", (0, 1)), Boolean("b"))), ""),
        (Schema((Number("a", (0, 1)), Boolean("b")), row_norm=1.2), "row_norm 1.2"),
        (Schema((Plain("a"), Plain("b"))), "row_norm 1;"),
    ]:
        with case(schema, said):
            told = explain(random_model("logistic", schema=schema)).clipping
            assert said in told
            assert bool(told) == bool(said)


def test_features_without_a_schema():
    model = Model(np.array([[2.0], [1.0], [0.5]]), "binary", "hinge", intercept=True, clip=True)
    found = explain(model)
    assert [(each.name, each.coefficient) for each in found.coefficients] == [
        ("feature 1", pytest.approx(2.0 * 0.96)),
        ("feature 2", pytest.approx(0.96)),
    ]
    assert found.intercepts[0].coefficient == pytest.approx(0.5 * 0.28)
    assert found.no_intervals_because == NO_INTERVAL
    assert "a norm of 1" in found.clipping
    assert found.score == "score of 1 against -1"


@pytest.fixture(scope="module")
def trained_result(tmp_path_factory):
    study = make_study("huber", n_rounds=6)
    path = write_csv(tmp_path_factory.mktemp("table") / "t.csv", make_cells(400))
    table = encode_table(path, study.schema, study.label, by="site", intercept=True)
    return run_study(study, table, seed=1)


@pytest.fixture(scope="module")
def trained(trained_result, tmp_path_factory):
    return model_of(trained_result), tmp_path_factory.mktemp("trained")


def test_a_loaded_model_has_the_same_explanation(trained):
    model, folder = trained
    found = explain(load_model(model.save(folder / "m.dpadmm")))
    assert found == explain(model)
    assert found.score == "price"
    # in units of the label: 50 times those of scores −1 … 1
    n0 = next(each for each in found.coefficients if each.name == "n0")
    first = model.weights[0, 0] * 0.96 / SCHEMA.scale * (2.0 / 4.0) * 50.0
    assert n0.coefficient == pytest.approx(first)


def test_without_a_hessian_there_are_no_standard_errors(trained):
    model, _ = trained
    found = explain(model)
    assert found.no_intervals_because == NO_INTERVAL
    assert {each.standard_error for each in (*found.coefficients, *found.intercepts)} == {None}
    assert found.to_dict()["no_intervals_because"] == found.no_intervals_because


def test_standard_errors_are_in_the_units_of_columns_and_label_and_in_the_file(trained, tmp_path):
    model, _ = trained
    model = replace(model, covariance=np.diag(np.arange(1.0, 1.0 + len(model.weights)) ** 2), hessian_snr=3.0)
    found = explain(load_model(model.save(tmp_path / "m.dpadmm")))
    assert found == explain(model)
    assert not found.no_intervals_because
    n0 = next(each for each in found.coefficients if each.name == "n0")
    assert n0.standard_error == pytest.approx(0.96 / SCHEMA.scale * (2.0 / 4.0) * 50.0)
    low, high = n0.interval()
    assert (low + high) / 2.0 == pytest.approx(n0.coefficient)
    assert high - low == pytest.approx(2.0 * 1.959964 * n0.standard_error, rel=1e-6)
    assert model.conf_int(0.5)["n0"][1] == pytest.approx(n0.coefficient + 0.67449 * n0.standard_error, rel=1e-4)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
def test_standard_errors_are_those_of_models_with_fresh_errors(loss):
    """With errors drawn from the covariance, the spread of the coefficients equals the standard errors."""
    model, rng, n = random_model(loss), np.random.default_rng(7), 150
    d = len(model.weights)
    root = rng.normal(size=(d, d)) / d**0.5 + np.diag(rng.uniform(0.5, 2.0, size=d))
    found = explain(replace(model, covariance=root @ root.T, hessian_snr=2.0))
    drawn = {}
    for _ in range(n):
        noisy = explain(replace(model, weights=model.weights + root @ rng.normal(size=(d, 1))))
        for each in (*noisy.coefficients, *noisy.intercepts):
            drawn.setdefault(each.name, []).append(each.coefficient)
    for each in (*found.coefficients, *found.intercepts):
        spread = np.std(drawn[each.name], ddof=1)
        assert spread == pytest.approx(each.standard_error, rel=5.0 / math.sqrt(2.0 * n))


def test_the_reason_for_missing_intervals():
    model = random_model("logistic")
    asked = replace(model, study={"method": {"name": "newton"}})
    assert explain(model).no_intervals_because == NO_INTERVAL
    assert explain(asked).no_intervals_because == NO_LAST_RELEASE
    for hessian_snr in (
        0.5,
        0.9,
        1e-9,
    ):  # directions below the noise are left out: the rest is no measure of what lacks
        assert explain(replace(asked, hessian_snr=hessian_snr)).no_intervals_because == NOT_CLEAR
    assert "times" not in NOT_CLEAR
    assert "dpadmm plan forecasts the number of rows needed" in NOT_CLEAR
    with pytest.raises(DataError, match="intervals are not available: they need a separate release"):
        model.conf_int()
    assert "No confidence intervals: they need a separate release" in model.summary()
    assert model.summary().splitlines()[1] == "privacy unknown"
    known = replace(model, privacy={"epsilon": 3.0, "delta": 1e-5, "noise": "exact"})
    assert known.summary().splitlines()[1] == "ε = 3 at δ = 1e-05"


def test_dependent_directions_of_categories_do_not_prevent_intervals():
    """Only the direction of a column and the constant may have no information."""
    schema = Schema((Category("ward", ("a", "b", "c")), Number("age", (0, 9)), Boolean("b")))
    d = len(schema.features) + 1
    silent = np.zeros(d)
    silent[:3], silent[-1] = 0.96 / schema.scale, -0.28
    silent /= np.linalg.norm(silent)
    model = Model(np.ones((d, 1)), "binary", "logistic", intercept=True, schema=schema, feature_names=schema.features)
    covariance = np.eye(d) - np.outer(silent, silent)
    covariance[3], covariance[:, 3] = 0.0, 0.0  # no row has another value
    found = explain(replace(model, covariance=covariance, hessian_snr=2.0))
    assert not found.no_intervals_because
    told, other = {each.name: each for each in (*found.coefficients, *found.intercepts)}, f"ward={OTHER}"
    assert told[other].interval() is None
    assert told[other].p_value is None
    assert all(told[name].standard_error > 0.0 for name in told if name != other)
    assert told["age"].to_dict(ratios="odds ratio")["odds_ratio"] == pytest.approx(math.exp(told["age"].coefficient))
    frame = replace(model, covariance=covariance, hessian_snr=2.0).to_frame()
    assert len(frame) == len(told)
    assert frame["odds_ratio_high"].isna().sum() == 1
    tidy = ["term", "estimate", "std_error", "statistic", "p_value", "conf_low", "conf_high"]
    assert set(tidy) < set(frame.columns)
    assert frame["term"].tolist()[-1] == "intercept"
    known = frame.dropna(subset=["std_error"])
    assert (known["statistic"] * known["std_error"]).tolist() == pytest.approx(known["estimate"].tolist())
    hidden = covariance.copy()
    hidden[4, 5:], hidden[5:, 4] = 0.0, 0.0
    hidden[4:6, 4:6] = 1.0  # of age and b only the sum is known
    assert "too much noise" in explain(replace(model, covariance=hidden, hessian_snr=2.0)).no_intervals_because
    text = replace(model, covariance=covariance, hessian_snr=2.0).summary()
    for word in ("estimate", "std. error", "95% interval", "odds ratio", "per unit", "privacy noise"):
        assert word in text


def test_an_estimate_and_its_interval_have_as_many_decimals():
    for numbers, told in [
        ((1.0393, 1.0357, 1.043), ("1.039", "1.036", "1.043")),
        ((1.5154, 1.38, 1.664), ("1.52", "1.38", "1.66")),
        ((23.96, 17.92, 32.03), ("24.0", "17.9", "32.0")),
        ((403.4, 38.2, 4239.0), ("403", "38", "4239")),
        ((0.5, 0.5, 0.5), ("0.500000",) * 3),
        ((1.0, 0.5, math.inf), ("1", "0.5", "inf")),
    ]:
        assert alike(*numbers) == told


def test_dependent_directions_of_interactions_do_not_prevent_intervals():
    """The covariance of all pairs of columns is singular, with the expected number of zero eigenvalues."""
    schema = Schema(
        (Category("ward", ("a", "b")), Category("sex", ("f", "m")), Number("age", (0, 9)), Boolean("b")),
        interactions=(("ward", "sex"), ("age", "ward"), ("age", "b"), ("b", "sex")),
    )
    rng, n, d = np.random.default_rng(0), 500, len(schema.features) + 1
    cells = {"ward": rng.choice(["a", "b", "c"], n).tolist(), "sex": rng.choice(["f", "m"], n).tolist()}
    cells |= {"age": rng.uniform(0, 9, n).tolist(), "b": rng.choice(["true", "false"], n).tolist()}
    rows = Encoder(schema, intercept=True).encode(pa.record_batch(cells)).toarray().astype(float)
    moment = rows.T @ rows / n
    covariance = np.linalg.pinv(moment, hermitian=True, rcond=1e-9)
    covariance[:, np.diag(moment) < 1e-9] = 0.0
    model = Model(np.ones((d, 1)), "binary", "logistic", intercept=True, schema=schema, feature_names=schema.features)
    found = explain(replace(model, covariance=covariance, hessian_snr=2.0))
    assert not found.no_intervals_because
    assert {each.name for each in found.coefficients if each.interval() is None} == {
        name for name in (each.name for each in found.coefficients) if name.endswith(("sex=other", " × other"))
        and not name.startswith("age")
    }  # fmt: skip
    assert {each.per for each in found.coefficients if each.column == "age × ward"} == {"per unit, vs average"}
    value, vectors = np.linalg.eigh(covariance)
    hidden = covariance - value[-1] * np.outer(vectors[:, -1], vectors[:, -1])
    assert "too much noise" in explain(replace(model, covariance=hidden, hessian_snr=2.0)).no_intervals_because


def test_an_effect_that_depends_on_another_column_is_found(tmp_path):
    """Odds rise with the dose for one sex and fall for the other, and are highest in the middle ages."""
    rng, n = np.random.default_rng(3), 20_000
    sex, dose, age = rng.choice(["f", "m"], n), rng.uniform(0, 10, n), rng.uniform(20, 80, n)
    slope = np.where(sex == "f", 0.6, -0.6)
    ill = rng.random(n) < 1.0 / (1.0 + np.exp(-slope * (dose - 5.0) - 3.0 * (1.0 - np.abs(age - 50.0) / 15.0)))
    cells = {"sex": sex, "dose": dose, "age": age, "ill": np.where(ill, "yes", "no")}
    columns = {"sex": {"kind": "category", "values": ["f", "m"]}, "dose": {"kind": "number", "bounds": [0, 10]}}
    study = study_from(
        {
            "format": "dpadmm-study/2",
            "name": "dose",
            "label": {"column": "ill", "classes": ["no", "yes"]},
            "columns": {**columns, "age": {"kind": "number", "bounds": [20, 80], "knots": [50]}},
            "interactions": [["dose", "sex"]],
            "method": {"name": "newton"},
            "privacy": {"epsilon": 5.0, "delta": 1e-6},
        }
    )
    path = write_csv(tmp_path / "table.csv", {name: values.tolist() for name, values in cells.items()})
    result = train(study, path)
    model_of(result).save(tmp_path / "m.dpadmm")
    model = load_model(tmp_path / "m.dpadmm")
    found = {each.name: each for each in explain(model).coefficients}
    for name, truth in [("dose × sex=f", 0.6), ("dose × sex=m", -0.6), ("age=at 50", 4.0), ("age=at 20", -2.0)]:
        low, high = found[name].interval()
        assert low - 0.1 < truth < high + 0.1
        assert low > 0.0 or high < 0.0
    low, high = found["dose"].interval()
    assert low - 0.05 < 0.0 < high + 0.05  # on average over both
    assert model.predict(pa.table({"sex": ["f", "m"], "dose": [9.0, 9.0], "age": [35.0, 35.0]})).tolist() == [
        "yes",
        "no",
    ]


def test_names_that_look_like_identifiers_are_accepted(tmp_path):
    schema = Schema((Number("patient_id", (0, 9)), Boolean("b")))
    study = make_study(schema=schema, n_rounds=3)
    cells = {"patient_id": [1, 2, 3, 4] * 5, "b": ["true", "false"] * 10, "outcome": ["ill", "well"] * 10}
    table = encode_table(write_csv(tmp_path / "t.csv", cells), schema, study.label, intercept=True)
    assert isinstance(study.label, Label)
    found = explain(model_of(run_study(study, table, seed=1)))
    assert {each.column for each in found.coefficients} == {"patient_id", "b"}
