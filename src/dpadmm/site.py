"""A site: an owner's table, limits and ledger, as its ``site.toml`` says.

Nothing here is taken from a study but which columns it wants and what its labels are called: limits, the cap
on rows of one person and the ledger are the owner's alone.
"""

from __future__ import annotations

import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dpadmm.arrays import Features, Floats, Integers
from dpadmm.data.dataset import encode_labels
from dpadmm.data.encoded import EncodedTable, encode_table
from dpadmm.data.raw_table import RawTable
from dpadmm.data.schema import Label, Plain, Schema
from dpadmm.data.survey import Survey, survey_table
from dpadmm.data.tables import read_columns
from dpadmm.errors import DataError, Refusal, StudyError
from dpadmm.features import clip_rows, with_intercept
from dpadmm.losses import LOSSES
from dpadmm.metrics import error
from dpadmm.own_rows import OwnRows
from dpadmm.privacy.book import Book, Record
from dpadmm.privacy.guard import Enrolled, Guard
from dpadmm.privacy.ledger import MARK, Ledger
from dpadmm.privacy.policy import Policy
from dpadmm.settings import check_names, nearest
from dpadmm.study import METHODS, Study
from dpadmm.toml_file import read_toml

FORMAT = "dpadmm-site/1"
SECTIONS = {
    "data": ("table", "label"),
    "person": ("column", "rows"),
    "limits": ("epsilon", "delta", "methods", "losses", "max_rounds", "min_rows"),
}
REMARKABLE = 0.05
"""The share of a column's cells from which an owner is told that they were clamped, unknown or missing."""

_NUMBER = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")


class Persons(NamedTuple):
    """Rows in the table, persons they belong to (None: not said), and which rows are used, in file order."""

    n_rows: int
    n_persons: int | None
    n_above: int
    used: Integers


@dataclass(frozen=True, kw_only=True)
class Site:
    """An owner's table and limits; read it with :func:`read_site`.

    Attributes
    ----------
    path : Path
        The ``site.toml``.
    table, ledger : Path
        The file with the rows, and the folder of the ledger.
    label, person : str or None
        Columns that say the outcome, and whose row it is.
    policy : Policy
        The limits. At most ``policy.rows_per_person`` rows of one person are used, the first in the file;
        without a person column the owner vouches that nobody has more.
    """

    path: Path
    table: Path
    ledger: Path
    label: str | None
    person: str | None
    policy: Policy

    def persons(self) -> Persons:
        """Whose rows there are: for the owner only."""
        raw = self._read(())
        return self._used(len(raw.labels), raw.groups)

    def open_rows(self, study: Study) -> OwnRows:
        """The rows in the encoding of a study; what is wrong with them is for the owner's eyes only."""
        features, labels = self._encoded(study)
        return OwnRows(features, labels, study.problem.loss)

    @contextmanager
    def guard(self, *, create: bool = False) -> Iterator[Guard]:
        """Hold the ledger, and guard the rows with it; ``create`` begins a ledger where there is none."""
        with Ledger.open(self.ledger, cap=self.policy.cap, create=create) as ledger:
            yield Guard(self.policy, ledger, self.open_rows)

    def begin(self) -> None:
        """Begin the ledger: refused where there is one, since a new one would forget what was spent."""
        if (self.ledger / MARK).exists() and (self.ledger / MARK).stat().st_size:
            text = (
                f"there is a ledger in {self.ledger}; it is kept, since a new one would forget what was spent"
            )
            raise Refusal("ledger-exists", text)
        with self.guard(create=True):
            pass

    def rehearse(self, study: Study, book: Book) -> Enrolled:
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
        features, labels = self._encoded(study)
        scores = np.asarray(features @ weights)
        loss = study.problem.loss
        return {"loss": float(loss.value(labels, scores).mean()), "error": error(loss, labels, scores)}

    def remarks(self, study: Study) -> list[str]:
        """What of the table a study cannot use: for the owner only, since it depends on the rows."""
        encoded = self._encoded_table(study)
        if encoded is None:
            return []
        report, told = encoded.report, []
        if report.label.unknown:
            rows = f"{report.label.unknown:,} of {report.rows:,} rows"
            told.append(f"{rows} have no label that the study knows; they count as rows of zeros.")
        for kind, doubt in (
            ("clamped", "; the same units?"),
            ("unknown", "; the same spelling?"),
            ("missing", ""),
        ):
            counts = {name: getattr(tally, kind) for name, tally in report.columns.items()}
            many = [f"{name!r} {n:,}" for name, n in counts.items() if n > REMARKABLE * report.rows]
            if many:
                told.append(f"of {report.rows:,} cells {kind} in columns {', '.join(many)}{doubt}")
        return told

    def survey(self, study: Study) -> Survey | None:
        """What a study makes of the table's cells, for the owner only; None for files without columns."""
        named = self._schema(study)
        return None if named is None else survey_table(self.table, *named)

    def worries(self) -> list[str]:
        """Where others could undo the owner's limits."""
        return [
            f"everyone on this machine may write to {path}, and so undo your limits: chmod o-w {path}"
            for path in (self.path, self.ledger)
            if path.exists() and path.stat().st_mode & stat.S_IWOTH
        ] + [
            f"others may read {path}, which can tell about rows as the table can: chmod -R go-rwx {path}"
            for path in (self.ledger,)
            if path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        ]

    def _read(self, columns: Sequence[str]) -> RawTable:
        try:
            return read_columns(self.table, columns, label=self.label, by=self.person)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _used(self, n: int, persons: NDArray[Any] | None) -> Persons:
        if self.person is None or persons is None:
            return Persons(n, None, 0, np.arange(n))
        counts: dict[str, int] = {}
        used = []
        for row, value in enumerate(persons.tolist()):
            name = _person(value)  # rows of nobody are taken to be one person's
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= self.policy.rows_per_person:
                used.append(row)
        above = sum(count > self.policy.rows_per_person for count in counts.values())
        return Persons(n, len(counts), above, np.array(used, dtype=np.int64))

    def _encoded(self, study: Study) -> tuple[Features, Floats]:
        """Features with the constant column if there is one, and labels, of the rows that are used."""
        for role, column in (("label", self.label), ("person", self.person)):
            if column is not None and column in study.features:
                raise DataError(
                    f"{self.path}: {column!r} is the {role} column, and the study wants it as a feature"
                )
        if (encoded := self._encoded_table(study)) is not None:
            groups = None if encoded.groups is None else np.array(encoded.owners)[encoded.groups]
            used = self._used(len(encoded.labels), groups).used
            if len(used) == len(encoded.labels):  # as they are: they may be in a file
                return encoded.features, encoded.labels
            return encoded.features[used], encoded.labels[used]
        raw = self._read(study.features)
        used = self._used(len(raw.labels), raw.groups).used
        try:
            labels = encode_labels(raw.labels, task=study.problem.loss.task, classes=study.classes)
        except DataError as problem:
            what = str(problem).partition(": declare")[0]
            column = f", column {self.label!r}" if self.label else ""
            raise DataError(f"{self.table}{column}, {what}; correct the row or leave it out") from None
        features = clip_rows(raw.features[used].astype(np.float32))
        return with_intercept(features) if study.settings.intercept else features, labels[used]

    def _encoded_table(self, study: Study) -> EncodedTable | None:
        if (named := self._schema(study)) is None:
            return None
        schema, label = named
        if label.column == self.person:
            raise DataError(
                f"{self.path}: {self.person!r} is the person column, and the study wants it as the label"
            )
        intercept = study.settings.intercept
        try:
            return encode_table(self.table, schema, label, by=self.person, intercept=intercept, total=True)
        except StudyError as problem:
            raise DataError(str(problem)) from None

    def _schema(self, study: Study) -> tuple[Schema, Label] | None:
        """The columns and the label to read from a table of named columns; None for other files."""
        if study.schema is not None and study.label is not None:
            return study.schema, replace(study.label, column=self.label or study.label.column)
        if self.table.suffix.lower() not in (".csv", ".parquet"):
            return None  # without names, or by numbers: such files are read as they are
        if self.label is None:
            raise DataError(f"{self.path}: data.label is missing: the column of {self.table} to predict")
        task = study.problem.loss.task
        if task == "multiclass" and len(study.classes or ()) == 2:
            raise DataError("for two classes take the loss logistic; softmax is for three or more")
        classes = study.classes or ((-1, 1) if task == "binary" else None)
        label = Label(self.label, classes=classes, plain=classes is None)
        return Schema(tuple(Plain(name) for name in study.features)), label


class _Rehearsal(Ledger):
    """The rules of a ledger without its files: what would be recorded is checked, and no more."""

    def __init__(self, book: Book, cap: float) -> None:
        super().__init__(Path(), -1, cast(Any, None), book)
        book.cap = cap

    def _append(self, record: Record, payload: bytes = b"") -> None:
        self.status().check(record)


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
        table=here / Path(entries.text("data.table", data.get("table"))).expanduser(),
        ledger=here / Path(entries.text("ledger", table.get("ledger"))).expanduser(),
        label=label,
        person=column,
        policy=Policy(
            epsilon=entries.number("limits.epsilon", limits.get("epsilon"), 1e-6, 100.0),
            delta=entries.number("limits.delta", limits.get("delta"), 1e-100, 0.01),
            methods=entries.names("limits.methods", limits.get("methods"), METHODS),
            losses=entries.names("limits.losses", limits.get("losses"), tuple(LOSSES)),
            max_rounds=entries.whole("limits.max_rounds", limits.get("max_rounds"), 1),
            min_rows=entries.whole("limits.min_rows", limits.get("min_rows"), 2),
            rows_per_person=entries.whole("person.rows", person.get("rows"), 1),
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

    def number(self, name: str, value: object, least: float, most: float) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= cast(float, value) <= most:  # NaN is not between anything
            raise self._wrong(name, f"one number between {least:g} and {most:g}", value)
        return float(cast(float, value))

    def whole(self, name: str, value: object, least: int, most: int = 10**9) -> int:
        if type(value) is not int or not least <= value <= most:
            far = f" and at most {most:,}" if type(value) is int and value > most else ""
            raise self._wrong(name, f"a whole number of at least {least}{far}", value)
        return value

    def names(self, name: str, value: object, known: Sequence[str]) -> frozenset[str]:
        if not isinstance(value, list) or not value:
            raise self._wrong(name, f"a list with some of {', '.join(known)}", value)
        for each in value:
            if each not in known:
                raise StudyError(
                    f"{self._path}: {name} has {each!r}, which agents do not know; {nearest(each, known)}"
                )
        return frozenset(value)

    def _wrong(self, name: str, wanted: str, value: object) -> StudyError:
        if value is None:
            return StudyError(f"{self._path}: {name} is missing; give {wanted}{_WHY.get(name, '')}")
        return StudyError(f"{self._path}: {name} must be {wanted}, not {_shown(value)}")


_WHY = {"person.rows": ": the most rows that are used of any one person, all of which are charged for"}


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _person(value: object) -> str:
    """A name for a person: 7, 7.0, "7", " 7" and "007" are one, since the other mistake would undercharge."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = (
        ""
        if value is None or value != value
        else unicodedata.normalize("NFKC", str(value)).casefold().strip()
    )
    found = _NUMBER.fullmatch(text)
    return found[1] * (found[2] != "0") + found[2] if found else text
