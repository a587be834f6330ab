"""The public schema of a table: what each column may hold, and the features it becomes.

Everything about the encoding of a row is decided here, from public values alone: bounds, categories,
transforms and the scale. Nothing is ever learnt from a table, so no row changes how another one is encoded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast, get_args

from msgspec import Meta

from dpadmm.errors import StudyError
from dpadmm.parameters.fields import NOT_IN_FILE

Transform = Literal["none", "log"]
Missing = Literal["middle", "indicator"]
OTHER = "other"
OTHERS = (OTHER, "Other", "OTHER")
"""Cells that mean what is none of a category's values, where they are no values of it."""

MOST_VALUES = 10_000
MOST_TIMES = 50
ROW_NORMS = (1e-9, 1e9)
"""Between these, no cell divided by R is too large for a float32: else a cell could make a row unusable."""
MOST_REACH = 1e6
"""Bounds may be so many scales apart; a scale may be as many times their distance."""


if TYPE_CHECKING:
    Values = tuple[str, ...]
else:  # whole numbers are names of values too, and become text
    Values = Annotated[tuple[str | int, ...], Meta(extra_json_schema={"maxItems": MOST_VALUES, "uniqueItems": True})]


@dataclass(frozen=True)
class Number:
    """A number between public bounds -> −1 … 1; beyond the bounds it is clamped.

    With a public ``center`` and ``scale``, a usual value and a usual distance from it (a mean and a standard
    deviation known from elsewhere), it is ``(x − center)/scale``: bounds are seldom reached, and features that
    are small beside them drown in the noise. ``transform="log"`` takes ``ln(x)`` of values and bounds, and center
    and scale are then of ln(x); ``bins`` make it a category of intervals. A missing cell is the center (the
    middle of the bounds), or that and a feature that says so (``missing="indicator"``).

    ``knots`` make it a linear spline: a feature for every knot and both bounds, which is 1 there, falls to 0 at
    the next ones, and is straight in between (after a log, in ln(x)). The features of a value are not negative
    and sum to 1, so their length is at most 1. A missing cell has a feature of its own, as with bins.
    """

    name: str
    bounds: tuple[float, float]
    transform: Transform = "none"
    bins: tuple[float, ...] = ()
    missing: Missing = "middle"
    center: float | None = None
    scale: float | None = None
    knots: tuple[float, ...] = ()

    kind: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        low, high = _pair(self.name, self.bounds)
        _one_of(self.name, "transform", self.transform, get_args(Transform))
        _one_of(self.name, "missing", self.missing, get_args(Missing))
        if self.transform == "log" and not low > 0.0:
            raise StudyError(f"column {self.name!r}: a log needs bounds above 0, not {low:g}")
        if self.transform == "log" and not math.log(low) < math.log(high):
            raise StudyError(f"column {self.name!r}: the bounds are too close for a log, {self.bounds!r}")
        object.__setattr__(self, "bounds", (low, high))
        for cuts, words in (("bins", "edges"), ("knots", "numbers")):
            edges = [_finite(self.name, cuts, edge) for edge in getattr(self, cuts)]
            if edges != sorted(set(edges)) or (edges and not low < edges[0] <= edges[-1] < high):
                raise StudyError(
                    f"column {self.name!r}: {cuts} must be {words} that rise within the bounds, not {tuple(edges)}"
                )
            object.__setattr__(self, cuts, tuple(edges))
        if self.bins and self.knots:
            raise StudyError(f"column {self.name!r}: bins cut it into steps and knots into lines; give one of them")
        if len(set(self.nodes)) < len(self.knots) + 2:
            raise StudyError(f"column {self.name!r}: knots are too close to each other or to a bound, {self.knots}")
        self._check_scale()

    def _check_scale(self) -> None:
        if (self.center is None) != (self.scale is None):
            raise StudyError(f"column {self.name!r}: center and scale belong together; give both, or bounds alone")
        if self.center is None or self.scale is None:
            return
        if self.bins or self.knots:
            cuts = "bins" if self.bins else "knots"
            raise StudyError(f"column {self.name!r}: {cuts} need no center and scale; leave them out")
        center, scale = (_finite(self.name, each, getattr(self, each)) for each in ("center", "scale"))
        low, high = self.ends
        if not low <= center <= high:
            of = "the logarithms of the bounds" if self.transform == "log" else "the bounds"
            raise StudyError(f"column {self.name!r}: center must lie within {of}, {low:g} to {high:g}, not {center:g}")
        if not scale > 0.0 or not 1.0 / MOST_REACH <= (high - low) / scale <= MOST_REACH:
            raise StudyError(
                f"column {self.name!r}: scale must be a positive number of the size of the values' usual distance "
                f"from center, not {scale:g} for bounds {low:g} to {high:g}"
            )
        object.__setattr__(self, "center", center)
        object.__setattr__(self, "scale", scale)

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds, or their logarithms."""
        low, high = self.bounds
        return (math.log(low), math.log(high)) if self.transform == "log" else (low, high)

    @property
    def nodes(self) -> tuple[float, ...]:
        """Where the features of a spline are 1: knots and bounds, or their logarithms."""
        low, high = self.ends
        return (low, *(map(math.log, self.knots) if self.transform == "log" else self.knots), high)

    @property
    def line(self) -> tuple[float, float]:
        """What is subtracted from a value (or its logarithm), and what the difference is divided by."""
        low, high = self.ends
        if self.center is not None and self.scale is not None:
            return self.center, self.scale
        half = (high - low) / 2.0
        return low + half, half

    @property
    def reach(self) -> float:
        """The largest length of its features; that of a missing cell is 1 where it has a feature of its own."""
        if self.center is None or self.scale is None:
            return 1.0
        low, high = self.ends
        return max((high - self.center) / self.scale, (self.center - low) / self.scale, float(len(self.features) > 1))

    @cached_property
    def features(self) -> tuple[str, ...]:
        if self.bins:
            edges = [self.bounds[0], *self.bins, self.bounds[1]]
            names = [f"{self.name} {a:g} to {b:g}" for a, b in pairwise(edges)]
        elif self.knots:
            names = [f"{self.name} at {knot:g}" for knot in (self.bounds[0], *self.knots, self.bounds[1])]
        else:
            names = [self.name]
        says_missing = self.bins or self.knots or self.missing == "indicator"
        return (*names, f"{self.name} missing") if says_missing else tuple(names)


@dataclass(frozen=True)
class Category:
    """One of public values -> one feature each, and one, ``other``, for everything else (and for missing cells).

    ``unseen`` are those that no row of the public table had which the values come from: what a model learns of
    them is likely noise.
    """

    name: str
    values: Values
    unseen: Values = ()

    kind: ClassVar[str] = "category"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values(self.name, self.values, least=1))
        if OTHER in self.values:
            raise StudyError(f"column {self.name!r}: leave {OTHER!r} out of the values; it is what all others become")
        object.__setattr__(self, "unseen", _values(self.name, self.unseen, least=0))
        for each in self.unseen:
            if each not in (*self.values, OTHER):
                raise StudyError(f"column {self.name!r}: unseen names {each!r}, which is none of its values")

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (*(f"{self.name}={value}" for value in self.values), f"{self.name}={OTHER}")


@dataclass(frozen=True)
class Ordinal:
    """One of public values in their order -> −1 … 1 in equal steps; anything else is missing: the middle."""

    name: str
    values: Values
    missing: Missing = "middle"

    kind: ClassVar[str] = "ordinal"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values(self.name, self.values, least=2))
        _one_of(self.name, "missing", self.missing, get_args(Missing))

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.missing == "indicator" else (self.name,)


@dataclass(frozen=True)
class Boolean:
    """True or false -> 1 or −1; a missing cell is 0, or 0 and a feature of its own that says so."""

    name: str
    missing: Missing = "middle"

    kind: ClassVar[str] = "boolean"

    def __post_init__(self) -> None:
        _one_of(self.name, "missing", self.missing, get_args(Missing))

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.missing == "indicator" else (self.name,)


@dataclass(frozen=True)
class Plain:
    """A number that is taken as it is, from a table that was scaled before; missing cells are refused."""

    name: str

    kind: ClassVar[str] = "plain"

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class Label:
    """What is predicted: one of public ``classes`` (negative first), or a number between public ``bounds``.

    Classes become −1 and 1, or 0 … p − 1. A number is clamped and becomes −1 … 1, as models are trained.

    Of counts (loss poisson) the lower bound is 0, and ``exposure`` may name a column of years, doses or persons that
    they belong to, up to ``exposure_bound``. With ``times``, a public grid, the label is whether an event (1) or the
    end of observation (0) came at the time in the column ``exposure``; what is later than the last time is not seen.

    ``weight`` may name a column of sampling weights: a row's loss is multiplied with ``ω = weight/weight_bound``, and
    larger weights are taken to be the bound. ``class_weight`` has a public number for every class, of which the largest
    counts as 1. So ω lies between 0 and 1, and no weight makes a row say more than one without weights.
    """

    column: str
    classes: tuple[str | int, ...] | None = None
    bounds: tuple[float, float] | None = None
    exposure: str | None = None
    exposure_bound: float | None = None
    times: tuple[float, ...] | None = None
    weight: str | None = None
    weight_bound: float | None = None
    class_weight: Mapping[str, float] | None = None
    counts: bool = field(default=False, metadata=NOT_IN_FILE)
    """Whether the loss is of counts; the study says so."""
    plain: bool = field(default=False, metadata=NOT_IN_FILE)
    """A number that is taken as it is; studies of plain features have it."""

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column.strip():
            raise StudyError(f"the label's column must be the name of a column, not {self.column!r}")
        self._check_exposure()
        self._check_weight()
        if self.plain and self.classes is None and self.bounds is None:
            return
        if (self.classes is None) == (self.bounds is None):
            raise StudyError("the label needs either classes (negative first) or bounds [lowest, highest]")
        if self.classes is not None:
            _values(self.column, self.classes, least=2)
            object.__setattr__(self, "classes", tuple(self.classes))
        else:
            object.__setattr__(self, "bounds", _pair(self.column, self.bounds))
        self._check_class_weight()

    def _check_exposure(self) -> None:
        if self.exposure is None:
            if self.exposure_bound is not None or self.times is not None:
                raise StudyError("the label's exposure_bound and times need exposure: the column of exposures or times")
            return
        if not isinstance(self.exposure, str) or not self.exposure.strip() or self.exposure == self.column:
            raise StudyError(f"the label's exposure must be the name of another column, not {self.exposure!r:.60}")
        if self.times is None:
            bound = self.exposure_bound
            if bound is None or not _finite(self.column, "exposure_bound", bound) > 0.0:
                raise StudyError(f"the label's exposure_bound must be the largest exposure, above 0, not {bound!r:.60}")
            object.__setattr__(self, "exposure_bound", float(bound))
            return
        times = [_finite(self.column, "times", each) for each in self.times]
        if not 1 <= len(times) <= MOST_TIMES or times != sorted(set(times)) or times[0] <= 0.0:
            raise StudyError(f"the label's times must be 1 to {MOST_TIMES} times that rise from above 0, not {times}")
        if self.exposure_bound is not None or self.bounds not in (None, (0, 1), [0, 1]) or self.classes is not None:
            raise StudyError("with times the label is 1 or 0, up to the last time: leave bounds and classes out")
        object.__setattr__(self, "times", tuple(times))
        object.__setattr__(self, "bounds", (0.0, 1.0))

    def _check_weight(self) -> None:
        if self.weight is None:
            if self.weight_bound is not None:
                raise StudyError("the label's weight_bound needs weight: the column of weights")
            return
        known, bound = (self.column, self.exposure), self.weight_bound
        if not isinstance(self.weight, str) or not self.weight.strip() or self.weight in known:
            raise StudyError(f"the label's weight must be the name of another column, not {self.weight!r:.60}")
        if bound is None or not _finite(self.column, "weight_bound", bound) > 0.0:
            raise StudyError(
                f"the label's weight_bound must be the largest weight, a public number above 0, not {bound!r:.60}"
            )
        object.__setattr__(self, "weight_bound", float(bound))

    def _check_class_weight(self) -> None:
        given = self.class_weight
        if given is None:
            return
        if self.classes is None:
            raise StudyError("the label's class_weight needs classes, and this label is a number; leave it out")
        if not isinstance(given, Mapping):
            raise StudyError(
                f"the label's class_weight must be a table of classes and numbers, such as {{ yes = 3.0, no = 1.0 }}, "
                f"not {given!r:.60}"
            )
        classes, said = [str(each) for each in self.classes], {str(name): each for name, each in given.items()}
        for name in said:
            if name not in classes:
                listed = ", ".join(classes[:8])
                raise StudyError(f"the label's class_weight names {name!r:.60}, which is none of its classes {listed}")
        for name in classes:
            if name not in said or not _finite(self.column, "class_weight", said[name]) > 0.0:
                raise StudyError(
                    f"the label's class_weight must be a number above 0 for every class, and for {name!r:.60} it is "
                    f"{repr(said[name]) if name in said else 'missing'}"
                )
        object.__setattr__(self, "class_weight", {name: float(said[name]) for name in classes})

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        return self.weight is not None or self.class_weight is not None

    @property
    def unweighted(self) -> Label:
        """The same label without weights."""
        return replace(self, weight=None, weight_bound=None, class_weight=None)

    @property
    def class_shares(self) -> tuple[float, ...]:
        """ω of every class, of which the largest is 1."""
        weights = tuple((self.class_weight or {}).values())
        return tuple(each / max(weights) for each in weights)

    @property
    def largest(self) -> float:
        """The largest count."""
        return self.bounds[1] if self.bounds else 1.0

    @property
    def longest(self) -> float:
        """The largest exposure."""
        return self.times[-1] if self.times else self.exposure_bound or 1.0

    @property
    def cuts(self) -> tuple[float, ...]:
        """Where intervals of time end before the last one, in shares of the longest."""
        return tuple(time / self.times[-1] for time in self.times[:-1]) if self.times else ()


Column = Number | Category | Ordinal | Boolean | Plain
KINDS: dict[str, type[Column]] = {each.kind: each for each in (Number, Category, Ordinal, Boolean, Plain)}


@dataclass(frozen=True)
class Interaction:
    """Two columns together: the products of their features, so that the effect of one may depend on the other.

    ``‖φ(a) ⊗ φ(b)‖ = ‖φ(a)‖·‖φ(b)‖``: where both are at most 1, so are the products.
    """

    left: Column
    right: Column

    @property
    def name(self) -> str:
        return f"{self.left.name} × {self.right.name}"

    @property
    def reach(self) -> float:
        """The largest length of its features."""
        return reach(self.left) * reach(self.right)

    @cached_property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{one} × {other}" for one in self.left.features for other in self.right.features)


def reach(column: Column | Interaction) -> float:
    """The largest length of a column's features, unless it is plain."""
    return float(getattr(column, "reach", 1.0))


@dataclass(frozen=True)
class Schema:
    """The columns of a study, and the public length R that rows are divided by.

    Every column, and every pair of columns in ``interactions``, adds at most 1 to the squared length of a row, so
    ``R = √(columns + interactions)`` gives rows of length at most 1; except plain columns, and numbers with a
    center and a scale, which add about 1: of those, rows beyond R are shortened to it. Another R may be declared as
    ``row_norm``. Features of interactions follow those of the columns.

    Examples
    --------
    >>> schema = Schema((Number("age", (0, 120)), Category("sex", ("f", "m")), Boolean("smoker")))
    >>> schema.features, round(schema.scale, 3)
    (('age', 'sex=f', 'sex=m', 'sex=other', 'smoker'), 1.732)
    """

    columns: tuple[Column, ...]
    row_norm: float | None = None
    interactions: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise StudyError("a study needs at least one column beside the label")
        _unique("column", [each.name for each in self.columns])
        object.__setattr__(self, "interactions", self._checked_interactions())
        _unique("feature", list(self.features))
        if self.row_norm is not None:
            least, most = ROW_NORMS
            if not least <= _finite("row_norm", "row_norm", self.row_norm) <= most:
                raise StudyError(
                    f"row_norm must be a positive number from {least:g} to {most:g}, not {self.row_norm!r}"
                )

    def _checked_interactions(self) -> tuple[tuple[str, str], ...]:
        by_name, pairs = {each.name: each for each in self.columns}, set[frozenset[str]]()
        given: Any = self.interactions
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise StudyError(f"interactions must be a list of pairs of columns, not {given!r:.60}")
        for pair in given:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise StudyError(f'interactions must be pairs of columns, such as ["age", "sex"], not {pair!r:.60}')
            for name in pair:
                if not isinstance(name, str) or name not in by_name:
                    raise StudyError(f"interactions: there is no column {name!r:.60} in the study")
                if isinstance(by_name[name], Plain):
                    raise StudyError(f"interactions: column {name!r} is plain, so that a product would have no bound")
            one, other = pair
            if one == other:
                raise StudyError(f"interactions: {one!r} is paired with itself; give the column knots or bins")
            if frozenset(pair) in pairs:
                raise StudyError(f"interactions: {one!r} and {other!r} are paired twice")
            pairs.add(frozenset(pair))
            width = len(by_name[one].features) * len(by_name[other].features)
            if width > MOST_VALUES:
                words = f"{one!r} and {other!r} would make {width:,} features"
                raise StudyError(f"interactions: {words}, and {MOST_VALUES:,} are the most")
        return tuple((str(one), str(other)) for one, other in given)

    @cached_property
    def terms(self) -> tuple[Column | Interaction, ...]:
        """All that makes features, in the order of the weights: the columns, then the interactions."""
        by_name = {each.name: each for each in self.columns}
        return (*self.columns, *(Interaction(by_name[one], by_name[other]) for one, other in self.interactions))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in the order of the weights."""
        return tuple(name for term in self.terms for name in term.features)

    @cached_property
    def sources(self) -> tuple[Column, ...]:
        """The table's columns that are read: these, or what counts and tables (``tabulation.py``) are made of."""
        return tuple(dict.fromkeys(one for each in self.columns for one in getattr(each, "sources", (each,))))

    @cached_property
    def scale(self) -> float:
        """R: features are divided by it; a hair above √columns, so that no rounding makes a row too long."""
        return float(self.row_norm) if self.row_norm is not None else self._usual or 1.0

    @cached_property
    def bounded(self) -> bool:
        """Whether no row can be longer than 1, whatever its cells are, so that none needs to be shortened."""
        longest = math.sqrt(sum(reach(each) ** 2 for each in self.terms))
        plain = any(isinstance(each, Plain) for each in self.columns)
        return not plain and self.scale >= longest * self._rounded_up

    @property
    def _usual(self) -> float:
        return math.sqrt(sum(not isinstance(each, Plain) for each in self.terms)) * self._rounded_up

    @property
    def _rounded_up(self) -> float:
        """More than what roundings to float32 can make a row longer; products are rounded once more."""
        return 1.0 + (2.0**-20 if self.interactions else 2.0**-22)

    @cached_property
    def n_categories(self) -> int:
        """Columns of which every row sets one feature; with any, rows are coded (:mod:`dpadmm.matrices.coded`)."""
        return sum(map(_is_category, self.terms))

    @cached_property
    def number_places(self) -> tuple[int, ...]:
        """Which features are numbers, and belong to no category."""
        of_number = [not _is_category(term) for term in self.terms for _ in term.features]
        return tuple(place for place, number in enumerate(of_number) if number)


def _is_category(term: Column | Interaction) -> bool:
    if isinstance(term, Interaction):
        return _is_category(term.left) and _is_category(term.right)
    cut = isinstance(term, Number) and bool(term.bins)
    return isinstance(term, Category) or cut or getattr(term, "one_hot", False)


def _values(name: str, values: Sequence[Any], *, least: int) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not least <= len(values) <= MOST_VALUES:
        raise StudyError(f"column {name!r}: values must be a list of {least} to {MOST_VALUES} public values")
    texts = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise StudyError(f"column {name!r}: a value must be text or a whole number, not {value!r}")
        text = str(value)
        if not text.strip():
            raise StudyError(f"column {name!r}: a value must not be empty, as {text[:40]!r} is")
        if text != text.strip():
            raise StudyError(f"column {name!r}: a value must have no blanks around it, as {text!r} has")
        texts.append(text)
    _unique(f"column {name!r}: value", texts)
    return tuple(texts)


def _unique(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise StudyError(f"{what} {name!r} is there twice")
        seen.add(name)


def _one_of(name: str, what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise StudyError(f"column {name!r}: {what} must be {' or '.join(known)}, not {value!r}")


def _finite(name: str, what: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(cast(float, value)) <= sys.float_info.max:  # JSON has whole numbers beyond it
        raise StudyError(f"column {name!r}: {what} must be finite numbers, not {value!r}")
    return float(cast(float, value))


def _pair(name: str, values: object) -> tuple[float, float]:
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise StudyError(f"column {name!r}: bounds must be two numbers [lowest, highest], not {values!r}")
    low, high = _finite(name, "bounds", values[0]), _finite(name, "bounds", values[1])
    if not low < high:
        raise StudyError(f"column {name!r}: bounds must rise, not [{low:g}, {high:g}]")
    if not 0.0 < (high - low) / 2.0 < math.inf:
        raise StudyError(f"column {name!r}: bounds must not be so far apart or so close, [{low:g}, {high:g}]")
    return low, high
