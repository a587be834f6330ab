"""The figure of an explanation: what every column does to the score, with noise standard errors."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.model.explain import NOISE, Coefficient, Explanation
from dpadmm.reporting.style import Look, dress, kinds, legend, new_figure

LONGEST = 44
"""Characters of a name that are shown."""

PER_ROW, MARGIN = 0.24, 1.7
"""Inches."""


def coefficient_figure(explanation: Explanation, *, top: int, title: str) -> Figure:
    """Effects over the columns' ranges, largest on top; bars of 2 standard errors, hollow if they reach 0."""
    shown = explanation.coefficients[:top]
    figure = new_figure(7.2, MARGIN + PER_ROW * max(len(shown), 3))
    axes = figure.subplots()
    looks = kinds(list(dict.fromkeys(each.output for each in shown)))
    axes.axvline(0.0, color="black", linewidth=0.8)
    for place, each in enumerate(shown):
        _dot(axes, each, place, looks[each.output])
    axes.set_yticks(range(len(shown)), [_label(each) for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    dress(axes, title=title, x=f"change of: {explanation.score}\n(over the whole range of the column)")
    axes.grid(visible=False, axis="y")
    _for_legend(axes, looks, explanation)
    legend(figure, axes, columns=4)
    return figure


def _dot(axes: Axes, each: Coefficient, place: int, look: Look) -> None:
    hollow = bool(each.may_be_noise)
    reach = NOISE * (each.standard_error or 0.0) * each.span
    color = "#8a8a8a" if hollow and not each.output else look.color
    axes.errorbar(
        [each.effect],
        [place],
        xerr=[reach] if reach else None,
        color=color,
        marker=look.marker,
        markersize=5.5,
        markerfacecolor="white" if hollow else color,
        markeredgecolor=color,
        elinewidth=1.3,
        capsize=2.5,
        linestyle="none",
    )


def _label(each: Coefficient) -> str:
    name = each.name if len(each.name) <= LONGEST else f"{each.name[: LONGEST - 1]}…"
    return name.replace("$", r"\$")  # no formulas


def _for_legend(axes: Axes, looks: dict[str, Look], explanation: Explanation) -> None:
    nothing = [np.nan]
    for output, look in looks.items():
        if output:
            axes.plot(nothing, nothing, look.marker, color=look.color, label=output.replace("$", r"\$"))
    if not explanation.unknown:
        grey = "#8a8a8a"
        axes.errorbar(
            nothing,
            nothing,
            xerr=nothing,
            color=grey,
            capsize=2.5,
            label="± 2 noise standard errors",
        )
        axes.plot(
            nothing, nothing, "o", color=grey, markerfacecolor="white", label="may be noise: reaches zero"
        )
