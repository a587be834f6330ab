"""From rows in any units to rows of norm ≤ 1 and back, by public constants; each row on its own.

``a = (clamp(x) − centre)/half/norm``. With weights w for ``[0.96·a, 0.28]`` (see
:func:`dpadmm.matrices.clipping.with_intercept`) the score of a row that is not clipped is
``coef·x + intercept``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.utils.validation import validate_data

from dpadmm.errors import DataError, StudyError
from dpadmm.estimators.validation import positive
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT, as_matrix, row_norms
from dpadmm.matrices.features import Features
from dpadmm.parameters.fields import nearest

_MISSING = (
    "Input X contains NaN, and a cell must be a number: fill missing ones with the middle of their public "
    "bounds, or use a study, which does so. An imputer fitted on the rows leaks, and nothing counts it"
)
_TEXT = (
    "must be numbers: encode categories from a public list (OneHotEncoder with categories=), or use a study. "
    "An encoder that is fitted on the rows leaks which values there are"
)

KINDS = (np.float64, np.float32)


@dataclass(frozen=True, eq=False)
class Encoding:
    """How rows are scaled."""

    low: Floats  # (d,) values are clamped to these; infinite without bounds
    high: Floats
    centre: Floats  # (d,) with half, maps bounds to [−1, 1], or standardises; 0 and 1 without either
    half: Floats
    norm: float  # public bound of the norm of a row after that

    def rows(self, features: Any) -> Features:
        """Rows scaled; those beyond ``norm`` are still longer than 1."""
        matrix: Any = as_matrix(features)
        kind = matrix.dtype.type
        if isinstance(matrix, csr_array):
            if self.centre.any() or (self.low > 0.0).any() or (self.high < 0.0).any():
                return self.rows(matrix.toarray())  # fitted to dense rows, where zeros move
            of = matrix.indices
            values = np.clip(matrix.data, self.low[of], self.high[of]) / self.half[of]
            scaled = (values / self.norm).astype(kind)
            return csr_array((scaled, matrix.indices, matrix.indptr), shape=matrix.shape)
        with np.errstate(over="ignore"):
            if (
                np.isinf(self.low).all()
                and np.isinf(self.high).all()
                and not self.centre.any()
                and (self.half == 1).all()
            ):
                return matrix / kind(self.norm)
            return ((np.clip(matrix, self.low, self.high) - self.centre) / self.half / self.norm).astype(kind)

    def scale(self, intercept: bool) -> float:
        """What a row's numbers are multiplied by, after the bounds."""
        return (BESIDE_INTERCEPT if intercept else 1.0) / self.norm

    def coefficients(self, weights: Floats, intercept: bool) -> tuple[Floats, Floats]:
        """Weights (d or d + 1, p) in the units of the rows as they came: (p, d), and the intercept's (p,)."""
        d = len(self.half)
        coef = weights[:d].T * self.scale(intercept) / self.half
        constant = weights[d] * INTERCEPT if intercept else np.zeros(weights.shape[1])
        return coef, constant - coef @ self.centre


def encoding_of(
    features: Any,
    *,
    data_norm: Any,
    bounds: Any,
    centred: bool,
    center: Any = None,
    scale: Any = None,
    names: Sequence[str] | None = None,
) -> tuple[Encoding, bool]:
    """The encoding that public numbers name, and whether the norm had to be read off the rows instead."""
    d, sparse = int(features.shape[1]), hasattr(features, "tocsr")
    low, high = np.full(d, -np.inf), np.full(d, np.inf)
    centre, half, norm = np.zeros(d), np.ones(d), None
    if bounds is not None:
        low, high = _pair(bounds, d, names=names)
        centre = 0.5 * low + 0.5 * high if centred and not sparse else np.zeros(d)
        norm = float(np.sqrt(d))
        reach = np.maximum(high - centre, centre - low)
        half = np.where(reach > 0.0, reach, 1.0)
        if sparse and ((low > 0.0).any() or (high < 0.0).any()):
            raise StudyError("bounds of sparse rows must include 0, which most of their values are")
    if center is not None or scale is not None:
        norm = float(np.sqrt(d))
        centre, half = _standard(center, scale, d, names)
        if centre.any() and (sparse or not centred):
            raise StudyError("center must be 0 for sparse rows and without an intercept; give scale alone")
        _refuse(
            bounds is not None and ((centre < low) | (centre > high)), "center of {} must lie within its bounds", names
        )
    if data_norm is not None:
        norm = positive("data_norm", data_norm)
    if norm is not None:
        return Encoding(low, high, centre, half, norm), False
    longest = float(row_norms(as_matrix(features)).max())
    if not np.isfinite(longest):
        raise DataError("a row is too long for its norm to be a number; scale the columns, or give bounds")
    return Encoding(low, high, centre, half, longest or 1.0), True


def _standard(center: Any, scale: Any, d: int, names: Sequence[str] | None) -> tuple[Floats, Floats]:
    if scale is None:
        raise StudyError("center needs a scale beside it: the usual distance of values from center")
    found = [_by_column("center", 0.0 if center is None else center, d, names), _by_column("scale", scale, d, names)]
    for name, values in zip(("center", "scale"), found, strict=True):
        _refuse(~np.isfinite(values), f"{name} of {{}} must be a finite number", names)
    _refuse(found[1] <= 0.0, "scale of {} must be a positive number", names)
    return found[0], found[1]


def _refuse(wrong: Any, sentence: str, names: Sequence[str] | None) -> None:
    """The sentence, about the first column that is wrong."""
    for j in np.flatnonzero(wrong)[:1].tolist():
        raise StudyError(sentence.format(f"feature {j + 1}" if names is None else f"column {names[j]!r}"))


def _by_column(name: str, given: Any, d: int, names: Sequence[str] | None) -> Floats:
    """One number for all columns, one for each, or one by column name: (d,)."""
    ordered = _ordered(name, given, names)
    try:
        return np.broadcast_to(_numbers(ordered), (d,))
    except (TypeError, ValueError):
        raise StudyError(f"{name} must be one number or {d}, or one by column name, not {given!r:.80}") from None


def _numbers(given: Any) -> Floats:
    """One number or several; NumPy would also take text and booleans for numbers."""
    found = np.asarray(given)
    if found.dtype.kind not in "iuf" and not all(_is_real(each) for each in found.flat):
        raise TypeError("not numbers")
    return found.astype(float)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _ordered(name: str, given: Any, names: Sequence[str] | None) -> Any:
    """What is given by column name (a mapping, a series of pandas) in the order of the columns."""
    if not isinstance(given, Mapping) and not (names is not None and hasattr(given, "keys")):
        return given
    if names is None:
        raise StudyError(f"{name} by column name needs an X with column names, such as a data frame")
    by_name = dict(given)
    for each in by_name:
        if each not in names:
            raise StudyError(f"{name}: X has no column {each!r:.60}; {nearest(str(each), names)}")
    missing = [repr(each) for each in names if each not in by_name]
    if missing:
        raise StudyError(f"{name} must be given for every column of X; missing: {', '.join(missing[:8])}")
    return [by_name[each] for each in names]


def label_scale(values: Floats, bounds: Any, *, centred: bool) -> tuple[float, float, float, float]:
    """(low, high, middle, half) that map labels to [−1, 1]; read off the labels where bounds are missing."""
    given = (values.min(), values.max()) if bounds is None else bounds
    low, high = (float(each[0]) for each in _pair(given, 1, name="y_bounds"))
    middle = 0.5 * low + 0.5 * high if centred else 0.0
    half = max(high - middle, middle - low)
    return low, high, middle, half if half > 0.0 else 1.0


def _pair(bounds: Any, d: int, name: str = "bounds", names: Sequence[str] | None = None) -> tuple[Floats, Floats]:
    ordered = _ordered(name, bounds, names)
    try:
        pair = zip(*ordered, strict=True) if ordered is not bounds else ordered
        low, high = (np.broadcast_to(_numbers(_ordered(name, each, names)), (d,)) for each in pair)
    except (TypeError, ValueError):
        each = "one number" if d == 1 else f"one number or {d}"
        raise StudyError(f"{name} must be a pair (low, high), each of {each}, not {bounds!r:.80}") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise StudyError(f"{name} must be finite numbers")
    wrong = np.flatnonzero(low > high)
    if len(wrong):
        raise StudyError(
            f"{name} of feature {wrong[0] + 1} are upside down: {low[wrong[0]]:g} > {high[wrong[0]]:g}"
            if name == "bounds"
            else f"{name} are upside down: {low[0]:g} > {high[0]:g}"
        )
    return low, high


def validated(estimator: Any, rows: Any, *y: Any, **how: Any) -> Any:
    """Rows, and labels, as scikit-learn checks them."""
    try:
        return validate_data(estimator, rows, *y, accept_sparse="csr", dtype=list(KINDS), **how)
    except ValueError as error:
        raise refusal(error, rows) from None


def refusal(error: ValueError, rows: Any) -> ValueError:
    """Rows that scikit-learn refuses, in words that do not lead to a leak; any other error as it is."""
    said = str(error)
    if said.startswith("Input X contains NaN"):
        return DataError(_MISSING)
    if said.startswith("could not convert string to float"):  # and it quotes the cell
        columns = list(getattr(rows, "columns", ()))  # of a data frame; an array has no names
        names = [str(name) for name in columns if not _is_number(rows[name])]
        if not names and _is_number(rows):
            return DataError("y must be numbers, and a label is text")
        which = f"columns {', '.join(map(repr, names[:8]))} of X" if names else "all columns of X"
        return DataError(f"{which} {_TEXT}")
    return error


def _is_number(cells: Any) -> bool:
    try:
        np.asarray(cells, dtype=float)
    except (TypeError, ValueError):
        return False
    return True
