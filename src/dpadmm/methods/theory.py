"""Theorems 2 and 3 of the paper: constants, step sizes η_i^k and convergence bounds.

Both bound ``E Σ_i [ f_i(w̄_i) − f_i(w*) + β ‖w̄_i − w̄‖ ]`` after t rounds, starting from zero, for the averages
``w̄ = mean_{k=1..t} w^k`` and ``w̄_i`` of the released local models over rounds 0..t−1 (Theorem 2) or 1..t (Theorem 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.problem import Problem


@dataclass(frozen=True)
class Constants:
    """Constants of Theorems 2 and 3.

    Attributes
    ----------
    c1, c2 : float
        Bounds of ``‖ℓ'‖`` and ``‖R'‖``.
    c3, c4 : float or None
        Bounds of ``‖∇²ℓ‖`` and ``‖∇²R‖``; None if not differentiable.
    alpha : float
        λ/n.
    n_weights : int
        dp.
    weight_radius : float
        c_w, a public bound of ``‖w*‖``.
    noise_multiplier, n_rows : (n,)
        z and m of every agent.
    """

    c1: float
    c2: float
    c3: float | None
    c4: float | None
    alpha: float
    n_weights: int
    weight_radius: float
    noise_multiplier: Floats
    n_rows: Integers

    def __post_init__(self) -> None:
        if not (0.0 < self.weight_radius < np.inf):
            raise StudyError(
                f"weight_radius (c_w, a public bound of the norm of the weights) must be a positive number, "
                f"not {self.weight_radius!r}"
            )

    @cached_property
    def noisy_gradient_size(self) -> Floats:
        """Bound of the root mean square of the noisy gradient per agent, ``√((c1 + λc2/n)² + 4 dp c1² z²/m²)``."""
        clean = self.c1 + self.alpha * self.c2
        return np.sqrt(clean**2 + 4.0 * self.n_weights * (self.c1 * self.noise_multiplier / self.n_rows) ** 2)

    @cached_property
    def noise_size(self) -> Floats:
        """``2√2 c1 z √(dp)/m`` per agent: √2 times the root mean square norm of the gradient's noise."""
        return np.asarray(np.sqrt(8.0 * self.n_weights) * self.c1 * self.noise_multiplier / self.n_rows)

    @property
    def curvature(self) -> float:
        """``c3 + λc4/n``. Raises StudyError if loss or regularizer is not smooth."""
        if self.c3 is None or self.c4 is None:
            part = "loss" if self.c3 is None else "regularizer"
            raise StudyError(f"Theorem 3 does not apply: the {part} is not smooth; use Theorem 2")
        return self.c3 + self.alpha * self.c4


def constants_of(
    problem: Problem,
    *,
    n_features: int,
    n_rows: Integers,
    noise_multiplier: Floats,
    weight_radius: float,
) -> Constants:
    """Return the constants of a problem; ``noise_multiplier`` is one number or one per agent."""
    n_weights = n_features * problem.loss.n_outputs
    return Constants(
        c1=problem.loss.lipschitz,
        c2=problem.regularizer.lipschitz(n_weights, weight_radius),
        c3=problem.loss.smoothness,
        c4=problem.regularizer.smoothness,
        alpha=problem.alpha,
        n_weights=n_weights,
        weight_radius=weight_radius,
        noise_multiplier=np.broadcast_to(np.asarray(noise_multiplier, dtype=float), n_rows.shape),
        n_rows=n_rows,
    )


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
    """The same step size in every round for every agent."""

    step_size: float
    n_agents: int

    def __post_init__(self) -> None:
        if not (0.0 < self.step_size < np.inf):
            raise StudyError(f"step_size must be a positive number, not {self.step_size!r}")

    def __call__(self, round: int) -> Floats:
        return np.full(self.n_agents, self.step_size)


def theorem_schedule(constants: Constants) -> NonSmooth | Smooth:
    """Return the schedule of Theorem 3 if its assumptions hold, else that of Theorem 2."""
    smooth = constants.c3 is not None and constants.c4 is not None
    return Smooth(constants) if smooth else NonSmooth(constants)


def m1(constants: Constants) -> float:
    """``M1 = Σ_i √2 c_w √((c1 + λc2/n)² + 4dp c1² z²/m_i²)``."""
    return float(np.sqrt(2.0) * constants.weight_radius * constants.noisy_gradient_size.sum())


def m2(constants: Constants, *, rho: float, beta: float) -> float:
    """``M2 = n (ρ c_w² + β²/ρ) / 2``."""
    return len(constants.n_rows) * (rho * constants.weight_radius**2 + beta**2 / rho) / 2.0


def m3(constants: Constants) -> float:
    """``M3 = Σ_i 2√2 c_w c1 z √(dp) / m_i``."""
    return float(constants.weight_radius * constants.noise_size.sum())


def m4(constants: Constants, *, rho: float, beta: float) -> float:
    """``M4 = n (c_w² (c3 + λc4/n + ρ) + β²/ρ) / 2``."""
    radius_squared = constants.weight_radius**2
    return len(constants.n_rows) * (radius_squared * (constants.curvature + rho) + beta**2 / rho) / 2.0


def nonsmooth_bound(constants: Constants, *, n_rounds: int, rho: float, beta: float) -> float:
    """Theorem 2: ``M1/√t + M2/t``."""
    return m1(constants) / math.sqrt(n_rounds) + m2(constants, rho=rho, beta=beta) / n_rounds


def smooth_bound(constants: Constants, *, n_rounds: int, rho: float, beta: float) -> float:
    """Theorem 3: ``M3/√t + M4/t``."""
    return m3(constants) / math.sqrt(n_rounds) + m4(constants, rho=rho, beta=beta) / n_rounds
