"""What a run gave away: the total guarantee of every agent, and the paper's bound where it applies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpadmm.arrays import Floats, Integers
from dpadmm.privacy.accounting import exact_epsilon, paper_epsilon
from dpadmm.privacy.calibration import round_epsilon_from_noise
from dpadmm.privacy.composition import accountant_of, total_epsilon
from dpadmm.privacy.releases import AnyRelease, PureRelease, Release

GUARANTEE = (
    "with secret, exact noise of this size: for any one row of an agent replaced by any other (number of "
    "rows public), against everyone who sees all messages of this one run"
)
SIMULATED = "simulated floating-point noise from a seed: an experiment, not a protection"
EXACT = "exact discrete Gaussian noise, from the operating system's entropy for every release"


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy spent by every agent.

    Attributes
    ----------
    releases : sequence of n releases
        What each agent gives away in one round.
    n_releases : (n,)
        Rounds the agent took part in.
    planned_releases : (n,)
        Rounds its noise was calibrated for.
    delta : float
    method : str
        Name of the method; ``centralized`` releases rows' optimum without noise.
    ended_by_result : bool
        The run's length depended on what it released (a stop rule, or somebody who watched and interrupted).
        Then fewer rounds do not cost less: the guarantee that holds is that of all rounds planned.
    exact_noise : bool
        The noise was that of deployed agents, and not simulated.
    """

    releases: Sequence[AnyRelease]
    n_releases: Integers
    planned_releases: Integers
    delta: float
    method: str
    ended_by_result: bool = False
    exact_noise: bool = False

    @property
    def charged_releases(self) -> Integers:
        """What every agent is charged for: its releases, or all planned where the result ended the run."""
        return self.planned_releases if self.ended_by_result else self.n_releases

    @cached_property
    def noise_multiplier(self) -> Floats:
        """z of every agent; 0 means no noise, NaN that its noise has no such number (pure ε)."""
        return np.array([getattr(release, "noise_multiplier", np.nan) for release in self.releases], float)

    @cached_property
    def accountant(self) -> str:
        """How the rounds were added up."""
        return ", ".join(dict.fromkeys(accountant_of(release) for release in self.releases))

    @property
    def mu(self) -> Floats:
        """Gaussian-DP parameter ``μ_i = √charged / z`` of every agent; inf without noise.

        NaN where rounds are not plain Gaussian releases.
        """
        return self._mu(self.charged_releases)

    @property
    def private(self) -> bool:
        """Whether every agent that said something added noise."""
        return bool(np.isfinite(self.epsilon_by_agent).all())

    @cached_property
    def epsilon_by_agent(self) -> Floats:
        """Total ε of every agent at δ."""
        return self._totals(self.charged_releases)

    @property
    def epsilon(self) -> float:
        """Total ε of the agent that gave away most; inf without noise."""
        return float(self.epsilon_by_agent.max())

    @cached_property
    def planned_epsilon(self) -> float:
        """What ``epsilon`` would be had every agent taken part in all rounds planned for it."""
        return float(self._totals(self.planned_releases).max())

    @cached_property
    def paper_epsilon(self) -> float:
        """The paper's moments bound ε̄ for the same releases: the worst agent's.

        NaN where it does not apply, that is where a round is not a plain Gaussian release.
        """
        if not self._gaussian.all():
            return float("nan")
        charged = zip(self.releases, self.charged_releases, strict=True)
        pairs = {
            (r.noise_multiplier, int(k) * r.count)
            for r, k in charged
            if isinstance(r, Release) and r.count * k
        }
        return max((paper_epsilon(float(z), k, self.delta) for z, k in pairs), default=0.0)

    @cached_property
    def round_epsilon(self) -> float:
        """ε of one round of the agent with the least noise: the paper's ``√(2 ln(1.25/δ))/z``, or a pure ε.

        inf beyond 1, where the classical theorem proves nothing; NaN for rounds that are neither.
        """
        pure = [release.epsilon for release in self.releases if isinstance(release, PureRelease)]
        if len(pure) == len(self.releases):
            return float(max(pure))
        if not self._gaussian.all():
            return float("nan")
        classical = float(np.max(round_epsilon_from_noise(self.noise_multiplier, self.delta)))
        return classical if classical <= 1.0 + 1e-9 else float("inf")

    @cached_property
    def _gaussian(self) -> Integers:
        """1 where the agent's rounds are plain Gaussian releases."""
        return np.array([isinstance(release, Release) for release in self.releases], int)

    def _counts(self, n_releases: Integers) -> list[int]:
        """Gaussian releases of every agent in so many rounds."""
        each = (r.count if isinstance(r, Release) else 0 for r in self.releases)
        return [count * int(k) for count, k in zip(each, n_releases, strict=True)]

    def _mu(self, n_releases: Integers) -> Floats:
        counts = np.array(self._counts(n_releases), float)
        z = np.where(self._gaussian == 1, self.noise_multiplier, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mu = np.where(counts == 0, 0.0, np.sqrt(counts) / z)
        return np.where(self._gaussian == 1, mu, np.nan)

    def _totals(self, n_releases: Integers) -> Floats:
        plain = self._gaussian == 1
        out = np.empty(len(self.releases))
        if plain.any():
            out[plain] = exact_epsilon(self._mu(n_releases)[plain], self.delta)
        for i in np.flatnonzero(~plain).tolist():
            out[i] = total_epsilon(self.releases[i], int(n_releases[i]), self.delta)
        return out

    def as_json(self) -> dict[str, Any]:
        """Plain values; None where there is no finite number, or none of that kind."""

        def plain(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return {
            "private": self.private,
            "epsilon": plain(self.epsilon),
            "delta": self.delta,
            "planned_epsilon": plain(self.planned_epsilon),
            "paper_epsilon": plain(self.paper_epsilon),
            "round_epsilon": plain(self.round_epsilon),
            "epsilon_by_agent": [plain(value) for value in self.epsilon_by_agent],
            "noise_multiplier": [plain(z) for z in self.noise_multiplier],
            "n_releases": [int(k) for k in self.n_releases],
            "charged_releases": [int(k) for k in self.charged_releases],
            "accountant": self.accountant,
            "guarantee": GUARANTEE if self.private else "none: rows were used without noise",
            "noise": (EXACT if self.exact_noise else SIMULATED) if np.any(self.noise_multiplier) else "none",
            "method": self.method,
        }
