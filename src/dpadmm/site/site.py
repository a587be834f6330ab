"""A site: an owner's table, limits and ledger, as its ``site.toml`` says.

Nothing here is taken from a study but which columns it wants and what its labels are called: limits, the cap
on rows of one person and the ledger are the owner's alone.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm._base.errors import Refusal, StudyError
from dpadmm._base.fields import check_names, nearest
from dpadmm._base.files import expanded
from dpadmm._base.toml import read_toml
from dpadmm.optim.losses import LOSSES
from dpadmm.study.study import DEPLOYABLE, Study
from dpadmm.training.metrics import error
from dpadmm.trusted.guard import Enrolled, Guard
from dpadmm.trusted.ledger import MARK, Ledger, LedgerState, Record
from dpadmm.trusted.policy import Policy
from dpadmm.trusted.private_rows import CheckedRows
from dpadmm.trusted.unit import PrivacyUnit

if TYPE_CHECKING:
    from dpadmm.site.table import SiteRows

FORMAT = "dpadmm-site/1"
SECTIONS = {
    "data": ("table", "label"),
    "person": ("column", "rows"),
    "limits": ("epsilon", "delta", "methods", "losses", "max_rounds", "min_rows"),
}
MOST = 10**9
"""Rows or rounds in a limit."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """An owner's table and limits; read it with :func:`read_site`."""

    path: Path
    """The ``site.toml``."""
    table: Path
    ledger: Path
    """The folder of the ledger."""
    label: str | None
    """The column with the outcome."""
    policy: Policy
    """The limits; ``policy.unit`` says whose rows go together, and how many of them are used."""

    @cached_property
    def rows(self) -> SiteRows:
        """The table, and what a study makes of it: for the owner only."""
        from dpadmm.site.table import SiteRows  # loads the readers of tables

        return SiteRows(self.path, self.table, self.label, self.policy.unit)

    def open_rows(self, study: Study) -> CheckedRows:
        """The rows in the encoding of a study; what is wrong with them is for the owner's eyes only."""
        return CheckedRows(self.rows.encoded(study))

    @contextmanager
    def guard(self, *, create: bool = False) -> Iterator[Guard]:
        """Hold the ledger, and guard the rows with it; ``create`` begins a ledger where there is none."""
        with Ledger.open(self.ledger, cap=self.policy.cap, create=create) as ledger:
            yield Guard(self.policy, ledger, self.open_rows)

    def begin(self) -> None:
        """Begin the ledger: refused where there is one, since a new one would forget what was spent."""
        if (self.ledger / MARK).exists() and (self.ledger / MARK).stat().st_size:
            text = "it is kept, since a new one would forget what was spent"
            raise Refusal("ledger-exists", f"there is a ledger in {self.ledger}; {text}")
        with self.guard(create=True):
            pass

    def rehearse(self, study: Study, book: LedgerState) -> Enrolled:
        """What ``enrol`` would say where the ledger holds ``book``: nothing is held or written."""
        return Guard(self.policy, _Rehearsal(book, self.policy.cap), self.open_rows).enrol(study)

    def measure(self, study: Study, weights: Floats) -> dict[str, float]:
        """Mean loss and error of a model on the own rows: for the owner only, since no noise is on them."""
        if not self.policy.local_metrics:
            text = "the owner does not allow to measure models here (local_metrics = false)"
            raise Refusal("policy-metrics", text)
        weights = np.asarray(weights, dtype=np.float64)
        if weights.shape != study.shape or not np.isfinite(weights).all():
            raise StudyError(f"the model must be finite numbers of shape {study.shape}, as the study says")
        rows, loss = self.rows.encoded(study), study.problem.loss
        used = ~rows.persons.silent
        scores, labels = np.asarray(rows.features @ weights)[used], rows.labels[used]
        return {"loss": float(loss.value(labels, scores).mean()), "error": error(loss, labels, scores)}

    def warnings(self) -> list[str]:
        """Where others could undo the owner's limits."""
        return [
            f"everyone on this machine may write to {path}, and so undo your limits: chmod o-w {path}"
            for path in (self.path, self.ledger)
            if path.exists() and path.stat().st_mode & stat.S_IWOTH
        ] + [
            f"others may read {path}, which is as sensitive as the table: chmod -R go-rwx {path}"
            for path in (self.ledger,)
            if path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        ]


class _Rehearsal(Ledger):
    """The rules of a ledger without its files: what would be recorded is checked, and no more."""

    def __init__(self, book: LedgerState, cap: float) -> None:
        super().__init__(Path(), cast(Any, None), cast(Any, None), book)
        book.cap = book.cap_alone = cap

    def _append(self, record: Record, *payload: bytes) -> None:
        self.status().check(record, *payload)


def counted(n: int, one: str, several: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{n:,} {one if n == 1 else several}"


def read_site(path: Path) -> Site:
    """A site from its ``site.toml``; one sentence for whatever is wrong with it."""
    return site_from(read_toml(path), path)


def site_from(table: Mapping[str, Any], path: Path) -> Site:
    """A site from the table that a TOML file at ``path`` holds; its paths are relative to that file."""
    check_names(table, ["format", "ledger", "local_metrics", *SECTIONS], str(path))
    if table.get("format") != FORMAT:
        raise StudyError(f'{path}: format must be "{FORMAT}", not {table.get("format")!r}')
    here = path.parent
    data, person, limits = (_section(table, name, path) for name in SECTIONS)
    metrics = table.get("local_metrics", False)
    if not isinstance(metrics, bool):
        raise StudyError(f"{path}: local_metrics must be true or false, not {metrics!r}")
    entries = _Entries(path)
    label = entries.text("data.label", data["label"]) if "label" in data else None
    column = entries.text("person.column", person["column"]) if "column" in person else None
    if label is not None and label == column:
        raise StudyError(f"{path}: {label!r} cannot be both data.label and person.column")
    return Site(
        path=path,
        table=here / entries.path("data.table", data.get("table")),
        ledger=here / entries.path("ledger", table.get("ledger")),
        label=label,
        policy=Policy(
            epsilon=entries.number("limits.epsilon", limits.get("epsilon"), 1e-6, 100.0),
            delta=entries.number("limits.delta", limits.get("delta"), 1e-100, 0.01),
            methods=entries.names("limits.methods", limits.get("methods"), DEPLOYABLE),
            losses=entries.names("limits.losses", limits.get("losses"), tuple(LOSSES)),
            max_rounds=entries.whole("limits.max_rounds", limits.get("max_rounds"), 1),
            min_rows=entries.whole("limits.min_rows", limits.get("min_rows"), 2),
            unit=PrivacyUnit(entries.whole("person.rows", person.get("rows"), 1), column),
            local_metrics=metrics,
        ),
    )


def _section(table: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    section = table.get(name)
    if not isinstance(section, Mapping):
        said = "is missing" if section is None else f"must be a section, not {section!r}"
        raise StudyError(f"{path}: [{name}] {said}; it has {', '.join(SECTIONS[name])}")
    check_names(section, SECTIONS[name], f"{path}, [{name}]")
    return section


class _Entries:
    """Values of a ``site.toml``, strictly: none has a default, and each mistake is a sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def text(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self._wrong(name, "a text of one line", value)
        return value

    def path(self, name: str, value: object) -> Path:
        return expanded(self.text(name, value), f"{self._path}: {name}")

    def number(self, name: str, value: object, least: float, most: float) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= cast(float, value) <= most:  # NaN is not between anything
            raise self._wrong(name, f"one number between {least:g} and {most:g}", value)
        return float(cast(float, value))

    def whole(self, name: str, value: object, least: int) -> int:
        if type(value) is not int or not least <= value <= MOST:
            raise self._wrong(name, f"a whole number between {least} and {MOST:,}", value)
        return value

    def names(self, name: str, value: object, known: Sequence[str]) -> frozenset[str]:
        if not isinstance(value, list) or not value:
            raise self._wrong(name, f"a list with some of {', '.join(known)}", value)
        for each in value:
            if each not in known:
                text = f"has {each!r}, which agents do not know; {nearest(each, known)}"
                raise StudyError(f"{self._path}: {name} {text}")
        return frozenset(value)

    def _wrong(self, name: str, wanted: str, value: object) -> StudyError:
        if value is None:
            return StudyError(f"{self._path}: {name} is missing; give {wanted}{_WHY.get(name, '')}")
        return StudyError(f"{self._path}: {name} must be {wanted}, not {value!r:.60}")


_WHY = {"person.rows": ": the most rows that are used of any one person, all of which are charged for"}
