"""The public schema of a table: the values that each column may have, and the features of each column.

The schema determines the encoding of a row from public values alone: bounds, categories, transforms and the scale.
Nothing is inferred from a table, so no row affects the encoding of another row.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast, get_args

from msgspec import Meta

from dpadmm.errors import StudyError
from dpadmm.parameters.fields import NOT_IN_FILE

Transform = Literal["none", "log"]
Missing = Literal["middle", "indicator"]
OTHER = "other"
OTHERS = (OTHER, "Other", "OTHER")
"""Cells that stand for a value outside of a category's list, unless they are in the list."""

MAX_VALUES = 10_000
MAX_TIMES = 50
ROW_NORMS = (1e-9, 1e9)
"""Limits of row_norm. Within them, no cell divided by row_norm overflows a float32."""
MAX_SCALE_RATIO = 1e6
"""Maximum ratio between the distance of the bounds and the scale, and vice versa."""


if TYPE_CHECKING:
    Values = tuple[str, ...]
else:  # a study file may list integers, which become text
    Values = Annotated[tuple[str | int, ...], Meta(extra_json_schema={"maxItems": MAX_VALUES, "uniqueItems": True})]


class Term:
    """Base class of everything that becomes features of a row."""

    kind: ClassVar[str]

    if TYPE_CHECKING:  # a property would be the default of a dataclass field

        @property
        def name(self) -> str: ...

    @property
    def is_one_hot(self) -> bool:
        """Whether exactly one feature of a row is 1 and the others are 0."""
        return False

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        raise NotImplementedError

    @property
    def sources(self) -> tuple[Any, ...]:
        """Columns of the table that are read."""
        return (self,)

    @property
    def max_norm(self) -> float:
        """Largest norm of the features, unless the column is plain."""
        return 1.0

    def normalized(self) -> Self:
        """Return the same column with floats and text in tuples, as in a study file."""
        return self


@dataclass(frozen=True)
class Number(Term):
    """A number, clamped to public bounds and mapped to [−1, 1].

    Parameters
    ----------
    bounds : (low, high)
        Public bounds.
    transform : {"none", "log"}
        ``"log"`` takes the natural logarithm of values and bounds; ``center`` and ``scale`` are then those of ln(x).
    bins : tuple of float
        Edges of intervals; the column becomes a category.
    missing : {"middle", "indicator"}
        A missing cell becomes the center (default: the middle of the bounds). ``"indicator"`` adds a feature for it.
    center, scale : float, optional
        Public typical value and spread. The feature is ``(x − center)/scale``. Values are rarely close to their bounds,
        so this loses less accuracy to the noise than bounds alone.
    knots : tuple of float
        The column becomes a linear spline (in ln(x) with a log). Each knot and bound has a feature that is 1 there,
        falls linearly to 0 at its neighbours, and is 0 beyond. These features are not negative and sum to 1, so their
        norm is at most 1. Missing cells have their own feature, as with bins.
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
        _check_choice(self.name, "transform", self.transform, get_args(Transform))
        _check_choice(self.name, "missing", self.missing, get_args(Missing))
        if self.transform == "log" and not low > 0.0:
            raise StudyError(f"column {self.name!r}: a log needs bounds above 0, not {low:g}")
        if self.transform == "log" and not math.log(low) < math.log(high):
            raise StudyError(f"column {self.name!r}: the bounds are too close for a log, {self.bounds!r}")
        for cuts, words, edges in (
            ("bins", "edges", _finite_numbers(self.name, "bins", self.bins)),
            ("knots", "numbers", _finite_numbers(self.name, "knots", self.knots)),
        ):
            if list(edges) != sorted(set(edges)) or (edges and not low < edges[0] <= edges[-1] < high):
                raise StudyError(
                    f"column {self.name!r}: {cuts} must be {words} that rise within the bounds, not {edges}"
                )
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
        center, scale = _finite(self.name, "center", self.center), _finite(self.name, "scale", self.scale)
        low, high = self.ends
        if not low <= center <= high:
            of = "the logarithms of the bounds" if self.transform == "log" else "the bounds"
            raise StudyError(f"column {self.name!r}: center must lie within {of}, {low:g} to {high:g}, not {center:g}")
        if not scale > 0.0 or not 1.0 / MAX_SCALE_RATIO <= (high - low) / scale <= MAX_SCALE_RATIO:
            raise StudyError(
                f"column {self.name!r}: scale must be positive and about the typical distance of values from center, "
                f"not {scale:g} for bounds {low:g} to {high:g}"
            )

    def normalized(self) -> Number:
        return replace(
            self,
            bounds=_pair(self.name, self.bounds),
            bins=_finite_numbers(self.name, "bins", self.bins),
            knots=_finite_numbers(self.name, "knots", self.knots),
            center=None if self.center is None else float(self.center),
            scale=None if self.scale is None else float(self.scale),
        )

    @property
    def is_one_hot(self) -> bool:
        return bool(self.bins)

    @property
    def ends(self) -> tuple[float, float]:
        """The bounds, or their logarithms."""
        low, high = self.bounds
        return (math.log(low), math.log(high)) if self.transform == "log" else (low, high)

    @property
    def nodes(self) -> tuple[float, ...]:
        """Knots and bounds, or their logarithms: the positions where a feature of the spline is 1."""
        low, high = self.ends
        return (low, *(map(math.log, self.knots) if self.transform == "log" else self.knots), high)

    @property
    def line(self) -> tuple[float, float]:
        """Offset and divisor of a value (or its logarithm)."""
        low, high = self.ends
        if self.center is not None and self.scale is not None:
            return self.center, self.scale
        half = (high - low) / 2.0
        return low + half, half

    @property
    def max_norm(self) -> float:
        """Largest norm of the features. An indicator of missing cells has norm 1."""
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
        has_indicator = self.bins or self.knots or self.missing == "indicator"
        return (*names, f"{self.name} missing") if has_indicator else tuple(names)


@dataclass(frozen=True)
class Category(Term):
    """A category with public values: one feature for each value, and ``other`` for other values and missing cells.

    ``unseen`` lists the values that do not occur in the public table from which the values were taken. The model's
    coefficients of these values are mostly noise.
    """

    name: str
    values: Values
    unseen: Values = ()

    kind: ClassVar[str] = "category"

    @property
    def is_one_hot(self) -> bool:
        return True

    def __post_init__(self) -> None:
        values = _values(self.name, self.values, min_count=1)
        if OTHER in values:
            raise StudyError(f"column {self.name!r}: leave {OTHER!r} out of the values; it stands for all other values")
        for value in _values(self.name, self.unseen, min_count=0):
            if value not in (*values, OTHER):
                raise StudyError(f"column {self.name!r}: unseen names {value!r}, which is none of its values")

    def normalized(self) -> Category:
        unseen = _values(self.name, self.unseen, min_count=0)
        return replace(self, values=_values(self.name, self.values, min_count=1), unseen=unseen)

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (*(f"{self.name}={value}" for value in self.values), f"{self.name}={OTHER}")


@dataclass(frozen=True)
class Ordinal(Term):
    """Public values in their order, mapped to [−1, 1] in equal steps. Other values are missing."""

    name: str
    values: Values
    missing: Missing = "middle"

    kind: ClassVar[str] = "ordinal"

    def __post_init__(self) -> None:
        _values(self.name, self.values, min_count=2)
        _check_choice(self.name, "missing", self.missing, get_args(Missing))

    def normalized(self) -> Ordinal:
        return replace(self, values=_values(self.name, self.values, min_count=2))

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.missing == "indicator" else (self.name,)


@dataclass(frozen=True)
class Boolean(Term):
    """True or false, mapped to 1 or −1. A missing cell is 0."""

    name: str
    missing: Missing = "middle"

    kind: ClassVar[str] = "boolean"

    def __post_init__(self) -> None:
        _check_choice(self.name, "missing", self.missing, get_args(Missing))

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.missing == "indicator" else (self.name,)


@dataclass(frozen=True)
class Plain(Term):
    """A number from a table that is already scaled, used as it is. Missing cells are errors."""

    name: str

    kind: ClassVar[str] = "plain"

    @cached_property
    def features(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class Label:
    """The label: one of public classes, or a number between public bounds.

    Parameters
    ----------
    column : str
        Column of the table.
    classes : tuple, optional
        Public classes, negative class first. They become −1 and 1, or 0 … p − 1.
    bounds : (low, high), optional
        Public bounds of a number, which is clamped and mapped to [−1, 1]. The lower bound of counts is 0.
    exposure, exposure_bound : str and float, optional
        Column with the years, doses or persons that a count belongs to, and their public maximum.
    times : tuple of float, optional
        Public grid of times. The label is then whether an event (1) or the end of observation (0) came at the time in
        the column ``exposure``. Events after the last time are not observed.
    weight, weight_bound : str and float, optional
        Column of sampling weights and their public maximum, to which they are clamped. The loss of a row is multiplied
        by ``weight/weight_bound``.
    class_weight : mapping, optional
        Public weight of each class, relative to the largest.
    drop_missing_labels : bool
        Whether rows with a missing label are accepted. They become rows of zeros, which have no effect on the model.
        They are still counted, because the number of rows is public and must not reveal which labels are missing.

    The product of both weights is in [0, 1], so a row with weights affects a query at most as much as one without.
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
    drop_missing_labels: bool = False
    counts: bool = field(default=False, metadata=NOT_IN_FILE)
    """Whether the loss is for counts, as in the study."""
    plain: bool = field(default=False, metadata=NOT_IN_FILE)
    """Whether the label is a number that is used as it is, as in studies with a list of features."""

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column.strip():
            raise StudyError(f"the label's column must be the name of a column, not {self.column!r}")
        if not isinstance(self.drop_missing_labels, bool):
            raise StudyError(
                f"the label's drop_missing_labels must be true or false, not {self.drop_missing_labels!r:.60}"
            )
        self._check_exposure()
        self._check_weight()
        if self.plain and self.classes is None and self.bounds is None:
            return
        if self.times is None and (self.classes is None) == (self.bounds is None):
            raise StudyError("the label needs either classes (negative first) or bounds [lowest, highest]")
        if self.classes is not None:
            _values(self.column, self.classes, min_count=2)
        elif self.bounds is not None:
            _pair(self.column, self.bounds)
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
            return
        times = list(_finite_numbers(self.column, "times", self.times))
        if not 1 <= len(times) <= MAX_TIMES or times != sorted(set(times)) or times[0] <= 0.0:
            raise StudyError(f"the label's times must be 1 to {MAX_TIMES} times that rise from above 0, not {times}")
        if self.exposure_bound is not None or self.bounds not in (None, (0, 1), [0, 1]) or self.classes is not None:
            raise StudyError("with times the label is 1 or 0, up to the last time: leave bounds and classes out")

    def _check_weight(self) -> None:
        if self.weight is None:
            if self.weight_bound is not None:
                raise StudyError("the label's weight_bound needs weight: the column of weights")
            return
        others, bound = (self.column, self.exposure), self.weight_bound
        if not isinstance(self.weight, str) or not self.weight.strip() or self.weight in others:
            raise StudyError(f"the label's weight must be the name of another column, not {self.weight!r:.60}")
        if bound is None or not _finite(self.column, "weight_bound", bound) > 0.0:
            raise StudyError(
                f"the label's weight_bound must be the largest weight, a public number above 0, not {bound!r:.60}"
            )

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
        classes, weights = [str(name) for name in self.classes], {str(name): weight for name, weight in given.items()}
        for name in weights:
            if name not in classes:
                listed = ", ".join(classes[:8])
                raise StudyError(f"the label's class_weight names {name!r:.60}, which is none of its classes {listed}")
        for name in classes:
            if name not in weights or not _finite(self.column, "class_weight", weights[name]) > 0.0:
                raise StudyError(
                    f"the label's class_weight must be a number above 0 for every class, and for {name!r:.60} it is "
                    f"{repr(weights[name]) if name in weights else 'missing'}"
                )

    def normalized(self) -> Label:
        """Return the same label with floats in tuples, and with bounds if it has times, as in a study file."""
        weights = {str(name): float(weight) for name, weight in (self.class_weight or {}).items()}
        bounds = (0, 1) if self.times else self.bounds
        return replace(
            self,
            classes=None if self.classes is None else tuple(self.classes),
            bounds=None if bounds is None else _pair(self.column, bounds),
            exposure_bound=None if self.exposure_bound is None else float(self.exposure_bound),
            times=None if self.times is None else _finite_numbers(self.column, "times", self.times),
            weight_bound=None if self.weight_bound is None else float(self.weight_bound),
            class_weight={str(name): weights[str(name)] for name in self.classes or ()} if weights else None,
        )

    @property
    def has_bounds(self) -> bool:
        """Whether the label is a number with public bounds. Labels with times have the bounds 0 and 1."""
        return self.bounds is not None or self.times is not None

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
        """Weight of each class, in the order of the classes, divided by the largest."""
        by_name = {str(name): float(weight) for name, weight in (self.class_weight or {}).items()}
        weights = [by_name[str(name)] for name in self.classes or () if by_name]
        return tuple(weight / max(weights) for weight in weights)

    @property
    def largest(self) -> float:
        """Largest count."""
        return self.bounds[1] if self.bounds else 1.0

    @property
    def longest(self) -> float:
        """Largest exposure."""
        return self.times[-1] if self.times else self.exposure_bound or 1.0

    @property
    def cuts(self) -> tuple[float, ...]:
        """Ends of the time intervals before the last, as shares of the last time."""
        return tuple(time / self.times[-1] for time in self.times[:-1]) if self.times else ()


Column = Number | Category | Ordinal | Boolean | Plain
KINDS: dict[str, type[Column]] = {column.kind: column for column in (Number, Category, Ordinal, Boolean, Plain)}


@dataclass(frozen=True)
class Interaction(Term):
    """An interaction of two columns: the products of their features, so the effect of one may depend on the other.

    ``‖φ(a) ⊗ φ(b)‖ = ‖φ(a)‖·‖φ(b)‖``, which is at most 1 if both norms are.
    """

    left: Column
    right: Column

    @property
    def name(self) -> str:
        return f"{self.left.name} × {self.right.name}"

    @property
    def is_one_hot(self) -> bool:
        return self.left.is_one_hot and self.right.is_one_hot

    @property
    def max_norm(self) -> float:
        """Largest norm of the features, the product of both norms."""
        return self.left.max_norm * self.right.max_norm

    @cached_property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{one} × {other}" for one in self.left.features for other in self.right.features)


@dataclass(frozen=True)
class Schema:
    """The columns of a study, and the bound R that rows are divided by.

    Each column and each interaction adds at most 1 to the squared norm of a row, so the default ``R = √(columns +
    interactions)`` gives rows with norms of at most 1. Exceptions are plain columns, and numbers with a center and a
    scale, which typically add 1: rows with norms above R are clipped to it. ``row_norm`` sets another R. Features of
    interactions follow those of the columns.

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
            raise StudyError("a study needs at least one column in addition to the label")
        _check_unique("column", [column.name for column in self.columns])
        self._check_interactions()
        _check_unique("feature", list(self.features))
        if self.row_norm is not None:
            low, high = ROW_NORMS
            if not low <= _finite("row_norm", "row_norm", self.row_norm) <= high:
                raise StudyError(f"row_norm must be a positive number from {low:g} to {high:g}, not {self.row_norm!r}")

    def normalized(self) -> Schema:
        """Return the same schema with floats and text in tuples, as in a study file."""
        pairs = tuple((one, other) for one, other in self.interactions)
        row_norm = None if self.row_norm is None else float(self.row_norm)
        columns = tuple(column.normalized() for column in self.columns)
        return replace(self, columns=columns, row_norm=row_norm, interactions=pairs)

    def _check_interactions(self) -> None:
        by_name, pairs = {column.name: column for column in self.columns}, set[frozenset[str]]()
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
            if width > MAX_VALUES:
                raise StudyError(
                    f"interactions: {one!r} and {other!r} would have {width:,} features; the limit is {MAX_VALUES:,}"
                )

    @cached_property
    def terms(self) -> tuple[Column | Interaction, ...]:
        """Columns, then interactions, in the order of the weights."""
        by_name = {column.name: column for column in self.columns}
        return (*self.columns, *(Interaction(by_name[one], by_name[other]) for one, other in self.interactions))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in the order of the weights."""
        return tuple(name for term in self.terms for name in term.features)

    @cached_property
    def sources(self) -> tuple[Column, ...]:
        """Columns of the table that are read: these, or those of counts and two-way tables (``tabulation.py``)."""
        return tuple(dict.fromkeys(source for column in self.columns for source in column.sources))

    @cached_property
    def scale(self) -> float:
        """R, by which features are divided. Slightly above √columns, so that rounding cannot raise a norm above 1."""
        return float(self.row_norm) if self.row_norm is not None else self._usual or 1.0

    @cached_property
    def bounded(self) -> bool:
        """Whether no row can have a norm above 1, so that clipping is never needed."""
        max_norm = math.sqrt(sum(term.max_norm**2 for term in self.terms))
        plain = any(isinstance(column, Plain) for column in self.columns)
        return not plain and self.scale >= max_norm * self._rounded_up

    @property
    def _usual(self) -> float:
        return math.sqrt(sum(not isinstance(term, Plain) for term in self.terms)) * self._rounded_up

    @property
    def _rounded_up(self) -> float:
        """Upper bound on the factor by which rounding to float32 raises a norm. Products are rounded once more."""
        return 1.0 + (2.0**-20 if self.interactions else 2.0**-22)

    @cached_property
    def n_categories(self) -> int:
        """Number of terms that are one-hot. If there are any, rows are coded; see :mod:`dpadmm.matrices.coded`."""
        return sum(term.is_one_hot for term in self.terms)

    @cached_property
    def number_places(self) -> tuple[int, ...]:
        """Indices of the features that belong to no category."""
        of_number = [not term.is_one_hot for term in self.terms for _ in term.features]
        return tuple(place for place, number in enumerate(of_number) if number)


def plain_schema(features: tuple[str, ...]) -> Schema:
    """Return the schema of a study that lists numeric columns, which are used as they are."""
    return Schema(tuple(Plain(name) for name in features))


def _values(name: str, values: Sequence[Any], *, min_count: int) -> tuple[str, ...]:
    """Return public values as text. Raise StudyError if one is invalid."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not min_count <= len(values) <= MAX_VALUES:
        raise StudyError(f"column {name!r}: values must be a list of {min_count} to {MAX_VALUES} public values")
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
    _check_unique(f"column {name!r}: value", texts)
    return tuple(texts)


def _check_unique(what: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise StudyError(f"{what} {name!r} is there twice")
        seen.add(name)


def _check_choice(name: str, what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise StudyError(f"column {name!r}: {what} must be {' or '.join(choices)}, not {value!r}")


def _finite(name: str, what: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(cast(float, value)) <= sys.float_info.max:  # integers in JSON may exceed it
        raise StudyError(f"column {name!r}: {what} must be finite numbers, not {value!r}")
    return float(cast(float, value))


def _finite_numbers(name: str, what: str, values: Sequence[object]) -> tuple[float, ...]:
    return tuple(_finite(name, what, value) for value in values)


def _pair(name: str, values: object) -> tuple[float, float]:
    if not isinstance(values, list | tuple) or len(values) != 2:
        raise StudyError(f"column {name!r}: bounds must be two numbers [lowest, highest], not {values!r}")
    low, high = _finite(name, "bounds", values[0]), _finite(name, "bounds", values[1])
    if not low < high:
        raise StudyError(f"column {name!r}: bounds must rise, not [{low:g}, {high:g}]")
    if not 0.0 < (high - low) / 2.0 < math.inf:
        raise StudyError(f"column {name!r}: bounds must not be so far apart or so close, [{low:g}, {high:g}]")
    return low, high
