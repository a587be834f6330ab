"""Noise for the releases of a cohort of agents in one process.

``SimulatedNoise`` is fast, seeded and for experiments only: floating-point noise from a known seed protects
nobody, and every result that used it says so. ``ExactNoise`` is what a deployed agent's guard adds.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import StudyError
from dpadmm.optim.problem import Rows
from dpadmm.privacy.plan import ReleasePlan
from dpadmm.privacy.releases import AnyRelease, UnpricedRelease
from dpadmm.privacy.sensitivity import mean_sensitivity
from dpadmm.privacy.statistics import Statistic
from dpadmm.trusted.discrete_gaussian import Draw, Grid, as_mean, release_sum


@dataclass(frozen=True)
class Question:
    """Noisy means over rows that a method asks for in a round.

    Attributes
    ----------
    rows : Rows
        Of whom.
    statistic : Statistic
        Of what.
    parameters : (n, *statistic.parameter_shape)
        Public numbers of every agent, such as the point of a gradient.
    noise_multiplier : (n,)
        z of every agent; all 0 for no noise.
    round : int
        k, from 1.
    active : (agents,), optional
        Who takes part; None: all. Of the others nothing is computed, and no value may be used.
    """

    rows: Rows
    statistic: Statistic
    parameters: Floats
    noise_multiplier: Floats
    round: int
    active: Integers | None = None


class Noise(Protocol):
    """Noise for every agent and round."""

    def draw(self, round: int, stream: int = ..., shape: tuple[int, ...] | None = ...) -> Floats:
        """(n_agents, *shape) standard normal numbers for this round; different streams are independent.

        The shape is (d, p) unless given.
        """

    def price(self, release: AnyRelease) -> AnyRelease | None:
        """What a release with this noise costs: itself, if the noise is independent and Gaussian.

        Whoever puts in other noise has to bring its accounting; a source that states no price (None, or no
        such method) leaves a run without ε.
        """

    def answer(self, asked: Question) -> Floats:
        """``h_i = g_i + N(0, (z_i·2R/m_i)² I)``: noisy means over every agent's rows, (n, *shape)."""


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

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        from dpadmm.optim.kernels.normals import standard_normals  # loads the compiler

        # Rounds are hashed as 64-bit words and stay below 2⁴⁰
        shape = self.shape if shape is None else shape
        numbers = standard_normals(self.seed, round + (stream << 40), self.n_agents, math.prod(shape))
        return numbers.reshape(self.n_agents, *shape)

    def price(self, release: AnyRelease) -> AnyRelease:
        return release

    def answer(self, asked: Question) -> Floats:
        return with_normals(asked, self, asked.rows.n_rows)


def with_normals(asked: Question, noise: Noise, n_rows: Integers) -> Floats:
    """The means with normal noise for agents of ``n_rows`` rows."""
    means = asked.statistic.means(asked.rows, asked.parameters, asked.active)
    if not np.any(asked.noise_multiplier):
        return means
    noise_std = asked.noise_multiplier * mean_sensitivity(asked.statistic.row_norm, n_rows)
    scale = noise_std.reshape(len(means), *[1] * (means.ndim - 1))
    return release(means, noise_std=scale, noise=noise.draw(asked.round, shape=means.shape[1:]))


@dataclass(frozen=True)
class ExactNoise:
    """The noise of deployed agents, for a cohort in this process: whole numbers, from the operating system.

    The same lines as in an agent's guard, so the same uploads to the last bit for the same whole numbers.
    ``source`` is for tests: (agent, round) -> their own ``draw``, in place of ``discrete_gaussian``.
    """

    source: Callable[[int, int], Draw] | None = None

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        raise StudyError("exact noise is for sums over all rows: for auto, dp_admm, and dp_sgd without sampling")

    def price(self, release: AnyRelease) -> AnyRelease:
        return release

    def answer(self, asked: Question) -> Floats:
        rows, statistic = asked.rows, asked.statistic
        size = math.prod(statistic.shape)
        agents = range(rows.n_agents) if asked.active is None else asked.active.tolist()
        if not all(statistic.accepts(asked.parameters[i]) for i in agents):  # as a guard: before rows are read
            raise StudyError(f"round {asked.round} asks for a {statistic.name} with numbers that agents refuse")
        bound = Grid(statistic.row_norm, size, 1).row_bound
        sums = statistic.sums(rows, asked.parameters, asked.active, bound=bound)
        out = np.zeros(sums.shape)
        for i in agents:
            grid, z = Grid(statistic.row_norm, size, int(rows.n_rows[i])), float(asked.noise_multiplier[i])
            draw = None if self.source is None else self.source(i, asked.round)
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


def priced(plan: ReleasePlan, noise: Noise) -> ReleasePlan:
    """The plan at the prices that the noise source states."""
    state_price = getattr(noise, "price", lambda release: None)
    unpriced = UnpricedRelease(type(noise).__name__)
    return ReleasePlan(tuple((release and (state_price(release) or unpriced), n) for release, n in plan.runs))


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(63)


def release(statistic: Floats, *, noise_std: Floats, noise: Floats) -> Floats:
    """``h = g + noise_std · N(0, I)``: what an agent may say of its rows."""
    out = noise * noise_std
    out += statistic
    return out
