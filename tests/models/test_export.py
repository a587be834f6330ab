"""Exported models: scikit-learn and ONNX give the same predictions on random rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mixed_tables
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from looping import case
from mixed_tables import CROSSED, GRADES, LABELS, SCHEMA, make_cells
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from dpadmm.data.schema import Category, Number, Plain, Schema
from dpadmm.errors import DataError, StudyError
from dpadmm.losses import LOSSES
from dpadmm.models.model import Model

CELLS = make_cells(400, seed=3)
WIDE = Schema((Number("n0", (-2.0, 2.0)), Category("region0", tuple(f"v{k}" for k in range(60)))))
LONG = Schema((Number("n0", (-2.0, 2.0)), Number("n1", (-2.0, 2.0)), Plain("n2")), row_norm=0.3)


def make_model(loss: str, *, schema: Schema | None = SCHEMA, intercept: bool = True, **more: Any) -> Model:
    """Random weights."""
    rng = np.random.default_rng(1)
    label, task = LABELS[loss], LOSSES[loss].task
    width = len(schema.features) if schema else 4
    weights = rng.normal(size=(width + intercept, len(label.classes or ()) if task == "multiclass" else 1))
    if intercept:
        weights[-1] *= 0.1
    if schema is None:
        return Model(weights, task, loss, classes=label.classes, intercept=intercept, **more)
    names = schema.features
    return Model(
        3.0 * weights, task, loss, classes=label.classes, intercept=intercept, feature_names=names,
        schema=schema, label=label, **more,
    )  # fmt: skip


MODELS = {
    **{loss: make_model(loss) for loss in LABELS},
    "no constant": make_model("logistic", intercept=False),
    "sparse": make_model("logistic", schema=WIDE),
    "crossed": make_model("logistic", schema=CROSSED),
    "long rows": make_model("squared", schema=LONG),
}
MATRIX_MODELS = {
    "plain": make_model("logistic", schema=None),
    "shortened": make_model("softmax", schema=None, clip=True),
    "numbers": make_model("huber", schema=None, intercept=False),
}


def frame_for(model: Model) -> dict[str, list[Any]]:
    assert model.schema is not None
    cells = {column.name: CELLS[column.name] for column in model.schema.columns}
    if model.schema is LONG:
        cells = {name: [0.1 if v is None else v for v in values] for name, values in cells.items()}
    if model.schema is WIDE:
        cells["region0"] = [f"v{row % 70}" for row in range(400)]
    return cells


# --- tables in memory --------------------------------------------------------------------------------------


def test_all_kinds_of_tables_give_the_same_scores() -> None:
    model, cells = MODELS["logistic"], frame_for(MODELS["logistic"])
    expected = model.decision_function(cells)
    table = pa.table(cells)
    chunked = pa.concat_tables([table.slice(0, 100), table.slice(100)])
    for rows in (pd.DataFrame(cells), table, table.to_batches()[0], chunked):
        np.testing.assert_array_equal(model.decision_function(rows), expected)
    mixed = pd.DataFrame(cells).astype({"region0": "category", "n0": "float32"})
    np.testing.assert_allclose(model.decision_function(mixed), expected, atol=1e-5)


def test_problems_of_a_table_are_reported() -> None:
    model, cells = MODELS["logistic"], frame_for(MODELS["logistic"])
    with pytest.raises(StudyError, match="the table has no column 'n0'; it has no unused column"):
        model.predict({name: values for name, values in cells.items() if name != "n0"})
    with pytest.raises(DataError, match="column 'n0': the cell in row 2 should be a number"):
        model.predict(pd.DataFrame(cells | {"n0": [1.0, "x"] * 200}))
    with pytest.raises(DataError, match="the table has no rows"):
        model.predict(pd.DataFrame(cells).head(0))
    with pytest.raises(DataError, match="has no column names"):
        MATRIX_MODELS["plain"].predict(pd.DataFrame(cells))
    doubled = pd.DataFrame(cells)[[*cells, "n0"]]
    with pytest.raises(DataError, match="'n0' occurs more than once"):
        model.predict(doubled)


# --- scikit-learn ------------------------------------------------------------------------------------------


def same(model: Model, other: Pipeline, rows: Any) -> None:
    ours = model.predict(rows)
    if model.task == "regression":
        np.testing.assert_allclose(other.predict(rows), ours, rtol=1e-5, atol=1e-5)
        return
    assert len(set(ours.tolist())) > 1
    assert (other.predict(rows) == ours).mean() > 0.995  # a score of 1e-8 may fall to either side
    if model.has_probabilities:
        np.testing.assert_allclose(other.predict_proba(rows), model.predict_proba(rows), atol=1e-6)
    else:
        np.testing.assert_allclose(other.decision_function(rows), model.decision_function(rows)[:, 0], atol=1e-5)


def test_pipelines_predict_the_same_from_tables() -> None:
    for name in MODELS:
        with case(name):
            model = MODELS[name]
            other = model.to_sklearn()
            assert isinstance(other, Pipeline)
            same(model, other, pd.DataFrame(frame_for(model)))
            same(model, other, frame_for(model))
            assert model.schema is not None
            assert other[:-1].get_feature_names_out().tolist() == list(model.schema.features)


def test_pipelines_predict_the_same_from_matrices() -> None:
    for name in MATRIX_MODELS:
        with case(name):
            model, rows = MATRIX_MODELS[name], np.random.default_rng(2).normal(size=(300, 4))
            same(model, model.to_sklearn(), rows)
            same(model, model.to_sklearn(), csr_array(rows))


def test_softmax_of_two_classes() -> None:
    weights = np.random.default_rng(0).normal(size=(4, 2))
    model = Model(weights, "multiclass", "softmax", classes=("no", "yes"))
    same(model, model.to_sklearn(), np.random.default_rng(2).normal(size=(300, 4)))


def test_an_encoder_can_be_cloned_and_requires_names() -> None:
    encoder = clone(MODELS["logistic"].to_sklearn()["encode"]).fit(None)
    rows = frame_for(MODELS["logistic"])
    several = pa.concat_tables([pa.table(rows).slice(0, 100), pa.table(rows).slice(100)])
    np.testing.assert_array_equal(encoder.transform(several), encoder.transform(rows))
    with pytest.raises(DataError, match="pass a data frame, not an array"):
        encoder.transform(np.zeros((3, 20)))


def test_missing_packages_are_named() -> None:
    program = """
import sys
sys.modules["sklearn"] = sys.modules["onnx"] = None
import numpy as np
from dpadmm import DataError, Model
model = Model(np.ones((2, 1)), "binary", "logistic")
for export in (model.to_sklearn, lambda: model.to_onnx("m.onnx")):
    try:
        export()
    except DataError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "to_sklearn() needs scikit-learn; install it with: pip install 'dpadmm[sklearn]'",
        "to_onnx() needs onnx; install it with: pip install 'dpadmm[onnx]'",
    ]


# --- ONNX --------------------------------------------------------------------------------------------------


def run_onnx(path: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    pytest.importorskip("onnx", reason="the extra dpadmm[onnx] is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime cannot be installed here")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def onnx_inputs(model: Model) -> dict[str, Any]:
    assert model.schema is not None
    out = {}
    for column in model.schema.columns:
        values = frame_for(model)[column.name]
        if isinstance(column, Number | Plain):
            numbers = np.array([np.nan if each is None else each for each in values], float)
            out[column.name] = numbers[:, None]
        else:
            out[column.name] = np.array([each or "" for each in values], object)[:, None]
    return out


def same_as_onnx(model: Model, found: dict[str, Any], rows: Any) -> None:
    if model.task == "regression":
        np.testing.assert_allclose(found["output_number"], model.predict(rows), rtol=1e-6, atol=1e-5)
        return
    assert (found["output_label"] == model.predict(rows)).mean() > 0.995
    if model.has_probabilities:
        np.testing.assert_allclose(found["output_probability"], model.predict_proba(rows), atol=1e-6)
    else:
        np.testing.assert_allclose(found["output_score"], model.decision_function(rows), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_onnx_predicts_the_same_from_raw_columns(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra dpadmm[onnx] is not installed")
    model = MODELS[name]
    found = run_onnx(model.to_onnx(tmp_path / "m.onnx"), onnx_inputs(model))
    same_as_onnx(model, found, frame_for(model))
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("name", MATRIX_MODELS)
def test_onnx_predicts_the_same_from_matrices(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra dpadmm[onnx] is not installed")
    model, rows = MATRIX_MODELS[name], np.random.default_rng(2).normal(size=(300, 4))
    same_as_onnx(model, run_onnx(model.to_onnx(tmp_path / "m.onnx"), {"features": rows}), rows)


def test_onnx_keeps_whole_numbers_as_classes_and_refuses_a_column_called_like_an_output(
    tmp_path: Path,
) -> None:
    pytest.importorskip("onnx", reason="the extra dpadmm[onnx] is not installed")
    model = Model(np.ones((2, 1)), "binary", "logistic", classes=(3, 5))
    found = run_onnx(model.to_onnx(tmp_path / "m.onnx"), {"features": np.array([[1.0, 0.0], [-1.0, 0.0]])})
    assert found["output_label"].tolist() == [5, 3]
    schema = Schema((Number("output_label", (0.0, 1.0)),))
    bad = Model(np.ones((1, 1)), "binary", "logistic", schema=schema, feature_names=schema.features)
    with pytest.raises(DataError, match="'output_label' has the name of an output"):
        bad.to_onnx(tmp_path / "bad.onnx")
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


def test_the_test_tables_cover_every_kind_of_column() -> None:
    assert len(mixed_tables.COLUMNS) == 20
    assert 0.03 < np.mean([v is None for c in mixed_tables.COLUMNS for v in CELLS[c.name]]) < 0.07
    assert {*CELLS["level"]} == {*GRADES}
