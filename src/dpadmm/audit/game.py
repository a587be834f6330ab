"""The game: two agents on the worst rows there are, and an aggregator that wants to know one of them.

Each agent has one of two data sets that differ in a single row, its *world*. The aggregator knows both, sends
what it likes, and sees uploads only. All of it is public but the worlds and the noise, so that every formula
is written down here once more, without the code under test: this file must not import it to know what is
right. That is why the factor 2 of replace-one neighbours stands here a second time.

The loss is the squared one with c1 = 1. The row in question is ``(±cos θ, sin θ)`` with a label far beyond
what its point predicts, so that its gradient is c1 long after clipping, and only after clipping, in every
round. The two gradients are ``2·c1·cos θ`` apart: 0.9988 of the sensitivity. (With the logistic loss the
first round, at 0, would have half of that.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.study.settings import Training
from dpadmm.study.study import Study

BOUND = 1.0
"""c1, the bound of a row's gradient."""
N_FEATURES = 16
N_ROUNDS = 3
"""Not 4: at μ = 2 the noise multiplier would be 1, and its square the same."""
RHO, STEP_SIZE = 0.05, 20.0
ANGLE = 0.05
LABEL = 8.0
IDLE = slice(9, N_FEATURES)
"""Columns that are 0 in all rows: there uploads are noise alone."""

SHARPNESS = math.cos(ANGLE)
"""The share of the sensitivity that the two worlds differ by."""


@dataclass(frozen=True)
class Role:
    """An agent of the game: its rows in either world, and what the aggregator sends it in every round."""

    name: str
    n_rows: int
    others: tuple[tuple[int, int, float, float], ...]
    """The rows that are the same in both worlds: column, how many, value, label."""
    consensus: tuple[float, ...]

    def rows(self, world: int) -> tuple[Floats, Floats]:
        """Features (m, d) and labels (m,): the row in question first."""
        features, labels = np.zeros((self.n_rows, N_FEATURES)), np.full(self.n_rows, LABEL)
        features[0, :2] = math.cos(ANGLE) * (1 - 2 * world), math.sin(ANGLE)
        first = 1
        for column, count, value, label in self.others:
            features[first : first + count, column] = value
            labels[first : first + count] = label
            first += count
        return features, labels

    def sent(self) -> Floats:
        """The consensus of all rounds, (d, 1)."""
        out = np.zeros((N_FEATURES, 1))
        out[: len(self.consensus), 0] = self.consensus
        return out


# 39 rows and 19 rows of gradient −0.9 each: whoever counts one row too many shows it
FAR = Role("far", 40, ((2, 39, 0.05, 18.0),), (0.0, -400.0))
"""Pushed to a point far out, where rows that are not clipped would have huge gradients."""
NEAR = Role("near", 50, ((2, 19, 0.05, 18.0), *((column, 5, 1.0, 0.0) for column in range(3, 9))), ())
"""Near 0, with 30 rows whose gradients follow the point: a gradient taken elsewhere, or a state with less
noise than was said, shows in the next round."""
ROLES = (FAR, NEAR)


def noise_multiplier(mu: float) -> float:
    """``z = √t/μ``."""
    return math.sqrt(N_ROUNDS) / mu


def make_study(name: str, *, mu: float, delta: float) -> Study:
    """A study of three rounds that costs μ in all."""
    constants = {"loss_gradient_bound": BOUND, "rho": RHO, "step_size": STEP_SIZE}
    training = {
        "method": "dp_admm", "loss": "squared", "regularizer": "none", "schedule": "constant", **constants,
        "noise_multiplier": noise_multiplier(mu), "delta": delta, "n_rounds": N_ROUNDS,
    }  # fmt: skip
    return Study(
        name=name,
        features=tuple(f"x{j + 1}" for j in range(N_FEATURES)),
        training=Training(**training),
        provenance=dict.fromkeys(constants, "assumed"),
    )


def gradient_sum(features: Floats, labels: Floats) -> Callable[[Floats], Floats]:
    """``w -> Σ_j a_j (a_jᵀw − b_j)``, every term shortened to c1: (d,) -> (d,)."""
    norms = np.linalg.norm(features, axis=1)

    def total(point: Floats) -> Floats:
        slopes = features @ point - labels
        lengths = np.abs(slopes) * norms
        return np.asarray((slopes * np.minimum(1.0, BOUND / np.maximum(lengths, BOUND))) @ features)

    return total


def grid_step() -> float:
    """The public grid of the sums: the largest power of two with ``√d·g ≤ 1e-6·2·c1``."""
    return 2.0 ** math.floor(math.log2(1e-6 * 2.0 * BOUND / math.sqrt(N_FEATURES)))


def noise_steps(mu: float) -> float:
    """σ of the noise on the sum, in steps of the grid: ``z·2·c1/g``."""
    return noise_multiplier(mu) * 2.0 * BOUND / grid_step()


class Listener:
    """What the aggregator makes of an agent's uploads: it follows model and dual, and solves for h."""

    def __init__(self) -> None:
        self.released, self.dual = np.zeros(N_FEATURES), np.zeros(N_FEATURES)

    def hear(self, consensus: Floats, upload: Floats) -> tuple[Floats, Floats]:
        """The point that the agent's gradient was to be taken at, and its noisy mean gradient: both (d,).

        Backwards through ``γ' = γ + ρ(w − w̃)``, ``w̃' = (w̃/η + ρw + γ' − h)/(ρ + 1/η)``, ``c = w̃' − γ'/ρ``.
        """
        point, told, said = self.released, consensus[:, 0], upload[:, 0]
        dual = self.dual + RHO * (told - point)
        released = said + dual / RHO
        noisy = point / STEP_SIZE + RHO * told + dual - (RHO + 1.0 / STEP_SIZE) * released
        self.released, self.dual = released, dual
        return point, noisy
