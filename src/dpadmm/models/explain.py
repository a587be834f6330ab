"""A model's coefficients in the units of the original columns, with confidence intervals where there are any.

``score = intercept + Σ coefficient · value``, exactly, for every row that training did not clamp or shorten.
A value is the number itself (its binary logarithm after a log), 1 or 0 for true and false, the place of an
ordinal value from 0, and 1 for the category, bin or missing cell a row has. The coefficients of a spline are its
heights at the knots and bounds. The value of an interaction is the product of both columns' values; a column's own
coefficient is then for the average of the other one's values, or for its 0. A missing cell without a feature
of its own has the value in the middle, or the column's center. Standard errors follow from the covariance of the
weights, where the study asked for it (``Model.covariance``): they count the sample and the privacy noise.
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
"""Units of a column's range from which tables tell the change by a power of ten of them."""

NO_INTERVAL = (
    "they need a release of their own, since how far noise moves a coefficient depends on how the columns go together "
    "in private rows; a study asks for it by inference = true under [method]. Coefficients of values that few rows "
    "have may be noise alone"
)
NO_LAST_RELEASE = "the last round, which releases what they are made of, is missing or void"
NOT_CLEAR = (
    "the noise hides how some columns go together. By how much cannot be told from this release: what is hidden is not "
    "seen. dpadmm plan forecasts how many rows would do. The noise falls with the number of rows and with ε (secure "
    "aggregation of n sites: by √n), and fewer columns, or categories that more rows have, leave less to hide. The "
    "coefficients come from steps that were damped by the noise"
)

PORTION = 256
"""Coefficients that are worked out at a time."""


@dataclass(frozen=True)
class Coefficient:
    """The change of the score by one unit (``per``) of a column, or by a category, a bin or ``missing``.

    ``output`` is the class whose score it changes, where there is one score for each. The standard error counts the
    sample and the privacy noise; it is None where no release tells it, or rows say nothing of this coefficient.
    ``span`` is how far the value can go. ``unseen``: no public row had the value, as the study says.
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
    def in_table(self) -> Coefficient:
        """The same for people to read: of a column with a wide range per 100, or per 10,000, and so on.

        It is the power of ten between a hundredth and a tenth of the range, so that ratios differ from 1 visibly.
        """
        if self.per != PER_UNIT or self.span < WIDE:
            return self
        unit = 10.0 ** (math.floor(math.log10(self.span)) - 1)
        error = None if self.standard_error is None else self.standard_error * unit
        value, span = self.coefficient * unit, self.span / unit
        return replace(self, per=f"per {unit:,.0f}", coefficient=value, standard_error=error, span=span)

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Where the coefficient is, with this confidence."""
        if self.standard_error is None:
            return None
        reach = float(ndtri(0.5 + 0.5 * level)) * self.standard_error
        return self.coefficient - reach, self.coefficient + reach

    @property
    def p_value(self) -> float | None:
        """Two-sided, of the coefficient being 0."""
        if not self.standard_error:
            return None
        return float(2.0 * ndtr(-abs(self.coefficient) / self.standard_error))

    def row(self, *, ratios: str) -> dict[str, Any]:
        """Plain values by their tidy names; ``ratios`` is what the exponential of the coefficient is called."""
        low, high = self.interval() or (None, None)
        found = {
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
            found |= {name: None if value is None else ratio(value) for name, value in logs.items()}
        return found

    def as_json(self, *, ratios: str) -> dict[str, Any]:
        return {**self.row(ratios=ratios), "effect_over_range": self.effect, "unseen": self.unseen}


def ratio(logarithm: float) -> float | None:
    """Ratio of odds, rates or hazards; None where it is no finite number."""
    return math.exp(logarithm) if logarithm < 700.0 else None


def ratio_text(logarithm: float) -> str:
    """A ratio with three digits, more if it is close to 1, so that it differs from it; empty if it is no number.

    Examples
    --------
    >>> ratio_text(0.405), ratio_text(-3.5e-05), ratio_text(0.0), ratio_text(800.0)
    ('1.5', '0.999965', '1', '')
    """
    found, apart = ratio(logarithm), abs(math.expm1(min(logarithm, 1.0)))
    if found is None:
        return ""
    return f"{found:.{1 - math.floor(math.log10(apart))}f}" if 1e-12 < apart < 0.005 else f"{found:.3g}"


@dataclass(frozen=True)
class Explanation:
    """All coefficients, largest effect over the column's range first; those of unseen values last.

    ``score`` says what they change, and ``ratios`` what their exponentials are: odds, rate or hazard ratio, or nothing;
    ``unknown`` says why there are no intervals, where there are none.
    """

    score: str
    coefficients: tuple[Coefficient, ...]
    intercepts: tuple[Coefficient, ...]
    unknown: str
    shortened: str
    ratios: str = ""
    weights: str = ""
    """What rows were weighted by, as a sentence."""

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
        """A tidy data frame of pandas, by the names of R's broom: a line for each coefficient, intercepts last."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise DataError("a data frame needs pandas: pip install pandas") from None
        lines = (*self.coefficients, *self.intercepts)
        return DataFrame([_tidy(each, each.row(ratios=self.ratios)) for each in lines])

    def conf_int(self, level: float = LEVEL) -> dict[str, tuple[float, float] | None]:
        """Ends of the intervals by the name of the coefficient; None where rows say nothing of it."""
        if self.unknown:
            raise DataError(f"there are no intervals: {self.unknown}")
        if not 0.0 < level < 1.0:
            raise DataError(f"level must lie between 0 and 1, not {level!r:.60}")
        return {each.name: each.interval(level) for each in (*self.coefficients, *self.intercepts)}

    def summary(self, about: Sequence[str] = ()) -> str:
        """A table as text: estimates with standard errors, p-values and 95% intervals."""
        words = ["", "coef", "std err", "z", "P>|z|", "[0.025", "0.975]", *([self.ratios] if self.ratios else [])]
        lines = [words]
        for each in (each.in_table for each in (*self.coefficients, *self.intercepts)):
            cells = [f"{each.name} ({each.per})" if each.per else each.name, f"{each.coefficient:.4g}"]
            ends, p = each.interval(), each.p_value
            if ends is not None and each.standard_error and p is not None:
                cells += [f"{each.standard_error:.3g}", f"{each.coefficient / each.standard_error:.3f}", f"{p:.3f}"]
                cells += [f"{end:.4g}" for end in ends]
            else:
                cells += [""] * 5
            lines.append([*cells, *([ratio_text(each.coefficient) if each.per else ""] if self.ratios else [])])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        made = [
            "  ".join(f"{cell:<{width}}" if j == 0 else f"{cell:>{width}}" for j, (cell, width) in
                      enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines
        ]  # fmt: skip
        rule = "=" * max(map(len, made))
        notes = [f"No intervals: {self.unknown}."] if self.unknown else [COUNTED]
        notes += [self.weights] if self.weights else []
        return "\n".join([f"Effects on: {self.score}", *about, rule, made[0], "-" * len(rule), *made[1:], rule, *notes])


def _tidy(each: Coefficient, row: dict[str, Any]) -> dict[str, Any]:
    """The same values by other names, and z."""
    names = {"coefficient": "estimate", "standard_error": "std_error", "low": "conf_low", "high": "conf_high"}
    z = each.coefficient / each.standard_error if each.standard_error else None
    found = {"term": each.name} | {names.get(name, name): value for name, value in row.items()}
    place = list(found).index("std_error") + 1
    return dict([*list(found.items())[:place], ("statistic", z), *list(found.items())[place:]])


def alike(value: float, low: float, high: float) -> tuple[str, str, str]:
    """An estimate and the ends of its interval, with as many decimals each: two, more if the interval is narrow."""
    if not all(map(math.isfinite, (value, low, high))):
        return f"{value:.3g}", f"{low:.3g}", f"{high:.3g}"
    usual = 2 if abs(value) < 10.0 else 1 if abs(value) < 100.0 else 0
    width = max(high - low, 1e-6)
    decimals = max(usual, min(6, -math.floor(math.log10(width))))
    told = [f"{each:.{decimals}f}" for each in (value, low, high)]
    return told[0], told[1], told[2]


COUNTED = (
    "Standard errors and 95% intervals count how much a sample of people varies and the privacy noise, for the model "
    "without a penalty."
)
CONSERVATIVE = (
    "Weights ω, from 0 to 1 beside their bound, are sampling weights: a row is one observation. Standard errors take ω "
    "in place of ω², so they are rather too large, the more so the smaller weights are beside the bound."
)


class _Term(NamedTuple):
    """A coefficient as a combination of weights: ``slope`` times one of them, less a column's average.

    ``more`` are places of products with another column, and factors of the weights there.
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
    """The coefficients of a model, in its columns' and its label's units; nothing of any row is needed."""
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

    every: list[Coefficient] = []
    for start in range(0, len(terms), PORTION):
        some = terms[start : start + PORTION]
        every += coefficients(some, _rows(some, len(constant)) / schema.scale)
    return Explanation(
        score=_score(model),
        coefficients=tuple(sorted(every, key=lambda each: (each.unseen, -abs(each.effect)))),
        intercepts=tuple(
            each
            for interval, (name, value) in enumerate(_constants(model))
            for each in coefficients([_Term(name, value, "", 1.0, 0, 1.0)], constant[None], shift, interval)
        ),
        unknown=unknown,
        shortened=_shortened(model),
        weights=_weights(model),
        ratios=_ratios(model),
    )


def in_units(model: Model, rows: Floats, names: Sequence[str], *, shift: float = 0.0) -> Explanation:
    """The same where coefficients are combinations (d, weights) of a model's weights; the last is the intercept."""
    unknown = unknown_because(model, Schema(tuple(map(Plain, names[:-1])), row_norm=1.0))
    values = rows @ model.weights[:, 0]
    values[-1] += shift
    errors = [None] * len(rows) if unknown else standard_errors(model, rows)[:, 0].tolist()
    found = [
        Coefficient(name, "", PER_UNIT * (name is not names[-1]), "", value, error, 1.0)
        for name, value, error in zip(names, values.tolist(), errors, strict=True)
    ]
    return Explanation(_score(model), tuple(found[:-1]), (found[-1],), unknown, "", _ratios(model))


def standard_errors(model: Model, rows: Floats, interval: int = 0) -> Any:
    """Of combinations (n, d) of the weights of one score: (n, 1), None where rows say nothing of a weight in it.

    Where the constant has a weight in each of several intervals, the combinations are of the one named.
    """
    assert model.covariance is not None
    more = len(model.covariance) - len(model.weights)
    rows = np.hstack([rows[:, :-1], rows[:, -1:] * (np.arange(more + 1) == interval)])
    told = ~((rows != 0.0) & (np.diag(model.covariance) == 0.0)).any(axis=1)
    variances = np.einsum("ij,jk,ik->i", rows, model.covariance, rows)
    errors = np.sqrt(np.maximum(variances, 0.0)).astype(object)
    errors[~told] = None
    return errors[:, None]


def unknown_because(model: Model, schema: Schema) -> str:
    """Why there are no intervals; empty if there are.

    Of the directions that rows say nothing of, those are no obstacle in which every category (or bin) of a column goes
    up by as much as the constant goes down: no coefficient depends on them.
    """
    if model.covariance is None:
        asked = bool(model.study.get("method", {}).get("inference")) or model.clearance > 0.0
        if not asked:
            return NO_INTERVAL
        return NOT_CLEAR if model.clearance else NO_LAST_RELEASE
    known, first, dependent = np.diag(model.covariance) > 0.0, 0, 0
    for term in schema.terms:
        width = len(term.features)
        dependent += _dependent(term, known[first : first + width])
        first += width
    dependent -= not model.intercept and dependent > 0
    spectrum = np.linalg.eigvalsh(model.covariance[np.ix_(known, known)])
    silent = np.count_nonzero(spectrum < 1e-12 * spectrum[-1]) if len(spectrum) else 1
    return NOT_CLEAR if silent > dependent else ""


def _dependent(term: Column | Interaction, known: Any) -> int:
    """In how many directions features sum to the constant, or products to what they are products of."""
    if not isinstance(term, Interaction):
        return int(bool(_values(term)) and bool(known.any()))
    cells = known.reshape(len(term.left.features), len(term.right.features))
    by_left, by_right = (int(cells.any(axis=axis).sum()) for axis in (1, 0))
    over_left, over_right = (bool(_values(each)) for each in (term.left, term.right))
    return over_right * by_left + over_left * by_right - (over_left and over_right and bool(known.any()))


def _rows(terms: list[_Term], width: int) -> Floats:
    """Combinations of features, (terms, features)."""
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
    """What all weights mean, in the units of the columns; and all features at value 0, for the intercept."""
    terms: dict[str, list[_Term]] = {}
    offsets: dict[str, Floats] = {}
    first = 0
    for each in schema.terms:
        if isinstance(each, Interaction):
            place = slice(first, first + len(each.features))
            terms[each.name], offsets[each.name] = _products(each, place, terms)
        else:
            terms[each.name], offsets[each.name] = _terms(each, first)
        first += len(each.features)
    return [term for found in terms.values() for term in found], np.concatenate(list(offsets.values()))


def _products(pair: Interaction, place: slice, terms: dict[str, list[_Term]]) -> tuple[list[_Term], Floats]:
    """What weights of products mean, of which a part goes to the ``terms`` of the columns; and the products at 0.

    With features ``f(u) = Au + b`` of the values u, ``f(u)⊗f(v) = Au⊗A'v + Au⊗b' + b⊗A'v + b⊗b'``.
    """
    sides = []
    for column in (pair.left, pair.right):
        own, offset = _terms(column, 0)
        sides.append((own, _rows(own, len(offset)), offset))
    (left, rows, offset), (right, columns, beside) = sides
    for name, parts in (
        (pair.left.name, [np.outer(row, beside) for row in rows]),
        (pair.right.name, [np.outer(offset, column) for column in columns]),
    ):
        terms[name] = [
            term._replace(more=(*term.more, (place, part.ravel())))
            for term, part in zip(terms[name], parts, strict=True)
        ]
    found = [
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
    return found, np.outer(offset, beside).ravel()


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
    if isinstance(column, Number) and (column.bins or column.knots):
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
        return np.eye(1, p), [""]
    return np.eye(p) - 1.0 / p, [str(name) for name in model.class_names]


def _constants(model: Model) -> list[tuple[str, str]]:
    """The column and the value that constants are called by: one, or that of every interval of time."""
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
        what = "log hazard" if label is not None and label.times is not None else "log rate"
        return f"{what} of {label.column if label else 'the count'}{per}"
    if model.task == "regression":
        return model.label.column if model.label else "the prediction"
    if model.task == "multiclass":
        return "log odds of a class against the average of the classes"
    words = "log odds" if model.has_probabilities else "score"
    return f"{words} of {model.class_names[-1]!s} against {model.class_names[0]!s}"


def _weights(model: Model) -> str:
    """The sentences about weights of rows; empty if there were none."""
    label = model.label
    if label is None or not label.weighted:
        return ""
    by = [] if label.weight is None else [f"{label.weight} (up to {label.weight_bound:g})"]
    if label.class_weight is not None:
        by.append(f"class ({', '.join(f'{name} {each:g}' for name, each in label.class_weight.items())})")
    said = f"Rows were weighted by {' and by '.join(by)}: coefficients describe the weighted rows."
    if label.class_weight is not None:
        said += " Class weights shift the intercept, and with it every probability, towards the heavier classes."
    return f"{said} {CONSERVATIVE}" if model.covariance is not None else said


def _shortened(model: Model) -> str:
    """The sentence about rows to which coefficients apply in part only; empty if there are none."""
    same = "are shortened to it; for them all coefficients are smaller by the same factor."
    if model.schema is None:
        return f"Rows longer than 1 {same}" if model.clip else ""
    if model.schema.bounded:
        return ""
    return f"Rows longer than the row_norm {model.schema.scale:g} {same}"
