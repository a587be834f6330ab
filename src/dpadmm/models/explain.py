"""Coefficients of a model in the units of the original columns, with confidence intervals if available.

``score = intercept + Σ coefficient · value`` holds exactly for every row that is neither clamped nor clipped. The value
depends on the column:

- a number: the number itself, or its binary logarithm with a log transform;
- a boolean: 1 or 0; an ordinal: its position, from 0;
- a category, bin or missing cell: 1 if the row has it, else 0;
- an interaction: the product of the values of both columns. The coefficient of a single column then applies at the
  average of the other column's values, or at 0.

The coefficients of a spline are its heights at the knots and bounds. A missing cell without an indicator has the middle
value, or the column's center. Standard errors follow from the covariance of the weights (``Model.covariance``) if the
study requested it. They include sampling variation and privacy noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from dpadmm.data.schema import OTHER, Boolean, Category, Column, Interaction, Number, Ordinal, Plain, Schema
from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT
from dpadmm.models.model import Model

PER_UNIT, PER_DOUBLING, PER_STEP = "per unit", "per doubling", "per step"
TRUE_FALSE, AGAINST_AVERAGE, MISSING = "if true", "vs average", "if missing"
LEVEL = 0.95
WIDE = 1000.0
"""Range of a column from which tables show the change per power of ten units."""

NO_INTERVAL = (
    "they need a separate release, because the effect of noise on a coefficient depends on the covariance of the "
    "columns in private rows; set inference = true under [method] in the study. Coefficients of rare values may be "
    "noise only"
)
NO_LAST_RELEASE = "the last round, which releases the covariance, is missing"
NOT_CLEAR = (
    "too much noise to estimate the covariance of some columns. dpadmm plan forecasts the number of rows needed. The "
    "noise decreases with the number of rows and with ε (with secure aggregation of n sites, by √n); fewer columns and "
    "more frequent categories need less. The steps to these coefficients were damped because of the noise"
)

BATCH_SIZE = 256
"""Number of coefficients computed at a time."""


@dataclass(frozen=True)
class Coefficient:
    """Change of the score per unit (``per``) of a column, or for a category, a bin or a missing value.

    Attributes
    ----------
    column, value, per : str
        The column; its category, bin or ``missing`` (else empty); the unit of the change.
    output : str
        Class whose score changes, if there is one score per class.
    coefficient : float
        The change.
    standard_error : float, optional
        Standard error from sampling and privacy noise. None without a release, or if the rows contain no information
        about this coefficient.
    span : float
        Range of the value.
    unseen : bool
        Whether no public row had the value, according to the study.
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
        """The column, with the value if there is one."""
        return f"{self.column}={self.value}" if self.value else self.column

    @property
    def effect(self) -> float:
        """Change of the score over the whole range of the column."""
        return self.coefficient * self.span

    @property
    def in_table(self) -> Coefficient:
        """The coefficient for display: for a column with a wide range, per 100, per 10,000, and so on.

        The unit is the power of ten between a hundredth and a tenth of the range, so that ratios visibly differ from 1.
        """
        if self.per != PER_UNIT or self.span < WIDE:
            return self
        unit = 10.0 ** (math.floor(math.log10(self.span)) - 1)
        error = None if self.standard_error is None else self.standard_error * unit
        value, span = self.coefficient * unit, self.span / unit
        return replace(self, per=f"per {unit:,.0f}", coefficient=value, standard_error=error, span=span)

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the confidence interval (low, high), or None without a standard error."""
        if self.standard_error is None:
            return None
        margin = float(ndtri(0.5 + 0.5 * level)) * self.standard_error
        return self.coefficient - margin, self.coefficient + margin

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of the hypothesis that the coefficient is 0."""
        if not self.standard_error:
            return None
        return float(2.0 * ndtr(-abs(self.coefficient) / self.standard_error))

    def row(self, *, ratios: str) -> dict[str, Any]:
        """Return values by name. ``ratios`` is the name of the exponential of the coefficient; empty for none."""
        low, high = self.interval() or (None, None)
        row = {
            "column": self.column,
            "value": self.value or None,
            "class": self.output or None,
            "per": self.per,
            "coefficient": self.coefficient,
            "standard_error": self.standard_error,
            "low": low,
            "high": high,
            "p_value": self.p_value,
        }
        if ratios:
            name = ratios.replace(" ", "_")
            logs = {name: self.coefficient, f"{name}_low": low, f"{name}_high": high}
            row |= {name: None if value is None else ratio(value) for name, value in logs.items()}
        return row

    def as_json(self, *, ratios: str) -> dict[str, Any]:
        return {**self.row(ratios=ratios), "effect_over_range": self.effect, "unseen": self.unseen}


def ratio(logarithm: float) -> float | None:
    """Return the ratio of odds, rates or hazards; None if it overflows."""
    return math.exp(logarithm) if logarithm < 700.0 else None


def ratio_text(logarithm: float) -> str:
    """Format a ratio with three digits, or more if it is close to 1. Empty if it overflows.

    Examples
    --------
    >>> ratio_text(0.405), ratio_text(-3.5e-05), ratio_text(0.0), ratio_text(800.0)
    ('1.5', '0.999965', '1', '')
    """
    value, distance = ratio(logarithm), abs(math.expm1(min(logarithm, 1.0)))
    if value is None:
        return ""
    return f"{value:.{1 - math.floor(math.log10(distance))}f}" if 1e-12 < distance < 0.005 else f"{value:.3g}"


@dataclass(frozen=True)
class Explanation:
    """Coefficients of a model, sorted by their effect over the range of the column, with unseen values last.

    Attributes
    ----------
    score : str
        The quantity that the coefficients change.
    coefficients, intercepts : tuple of Coefficient
        The coefficients.
    unknown : str
        Reason why there are no intervals. Empty if there are.
    shortened : str
        Note about clipped rows. Empty if none are clipped.
    ratios : str
        Name of the exponentials: odds, rate or hazard ratio. Empty for none.
    weights : str
        Note about the weights of rows. Empty without weights.
    """

    score: str
    coefficients: tuple[Coefficient, ...]
    intercepts: tuple[Coefficient, ...]
    unknown: str
    shortened: str
    ratios: str = ""
    weights: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "intercept": [each.row(ratios="") for each in self.intercepts],
            "coefficients": [each.as_json(ratios=self.ratios) for each in self.coefficients],
            "confidence": LEVEL,
            "no_intervals_because": self.unknown or None,
            **({"weights": self.weights} if self.weights else {}),
        }

    def to_frame(self) -> Any:
        """Return a tidy pandas data frame with the column names of R's broom, one row per coefficient."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise DataError("a data frame needs pandas: pip install pandas") from None
        lines = (*self.coefficients, *self.intercepts)
        return DataFrame([_tidy(line, line.row(ratios=self.ratios)) for line in lines])

    def conf_int(self, level: float = LEVEL) -> dict[str, tuple[float, float] | None]:
        """Return the confidence interval of each coefficient; None if the rows contain no information about it."""
        if self.unknown:
            raise DataError(f"intervals are not available: {self.unknown}")
        if not 0.0 < level < 1.0:
            raise DataError(f"level must be between 0 and 1, not {level!r:.60}")
        return {line.name: line.interval(level) for line in (*self.coefficients, *self.intercepts)}

    def summary(self, about: Sequence[str] = ()) -> str:
        """Return a text table of estimates with standard errors, p-values and 95% intervals."""
        header = ["", "coef", "std err", "z", "P>|z|", "[0.025", "0.975]", *([self.ratios] if self.ratios else [])]
        lines = [header]
        for each in (line.in_table for line in (*self.coefficients, *self.intercepts)):
            cells = [f"{each.name} ({each.per})" if each.per else each.name, f"{each.coefficient:.4g}"]
            ends, p = each.interval(), each.p_value
            if ends is not None and each.standard_error and p is not None:
                cells += [f"{each.standard_error:.3g}", f"{each.coefficient / each.standard_error:.3f}", f"{p:.3f}"]
                cells += [f"{end:.4g}" for end in ends]
            else:
                cells += [""] * 5
            lines.append([*cells, *([ratio_text(each.coefficient) if each.per else ""] if self.ratios else [])])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [
            "  ".join(f"{cell:<{width}}" if j == 0 else f"{cell:>{width}}" for j, (cell, width) in
                      enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines
        ]  # fmt: skip
        rule = "=" * max(map(len, text))
        notes = [f"No intervals: {self.unknown}."] if self.unknown else [COUNTED]
        notes += [self.weights] if self.weights else []
        return "\n".join([f"Effects on: {self.score}", *about, rule, text[0], "-" * len(rule), *text[1:], rule, *notes])


def _tidy(line: Coefficient, row: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row with the names of broom, and z."""
    names = {"coefficient": "estimate", "standard_error": "std_error", "low": "conf_low", "high": "conf_high"}
    z = line.coefficient / line.standard_error if line.standard_error else None
    values = {"term": line.name} | {names.get(name, name): value for name, value in row.items()}
    position = list(values).index("std_error") + 1
    return dict([*list(values.items())[:position], ("statistic", z), *list(values.items())[position:]])


def alike(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Format an estimate and its interval with the same number of decimals: two, or more for a narrow interval."""
    if not all(map(math.isfinite, (value, low, high))):
        return f"{value:.3g}", f"{low:.3g}", f"{high:.3g}"
    usual = 2 if abs(value) < 10.0 else 1 if abs(value) < 100.0 else 0
    width = max(high - low, 1e-6)
    decimals = max(usual, min(6, -math.floor(math.log10(width))))
    return f"{value:.{decimals}f}", f"{low:.{decimals}f}", f"{high:.{decimals}f}"


COUNTED = (
    "Standard errors and 95% intervals include sampling variation and privacy noise, for the model without a penalty."
)
CONSERVATIVE = (
    "Weights ω, from 0 to 1 relative to their bound, are sampling weights: a row is one observation. Standard errors "
    "use ω instead of ω², so they are conservative, the more so the smaller the weights are relative to the bound."
)


class _Term(NamedTuple):
    """A coefficient as a combination of weights: ``slope`` times the weight at ``place``, less a column's average.

    ``more`` has the positions of products with another column, and the factors of the weights there.
    """

    column: str
    value: str
    per: str
    span: float
    place: int
    slope: float
    against: tuple[slice, Floats] | None = None
    unseen: bool = False
    more: tuple[tuple[slice, Floats], ...] = ()


def explain(model: Model) -> Explanation:
    """Return the coefficients of a model in the units of its columns and label, from the model alone."""
    names = model.feature_names or [f"feature {j + 1}" for j in range(model.n_features)]
    schema = model.schema or Schema(tuple(map(Plain, names)), row_norm=1.0)
    share = BESIDE_INTERCEPT if model.intercept else 1.0
    scale, shift = model.label_units if model.task == "regression" else (1.0, model.log_rate)
    terms, offsets = _all_terms(schema)
    constant = np.zeros(len(model.weights))
    constant[: len(offsets)] = offsets / schema.scale
    if model.intercept:
        constant[-1] = INTERCEPT / share  # all rows are multiplied by the share below
    outputs, classes = _outputs(model)
    unknown = unknown_because(model, schema)

    def coefficients(terms: list[_Term], rows: Floats, shift: float = 0.0, interval: int = 0) -> list[Coefficient]:
        rows = rows * (share * scale)
        values = rows @ model.weights @ np.roll(outputs, interval, axis=1).T + shift
        errors = np.full(values.shape, None) if unknown else standard_errors(model, rows, interval)
        return [
            Coefficient(term.column, term.value, term.per, name, value, error, term.span, term.unseen)
            for name, of_class, errors_of_class in zip(classes, values.T.tolist(), errors.T.tolist(), strict=True)
            for term, value, error in zip(terms, of_class, errors_of_class, strict=True)
        ]

    lines: list[Coefficient] = []
    for start in range(0, len(terms), BATCH_SIZE):
        batch = terms[start : start + BATCH_SIZE]
        lines += coefficients(batch, _rows(batch, len(constant)) / schema.scale)
    return Explanation(
        score=_score(model),
        coefficients=tuple(sorted(lines, key=lambda line: (line.unseen, -abs(line.effect)))),
        intercepts=tuple(
            line
            for interval, (name, value) in enumerate(_constants(model))
            for line in coefficients([_Term(name, value, "", 1.0, 0, 1.0)], constant[None], shift, interval)
        ),
        unknown=unknown,
        shortened=_clipping_note(model),
        weights=_weights(model),
        ratios=_ratios(model),
    )


def in_units(model: Model, rows: Floats, names: Sequence[str], *, shift: float = 0.0) -> Explanation:
    """Return the coefficients that are given combinations (d, n_weights) of the weights; the last is the intercept."""
    unknown = unknown_because(model, Schema(tuple(map(Plain, names[:-1])), row_norm=1.0))
    values = rows @ model.weights[:, 0]
    values[-1] += shift
    errors = [None] * len(rows) if unknown else standard_errors(model, rows)[:, 0].tolist()
    lines = [
        Coefficient(name, "", PER_UNIT * (name is not names[-1]), "", value, error, 1.0)
        for name, value, error in zip(names, values.tolist(), errors, strict=True)
    ]
    return Explanation(_score(model), tuple(lines[:-1]), (lines[-1],), unknown, "", _ratios(model))


def standard_errors(model: Model, rows: Floats, interval: int = 0) -> Any:
    """Return the standard errors (n, 1) of combinations (n, d) of the weights of one score.

    An error is None if the rows contain no information about a weight in the combination. If the intercept has one
    weight per time interval, the combinations use that of ``interval``.
    """
    assert model.covariance is not None
    n_extra = len(model.covariance) - len(model.weights)
    rows = np.hstack([rows[:, :-1], rows[:, -1:] * (np.arange(n_extra + 1) == interval)])
    is_estimable = ~((rows != 0.0) & (np.diag(model.covariance) == 0.0)).any(axis=1)
    variances = np.einsum("ij,jk,ik->i", rows, model.covariance, rows)
    errors = np.sqrt(np.maximum(variances, 0.0)).astype(object)
    errors[~is_estimable] = None
    return errors[:, None]


def unknown_because(model: Model, schema: Schema) -> str:
    """Return the reason why there are no intervals. Empty if there are.

    Directions without information do not matter if all categories (or bins) of a column increase by as much as the
    intercept decreases, because no coefficient depends on them.
    """
    if model.covariance is None:
        is_requested = model.study.get("method", {}).get("name") == "newton" or model.hessian_snr > 0.0
        if not is_requested:
            return NO_INTERVAL
        return NOT_CLEAR if model.hessian_snr else NO_LAST_RELEASE
    is_estimated, first, n_dependent = np.diag(model.covariance) > 0.0, 0, 0
    for term in schema.terms:
        width = len(term.features)
        n_dependent += _n_dependent(term, is_estimated[first : first + width])
        first += width
    n_dependent -= not model.intercept and n_dependent > 0
    spectrum = np.linalg.eigvalsh(model.covariance[np.ix_(is_estimated, is_estimated)])
    n_null = np.count_nonzero(spectrum < 1e-12 * spectrum[-1]) if len(spectrum) else 1
    return NOT_CLEAR if n_null > n_dependent else ""


def _n_dependent(term: Column | Interaction, is_estimated: Any) -> int:
    """Return the number of directions in which features sum to the constant, or products to one of their factors."""
    if not isinstance(term, Interaction):
        return int(bool(_values(term)) and bool(is_estimated.any()))
    cells = is_estimated.reshape(len(term.left.features), len(term.right.features))
    by_left, by_right = (int(cells.any(axis=axis).sum()) for axis in (1, 0))
    over_left, over_right = (bool(_values(column)) for column in (term.left, term.right))
    return over_right * by_left + over_left * by_right - (over_left and over_right and bool(is_estimated.any()))


def _rows(terms: list[_Term], width: int) -> Floats:
    """Return the combinations of features, of shape (n_terms, n_features)."""
    out = np.zeros((len(terms), width))
    for row, term in zip(out, terms, strict=True):
        row[term.place] = term.slope
        if term.against is not None:
            place, average = term.against
            row[place] -= average
        for place, factors in term.more:
            row[place] += factors
    return out


def _all_terms(schema: Schema) -> tuple[list[_Term], Floats]:
    """Return the terms of all columns, in their units, and the features at value 0, for the intercept."""
    terms: dict[str, list[_Term]] = {}
    offsets: dict[str, Floats] = {}
    first = 0
    for item in schema.terms:
        if isinstance(item, Interaction):
            place = slice(first, first + len(item.features))
            terms[item.name], offsets[item.name] = _products(item, place, terms)
        else:
            terms[item.name], offsets[item.name] = _terms(item, first)
        first += len(item.features)
    return [term for group in terms.values() for term in group], np.concatenate(list(offsets.values()))


def _products(pair: Interaction, place: slice, terms: dict[str, list[_Term]]) -> tuple[list[_Term], Floats]:
    """Return the terms of an interaction, and the products at value 0. Adds its share to ``terms`` of both columns.

    With features ``f(u) = Au + b`` of the values u, ``f(u)⊗f(v) = Au⊗A'v + Au⊗b' + b⊗A'v + b⊗b'``.
    """
    sides = []
    for column in (pair.left, pair.right):
        own, offset = _terms(column, 0)
        sides.append((own, _rows(own, len(offset)), offset))
    (left, rows, left_offset), (right, columns, right_offset) = sides
    for name, parts in (
        (pair.left.name, [np.outer(row, right_offset) for row in rows]),
        (pair.right.name, [np.outer(left_offset, column) for column in columns]),
    ):
        terms[name] = [
            term._replace(more=(*term.more, (place, part.ravel())))
            for term, part in zip(terms[name], parts, strict=True)
        ]
    products = [
        _Term(
            column=pair.name,
            value=" × ".join(filter(None, (one.value, other.value))),
            per=", ".join(dict.fromkeys((one.per, other.per))),
            span=one.span * other.span,
            place=place.start,
            slope=0.0,
            unseen=one.unseen or other.unseen,
            more=((place, np.outer(row, column).ravel()),),
        )
        for one, row in zip(left, rows, strict=True)
        for other, column in zip(right, columns, strict=True)
    ]
    return products, np.outer(left_offset, right_offset).ravel()


def _terms(column: Column, first: int) -> tuple[list[_Term], Floats]:
    """Return the terms of a column, in its units, and its features at value 0, for the intercept."""
    if names := _values(column):
        # The last name is "other" or "missing". It is part of the average only if there is a single public value.
        counts = np.append(np.ones(len(names) - 1), 1.0 if len(names) == 2 else 0.0)
        average = counts / counts.sum()
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
    """Return the values of one-hot features; empty for other columns."""
    if isinstance(column, Category):
        return [*column.values, OTHER]
    if isinstance(column, Number) and (column.bins or column.knots):
        return [name.removeprefix(f"{column.name} ") for name in column.features]
    return []


def _line(column: Column) -> tuple[float, float, float, str]:
    """Return slope and offset of the feature as a function of the value, the range in units, and the unit."""
    if isinstance(column, Number):
        (low, high), (center, scale) = column.ends, column.line
        unit, per = (math.log(2.0), PER_DOUBLING) if column.transform == "log" else (1.0, PER_UNIT)
        return unit / scale, -center / scale, (high - low) / unit, per
    if isinstance(column, Ordinal):
        return 2.0 / (len(column.values) - 1), -1.0, len(column.values) - 1.0, PER_STEP
    return (2.0, -1.0, 1.0, TRUE_FALSE) if isinstance(column, Boolean) else (1.0, 0.0, 1.0, PER_UNIT)


def _outputs(model: Model) -> tuple[Floats, list[str]]:
    """Return the combinations of scores to explain, and their names. Classes are compared with their mean."""
    p = model.weights.shape[1]
    if model.task != "multiclass":
        return np.eye(1, p), [""]
    return np.eye(p) - 1.0 / p, [str(name) for name in model.class_names]


def _constants(model: Model) -> list[tuple[str, str]]:
    """Return the names (column, value) of the intercepts: one, or one per time interval."""
    if model.label is None or model.label.times is None:
        return [("intercept", "")]
    edges = [0.0, *model.label.times]
    return [("log hazard", f"{low:g} to {high:g}") for low, high in pairwise(edges)]


def _ratios(model: Model) -> str:
    if model.task == "count":
        return "hazard ratio" if model.label is not None and model.label.times is not None else "rate ratio"
    return "odds ratio" if model.loss == "logistic" else ""


def _score(model: Model) -> str:
    if model.task == "count":
        label = model.label
        per = f" per unit of {label.exposure}" if label is not None and label.exposure is not None else ""
        quantity = "log hazard" if label is not None and label.times is not None else "log rate"
        return f"{quantity} of {label.column if label else 'the count'}{per}"
    if model.task == "regression":
        return model.label.column if model.label else "the prediction"
    if model.task == "multiclass":
        return "log odds of a class against the average of the classes"
    words = "log odds" if model.has_probabilities else "score"
    return f"{words} of {model.class_names[-1]!s} against {model.class_names[0]!s}"


def _weights(model: Model) -> str:
    """Return the note about weights of rows. Empty without weights."""
    label = model.label
    if label is None or not label.weighted:
        return ""
    by = [] if label.weight is None else [f"{label.weight} (up to {label.weight_bound:g})"]
    if label.class_weight is not None:
        by.append(f"class ({', '.join(f'{name} {weight:g}' for name, weight in label.class_weight.items())})")
    note = f"Rows were weighted by {' and by '.join(by)}: coefficients describe the weighted rows."
    if label.class_weight is not None:
        note += " Class weights shift the intercept, and with it every probability, towards the heavier classes."
    return f"{note} {CONSERVATIVE}" if model.covariance is not None else note


def _clipping_note(model: Model) -> str:
    """Return the note about clipped rows. Empty if no row can be clipped."""
    effect = "for a clipped row, all coefficients are smaller by the same factor."
    if model.schema is None:
        return f"Rows are clipped to a norm of 1; {effect}" if model.clip else ""
    if model.schema.bounded:
        return ""
    return f"Rows are clipped to row_norm {model.schema.scale:g}; {effect}"
