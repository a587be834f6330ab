"""How good a model is on a table: accuracy, loss, AUC, calibration, confusion; RMSE, MAE, R²; deviance of counts.

There is no noise on any of this: it tells about the rows of the table, which must be public or one's own. A
:class:`PrivateEvaluation` is what an evaluation study released of them, with noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, softmax

from dpadmm.accounting.report import privacy_sentence
from dpadmm.data.cells import RowError, as_numbers
from dpadmm.data.encoder import Report, Tally
from dpadmm.data.labels import LabelColumns, checked_labels
from dpadmm.data.reader import column_names
from dpadmm.data.schema import Label
from dpadmm.errors import DataError
from dpadmm.losses import LOSSES, Poisson
from dpadmm.losses.poisson import LARGEST_SCORE, decoded
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods import EvaluationRelease as EvaluationRelease
from dpadmm.models.description import released_by
from dpadmm.models.model import PROBABILITIES, Finished, Model, Scorer, score_file
from dpadmm.parameters.fields import parameters
from dpadmm.queries.score_histogram import EDGES
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study

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
    scores, truth, weights = [], [], []
    exposure = model.label.exposure if model.label else None
    read = [column] if exposure is None else [column, exposure]
    numbers = frozenset(read if model.task in ("regression", "count") else [])
    weighed = _weighed(model, path)
    if weighed is not None and weighed.weight is not None:
        read, numbers = [*read, weighed.weight], numbers | {weighed.weight}
    for found, beside in score_file(scorer, path, keep=read, numbers=numbers):
        first = scorer.report.rows - len(found)
        exposures = None if exposure is None else beside.column(exposure)
        truth.append(_truth(model, beside.column(column), column, first, path, exposures))
        scores.append(found)
        if weighed is not None:
            cells = None if weighed.weight is None else beside.column(weighed.weight)
            columns = LabelColumns(weighed)
            given, issues = columns.weights(cells, truth[-1], Tally())
            try:
                columns.check(issues, beside.column(column))
            except RowError as error:
                raise DataError(f"{path}: {error.message(first)}") from None
            weights.append(given)
    row_weights = np.concatenate(weights) if weighed is not None else None
    return of_scores(model, np.concatenate(truth), np.concatenate(scores), scorer.report, row_weights)


def _weighed(model: Model, path: Path) -> Label | None:
    """The label whose weights figures are shown for, too; None if the model has none, or the table lacks the column."""
    label = model.label
    if label is None or not label.weighted or model.task == "count":
        return None
    return label if label.weight is None or label.weight in column_names(path) else None


def of_scores(
    model: Model, truth: Floats, scores: Floats, report: Report | None = None, row_weights: Floats | None = None
) -> Evaluation:
    """Figures from the truth (codes of classes, or numbers in the label's units) and scores (rows, p).

    Every row counts once, but in the weighted accuracy and error.
    """
    report = report or Report(rows=len(truth))
    classes = model.class_names
    if model.task == "count":
        return Evaluation(len(truth), _of_counts(model, truth, scores), (), np.empty((0, 0), int), (), report)
    if model.task == "regression":
        figures = _of_numbers(truth, np.asarray(model.answers(scores), float))
        if row_weights is not None and row_weights.any():
            squares = np.square(truth - np.asarray(model.answers(scores), float))
            figures["weighted_rmse"] = math.sqrt(float(np.average(squares, weights=row_weights)))
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
    if row_weights is not None and row_weights.any():
        figures["weighted_accuracy"] = float(np.average(codes == chosen, weights=row_weights))
    if row_weights is not None and confusion.sum(axis=1).all():
        figures["balanced_accuracy"] = float(np.mean(np.diag(confusion) / confusion.sum(axis=1)))
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


def evaluation_study(model: Model, name: str, **budget: Any) -> Study:
    """The study that evaluates a model: its columns, label and weights, and a budget (``epsilon``, ``delta``)."""
    if model.task != "binary":
        raise DataError(f"evaluation under privacy is for models of two classes, and this one is for {model.task}")
    if model.schema is None and not model.feature_names:
        raise DataError("the model does not know the names of its columns, so that no site could read them")
    # Rows count once each, as the histogram counts them
    rows: dict[str, Any] = {"schema": model.schema, "label": model.label and model.label.unweighted}
    if model.schema is None or model.label is None:
        rows = {"features": model.feature_names, "classes": model.classes}
    method = EvaluationRelease(weights=tuple(model.weights[:, 0].tolist()))
    training = Training(loss=model.loss, method=method, intercept=model.intercept, **budget)
    return Study(name=name, training=training, **rows)


ENDS = np.array([EDGES[0] - 0.5, *EDGES, EDGES[-1] + 0.5])
"""Of the bins, as if the open ones were as wide as the others."""

MIDDLES = 0.5 * (ENDS[1:] + ENDS[:-1])
"""Scores that stand for the bins."""


def _within(yes: Floats, no: Floats) -> Floats:
    """Means over every bin, for rows of either class (2, bins), where a calibrated model has as many of all scores.

    They are integrals of a function times p, over that of p, for the second class, and times 1 − p for the first.
    A row of the second class is rather at the upper end of its bin, so that its middle would be too pessimistic.
    """
    chances = np.diff(np.logaddexp(0.0, ENDS))
    return np.array([np.diff(no) / (np.diff(ENDS) - chances), np.diff(yes) / chances])


_P = expit(ENDS)
PREDICTED = _within(np.logaddexp(0.0, ENDS) - _P, _P)
"""p: the integral of p² is ``log(1 + eˢ) − p``, and that of p(1 − p) is p."""

SQUARES = _within(_P - 0.5 * _P**2, 0.5 * _P**2)
"""The squared distance of p from the class."""

IN_ORDER = 1.0 / (1.0 - math.exp(-0.5)) - 1.0 / 0.5
"""Of two rows of a bin that differ in class, how often the second class has the higher score: .5415, not ½.

With chances as eˢ, this is ``1/(1 − e⁻ʰ) − 1/h`` in a bin of width h; with those of the logistic curve about as much.
"""

NORMAL = 1.959964
"""Of 95% intervals."""


STEEPEST = 20.0
"""Calibration slopes further from 0, or from the estimate, are none."""

CLEAR_RATE = 0.1
"""Noise of the rows in a group of scores, beside their number."""


class CalibrationGroup(NamedTuple):
    """Rows by their predicted probability: how many, what was predicted on average, and what was true."""

    low: float
    high: float
    rows: float
    predicted: float
    observed: float
    se: float


class NoisyMeasure(NamedTuple):
    """A figure, standard errors as estimates of statistics have, and its 95% interval; None where it has no end."""

    value: float
    noise_se: float
    se: float
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class PrivateEvaluation:
    """A model on rows of others, from the noisy histogram of its scores by class.

    ``counts`` (2, bins) are as released, shifted so that they add up to the rows where all of these count; some may be
    negative, since to cut them would fill bins that are empty, and flatter nobody. So accuracy, shares and Brier score
    are unbiased, and AUC and slope nearly so. ``figures`` have standard errors: of the privacy noise alone, and with
    that of a sample, both by how a figure follows each count (the delta method). Intervals are 1.96 of them to either
    side, but for the calibration slope: see :func:`_slope_interval`. Of a bin, rows are taken to be spread as a
    calibrated model's would be.
    """

    study: Study
    n_rows: int
    noise: float
    counts: Floats
    all_count: bool
    figures: Mapping[str, NoisyMeasure | None]
    privacy: Mapping[str, Any]
    statement: Mapping[str, Any]

    @cached_property
    def calibration(self) -> list[CalibrationGroup]:
        """Bins of scores, neighbours together until the noise of a rate is small: see ``CLEAR_RATE``."""
        found, first = [], 0
        rows, predicted_rows = self.counts.sum(axis=0), (self.counts * PREDICTED).sum(axis=0)
        chances = expit(np.array([-np.inf, *EDGES, np.inf]))
        for last in range(len(rows)):
            together = slice(first, last + 1)
            n, error = float(rows[together].sum()), self.noise * math.sqrt(last + 1 - first)
            left = float(rows[last + 1 :].sum())
            if (n > 0.0 and error <= CLEAR_RATE * n and CLEAR_RATE * left >= error) or (last + 1 == len(rows) and n):
                observed = float(np.clip(self.counts[1, together].sum() / n, 0.0, 1.0))
                se = math.sqrt(
                    observed * (1.0 - observed) / n + (1.0 - 2.0 * observed + 2.0 * observed**2) * (error / n) ** 2
                )
                predicted = float(np.clip(predicted_rows[together].sum() / n, chances[first], chances[last + 1]))
                found.append(
                    CalibrationGroup(float(chances[first]), float(chances[last + 1]), n, predicted, observed, se)
                )
                first = last + 1
        return found

    @property
    def sentence(self) -> str:
        return (
            f"{privacy_sentence(self.privacy)} Counts have noise of standard deviation {self.noise:,.1f}; "
            "standard errors include it."
        )

    def as_json(self) -> dict[str, Any]:
        edges = [None, *EDGES, None]
        bins = [
            {"score_above": low, "score_to": high, "negative": no, "positive": yes}
            for low, high, no, yes in zip(edges, edges[1:], *self.counts.tolist(), strict=False)
        ]
        return {
            "rows": self.n_rows,
            "noise_of_a_count": self.noise,
            "figures": {name: each and each._asdict() for name, each in self.figures.items()},
            "bins": bins,
            "calibration": [each._asdict() for each in self.calibration] if "brier" in self.figures else [],
            "privacy_sentence": self.sentence,
            "study": {"name": self.study.name, "hash": self.study.hash},
            "privacy": dict(self.privacy),
            "statement": dict(self.statement),
        }


def private_evaluation_of(result: Finished, *, all_count: bool) -> PrivateEvaluation:
    """The evaluation that a run of an evaluation study gives; ``all_count``: no row can be silent."""
    released = released_by(result, EvaluationRelease.name)
    sigma, n, counts = released.noise_std, released.n_rows, released.sums
    if all_count:
        counts = counts + (n - counts.sum()) / counts.size
    chances = result.study.training.loss.name in PROBABILITIES
    figures = measures_of(counts, sigma, all_count=all_count, probabilities=chances)
    return PrivateEvaluation(
        result.study, n, sigma, counts, all_count, figures, result.privacy.as_json(), result.statement.as_json()
    )


def measures_of(
    counts: Floats, noise: float, *, all_count: bool, probabilities: bool
) -> dict[str, NoisyMeasure | None]:
    """All figures of a histogram whose counts have noise of this standard deviation."""
    slopes = _slopes(counts, probabilities=probabilities)
    figures: dict[str, NoisyMeasure | None] = {}
    for name, value in _of_histogram(counts, probabilities=probabilities).items():
        if value is None or not np.isfinite(slope := slopes[name]).all():
            figures[name] = None
            continue
        by_noise = noise * float(np.linalg.norm(slope - slope.mean() if all_count else slope))
        error = math.sqrt(by_noise**2 + max(float(np.sum(counts * slope**2)), 0.0))
        low: float | None = value - NORMAL * error
        high: float | None = value + NORMAL * error
        if name == "calibration_slope":
            low, high = _slope_interval(counts, value, noise, all_count=all_count)
        figures[name] = NoisyMeasure(value, by_noise, error, low, high)
    return figures


def _slopes(counts: Floats, *, probabilities: bool) -> dict[str, Floats]:
    """How every figure follows each count: by small steps up and down."""
    step, found = 1e-4 * max(float(counts.sum()), 1.0), dict[str, Floats]()
    for place in np.ndindex(counts.shape):
        moved = np.zeros(counts.shape)
        moved[place] = step
        ends = [_of_histogram(counts + sign * moved, probabilities=probabilities) for sign in (1.0, -1.0)]
        for name, high in ends[0].items():
            low = ends[1][name]
            slope = np.nan if high is None or low is None else (high - low) / (2.0 * step)
            found.setdefault(name, np.zeros(counts.shape))[place] = slope
    return found


def _of_histogram(counts: Floats, *, probabilities: bool) -> dict[str, float | None]:
    """Figures from rows by class (down) and bin of the score (across)."""
    no, yes = counts
    n, n_no, n_yes = max(counts.sum(), 1.0), no.sum(), yes.sum()
    half = len(no) // 2
    below = np.cumsum(no) - (1.0 - IN_ORDER) * no
    found: dict[str, float | None] = {
        "accuracy": float((no[:half].sum() + yes[half:].sum()) / n),
        "most_frequent_class": float(max(n_no, n_yes) / n),
        "positive_share": float(n_yes / n),
        "auc": float(yes @ below / (n_yes * n_no)) if n_yes >= 1.0 and n_no >= 1.0 else None,
    }
    if probabilities:
        found["brier"] = float(np.sum(counts * SQUARES) / n)
        found["mean_probability"] = predicted = float(np.sum(counts * PREDICTED) / n)
        found["calibration_in_the_large"] = predicted - float(n_yes / n)
        found["calibration_slope"] = _slope(no, yes)
    return found


def _slope(no: Floats, yes: Floats) -> float | None:
    """Of the log odds in the score, by Newton steps; 1 for a calibrated model, less for one that is too sure."""
    if no.sum() < 1.0 or yes.sum() < 1.0:
        return None
    design, fitted = np.column_stack([np.ones(len(MIDDLES)), MIDDLES]), np.array([0.0, 1.0])
    for _ in range(50):
        chances = expit(design @ fitted)
        slopes = design.T @ (yes - (no + yes) * chances)
        curved = (design.T * ((no + yes) * chances * (1.0 - chances))) @ design
        if np.linalg.eigvalsh(curved)[0] <= 1e-9:  # by noise
            return None
        step = np.linalg.solve(curved, slopes)
        fitted = fitted + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    return float(fitted[1]) if np.abs(fitted).max() < STEEPEST else None


def _slope_interval(
    counts: Floats, slope: float, noise: float, *, all_count: bool
) -> tuple[float | None, float | None]:
    """All slopes b around the estimate that a test at 5% does not reject: ``|U(b)| ≤ 1.96·sd(U(b))``.

    ``U(b) = Σ (s − s̄)(y − p_b)`` is linear in the counts where b is fixed, so that noise and sample are those of a
    sum. The estimate is a ratio, which noise makes skewed: where noise has made it small, its standard error is small
    as well, and of intervals of 1.96 standard errors all that missed were below the truth, up to 11% of them.
    """

    def accepted(tried: float) -> bool:
        if (constant := _constant(counts, tried)) is None:
            return True  # nothing can be told there
        chances, rows = expit(constant + tried * MIDDLES), counts.sum(axis=0)
        weights = rows * chances * (1.0 - chances)
        distances = MIDDLES - float(weights @ MIDDLES) / max(float(weights.sum()), 1e-9)
        terms = np.array([-chances * distances, (1.0 - chances) * distances])
        by_noise = noise * float(np.linalg.norm(terms - terms.mean() if all_count else terms))
        variance = by_noise**2 + max(float(np.sum(counts * terms**2)), 0.0)
        return float(np.sum(counts * terms)) ** 2 <= NORMAL**2 * variance

    def end(sign: float) -> float | None:
        inside, step = 0.0, 0.01
        while accepted(slope + sign * (inside + step)):
            inside, step = inside + step, 1.2 * step
            if inside > STEEPEST:
                return None
        for _ in range(20):
            step *= 0.5
            inside += step * accepted(slope + sign * (inside + step))
        return slope + sign * inside

    return end(-1.0), end(1.0)


def _constant(counts: Floats, slope: float) -> float | None:
    """The constant with which as many rows are predicted as there are, at this slope; None if there is none."""
    (_, yes), rows, fitted = counts, counts.sum(axis=0), 0.0
    for _ in range(100):
        chances = expit(fitted + slope * MIDDLES)
        curved = float(rows @ (chances * (1.0 - chances)))
        if not curved > 1e-9:
            return None
        step = float(np.clip(np.sum(yes - rows * chances) / curved, -1.0, 1.0))
        fitted += step
        if abs(step) < 1e-9:
            break
    return fitted


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
            return checked_labels(replace(model.label or Label(column, plain=True), counts=True), cells, exposures)
        if model.task != "regression":
            # As a cell says it: 1, not 1.0
            classes = tuple(f"{c:g}" if isinstance(c, float) else str(c) for c in model.class_names)
            codes = checked_labels(Label(column, classes=classes), cells)
            return (codes + 1.0) / 2.0 if len(model.class_names) == 2 else codes
        numbers = as_numbers(cells, column)
        bad = np.flatnonzero(~np.isfinite(numbers))
        if len(bad):
            raise DataError(f"the label {column!r} of row {first + int(bad[0]) + 1} is missing")
        return numbers
    except RowError as error:
        raise DataError(f"{path}: {error.message(first)}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
