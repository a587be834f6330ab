"""The convergence bounds of Theorems 2 and 3, as numbers.

Both bound ``E Σ_i [ f_i(w̄_i) − f_i(w*) + β ‖w̄_i − w̄‖ ]`` after t rounds, starting from zero, for the
averages ``w̄ = mean_{k=1..t} w^k`` and ``w̄_i`` of the released local models over rounds 0..t−1 (Theorem 2)
or 1..t (Theorem 3).
"""

from __future__ import annotations

import math

import numpy as np

from dpadmm.optim.constants import Constants


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
