"""What a run gave away: the total guarantee of every agent, and the paper's bound where it applies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpadmm.accounting.calibration import round_epsilon_from_noise
from dpadmm.accounting.composition import accountant_of, tally_epsilon, tally_paper_epsilon
from dpadmm.accounting.events import PureRelease, Release, UnpricedRelease
from dpadmm.accounting.gaussian import exact_epsilon, gaussian_mu
from dpadmm.accounting.release_plan import Tally
from dpadmm.matrices.arrays import Floats, Integers

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
    released : sequence of n tallies
        What each agent released, in the rounds that it took part in.
    planned : sequence of n tallies
        What it would have released in all rounds that its noise was calibrated for.
    delta : float
    method : str
        Name of the method; ``centralized`` releases rows' optimum without noise.
    ended_by_result : bool
        The run's length depended on what it released (a stop rule, or somebody who watched and interrupted).
        Then fewer rounds do not cost less: the guarantee that holds is that of all rounds planned.
    exact_noise : bool
        The noise was that of deployed agents, and not simulated.
    min_honest_sites : int, optional
        With secure aggregation, h: ε holds where so many agents of every round are honest.
    """

    released: Sequence[Tally]
    planned: Sequence[Tally]
    delta: float
    method: str
    ended_by_result: bool = False
    exact_noise: bool = False
    min_honest_sites: int | None = None

    @property
    def charged(self) -> Sequence[Tally]:
        """What every agent is charged for: its releases, or all planned where the result ended the run."""
        return self.planned if self.ended_by_result else self.released

    @property
    def n_releases(self) -> Integers:
        """Rounds in which each agent released something."""
        return _each(self.released, _rounds).astype(np.int64)

    @property
    def charged_releases(self) -> Integers:
        """Rounds that each agent is charged for."""
        return _each(self.charged, _rounds).astype(np.int64)

    @cached_property
    def noise_multiplier(self) -> Floats:
        """z of every agent; 0 means no noise, NaN that its rounds have no single such number."""
        return _each(self.planned, _noise_multiplier)

    @cached_property
    def accountant(self) -> str:
        """How the rounds were added up."""
        releases = [release for tally in _distinct(self.planned) for release, _ in tally]
        return ", ".join(dict.fromkeys(map(accountant_of, releases)))

    @property
    def mu(self) -> Floats:
        """Gaussian-DP parameter ``μ_i = √(Σ 1/z²)`` of every agent; inf without noise.

        NaN where rounds are not plain Gaussian releases.
        """
        return _each(self.charged, _mu)

    @property
    def private(self) -> bool:
        """Whether every agent that said something added noise of a known price."""
        return bool(np.isfinite(self.epsilon_by_agent).all())

    @cached_property
    def epsilon_by_agent(self) -> Floats:
        """Total ε of every agent at δ."""
        return self._totals(self.charged)

    @property
    def epsilon(self) -> float:
        """Total ε of the agent that gave away most; inf without noise."""
        return float(self.epsilon_by_agent.max())

    @property
    def epsilon_if_others_collude(self) -> float:
        """Total ε where all other agents work with the aggregator: only the own share of the noise is left."""
        if self.min_honest_sites is None:
            return self.epsilon
        return float(exact_epsilon(math.sqrt(self.min_honest_sites) * float(self.mu.max()), self.delta))

    @cached_property
    def planned_epsilon(self) -> float:
        """What ``epsilon`` would be had every agent taken part in all rounds planned for it."""
        return float(self._totals(self.planned).max())

    @cached_property
    def paper_epsilon(self) -> float:
        """The paper's moments bound ε̄ for the same releases: the worst agent's.

        NaN where it does not apply: rounds with different noise, or that are not plain Gaussian releases.
        """
        found = {tally_paper_epsilon(tally, self.delta) for tally in _distinct(self.charged)}
        return float("nan") if any(np.isnan(each) for each in found) else max(found)

    @cached_property
    def round_epsilon(self) -> float:
        """ε of one round of the agent with the least noise: the paper's ``√(2 ln(1.25/δ))/z``, or a pure ε.

        inf beyond 1, where the classical theorem proves nothing; NaN for rounds that are neither.
        """
        releases = [release for tally in _distinct(self.planned) for release, _ in tally]
        if not releases:
            return 0.0
        pure = [release.epsilon for release in releases if isinstance(release, PureRelease)]
        if len(pure) == len(releases):
            return float(max(pure))
        plain = [release.noise_multiplier for release in releases if isinstance(release, Release)]
        if len(plain) < len(releases):
            return float("nan")
        classical = float(np.max(round_epsilon_from_noise(np.array(plain), self.delta)))
        return classical if classical <= 1.0 + 1e-9 else float("inf")

    def _totals(self, tallies: Sequence[Tally]) -> Floats:
        mu = _each(tallies, _mu)
        plain = ~np.isnan(mu)
        out = np.empty(len(tallies))
        if plain.any():
            values, which = np.unique(mu[plain], return_inverse=True)
            out[plain] = exact_epsilon(values, self.delta)[which]
        if not plain.all():
            out[~plain] = _each(
                [tally for tally, is_plain in zip(tallies, plain, strict=True) if not is_plain],
                lambda tally: tally_epsilon(tally, self.delta),
            )
        return out

    def as_json(self) -> dict[str, Any]:
        """Plain values; None where there is no finite number, or none of that kind."""

        def plain(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        unpriced = any(isinstance(r, UnpricedRelease) for tally in _distinct(self.charged) for r, _ in tally)
        why_none = "the noise source states no price" if unpriced else "rows were used without noise"
        return {
            "private": self.private,
            "epsilon": plain(self.epsilon),
            "delta": self.delta,
            **self._aggregation(),
            "planned_epsilon": plain(self.planned_epsilon),
            "paper_epsilon": plain(self.paper_epsilon),
            "round_epsilon": plain(self.round_epsilon),
            "epsilon_by_agent": _finite(self.epsilon_by_agent),
            "noise_multiplier": _finite(self.noise_multiplier),
            "n_releases": self.n_releases.tolist(),
            "charged_releases": self.charged_releases.tolist(),
            "accountant": self.accountant,
            "guarantee": self._guarantee if self.private else f"none: {why_none}",
            "noise": (EXACT if self.exact_noise else SIMULATED) if np.any(self.noise_multiplier) else "none",
            "method": self.method,
        }

    def _aggregation(self) -> dict[str, Any]:
        if self.min_honest_sites is None:
            return {"aggregation": "plain"}
        return {
            "aggregation": "secure",
            "min_honest_sites": self.min_honest_sites,
            "epsilon_if_others_collude": self.epsilon_if_others_collude,
        }

    @property
    def _guarantee(self) -> str:
        return (
            GUARANTEE
            if self.min_honest_sites is None
            else f"{GUARANTEE}; {aggregation_in_words(self.min_honest_sites)}"
        )


def aggregation_in_words(min_honest_sites: int) -> str:
    """What ε and ``epsilon_if_others_collude`` rest on, with secure aggregation."""
    return (
        f"where at least {min_honest_sites} agents of every round are honest, and as long as the masks of the sums are "
        "secret (which is computational); epsilon_if_others_collude is what holds if all others work together"
    )


def privacy_sentence(privacy: Mapping[str, Any]) -> str:
    """What a paper says beside a result, from :meth:`PrivacyReport.as_json`; whatever a file says of itself."""
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta")
    if not (isinstance(epsilon, int | float) and isinstance(delta, int | float)):
        return "This result is not differentially private."
    simulated = "" if privacy.get("noise") == EXACT else " (in an experiment: the noise was simulated)"
    min_honest_sites = privacy.get("min_honest_sites")
    aggregation = f", if at least {min_honest_sites} of the sites of every round are honest" if min_honest_sites else ""
    return (
        f"This result is ({math.ceil(1e4 * epsilon - 1e-9) / 1e4:g}, {delta:g})-differentially private for every "
        f"person with one row{aggregation}: exact Gaussian accounting, one row replaced, numbers of rows "
        f"public{simulated}."
    )


def _finite(values: Floats) -> list[float | None]:
    """Every number, or None; agents with the same share one object: 10⁶ of them would take 24 MB."""
    distinct, which = np.unique(values, return_inverse=True)
    known = np.array([value if math.isfinite(value) else None for value in distinct.tolist()], dtype=object)
    found: list[float | None] = known[which].tolist()
    return found


def _distinct(tallies: Sequence[Tally]) -> list[Tally]:
    """Each tally once; most agents share the very same one, and to compare them would take long."""
    return list(dict.fromkeys({id(tally): tally for tally in tallies}.values()))


def _each(tallies: Sequence[Tally], calculate: Callable[[Tally], float]) -> Floats:
    """``calculate`` of every agent, once for agents with the same tally."""
    known = {tally: calculate(tally) for tally in _distinct(tallies)}
    by_place = {id(tally): known[tally] for tally in {id(tally): tally for tally in tallies}.values()}
    return np.array([by_place[id(tally)] for tally in tallies], dtype=float)


def _rounds(tally: Tally) -> int:
    return sum(n for _, n in tally)


def _mu(tally: Tally) -> float:
    plain = [replace(each, count=each.count * n) for each, n in tally if isinstance(each, Release)]
    return gaussian_mu(plain) if len(plain) == len(tally) else float("nan")


def _noise_multiplier(tally: Tally) -> float:
    found = {getattr(release, "noise_multiplier", float("nan")) for release, _ in tally}
    return float(found.pop()) if len(found) == 1 else float("nan")
