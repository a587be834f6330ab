"""Scale rows by public constants to a norm of at most 1, and convert weights back to the units of the rows.

Each row is scaled independently: ``a = (clamp(x) − centre)/half/norm``. With weights w for ``[0.96·a, 0.28]`` (see
:func:`dpadmm.matrices.clipping.with_intercept`), the score of a row that is not clipped is ``coef·x + intercept``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.utils.validation import validate_data

from dpadmm.data.encoder import MIN_SPREAD, nearly_constant_text
from dpadmm.errors import DataError, StudyError
from dpadmm.estimators.validation import positive
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import BESIDE_INTERCEPT, INTERCEPT, as_matrix, row_norms
from dpadmm.matrices.features import Features
from dpadmm.parameters.fields import nearest

_MISSING = (
    "Input X contains NaN; replace missing values by the middle of their public bounds, or use a study, which does so. "
    "An imputer fitted on the rows would leak, and epsilon does not cover it"
)
_TEXT = (
    "must be numbers; encode categories from a public list (OneHotEncoder with categories=), or use a study. "
    "An encoder fitted on the rows would leak the values that occur"
)

DTYPES = (np.float64, np.float32)


@dataclass(frozen=True, eq=False)
class Encoding:
    """Public constants that scale rows."""

    low: Floats  # (d,) values are clamped to these; infinite without bounds
    high: Floats
    centre: Floats  # (d,) with half, maps bounds to [−1, 1], or standardises; 0 and 1 without either
    half: Floats
    norm: float  # public bound of the norm of a row after that

    def rows(self, features: Any) -> Features:
        """Return scaled rows, without clipping: a row beyond ``norm`` has a norm above 1."""
        matrix: Any = as_matrix(features)
        dtype = matrix.dtype.type
        if isinstance(matrix, csr_array):
            if self.centre.any() or (self.low > 0.0).any() or (self.high < 0.0).any():
                return self.rows(matrix.toarray())  # fitted to dense rows: zeros do not stay zero
            columns = matrix.indices
            values = np.clip(matrix.data, self.low[columns], self.high[columns]) / self.half[columns]
            scaled = (values / self.norm).astype(dtype)
            return csr_array((scaled, matrix.indices, matrix.indptr), shape=matrix.shape)
        with np.errstate(over="ignore"):
            if (
                np.isinf(self.low).all()
                and np.isinf(self.high).all()
                and not self.centre.any()
                and (self.half == 1).all()
            ):
                return matrix / dtype(self.norm)
            return ((np.clip(matrix, self.low, self.high) - self.centre) / self.half / self.norm).astype(dtype)

    def scale(self, intercept: bool) -> float:
        """Return the factor of a row's values, after ``centre`` and ``half``."""
        return (BESIDE_INTERCEPT if intercept else 1.0) / self.norm

    def coefficients(self, weights: Floats, intercept: bool) -> tuple[Floats, Floats]:
        """Return coefficients (p, d) and intercepts (p,) in the units of the rows, from weights (d or d + 1, p)."""
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
    """Return the encoding, and whether its norm was inferred from the rows because no public constant bounds it."""
    d, sparse = int(features.shape[1]), issparse(features)
    low, high = np.full(d, -np.inf), np.full(d, np.inf)
    centre, half, norm = np.zeros(d), np.ones(d), None
    if bounds is not None:
        low, high = _pair(bounds, d, names=names)
        centre = 0.5 * low + 0.5 * high if centred and not sparse else np.zeros(d)
        norm = float(np.sqrt(d))
        max_distance = np.maximum(high - centre, centre - low)
        half = np.where(max_distance > 0.0, max_distance, 1.0)
        if sparse and ((low > 0.0).any() or (high < 0.0).any()):
            raise StudyError("bounds of sparse rows must include 0")
    if center is not None or scale is not None:
        norm = float(np.sqrt(d))
        centre, half = _center_and_scale(center, scale, d, names)
        if centre.any() and (sparse or not centred):
            raise StudyError("center must be 0 for sparse rows and without an intercept; use scale only")
        outside = bounds is not None and ((centre < low) | (centre > high))
        _raise_for_column(outside, "center of {} must lie within its bounds", names)
    if data_norm is not None:
        norm = positive("data_norm", data_norm)
    if norm is not None:
        return Encoding(low, high, centre, half, norm), False
    max_norm = float(row_norms(as_matrix(features)).max())
    if not np.isfinite(max_norm):
        raise DataError("the norm of a row is not finite; scale the columns, or set bounds")
    return Encoding(low, high, centre, half, max_norm or 1.0), True


def nearly_constant(encoding: Encoding, X: Any, names: Sequence[str] | None) -> list[str]:
    """Return a warning for each column that bounds or a scale make nearly constant. For the owner of the rows only."""
    is_scaled = (encoding.half != 1.0) | np.isfinite(encoding.low)
    if issparse(X) or not is_scaled.any():
        return []
    rows = np.asarray(X[:MAX_CHECKED_ROWS], dtype=float)
    spread = ((np.clip(rows, encoding.low, encoding.high) - encoding.centre) / encoding.half).std(axis=0)
    small = [j for j in np.flatnonzero(is_scaled & (spread < MIN_SPREAD)).tolist() if len(np.unique(rows[:100, j])) > 2]
    return [
        f"{f'feature {j + 1}' if names is None else f'column {names[j]!r}'} {nearly_constant_text(float(spread[j]))}"
        for j in small
    ]


MAX_CHECKED_ROWS = 20_000


def _center_and_scale(center: Any, scale: Any, d: int, names: Sequence[str] | None) -> tuple[Floats, Floats]:
    """Return public centers (d,) and scales (d,)."""
    if scale is None:
        raise StudyError("center needs scale, the typical spread of values around center")
    centers = _by_column("center", 0.0 if center is None else center, d, names)
    scales = _by_column("scale", scale, d, names)
    for name, values in (("center", centers), ("scale", scales)):
        _raise_for_column(~np.isfinite(values), f"{name} of {{}} must be a finite number", names)
    _raise_for_column(scales <= 0.0, "scale of {} must be a positive number", names)
    return centers, scales


def _raise_for_column(is_invalid: Any, message: str, names: Sequence[str] | None) -> None:
    """Raise StudyError for the first invalid column, if any."""
    for j in np.flatnonzero(is_invalid)[:1].tolist():
        raise StudyError(message.format(f"feature {j + 1}" if names is None else f"column {names[j]!r}"))


def _by_column(name: str, given: Any, d: int, names: Sequence[str] | None) -> Floats:
    """Return one number per column (d,), from one number, an array, or numbers by column name."""
    ordered = _in_column_order(name, given, names)
    try:
        return np.broadcast_to(_as_numbers(ordered), (d,))
    except (TypeError, ValueError):
        raise StudyError(f"{name} must be one number or {d}, or one by column name, not {given!r:.80}") from None


def _as_numbers(given: Any) -> Floats:
    """Return an array of numbers. Text and booleans raise TypeError, although NumPy would convert them."""
    values = np.asarray(given)
    if values.dtype.kind not in "iuf" and not all(_is_real(value) for value in values.flat):
        raise TypeError("not numbers")
    return values.astype(float)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _in_column_order(name: str, given: Any, names: Sequence[str] | None) -> Any:
    """Return values by column name (a mapping or a pandas series) in the order of the columns; others unchanged."""
    if not isinstance(given, Mapping) and not (names is not None and hasattr(given, "keys")):
        return given
    if names is None:
        raise StudyError(f"{name} by column name needs an X with column names, such as a data frame")
    by_name = dict(given)
    for column in by_name:
        if column not in names:
            raise StudyError(f"{name}: X has no column {column!r:.60}; {nearest(str(column), names)}")
    missing = [repr(column) for column in names if column not in by_name]
    if missing:
        raise StudyError(f"{name} must be given for every column of X; missing: {', '.join(missing[:8])}")
    return [by_name[column] for column in names]


def label_scale(values: Floats, bounds: Any, *, centred: bool) -> tuple[float, float, float, float]:
    """Return (low, high, middle, half) that map labels to [−1, 1]. Without bounds they are inferred from the labels."""
    pair = (values.min(), values.max()) if bounds is None else bounds
    low, high = (float(end[0]) for end in _pair(pair, 1, name="y_bounds"))
    middle = 0.5 * low + 0.5 * high if centred else 0.0
    half = max(high - middle, middle - low)
    return low, high, middle, half if half > 0.0 else 1.0


def _pair(bounds: Any, d: int, name: str = "bounds", names: Sequence[str] | None = None) -> tuple[Floats, Floats]:
    """Return lower and upper bounds (d,), from a pair or from pairs by column name."""
    ordered = _in_column_order(name, bounds, names)
    try:
        pair = zip(*ordered, strict=True) if ordered is not bounds else ordered
        low, high = (np.broadcast_to(_as_numbers(_in_column_order(name, end, names)), (d,)) for end in pair)
    except (TypeError, ValueError):
        size = "one number" if d == 1 else f"one number or {d}"
        raise StudyError(f"{name} must be a pair (low, high), each of {size}, not {bounds!r:.80}") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise StudyError(f"{name} must be finite numbers")
    swapped = np.flatnonzero(low > high)
    if len(swapped):
        j = swapped[0]
        which = f"{name} of feature {j + 1}" if name == "bounds" else name
        raise StudyError(f"{which} must have low <= high, not {low[j]:g} > {high[j]:g}")
    return low, high


def validated(estimator: Any, rows: Any, *y: Any, **options: Any) -> Any:
    """Return rows, and labels if given, after the checks of scikit-learn."""
    try:
        return validate_data(estimator, rows, *y, accept_sparse="csr", dtype=list(DTYPES), **options)
    except ValueError as error:
        raise safe_error(error, rows) from None


def safe_error(error: ValueError, rows: Any) -> ValueError:
    """Return an error of scikit-learn without quoted cells and without advice that would leak."""
    text = str(error)
    if text.startswith("Input X contains NaN"):
        return DataError(_MISSING)
    if text.startswith("could not convert string to float"):  # followed by the cell
        columns = list(getattr(rows, "columns", ()))  # of a data frame; an array has no names
        names = [str(name) for name in columns if not _is_number(rows[name])]
        if not names and _is_number(rows):
            return DataError("y must be numbers, but a label is text")
        which = f"columns {', '.join(map(repr, names[:8]))} of X" if names else "all columns of X"
        return DataError(f"{which} {_TEXT}")
    return error


def _is_number(cells: Any) -> bool:
    try:
        np.asarray(cells, dtype=float)
    except (TypeError, ValueError):
        return False
    return True
