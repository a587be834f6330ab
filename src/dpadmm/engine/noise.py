"""Noise for the releases of a cohort of agents in one process.

``SimulatedNoise`` is fast and seeded, for experiments only. Floating-point noise from a known seed provides no privacy,
and the report of a run states the noise source. ``ExactNoise`` is the noise of a deployed agent's guard.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from dpadmm.accounting.events import AnyRelease, UnpricedRelease
from dpadmm.accounting.release_plan import ReleasePlan
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries import Query
from dpadmm.queries.problem import Rows
from dpadmm.trusted.discrete_gaussian import Draw, Lattice, as_mean, discrete_gaussian, release_sum

MAX_BATCH = 2**16
"""Maximum number of integers that exact noise draws at once."""


@dataclass(frozen=True)
class CohortQuery:
    """The query of a round for the rows of all agents.

    Attributes
    ----------
    parameters : (n, *statistic.parameter_shape)
        Public parameters, such as the point of a gradient.
    noise_multiplier : (n,)
        z of every agent; all 0 for no noise.
    round : int
        k, from 1.
    active : (present,), optional
        Agents that participate; None for all. No value of the others may be used.
    """

    rows: Rows
    statistic: Query
    parameters: Floats
    noise_multiplier: Floats
    round: int
    active: Integers | None = None

    @property
    def at_one_point(self) -> bool:
        """Whether all agents have the same parameters, so that their answers can be added up one by one."""
        return self.parameters.strides[0] == 0

    @property
    def agents(self) -> Sequence[int]:
        """Agents that participate."""
        return range(self.rows.n_agents) if self.active is None else self.active.tolist()

    def lattice(self, n_rows: int) -> Lattice:
        """Return the lattice of the answer of an agent with this number of rows."""
        return Lattice(self.statistic.row_norm, math.prod(self.statistic.shape), n_rows)


@runtime_checkable
class Summable(Protocol):
    """A query that computes the weighted mean over agents without storing the mean of each."""

    def weighted_mean(self, rows: Rows, parameters: Floats, weights: Floats, active: Integers | None = None) -> Floats:
        """Return ``Σ_i W_i g_i`` over the active agents, at the same parameters for all."""


class Noise(ABC):
    """A source of noise for every agent and round."""

    @property
    def exact(self) -> bool:
        """Whether the noise is that of a deployed agent."""
        return False

    @abstractmethod
    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        """Return (n_agents, *shape) standard normal numbers for a round; different streams are independent.

        The default shape is (d, p).
        """

    @abstractmethod
    def answer(self, query: CohortQuery) -> Floats:
        """Return ``h_i = g_i + N(0, (z_i·2R/m_i)² I)``: the noisy mean over every agent's rows, (n, *shape)."""

    def price(self, release: AnyRelease) -> AnyRelease | None:
        """Return the privacy event of a release with this noise: itself, if the noise is independent and Gaussian.

        Other noise needs its own accounting. With the default, None, a run has no ε.
        """
        return None


@dataclass(frozen=True)
class SimulatedNoise(Noise):
    """Noise that is a function of (seed, agent, round, stream), so it does not depend on who participates.

    One seed belongs to one run; see :func:`fresh_seed`. The shape of a draw is ``(n_agents, *shape)``.

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

    def answer(self, query: CohortQuery) -> Floats:
        return with_normals(query, self, query.rows.n_rows)

    def weighted_mean(self, query: CohortQuery, weights: Floats) -> Floats:
        """Return ``Σ_i W_i h_i`` over the answers of the present agents, without storing single answers.

        All agents must have the same parameters; ``weights`` are (present,). The result equals the weighted sum of
        :meth:`answer` up to rounding: at most some 2⁻⁵³ of the sum of the rows' absolute values for each addition.
        """
        from dpadmm.kernels.normals import weighted_normals

        rows, statistic = query.rows, query.statistic
        agents = np.arange(rows.n_agents) if query.active is None else query.active
        if isinstance(statistic, Summable):
            mean = statistic.weighted_mean(rows, query.parameters[0], weights, query.active)
        else:
            mean = np.tensordot(weights, statistic.means(rows, query.parameters, query.active)[agents], 1)
        z = np.broadcast_to(query.noise_multiplier, (rows.n_agents,))[agents]
        scales = weights * (z * mean_sensitivity(statistic.row_norm, rows.n_rows[agents]))
        if not np.any(scales):
            return np.asarray(mean)
        noise = weighted_normals(self.seed, query.round, agents, scales, math.prod(statistic.shape))
        return np.asarray(mean + noise.reshape(statistic.shape))


@dataclass(frozen=True)
class LazyAnswers:
    """Answers of which only a weighted mean is needed. They are computed and added up on request."""

    query: CohortQuery
    noise: SimulatedNoise

    def mean(self, weights: Floats) -> Floats:
        return self.noise.weighted_mean(self.query, weights)

    def each(self) -> Floats:
        """Return all answers (n, *shape), which may need much memory."""
        return self.noise.answer(self.query)


def with_normals(query: CohortQuery, noise: Noise, n_rows: Integers) -> Floats:
    """Return the means with normal noise for agents of ``n_rows`` rows."""
    means = query.statistic.means(query.rows, query.parameters, query.active)
    if not np.any(query.noise_multiplier):
        return means
    noise_std = query.noise_multiplier * mean_sensitivity(query.statistic.row_norm, n_rows)
    scale = noise_std.reshape(len(means), *[1] * (means.ndim - 1))
    return release(means, noise_std=scale, noise=noise.draw(query.round, shape=means.shape[1:]))


@dataclass(frozen=True)
class ExactNoise(Noise):
    """The noise of deployed agents: integers, drawn from the operating system's entropy.

    It runs the same code as an agent's guard, so the same integers give the same uploads to the last bit. ``source`` is
    for tests: (agent, round) -> a function that replaces ``discrete_gaussian``.
    """

    source: Callable[[int, int], Draw] | None = None

    @property
    def exact(self) -> bool:
        return True

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        raise StudyError(
            "exact noise applies to sums over all rows only: use auto, dp_admm, or dp_sgd without sampling"
        )

    def price(self, release: AnyRelease) -> AnyRelease:
        return release

    def answer(self, query: CohortQuery) -> Floats:
        sums = self.integer_sums(query, query.rows.n_rows)
        out = np.zeros(sums.shape)
        for i in query.agents:
            out[i] = as_mean(sums[i], query.lattice(int(query.rows.n_rows[i])))
        return out

    def integer_sums(self, query: CohortQuery, n_rows: Integers, shares: int = 1) -> Integers:
        """Return every agent's noisy sum (n, *shape), in steps of the lattice for ``n_rows`` (n,)."""
        rows, statistic = query.rows, query.statistic
        if not all(statistic.accepts(query.parameters[i]) for i in query.agents):  # as a guard: before rows are read
            raise StudyError(f"round {query.round}: agents refuse the parameters of the query {statistic.name}")
        sums = statistic.sums(rows, query.parameters, query.active, bound=query.lattice(1).row_bound)
        out = np.zeros(sums.shape, np.int64)
        levels = {i: (query.lattice(int(n_rows[i])), float(query.noise_multiplier[i])) for i in query.agents}
        draws = self.source or _batched(Counter(lattice.noise_scale(z, shares) for lattice, z in levels.values()))
        for i, (lattice, z) in levels.items():
            out[i] = release_sum(sums[i], lattice, z, shares=shares, draw=draws(i, query.round))
        return out


def _batched(scales: Counter[int]) -> Callable[[int, int], Draw]:
    """Return a source of :func:`discrete_gaussian` that draws for several agents at once, which is faster.

    ``scales`` is the number of draws of each scale.
    """
    stored: dict[int, list[Integers]] = {}

    def draw(scale: int, count: int) -> Integers:
        left = stored.setdefault(scale, [])
        if not left:
            batch = max(1, min(scales[scale], MAX_BATCH // count))
            left.extend(discrete_gaussian(scale, batch * count).reshape(batch, count))
        return left.pop()

    return lambda agent, round: draw


@dataclass(frozen=True)
class SecureSumNoise(Noise):
    """Secure aggregation in one process: every agent adds a share of the noise, and only the sum is used.

    The shares of ``min_honest_sites`` agents add up to the noise of a release. Those of further agents are extra noise.

    Attributes
    ----------
    noise : Noise
        Source of the shares.
    min_honest_sites : int
        h: a release costs 1/z if this many agents do not reveal their shares.
    n_rows : (n,)
        Public numbers of rows.
    max_rows_per_site : int
        Maximum number of rows of an agent, for which exact shares are calibrated.
    """

    noise: Noise
    min_honest_sites: int
    n_rows: Integers
    max_rows_per_site: int

    @property
    def exact(self) -> bool:
        return self.noise.exact

    def draw(self, round: int, stream: int = 0, shape: tuple[int, ...] | None = None) -> Floats:
        return self.noise.draw(round, stream, shape)

    def price(self, release: AnyRelease) -> AnyRelease | None:
        return self.noise.price(release)

    def answer(self, query: CohortQuery) -> Floats:
        """Return the noisy mean over the rows of all present agents: (1, *shape)."""
        if np.any(query.noise_multiplier != query.noise_multiplier[0]):
            raise StudyError("with secure aggregation all agents have the same budget and the same planned rounds")
        agents = np.fromiter(query.agents, np.int64)
        if len(agents) < self.min_honest_sites:
            raise StudyError(
                f"round {query.round} has {len(agents)} agents, but min_honest_sites is {self.min_honest_sites}; use a "
                "smaller min_honest_sites, which means more noise"
            )
        n_rows = self.n_rows[agents]
        if isinstance(self.noise, ExactNoise):
            max_rows = np.full(len(self.n_rows), self.max_rows_per_site)
            total = self.noise.integer_sums(query, max_rows, self.min_honest_sites)[agents].sum(axis=0)
            return pooled_mean(total, query.lattice(self.max_rows_per_site), int(n_rows.sum()))[None]
        shares = replace(query, noise_multiplier=query.noise_multiplier / math.sqrt(self.min_honest_sites))
        weights = n_rows / n_rows.sum()
        if type(self.noise) is SimulatedNoise and query.at_one_point:
            return self.noise.weighted_mean(shares, weights)[None]
        return np.asarray(np.tensordot(weights, self.noise.answer(shares)[agents], axes=1))[None]


def pooled_mean(total: Integers, lattice: Lattice, n_rows: int) -> Floats:
    """Return the mean over ``n_rows`` rows of several agents, from the sum of their integers."""
    return total.astype(np.float64) * lattice.step / n_rows


def spherical(noise: Noise, round: int, *, first_stream: int = 1) -> Floats:
    """Return (n, d, p) numbers of density ∝ ``exp(−‖ξ‖)`` per agent: uniform direction, norm ``Gamma(dp, 1)``.

    A chi-square of 2dp degrees of freedom is twice such a Gamma. Three streams of the round are used.
    """
    direction, first, second = (noise.draw(round, first_stream + stream) for stream in range(3))
    axes = (1, 2)
    length = (np.square(first).sum(axis=axes) + np.square(second).sum(axis=axes)) / 2.0
    scale = length / np.sqrt(np.square(direction).sum(axis=axes))
    return np.asarray(direction * scale[:, None, None])


def priced(plan: ReleasePlan, noise: Noise) -> ReleasePlan:
    """Return the plan with the privacy events of the noise source."""
    unpriced = UnpricedRelease(type(noise).__name__)
    return ReleasePlan.from_runs((release and (noise.price(release) or unpriced), n) for release, n in plan.runs)


def fresh_seed() -> int:
    """Return a seed from the operating system's entropy."""
    return secrets.randbits(63)


def release(statistic: Floats, *, noise_std: Floats, noise: Floats) -> Floats:
    """Return ``h = g + noise_std · N(0, I)``."""
    out = noise * noise_std
    out += statistic
    return out
