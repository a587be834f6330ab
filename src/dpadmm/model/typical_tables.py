"""Typical tables of a public schema: what rows might look like, without any.

A table is made from standard normal numbers, a few for every column: where within its bounds a number lies
and how widely, how frequent every category is, how the column goes along with others. Drawn at random they
show what ignorance is worth; ``standard_error`` moves them to where they agree with the public transcript.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, log_ndtr, ndtr

from dpadmm._base.arrays import Floats
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Plain
from dpadmm.optim.features import BESIDE_INTERCEPT, with_intercept
from dpadmm.study.study import Study

N_ROWS = 500

MISSING, MISSING_SPREAD, MOST_MISSING = 0.03, 0.8, 0.4
"""Share of missing cells, and of categories that are none of the public ones: typical, and its (logarithmic)
spread."""

LOW, TOGETHER_LOW, CENTER = -0.15, 0.2, 0.25
"""Means of numbers within −1 … 1: rather low, as most have a long tail; all alike, and each on its own."""

AMOUNT, AMOUNT_SPREAD = -0.5, 0.3
"""The same for numbers from 0 on, most of which are far below their upper bound."""

WELL_WITHIN = 0.6

WIDTH, WIDTH_SPREAD = 0.3, 0.5
"""Standard deviation of numbers within −1 … 1: typical, and its (logarithmic) spread."""

RARE = 0.8
"""Booleans: shares of a beta distribution of this shape, since many are rare, or nearly always true."""

TOGETHER = 0.7
"""Strength with which columns go along with two hidden ones."""

UNKNOWN_LENGTH = 0.8
"""Mean squared length of rows of which no more is known than that it is at most 1."""


class TypicalTable:
    """One table as it might be; ``parameters[j]`` are the standard normal numbers of column j."""

    def __init__(self, study: Study, rng: np.random.Generator) -> None:
        n_features = len(study.features)
        self.columns: tuple[Column | None, ...] = study.schema.columns if study.schema else (None,) * n_features
        self.parameters = [rng.normal(size=_n_parameters(column)) for column in self.columns]
        widths = [len(column.features) if column else 1 for column in self.columns]
        ends = np.cumsum(widths).tolist()
        self.places = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self._intercept = study.training.intercept
        square = 2.0 * np.exp(2.0 * WIDTH_SPREAD**2)  # of an unknown feature, on the average
        unknown = float(np.sqrt(n_features * square / UNKNOWN_LENGTH))
        self._scale = study.schema.scale if study.schema else unknown
        self._hidden = rng.normal(size=(N_ROWS, 2))
        self._own = rng.normal(size=(len(self.columns), N_ROWS))
        self._chance = rng.random((len(self.columns), N_ROWS))
        self._order = [rng.permutation(width) for width in widths]
        self._low = rng.normal(LOW, TOGETHER_LOW)
        self._shrink = np.ones((N_ROWS, 1))

    def rows(self) -> Floats:
        """(rows, d) of length at most 1."""
        self._shrink = np.ones((N_ROWS, 1))
        features = np.hstack([self._features(j, each) for j, each in enumerate(self.parameters)])
        self._shrink = 1.0 / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1.0)
        features *= self._shrink
        return np.asarray(with_intercept(features)) if self._intercept else np.asarray(features)

    def column(self, j: int, parameters: Floats) -> Floats:
        """What column j of ``rows`` would be with other parameters, while rows are shortened as before."""
        return self._features(j, parameters) * (BESIDE_INTERCEPT if self._intercept else 1.0)

    def _features(self, j: int, parameters: Floats) -> Floats:
        column, (first, second, gone), own = self.columns[j], parameters[:3], parameters[3:]
        shape = TOGETHER * (first * self._hidden[:, 0] + second * self._hidden[:, 1]) + self._own[j]
        shape /= shape.std()
        missing = min(MISSING * float(np.exp(MISSING_SPREAD * gone)), MOST_MISSING)
        if column is None:
            values = (shape + own[0]) * np.exp(WIDTH_SPREAD * own[1])
        elif _is_one_hot(column):
            # Values that are not in the alphabet's order are rather in that of a draft: most frequent first
            listed = isinstance(column, Category) and list(column.values) != sorted(column.values)
            shares = np.append(_shares(own, listed=listed) * (1.0 - missing), missing)
            out = np.zeros((N_ROWS, len(shares)))
            place = np.searchsorted(np.cumsum(shares[self._order[j]])[:-1], _ranks(shape))
            out[np.arange(N_ROWS), self._order[j][place]] = 1.0
            return out * (self._shrink / self._scale)
        elif isinstance(column, Boolean):
            values = np.where(_ranks(shape) < betaincinv(RARE, RARE, ndtr(own[0])), 1.0, -1.0)
        elif isinstance(column, Ordinal):
            place = np.searchsorted(np.cumsum(_shares(own))[:-1], _ranks(shape))
            values = place * (2.0 / (len(column.values) - 1)) - 1.0
        else:
            center, spread = _center(column, self._low)
            values = center + spread * own[0] + shape * WIDTH * np.exp(WIDTH_SPREAD * own[1])
            if not isinstance(column, Plain):
                values = np.clip(values, -1.0, 1.0)
        cells = values[:, None]
        if column is not None and not isinstance(column, Plain):
            absent = (self._chance[j] < missing)[:, None]
            cells = np.where(absent, 0.0, cells)
            if len(column.features) == 2:
                cells = np.hstack([cells, absent])
        return np.asarray(cells * (self._shrink / self._scale))


def _is_one_hot(column: Column) -> bool:
    return isinstance(column, Category) or (isinstance(column, Number) and bool(column.bins))


def _n_parameters(column: Column | None) -> int:
    """Two for the company it keeps, one for missing cells, then its own."""
    if column is not None and _is_one_hot(column):
        return 2 + len(column.features)
    if isinstance(column, Ordinal):
        return 3 + len(column.values)
    return 4 if isinstance(column, Boolean) else 5


def _shares(normals: Floats, *, listed: bool = False) -> Floats:
    """Uniformly distributed shares; ``listed``: in falling order."""
    shares = -log_ndtr(normals)
    if listed:
        shares = np.sort(shares)[::-1]
    return np.asarray(shares / shares.sum())


def _center(column: Column, low: float) -> tuple[float, float]:
    """The mean of a number within −1 … 1, and how uncertain it is; near zero where that is well within."""
    if isinstance(column, Number) and column.transform == "none":
        bottom, top = column.bounds
        zero = -(bottom + top) / (top - bottom)
        if abs(zero) < WELL_WITHIN:
            return zero, 0.5 * CENTER
        if bottom == 0.0:
            return AMOUNT, AMOUNT_SPREAD
    return low, CENTER


def _ranks(values: Floats) -> Floats:
    out = np.empty(len(values))
    out[np.argsort(values)] = (np.arange(len(values)) + 0.5) / len(values)
    return out
