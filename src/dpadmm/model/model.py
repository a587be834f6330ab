"""A trained linear model: predict, save, load. It needs neither the compiler nor anything that trains.

The file holds numbers and JSON, never code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpadmm._base.arrays import Features, Floats
from dpadmm._base.errors import DataError
from dpadmm.data.schema import Label, Schema
from dpadmm.data.schema_file import label_as_json, schema_as_json
from dpadmm.model.coefficients import units
from dpadmm.model.file import FORMAT as FORMAT
from dpadmm.model.file import write_model
from dpadmm.model.line import in_a_line
from dpadmm.model.tables import Scorer, batches_of, is_table, score_file
from dpadmm.optim.features import INTERCEPT, as_matrix, clip_rows, with_intercept
from dpadmm.optim.losses.base import Task
from dpadmm.version import VERSION

if TYPE_CHECKING:
    from dpadmm.privacy.report import PrivacyReport
    from dpadmm.privacy.statement import Statement
    from dpadmm.study.study import Study

PROBABILITIES = ("logistic", "softmax")
"""Losses whose scores are log odds."""


class Predicted(NamedTuple):
    """Some rows of a table: predictions, probabilities where there are any, and columns that were kept."""

    predictions: NDArray[Any]
    probabilities: Floats | None
    kept: Any


@dataclass(frozen=True, eq=False, repr=False)
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
    clip : bool
        Rows longer than 1 were shortened to 1 in training, and are here too.
    feature_names : tuple of str
    privacy : mapping
        The privacy report of the run, as JSON values.
    schema, label : optional
        The columns and the label of the study: with them the model takes tables, and answers in the label's
        own units.
    study, statement : mapping
        The study, and the privacy statement of the run, as JSON values.
    history : (t + 1, d, p)
        The public consensus of every round; empty where it was not kept.
    version : str
        The dpadmm that made it.

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
    schema: Schema | None = None
    label: Label | None = None
    study: Mapping[str, Any] = field(default_factory=dict)
    statement: Mapping[str, Any] = field(default_factory=dict)
    history: Floats = field(default_factory=lambda: np.empty((0, 0, 0)))
    version: str = VERSION

    def __repr__(self) -> str:
        return in_a_line(self)

    @property
    def study_hash(self) -> str:
        """SHA-256 of the study's canonical JSON, by which agents know it; empty without a study."""
        return hash_of(self.study) if self.study else ""

    def decision_function(self, rows: Any) -> Floats:
        """Scores ``wᵀa``: (rows, p), of a table with the model's columns, or of (rows, d) features.

        A table is a pandas or polars data frame, an Arrow table, or a mapping of columns.
        """
        if is_table(rows):
            scorer = Scorer(self)
            return np.concatenate([scorer.scores(each) for each in _some(batches_of(rows, scorer.columns))])
        features: Features = as_matrix(rows)
        wanted = len(self.weights) - self.intercept
        if features.shape[1] != wanted:
            raise DataError(f"the model has {wanted} features, but the rows have shape {features.shape}")
        if self.clip:
            features = clip_rows(features)
        if self.intercept:
            features = with_intercept(features)
        return np.asarray(features @ self.weights, dtype=float)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Labels (in terms of ``classes``) or numbers (in the label's units): (rows,)."""
        return self.answers(self.decision_function(rows))

    def predict_proba(self, rows: Any) -> Floats:
        """Probability of every class: (rows, classes)."""
        if not self.has_probabilities:
            raise DataError(
                f"a model trained with {self.loss} loss gives no probabilities; use logistic or softmax"
            )
        return self.probabilities(self.decision_function(rows))

    def predict_table(self, path: str | os.PathLike[str]) -> NDArray[Any]:
        """Predictions for all rows of a CSV or Parquet file, which may be larger than memory."""
        return np.concatenate([each.predictions for each in self.predict_batches(path)])

    def predict_batches(
        self, path: str | os.PathLike[str], *, keep: Sequence[str] = (), scorer: Scorer | None = None
    ) -> Iterator[Predicted]:
        """The same a few rows at a time, with probabilities and with the columns to ``keep`` as they are.

        A ``scorer`` of one's own counts what was clamped, unknown or missing.
        """
        for scores, beside in score_file(scorer or Scorer(self), Path(path), beside=keep):
            chances = self.probabilities(scores) if self.has_probabilities else None
            yield Predicted(self.answers(scores), chances, beside)

    @property
    def has_probabilities(self) -> bool:
        return self.loss in PROBABILITIES

    @property
    def class_names(self) -> tuple[Any, ...]:
        """The classes, or the codes that stand for them; none for numbers."""
        if self.task == "regression":
            return ()
        default = (-1, 1) if self.task == "binary" else tuple(range(self.weights.shape[1]))
        return self.classes or default

    def answers(self, scores: Floats) -> NDArray[Any]:
        """Scores (rows, p) -> labels or numbers (rows,)."""
        if self.task == "regression":
            scale, shift = units(self)
            return np.asarray(scores[:, 0] * scale + shift)
        chosen = (scores[:, 0] > 0.0).astype(int) if self.task == "binary" else scores.argmax(axis=1)
        return np.asarray(np.asarray(self.class_names)[chosen])

    def probabilities(self, scores: Floats) -> Floats:
        """Scores (rows, p) of logistic or softmax loss -> (rows, classes)."""
        if self.task == "multiclass":
            return np.asarray(softmax(scores, axis=1))
        positive = expit(scores[:, 0])
        return np.column_stack([1.0 - positive, positive])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one file (NumPy archive without pickle); it appears whole or not at all."""
        about = {
            "version": self.version,
            "task": self.task,
            "loss": self.loss,
            "classes": self.classes,
            "intercept": self.intercept,
            "intercept_value": INTERCEPT,
            "clip": self.clip,
            "feature_names": self.feature_names,
            "privacy": dict(self.privacy),
            "schema": None if self.schema is None else schema_as_json(self.schema),
            "label": None if self.label is None else label_as_json(self.label),
            "study": dict(self.study),
            "study_hash": self.study_hash,
            "statement": dict(self.statement),
        }
        return write_model(path, about, {"weights": self.weights, "history": self.history})

    def to_sklearn(self) -> Any:
        """A fitted scikit-learn pipeline that predicts the same; see :mod:`dpadmm.model.export`."""
        from dpadmm.model.export import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, path: str | os.PathLike[str]) -> Path:
        """An ONNX file that predicts the same from raw columns; see :mod:`dpadmm.model.onnx`."""
        from dpadmm.model.onnx import to_onnx

        return to_onnx(self, Path(path))


class Trained(Protocol):
    """What a run leaves, in one process or across sites."""

    @property
    def study(self) -> Study: ...
    @property
    def weights(self) -> Floats: ...
    @property
    def history(self) -> Floats: ...
    @property
    def privacy(self) -> PrivacyReport: ...
    @property
    def statement(self) -> Statement: ...


def model_of(result: Trained) -> Model:
    """The model of a study that was run: nothing of the rows is in it but what was released."""
    study = result.study
    loss = study.problem.loss
    return Model(
        weights=result.weights,
        task=loss.task,
        loss=loss.name,
        classes=study.classes,
        intercept=study.settings.intercept,
        clip=study.schema is None,
        feature_names=study.features,
        privacy=result.privacy.as_json(),
        schema=study.schema,
        label=study.label,
        study=study.as_json(),
        statement=result.statement.as_json(),
        history=result.history,
    )


def hash_of(study: Mapping[str, Any]) -> str:
    """The hash of a study, from its JSON; as ``Study.hash``, which needs all that trains."""
    text = json.dumps(study, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(text.encode("ascii")).hexdigest()


def _some(batches: list[Any]) -> list[Any]:
    if not any(each.num_rows for each in batches):
        raise DataError("the table has no rows")
    return batches
