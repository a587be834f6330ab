"""What the public transcript says about curvature: every step of the consensus is a noisy gradient.

``y_k = b + H ξ_k + noise`` of known size, with y_k the mean gradient that a step reveals, b the gradient at
the start and ξ_k the way from there (in units of curvature, where that changes along the path). The noise of
round k is independent of ξ_k, so this is a regression; but its rounds are few beside the entries of H. So a
guess of H is not replaced but corrected: in the guess's own coordinates the correction U is the identity
unless the transcript speaks against it (a Wishart-like penalty), and the gradient at the start is moderate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from dpadmm.arrays import Floats
from dpadmm.problem import Problem
from dpadmm.wobble.recursion import Recursion

TRUST = 20.0
"""ν of the penalty ``ν/2 (tr U − ln det U)``: a guess counts as much as so many clear rounds."""

SIGNAL = 0.15
"""How much a model can gain over zero weights, in units of c1²/c3: bounds the gradient at the start."""

MOST_DIRECTIONS = 120
"""Of a guess, those of most curvature are corrected; in the others noise is hardly pulled back anyway."""

FLAT = 1e-7
"""Curvature below this share of the largest is none."""

TINY = 1e-12

ITERATIONS = 80


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


@dataclass(frozen=True)
class Evidence:
    """The transcript in coordinates of one guess ``H0 = BBᵀ``: log-likelihood of ``H = B U Bᵀ`` in U.

    It is ``Σ(C∘U) − ½ tr(ΛUSU) + ½ Σ_q Λ_q g_q (Uz)_q²``; the last part is due to the unknown gradient at the
    start.
    """

    basis: Floats
    curvature: Floats
    second: Floats
    cross: Floats
    first: Floats
    start: Floats

    @property
    def log_likelihood(self) -> float:
        """Of the guess itself, U = 1, beside no curvature at all."""
        spread = self.curvature @ np.diag(self.second) - self.curvature * self.start @ self.first**2
        return float(np.trace(self.cross) - 0.5 * spread)

    def correction(self) -> Floats:
        """``B (U − 1) Bᵀ`` with the most plausible U: what to add to the guess."""
        r = len(self.curvature)
        if r == 0:
            return np.zeros((len(self.basis), len(self.basis)))

        def cost(flat: Floats) -> tuple[float, Floats]:
            root = flat.reshape(r, r)
            u = root @ root.T
            pulled = (self.curvature[:, None] * u) @ self.second
            first = u @ self.first
            started = self.curvature * self.start * first
            slope = pulled - np.outer(started, self.first) - self.cross
            value = 0.5 * np.sum(pulled * u) - 0.5 * started @ first - np.sum(self.cross * u)
            value += 0.5 * TRUST * (np.trace(u) - 2.0 * np.linalg.slogdet(root)[1])
            gradient = (slope + slope.T) @ root + TRUST * (root - np.linalg.inv(root).T)
            return float(value), gradient.ravel()

        best = minimize(cost, np.eye(r).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS})
        root = best.x.reshape(r, r)
        return np.asarray(self.basis @ (root @ root.T - np.eye(r)) @ self.basis.T)


def evidence(transcript: Transcript, problem: Problem, guess: Floats, relative: Floats) -> Evidence:
    """The transcript beside a guess (dp, dp) of curvature, whose size by round is ``relative`` (t,)."""
    size, directions = np.linalg.eigh(guess)
    chosen = size > FLAT * max(size[-1], TINY)
    chosen[:-MOST_DIRECTIONS] = False
    size, directions = size[chosen], directions[:, chosen]
    basis = directions * np.sqrt(size)
    way = np.zeros_like(transcript.points)
    between = 0.5 * (relative[1:] + relative[:-1])[:, None]
    np.cumsum(between * np.diff(transcript.points, axis=0), axis=0, out=way[1:])
    places, weights = way @ basis, transcript.weights[:, None]
    loss = problem.loss
    gain = SIGNAL * loss.lipschitz**2 / (loss.smoothness or 1.0)
    start = gain * size * 0.5 * (1.0 / max(len(size), 1) + size / max(size.sum(), TINY))  # variance of b
    known = 1.0 / (weights.sum() + 1.0 / start)
    first, seen = (weights * places).sum(axis=0), (weights * (transcript.gradients @ basis)).sum(axis=0)
    cross = (weights * (transcript.gradients @ basis)).T @ places - np.outer(known * seen, first)
    return Evidence(basis, size, (weights * places).T @ places, cross, first, known)
