"""Private statistics as tables: consistent counts, means, quantiles and two-way tables, with standard errors.

Everything is computed from one release (:class:`Released`) and public numbers. The counts of a column add up to the
number of rows, and the margins of a two-way table to the counts of its columns. This adjustment is linear and the noise
of the counts is independent with the same σ, so standard errors are exact. Negative counts are then projected to the
nearest non-negative counts with the same total, and tables are scaled to their margins. This does not increase the
total error, because the true counts are not negative (docs/decisions/0021-statistics.md).

``noise_se`` is the standard error of the privacy noise, for conclusions about these rows. ``se`` includes sampling
variation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
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
from dpadmm.methods import Released, ReleaseMethod, StatisticsRelease
from dpadmm.models.file import require_texts
from dpadmm.models.model import Finished
from dpadmm.parameters.suggestions import first_of, unknown_name
from dpadmm.rendering import Block, Cell, Column, Paragraph, Renderable, Rendering, Row, Table
from dpadmm.rendering.formats import percent
from dpadmm.studies.drafts import Draft, DraftColumn
from dpadmm.studies.reading import study_from
from dpadmm.studies.study import Study

FORMAT = "dpadmm-description/2"
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles."""

MIN_VARIANCE_ERRORS = 2.0
"""Number of standard errors by which a variance must exceed 0 for a standard deviation."""

MAX_NUMBER = 10**12
MAX_VALUES_SHOWN, MAX_COLUMNS_SHOWN = 12, 7
"""Values of a column, and columns of a two-way table, that are shown."""


class Estimate(NamedTuple):
    """A number with the standard error of its privacy noise, and with sampling variation."""

    value: float
    noise_se: float
    se: float


@dataclass(frozen=True, eq=False)
class ColumnSummary:
    """Counts of a column by bin, with missing cells last. Numbers also have moments and quantiles.

    Moments and quantiles are of the non-missing cells, clamped to the bounds. With a log transform, mean and standard
    deviation are those of ln(x). ``sd`` is None if the noise is too large.
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
    def is_log(self) -> bool:
        """Whether moments are those of the logarithm."""
        return isinstance(self.bins.column, Number) and self.bins.column.transform == "log"

    def to_dict(self) -> dict[str, Any]:
        bins = zip(self.bins.labels, self.counts.tolist(), strict=True)
        values: dict[str, Any] = {
            "name": self.name,
            "kind": self.bins.column.kind,
            "count_noise_se": self.noise_se,
            "bins": [{"label": label, "count": count} for label, count in bins],
            "missing": self.missing,
        }
        if self.quantiles is not None and self.mean is not None and isinstance(self.bins.column, Number):
            values |= {
                "edges": list(self.bins.edges),
                "moments_of": "ln(x)" if self.is_log else "x",
                "mean": self.mean._asdict(),
                "sd": self.sd and self.sd._asdict(),
                "quantiles": [{"level": level, **estimate._asdict()} for level, estimate in self.quantiles.items()],
            }
        return values


@dataclass(frozen=True, eq=False)
class TwoWay:
    """A two-way table: counts by the bins of one column (down) and of another (across)."""

    pair: tuple[Counts, Counts]
    counts: Floats
    noise_se: float

    def to_dict(self) -> dict[str, Any]:
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
class Description(Renderable):
    """Result of a statistics study.

    ``all_count``: no row is silenced, as in one process. Otherwise the number of rows that count is estimated.
    """

    study: Study
    released: Released
    all_count: bool
    privacy: Mapping[str, Any]

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
        """The release of each column and table, in counts."""
        assert self.study.encoding is not None
        parts, first = [], 0
        for part in self.study.encoding.columns:
            width = len(part.features)
            parts.append((part, self.released.sums[first : first + width] * self._unit))
            first += width
        return parts

    @cached_property
    def total(self) -> Estimate:
        """Number of rows that count: all, or the mean over the columns, weighted by their noise."""
        if self.all_count:
            return Estimate(float(self.released.n_rows), 0.0, 0.0)
        sums = [(float(noisy.sum()), len(noisy)) for part, noisy in self._parts if isinstance(part, Counts)]
        weight = sum(1.0 / size for _, size in sums)
        value = sum(total / size for total, size in sums) / weight
        error = self.noise / math.sqrt(weight)
        return Estimate(min(max(value, 1.0), float(self.released.n_rows)), error, error)

    @cached_property
    def columns(self) -> dict[str, ColumnSummary]:
        """Every column, by its name."""
        moments = {part.column.name: noisy for part, noisy in self._parts if isinstance(part, NumberMoments)}
        columns = {}
        for bins, noisy in self._parts:
            if isinstance(bins, Counts):
                size = len(noisy)
                adjusted = noisy + (self.total.value - noisy.sum()) / size
                counts = project_to_total(adjusted, self.total.value)
                error = math.hypot(self.noise * math.sqrt(1.0 - 1.0 / size), self.total.noise_se / size)
                estimates = self._estimates(bins, counts, error, moments[bins.name]) if bins.name in moments else ()
                columns[bins.name] = ColumnSummary(bins, counts, error, *estimates)
        return columns

    @cached_property
    def tables(self) -> list[TwoWay]:
        """Every two-way table, with the margins of :attr:`columns`."""
        tables = []
        for part, noisy in self._parts:
            if isinstance(part, Crossed):
                one, other = (self.columns[bins.name] for bins in part.pair)
                a, b = len(one.counts), len(other.counts)
                inside = (1.0 - 1.0 / a) * (1.0 - 1.0 / b)
                error = math.hypot(self.noise * math.sqrt(inside), one.noise_se / b, other.noise_se / a)
                counts = scale_to_margins(noisy.reshape(a, b), one.counts, other.counts)
                tables.append(TwoWay(part.pair, counts, error))
        return tables

    def _estimates(
        self, bins: Counts, counts: Floats, count_error: float, moments: Floats
    ) -> tuple[Estimate, Estimate | None, dict[float, Estimate]]:
        """Return mean, standard deviation and quantiles of a number."""
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
        if variance > MIN_VARIANCE_ERRORS * error:
            root = math.sqrt(variance)
            noise_se = error / (2.0 * root)
            sd = Estimate(half * root, half * noise_se, half * math.hypot(noise_se, root / math.sqrt(2.0 * n)))
        return mean, sd, self._quantiles(bins, counts[:-1], n)

    def _quantiles(self, bins: Counts, counts: Floats, n: float) -> dict[float, Estimate]:
        """Return quantiles by linear interpolation of the cumulative counts; errors follow from its slope."""
        edges, cumulative = np.array(bins.edges), np.concatenate([[0.0], np.cumsum(counts)]) / n
        steps = np.arange(len(cumulative))
        noise = self.noise * np.sqrt(steps * (1.0 - steps / (len(cumulative) + 1.0))) / n

        def value(level: float) -> float:
            return float(np.interp(np.clip(level, 0.0, 1.0), cumulative, edges))

        quantiles = {}
        for level in LEVELS:
            noise_se = float(np.interp(value(level), edges, noise))
            total_se = math.hypot(noise_se, math.sqrt(level * (1.0 - level) / n))
            errors = [(value(level + error) - value(level - error)) / 2.0 for error in (noise_se, total_se)]
            quantiles[level] = Estimate(value(level), *errors)
        return quantiles

    @property
    def sentence(self) -> str:
        """The guarantee and the noise, in two sentences."""
        return (
            f"{privacy_sentence(self.privacy)} Every count has noise of standard deviation {self.noise:,.1f}; standard "
            "errors include it."
        )

    def rendering(self) -> Rendering:
        """Return a table of numbers, a table of other columns, and the two-way tables."""
        rows = f"{self.released.n_rows:,} rows"
        if not self.all_count:
            rows += f", of which about {self.total.value:,.0f} ± {self.total.noise_se:,.0f} count"
        numbers = [column for column in self.columns.values() if column.mean is not None]
        others = [column for column in self.columns.values() if column.mean is None]
        body: list[Block] = [_number_table(numbers)] if numbers else []
        body += [_value_table(others, self.total.value)] if others else []
        body += [_two_way_block(table) for table in self.tables]
        return Rendering(title=f"{self.study.name}: {rows}", body=body, notes=[self.sentence])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a results file, which :func:`load_description` reads."""
        return {
            "format": FORMAT,
            "name": self.study.name,
            "rows": self.released.n_rows,
            "rows_that_count": self.total._asdict(),
            "noise_of_a_count": self.noise,
            "privacy_sentence": self.sentence,
            "columns": [column.to_dict() for column in self.columns.values()],
            "tables": [table.to_dict() for table in self.tables],
            "study": self.study.as_json(),
            "released": {
                "n_rows": self.released.n_rows,
                "noise_std": self.released.noise_std,
                "sums": self.released.sums.tolist(),
                "all_count": self.all_count,
            },
            "privacy": dict(self.privacy),
        }


def _number_table(columns: Sequence[ColumnSummary]) -> Table:
    """Return moments and quartiles of numbers."""
    headings = [
        Column("", "number"),
        Column("", "missing", ",.0f"),
        Column("", "mean", ".4g"),
        Column("", "± se", ".2g"),
    ]
    headings += [Column("", "sd", ".3g"), *(Column("", name, ".4g") for name in ("25%", "median", "75%"))]
    rows = []
    for column in columns:
        assert column.mean is not None
        assert column.quantiles is not None
        sd = Cell(text="hidden") if column.sd is None else column.sd.value
        quartiles = [column.quantiles[level].value for level in (0.25, 0.5, 0.75)]
        name = f"{column.name}{' (ln)' * column.is_log}"
        rows.append((name, column.missing, column.mean.value, column.mean.se, sd, *quartiles))
    has_log = any(column.is_log for column in columns)
    return Table(headings, rows, caption="Columns marked ln: mean and sd of the logarithm." if has_log else "")


def _value_table(columns: Sequence[ColumnSummary], total: float) -> Table:
    """Return counts and shares of values: all, or the most frequent of many."""
    headings = [Column("", "column and value"), Column("", "rows", ",.0f"), Column("", "± noise", ",.0f")]
    rows: list[Row] = []
    for column in columns:
        pairs = list(zip(column.bins.labels, column.counts.tolist(), strict=True))
        shown = pairs
        if len(pairs) > MAX_VALUES_SHOWN:
            shown = sorted(pairs[:-1], key=lambda pair: -pair[1])[: MAX_VALUES_SHOWN - 1]
        rows += [(), (Cell(text=column.name, style="bold"),)]
        rows += [(f"  {label}", count, column.noise_se, count / total) for label, count in shown]
        if len(shown) < len(pairs):
            rows.append((f"  and {len(pairs) - len(shown)} more values",))
    return Table([*headings, Column("", "share", percent)], rows[1:])


def _two_way_block(table: TwoWay) -> Block:
    """Return the counts, or their number if there are too many to show."""
    one, other = table.pair
    noise = f"± {table.noise_se:,.0f}"
    if len(other.labels) > MAX_COLUMNS_SHOWN or len(one.labels) > 3 * MAX_VALUES_SHOWN:
        return Paragraph(f"{one.name} × {other.name}: {table.counts.size:,} cells, in the file ({noise}).")
    headings = [Column("", f"{one.name} × {other.name}"), *(Column("", label, ",.0f") for label in other.labels)]
    rows = [(label, *counts) for label, counts in zip(one.labels, table.counts.tolist(), strict=True)]
    return Table(headings, rows, caption=f"Each cell {noise} (noise).")


def released_by(result: Finished, kind: str) -> Released:
    """Return the release of a study of this kind."""
    if result.study.kind != kind:
        raise StudyError(f'the kind of the study must be "{kind}", not "{result.study.kind}"')
    method: ReleaseMethod = result.method
    return method.released(result.broadcast)


def description_of(result: Finished, *, all_count: bool) -> Description:
    """Return the description from the run of a statistics study. It contains released values only."""
    released = released_by(result, StatisticsRelease.name)
    if result.study.schema is None:
        raise StudyError("statistics of a table need [columns] with public bounds and values")
    return Description(result.study, released, all_count, result.privacy.to_dict())


def load_description(path: Path) -> Description:
    """Read a file that ``dpadmm describe`` or an export of a study wrote."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not a file of private statistics (JSON)") from None
    return description_from(content, str(path))


def description_from(content: Any, where: str) -> Description:
    """Return the description from its JSON: the release is read, and everything else is recomputed."""
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise DataError(f'{where}: not a file of private statistics: format must be "{FORMAT}"')
    try:
        study, release = study_from(content["study"], where), content["released"]
        sums = np.array(release["sums"], dtype=float)
        n_rows, noise = release["n_rows"], float(release["noise_std"])
        valid = study.kind == StatisticsRelease.name and study.schema is not None and sums.shape == (study.shape[0],)
        valid = valid and type(n_rows) is int and 1 <= n_rows <= MAX_NUMBER and type(release["all_count"]) is bool
        valid = valid and bool((np.abs(sums) <= MAX_NUMBER).all()) and 0.0 <= noise <= MAX_NUMBER
        if not valid or not isinstance(content["privacy"], Mapping):
            raise ValueError
        require_texts({"privacy": content["privacy"]}, where)
    except DPADMMError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise DataError(f"{where}: damaged; its numbers are not those of a statistics study") from None
    released = Released(n_rows, noise, sums)
    return Description(study, released, release["all_count"], content["privacy"])


MAX_MISSING = 0.05
"""Share of missing cells above which a draft adds an indicator."""


def draft_from_statistics(description: Description, label: str) -> Draft:
    """Return a draft that predicts a column: public bounds and values, with centers and scales from the release.

    Values from the release are marked with the hash of its study. They are public, and their ε has been charged.
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
    settings = [column for column in schema_as_json(study.schema)["columns"] if column["name"] != label]
    columns = [_draft_column(description.columns[column["name"]], column, study.hash) for column in settings]
    comment = f"centers and scales come from a private release, whose ε adds to this study's. {description.sentence}"
    return Draft(tuple(columns), about, study.name, comments=(comment.rstrip("."),))


def _draft_column(known: ColumnSummary, about: dict[str, Any], study: str) -> DraftColumn:
    """Return the settings of a column, with center and scale from the release."""
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
        notes += [f"{other / n:.0%} of the rows have none of the values"] if other > MAX_MISSING * n else []
        return DraftColumn(known.name, kept, "; ".join(notes))
    if "bins" not in kept:
        if known.sd is None:
            notes.append("too much noise for a standard deviation, so only bounds are set")
        else:
            kept |= {
                "center": _rounded(known.mean.value, known.mean.se),
                "scale": _rounded(known.sd.value, known.sd.se),
            }
            kept[RELEASED] = study
    if known.missing > MAX_MISSING * n and known.missing > 2.0 * known.noise_se:
        kept["missing"] = "indicator"
        notes.append(f"about {known.missing / n:.0%} of the cells are missing")
    return DraftColumn(known.name, kept, "; ".join(notes))


def _rounded(value: float, error: float) -> float:
    """Round a number to the digits that its error allows."""
    digits = 1 - math.floor(math.log10(error)) if error > 0.0 else 6
    return round(value, digits)


def project_to_total(values: Floats, total: float) -> Floats:
    """Return the nearest numbers that are at least 0 and add up to a total.

    Examples
    --------
    >>> project_to_total(np.array([6.0, 5.0, -1.0]), 10.0).tolist()
    [5.5, 4.5, 0.0]
    """
    descending = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, len(values) + 1)
    shift = excess[np.flatnonzero(descending > excess)[-1]]
    return np.asarray(np.maximum(values - shift, 0.0))


def scale_to_margins(table: Floats, rows: Floats, columns: Floats) -> Floats:
    """Return a table with these margins: shifted, clipped at 0, then scaled by rows and columns in turn."""
    a, b = table.shape
    shifted = table + ((rows - table.sum(axis=1)) / b)[:, None] + (columns - table.sum(axis=0)) / a
    shifted += (table.sum() - rows.sum()) / (a * b)
    minimum = np.outer(rows, columns) / max(rows.sum(), 1e-300) * 1e-9  # for a row or column that was clipped entirely
    scaled = np.maximum(shifted, minimum)
    for _ in range(200):
        scaled *= (rows / np.maximum(scaled.sum(axis=1), 1e-300))[:, None]
        scaled *= columns / np.maximum(scaled.sum(axis=0), 1e-300)
        if np.abs(scaled.sum(axis=1) - rows).max() <= 1e-9 * max(rows.sum(), 1.0):
            break
    return np.asarray(scaled)
