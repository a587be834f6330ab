"""A trained model: prediction, probabilities, and its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression

from dpadmm.errors import DataError
from dpadmm.model import FORMAT, Model, load_model

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


def test_binary_predictions_are_scikit_learns() -> None:
    labels = np.where(A[:, 0] > 0.0, "yes", "no")
    oracle = LogisticRegression(fit_intercept=False).fit(A, labels)
    model = Model(oracle.coef_.T, "binary", "logistic", classes=tuple(oracle.classes_))
    np.testing.assert_array_equal(model.predict(A), oracle.predict(A))
    np.testing.assert_allclose(model.predict_proba(A), oracle.predict_proba(A), rtol=1e-12)
    np.testing.assert_allclose(model.decision_function(A)[:, 0], oracle.decision_function(A), rtol=1e-12)


def test_multiclass_predictions_are_scikit_learns() -> None:
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


def test_the_intercept_is_added_here() -> None:
    model = MODELS["intercept"]
    np.testing.assert_allclose(
        model.decision_function(A)[:, 0], (A @ W1[:, 0] + 0.5) * np.sqrt(0.5), rtol=1e-12
    )
    assert set(model.predict(A).tolist()) <= {0, 1}


def test_long_rows_are_shortened_when_they_were_in_training() -> None:
    long = 50.0 * A
    lengths = np.linalg.norm(long, axis=1, keepdims=True)
    expected = (long / np.maximum(lengths, 1.0)) @ W1
    np.testing.assert_allclose(MODELS["clipped"].decision_function(long), expected, rtol=1e-12)
    np.testing.assert_allclose(MODELS["plain"].decision_function(long), long @ W1, rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_sparse_and_float32_rows(name: str) -> None:
    model = MODELS[name]
    usual = model.decision_function(A)
    np.testing.assert_allclose(model.decision_function(csr_array(A)), usual, rtol=1e-12)
    np.testing.assert_allclose(model.decision_function(A.astype(np.float32)), usual, atol=1e-6)
    if model.task != "regression":
        np.testing.assert_array_equal(model.predict(csr_array(A)), model.predict(A))


@pytest.mark.parametrize("shape", [(3,), (5, 2), (5, 4), (2, 3, 3)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        DataError, match=r"the model has 3 features, but the rows have shape|must have two dimensions"
    ):
        MODELS["binary"].predict(np.zeros(shape))


def test_no_probabilities_without_a_probability_model() -> None:
    for name in ("plain", "regression"):
        with pytest.raises(DataError, match="gives no probabilities"):
            MODELS[name].predict_proba(A)


# --- file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    model, path = MODELS[name], tmp_path / "some model.dpadmm"
    assert model.save(path) == path
    again = load_model(path)
    np.testing.assert_array_equal(again.weights, model.weights)
    for field in ("task", "loss", "classes", "intercept", "clip", "feature_names", "privacy"):
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


def test_a_failed_save_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot store object"):
        Model(W1, "binary", "logistic", privacy={"x": object()}).save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        load_model(tmp_path / "none")


def test_damaged_files_are_refused_or_harmless(tmp_path: Path) -> None:
    """Cut anywhere, or with any one byte changed, a file gives a DataError or the same numbers."""
    path = tmp_path / "model"
    MODELS["multiclass"].save(path)
    whole = path.read_bytes()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match="damaged"):
            load_model(path)
    for place in range(len(whole)):
        for change in (0xFF, 0x01):
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
    "clip": False, "feature_names": [], "privacy": {},
}  # fmt: skip


def test_another_format_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "m", GOOD | {"format": "dpadmm-model/9"}, weights=W1)
    with pytest.raises(DataError, match="dpadmm-model/9"):
        load_model(path)


@pytest.mark.parametrize(
    ("about", "weights"),
    [
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
    ],
)
def test_files_that_make_no_model_are_refused(tmp_path: Path, about: object, weights: object) -> None:
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
