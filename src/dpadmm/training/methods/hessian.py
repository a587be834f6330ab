"""The Hessian of the data term, for Newton steps."""

from __future__ import annotations

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.optim import kernels
from dpadmm.optim.losses import curvatures
from dpadmm.optim.problem import Problem, Rows


def data_hessian(problem: Problem, rows: Rows, weights: Floats) -> Floats:
    """Hessian of the data term, (dp × dp), all agents counting the same.

    It has a trace of ridge, so that it can be factored.
    """
    d, p = weights.shape
    points = np.broadcast_to(weights, (rows.n_agents, d, p))
    curved = curvatures(problem.loss, rows.labels, kernels.scores(rows, points))
    curved /= (rows.n_agents * np.repeat(rows.n_rows, rows.n_rows))[:, None, None]
    total = np.zeros((d, p, d, p))
    for first in range(0, len(rows.labels), 8192):
        part = slice(first, first + 8192)
        a = rows.features[rows.order[part]]
        for g in range(p):
            for h in range(g, p):
                block = _dense(a.T @ _scaled(a, curved[part, g, h]))
                total[:, g, :, h] += block
                if h > g:
                    total[:, h, :, g] += block
    matrix = total.reshape(d * p, d * p)
    ridge = 1e-9 * max(float(np.trace(matrix)) / len(matrix), 1e-9)
    return matrix + ridge * np.eye(len(matrix))


def _scaled(features: Floats, by: Floats) -> Floats:
    return features.multiply(by[:, None]).tocsr() if hasattr(features, "multiply") else features * by[:, None]


def _dense(matrix: Floats) -> Floats:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
