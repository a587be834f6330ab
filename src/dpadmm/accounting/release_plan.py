"""A release plan: what an agent will say about its rows, round by round, fixed before anything is said.

Accounting, ledger, policy, statement and verifier read the plan and the rounds taken part in; nothing
multiplies the price of one round by a number of rounds.
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
"""Different releases that a plan of a study may have, and a statement can list."""

Tally = tuple[tuple[AnyRelease, int], ...]
"""Releases, and in how many rounds each was made, perhaps in none; each release once."""


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
        merged = tuple((release, sum(n for _, n in run)) for release, run in groupby(self.runs, lambda pair: pair[0]))
        object.__setattr__(self, "runs", merged)

    @classmethod
    def constant(cls, release: AnyRelease | None, n_rounds: int) -> ReleasePlan:
        """The same release in every round."""
        return cls(((release, n_rounds),) if n_rounds else ())

    @classmethod
    def of(cls, releases: Iterable[AnyRelease | None]) -> ReleasePlan:
        """A plan from the release of every round; None for a round that releases nothing."""
        return cls(tuple((release, 1) for release in releases))

    @property
    def n_rounds(self) -> int:
        return sum(n_rounds for _, n_rounds in self.runs)

    @property
    def n_releases(self) -> int:
        """Rounds that release something."""
        return sum(n_rounds for release, n_rounds in self.runs if release is not None)

    def at(self, round: int) -> AnyRelease | None:
        """What is released in round k, from 1."""
        last = 0
        for release, n_rounds in self.runs:
            last += n_rounds
            if 1 <= round <= last:
                return release
        raise StudyError(f"the plan has {self.n_rounds} rounds, and no round {round!r}")

    def tally(self, rounds: Iterable[int] | None = None) -> Tally:
        """What is released in these rounds, or in all; a release that was made in none of them counts 0."""
        taken = None if rounds is None else np.fromiter(rounds, np.int64)
        if taken is not None and taken.size and not (taken.min() >= 1 and taken.max() <= self.n_rounds):
            raise StudyError(f"the plan has {self.n_rounds} rounds, and others were taken part in; plan them too")
        found: dict[AnyRelease, int] = {}
        last = 0
        for release, n_rounds in self.runs:
            first, last = last, last + n_rounds
            if taken is not None:
                n_rounds = int(np.count_nonzero((taken > first) & (taken <= last)))
            if release is not None:
                found[release] = found.get(release, 0) + n_rounds
        return tuple(found.items())

    def mu_squared(self, rounds: Iterable[int] | None = None) -> Fraction:
        """``Σ_k 1/z_k²`` of one row in these rounds, or in all, exact; of Gaussian releases with noise."""
        prices = ((Fraction((1.0 / gaussian(each).noise_multiplier) ** 2), n) for each, n in self.tally(rounds))
        return Fraction(sum(price * n for price, n in prices))

    def noise_in_words(self) -> str:
        """The noise multiplier z of every round, for people; where rounds differ, with what they release.

        Examples
        --------
        >>> ReleasePlan.of([Release(20.0, statistic="moments"), Release(5.0), Release(5.0)]).noise_in_words()
        '20.0000 in round 1 (moments), 5.0000 from round 2 on (gradient)'
        """
        said, last = [], 0
        for release, n_rounds in self.runs:
            first, last = last + 1, last + n_rounds
            if release is not None:
                z, statistic = f"{gaussian(release).noise_multiplier:.4f}", gaussian(release).statistic
                several = f"from round {first} on" if last == self.n_rounds else f"in rounds {first} to {last}"
                said.append((z, f"{f'in round {first}' if n_rounds == 1 else several} ({statistic})"))
        return said[0][0] if len(self.runs) == 1 else ", ".join(f"{z} {where}" for z, where in said)

    def as_json(self) -> list[dict[str, Any]]:
        """Plain values, for plans of Gaussian releases."""
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


def plan_from_json(runs: Sequence[Mapping[str, Any]]) -> ReleasePlan:
    """The plan that :meth:`ReleasePlan.as_json` wrote."""
    made: list[tuple[AnyRelease | None, int]] = []
    for run in runs:
        statistic, z, n_rounds = run["statistic"], run["noise_multiplier"], run["rounds"]
        if type(n_rounds) is not int or not isinstance(z, int | float | None) or type(z) is bool:
            raise StudyError(f"rounds and noise_multiplier of a plan must be numbers, not {run!r:.80}")
        made.append((None if z is None else Release(float(z), statistic=str(statistic)), n_rounds))
    return ReleasePlan(tuple(made))


def gaussian(release: AnyRelease) -> Release:
    """A release as a single Gaussian one with noise, the only kind that a deployed agent makes."""
    if not isinstance(release, Release) or release.noise_multiplier == 0.0 or release.count != 1:
        raise StudyError(f"agents release sums with Gaussian noise, one in a round, and not {release!r}")
    return release


def fits(asked: float | Fraction, used: Fraction, allowed: float) -> bool:
    """Whether Σμ² of ``asked`` fits beside what is used: the one rule for review, enrolment and ledger.

    Exact and rounded once: n rounds fit n times their μ², and no limit is exceeded by more than 2⁻⁵³ of it.
    """
    return float(used + Fraction(asked)) <= allowed
