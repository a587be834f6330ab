"""Rényi bound of objective perturbation: the release of ``argmin_w f(w) + ⟨ξ, w⟩`` with ``ξ ~ N(0, σ²I)``.

Derivation and limits: ``docs/decisions/0005-accounting-of-baselines.md``. The tests compare it with exact
divergences.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf, log_ndtr

from dpadmm._base.arrays import Floats
from dpadmm.privacy.releases import ObjectiveRelease

_EPS = float(np.finfo(float).eps)
_LOG_2 = math.log(2.0)


def objective_renyi(release: ObjectiveRelease, orders: Floats) -> Floats:
    """A bound of the Rényi divergence of one release at every order α > 1, in both directions.

    With ``s = α − 1``, ``μ = 1/z``, ``e = ln(1 + β)`` and ``κ = min(β²/(1 + β), μ√(2/π) + e)`` it is

    ``μ²/2 + (1/s) ln{1 + sκ + [2 exp(s e + s²μ²/2) Φ(sμ) − 1 − s(μ√(2/π) + e)]}``,

    plus ``α μ_r²/2`` for the Gaussian that covers the solver's tolerance.
    """
    noise, rounding = release.noise_multiplier, release.rounding_multiplier
    if noise == 0.0 or rounding == 0.0:
        return np.full(np.shape(orders), np.inf)
    with np.errstate(over="ignore"):
        cost = argmin_renyi(1.0 / noise, release.curvature_ratio, np.asarray(orders, float) - 1.0)
        return cost + np.asarray(orders, float) / 2.0 / rounding / rounding


def argmin_renyi(mu: float, curvature_ratio: float, s: Floats) -> Floats:
    """The bound at orders ``1 + s`` without rounding; ``mu = 0`` leaves the cost of the curvature alone."""
    beta = curvature_ratio
    det, half_normal = math.log1p(beta), mu * math.sqrt(2.0 / math.pi)
    mean = min(beta * (beta / (1.0 + beta)), half_normal + det)
    with np.errstate(over="ignore"):
        exponent = s * det + (s * mu) ** 2 / 2.0
        # ln(2 Φ(x)), to full precision on both ends
        log_moment = exponent + np.where(
            s * mu < 1.0, np.log1p(erf(s * mu / math.sqrt(2.0))), _LOG_2 + log_ndtr(s * mu)
        )
        near = np.expm1(np.minimum(log_moment, 30.0)) - s * (half_normal + det - mean)
        # Beyond e³⁰ what is subtracted makes no difference, and leaving it out is safe
        inner = np.where(log_moment > 30.0, log_moment, np.log1p(np.maximum(near, 0.0)))
        slack = 8.0 * _EPS * (1.0 + s * (half_normal + det)) / s
        return np.asarray(mu * mu / 2.0 + inner / s * (1.0 + 8.0 * _EPS) + slack)
