"""A trained linear model: predict, save, load.

Prediction imports neither the compiler nor any training code. A model file contains numbers and JSON, never code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import scipy  # submodules load on first use
from numpy.typing import NDArray

from dpadmm.data.cells import as_numbers, with_location
from dpadmm.data.encoder import Encoder
from dpadmm.data.reader import Table, column_names, is_table, open_batches, open_table
from dpadmm.data.schema import Label, Number, Plain, Schema, plain_schema
from dpadmm.errors import DataError
from dpadmm.files.atomic import StrPath
from dpadmm.losses.base import Task
from dpadmm.losses.poisson import LARGEST_SCORE
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT, as_matrix, clip_rows, with_intercept
from dpadmm.matrices.features import Features
from dpadmm.parameters.fields import hash_of
from dpadmm.parameters.suggestions import unknown_name
from dpadmm.rendering import Cell, Fact, Facts, Renderable, Rendering
from dpadmm.version import VERSION

if TYPE_CHECKING:
    from dpadmm.accounting.report import PrivacyReport
    from dpadmm.studies.study import Study

PROBABILITIES = ("logistic", "softmax")
"""Losses whose scores are log odds."""

MAX_CLASSES_IN_REPR = 4
"""Maximum number of classes for which ``repr`` lists the names."""


class Predicted(NamedTuple):
    """Predictions for a batch of rows, probabilities if the loss has them, and the columns to keep."""

    predictions: NDArray[Any]
    probabilities: Floats | None
    kept: Any


@dataclass(frozen=True, eq=False, repr=False)
class Model(Renderable):
    """A trained linear model, with the information needed to predict from raw tables.

    Use :func:`dpadmm.train`, :func:`dpadmm.simulate` or :func:`dpadmm.load_model` to obtain one.

    Attributes
    ----------
    weights : array of shape (n_features, n_outputs)
        Weights, one column per score, including the weight of the intercept.
    task : {"binary", "multiclass", "regression", "count"}
        Kind of label.
    loss : str
        Name of the loss used in training. Only logistic and softmax loss give probabilities.
    classes : tuple, optional
        Class labels: (negative, positive), or one per column of ``weights``.
    intercept : bool
        Whether the last weight is that of a constant column, which prediction adds.
    clip : bool
        Whether rows were clipped to an L2 norm of 1 in training. If so, prediction clips them as well.
    feature_names : tuple of str
        Names of the encoded features.
    privacy : mapping
        The privacy report of the run, as JSON values.
    schema, label : optional
        Columns and label of the study. With them the model accepts tables and predicts in the units of the label.
    study : mapping
        The study, as JSON values. Empty without a study.
    covariance : array of shape (n_features, n_features), optional
        Covariance of the weights, from sampling and privacy noise, if the study requested intervals (one score).
    hessian_snr : float
        Smallest eigenvalue of the released Hessian over the value that intervals require. Below 1 there are no
        intervals. 0 if no Hessian was released.
    version : str
        Version of dpadmm that trained the model.

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
    covariance: Floats | None = None
    hessian_snr: float = 0.0
    version: str = VERSION

    def __repr__(self) -> str:
        """One line: study, loss, features, classes and ε, as stored in the model file."""
        name = f"{_short(self.study['name'])!r}: " if self.study.get("name") else ""
        count = self.n_features
        features = f"{count:,} feature{'s' * (count != 1)}{' and a constant' * self.intercept}"
        classes, answers = self.class_names, f"predicts a {'rate' if self.task == 'count' else 'number'}"
        if classes:
            has_names = len(classes) <= MAX_CLASSES_IN_REPR
            answers = f"classes {', '.join(map(_short, classes))}" if has_names else f"{len(classes)} classes"
        return f"<Model {name}{self.loss}, {features}, {answers}, {_describe_privacy(self.privacy)}>"

    def rendering(self) -> Rendering:
        """Return study, loss, label and privacy loss, without coefficients (see :meth:`summary`)."""
        name = str(self.study.get("name", ""))
        label = self.label.column if self.label else None
        classes = [str(each) for each in self.class_names]
        facts = [
            Fact("study", "study" if name else None, name or None),
            Fact("study_hash", "study hash" if name else None, self.study_hash or None),
            Fact("label", "label" if label else None, label),
            Fact("classes", "classes" if classes else None, Cell(classes, ", ".join(map(_short, classes)))),
            Fact("task", "task", self.task),
            Fact("loss", "loss", self.loss),
            Fact("n_features", "features", self.n_features),
            Fact("intercept", "intercept", self.intercept),
            Fact("privacy", "privacy loss", Cell(dict(self.privacy), _describe_privacy(self.privacy))),
            Fact("intervals", "confidence intervals", self.covariance is not None),
            Fact("version", "trained with", self.version, "dpadmm {}".format),
        ]
        return Rendering(title=f"Model {name}".rstrip(), body=[Facts(facts)])

    @property
    def n_features(self) -> int:
        """Number of features of a row, without the intercept."""
        return len(self.weights) - self.intercept

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """Coefficients (n_outputs, n_features) and intercepts (n_outputs,) for a row ``a``.

        With an intercept, the row in training was ``[0.96·a, 0.28]``; both factors are included here.
        """
        if not self.intercept:
            return np.ascontiguousarray(self.weights.T), np.zeros(self.weights.shape[1])
        return np.ascontiguousarray(self.weights[:-1].T) * BESIDE_INTERCEPT, self.weights[-1] * INTERCEPT

    @property
    def label_units(self) -> tuple[float, float]:
        """(scale, shift) from scores in −1 … 1 to the units of the label."""
        if self.label is None or self.label.bounds is None:
            return 1.0, 0.0
        low, high = self.label.bounds
        return 0.5 * (high - low), 0.5 * (high + low)

    @property
    def study_hash(self) -> str:
        """SHA-256 of the study's canonical JSON, which identifies the study. Empty without a study."""
        return hash_of(self.study) if self.study else ""

    @property
    def log_rate(self) -> float:
        """Offset from the score to the logarithm of the rate per unit of exposure.

        Scores are for counts as a share of the largest count and for exposures as a share of the longest one.
        """
        return math.log(self.label.largest / self.label.longest) if self.task == "count" and self.label else 0.0

    def decision_function(self, rows: Any) -> Floats:
        """Return the scores ``wᵀa``.

        Parameters
        ----------
        rows : table or array of shape (n_rows, n_features)
            A table has the model's columns: a pandas or polars data frame, an Arrow table, or a mapping of columns.

        Returns
        -------
        array of shape (n_rows, n_outputs)
        """
        if is_table(rows):
            scorer = Scorer(self)
            scores = [scorer.scores(batch) for batch in open_batches(rows, scorer.columns, numbers=scorer.numbers)]
            if not scores:
                raise DataError("the table has no rows")
            return np.concatenate(scores)
        features: Features = as_matrix(rows)
        if features.shape[1] != self.n_features:
            raise DataError(f"the model has {self.n_features} features, but the rows have shape {features.shape}")
        if self.clip:
            features = clip_rows(features)
        if self.intercept:
            features = with_intercept(features)
        return np.asarray(features @ self.weights, dtype=float)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Predict the label of each row.

        Parameters
        ----------
        rows : table or array of shape (n_rows, n_features)
            See :meth:`decision_function`.

        Returns
        -------
        array of shape (n_rows,)
            Classes; numbers in the units of the label; rates per unit of exposure; or, for a label with times, the
            probability of an event up to the last time.
        """
        return self.answers(self.decision_function(rows))

    def predict_proba(self, rows: Any) -> Floats:
        """Return the probability of each class, of shape (n_rows, n_classes), in the order of ``class_names``.

        Raises
        ------
        DataError
            If the loss is neither logistic nor softmax.
        """
        if not self.has_probabilities:
            raise DataError(f"a model trained with {self.loss} loss gives no probabilities; use logistic or softmax")
        return self.probabilities(self.decision_function(rows))

    def predict_table(self, table: Table) -> NDArray[Any]:
        """Predict the label of each row of a table, which may be a file larger than memory."""
        return np.concatenate([batch.predictions for batch in self.predict_batches(table)])

    def predict_batches(
        self, table: Table, *, keep: Sequence[str] = (), scorer: Scorer | None = None
    ) -> Iterator[Predicted]:
        """Predict batch by batch for a table of any size.

        Parameters
        ----------
        table : path or table
            A file, a data frame or an Arrow table.
        keep : sequence of str
            Columns to return unchanged with the predictions.
        scorer : Scorer, optional
            Scorer of this model. Its ``report`` counts clamped, unknown and missing values.

        Yields
        ------
        Predicted
        """
        source = open_table(table)
        names = column_names(source) if keep else []
        for name in keep:
            if name not in names:  # columns of the model may be kept as well, so all are suggested
                raise unknown_name("column", name, names, source.location)
        for scores, kept in score_table(scorer or Scorer(self), source, keep=keep):
            probabilities = self.probabilities(scores) if self.has_probabilities else None
            yield Predicted(self.answers(scores), probabilities, kept)

    @property
    def has_probabilities(self) -> bool:
        """Whether the loss gives probabilities."""
        return self.loss in PROBABILITIES

    @property
    def class_names(self) -> tuple[Any, ...]:
        """The classes, or their codes if there are no names. Empty for numbers and counts."""
        if self.task in ("regression", "count"):
            return ()
        default = (-1, 1) if self.task == "binary" else tuple(range(self.weights.shape[1]))
        return self.classes or default

    def answers(self, scores: Floats) -> NDArray[Any]:
        """Convert scores (n_rows, n_outputs) to labels or numbers (n_rows,)."""
        if self.task == "count":
            rates = np.exp(np.minimum(scores, LARGEST_SCORE))
            if self.label is None or self.label.times is None:
                return np.asarray(rates[:, 0] * math.exp(self.log_rate))
            return np.asarray(-np.expm1(-rates @ np.diff([0.0, *self.label.cuts, 1.0])))
        if self.task == "regression":
            scale, shift = self.label_units
            return np.asarray(scores[:, 0] * scale + shift)
        chosen = (scores[:, 0] > 0.0).astype(int) if self.task == "binary" else scores.argmax(axis=1)
        return np.asarray(np.asarray(self.class_names)[chosen])

    def probabilities(self, scores: Floats) -> Floats:
        """Convert scores (n_rows, n_outputs) of logistic or softmax loss to probabilities (n_rows, n_classes)."""
        if self.task == "multiclass":
            return np.asarray(scipy.special.softmax(scores, axis=1))
        positive = scipy.special.expit(scores[:, 0])
        return np.column_stack([1.0 - positive, positive])

    def save(self, path: StrPath) -> Path:
        """Write the model to one file, atomically: a NumPy archive without pickle. Return the path."""
        from dpadmm.models.file import save_model

        return save_model(self, Path(path))

    def summary(self) -> str:
        """Return a text table of coefficients in the units of the columns.

        If the study requested intervals, the table has standard errors, p-values and confidence intervals.
        """
        from dpadmm.models.explain import explain

        return explain(self).summary([_describe_privacy(self.privacy)])

    def conf_int(self, level: float = 0.95) -> dict[str, tuple[float, float] | None]:
        """Return the confidence interval (low, high) of each coefficient, in the units of the columns.

        An interval is None if it is not available. The study must request intervals (``inference = true``).
        """
        from dpadmm.models.explain import explain

        return explain(self).conf_int(level)

    def to_frame(self) -> Any:
        """Return the coefficients in the units of the columns as a tidy pandas data frame."""
        from dpadmm.models.explain import explain

        return explain(self).to_frame()

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn pipeline with the same predictions; see ``dpadmm.models.export``."""
        from dpadmm.models.export import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, path: StrPath) -> Path:
        """Write an ONNX file with the same predictions from raw columns; see ``dpadmm.models.onnx``."""
        from dpadmm.models.onnx import to_onnx

        return to_onnx(self, Path(path))


class Finished(Protocol):
    """Result of the run of a study, in one process or across sites."""

    @property
    def study(self) -> Study: ...
    @property
    def method(self) -> Any: ...
    @property
    def broadcast(self) -> Floats: ...
    @property
    def weights(self) -> Floats: ...

    @property
    def privacy(self) -> PrivacyReport: ...


def model_of(result: Finished) -> Model:
    """Return the model of a study's run. It contains released values only."""
    study = result.study
    loss = study.problem.loss
    covariance = result.method.covariance(result.broadcast)
    return Model(
        weights=result.weights,
        task=loss.task,
        loss=loss.name,
        classes=study.classes,
        intercept=study.training.intercept,
        clip=study.schema is None,
        feature_names=study.features,
        privacy=result.privacy.to_dict(),
        schema=study.schema,
        label=study.label,
        study=study.as_json(),
        covariance=None if covariance is None else covariance.matrix,
        hessian_snr=0.0 if covariance is None else covariance.hessian_snr,
    )


def _describe_privacy(privacy: Mapping[str, Any]) -> str:
    if not privacy:
        return "privacy unknown"
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta")
    if not (isinstance(epsilon, int | float) and isinstance(delta, int | float)):
        return "not private"
    simulated = "" if str(privacy.get("noise", "")).startswith("exact") else ", simulated noise"
    return f"ε = {epsilon:.4g} at δ = {delta:g}{simulated}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


class Scorer:
    """Scores record batches. ``report`` counts clamped, unknown and missing values, for the owner of the rows."""

    def __init__(self, model: Model) -> None:
        if model.schema is None and not model.feature_names:
            raise DataError("the model has no column names, so it cannot predict from tables; pass a matrix")
        self._model = model
        schema = model.schema or plain_schema(model.feature_names)
        self.columns = [column.name for column in schema.columns]
        self.numbers = frozenset(c.name for c in schema.columns if isinstance(c, Number | Plain))
        self._encoder = Encoder(schema, intercept=model.intercept)
        self.report = self._encoder.report

    def scores(self, batch: Any) -> Floats:
        """Return the scores (n_rows, n_outputs) of a record batch with the model's columns."""
        model = self._model
        if model.schema is not None:
            return np.asarray(self._encoder.encode(batch) @ model.weights, dtype=float)
        cells = np.column_stack([as_numbers(batch.column(name), name) for name in self.columns])
        bad = np.flatnonzero(~np.isfinite(cells).all(axis=0))
        if len(bad):
            raise DataError(f"column {self.columns[bad[0]]!r} has a missing or infinite cell")
        self.report.rows += len(cells)
        return model.decision_function(cells)


def score_table(
    scorer: Scorer, table: Table, *, keep: Sequence[str] = (), numbers: frozenset[str] = frozenset()
) -> Iterator[tuple[Floats, Any]]:
    """Yield scores (n_rows, n_outputs) of a table of any size, in batches of a few megabytes.

    The columns to ``keep`` are returned unchanged with each batch. In a CSV they are text, except those in ``numbers``.
    """
    source = open_table(table)
    batches = open_batches(source, [*scorer.columns, *keep], numbers=scorer.numbers | numbers)
    with closing(batches):
        for batch in batches:
            first = scorer.report.rows
            try:
                scores = scorer.scores(batch)
            except DataError as error:
                raise with_location(error, source.location, first, batch.num_rows) from None
            yield scores, batch.select(list(keep))
    if not scorer.report.rows:
        raise DataError(f"{source.location} has no rows")
