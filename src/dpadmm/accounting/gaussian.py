"""Composition of Gaussian releases: exact, by the paper's moments bound, and by two cross-checks.

A release with noise multiplier z (noise standard deviation = z × sensitivity) is μ-GDP with ``μ = 1/z``.
Adaptive composition is exact, ``μ = √(Σ_k 1/z_k²)``, and μ-GDP implies (ε, δ)-DP for every ε with
``δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)``. The z_k may depend on earlier releases if a filter stops before
``Σ_k 1/z_k²`` exceeds a bound that was fixed in advance (docs/explanation/ledgers.md).

Neighbours are replace-one; their factor 2 is in the sensitivity (``sensitivity.py``) and not in this module.
Every ε and δ is an upper bound: searches stop on the safe side, and rounding goes up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, cast, get_args

import numpy as np
import scipy  # submodules load on first use
from numpy.typing import NDArray

from dpadmm.accounting.events import Release
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.checks import (
    Number,
    require,
    require_delta,
    require_epsilon,
    require_mu,
    require_noise_multiplier,
    require_whole,
    unwrapped,
)

Accountant = Literal["exact", "paper"]

LOG_DELTA_SLACK = 1e-12
"""Upper bound of the rounding error of ``log_delta`` (about 1e-13). It is added to δ, so ε is never too small."""

ROUND_UP = 1.0 + 4.0 * np.finfo(float).eps

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_NODES, _WEIGHTS = (_NODES + 1.0) / 2.0, _WEIGHTS / 2.0


def gaussian_mu(releases: Iterable[Release]) -> float:
    """Return ``μ = √(Σ_k count_k/z_k²)``, the exact GDP parameter of all releases together; inf without noise.

    Examples
    --------
    >>> gaussian_mu([Release(10.0, count=3), Release(5.0)])
    0.26457513110645...
    """
    return math.hypot(*(_release_mu(release) for release in releases))


def _release_mu(release: Release) -> float:
    if release.count == 0:
        return 0.0
    return math.sqrt(release.count) / release.noise_multiplier if release.noise_multiplier else math.inf


def group_mu(mu: float, n_rows: int) -> float:
    """Return ``k·μ``: the GDP parameter for a person with k rows of an agent."""
    require_mu(mu)
    require_whole("n_rows", n_rows, least=1)
    return mu * n_rows


def exact_delta(mu: Number, epsilon: Number | float) -> Number:
    """Return ``δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)``, rounded up, for ε ≥ 0 and any μ from 0 to inf.

    Examples
    --------
    >>> round(exact_delta(1.0, 1.0), 6)
    0.126937
    """
    require_mu(mu)
    require("epsilon", epsilon, lambda e: e >= 0.0, "a number of at least 0")
    spread, loss = np.broadcast_arrays(np.asarray(mu, float), np.asarray(epsilon, float))
    out = np.where(np.isinf(spread) & np.isfinite(loss), 1.0, 0.0)
    inside = (spread > 0.0) & np.isfinite(spread)
    within = spread[inside]
    with np.errstate(over="ignore"):
        start = loss[inside] / within - within / 2.0
    out[inside] = np.exp(np.minimum(0.0, log_delta(start, within) + LOG_DELTA_SLACK))
    return cast(Number, unwrapped(out))


def exact_epsilon(mu: Number, delta: Number | float) -> Number:
    """Return the smallest ε with ``δ(ε) ≤ δ`` under μ-GDP, rounded up; 0 for μ = 0, inf for μ = inf (no noise).

    Bisection in ``x = ε/μ`` keeps full relative precision for tiny and for huge μ. dp_accounting's
    ``get_epsilon_gaussian`` is the reference in the tests, but is not used here: for small μ its δ cancels, it
    warns, and its ε is too small in the tenth digit.

    Parameters
    ----------
    mu : float or array
        μ of all releases together, ``√(Σ 1/z²)``.
    delta : float or array
        Between 0 and 1.

    Examples
    --------
    One hundred rounds at z = √(2 ln 1250)/0.05:

    >>> round(exact_epsilon(gaussian_mu([Release(math.sqrt(2 * math.log(1250)) / 0.05, 100)]), 1e-3), 4)
    0.2772
    """
    require_mu(mu)
    require_delta(delta)
    spread, leak = np.broadcast_arrays(np.asarray(mu, float), np.asarray(delta, float))
    out, inside = np.full(spread.shape, np.inf), np.isfinite(spread)
    within, target = spread[inside], np.log(leak[inside]) - LOG_DELTA_SLACK

    def holds(ratio: Floats) -> NDArray[np.bool_]:
        return np.asarray(log_delta(ratio - within / 2.0, within) <= target)

    none = np.zeros_like(within)
    # δ(ε) ≤ Φ(−a) with a = ε/μ − μ/2, so a = |Φ⁻¹(δ)| is enough
    ratio = smallest_true(holds, none, within / 2.0 + np.abs(scipy.special.ndtri(leak[inside])) + 1.0)
    with np.errstate(over="ignore"):
        out[inside] = np.where(holds(none), 0.0, within * ratio * ROUND_UP)
    return cast(Number, unwrapped(out))


def log_delta(start: Floats, mu: Floats) -> Floats:
    """Return ``ln δ`` with ``a = ε/μ − μ/2`` (``start``) and ``b = a + μ = ε/μ + μ/2``.

    Since ``e^ε φ(b) = φ(a)``, ``δ = φ(a)·(R(a) − R(b))`` with the Mills ratio ``R(x) = Φ(−x)/φ(x)``.
    For small μ the difference would cancel, so it is integrated: ``R(a) − R(b) = ∫ (1 − x R(x)) dx``.
    """
    beyond = _mills(start + mu)
    wide = _mills(np.maximum(start, 0.0)) - beyond
    with np.errstate(over="ignore", divide="ignore"):
        # A sum instead of @, whose last bit depends on the shape: ε of an agent does not depend on the others
        narrow = mu * np.sum(_mills_slope(start[..., None] + mu[..., None] * _NODES) * _WEIGHTS, axis=-1)
        log_density = -0.5 * start * start - _LOG_SQRT_2PI
        right = log_density + np.log(np.where(mu < 0.5, narrow, wide))
        # For a < 0 the ratio R(a) overflows, but δ = 1 − Φ(a) − φ(a)·R(b) does not cancel
        rest = scipy.special.ndtr(start) + np.exp(log_density) * beyond
        left = np.log1p(-np.minimum(rest, 1.0))
    return np.asarray(np.where((start < 0.0) & (mu >= 0.5), left, right))


def _mills(x: Floats) -> Floats:
    return np.asarray(math.sqrt(math.pi / 2.0) * scipy.special.erfcx(x / math.sqrt(2.0)))


def _mills_slope(x: Floats) -> Floats:
    """Return ``−R'(x) = 1 − x R(x)``, which decreases; above 1000, where it cancels, the larger value at 1000."""
    x = np.minimum(x, 1e3)
    return np.asarray(1.0 - x * _mills(x))


def smallest_true(holds: Callable[[Floats], NDArray[np.bool_]], low: Floats, high: Floats) -> Floats:
    """Return the smallest value between low and high for which ``holds`` is true, elementwise, by bisection."""
    for _ in range(200):
        middle = low + (high - low) / 2.0
        if np.all((middle == low) | (middle == high)):
            break
        true = holds(middle)
        low, high = np.where(true, low, middle), np.where(true, middle, high)
    return high


def paper_epsilon(noise_multiplier: Number, n_rounds: int, delta: float) -> Number:
    """Return ``ε̄ = min over integer τ ≥ 1 of (t·τ(τ+1)/(2z²) + ln(1/δ))/τ``, the paper's moments bound of t rounds.

    With ``z = √(2 ln(1.25/δ))/ε`` the first term is the paper's ``tτ(τ+1)ε²/(4 ln(1.25/δ))``. The function is
    convex in τ with its real minimum at ``√(2z² ln(1/δ)/t)``, so the best integer is next to it.

    Examples
    --------
    >>> round(paper_epsilon(math.sqrt(2 * math.log(1250)) / 0.05, 100, 1e-3), 4)
    0.5009
    """
    require_noise_multiplier(noise_multiplier)
    require_whole("n_rounds", n_rounds, least=1)
    require_delta(delta)
    z = np.asarray(noise_multiplier, float)
    log_inverse, rounds = -math.log(delta), float(n_rounds)
    # Every order gives a valid bound, so limiting z against overflow is safe
    order = np.maximum(1.0, np.floor(np.minimum(z, 1e300) * math.sqrt(2.0 * log_inverse / rounds)))
    with np.errstate(over="ignore", divide="ignore"):
        below, above = (rounds / z * ((tau + 1.0) / z) / 2.0 + log_inverse / tau for tau in (order, order + 1.0))
    return cast(Number, unwrapped(np.asarray(np.minimum(below, above) * ROUND_UP)))


def rdp_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return the total ε by dp_accounting's Rényi accountant: a cross-check, never below the exact value."""
    require_delta(delta)
    events = [release for release in releases if release.count]
    mu = gaussian_mu(events)
    if mu == 0.0:
        return 0.0
    from dp_accounting import rdp  # 1.3 s to import

    best = math.sqrt(2.0 * -math.log(delta)) / mu
    # The default neighbouring relation: the factor 2 of replace-one is already in the sensitivity
    accountant = rdp.RdpAccountant(orders=1.0 + best * np.geomspace(0.05, 20.0, 121))
    return _composed(accountant, events, delta)


def pld_epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return the total ε by dp_accounting's privacy loss distributions: a cross-check, rounded up on a fine grid."""
    require_delta(delta)
    events = [release for release in releases if release.count]
    mu = gaussian_mu(events)
    from dp_accounting import pld  # 1.3 s to import

    # The default neighbouring relation: PLDAccountant(REPLACE_ONE) would count the factor 2 twice.
    # The loss has standard deviation μ, so the grid has the same number of points for every μ
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4 * mu)
    return _composed(accountant, events, delta)


def _composed(accountant: Any, events: Iterable[Release], delta: float) -> float:
    from dp_accounting import GaussianDpEvent

    for release in events:
        accountant.compose(GaussianDpEvent(float(release.noise_multiplier)), int(release.count))
    return float(accountant.get_epsilon(delta))


def affordable_rounds(
    noise_multiplier: float, epsilon: float, delta: float, *, accountant: Accountant = "exact"
) -> int:
    """Return the largest number of rounds with a total of at most ε; 0 if one round exceeds it.

    Parameters
    ----------
    noise_multiplier : float
        z of every round.
    epsilon, delta : float
        Privacy budget.
    accountant : "exact" or "paper"
        The exact composition, or the paper's bound.

    Examples
    --------
    >>> z = math.sqrt(2 * math.log(1250)) / 0.05
    >>> affordable_rounds(z, 0.5, 1e-3), affordable_rounds(z, 0.5, 1e-3, accountant="paper")
    (268, 99)
    """
    require_noise_multiplier(noise_multiplier)
    require_epsilon("epsilon", epsilon)
    if accountant not in get_args(Accountant):
        raise StudyError(f"accountant must be 'exact' or 'paper', not {accountant!r}")
    z = float(noise_multiplier)
    if z > 1e100:
        raise StudyError(f"noise_multiplier must be at most 1e100 to count rounds, not {z!r}")

    def fits(n_rounds: int) -> bool:
        if accountant == "paper":
            return paper_epsilon(z, n_rounds, delta) <= epsilon
        return exact_epsilon(gaussian_mu([Release(z, n_rounds)]), delta) <= epsilon

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
