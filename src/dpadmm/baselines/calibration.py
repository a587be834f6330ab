"""Calibration of baselines whose rounds are not Gaussian releases.

A calibration to a total ε is safe: :func:`dpadmm.accounting.composition.total_epsilon` of the result never exceeds the
target. A calibration to ε per round is the paper's formula; the accountant computes its total. All results are cached,
because many agents have the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpadmm.accounting.calibration import (
    paper_noise_multiplier,
    smallest_that_holds,
    total_noise_multiplier,
)
from dpadmm.accounting.composition import ORDERS, argmin_renyi, epsilon_from_renyi, tally_epsilon, total_epsilon
from dpadmm.accounting.events import ObjectiveRelease, PureRelease
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.errors import StudyError
from dpadmm.parameters.checks import require, require_delta, require_epsilon, require_whole


@dataclass(frozen=True)
class ObjectivePlan:
    """Perturbation of an agent's objective: ``argmin_w f(w) + ⟨ξ, w⟩ + (Φ/2)‖w‖²``.

    Noise ξ hides the slope of a row. Its curvature costs ``ε_det = ln(1 + β)``, ``β = c3/(m q)``, for any ξ; only the
    ridge Φ reduces it.

    Attributes
    ----------
    release : ObjectiveRelease or PureRelease
        Privacy event of one round; Φ is in its ``curvature_ratio``.
    noise_scale : float
        Gaussian: σ, for ξ = σ·N(0, I). Pure: 1/ζ, for ξ = (1/ζ)·spherical(...).
    extra_ridge : float
        Φ ≥ 0.
    """

    release: ObjectiveRelease | PureRelease
    noise_scale: float
    extra_ridge: float


@lru_cache(maxsize=1024)
def pure_round_epsilon(epsilon: float, delta: float, n_releases: int) -> float:
    """Return the largest ε₀, to nine digits, for which t rounds of pure ε₀ are (ε, δ)-private in total.

    Examples
    --------
    >>> pure_round_epsilon(0.5, 1e-3, 1)
    0.5
    >>> round(pure_round_epsilon(0.5, 1e-3, 100), 4)
    0.0217
    """
    require_epsilon("epsilon", epsilon)
    require_delta(delta)
    require_whole("n_releases", n_releases, least=1)
    if n_releases == 1:
        return float(epsilon)

    def holds(inverse: float) -> bool:
        return total_epsilon(PureRelease(1.0 / inverse), n_releases, delta) <= epsilon

    enough = (n_releases / epsilon) * (1.0 + 1e-12)  # basic composition
    return 1.0 / smallest_that_holds(holds, guess=enough, enough=enough, precision=1e-9)


@lru_cache(maxsize=8192)
def objective_plan(
    *,
    lipschitz: float,
    smoothness: float,
    n_rows: int,
    strong_convexity: float,
    epsilon: float,
    delta: float,
    n_releases: int,
    rounding_multiplier: float = math.inf,
) -> ObjectivePlan:
    """Return the least Gaussian noise with which t releases of perturbed minimisers are (ε, δ)-private in total.

    If the curvature alone costs more than ε/2, the smallest Φ is added with which it costs ε/2.

    ``lipschitz``, ``smoothness`` and ``n_rows`` are c1, c3 and m. ``strong_convexity`` is q of all terms except the
    data term, without Φ. ``rounding_multiplier`` is that of the noise that covers the solver's tolerance
    (:class:`dpadmm.accounting.events.ObjectiveRelease`); its cost is part of the total.

    Examples
    --------
    >>> plan = objective_plan(lipschitz=1.0, smoothness=0.25, n_rows=400, strong_convexity=0.1,
    ...                       epsilon=0.5, delta=1e-3, n_releases=100)
    >>> round(total_epsilon(plan.release, 100, 1e-3), 6)
    0.5
    """
    require_whole("n_releases", n_releases, least=1)
    return objective_schedule(
        lipschitz=lipschitz, smoothness=smoothness, n_rows=n_rows, rounds=((strong_convexity, 1.0, n_releases),),
        epsilon=epsilon, delta=delta, rounding_multiplier=rounding_multiplier,
    )[0]  # fmt: skip


@lru_cache(maxsize=256)
def objective_schedule(
    *,
    lipschitz: float,
    smoothness: float,
    n_rows: int,
    rounds: tuple[tuple[float, float, int], ...],
    epsilon: float,
    delta: float,
    rounding_multiplier: float = math.inf,
) -> tuple[ObjectivePlan, ...]:
    """Return the same for noise that changes between rounds: one plan for each entry of ``rounds``.

    An entry is (q, factor, number of rounds). The noise is ``factor`` times a common multiplier, which is minimised.
    All rounds have the same Φ.
    """
    for q, _, _ in rounds:
        _require_loss(lipschitz, smoothness, n_rows, q)
    require_epsilon("epsilon", epsilon)
    require_delta(delta)
    require("rounding_multiplier", rounding_multiplier, lambda r: r > 0.0, "a positive number")
    n_releases = sum(count for _, _, count in rounds)

    def ratios(ridge: float) -> list[float]:
        return [curvature_ratio(smoothness, n_rows, q + ridge) for q, _, _ in rounds]

    def curvature_holds(ridge: float) -> bool:
        costs = (n * argmin_renyi(0.0, ratio, ORDERS) for (_, _, n), ratio in zip(rounds, ratios(ridge), strict=True))
        return epsilon_from_renyi(sum(costs, np.zeros(len(ORDERS))), 1.0 + ORDERS, delta) <= epsilon / 2.0

    ridge = 0.0
    if not curvature_holds(ridge):
        # t·ln(1 + β) = ε/2 is enough, by basic composition
        enough = 1.001 * smoothness / (n_rows * math.expm1(epsilon / 2.0 / n_releases))
        ridge = smallest_that_holds(curvature_holds, guess=enough, enough=enough, precision=1e-9)
    betas = ratios(ridge)

    def releases(z: float) -> list[ObjectiveRelease]:
        changing = zip(rounds, betas, strict=True)
        return [ObjectiveRelease(z * factor, beta, rounding_multiplier) for (_, factor, _), beta in changing]

    def holds(z: float) -> bool:
        tally = tuple((release, n) for release, (_, _, n) in zip(releases(z), rounds, strict=True))
        return tally_epsilon(tally, delta) <= epsilon

    guess = enough = total_noise_multiplier(epsilon, delta, n_releases)
    while not holds(enough):
        enough *= 2.0
        if enough > 1e12 * guess:  # the curvature costs at most half, so this is the rounding
            raise StudyError(
                f"no noise on the objective makes {n_releases} releases ({epsilon:g}, {delta:g})-private: "
                f"the noise for the solver's tolerance (multiplier {rounding_multiplier:g}) is too small, or "
                "δ too large for the Rényi bound; use a smaller delta, or admm_pvp or dp_admm"
            )
    z, unit = (
        smallest_that_holds(holds, guess=guess, enough=enough, precision=1e-9),
        mean_sensitivity(lipschitz, n_rows),
    )
    return tuple(ObjectivePlan(each, each.noise_multiplier * unit, ridge) for each in releases(z))


@lru_cache(maxsize=8192)
def objective_round_plan(
    *,
    lipschitz: float,
    smoothness: float,
    n_rows: int,
    strong_convexity: float,
    round_epsilon: float,
    delta: float,
    rounding_multiplier: float = math.inf,
) -> ObjectivePlan:
    """Return the paper's ``σ = √(2 ln(1.25/δ)) · 2·c1/(m(ε − ε_det))`` of one round.

    If ``ε ≤ ε_det``, ``Φ = c3/(m(e^{ε/2} − 1)) − q`` gives ``ε_det = ε/2``. This is the paper's calibration, not a
    proof: ``total_epsilon`` of the release is the guarantee.
    """
    _require_loss(lipschitz, smoothness, n_rows, strong_convexity)
    left, ridge = _round_split(smoothness, n_rows, strong_convexity, round_epsilon)
    z = paper_noise_multiplier(left, delta)
    ratio = curvature_ratio(smoothness, n_rows, strong_convexity + ridge)
    scale = z * mean_sensitivity(lipschitz, n_rows)
    return ObjectivePlan(ObjectiveRelease(z, ratio, rounding_multiplier), scale, ridge)


@lru_cache(maxsize=8192)
def pure_objective_plan(
    *, lipschitz: float, smoothness: float, n_rows: int, strong_convexity: float, round_epsilon: float
) -> ObjectivePlan:
    """Return noise of density ∝ ``exp(−ζ‖ξ‖)`` with ``ζ = m(ε − ε_det)/(2·c1)``: one round is (ε, 0)-private.

    Φ as in :func:`objective_round_plan`. The proof is for the exact minimiser (Chaudhuri, Monteleoni and
    Sarwate 2011; replace-one and one score): slopes differ by at most Δ, determinants by a factor 1 + β.
    """
    _require_loss(lipschitz, smoothness, n_rows, strong_convexity)
    left, ridge = _round_split(smoothness, n_rows, strong_convexity, round_epsilon)
    scale = mean_sensitivity(lipschitz, n_rows) / left
    return ObjectivePlan(PureRelease(round_epsilon), scale, ridge)


def curvature_ratio(smoothness: float, n_rows: int, strong_convexity: float) -> float:
    """Return ``β = c3/(m q)``."""
    return smoothness / (n_rows * strong_convexity)


def _round_split(smoothness: float, n_rows: int, strong_convexity: float, epsilon: float) -> tuple[float, float]:
    """Return ``(ε − ε_det, Φ)`` of one round."""
    require_epsilon("round_epsilon", epsilon)
    det = math.log1p(curvature_ratio(smoothness, n_rows, strong_convexity))
    if epsilon > det:
        return epsilon - det, 0.0
    return epsilon / 2.0, smoothness / (n_rows * math.expm1(epsilon / 2.0)) - strong_convexity


def _require_loss(lipschitz: float, smoothness: float, n_rows: int, strong_convexity: float) -> None:
    require("lipschitz", lipschitz, lambda c: (c > 0.0) & np.isfinite(c), "a positive number")
    require("smoothness", smoothness, lambda c: (c > 0.0) & np.isfinite(c), "a positive number")
    require_whole("n_rows", n_rows, least=1)
    require("strong_convexity", strong_convexity, lambda q: (q > 0.0) & np.isfinite(q), "a positive number")
