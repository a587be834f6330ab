"""The gates: what must be true of uploads, noise and ledger, each with how often it would be wrong by chance.

First, how much privacy was lost for sure: a lower limit of μ, and so of ε, from right and wrong guesses.
Whoever is wrong about world 0 with probability α and about world 1 with probability β has seen something that
is not μ-GDP for any ``μ < Φ⁻¹(1 − α) − Φ⁻¹(β)``. With upper limits of α and β (Clopper–Pearson) this holds
with the confidence of both limits together. The guess is ``score > threshold``, and the threshold is fixed
before the first trial: in the middle between what the scores of both worlds are to be.

One-sided limits of ε alone pass real bugs (noise used twice, a dual from the clean model), so most gates look
at the noise itself, from both sides. What noise does by chance is known exactly, so every limit is a
quantile: with fewer trials it is wider, and the rate of false alarms is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom, chi2, ks_1samp, kstwo

from dpadmm._base.arrays import Floats, Integers
from dpadmm.audit.game import IDLE, N_FEATURES, N_ROUNDS, ROLES, SHARPNESS, noise_steps
from dpadmm.audit.trials import Seen
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.calibration import mu_from_epsilon

POWER = 0.9
"""The share of ε that an audit of a sound agent must find, or it would not find a leak either."""
N_STATISTICAL = 10
UNDECIDED = 1e-3
"""An audit that would miss its power by chance more often than this cannot tell."""
ON_GRID = 0.01


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


def lower_bound(scores: Floats, worlds: Integers, *, mu: float, delta: float, confidence: float) -> LowerBound:
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


@dataclass(frozen=True)
class Gate:
    """One check. ``passed`` is None where there were too few trials to tell."""

    name: str
    measured: float
    low: float | None
    high: float | None
    passed: bool | None
    false_alarm: float
    sentence: str

    def __post_init__(self) -> None:
        # NumPy's False is not False, and whoever asks for that would take red for green
        object.__setattr__(self, "passed", None if self.passed is None else bool(self.passed))

    @property
    def red(self) -> bool:
        return self.passed is False


def judge(
    seen: Seen, bound: LowerBound, *, mu: float, delta: float, confidence: float, false_alarm: float
) -> list[Gate]:
    """All gates; ``false_alarm`` is for all statistical ones together, beside those about ε."""
    if not len(seen.worlds):
        return _requests(seen)
    level = false_alarm / N_STATISTICAL
    return [
        *_epsilon(seen, bound, mu=mu, delta=delta, confidence=confidence),
        *_scores(seen, mu, level),
        *_noise(seen, level),
        *_exact(seen, mu),
        *_requests(seen),
    ]


def _epsilon(seen: Seen, bound: LowerBound, *, mu: float, delta: float, confidence: float) -> list[Gate]:
    promised, n = exact_epsilon(mu, delta), seen.scores.size // 2
    wanted = POWER * promised
    possible, chance = chance_of_mu(n, mu=mu, confidence=confidence)
    too_high = float(chance[possible > mu].sum())
    too_low = float(chance[possible < mu_from_epsilon(wanted, delta)].sum())
    reached, decided = bound.epsilon >= wanted, too_low <= UNDECIDED
    share = f"{100 * bound.epsilon / promised:.1f}%"
    found = f"ε is at least {bound.epsilon:.3f} with {100 * confidence:.6g}% confidence"
    return [
        Gate(
            "ε not above the promise", bound.epsilon, None, promised, bound.epsilon <= promised, too_high,
            f"Guesses prove that {found}; promised are {promised:.3f}.",
        ),
        Gate(
            "the audit has power", bound.epsilon / promised, POWER, None,
            reached if reached or decided else None, too_low if decided else 0.0,
            f"Guesses find {share} of ε, so that a leak would show." if reached
            else f"Guesses find {share} of ε only: the attack does not work as it should." if decided
            else f"Not enough trials to tell: guesses find {share} of ε; with more they would find more.",
        ),
    ]  # fmt: skip


def _scores(seen: Seen, mu: float, level: float) -> list[Gate]:
    gates = []
    for world, expected in ((0, 0.0), (1, mu * SHARPNESS)):
        scores = seen.scores[seen.worlds == world]
        reach = _sigmas(level) / np.sqrt(scores.size)
        varies = np.mean((scores - expected) ** 2), *_variance_limits(scores.size, level)
        gates += _between(
            level,
            (f"score, world {world}: mean", scores.mean(), expected - reach, expected + reach,
             f"The likelihood ratio is to be {expected:.4f} on average, no more and no less."),
            (f"score, world {world}: variance", *varies, "It is to vary as the noise that was promised."),
        )  # fmt: skip
    return gates


def _noise(seen: Seen, level: float) -> list[Gate]:
    noise = seen.residuals
    n_studies = len(noise)
    columns = noise.mean(axis=(0, 2)) * np.sqrt(n_studies * N_ROUNDS)
    worst = columns.ravel()[np.abs(columns).argmax()]
    reach = _sigmas(level / columns.size)
    by_round = np.square(noise).mean(axis=(0, 3))
    low, high = _variance_limits(n_studies * N_FEATURES, level / by_round.size)
    odd = max(by_round.ravel().tolist(), key=lambda variance: max(variance / high, low / (variance or low)))
    distance = ks_1samp(noise.ravel(), ndtr, method="asymp").statistic
    lag = max((_correlation(noise[:, i, :-1], noise[:, i, 1:]) for i in range(len(ROLES))), key=abs)
    lag_reach = _sigmas(level / len(ROLES)) / np.sqrt(n_studies * (N_ROUNDS - 1) * N_FEATURES)
    cross = _correlation(noise[:, 0], noise[:, 1])
    cross_reach = _sigmas(level) / np.sqrt(n_studies * N_ROUNDS * N_FEATURES)
    return _between(
        level,
        ("noise: mean", worst, -reach, reach,
         "What is left without the gradient averages 0 (the worst column, in standard errors)."),
        ("noise: variance", np.square(noise).mean(), *_variance_limits(noise.size, level),
         "The noise is as large as promised, over all numbers."),
        ("noise: variance by round", odd, low, high,
         "The noise is as large as promised for each agent in each round (the oddest)."),
        ("noise: shape", distance, None, float(kstwo.isf(level, noise.size)),
         "The noise is normal (Kolmogorov–Smirnov distance)."),
        ("noise: from round to round", lag, -lag_reach, lag_reach,
         "The noise of a round says nothing about the next (correlation, the worse agent)."),
        ("noise: from agent to agent", cross, -cross_reach, cross_reach,
         "The noise of an agent says nothing about the other's (correlation)."),
    )  # fmt: skip


def _exact(seen: Seen, mu: float) -> list[Gate]:
    """Gates without chance, or almost."""
    vectors = np.rint(seen.residuals[..., IDLE] * noise_steps(mu)).reshape(-1, N_FEATURES - IDLE.start)
    repeats = len(vectors) - len(np.unique(vectors, axis=0))
    off = float(np.max(np.where(np.isfinite(seen.off_grid), seen.off_grid, 0.5)))
    return _between(
        0.0,
        ("noise: never twice", repeats, None, 0.0,
         "No noise was used again, in another round, study or by another agent."),
        ("answers are whole numbers", off, None, ON_GRID,
         "Uploads are what the public update makes of whole numbers on the grid (distance in steps)."),
    )  # fmt: skip


def _requests(seen: Seen) -> list[Gate]:
    refused = f"Studies were refused: {', '.join(sorted(set(seen.refusals)))}."
    return _between(
        0.0,
        ("repeated requests", np.sum(seen.repeated == 0), None, 0.0,
         "The same request gets the same bytes, also from an agent that was restarted."),
        ("recorded before sent", seen.unrecorded.sum(), None, 0.0,
         f"The ledger on disk knew of an upload when it arrived ({seen.looks.sum()} looked at)."),
        ("ledger's sums", seen.misspent.sum(), None, 0.0,
         "Every study has spent exactly its rounds, and no ledger more than its cap."),
        ("nothing beyond the cap", seen.overrun.sum(), None, 0.0, "One more round, and one more study, are refused."),
        ("requests are answered", len(seen.refusals), None, 0.0, refused if seen.refusals else "No study was refused."),
    )  # fmt: skip


def _between(level: float, *checks: tuple[str, Any, float | None, float | None, str]) -> list[Gate]:
    """A gate for each (name, measured, lowest, highest, sentence)."""
    gates = []
    for name, measured, low, high, sentence in checks:
        value = float(measured)
        passed = (low is None or value >= low) and (high is None or value <= high)  # false for NaN
        gates.append(Gate(name, value, low, high, passed, level, sentence))
    return gates


def _sigmas(level: float) -> float:
    """What a standard normal number exceeds, in size, with probability ``level``."""
    return float(-ndtri(level / 2.0))


def _variance_limits(n: int, level: float) -> tuple[float, float]:
    """Limits of the mean of n squares of standard normal numbers."""
    return float(chi2.ppf(level / 2.0, n) / n), float(chi2.isf(level / 2.0, n) / n)


def _correlation(one: Floats, other: Floats) -> float:
    return float(np.sum(one * other) / np.sqrt(np.sum(one * one) * np.sum(other * other)))
