"""Trained models: predictions, probabilities, files."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from looping import case
from mixed_tables import make_cells, make_study, write_csv
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from dpadmm.data.schema import Label, Number, Schema
from dpadmm.data.table import encode_table
from dpadmm.errors import DataError
from dpadmm.models import file as model_file
from dpadmm.models.file import FORMAT, load_model
from dpadmm.models.model import Model, model_of
from dpadmm.models.run import Result
from dpadmm.parameters.fields import hash_of
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study
from dpadmm.training.train import run_study
from dpadmm.version import VERSION

RNG = np.random.default_rng(0)
A = RNG.standard_normal((40, 3)) / 4.0
W1, W3 = RNG.standard_normal((3, 1)), RNG.standard_normal((3, 4))

MODELS = {
    "binary": Model(W1, "binary", "logistic", classes=("no", "yes")),
    "plain": Model(W1, "binary", "hinge"),
    "multiclass": Model(W3, "multiclass", "softmax", classes=("a", "b", "c", "d")),
    "regression": Model(W1, "regression", "huber", feature_names=("x", "y", "z")),
    "intercept": Model(np.vstack([W1, [[0.5]]]), "binary", "logistic", classes=(0, 1), intercept=True),
    "clipped": Model(W1, "binary", "logistic", clip=True, privacy={"epsilon": 1.0, "private": True}),
}


# --- prediction --------------------------------------------------------------------------------------------


def test_binary_predictions_agree_with_scikit_learn() -> None:
    labels = np.where(A[:, 0] > 0.0, "yes", "no")
    oracle = LogisticRegression(fit_intercept=False).fit(A, labels)
    model = Model(oracle.coef_.T, "binary", "logistic", classes=tuple(oracle.classes_))
    np.testing.assert_array_equal(model.predict(A), oracle.predict(A))
    np.testing.assert_allclose(model.predict_proba(A), oracle.predict_proba(A), rtol=1e-12)
    np.testing.assert_allclose(model.decision_function(A)[:, 0], oracle.decision_function(A), rtol=1e-12)


def test_multiclass_predictions_agree_with_scikit_learn() -> None:
    labels = np.array(["a", "b", "c"])[np.argmax(A, axis=1)]
    oracle = LogisticRegression(fit_intercept=False).fit(A, labels)
    model = Model(oracle.coef_.T, "multiclass", "softmax", classes=tuple(oracle.classes_))
    np.testing.assert_array_equal(model.predict(A), oracle.predict(A))
    np.testing.assert_allclose(model.predict_proba(A), oracle.predict_proba(A), rtol=1e-12)
    np.testing.assert_allclose(model.predict_proba(A).sum(axis=1), 1.0)


def test_regression_predicts_scores() -> None:
    np.testing.assert_allclose(MODELS["regression"].predict(A), (A @ W1)[:, 0], rtol=1e-12)


def test_classes_default_to_the_encoded_labels() -> None:
    assert set(Model(W1, "binary", "logistic").predict(A).tolist()) == {-1, 1}
    assert set(Model(W3, "multiclass", "softmax").predict(A).tolist()) <= {0, 1, 2, 3}


def test_the_intercept_is_added_by_prediction() -> None:
    model = MODELS["intercept"]
    np.testing.assert_allclose(model.decision_function(A)[:, 0], A @ W1[:, 0] * 0.96 + 0.5 * 0.28, rtol=1e-12)
    assert set(model.predict(A).tolist()) <= {0, 1}


def test_rows_are_clipped_if_training_clipped_them() -> None:
    long = 50.0 * A
    lengths = np.linalg.norm(long, axis=1, keepdims=True)
    expected = (long / np.maximum(lengths, 1.0)) @ W1
    np.testing.assert_allclose(MODELS["clipped"].decision_function(long), expected, rtol=1e-12)
    np.testing.assert_allclose(MODELS["plain"].decision_function(long), long @ W1, rtol=1e-12)


def test_sparse_and_float32_rows() -> None:
    for name in MODELS:
        with case(name):
            model = MODELS[name]
            usual = model.decision_function(A)
            np.testing.assert_allclose(model.decision_function(csr_array(A)), usual, rtol=1e-12)
            np.testing.assert_allclose(model.decision_function(A.astype(np.float32)), usual, atol=1e-6)
            if model.task != "regression":
                np.testing.assert_array_equal(model.predict(csr_array(A)), model.predict(A))


def test_wrong_shapes_are_refused() -> None:
    for shape in [(3,), (5, 2), (5, 4), (2, 3, 3)]:
        with (
            case(shape),
            pytest.raises(
                DataError, match=r"the model has 3 features, but the rows have shape|must have two dimensions"
            ),
        ):
            MODELS["binary"].predict(np.zeros(shape))


def test_no_probabilities_without_a_probability_model() -> None:
    for name in ("plain", "regression"):
        with pytest.raises(DataError, match="gives no probabilities"):
            MODELS[name].predict_proba(A)


# --- file --------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in MODELS:
        with case(name):
            tmp_path = tmp_path_factory.mktemp("case")
            model, path = MODELS[name], tmp_path / "some model.dpadmm"
            assert model.save(path) == path
            again = load_model(path)
            np.testing.assert_array_equal(again.weights, model.weights)
            for field in (
                "task",
                "loss",
                "classes",
                "intercept",
                "clip",
                "feature_names",
                "privacy",
                "version",
            ):
                assert getattr(again, field) == getattr(model, field), field
            np.testing.assert_array_equal(again.predict(A), model.predict(A))
            assert [entry.name for entry in tmp_path.iterdir()] == [path.name]  # and no .part


def test_numpy_values_are_saved_as_plain_ones(tmp_path: Path) -> None:
    classes = tuple(np.array(["x", "y"])), tuple(np.array([3, 5])), (np.True_, np.False_)
    for names in classes:
        Model(W1, "binary", "logistic", classes=names, privacy={"z": np.ones(2)}).save(tmp_path / "m")
        again = load_model(tmp_path / "m")
        assert again.classes == tuple(name.item() for name in names)
        assert again.privacy == {"z": [1.0, 1.0]}


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    MODELS["binary"].save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        MODELS["multiclass"].save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_model_that_cannot_be_stored_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot hold a object"):
        Model(W1, "binary", "logistic", privacy={"x": object()}).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_not_finite_is_not_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    for bad in [np.nan, np.inf, -np.inf]:
        with case(bad):
            tmp_path = tmp_path_factory.mktemp("case")
            weights = W1.copy()
            weights[1, 0] = bad
            model = Model(weights, "binary", "logistic", feature_names=("x", "y", "z"))
            with pytest.raises(DataError, match=r"m was not written: .*the model's weights are finite; train again"):
                model.save(tmp_path / "m")
            with pytest.raises(DataError, match="m was not written"):
                model.to_onnx(tmp_path / "m")
            with pytest.raises(DataError, match="no pipeline was made"):
                model.to_sklearn()
            assert not list(tmp_path.iterdir())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        load_model(tmp_path / "none")


def test_damaged_files_are_refused_or_harmless(tmp_path: Path) -> None:
    """A truncated file, or one with a changed byte, raises DataError or has the same numbers."""
    path = tmp_path / "model"
    MODELS["multiclass"].save(path)
    whole = path.read_bytes()
    for end in range(0, len(whole), 29):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match="damaged"):
            load_model(path)
    for place in range(len(whole)):
        for change in ((0xFF, 0x01)[place % 2],):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
            try:
                found = load_model(path)
            except DataError:
                continue
            np.testing.assert_array_equal(found.weights, W3)
            assert found.classes == ("a", "b", "c", "d")


def _write(path: Path, about: object, **arrays: object) -> Path:
    with path.open("wb") as file:
        np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    return path


GOOD = {
    "format": FORMAT, "task": "binary", "loss": "logistic", "classes": None, "intercept": False,
    "clip": False, "feature_names": [], "privacy": {}, "version": "0.1.0", "schema": None, "label": None, "study": {},
    "study_hash": "",
}  # fmt: skip


def _npy(values: object) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(values))
    return out.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("again", ["about.npy", "weights.npy"])
def test_a_file_with_a_duplicate_member_is_refused(tmp_path: Path, again: str) -> None:
    """Readers may use the first or the last member, so the checked model could differ from the used one."""
    parts = {"about.npy": _npy(json.dumps(GOOD)), "weights.npy": _npy(W1)}
    with zipfile.ZipFile(tmp_path / "m", "w") as archive:
        for name in (*parts, again):
            archive.writestr(name, parts[name])
    with pytest.raises(DataError, match=rf"m: '{again}' is in the file more than once; train again"):
        load_model(tmp_path / "m")


def test_a_file_with_an_unknown_member_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ["rows.csv", "weights", "Weights.npy", "noise.npy", "a/", "x" * 200]:
        with case(name):
            tmp_path = tmp_path_factory.mktemp("case")
            path = _write(tmp_path / "m", GOOD, weights=W1)
            load_model(path)
            with zipfile.ZipFile(path, "a") as archive:
                archive.writestr(name, _npy(W1))
            with pytest.raises(DataError, match="is not part of a model file; train again") as caught:
                load_model(path)
            assert name[:40] in str(caught.value)
            assert len(str(caught.value)) < len(str(path)) + 150


def encrypted(raw: bytes) -> bytes:
    """Return a ZIP archive whose members are marked as encrypted."""
    out = bytearray(raw)
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = out.find(mark)
        while start >= 0:
            out[start + place] |= 1
            start = out.find(mark, start + 1)
    return bytes(out)


def test_a_file_with_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "m", GOOD, weights=W1)
    path.write_bytes(encrypted(path.read_bytes()))
    with pytest.raises(DataError, match=r"'about\.npy' is encrypted, but model files are not; train again"):
        load_model(path)


def test_another_format_is_named(tmp_path: Path) -> None:
    for change, said in [
        ({"format": "dpadmm-model/9"}, "dpadmm-model/9"),
        ({"intercept": True, "intercept_value": 0.5}, "another constant column"),
    ]:
        path = _write(tmp_path / "m", GOOD | change, weights=W1)
        with pytest.raises(DataError, match=rf"{said}.*; use the version that wrote it"):
            load_model(path)


def test_files_with_an_invalid_model_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    for about, weights in [
        ({}, W1),
        ([], W1),
        ("text", W1),
        (GOOD | {"classes": 5}, W1),
        (GOOD, np.array(["text"])),
        (GOOD, np.array(1.0)),
        (GOOD, W1[:, 0]),
        (GOOD, np.zeros((2, 3, 1))),
        (GOOD, W3),
        (GOOD, np.full((3, 1), np.nan)),
        (GOOD | {"task": "guessing"}, W1),
        (GOOD | {"classes": ["one"]}, W1),
        (GOOD | {"task": "multiclass", "classes": ["a", "b"]}, W3),
    ]:
        with case(about, weights):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(DataError, match="not a model file of dpadmm, or damaged"):
                load_model(_write(tmp_path / "m", about, weights=weights))


def test_other_files_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", W1)
    np.savez(tmp_path / "archive.npz", other=W1)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_bytes(b"")
    np.savez(tmp_path / "pickle.npz", weights=np.array([{}], dtype=object), about=np.array("{}"))
    for name in ("array.npy", "archive.npz", "text", "empty", "pickle.npz", "."):
        with pytest.raises(DataError, match="not a model file of dpadmm, or damaged"):
            load_model(tmp_path / name)


def test_a_saved_model_predicts_in_another_process(tmp_path: Path) -> None:
    MODELS["binary"].save(tmp_path / "m")
    script = "import sys, numpy as np; from dpadmm import load_model; "
    script += "print(load_model(sys.argv[1]).predict(np.eye(3)).tolist())"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(MODELS["binary"].predict(np.eye(3)).tolist())


# --- models of studies -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Result, Path]:
    """A study that was run on 600 rows of 20 columns, and their file."""
    path = write_csv(tmp_path_factory.mktemp("table") / "t.csv", make_cells(600))
    study = make_study()
    table = encode_table(path, study.schema, study.label, by="site", intercept=True)  # type: ignore[arg-type]
    return study, run_study(study, table, seed=1), path


def test_a_study_s_model_contains_the_public_values(trained: tuple[Study, Result, Path], tmp_path: Path) -> None:
    study, result, table = trained
    made = model_of(result)
    again = load_model(made.save(tmp_path / "m.dpadmm"))
    assert (again.schema, again.label, again.version) == (study.schema, study.label, VERSION)
    assert again.study == json.loads(json.dumps(study.as_json()))
    assert again.study_hash == study.hash
    assert study_from(again.study).hash == study.hash
    assert again.privacy == result.privacy.to_dict()
    np.testing.assert_array_equal(again.predict_table(table), made.predict_table(table))


def test_scores_of_a_table_are_those_of_training(trained: tuple[Study, Result, Path]) -> None:
    _, result, table = trained
    model = model_of(result)
    own = np.asarray(result.rows.features @ result.weights)[:, 0]
    rows = np.empty(len(own))
    by_site = np.concatenate([np.arange(site, 600, 3) for site in range(3)])
    rows[by_site] = own
    expected = np.where(rows > 0.0, "ill", "well")
    np.testing.assert_array_equal(model.predict_table(table), expected)
    cells = {name: values for name, values in make_cells(600).items() if name != "outcome"}
    np.testing.assert_allclose(model.decision_function(cells)[:, 0], rows, rtol=1e-6)
    (batch,) = model.predict_batches(table, keep=["row name", "n0"])
    assert batch.kept.column("row name").to_pylist() == make_cells(600)["row name"]
    assert batch.probabilities is not None
    np.testing.assert_allclose(batch.probabilities.sum(axis=1), 1.0)


def test_numbers_are_predicted_in_the_label_s_units(tmp_path: Path) -> None:
    schema, label = Schema((Number("x", (0.0, 10.0)),)), Label("price", bounds=(100.0, 300.0))
    model = Model(np.array([[0.5]]), "regression", "squared", schema=schema, label=label, feature_names=("x",))
    (tmp_path / "t.csv").write_text("x\n0\n5\n10\n")
    expected = pytest.approx([150.0, 200.0, 250.0], rel=1e-6)
    assert model.predict_table(tmp_path / "t.csv").tolist() == expected
    again = load_model(model.save(tmp_path / "m"))
    assert again.predict({"x": [0.0, 5.0, 10.0]}).tolist() == expected


def test_a_model_without_a_schema_finds_its_columns_by_name(tmp_path: Path) -> None:
    model = Model(W1, "binary", "hinge", feature_names=("x", "y", "z"), clip=True)
    lines = ["z,other,x,y", *(f"{10 * z!r},text,{10 * x!r},{10 * y!r}" for x, y, z in A.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    np.testing.assert_array_equal(model.predict_table(tmp_path / "t.csv"), model.predict(10.0 * A))
    (tmp_path / "t.csv").write_text("x,y,z\n1,,1\n")
    with pytest.raises(DataError, match="rows 1 to 1: column 'y' has a missing or infinite cell"):
        model.predict_table(tmp_path / "t.csv")


def test_columns_that_look_like_identifiers_load(tmp_path: Path) -> None:
    schema = Schema((Number("device_id", (0.0, 9.0)),))
    model = Model(np.ones((1, 1)), "binary", "logistic", schema=schema, feature_names=schema.features)
    assert load_model(model.save(tmp_path / "m")).schema == schema


STUDY: dict[str, object] = {"format": "dpadmm-study/2", "name": "s"}
GOOD2 = GOOD | {"study": STUDY, "study_hash": hash_of(STUDY)}
COLUMN = {"name": "x", "kind": "number", "bounds": [0.0, 1.0]}
SCHEMA_3 = {"columns": [COLUMN | {"name": name} for name in "xyz"], "row_norm": None}


def test_valid_files(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for change in [
        {},
        {"schema": SCHEMA_3, "feature_names": ["x", "y", "z"]},
        {"label": {"column": "y", "classes": ["a", "b"]}, "classes": ["a", "b"]},
    ]:
        with case(change):
            tmp_path = tmp_path_factory.mktemp("case")
            load_model(_write(tmp_path / "m", GOOD2 | change, weights=W1))
            with pytest.raises(DataError, match=r"'history\.npy' is not part of a model file"):
                load_model(_write(tmp_path / "n", GOOD2 | change, weights=W1, history=np.zeros((2, 3, 1))))


def test_files_with_inconsistent_members_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    for change in [
        {"study": STUDY | {"name": "another"}},
        {"study": [1]},
        {"study_hash": None},
        {"version": 2},
        {"loss": ["logistic"]},
        {"feature_names": [1, 2, 3]},
        {"schema": SCHEMA_3},
        {"schema": SCHEMA_3, "feature_names": ["x", "y", "z"], "intercept": True},
        {"schema": {"columns": [COLUMN], "row_norm": None}, "feature_names": ["x"]},
        {"schema": {"columns": [{"kind": "number"}], "row_norm": None}},
        {"schema": {"columns": 5, "row_norm": None}},
        {"schema": {"columns": [COLUMN | {"bounds": [1.0, 0.0]}], "row_norm": None}},
        {"schema": 3},
        {"label": {"column": "y", "classes": ["a", "b"]}},
        {"label": {"column": "y", "classes": ["a", "b"], "more": 1}, "classes": ["a", "b"]},
        {"classes": [{"a": 1}, {"b": 2}]},
        {"classes": "ab"},
    ]:
        with case(change):
            tmp_path = tmp_path_factory.mktemp("case")
            path = _write(tmp_path / "m", GOOD2 | change, weights=W1)
            with pytest.raises(DataError, match="not a model file of dpadmm, or damaged"):
                load_model(path)


def test_a_covariance_of_another_model_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    tilted, wide = np.eye(3) + np.eye(3, k=1), np.eye(3, 4)
    tmp_path = tmp_path_factory.mktemp("case")
    assert (load_model(_write(tmp_path / "m", GOOD2, weights=W1, covariance=np.eye(3))).covariance == np.eye(3)).all()
    for wrong in [np.eye(4), np.ones(3), np.full((3, 3), np.nan), -np.eye(3), np.empty((0, 0)), tilted, wide]:
        with case(wrong), pytest.raises(DataError, match="not a model file of dpadmm, or damaged"):
            load_model(_write(tmp_path / "m", GOOD2, weights=W1, covariance=wrong))
    several = GOOD2 | {"task": "multiclass", "loss": "softmax", "classes": None}
    with pytest.raises(DataError, match="not a model file of dpadmm, or damaged"):
        load_model(_write(tmp_path / "m", several, weights=np.ones((3, 3)), covariance=np.eye(3)))


def test_files_with_large_declared_sizes_are_refused_before_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small archive of gigabytes of zeros, a huge declared array, deeply nested JSON."""
    with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as archive:
        about = io.BytesIO()
        np.save(about, np.array(json.dumps(GOOD)))
        archive.writestr("about.npy", about.getvalue())
        zeros = io.BytesIO()
        np.save(zeros, np.zeros((2**18, 1)))
        archive.writestr("weights.npy", zeros.getvalue())
    assert len(load_model(tmp_path / "bomb").weights) == 2**18
    monkeypatch.setattr(model_file, "MAX_BYTES", 2**20)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 1)})
    with zipfile.ZipFile(tmp_path / "huge", "w") as archive:
        archive.writestr("about.npy", about.getvalue())
        archive.writestr("weights.npy", header.getvalue())
    deep = np.array("[" * 100_000 + "]" * 100_000)
    np.savez(tmp_path / "deep.npz", about=deep, weights=W1)
    os.mkfifo(tmp_path / "pipe")
    for name in ("bomb", "huge", "deep.npz", "pipe"):
        with pytest.raises(DataError, match="not a model file of dpadmm, or damaged"):
            load_model(tmp_path / name)


def test_a_model_loads_and_predicts_without_compiler_and_engine(
    trained: tuple[Study, Result, Path], tmp_path: Path
) -> None:
    _, result, table = trained
    path = model_of(result).save(tmp_path / "m.dpadmm")
    program = """
import sys
for name in ("numba", "llvmlite", "dp_accounting", "matplotlib", "sklearn", "typer", "rich", "jinja2"):
    sys.modules[name] = None
import dpadmm
model = dpadmm.load_model(sys.argv[1])
found = model.predict_table(sys.argv[2])
print(len(found), (found == "ill").sum())
print(sorted(name for name in sys.modules if name in (
    "dpadmm.kernels", "dpadmm.methods", "dpadmm.engine.loop", "dpadmm.accounting",
    "dpadmm.training.simulate")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), str(table)], capture_output=True, text=True, check=True
    )
    expected = model_of(result).predict_table(table)
    assert done.stdout == f"600 {(expected == 'ill').sum()}\n[]\n"
