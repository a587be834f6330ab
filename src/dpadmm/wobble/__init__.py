"""How far privacy noise alone moves the weights of a released model, from public values and no rows.

Along its path the consensus obeys a linear recursion: every round adds noise of known size, and the
curvature of the mean loss pulls back what earlier rounds added (``recursion``). The curvature depends on the
rows. It is guessed many times over from the public schema (``typical``); each guess is corrected by the
public transcript and counts by how well it explains that (``transcript``). Nothing here ever sees a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm.arrays import Floats, Integers
from dpadmm.errors import DataError
from dpadmm.problem import Problem
from dpadmm.study import Study
from dpadmm.wobble.recursion import Recursion, recursion_of
from dpadmm.wobble.transcript import Evidence, evidence, transcript_of
from dpadmm.wobble.typical import Guess, guess

__all__ = ["Wobble", "wobble_of"]

GUESSES, FEWER_GUESSES = 32, 12
MANY_WEIGHTS, MOST_WEIGHTS = 150, 600
"""Beyond: fewer guesses; beyond: weights are taken one by one."""

CORRECTED = 12
"""Guesses that are corrected by the transcript: those that explain it best."""

KINK_PASSES, KINK_SHIFTS = 3, (-1.0, 1.0)


@dataclass(frozen=True)
class Wobble:
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


def wobble_of(study: Study, history: Floats, n_rows: Integers) -> Wobble:
    """A model's wobble, from its study, the consensus of every round (t + 1, d, p) and the agents' m."""
    history = np.asarray(history, dtype=float)
    if history.ndim != 3 or history.shape[1:] != study.shape or len(history) < 2:
        raise DataError(f"a history has the shape (rounds + 1, {study.shape[0]}, {study.shape[1]})")
    recursion = recursion_of(study, n_rows, len(history) - 1)
    if history[0].size > MOST_WEIGHTS:
        return Wobble(_one_by_one(study, recursion, history), study.shape)
    many = history[0].size > MANY_WEIGHTS
    guesses = [
        guess(study, recursion, history, seed=seed, diagonal=False)
        for seed in range(FEWER_GUESSES if many else GUESSES)
    ]
    transcript = transcript_of(study.problem, recursion, history)
    seen = [evidence(transcript, study.problem, each.matrix, each.relative) for each in guesses]
    weights = _weights(np.array([each.log_likelihood for each in seen]))
    best = np.argsort(weights)[::-1][:CORRECTED]
    last = history[-1].ravel()
    total = sum(weights[i] * _covariance(guesses[i], seen[i], study.problem, recursion, last) for i in best)
    return Wobble(np.asarray(total / weights[best].sum()), study.shape)


def _weights(log_likelihood: Floats) -> Floats:
    """Shares of guesses by how well they explain the transcript, softened so that a third of them counts.

    All of them are wrong about something; the sharpest would win by a trifle and speak for all weights.
    """
    sharpness, enough = 1.0, len(log_likelihood) / 3.0
    while True:
        weights = np.exp(sharpness * (log_likelihood - log_likelihood.max()))
        weights /= weights.sum()
        if 1.0 / np.sum(weights**2) >= enough:
            return np.asarray(weights)
        sharpness *= 0.8


def _covariance(
    guessed: Guess, seen: Evidence, problem: Problem, recursion: Recursion, model: Floats
) -> Floats:
    """Covariance (dp, dp) of the weights if curvature is as guessed, corrected by the transcript."""
    matrix = guessed.matrix + seen.correction()
    smooth, kinks = _smooth_pull(problem), _kink(problem)
    free = _propagated(matrix + smooth * np.eye(len(matrix)), recursion, guessed.relative)
    if not kinks:
        return free
    local = recursion.local_variance(float(np.trace(matrix)) / len(matrix))[-1]

    def settled(center: Floats, out: Floats) -> Floats:
        for _ in range(KINK_PASSES):
            pull = smooth + kinks * _kink_curvature(center, np.diag(out) + local)
            out = _propagated(matrix + np.diag(pull), recursion, guessed.relative)
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
    guesses = [guess(study, recursion, history, seed=seed, diagonal=True) for seed in range(FEWER_GUESSES)]
    pull = _smooth_pull(study.problem)
    variances = [recursion.variance(each.matrix + pull, each.relative) for each in guesses]
    return np.asarray(np.mean(variances, axis=0))


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
