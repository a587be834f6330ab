"""Read a privacy report from an untrusted file, and verify every ε in it with two independent methods.

Only releases, rows per person, δ and the aggregation are taken from the file. Every other value must agree with the
recomputed one to a relative error of 1e-9, and the bytes must be the canonical ones.

The two methods are the closed form (``exact_epsilon``) and the privacy loss distributions (PLD) of dp_accounting: the
loss of one release on a grid, convolved with itself once per release of its kind, then across kinds. PLD rounds up on
the grid. Accepted are differences from ``1e-6·(ε + μ) + 1e-8`` below the closed form to ``1e-3·(ε + μ) + 1e-8`` above.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm.accounting.events import Release
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.accounting.report import (
    EXACT,
    FORMAT,
    AgentReleases,
    PrivacyReport,
    ReleaseCounts,
    canonical,
    shortened,
)
from dpadmm.errors import StudyError
from dpadmm.rendering import Column, Paragraph, Renderable, Rendering, Table
from dpadmm.rendering.formats import number_range, plural, rounded_up

MAX_BYTES = 16 * 2**20
MAX_PLD_GROUPS = 5
"""PLD checks the groups of agents with the largest privacy loss; the closed form checks all."""

_GRID = 0.03
"""Step of the PLD grid relative to the standard deviation of one release's loss. The error of ε is 1e-4 of ε."""

_MAX_CONVOLUTIONS = 1000
"""More releases of a kind are combined into fewer with the same μ first, to limit time and rounding."""

_MAX_NOISE_RATIO = 30.0
"""Kinds whose losses differ by a larger factor would need too fine a grid, and are combined into one kind."""


class EpsilonCheck(NamedTuple):
    """An ε of a privacy report, for ``n_rows`` rows at δ: as stated, in closed form and by PLD."""

    n_rows: int
    delta: float
    stated: float
    closed_form: float
    pld: float | None


@dataclass(frozen=True)
class Verification(Renderable):
    """A privacy report whose values are all correct.

    Attributes
    ----------
    path : Path
        The file.
    report : PrivacyReport
        The report.
    document : mapping
        The content of the file.
    checks : mapping
        Position of a group of agents to its checks by PLD, largest privacy loss first.
    """

    path: Path
    report: PrivacyReport
    document: Mapping[str, Any]
    checks: Mapping[int, Sequence[EpsilonCheck]]

    def rendering(self) -> Rendering:
        """Return the stated and recomputed values. JSON has the whole document, with the checks of each group."""
        report, document = self.report, self.document
        study = "no study" if report.study_hash is None else f"study {report.study}, hash {report.study_hash[:12]}"
        warning = [] if report.exact_noise else ["The noise was simulated: an experiment without privacy."]
        groups = zip(report.groups, document["agents"], strict=True)
        agents = [
            {**entry, "mu": group.mu, "checks": [check._asdict() for check in self.checks.get(i, [])]}
            for i, (group, entry) in enumerate(groups)
        ]
        return Rendering(
            f"Privacy report: {self.path}",
            [
                Paragraph(f"{report.method}, {study}"),
                self._agents_table(),
                *self._worst_tables(),
                Paragraph(
                    "All values are correct. They were recomputed from the noise and the number of releases: in closed "
                    "form and, where shown, with privacy loss distributions (PLD), which round up."
                ),
                Paragraph(
                    "Names, numbers of rows, released rounds and the study hash cannot be recomputed and are taken on "
                    "trust from the signer. A data owner can compare them with the site's ledger: --ledger FOLDER."
                ),
                Paragraph(f"Guarantee: {document['guarantee']}"),
                Paragraph(f"Limitations: {document['limitations']}"),
            ],
            warnings=warning,
            data={**document, "agents": agents, "correct": True},
        )

    def _agents_table(self) -> Table:
        report = self.report
        order = sorted(range(len(report.groups)), key=lambda i: (i not in self.checks, -report.groups[i].person_mu))
        rows = []
        for i in order[:MAX_GROUPS_SHOWN]:
            group, n_rows = report.groups[i], report.members(i)
            counts = [each for _, _, each in group.gaussian_counts]
            rows.append(
                (
                    next(iter(n_rows)) if len(n_rows) == 1 else f"{len(n_rows)} agents",
                    number_range(n_rows.values(), "d").replace(" to ", "–"),
                    number_range([z for _, z, _ in group.gaussian_counts], ".4g"),
                    f"{sum(each.released for each in counts)} of {sum(each.charged for each in counts)}",
                    self.document["agents"][i]["epsilon"],
                    exact_epsilon(group.mu, report.delta),
                    self.checks[i][0].pld if i in self.checks else None,
                )
            )
        more = len(order) - MAX_GROUPS_SHOWN
        return Table(
            [Column(title=title, align="right") for title in ("agents", "rows", "z", "rounds")] + _EPSILON_COLUMNS,
            rows,
            title=f"Privacy loss of one row at δ = {report.delta:g}; all planned rounds are charged",
            caption=f"and {plural(more, 'more group')} of agents with a smaller ε" if more > 0 else "",
        )

    def _worst_tables(self) -> tuple[Table, Table]:
        position, checks = next(iter(self.checks.items()))
        report, group = self.report, self.report.groups[position]
        rows: list[tuple[Any, ...]] = []
        for check in checks:
            unit = plural(check.n_rows, "row")
            unit = f"a person with {unit}" if check.n_rows == group.rows_per_person > 1 else unit
            rows.append((unit, f"{check.delta:g}", check.stated, check.closed_form, check.pld))
        if (paper := self.document["agents"][position]["paper_epsilon"]) is not None:
            rows += [(), ("1 row, the paper's bound ε̄", f"{report.delta:g}", paper)]
        releases = [
            (
                statistic,
                z,
                f"{each.released} of {each.charged}",
                each.charged / (z * (group.mu or 1.0)) ** 2,
            )
            for statistic, z, each in group.gaussian_counts
        ]
        return (
            Table(
                [Column(title="Agent with the largest ε"), Column(title="δ", align="right"), *_EPSILON_COLUMNS], rows
            ),
            Table(
                [
                    Column(title="Its releases (sums over rows)"),
                    Column(title="z", format=".4g"),
                    Column(title="rounds", align="right"),
                    Column(title="share of Σμ²", format=".1%"),
                ],
                releases,
            ),
        )


MAX_GROUPS_SHOWN = 12
_EPSILON_COLUMNS = [
    Column(title=title, format=rounded_up, align="right") for title in ("ε stated", "closed form", "PLD")
]


def read_privacy_report(path: Path) -> PrivacyReport:
    """Return the report in a file, after checking every value in closed form. Raise StudyError for a wrong value."""
    return _read_checked(path)[0]


def verify_report(path: Path) -> Verification:
    """Read a report and verify it with both methods. Raise StudyError for a wrong value."""
    report, document = _read_checked(path)
    return Verification(path, report, document, _pld_checks(report, document))


def _read_checked(path: Path) -> tuple[PrivacyReport, dict[str, Any]]:
    try:
        document = _parse(raw := _read(path))
        report = _report_from(document)
        if problems := list(_differences("", document, report.to_dict())):
            more = f" ({len(problems) - 1} more are wrong)" if len(problems) > 1 else ""
            raise StudyError(f"{problems[0]}{more}")
        if canonical(document) != raw:
            raise StudyError("its bytes are not in the canonical form of privacy reports; get the original file")
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    return report, document


def _pld_checks(report: PrivacyReport, document: Mapping[str, Any]) -> dict[int, list[EpsilonCheck]]:
    """Check the groups with the largest privacy loss by PLD. Groups with equal loss share one check."""
    groups = report.groups
    order = sorted(range(len(groups)), key=lambda i: -groups[i].person_mu)
    by_loss: dict[Any, list[EpsilonCheck]] = {}
    checks = {}
    for i in order:
        loss = groups[i].charged, groups[i].rows_per_person
        if loss not in by_loss and len(by_loss) < MAX_PLD_GROUPS:
            by_loss[loss] = list(_group_checks(report, groups[i], document["agents"][i]))
        if loss in by_loss:
            checks[i] = by_loss[loss]
    return checks


def _group_checks(report: PrivacyReport, group: AgentReleases, stated: Mapping[str, Any]) -> Iterator[EpsilonCheck]:
    values = {(1, report.delta): stated["epsilon"]}
    by_delta = sorted(((float(delta), epsilon) for delta, epsilon in stated["epsilon_by_delta"].items()), reverse=True)
    values |= {(1, delta): epsilon for delta, epsilon in by_delta}
    values |= {(int(rows), report.delta): epsilon for rows, epsilon in stated["epsilon_by_rows"].items()}
    if group.rows_per_person > 1:
        values[group.rows_per_person, report.delta] = stated["epsilon_of_person"]
    kinds = _kinds(group)
    for n_rows in dict.fromkeys(rows for rows, _ in values):
        deltas, mu = [delta for rows, delta in values if rows == n_rows], n_rows * group.mu
        for delta, pld in zip(deltas, pld_epsilons(mu, kinds, deltas), strict=True):
            closed = exact_epsilon(mu, delta)
            if pld is not None and not agree(closed, pld, mu):
                raise StudyError(
                    f"the closed form gives ε = {closed!r} at δ = {delta!r} for {n_rows} rows, and PLD {pld!r}: one of "
                    "the two is wrong, so nothing is confirmed; please report this"
                )
            yield EpsilonCheck(n_rows, delta, values[n_rows, delta], closed, pld)


def _kinds(group: AgentReleases) -> list[tuple[float, int]]:
    """Return the share of μ² and the number of charged releases of each kind."""
    counts = [(each.charged, each.charged / z**2) for _, z, each in group.gaussian_counts if each.charged]
    return [(part / group.mu**2, n) for n, part in counts]


def agree(closed: float, pld: float, mu: float) -> bool:
    """Return whether PLD confirms the closed form."""
    size = closed + mu
    return closed - 1e-6 * size - 1e-8 <= pld <= closed + 1e-3 * size + 1e-8


def pld_epsilons(mu: float, kinds: int | Sequence[tuple[float, int]], deltas: Sequence[float]) -> list[float | None]:
    """Return the total ε by PLD at every δ; None beyond dp_accounting's range (μ above 25 or δ below 1e-12).

    Parameters
    ----------
    mu : float
        μ of all releases together.
    kinds : int or sequence of (float, int)
        Number of equal releases, or the share of μ² and the number of each kind.
    deltas : sequence of float
        Values of δ.

    Examples
    --------
    >>> [round(epsilon, 3) for epsilon in pld_epsilons(10 / 75.53, 100, [1e-3, 1e-5])]
    [0.277, 0.463]
    >>> [round(epsilon, 3) for epsilon in pld_epsilons(10 / 75.53, [(0.15, 1), (0.85, 99)], [1e-3, 1e-5])]
    [0.277, 0.463]
    """
    kinds = [(1.0, kinds)] if isinstance(kinds, int) else kinds
    epsilons: dict[float, float | None] = dict.fromkeys(deltas, 0.0 if mu == 0.0 else None)
    # Below 1e-9, rounding in the convolutions exceeds δ
    for max_count, low, high in ((_MAX_CONVOLUTIONS, 1e-9, 1.0), (1, 1e-12, 1e-9)):
        chosen = [delta for delta in deltas if low <= delta < high]
        if chosen and 0.0 < mu <= 25.0:
            epsilons.update(zip(chosen, _pld(mu, _combine(kinds, max_count), chosen), strict=True))
    return [epsilons[delta] for delta in deltas]


def _combine(kinds: Sequence[tuple[float, int]], max_count: int) -> list[tuple[float, int]]:
    """Return the same releases in kinds of at most ``max_count``, or as one kind."""
    counts = [(share, min(n, max_count)) for share, n in kinds]
    losses = [math.sqrt(share / n) for share, n in counts]
    if max_count == 1 or max(losses) > _MAX_NOISE_RATIO * min(losses):
        return [(1.0, min(sum(n for _, n in kinds), max_count))]
    return counts


def _pld(mu: float, kinds: Sequence[tuple[float, int]], deltas: Sequence[float]) -> list[float]:
    from dp_accounting.pld import privacy_loss_distribution as losses  # 1.3 s to import

    noise = [math.sqrt(n / share) / mu for share, n in kinds]
    with np.errstate(all="ignore"):
        # The default neighbouring relation: the factor 2 of replace-one is already in the sensitivity
        distributions = [
            losses.from_gaussian_mechanism(z, value_discretization_interval=_GRID / max(noise)).self_compose(n)
            for z, (_, n) in zip(noise, kinds, strict=True)
        ]
        composed = reduce(lambda one, other: one.compose(other), distributions)
        return [float(composed.get_epsilon_for_delta(delta)) for delta in deltas]


# --- the file


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise StudyError("there is no such file") from None
    except OSError as error:
        raise StudyError(f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise StudyError(f"larger than {MAX_BYTES // 2**20} MB, the limit of a privacy report")
    return raw


_NO_REPORT = "not a privacy report"


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
    except StudyError:
        raise
    except UnicodeDecodeError:
        hint = "the report of a model is next to it, as MODEL.privacy.json"
        raise StudyError(f"{_NO_REPORT}: it is not UTF-8 text; {hint}") from None
    except (ValueError, RecursionError):
        raise StudyError(f"{_NO_REPORT}: it is not JSON, or nested too deeply") from None


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise StudyError(f"{_NO_REPORT}: a name occurs twice in the same table")
    return table


def _refuse_constant(name: str) -> None:
    raise StudyError(f"{_NO_REPORT}: {name} is not a number")


def _report_from(document: Any) -> PrivacyReport:
    """Return the report with the inputs of a document, each of the right type and within its range."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = shortened(document.get("format")) if isinstance(document, dict) else "something else"
        raise StudyError(f"{_NO_REPORT} of the format {FORMAT!r} but {found}")
    agents, names, n_rows = list[AgentReleases](), list[str](), list[int]()
    for entry in _get(document, "agents", list):
        rows = _get(entry, "n_rows", dict)
        agents += [_agent_from(entry)] * len(rows)
        names += rows
        n_rows += rows.values()
    study = None if document.get("study") is None else _get(document, "study", dict)
    report = PrivacyReport(
        agents,
        n_rows,
        _get(document, "delta", float),
        _get(document, "method", str),
        exact_noise=document.get("noise") == EXACT,
        names=names,
        study=None if study is None else _get(study, "name", str),
        study_hash=None if study is None else _get(study, "hash", str),
        min_honest_sites=document.get("min_honest_sites"),
        version=_get(document, "dpadmm_version", str),
    )
    report.check_verifiable()
    return report


def _agent_from(entry: Any) -> AgentReleases:
    releases = tuple(
        ReleaseCounts(
            Release(_get(each, "noise_multiplier", float), statistic=_get(each, "statistic", str)),
            *(_get(each, name, int) for name in ("charged", "released", "planned")),
        )
        for each in _get(entry, "releases", list)
    )
    return AgentReleases(releases, _get(entry, "rows_per_person", int))


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
    bool: "true or false",
    int: "a whole number",
    float: "a number with a decimal point",
    type(None): "null",
}


def _differences(where: str, stated: Any, correct: Any) -> Iterator[str]:
    """Describe every difference between a document and the correct one."""
    if type(stated) is not type(correct):
        yield f"{where} must be {_KINDS[type(correct)]}, not {shortened(stated)}"
    elif isinstance(correct, Mapping):
        for name in sorted(correct.keys() - stated.keys()):
            yield f"{_at(where, name)} is missing"
        for name in sorted(stated.keys() - correct.keys()):
            yield f"{_at(where, shortened(name))} is not a field of a privacy report"
        for name in sorted(correct.keys() & stated.keys()):
            yield from _differences(_at(where, name), stated[name], correct[name])
    elif isinstance(correct, list) and len(stated) != len(correct):
        yield f"{where} must have {len(correct)} entries, not {len(stated)}"
    elif isinstance(correct, list):
        for i, pair in enumerate(zip(stated, correct, strict=True)):
            yield from _differences(f"{where}[{i}]", *pair)
    elif isinstance(correct, float) and not math.isclose(stated, correct, rel_tol=1e-9, abs_tol=1e-12):
        verdict = "less than" if stated < correct else "not"
        yield f"{where} is {stated!r}, which is {verdict} the correct {correct!r}"
    elif not isinstance(correct, float) and stated != correct:
        yield f"{where} must be {shortened(correct)}, not {shortened(stated)}"


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
