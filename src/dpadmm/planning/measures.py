"""Measures of a forecast: means over rows, and variances of differences from other models on the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, softmax

from dpadmm.losses import Loss, Poisson
from dpadmm.matrices.arrays import Floats
from dpadmm.models.evaluate import auc
from dpadmm.models.model import PROBABILITIES


@dataclass(frozen=True)
class ForecastMeasure:
    """A measure: its title, whether higher is better, and whether it is shown in percent."""

    title: str
    higher: bool
    percent: bool = False

    def gain(self, value: float, other: float) -> float:
        """Return the improvement of a value over another."""
        return value - other if self.higher else other - value


MEASURES: Mapping[str, ForecastMeasure] = {
    "accuracy": ForecastMeasure("accuracy", higher=True, percent=True),
    "auc": ForecastMeasure("AUC", higher=True),
    "log_loss": ForecastMeasure("log-loss", higher=False),
    "sensitivity": ForecastMeasure("sensitivity", higher=True, percent=True),
    "overconfidence": ForecastMeasure("overconfidence", higher=False, percent=True),
    "rmse": ForecastMeasure("root mean square error", higher=False),
    "deviance": ForecastMeasure("mean deviance", higher=False),
}
"""All measures; which ones apply depends on the loss. Sensitivity: of the second class, at a threshold of one half.
Overconfidence: mean probability of the predicted class minus accuracy."""


Figures = Mapping[str, tuple[float, float, float, float]]
"""By measure: the mean over rows, its variance, and the variances of its differences from a constant prediction and
from the model of public rows alone."""


def figures(loss: Loss, labels: Floats, scores: Floats, constant: Floats, public: Floats | None = None) -> Figures:
    """Return the measures of scores (rows, p), compared with constant scores (p,) and a public model's (rows, p)."""
    public = scores if public is None else public
    rows, of_constant, of_public = (
        _of_rows(loss, labels, each) for each in (scores, np.broadcast_to(constant, scores.shape), public)
    )
    measures = {}
    for name, each in rows.items():
        bases = (0.0, of_constant[name], of_public[name])
        variance, vs_constant, vs_public = (float((each - base).var() / len(each)) for base in bases)
        measures[name] = (float(each.mean()), variance, vs_constant, vs_public)
    if loss.task in ("regression", "count"):
        return measures
    if loss.task == "binary":
        areas = [_area(labels > 0.0, scores[:, 0], public[:, 0])]
    else:  # as probabilities, which can be compared between rows
        chances, others = softmax(scores, axis=1), softmax(public, axis=1)
        areas = [_area(labels == k, chances[:, k], others[:, k]) for k in np.unique(labels.astype(int))]
    mean, variance, difference = np.mean(areas, axis=0).tolist()
    return measures | {"auc": (mean, variance, variance, difference)}


def _of_rows(loss: Loss, labels: Floats, scores: Floats) -> dict[str, Floats]:
    """Return the values whose mean over rows is the measure; sensitivity has rows of the second class only."""
    if loss.task == "regression":
        return {"rmse": np.square(scores[:, 0] - labels)}
    if isinstance(loss, Poisson):
        return {"deviance": 2.0 / loss.unit * loss.value(labels, scores)}
    binary = loss.task == "binary"
    right = (scores[:, 0] > 0.0) == (labels > 0.0) if binary else scores.argmax(axis=1) == labels
    values = {"accuracy": right.astype(float)}
    if loss.name in PROBABILITIES:
        values["log_loss"] = loss.value(labels, scores)
        chances = expit(np.abs(scores)) if binary else softmax(scores, axis=1)
        values["overconfidence"] = chances.max(axis=1) - values["accuracy"]
    if binary:
        values["sensitivity"] = right[labels > 0.0].astype(float) if np.any(labels > 0.0) else np.zeros(1)
    return values


def _area(positive: Any, scores: Floats, public: Floats) -> tuple[float, float, float]:
    """Return the AUC, its variance (Hanley and McNeil), and that of its difference from the public AUC (DeLong).

    The AUC is ½ if all rows have the same class.
    """
    area, n, m = auc(positive, scores), int(positive.sum()), int((~positive).sum())
    if area is None:
        return 0.5, 0.25, 0.0
    first, second = area / (2.0 - area), 2.0 * area**2 / (1.0 + area)
    spread = area * (1.0 - area) + (n - 1) * (first - area**2) + (m - 1) * (second - area**2)
    own, other = (_placements(positive, each) for each in (scores, public))
    difference = sum(float((one - two).var() / len(one)) for one, two in zip(own, other, strict=True))
    return area, max(spread, 0.25 / (n + m)) / (n * m), difference


def _placements(positive: Any, scores: Floats) -> tuple[Floats, Floats]:
    """Return the share of negative rows below each positive row, and of positive rows above each negative row."""
    high, low = np.sort(scores[positive]), np.sort(scores[~positive])

    def below(values: Floats, ordered: Floats) -> Floats:
        ends = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
        return np.asarray(sum(ends) / (2.0 * len(ordered)))

    return below(scores[positive], low), 1.0 - below(scores[~positive], high)


def value_text(value: float, name: str) -> str:
    """Return a share in percent, an error in the units of the label, or a number with three digits."""
    if MEASURES[name].percent:
        return f"{100 * round(value, 3) + 0.0:.1f}%"
    return f"{value:.4g}" if name in ("rmse", "deviance") else f"{value:.3f}"


def difference_text(value: float, name: str) -> str:
    """Return a difference as text; for shares in points."""
    return f"{100 * round(value, 3):.1f} points" if MEASURES[name].percent else value_text(value, name)
