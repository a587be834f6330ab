"""What the public transcript says about curvature: every step of the consensus is a noisy gradient.

``y_k = b + H ξ_k + noise`` of known size, with y_k the mean gradient that a step reveals, b the gradient at
the start and ξ_k the way from there (in units of curvature, where that changes along the path). The noise of
round k is independent of ξ_k, so this is a regression. Its rounds are few beside the entries of H: it does
not tell H, but which of the tables that might be agree with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.model.standard_error.recursion import Recursion
from dpadmm.optim.problem import Problem

SIGNAL = 0.15
"""How much a model can gain over zero weights, in units of c1²/c3: bounds the gradient at the start."""

TINY = 1e-12


@dataclass(frozen=True)
class Transcript:
    """Gradients (t, dp) that the steps of the consensus reveal, at points (t, dp), and their weights (t,)."""

    gradients: Floats
    points: Floats
    weights: Floats


def transcript_of(problem: Problem, recursion: Recursion, history: Floats) -> Transcript:
    """From the consensus of every round, (t + 1, d, p)."""
    points = history[:-1].reshape(len(history) - 1, -1)
    moved = (history[:-1] - history[1:]) / recursion.mean_steps[:, None, None]
    pull = problem.reg_share * problem.regularizer.gradient(history[:-1])
    return Transcript((moved - pull).reshape(points.shape), points, recursion.gradient_noise**-2.0)


def start_variance(problem: Problem, curvature: Floats) -> Floats:
    """Covariance (dp, dp) of the gradient at the start: what a model can gain is moderate."""
    loss = problem.loss
    gain = SIGNAL * loss.lipschitz**2 / (loss.smoothness or 1.0)
    total = max(float(np.trace(curvature)), TINY)
    return np.asarray(0.5 * gain * (curvature / len(curvature) + curvature @ curvature / total))


@dataclass(frozen=True)
class Evidence:
    """Sums over the rounds from which the likelihood of a curvature follows."""

    second: Floats
    cross: Floats
    way: Floats
    seen: Floats
    start: Floats

    def log_likelihood(self, curvature: Floats) -> float:
        """``Σ w(y·Hξ − ½|Hξ|²) + ½ rᵀ(w + V⁻¹)⁻¹r`` with ``r = Σ w(y − Hξ)``: beside no curvature at all.

        The last part is due to the gradient at the start, which is normal with variance V.
        """
        fit = np.sum((self.cross - 0.5 * curvature @ self.second) * curvature)
        rest = self.seen - curvature @ self.way
        return float(fit + 0.5 * rest @ self.start @ rest)


def evidence(transcript: Transcript, relative: Floats, start: Floats) -> Evidence:
    """The transcript if curvature has this ``relative`` size by round, (t,)."""
    way = np.zeros_like(transcript.points)
    between = 0.5 * (relative[1:] + relative[:-1])[:, None]
    np.cumsum(between * np.diff(transcript.points, axis=0), axis=0, out=way[1:])
    weights, total = transcript.weights[:, None], transcript.weights.sum()
    return Evidence(
        second=(weights * way).T @ way,
        cross=(weights * transcript.gradients).T @ way,
        way=(weights * way).sum(axis=0),
        seen=(weights * transcript.gradients).sum(axis=0),
        start=np.linalg.solve(np.eye(len(start)) + total * start, start),
    )
