"""A trained linear model: predict, save, load. It needs neither the compiler nor anything that trains.

The file holds numbers and JSON, never code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpadmm.data.cells import as_numbers, placed
from dpadmm.data.encoded import plain_schema
from dpadmm.data.encoder import Encoder
from dpadmm.data.reader import column_names, open_batches
from dpadmm.data.schema import Label, Number, Plain, Schema
from dpadmm.errors import DataError
from dpadmm.files.atomic import StrPath
from dpadmm.losses.base import Task
from dpadmm.losses.poisson import LARGEST_SCORE
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT, as_matrix, clip_rows, with_intercept
from dpadmm.matrices.features import Features
from dpadmm.parameters.fields import hash_of
from dpadmm.parameters.suggestions import unknown_name
from dpadmm.version import VERSION

if TYPE_CHECKING:
    from dpadmm.accounting.report import PrivacyReport
    from dpadmm.accounting.statement import Statement
    from dpadmm.studies.study import Study

PROBABILITIES = ("logistic", "softmax")
"""Losses whose scores are log odds."""

MOST_CLASSES = 4
"""Classes that ``repr`` names."""


class Predicted(NamedTuple):
    """Some rows of a table: predictions, probabilities where there are any, and columns that were kept."""

    predictions: NDArray[Any]
    probabilities: Floats | None
    kept: Any


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """Weights (d, p), one column per score, and what is needed to use them.

    Attributes
    ----------
    loss : str
        Name of the loss it was trained with; probabilities exist for logistic and softmax only.
    classes : tuple or None
        Labels in order: (negative, positive), or one per column.
    intercept : bool
        The last weight belongs to a constant column, which ``predict`` adds by itself.
    clip : bool
        Rows longer than 1 were shortened to 1 in training, and are here too.
    schema, label : optional
        The columns and the label of the study: with them the model takes tables, and answers in the label's
        own units.
    privacy, study, statement : mapping
        The privacy report of the run, the study, and the privacy statement, as JSON values.
    covariance : (d, d), optional
        Of the weights, counting the sample and the privacy noise, where the study asked for intervals (one score).
    clearance : float
        The smallest eigenvalue of the released Hessian over what intervals need: below 1 there are none, and 0
        where no Hessian was released.
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
    covariance: Floats | None = None
    clearance: float = 0.0
    version: str = VERSION

    def __repr__(self) -> str:
        """One line: of what, for which answers, at which ε; whatever its file says of itself."""
        name = f"{_short(self.study['name'])!r}: " if self.study.get("name") else ""
        count = self.n_features
        features = f"{count:,} feature{'s' * (count != 1)}{' and a constant' * self.intercept}"
        classes, answers = self.class_names, f"predicts a {'rate' if self.task == 'count' else 'number'}"
        if classes:
            few = len(classes) <= MOST_CLASSES
            answers = f"classes {', '.join(map(_short, classes))}" if few else f"{len(classes)} classes"
        return f"<Model {name}{self.loss}, {features}, {answers}, {_promise(self.privacy)}>"

    @property
    def n_features(self) -> int:
        """Features of a row, without the constant column."""
        return len(self.weights) - self.intercept

    @property
    def coefficients(self) -> tuple[Floats, Floats]:
        """Coefficients (p, features) and constants (p,): with an intercept rows were ``[0.96·a, 0.28]``."""
        if not self.intercept:
            return np.ascontiguousarray(self.weights.T), np.zeros(self.weights.shape[1])
        return np.ascontiguousarray(self.weights[:-1].T) * BESIDE_INTERCEPT, self.weights[-1] * INTERCEPT

    @property
    def label_units(self) -> tuple[float, float]:
        """(scale, shift) from scores −1 … 1 to the label's units."""
        if self.label is None or self.label.bounds is None:
            return 1.0, 0.0
        low, high = self.label.bounds
        return 0.5 * (high - low), 0.5 * (high + low)

    @property
    def study_hash(self) -> str:
        """SHA-256 of the study's canonical JSON, by which agents know it; empty without a study."""
        return hash_of(self.study) if self.study else ""

    @property
    def log_rate(self) -> float:
        """What is added to the score of counts over the largest, for the logarithm of the rate of one exposure."""
        return math.log(self.label.largest / self.label.longest) if self.task == "count" and self.label else 0.0

    def decision_function(self, rows: Any) -> Floats:
        """Scores ``wᵀa``: (rows, p), of a table with the model's columns, or of (rows, d) features.

        A table is a pandas or polars data frame, an Arrow table, or a mapping of columns.
        """
        if is_table(rows):
            scorer = Scorer(self)
            batches = batches_of(rows, scorer.columns)
            if not any(each.num_rows for each in batches):
                raise DataError("the table has no rows")
            return np.concatenate([scorer.scores(each) for each in batches])
        features: Features = as_matrix(rows)
        if features.shape[1] != self.n_features:
            raise DataError(f"the model has {self.n_features} features, but the rows have shape {features.shape}")
        if self.clip:
            features = clip_rows(features)
        if self.intercept:
            features = with_intercept(features)
        return np.asarray(features @ self.weights, dtype=float)

    def predict(self, rows: Any) -> NDArray[Any]:
        """Labels (in terms of ``classes``), numbers (in the label's units) or rates (of one exposure): (rows,).

        With times: the probability of an event up to the last of them.
        """
        return self.answers(self.decision_function(rows))

    def predict_proba(self, rows: Any) -> Floats:
        """Probability of every class: (rows, classes)."""
        if not self.has_probabilities:
            raise DataError(f"a model trained with {self.loss} loss gives no probabilities; use logistic or softmax")
        return self.probabilities(self.decision_function(rows))

    def predict_table(self, path: StrPath) -> NDArray[Any]:
        """Predictions for all rows of a CSV or Parquet file, which may be larger than memory."""
        return np.concatenate([each.predictions for each in self.predict_batches(path)])

    def predict_batches(
        self, path: StrPath, *, keep: Sequence[str] = (), scorer: Scorer | None = None
    ) -> Iterator[Predicted]:
        """The same a few rows at a time, with probabilities and with the columns to ``keep`` as they are.

        A ``scorer`` of one's own counts what was clamped, unknown or missing.
        """
        names = column_names(Path(path)) if keep else []
        for name in keep:
            if name not in names:  # a column of the model may be kept too, so each is a suggestion
                raise unknown_name("column", name, names, Path(path))
        for scores, beside in score_file(scorer or Scorer(self), Path(path), beside=keep):
            chances = self.probabilities(scores) if self.has_probabilities else None
            yield Predicted(self.answers(scores), chances, beside)

    @property
    def has_probabilities(self) -> bool:
        return self.loss in PROBABILITIES

    @property
    def class_names(self) -> tuple[Any, ...]:
        """The classes, or the codes that stand for them; none for numbers."""
        if self.task in ("regression", "count"):
            return ()
        default = (-1, 1) if self.task == "binary" else tuple(range(self.weights.shape[1]))
        return self.classes or default

    def answers(self, scores: Floats) -> NDArray[Any]:
        """Scores (rows, p) -> labels or numbers (rows,)."""
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
        """Scores (rows, p) of logistic or softmax loss -> (rows, classes)."""
        if self.task == "multiclass":
            return np.asarray(softmax(scores, axis=1))
        positive = expit(scores[:, 0])
        return np.column_stack([1.0 - positive, positive])

    def save(self, path: StrPath) -> Path:
        """Write one file (NumPy archive without pickle); it appears whole or not at all."""
        from dpadmm.models.file import save_model

        return save_model(self, Path(path))

    def summary(self) -> str:
        """Coefficients in the columns' units, with standard errors, p-values and intervals, as a table of text."""
        from dpadmm.models.explain import explain

        return explain(self).summary([_promise(self.privacy)])

    def conf_int(self, level: float = 0.95) -> dict[str, tuple[float, float] | None]:
        """Ends of the confidence intervals, by coefficient, in the columns' units; where the study asked for them."""
        from dpadmm.models.explain import explain

        return explain(self).conf_int(level)

    def to_frame(self) -> Any:
        """Coefficients in the columns' units, as a tidy data frame of pandas."""
        from dpadmm.models.explain import explain

        return explain(self).to_frame()

    def to_sklearn(self) -> Any:
        """A fitted scikit-learn pipeline that predicts the same; see ``dpadmm.models.export``."""
        from dpadmm.models.export import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, path: StrPath) -> Path:
        """An ONNX file that predicts the same from raw columns; see ``dpadmm.models.onnx``."""
        from dpadmm.models.onnx import to_onnx

        return to_onnx(self, Path(path))


class Finished(Protocol):
    """What the run of a study leaves, in one process or across sites."""

    @property
    def study(self) -> Study: ...
    @property
    def method(self) -> Any: ...
    @property
    def broadcast(self) -> Floats: ...
    @property
    def weights(self) -> Floats: ...
    @property
    def inferred(self) -> tuple[float, Floats | None]: ...
    @property
    def privacy(self) -> PrivacyReport: ...
    @property
    def statement(self) -> Statement: ...


def model_of(result: Finished) -> Model:
    """The model of a study that was run: nothing of the rows is in it but what was released."""
    study = result.study
    loss = study.problem.loss
    return Model(
        weights=result.weights,
        task=loss.task,
        loss=loss.name,
        classes=study.classes,
        intercept=study.training.intercept,
        clip=study.schema is None,
        feature_names=study.features,
        privacy=result.privacy.as_json(),
        schema=study.schema,
        label=study.label,
        study=study.as_json(),
        statement=result.statement.as_json(),
        covariance=result.inferred[1],
        clearance=result.inferred[0],
    )


def _promise(privacy: Mapping[str, Any]) -> str:
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
    """Scores record batches; ``report`` counts what was clamped, unknown or missing, for the owner."""

    def __init__(self, model: Model) -> None:
        if model.schema is None and not model.feature_names:
            raise DataError("the model does not know the names of its columns, so it can predict on matrices only")
        self._model = model
        schema = model.schema or plain_schema(model.feature_names)
        self.columns = [column.name for column in schema.columns]
        self.numbers = frozenset(c.name for c in schema.columns if isinstance(c, Number | Plain))
        self._encoder = Encoder(schema, intercept=model.intercept)
        self.report = self._encoder.report

    def scores(self, batch: Any) -> Floats:
        """A record batch with the model's columns -> (rows, p)."""
        model = self._model
        if model.schema is not None:
            return np.asarray(self._encoder.encode(batch) @ model.weights, dtype=float)
        cells = np.column_stack([as_numbers(batch.column(name), name) for name in self.columns])
        bad = np.flatnonzero(~np.isfinite(cells).all(axis=0))
        if len(bad):
            raise DataError(f"column {self.columns[bad[0]]!r} has a missing or infinite cell")
        self.report.rows += len(cells)
        return model.decision_function(cells)


def score_file(
    scorer: Scorer, path: Path, *, beside: Sequence[str] = (), numbers: frozenset[str] = frozenset()
) -> Iterator[tuple[Floats, Any]]:
    """Scores (rows, p) of a CSV or Parquet file of any size, a few megabytes at a time.

    The columns ``beside`` come along as they are: text in a CSV, unless they are among ``numbers``.
    """
    batches = open_batches(path, [*scorer.columns, *beside], numbers=scorer.numbers | numbers)
    with closing(batches):  # type: ignore[type-var]  # a generator
        for batch in batches:
            first = scorer.report.rows
            try:
                scores = scorer.scores(batch)
            except DataError as error:
                raise placed(error, path, first, batch.num_rows) from None
            yield scores, batch.select(list(beside))
    if not scorer.report.rows:
        raise DataError(f"{path} has no rows")


def is_table(rows: object) -> bool:
    """Whether rows have named columns: a data frame, an Arrow table, or a mapping of columns."""
    return isinstance(rows, Mapping | pa.Table | pa.RecordBatch) or hasattr(rows, "columns")


def batches_of(table: Any, names: Sequence[str]) -> list[Any]:
    """Record batches with these columns, from pandas, polars, pyarrow or a mapping of columns."""
    is_arrow = isinstance(table, pa.Table | pa.RecordBatch)
    known = list(table.schema.names if is_arrow else table if isinstance(table, Mapping) else table.columns)
    for name in names:
        if name not in known:
            raise unknown_name("column", name, [str(each) for each in known], "the table", used=names)
        if known.count(name) > 1:
            raise DataError(f"the table: column {name!r} occurs more than once")
    if is_arrow:
        chosen = table.select(list(names))
    elif hasattr(table, "to_arrow"):  # polars
        chosen = table.select(list(names)).to_arrow()
    else:
        chosen = pa.table({name: _array(table[name], name) for name in names})
    whole = chosen.combine_chunks() if isinstance(chosen, pa.Table) else chosen
    return whole.to_batches() if isinstance(whole, pa.Table) else [whole]


def _array(cells: Any, name: str) -> Any:
    try:
        made = pa.array(cells, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise DataError(f"column {name!r} mixes kinds of values, or they are no plain values") from None
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
