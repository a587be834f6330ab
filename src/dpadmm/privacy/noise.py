"""Noise for releases. This is the one place where something computed from rows meets noise.

``SimulatedNoise`` is fast, seeded and for experiments only: floating-point noise from a known seed protects
nobody, and every result that used it says so.
"""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np

from dpadmm.arrays import Floats

_DEPTH, _BUFFER_BYTES = 20, 2**25


class Noise(Protocol):
    """Standard normal numbers for every agent and round."""

    kind: str

    def draw(self, round: int) -> Floats:
        """(n_agents, d, p) numbers for this round; rounds are asked for once each, in rising order."""


class SimulatedNoise:
    """One independent stream per agent; round k takes the k-th d·p numbers of it.

    The numbers of (seed, agent, round) are the same whoever else takes part, in whichever rounds.

    Parameters
    ----------
    seed : int
        Names the whole run; see :func:`dpadmm.privacy.noise.fresh_seed`.
    n_agents, shape
        The shape of a draw is ``(n_agents, *shape)``.

    Examples
    --------
    >>> one, two = (SimulatedNoise(7, n, (3, 1)).draw(1) for n in (1, 2))
    >>> bool(np.array_equal(one[0], two[0])), bool(np.array_equal(two[0], two[1]))
    (True, False)
    """

    kind = "simulated"

    def __init__(self, seed: int, n_agents: int, shape: tuple[int, ...]) -> None:
        self._streams = [
            np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(agent,))))
            for agent in range(n_agents)
        ]
        # several rounds at a time, so that many agents do not mean many calls per round
        self._depth = max(1, min(_DEPTH, _BUFFER_BYTES // (8 * n_agents * int(np.prod(shape)))))
        self._buffer = np.empty((n_agents, self._depth, *shape))
        self._first = 1 - self._depth
        self._last_drawn = 0

    def draw(self, round: int) -> Floats:
        if round <= self._last_drawn:
            raise ValueError(f"the noise of round {round} was drawn before; no round may be drawn twice")
        self._last_drawn = round
        while round >= self._first + self._depth:
            for stream, numbers in zip(self._streams, self._buffer, strict=True):
                stream.standard_normal(out=numbers)
            self._first += self._depth
        return self._buffer[:, round - self._first]


def fresh_seed() -> int:
    """A seed from the operating system's entropy."""
    return secrets.randbits(63)


def release(statistic: Floats, *, noise_std: Floats, noise: Floats) -> Floats:
    """``h = g + noise_std · N(0, I)``: what an agent may say of its rows."""
    out = noise * noise_std
    out += statistic
    return out
