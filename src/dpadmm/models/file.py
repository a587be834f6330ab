"""The file of a model: a NumPy archive of arrays and one JSON text, without pickle, whole or not at all.

A file may come from anywhere: nothing in it is run, and what it claims about its own size is checked before
it is believed.
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

FORMAT = "dpadmm-model/2"

MOST_BYTES = 2**30

MAX_TEXT = 1000
"""Characters of a string: a feature of two columns is named by up to four strings of a study."""

WIDEST_COVARIANCE = 1000
"""Weights of which a file may have a covariance."""

BROKEN = (*BROKEN_ARCHIVE, KeyError, AttributeError)
"""What NumPy, zipfile, JSON and the checks below raise for files that are none of ours."""

T = TypeVar("T")
_INSTEAD = "; train again or restore a copy"


def save_model(model: Model, path: Path) -> Path:
    """Write one file; it appears whole or not at all, and never with what :func:`load_model` rejects."""
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
        "clearance": model.clearance,
        "feature_names": model.feature_names,
        "privacy": dict(model.privacy),
        "schema": None if model.schema is None else schema_as_json(model.schema),
        "label": None if model.label is None else label_as_json(model.label),
        "study": dict(model.study),
        "study_hash": model.study_hash,
        "statement": dict(model.statement),
    }
    require_texts(about, f"{path} was not written")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, about=np.array(json.dumps(for_json(about))), **arrays)
    with atomic_file(path) as out:
        out.write(buffer.getvalue())
    return path


def require_finite(arrays: Mapping[str, Floats], what: str) -> None:
    """Refuse a model that training did not keep in bounds: it would answer any row with nonsense."""
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            raise DataError(f"{what}: not all numbers of the model's {name} are finite; train again with smaller steps")


def require_texts(about: Mapping[str, Any], where: object) -> None:
    """Reject names and other strings that are not printable: commands show them on a terminal."""
    if found := text_problems(about, max_length=MAX_TEXT):
        raise DataError(f"{where}: {first_of(found, 3, between='; ')}")


def load_model(path: StrPath) -> Model:
    """Read a model that :meth:`Model.save` wrote.

    Parameters
    ----------
    path : path
        The file; nothing in it is run.

    Returns
    -------
    Model
        It predicts, explains itself and says what it cost.

    Raises
    ------
    DataError
        The file is missing, damaged, or of a format that this version does not know.
    """
    file = Path(path)
    try:
        return _model_from(*_read(file))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file") from None
    except BROKEN:
        raise DataError(f"{file}: not a model file of dpadmm, or damaged{_INSTEAD}") from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Floats]]:
    """The JSON and the arrays of a file."""
    if path.exists() and (not path.is_file() or path.stat().st_size > MOST_BYTES):
        raise ValueError("no plain file of a fair size")
    raw = io.BytesIO(path.read_bytes())
    with catch_warnings(action="ignore"), np.load(raw, allow_pickle=False) as archive:
        members = archive.zip.infolist()
        if sum(each.file_size for each in members) > MOST_BYTES:
            raise ValueError("too large")
        _check_once(path, members)
        check_claim(archive.zip, "about.npy")
        text = str(archive["about"])
        if not text.isascii():  # as it is written; NumPy also reads characters that do not exist
            raise ValueError("not ASCII")
        about = json.loads(text)
        found = about["format"]
        if found != FORMAT:
            raise DataError(f"{path}: model format {found!r:.60} is not {FORMAT!r}; use the version that wrote it")
        require_texts(about, path)
        if about["intercept"] and about["intercept_value"] != INTERCEPT:
            raise DataError(f"{path}: the model has another constant column; use the version that wrote it")
        names = ["weights", "covariance"] if "covariance" in archive else ["weights"]
        known = {f"{name}.npy" for name in ("about", *names)}
        for each in members:  # nothing rides along that no reader looks at
            if each.filename not in known:
                raise DataError(f"{path}: {each.filename!r:.60} is in the file, which is no part of a model{_INSTEAD}")
        for name in names:
            check_claim(archive.zip, f"{name}.npy")
        arrays = {name: archive[name] for name in names}
    if any(each.dtype.kind not in "fiu" for each in arrays.values()):
        raise ValueError("not numbers")
    return about, {name: np.asarray(each, dtype=float) for name, each in arrays.items()}


def _check_once(path: Path, members: Sequence[ZipInfo]) -> None:
    """No part twice, of which readers may take the first or the last; nothing under a password."""
    seen: set[str] = set()
    for each in members:
        if each.flag_bits & 1:
            raise DataError(f"{path}: {each.filename!r:.60} is encrypted, as no model file is{_INSTEAD}")
        if each.filename in seen:
            raise DataError(f"{path}: {each.filename!r:.60} is in the file more than once{_INSTEAD}")
        seen.add(each.filename)


def _model_from(about: dict[str, Any], arrays: dict[str, Floats]) -> Model:
    times = (about["label"] or {}).get("times") if about["task"] == "count" else None
    _check_shapes(arrays, about["task"], about["classes"], 1 if times is None else len(times))
    schema = about["schema"]
    if schema is not None:  # whether a name looks like an identifier was asked when the study was written
        columns = [{**each, "allow": True} for each in schema["columns"]]
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
        statement=_a(dict, about["statement"]),
        clearance=float(_a(float, about.get("clearance", 0.0))),
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
    """A ValueError where a file's parts do not make a model; ``n_scores`` is how many it has without classes."""
    weights = arrays["weights"]
    if weights.ndim != 2 or 0 in weights.shape or not np.isfinite(weights).all():
        raise ValueError("weights")
    n_outputs = weights.shape[1]
    n_classes = {"binary": 2, "multiclass": n_outputs, "regression": 0, "count": 0}[task]
    if (task != "multiclass" and n_outputs != n_scores) or (classes is not None and len(classes) != n_classes):
        raise ValueError("classes")
    if isinstance(classes, str) or not all(isinstance(each, str | int | float) for each in classes or ()):
        raise ValueError("classes")
    if "covariance" in arrays:
        found, d = arrays["covariance"], len(weights) + n_scores - 1
        if n_outputs != n_scores or d > WIDEST_COVARIANCE or found.shape != (d, d) or not np.isfinite(found).all():
            raise ValueError("covariance")
        if (found != found.T).any() or (np.diag(found) < 0.0).any():
            raise ValueError("covariance")


def _a(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(kind.__name__)
    return value
