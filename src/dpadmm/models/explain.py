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
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dpadmm.data.schema import OTHER, Boolean, Category, Column, Interaction, Number, Ordinal, Plain, Schema
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT
from dpadmm.models.explanation import (
    AGAINST_AVERAGE,
    CONSERVATIVE,
    MISSING,
    PER_DOUBLING,
    PER_STEP,
    PER_UNIT,
    TRUE_FALSE,
    Coefficient,
    Explanation,
)
from dpadmm.models.model import Model

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
    reason = why_no_intervals(model, schema)

    def coefficients(terms: list[_Term], rows: Floats, shift: float = 0.0, interval: int = 0) -> list[Coefficient]:
        rows = rows * (share * scale)
        values = rows @ model.weights @ np.roll(outputs, interval, axis=1).T + shift
        errors = np.full(values.shape, None) if reason else standard_errors(model, rows, interval)
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
        no_intervals_because=reason,
        clipping=_clipping_note(model),
        weighting=_weighting_note(model),
        ratios=_ratios(model),
    )


def in_units(model: Model, rows: Floats, names: Sequence[str], *, shift: float = 0.0) -> Explanation:
    """Return the coefficients that are given combinations (d, n_weights) of the weights; the last is the intercept."""
    reason = why_no_intervals(model, Schema(tuple(map(Plain, names[:-1])), row_norm=1.0))
    values = rows @ model.weights[:, 0]
    values[-1] += shift
    errors = [None] * len(rows) if reason else standard_errors(model, rows)[:, 0].tolist()
    lines = [
        Coefficient(name, "", PER_UNIT * (name is not names[-1]), "", value, error, 1.0)
        for name, value, error in zip(names, values.tolist(), errors, strict=True)
    ]
    return Explanation(_score(model), tuple(lines[:-1]), (lines[-1],), reason, ratios=_ratios(model))


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


def why_no_intervals(model: Model, schema: Schema) -> str:
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
        unseen = column.unseen if isinstance(column, Category) else ()
        return [
            _Term(column.name, name, AGAINST_AVERAGE, 1.0, place, 1.0, against, name in unseen)
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


def _weighting_note(model: Model) -> str:
    """Return the note about weights of rows. Empty without weights."""
    if model.label is None or not model.label.weighted:
        return ""
    label = model.label.normalized()  # class weights in the order of the classes
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
