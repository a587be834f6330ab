"""Distinguishing games against baselines: agents whose slopes are constant, so that a transcript is Gaussian.

Every agent of a cohort is one trial. Agents of two worlds differ in one row ±e₁ with a distant label, whose slope under
the Huber loss has the maximum norm everywhere. The adversary sends the same consensus in all rounds, knows the means of
both worlds from runs without noise, and learns the covariance of the uploads from half of the trials.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from dpadmm.audit.gates import error_limit
from dpadmm.engine.method import Round
from dpadmm.engine.noise import SimulatedNoise
from dpadmm.losses import Huber
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Method
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.queries.problem import Problem, Rows, make_rows
from dpadmm.regularizers import NoRegularizer

D, M, TRIALS = 3, 4, 12_000
PROBLEM = Problem(Huber(1.0), NoRegularizer(), 0.0)
CONFIDENCE = 0.999


def world(sign: float, n_agents: int) -> Rows:
    """Agents with M rows each; the first row is ±e₁, the others are zero."""
    features = np.zeros((n_agents, M, D))
    features[:, 0, 0] = sign
    labels = np.full(n_agents * M, 1e6)
    return make_rows(features.reshape(-1, D), labels, offsets=np.arange(n_agents + 1) * M)


def budget_of(n_rounds: int, n_agents: int, z: float | None = None, **options: Any) -> PrivacyBudget:
    options = {"noise_multiplier": z} if z is not None else options
    return PrivacyBudget(planned=np.full(n_agents, n_rounds), n_rounds=n_rounds, delta=1e-3, **options)


@dataclass(frozen=True)
class ScaledNoise(SimulatedNoise):
    """Noise that is too small by a factor, as after a mistake."""

    share: float = 1.0

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.share * super().draw(round, stream, shape)


def transcript(method: Method[Any], rows: Rows, n_rounds: int, seed: int, share: float = 1.0) -> Floats:
    """What the agents upload along e₁: (n, n_rounds)."""
    noise = ScaledNoise(seed, rows.n_agents, (D, 1), share)
    state, sent = method.init(PROBLEM, rows), []
    for k in range(1, n_rounds + 1):
        state, uploads = method.step(state, Round(k, PROBLEM, rows, method.start((D, 1)), noise, seed=seed))
        sent.append(np.asarray(uploads)[:, 0, 0].copy())
    return np.stack(sent, axis=1)


@dataclass(frozen=True)
class Attack:
    """``mu``: distance of the worlds in standard deviations. ``proven``: its lower bound from wrong guesses."""

    mu: float
    proven: float


def attack(
    build: Callable[[int], Method[Any]], quiet: Callable[[int], Method[Any]], n_rounds: int, share: float = 1.0
) -> Attack:
    """Attack a method: ``build`` and ``quiet`` (without noise) return it for a number of agents."""
    means = [transcript(quiet(2), world(sign, 2), n_rounds, seed=1)[0] for sign in (1.0, -1.0)]
    method = build(TRIALS)
    one, other = (transcript(method, world(sign, TRIALS), n_rounds, s, share) for sign, s in ((1.0, 11), (-1.0, 12)))
    centred = np.concatenate([one[::2] - means[0], other[::2] - means[1]])
    sizes, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    noisy = sizes > 1e-9 * sizes[-1]
    apart = directions.T @ (means[1] - means[0])
    assert np.abs(apart[~noisy]).max(initial=0.0) <= 1e-6 * np.abs(apart).max(), (
        "a message without noise depends on a row"
    )
    weights = directions[:, noisy] @ (apart[noisy] / sizes[noisy])
    middle = weights @ (means[0] + means[1]) / 2.0
    wrong = [np.sum(one[1::2] @ weights > middle), np.sum(other[1::2] @ weights <= middle)]
    limits = [float(error_limit(np.array(count), TRIALS // 2, CONFIDENCE)) for count in wrong]
    mu = float(np.sqrt(np.sum(apart[noisy] ** 2 / sizes[noisy])))
    return Attack(mu, -float(ndtri(limits[0])) - float(ndtri(limits[1])))
