"""A privacy statement: what a study gave away, in a JSON file that its maker can sign and anyone can check.

The file has inputs (noise multipliers, numbers of releases, rows, δ) and figures that follow from them alone;
``statement_file.py`` derives the figures again. The same statement always gives the same bytes.

Charged are all releases that were planned, where the run might have ended because of what it had released:
a run that was cut short for that reason has no smaller valid bill.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpadmm._base.errors import StudyError
from dpadmm.privacy.accounting import exact_epsilon, group_mu, paper_epsilon
from dpadmm.privacy.plan import Tally
from dpadmm.privacy.releases import Release
from dpadmm.privacy.report import PrivacyReport

FORMAT = "dpadmm-statement/1"
DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
ROW_GROUPS = (1, 2, 3, 4)
MAX_AGENTS, MAX_GROUPS, MAX_RELEASES = 100_000, 5_000, 8
MAX_MU = 1000.0

ADJACENCY = {
    "code": "replace-one",
    "words": "One row of an agent is replaced by any other row; the number of rows of every agent is public.",
}
EXACT, SIMULATED = "exact-discrete-gaussian", "simulated"
SAMPLERS = {
    EXACT: "Exact discrete Gaussian noise, from fresh entropy of the operating system for every release.",
    SIMULATED: "Floating-point noise simulated from a seed: an experiment, which protects nobody.",
}
HASH_IS = {EXACT: "of the study that was agreed on", SIMULATED: "of the settings: there was no study to pin"}
_PROMISE = (
    "whoever sees all messages of this study can tell any two neighbouring data sets of an agent apart no "
    "better than (ε, δ)-differential privacy allows, for every pair of ε and δ given here."
)
GUARANTEED = {
    EXACT: f"If the agents ran this sampler with these numbers, {_PROMISE}",
    SIMULATED: f"Nothing, since the noise can be repeated. Had it been exact and secret, {_PROMISE}",
}
NOT_GUARANTEED = (
    "Other studies of the same rows, and rows of the same person at other agents, add up and are not counted "
    "here; neither is what leaves an agent by other ways than its releases. That the agents did what is "
    "written here is the word of whoever signs it."
)

_HASH, _VERSION = re.compile("[0-9a-f]{16,128}"), re.compile(r"[0-9A-Za-z.+\-]{1,40}")


@dataclass(frozen=True)
class StatedRelease:
    """Gaussian releases of one statistic: noise multiplier z, how many are charged, how many are known of."""

    statistic: str
    noise_multiplier: float
    charged: int
    released: int

    def __post_init__(self) -> None:
        _text("statistic", self.statistic)
        _number("noise_multiplier", self.noise_multiplier, float, 1e-3, 1e9)
        _number("charged", self.charged, int, 0, 10**8)
        _number("released", self.released, int, 0, self.charged)


@dataclass(frozen=True)
class AgentGroup:
    """Agents with the same numbers but for their rows: ``n_rows`` by name."""

    n_rows: Mapping[str, int]
    rows_per_person: int
    releases: tuple[StatedRelease, ...]

    def __post_init__(self) -> None:
        for name, rows in self.n_rows.items():
            _text("the name of an agent", name)
            _number("n_rows", rows, int, 1, 10**12)
        if not self.n_rows or not 1 <= len(self.releases) <= MAX_RELEASES:
            raise StudyError(f"a group has at least one agent, and 1 to {MAX_RELEASES} releases")
        _number("rows_per_person", self.rows_per_person, int, 1, min(self.n_rows.values()))
        if self.mu * max(*ROW_GROUPS, self.rows_per_person) > MAX_MU:
            raise StudyError(
                f"μ of four rows, or of a person, is above {MAX_MU:g}: that is no protection to state"
            )

    @property
    def mu(self) -> float:
        """``√(Σ charged/z²)`` of one row."""
        return math.hypot(*(math.sqrt(each.charged) / each.noise_multiplier for each in self.releases))

    @property
    def person_mu(self) -> float:
        """``k·μ``, of a person with as many rows as one may have."""
        return group_mu(self.mu, self.rows_per_person)


@dataclass(frozen=True)
class Statement:
    """What a study gave away; ``sampler`` is EXACT or SIMULATED."""

    name: str
    study_hash: str
    method: str
    sampler: str
    delta: float
    groups: tuple[AgentGroup, ...]
    version: str

    def __post_init__(self) -> None:
        _text("the name of the study", self.name)
        _text("method", self.method)
        _number("delta", self.delta, float, 1e-30, 0.5)
        for name, text, form in (("hash", self.study_hash, _HASH), ("version", self.version, _VERSION)):
            if type(text) is not str or not form.fullmatch(text):
                raise StudyError(f"{name} must be like {form.pattern}, not {shortened(text)}")
        if self.sampler not in SAMPLERS:
            raise StudyError(f"sampler must be one of {', '.join(SAMPLERS)}, not {shortened(self.sampler)}")
        names = [name for group in self.groups for name in group.n_rows]
        if not 1 <= len(self.groups) <= MAX_GROUPS or len(names) > MAX_AGENTS:
            limits = f"1 to {MAX_AGENTS} agents in at most {MAX_GROUPS} groups of the same numbers"
            raise StudyError(f"a statement has {limits}, not {len(names)} in {len(self.groups)}")
        if len(set(names)) < len(names):
            raise StudyError("two agents of the statement have the same name")

    @property
    def deltas(self) -> tuple[float, ...]:
        """Where ε is given: DELTAS, and the study's own."""
        return tuple(sorted({*DELTAS, self.delta}, reverse=True))

    def as_json(self) -> dict[str, Any]:
        """The document: inputs, what they mean, and the figures that follow from them."""
        figures = self._figures()
        return {
            "format": FORMAT,
            "dpadmm_version": self.version,
            "study": {"name": self.name, "hash": self.study_hash, "hash_is": HASH_IS[self.sampler]},
            "method": self.method,
            "adjacency": dict(ADJACENCY),
            "sampler": {"code": self.sampler, "words": SAMPLERS[self.sampler]},
            "delta": self.delta,
            "agents": [
                {
                    "n_rows": dict(group.n_rows),
                    "rows_per_person": group.rows_per_person,
                    "releases": [dict(vars(each)) for each in group.releases],
                    **row,
                }
                for group, row in zip(self.groups, figures, strict=True)
            ],
            "worst": _worst(figures),
            "guaranteed": GUARANTEED[self.sampler],
            "not_guaranteed": NOT_GUARANTEED,
        }

    def as_bytes(self) -> bytes:
        """The file: always the same bytes for the same statement, so that they can be signed."""
        return canonical(self.as_json())

    def _figures(self) -> list[dict[str, Any]]:
        """All figures of every group, in one search for all ε."""
        at = [*((1, delta) for delta in self.deltas), *((rows, self.delta) for rows in ROW_GROUPS)]
        mu = [[*(group_mu(group.mu, rows) for rows, _ in at), group.person_mu] for group in self.groups]
        epsilons = exact_epsilon(np.array(mu), np.array([*(delta for _, delta in at), self.delta])).tolist()
        split = len(self.deltas)
        return [
            {
                "epsilon": dict(zip(map(repr, self.deltas), row[:split], strict=True)),
                "epsilon_paper": self._paper(group),
                "epsilon_of_rows": dict(zip(map(str, ROW_GROUPS), row[split:-1], strict=True)),
                "epsilon_of_person": row[-1] if group.rows_per_person > 1 else None,
            }
            for group, row in zip(self.groups, epsilons, strict=True)
        ]

    def _paper(self, group: AgentGroup) -> float | None:
        """The paper's bound ε̄ at the study's δ; None for noise that is not the same in all releases."""
        rounds = sum(each.charged for each in group.releases)
        noise = {each.noise_multiplier for each in group.releases}
        if rounds == 0:
            return 0.0
        return paper_epsilon(noise.pop(), rounds, self.delta) if len(noise) == 1 else None


def canonical(document: Any) -> bytes:
    """Sorted keys, two spaces, UTF-8, a line break at the end, no NaN."""
    try:
        text = json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except UnicodeEncodeError:
        raise StudyError("a name in the statement has characters that no text file can hold") from None


def stated_releases(charged: Tally, released: Tally) -> tuple[StatedRelease, ...]:
    """Releases as a statement lists them: those that are charged, and how many of them are known of."""
    known, stated = dict(released), []
    for release, n in charged:
        if not isinstance(release, Release) or release.noise_multiplier == 0.0:
            kind = (
                "without noise" if isinstance(release, Release) else f"of the kind {type(release).__name__}"
            )
            raise StudyError(f"releases {kind}; only Gaussian noise can be stated")
        z, each = float(release.noise_multiplier), int(release.count)
        stated.append(StatedRelease(release.statistic, z, each * n, each * known.get(release, 0)))
    return tuple(stated)


def of_report(
    report: PrivacyReport,
    n_rows: Sequence[int],
    *,
    name: str,
    settings_hash: str,
    version: str,
    names: Sequence[str] = (),
) -> Statement:
    """The statement of a run, whose agents are called 1, 2, ... if not named; Gaussian releases only."""
    members: dict[tuple[StatedRelease, ...], dict[str, int]] = {}
    tallies = zip(report.charged, report.released, n_rows, strict=True)
    for agent, (charged, released, rows) in enumerate(tallies, 1):
        try:
            stated = stated_releases(charged, released)
        except StudyError as error:
            raise StudyError(f"agent {agent} has {error}") from None
        members.setdefault(stated, {})[names[agent - 1] if names else str(agent)] = int(rows)
    groups = tuple(AgentGroup(rows, 1, releases) for releases, rows in members.items())
    sampler = EXACT if report.exact_noise else SIMULATED
    return Statement(name, settings_hash, report.method, sampler, float(report.delta), groups, version)


def _worst(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest of every figure."""

    def largest(name: str) -> dict[str, float]:
        return {key: max(row[name][key] for row in figures) for key in figures[0][name]}

    papers = [row["epsilon_paper"] for row in figures]
    persons = [row["epsilon_of_person"] for row in figures]
    single = [row["epsilon_of_rows"]["1"] for row in figures]
    each = [row if person is None else person for row, person in zip(single, persons, strict=True)]
    return {
        "epsilon": largest("epsilon"),
        "epsilon_paper": None if None in papers else max(papers),
        "epsilon_of_rows": largest("epsilon_of_rows"),
        "epsilon_of_person": None if set(persons) == {None} else max(each),
    }


def _text(name: str, value: Any) -> None:
    if type(value) is not str or not 1 <= len(value) <= 200 or not value.isprintable():
        raise StudyError(f"{name} must be 1 to 200 printable characters, not {shortened(value)}")


def _number(name: str, value: Any, kind: type, least: float, most: float) -> None:
    number: Any = value
    if type(value) is not kind or not least <= number <= most:
        what = "a whole number" if kind is int else "a number"
        raise StudyError(f"{name} must be {what} from {least:g} to {most:g}, not {shortened(value)}")


def shortened(value: Any) -> str:
    """A value of a stranger's, fit for a sentence."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'table'}"
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}…"
