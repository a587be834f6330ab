"""Sensitivity of an agent's releases to replacing one row. The factor 2 of replace-one is only here."""

from __future__ import annotations

from typing import overload

import numpy as np

from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.parameters.checks import require, require_whole, unwrapped


@overload
def mean_sensitivity(lipschitz: float, n_rows: int) -> float: ...
@overload
def mean_sensitivity(lipschitz: float | Floats, n_rows: Integers) -> Floats: ...
@overload
def mean_sensitivity(lipschitz: Floats, n_rows: int | Integers) -> Floats: ...
def mean_sensitivity(lipschitz: float | Floats, n_rows: int | Integers) -> float | Floats:
    """Return ``Δ = 2·c1/m``, the L2 sensitivity of a mean over rows ``g = (1/m) Σ_j g_j`` with ``‖g_j‖ ≤ c1``.

    Neighbours differ in one row, and m is public. If row j is replaced, all other terms cancel and
    ``‖g − g'‖ = ‖g_j − g_j'‖/m ≤ (‖g_j‖ + ‖g_j'‖)/m ≤ 2·c1/m``, attained by opposite contributions of norm c1. It
    holds for all public parameters, so no request can increase it.

    Parameters
    ----------
    lipschitz : float or array
        c1, the clipping bound of a row's contribution, such as its gradient.
    n_rows : int or array
        m, the public number of rows of an agent, or an array for several agents.

    Examples
    --------
    >>> mean_sensitivity(1.0, 400)
    0.005
    """
    require("lipschitz", lipschitz, lambda c: (c > 0.0) & np.isfinite(c), "a positive number")
    require_whole("n_rows", n_rows, least=1)
    return unwrapped(np.asarray(2.0 * np.asarray(lipschitz, float) / np.asarray(n_rows)))


@overload
def minimizer_sensitivity(lipschitz: float, n_rows: int, strong_convexity: float, tolerance: float = 0.0) -> float: ...
@overload
def minimizer_sensitivity(
    lipschitz: float, n_rows: Integers, strong_convexity: float | Floats, tolerance: float | Floats = 0.0
) -> Floats: ...
def minimizer_sensitivity(
    lipschitz: float,
    n_rows: int | Integers,
    strong_convexity: float | Floats,
    tolerance: float | Floats = 0.0,
) -> float | Floats:
    """Return ``(2·c1/m + 2·tol)/q``, the L2 sensitivity of an approximate ``argmin_w (1/m) Σ_j ℓ_j(w) + r(w)``.

    r is q-strongly convex and depends on no row. At the minimiser for one neighbour, the gradient for the other has
    norm at most ``2·c1/m``, so by strong convexity the minimisers are at most ``2·c1/(m q)`` apart. Each solver result
    with a gradient norm of at most tol is within ``tol/q`` of its minimiser.

    Parameters
    ----------
    lipschitz, n_rows
        c1 and m, as in :func:`mean_sensitivity`.
    strong_convexity : float or array
        q of all terms except the data term: ``ρ + λ c/n`` in ADMM with a c-strongly convex regularizer.
    tolerance : float or array
        Gradient norm at which the solver stops.

    Examples
    --------
    >>> minimizer_sensitivity(1.0, 400, 0.5)
    0.01
    """
    require("strong_convexity", strong_convexity, lambda q: (q > 0.0) & np.isfinite(q), "a positive number")
    require("tolerance", tolerance, lambda t: (t >= 0.0) & np.isfinite(t), "a finite number of at least 0")
    data_term = np.asarray(mean_sensitivity(lipschitz, np.asarray(n_rows)))
    return unwrapped(np.asarray((data_term + 2.0 * tolerance) / strong_convexity))
