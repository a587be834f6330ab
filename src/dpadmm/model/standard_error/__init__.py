"""How far privacy noise alone moves the weights of a released model, from public values and no rows.

Along its path the consensus obeys a linear recursion: every round adds noise of known size, and the
curvature of the mean loss pulls back what earlier rounds added (``recursion``). The curvature depends on the
rows. It is that of tables that might be, by the public schema (``typical``), and that agree with the public
transcript (``transcript``, ``posterior``). Nothing here ever sees a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import DataError
from dpadmm.model.standard_error.curvature import curvature_along, mean_square, spread_of_agents
from dpadmm.model.standard_error.posterior import Guess, guesses
from dpadmm.model.standard_error.recursion import Recursion, recursion_of
from dpadmm.model.standard_error.typical import TypicalTable
from dpadmm.optim.problem import Problem
from dpadmm.study.study import Study

__all__ = ["NoiseError", "noise_error_of"]

MOST_WEIGHTS, TABLES = 600, 12
"""Beyond so many, weights are taken one by one, and from so many typical tables."""

KINK_PASSES, KINK_SHIFTS = 3, (-1.0, 1.0)


@dataclass(frozen=True)
class NoiseError:
    """Covariance of the weights (d, p), laid out row by row, that privacy noise alone gives them.

    ``covariance`` is (dp, dp), or its diagonal (dp,) where there are very many weights.
    """

    covariance: Floats
    shape: tuple[int, int]

    @property
    def std(self) -> Floats:
        """Standard deviation of every weight: (d, p)."""
        variance = self.covariance if self.covariance.ndim == 1 else np.diag(self.covariance)
        return np.sqrt(variance).reshape(self.shape)

    def std_of(self, combinations: Floats) -> Floats:
        """Standard deviation of linear combinations of the weights: (q, dp) -> (q,)."""
        if self.covariance.ndim == 1:
            return np.asarray(np.sqrt(combinations**2 @ self.covariance))
        return np.asarray(np.sqrt(np.einsum("qi,qi->q", combinations @ self.covariance, combinations)))


def noise_error_of(study: Study, history: Floats, n_rows: Integers) -> NoiseError:
    """Noise standard errors, from a study, the consensus of every round (t + 1, d, p) and the agents' m."""
    history = np.asarray(history, dtype=float)
    if history.ndim != 3 or history.shape[1:] != study.shape or len(history) < 2:
        raise DataError(f"a history has the shape (rounds + 1, {study.shape[0]}, {study.shape[1]})")
    recursion = recursion_of(study, n_rows, len(history) - 1)
    if history[0].size > MOST_WEIGHTS:
        return NoiseError(_one_by_one(study, recursion, history), study.shape)
    last = history[-1].ravel()
    covariances = [
        _covariance(each, study.problem, recursion, last) for each in guesses(study, recursion, history)
    ]
    return NoiseError(np.mean(covariances, axis=0), study.shape)


def _covariance(guess: Guess, problem: Problem, recursion: Recursion, model: Floats) -> Floats:
    """Covariance (dp, dp) of the weights if curvature is as guessed."""
    matrix, relative = guess.matrix, guess.relative
    smooth, kinks = _smooth_pull(problem), _kink(problem)
    free = _propagated(matrix + smooth * np.eye(len(matrix)), recursion, relative)
    if not kinks:
        return free
    local = recursion.local_variance(float(np.trace(matrix)) / len(matrix))[-1]

    def settled(center: Floats, out: Floats) -> Floats:
        for _ in range(KINK_PASSES):
            pull = smooth + kinks * _kink_curvature(center, np.diag(out) + local)
            out = _propagated(matrix + np.diag(pull), recursion, relative)
        return out

    here = settled(model, free)
    # in another run a weight may be at the kink, or away from it
    others = [settled(model + shift * np.sqrt(np.diag(here)), here) for shift in KINK_SHIFTS]
    return np.asarray(np.mean([here, *others], axis=0))


def _propagated(curvature: Floats, recursion: Recursion, relative: Floats) -> Floats:
    size, directions = np.linalg.eigh(curvature)
    return np.asarray((directions * recursion.variance(np.maximum(size, 0.0), relative)) @ directions.T)


def _one_by_one(study: Study, recursion: Recursion, history: Floats) -> Floats:
    """Variances (dp,) without regard to how weights go together, which with so many hardly matters."""
    pull, total = _smooth_pull(study.problem), np.zeros(history[0].size)
    spread = spread_of_agents(recursion, study.problem.loss, history.shape[1])
    for seed in range(TABLES):
        rng = np.random.default_rng(seed)
        rows = TypicalTable(study, rng).rows()
        found = curvature_along(history, rows, loss=study.problem.loss, spread=spread, rng=rng)
        total += recursion.variance(mean_square(rows, found.of_rows) + pull, found.relative)
    return np.asarray(total / TABLES)


def _smooth_pull(problem: Problem) -> float:
    return problem.reg_share * problem.regularizer.convexity


def _kink(problem: Problem) -> float:
    """λ/n times the regularizer's slope on either side of zero, for those with a kink there."""
    rise = problem.regularizer.gradient(np.array([[1e-12]]))[0, 0]
    return float(problem.reg_share * rise) if problem.regularizer.smoothness is None else 0.0


def _kink_curvature(model: Floats, variance: Floats) -> Floats:
    """Mean curvature of |w| for w spread around the model: ``2φ(w/τ)/τ``."""
    spread = np.sqrt(variance)
    return np.asarray(np.sqrt(2.0 / np.pi) * np.exp(-0.5 * (model / spread) ** 2) / spread)
