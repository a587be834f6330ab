"""A table in a folder of files that the workers of a Dask cluster read and hold: a part of the rows for each file.

All of it is inside the owner's trust boundary: sums leave the workers without noise, for the owner's agent, whose
guard adds it. Persons are found here, from the ids of all parts, since their rows may be in several
(docs/decisions/0018-rows-on-a-cluster.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np

from dpadmm.data.cluster import Cluster
from dpadmm.data.encoder import Report, Tally
from dpadmm.data.reader import column_names, line_warnings, parts
from dpadmm.data.survey import Survey, survey_table
from dpadmm.data.table import EncodedTable, read_owners
from dpadmm.errors import DataError, DPADMMError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.features import layout
from dpadmm.queries import Query
from dpadmm.sites.table import SiteRows
from dpadmm.studies.study import Study
from dpadmm.trusted.discrete_gaussian import Lattice
from dpadmm.trusted.private_rows import CheckedRows, PartitionedRows, PartSummary, silence
from dpadmm.trusted.unit import Ids, Persons, PrivacyUnit

SUM_WITHIN = 600.0
"""Seconds for the sums of a round, a worker's death and reading its files again included."""

AnyReport = TypeVar("AnyReport", bound=Report)


@dataclass(frozen=True, eq=False)
class HeldPart:
    """A part of the rows at a worker, and what the agent is told of it."""

    rows: CheckedRows
    about: PartSummary
    report: Report
    n_bytes: int

    def __sizeof__(self) -> int:
        """By this Dask sees that sums should be made where the rows are, and not the rows be moved."""
        return self.n_bytes


@dataclass(frozen=True)
class ClusterRows(SiteRows):
    """``table`` is a folder that the workers see; its files, by name, are the parts."""

    scheduler: str

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self.scheduler)

    @cached_property
    def _files(self) -> list[SiteRows]:
        (found,) = self._cluster.gather([self._cluster.submit(files_of, self.table.absolute())])
        return [SiteRows(self.path, file, self.label, self.unit) for file in found]

    def persons(self) -> Persons:
        """Whose rows there are: for the owner only."""
        tasks = [self._cluster.submit(_ids_in, file) for file in self._files]
        return persons_of(self.unit, self._cluster.gather(tasks))

    def opened(self, study: Study) -> PartitionedRows:
        """The rows as a guard holds them: each file is encoded by a worker, which keeps it in memory."""
        submit, gather = self._cluster.submit, self._cluster.gather
        tables = [submit(_encoded, file, study) for file in self._files]
        ids = gather([submit(_ids_of, table) for table in tables])
        everyone, ends = persons_of(self.unit, ids), np.cumsum([n for n, _ in ids])
        silent = np.split(everyone.silent, ends[:-1])
        parts = [
            submit(hold, table, self.unit, replace(everyone, silent=mine), digest_of(*said))
            for table, mine, said in zip(tables, silent, ids, strict=True)
        ]
        told = gather([submit(_about, part) for part in parts])
        self._reports[study.hash] = merged([report for _, report in told]), everyone
        log = logging.getLogger(f"dpadmm.agent.{self.path.parent}")

        def totals(statistic: Query, parameters: Floats, grid: Lattice) -> Sequence[Integers]:
            asked = (statistic, parameters, grid)
            try:
                tasks = [
                    submit(total, part, about.digest, *asked) for part, (about, _) in zip(parts, told, strict=True)
                ]
                return gather(tasks, SUM_WITHIN)
            except Exception as error:  # whoever asked learns no more than that there is no answer
                log.error(
                    "the cluster gave no sum: %s", error if isinstance(error, DPADMMError) else type(error).__name__
                )
                raise

        return PartitionedRows([about for about, _ in told], self.unit, totals)

    def line_warnings(self, n_rows: int) -> list[str]:
        """Where lines of the files became no rows."""
        found = self._cluster.gather([self._cluster.submit(_line_warnings, file.table) for file in self._files])
        return [each for told in found for each in told]

    def survey(self, study: Study) -> Survey | None:
        """What a study makes of the cells of all files, for the owner only."""
        schema, label = self._schema(study)
        files = [file.table for file in self._files]
        found: list[Survey] = self._cluster.gather(
            [self._cluster.submit(survey_table, file, schema, label) for file in files]
        )
        return replace(
            merged(found),
            problems=[f"{files[i].name}: {told}" for i, each in enumerate(found) for told in each.problems],
            line_warnings=[line for each in found for line in each.line_warnings],
        )

    def _encode(self, study: Study) -> None:
        self.opened(study)

    @property
    def _has_named_columns(self) -> bool:
        return True


# What workers do


def files_of(table: Path) -> list[Path]:
    """The files of a folder that workers see."""
    if not table.is_dir():
        raise DataError(f"{table}: with scheduler, table must be a folder that the cluster's workers see")
    column_names(table)  # of the same types in all files: an id written as another number would be somebody else's
    return parts(table)


def _encoded(file: SiteRows, study: Study) -> EncodedTable:
    table = file.encoded_table(study)
    if len(table.labels) < 2:
        raise DataError(f"{file.table} has one row; every file of a table on a cluster needs two")
    return table


def _ids_of(table: EncodedTable) -> tuple[int, Ids | None]:
    return len(table.labels), None if table.groups is None else Ids(table.groups, table.owners)


def _ids_in(file: SiteRows) -> tuple[int, Ids | None]:
    label = () if file.label is None else (file.label,)
    n_rows, codes, spellings = read_owners(file.table, file.unit.column, label)
    return n_rows, None if codes is None else Ids(codes, spellings)


def _line_warnings(file: Path) -> list[str]:
    return line_warnings(file, read_owners(file, None)[0])


def digest_of(n_rows: int, ids: Ids | None) -> str:
    """SHA-256 of whose rows a file has."""
    said = () if ids is None else (np.ascontiguousarray(ids.codes).tobytes(), *map(str, ids.spellings))
    return sha256(repr((n_rows, *said)).encode()).hexdigest()


def hold(table: EncodedTable, unit: PrivacyUnit, persons: Persons, ids: str) -> HeldPart:
    """Rows of a file as they are summed; ``persons`` says which of them are silent, if whose they are is still ``ids``.

    After a worker's death the file has perhaps been read again.
    """
    if digest_of(*_ids_of(table)) != ids:
        raise DataError("a file of the table was changed while it was read")
    weights = table.row_weights
    rows = CheckedRows(silence(table.features, table.labels, unit, persons, owned=False, row_weights=weights))
    n_bytes = sum(each.nbytes for each in layout(table.features)[1])
    return HeldPart(rows, PartSummary(rows.n_rows, rows.n_features, rows.digest()), table.report, n_bytes)


def _about(part: HeldPart) -> tuple[PartSummary, Report]:
    return part.about, part.report


def total(part: HeldPart, digest: str, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
    """The rounded sum over a part, which may have been read again since it was enrolled."""
    if part.about.digest != digest:
        raise DataError("a file of the table is not what it was when the study was enrolled")
    return part.rows.total(statistic, parameters, grid)


# What the agent makes of it


def persons_of(unit: PrivacyUnit, parts: Sequence[tuple[int, Ids | None]]) -> Persons:
    """Whose rows all parts have, in their order: ids that are written alike are one, wherever they are."""
    n_rows, places = sum(n for n, _ in parts), dict[object, int]()
    codes = [
        np.array([places.setdefault(spelling, len(places)) for spelling in ids.spellings])[ids.codes]
        for _, ids in parts
        if ids is not None
    ]
    return unit.persons(Ids(np.concatenate(codes), list(places)) if codes else None, n_rows)


def merged(reports: Sequence[AnyReport]) -> AnyReport:
    """The counts of all reports together."""
    first, *_ = reports
    return type(first)(
        rows=sum(each.rows for each in reports),
        clipped=sum(each.clipped for each in reports),
        columns={
            name: _added(each.columns[name] for each in reports if name in each.columns) for name in first.columns
        },
        label=_added(each.label for each in reports),
    )


def _added(tallies: Iterable[Tally]) -> Tally:
    every = list(tallies)
    return Tally(**{kind.name: sum(getattr(each, kind.name) for each in every) for kind in fields(Tally)})
