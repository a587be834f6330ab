"""A table file by its public schema: encoded as features, labels and owners, or surveyed for its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import DTypeLike, NDArray

from dpadmm.data.cells import NotANumberError, WordCache, as_numbers, as_words, placed, word_codes
from dpadmm.data.encoder import ENCODERS, Encoder, Report, Tally, much, tallied
from dpadmm.data.reader import ahead, column_names, known_count, line_warnings, open_batches
from dpadmm.data.schema import Category, Column, Label, Number, Ordinal, Plain, Schema
from dpadmm.errors import DataError, DPADMMError
from dpadmm.losses.poisson import coded
from dpadmm.matrices.arrays import Floats, Integers, flush_subnormals
from dpadmm.matrices.features import Features
from dpadmm.matrices.memmap import MEMORY_BYTES
from dpadmm.matrices.storage import GrowingArray
from dpadmm.parameters.suggestions import unknown_name


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Rows of length at most 1, labels as losses want them, whose each row is, and what was counted.

    Row j belongs to ``owners[groups[j]]``; owners are sorted. ``row_weights`` are from 0 to 1, if there are any.
    """

    features: Features
    labels: Floats
    groups: Integers | None
    owners: Sequence[str]
    report: Report
    row_weights: Floats | None = None


def encode_table(
    path: Path,
    schema: Schema,
    label: Label | None,
    *,
    by: str | None = None,
    intercept: bool = False,
    total: bool = False,
    memory_bytes: int = MEMORY_BYTES,
) -> EncodedTable:
    """Read a file once and encode it; ``by`` names a column that says who owns a row.

    ``intercept`` appends the constant column. Without a label, as for a table to predict on, they are 0.

    ``total`` is for agents, whose "no" must not tell about a cell: every table with these columns is encoded.
    What is no number is missing, and a row whose label is none of the classes, or whose exposure or weight is none, is
    a row of zeros, which has no gradient. It is counted in the report. Owners are told apart as they are written,
    blanks and all: which of them are one person is for :class:`dpadmm.trusted.unit.PrivacyUnit` to say.
    """
    columns = [column.name for column in schema.sources]
    asked = (label.column, label.exposure, label.weight) if label else ()
    others = [name for name in (*asked, by) if name is not None]
    for name in others:
        if name in columns:
            raise DataError(
                f"column {name!r} cannot be a feature too: it is the label, its exposure or weight, or says who owns a "
                "row; take it out of the study's columns"
            )
    numeric = {c.name for c in schema.sources if isinstance(c, Number | Plain)}
    if label is not None and label.classes is None:
        numeric |= {label.column} if label.exposure is None else {label.column, label.exposure}
    encoder, weighted = Encoder(schema, intercept=intercept, total=total), label is not None and label.weighted
    if label is not None and label.weight is not None:
        numeric |= {label.weight}
        encoder.report.columns[label.weight] = Tally()
    owners = _Owners(by, total=total) if by is not None else None

    def encoded() -> Iterator[tuple[tuple[NDArray[Any], ...], Floats | None, Floats | None, NDArray[np.int32] | None]]:
        wanted, called = [*columns, *others], roles(label) if label else {}
        for batch in open_batches(path, wanted, numbers=frozenset(numeric), total=total, roles=called):
            first = encoder.report.rows
            try:
                values = bad = weights = None
                if label is not None:
                    cells = batch.column(label.column)
                    exposures = None if label.exposure is None else batch.column(label.exposure)
                    values, bad = label_values(label, cells, encoder.words, exposures, total=total)
                    _check_labels(~bad | total, label, cells, first, exposures)
                    if label.weighted:
                        cells = None if label.weight is None else batch.column(label.weight)
                        tally = encoder.report.columns.get(label.weight or "", Tally())
                        weights, unknown = row_weights_of(label, values, cells, tally, total=total)
                        _check_weights(~unknown | total, label, first)
                        bad = bad | unknown
                    encoder.report.label.unknown += int(np.count_nonzero(bad))
                blocks = encoder.encode_blocks(batch)
                if bad is not None:  # rows of zeros, the constant column too: no gradient at any point
                    blocks[0][bad] = 0.0
                yield blocks, values, weights, owners.numbers_of(batch.column(by)) if owners else None
            except DataError as error:
                raise placed(error, path, first, batch.num_rows) from None

    row_bytes, n_rows = [kind.itemsize * width for kind, width in encoder.stored], known_count(path)
    with ExitStack() as stack:

        def growing(kind: DTypeLike, width: int, limit: int) -> GrowingArray:
            return stack.enter_context(closing(GrowingArray(kind, width, memory_bytes=limit, n_rows=n_rows)))

        rows = [  # which go to files at the same row
            growing(kind, width, memory_bytes * mine // sum(row_bytes))
            for (kind, width), mine in zip(encoder.stored, row_bytes, strict=True)
        ]
        labels = growing(np.float64, 1, memory_bytes // 4)
        row_weights = growing(np.float64, 1, memory_bytes // 4)
        groups = growing(np.int32, 1, MEMORY_BYTES)  # 4 bytes a row count in a large table
        for blocks, values, weights, numbers_of_owners in stack.enter_context(closing(ahead(encoded()))):
            for part, block in zip(rows, blocks, strict=True):
                part.append(block)
            if values is not None:
                labels.append(values)
            if weights is not None:
                row_weights.append(weights)
            if numbers_of_owners is not None:
                groups.append(numbers_of_owners)
        if not encoder.report.rows:
            raise DataError(f"{path} has no rows")
        places, names = owners.sorted() if owners else (None, ())
        pa.default_memory_pool().release_unused()  # room that Arrow keeps for further batches
        return EncodedTable(
            encoder.matrix(tuple(part.finish() for part in rows)),
            labels.finish().reshape(-1) if label is not None else np.zeros(encoder.report.rows),
            None if places is None else _renamed(groups.finish().reshape(-1), places),
            names,
            encoder.report,
            row_weights.finish().reshape(-1) if weighted else None,
        )


def roles(label: Label) -> dict[str, str]:
    """What a study has columns for that are no features, by name."""
    named = ((label.weight, "column of weights"), (label.exposure, "exposure"), (label.column, "label"))
    return {name: role for name, role in named if name is not None}


class Texts(Sequence[str]):
    """Text in an Arrow array, of which a few at a time become objects of Python, which are five times as large."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, place: Any) -> Any:
        return self._array[place].as_py()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 2**14):
            yield from self._array.slice(start, 2**14).to_pylist()


def read_owners(path: Path, by: str, also: Sequence[str] = ()) -> tuple[Integers, Sequence[str]]:
    """Whose every row is, as written and whatever it is: numbers, and the spellings that they stand for.

    Columns named in ``also`` have to be there.
    """
    owners = _Owners(by, total=True)
    numbers = [owners.numbers_of(batch.column(by)) for batch in open_batches(path, [by, *also])]
    if not numbers:
        raise DataError(f"{path} has no rows")
    places, names = owners.sorted()
    return _renamed(np.concatenate(numbers), places), names


def encode_labels_of(label: Label, cells: Any, first: int, exposures: Any = None) -> Floats:
    """Labels as the losses want them; a cell that is none of the classes is named by its row."""
    values, bad = label_values(label, cells, WordCache(), exposures)
    _check_labels(~bad, label, cells, first, exposures, of_study=False)
    return values


def label_values(
    label: Label, cells: Any, words: WordCache, exposures: Any = None, *, total: bool = False
) -> tuple[Floats, NDArray[np.bool_]]:
    """Labels as the losses want them, and which cells are none (they get that of the first class, or 0)."""
    if label.counts:
        counts = as_numbers(cells, label.column, total=total)
        spent = np.ones(len(counts))
        if label.exposure is not None:
            spent = as_numbers(exposures, label.exposure, total=total)
        bad = ~np.isfinite(counts) | (counts < 0.0) | ~np.isfinite(spent) | ~(spent > 0.0)
        if label.times is not None:
            bad |= (counts != 0.0) & (counts != 1.0)
            counts = np.where(spent > label.longest, 0.0, counts)
        counts, spent = np.where(bad, 0.0, counts), np.where(bad, label.longest, spent)
        shares = np.minimum(spent, label.longest) / label.longest
        return coded(np.minimum(counts, label.largest) / label.largest, shares), bad
    if label.classes is None:
        values = as_numbers(cells, label.column, total=total)
        bad = ~np.isfinite(values)
        values = np.where(bad, 0.0, values)
        if label.bounds is not None:
            low, high = label.bounds
            values = np.where(bad, 0.0, (np.clip(values, low, high) - low) / (high - low) * 2.0 - 1.0)
        flush_subnormals(values)
        return values, bad
    codes, places = word_codes(cells, tuple(map(str, label.classes)), label.column, words)
    known = np.maximum(codes, 0)
    by_word = known * 2.0 - 1.0 if len(label.classes) == 2 else known.astype(np.float64)
    return by_word[places], (codes < 0)[places]


def row_weights_of(
    label: Label, labels: Floats, cells: Any, tally: Tally, *, total: bool = False
) -> tuple[Floats, NDArray[np.bool_]]:
    """ω of rows with these labels, from 0 to 1, and which cells of the column of weights are none (they get 0).

    Weights beyond the bound are the bound, which the tally counts.
    """
    weights, bad = np.ones(len(labels)), np.zeros(len(labels), dtype=bool)
    if label.weight is not None and label.weight_bound is not None:
        given = as_numbers(cells, label.weight, total=total)
        bad = ~((given >= 0.0) & np.isfinite(given))
        tally.clamped += int(np.count_nonzero(~bad & (given > label.weight_bound)))
        weights = np.minimum(np.where(bad, 0.0, given), label.weight_bound) / label.weight_bound
    if label.class_weight is not None:
        shares = np.array(label.class_shares)
        weights *= shares[(labels > 0.0).astype(np.intp) if len(shares) == 2 else labels.astype(np.intp)]
    flush_subnormals(weights)
    return weights, bad


def _check_weights(good: NDArray[np.bool_], label: Label, first: int) -> None:
    if not good.all():
        raise DataError(
            f"the weight {label.weight!r} of row {first + int(np.argmin(good)) + 1} is negative, infinite or missing; "
            "correct the cell or leave the row out"
        )


def _check_labels(
    good: NDArray[np.bool_], label: Label, cells: Any, first: int, exposures: Any = None, *, of_study: bool = True
) -> None:
    """Name the first bad label; the classes of a study, unlike those of a model, may be what is wrong."""
    if not good.all():
        place = int(np.argmin(good))
        if label.counts and np.isfinite(value := as_numbers(cells.slice(place, 1), label.column)[0]):
            what = f"the label {label.column!r} of row {first + place + 1} is {value:g}"
            if label.times is not None and value not in (0.0, 1.0):
                raise DataError(f"{what}; with times it is 1 for an event and 0 where none was seen: correct the cell")
            if value < 0.0:
                raise DataError(f"{what}, and counts are never negative; correct the cell or leave the row out")
            raise DataError(
                f"the exposure {label.exposure!r} of row {first + place + 1} is not above 0, or missing; correct the "
                "cell or leave the row out"
            )
        what, one, classes = "is missing", cells.slice(place, 1), tuple(map(str, label.classes or ()))
        cure = "correct the cell or leave the row out"
        codes, places = word_codes(one, classes, label.column, WordCache()) if classes else (np.array([-2]), [0])
        if codes[places[0]] == -1:
            what = f"is none of the classes {', '.join(classes[:8])}"
            cure = CLASSES_OR_CELLS if of_study else cure
            if _in_other_capitals(label, one, WordCache())[0]:
                what = f"differs in capitals from the classes {', '.join(classes[:8])}"
        raise DataError(f"the label {label.column!r} of row {first + place + 1} {what}; {cure}")


CLASSES_OR_CELLS = "correct the classes in the study, or the cells of the table"


def _in_other_capitals(label: Label, cells: Any, words: WordCache) -> NDArray[np.bool_]:
    """Which cells would be a class if capitals did not count."""
    classes = tuple(str(each).lower() for each in label.classes or ())
    codes, places = word_codes(cells, classes, label.column, words, fold=True)
    return np.asarray((codes >= 0)[places])


class _Owners:
    """Whose rows are, as numbers: text is kept once for every owner of a batch, and no longer than needed."""

    def __init__(self, by: str, *, total: bool) -> None:
        self._by, self._total, self._count = by, total, 0
        self._texts: list[Any] = []

    def numbers_of(self, cells: Any) -> NDArray[np.int32]:
        """Numbers that stand for the owner of every row, in this batch alone; see ``sorted``."""
        words, places = as_words(cells, self._by)
        places = np.where(places < 0, len(words), places)
        used = np.bincount(places, minlength=len(words) + 1) > 0
        texts = pa.concat_arrays([words, pa.nulls(1, pa.string())]).filter(pa.array(used)).fill_null("")
        if not self._total:
            texts = pc.utf8_trim_whitespace(texts)
            if pc.any(pc.equal(texts, "")).as_py():
                raise DataError(f"column {self._by!r} has a missing cell, so it is not known whose that row is")
        numbers: NDArray[np.int32] = np.cumsum(used, dtype=np.int32)[places] + np.int32(self._count - 1)
        self._texts.append(texts)
        self._count += len(texts)
        return numbers

    def sorted(self) -> tuple[NDArray[np.int32], Texts]:
        """Sorted names, and which of them every number is."""
        coded = pa.chunked_array(self._texts).dictionary_encode()
        self._texts.clear()
        names = coded.chunk(0).dictionary  # all chunks have the same
        order = pc.sort_indices(names)
        ranks = np.empty(len(order), np.int32)
        ranks[order] = np.arange(len(order))
        return ranks[np.concatenate([each.indices for each in coded.chunks])], Texts(names.take(order))


def _renamed(numbers: NDArray[np.int32], places: NDArray[np.int32]) -> NDArray[Any]:
    """``places[numbers]``, in the memory of the numbers."""
    for start in range(0, len(numbers), 2**20):
        numbers[start : start + 2**20] = places[numbers[start : start + 2**20]]
    return numbers


@dataclass
class Survey(Report):
    """What a schema would make of a table's cells, and sentences about what cannot be encoded."""

    problems: list[str] = field(default_factory=list)
    in_other_capitals: int = 0
    """Labels that would be a class if capitals did not count."""
    without_exposure: int = 0
    """Rows whose exposure is missing, 0 or negative."""
    without_weight: int = 0
    """Rows whose weight is missing, negative or infinite."""
    no_count: int = 0
    """Labels that are negative, or with times neither 0 nor 1."""
    about_lines: list[str] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict, compare=False)
    """The first row, from 1, of each kind of bad label, exposure and weight."""

    def count(self, kind: str, bad: NDArray[np.bool_]) -> int:
        """How many rows of a batch are bad; the first of them all is kept."""
        if bad.any():
            self.first.setdefault(kind, self.rows + int(np.argmax(bad)) + 1)
        return int(np.count_nonzero(bad))

    def told(self, kind: str, count: int) -> str:
        """``in row 3``, or ``in 5 rows, first in row 3``."""
        return f"in {count:,} rows, first in row {self.first[kind]:,}" if count > 1 else f"in row {self.first[kind]:,}"

    def warnings(self, schema: Schema) -> Iterator[str]:
        """Where much was clamped, or belongs to no value, or lines became no rows."""
        yield from self.about_lines
        clamped, unknown = (much(self.columns, self.rows, kind) for kind in ("clamped", "unknown"))
        for column in schema.sources:
            if isinstance(column, Number) and column.name in clamped:
                low, high = column.bounds
                yield (
                    f"column {column.name!r}: {clamped[column.name] / self.rows:.0%} of the cells are beyond "
                    f"[{low:g}, {high:g}] and clamped: other units?"
                )
            elif isinstance(column, Category | Ordinal) and column.name in unknown:
                yield (
                    f"column {column.name!r}: {unknown[column.name] / self.rows:.0%} of the cells are none "
                    "of its values: other spellings?"
                )
        for name in clamped.keys() - {column.name for column in schema.sources}:
            yield f"weights {name!r}: {clamped[name] / self.rows:.0%} are beyond their bound, and taken to be the bound"


CELLS_OR_ROWS = "correct the cells or leave the rows out"


def survey_table(path: Path, schema: Schema, label: Label | None = None) -> Survey:
    """Read a table once, and count; where a column is wrong, the others are looked at all the same."""
    survey, names, words = Survey(), column_names(path), WordCache()
    encoder = None if schema.bounded else Encoder(schema)
    counts = Counter(names)
    called = roles(label) if label else {}
    used = [*(each.name for each in schema.sources), *called]

    def missing(name: str) -> str:
        return str(unknown_name("column", name, names, path.name, role=called.get(name), used=used))

    open_columns: dict[str, Column | Label] = {}
    for each in (*schema.sources, *([label] if label else [])):
        name = each.column if isinstance(each, Label) else each.name
        if name not in counts:
            survey.problems.append(missing(name))
        elif counts[name] > 1:
            survey.problems.append(f"column {name!r} occurs more than once")
        else:
            open_columns[name] = each
            survey.columns |= {} if isinstance(each, Label) else {name: Tally()}
    if label is not None and label.exposure is not None:
        if label.exposure in counts:
            open_columns[label.exposure] = label
        else:
            survey.problems.append(missing(label.exposure))
    if label is not None and label.weight is not None:
        if label.weight in counts:
            open_columns[label.weight] = label
            survey.columns[label.weight] = Tally()
        else:
            survey.problems.append(missing(label.weight))
    try:
        for batch in open_batches(path, list(open_columns)):
            rows = f"rows {survey.rows + 1:,} to {survey.rows + batch.num_rows:,}"
            for name, each in list(open_columns.items()):
                try:
                    _count(each, name, batch.column(name), survey, words)
                except DataError as error:
                    survey.problems.append(
                        error.at(survey.rows) if isinstance(error, NotANumberError) else f"{error} ({rows})"
                    )
                    del open_columns[name]
            survey.rows += batch.num_rows
            if encoder is not None and not survey.problems:
                encoder.encode_blocks(batch)
                survey.shortened = encoder.report.shortened
    except DPADMMError as error:
        survey.problems.append(str(error))
    else:
        if open_columns and not survey.rows:
            survey.problems.append(f"{path} has no rows")
    survey.about_lines = line_warnings(path, survey.rows)
    if label is not None and survey.label.missing:
        survey.problems.append(
            f"the label {label.column!r} is missing {survey.told('missing', survey.label.missing)}; {CELLS_OR_ROWS}"
        )
    if label is not None and survey.no_count:
        what = "negative" if label.times is None else "neither 1 (an event) nor 0"
        survey.problems.append(
            f"the label {label.column!r} is {what} {survey.told('no count', survey.no_count)}; {CELLS_OR_ROWS}"
        )
    if label is not None and survey.without_exposure:
        survey.problems.append(
            f"the exposure {label.exposure!r} is missing, 0 or negative "
            f"{survey.told('exposure', survey.without_exposure)}; {CELLS_OR_ROWS}"
        )
    if label is not None and survey.without_weight:
        survey.problems.append(
            f"the weight {label.weight!r} is missing, negative or infinite "
            f"{survey.told('weight', survey.without_weight)}; {CELLS_OR_ROWS}"
        )
    if label is not None and survey.label.unknown:
        classes = ", ".join(map(str, (label.classes or ())[:8]))
        survey.problems.append(
            f"the label {label.column!r} is none of the classes {classes} "
            f"{survey.told('unknown', survey.label.unknown)}; "
            + (f"{survey.in_other_capitals:,} of them in capitals only; " if survey.in_other_capitals else "")
            + CLASSES_OR_CELLS
        )
    return survey


def _count(column: Column | Label, name: str, cells: Any, survey: Survey, words: WordCache) -> None:
    if not isinstance(column, Label):
        ENCODERS[column.kind](column, cells, survey.columns[column.name], words)
    elif name == column.weight:
        _, bad = row_weights_of(replace(column, class_weight=None), np.zeros(len(cells)), cells, survey.columns[name])
        survey.without_weight += survey.count("weight", bad)
    elif name == column.exposure:
        values = as_numbers(cells, str(column.exposure))
        survey.without_exposure += survey.count("exposure", ~(values > 0.0) | np.isinf(values))
    elif column.classes is None:
        values = as_numbers(cells, column.column)
        finite = values[np.isfinite(values)]
        survey.label.missing += survey.count("missing", ~np.isfinite(values))
        if column.bounds is not None:
            survey.label.clamped += int(np.count_nonzero(np.clip(finite, *column.bounds) != finite))
        if column.counts:
            wrong = values < 0.0 if column.times is None else (values != 0.0) & (values != 1.0)
            survey.no_count += survey.count("no count", wrong & np.isfinite(values))
    else:
        codes, places = tallied(cells, tuple(map(str, column.classes)), column.column, survey.label, words)
        survey.count("missing", codes[places] == -2)
        if survey.count("unknown", codes[places] == -1):
            found = _in_other_capitals(column, cells, words) & (codes[places] == -1)
            survey.in_other_capitals += int(np.count_nonzero(found))


def plain_schema(features: tuple[str, ...]) -> Schema:
    """The schema of a study that names columns of numbers, to be used as they are."""
    return Schema(tuple(Plain(name) for name in features))
