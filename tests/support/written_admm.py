"""Parts of ADMM written out agent by agent, with local solves by plain gradient descent."""

from __future__ import annotations

import numpy as np

from dpadmm import kernels
from dpadmm.engine.loop import Outcome, train
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Method
from dpadmm.queries.problem import Problem, Rows


def run(method: Method, problem: Problem, rows: Rows, n_rounds: int, **options: object) -> Outcome:  # type: ignore[type-arg]
    noise = SimulatedNoise(3, rows.n_agents, (rows.n_features, problem.loss.n_outputs))
    return train(method, problem, rows, n_rounds=n_rounds, noise=noise, **options)  # type: ignore[arg-type]


def slope(problem: Problem, rows: Rows, w: Floats) -> Floats:
    """f_i'(w) of a cohort of one."""
    data = kernels.gradient(rows, w[None], problem.loss, bound=np.inf)[0]
    return np.asarray(data + problem.alpha * problem.regularizer.gradient(w))


def argmin(problem: Problem, rows: Rows, i: int, center: Floats, pull: float) -> Floats:
    """``argmin f_i(w) + (pull/2)‖w − center‖²``."""
    alone, w = rows.agent(i), np.zeros_like(center)
    step = 1.0 / ((problem.loss.smoothness or 0.0) + problem.alpha + pull)
    for _ in range(400):
        w = w - step * (slope(problem, alone, w) + pull * (w - center))
    return w
