"""Private evaluation of a model: metrics with intervals, from one noisy histogram of scores by class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from dpadmm.accounting.report import privacy_sentence
from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import EvaluationRelease
from dpadmm.models.description import released_by
from dpadmm.models.evaluate import METRICS
from dpadmm.models.model import PROBABILITIES, Finished, Model
from dpadmm.queries.score_histogram import EDGES
from dpadmm.rendering import Block, Cell, Column, Renderable, Rendering, Table
from dpadmm.rendering.formats import interval_text, percent
from dpadmm.studies.settings import Training
from dpadmm.studies.study import Study

ENDS = np.array([EDGES[0] - 0.5, *EDGES, EDGES[-1] + 0.5])
"""Ends of the bins. The open bins are given the width of the others."""

MIDDLES = 0.5 * (ENDS[1:] + ENDS[:-1])
"""Scores that represent the bins."""


def _bin_means(yes: Floats, no: Floats) -> Floats:
    """Return means over every bin, for rows of each class (2, bins), if the model is calibrated and scores are uniform.

    The arguments are antiderivatives of a function times p (second class) and times 1 − p (first class), at the ends
    of the bins. The middle of a bin would be too pessimistic, because rows of the second class are closer to its upper
    end.
    """
    masses = np.diff(np.logaddexp(0.0, ENDS))
    return np.array([np.diff(no) / (np.diff(ENDS) - masses), np.diff(yes) / masses])


_P = expit(ENDS)
PREDICTED = _bin_means(np.logaddexp(0.0, ENDS) - _P, _P)
"""Mean of p. The integral of p² is ``log(1 + eˢ) − p``, and that of p(1 − p) is p."""

SQUARES = _bin_means(_P - 0.5 * _P**2, 0.5 * _P**2)
"""Mean squared difference of p and the class."""

CONCORDANCE = 1.0 / (1.0 - math.exp(-0.5)) - 1.0 / 0.5
"""Probability that, of two rows in a bin, the row of the second class has the higher score: 0.5415 instead of 0.5.

With odds proportional to eˢ it is ``1/(1 − e⁻ʰ) − 1/h`` in a bin of width h; the logistic curve gives nearly the same.
"""

QUANTILE = 1.959964
"""Standard normal quantile of 95% intervals."""

MAX_SLOPE = 20.0
"""Bound on calibration slopes, and on the distance of the ends of their interval from the estimate."""

MAX_RATE_NOISE = 0.1
"""Maximum noise of the number of rows in a calibration group, as a share of this number."""


class CalibrationGroup(NamedTuple):
    """Rows in a range of predicted probabilities: their number, mean prediction, and observed share."""

    low: float
    high: float
    rows: float
    predicted: float
    observed: float
    se: float


class PrivateMetric(NamedTuple):
    """A metric with the standard error of the privacy noise, the total standard error, and its 95% interval."""

    value: float
    noise_se: float
    se: float
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class PrivateEvaluation(Renderable):
    """Metrics of a model on private rows, from the noisy histogram of its scores by class.

    ``counts`` (2, bins) are as released, shifted to add up to the number of rows if ``all_count``. Some may be
    negative: clipping them would bias the metrics. Accuracy, shares and Brier score are unbiased, AUC and slope nearly
    so. Standard errors follow from the derivative of a metric by each count (delta method): of the privacy noise
    alone, and with sampling variation. Intervals are ±1.96 standard errors, except for the calibration slope; see
    :func:`_slope_interval`. Within a bin, rows are assumed to be distributed as those of a calibrated model.
    """

    study: Study
    n_rows: int
    noise: float
    counts: Floats
    all_count: bool
    metrics: Mapping[str, PrivateMetric | None]
    privacy: Mapping[str, Any]
    source: str = ""

    @cached_property
    def calibration(self) -> list[CalibrationGroup]:
        """Groups of neighbouring bins with at most ``MAX_RATE_NOISE``."""
        groups, first = [], 0
        rows, predicted_rows = self.counts.sum(axis=0), (self.counts * PREDICTED).sum(axis=0)
        probabilities = expit(np.array([-np.inf, *EDGES, np.inf]))
        for last in range(len(rows)):
            group = slice(first, last + 1)
            n, error = float(rows[group].sum()), self.noise * math.sqrt(last + 1 - first)
            rest = float(rows[last + 1 :].sum())
            is_clear = n > 0.0 and error <= MAX_RATE_NOISE * n and MAX_RATE_NOISE * rest >= error
            if is_clear or (last + 1 == len(rows) and n):
                low, high = float(probabilities[first]), float(probabilities[last + 1])
                observed = float(np.clip(self.counts[1, group].sum() / n, 0.0, 1.0))
                se = math.sqrt(
                    observed * (1.0 - observed) / n + (1.0 - 2.0 * observed + 2.0 * observed**2) * (error / n) ** 2
                )
                predicted = float(np.clip(predicted_rows[group].sum() / n, low, high))
                groups.append(CalibrationGroup(low, high, n, predicted, observed, se))
                first = last + 1
        return groups

    @property
    def sentence(self) -> str:
        """The guarantee and the noise, in two sentences."""
        return (
            f"{privacy_sentence(self.privacy)} Counts have noise of standard deviation {self.noise:,.1f}; "
            "standard errors include it."
        )

    def rendering(self) -> Rendering:
        """Return metrics with standard errors, calibration, and the privacy of the release."""
        has_probabilities = "brier" in self.metrics
        body: list[Block] = [self._metrics_table(), *([self._calibration_table()] if has_probabilities else [])]
        edges = [None, *EDGES, None]
        bins = [
            {"score_above": low, "score_to": high, "negative": no, "positive": yes}
            for low, high, no, yes in zip(edges, edges[1:], *self.counts.tolist(), strict=False)
        ]
        return Rendering(
            title=f"Private evaluation on {self.n_rows:,} rows{f' of {self.source}' if self.source else ''}",
            body=body,
            notes=[self.sentence],
            data={
                "rows": self.n_rows,
                "noise_of_a_count": self.noise,
                "bins": bins,
                **({} if has_probabilities else {"calibration": []}),
                "privacy_sentence": self.sentence,
                "study": {"name": self.study.name, "hash": self.study.hash},
                "privacy": dict(self.privacy),
            },
        )

    def _metrics_table(self) -> Table:
        columns = (
            Column("name", "metric"),
            Column("value", "value", ".4g"),
            Column("noise_se"),
            Column("se", "± se", ".2g"),
            Column("", "95% interval", align="right"),
            Column("low"),
            Column("high"),
        )
        rows = []
        for name, metric in self.metrics.items():
            cells: tuple[Any, ...] = (None, None, None, "–", None, None)
            if metric is not None:
                low, high = metric.low, metric.high
                cells = (metric.value, metric.noise_se, metric.se, interval_text(low, high), low, high)
            rows.append((Cell(name, METRICS[name]), *cells))
        return Table(columns, rows, key="metrics", by_first=True)

    def _calibration_table(self) -> Table:
        columns = (
            Column("", "predicted probability"),
            Column("low"),
            Column("high"),
            Column("rows", "rows", ",.0f"),
            Column("predicted", "mean predicted", percent),
            Column("observed", "observed", percent),
            Column("se", "± se", percent),
        )
        rows = [(f"{group.low:.1%} to {group.high:.1%}", *group) for group in self.calibration]
        return Table(columns, rows, key="calibration")


def evaluation_study(model: Model, name: str, **budget: Any) -> Study:
    """Return the study that evaluates a model: its columns and label, and a budget (``epsilon``, ``delta``)."""
    if model.task != "binary":
        raise DataError(f"private evaluation needs a model of two classes; this model is for {model.task} labels")
    if model.schema is None and not model.feature_names:
        raise DataError("the model has no column names, so no site could read the columns")
    # The histogram counts each row once, without weights
    rows: dict[str, Any] = {"schema": model.schema, "label": model.label and model.label.unweighted}
    if model.schema is None or model.label is None:
        rows = {"features": model.feature_names, "classes": model.classes}
    method = EvaluationRelease(weights=tuple(model.weights[:, 0].tolist()))
    training = Training(loss=model.loss, method=method, intercept=model.intercept, **budget)
    return Study(name=name, training=training, **rows)


def private_evaluation_of(result: Finished, *, all_count: bool, source: str = "") -> PrivateEvaluation:
    """Return the evaluation from a run of an evaluation study. ``all_count``: no row is silenced."""
    released = released_by(result, EvaluationRelease.name)
    noise, n, counts = released.noise_std, released.n_rows, released.sums
    if all_count:
        counts = counts + (n - counts.sum()) / counts.size
    has_probabilities = result.study.training.loss.name in PROBABILITIES
    return PrivateEvaluation(
        study=result.study,
        n_rows=n,
        noise=noise,
        counts=counts,
        all_count=all_count,
        metrics=histogram_metrics(counts, noise, all_count=all_count, probabilities=has_probabilities),
        privacy=result.privacy.to_dict(),
        source=source,
    )


def histogram_metrics(
    counts: Floats, noise: float, *, all_count: bool, probabilities: bool
) -> dict[str, PrivateMetric | None]:
    """Return the metrics of a histogram whose counts have noise of this standard deviation."""
    derivatives = _derivatives(counts, probabilities=probabilities)
    metrics: dict[str, PrivateMetric | None] = {}
    for name, value in _metric_values(counts, probabilities=probabilities).items():
        if value is None or not np.isfinite(derivative := derivatives[name]).all():
            metrics[name] = None
            continue
        noise_se = noise * float(np.linalg.norm(derivative - derivative.mean() if all_count else derivative))
        se = math.sqrt(noise_se**2 + max(float(np.sum(counts * derivative**2)), 0.0))
        low: float | None = value - QUANTILE * se
        high: float | None = value + QUANTILE * se
        if name == "calibration_slope":
            low, high = _slope_interval(counts, value, noise, all_count=all_count)
        metrics[name] = PrivateMetric(value, noise_se, se, low, high)
    return metrics


def _derivatives(counts: Floats, *, probabilities: bool) -> dict[str, Floats]:
    """Return the derivatives of every metric by each count, as central differences."""
    step, derivatives = 1e-4 * max(float(counts.sum()), 1.0), dict[str, Floats]()
    for place in np.ndindex(counts.shape):
        change = np.zeros(counts.shape)
        change[place] = step
        ends = [_metric_values(counts + sign * change, probabilities=probabilities) for sign in (1.0, -1.0)]
        for name, high in ends[0].items():
            low = ends[1][name]
            slope = np.nan if high is None or low is None else (high - low) / (2.0 * step)
            derivatives.setdefault(name, np.zeros(counts.shape))[place] = slope
    return derivatives


def _metric_values(counts: Floats, *, probabilities: bool) -> dict[str, float | None]:
    """Return the metrics of rows by class (down) and bin of the score (across)."""
    no, yes = counts
    n, n_no, n_yes = max(counts.sum(), 1.0), no.sum(), yes.sum()
    half = len(no) // 2
    below = np.cumsum(no) - (1.0 - CONCORDANCE) * no
    metrics: dict[str, float | None] = {
        "accuracy": float((no[:half].sum() + yes[half:].sum()) / n),
        "majority_class_accuracy": float(max(n_no, n_yes) / n),
        "positive_share": float(n_yes / n),
        "auc": float(yes @ below / (n_yes * n_no)) if n_yes >= 1.0 and n_no >= 1.0 else None,
    }
    if probabilities:
        metrics["brier"] = float(np.sum(counts * SQUARES) / n)
        metrics["mean_probability"] = predicted = float(np.sum(counts * PREDICTED) / n)
        metrics["calibration_in_the_large"] = predicted - float(n_yes / n)
        metrics["calibration_slope"] = _slope(no, yes)
    return metrics


def _slope(no: Floats, yes: Floats) -> float | None:
    """Return the slope of the log odds in the score, by Newton's method: 1 if calibrated, below 1 if overconfident."""
    if no.sum() < 1.0 or yes.sum() < 1.0:
        return None
    design, fitted = np.column_stack([np.ones(len(MIDDLES)), MIDDLES]), np.array([0.0, 1.0])
    for _ in range(50):
        probabilities = expit(design @ fitted)
        gradient = design.T @ (yes - (no + yes) * probabilities)
        hessian = (design.T * ((no + yes) * probabilities * (1.0 - probabilities))) @ design
        if np.linalg.eigvalsh(hessian)[0] <= 1e-9:  # because of noise
            return None
        step = np.linalg.solve(hessian, gradient)
        fitted = fitted + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    return float(fitted[1]) if np.abs(fitted).max() < MAX_SLOPE else None


def _slope_interval(
    counts: Floats, slope: float, noise: float, *, all_count: bool
) -> tuple[float | None, float | None]:
    """Return the slopes b around the estimate that a test at 5% does not reject: ``|U(b)| ≤ 1.96·sd(U(b))``.

    ``U(b) = Σ (s − s̄)(y − p_b)`` is linear in the counts for fixed b, so the variances of noise and sample are those of
    a sum. An interval of ±1.96 standard errors would be skewed, because the estimate is a ratio: up to 11% of such
    intervals missed the true value, all of them below it.
    """

    def is_accepted(candidate: float) -> bool:
        if (constant := _constant(counts, candidate)) is None:
            return True  # not identified
        probabilities, rows = expit(constant + candidate * MIDDLES), counts.sum(axis=0)
        weights = rows * probabilities * (1.0 - probabilities)
        distances = MIDDLES - float(weights @ MIDDLES) / max(float(weights.sum()), 1e-9)
        terms = np.array([-probabilities * distances, (1.0 - probabilities) * distances])
        noise_se = noise * float(np.linalg.norm(terms - terms.mean() if all_count else terms))
        variance = noise_se**2 + max(float(np.sum(counts * terms**2)), 0.0)
        return float(np.sum(counts * terms)) ** 2 <= QUANTILE**2 * variance

    def end(sign: float) -> float | None:
        inside, step = 0.0, 0.01
        while is_accepted(slope + sign * (inside + step)):
            inside, step = inside + step, 1.2 * step
            if inside > MAX_SLOPE:
                return None
        for _ in range(20):
            step *= 0.5
            inside += step * is_accepted(slope + sign * (inside + step))
        return slope + sign * inside

    return end(-1.0), end(1.0)


def _constant(counts: Floats, slope: float) -> float | None:
    """Return the constant at which predicted and observed numbers of positive rows agree; None if there is none."""
    (_, yes), rows, fitted = counts, counts.sum(axis=0), 0.0
    for _ in range(100):
        probabilities = expit(fitted + slope * MIDDLES)
        curvature = float(rows @ (probabilities * (1.0 - probabilities)))
        if not curvature > 1e-9:
            return None
        step = float(np.clip(np.sum(yes - rows * probabilities) / curvature, -1.0, 1.0))
        fitted += step
        if abs(step) < 1e-9:
            break
    return fitted
