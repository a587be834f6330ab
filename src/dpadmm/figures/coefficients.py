"""Figure of ``dpadmm explain``: coefficients with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dpadmm.figures.style import GREY, Look, Picture, dress, kinds, legend, new_figure, plain_text
from dpadmm.models.explanation import Coefficient, Explanation, alike

MAX_NAME_LENGTH = 44
PER_ROW, MARGIN = 0.24, 1.7
"""Inches."""
LN10 = math.log(10.0)


def coefficient_figure(explanation: Explanation, *, top: int, title: str) -> Picture:
    """Return a forest plot of effects over the ranges of the columns. Markers are hollow if intervals reach 0.

    If the exponentials are ratios, the axis and the numbers at the right show ratios.
    """
    reason = explanation.no_intervals_because
    known = [each for each in explanation.coefficients if reason or each.standard_error is not None]
    shown = known[:top]
    figure = new_figure(7.2, MARGIN + PER_ROW * max(len(shown), 3))
    axes = figure.subplots()
    looks = kinds(list(dict.fromkeys(each.output for each in shown)))
    axes.axvline(0.0, color="black", linewidth=0.8)
    for place, each in enumerate(shown):
        _dot(axes, each, place, looks[each.output])
    axes.set_yticks(range(len(shown)), [plain_text(f"{_short(each.name)}{_change(each)}") for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    dress(
        axes, title=plain_text(_short(title)), x=f"change of: {explanation.score}\n(over the whole range of the column)"
    )
    axes.grid(visible=False, axis="y")
    ratios = bool(explanation.ratios) and not reason and bool(shown)
    if ratios and (ticks := _ratio_ticks(*axes.get_xlim())):
        axes.set_xticks([math.log(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(f"ratio of the {explanation.score.removeprefix('log ')}\n(over the whole range of the column)")
        _write_ratios(axes, shown, explanation.ratios)
    nothing = [np.nan]
    for output, look in looks.items():
        if output:
            axes.plot(nothing, nothing, look.marker, color=look.color, label=plain_text(output))
    if not reason:
        axes.errorbar(nothing, nothing, xerr=nothing, color=GREY, capsize=2.5,
                      label="95% confidence interval")  # fmt: skip
        axes.plot(nothing, nothing, "o", color=GREY, markerfacecolor="white",
                  label="reaches 1" if ratios else "reaches zero")  # fmt: skip
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    legend(figure, axes, columns=max(1, 110 // (longest + 10)))  # as many as fit the figure
    return Picture("coefficients", title, "Effects of the columns over their ranges, largest first.", figure)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"


def _change(each: Coefficient) -> str:
    """Return the change of the column to which the effect refers, if it is not the unit of the coefficient."""
    per = each.per.removeprefix("per ")
    return f" (per {each.span:.3g} {per}s)" if per != each.per and each.span != 1.0 else ""


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Return round ratios between these logarithms; none if the range is too wide for ratios."""
    if high - low > 30.0:
        return []
    steps = (1.0, 2.0, 5.0) if high - low < 7.0 else (1.0,)
    ticks = [step * 10.0**k for k in range(math.floor(low / LN10) - 1, math.ceil(high / LN10) + 1) for step in steps]
    if high - low < 1.2:
        ticks = [float(tick) for tick in MaxNLocator(6).tick_values(math.exp(low), math.exp(high)) if tick > 0.0]
    return [tick for tick in ticks if low <= math.log(tick) <= high]


def _write_ratios(axes: Axes, shown: Sequence[Coefficient], words: str) -> None:
    """Write ratios and their intervals at the right."""
    labels = []
    for each in shown:
        low, high = each.interval() or (each.coefficient, each.coefficient)
        value, *ends = alike(*(math.exp(min(x * each.span, 700.0)) for x in (each.coefficient, low, high)))
        labels.append(f"{value} ({ends[0]} to {ends[1]})")
    right_axes = axes.twinx()
    right_axes.set_ylim(axes.get_ylim())
    right_axes.set_yticks(range(len(shown)), labels, fontsize=8)
    right_axes.tick_params(length=0)
    right_axes.spines[:].set_visible(False)
    right_axes.text(1.012, 1.01, f"{words} (95% CI)", transform=right_axes.transAxes, fontsize=8, va="bottom")


def _dot(axes: Axes, each: Coefficient, place: int, look: Look) -> None:
    low, high = each.interval() or (each.coefficient, each.coefficient)
    reach, hollow = (high - low) / 2.0 * each.span, low < 0.0 < high
    color = GREY if hollow and not each.output else look.color
    axes.errorbar(
        [each.effect], [place], xerr=[reach] if reach else None, color=color, marker=look.marker,
        markersize=5.5, markerfacecolor="white" if hollow else color, markeredgecolor=color,
        elinewidth=1.3, capsize=2.5, linestyle="none",
    )  # fmt: skip
