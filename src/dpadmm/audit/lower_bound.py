"""How much privacy was lost for sure: a lower limit of μ, and so of ε, from right and wrong guesses.

Whoever is wrong about world 0 with probability α and about world 1 with probability β has seen something that
is not μ-GDP for any ``μ < Φ⁻¹(1 − α) − Φ⁻¹(β)``. With upper limits of α and β (Clopper–Pearson) this holds
with the confidence of both limits together. The guess is ``score > threshold``, and the threshold is fixed
before the first trial: in the middle between what the scores of both worlds are to be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from dpadmm._base.arrays import Floats, Integers
from dpadmm.audit.game import SHARPNESS
from dpadmm.privacy.accounting import exact_epsilon


@dataclass(frozen=True)
class LowerBound:
    """Guesses, and what they prove. α: world 0 taken for 1; β: world 1 taken for 0."""

    alpha: float
    alpha_limit: float
    beta: float
    beta_limit: float
    mu: float
    epsilon: float


def threshold(mu: float) -> float:
    """Half of what the scores of world 1 are above those of world 0, by theory."""
    return mu * SHARPNESS / 2.0


def lower_bound(
    scores: Floats, worlds: Integers, *, mu: float, delta: float, confidence: float
) -> LowerBound:
    """What these scores prove with this confidence."""
    guess = scores > threshold(mu)
    counts = [(int(np.sum(guess[worlds == w] != w)), int(np.sum(worlds == w))) for w in (0, 1)]
    limits = [float(error_limit(np.array(wrong), n, confidence)) for wrong, n in counts]
    proven = max(0.0, -float(ndtri(limits[0])) - float(ndtri(limits[1])))
    rates = [wrong / n if n else 1.0 for wrong, n in counts]
    return LowerBound(rates[0], limits[0], rates[1], limits[1], proven, exact_epsilon(proven, delta))


def error_limit(wrong: Integers, n: int, confidence: float) -> Floats:
    """Clopper–Pearson's upper limit of a rate; half of the doubt is for each of the two rates."""
    wrong = np.asarray(wrong)
    level = 1.0 - (1.0 - confidence) / 2.0
    inside = wrong < n
    return np.asarray(np.where(inside, beta.ppf(level, wrong + 1, np.where(inside, n - wrong, 1)), 1.0))


def chance_of_mu(n: int, *, mu: float, confidence: float) -> tuple[Floats, Floats]:
    """The lower limits of μ that sound code can get with n trials in each world, and the chance of each."""
    rate = float(ndtr(-threshold(mu)))
    wrong = np.arange(binom.ppf(1e-14, n, rate), binom.isf(1e-14, n, rate) + 1).astype(np.int64)
    part, chance = -ndtri(error_limit(wrong, n, confidence)), binom.pmf(wrong, n, rate)
    total, both = (part[:, None] + part).ravel(), (chance[:, None] * chance).ravel()
    order = np.argsort(total)
    return total[order], both[order]
