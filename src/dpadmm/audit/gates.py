"""The gates: what must be true of uploads, noise and ledger, each with how often it would be wrong by chance.

First, how much privacy was lost for sure: a lower limit of μ, and so of ε, from right and wrong guesses.
Whoever is wrong about world 0 with probability α and about world 1 with probability β has seen something that
is not μ-GDP for any ``μ < Φ⁻¹(1 − α) − Φ⁻¹(β)``. With upper limits of α and β (Clopper–Pearson) this holds
with the confidence of both limits together. The guess is ``score > threshold``, and the threshold is fixed
before the first trial: in the middle between what the scores of both worlds are to be. This holds for guesses of
several games together, since no mixture of μ-GDP errors is below μ's curve either.

One-sided limits of ε alone pass real bugs (noise used twice, a dual from the clean model), so most gates look
at the noise itself, from both sides, and at the score of each statistic of a game: what it says of a row is to be
neither more nor less than its own noise allows. What noise does by chance is known exactly, so every limit is a
quantile: with fewer trials it is wider, and the rate of false alarms is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom, chi2, ks_1samp, kstwo

from dpadmm.accounting.calibration import mu_from_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.audit.game import IDLE, AttackedRounds, Game
from dpadmm.audit.trials import TrialOutcomes
from dpadmm.matrices.arrays import Floats, Integers

POWER = 0.9
"""The share of ε that an audit of a sound agent must find, or it would not find a leak either."""
NOISE_GATES, SCORE_GATES = 6, 4
"""Statistical gates of a game, and of each of its parts."""
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


@dataclass(frozen=True)
class Guesses:
    """Scores above their threshold, for all trials of a part of a game, or of several games together.

    ``rate`` is how often sound code is wrong about a world.
    """

    margins: Floats
    worlds: Integers
    rate: float

    @classmethod
    def of(cls, part: int, game: Game, seen: TrialOutcomes, mu: float) -> Guesses:
        middle = threshold(game.parts[part], mu)
        return cls((seen.scores[..., part] - middle).ravel(), seen.worlds.ravel(), float(ndtr(-middle)))

    @classmethod
    def joined(cls, several: Sequence[Guesses]) -> Guesses:
        """Of all together; errors vary no more than with one rate, the mean."""
        margins, worlds = (np.concatenate([getattr(g, name) for g in several]) for name in ("margins", "worlds"))
        errors = sum(g.rate * g.worlds.size for g in several)
        return cls(margins, worlds, errors / max(worlds.size, 1))

    @property
    def n(self) -> int:
        """Trials in each world, about."""
        return self.worlds.size // 2


def threshold(part: AttackedRounds, mu: float) -> float:
    """Half of what the scores of world 1 are above those of world 0, by theory."""
    return mu * part.mu_share * part.sharpness / 2.0


def lower_bound(guesses: Guesses, *, delta: float, confidence: float) -> LowerBound:
    """What these guesses prove with this confidence."""
    guess, worlds = guesses.margins > 0.0, guesses.worlds
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


def chance_of_mu(n: int, *, rate: float, confidence: float) -> tuple[Floats, Floats]:
    """The lower limits of μ that sound code can get with n trials in each world, and the chance of each."""
    wrong = np.arange(binom.ppf(1e-14, n, rate), binom.isf(1e-14, n, rate) + 1).astype(np.int64)
    part, chance = -ndtri(error_limit(wrong, n, confidence)), binom.pmf(wrong, n, rate)
    total, both = (part[:, None] + part).ravel(), (chance[:, None] * chance).ravel()
    order = np.argsort(total)
    return total[order], both[order]


@dataclass(frozen=True)
class Gate:
    """One check. ``passed`` is None if there were too few trials: the gate is inconclusive."""

    name: str
    measured: float
    low: float | None
    high: float | None
    passed: bool | None
    false_alarm: float
    sentence: str
    game: str | None = None
    """Whose studies it is about; None: all."""

    def __post_init__(self) -> None:
        # NumPy's False is not False, and whoever asks for that would take red for green
        object.__setattr__(self, "passed", None if self.passed is None else bool(self.passed))

    @property
    def red(self) -> bool:
        return self.passed is False


WHOLE = "ε not above the promise", "the audit has power"
Played = Sequence[tuple[Game, TrialOutcomes]]


SHARP = 0.95
"""Share of the sensitivity from which on two worlds tell of the whole promise; of others less can be found."""


def sharpness(part: AttackedRounds) -> float:
    """1, or what is the most that the worlds of a part can show of μ."""
    return 1.0 if part.sharpness >= SHARP else part.sharpness


def all_guesses(played: Played, mu: float) -> Guesses:
    """The guesses of all games, about whole studies: of the sharpest, where they differ."""
    most = max((sharpness(game.parts[0]) for game, _ in played), default=1.0)
    return Guesses.joined([Guesses.of(0, game, seen, mu) for game, seen in played if sharpness(game.parts[0]) == most])


def judge(played: Played, *, mu: float, delta: float, confidence: float, false_alarm: float) -> list[Gate]:
    """All gates; ``false_alarm`` is for all statistical ones together, beside those about ε."""
    heard = [(game, seen) for game, seen in played if len(seen.worlds)]
    gates: list[Gate] = []
    if heard:
        sure = {"delta": delta, "confidence": confidence}
        most = max(sharpness(game.parts[0]) for game, _ in heard)
        gates += _epsilon(WHOLE, all_guesses(heard, mu), mu * most, **sure)
        gates += _exact(heard, mu)
    gates += _requests([seen for _, seen in played])
    level = false_alarm / max(1, sum(statistical_gates(game) for game, _ in heard))
    for game, seen in heard:
        own = [*_scores(game, seen, mu, level), *_noise(game, seen, level), *_masks(game, seen, level)]
        for k, part in enumerate(game.parts):
            if part.name != "score" or len(heard) > 1:
                proof = _epsilon(
                    (f"{part.name}: ε", f"{part.name}: power"),
                    Guesses.of(k, game, seen, mu),
                    mu * part.mu_share * sharpness(part),
                    **sure,
                )
                own += [gate for gate in proof if gate.passed is not None]
        gates += [replace(gate, game=game.name) for gate in own]
    return gates


def statistical_gates(game: Game) -> int:
    """How many gates share the rate of false alarms."""
    return NOISE_GATES + SCORE_GATES * len(game.parts) + (game.coalition is not None)


def _epsilon(names: tuple[str, str], guesses: Guesses, mu: float, *, delta: float, confidence: float) -> list[Gate]:
    bound = lower_bound(guesses, delta=delta, confidence=confidence)
    promised = exact_epsilon(mu, delta)
    wanted = POWER * promised
    possible, chance = chance_of_mu(guesses.n, rate=guesses.rate, confidence=confidence)
    too_high = float(chance[possible > mu].sum())
    too_low = float(chance[possible < mu_from_epsilon(wanted, delta)].sum())
    reached, decided = bound.epsilon >= wanted, too_low <= UNDECIDED
    share = f"{100 * bound.epsilon / promised:.1f}%"
    found = f"ε is at least {bound.epsilon:.3f} with {100 * confidence:.6g}% confidence"
    return [
        Gate(
            names[0], bound.epsilon, None, promised, bound.epsilon <= promised, too_high,
            f"Guesses prove that {found}; promised are {promised:.3f}.",
        ),
        Gate(
            names[1], bound.epsilon / promised, POWER, None,
            reached if reached or decided else None, too_low if decided else 0.0,
            f"Guesses find {share} of ε, so that a leak would show." if reached
            else f"Guesses find {share} of ε only: the attack does not work as it should." if decided
            else f"Inconclusive: {share} of ε detected ({POWER:.0%} required). Increase --trials.",
        ),
    ]  # fmt: skip


def _scores(game: Game, seen: TrialOutcomes, mu: float, level: float) -> list[Gate]:
    gates = []
    for k, part in enumerate(game.parts):
        for world, expected in ((0, 0.0), (1, 2.0 * threshold(part, mu))):
            scores = seen.scores[..., k][seen.worlds == world]
            reach = _sigmas(level) / np.sqrt(scores.size)
            varies = np.mean((scores - expected) ** 2), *_variance_limits(scores.size, level)
            name = f"{part.name}, world {world}"
            gates += _between(
                level,
                (f"{name}: mean", scores.mean(), expected - reach, expected + reach,
                 f"The likelihood ratio is to be {expected:.4f} on average, no more and no less."),
                (f"{name}: variance", *varies, "It is to vary as the noise that was promised."),
            )  # fmt: skip
    return gates


def _noise(game: Game, seen: TrialOutcomes, level: float) -> list[Gate]:
    noise = seen.residuals
    n_studies = len(noise)
    columns = np.concatenate([_means(game, noise, name) for name in game.statistics])
    worst = columns[np.abs(columns).argmax()]
    reach = _sigmas(level / columns.size)
    rounds = [noise[..., cut] for cut in game.cuts]
    odd, low, high = max(
        ((float(np.square(each[:, i]).mean()), *_variance_limits(each[:, i].size, level / (2 * len(rounds))))
         for each in rounds for i in (0, 1)),
        key=lambda limits: max(limits[0] / limits[2], limits[1] / (limits[0] or limits[1])),
    )  # fmt: skip
    distance = ks_1samp(noise.ravel(), ndtr, method="asymp").statistic
    common = [min(one.shape[-1], other.shape[-1]) for one, other in pairwise(rounds)]
    lag = max((_lag(rounds, common, i) for i in (0, 1)), key=abs)
    lag_reach = _sigmas(level / 2) / np.sqrt(n_studies * sum(common))
    cross = _correlation(noise[:, 0], noise[:, 1])
    cross_reach = _sigmas(level) / np.sqrt(noise[:, 0].size)
    return _between(
        level,
        ("noise: mean", worst, -reach, reach,
         "What is left without the sums averages 0 (the worst column, in standard errors)."),
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


def _masks(game: Game, seen: TrialOutcomes, level: float) -> list[Gate]:
    if game.coalition is None:
        return []
    known, (before, last) = seen.veiled + 0.5, game.cuts[-2:]
    even = len(known) // 2 * 2
    samples = (
        known,
        (known[..., last] - known[..., before]) % 1.0,
        (known[1:even:2] - known[:even:2]) % 1.0,
    )
    worst = max(
        ks_1samp(each.ravel(), lambda u: u, method="asymp").statistic / kstwo.isf(level / len(samples), each.size)
        for each in samples
    )
    return _between(
        level,
        ("masked answers", worst, None, 1.0,
         "Without the last member's answer all that is known is uniform, and so are differences between rounds and "
         "between studies (Kolmogorov–Smirnov distance, beside its limit)."),
    )  # fmt: skip


def _means(game: Game, noise: Floats, statistic: str) -> Floats:
    """Means over studies and the rounds of a statistic, of each agent and number, in standard errors."""
    cuts = [cut for each, cut in zip(game.rounds, game.cuts, strict=True) if each.statistic == statistic]
    total = np.sum([noise[..., cut].sum(axis=0) for cut in cuts], axis=0)
    return np.asarray(total / np.sqrt(len(noise) * len(cuts))).ravel()


def _lag(rounds: Sequence[Floats], common: Sequence[int], agent: int) -> float:
    """Correlation with the next round, of as many numbers as both have."""
    pairs = [
        (one[:, agent, :n].ravel(), other[:, agent, :n].ravel())
        for (one, other), n in zip(pairwise(rounds), common, strict=True)
    ]
    return _correlation(*(np.concatenate(side) for side in zip(*pairs, strict=True)))


def _exact(played: Played, mu: float) -> list[Gate]:
    """Gates without chance, or almost."""
    idle = [
        np.rint(seen.residuals[..., cut][..., IDLE] * each.formula.noise_steps(each.noise_multiplier(mu)))
        for game, seen in played
        for each, cut in zip(game.rounds, game.cuts, strict=True)
    ]
    vectors = np.concatenate([each.reshape(-1, each.shape[-1]) for each in idle])
    repeats = len(vectors) - len(np.unique(vectors, axis=0))
    off = max(float(np.max(np.where(np.isfinite(seen.off_grid), seen.off_grid, 0.5))) for _, seen in played)
    return _between(
        0.0,
        ("noise: never twice", repeats, None, 0.0,
         "No noise was used again, in another round, study or by another agent."),
        ("answers are whole numbers", off, None, ON_GRID,
         "Uploads are what the public update makes of whole numbers on the grid (distance in steps)."),
    )  # fmt: skip


def _requests(seen: Sequence[TrialOutcomes]) -> list[Gate]:
    total = {name: sum(int(getattr(each, name).sum()) for each in seen) for name in ("unrecorded", "looks", "misspent",
                                                                                    "overrun")}  # fmt: skip
    refusals = [code for each in seen for code in each.refusals]
    refused = f"Studies were refused: {', '.join(sorted(set(refusals)))}."
    return _between(
        0.0,
        ("repeated requests", sum(int(np.sum(each.repeated == 0)) for each in seen), None, 0.0,
         "The same request gets the same bytes, also from an agent that was restarted; other members get none."),
        ("recorded before sent", total["unrecorded"], None, 0.0,
         f"The ledger on disk knew of an upload when it arrived ({total['looks']} looked at)."),
        ("ledger's sums", total["misspent"], None, 0.0,
         "Every study has spent exactly its rounds, and no ledger more than its caps."),
        ("nothing beyond the cap", total["overrun"], None, 0.0, "One more round, and one more study, are refused."),
        ("requests are answered", len(refusals), None, 0.0, refused if refusals else "No study was refused."),
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
