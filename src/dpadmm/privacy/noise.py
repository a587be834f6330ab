"""Noise for releases. This is the one place where something computed from rows meets noise.

``SimulatedNoise`` is fast, seeded and for experiments only: floating-point noise from a known seed protects
nobody, and every result that used it says so.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.normals import standard_normals


class Noise(Protocol):
    """Standard normal numbers for every agent and round."""

    kind: ClassVar[str]

    def draw(self, round: int, stream: int = 0) -> Floats:
        """(n_agents, d, p) numbers for this round; those of different streams are independent."""


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
        # Rounds are hashed as 64-bit words and stay below 2⁴⁰
        numbers = standard_normals(self.seed, round + (stream << 40), self.n_agents, int(np.prod(self.shape)))
        return numbers.reshape(self.n_agents, *self.shape)


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
