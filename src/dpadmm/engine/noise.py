"""Noise for the releases of a cohort of agents in one process.

``SimulatedNoise`` is fast, seeded and for experiments only: floating-point noise from a known seed protects
nobody, and every result that used it says so. ``ExactNoise`` is what a deployed agent's guard adds.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from dpadmm.accounting.events import AnyRelease, UnpricedRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries import Query
from dpadmm.queries.problem import Rows
from dpadmm.trusted.discrete_gaussian import Draw, Lattice, as_mean, discrete_gaussian, release_sum

BATCH = 2**16
"""Numbers that exact noise is drawn for at once."""


@dataclass(frozen=True)
class CohortQuery:
    """Noisy means over rows that a method asks for in a round."""

    rows: Rows
    statistic: Query
    parameters: Floats  # (n, *statistic.parameter_shape): public, such as the point of a gradient
    noise_multiplier: Floats  # (n,): z of every agent; all 0 for no noise
    round: int  # k, from 1
    active: Integers | None = None  # who takes part; None: all. Of others no value may be used

    @property
    def at_one_point(self) -> bool:
        """Whether all agents are asked the same, so that their answers can be added up while they are made."""
        return self.parameters.strides[0] == 0

    @property
    def agents(self) -> Sequence[int]:
        """Those that take part."""
        return range(self.rows.n_agents) if self.active is None else self.active.tolist()

    def grid(self, n_rows: int) -> Lattice:
        """The grid of the answer of an agent with so many rows."""
        return Lattice(self.statistic.row_norm, math.prod(self.statistic.shape), n_rows)


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

    def answer(self, asked: CohortQuery) -> Floats:
        """``h_i = g_i + N(0, (z_i·2R/m_i)² I)``: noisy means over every agent's rows, (n, *shape)."""


@dataclass(frozen=True)
class SimulatedNoise:
    """Noise that is a function of (seed, agent, round, stream), the same whoever else takes part and when.

    The seed names the whole run; see :func:`fresh_seed`. The shape of a draw is ``(n_agents, *shape)``.

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
        from dpadmm.kernels.normals import standard_normals  # loads the compiler

        # Rounds are hashed as 64-bit words and stay below 2⁴⁰
        shape = self.shape if shape is None else shape
        numbers = standard_normals(self.seed, round + (stream << 40), self.n_agents, math.prod(shape))
        return numbers.reshape(self.n_agents, *shape)

    def price(self, release: AnyRelease) -> AnyRelease:
        return release

    def answer(self, asked: CohortQuery) -> Floats:
        return with_normals(asked, self, asked.rows.n_rows)

    def weighted_mean(self, asked: CohortQuery, weights: Floats) -> Floats:
        """``Σ_i W_i h_i`` over the answers of those that take part, none of which is kept: (present,) -> shape.

        For a question at one point for all. It is the weighted sum of ``answer`` but for rounding, by at most some
        2⁻⁵³ of the sum of the rows' absolute values for each of its additions.
        """
        from dpadmm.kernels.normals import weighted_normals

        rows, statistic = asked.rows, asked.statistic
        agents = np.arange(rows.n_agents) if asked.active is None else asked.active
        if hasattr(statistic, "weighted_mean"):
            found = statistic.weighted_mean(rows, asked.parameters[0], weights, asked.active)
        else:
            found = np.tensordot(weights, statistic.means(rows, asked.parameters, asked.active)[agents], 1)
        z = np.broadcast_to(asked.noise_multiplier, (rows.n_agents,))[agents]
        scales = weights * (z * mean_sensitivity(statistic.row_norm, rows.n_rows[agents]))
        if not np.any(scales):
            return np.asarray(found)
        noise = weighted_normals(self.seed, asked.round, agents, scales, math.prod(statistic.shape))
        return np.asarray(found + noise.reshape(statistic.shape))


@dataclass(frozen=True)
class LazyAnswers:
    """Answers of which a weighted mean is all that is wanted: they are made and added up when it is asked for."""

    asked: CohortQuery
    noise: SimulatedNoise

    def mean(self, weights: Floats) -> Floats:
        return self.noise.weighted_mean(self.asked, weights)

    def each(self) -> Floats:
        """What every agent says, for whoever has room for it: (n, *shape)."""
        return self.noise.answer(self.asked)


def with_normals(asked: CohortQuery, noise: Noise, n_rows: Integers) -> Floats:
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

    exact: ClassVar[bool] = True

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        raise StudyError("exact noise is for sums over all rows: for auto, dp_admm, and dp_sgd without sampling")

    def price(self, release: AnyRelease) -> AnyRelease:
        return release

    def answer(self, asked: CohortQuery) -> Floats:
        whole = self.whole(asked, asked.rows.n_rows)
        out = np.zeros(whole.shape)
        for i in asked.agents:
            out[i] = as_mean(whole[i], asked.grid(int(asked.rows.n_rows[i])))
        return out

    def whole(self, asked: CohortQuery, n_rows: Integers, shares: int = 1) -> Integers:
        """What every agent's guard would say, in steps of the grid for so many rows (n,): (n, *shape)."""
        rows, statistic = asked.rows, asked.statistic
        if not all(statistic.accepts(asked.parameters[i]) for i in asked.agents):  # as a guard: before rows are read
            raise StudyError(f"round {asked.round} asks for a {statistic.name} with numbers that agents refuse")
        sums = statistic.sums(rows, asked.parameters, asked.active, bound=asked.grid(1).row_bound)
        out = np.zeros(sums.shape, np.int64)
        levels = {i: (asked.grid(int(n_rows[i])), float(asked.noise_multiplier[i])) for i in asked.agents}
        draws = self.source or _batched(Counter(grid.noise_scale(z, shares) for grid, z in levels.values()))
        for i, (grid, z) in levels.items():
            out[i] = release_sum(sums[i], grid, z, shares=shares, draw=draws(i, asked.round))
        return out


def _batched(scales: Counter[int]) -> Callable[[int, int], Draw]:
    """Draws of :func:`discrete_gaussian`, so many of each scale: many small ones take longer than a large one."""
    at_hand: dict[int, list[Integers]] = {}

    def draw(scale: int, count: int) -> Integers:
        left = at_hand.setdefault(scale, [])
        if not left:
            several = max(1, min(scales[scale], BATCH // count))
            left.extend(discrete_gaussian(scale, several * count).reshape(several, count))
        return left.pop()

    return lambda agent, round: draw


@dataclass(frozen=True)
class SecureSumNoise:
    """Secure aggregation in one process: every agent adds a share of the noise, and only the sum is used.

    The shares of ``min_honest_sites`` agents are together the noise of a release; those of more than that are to spare.
    """

    noise: Noise  # where the shares come from
    min_honest_sites: int  # h: a release costs 1/z if so many agents keep their shares to themselves
    n_rows: Integers  # (n,), public
    max_rows_per_site: int  # no agent has more; what exact shares are for

    @property
    def exact(self) -> bool:
        return isinstance(self.noise, ExactNoise)

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.noise.draw(round, stream, shape)

    def price(self, release: AnyRelease) -> AnyRelease | None:
        return self.noise.price(release)

    def answer(self, asked: CohortQuery) -> Floats:
        """The noisy mean over the rows of all that take part: (1, *shape)."""
        if np.any(asked.noise_multiplier != asked.noise_multiplier[0]):
            raise StudyError("with secure aggregation all agents have the same budget and the same planned rounds")
        agents = np.fromiter(asked.agents, np.int64)
        if len(agents) < self.min_honest_sites:
            raise StudyError(
                f"round {asked.round} has {len(agents)} agents, and secure aggregation relies on "
                f"{self.min_honest_sites} honest "
                "ones; a smaller min_honest_sites means more noise"
            )
        n_rows = self.n_rows[agents]
        if isinstance(self.noise, ExactNoise):
            most = np.full(len(self.n_rows), self.max_rows_per_site)
            total = self.noise.whole(asked, most, self.min_honest_sites)[agents].sum(axis=0)
            return pooled_mean(total, asked.grid(self.max_rows_per_site), int(n_rows.sum()))[None]
        shares, weights = (
            replace(asked, noise_multiplier=asked.noise_multiplier / math.sqrt(self.min_honest_sites)),
            n_rows / n_rows.sum(),
        )
        if type(self.noise) is SimulatedNoise and asked.at_one_point:
            return self.noise.weighted_mean(shares, weights)[None]
        return np.asarray(np.tensordot(weights, self.noise.answer(shares)[agents], axes=1))[None]


def pooled_mean(total: Integers, grid: Lattice, n_rows: int) -> Floats:
    """The mean over ``n_rows`` rows of several agents, from the sum of what they said in whole numbers."""
    return total.astype(np.float64) * grid.step / n_rows


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
    return ReleasePlan.from_runs((release and (state_price(release) or unpriced), n) for release, n in plan.runs)


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(63)


def release(statistic: Floats, *, noise_std: Floats, noise: Floats) -> Floats:
    """``h = g + noise_std · N(0, I)``: what an agent may say of its rows."""
    out = noise * noise_std
    out += statistic
    return out
