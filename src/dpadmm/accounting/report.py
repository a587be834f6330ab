"""The privacy report of a run: the releases of every agent, their privacy loss, and one JSON form.

The inputs are releases, numbers of rows, δ and the kind of noise. Every ε is computed from them. Reports with Gaussian
noise only can be written to a file that others verify (``verification.py``). Equal reports have equal bytes, so a file
can be signed.

If the result of a run may have decided its length, all planned releases are charged.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpadmm.accounting.calibration import round_epsilon_from_noise
from dpadmm.accounting.composition import accountant_of, tally_epsilon, tally_mu, tally_paper_epsilon
from dpadmm.accounting.events import AnyRelease, ObjectiveRelease, PureRelease, Release, SampledRelease, UnpricedRelease
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.release_plan import MAX_RELEASES, Tally
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.rendering import Fact, Facts, Paragraph, Renderable, Rendering
from dpadmm.rendering.formats import number_range, rounded_up
from dpadmm.version import VERSION

FORMAT = "dpadmm-privacy-report/1"
EXACT, SIMULATED, NO_NOISE = "exact-discrete-gaussian", "simulated", "none"
PLAIN, SECURE = "plain", "secure"

DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
ROW_GROUPS = (2, 3, 4)
MAX_AGENTS, MAX_GROUPS = 100_000, 5_000
MAX_MU = 1000.0

_GUARANTEE = (
    "Anyone who sees all messages of this run can distinguish two tables of an agent that differ in one row at most as "
    "well as (ε, δ)-differential privacy allows, for every ε and δ in this report. Numbers of rows are public."
)
_EXACT = "If the agents added this noise, the following holds."
_SIMULATED = "None, because simulated noise can be reproduced. With secret, exact noise the following would hold."
_SECURE = (
    "This requires at least {} honest agents in every round, which keep their keys and their shares of the noise "
    "secret, and unbroken masks (X25519, AES-256), which is a computational assumption. If all other agents collude, "
    "epsilon_if_others_collude applies."
)
LIMITATIONS = (
    "Other runs on the same rows, and rows of the same person at other agents, add to the privacy loss and are not "
    "included. Neither is anything that leaves an agent in another way. That the agents followed this report is taken "
    "on trust from its signer."
)
_MECHANISMS = {
    Release: "Gaussian",
    SampledRelease: "sampled Gaussian",
    ObjectiveRelease: "objective perturbation",
    PureRelease: "pure",
    UnpricedRelease: "unknown",
}
_HASH, _VERSION = re.compile("[0-9a-f]{16,128}"), re.compile(r"[0-9A-Za-z.+\-]{1,40}")


@dataclass(frozen=True)
class ReleaseCounts:
    """A release, and how many of its rounds are charged, known to be released, and planned."""

    release: AnyRelease
    charged: int
    released: int
    planned: int


@dataclass(frozen=True)
class AgentReleases:
    """The releases of an agent, and the maximum number of rows per person.

    Agents with equal releases share one instance.
    """

    releases: tuple[ReleaseCounts, ...]
    rows_per_person: int = 1

    @classmethod
    def from_tallies(
        cls, planned: Tally, released: Tally, *, charge_planned: bool, rows_per_person: int = 1
    ) -> AgentReleases:
        """Combine two tallies of one plan. Charge the planned rounds, or only the released ones."""
        counts = dict(released)
        releases = (
            ReleaseCounts(release, n if charge_planned else counts.get(release, 0), counts.get(release, 0), n)
            for release, n in planned
        )
        return cls(tuple(releases), rows_per_person)

    @cached_property
    def charged(self) -> Tally:
        """Releases and the numbers of rounds charged."""
        return tuple((each.release, each.charged) for each in self.releases)

    @cached_property
    def planned(self) -> Tally:
        """Releases and the planned numbers of rounds."""
        return tuple((each.release, each.planned) for each in self.releases)

    @cached_property
    def mu(self) -> float:
        """Gaussian-DP parameter ``μ = √(Σ 1/z²)`` of one row. inf without noise, NaN for other mechanisms."""
        return tally_mu(self.charged)

    @property
    def person_mu(self) -> float:
        """``k·μ``: the parameter of a person with the maximum number of rows."""
        return self.rows_per_person * self.mu

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier z of all releases; NaN if they differ or have none. 0 means no noise."""
        multipliers = {
            each.release.noise_multiplier
            if isinstance(each.release, Release | SampledRelease | ObjectiveRelease)
            else math.nan
            for each in self.releases
        }
        return float(multipliers.pop()) if len(multipliers) == 1 else math.nan

    @property
    def gaussian_counts(self) -> list[tuple[str, float, ReleaseCounts]]:
        """Statistic, noise multiplier and counts of every release. StudyError for other mechanisms."""
        counts = []
        for each in self.releases:
            if not isinstance(each.release, Release):
                raise StudyError(f"releases of the kind {type(each.release).__name__}; {_ONLY_GAUSSIAN}")
            if each.release.noise_multiplier == 0.0:
                raise StudyError(f"releases without noise; {_ONLY_GAUSSIAN}")
            counts.append((each.release.statistic, float(each.release.noise_multiplier), each))
        return counts


_ONLY_GAUSSIAN = "only reports with Gaussian noise can be written to a file"


def share_equal(
    planned: Sequence[Tally], released: Sequence[Tally], *, charge_planned: bool, rows_per_person: Sequence[int] = ()
) -> list[AgentReleases]:
    """Return the releases of every agent from its tallies. Agents with equal tallies share one instance.

    Most agents share the same tally objects. These are compared by identity, so a million agents take a second.
    """
    by_identity: dict[tuple[int, int, int], AgentReleases] = {}
    by_value: dict[AgentReleases, AgentReleases] = {}
    agents = []
    for plan, tally, k in zip(planned, released, rows_per_person or [1] * len(planned), strict=True):
        identity = id(plan), id(tally), k
        if identity not in by_identity:
            agent = AgentReleases.from_tallies(plan, tally, charge_planned=charge_planned, rows_per_person=k)
            by_identity[identity] = by_value.setdefault(agent, agent)
        agents.append(by_identity[identity])
    return agents


@dataclass(frozen=True, eq=False)
class PrivacyReport(Renderable):
    """The privacy loss of a run, for every agent.

    Parameters
    ----------
    agents : sequence of AgentReleases
        The releases of every agent. Equal agents should share one instance.
    n_rows : sequence of int
        Number of rows of every agent. Public.
    delta : float
        δ of the study.
    method : str
        Name of the method.
    exact_noise : bool
        Whether the noise was that of a deployment. Otherwise it was simulated.
    names : sequence of str
        Names of the agents. Default: 1, 2, ...
    study, study_hash : str, optional
        Name and hash of the study, if there was one.
    min_honest_sites : int, optional
        Number of honest agents per round that secure aggregation assumes.
    version : str
        Version of dpadmm that made the releases.
    """

    agents: Sequence[AgentReleases]
    n_rows: Sequence[int] | Integers
    delta: float
    method: str
    exact_noise: bool = False
    names: Sequence[str] = ()
    study: str | None = None
    study_hash: str | None = None
    min_honest_sites: int | None = None
    version: str = VERSION

    # --- agents and groups of equal agents

    @cached_property
    def _group_index(self) -> dict[AgentReleases, int]:
        distinct = {id(agent): agent for agent in self.agents}.values()
        return {agent: i for i, agent in enumerate(dict.fromkeys(distinct))}

    @property
    def groups(self) -> tuple[AgentReleases, ...]:
        """The distinct releases of agents, in order of first appearance."""
        return tuple(self._group_index)

    @cached_property
    def group_of_agent(self) -> Integers:
        """Position in ``groups`` of every agent."""
        index = {id(agent): agent for agent in self.agents}
        positions = {key: self._group_index[agent] for key, agent in index.items()}
        return np.fromiter((positions[id(agent)] for agent in self.agents), np.int64, len(self.agents))

    def _by_agent(self, calculate: Callable[[AgentReleases], float]) -> Floats:
        return np.array([calculate(group) for group in self.groups], float)[self.group_of_agent]

    @property
    def n_releases(self) -> Integers:
        """Number of rounds in which each agent released something."""
        return self._by_agent(lambda agent: sum(each.released for each in agent.releases)).astype(np.int64)

    @property
    def charged_releases(self) -> Integers:
        """Number of rounds that each agent is charged for."""
        return self._by_agent(lambda agent: sum(each.charged for each in agent.releases)).astype(np.int64)

    @property
    def noise_multiplier(self) -> Floats:
        """Noise multiplier z of every agent; NaN if its releases differ or have none."""
        return self._by_agent(lambda agent: agent.noise_multiplier)

    @property
    def mu(self) -> Floats:
        """Gaussian-DP parameter of every agent, for one row."""
        return self._by_agent(lambda agent: agent.mu)

    @property
    def epsilon_by_agent(self) -> Floats:
        """Total ε of every agent, for one row."""
        return self._epsilons[self.group_of_agent]

    def members(self, group: int) -> dict[str, int]:
        """Return the numbers of rows of the agents in a group, by name."""
        positions = np.flatnonzero(self.group_of_agent == group).tolist()
        return {self.names[i] if self.names else str(i + 1): int(self.n_rows[i]) for i in positions}

    # --- privacy loss of the worst agent

    @cached_property
    def _epsilons(self) -> Floats:
        return self._totals([group.charged for group in self.groups])

    def _totals(self, tallies: Sequence[Tally]) -> Floats:
        """Return the total ε of each tally: one search for all with Gaussian noise."""
        mu = np.array([tally_mu(tally) for tally in tallies])
        totals, is_gaussian = np.empty(len(tallies)), ~np.isnan(mu)
        if is_gaussian.any():
            totals[is_gaussian] = exact_epsilon(mu[is_gaussian], self.delta)
        for i in np.flatnonzero(~is_gaussian).tolist():
            totals[i] = tally_epsilon(tallies[i], self.delta)
        return totals

    @property
    def private(self) -> bool:
        """Whether every release had noise with a known privacy cost."""
        return bool(np.isfinite(self._epsilons).all())

    @property
    def epsilon(self) -> float:
        """Total ε of the agent with the largest privacy loss, for one row; inf without noise."""
        return float(self._epsilons.max())

    @cached_property
    def planned_epsilon(self) -> float:
        """Total ε if every agent had participated in all rounds that its noise was calibrated for."""
        return float(self._totals([group.planned for group in self.groups]).max())

    @property
    def epsilon_if_others_collude(self) -> float:
        """Total ε of a person if all other agents collude: only the agent's own share of the noise remains."""
        if self.min_honest_sites is None:
            return self.epsilon
        return float(exact_epsilon(max(map(self._mu_if_others_collude, self.groups)), self.delta))

    def _mu_if_others_collude(self, agent: AgentReleases) -> float:
        return agent.person_mu * math.sqrt(self.min_honest_sites or 1)

    @cached_property
    def paper_epsilon(self) -> float:
        """The paper's moments bound ε̄ of the worst agent.

        NaN where it does not apply: different noise multipliers, or releases that are not Gaussian.
        """
        bounds = [tally_paper_epsilon(group.charged, self.delta) for group in self.groups]
        return math.nan if any(map(math.isnan, bounds)) else max(bounds)

    @cached_property
    def round_epsilon(self) -> float:
        """ε of one round with the least noise: the paper's ``√(2 ln(1.25/δ))/z``, or ε of pure releases.

        inf above 1, where the classical theorem does not apply. NaN for other releases.
        """
        releases = self._planned_releases
        if not releases:
            return 0.0
        pure = [release.epsilon for release in releases if isinstance(release, PureRelease)]
        if len(pure) == len(releases):
            return float(max(pure))
        gaussian = [release.noise_multiplier for release in releases if isinstance(release, Release)]
        if len(gaussian) < len(releases):
            return math.nan
        classical = float(np.max(round_epsilon_from_noise(np.array(gaussian), self.delta)))
        return classical if classical <= 1.0 + 1e-9 else math.inf

    @property
    def accountant(self) -> str:
        """The composition theorems that were used."""
        return ", ".join(dict.fromkeys(map(accountant_of, self._planned_releases)))

    @property
    def _planned_releases(self) -> list[AnyRelease]:
        return list(dict.fromkeys(each.release for group in self.groups for each in group.releases))

    # --- the JSON form

    @property
    def noise(self) -> str:
        """Kind of noise: ``exact-discrete-gaussian``, ``simulated`` or ``none``."""
        if all(group.noise_multiplier == 0.0 for group in self.groups):
            return NO_NOISE
        return EXACT if self.exact_noise else SIMULATED

    @property
    def guarantee(self) -> str:
        """The guarantee in words."""
        if not self.private:
            unpriced = any(isinstance(release, UnpricedRelease) for release in self._planned_releases)
            reason = "the noise source has no known privacy cost" if unpriced else "rows were used without noise"
            return f"None: {reason}."
        secure = [] if self.min_honest_sites is None else [_SECURE.format(self.min_honest_sites)]
        return " ".join([_EXACT if self.exact_noise else _SIMULATED, _GUARANTEE, *secure])

    def rendering(self) -> Rendering:
        """Return a summary for people: the loss of the agent with the largest ε, the noise and the guarantee."""
        has_bound = not math.isnan(self.paper_epsilon)
        facts = [Fact("", "total ε", self.epsilon, rounded_up, "exact" if has_bound else self.accountant)]
        if self.min_honest_sites is not None:
            note = f"above: at least {self.min_honest_sites} agents in every round are honest"
            facts.append(Fact("", "  if all other agents collude", self.epsilon_if_others_collude, rounded_up, note))
        if has_bound:
            facts.append(Fact("", "total ε, paper's moments bound", self.paper_epsilon, rounded_up))
        facts.append(Fact("", "δ", float(self.delta), "g"))
        z = [group.noise_multiplier for group in self.groups]
        if not any(map(math.isnan, z)):
            facts.append(Fact("", "noise multiplier z", number_range(z)))
        facts.append(Fact("", "noise", self.noise))
        study = "" if self.study is None else f", study {self.study}"
        return Rendering(
            f"Privacy loss of {self.method}{study}, for a person with one row",
            [Facts(facts), Paragraph(self.guarantee)],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return inputs and derived values as JSON values; None where a value is infinite or does not apply.

        Above 100,000 agents, ``n_rows`` of each group is None.
        """
        figures = self._figures()
        lists_rows = len(self.agents) <= MAX_AGENTS
        sizes = Counter(self.group_of_agent.tolist())
        return {
            "format": FORMAT,
            "dpadmm_version": self.version,
            "study": None if self.study_hash is None else {"name": self.study, "hash": self.study_hash},
            "method": self.method,
            "neighbours": "replace-one",
            "noise": self.noise,
            "aggregation": PLAIN if self.min_honest_sites is None else SECURE,
            "min_honest_sites": self.min_honest_sites,
            "delta": float(self.delta),
            "private": self.private,
            **self._named(figures.max(axis=0), several_rows=any(group.rows_per_person > 1 for group in self.groups)),
            "round_epsilon": _finite(self.round_epsilon),
            "accountant": self.accountant,
            "n_agents": len(self.agents),
            "agents": [
                {
                    "n_agents": sizes[i],
                    "n_rows": self.members(i) if lists_rows else None,
                    "rows_per_person": group.rows_per_person,
                    "releases": list(map(_release_to_dict, group.releases)),
                    **self._named(figures[i], several_rows=group.rows_per_person > 1),
                }
                for i, group in enumerate(self.groups)
            ],
            "guarantee": self.guarantee,
            "limitations": LIMITATIONS,
        }

    def to_bytes(self) -> bytes:
        """Return the content of the file. Raise StudyError for a report that cannot be verified."""
        self.check_verifiable()
        return canonical(self.to_dict())

    @property
    def deltas(self) -> tuple[float, ...]:
        """Further values of δ for which the report has ε."""
        return tuple(delta for delta in DELTAS if delta != self.delta)

    def _figures(self) -> Floats:
        """Return the values derived for every group (groups, values), from one search for all ε. See ``_named``."""
        charged, planned = self._epsilons, self._totals([group.planned for group in self.groups])
        paper = [tally_paper_epsilon(group.charged, self.delta) for group in self.groups]
        mu = np.array([[group.mu, group.person_mu, self._mu_if_others_collude(group)] for group in self.groups])
        factors = np.array([*(1 for _ in self.deltas), *ROW_GROUPS], float)
        mu = np.hstack([mu[:, :1] * factors, mu[:, 1:]])
        deltas = [*self.deltas, *[self.delta] * (len(ROW_GROUPS) + 2)]
        epsilons = np.where(np.isnan(mu), np.nan, exact_epsilon(np.nan_to_num(mu, posinf=np.inf), np.array(deltas)))
        return np.column_stack([charged, planned, paper, epsilons])

    def _named(self, values: Floats, *, several_rows: bool) -> dict[str, Any]:
        """Return derived values as JSON. NaN means that a value does not apply, or is not exact Gaussian."""
        epsilon, planned, paper, *others, person, collusion = map(_finite, values.tolist())
        split, is_gaussian = len(self.deltas), not math.isnan(values[-1])
        return {
            "epsilon": epsilon,
            "planned_epsilon": planned,
            "paper_epsilon": paper,
            "epsilon_by_delta": dict(zip(map(repr, self.deltas), others, strict=False)) if is_gaussian else None,
            "epsilon_by_rows": dict(zip(map(str, ROW_GROUPS), others[split:], strict=True)) if is_gaussian else None,
            "epsilon_of_person": person if several_rows else None,
            "epsilon_if_others_collude": None if self.min_honest_sites is None else collusion,
        }

    def check_verifiable(self) -> None:
        """Raise StudyError for a report that cannot be a file: other noise than Gaussian, or values out of range."""
        _check_text("method", self.method)
        _check_number("delta", self.delta, 1e-30, 0.5)
        _check_form("version", self.version, _VERSION)
        if (self.study is None) != (self.study_hash is None):
            raise StudyError("a privacy report has both name and hash of the study, or neither")
        if self.study_hash is not None:
            _check_text("the name of the study", self.study)
            _check_form("hash", self.study_hash, _HASH)
        if not 1 <= len(self.agents) <= MAX_AGENTS or len(self.groups) > MAX_GROUPS:
            limits = f"1 to {MAX_AGENTS} agents in at most {MAX_GROUPS} groups of equal releases"
            raise StudyError(f"a privacy report has {limits}, not {len(self.agents)} in {len(self.groups)}")
        names = list(self.names) or list(map(str, range(1, len(self.agents) + 1)))
        if not len(set(names)) == len(names) == len(self.agents) == len(self.n_rows):
            raise StudyError("two agents of the privacy report have the same name, or one lacks its name or rows")
        for name, n_rows in zip(names, self.n_rows, strict=True):
            _check_text("the name of an agent", name)
            _check_count("n_rows", n_rows, 1, 10**12)
        if self.min_honest_sites is not None:
            _check_count("min_honest_sites", self.min_honest_sites, 2, 10**6)
        for i, group in enumerate(self.groups):
            members = np.flatnonzero(self.group_of_agent == i).tolist()
            try:
                self._check_group(group, min(int(self.n_rows[j]) for j in members))
            except StudyError as error:
                raise StudyError(f"agent {names[members[0]]}: {error}") from None

    def _check_group(self, group: AgentReleases, least_rows: int) -> None:
        counts = group.gaussian_counts
        if not 1 <= len(counts) <= MAX_RELEASES:
            raise StudyError(f"{len(counts)} different releases; a privacy report has 1 to {MAX_RELEASES}")
        for statistic, z, each in counts:
            _check_text("statistic", statistic)
            _check_number("noise_multiplier", z, 1e-3, 1e9)
            _check_count("planned", each.planned, 0, 10**8)
            _check_count("charged", each.charged, 0, each.planned)
            _check_count("released", each.released, 0, each.charged)
        _check_count("rows_per_person", group.rows_per_person, 1, least_rows)
        largest = max(group.mu * max(ROW_GROUPS), group.person_mu, self._mu_if_others_collude(group))
        if largest > MAX_MU:
            raise StudyError(f"μ above {MAX_MU:g} for four rows, a person or one share of the noise: no protection")


def canonical(document: Any) -> bytes:
    """Return the only valid bytes of a document: sorted keys, two spaces, UTF-8, a final line break, no NaN."""
    try:
        text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        raise StudyError("a name in the privacy report has characters that no text file can contain") from None


def privacy_sentence(privacy: Mapping[str, Any]) -> str:
    """Return the sentence for a publication, from :meth:`PrivacyReport.to_dict` or an untrusted file."""
    epsilon, delta = privacy.get("epsilon"), privacy.get("delta")
    if not (isinstance(epsilon, int | float) and isinstance(delta, int | float)):
        return "This result is not differentially private."
    simulated = "" if privacy.get("noise") == EXACT else " (in an experiment: the noise was simulated)"
    min_honest_sites = privacy.get("min_honest_sites")
    aggregation = f", if at least {min_honest_sites} sites in every round are honest" if min_honest_sites else ""
    return (
        f"This result is ({math.ceil(1e4 * epsilon - 1e-9) / 1e4:g}, {delta:g})-differentially private for every "
        f"person with one row{aggregation}: exact Gaussian accounting, one row replaced, numbers of rows "
        f"public{simulated}."
    )


def _release_to_dict(counts: ReleaseCounts) -> dict[str, Any]:
    values = {name: _finite(value) for name, value in asdict(counts.release).items()}
    per_round = values.pop("count", 1)
    rounds = {"charged": counts.charged, "released": counts.released, "planned": counts.planned}
    return {
        "mechanism": _MECHANISMS[type(counts.release)],
        **values,
        **{name: int(per_round * n) for name, n in rounds.items()},
    }


def _finite(value: Any) -> Any:
    """Return a plain number or text; None for infinity and NaN."""
    if isinstance(value, str):
        return value
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if math.isfinite(plain) else None


def _check_text(name: str, value: Any) -> None:
    if type(value) is not str or not 1 <= len(value) <= 200 or not value.isprintable():
        raise StudyError(f"{name} must be 1 to 200 printable characters, not {shortened(value)}")


def _check_form(name: str, value: Any, form: re.Pattern[str]) -> None:
    if type(value) is not str or not form.fullmatch(value):
        raise StudyError(f"{name} must match {form.pattern}, not {shortened(value)}")


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if not isinstance(value, float) or not low <= value <= high:
        raise StudyError(f"{name} must be a number from {low:g} to {high:g}, not {shortened(value)}")


def _check_count(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise StudyError(f"{name} must be a whole number from {low:g} to {high:g}, not {shortened(value)}")


def shortened(value: Any) -> str:
    """Return an untrusted value as a short text for an error message."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'table'}"
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}…"
