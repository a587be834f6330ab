"""Noise for the releases of a cohort of agents in one process.

``SimulatedNoise`` is fast, seeded and for experiments only: floating-point noise from a known seed protects
nobody, and every result that used it says so. ``ExactNoise`` is what a deployed agent's guard adds.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from dpadmm import kernels
from dpadmm.arrays import Floats, Integers
from dpadmm.errors import StudyError
from dpadmm.losses.base import Loss
from dpadmm.privacy.exact_noise import Draw, Grid, as_mean, release_sum
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.problem import Rows


@dataclass(frozen=True)
class GradientsWanted:
    """Noisy mean gradients that a method wants in a round.

    Attributes
    ----------
    rows, loss
        Of whom, and of what.
    points : (n, d, p)
        Where: each agent's own point.
    noise_multiplier : (n,)
        z of every agent; all 0 for no noise.
    round : int
        k, from 1.
    active : (agents,), optional
        Who takes part; None: all. Of the others nothing is computed, and no value may be used.
    """

    rows: Rows
    loss: Loss
    points: Floats
    noise_multiplier: Floats
    round: int
    active: Integers | None = None

    def clean(self) -> Floats:
        """The mean gradients without noise (n, d, p), of rows that are clipped to c1."""
        return kernels.gradient(self.rows, self.points, self.loss, self.active)

    def sums(self, *, bound: float) -> Floats:
        """The sums of gradients without noise (n, d, p), of rows that are clipped to ``bound``."""
        return kernels.guarded_sums(self.rows, self.points, self.loss, self.active, bound=bound)


class Noise(Protocol):
    """Noise for every agent and round."""

    kind: ClassVar[str]

    def draw(self, round: int, stream: int = 0) -> Floats:
        """(n_agents, d, p) standard normal numbers for this round; different streams are independent."""

    def mean_gradients(self, wanted: GradientsWanted) -> Floats:
        """``h_i = g_i + N(0, (z_i·2c1/m_i)² I)`` at each agent's point: (n, d, p)."""


@dataclass(frozen=True)
class SimulatedNoise:
    """Noise that is a function of (seed, agent, round, stream), the same whoever else takes part and when.

    Parameters
    ----------
    seed : int
        Names the whole run; see :func:`fresh_seed`.
    n_agents, shape
        The shape of a draw is ``(n_agents, *shape)``.

    Examples
    --------
    >>> one, two = (SimulatedNoise(7, n, (3, 1)).draw(1) for n in (1, 2))
    >>> bool(np.array_equal(one[0], two[0])), bool(np.array_equal(two[0], two[1]))
    (True, False)
    """

    seed: int
    n_agents: int
    shape: tuple[int, ...]

    kind: ClassVar[str] = "simulated"

    def draw(self, round: int, stream: int = 0) -> Floats:
        from dpadmm.normals import standard_normals  # loads the compiler

        # Rounds are hashed as 64-bit words and stay below 2⁴⁰
        numbers = standard_normals(self.seed, round + (stream << 40), self.n_agents, int(np.prod(self.shape)))
        return numbers.reshape(self.n_agents, *self.shape)

    def mean_gradients(self, wanted: GradientsWanted) -> Floats:
        return with_normals(wanted, self, wanted.rows.n_rows)


def with_normals(wanted: GradientsWanted, noise: Noise, n_rows: Integers) -> Floats:
    """The mean gradients with normal noise for agents of ``n_rows`` rows."""
    gradient = wanted.clean()
    if not np.any(wanted.noise_multiplier):
        return gradient
    noise_std = wanted.noise_multiplier * mean_gradient_sensitivity(wanted.loss.lipschitz, n_rows)
    return release(gradient, noise_std=noise_std[:, None, None], noise=noise.draw(wanted.round))


@dataclass(frozen=True)
class ExactNoise:
    """The noise of deployed agents, for a cohort in this process: whole numbers, from the operating system.

    The same lines as in an agent's guard, so the same uploads to the last bit for the same whole numbers.
    ``source`` is for tests: (agent, round) -> their own ``draw``, in place of ``discrete_gaussian``.
    """

    source: Callable[[int, int], Draw] | None = None

    kind: ClassVar[str] = "exact"

    def draw(self, round: int, stream: int = 0) -> Floats:
        raise StudyError("exact noise is there for mean gradients only: for dp_admm, and dp_sgd of all rows")

    def mean_gradients(self, wanted: GradientsWanted) -> Floats:
        rows, c1, n_weights = wanted.rows, wanted.loss.lipschitz, wanted.points[0].size
        sums, out = wanted.sums(bound=Grid(c1, n_weights, 1).row_bound), np.zeros(wanted.points.shape)
        for i in range(rows.n_agents) if wanted.active is None else wanted.active.tolist():
            grid, z = Grid(c1, n_weights, int(rows.n_rows[i])), float(wanted.noise_multiplier[i])
            draw = self.source(i, wanted.round) if self.source else None
            out[i] = as_mean(release_sum(sums[i], grid, z, draw=draw), grid)
        return out


def spherical(noise: Noise, round: int, *, first_stream: int = 1) -> Floats:
    """(n, d, p) numbers of density ∝ ``exp(−‖ξ‖)`` per agent: uniform direction, length ``Gamma(dp, 1)``.

    A chi-square of 2dp degrees of freedom is twice such a Gamma. Three streams of the round are used.
    """
    direction, first, second = (noise.draw(round, first_stream + stream) for stream in range(3))
    axes = (1, 2)
    length = (np.square(first).sum(axis=axes) + np.square(second).sum(axis=axes)) / 2.0
    scale = length / np.sqrt(np.square(direction).sum(axis=axes))
    return np.asarray(direction * scale[:, None, None])


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(63)


def release(statistic: Floats, *, noise_std: Floats, noise: Floats) -> Floats:
    """``h = g + noise_std · N(0, I)``: what an agent may say of its rows."""
    out = noise * noise_std
    out += statistic
    return out
