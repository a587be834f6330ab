"""Result of :func:`dpadmm.models.explain.explain`: coefficients with intervals, as tables, JSON and data frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from csv import DictWriter
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import scipy  # submodules load on first use

from dpadmm.errors import DataError
from dpadmm.parameters.text import csv_cell
from dpadmm.rendering import Cell, Column, Paragraph, Renderable, Rendering, Row, Table
from dpadmm.rendering.formats import short_names

PER_UNIT, PER_DOUBLING, PER_STEP = "per unit", "per doubling", "per step"
TRUE_FALSE, AGAINST_AVERAGE, MISSING = "if true", "vs average", "if missing"
LEVEL = 0.95
MIN_WIDE_SPAN = 1000.0
"""Range of a column from which tables show the change per power of ten units."""

MAX_CLASS_WIDTH = 10
TOP = 20
"""Number of coefficients that a table shows."""

INCLUDED_ERRORS = (
    "Standard errors and 95% intervals include sampling variation and privacy noise, for the model without a penalty."
)
CONSERVATIVE = (
    "Weights ω, from 0 to 1 relative to their bound, are sampling weights: a row is one observation. Standard errors "
    "use ω instead of ω², so they are conservative, the more so the smaller the weights are relative to the bound."
)
UNSEEN = "* No public row has this value. If no private row has it either, the coefficient is pure noise."
TOO_FEW_ROWS = "–: too few rows to estimate this coefficient or its reference."
MEANING = (
    "An estimate is the change in the score for the change shown, with all other columns fixed. The score of a row "
    "is the intercept plus the sum of estimate × value, in units of the change shown. Sorted by the effect over the "
    "whole range of a column."
)
AVERAGE = "Categories and bins: relative to the average over the column's public values."


@dataclass(frozen=True)
class Coefficient:
    """Change of the score per unit (``per``) of a column, or for a category, a bin or a missing value.

    Attributes
    ----------
    column, value, per : str
        The column; its category, bin or ``missing`` (else empty); the unit of the change.
    output : str
        Class whose score changes, if there is one score per class.
    coefficient : float
        The change.
    standard_error : float, optional
        Standard error from sampling and privacy noise. None without a release, or if the rows contain no information
        about this coefficient.
    span : float
        Range of the value.
    unseen : bool
        Whether no public row had the value, according to the study.
    """

    column: str
    value: str
    per: str
    output: str
    coefficient: float
    standard_error: float | None
    span: float
    unseen: bool = False

    @property
    def name(self) -> str:
        """The column, with the value if there is one."""
        return f"{self.column}={self.value}" if self.value else self.column

    @property
    def effect(self) -> float:
        """Change of the score over the whole range of the column."""
        return self.coefficient * self.span

    @property
    def in_table(self) -> Coefficient:
        """The coefficient for display: for a column with a wide range, per 100, per 10,000, and so on.

        The unit is the power of ten between a hundredth and a tenth of the range, so that ratios visibly differ from 1.
        """
        if self.per != PER_UNIT or self.span < MIN_WIDE_SPAN:
            return self
        unit = 10.0 ** (math.floor(math.log10(self.span)) - 1)
        error = None if self.standard_error is None else self.standard_error * unit
        value, span = self.coefficient * unit, self.span / unit
        return replace(self, per=f"per {unit:,.0f}", coefficient=value, standard_error=error, span=span)

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the confidence interval (low, high), or None without a standard error."""
        if self.standard_error is None:
            return None
        margin = float(scipy.special.ndtri(0.5 + 0.5 * level)) * self.standard_error
        return self.coefficient - margin, self.coefficient + margin

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of the hypothesis that the coefficient is 0."""
        if not self.standard_error:
            return None
        return float(2.0 * scipy.special.ndtr(-abs(self.coefficient) / self.standard_error))

    def to_dict(self, *, ratios: str) -> dict[str, Any]:
        """Return the values by name. ``ratios`` is the name of the exponential of the coefficient; empty for none."""
        low, high = self.interval() or (None, None)
        row = {
            "column": self.column,
            "value": self.value or None,
            "class": self.output or None,
            "per": self.per,
            "coefficient": self.coefficient,
            "standard_error": self.standard_error,
            "low": low,
            "high": high,
            "p_value": self.p_value,
        }
        if ratios:
            name = ratios.replace(" ", "_")
            logs = {name: self.coefficient, f"{name}_low": low, f"{name}_high": high}
            row |= {name: None if value is None else ratio(value) for name, value in logs.items()}
        return row


def ratio(logarithm: float) -> float | None:
    """Return the ratio of odds, rates or hazards; None if it overflows."""
    return math.exp(logarithm) if logarithm < 700.0 else None


def ratio_text(logarithm: float) -> str:
    """Format a ratio with three digits, or more if it is close to 1. Empty if it overflows.

    Examples
    --------
    >>> ratio_text(0.405), ratio_text(-3.5e-05), ratio_text(0.0), ratio_text(800.0)
    ('1.5', '0.999965', '1', '')
    """
    value, distance = ratio(logarithm), abs(math.expm1(min(logarithm, 1.0)))
    if value is None:
        return ""
    return f"{value:.{1 - math.floor(math.log10(distance))}f}" if 1e-12 < distance < 0.005 else f"{value:.3g}"


@dataclass(frozen=True)
class Explanation(Renderable):
    """Coefficients of a model, sorted by their effect over the range of the column, with unseen values last.

    Attributes
    ----------
    score : str
        The quantity that the coefficients change.
    coefficients, intercepts : tuple of Coefficient
        The coefficients.
    no_intervals_because : str
        Reason why there are no intervals. Empty if there are.
    clipping : str
        Note about clipped rows. Empty if none are clipped.
    ratios : str
        Name of the exponentials: odds, rate or hazard ratio. Empty for none.
    weighting : str
        Note about the weights of rows. Empty without weights.
    """

    score: str
    coefficients: tuple[Coefficient, ...]
    intercepts: tuple[Coefficient, ...]
    no_intervals_because: str
    clipping: str = ""
    ratios: str = ""
    weighting: str = ""

    def rendering(self, *, top: int = TOP, about: Sequence[str] = ()) -> Rendering:
        """Return the coefficients with the largest effects, and notes. ``about`` are lines below the title."""
        data = {
            "score": self.score,
            "intercept": [line.to_dict(ratios="") for line in self.intercepts],
            "coefficients": [
                {**line.to_dict(ratios=self.ratios), "effect_over_range": line.effect, "unseen": line.unseen}
                for line in self.coefficients
            ],
            "confidence": LEVEL,
            "no_intervals_because": self.no_intervals_because or None,
        }
        return Rendering(
            title=f"Effect of the columns on: {self.score}",
            body=[*map(Paragraph, about), self._table(top)],
            notes=self._notes(top),
            data=data | ({"weights": self.weighting} if self.weighting else {}),
        )

    def summary(self, about: Sequence[str] = ()) -> str:
        """Return a text table of all estimates with standard errors, p-values and 95% intervals."""
        return self.rendering(top=len(self.coefficients), about=about).to_text()

    def to_frame(self) -> Any:
        """Return a tidy pandas data frame with the column names of R's broom, one row per coefficient."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise DataError("a data frame needs pandas: pip install pandas") from None
        lines = (*self.coefficients, *self.intercepts)
        return DataFrame([_tidy(line, line.to_dict(ratios=self.ratios)) for line in lines])

    def conf_int(self, level: float = LEVEL) -> dict[str, tuple[float, float] | None]:
        """Return the confidence interval of each coefficient; None if the rows contain no information about it."""
        if self.no_intervals_because:
            raise DataError(f"intervals are not available: {self.no_intervals_because}")
        if not 0.0 < level < 1.0:
            raise DataError(f"level must be between 0 and 1, not {level!r:.60}")
        return {line.name: line.interval(level) for line in (*self.coefficients, *self.intercepts)}

    def to_csv(self) -> str:
        """Return all coefficients and intercepts as CSV."""
        out = StringIO()
        lines = (*self.coefficients, *self.intercepts)
        rows = [{**line.to_dict(ratios=self.ratios), "unseen": "yes" if line.unseen else None} for line in lines]
        writer = DictWriter(out, list(rows[0]), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(
            {key: csv_cell(cell) if isinstance(cell, str) else cell for key, cell in row.items()} for row in rows
        )
        return out.getvalue()

    def to_markdown(self, privacy: str) -> str:
        """Return a Markdown table of the estimates for a paper, with its notes. ``privacy`` is the last sentence."""
        reason = self.no_intervals_because
        effect = f"{self.ratios.capitalize() or 'Coefficient'}{' (no intervals)' if reason else ''}"
        classes = ["Class"] if any(line.output for line in self.coefficients) else []
        head = ["", *classes, "Change", effect, *([] if reason else ["95% CI", "p"])]
        table = [head, [*[":--"] * (2 + len(classes)), *["--:"] * (len(head) - 2 - len(classes))]]
        shown = [line for line in self.coefficients if reason or line.interval()]
        for line in (line.in_table for line in shown):
            names = f"{line.name}{' *' * line.unseen}", *([line.output] if classes else []), line.per
            cells = [name.replace("|", r"\|").replace("*", r"\*") for name in names]
            table.append([*cells, *self._markdown_numbers(line)])
        omitted = [line.name for line in self.coefficients if line not in shown]
        notes = f"No confidence intervals: {reason}." if reason else INCLUDED_ERRORS
        notes += f" Omitted because of too few rows: {', '.join(omitted)}." if omitted else ""
        notes += f" \\{UNSEEN}" if any(line.unseen for line in shown) else ""
        body = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
        return f"**Effects on: {self.score}**\n\n{body}\n\n{notes} {privacy}\n"

    def _markdown_numbers(self, line: Coefficient) -> list[str]:
        ends = line.interval()
        if not ends:
            return [ratio_text(line.coefficient) if self.ratios else f"{line.coefficient:.3g}"]
        estimate, low, high = alike(*map(_ratio_or_infinity if self.ratios else float, (line.coefficient, *ends)))
        return [estimate, f"{low} to {high}", "–" if line.p_value is None else _p_text(line.p_value, "<0.001")]

    @property
    def _class_names(self) -> dict[str, str]:
        """Names of the classes in tables, if each class has its own score."""
        names = [line.output for line in self.intercepts if line.output]
        return dict(zip(names, short_names(names, MAX_CLASS_WIDTH), strict=True)) if names else {}

    def _table(self, top: int) -> Table:
        classes = self._class_names
        columns = [Column("", "column"), *([Column("", "class")] if classes else []), Column("", "change", wrap=False)]
        columns.append(Column("", "estimate", "+.3g"))
        if self.no_intervals_because:
            columns.append(Column("", "over range", "+.3g"))
        else:
            columns += [
                Column("", "std. error", ".2g"),
                Column("", "95% interval", align="right"),
                Column("", "p", _p_text),
                *([Column("", self.ratios, align="right")] if self.ratios else []),
            ]
        lines = [self._row(line.in_table) for line in self.coefficients[:top]]
        lines += [(), *(self._row(line, intercept=True) for line in self.intercepts)]
        caption, rest = "", self.coefficients[top:]
        if rest:
            unseen = ", or of values that no public row has" if any(line.unseen for line in rest) else ""
            caption = f"{len(rest):,} more coefficients with smaller effects{unseen}; --top shows more."
        return Table(columns, lines, caption=caption)

    def _row(self, line: Coefficient, *, intercept: bool = False) -> Row:
        classes = self._class_names
        name = f"{line.column} = {line.value}" if line.value else line.column  # may wrap at the spaces
        row = [f"{name}{' *' * line.unseen}", *([classes[line.output]] if classes else []), line.per, line.coefficient]
        if self.no_intervals_because:
            return [*row, Cell(text="") if intercept else line.effect]
        ends = line.interval()
        interval = "{:+.3g} to {:+.3g}".format(*ends) if ends else "–"
        return [*row, line.standard_error, interval, line.p_value, "" if intercept else ratio_text(line.coefficient)]

    def _notes(self, top: int) -> list[str]:
        notes = []
        if numbered := ", ".join(f"{short} = {name}" for name, short in self._class_names.items() if short != name):
            notes.append(f"Classes: {numbered}.")
        notes += [UNSEEN] if any(line.unseen for line in self.coefficients[:top]) else []
        notes.append(MEANING)
        notes += [AVERAGE] if any(line.per == AGAINST_AVERAGE for line in self.coefficients) else []
        notes += [note for note in (self.clipping, self.weighting) if note]
        if self.no_intervals_because:
            return [*notes, f"No confidence intervals: {self.no_intervals_because}."]
        is_incomplete = any(line.standard_error is None for line in self.coefficients)
        return [*notes, INCLUDED_ERRORS, *([TOO_FEW_ROWS] if is_incomplete else [])]


def _ratio_or_infinity(logarithm: float) -> float:
    value = ratio(logarithm)
    return math.inf if value is None else value


def _p_text(p: float, small: str = "<.001") -> str:
    return f"{p:.3f}" if p >= 0.0005 else small


def _tidy(line: Coefficient, row: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row with the names of broom, and z."""
    names = {"coefficient": "estimate", "standard_error": "std_error", "low": "conf_low", "high": "conf_high"}
    z = line.coefficient / line.standard_error if line.standard_error else None
    values = {"term": line.name} | {names.get(name, name): value for name, value in row.items()}
    position = list(values).index("std_error") + 1
    return dict([*list(values.items())[:position], ("statistic", z), *list(values.items())[position:]])


def alike(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Format an estimate and its interval with the same number of decimals: two, or more for a narrow interval."""
    if not all(map(math.isfinite, (value, low, high))):
        return f"{value:.3g}", f"{low:.3g}", f"{high:.3g}"
    usual = 2 if abs(value) < 10.0 else 1 if abs(value) < 100.0 else 0
    width = max(high - low, 1e-6)
    decimals = max(usual, min(6, -math.floor(math.log10(width))))
    return f"{value:.{decimals}f}", f"{low:.{decimals}f}", f"{high:.{decimals}f}"
