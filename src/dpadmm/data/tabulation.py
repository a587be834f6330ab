"""The encoding of statistics studies: public bins of each column, two moments of each number, two-way tables.

A row has one indicator for each of k columns and p tables, and two moments for each of q numbers, all divided by
``R = √(k + 2q + p)``, so that its norm is at most 1 (``queries/column_sums.py``). Every number of the release then has
the same noise in counts, and a number costs as much as three categories (docs/decisions/0021-statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np

from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Plain, Schema, Term
from dpadmm.errors import StudyError
from dpadmm.parameters.suggestions import unknown_name

OTHER, MISSING = "(other)", "(missing)"
MAX_CELLS = 100_000
"""Maximum number of values that a study may release."""


@dataclass(frozen=True)
class Counts(Term):
    """Public bins of a column: one for each value or interval, one for other values, and one for missing cells.

    A number without declared bins has ``n_bins`` of equal width (of its logarithm with a log). Values beyond the bounds
    are in the first or last bin.
    """

    column: Column
    n_bins: int

    kind: ClassVar[str] = "counts"

    @property
    def is_one_hot(self) -> bool:
        return True

    @property
    def sources(self) -> tuple[Column, ...]:
        return (self.column,)

    @property
    def name(self) -> str:
        return self.column.name

    @cached_property
    def edges(self) -> tuple[float, ...]:
        """Ends of the intervals of a number, in its units. Empty for other columns."""
        if not isinstance(self.column, Number):
            return ()
        if self.column.bins:
            return (self.column.bounds[0], *self.column.bins, self.column.bounds[1])
        even = np.linspace(*self.column.ends, self.n_bins + 1)[1:-1]
        inner = np.exp(even) if self.column.transform == "log" else even
        return (self.column.bounds[0], *inner.tolist(), self.column.bounds[1])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the bins. The last is for missing cells."""
        if isinstance(self.column, Number):
            return (*(f"{low:.6g} to {high:.6g}" for low, high in pairwise(self.edges)), MISSING)
        values = ("false", "true") if isinstance(self.column, Boolean) else self._values
        return (*values, OTHER, MISSING)

    @property
    def _values(self) -> tuple[str, ...]:
        assert isinstance(self.column, Category | Ordinal)
        return self.column.values

    @cached_property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}: {label}" for label in self.labels)

    @property
    def binned(self) -> Column:
        """Column with the bins as declared edges."""
        if isinstance(self.column, Number):
            return replace(self.column, bins=self.edges[1:-1], knots=(), center=None, scale=None)
        return self.column


@dataclass(frozen=True)
class NumberMoments(Term):
    """``x`` and ``2x² − 1`` of a number, where x maps its bounds (or their logarithms) to [−1, 1]. 0 for missing cells.

    The second moment is centred, which makes it twice as accurate as x².
    """

    column: Number

    kind: ClassVar[str] = "moments"

    @property
    def max_norm(self) -> float:
        return math.sqrt(2.0)

    @property
    def sources(self) -> tuple[Column, ...]:
        return (self.column,)

    @property
    def name(self) -> str:
        return f"{self.column.name}: moments"

    @property
    def features(self) -> tuple[str, ...]:
        return f"{self.column.name}: mean", f"{self.column.name}: square"

    @property
    def line(self) -> Number:
        """Column that gives x, with an indicator of missing cells."""
        return replace(self.column, bins=(), knots=(), center=None, scale=None, missing="indicator")


@dataclass(frozen=True)
class Crossed(Term):
    """A two-way table: one feature for each pair of bins."""

    pair: tuple[Counts, Counts]

    kind: ClassVar[str] = "crossed"

    @property
    def is_one_hot(self) -> bool:
        return True

    @property
    def sources(self) -> tuple[Column, ...]:
        return self.pair[0].column, self.pair[1].column

    @property
    def name(self) -> str:
        return f"{self.pair[0].name} × {self.pair[1].name}"

    @cached_property
    def features(self) -> tuple[str, ...]:
        one, other = self.pair
        return tuple(f"{a} × {b}" for a in one.features for b in other.features)


def tabulated(schema: Schema, tables: Sequence[tuple[str, str]], n_bins: int) -> Schema:
    """Return the schema of the counts, moments and two-way tables of columns."""
    if schema.interactions:
        raise StudyError("interactions belong to models; statistics have two-way tables: name them under [statistics]")
    for column in schema.columns:
        if isinstance(column, Plain):
            raise StudyError(
                f"column {column.name!r}: statistics need public bounds or values, which a plain column lacks"
            )
        if isinstance(column, Number) and not column.bins and n_bins < 2:
            raise StudyError(f"column {column.name!r}: bins must be at least 2, or a list of edges")
    counts = {column.name: Counts(column, n_bins) for column in schema.columns}
    seen: set[frozenset[str]] = set()
    for pair in tables:
        for name in pair:
            if name not in counts:
                raise StudyError(f"tables: {unknown_name('column', name, list(counts), 'the study')}")
        if len({*pair}) != 2 or frozenset(pair) in seen:
            raise StudyError(f"tables: {pair[0]!r} × {pair[1]!r} must be two different columns and be listed once")
        seen.add(frozenset(pair))
        cells = len(counts[pair[0]].labels) * len(counts[pair[1]].labels)
        if cells > MAX_CELLS:
            raise StudyError(
                f"tables: {pair[0]!r} × {pair[1]!r} has {cells:,} cells, and a study may release at most "
                f"{MAX_CELLS:,} values; use fewer bins or values"
            )
    crossed = [Crossed((counts[one], counts[other])) for one, other in tables]
    numbers = [NumberMoments(column) for column in schema.columns if isinstance(column, Number)]
    norm = math.sqrt(len(counts) + 2 * len(numbers) + len(crossed)) * (1.0 + 2.0**-22)
    encoding = Schema(cast(Any, (*counts.values(), *numbers, *crossed)), row_norm=norm)
    if len(encoding.features) > MAX_CELLS:
        raise StudyError(
            f"the columns and tables have {len(encoding.features):,} counts, and a study may release at most "
            f"{MAX_CELLS:,}; use fewer bins, columns or tables"
        )
    return encoding
