"""One formula run in three ways: NumPy over rows, NumPy on one row, and compiled on one row."""

from __future__ import annotations

from functools import cache

import numba
import numpy as np
from cases import LOSS_CASES, grid, random_labels, random_scores
from looping import case

from dpadmm.losses import slopes

compiled = cache(numba.njit)  # losses that differ only in parameters share machine code


def _row_by_row(formula, loss, labels, scores):
    parameters, by_output = np.array(loss.parameters, dtype=float), np.ascontiguousarray(scores.T)
    out = np.full_like(by_output, np.nan)
    for i in range(len(labels)):
        formula(i, labels, by_output, parameters, out)
    return out.T


def _rows(loss):
    rng = np.random.default_rng(2)
    blocks = [(random_labels(loss, rng, 100), random_scores(loss, rng, 100, scale)) for scale in (1.0, 50.0)]
    blocks.append(grid(loss, [-1e300, -1.0, 1.0, 1e300]))
    return np.concatenate([labels for labels, _ in blocks]), np.concatenate([scores for _, scores in blocks])


def test_one_row_and_many_rows_agree():
    for loss in LOSS_CASES:
        with case(loss):
            labels, scores = _rows(loss)
            alone = _row_by_row(loss.formula, loss, labels, scores)
            np.testing.assert_array_max_ulp(alone, slopes(loss, labels, scores), maxulp=1)


def test_compiled_and_numpy_agree():
    for loss in LOSS_CASES:
        with case(loss):
            labels, scores = _rows(loss)
            alone = _row_by_row(compiled(loss.formula), loss, labels, scores)
            # the compiler's exp may differ from NumPy's in the last bits, everything else is exact
            np.testing.assert_allclose(alone, slopes(loss, labels, scores), rtol=1e-15, atol=1e-15)
