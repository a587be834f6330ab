"""An owner's rows in the encoding of one study, and sums over them."""

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
    """Encoded rows: no person has more than ``unit.rows`` rows that are not zero. See :func:`protect`."""

    features: Features
    labels: Floats
    unit: PrivacyUnit
    persons: Persons
    owned: bool
    """Whether only the holder of this object can change the features."""
    row_weights: Floats | None
    """Weights from 0 to 1, if the study has weights."""


def protect(
    features: Features,
    labels: Floats,
    unit: PrivacyUnit,
    ids: Ids | None = None,
    *,
    owned: bool = False,
    row_weights: Floats | None = None,
) -> ProtectedRows:
    """Replace silent rows by zeros, including the constant column: the last step of encoding.

    If ``owned``, the caller hands over the features and keeps no other reference, and they are changed in place.
    """
    persons = unit.persons(ids, features.shape[0])
    return silence(features, labels, unit, persons, owned=owned, row_weights=row_weights)


def silence(
    features: Features,
    labels: Floats,
    unit: PrivacyUnit,
    persons: Persons,
    *,
    owned: bool,
    row_weights: Floats | None = None,
) -> ProtectedRows:
    """Replace silent rows by zeros if the persons are already determined, as for a part of a table."""
    if persons.silent.shape != labels.shape:
        raise DataError(f"the persons of {persons.n_rows:,} rows are given, but there are {len(labels):,} rows")
    return ProtectedRows(_with_silent_rows(features, persons.silent, owned), labels, unit, persons, owned, row_weights)


def _with_silent_rows(features: Features, silent: NDArray[np.bool_], owned: bool) -> Features:
    if not silent.any():
        return features
    out: Any = features if owned else features.copy()
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
    """Rows of norm at most 1, with labels and weights, checked and copied. Implements ``guard.PrivateRows``."""

    def __init__(self, rows: ProtectedRows) -> None:
        matrix, labels = clip_rows(rows.features), rows.labels
        weights = None if rows.row_weights is None else rows.row_weights.copy()
        # If others could change the rows, row norms and digest would become wrong
        self._rows: Rows = make_rows(matrix if rows.owned else matrix.copy(), labels.copy(), row_weights=weights)
        self._unit = rows.unit

    @property
    def unit(self) -> PrivacyUnit:
        """Privacy unit that the rows were limited to."""
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
        """Return the SHA-256 of the type, the shape and the bytes of features, labels and weights."""
        total = sha256(repr((type(self._rows.features).__name__, self._rows.features.shape)).encode())
        weights = () if self._rows.row_weights is None else (self._rows.row_weights,)
        for part in (*layout(self._rows.features)[1], self._rows.labels, *weights):
            total.update(f"{part.dtype.str} {part.size}\n".encode())
            total.update(np.ascontiguousarray(part).data)
        return total.hexdigest()

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        """Return the rounded sum of a statistic. Simulations with exact noise use the same code."""
        return quantise(np.asarray(statistic.sums(self._rows, parameters[None], bound=grid.row_bound)[0]), grid)


class PartSummary(NamedTuple):
    """Public facts about a part of the rows that another process holds."""

    n_rows: int
    n_features: int
    digest: str


class PartitionedRows:
    """Rows in parts, each a :class:`CheckedRows` in another process. Implements ``guard.PrivateRows``.

    ``totals`` returns the total of each part. Totals are integers, so their sum does not depend on the order or on the
    processes that computed them. A person may have rows in several parts (docs/decisions/0018-rows-on-a-cluster.md).
    """

    def __init__(
        self,
        parts: Sequence[PartSummary],
        unit: PrivacyUnit,
        totals: Callable[[Query, Floats, Lattice], Sequence[Integers]],
    ) -> None:
        if len({part.n_features for part in parts}) != 1:
            raise DataError("a table needs at least one part, and all parts need the same columns")
        self._parts, self._unit, self._totals = tuple(parts), unit, totals

    @property
    def unit(self) -> PrivacyUnit:
        """Privacy unit that the rows of all parts together were limited to."""
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
        """Return the SHA-256 of the digests of all parts, in their order."""
        return sha256(repr([part.digest for part in self._parts]).encode()).hexdigest()

    def total(self, statistic: Query, parameters: Floats, grid: Lattice) -> Integers:
        """Return the sum of the rounded sums of the parts."""
        totals = self._totals(statistic, parameters, grid)
        if len(totals) != self.n_parts:
            raise DataError(f"got sums from {len(totals)} of {self.n_parts} parts")
        return np.asarray(np.sum(totals, axis=0))
