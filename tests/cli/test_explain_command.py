"""``dpadmm explain``: table, JSON, figure, and standard errors if available."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from looping import case
from mixed_tables import COLUMNS, make_cells, make_study, write_csv

from dpadmm.data.schema import Category, Number, Schema
from dpadmm.data.table import encode_table
from dpadmm.figures.coefficients import coefficient_figure
from dpadmm.models.explain import explain
from dpadmm.models.explanation import Coefficient, Explanation
from dpadmm.models.file import load_model
from dpadmm.models.model import Model, model_of
from dpadmm.training.train import run_study

FEW = ("n0", "n1", "n2", "i0", "grade0", "grade1", "flag0", "flag1")
SCHEMA = Schema(tuple(each for each in COLUMNS if each.name in FEW))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """loss -> the file of a model with standard errors; "without": one that has none."""
    folder = tmp_path_factory.mktemp("models")
    path, files = write_csv(folder / "t.csv", make_cells(400)), {}
    for loss in ("logistic", "softmax"):
        study = make_study(loss, schema=SCHEMA, n_rounds=5)
        table = encode_table(path, study.schema, study.label, by="site", intercept=True)
        model = model_of(run_study(study, table, seed=1))
        if loss == "logistic":
            variances = (0.6 * np.abs(model.weights[:, 0]) + 0.1) ** 2
            model = replace(model, covariance=np.diag(variances), hessian_snr=2.0)
        files[loss] = model.save(folder / f"{loss}.dpadmm")
    files["without"] = model.save(folder / "without.dpadmm")
    return files


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_screen(cli, columns):
    text = cli("explain", "--help", columns=columns).succeeded().out
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


def test_the_table_is_complete_and_fits(cli, models):
    for loss, columns in [("logistic", 120), ("logistic", 80), ("softmax", 80)]:
        with case(loss, columns):
            text = cli("explain", models[loss], "--top", 7, columns=columns).succeeded().out
            assert max(map(len, text.splitlines())) <= columns
            assert "…" not in text
            found = explain(load_model(models[loss]))
            lines = [line.split() for line in text.splitlines()]
            for each in found.coefficients[:7]:
                numbers = [f"{each.coefficient:+.3g}"]
                if loss == "logistic":
                    low, high = each.interval()
                    odds = f"{np.exp(each.coefficient):.3g}"
                    numbers += [f"{each.standard_error:.2g}", f"{low:+.3g}", "to", f"{high:+.3g}", odds]
                else:
                    numbers += [f"{each.effect:+.3g}"]
                line = next(line for line in lines if line[:1] == [each.name] and numbers[0] in line)
                assert set(numbers) <= set(line)
            words = " ".join(text.split())
            assert ("include sampling variation and privacy noise" in words) == (loss == "logistic")
            assert f"{len(found.coefficients) - 7:,} more coefficients" in words


def test_long_names_of_classes_are_numbered_and_explained(cli, tmp_path):
    long = ("sent home on the same day", "moved to another ward", "died in hospital or soon after")
    for classes, shown in [(long, ["1", "2", "3"]), (("low", "high", "none"), ["low", "high", "none"])]:
        with case(classes):
            names = ("body_mass_index_at_admission", "age")
            model = Model(np.eye(2, 3), "multiclass", "softmax", classes=classes, feature_names=names, intercept=False)
            out = cli("explain", model.save(tmp_path / f"{shown[0]}.dpadmm"), columns=80).succeeded().out
            assert max(map(len, out.splitlines())) <= 80
            assert sorted(line.split()[1] for line in out.splitlines() if line.startswith(" age")) == sorted(shown)
            legend = ", ".join(f"{short} = {name}" for short, name in zip(shown, long, strict=True))
            assert (f"Classes: {legend}." in " ".join(out.split())) == (classes is long)
            figure = coefficient_figure(explain(model), top=9, title="t").figure
            figure.canvas.draw()
            box = figure.legends[0].get_window_extent()
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_json_has_all_coefficients(cli, models):
    answer = cli("explain", models["logistic"], "--json", "--top", 1).succeeded().json
    assert "-differentially private for every person with one row" in answer.pop("privacy_sentence")
    assert "-differentially private" in answer["notes"].pop()
    assert answer == explain(load_model(models["logistic"])).to_dict()
    assert len(answer["coefficients"]) == len(load_model(models["logistic"]).feature_names)
    assert {"column", "coefficient", "standard_error", "low", "p_value", "odds_ratio"} < set(answer["coefficients"][0])


def test_a_table_for_a_paper(cli, models, tmp_path):
    found = explain(load_model(models["logistic"]))
    cli("explain", models["logistic"], "--table", tmp_path / "t.md").succeeded()
    text = (tmp_path / "t.md").read_text(encoding="utf-8")
    assert text.startswith("**Effects on: log odds of ")
    assert text.count("\n| ") == 2 + len(found.coefficients)
    assert "-differentially private for every person with one row" in text
    cli("explain", models["logistic"], "--table", tmp_path / "t.csv").succeeded()
    lines = (tmp_path / "t.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(found.coefficients) + len(found.intercepts)
    assert lines[0].startswith("column,value,class,per,coefficient,standard_error,low,high,p_value,odds_ratio")


def test_a_table_names_ratio_and_class():
    rate = Coefficient("age", "", "per unit", "", 0.0385, 0.002, 60.0)
    table = Explanation("log rate of visits", (rate,), (), "", "", "rate ratio").to_markdown("Private.")
    assert "|  | Change | Rate ratio | 95% CI | p |" in table
    assert "| age | per unit | 1.039 | 1.035 to 1.043 | <0.001 |" in table
    several = replace(rate, output="a|b", standard_error=None)
    table = Explanation("score", (several,), (), "no study", "").to_markdown("Private.")
    assert "|  | Class | Change | Coefficient (no intervals) |\n| :-- | :-- | :-- | --: |" in table
    assert r"| age | a\|b | per unit | 0.0385 |" in table


def test_a_table_without_intervals_marks_unseen_values():
    seen = Coefficient("job", "a", "vs average", "", 0.5, None, 1.0)
    unseen = replace(seen, value="other", unseen=True)
    table = Explanation("log odds", (seen, unseen), (), "too much noise", "", "odds ratio").to_markdown("Private.")
    assert "| Odds ratio (no intervals) |" in table
    assert r"| job=other \* | vs average | 1.65 |" in table
    assert r"\* No public row has this value" in table
    assert "No confidence intervals: too much noise." in table
    assert r"\*" not in Explanation("log odds", (seen,), (), "too much noise", "").to_markdown("Private.")


def test_a_column_with_a_wide_range_has_a_power_of_ten_as_unit(cli, tmp_path):
    """Per unit, every odds ratio would round to 1."""
    schema = Schema((Number("income", (0, 250_000)), Number("age", (18, 98))))
    weights = np.array([[-2.0], [0.5], [0.1]])
    model = Model(weights, "binary", "logistic", schema=schema, intercept=True, feature_names=schema.features,
                  covariance=1e-4 * np.eye(3), hessian_snr=2.0)  # fmt: skip
    income = next(each for each in explain(model).coefficients if each.column == "income")
    told, per_unit = income.in_table, income.coefficient
    assert (told.per, told.coefficient, told.span) == ("per 10,000", pytest.approx(1e4 * per_unit), 25.0)
    assert (told.p_value, told.effect) == (pytest.approx(income.p_value), pytest.approx(income.effect))
    odds = f"{np.exp(1e4 * per_unit):.3g}"
    assert odds not in ("1", "1.0")
    cli_text = (
        cli("explain", model.save(tmp_path / "m.dpadmm"), "--table", tmp_path / "t.md", columns=80).succeeded().out
    )
    for text in (cli_text, model.summary(), (tmp_path / "t.md").read_text(encoding="utf-8")):
        (line,) = (line for line in text.splitlines() if "income" in line)
        assert "per 10,000" in line
        assert odds in line
        assert "age" in text
        assert "per unit" in text
    assert income.to_dict(ratios="")["per"] == "per unit"  # files are as they were


def test_long_names_wrap_after_the_column(cli, tmp_path):
    schema = Schema((Category("employment", ("unemployed", "self-employed")), Number("age", (18, 98))))
    d = len(schema.features) + 1
    weights = np.linspace(-0.123, 0.456, d)[:, None]
    model = Model(weights, "binary", "logistic", schema=schema, intercept=True, feature_names=schema.features,
                  covariance=0.01234 * np.eye(d), hessian_snr=2.0)  # fmt: skip
    file = model.save(tmp_path / "m.dpadmm")
    narrow = cli("explain", file, columns=80).succeeded().out
    assert max(map(len, narrow.splitlines())) <= 80
    assert {line.split()[0] for line in narrow.splitlines() if line.strip()} >= {"employment", "age"}
    assert "employment = unemployed" in cli("explain", file, columns=120).succeeded().out


def test_a_figure(cli, models, tmp_path):
    text = cli("explain", models["softmax"], "--figure", tmp_path / "new").succeeded().out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"coefficients.png", "coefficients.svg"}
    assert "coefficients.png and " in text
    assert "coefficients.svg\n" in text


def test_a_model_without_a_study_is_explained_in_features(cli, tmp_path):
    bare = Model(np.array([[1.0], [-2.0]]), "binary", "logistic", feature_names=("[red]age", "bmi"))
    text = cli("explain", bare.save(tmp_path / "bare.dpadmm")).succeeded().out
    assert "[red]age" in text
    assert "No confidence intervals: they need a separate release" in " ".join(text.split())
    answer = cli("explain", tmp_path / "bare.dpadmm", "--json").succeeded().json
    assert [each["standard_error"] for each in answer["coefficients"]] == [None, None]


def test_tables_without_standard_errors_omit_their_columns(cli, models):
    text = cli("explain", models["without"], columns=80).succeeded().out
    assert "interval" not in text.split("No confidence intervals")[0]
    assert text.count("No confidence intervals") == 1
    first = explain(load_model(models["without"])).coefficients[0]
    assert f"{first.coefficient:+.3g}" in text
    assert f"{first.effect:+.3g}" in text


@pytest.mark.parametrize("words", [["missing.dpadmm"], ["MODEL", "--top", 0]])
def test_errors_are_one_sentence(cli, models, words):
    answer = cli("explain", *(models["logistic"] if word == "MODEL" else word for word in words))
    assert answer.code == 2
    assert answer.err.startswith("dpadmm: ")
    assert len(answer.err.splitlines()) == 1
