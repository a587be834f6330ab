"""Composition: the total ε of many releases, for every mechanism.

Every result is an upper bound: discretisation, truncation and rounding go up. Neighbours are replace-one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

import numpy as np
import scipy  # submodules load on first use

from dpadmm.accounting.events import (
    AnyRelease,
    ObjectiveRelease,
    PureRelease,
    Release,
    SampledRelease,
    UnpricedRelease,
)
from dpadmm.accounting.gaussian import ROUND_UP, exact_epsilon, gaussian_mu, paper_epsilon
from dpadmm.accounting.release_plan import Tally
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.checks import require_delta, require_whole

_FFT_SLACK = 1e-11
"""Upper bound of the absolute rounding error of an FFT convolution of 10⁴ rounds. It is subtracted from δ.

The error grows with the number of rounds. Measured: 1e-13 after 10⁴, 4e-12 after 10⁵ and 7e-11 after 10⁶.
"""

_GRID_POINTS = 20_000
_EPS = float(np.finfo(float).eps)
ORDERS = np.geomspace(1e-3, 1e9, 481)


def total_epsilon(release: AnyRelease, count: int, delta: float) -> float:
    """Return the total ε at δ of ``count`` equal releases of one agent; 0 for none, inf without noise.

    Examples
    --------
    >>> round(total_epsilon(Release(75.53), 100, 1e-3), 4)
    0.2772
    >>> round(total_epsilon(PureRelease(0.05), 100, 1e-3), 4)
    1.3461
    """
    require_whole("count", count, least=0)
    require_delta(delta)
    if count == 0:
        return 0.0
    return _total(release, int(count), float(delta))


def tally_epsilon(tally: Tally, delta: float) -> float:
    """Return the total ε at δ of releases that may differ; 0 for none, inf without noise.

    Composition of Gaussian releases is exact for any noise multipliers. Rényi bounds of perturbed objectives are added
    order by order, also if their noise or curvature changes between rounds. Each other mechanism is composed
    separately. The totals are added by basic composition with equal shares of δ, which holds for rounds in any order
    (concurrent composition: Vadhan and Zhang 2023).

    Examples
    --------
    >>> mixed = ((Release(20.0), 96), (Release(10.0, statistic="moments"), 1))
    >>> tally_epsilon(mixed, 1e-5) == total_epsilon(Release(20.0), 100, 1e-5)
    True
    """
    require_delta(delta)
    gaussian = tuple((release, n) for release, n in tally if n and isinstance(release, Release))
    objective = tuple((release, n) for release, n in tally if n and isinstance(release, ObjectiveRelease))
    others = [(release, n) for release, n in tally if n and not isinstance(release, Release | ObjectiveRelease)]
    n_parts = len(others) + bool(gaussian) + bool(objective)
    if n_parts == 0:
        return 0.0
    share = delta / n_parts
    total = exact_epsilon(tally_mu(gaussian), share) if gaussian else 0.0
    total += objective_epsilon(objective, share) if objective else 0.0
    total += sum(total_epsilon(each, n, share) for each, n in others)
    return total if n_parts == 1 else total * ROUND_UP


def tally_mu(tally: Tally) -> float:
    """Return ``μ = √(Σ 1/z²)`` of a tally of Gaussian releases; NaN if it has others."""
    gaussian = [replace(release, count=release.count * n) for release, n in tally if isinstance(release, Release)]
    return gaussian_mu(gaussian) if len(gaussian) == len(tally) else math.nan


def tally_paper_epsilon(tally: Tally, delta: float) -> float:
    """Return the paper's moments bound ε̄; NaN unless all releases are Gaussian with equal noise."""
    gaussian = [(release, n) for release, n in tally if isinstance(release, Release)]
    rounds = sum(release.count * n for release, n in gaussian)
    if len(gaussian) < len(tally) or len({release.noise_multiplier for release, _ in gaussian}) > 1:
        return math.nan
    return float(paper_epsilon(gaussian[0][0].noise_multiplier, rounds, delta)) if rounds else 0.0


def accountant_of(release: AnyRelease) -> str:
    """Return the name of the composition theorem for a release."""
    if isinstance(release, UnpricedRelease):
        return f"none: {release.source} has no known privacy cost"
    return _ACCOUNTANTS[type(release)]


_ACCOUNTANTS = {
    Release: "exact Gaussian composition",
    SampledRelease: "privacy loss distribution (PLD)",
    ObjectiveRelease: "Rényi bound of objective perturbation",
    PureRelease: "optimal composition of pure ε",
}


@lru_cache(maxsize=4096)
def _total(release: AnyRelease, count: int, delta: float) -> float:
    if isinstance(release, Release):
        return _gaussian(release.noise_multiplier, count * release.count, delta)
    if isinstance(release, SampledRelease):
        # Without secrecy of the sample it is a Gaussian release, which is also the limit for tiny δ
        unsampled = _gaussian(release.noise_multiplier, count, delta)
        slack = _FFT_SLACK * max(1.0, count / 1e4)
        if release.sampling == 1.0 or math.isinf(unsampled) or delta <= 2.0 * slack:
            return unsampled
        return min(unsampled, sampled_epsilon(release, count, delta - slack))
    if isinstance(release, ObjectiveRelease):
        return objective_epsilon(((release, count),), delta)
    if isinstance(release, PureRelease):
        return pure_composition(release.epsilon, count, delta)
    if isinstance(release, UnpricedRelease):
        return math.inf
    assert_never(release)


def _gaussian(noise_multiplier: float, count: int, delta: float) -> float:
    if count == 0:
        return 0.0
    return exact_epsilon(math.sqrt(count) / noise_multiplier if noise_multiplier else math.inf, delta)


def sampled_epsilon(release: SampledRelease, count: int, delta: float) -> float:
    """Return the total ε by dp_accounting's privacy loss distributions, in units of the sensitivity.

    The worst pair is ``(1−q)N(0, z²) + qN(½, z²)`` against ``(1−q)N(0, z²) + qN(−½, z²)``: a row is sampled with
    probability q, and then contributes ``±c1``, half of the sensitivity.
    """
    from dp_accounting import NeighboringRelation  # 1.3 s to import
    from dp_accounting.pld import privacy_loss_distribution

    z, q = release.noise_multiplier, release.sampling
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=z,
        sensitivity=0.5,  # dp_accounting shifts by this in both directions
        sampling_prob=q,
        value_discretization_interval=_loss_grid(z, q),
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    return float(one_round.self_compose(count).get_epsilon_for_delta(delta) * ROUND_UP)


def _loss_grid(z: float, q: float) -> float:
    """Return the grid step: 1% of the standard deviation of the loss (its χ²), at most about 20,000 points in total.

    Every step gives an upper bound. This one is within 1e-4 of the limit.
    """
    spread = min(1.0 / z, 2.0 * q * math.sqrt(math.sinh(min(0.25 / z / z, 500.0))))
    edge = (10.5 * z + 0.5) / (2.0 * z * z)  # log-likelihood ratio where less than e⁻⁵⁰ is left
    span = 2.0 * (np.logaddexp(math.log1p(-q), math.log(q) + edge) if q < 1.0 else edge)
    return max(0.01 * spread, float(span) / _GRID_POINTS)


def objective_renyi(release: ObjectiveRelease, orders: Floats) -> Floats:
    """Return a bound of the Rényi divergence of ``argmin_w f(w) + ⟨ξ, w⟩``, ``ξ ~ N(0, σ²I)``, at orders α > 1.

    It holds in both directions. Proof: ``docs/explanation/proofs.md``. Tests compare it with exact divergences.

    With ``s = α − 1``, ``μ = 1/z``, ``e = ln(1 + β)`` and ``κ = min(β²/(1 + β), μ√(2/π) + e)`` it is

    ``μ²/2 + (1/s) ln{1 + sκ + [2 exp(s e + s²μ²/2) Φ(sμ) − 1 − s(μ√(2/π) + e)]}``,

    plus ``α μ_r²/2`` for the Gaussian noise on the minimiser.
    """
    noise, rounding = release.noise_multiplier, release.rounding_multiplier
    if noise == 0.0 or rounding == 0.0:
        return np.full(np.shape(orders), np.inf)
    with np.errstate(over="ignore"):
        cost = argmin_renyi(1.0 / noise, release.curvature_ratio, np.asarray(orders, float) - 1.0)
        return cost + np.asarray(orders, float) / 2.0 / rounding / rounding


def objective_epsilon(releases: tuple[tuple[ObjectiveRelease, int], ...], delta: float) -> float:
    """Return the total ε of perturbed objectives. Rényi divergences of adaptive releases add up at every order."""
    orders = 1.0 + ORDERS
    divergences = sum((n * objective_renyi(release, orders) for release, n in releases), np.zeros(len(orders)))
    return epsilon_from_renyi(divergences, orders, delta)


def argmin_renyi(mu: float, curvature_ratio: float, s: Floats) -> Floats:
    """Return the bound at orders ``1 + s`` for an exact minimiser; ``mu = 0`` leaves only the cost of the curvature."""
    beta = curvature_ratio
    det, half_normal = math.log1p(beta), mu * math.sqrt(2.0 / math.pi)
    mean = min(beta * (beta / (1.0 + beta)), half_normal + det)
    with np.errstate(over="ignore"):
        x = s * mu
        exponent = s * det + x**2 / 2.0
        # ln(2 Φ(x)), to full precision at both ends
        log_moment = exponent + np.where(
            x < 1.0, np.log1p(scipy.special.erf(x / math.sqrt(2.0))), math.log(2.0) + scipy.special.log_ndtr(x)
        )
        near = np.expm1(np.minimum(log_moment, 30.0)) - s * (half_normal + det - mean)
        # Above e³⁰ the subtracted term is negligible, and omitting it is safe
        inner = np.where(log_moment > 30.0, log_moment, np.log1p(np.maximum(near, 0.0)))
        slack = 8.0 * _EPS * (1.0 + s * (half_normal + det)) / s
        return np.asarray(mu * mu / 2.0 + inner / s * (1.0 + 8.0 * _EPS) + slack)


def epsilon_from_renyi(divergences: Floats, orders: Floats, delta: float) -> float:
    """Return ``min_α ε_α + ln(1 − 1/α) − ln(δ α)/(α − 1)`` (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    with np.errstate(over="ignore", invalid="ignore"):
        epsilons = divergences + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    epsilons = np.where(np.isnan(epsilons), np.inf, epsilons)
    return max(0.0, float(epsilons.min() * ROUND_UP))


def pure_composition(epsilon: float, count: int, delta: float) -> float:
    """Return the smallest total ε' at δ of t = ``count`` ε-private releases of any kind; at most ``t ε``.

    The worst releases are coins with odds e^ε (Kairouz, Oh and Viswanath 2015): the loss is ``(2K − t)ε`` with
    ``K ~ Bin(t, 1/(1 + e^{−ε}))``. Let ``A_j`` and ``B_j`` be the probabilities of ``K ≥ j`` for the two neighbours.
    Then ``δ(ε') = max_j A_j − e^{ε'} B_j``, so ``ε' = max_j ln((A_j − δ)/B_j)``.
    """
    k = np.arange(count, -1.0, -1.0)
    log_miss = -math.log1p(math.exp(-epsilon)) - epsilon
    gammaln = scipy.special.gammaln
    log_ways = gammaln(count + 1.0) - gammaln(k + 1.0) - gammaln(count - k + 1.0)
    log_probability = log_ways + k * (log_miss + epsilon) + (count - k) * log_miss
    above = np.logaddexp.accumulate(log_probability)
    below = np.logaddexp.accumulate(log_probability - (2.0 * k - count) * epsilon)
    slack = 16.0 * _EPS * (50.0 + count * (1.0 + math.log1p(count) + epsilon))
    excess = np.exp(np.minimum(above + slack, 0.0)) - delta
    possible = excess > 0.0
    answer = float(np.max(np.log(excess[possible]) - below[possible], initial=0.0)) + 2.0 * slack
    return float(min(count * epsilon * ROUND_UP if count > 1 else epsilon, answer))
