"""A privacy statement: what a study gave away, in a JSON file that its maker can sign and anyone can check.

The file has inputs (noise multipliers, numbers of releases, rows, δ) and figures that follow from them alone.
The same statement always gives the same bytes.

Charged are all releases that were planned, where the run might have ended because of what it had released:
a run that was cut short for that reason has no smaller valid bill.

Whoever reads a stranger's statement derives every ε in it again, in two ways, from its inputs alone. The
closed form is ``accounting.exact_epsilon``. The other is dp_accounting's privacy loss distributions (PLD):
the loss of one release on a grid, convolved with itself as often as there are releases of its kind, and then the
kinds with each other. Rounded up on the
grid, PLD is a little above the closed form: tolerated is from ``1e-6·(ε + μ) + 1e-8`` below it to
``1e-3·(ε + μ) + 1e-8`` above. The file's own figures have to be those of the closed form, to the last digits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.accounting.gaussian import exact_epsilon, group_mu, paper_epsilon
from dpadmm.accounting.release_plan import MAX_RELEASES, Tally
from dpadmm.accounting.report import PrivacyReport
from dpadmm.errors import StudyError

FORMAT = "dpadmm-statement/1"
DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
ROW_GROUPS = (1, 2, 3, 4)
MAX_AGENTS, MAX_GROUPS = 100_000, 5_000
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
LOCAL, MASKED = "plain", "secure-aggregation"
TRUST = {
    LOCAL: "Every agent adds all the noise that protects its rows, and relies on nobody.",
    MASKED: "Every agent adds a share of the noise, and nobody sees more than the sum of all agents of a round. Every "
    "epsilon but epsilon_if_others_collude holds where at least {min_honest_sites} agents of every round keep their "
    "shares and their keys to "
    "themselves, against everyone who cannot break the masks (X25519, AES-256). epsilon_if_others_collude is that of "
    "a person if "
    "all other agents work together.",
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
            raise StudyError(f"μ of four rows, or of a person, is above {MAX_MU:g}: that is no protection to state")

    @property
    def mu(self) -> float:
        """``√(Σ charged/z²)`` of one row."""
        return math.hypot(*(math.sqrt(each.charged) / each.noise_multiplier for each in self.releases))

    @property
    def n_charged(self) -> int:
        """Releases that are charged, of all kinds."""
        return sum(each.charged for each in self.releases)

    @property
    def kinds(self) -> tuple[tuple[float, int], ...]:
        """Share of μ² and number of the releases of each kind that are charged."""
        counts = [(each.charged, each.charged / each.noise_multiplier**2) for each in self.releases if each.charged]
        return tuple((part / self.mu**2, n) for n, part in counts)

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
    min_honest_sites: int | None = None
    """With secure aggregation: how many of the agents of every round are relied on."""

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
        if self.min_honest_sites is not None:
            _number("min_honest_sites", self.min_honest_sites, int, 2, 10**6)
            if max(map(self._mu_if_others_collude, self.groups)) > MAX_MU:
                raise StudyError(f"μ of one share of the noise is above {MAX_MU:g}: that is no protection to state")
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
            "aggregation": self._aggregation(),
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

    def _aggregation(self) -> dict[str, Any]:
        code = LOCAL if self.min_honest_sites is None else MASKED
        return {
            "code": code,
            "min_honest_sites": self.min_honest_sites,
            "words": TRUST[code].format(min_honest_sites=self.min_honest_sites),
        }

    def as_bytes(self) -> bytes:
        """The file: always the same bytes for the same statement, so that they can be signed."""
        return canonical(self.as_json())

    def _figures(self) -> list[dict[str, Any]]:
        """All figures of every group, in one search for all ε."""
        at = [*((1, delta) for delta in self.deltas), *((rows, self.delta) for rows in ROW_GROUPS)]
        mu = [
            [*(group_mu(group.mu, rows) for rows, _ in at), group.person_mu, self._mu_if_others_collude(group)]
            for group in self.groups
        ]
        deltas = [*(delta for _, delta in at), self.delta, self.delta]
        epsilons = exact_epsilon(np.array(mu), np.array(deltas)).tolist()
        split = len(self.deltas)
        return [
            {
                "epsilon": dict(zip(map(repr, self.deltas), row[:split], strict=True)),
                "epsilon_paper": self._paper(group),
                "epsilon_of_rows": dict(zip(map(str, ROW_GROUPS), row[split:-2], strict=True)),
                "epsilon_of_person": row[-2] if group.rows_per_person > 1 else None,
                "epsilon_if_others_collude": None if self.min_honest_sites is None else row[-1],
            }
            for group, row in zip(self.groups, epsilons, strict=True)
        ]

    def _mu_if_others_collude(self, group: AgentGroup) -> float:
        """μ of a person where all other agents work together: one share of the noise is left."""
        return group.person_mu * math.sqrt(self.min_honest_sites or 1)

    def _paper(self, group: AgentGroup) -> float | None:
        """The paper's bound ε̄ at the study's δ; None for noise that is not the same in all releases."""
        noise = {each.noise_multiplier for each in group.releases}
        if group.n_charged == 0:
            return 0.0
        return paper_epsilon(noise.pop(), group.n_charged, self.delta) if len(noise) == 1 else None


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
        if not isinstance(release, Release):
            raise StudyError(f"releases of the kind {type(release).__name__}; only Gaussian noise can be stated")
        if release.noise_multiplier == 0.0:
            raise StudyError("releases without noise; only Gaussian noise can be stated")
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
    delta = float(report.delta)
    return Statement(name, settings_hash, report.method, sampler, delta, groups, version, report.min_honest_sites)


def _worst(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The largest of every figure."""

    def largest(name: str) -> dict[str, float]:
        return {key: max(row[name][key] for row in figures) for key in figures[0][name]}

    papers = [row["epsilon_paper"] for row in figures]
    persons = [row["epsilon_of_person"] for row in figures]
    single = [row["epsilon_of_rows"]["1"] for row in figures]
    alone = [row["epsilon_if_others_collude"] for row in figures]
    each = [row if person is None else person for row, person in zip(single, persons, strict=True)]
    return {
        "epsilon": largest("epsilon"),
        "epsilon_paper": None if None in papers else max(papers),
        "epsilon_of_rows": largest("epsilon_of_rows"),
        "epsilon_of_person": None if set(persons) == {None} else max(each),
        "epsilon_if_others_collude": None if None in alone else max(alone),
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


# --- reading a stranger's statement -----------------------------------------------------------------------

MAX_BYTES = 16 * 2**20
MAX_BILLS = 5
"""PLD is for so many different bills, the largest ones; the closed form is for all."""

_GRID = 0.03
"""Step of the grid, over the standard deviation of one release's loss: ε then errs by 1e-4 of itself."""

_CONVOLUTIONS = 1000
"""More releases of a kind than that are added up first: a bound of time and rounding."""

_CONTRAST = 30.0
"""Kinds whose noise differs by a larger factor would need too fine a grid for one of them, and are added up too."""


class Verified(NamedTuple):
    """A statement whose figures are those of the closed form, and the document it was read from."""

    statement: Statement
    document: Mapping[str, Any]


class StatementCheck(NamedTuple):
    """One ε of one agent: of so many of its rows, at a δ, as stated and in two ways."""

    n_rows: int
    delta: float
    stated: float
    closed_form: float
    pld: float | None


def read_statement(path: Path) -> Verified:
    """What a file states, after every figure in it was found to be right; else a sentence what is wrong."""
    try:
        document = _parsed(raw := _read(path))
        statement = _inputs(document)
        if problems := list(_differences("", document, statement.as_json())):
            more = f" ({len(problems) - 1} more are wrong)" if len(problems) > 1 else ""
            raise StudyError(f"{problems[0]}{more}")
        if canonical(document) != raw:
            raise StudyError("its bytes are not in the one form that statements have; get the original file")
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    return Verified(statement, document)


def cross_checks(verified: Verified) -> dict[int, list[StatementCheck]]:
    """Every ε of the MAX_BILLS largest bills by PLD too, worst first: position of a group -> its checks."""
    statement, document = verified
    order = sorted(range(len(statement.groups)), key=lambda i: -statement.groups[i].person_mu)
    bills: dict[tuple[float, tuple[tuple[float, int], ...], int], list[StatementCheck]] = {}
    out = {}
    for i in order:
        group = statement.groups[i]
        bill = (group.mu, group.kinds, group.rows_per_person)
        if bill not in bills and len(bills) < MAX_BILLS:
            bills[bill] = list(_checks(statement, group, document["agents"][i]))
        if bill in bills:
            out[i] = bills[bill]
    return out


def _checks(statement: Statement, group: AgentGroup, figures: Mapping[str, Any]) -> Iterator[StatementCheck]:
    sizes = dict.fromkeys(map(int, figures["epsilon_of_rows"]), (statement.delta,))
    sizes |= {group.rows_per_person: (statement.delta,)}
    for n_rows, deltas in (sizes | {1: statement.deltas}).items():
        mu = group_mu(group.mu, n_rows)
        for delta, pld in zip(deltas, pld_epsilons(mu, group.kinds, deltas), strict=True):
            closed = exact_epsilon(mu, delta)
            if pld is not None and not agree(closed, pld, mu):
                raise StudyError(
                    f"the closed form gives ε = {closed!r} at δ = {delta!r} for {n_rows} rows, "
                    f"and PLD {pld!r}: one of the two is wrong, so nothing is confirmed; please report this"
                )
            stated = figures["epsilon_of_rows"].get(str(n_rows), figures["epsilon_of_person"])
            stated = figures["epsilon"][repr(delta)] if n_rows == 1 else stated
            yield StatementCheck(n_rows, delta, stated, closed, pld)


def agree(closed: float, pld: float, mu: float) -> bool:
    """Whether PLD confirms the closed form."""
    size = closed + mu
    return closed - 1e-6 * size - 1e-8 <= pld <= closed + 1e-3 * size + 1e-8


def pld_epsilons(mu: float, kinds: int | Sequence[tuple[float, int]], deltas: Sequence[float]) -> list[float | None]:
    """Total ε by PLD at every δ; None where dp_accounting cannot say: μ above 25, δ below 1e-12.

    ``kinds`` is the number of equal releases, or the share of μ² and the number of each kind.

    Examples
    --------
    >>> [round(epsilon, 3) for epsilon in pld_epsilons(10 / 75.53, 100, [1e-3, 1e-5])]
    [0.277, 0.463]
    >>> [round(epsilon, 3) for epsilon in pld_epsilons(10 / 75.53, [(0.15, 1), (0.85, 99)], [1e-3, 1e-5])]
    [0.277, 0.463]
    """
    kinds = [(1.0, kinds)] if isinstance(kinds, int) else kinds
    found: dict[float, float | None] = dict.fromkeys(deltas, 0.0 if mu == 0.0 else None)
    # Below 1e-9 δ drowns in the rounding of convolutions
    for most, low, high in ((_CONVOLUTIONS, 1e-9, 1.0), (1, 1e-12, 1e-9)):
        chosen = [delta for delta in deltas if low <= delta < high]
        if chosen and 0.0 < mu <= 25.0:
            found.update(zip(chosen, _pld(mu, _added_up(kinds, most), chosen), strict=True))
    return [found[delta] for delta in deltas]


def _added_up(kinds: Sequence[tuple[float, int]], most: int) -> list[tuple[float, int]]:
    """The same releases in kinds of at most so many, or as one kind."""
    counts = [(share, min(n, most)) for share, n in kinds]
    losses = [math.sqrt(share / n) for share, n in counts]
    if most == 1 or max(losses) > _CONTRAST * min(losses):
        return [(1.0, min(sum(n for _, n in kinds), most))]
    return counts


def _pld(mu: float, kinds: Sequence[tuple[float, int]], deltas: Sequence[float]) -> list[float]:
    from dp_accounting.pld import privacy_loss_distribution as losses  # 1.3 s to import

    noise = [math.sqrt(n / share) / mu for share, n in kinds]
    with np.errstate(all="ignore"):
        # The default neighbouring relation: the factor 2 of replace-one is already in the sensitivity
        each = [
            losses.from_gaussian_mechanism(z, value_discretization_interval=_GRID / max(noise)).self_compose(n)
            for z, (_, n) in zip(noise, kinds, strict=True)
        ]
        together = reduce(lambda one, other: one.compose(other), each)
        return [float(together.get_epsilon_for_delta(delta)) for delta in deltas]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise StudyError("there is no such file") from None
    except OSError as error:
        raise StudyError(f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise StudyError(f"no statement is larger than {MAX_BYTES // 2**20} MB")
    return raw


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode(), object_pairs_hook=_table, parse_constant=_constant)
    except StudyError:
        raise
    except UnicodeDecodeError:
        raise StudyError(
            "not a statement: it is not UTF-8 text; beside a model there is one, MODEL.statement.json"
        ) from None
    except (ValueError, RecursionError):
        raise StudyError("not a statement: it is not JSON, or nested too deeply") from None


def _table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise StudyError("not a statement: a name occurs twice in the same table")
    return table


def _constant(name: str) -> None:
    raise StudyError(f"not a statement: {name} is not a number")


_RELEASE = {"statistic": str, "noise_multiplier": float, "charged": int, "released": int}


def _inputs(document: Any) -> Statement:
    """The inputs, each of the right type and size; their neighbours are looked at later."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = shortened(document.get("format")) if isinstance(document, dict) else "something else"
        raise StudyError(f"not a statement of the format {FORMAT!r} but {found}")
    study, sampler, aggregation = (_get(document, name, dict) for name in ("study", "sampler", "aggregation"))
    min_honest_sites = (
        None if aggregation.get("min_honest_sites") is None else _get(aggregation, "min_honest_sites", int)
    )
    groups = [
        AgentGroup(
            _get(each, "n_rows", dict),
            _get(each, "rows_per_person", int),
            tuple(
                StatedRelease(*(_get(release, name, kind) for name, kind in _RELEASE.items()))
                for release in _get(each, "releases", list)
            ),
        )
        for each in _get(document, "agents", list)
    ]
    return Statement(
        name=_get(study, "name", str),
        study_hash=_get(study, "hash", str),
        method=_get(document, "method", str),
        sampler=_get(sampler, "code", str),
        delta=_get(document, "delta", float),
        groups=tuple(groups),
        version=_get(document, "dpadmm_version", str),
        min_honest_sites=min_honest_sites,
    )


def _get(table: Any, name: str, kind: type) -> Any:
    if not isinstance(table, dict) or name not in table:
        raise StudyError(f"{name} is missing")
    if type(table[name]) is not kind:
        raise StudyError(f"{name} must be {_KINDS[kind]}, not {shortened(table[name])}")
    return table[name]


_KINDS = {
    dict: "a table",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number with a decimal point",
    type(None): "null",
}


def _differences(where: str, found: Any, true: Any) -> Iterator[str]:
    """What a document says otherwise than it should, field by field."""
    if type(found) is not type(true):
        yield f"{where} must be {_KINDS[type(true)]}, not {shortened(found)}"
    elif isinstance(true, Mapping):
        for name in sorted(true.keys() - found.keys()):
            yield f"{_at(where, name)} is missing"
        for name in sorted(found.keys() - true.keys()):
            yield f"{_at(where, shortened(name))} is not a field of a statement"
        for name in sorted(true.keys() & found.keys()):
            yield from _differences(_at(where, name), found[name], true[name])
    elif isinstance(true, list):  # inputs, of which there are as many as were read
        for i, (entry, right) in enumerate(zip(found, true, strict=True)):
            yield from _differences(f"{where}[{i}]", entry, right)
    elif isinstance(true, float) and not math.isclose(found, true, rel_tol=1e-9, abs_tol=1e-12):
        verdict = "less than" if found < true else "not"
        yield f"{where} states {found!r}, which is {verdict} the true {true!r}"
    elif not isinstance(true, float) and found != true:
        yield f"{where} must be {shortened(true)}, not {shortened(found)}"


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
