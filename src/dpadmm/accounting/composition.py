"""What rounds cost together, for every kind of release: equal ones, and any tally of them.

Every answer is an upper bound: discretisation, truncation and rounding go up. Neighbours are replace-one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import assert_never

import numpy as np
from scipy.special import erf, gammaln, log_ndtr

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
"""More than the rounding error of a convolution by FFT of 10⁴ rounds (absolute, whatever δ): taken off δ.

It grows with the rounds: seen were 1e-13 after 10⁴, 4e-12 after 10⁵ and 7e-11 after 10⁶.
"""

_GRID_POINTS = 20_000
_EPS = float(np.finfo(float).eps)
ORDERS = np.geomspace(1e-3, 1e9, 481)


def total_epsilon(release: AnyRelease, count: int, delta: float) -> float:
    """The total ε at δ of ``count`` such rounds of one agent; 0 for none, inf where rows met no noise.

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
    """The total ε at δ of rounds that may differ; 0 for none, inf where rows met no noise.

    Gaussian releases add up exactly, whatever their noise multipliers. Other kinds are added up each by
    itself and then by basic composition, with equal shares of δ, which holds however the rounds are mixed
    (concurrent composition: Vadhan and Zhang 2023).

    Examples
    --------
    >>> mixed = ((Release(20.0), 96), (Release(10.0, statistic="moments"), 1))
    >>> tally_epsilon(mixed, 1e-5) == total_epsilon(Release(20.0), 100, 1e-5)
    True
    """
    require_delta(delta)
    gaussian = tuple((release, n) for release, n in tally if n and isinstance(release, Release))
    others = [(release, n) for release, n in tally if n and not isinstance(release, Release)]
    n_parts = len(others) + bool(gaussian)
    if n_parts == 0:
        return 0.0
    share = delta / n_parts
    total = exact_epsilon(tally_mu(gaussian), share) if gaussian else 0.0
    total += sum(total_epsilon(each, n, share) for each, n in others)
    return total if n_parts == 1 else total * ROUND_UP


def tally_mu(tally: Tally) -> float:
    """Return ``μ = √(Σ 1/z²)`` of a tally of Gaussian releases; NaN if it has others."""
    gaussian = [replace(release, count=release.count * n) for release, n in tally if isinstance(release, Release)]
    return gaussian_mu(gaussian) if len(gaussian) == len(tally) else math.nan


def tally_paper_epsilon(tally: Tally, delta: float) -> float:
    """The paper's moments bound ε̄; NaN where it does not apply: it is for equal Gaussian releases."""
    plain = [(each, n) for each, n in tally if isinstance(each, Release)]
    rounds = sum(each.count * n for each, n in plain)
    if len(plain) < len(tally) or len({each.noise_multiplier for each, _ in plain}) > 1:
        return math.nan
    return float(paper_epsilon(plain[0][0].noise_multiplier, rounds, delta)) if rounds else 0.0


def accountant_of(release: AnyRelease) -> str:
    """How rounds of this kind are added up."""
    if isinstance(release, UnpricedRelease):
        return f"none: {release.source} states no price"
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
        # Without the sample's secret it is a plain Gaussian release, which is also the limit for tiny δ
        plain = _gaussian(release.noise_multiplier, count, delta)
        slack = _FFT_SLACK * max(1.0, count / 1e4)
        if release.sampling == 1.0 or math.isinf(plain) or delta <= 2.0 * slack:
            return plain
        return min(plain, sampled_epsilon(release, count, delta - slack))
    if isinstance(release, ObjectiveRelease):
        return epsilon_from_renyi(count * objective_renyi(release, 1.0 + ORDERS), 1.0 + ORDERS, delta)
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
    """Total ε by dp_accounting's privacy loss distributions, in units in which replacing a row moves by 1.

    The worst pair is ``(1−q)N(0, z²) + qN(½, z²)`` against ``(1−q)N(0, z²) + qN(−½, z²)``: a row is sampled
    with chance q, and then adds ``±c1`` (half of the sensitivity), not nothing.
    """
    from dp_accounting import NeighboringRelation  # 1.3 s to import
    from dp_accounting.pld import privacy_loss_distribution

    z, q = release.noise_multiplier, release.sampling
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=z,
        sensitivity=0.5,  # dp_accounting moves by this in both directions
        sampling_prob=q,
        value_discretization_interval=_loss_grid(z, q),
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    return float(one_round.self_compose(count).get_epsilon_for_delta(delta) * ROUND_UP)


def _loss_grid(z: float, q: float) -> float:
    """A hundredth of the loss's standard deviation (its χ²), but at most some 20,000 points in all.

    Any grid is safe; this one is within 1e-4 of the limit.
    """
    spread = min(1.0 / z, 2.0 * q * math.sqrt(math.sinh(min(0.25 / z / z, 500.0))))
    edge = (10.5 * z + 0.5) / (2.0 * z * z)  # log-likelihood ratio where less than e⁻⁵⁰ is left
    span = 2.0 * (np.logaddexp(math.log1p(-q), math.log(q) + edge) if q < 1.0 else edge)
    return max(0.01 * spread, float(span) / _GRID_POINTS)


def objective_renyi(release: ObjectiveRelease, orders: Floats) -> Floats:
    """A bound of the Rényi divergence of ``argmin_w f(w) + ⟨ξ, w⟩``, ``ξ ~ N(0, σ²I)``, at every order α > 1.

    It holds in both directions. Proof: ``docs/explanation/proofs.md``. The tests compare it with exact divergences.

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
            s * mu < 1.0, np.log1p(erf(s * mu / math.sqrt(2.0))), math.log(2.0) + log_ndtr(s * mu)
        )
        near = np.expm1(np.minimum(log_moment, 30.0)) - s * (half_normal + det - mean)
        # Beyond e³⁰ what is subtracted makes no difference, and leaving it out is safe
        inner = np.where(log_moment > 30.0, log_moment, np.log1p(np.maximum(near, 0.0)))
        slack = 8.0 * _EPS * (1.0 + s * (half_normal + det)) / s
        return np.asarray(mu * mu / 2.0 + inner / s * (1.0 + 8.0 * _EPS) + slack)


def epsilon_from_renyi(divergences: Floats, orders: Floats, delta: float) -> float:
    """``min_α ε_α + ln(1 − 1/α) − ln(δ α)/(α − 1)`` (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    with np.errstate(over="ignore", invalid="ignore"):
        epsilons = divergences + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    epsilons = np.where(np.isnan(epsilons), np.inf, epsilons)
    return max(0.0, float(epsilons.min() * ROUND_UP))


def pure_composition(epsilon: float, count: int, delta: float) -> float:
    """The smallest total ε' at δ of t = ``count`` ε-private rounds, whatever they are; at most ``t ε``.

    The worst rounds are coins with odds e^ε (Kairouz, Oh and Viswanath 2015): the loss is ``(2K − t)ε`` with
    ``K ~ Bin(t, 1/(1 + e^{−ε}))``. With ``A_j`` and ``B_j`` the chance of ``K ≥ j`` under one and the other
    neighbour, ``δ(ε') = max_j A_j − e^{ε'} B_j``, so ``ε' = max_j ln((A_j − δ)/B_j)``.
    """
    k = np.arange(count, -1.0, -1.0)
    log_miss = -math.log1p(math.exp(-epsilon)) - epsilon
    log_ways = gammaln(count + 1.0) - gammaln(k + 1.0) - gammaln(count - k + 1.0)
    log_chance = log_ways + k * (log_miss + epsilon) + (count - k) * log_miss
    above = np.logaddexp.accumulate(log_chance)
    below = np.logaddexp.accumulate(log_chance - (2.0 * k - count) * epsilon)
    slack = 16.0 * _EPS * (50.0 + count * (1.0 + math.log1p(count) + epsilon))
    excess = np.exp(np.minimum(above + slack, 0.0)) - delta
    possible = excess > 0.0
    answer = float(np.max(np.log(excess[possible]) - below[possible], initial=0.0)) + 2.0 * slack
    return float(min(count * epsilon * ROUND_UP if count > 1 else epsilon, answer))
