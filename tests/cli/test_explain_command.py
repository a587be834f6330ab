"""``dpadmm explain``: a table, JSON, a figure, and no standard error without a transcript."""

from __future__ import annotations

import numpy as np
import pytest
from looping import case
from mixed_tables import COLUMNS, make_cells, make_study, write_csv

from dpadmm.data.encoded import encode_table
from dpadmm.data.schema import Schema
from dpadmm.model.explain import explain
from dpadmm.model.file import load_model
from dpadmm.model.model import Model, model_of
from dpadmm.runs.training import run_study

pytestmark = pytest.mark.usefixtures("few_tables")

FEW = ("n0", "n1", "n2", "i0", "grade0", "grade1", "flag0", "flag1")
SCHEMA = Schema(tuple(each for each in COLUMNS if each.name in FEW))
"""A few of the columns: the standard error takes longer the more there are."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """loss -> a model's file."""
    folder = tmp_path_factory.mktemp("models")
    path, files = write_csv(folder / "t.csv", make_cells(400)), {}
    for loss in ("logistic", "softmax"):
        study = make_study(loss, schema=SCHEMA, n_rounds=5)
        table = encode_table(path, study.schema, study.label, by="site", intercept=True)
        files[loss] = model_of(run_study(study, table, seed=1)).save(folder / f"{loss}.dpadmm")
    return files


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_screen(cli, columns):
    text = cli("explain", "--help", columns=columns).succeeded().out
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text


def test_the_table_is_whole_and_fits(cli, models):
    for loss, columns in [("logistic", 120), ("softmax", 80)]:
        with case(loss, columns):
            text = cli("explain", models[loss], "--top", 7, columns=columns).succeeded().out
            assert max(map(len, text.splitlines())) <= columns
            assert "…" not in text
            found = explain(load_model(models[loss]))
            lines = [line.split() for line in text.splitlines()]
            for each in found.coefficients[:7]:
                numbers = [f"{each.coefficient:+.3g}", f"{each.standard_error:.2g}", f"{each.effect:+.3g}"]
                line = next(line for line in lines if line[:1] == [each.name] and numbers[0] in line)
                assert numbers == [word for word in line if word[-1].isdigit()][-3:]
                assert ("noise?" in line) == each.may_be_noise
            words = " ".join(text.split())
            assert "does not include the sampling error" in words
            assert f"{len(found.coefficients) - 7:,} more coefficients" in words


def test_json_has_all_of_it(cli, models):
    answer = cli("explain", models["logistic"], "--json", "--top", 1).succeeded().json
    assert answer == explain(load_model(models["logistic"])).as_json()
    assert len(answer["coefficients"]) == len(load_model(models["logistic"]).feature_names)
    assert {"column", "value", "per", "coefficient", "standard_error", "may_be_noise"} < set(answer["coefficients"][0])


def test_a_figure(cli, models, tmp_path):
    text = cli("explain", models["softmax"], "--figure", tmp_path / "new").succeeded().out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"coefficients.png", "coefficients.svg"}
    assert "coefficients.png" in text


def test_a_model_without_a_study_is_explained_as_far_as_it_can_be(cli, tmp_path):
    bare = Model(np.array([[1.0], [-2.0]]), "binary", "logistic", feature_names=("[red]age", "bmi"))
    text = cli("explain", bare.save(tmp_path / "bare.dpadmm")).succeeded().out
    assert "[red]age" in text
    assert "No noise standard error is shown: the model's file has no study" in " ".join(text.split())
    answer = cli("explain", tmp_path / "bare.dpadmm", "--json").succeeded().json
    assert [each["standard_error"] for each in answer["coefficients"]] == [None, None]


@pytest.mark.parametrize("words", [["missing.dpadmm"], ["MODEL", "--top", 0]])
def test_mistakes_are_a_sentence(cli, models, words):
    answer = cli("explain", *(models["logistic"] if word == "MODEL" else word for word in words))
    assert answer.code == 2
    assert answer.err.startswith("dpadmm: ")
    assert len(answer.err.splitlines()) == 1
