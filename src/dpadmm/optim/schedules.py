"""Step sizes η_i^k: frozen callables of the round (from 1) that give one number per agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import StudyError
from dpadmm.optim.constants import Constants

Schedule = Callable[[int], Floats]


@dataclass(frozen=True)
class NonSmooth:
    """Theorem 2: ``η = c_w/√(2k) · ((c1 + λc2/n)² + 4dp c1² z²/m²)^(−1/2)``."""

    constants: Constants

    def __call__(self, round: int) -> Floats:
        c = self.constants
        return np.asarray(c.weight_radius / (np.sqrt(2.0 * round) * c.noisy_gradient_size))


@dataclass(frozen=True)
class Smooth:
    """Theorem 3: ``1/η = c3 + λc4/n + 2√2 c1 z √(dpk)/(m c_w)``."""

    constants: Constants

    def __call__(self, round: int) -> Floats:
        c = self.constants
        return np.asarray(1.0 / (c.curvature + c.noise_size * np.sqrt(round) / c.weight_radius))


@dataclass(frozen=True)
class Constant:
    """The same step in every round for every agent."""

    step_size: float
    n_agents: int

    def __post_init__(self) -> None:
        if not (0.0 < self.step_size < np.inf):
            raise StudyError(f"step_size must be a positive number, not {self.step_size!r}")

    def __call__(self, round: int) -> Floats:
        return np.full(self.n_agents, self.step_size)


def theorem_schedule(constants: Constants) -> NonSmooth | Smooth:
    """Theorem 3's schedule where its assumptions hold, else Theorem 2's."""
    smooth = constants.c3 is not None and constants.c4 is not None
    return Smooth(constants) if smooth else NonSmooth(constants)
