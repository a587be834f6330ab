"""Encode a table by its public schema: features, labels, row weights and owners."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from dpadmm.data.archive import ARCHIVE, Archive, read_archive
from dpadmm.data.cells import as_words, with_location
from dpadmm.data.dataset import encode_labels
from dpadmm.data.encoder import Encoder, Report, Tally
from dpadmm.data.labels import LabelColumns, any_issue
from dpadmm.data.reader import Table, TableSource, ahead, column_names, open_batches, open_table, table_format
from dpadmm.data.schema import Label, Number, Plain, Schema
from dpadmm.data.survey import all_problems
from dpadmm.errors import DataError, DPADMMError
from dpadmm.losses.base import Task
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows, with_intercept
from dpadmm.matrices.features import Features
from dpadmm.matrices.memmap import MEMORY_BYTES
from dpadmm.matrices.storage import GrowingArray


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Rows with norms of at most 1, labels in the encoding of the losses, owners, and a report for the owner.

    Row j belongs to ``owners[groups[j]]``; owners are sorted. ``row_weights`` are in [0, 1], if there are any.
    """

    features: Features
    labels: Floats
    groups: Integers | None
    owners: Sequence[str]
    report: Report
    row_weights: Floats | None = None
    unlabelled: NDArray[np.bool_] | None = None
    """Rows of zeros without a label, if the study accepts them (``drop_missing_labels``) and there are any."""

    def labelled(self) -> EncodedTable:
        """Return the rows with a label: for public tables only, because the number of rows reveals the others."""
        if self.unlabelled is None:
            return self
        kept = np.flatnonzero(~self.unlabelled)
        groups = None if self.groups is None else self.groups[kept]
        weights = None if self.row_weights is None else self.row_weights[kept]
        report = replace(self.report, rows=len(kept))
        return EncodedTable(self.features[kept], self.labels[kept], groups, self.owners, report, weights)


class EncodedBatch(NamedTuple):
    """Rows of a batch: the arrays of their features, labels, row weights and numbers of their owners."""

    features: tuple[NDArray[Any], ...]
    labels: Floats | None
    row_weights: Floats | None
    owners: NDArray[np.int32] | None
    unlabelled: NDArray[np.bool_] | None


def encode_table(
    table: Table,
    schema: Schema,
    label: Label | None,
    *,
    by: str | None = None,
    intercept: bool = False,
    invalid_as_missing: bool = False,
    memory_bytes: int = MEMORY_BYTES,
) -> EncodedTable:
    """Read a table once and encode it.

    Parameters
    ----------
    table : path or table
        See :mod:`dpadmm.data.reader`. An NPZ archive is accepted if all columns of the schema are plain; its columns
        are x1, x2, ... in the order of the array ``features``.
    schema : Schema
        Public schema of the feature columns.
    label : Label or None
        Label, exposure and weight columns. Without a label, the labels are 0.
    by : str, optional
        Column with the owner of each row.
    intercept : bool
        Whether to append the constant column.
    invalid_as_missing : bool
        For sites, whose refusal must not depend on a cell. Every table with these columns is encoded: a cell that is
        not a number is missing, and a row with an invalid label, exposure or weight becomes a row of zeros, which has
        no gradient. The report counts these rows. Owners are distinguished exactly as written, including blanks; see
        :class:`dpadmm.trusted.unit.PrivacyUnit` for those that are the same person.
    memory_bytes : int
        Larger arrays are stored in temporary files.

    Raises
    ------
    DataError
        If the table cannot be read, lacks a column, or has invalid cells. The error lists all problems.
    """
    if is_archive(table):
        return _encode_archive(Path(table), schema, label, by, intercept=intercept)
    labels = None if label is None else LabelColumns(label, invalid_as_missing=invalid_as_missing)
    for name in (*(labels.roles if labels else ()), by):
        if name in {column.name for column in schema.sources}:
            raise DataError(
                f"column {name!r} cannot be a feature too: it is the label, its exposure or weight, or the owner of a "
                "row; take it out of the study's columns"
            )
    source = open_table(table)
    encoder = Encoder(schema, intercept=intercept, invalid_as_missing=invalid_as_missing)
    owners = None if by is None else _Owners(by, exact=invalid_as_missing)
    row_bytes, n_rows = [kind.itemsize * width for kind, width in encoder.stored], source.row_count()
    with ExitStack() as stack:

        def growing(kind: DTypeLike, width: int, limit: int) -> GrowingArray:
            return stack.enter_context(closing(GrowingArray(kind, width, memory_bytes=limit, n_rows=n_rows)))

        features = [  # arrays that grow beyond memory at the same row
            growing(kind, width, memory_bytes * share // sum(row_bytes))
            for (kind, width), share in zip(encoder.stored, row_bytes, strict=True)
        ]
        values = growing(np.float64, 1, memory_bytes // 4)
        row_weights = growing(np.float64, 1, memory_bytes // 4)
        groups, unlabelled = growing(np.int32, 1, MEMORY_BYTES), list[NDArray[np.bool_]]()
        try:
            for batch in stack.enter_context(closing(ahead(_encoded_batches(source, encoder, labels, owners)))):
                for array, block in zip(features, batch.features, strict=True):
                    array.append(block)
                for array, column in ((values, batch.labels), (row_weights, batch.row_weights), (groups, batch.owners)):
                    if column is not None:
                        array.append(column)
                if batch.unlabelled is not None:
                    unlabelled.append(batch.unlabelled)
        except DPADMMError as error:
            if invalid_as_missing:
                raise
            raise all_problems(error, source, schema, label, by=by) from None
        if not encoder.report.rows:
            raise DataError(f"{source.location} has no rows")
        ranks, names = owners.sorted() if owners else (None, ())
        pa.default_memory_pool().release_unused()
        return EncodedTable(
            encoder.matrix(tuple(array.finish() for array in features)),
            values.finish().reshape(-1) if label is not None else np.zeros(encoder.report.rows),
            None if ranks is None else _replaced(groups.finish().reshape(-1), ranks),
            names,
            encoder.report,
            row_weights.finish().reshape(-1) if label is not None and label.weighted else None,
            np.concatenate(unlabelled) if any(each.any() for each in unlabelled) else None,
        )


def _encoded_batches(
    source: TableSource, encoder: Encoder, labels: LabelColumns | None, owners: _Owners | None
) -> Generator[EncodedBatch, None, None]:
    """Yield the encoded batches of a table."""
    columns = encoder.schema.sources
    names, roles = [column.name for column in columns], {} if labels is None else labels.roles
    others = [*roles, *([] if owners is None else [owners.by])]
    numbers = frozenset(column.name for column in columns if isinstance(column, Number | Plain))
    tally = Tally()
    if labels is not None:
        numbers |= labels.numeric
        if labels.label.weight is not None:
            tally = encoder.report.columns.setdefault(labels.label.weight, Tally())
    batches = open_batches(
        source, [*names, *others], numbers=numbers, invalid_as_missing=encoder.invalid_as_missing, roles=roles
    )
    with closing(batches):  # the traceback of an error keeps this frame, and a thread would wait in it
        for batch in batches:
            first_row = encoder.report.rows
            try:
                values, row_weights, bad, unlabelled = None, None, None, None
                if labels is not None:
                    values, row_weights, issues = labels.encode(batch, tally)
                    if not encoder.invalid_as_missing:
                        labels.check(issues, batch.column(labels.label.column))
                    bad = any_issue(issues, batch.num_rows)
                    unlabelled = issues["missing"] if labels.label.drop_missing_labels else None
                    encoder.report.label.unknown += int(np.count_nonzero(bad))
                blocks = encoder.encode_blocks(batch)
                if bad is not None:  # zeros in the constant column too, so that the row has no gradient at any point
                    blocks[0][bad] = 0.0
                groups = None if owners is None else owners.numbers_of(batch.column(owners.by))
                yield EncodedBatch(blocks, values, row_weights, groups, unlabelled)
            except DataError as error:
                raise with_location(error, source.location, first_row, batch.num_rows) from None


def is_archive(table: Table) -> bool:
    """Return whether a table is the path of an NPZ archive."""
    return isinstance(table, str | PathLike) and table_format(Path(table)) == ARCHIVE


def _encode_archive(
    path: Path, schema: Schema, label: Label | None, by: str | None, *, intercept: bool
) -> EncodedTable:
    """Encode an NPZ archive. Its features are numbers, so rows are clipped and nothing else is changed."""
    if label is None or not all(isinstance(column, Plain) for column in schema.columns):
        raise DataError(f"{path}: an NPZ archive needs a study with a list of features and a label")
    archive = read_archive(path, label.column, by, [column.name for column in schema.columns])
    task: Task = "count" if label.counts else "regression"
    if label.classes is not None:
        task = "binary" if len(label.classes) == 2 else "multiclass"
    try:
        labels = encode_labels(archive.labels, task=task, classes=label.classes)
    except DataError as error:
        problem = str(error).partition(": declare")[0]
        raise DataError(f"{path}, column {label.column!r}, {problem}; correct the row or leave it out") from None
    features = clip_rows(archive.features.astype(np.float32))
    groups, owners = _archive_owners(archive, by)
    return EncodedTable(
        with_intercept(features) if intercept else features,
        labels,
        groups,
        owners,
        Report(rows=len(labels)),
    )


def _archive_owners(archive: Archive, by: str | None) -> tuple[Integers | None, Sequence[Any]]:
    if by is None or archive.groups is None:
        return None, ()
    owners, groups = np.unique(archive.groups, return_inverse=True)
    return groups, owners.tolist()


class Texts(Sequence[str]):
    """Text in an Arrow array. A few items at a time become Python objects, which are five times as large."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, place: Any) -> Any:
        return self._array[place].as_py()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 2**14):
            yield from self._array.slice(start, 2**14).to_pylist()


def read_owners(table: Table, by: str | None, also: Sequence[str] = ()) -> tuple[int, Integers | None, Sequence[str]]:
    """Return the number of rows, the owner of each row (None without a column), and the owners exactly as written.

    The columns ``also`` must exist.
    """
    if is_archive(table):
        archive = read_archive(Path(table), next(iter(also), None), by, ())
        return len(archive.labels), *_archive_owners(archive, by)
    columns = [*([] if by is None else [by]), *also] or column_names(table)[:1]
    owners, numbers, n_rows = _Owners(by or "", exact=True), [], 0
    for batch in open_batches(table, columns):
        n_rows += batch.num_rows
        if by is not None:
            numbers.append(owners.numbers_of(batch.column(by)))
    if not n_rows:
        raise DataError(f"{open_table(table).location} has no rows")
    if by is None:
        return n_rows, None, ()
    ranks, names = owners.sorted()
    return n_rows, _replaced(np.concatenate(numbers), ranks), names


class _Owners:
    """Numbers the owners of rows. The text of an owner is stored once per batch."""

    def __init__(self, by: str, *, exact: bool) -> None:
        self.by, self._exact, self._count = by, exact, 0
        self._texts: list[Any] = []

    def numbers_of(self, cells: Any) -> NDArray[np.int32]:
        """Return the number of the owner of each row. The numbers of other batches differ; see ``sorted``."""
        words, places = as_words(cells, self.by)
        places = np.where(places < 0, len(words), places)
        used = np.bincount(places, minlength=len(words) + 1) > 0
        texts = pa.concat_arrays([words, pa.nulls(1, pa.string())]).filter(pa.array(used)).fill_null("")
        if not self._exact:
            texts = pc.utf8_trim_whitespace(texts)
            if pc.any(pc.equal(texts, "")).as_py():
                raise DataError(f"column {self.by!r} has a missing cell, so that row has no owner")
        numbers: NDArray[np.int32] = np.cumsum(used, dtype=np.int32)[places] + np.int32(self._count - 1)
        self._texts.append(texts)
        self._count += len(texts)
        return numbers

    def sorted(self) -> tuple[NDArray[np.int32], Texts]:
        """Return the rank of each number's owner, and the sorted owners."""
        coded = pa.chunked_array(self._texts).dictionary_encode()
        self._texts.clear()
        names = coded.chunk(0).dictionary  # the same in all chunks
        order = pc.sort_indices(names)
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order))
        return ranks[np.concatenate([chunk.indices for chunk in coded.chunks])], Texts(names.take(order))


def _replaced(numbers: NDArray[np.int32], ranks: NDArray[np.int32]) -> NDArray[Any]:
    """Return ``ranks[numbers]``, in the memory of the numbers."""
    for start in range(0, len(numbers), 2**20):
        numbers[start : start + 2**20] = ranks[numbers[start : start + 2**20]]
    return numbers
