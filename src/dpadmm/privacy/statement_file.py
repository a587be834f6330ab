"""Read a stranger's privacy statement and derive every ε in it again, in two ways, from its inputs alone.

The closed form is ``accounting.exact_epsilon``. The other way is dp_accounting's privacy loss distributions
(PLD): the loss of one release on a grid, convolved with itself as often as there are releases. Rounded up on
the grid, PLD is a little above the closed form: tolerated is from ``1e-6·(ε + μ) + 1e-8`` below it to
``1e-3·(ε + μ) + 1e-8`` above. The file's own figures have to be those of the closed form, to the last digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm._base.errors import StudyError
from dpadmm.privacy.accounting import exact_epsilon, group_mu
from dpadmm.privacy.statement import FORMAT, AgentGroup, StatedRelease, Statement, canonical, shortened

MAX_BYTES = 16 * 2**20
MAX_BILLS = 5
"""PLD is for so many different bills, the largest ones; the closed form is for all."""

_GRID = 0.03
"""Step of the grid, over the standard deviation of one release's loss: ε then errs by 1e-4 of itself."""

_CONVOLUTIONS = 1000
"""More releases than that, and those of different noise, are added up first: a bound of time and rounding."""


class Verified(NamedTuple):
    """A statement whose figures are those of the closed form, and the document it was read from."""

    statement: Statement
    document: Mapping[str, Any]


class Check(NamedTuple):
    """One ε of one agent: of so many of its rows, at a δ, as stated and in two ways."""

    n_rows: int
    delta: float
    stated: float
    closed_form: float
    pld: float | None


def read_statement(path: Path) -> Verified:
    """What a file states, after every figure in it was found to be right; else a sentence what is wrong."""
    try:
        raw = _read(path)
        document = _parsed(raw)
        statement = _inputs(document)
        if problems := list(_differences("", document, statement.as_json())):
            more = f" ({len(problems) - 1} more are wrong)" if len(problems) > 1 else ""
            raise StudyError(f"{problems[0]}{more}")
        if canonical(document) != raw:
            raise StudyError("its bytes are not in the one form that statements have; get the original file")
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from None
    return Verified(statement, document)


def cross_checks(verified: Verified) -> dict[int, list[Check]]:
    """Every ε of the MAX_BILLS largest bills by PLD too, worst first: position of a group -> its checks."""
    statement, document = verified
    order = sorted(range(len(statement.groups)), key=lambda i: -statement.groups[i].person_mu)
    bills: dict[tuple[float, int, int], list[Check]] = {}
    out = {}
    for i in order:
        group, figures = statement.groups[i], document["agents"][i]
        count = sum(each.charged for each in group.releases)
        bill = (group.mu, count, group.rows_per_person)
        if bill not in bills and len(bills) < MAX_BILLS:
            bills[bill] = list(_checks(statement, group, count, figures))
        if bill in bills:
            out[i] = bills[bill]
    return out


def _checks(
    statement: Statement, group: AgentGroup, count: int, figures: Mapping[str, Any]
) -> Iterator[Check]:
    sizes = dict.fromkeys(map(int, figures["epsilon_of_rows"]), (statement.delta,))
    sizes |= {group.rows_per_person: (statement.delta,)}
    for n_rows, deltas in (sizes | {1: statement.deltas}).items():
        mu = group_mu(group.mu, n_rows)
        for delta, pld in zip(deltas, pld_epsilons(mu, count, deltas), strict=True):
            closed = exact_epsilon(mu, delta)
            if pld is not None and not agree(closed, pld, mu):
                raise StudyError(
                    f"the closed form gives ε = {closed!r} at δ = {delta!r} for {n_rows} rows, "
                    f"and PLD {pld!r}: one of the two is wrong, so nothing is confirmed; please report this"
                )
            stated = figures["epsilon_of_rows"].get(str(n_rows), figures["epsilon_of_person"])
            yield Check(
                n_rows, delta, figures["epsilon"][repr(delta)] if n_rows == 1 else stated, closed, pld
            )


def agree(closed: float, pld: float, mu: float) -> bool:
    """Whether PLD confirms the closed form."""
    size = closed + mu
    return closed - 1e-6 * size - 1e-8 <= pld <= closed + 1e-3 * size + 1e-8


def pld_epsilons(mu: float, n_releases: int, deltas: Sequence[float]) -> list[float | None]:
    """Total ε by PLD at every δ; None where dp_accounting cannot say: μ above 25, δ below 1e-12.

    Examples
    --------
    >>> [round(epsilon, 3) for epsilon in pld_epsilons(10 / 75.53, 100, [1e-3, 1e-5])]
    [0.277, 0.463]
    """
    found: dict[float, float | None] = dict.fromkeys(deltas, 0.0 if mu == 0.0 else None)
    # Below 1e-9 δ drowns in the rounding of convolutions
    for most, low, high in ((_CONVOLUTIONS, 1e-9, 1.0), (1, 1e-12, 1e-9)):
        chosen = [delta for delta in deltas if low <= delta < high]
        if chosen and 0.0 < mu <= 25.0:
            found.update(zip(chosen, _pld(mu, min(n_releases, most), chosen), strict=True))
    return [found[delta] for delta in deltas]


def _pld(mu: float, n_equal: int, deltas: Sequence[float]) -> list[float]:
    from dp_accounting.pld import privacy_loss_distribution as losses  # 1.3 s to import

    z = math.sqrt(n_equal) / mu
    with np.errstate(all="ignore"):
        # The default neighbouring relation: the factor 2 of replace-one is already in the sensitivity
        one = losses.from_gaussian_mechanism(z, value_discretization_interval=_GRID / z)
        together = one.self_compose(n_equal)
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
        raise StudyError("not a statement: it is not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise StudyError("not a statement: it is not JSON, or nested too deeply") from None


def _table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise StudyError("not a statement: a name occurs twice in the same table")
    return table


def _constant(name: str) -> None:
    raise StudyError(f"not a statement: {name} is not a number")


def _inputs(document: Any) -> Statement:
    """The inputs, each of the right type and size; their neighbours are looked at later."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = shortened(document.get("format")) if isinstance(document, dict) else "something else"
        raise StudyError(f"not a statement of the format {FORMAT!r} but {found}")
    study, sampler = _get(document, "study", dict), _get(document, "sampler", dict)
    groups = [
        AgentGroup(
            _get(each, "n_rows", dict),
            _get(each, "rows_per_person", int),
            tuple(
                StatedRelease(
                    _get(release, "statistic", str),
                    _get(release, "noise_multiplier", float),
                    _get(release, "charged", int),
                    _get(release, "released", int),
                )
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
