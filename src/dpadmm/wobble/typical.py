"""Typical rows of a public schema, and the curvature a mean loss would have on them: guesses without rows.

One guess draws at random what is not known of a table: where within its bounds a number lies and how widely,
how frequent every category is, how columns go together. Many guesses show what that ignorance is worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from dpadmm.arrays import Floats
from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Plain, Schema
from dpadmm.features import with_intercept
from dpadmm.losses.base import Loss, slopes
from dpadmm.study import Study
from dpadmm.wobble.recursion import Recursion

N_ROWS = 1000
MISSING = 0.03
"""Share of missing cells, and of categories that are none of the public ones."""

LOW, TOGETHER_LOW, CENTER = -0.15, 0.2, 0.25
"""Means of numbers within −1 … 1: rather low, as most have a long tail; all alike, and each on its own."""

WELL_WITHIN = 0.6

WIDTH, WIDTH_SPREAD = 0.33, 0.6
"""Standard deviation of numbers within −1 … 1: typical, and its (logarithmic) spread."""

RARE = 0.7
"""Booleans: shares of a beta distribution of this shape, since many are rare, or nearly always true."""

TOGETHER = 0.5
"""Strength with which columns go along with two hidden ones."""

POINTS = 8
"""Places on the path where curvature is looked at."""

KINK_STEP = 0.3
"""Losses with kinks get their curvature from differences of slopes so far apart."""


@dataclass(frozen=True)
class Guess:
    """Curvature of the mean loss on typical rows: ``matrix`` (dp, dp), its ``relative`` size by round (t,).

    Where there are very many weights ``matrix`` is the diagonal alone, (dp,).
    """

    matrix: Floats
    relative: Floats


def guess(study: Study, recursion: Recursion, history: Floats, *, seed: int, diagonal: bool) -> Guess:
    """The curvature along a path of the consensus, on typical rows of one random kind."""
    rng = np.random.default_rng(seed)
    rows, loss, rounds = typical_rows(study, rng), study.problem.loss, len(recursion.steps)
    lengths = np.linalg.norm(rows, axis=1)
    local = recursion.local_variance(0.2 * (loss.smoothness or 0.5) / rows.shape[1])
    at = np.unique(np.linspace(0, rounds - 1, min(POINTS, rounds)).astype(int))
    found = []
    for k in at:
        scores = rows @ history[k]
        # agents' gradients are taken at their own models, which lie around the consensus
        scores += np.sqrt(local[k]) * lengths[:, None] * rng.normal(size=scores.shape)
        found.append(_curvatures(loss, scores, rng))
    sizes = np.array([np.einsum("nhh,n->", each, lengths**2) for each in found])
    late = 3 * at >= rounds - 1
    if not sizes[late].any():  # a loss with kinks may be flat there, on these rows
        late[:] = True
    size = sizes[late].mean()
    relative = np.interp(np.arange(rounds), at, sizes / size) if size > 0.0 else np.ones(rounds)
    found = [each for each, used in zip(found, late, strict=True) if used]
    return Guess(_mean_outer(rows, np.mean(found, axis=0), diagonal=diagonal), relative)


def _mean_outer(rows: Floats, curvature: Floats, *, diagonal: bool) -> Floats:
    """Mean of ``aaᵀ ⊗ C`` over the rows, for weights (d, p) laid out row by row."""
    n, d = rows.shape
    p = curvature.shape[1]
    if diagonal:
        return np.asarray((rows**2).T @ np.einsum("nhh->nh", curvature) / n).ravel()
    out = np.empty((d, p, d, p))
    for h in range(p):
        for g in range(p):
            out[:, h, :, g] = (rows * curvature[:, h, g, None]).T @ rows / n
    matrix = out.reshape(d * p, d * p)
    return 0.5 * (matrix + matrix.T)


def _curvatures(loss: Loss, scores: Floats, rng: np.random.Generator) -> Floats:
    """``∂²ℓ/∂s∂s`` of rows whose labels are as the scores say: (rows, p, p)."""
    n, p = scores.shape
    if loss.task == "binary":
        sharpness = 1.0 if loss.name == "logistic" else 2.0
        labels = np.where(rng.random(n) < expit(sharpness * scores[:, 0]), 1.0, -1.0)
    elif loss.task == "regression":
        labels = np.clip(scores[:, 0] + 0.4 * rng.normal(size=n), -1.0, 1.0)
    else:
        labels = np.zeros(n)  # the second derivative does not depend on it
    step, out = 1e-2 if loss.name in ("logistic", "softmax") else KINK_STEP, np.empty((n, p, p))
    for h in range(p):
        ahead, behind = scores.copy(), scores.copy()
        ahead[:, h] += step
        behind[:, h] -= step
        out[:, h] = (slopes(loss, labels, ahead) - slopes(loss, labels, behind)) / (2.0 * step)
    return out


def typical_rows(study: Study, rng: np.random.Generator) -> Floats:
    """(rows, d) rows as they might be, of length at most 1."""
    hidden = rng.normal(size=(N_ROWS, 2))
    if study.schema is None:
        rows = _unknown(len(study.features), hidden, rng)
    else:
        rows = _of_schema(study.schema, hidden, rng)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    if study.settings.intercept:
        rows = np.asarray(with_intercept(rows))
    return rows


def _unknown(d: int, hidden: Floats, rng: np.random.Generator) -> Floats:
    """Columns of which nothing is known but that rows have a length of at most 1."""
    rows = np.column_stack([_shape(hidden, rng) for _ in range(d)]) + rng.normal(size=d)
    rows *= rng.lognormal(0.0, WIDTH_SPREAD, d)
    return np.asarray(rows * 0.8 / np.sqrt((rows**2).sum(axis=1).mean()))


def _of_schema(schema: Schema, hidden: Floats, rng: np.random.Generator) -> Floats:
    low = rng.normal(LOW, TOGETHER_LOW)
    return np.column_stack([_column(column, low, hidden, rng) for column in schema.columns]) / schema.scale


def _column(column: Column, low: float, hidden: Floats, rng: np.random.Generator) -> Floats:
    shape, width = _shape(hidden, rng), len(column.features)
    if isinstance(column, Category) or (isinstance(column, Number) and column.bins):
        shares = np.append(rng.dirichlet(np.ones(width - 1)) * (1.0 - MISSING), MISSING)
        order = rng.permutation(width)
        place = np.searchsorted(np.cumsum(shares[order])[:-1], _ranks(shape))
        out = np.zeros((len(shape), width))
        out[np.arange(len(shape)), order[place]] = 1.0
        return out
    if isinstance(column, Boolean):
        values = np.where(_ranks(shape) < rng.beta(RARE, RARE), 1.0, -1.0)
    elif isinstance(column, Ordinal):
        steps = len(column.values) - 1
        shares = rng.dirichlet(np.ones(steps + 1))
        values = np.searchsorted(np.cumsum(shares)[:-1], _ranks(shape)) * (2.0 / steps) - 1.0
    else:
        values = _center(column, low, rng) + shape * rng.lognormal(np.log(WIDTH), WIDTH_SPREAD)
        if not isinstance(column, Plain):
            values = np.clip(values, -1.0, 1.0)
    if width == 1:
        return values[:, None]
    missing = rng.random(len(shape)) < MISSING
    return np.column_stack([np.where(missing, 0.0, values), missing])


def _center(column: Column, low: float, rng: np.random.Generator) -> float:
    """The mean of a number within −1 … 1: near zero itself where that lies well within the bounds."""
    if isinstance(column, Number) and column.transform == "none":
        bottom, top = column.bounds
        zero = -(bottom + top) / (top - bottom)
        if abs(zero) < WELL_WITHIN:
            return rng.normal(zero, 0.5 * CENTER)
    return rng.normal(low, CENTER)


def _shape(hidden: Floats, rng: np.random.Generator) -> Floats:
    """Standardised values that go along with hidden ones."""
    values = TOGETHER * hidden @ rng.normal(size=hidden.shape[1]) + rng.normal(size=len(hidden))
    return np.asarray(values / values.std())


def _ranks(values: Floats) -> Floats:
    return np.asarray((np.argsort(np.argsort(values)) + 0.5) / len(values))
