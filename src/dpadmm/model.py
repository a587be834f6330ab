"""A trained linear model: predict, save, load. The file holds numbers and JSON, never code."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpadmm.arrays import Features, Floats
from dpadmm.errors import DataError
from dpadmm.features import as_matrix, clip_rows, with_intercept
from dpadmm.files import atomic_file
from dpadmm.losses.base import Task

FORMAT = "dpadmm-model/1"


@dataclass(frozen=True)
class Model:
    """Weights and what is needed to use them.

    Attributes
    ----------
    weights : (d, p)
        One column per score.
    task : {"binary", "multiclass", "regression"}
    loss : str
        Name of the loss it was trained with; probabilities exist for logistic and softmax only.
    classes : tuple or None
        Labels in order: (negative, positive), or one per column.
    intercept : bool
        The last weight belongs to a constant column, which ``predict`` adds by itself.
    feature_names : tuple of str
    clip : bool
        Rows longer than 1 were shortened to 1 in training, and are here too.
    privacy : mapping
        The privacy report of the run, as JSON values.

    Examples
    --------
    >>> model = Model(np.array([[1.0], [-1.0]]), "binary", "logistic", classes=("no", "yes"))
    >>> model.predict(np.array([[0.9, 0.1], [0.1, 0.9]])).tolist()
    ['yes', 'no']
    """

    weights: Floats
    task: Task
    loss: str
    classes: tuple[Any, ...] | None = None
    intercept: bool = False
    clip: bool = False
    feature_names: tuple[str, ...] = ()
    privacy: Mapping[str, Any] = field(default_factory=dict)

    def decision_function(self, features: Features) -> Floats:
        """Scores ``wᵀa``: (rows, d) -> (rows, p)."""
        features = as_matrix(features)
        wanted = len(self.weights) - self.intercept
        if features.shape[1] != wanted:
            raise DataError(f"the model has {wanted} features, but the rows have shape {features.shape}")
        if self.clip:
            features = clip_rows(features)
        if self.intercept:
            features = with_intercept(features)
        return np.asarray(features @ self.weights, dtype=float)

    def predict(self, features: Features) -> NDArray[Any]:
        """Labels (in terms of ``classes``) or numbers: (rows, d) -> (rows,)."""
        scores = self.decision_function(features)
        if self.task == "regression":
            return np.asarray(scores[:, 0])
        chosen = (scores[:, 0] > 0.0).astype(int) if self.task == "binary" else scores.argmax(axis=1)
        return np.asarray(np.asarray(self._names())[chosen])

    def predict_proba(self, features: Features) -> Floats:
        """Probability of every class: (rows, d) -> (rows, classes)."""
        if self.loss not in ("logistic", "softmax"):
            raise DataError(
                f"a model trained with {self.loss} loss gives no probabilities; use logistic or softmax"
            )
        scores = self.decision_function(features)
        if self.task == "multiclass":
            return np.asarray(softmax(scores, axis=1))
        positive = expit(scores[:, 0])
        return np.column_stack([1.0 - positive, positive])

    def _names(self) -> tuple[Any, ...]:
        default = (-1, 1) if self.task == "binary" else tuple(range(self.weights.shape[1]))
        return self.classes or default

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file (NumPy archive without pickle); it appears whole or not at all."""
        about = {
            "format": FORMAT,
            "task": self.task,
            "loss": self.loss,
            "classes": self.classes,
            "intercept": self.intercept,
            "clip": self.clip,
            "feature_names": self.feature_names,
            "privacy": dict(self.privacy),
        }
        target = Path(path)
        buffer = io.BytesIO()
        np.savez(buffer, weights=self.weights, about=np.array(json.dumps(about, default=_plain)))
        with atomic_file(target) as out:
            out.write(buffer.getvalue())
        return target


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model that :meth:`Model.save` wrote."""
    try:
        with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as archive:
            about = json.loads(str(archive["about"]))
            weights = np.asarray(archive["weights"], dtype=float)
        if about["format"] != FORMAT:
            raise DataError(
                f"{path}: model format {about['format']!r} is not {FORMAT!r}; use the version that wrote it"
            )
        _check_shapes(weights, about["task"], about["classes"])
        return Model(
            weights=weights,
            task=about["task"],
            loss=about["loss"],
            classes=tuple(about["classes"]) if about["classes"] is not None else None,
            intercept=about["intercept"],
            clip=about["clip"],
            feature_names=tuple(about["feature_names"]),
            privacy=about["privacy"],
        )
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, ValueError, KeyError, TypeError, BadZipFile, EOFError, RuntimeError, SyntaxError):
        raise DataError(
            f"{path}: not a model file of dpadmm, or damaged; train again or restore a copy"
        ) from None


def _check_shapes(weights: Floats, task: str, classes: Sequence[Any] | None) -> None:
    """A ValueError where a file's parts do not make a model."""
    if weights.ndim != 2 or 0 in weights.shape or not np.isfinite(weights).all():
        raise ValueError("weights")
    n_outputs = weights.shape[1]
    n_classes = {"binary": 2, "multiclass": n_outputs, "regression": 0}[task]
    if (task != "multiclass" and n_outputs != 1) or (classes is not None and len(classes) != n_classes):
        raise ValueError("classes")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot store {type(value).__name__} in a model file")
