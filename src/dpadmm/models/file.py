"""Read and write model files: a NumPy archive of arrays and one JSON text, without pickle, written atomically.

A file may come from an untrusted source. Nothing in it is executed, and declared sizes are checked before memory is
allocated.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from warnings import catch_warnings
from zipfile import ZipInfo

import numpy as np

from dpadmm.data.schema import Label
from dpadmm.data.schema_file import label_as_json, label_from, schema_as_json, schema_from
from dpadmm.errors import DataError
from dpadmm.files.archives import BROKEN_ARCHIVE, check_claim
from dpadmm.files.atomic import StrPath, atomic_file
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.models.model import Model
from dpadmm.parameters.fields import for_json
from dpadmm.parameters.suggestions import first_of
from dpadmm.parameters.text import text_problems

FORMAT = "dpadmm-model/3"

MAX_BYTES = 2**30

MAX_TEXT = 1000
"""Maximum length of a string. The name of a feature of two columns contains up to four strings of a study."""

MAX_COVARIANCE_WEIGHTS = 1000
"""Maximum number of weights of a model with a covariance."""

BROKEN = (*BROKEN_ARCHIVE, KeyError, AttributeError)
"""Errors that NumPy, zipfile, JSON and the checks below raise for files that are not model files."""

T = TypeVar("T")
_HINT = "; train again or restore a copy"


def save_model(model: Model, path: Path) -> Path:
    """Write a model to one file, atomically. Raise DataError for values that :func:`load_model` rejects."""
    arrays = {"weights": model.weights}
    if model.covariance is not None:
        arrays["covariance"] = model.covariance
    require_finite(arrays, f"{path} was not written")
    about = {
        "format": FORMAT,
        "version": model.version,
        "task": model.task,
        "loss": model.loss,
        "classes": model.classes,
        "intercept": model.intercept,
        "intercept_value": INTERCEPT,
        "clip": model.clip,
        "clearance": model.hessian_snr,
        "feature_names": model.feature_names,
        "privacy": dict(model.privacy),
        "schema": None if model.schema is None else schema_as_json(model.schema),
        "label": None if model.label is None else label_as_json(model.label),
        "study": dict(model.study),
        "study_hash": model.study_hash,
    }
    require_texts(about, f"{path} was not written")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, about=np.array(json.dumps(for_json(about))), **arrays)
    with atomic_file(path) as out:
        out.write(buffer.getvalue())
    return path


def require_finite(arrays: Mapping[str, Floats], what: str) -> None:
    """Raise DataError if a number of the model is not finite, so that it could not predict."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise DataError(f"{what}: not all numbers of the model's {name} are finite; train again with smaller steps")


def require_texts(about: Mapping[str, Any], where: object) -> None:
    """Raise DataError for strings that are too long or not printable, because commands print them on a terminal."""
    if problems := text_problems(about, max_length=MAX_TEXT):
        raise DataError(f"{where}: {first_of(problems, 3, between='; ')}")


def load_model(path: StrPath) -> Model:
    """Read a model file written by :meth:`Model.save`.

    Parameters
    ----------
    path : path
        The file. It may come from an untrusted source: nothing in it is executed.

    Returns
    -------
    Model
        The model, with its privacy report and study.

    Raises
    ------
    DataError
        If the file is missing, damaged, or of an unknown format.
    """
    file = Path(path)
    try:
        return _model_from(*_read(file))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file") from None
    except BROKEN:
        raise DataError(f"{file}: not a model file of dpadmm, or damaged{_HINT}") from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return the JSON and the arrays of a file."""
    if path.exists() and (not path.is_file() or path.stat().st_size > MAX_BYTES):
        raise ValueError("not a regular file, or too large")
    raw = io.BytesIO(path.read_bytes())
    with catch_warnings(action="ignore"), np.load(raw, allow_pickle=False) as archive:
        members = archive.zip.infolist()
        if sum(member.file_size for member in members) > MAX_BYTES:
            raise ValueError("too large")
        _check_members(path, members)
        check_claim(archive.zip, "about.npy")
        text = str(archive["about"])
        if not text.isascii():  # as written by save_model; NumPy also reads invalid characters
            raise ValueError("not ASCII")
        about = json.loads(text)
        version = about["format"]
        if version != FORMAT:
            raise DataError(f"{path}: model format {version!r:.60} is not {FORMAT!r}; use the version that wrote it")
        require_texts(about, path)
        if about["intercept"] and about["intercept_value"] != INTERCEPT:
            raise DataError(f"{path}: the model has another constant column; use the version that wrote it")
        names = ["weights", "covariance"] if "covariance" in archive else ["weights"]
        expected = {f"{name}.npy" for name in ("about", *names)}
        for member in members:  # no hidden content
            if member.filename not in expected:
                raise DataError(f"{path}: {member.filename!r:.60} is not part of a model file{_HINT}")
        for name in names:
            check_claim(archive.zip, f"{name}.npy")
        arrays = {name: archive[name] for name in names}
    if any(array.dtype.kind not in "fiu" for array in arrays.values()):
        raise ValueError("not numbers")
    return about, {name: np.asarray(array, dtype=float) for name, array in arrays.items()}


def _check_members(path: Path, members: Sequence[ZipInfo]) -> None:
    """Raise DataError for encrypted members, and for duplicates, of which readers may use the first or the last."""
    names: set[str] = set()
    for member in members:
        if member.flag_bits & 1:
            raise DataError(f"{path}: {member.filename!r:.60} is encrypted, but model files are not{_HINT}")
        if member.filename in names:
            raise DataError(f"{path}: {member.filename!r:.60} is in the file more than once{_HINT}")
        names.add(member.filename)


def _model_from(about: dict[str, Any], arrays: dict[str, Floats]) -> Model:
    times = (about["label"] or {}).get("times") if about["task"] == "count" else None
    _check_shapes(arrays, about["task"], about["classes"], 1 if times is None else len(times))
    schema = about["schema"]
    if schema is not None:  # names that look like identifiers were checked when the study was written
        columns = [{**column, "allow": True} for column in schema["columns"]]
        schema = schema_from(columns, schema["row_norm"], schema.get("interactions", ()))
    model = Model(
        **arrays,
        task=about["task"],
        loss=_a(str, about["loss"]),
        classes=tuple(about["classes"]) if about["classes"] is not None else None,
        intercept=bool(about["intercept"]),
        clip=bool(about["clip"]),
        feature_names=tuple(_a(str, name) for name in about["feature_names"]),
        privacy=_a(dict, about["privacy"]),
        schema=schema,
        label=_label(about["label"], counts=about["task"] == "count"),
        study=_a(dict, about["study"]),
        hessian_snr=float(_a(float, about.get("clearance", 0.0))),
        version=_a(str, about["version"]),
    )
    if model.study_hash != about["study_hash"]:
        raise ValueError("study")
    if model.schema is not None:
        width = len(model.schema.features) + model.intercept
        if width != len(model.weights) or model.feature_names != model.schema.features:
            raise ValueError("schema")
    if model.label is not None and model.label.classes != model.classes:
        raise ValueError("label")
    return model


def _label(about: Any, *, counts: bool) -> Label | None:
    return None if about is None else replace(label_from(about), counts=counts)


def _check_shapes(arrays: Mapping[str, Floats], task: str, classes: Sequence[Any] | None, n_scores: int) -> None:
    """Raise ValueError if the shapes do not match. ``n_scores`` is the number of scores of a model without classes."""
    weights = arrays["weights"]
    if weights.ndim != 2 or 0 in weights.shape or not np.isfinite(weights).all():
        raise ValueError("weights")
    n_outputs = weights.shape[1]
    n_classes = {"binary": 2, "multiclass": n_outputs, "regression": 0, "count": 0}[task]
    if (task != "multiclass" and n_outputs != n_scores) or (classes is not None and len(classes) != n_classes):
        raise ValueError("classes")
    if isinstance(classes, str) or not all(isinstance(name, str | int | float) for name in classes or ()):
        raise ValueError("classes")
    if "covariance" in arrays:
        matrix, d = arrays["covariance"], len(weights) + n_scores - 1
        if n_outputs != n_scores or d > MAX_COVARIANCE_WEIGHTS or matrix.shape != (d, d):
            raise ValueError("covariance")
        if not np.isfinite(matrix).all() or (matrix != matrix.T).any() or (np.diag(matrix) < 0.0).any():
            raise ValueError("covariance")


def _a(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(kind.__name__)
    return value
