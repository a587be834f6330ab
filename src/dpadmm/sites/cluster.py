"""A table on a Dask cluster: a folder of files, each of which a worker reads and holds as one part of the rows.

The cluster is inside the owner's trust boundary. Workers send sums without noise to the site's process, whose guard
adds the noise. Persons are determined here from the ids of all parts, because their rows may be in several files
(docs/decisions/0018-rows-on-a-cluster.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import numpy as np

from dpadmm.data.cluster import Cluster
from dpadmm.data.encoder import Report, Tally
from dpadmm.data.reader import column_names, line_warnings, parts
from dpadmm.data.survey import Survey, merge_issues, survey_table
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

SUM_TIMEOUT = 600.0
"""Seconds for the sums of a round, including the restart of a worker that reads its files again."""

AnyReport = TypeVar("AnyReport", bound=Report)


@dataclass(frozen=True, eq=False)
class HeldPart:
    """A part of the rows at a worker, with its summary for the site's process."""

    rows: CheckedRows
    summary: PartSummary
    report: Report
    n_bytes: int

    def __sizeof__(self) -> int:
        """Report the size to Dask, so that it computes sums where the rows are instead of moving rows."""
        return self.n_bytes


@dataclass(frozen=True)
class ClusterRows(SiteRows):
    """Rows on a cluster. ``table`` is a folder that the workers can read; its files, by name, are the parts."""

    scheduler: str

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self.scheduler)

    @cached_property
    def _files(self) -> list[SiteRows]:
        (paths,) = self._cluster.gather([self._cluster.submit(files_of, self.table.absolute())])
        return [SiteRows(self.path, path, self.label, self.unit) for path in paths]

    def persons(self) -> Persons:
        """Return the persons in the table: for the owner only."""
        tasks = [self._cluster.submit(_ids_in, file) for file in self._files]
        return persons_of(self.unit, self._cluster.gather(tasks))

    def opened(self, study: Study) -> PartitionedRows:
        """Return the encoded rows for a guard. Each file is encoded by a worker, which holds it in memory."""
        submit, gather = self._cluster.submit, self._cluster.gather
        tables = [submit(_encoded, file, study) for file in self._files]
        ids = gather([submit(_ids_of, table) for table in tables])
        persons, ends = persons_of(self.unit, ids), np.cumsum([n for n, _ in ids])
        silent = np.split(persons.silent, ends[:-1])
        parts = [
            submit(hold, table, self.unit, replace(persons, silent=own), digest_of(*part_ids))
            for table, own, part_ids in zip(tables, silent, ids, strict=True)
        ]
        summaries = gather([submit(_summary, part) for part in parts])
        self._reports[study.hash] = merged([report for _, report in summaries]), persons
        log = logging.getLogger(f"dpadmm.site.{self.path.parent}")

        def totals(statistic: Query, parameters: Floats, grid: Lattice) -> Sequence[Integers]:
            query = (statistic, parameters, grid)
            try:
                digests = [summary.digest for summary, _ in summaries]
                tasks = [submit(total, part, digest, *query) for part, digest in zip(parts, digests, strict=True)]
                return gather(tasks, SUM_TIMEOUT)
            except Exception as error:  # the server only learns that there is no answer
                reason = error if isinstance(error, DPADMMError) else type(error).__name__
                log.error("the cluster returned no sum: %s", reason)
                raise

        return PartitionedRows([summary for summary, _ in summaries], self.unit, totals)

    def line_warnings(self, n_rows: int) -> list[str]:
        """Return warnings about lines of the files that contain no row."""
        warnings = self._cluster.gather([self._cluster.submit(_line_warnings, file.table) for file in self._files])
        return [warning for part in warnings for warning in part]

    def survey(self, study: Study) -> Survey | None:
        """Return counts of the cells of all files in a study's encoding, for the owner only."""
        schema, label = self._schema(study)
        files = [file.table for file in self._files]
        surveys: list[Survey] = self._cluster.gather(
            [self._cluster.submit(survey_table, file, schema, label) for file in files]
        )
        return replace(
            merged(surveys),
            problems=[f"{files[i].name}: {text}" for i, survey in enumerate(surveys) for text in survey.problems],
            issues=merge_issues(surveys),
            other_case=sum(survey.other_case for survey in surveys),
            line_warnings=[line for survey in surveys for line in survey.line_warnings],
        )

    def _encode(self, study: Study) -> None:
        self.opened(study)

    @property
    def _has_named_columns(self) -> bool:
        return True


# Tasks of the workers


def files_of(table: Path) -> list[Path]:
    """Return the files of a folder that workers can read."""
    if not table.is_dir():
        raise DataError(f"{table}: with scheduler, table must be a folder that the cluster's workers can read")
    column_names(table)  # checks that types agree: an id parsed as another number would be another person's
    return parts(table)


def _encoded(file: SiteRows, study: Study) -> EncodedTable:
    table = file.encoded_table(study)
    if len(table.labels) < 2:
        raise DataError(f"{file.table} has fewer than two rows; every file of a table on a cluster needs at least two")
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
    """Return the SHA-256 of the person ids in a file."""
    parts = () if ids is None else (np.ascontiguousarray(ids.codes).tobytes(), *map(str, ids.spellings))
    return sha256(repr((n_rows, *parts)).encode()).hexdigest()


def hold(table: EncodedTable, unit: PrivacyUnit, persons: Persons, ids: str) -> HeldPart:
    """Return a part of the rows, with the rows that ``persons`` marks as silent set to zero.

    Raises ``DataError`` if the file's ids changed from the digest ``ids``: a restarted worker reads the file again.
    """
    if digest_of(*_ids_of(table)) != ids:
        raise DataError("a file of the table was changed while it was read")
    weights = table.row_weights
    rows = CheckedRows(silence(table.features, table.labels, unit, persons, owned=False, row_weights=weights))
    n_bytes = sum(array.nbytes for array in layout(table.features)[1])
    return HeldPart(rows, PartSummary(rows.n_rows, rows.n_features, rows.digest()), table.report, n_bytes)


def _summary(part: HeldPart) -> tuple[PartSummary, Report]:
    return part.summary, part.report


def total(part: HeldPart, digest: str, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
    """Return the rounded sum over a part, unless its file changed since the study was enrolled."""
    if part.summary.digest != digest:
        raise DataError("a file of the table is not what it was when the study was enrolled")
    return part.rows.total(statistic, parameters, grid)


# Merging at the site's process


def persons_of(unit: PrivacyUnit, parts: Sequence[tuple[int, Ids | None]]) -> Persons:
    """Return the persons of all parts, in their order. Equal ids are one person, in any part."""
    n_rows, indices = sum(n for n, _ in parts), dict[object, int]()
    codes = [
        np.array([indices.setdefault(spelling, len(indices)) for spelling in ids.spellings])[ids.codes]
        for _, ids in parts
        if ids is not None
    ]
    return unit.persons(Ids(np.concatenate(codes), list(indices)) if codes else None, n_rows)


def merged(reports: Sequence[AnyReport]) -> AnyReport:
    """Return the sums of all counts in these reports."""
    first, *_ = reports
    return type(first)(
        rows=sum(report.rows for report in reports),
        clipped=sum(report.clipped for report in reports),
        columns={
            name: _total(report.columns[name] for report in reports if name in report.columns) for name in first.columns
        },
        label=_total(report.label for report in reports),
    )


def _total(tallies: Iterable[Tally]) -> Tally:
    counts = zip(*(astuple(tally) for tally in tallies), strict=True)
    return Tally(*map(sum, counts))
