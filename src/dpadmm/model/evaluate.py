"""How good a model is on a table: accuracy, loss, AUC, calibration, confusion; RMSE, MAE, R²; deviance of counts.

There is no noise on any of this: it tells about the rows of the table, which must be public or one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import DataError
from dpadmm._base.fields import parameters
from dpadmm.data.cells import NoNumber, as_numbers
from dpadmm.data.encoded import encode_labels_of
from dpadmm.data.encoder import Report
from dpadmm.data.schema import Label
from dpadmm.model.model import Model, Scorer, score_file
from dpadmm.optim.losses import LOSSES, Poisson
from dpadmm.optim.losses.poisson import LARGEST_SCORE, decoded

BINS = 10
NOT_TO_PUBLISH = (
    "These figures are computed without noise, so they can reveal single rows of this table, which must be "
    "public or your own; think before you publish them."
)


@dataclass(frozen=True)
class Bin:
    """A tenth of the rows, by predicted probability: its range, their number, mean probability, and truth."""

    low: float
    high: float
    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures by name (None where there is no such number).

    ``figures`` are accuracy, most_frequent_class, loss, auc, and of probabilities log_loss, brier (summed over
    more than two classes) and calibration_error; or rmse, mae, r2, loss; or, of counts, deviance (its mean), explained
    (the share of a constant rate's), observed and expected.
    ``confusion`` has rows by true class (down) and predicted class (across); it is empty for numbers.
    ``bins`` compare the probability of the positive class (of the likeliest one where there are more than
    two) with how often it was true.
    """

    n_rows: int
    figures: Mapping[str, float | None]
    classes: tuple[Any, ...]
    confusion: Integers
    bins: Sequence[Bin]
    report: Report

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.n_rows,
            **self.figures,
            "classes": list(self.classes),
            "confusion": self.confusion.tolist(),
            "calibration": [dict(vars(each)) for each in self.bins],
            "note": NOT_TO_PUBLISH,
        }


def evaluate(model: Model, path: Path, *, label: str | None = None) -> Evaluation:
    """Measure a model on a CSV or Parquet file with labels, which may be larger than memory.

    ``label`` names the column where the table calls it otherwise, or the model does not know it.
    """
    column = label or (model.label.column if model.label else None)
    if column is None:
        raise DataError("the model does not say which column it predicts; name it with --label")
    scorer = Scorer(model)
    if column in scorer.columns:
        raise DataError(f"column {column!r} is a feature of the model, so it cannot be the label")
    scores, truth = [], []
    exposure = model.label.exposure if model.label else None
    read = [column] if exposure is None else [column, exposure]
    numbers = frozenset(read if model.task in ("regression", "count") else [])
    for found, beside in score_file(scorer, path, beside=read, numbers=numbers):
        first = scorer.report.rows - len(found)
        exposures = None if exposure is None else beside.column(exposure)
        truth.append(_truth(model, beside.column(column), column, first, path, exposures))
        scores.append(found)
    return of_scores(model, np.concatenate(truth), np.concatenate(scores), scorer.report)


def of_scores(model: Model, truth: Floats, scores: Floats, report: Report | None = None) -> Evaluation:
    """Figures from the truth (codes of classes, or numbers in the label's units) and scores (rows, p)."""
    report = report or Report(rows=len(truth))
    classes = model.class_names
    if model.task == "count":
        return Evaluation(len(truth), _of_counts(model, truth, scores), (), np.empty((0, 0), int), (), report)
    if model.task == "regression":
        figures = _of_numbers(truth, np.asarray(model.answers(scores), float))
        labels = truth
        if model.label is not None and model.label.bounds is not None:  # −1 … 1, as the loss saw them
            low, high = model.label.bounds
            labels = (np.clip(truth, low, high) - low) / (high - low) * 2.0 - 1.0
        figures["loss"] = _mean_loss(model, labels, scores)
        return Evaluation(len(truth), figures, (), np.empty((0, 0), int), (), report)
    codes, n_classes = truth.astype(int), len(classes)
    chosen = (scores[:, 0] > 0.0).astype(int) if model.task == "binary" else scores.argmax(axis=1)
    confusion = np.bincount(codes * n_classes + chosen, minlength=n_classes**2).reshape(n_classes, n_classes)
    figures = {
        "accuracy": float(np.trace(confusion) / len(codes)),
        "most_frequent_class": float(confusion.sum(axis=1).max() / len(codes)),
        "loss": _mean_loss(model, 2.0 * truth - 1.0 if model.task == "binary" else truth, scores),
        "auc": mean_auc(codes, scores),
        **dict.fromkeys(("log_loss", "brier", "calibration_error")),
    }
    bins: list[Bin] = []
    if model.has_probabilities:
        chances = model.probabilities(scores)
        bins = reliability(chances, codes)
        figures["log_loss"] = figures["loss"]  # which is what models with probabilities are trained for
        squares = np.square(chances - np.eye(n_classes)[codes]).sum(axis=1)
        figures["brier"] = float(squares.mean() / (2.0 if n_classes == 2 else 1.0))
        figures["calibration_error"] = sum(bin.rows * abs(bin.predicted - bin.observed) for bin in bins) / len(codes)
    return Evaluation(len(codes), figures, classes, confusion, bins, report)


def auc(positive: Any, scores: Floats) -> float | None:
    """Chance that a positive row has a higher score than a negative one (ties count half)."""
    n = len(positive)
    n_positive = int(np.count_nonzero(positive))
    if n_positive in (0, n):
        return None
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(ties) - (ties - 1) / 2.0
    ranks = mean_rank[place][np.asarray(positive, bool)].sum()
    return float((ranks - n_positive * (n_positive + 1) / 2.0) / (n_positive * (n - n_positive)))


def mean_auc(codes: Integers, scores: Floats) -> float | None:
    """AUC; with several classes the mean over them of each against all others. None if a class is absent."""
    if scores.shape[1] == 1:
        return auc(codes == 1, scores[:, 0])
    chances = softmax(scores, axis=1)  # which rows of different lengths can be compared by
    each = [auc(codes == k, chances[:, k]) for k in range(scores.shape[1])]
    return None if None in each else float(np.mean([value for value in each if value is not None]))


def reliability(chances: Floats, codes: Integers) -> list[Bin]:
    """Bins of equal numbers of rows by predicted probability; equal ones stay together, so bins may be fewer."""
    if chances.shape[1] == 2:
        predicted, true = chances[:, 1], codes == 1
    else:
        predicted, true = chances.max(axis=1), codes == chances.argmax(axis=1)
    edges = np.quantile(predicted, np.linspace(0.0, 1.0, BINS + 1))
    place = np.searchsorted(edges[1:-1], predicted)
    rows = np.bincount(place, minlength=BINS)
    sums = np.bincount(place, weights=predicted, minlength=BINS)
    hits = np.bincount(place, weights=true, minlength=BINS)
    return [
        Bin(float(edges[k]), float(edges[k + 1]), int(rows[k]), float(sums[k] / rows[k]), float(hits[k] / rows[k]))
        for k in range(BINS)
        if rows[k]
    ]


def _of_numbers(truth: Floats, predicted: Floats) -> dict[str, float | None]:
    residuals = predicted - truth
    spread = float(((truth - truth.mean()) ** 2).sum())
    return {
        "rmse": float(np.sqrt((residuals**2).mean())),
        "mae": float(np.abs(residuals).mean()),
        "r2": 1.0 - float((residuals**2).sum()) / spread if spread > 0.0 else None,
    }


def _of_counts(model: Model, labels: Floats, scores: Floats) -> dict[str, float | None]:
    """Of labels as the loss wants them, in units of the counts."""
    label = model.label
    largest, loss = (label.largest, Poisson(cuts=label.cuts)) if label else (1.0, Poisson())
    (counts, _), (exposures, ends) = decoded(labels), loss.spent(labels)
    happened, expected = counts[:, None] * ends, exposures * np.exp(np.minimum(scores, LARGEST_SCORE))
    rates = np.maximum(happened.sum(axis=0), 1e-300) / np.maximum(exposures.sum(axis=0), 1e-300)
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
    """Mean loss as in training; None where the loss has a parameter that the model does not know."""
    known = model.study.get("loss", {"name": model.loss})
    if model.loss not in LOSSES or (parameters(LOSSES[model.loss]) and len(known) < 2):
        return None
    loss: Any = LOSSES[model.loss](**{name: value for name, value in known.items() if name != "name"})
    if loss.task == "multiclass":
        loss = replace(loss, n_outputs=scores.shape[1])
    return float(loss.value(labels, scores).mean())


def _truth(model: Model, cells: Any, column: str, first: int, path: Path, exposures: Any = None) -> Floats:
    """Codes of classes, numbers as they are, or counts as the loss wants them."""
    try:
        if model.task == "count":
            return encode_labels_of(
                replace(model.label or Label(column, plain=True), counts=True), cells, first, exposures
            )
        if model.task != "regression":
            # As a cell says it: 1, not 1.0
            classes = tuple(f"{c:g}" if isinstance(c, float) else str(c) for c in model.class_names)
            codes = encode_labels_of(Label(column, classes=classes), cells, first)
            return (codes + 1.0) / 2.0 if len(model.class_names) == 2 else codes
        numbers = as_numbers(cells, column)
        bad = np.flatnonzero(~np.isfinite(numbers))
        if len(bad):
            raise DataError(f"the label {column!r} of row {first + int(bad[0]) + 1} is missing")
        return numbers
    except NoNumber as error:
        raise DataError(f"{path}: {error.at(first)}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
