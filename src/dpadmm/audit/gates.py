"""Gates: checks of uploads, noise and ledger, each with its exact rate of false alarms.

The first gate is a lower bound of μ, and so of ε, from right and wrong guesses. If the error probabilities are α in
world 0 and β in world 1, the mechanism is not μ-GDP for any ``μ < Φ⁻¹(1 − α) − Φ⁻¹(β)``. Upper limits of α and β
(Clopper–Pearson) give the joint confidence. The guess is ``score > threshold``. The threshold is fixed before the
first trial, midway between the expected scores of both worlds. The bound also holds for guesses of several games
together, because no mixture of μ-GDP errors is below μ's curve.

One-sided limits of ε miss real bugs (noise used twice, a dual from the clean model). Most gates therefore test the
noise itself, on both sides, and the score of each query: it must reveal neither more nor less about a row than its
noise allows. The distribution of the noise is known exactly, so every limit is a quantile. With fewer trials the
limits are wider, and the rate of false alarms is the same.
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
"""The share of ε that an audit of correct code must find; otherwise it could miss a leak."""
NOISE_GATES, SCORE_GATES = 6, 4
"""Numbers of statistical gates of a game, and of each of its parts."""
UNDECIDED = 1e-3
"""If correct code would miss the power by chance more often than this, the gate is inconclusive."""
ON_GRID = 0.01


@dataclass(frozen=True)
class LowerBound:
    """Error rates of guesses, and the bound that they prove. α: world 0 taken for 1; β: world 1 taken for 0."""

    alpha: float
    alpha_limit: float
    beta: float
    beta_limit: float
    mu: float
    epsilon: float


@dataclass(frozen=True)
class Guesses:
    """Scores minus their threshold, for all trials of a part of a game, or of several games.

    ``rate`` is the error rate of guesses about correct code.
    """

    margins: Floats
    worlds: Integers
    rate: float

    @classmethod
    def of(cls, part: int, game: Game, outcomes: TrialOutcomes, mu: float) -> Guesses:
        middle = threshold(game.parts[part], mu)
        return cls((outcomes.scores[..., part] - middle).ravel(), outcomes.worlds.ravel(), float(ndtr(-middle)))

    @classmethod
    def joined(cls, several: Sequence[Guesses]) -> Guesses:
        """Return all guesses together. Errors vary no more than with one rate, the mean."""
        margins = np.concatenate([guesses.margins for guesses in several])
        worlds = np.concatenate([guesses.worlds for guesses in several])
        errors = sum(guesses.rate * guesses.worlds.size for guesses in several)
        return cls(margins, worlds, errors / max(worlds.size, 1))

    @property
    def n(self) -> int:
        """Approximate number of trials in each world."""
        return self.worlds.size // 2


def threshold(part: AttackedRounds, mu: float) -> float:
    """Return half of the expected difference between the scores of world 1 and world 0."""
    return mu * part.mu_share * part.sharpness / 2.0


def lower_bound(guesses: Guesses, *, delta: float, confidence: float) -> LowerBound:
    """Return the lower bound that these guesses prove with this confidence."""
    guess, worlds = guesses.margins > 0.0, guesses.worlds
    counts = [(int(np.sum(guess[worlds == w] != w)), int(np.sum(worlds == w))) for w in (0, 1)]
    limits = [float(error_limit(np.array(wrong), n, confidence)) for wrong, n in counts]
    proven = max(0.0, -float(ndtri(limits[0])) - float(ndtri(limits[1])))
    rates = [wrong / n if n else 1.0 for wrong, n in counts]
    return LowerBound(rates[0], limits[0], rates[1], limits[1], proven, exact_epsilon(proven, delta))


def error_limit(wrong: Integers, n: int, confidence: float) -> Floats:
    """Return Clopper–Pearson's upper limit of a rate; each of the two rates gets half of the error probability."""
    wrong = np.asarray(wrong)
    level = 1.0 - (1.0 - confidence) / 2.0
    inside = wrong < n
    return np.asarray(np.where(inside, beta.ppf(level, wrong + 1, np.where(inside, n - wrong, 1)), 1.0))


def chance_of_mu(n: int, *, rate: float, confidence: float) -> tuple[Floats, Floats]:
    """Return the possible lower bounds of μ for correct code with n trials in each world, and their probabilities."""
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
    """The game of the checked studies; None: all games."""

    @property
    def failed(self) -> bool:
        return self.passed is not None and not self.passed


WHOLE = "ε not above the guarantee", "the audit has power"
Played = Sequence[tuple[Game, TrialOutcomes]]


SHARP = 0.95
"""Share of the sensitivity from which two worlds count as showing the whole μ."""


def sharpness(part: AttackedRounds) -> float:
    """Return the share of μ that the worlds of a part can show at most."""
    return 1.0 if part.sharpness >= SHARP else part.sharpness


def all_guesses(played: Played, mu: float) -> Guesses:
    """Return the guesses about whole studies of all games with the maximum sharpness."""
    maximum = max((sharpness(game.parts[0]) for game, _ in played), default=1.0)
    return Guesses.joined(
        [Guesses.of(0, game, outcomes, mu) for game, outcomes in played if sharpness(game.parts[0]) == maximum]
    )


def judge(played: Played, *, mu: float, delta: float, confidence: float, false_alarm: float) -> list[Gate]:
    """Return all gates. ``false_alarm`` is for all statistical gates together, without those about ε."""
    answered = [(game, outcomes) for game, outcomes in played if len(outcomes.worlds)]
    gates: list[Gate] = []
    if answered:
        level_of = {"delta": delta, "confidence": confidence}
        maximum = max(sharpness(game.parts[0]) for game, _ in answered)
        gates += _epsilon(WHOLE, all_guesses(answered, mu), mu * maximum, **level_of)
        gates += _exact(answered, mu)
    gates += _requests([outcomes for _, outcomes in played])
    level = false_alarm / max(1, sum(statistical_gates(game) for game, _ in answered))
    for game, outcomes in answered:
        own = [*_scores(game, outcomes, mu, level), *_noise(game, outcomes, level), *_masks(game, outcomes, level)]
        for k, part in enumerate(game.parts):
            if part.name != "score" or len(answered) > 1:
                proof = _epsilon(
                    (f"{part.name}: ε", f"{part.name}: power"),
                    Guesses.of(k, game, outcomes, mu),
                    mu * part.mu_share * sharpness(part),
                    **level_of,
                )
                own += [gate for gate in proof if gate.passed is not None]
        gates += [replace(gate, game=game.name) for gate in own]
    return gates


def statistical_gates(game: Game) -> int:
    """Return the number of gates that share the rate of false alarms."""
    return NOISE_GATES + SCORE_GATES * len(game.parts) + (game.coalition is not None)


def _epsilon(names: tuple[str, str], guesses: Guesses, mu: float, *, delta: float, confidence: float) -> list[Gate]:
    bound = lower_bound(guesses, delta=delta, confidence=confidence)
    promised = exact_epsilon(mu, delta)
    wanted = POWER * promised
    possible, chance = chance_of_mu(guesses.n, rate=guesses.rate, confidence=confidence)
    too_high = float(chance[possible > mu].sum())
    too_low = float(chance[possible < mu_from_epsilon(wanted, delta)].sum())
    reached, decided = bool(bound.epsilon >= wanted), too_low <= UNDECIDED
    share = f"{100 * bound.epsilon / promised:.1f}%"
    proven = f"ε is at least {bound.epsilon:.3f} with {100 * confidence:.6g}% confidence"
    return [
        Gate(
            names[0], bound.epsilon, None, promised, bool(bound.epsilon <= promised), too_high,
            f"Guesses prove that {proven}; the guarantee is {promised:.3f}.",
        ),
        Gate(
            names[1], bound.epsilon / promised, POWER, None,
            reached if reached or decided else None, too_low if decided else 0.0,
            f"Guesses find {share} of ε, so a leak would be detected." if reached
            else f"Guesses find only {share} of ε: the attack does not work." if decided
            else f"Inconclusive: {share} of ε detected ({POWER:.0%} required). Increase --trials.",
        ),
    ]  # fmt: skip


def _scores(game: Game, outcomes: TrialOutcomes, mu: float, level: float) -> list[Gate]:
    gates = []
    for k, part in enumerate(game.parts):
        for world, expected in ((0, 0.0), (1, 2.0 * threshold(part, mu))):
            scores = outcomes.scores[..., k][outcomes.worlds == world]
            margin = _sigmas(level) / np.sqrt(scores.size)
            variance = np.mean((scores - expected) ** 2), *_variance_limits(scores.size, level)
            name = f"{part.name}, world {world}"
            gates += _between(
                level,
                (f"{name}: mean", scores.mean(), expected - margin, expected + margin,
                 f"The likelihood ratio must be {expected:.4f} on average."),
                (f"{name}: variance", *variance, "Its variance must be that of the promised noise."),
            )  # fmt: skip
    return gates


def _noise(game: Game, outcomes: TrialOutcomes, level: float) -> list[Gate]:
    noise = outcomes.residuals
    n_studies = len(noise)
    columns = np.concatenate([_means(game, noise, name) for name in game.statistics])
    worst = columns[np.abs(columns).argmax()]
    margin = _sigmas(level / columns.size)
    rounds = [noise[..., cut] for cut in game.cuts]
    odd, low, high = max(
        ((float(np.square(part[:, i]).mean()), *_variance_limits(part[:, i].size, level / (2 * len(rounds))))
         for part in rounds for i in (0, 1)),
        key=lambda limits: max(limits[0] / limits[2], limits[1] / (limits[0] or limits[1])),
    )  # fmt: skip
    distance = ks_1samp(noise.ravel(), ndtr, method="asymp").statistic
    common = [min(one.shape[-1], other.shape[-1]) for one, other in pairwise(rounds)]
    lag = max((_lag(rounds, common, i) for i in (0, 1)), key=abs)
    lag_margin = _sigmas(level / 2) / np.sqrt(n_studies * sum(common))
    cross = _correlation(noise[:, 0], noise[:, 1])
    cross_margin = _sigmas(level) / np.sqrt(noise[:, 0].size)
    return _between(
        level,
        ("noise: mean", worst, -margin, margin,
         "Uploads minus the expected sums average 0 (the worst column, in standard errors)."),
        ("noise: variance", np.square(noise).mean(), *_variance_limits(noise.size, level),
         "The noise has the promised variance, over all numbers."),
        ("noise: variance by round", odd, low, high,
         "The noise has the promised variance for each agent in each round (the worst)."),
        ("noise: shape", distance, None, float(kstwo.isf(level, noise.size)),
         "The noise is normal (Kolmogorov–Smirnov distance)."),
        ("noise: from round to round", lag, -lag_margin, lag_margin,
         "The noise of a round is independent of the next (correlation, the worse agent)."),
        ("noise: from agent to agent", cross, -cross_margin, cross_margin,
         "The noise of an agent is independent of the other's (correlation)."),
    )  # fmt: skip


def _masks(game: Game, outcomes: TrialOutcomes, level: float) -> list[Gate]:
    if game.coalition is None:
        return []
    partial, widths = outcomes.masked + 0.5, [cut.stop - cut.start for cut in game.cuts]
    pairs = zip(pairwise(game.cuts), pairwise(widths), strict=True)
    before, last = next(pair for pair, (one, other) in pairs if one == other)
    even = len(partial) // 2 * 2
    samples = (
        partial,
        (partial[..., last] - partial[..., before]) % 1.0,
        (partial[1:even:2] - partial[:even:2]) % 1.0,
    )
    worst = max(
        ks_1samp(sample.ravel(), lambda u: u, method="asymp").statistic / kstwo.isf(level / len(samples), sample.size)
        for sample in samples
    )
    return _between(
        level,
        ("masked answers", worst, None, 1.0,
         "Without the last member's answer the sum is uniform, and so are differences between rounds and between "
         "studies (Kolmogorov–Smirnov distance over its limit)."),
    )  # fmt: skip


def _means(game: Game, noise: Floats, statistic: str) -> Floats:
    """Return means over studies and the rounds of a query, of each agent and number, in standard errors."""
    cuts = [cut for round, cut in zip(game.rounds, game.cuts, strict=True) if round.statistic == statistic]
    total = np.sum([noise[..., cut].sum(axis=0) for cut in cuts], axis=0)
    return np.asarray(total / np.sqrt(len(noise) * len(cuts))).ravel()


def _lag(rounds: Sequence[Floats], common: Sequence[int], agent: int) -> float:
    """Return the correlation with the next round, over the numbers that both have."""
    pairs = [
        (one[:, agent, :n].ravel(), other[:, agent, :n].ravel())
        for (one, other), n in zip(pairwise(rounds), common, strict=True)
    ]
    return _correlation(*(np.concatenate(side) for side in zip(*pairs, strict=True)))


def _exact(played: Played, mu: float) -> list[Gate]:
    """Return gates whose rate of false alarms is zero or negligible."""
    idle = [
        np.rint(outcomes.residuals[..., cut][..., IDLE] * round.formula.noise_steps(round.noise_multiplier(mu)))
        for game, outcomes in played
        for round, cut in zip(game.rounds, game.cuts, strict=True)
        if round.formula.size >= IDLE.stop  # the calibration has no idle numbers
    ]
    vectors = np.concatenate([steps.reshape(-1, steps.shape[-1]) for steps in idle])
    repeats = len(vectors) - len(np.unique(vectors, axis=0))
    off = max(float(np.max(np.where(np.isfinite(outcomes.off_grid), outcomes.off_grid, 0.5))) for _, outcomes in played)
    return _between(
        0.0,
        ("noise: never twice", repeats, None, 0.0,
         "No noise was used twice, in another round, study or agent."),
        ("answers are whole numbers", off, None, ON_GRID,
         "Uploads are the public update of whole numbers on the grid (distance in steps)."),
    )  # fmt: skip


def _requests(played: Sequence[TrialOutcomes]) -> list[Gate]:
    inspected = sum(int(outcomes.inspected.sum()) for outcomes in played)
    refusals = [code for outcomes in played for code in outcomes.refusals]
    refused = f"Studies were refused: {', '.join(sorted(set(refusals)))}."
    return _between(
        0.0,
        ("repeated requests", sum(int(np.sum(outcomes.repeated == 0)) for outcomes in played), None, 0.0,
         "A repeated request gets the same bytes, also after a restart; other members get no answer."),
        ("recorded before sent", sum(int(outcomes.unrecorded.sum()) for outcomes in played), None, 0.0,
         f"The ledger on disk contained each upload when it arrived ({inspected} inspected)."),
        ("ledger's sums", sum(int(outcomes.misspent.sum()) for outcomes in played), None, 0.0,
         "Every study was charged exactly for its rounds, and no ledger exceeds its caps."),
        ("nothing beyond the cap", sum(int(outcomes.overrun.sum()) for outcomes in played), None, 0.0,
         "One more round, and one more study, are refused."),
        ("requests are answered", len(refusals), None, 0.0, refused if refusals else "No study was refused."),
    )  # fmt: skip


def _between(level: float, *checks: tuple[str, Any, float | None, float | None, str]) -> list[Gate]:
    """Return a gate for each (name, measured, minimum, maximum, sentence)."""
    gates = []
    for name, measured, low, high, sentence in checks:
        value = float(measured)
        passed = (low is None or value >= low) and (high is None or value <= high)  # false for NaN
        gates.append(Gate(name, value, low, high, bool(passed), level, sentence))
    return gates


def _sigmas(level: float) -> float:
    """Return the bound that a standard normal number exceeds, in absolute value, with probability ``level``."""
    return float(-ndtri(level / 2.0))


def _variance_limits(n: int, level: float) -> tuple[float, float]:
    """Return limits of the mean of n squares of standard normal numbers."""
    return float(chi2.ppf(level / 2.0, n) / n), float(chi2.isf(level / 2.0, n) / n)


def _correlation(one: Floats, other: Floats) -> float:
    return float(np.sum(one * other) / np.sqrt(np.sum(one * one) * np.sum(other * other)))
