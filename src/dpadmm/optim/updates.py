"""The ADMM equations of Algorithm 1, and nothing else.

Arrays of agents are (n, d, p); the consensus is (d, p); step sizes are (n, 1, 1). An agent does
``dual_step`` (it closes the round before), ``primal_step`` and ``upload``; the aggregator ``consensus_step``.
"""

from __future__ import annotations

import numpy as np

from dpadmm._base.arrays import Floats


def primal_step(
    noisy_gradient: Floats,
    reg_gradient: Floats,
    *,
    released: Floats,
    dual: Floats,
    consensus: Floats,
    rho: float,
    step_size: Floats,
) -> Floats:
    """``w̃^k = (−h − (λ/n)R'(w̃^{k−1}) + γ^{k−1} + ρ w^{k−1} + w̃^{k−1}/η) / (ρ + 1/η)``.

    ``noisy_gradient`` is h, ``reg_gradient`` is (λ/n)R'; noise of scale s on h is noise of scale
    s/(ρ + 1/η) on w̃, as in the paper.
    """
    pull = 1.0 / step_size
    out = released * pull
    out += rho * consensus
    out += dual
    out -= noisy_gradient
    out -= reg_gradient
    out *= 1.0 / (rho + pull)
    return out


def upload(released: Floats, dual: Floats, rho: float) -> Floats:
    """``c^k = w̃^k − γ^{k−1}/ρ``: all the aggregator needs of the pair (w̃^k, γ^{k−1})."""
    out = dual * (-1.0 / rho)
    out += released
    return out


def consensus_step(uploads: Floats) -> Floats:
    """``w^k = mean_i c_i^k``."""
    return np.asarray(uploads.mean(axis=0))


def dual_step(dual: Floats, *, released: Floats, consensus: Floats, rho: float) -> Floats:
    """``γ^k = γ^{k−1} − ρ (w̃^k − w^k)``; the duals of all agents sum to zero after it."""
    out = consensus - released
    out *= rho
    out += dual
    return out
