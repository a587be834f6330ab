"""Private statistics as tables: consistent counts, means, quantiles and two-way tables, with standard errors.

All of it is post-processing of one release (:class:`Released`) and public numbers. Counts of a column add up to the
number of rows, and the margins of a two-way table to the counts of its columns; this is linear, so that standard errors
stay exact: the noise of every count is independent and has the same σ. What is then below 0 is cut: counts are the
nearest ones that are not negative and have the same total, and tables are scaled to their margins. Their errors are at
most those that are given, over all bins together, since the truth is not negative either
(docs/decisions/0021-statistics.md).

``noise_se`` counts the privacy noise alone, as for a statement about these very rows; ``se`` also that they are a
sample.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpadmm.accounting.report import privacy_sentence
from dpadmm.data.schema import Boolean, Category, Number, Ordinal
from dpadmm.data.schema_file import RELEASED, schema_as_json
from dpadmm.data.tabulation import Counts, Crossed, NumberMoments
from dpadmm.errors import DataError, DPADMMError, StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.methods import Released, ReleaseRounds, StatisticsRelease
from dpadmm.models.file import require_texts
from dpadmm.models.model import Finished
from dpadmm.parameters.suggestions import first_of, unknown_name
from dpadmm.studies.drafts import Draft, DraftColumn
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study

FORMAT = "dpadmm-description/1"
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles that are given."""

CLEAR = 2.0
"""Standard errors that a variance is above 0, where a standard deviation is given."""

LARGEST = 10**12


class Estimate(NamedTuple):
    """A number, the standard error of its privacy noise, and that which counts the sample too."""

    value: float
    noise_se: float
    se: float


@dataclass(frozen=True, eq=False)
class ColumnSummary:
    """What is known of a column: counts by bin, missing cells last; of numbers also moments and quantiles.

    Moments and quantiles are of cells that are not missing, clamped to the bounds; with ``transform`` log, mean and
    standard deviation are those of ln(x). ``sd`` is None where noise hides it.
    """

    bins: Counts
    counts: Floats
    noise_se: float
    mean: Estimate | None = None
    sd: Estimate | None = None
    quantiles: Mapping[float, Estimate] | None = None

    @property
    def name(self) -> str:
        return self.bins.name

    @property
    def missing(self) -> float:
        return float(self.counts[-1])

    @property
    def rows(self) -> float:
        """Cells that are not missing."""
        return float(self.counts[:-1].sum())

    def as_json(self) -> dict[str, Any]:
        bins = zip(self.bins.labels, self.counts.tolist(), strict=True)
        found: dict[str, Any] = {
            "name": self.name,
            "kind": self.bins.column.kind,
            "count_noise_se": self.noise_se,
            "bins": [{"label": label, "count": count} for label, count in bins],
            "missing": self.missing,
        }
        if self.quantiles is not None and self.mean is not None and isinstance(self.bins.column, Number):
            found |= {
                "edges": list(self.bins.edges),
                "moments_of": "ln(x)" if self.bins.column.transform == "log" else "x",
                "mean": self.mean._asdict(),
                "sd": self.sd and self.sd._asdict(),
                "quantiles": [{"level": level, **each._asdict()} for level, each in self.quantiles.items()],
            }
        return found


@dataclass(frozen=True, eq=False)
class TwoWay:
    """A two-way table: counts by the bins of one column (down) and of another (across)."""

    pair: tuple[Counts, Counts]
    counts: Floats
    noise_se: float

    def as_json(self) -> dict[str, Any]:
        one, other = self.pair
        return {
            "rows": one.name,
            "columns": other.name,
            "row_labels": list(one.labels),
            "column_labels": list(other.labels),
            "counts": self.counts.tolist(),
            "noise_se": self.noise_se,
        }


@dataclass(frozen=True, eq=False)
class Description:
    """The result of a statistics study.

    ``all_count``: no row can be silent, as in one process; else how many count is estimated from the release.
    """

    study: Study
    released: Released
    all_count: bool
    privacy: Mapping[str, Any]
    statement: Mapping[str, Any]

    @cached_property
    def noise(self) -> float:
        """σ of every count, mean and square, in rows."""
        return self.released.noise_std * self._unit

    @property
    def _unit(self) -> float:
        assert self.study.encoding is not None
        return self.study.encoding.scale

    @cached_property
    def _parts(self) -> list[tuple[Any, Floats]]:
        """What was released of each column and table, in counts."""
        assert self.study.encoding is not None
        found, first = [], 0
        for each in self.study.encoding.columns:
            width = len(each.features)
            found.append((each, self.released.sums[first : first + width] * self._unit))
            first += width
        return found

    @cached_property
    def total(self) -> Estimate:
        """Rows that count: all, or by the counts of all columns, each weighted by its noise."""
        if self.all_count:
            return Estimate(float(self.released.n_rows), 0.0, 0.0)
        sums = [(float(noisy.sum()), len(noisy)) for each, noisy in self._parts if isinstance(each, Counts)]
        weight = sum(1.0 / size for _, size in sums)
        value = sum(total / size for total, size in sums) / weight
        error = self.noise / math.sqrt(weight)
        return Estimate(min(max(value, 1.0), float(self.released.n_rows)), error, error)

    @cached_property
    def columns(self) -> dict[str, ColumnSummary]:
        """Every column, by its name."""
        moments = {each.column.name: noisy for each, noisy in self._parts if isinstance(each, NumberMoments)}
        found = {}
        for bins, noisy in self._parts:
            if isinstance(bins, Counts):
                size = len(noisy)
                even = noisy + (self.total.value - noisy.sum()) / size
                counts = not_negative(even, self.total.value)
                error = math.hypot(self.noise * math.sqrt(1.0 - 1.0 / size), self.total.noise_se / size)
                told = self._of_number(bins, counts, error, moments[bins.name]) if bins.name in moments else ()
                found[bins.name] = ColumnSummary(bins, counts, error, *told)
        return found

    @cached_property
    def tables(self) -> list[TwoWay]:
        """Every two-way table, with the margins of :attr:`columns`."""
        found = []
        for each, noisy in self._parts:
            if isinstance(each, Crossed):
                one, other = (self.columns[bins.name] for bins in each.pair)
                a, b = len(one.counts), len(other.counts)
                inside = (1.0 - 1.0 / a) * (1.0 - 1.0 / b)
                error = math.hypot(self.noise * math.sqrt(inside), one.noise_se / b, other.noise_se / a)
                found.append(TwoWay(each.pair, with_margins(noisy.reshape(a, b), one.counts, other.counts), error))
        return found

    def _of_number(
        self, bins: Counts, counts: Floats, count_error: float, moments: Floats
    ) -> tuple[Estimate, Estimate | None, dict[float, Estimate]]:
        """Mean, standard deviation and quantiles of a number."""
        assert isinstance(bins.column, Number)
        (low, high), n = bins.column.ends, max(float(counts[:-1].sum()), 1.0)
        half, middle = (high - low) / 2.0, (high + low) / 2.0
        x, y = (float(each) for each in np.clip(moments / n, -1.0, 1.0))
        variance = (y + 1.0) / 2.0 - x * x
        x_error = math.hypot(self.noise, x * count_error) / n
        error = math.hypot(0.5 * self.noise, 2.0 * x * self.noise, (2.0 * x * x - 0.5 * y) * count_error) / n
        sample = math.sqrt(max(variance, 0.0) / n)
        mean = Estimate(middle + half * x, half * x_error, half * math.hypot(x_error, sample))
        sd = None
        if variance > CLEAR * error:
            root = math.sqrt(variance)
            by_noise = error / (2.0 * root)
            sd = Estimate(half * root, half * by_noise, half * math.hypot(by_noise, root / math.sqrt(2.0 * n)))
        return mean, sd, self._quantiles(bins, counts[:-1], n)

    def _quantiles(self, bins: Counts, counts: Floats, n: float) -> dict[float, Estimate]:
        """By the line through the cumulated counts at the edges; errors by how far a share of rows moves it."""
        edges, reached = np.array(bins.edges), np.concatenate([[0.0], np.cumsum(counts)]) / n
        steps = np.arange(len(reached))
        noise = self.noise * np.sqrt(steps * (1.0 - steps / (len(reached) + 1.0))) / n

        def value(level: float) -> float:
            return float(np.interp(np.clip(level, 0.0, 1.0), reached, edges))

        found = {}
        for level in LEVELS:
            by_noise = float(np.interp(value(level), edges, noise))
            both = math.hypot(by_noise, math.sqrt(level * (1.0 - level) / n))
            errors = [(value(level + each) - value(level - each)) / 2.0 for each in (by_noise, both)]
            found[level] = Estimate(value(level), *errors)
        return found

    @property
    def sentence(self) -> str:
        """What to say beside the numbers."""
        return (
            f"{privacy_sentence(self.privacy)} Every count has noise of standard deviation {self.noise:,.1f}; standard "
            "errors include it."
        )

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values; :func:`load_description` takes the file back."""
        return {
            "format": FORMAT,
            "name": self.study.name,
            "rows": self.released.n_rows,
            "rows_that_count": self.total._asdict(),
            "noise_of_a_count": self.noise,
            "privacy_sentence": self.sentence,
            "columns": [each.as_json() for each in self.columns.values()],
            "tables": [each.as_json() for each in self.tables],
            "study": self.study.as_json(),
            "released": {
                "n_rows": self.released.n_rows,
                "noise_std": self.released.noise_std,
                "sums": self.released.sums.tolist(),
                "all_count": self.all_count,
            },
            "privacy": dict(self.privacy),
            "statement": dict(self.statement),
        }


def released_by(result: Finished, kind: str) -> Released:
    """What a run of a study of this kind released."""
    if result.study.kind != kind:
        raise StudyError(f'the study is of the kind "{result.study.kind}", and not "{kind}"')
    method: ReleaseRounds = result.method
    return method.released(result.broadcast)


def description_of(result: Finished, *, all_count: bool) -> Description:
    """The description that a run gives: nothing of the rows is in it but what was released."""
    released = released_by(result, StatisticsRelease.name)
    if result.study.schema is None:
        raise StudyError("statistics of a table need [columns] with public bounds and values")
    return Description(result.study, released, all_count, result.privacy.as_json(), result.statement.as_json())


def load_description(path: Path) -> Description:
    """A description from the file that ``dpadmm describe`` or ``aggregator export`` wrote."""
    try:
        table = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not a file of private statistics (JSON)") from None
    return description_from(table, str(path))


def description_from(table: Any, where: str) -> Description:
    """A description from its JSON; the numbers of the release are in it, and all others are computed again."""
    if not isinstance(table, Mapping) or table.get("format") != FORMAT:
        raise DataError(f'{where}: not a file of private statistics: format must be "{FORMAT}"')
    try:
        study, said = study_from(table["study"], where), table["released"]
        sums = np.array(said["sums"], dtype=float)
        n_rows, noise = said["n_rows"], float(said["noise_std"])
        good = study.kind == StatisticsRelease.name and study.schema is not None and sums.shape == (study.shape[0],)
        good = good and type(n_rows) is int and 1 <= n_rows <= LARGEST and type(said["all_count"]) is bool
        good = good and bool((np.abs(sums) <= LARGEST).all()) and 0.0 <= noise <= LARGEST
        if not good or not all(isinstance(table[name], Mapping) for name in ("privacy", "statement")):
            raise ValueError
        require_texts({name: table[name] for name in ("privacy", "statement")}, where)
    except DPADMMError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise DataError(f"{where}: damaged; its numbers are not those of a statistics study") from None
    released = Released(n_rows, noise, sums)
    return Description(study, released, said["all_count"], table["privacy"], table["statement"])


MOST_MISSING = 0.05
"""A larger share of missing cells gets a feature of its own in a draft."""


def draft_from_statistics(description: Description, label: str) -> Draft:
    """A draft of a study that predicts a column: public bounds and values, centers and scales from the release.

    What comes from the release is marked with the hash of its study. It is public, since it was paid for.
    """
    study = description.study
    assert study.schema is not None
    names = list(description.columns)
    if label not in names:
        raise unknown_name("column", label, names, study.name)
    target = description.columns[label].bins.column
    about: dict[str, Any] = {"column": label}
    if isinstance(target, Number):
        about["bounds"] = target.bounds
    elif isinstance(target, Boolean):
        about["classes"] = ("false", "true")
    elif isinstance(target, Category | Ordinal):
        about["classes"] = target.values
    told = schema_as_json(study.schema)["columns"]
    columns = [_drafted(description.columns[each["name"]], each, study.hash) for each in told if each["name"] != label]
    paid = f"centers and scales come from a private release, whose ε adds to this study's. {description.sentence}"
    return Draft(tuple(columns), about, study.name, comments=(paid.rstrip("."),))


def _drafted(known: ColumnSummary, about: dict[str, Any], study: str) -> DraftColumn:
    """A column as a study has it, with what was released of it."""
    kept = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    kept = {key: value for key, value in kept.items() if value not in (None, (), "none", "middle") and key != "name"}
    n, notes = known.counts.sum(), []
    if known.mean is None:
        other = float(known.counts[-2])
        rare = [
            label
            for label, count in zip(known.bins.labels[:-2], known.counts[:-2], strict=True)
            if count < 2.0 * known.noise_se
        ]
        notes += [f"hardly any rows, or none: {first_of(rare)}"] if rare else []
        notes += [f"{other / n:.0%} of the rows have none of the values"] if other > MOST_MISSING * n else []
        return DraftColumn(known.name, kept, "; ".join(notes))
    if "bins" not in kept:
        if known.sd is None:
            notes.append("noise hides its standard deviation, so that it has bounds alone")
        else:
            kept |= {
                "center": _shortened(known.mean.value, known.mean.se),
                "scale": _shortened(known.sd.value, known.sd.se),
            }
            kept[RELEASED] = study
    if known.missing > MOST_MISSING * n and known.missing > 2.0 * known.noise_se:
        kept["missing"] = "indicator"
        notes.append(f"about {known.missing / n:.0%} of the cells are missing")
    return DraftColumn(known.name, kept, "; ".join(notes))


def _shortened(value: float, error: float) -> float:
    """A number with the digits that its error leaves it."""
    digits = 1 - math.floor(math.log10(error)) if error > 0.0 else 6
    return round(value, digits)


def not_negative(values: Floats, total: float) -> Floats:
    """The nearest numbers that are at least 0 and add up to a total.

    Examples
    --------
    >>> not_negative(np.array([6.0, 5.0, -1.0]), 10.0).tolist()
    [5.5, 4.5, 0.0]
    """
    falling = np.sort(values)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    cut = over[np.flatnonzero(falling > over)[-1]]
    return np.asarray(np.maximum(values - cut, 0.0))


def with_margins(table: Floats, rows: Floats, columns: Floats) -> Floats:
    """A table with these margins: shifted to them, cut at 0, and scaled by rows and columns in turn."""
    a, b = table.shape
    shifted = table + ((rows - table.sum(axis=1)) / b)[:, None] + (columns - table.sum(axis=0)) / a
    shifted += (table.sum() - rows.sum()) / (a * b)
    least = np.outer(rows, columns) / max(rows.sum(), 1e-300) * 1e-9  # where a whole line was cut
    found = np.maximum(shifted, least)
    for _ in range(200):
        found *= (rows / np.maximum(found.sum(axis=1), 1e-300))[:, None]
        found *= columns / np.maximum(found.sum(axis=0), 1e-300)
        if np.abs(found.sum(axis=1) - rows).max() <= 1e-9 * max(rows.sum(), 1.0):
            break
    return np.asarray(found)
