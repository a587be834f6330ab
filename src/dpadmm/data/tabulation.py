"""What a statistics study makes of its columns: public bins of each, two moments of every number, two-way tables.

A row is one indicator for every column and every table, and two moments for every number, in counts; all of it is
divided by ``R = √(k + 2q + p)``, so that rows have length at most 1 (``queries/column_sums.py``). Every
number of the release then has the same noise, in counts: the rule by which the budget is divided, and why a number is
as dear as three categories (docs/decisions/0021-statistics.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, cast

import numpy as np

from dpadmm.data.schema import Boolean, Category, Column, Number, Ordinal, Plain, Schema
from dpadmm.errors import StudyError
from dpadmm.parameters.suggestions import unknown_name

OTHER, MISSING = "(other)", "(missing)"
MOST_CELLS = 100_000
"""Numbers that a study may release."""


@dataclass(frozen=True)
class Counts:
    """A column's public bins: one for every value or interval, for what is none of them, and for missing cells.

    A number without bins of its own has ``n_bins`` of equal width (of its logarithm, if it is taken); beyond its bounds
    it is in the first or the last.
    """

    column: Column
    n_bins: int

    kind: ClassVar[str] = "counts"
    one_hot: ClassVar[bool] = True

    @property
    def sources(self) -> tuple[Column, ...]:
        return (self.column,)

    @property
    def name(self) -> str:
        return self.column.name

    @cached_property
    def edges(self) -> tuple[float, ...]:
        """Ends of the intervals of a number, in its units; none of other columns."""
        if not isinstance(self.column, Number):
            return ()
        if self.column.bins:
            return (self.column.bounds[0], *self.column.bins, self.column.bounds[1])
        even = np.linspace(*self.column.ends, self.n_bins + 1)[1:-1]
        inner = np.exp(even) if self.column.transform == "log" else even
        return (self.column.bounds[0], *inner.tolist(), self.column.bounds[1])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What the bins stand for; the last is for missing cells."""
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
        """The column as its cells are put into bins."""
        if isinstance(self.column, Number):
            return replace(self.column, bins=self.edges[1:-1], knots=(), center=None, scale=None)
        return self.column


@dataclass(frozen=True)
class NumberMoments:
    """``x`` and ``2x² − 1`` of a number, x from −1 to 1 over its bounds (or their logarithms); 0 for missing cells.

    The second moment is centred, so that it is told twice as sharply as by x².
    """

    column: Number

    kind: ClassVar[str] = "moments"
    reach: ClassVar[float] = math.sqrt(2.0)

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
        """The column as its x is computed, with a feature that says where it is missing."""
        return replace(self.column, bins=(), knots=(), center=None, scale=None, missing="indicator")


@dataclass(frozen=True)
class Crossed:
    """A two-way table: one feature for every pair of bins."""

    pair: tuple[Counts, Counts]

    kind: ClassVar[str] = "crossed"
    one_hot: ClassVar[bool] = True

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
    """The schema of the counts, moments and two-way tables of some columns."""
    if schema.interactions:
        raise StudyError("interactions belong to models; statistics have two-way tables: name them under [statistics]")
    for column in schema.columns:
        if isinstance(column, Plain):
            raise StudyError(f"column {column.name!r}: statistics need public bounds or values, which plain has not")
        if isinstance(column, Number) and not column.bins and n_bins < 2:
            raise StudyError(f"column {column.name!r}: bins must be at least 2, or edges of its own")
    counts = {each.name: Counts(each, n_bins) for each in schema.columns}
    seen: set[frozenset[str]] = set()
    for pair in tables:
        for name in pair:
            if name not in counts:
                raise StudyError(f"tables: {unknown_name('column', name, list(counts), 'the study')}")
        if len({*pair}) != 2 or frozenset(pair) in seen:
            raise StudyError(f"tables: {pair[0]!r} × {pair[1]!r} must be two columns, and be there once")
        seen.add(frozenset(pair))
        cells = len(counts[pair[0]].labels) * len(counts[pair[1]].labels)
        if cells > MOST_CELLS:
            raise StudyError(
                f"tables: {pair[0]!r} × {pair[1]!r} has {cells:,} cells, and a study may release {MOST_CELLS:,} "
                "numbers; take fewer bins or values"
            )
    crossed = [Crossed((counts[one], counts[other])) for one, other in tables]
    numbers = [NumberMoments(each) for each in schema.columns if isinstance(each, Number)]
    norm = math.sqrt(len(counts) + 2 * len(numbers) + len(crossed)) * (1.0 + 2.0**-22)
    made = Schema(cast(Any, (*counts.values(), *numbers, *crossed)), row_norm=norm)
    if len(made.features) > MOST_CELLS:
        raise StudyError(
            f"the columns and tables have {len(made.features):,} counts, and a study may release {MOST_CELLS:,}; "
            "take fewer bins, columns or tables"
        )
    return made
