"""Formats of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from statistics import fmean, stdev


def number(value: object) -> str:
    """Return the usual text of a value: whole numbers with commas, others with four significant digits.

    Examples
    --------
    >>> number(12345), number(0.123456), number(float("inf")), number(True), number("x")
    ('12,345', '0.1235', '∞', 'yes', 'x')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return f"{float(value):.4g}" if math.isfinite(value) else str(float(value)).replace("inf", "∞")
    return str(value)


def percent(value: float) -> str:
    """Return a share in percent, with one decimal."""
    return f"{value:.1%}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    Examples
    --------
    >>> plural(1, "round"), plural(0, "round"), plural(1200, "row")
    ('1 round', '0 rounds', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def number_range(values: Iterable[float], form: str = ".4f") -> str:
    """Return ``smallest to largest``, or one number if both have the same text.

    Examples
    --------
    >>> number_range([200, 1000], ",d"), number_range([0.5, 0.50001])
    ('200 to 1,000', '0.5000')
    """
    known = list(values)
    low, high = format(min(known), form), format(max(known), form)
    return low if low == high else f"{low} to {high}"


def epsilon_text(value: float) -> str:
    """Return ε with four digits."""
    return f"{value:.4f}" if math.isfinite(value) else "∞ (no privacy)"


def rounded_up(epsilon: float) -> str:
    """Return ε with four digits, rounded up so that the privacy loss is not understated.

    Examples
    --------
    >>> rounded_up(0.12341), rounded_up(2.0), rounded_up(float("inf"))
    ('0.1235', '2.0000', '∞ (no privacy)')
    """
    if not math.isfinite(epsilon):
        return epsilon_text(epsilon)
    return f"{math.ceil(epsilon * 1e4 * (1.0 - 1e-9)) / 1e4:.4f}"


def rounded_down(epsilon: float) -> str:
    """Return a remaining ε with four digits, rounded down, up to a relative error of 1e-9."""
    return f"{math.floor(epsilon * 1e4 * (1.0 + 1e-9)) / 1e4:.4f}"


def short_names(names: Sequence[str], max_width: int) -> list[str]:
    """Return names for the headings of a table: the names, or numbers from 1 if one is wider than ``max_width``.

    Examples
    --------
    >>> short_names(["no", "yes"], 5), short_names(["mild", "moderate"], 5)
    (['no', 'yes'], ['1', '2'])
    """
    return list(names) if max(map(len, names)) <= max_width else [str(k + 1) for k in range(len(names))]


def interval_text(low: float | None, high: float | None) -> str:
    """Return an interval whose ends may be missing.

    Examples
    --------
    >>> interval_text(0.5, 1.25), interval_text(None, 2.0), interval_text(None, None)
    ('0.5 to 1.25', 'below 2', 'any')
    """
    if low is None or high is None:
        return f"above {low:.3g}" if low is not None else f"below {high:.3g}" if high is not None else "any"
    return f"{low:.3g} to {high:.3g}"


def mean_text(values: Sequence[float], *, is_rate: bool = False) -> str:
    """Return the mean and, for several values, the standard deviation; in percent for rates.

    Examples
    --------
    >>> mean_text([0.25, 0.35], is_rate=True), mean_text([0.4312])
    ('30.00 ± 7.07%', '0.4312')
    """
    scale, unit, digits = (100.0, "%", 2) if is_rate else (1.0, "", 4)
    mean = f"{fmean(values) * scale:.{digits}f}"
    deviation = f" ± {stdev(values) * scale:.{digits}f}" if len(values) > 1 else ""
    return f"{mean}{deviation}{unit}"
