"""Calibration: the noise multiplier z (noise standard deviation = z × sensitivity) for a privacy target, and back.

Exact calibrations are safe to the last bit: ``exact_epsilon`` of the result never exceeds the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import cast

import numpy as np
import scipy  # submodules load on first use
from numpy.typing import NDArray

from dpadmm.accounting.composition import total_epsilon
from dpadmm.accounting.events import SampledRelease
from dpadmm.accounting.gaussian import LOG_DELTA_SLACK, ROUND_UP, log_delta, smallest_true
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.parameters.checks import (
    Number,
    require_delta,
    require_epsilon,
    require_noise_multiplier,
    require_whole,
    unwrapped,
)

MIN_SAMPLED_MULTIPLIER = 0.1


def paper_noise_multiplier(round_epsilon: Number, delta: Number | float) -> Number:
    """Return ``z = √(2 ln(1.25/δ))/ε``: the paper's classical calibration of one round, for ε ≤ 1 only.

    Examples
    --------
    >>> round(paper_noise_multiplier(0.05, 1e-3), 4)
    75.5296
    """
    require_epsilon("round_epsilon", round_epsilon)
    require_delta(delta)
    epsilons = np.asarray(round_epsilon)
    if np.any(epsilons > 1.0):
        raise StudyError(
            f"round_epsilon must be at most 1 for the paper's calibration, not {float(epsilons.max())!r}, "
            "because the classical Gaussian theorem behind it needs ε ≤ 1; use the exact calibration "
            "(calibration = exact, --calibration exact) or give a total --epsilon"
        )
    return cast(Number, unwrapped(_classical_factor(delta) / epsilons))


def round_epsilon_from_noise(noise_multiplier: Number, delta: Number | float) -> Number:
    """Return ``ε = √(2 ln(1.25/δ))/z``: the paper's ε of one round, proven only if it is ≤ 1; inf for z = 0."""
    require_noise_multiplier(noise_multiplier)
    require_delta(delta)
    with np.errstate(divide="ignore", over="ignore"):
        return cast(Number, unwrapped(np.asarray(_classical_factor(delta) / noise_multiplier)))


def _classical_factor(delta: float | Floats) -> Floats:
    return np.asarray(np.sqrt(2.0 * (np.log(1.25) - np.log(delta))))


def exact_round_noise_multiplier(round_epsilon: Number, delta: Number | float) -> Number:
    """Return the smallest z for which one round is (ε, δ)-private, for any ε > 0 (analytic Gaussian mechanism).

    Examples
    --------
    >>> round(exact_round_noise_multiplier(0.05, 1e-3), 4)
    30.0103
    """
    require_epsilon("round_epsilon", round_epsilon)
    return cast(Number, unwrapped(ROUND_UP / np.asarray(mu_from_epsilon(round_epsilon, delta))))


def total_noise_multiplier(epsilon: Number, delta: Number | float, n_releases: int | Integers) -> Number:
    """Return ``z = √t/μ(ε, δ)``: the smallest z for which t releases are (ε, δ)-private in total.

    Any argument may be an array with one entry per agent.

    Parameters
    ----------
    epsilon, delta : float or array
        Total privacy budget.
    n_releases : int or array
        Number of releases, t.

    Examples
    --------
    >>> round(total_noise_multiplier(0.5, 1e-3, 100), 2)
    46.1
    """
    require_whole("n_releases", n_releases, least=1)
    mu = np.asarray(mu_from_epsilon(epsilon, delta))
    return cast(Number, unwrapped(np.asarray(ROUND_UP * np.sqrt(np.asarray(n_releases, float)) / mu)))


def mu_from_epsilon(epsilon: Number, delta: Number | float) -> Number:
    """Return the largest μ with an exact ε at δ of at most ``epsilon``, rounded down.

    Bisection in ``a = ε/μ − μ/2``; then ``b = ε/μ + μ/2 = √(a² + 2ε)`` and ``μ = b − a`` stay accurate.

    Examples
    --------
    >>> round(mu_from_epsilon(0.2772, 1e-3), 4)
    0.1324
    """
    require_epsilon("epsilon", epsilon)
    require_delta(delta)
    loss, leak = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
    # More slack than in exact_epsilon, so that its result stays below the target
    target = np.log(leak) - 3.0 * LOG_DELTA_SLACK

    def spread(start: Floats) -> Floats:
        end = np.hypot(start, np.sqrt(2.0) * np.sqrt(loss))
        with np.errstate(divide="ignore"):
            return np.asarray(np.where(start > 0.0, 2.0 * (loss / (start + end)), end - start))

    def holds(start: Floats) -> NDArray[np.bool_]:
        return np.asarray(log_delta(start, spread(start)) <= target)

    # δ ≤ Φ(−a), and for a < 0 also δ ≥ Φ(−a) − Φ(a) = 1 − 2Φ(a): the root lies between these
    low, high = scipy.special.ndtri(0.5 * (1.0 - leak)) - 1.0, np.maximum(0.0, -scipy.special.ndtri(leak)) + 1.0
    return cast(Number, unwrapped(np.asarray(spread(smallest_true(holds, low, high)) / ROUND_UP**4)))


@lru_cache(maxsize=1024)
def sampled_noise_multiplier(epsilon: float, delta: float, n_releases: int, sampling: float) -> float:
    """Return the smallest z ≥ 0.1, to 0.1%, for which t Poisson-sampled rounds are (ε, δ)-private in total.

    If a row is sampled so rarely that δ covers its publication, even z = 0 would satisfy the definition. δ is not
    meant for that, so z is at least 0.1.

    Examples
    --------
    >>> round(sampled_noise_multiplier(0.5, 1e-3, 100, 0.1), 1)
    4.6
    """
    unsampled = total_noise_multiplier(epsilon, delta, n_releases)
    if SampledRelease(unsampled, sampling).sampling == 1.0:
        return unsampled
    # First guess: the loss of a round has variance of about 4q² sinh(1/(4z²)); the sum over t rounds is μ²
    share = mu_from_epsilon(epsilon, delta) / (2.0 * sampling)
    guess = 0.5 / math.sqrt(math.asinh(share * share / n_releases))

    def holds(z: float) -> bool:
        return total_epsilon(SampledRelease(z, sampling), n_releases, delta) <= epsilon

    if holds(MIN_SAMPLED_MULTIPLIER):
        return MIN_SAMPLED_MULTIPLIER
    guess = max(guess, MIN_SAMPLED_MULTIPLIER)
    return smallest_that_holds(holds, guess=guess, enough=max(unsampled, guess), precision=1e-3)


def smallest_that_holds(holds: Callable[[float], bool], *, guess: float, enough: float, precision: float) -> float:
    """Return the smallest positive number for which ``holds`` is true, to a relative precision and rounded up.

    ``holds(enough)`` must be true. A good ``guess`` saves evaluations: the bracket starts at 2% around it.
    """
    low, high, factor = min(guess, enough), enough, 1.02
    if holds(low):
        while holds(low):
            low, high, factor = low / factor, low, factor * factor
    else:
        while low * factor < high and not holds(low * factor):
            low, factor = low * factor, factor * factor
        high = min(high, low * factor)
    while high > low * (1.0 + precision):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
