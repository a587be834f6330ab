"""A model from its file, in this version or an earlier one; whatever else is in the file is refused."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import StudyError
from dpadmm.data.schema import Schema
from dpadmm.data.schema_file import label_from, schema_from
from dpadmm.model.file import BROKEN, FORMATS, damaged, read_model
from dpadmm.model.model import Model
from dpadmm.optim.features import BESIDE_INTERCEPT, INTERCEPT

FIRST_INTERCEPT = math.sqrt(0.5)
"""The constant column of models whose file does not name it."""


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model that :meth:`Model.save` wrote, in this version or an earlier one."""
    about, arrays = read_model(path)
    try:
        weights, history = arrays["weights"], arrays.get("history", np.empty((0, 0, 0)))
        _check_shapes(weights, about["task"], about["classes"], history)
        if about["intercept"]:
            constant = float(about.get("intercept_value", FIRST_INTERCEPT))
            weights, history = _rescaled(weights, constant), _rescaled(history, constant)
        known: dict[str, Any] = {
            "weights": weights,
            "task": about["task"],
            "loss": _text(about["loss"]),
            "classes": tuple(about["classes"]) if about["classes"] is not None else None,
            "intercept": bool(about["intercept"]),
            "clip": bool(about["clip"]),
            "feature_names": tuple(map(_text, about["feature_names"])),
            "privacy": _table(about["privacy"]),
            "version": "",
        }
        if about["format"] == FORMATS[0]:
            return Model(**known)
        model = Model(
            **known
            | {
                "schema": _schema(about["schema"]),
                "label": None if about["label"] is None else label_from(about["label"]),
                "study": _table(about["study"]),
                "statement": _table(about["statement"]),
                "history": history,
                "version": _text(about["version"]),
            }
        )
        _check_parts(model, about["study_hash"])
        return model
    except (*BROKEN, StudyError):
        raise damaged(path) from None


def _rescaled(weights: Floats, constant: float) -> Floats:
    """Weights for rows ``[√(1−c²)·a, c]`` with another constant c, for rows as they are made now."""
    if constant == INTERCEPT or weights.size == 0:
        return weights
    if not 0.0 < constant < 1.0:
        raise ValueError("no such constant")
    out = weights * (math.sqrt(1.0 - constant**2) / BESIDE_INTERCEPT)
    out[..., -1, :] = weights[..., -1, :] * (constant / INTERCEPT)
    return np.asarray(out)


def _schema(table: Any) -> Schema | None:
    if table is None:
        return None
    # Whether a name looks like an identifier was asked when the study was written
    return schema_from([{**column, "allow": True} for column in table["columns"]], table["row_norm"])


def _check_shapes(weights: Floats, task: str, classes: Sequence[Any] | None, history: Floats) -> None:
    """A ValueError where a file's parts do not make a model."""
    if weights.ndim != 2 or 0 in weights.shape or not np.isfinite(weights).all():
        raise ValueError("weights")
    n_outputs = weights.shape[1]
    n_classes = {"binary": 2, "multiclass": n_outputs, "regression": 0}[task]
    if (task != "multiclass" and n_outputs != 1) or (classes is not None and len(classes) != n_classes):
        raise ValueError("classes")
    if isinstance(classes, str) or not all(isinstance(each, str | int | float) for each in classes or ()):
        raise ValueError("classes")
    if history.size and (history.shape[1:] != weights.shape or not np.isfinite(history).all()):
        raise ValueError("history")


def _check_parts(model: Model, study_hash: object) -> None:
    """A ValueError where columns, label, study and weights are not of the same model."""
    if model.study_hash != study_hash:
        raise ValueError("study")
    if model.schema is not None:
        width = len(model.schema.features) + model.intercept
        if width != len(model.weights) or model.feature_names != model.schema.features:
            raise ValueError("schema")
    if model.label is not None and model.label.classes != model.classes:
        raise ValueError("label")


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("a table")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text")
    return value
