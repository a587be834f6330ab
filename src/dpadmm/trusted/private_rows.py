"""An owner's rows in the encoding of one study: what a guard computes sums of."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dpadmm._base.arrays import Features, Floats, layout
from dpadmm._base.coded import CodedRows
from dpadmm._base.memmap import is_nameless, row_portions
from dpadmm.optim.features import clip_rows
from dpadmm.optim.problem import Rows, make_rows
from dpadmm.privacy.statistics import Statistic
from dpadmm.trusted.unit import Ids, Persons, PrivacyUnit


@dataclass(frozen=True, eq=False)
class ProtectedRows:
    """Encoded rows in which no person has more than ``unit.rows`` that are not zero; see :func:`protect`."""

    features: Features
    labels: Floats
    unit: PrivacyUnit
    persons: Persons


def protect(features: Features, labels: Floats, unit: PrivacyUnit, ids: Ids | None = None) -> ProtectedRows:
    """The last step of encoding: silent rows become zeros, the constant column too.

    Rows in a nameless file, to which nobody else can write, are changed in place.
    """
    persons = unit.persons(ids, features.shape[0])
    return ProtectedRows(_silenced(features, persons.silent), labels, unit, persons)


def _silenced(features: Features, silent: NDArray[np.bool_]) -> Features:
    if not silent.any():
        return features
    out: Any = features if is_nameless(features) else features.copy()
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
    """Rows of length at most 1 and their labels, checked and copied; see ``guard.PrivateRows``."""

    def __init__(self, rows: ProtectedRows) -> None:
        matrix, labels = clip_rows(rows.features), rows.labels
        # Of rows that others can change, lengths and digest would not be true for long
        self._rows: Rows = make_rows(matrix if is_nameless(matrix) else matrix.copy(), labels.copy())
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

    def digest(self) -> str:
        """SHA-256 of the kind, the shape and the bytes of features and labels."""
        total = sha256(repr((type(self._rows.features).__name__, self._rows.features.shape)).encode())
        for part in (*layout(self._rows.features)[1], self._rows.labels):
            total.update(f"{part.dtype.str} {part.size}\n".encode())
            total.update(np.ascontiguousarray(part).data)
        return total.hexdigest()

    def total(self, statistic: Statistic, parameters: Floats, bound: float) -> Floats:
        """The sum over rows of a statistic, by the lines that simulations of exact noise use."""
        return np.asarray(statistic.sums(self._rows, parameters[None], bound=bound)[0])
