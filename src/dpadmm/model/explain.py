"""A model's coefficients in the units of the original columns, and what the privacy noise does to them.

``score = intercept + Σ coefficient · value``, exactly, for every row that training did not clamp or shorten.
A value is the number itself (its binary logarithm after a log), 1 or 0 for true and false, the place of an
ordinal value from 0, and 1 for the category, bin or missing cell a row has. A missing cell without a feature
of its own has the value in the middle, or the column's center. A standard error follows from those of the
weights, where the method of a study gave them (``Model.noise_std``); the noise of different weights counts as
independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.data.schema import OTHER, Boolean, Category, Column, Number, Ordinal, Plain, Schema
from dpadmm.model.model import Model
from dpadmm.optim.features import BESIDE_INTERCEPT, INTERCEPT

PER_UNIT, PER_DOUBLING, PER_STEP = "per unit", "per doubling", "per step"
TRUE_FALSE, AGAINST_AVERAGE, MISSING = "if true", "vs average", "if missing"
NOISE = 2.0
"""A coefficient below so many standard errors may be noise."""

NO_INTERVAL = (
    "an interval needs a release of its own, since how far noise moves a coefficient depends on how the columns go "
    "together in private rows; coefficients of values that few rows have may be noise alone"
)

PORTION = 256
"""Coefficients that are worked out at a time."""


@dataclass(frozen=True)
class Coefficient:
    """The change of the score by one unit (``per``) of a column, or by a category, a bin or ``missing``.

    ``output`` is the class whose score it changes, where there is one score for each. The standard error is
    over runs that differ in their noise alone, or None where no release tells it. ``span`` is how far the value
    can go. ``unseen``: no public row had the value, as the study says.
    """

    column: str
    value: str
    per: str
    output: str
    coefficient: float
    standard_error: float | None
    span: float
    unseen: bool = False

    @property
    def name(self) -> str:
        return f"{self.column}={self.value}" if self.value else self.column

    @property
    def effect(self) -> float:
        """The change of the score over the whole range of the column."""
        return self.coefficient * self.span

    @property
    def may_be_noise(self) -> bool | None:
        return None if self.standard_error is None else abs(self.coefficient) < NOISE * self.standard_error

    def as_json(self) -> dict[str, Any]:
        return {
            "column": self.column,
            "value": self.value or None,
            "class": self.output or None,
            "per": self.per,
            "coefficient": self.coefficient,
            "standard_error": self.standard_error,
            "effect_over_range": self.effect,
            "may_be_noise": self.may_be_noise,
            "unseen": self.unseen,
        }


@dataclass(frozen=True)
class Explanation:
    """All coefficients, largest effect over the column's range first; those of unseen values last.

    ``score`` says what they change; ``unknown`` says why there is no standard error, where there is none.
    """

    score: str
    coefficients: tuple[Coefficient, ...]
    intercepts: tuple[Coefficient, ...]
    unknown: str
    shortened: str

    def as_json(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "intercept": [
                {
                    "class": each.output or None,
                    "coefficient": each.coefficient,
                    "standard_error": each.standard_error,
                }
                for each in self.intercepts
            ],
            "coefficients": [each.as_json() for each in self.coefficients],
            "no_standard_error_because": self.unknown or None,
        }


class _Term(NamedTuple):
    """A coefficient as a combination of weights: ``slope`` times one of them, less a column's average."""

    column: str
    value: str
    per: str
    span: float
    place: int
    slope: float
    against: tuple[slice, Floats] | None = None
    unseen: bool = False


def explain(model: Model) -> Explanation:
    """The coefficients of a model, in its columns' and its label's units; nothing of any row is needed."""
    names = model.feature_names or [f"feature {j + 1}" for j in range(model.n_features)]
    schema = model.schema or Schema(tuple(map(Plain, names)), row_norm=1.0)
    share = BESIDE_INTERCEPT if model.intercept else 1.0
    scale, shift = model.label_units if model.task == "regression" else (1.0, 0.0)
    terms: list[_Term] = []
    constant, first = np.zeros(len(model.weights)), 0
    for column in schema.columns:
        found, offsets = _terms(column, first)
        terms += found
        constant[first : first + len(offsets)] = offsets / schema.scale
        first += len(offsets)
    if model.intercept:
        constant[-1] = INTERCEPT / share  # all rows are multiplied by the share below
    outputs, classes = _outputs(model)

    def coefficients(terms: list[_Term], rows: Floats, shift: float = 0.0) -> list[Coefficient]:
        rows = rows * (share * scale)
        values = rows @ model.weights @ outputs.T + shift
        errors: Any = np.full(values.shape, None)
        if model.noise_std is not None:  # Var(Σ r·w·o) = Σ r²·σ²·o² of independent weights w
            errors = np.sqrt(rows**2 @ model.noise_std**2 @ outputs.T**2)
        return [
            Coefficient(term.column, term.value, term.per, name, value, error, term.span, term.unseen)
            for name, of_class, errors_of_class in zip(classes, values.T.tolist(), errors.T.tolist(), strict=True)
            for term, value, error in zip(terms, of_class, errors_of_class, strict=True)
        ]

    every: list[Coefficient] = []
    for start in range(0, len(terms), PORTION):
        some = terms[start : start + PORTION]
        every += coefficients(some, _rows(some, len(constant)) / schema.scale)
    return Explanation(
        score=_score(model),
        coefficients=tuple(sorted(every, key=lambda each: (each.unseen, -abs(each.effect)))),
        intercepts=tuple(coefficients([_Term("intercept", "", "", 1.0, 0, 1.0)], constant[None], shift)),
        unknown="" if model.noise_std is not None else NO_INTERVAL,
        shortened=_shortened(model),
    )


def _rows(terms: list[_Term], width: int) -> Floats:
    """Combinations of features, (terms, features)."""
    out = np.zeros((len(terms), width))
    for row, term in zip(out, terms, strict=True):
        row[term.place] = term.slope
        if term.against is not None:
            place, average = term.against
            row[place] -= average
    return out


def _terms(column: Column, first: int) -> tuple[list[_Term], Floats]:
    """What a column's weights mean, in its units; and its features at value 0, for the intercept."""
    if names := _values(column):
        # What is none of the public values counts only beside a single value
        known = np.append(np.ones(len(names) - 1), 1.0 if len(names) == 2 else 0.0)
        average = known / known.sum()
        against = slice(first, first + len(names)), average
        return [
            _Term(column.name, name, AGAINST_AVERAGE, 1.0, place, 1.0, against, name in getattr(column, "unseen", ()))
            for place, name in enumerate(names, first)
        ], average
    slope, offset, span, per = _line(column)
    terms = [_Term(column.name, "", per, span, first, slope)]
    if len(column.features) == 2:
        terms.append(_Term(column.name, "missing", MISSING, 1.0, first + 1, 1.0))
    return terms, np.array([offset, 0.0][: len(column.features)])


def _values(column: Column) -> list[str]:
    """What one-hot features stand for; empty for other columns."""
    if isinstance(column, Category):
        return [*column.values, OTHER]
    if isinstance(column, Number) and column.bins:
        return [name.removeprefix(f"{column.name} ") for name in column.features]
    return []


def _line(column: Column) -> tuple[float, float, float, str]:
    """(slope, offset) of the feature by the column's value, units in the column's range, what a unit is."""
    if isinstance(column, Number):
        (low, high), (center, scale) = column.ends, column.line
        unit, per = (math.log(2.0), PER_DOUBLING) if column.transform == "log" else (1.0, PER_UNIT)
        return unit / scale, -center / scale, (high - low) / unit, per
    if isinstance(column, Ordinal):
        return 2.0 / (len(column.values) - 1), -1.0, len(column.values) - 1.0, PER_STEP
    return (2.0, -1.0, 1.0, TRUE_FALSE) if isinstance(column, Boolean) else (1.0, 0.0, 1.0, PER_UNIT)


def _outputs(model: Model) -> tuple[Floats, list[str]]:
    """Mixtures of the scores that are explained, and their names: several classes are against their mean."""
    p = model.weights.shape[1]
    if model.task != "multiclass":
        return np.eye(1), [""]
    return np.eye(p) - 1.0 / p, [str(name) for name in model.class_names]


def _score(model: Model) -> str:
    if model.task == "regression":
        return model.label.column if model.label else "the prediction"
    if model.task == "multiclass":
        return "log odds of a class against the average of the classes"
    words = "log odds" if model.has_probabilities else "score"
    return f"{words} of {model.class_names[-1]!s} against {model.class_names[0]!s}"


def _shortened(model: Model) -> str:
    """The sentence about rows to which coefficients apply in part only; empty if there are none."""
    same = "are shortened to it; for them all coefficients are smaller by the same factor."
    if model.schema is None:
        return f"Rows longer than 1 {same}" if model.clip else ""
    if model.schema.bounded:
        return ""
    return f"Rows longer than the row_norm {model.schema.scale:g} {same}"
