"""The figure of ``dpadmm compare``: methods × budgets × agents."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.experiments.results import Results
from dpadmm.reporting.series import (
    BUDGETS,
    METHODS,
    about,
    at_end,
    budget_column,
    by_end,
    distinct,
    done,
    flat,
    has,
    is_regression,
    mean_std,
    optimum,
    split,
    spread_note,
    variants,
    where,
)
from dpadmm.reporting.style import Picture, at_values, draw, dress, floor, kinds, legend, log_y, new_figure

_MOST_PANELS = 4
_FAR = 5.0
"""Largest over smallest mean from which a scale is logarithmic."""


def comparison_figure(results: Results) -> Figure:
    """Error and training loss of the global model at the end, beside the non-private optimum.

    Against the budget, one column of panels per number of agents; against the number of agents where there is
    one budget; side by side where there is one of both.
    """
    lines = done(results)
    groups = {
        label: group
        for label, group in variants(lines).items()
        if set(distinct(group, "method")) != {"centralized"}
    }
    budget = budget_column(lines)
    budgets, agents = distinct(lines, budget), _agents(groups)
    by_agents = len(budgets) < 2 and len(agents) > 1
    alone = len(budgets) < 2 and len(agents) < 2
    panels = [None] if by_agents or alone else agents[:_MOST_PANELS]
    figure = new_figure(4.6 * max(1 if len(panels) > 1 else 1.4, len(panels)), 6.4)
    grid = figure.subplots(2, len(panels), squeeze=False, sharey="row", sharex="col")
    regression = is_regression(lines)
    for i, column in enumerate((_error(lines), "train_loss_global")):
        rate = "error" in column and not regression
        for axes, n in zip(grid[i], panels, strict=True):
            here = {
                label: group if n is None or _same_for_all(group, n) else where(group, n_agents=n)
                for label, group in groups.items()
            }
            if alone:
                _side_by_side(axes, here, column)
            else:
                _lines(axes, here, column, "n_agents" if by_agents else budget)
            floor(axes, optimum(lines, column), "non-private optimum")
            title = f"{n} agents" if n is not None and i == 0 else ""
            x = "" if alone or i == 0 else "number of agents n" if by_agents else BUDGETS[budget]
            measured = "loss" if "loss" in column else "error" if rate else "RMS error"
            y = f"{'training' if 'train' in column else 'test'} {measured}, global model"
            dress(axes, title=title, x=x, y=y if axes is grid[i][0] else "", percent=rate)
        if not rate and _far_apart(lines, column):
            for axes in grid[i]:
                log_y(axes)
    legend(figure, grid[0][0], columns=max(3, 3 * len(panels)))
    return figure


def comparison_picture(results: Results, name: str) -> Picture | None:
    """The figure with its caption; None where every run was refused."""
    lines = done(results)
    if not len(lines):
        return None
    figure = comparison_figure(results)
    names = [label for label in variants(lines) if label != METHODS["centralized"]]
    deltas = ", ".join(f"{value:g}" for value in distinct(lines, "delta"))
    far = any(axes.get_yscale() == "log" for axes in figure.axes)
    dotted = "The dotted line is the non-private optimum on pooled rows. "
    caption = (
        f"{', '.join(names) or 'The non-private optimum alone'} at the end of the runs ({about(lines)}, "
        f"δ = {deltas}): {'RMS error' if is_regression(lines) else 'error'} (top) and training loss (bottom) "
        f"of the global model. {spread_note(lines)}"
        f"{dotted if np.isfinite(optimum(lines, 'train_loss_global')) else ''}Lower is better."
        f"{' A scale is logarithmic where methods lie far apart.' if far else ''}"
    )
    return Picture(name, "Methods side by side", caption, figure)


def _agents(groups: dict[str, Results]) -> list[int]:
    return sorted({n for group in groups.values() for n in distinct(group, "n_agents")})


def _error(lines: Results) -> str:
    return "test_error_global" if has(lines, "test_error_global") else "train_error_global"


def _same_for_all(group: Results, n_agents: int) -> bool:
    """Whether a method without noise was run for another number of agents only, which stands for all."""
    return not distinct(group, budget_column(group)) and n_agents not in distinct(group, "n_agents")


def _far_apart(lines: Results, column: str) -> bool:
    """Whether one mean is so large that the others could not be told apart beside it."""
    budget = budget_column(lines)
    cells = [cell for each in variants(lines).values() for cell in split(each, "n_agents", budget).values()]
    means = np.array([mean_std(at_end(cell, column))[0] for cell in cells])
    means = means[np.isfinite(means)]
    return bool(means.size) and means.min() > 0.0 and means.max() > _FAR * means.min()


def _lines(axes: Axes, groups: dict[str, Results], column: str, x: str) -> None:
    looks = kinds(list(groups))
    points = sorted({value for group in groups.values() for value in distinct(group, x)})
    for label, group in groups.items():
        if not len(group):
            continue
        curve = by_end(group, column, x) if distinct(group, x) else flat(group, column, points)
        draw(axes, curve, looks[label], label=label)
    if points and points[0] > 0:
        at_values(axes, points)


def _side_by_side(axes: Axes, groups: dict[str, Results], column: str) -> None:
    for i, (label, look) in enumerate(kinds(list(groups)).items()):
        if len(groups[label]):
            values = at_end(groups[label], column)
            mean, std = mean_std(values)
            around = std if len(values) > 1 else None
            axes.errorbar(
                i, mean, yerr=around, fmt=look.marker, color=look.color, markersize=8, capsize=4, label=label
            )
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(groups) - 0.4)
