"""An owner's rows in the encoding of one study: what a guard computes sums of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import clip_rows
from dpadmm.matrices.coded import CodedRows
from dpadmm.matrices.features import Features, layout
from dpadmm.matrices.memmap import row_portions
from dpadmm.queries import Query
from dpadmm.queries.problem import Rows, make_rows
from dpadmm.trusted.discrete_gaussian import Lattice, quantise
from dpadmm.trusted.unit import Ids, Persons, PrivacyUnit


@dataclass(frozen=True, eq=False)
class ProtectedRows:
    """Encoded rows in which no person has more than ``unit.rows`` that are not zero; see :func:`protect`."""

    features: Features
    labels: Floats
    unit: PrivacyUnit
    persons: Persons
    given: bool
    """Whether nobody but the holder of this can change the features."""
    row_weights: Floats | None
    """From 0 to 1, where the study has weights."""


def protect(
    features: Features,
    labels: Floats,
    unit: PrivacyUnit,
    ids: Ids | None = None,
    *,
    given: bool = False,
    row_weights: Floats | None = None,
) -> ProtectedRows:
    """The last step of encoding: silent rows become zeros, the constant column too.

    Features that are ``given`` away, by who made them and keeps no other use of them, are changed in place.
    """
    persons = unit.persons(ids, features.shape[0])
    return silence(features, labels, unit, persons, given=given, row_weights=row_weights)


def silence(
    features: Features,
    labels: Floats,
    unit: PrivacyUnit,
    persons: Persons,
    *,
    given: bool,
    row_weights: Floats | None = None,
) -> ProtectedRows:
    """The same where it is known whose rows these are, as of a part of a table."""
    if persons.silent.shape != labels.shape:
        raise DataError(f"it is known of {persons.n_rows:,} rows whose they are, and there are {len(labels):,}")
    return ProtectedRows(_silenced(features, persons.silent, given), labels, unit, persons, given, row_weights)


def _silenced(features: Features, silent: NDArray[np.bool_], given: bool) -> Features:
    if not silent.any():
        return features
    out: Any = features if given else features.copy()
    if isinstance(out, csr_array):
        lengths = np.diff(out.indptr)
        for part in row_portions(out):
            start, stop = out.indptr[part.start], out.indptr[part.stop]
            out.data[start:stop][np.repeat(silent[part], lengths[part])] = 0.0
    else:
        entries = out.values if isinstance(out, CodedRows) else out
        for part in row_portions(out):
            entries[part][silent[part]] = 0.0
    return out


class CheckedRows:
    """Rows of length at most 1, their labels and weights, checked and copied; see ``guard.PrivateRows``."""

    def __init__(self, rows: ProtectedRows) -> None:
        matrix, labels = clip_rows(rows.features), rows.labels
        weights = None if rows.row_weights is None else rows.row_weights.copy()
        # Of rows that others can change, lengths and digest would not be true for long
        self._rows: Rows = make_rows(matrix if rows.given else matrix.copy(), labels.copy(), row_weights=weights)
        self._unit = rows.unit

    @property
    def unit(self) -> PrivacyUnit:
        """What no person's rows exceed."""
        return self._unit

    @property
    def n_rows(self) -> int:
        return len(self._rows.labels)

    @property
    def n_features(self) -> int:
        return self._rows.n_features

    @property
    def n_parts(self) -> int:
        return 1

    def digest(self) -> str:
        """SHA-256 of the kind, the shape and the bytes of features, labels and weights."""
        total = sha256(repr((type(self._rows.features).__name__, self._rows.features.shape)).encode())
        weights = () if self._rows.row_weights is None else (self._rows.row_weights,)
        for part in (*layout(self._rows.features)[1], self._rows.labels, *weights):
            total.update(f"{part.dtype.str} {part.size}\n".encode())
            total.update(np.ascontiguousarray(part).data)
        return total.hexdigest()

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        """The rounded sum over rows of a statistic, by the lines that simulations of exact noise use."""
        return quantise(np.asarray(statistic.sums(self._rows, parameters[None], bound=grid.row_bound)[0]), grid)


class PartSummary(NamedTuple):
    """What is known of a part of the rows, which are held elsewhere."""

    n_rows: int
    n_features: int
    digest: str


class PartitionedRows:
    """Rows in parts, each a :class:`CheckedRows` that is held elsewhere; see ``guard.PrivateRows``.

    ``totals`` has every part's own total, whole numbers: their sum depends neither on their order nor on who
    computed which. Persons may have rows in several parts (docs/decisions/0018-rows-on-a-cluster.md).
    """

    def __init__(
        self,
        parts: Sequence[PartSummary],
        unit: PrivacyUnit,
        totals: Callable[[Query, Floats, Lattice], Sequence[Integers]],
    ) -> None:
        if len({part.n_features for part in parts}) != 1:
            raise DataError("the parts of a table need the same columns, and there must be one at least")
        self._parts, self._unit, self._totals = tuple(parts), unit, totals

    @property
    def unit(self) -> PrivacyUnit:
        """What no person's rows exceed, in all parts together."""
        return self._unit

    @property
    def n_rows(self) -> int:
        return sum(part.n_rows for part in self._parts)

    @property
    def n_features(self) -> int:
        return self._parts[0].n_features

    @property
    def n_parts(self) -> int:
        return len(self._parts)

    def digest(self) -> str:
        """SHA-256 of the digests of all parts, in their order."""
        return sha256(repr([part.digest for part in self._parts]).encode()).hexdigest()

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        """The sum of the parts' rounded sums."""
        totals = self._totals(statistic, parameters, grid)
        if len(totals) != self.n_parts:
            raise DataError(f"{len(totals)} of {self.n_parts} parts have a sum")
        return np.asarray(np.sum(totals, axis=0))
