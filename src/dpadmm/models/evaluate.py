"""Evaluation of a model on a table: accuracy, loss, AUC, calibration, confusion; RMSE, MAE, R²; deviance of counts.

The metrics have no noise: the table must be public or one's own. For other tables, see
:mod:`dpadmm.models.private_evaluation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # submodules load on first use

from dpadmm.data.cells import RowError, as_numbers
from dpadmm.data.encoder import Report, Tally
from dpadmm.data.labels import LabelColumns, checked_labels
from dpadmm.data.reader import Table as AnyTable
from dpadmm.data.reader import TableSource, column_names, open_table
from dpadmm.data.schema import Label
from dpadmm.errors import DataError
from dpadmm.losses import LOSSES, Poisson
from dpadmm.losses.poisson import LARGEST_SCORE, decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.models.model import Model, Scorer, score_table
from dpadmm.parameters.fields import parameters
from dpadmm.rendering import Block, Column, Fact, Facts, Paragraph, Renderable, Rendering, Table
from dpadmm.rendering.formats import percent, short_names

N_BINS = 10
MAX_CONFUSION_CLASSES = 8
"""Number of classes up to which the confusion matrix is shown."""

CONFUSION_WIDTH = 40
"""Characters of all class names together from which the confusion matrix numbers its columns."""

CONTAINS_NO_NOISE = (
    "These metrics contain no noise and may reveal individual rows. Publish them only if the table is public."
)
METRICS = {
    "accuracy": "accuracy",
    "weighted_accuracy": "accuracy, weighted",
    "balanced_accuracy": "balanced accuracy (mean of the recalls)",
    "majority_class_accuracy": "majority-class accuracy",
    "positive_share": "share of the positive class",
    "auc": "AUC",
    "log_loss": "log-loss",
    "brier": "Brier score",
    "mean_probability": "mean predicted probability",
    "calibration_in_the_large": "calibration in the large (predicted − observed)",
    "calibration_slope": "calibration slope (1: calibrated, below 1: overconfident)",
    "calibration_error": "calibration error (ECE, 10 bins of equal numbers of rows)",
    "rmse": "root mean square error",
    "weighted_rmse": "root mean square error, weighted",
    "mae": "mean absolute error",
    "r2": "R²",
    "deviance": "mean deviance",
    "explained": "explained deviance (D²)",
    "observed": "observed events",
    "expected": "expected events",
    "loss": "mean loss, as in training",
}
"""Labels of metrics, in display order."""

RATES = ("accuracy", "weighted_accuracy", "balanced_accuracy", "majority_class_accuracy")
PROBABILITY_METRICS = ("log_loss", "brier", "calibration_error")


@dataclass(frozen=True)
class CalibrationBin:
    """A tenth of the rows by predicted probability: its range, number of rows, mean prediction and observed share."""

    low: float
    high: float
    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True, eq=False)
class Evaluation(Renderable):
    """Metrics of a model on a table.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    metrics : mapping
        Metrics by name (``METRICS``), None if undefined. The Brier score is the sum over the classes if there are more
        than two.
    classes : tuple
        Class names. Empty for numbers and counts.
    confusion : integer array of shape (n_classes, n_classes)
        Number of rows by true class (down) and predicted class (across). Empty for numbers and counts.
    bins : sequence of CalibrationBin
        Predicted and observed probability of the positive class, or of the most probable class of more than two.
    report : Report
        Counts of clamped, unknown and missing cells, for the owner of the table.
    source : str
        Name of the table.
    """

    n_rows: int
    metrics: Mapping[str, float | None]
    classes: tuple[Any, ...]
    confusion: Integers
    bins: Sequence[CalibrationBin]
    report: Report
    source: str = ""

    def rendering(self) -> Rendering:
        """Return metrics, calibration and confusion matrix."""
        names = [name for name in METRICS if name in self.metrics]
        hidden = ("loss",) if self.bins else PROBABILITY_METRICS  # with bins, the loss is the log-loss
        metrics = [
            Fact(
                name, None if name in hidden else METRICS[name], self.metrics[name], percent if name in RATES else None
            )
            for name in names
        ]
        body: list[Block] = [Facts(metrics)]
        body += [self._calibration()] if self.bins else []
        body += [self._confusion_table()] if 0 < len(self.classes) <= MAX_CONFUSION_CLASSES else []
        if never := self.never_predicted:
            alternative = "use the probabilities" if self.bins else "rank by the scores"
            text = f"Never predicted: {', '.join(never)}. Either {alternative} or train with class weights"
            body.append(Paragraph(f"{text} (docs/how-to/weights.md)."))
        return Rendering(
            title=f"Evaluation on {self.n_rows:,} rows{f' of {self.source}' if self.source else ''}",
            body=body,
            notes=[CONTAINS_NO_NOISE],
            data={
                "rows": self.n_rows,
                "classes": list(self.classes),
                "confusion": self.confusion.tolist(),
                **({} if self.bins else {"calibration": []}),
            },
        )

    @property
    def never_predicted(self) -> list[str]:
        """Classes of the table that are never predicted, which an accuracy does not show."""
        counts = self.confusion
        return [str(name) for k, name in enumerate(self.classes) if counts[k].any() and not counts[:, k].any()]

    def _calibration(self) -> Table:
        event = str(self.classes[-1]) if len(self.classes) == 2 else "the most probable class"
        columns = (
            Column("", f"probability of {event}"),
            Column("low"),
            Column("high"),
            Column("rows", "rows"),
            Column("predicted", "mean predicted", percent),
            Column("observed", "observed", percent),
        )
        rows = [
            (f"{each.low:.1%} to {each.high:.1%}", each.low, each.high, each.rows, each.predicted, each.observed)
            for each in self.bins
        ]
        return Table(columns, rows, key="calibration")

    def _confusion_table(self) -> Table:
        names = [str(name) for name in self.classes]
        short = short_names(names, CONFUSION_WIDTH // len(names))
        lines = names if short == names else [f"{number} = {name}" for number, name in zip(short, names, strict=True)]
        columns = [Column("", "true class, predicted as"), *(Column("", name) for name in short)]
        return Table(columns, [(line, *counts) for line, counts in zip(lines, self.confusion.tolist(), strict=True)])


def evaluate(model: Model, data: AnyTable, *, label: str | None = None) -> Evaluation:
    """Evaluate a model on a table with labels.

    This is the Python form of ``dpadmm evaluate``.

    Parameters
    ----------
    model : Model
        The model.
    data : path, data frame or Arrow table
        Table with the columns and the label of the model. A file may be larger than memory.
    label : str, optional
        The label column, if its name differs in this table or the model has none.
    """
    column = label or (model.label.column if model.label else None)
    if column is None:
        raise DataError("the model has no label column; name it with --label (in Python label=)")
    scorer = Scorer(model)
    if column in scorer.columns:
        raise DataError(f"column {column!r} is a feature of the model, so it cannot be the label")
    exposure = model.label.exposure if model.label else None
    source = open_table(data)
    weighting = _weighting(model, source)
    weight_column = None if weighting is None else weighting.weight
    keep = [name for name in (column, exposure, weight_column) if name is not None]
    numbers = {column, exposure} if model.task in ("regression", "count") else set()
    scores, labels, weights = [], [], []
    for batch_scores, kept in score_table(
        scorer, source, keep=keep, numbers=frozenset(name for name in (*numbers, weight_column) if name is not None)
    ):
        first = scorer.report.rows - len(batch_scores)
        exposures = None if exposure is None else kept.column(exposure)
        labels.append(_read_labels(model, kept.column(column), column, first, source.location, exposures))
        scores.append(batch_scores)
        if weighting is not None:
            cells = None if weight_column is None else kept.column(weight_column)
            columns = LabelColumns(weighting)
            batch_weights, issues = columns.weights(cells, labels[-1], Tally())
            try:
                columns.check(issues, kept.column(column))
            except RowError as error:
                raise DataError(f"{source.location}: {error.message(first)}") from None
            weights.append(batch_weights)
    row_weights = np.concatenate(weights) if weighting is not None else None
    result = evaluate_scores(model, np.concatenate(labels), np.concatenate(scores), scorer.report, row_weights)
    return replace(result, source=Path(str(source.location)).name)


def _weighting(model: Model, source: TableSource) -> Label | None:
    """Return the label whose weights apply; None if the model has none or the table lacks the weight column."""
    label = model.label
    if label is None or not label.weighted or model.task == "count":
        return None
    return label if label.weight is None or label.weight in column_names(source) else None


def evaluate_scores(
    model: Model, labels: Floats, scores: Floats, report: Report | None = None, row_weights: Floats | None = None
) -> Evaluation:
    """Evaluate scores (n_rows, n_outputs) against labels: codes of classes, or numbers in the units of the label.

    Row weights apply to the weighted accuracy and error only.
    """
    report = report or Report(rows=len(labels))
    no_confusion = np.empty((0, 0), int)
    if model.task == "count":
        return Evaluation(len(labels), _count_metrics(model, labels, scores), (), no_confusion, (), report)
    if model.task == "regression":
        metrics = _regression_metrics(model, labels, scores, row_weights)
        return Evaluation(len(labels), metrics, (), no_confusion, (), report)
    codes, n_classes = labels.astype(int), len(model.class_names)
    predicted = (scores[:, 0] > 0.0).astype(int) if model.task == "binary" else scores.argmax(axis=1)
    confusion = np.bincount(codes * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)
    metrics = {
        "accuracy": float(np.trace(confusion) / len(codes)),
        "majority_class_accuracy": float(confusion.sum(axis=1).max() / len(codes)),
        "loss": _mean_loss(model, 2.0 * labels - 1.0 if model.task == "binary" else labels, scores),
        "auc": mean_auc(codes, scores),
        **dict.fromkeys(PROBABILITY_METRICS),
    }
    if row_weights is not None and row_weights.any():
        metrics["weighted_accuracy"] = float(np.average(codes == predicted, weights=row_weights))
    if row_weights is not None and confusion.sum(axis=1).all():
        metrics["balanced_accuracy"] = float(np.mean(np.diag(confusion) / confusion.sum(axis=1)))
    bins: list[CalibrationBin] = []
    if model.has_probabilities:
        probabilities = model.probabilities(scores)
        bins = calibration_bins(probabilities, codes)
        metrics["log_loss"] = metrics["loss"]  # the training loss of models with probabilities
        squares = np.square(probabilities - np.eye(n_classes)[codes]).sum(axis=1)
        metrics["brier"] = float(squares.mean() / (2.0 if n_classes == 2 else 1.0))
        metrics["calibration_error"] = sum(bin.rows * abs(bin.predicted - bin.observed) for bin in bins) / len(codes)
    return Evaluation(len(codes), metrics, model.class_names, confusion, bins, report)


def auc(positive: Any, scores: Floats) -> float | None:
    """Return the probability that a positive row has a higher score than a negative one; ties count half."""
    n = len(positive)
    n_positive = int(np.count_nonzero(positive))
    if n_positive in (0, n):
        return None
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(ties) - (ties - 1) / 2.0
    ranks = mean_rank[place][np.asarray(positive, bool)].sum()
    return float((ranks - n_positive * (n_positive + 1) / 2.0) / (n_positive * (n - n_positive)))


def mean_auc(codes: Integers, scores: Floats) -> float | None:
    """Return the AUC, or with several classes the mean AUC of each against the rest. None if a class is absent."""
    if scores.shape[1] == 1:
        return auc(codes == 1, scores[:, 0])
    probabilities = scipy.special.softmax(scores, axis=1)  # comparable between rows of different norms
    by_class = [auc(codes == k, probabilities[:, k]) for k in range(scores.shape[1])]
    return None if None in by_class else float(np.mean([value for value in by_class if value is not None]))


def calibration_bins(probabilities: Floats, codes: Integers) -> list[CalibrationBin]:
    """Return bins of equal numbers of rows by predicted probability. Ties share a bin, so there may be fewer bins."""
    if probabilities.shape[1] == 2:
        predicted, is_true = probabilities[:, 1], codes == 1
    else:
        predicted, is_true = probabilities.max(axis=1), codes == probabilities.argmax(axis=1)
    edges = np.quantile(predicted, np.linspace(0.0, 1.0, N_BINS + 1))
    place = np.searchsorted(edges[1:-1], predicted)
    rows = np.bincount(place, minlength=N_BINS)
    sums = np.bincount(place, weights=predicted, minlength=N_BINS)
    hits = np.bincount(place, weights=is_true, minlength=N_BINS)
    return [
        CalibrationBin(
            float(edges[k]), float(edges[k + 1]), int(rows[k]), float(sums[k] / rows[k]), float(hits[k] / rows[k])
        )
        for k in range(N_BINS)
        if rows[k]
    ]


def _regression_metrics(
    model: Model, labels: Floats, scores: Floats, row_weights: Floats | None
) -> dict[str, float | None]:
    residuals = np.asarray(model.answers(scores), float) - labels
    variation = float(((labels - labels.mean()) ** 2).sum())
    metrics = {
        "rmse": float(np.sqrt((residuals**2).mean())),
        "mae": float(np.abs(residuals).mean()),
        "r2": 1.0 - float((residuals**2).sum()) / variation if variation > 0.0 else None,
    }
    if row_weights is not None and row_weights.any():
        metrics["weighted_rmse"] = math.sqrt(float(np.average(np.square(residuals), weights=row_weights)))
    if model.label is not None and model.label.bounds is not None:  # −1 … 1, as in training
        low, high = model.label.bounds
        labels = (np.clip(labels, low, high) - low) / (high - low) * 2.0 - 1.0
    metrics["loss"] = _mean_loss(model, labels, scores)
    return metrics


def _count_metrics(model: Model, labels: Floats, scores: Floats) -> dict[str, float | None]:
    """Return metrics in units of the counts, from labels in the encoding of the loss."""
    label = model.label
    largest, loss = (label.largest, Poisson(cuts=label.cuts)) if label else (1.0, Poisson())
    (counts, _), (exposures, ends) = decoded(labels), loss.spent(labels)
    events, expected = counts[:, None] * ends, exposures * np.exp(np.minimum(scores, LARGEST_SCORE))
    rates = np.maximum(events.sum(axis=0), 1e-300) / np.maximum(exposures.sum(axis=0), 1e-300)
    deviance, constant = (
        2.0 * largest * float(loss.value(labels, each).mean())
        for each in (scores, np.broadcast_to(np.log(rates), scores.shape))
    )
    return {
        "deviance": deviance,
        "explained": 1.0 - deviance / constant if constant > 0.0 else None,
        "observed": largest * float(counts.sum()),
        "expected": largest * float(expected.sum()),
    }


def _mean_loss(model: Model, labels: Floats, scores: Floats) -> float | None:
    """Return the mean loss as in training; None if the loss has a parameter that the model lacks."""
    settings = model.study.get("loss", {"name": model.loss})
    if model.loss not in LOSSES or (parameters(LOSSES[model.loss]) and len(settings) < 2):
        return None
    loss: Any = LOSSES[model.loss](**{name: value for name, value in settings.items() if name != "name"})
    if loss.task == "multiclass":
        loss = replace(loss, n_outputs=scores.shape[1])
    return float(loss.value(labels, scores).mean())


def _read_labels(model: Model, cells: Any, column: str, first: int, location: object, exposures: Any = None) -> Floats:
    """Return codes of classes, numbers in their units, or counts in the encoding of the loss."""
    try:
        if model.task == "count":
            return checked_labels(replace(model.label or Label(column, plain=True), counts=True), cells, exposures)
        if model.task != "regression":
            # Cells are text: 1, not 1.0
            classes = tuple(f"{c:g}" if isinstance(c, float) else str(c) for c in model.class_names)
            codes = checked_labels(Label(column, classes=classes), cells)
            return (codes + 1.0) / 2.0 if len(model.class_names) == 2 else codes
        numbers = as_numbers(cells, column)
        bad = np.flatnonzero(~np.isfinite(numbers))
        if len(bad):
            raise DataError(f"the label {column!r} of row {first + int(bad[0]) + 1} is missing")
        return numbers
    except RowError as error:
        raise DataError(f"{location}: {error.message(first)}") from None
    except DataError as error:
        raise DataError(f"{location}: {error}") from None
