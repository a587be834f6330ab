"""The privacy unit: one person, with at most k rows of a table.

The unit accompanies the rows from the table to the guard. :func:`dpadmm.trusted.private_rows.protect` applies it as the
last step of encoding. A guard refuses rows that were protected for a unit other than its policy's.

Rows are silenced, never dropped. Neighbouring tables replace all rows of one person, in place, by rows of another
person who was not in the table. The number of rows m is published without noise, so it must be the same for both
tables, and a sum over rows may change by no more than the amount charged. Call the rows whose ids are equal after
normalisation a class. A row is *silent*, which means a row of zeros whose gradient is 0 at every point, if

- it has no id: if all persons without an id shared one limit of k rows, replacing one of them would activate rows of
  another;
- its class has ids with different spellings: they may belong to one person or to several;
- k rows of its class come before it in the file.

Replace P by Q. Apart from their rows, only the rows of two other persons can change. R's rows become active if P alone
made R's class ambiguous, but then P's own rows were silent. T's rows become silent if Q makes T's class ambiguous, but
then Q's own rows are silent. So one of {P, R} and one of {Q, T} has rows that are active in one table only, at most k
each: together 2k rows of norm at most c1, which change a sum by at most ``k·2·c1``. (For a statistic other than the
gradient, k times its sensitivity is enough if silencing a row changes the sum by at most half of that sensitivity.)
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpadmm.errors import DataError
from dpadmm.matrices.arrays import Integers
from dpadmm.parameters.checks import require_whole

NO_ID = frozenset({"", "na", "n/a", "#n/a", "#na", "nan", "-nan", "null", "none"})
"""Normalised cells that mean a missing id."""

_NUMBER = re.compile(r"(-?)0*([0-9]+)(?:\.0*)?")
_POWER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?e[+-]?[0-9]{1,3}")  # the format of floats from 1e+10 on
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point, such as the soft hyphen and the zero width space."""


class Ids(NamedTuple):
    """Person ids: row j has the id ``spellings[codes[j]]``, exactly as written."""

    codes: Integers
    spellings: Sequence[object]

    @classmethod
    def of(cls, cells: Iterable[object]) -> Ids:
        """Return ids from one cell per row."""
        places: dict[str, int] = {}
        spellings: list[object] = []
        codes = []
        for cell in cells:
            place = places.setdefault(repr(cell), len(spellings))
            if place == len(spellings):
                spellings.append(cell)
            codes.append(place)
        return cls(np.array(codes), spellings)


@dataclass(frozen=True, eq=False)
class Persons:
    """Silent rows of a table, and counts of its persons. For its owner only.

    Attributes
    ----------
    silent : (m,) bool
        Rows that are replaced by zeros.
    n_persons : int or None
        Different ids after normalisation; None if the table has no column of ids.
    n_above, n_ambiguous : int
        Persons with more than k rows, and persons whose id has several spellings.
    n_without_id : int
        Rows without an id.
    """

    silent: NDArray[np.bool_]
    n_persons: int | None
    n_above: int
    n_ambiguous: int
    n_without_id: int

    @property
    def n_rows(self) -> int:
        """m, the number of rows of the file."""
        return len(self.silent)

    @property
    def n_used(self) -> int:
        return int(np.count_nonzero(~self.silent))


@dataclass(frozen=True)
class PrivacyUnit:
    """A person, with at most ``rows`` rows.

    Parameters
    ----------
    rows : int
        k. Releases are charged for k rows.
    column : str, optional
        Column with the person's id. If None, the owner guarantees that no person has more than k rows.

    Examples
    --------
    >>> unit = PrivacyUnit(rows=1, column="who")
    >>> unit.persons(Ids.of(["a", "b", "a", "", "c", "C"]), 6).silent.tolist()
    [False, False, True, True, True, True]
    """

    rows: int = 1
    column: str | None = None

    def __post_init__(self) -> None:
        require_whole("rows of a person", self.rows, least=1)

    def persons(self, ids: Ids | None, n_rows: int) -> Persons:
        """Determine the silent rows. ``ids`` are required if, and only if, the unit has a column."""
        if (self.column is None) != (ids is None):
            raise DataError(f"person ids must be given if and only if the unit has a column (column: {self.column!r})")
        if ids is None:
            return Persons(np.zeros(n_rows, dtype=bool), None, 0, 0, 0)
        if len(ids.codes) != n_rows:
            raise DataError(f"got {len(ids.codes):,} ids for {n_rows:,} rows")
        present = np.zeros(len(ids.spellings), dtype=bool)
        present[ids.codes] = True
        numbers: dict[str, int] = {}
        class_numbers = (numbers.setdefault(person_of(spelling), len(numbers)) for spelling in ids.spellings)
        class_of = np.fromiter(class_numbers, np.int64)
        nameless = np.array([name in NO_ID for name in numbers])
        numbers.clear()  # with many persons, this frees more than half of the memory used here
        n_spellings = np.bincount(class_of[present], minlength=len(nameless))
        ambiguous = (n_spellings > 1) & ~nameless
        classes = class_of[ids.codes]
        count = np.bincount(classes, minlength=len(nameless))
        above = (count > self.rows) & ~nameless & ~ambiguous
        silent = (nameless | ambiguous)[classes] | (_place_in_class(classes, count) >= self.rows)
        return Persons(
            silent,
            n_persons=int(np.count_nonzero((count > 0) & ~nameless)),
            n_above=int(np.count_nonzero(above)),
            n_ambiguous=int(np.count_nonzero(ambiguous)),
            n_without_id=int(count[nameless].sum()),
        )


ONE_ROW = PrivacyUnit()
"""Each row belongs to a different person."""


def person_of(value: object) -> str:
    """Return the normalised id of a person.

    7, 7.0, "7", " 7", "007" and "7e0" are one person: treating one person as several would undercharge.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    text = "" if value is None or value != value else _fold(str(value)).strip()
    number = _NUMBER.fullmatch(format(Decimal(text), "f") if _POWER.fullmatch(text) else text)
    return number[1] * (number[2] != "0") + number[2] if number else text


def _fold(text: str) -> str:
    """Return the text without case, compatibility forms and invisible characters: Unicode's toNFKC_Casefold.

    One NFKC and one casefold do not suffice: NFKC of ``ℌ`` is a capital letter, and casefold of ``ᾷ`` and of its
    capital letters give marks in different orders.
    """
    if text.isascii():
        return text.casefold()
    folded = unicodedata.normalize("NFD", _INVISIBLE.sub("", text)).casefold()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", folded).casefold())


def _place_in_class(classes: Integers, count: Integers) -> Integers:
    """Return, for each row, the number of rows of its class that come before it."""
    order = np.argsort(classes, kind="stable")
    first = np.cumsum(count) - count
    place = np.empty_like(order)
    place[order] = np.arange(len(classes)) - first[classes[order]]
    return place
