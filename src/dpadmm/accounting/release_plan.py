"""Release plan: the releases of an agent in every round, fixed before the first one.

Accounting, ledger, policy and privacy report use the plan and the rounds in which the agent participated. Nothing
multiplies the cost of one round by a number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np

from dpadmm.accounting.events import AnyRelease, Release
from dpadmm.errors import StudyError
from dpadmm.parameters.checks import require_whole

MAX_RELEASES = 8
"""Maximum number of different releases in a study's plan and in a privacy report."""

Tally = tuple[tuple[AnyRelease, int], ...]
"""Distinct releases, each with its number of rounds, which may be 0."""


@dataclass(frozen=True)
class ReleasePlan:
    """Releases of consecutive rounds: ``runs`` of (release or None, number of rounds).

    Examples
    --------
    >>> plan = ReleasePlan.of([Release(20.0, statistic="moments"), None, Release(5.0), Release(5.0)])
    >>> plan.n_rounds, plan.n_releases, plan.at(2), plan.at(3).noise_multiplier
    (4, 3, None, 5.0)
    >>> plan.tally([1, 4]) == ((plan.at(1), 1), (plan.at(4), 1))
    True
    """

    runs: tuple[tuple[AnyRelease | None, int], ...]

    def __post_init__(self) -> None:
        for _, n_rounds in self.runs:
            require_whole("rounds of a release", n_rounds, least=1)

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[AnyRelease | None, int]]) -> ReleasePlan:
        """Return a plan in which consecutive runs with equal releases are merged."""
        by_release = groupby(runs, lambda run: run[0])
        return cls(tuple((release, sum(n_rounds for _, n_rounds in group)) for release, group in by_release))

    @classmethod
    def constant(cls, release: AnyRelease | None, n_rounds: int) -> ReleasePlan:
        """Return a plan with the same release in every round."""
        return cls(((release, n_rounds),) if n_rounds else ())

    @classmethod
    def of(cls, releases: Iterable[AnyRelease | None]) -> ReleasePlan:
        """Return a plan from the release of every round; None for a round without a release."""
        return cls.from_runs((release, 1) for release in releases)

    @classmethod
    def from_list(cls, runs: Sequence[Mapping[str, Any]]) -> ReleasePlan:
        """Return the plan that :meth:`to_list` wrote. Raise StudyError for invalid values."""
        parsed: list[tuple[AnyRelease | None, int]] = []
        for run in runs:
            statistic, z, n_rounds = run["statistic"], run["noise_multiplier"], run["rounds"]
            if type(n_rounds) is not int or not isinstance(z, int | float | None) or type(z) is bool:
                raise StudyError(f"rounds and noise_multiplier of a plan must be numbers, not {run!r:.80}")
            parsed.append((None if z is None else Release(float(z), statistic=str(statistic)), n_rounds))
        return cls.from_runs(parsed)

    @property
    def n_rounds(self) -> int:
        """Number of rounds."""
        return sum(n_rounds for _, n_rounds in self.runs)

    @property
    def n_releases(self) -> int:
        """Number of rounds with a release."""
        return sum(n_rounds for release, n_rounds in self.runs if release is not None)

    def at(self, round: int) -> AnyRelease | None:
        """Return the release of a round, counted from 1; None if it has none."""
        last = 0
        for release, n_rounds in self.runs:
            last += n_rounds
            if 1 <= round <= last:
                return release
        raise StudyError(f"the plan has {self.n_rounds} rounds, but no round {round!r}")

    def tally(self, rounds: Iterable[int] | None = None) -> Tally:
        """Return the number of these rounds (default: all rounds) with each release of the plan, which may be 0."""
        chosen = None if rounds is None else np.fromiter(rounds, np.int64)
        if chosen is not None and chosen.size and not (chosen.min() >= 1 and chosen.max() <= self.n_rounds):
            raise StudyError(f"the plan has {self.n_rounds} rounds, and a round outside of it was requested")
        counts: dict[AnyRelease, int] = {}
        last = 0
        for release, n_rounds in self.runs:
            first, last = last, last + n_rounds
            if chosen is not None:
                n_rounds = int(np.count_nonzero((chosen > first) & (chosen <= last)))
            if release is not None:
                counts[release] = counts.get(release, 0) + n_rounds
        return tuple(counts.items())

    def mu_squared(self, rounds: Iterable[int] | None = None) -> Fraction:
        """Return ``Σ_k 1/z_k²`` of one row in these rounds (default: all), exact, for Gaussian releases with noise."""
        costs = (n * Fraction((1.0 / gaussian(release).noise_multiplier) ** 2) for release, n in self.tally(rounds))
        return Fraction(sum(costs))

    def describe_noise(self) -> str:
        """Return the noise multiplier z of every round as text, with the statistic if rounds differ.

        Examples
        --------
        >>> ReleasePlan.of([Release(20.0, statistic="moments"), Release(5.0), Release(5.0)]).describe_noise()
        '20.0000 in round 1 (moments), 5.0000 from round 2 on (gradient)'
        """
        parts, last = [], 0
        for release, n_rounds in self.runs:
            first, last = last + 1, last + n_rounds
            if release is not None:
                z, statistic = f"{gaussian(release).noise_multiplier:.4f}", gaussian(release).statistic
                several = f"from round {first} on" if last == self.n_rounds else f"in rounds {first} to {last}"
                parts.append((z, f"{f'in round {first}' if n_rounds == 1 else several} ({statistic})"))
        return parts[0][0] if len(self.runs) == 1 else ", ".join(f"{z} {where}" for z, where in parts)

    def to_list(self) -> list[dict[str, Any]]:
        """Return the runs as JSON values, for Gaussian releases."""
        return [
            {"statistic": None, "noise_multiplier": None, "rounds": n_rounds}
            if release is None
            else {
                "statistic": gaussian(release).statistic,
                "noise_multiplier": gaussian(release).noise_multiplier,
                "rounds": n_rounds,
            }
            for release, n_rounds in self.runs
        ]


def gaussian(release: AnyRelease) -> Release:
    """Return the release if it is one Gaussian release with noise, as of deployed agents. Else raise StudyError."""
    if not isinstance(release, Release) or release.noise_multiplier == 0.0 or release.count != 1:
        raise StudyError(f"agents release one sum with Gaussian noise per round, not {release!r}")
    return release


def fits(requested: float | Fraction, used: Fraction, limit: float) -> bool:
    """Return whether Σμ² of a request fits into a limit: the only rule for review, enrolment and ledger.

    The sum is exact and rounded once: n rounds fit into n times their μ², and no limit is exceeded by more than 2⁻⁵³
    of it.
    """
    return float(used + Fraction(requested)) <= limit
