"""The figure of ``dpadmm compare``: methods by budget or number of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.engine.metrics import spread
from dpadmm.figures.style import Curve, at_values, draw, dress, floor, kinds, legend, logarithmic, new_figure
from dpadmm.training.compare import DONE, ComparisonRow

BUDGETS = {"round_epsilon": "ε per round", "epsilon": "total ε", "noise_multiplier": "noise multiplier z"}
"""Settings of the amount of noise, in words; a run has one of them."""

MAX_PANELS = 4
MIN_LOG_RATIO = 5.0
"""Ratio of the largest to the smallest mean from which a scale is logarithmic."""

Groups = Mapping[str, Sequence[ComparisonRow]]


def comparison_figure(groups: Groups, *, regression: bool = False) -> Figure:
    """Plot error and training loss of the global model at the end, and the non-private optimum.

    The x axis is the budget, with one column of panels per number of agents. If there is only one budget, it is the
    number of agents. If there is only one of both, methods are side by side.

    Parameters
    ----------
    groups : mapping of str to sequence of ComparisonRow
        The rows of each method or variant, by label, in the order of the legend.
    regression : bool
        Whether errors are RMS errors, not rates.
    """
    done = {label: [row for row in rows if row.status == DONE] for label, rows in groups.items()}
    lines = [row for rows in done.values() for row in rows]
    optima = [row for row in lines if row.method == "centralized"]
    shown = {label: rows for label, rows in done.items() if any(row.method != "centralized" for row in rows)}
    budget = next((name for name in BUDGETS if any(row.budget == name for row in lines)), "round_epsilon")
    agents = sorted({row.n_agents for rows in shown.values() for row in rows})
    n_budgets = len({row.asked for row in lines if row.budget == budget})
    by_agents = n_budgets < 2 and len(agents) > 1
    alone = n_budgets < 2 and len(agents) < 2
    panels: list[int | None] = [None] if by_agents or alone else [*agents[:MAX_PANELS]]
    figure = new_figure(4.6 * max(1 if len(panels) > 1 else 1.4, len(panels)), 6.4)
    grid = figure.subplots(2, len(panels), squeeze=False, sharey="row", sharex="col")
    tested = any(np.isfinite(_values(row, "test_error_global")).any() for row in lines)
    for i, measure in enumerate(("test_error_global" if tested else "train_error_global", "train_loss_global")):
        rate = "error" in measure and not regression
        for axes, n in zip(grid[i], panels, strict=True):
            here = {label: rows if n is None else _of_agents(rows, n) for label, rows in shown.items()}
            if alone:
                _side_by_side(axes, here, measure)
            else:
                _lines(axes, here, measure, None if by_agents else budget)
            floor(axes, _mean_std(optima[-1:], measure)[0], "non-private optimum")
            title = f"{n} agents" if n is not None and i == 0 else ""
            x = "" if alone or i == 0 else "number of agents n" if by_agents else BUDGETS[budget]
            measured = "loss" if "loss" in measure else "error" if rate else "RMS error"
            y = f"{'training' if 'train' in measure else 'test'} {measured}, global model"
            dress(axes, title=title, x=x, y=y if axes is grid[i][0] else "", percent=rate)
        if not rate and _far_apart(lines, measure):
            for axes in grid[i]:
                logarithmic(axes.yaxis)
    legend(figure, grid[0][0], columns=max(3, 3 * len(panels)))
    return figure


def _of_agents(rows: Sequence[ComparisonRow], n_agents: int) -> Sequence[ComparisonRow]:
    """Return the rows with a number of agents; all rows if a method without noise ran for another number only."""
    same = [row for row in rows if row.n_agents == n_agents]
    return same if same or any(row.budget is not None for row in rows) else rows


def _values(row: ComparisonRow, measure: str) -> np.ndarray:
    return np.array(row.values.get(measure, [np.nan] * len(row.values["seconds"])), dtype=float)


def _mean_std(rows: Sequence[ComparisonRow], measure: str) -> tuple[float, float, int]:
    """Return mean, standard deviation and number of finite values; NaN if there are none."""
    numbers = np.concatenate([_values(row, measure) for row in rows]) if rows else np.zeros(0)
    numbers = numbers[np.isfinite(numbers)]
    return (float(numbers.mean()), float(spread(numbers)), numbers.size) if numbers.size else (np.nan, np.nan, 0)


def _far_apart(rows: Sequence[ComparisonRow], measure: str) -> bool:
    """Return whether one mean is so large that the others could not be distinguished on a linear scale."""
    means = np.array([_mean_std([row], measure)[0] for row in rows])
    means = means[np.isfinite(means)]
    return bool(means.size) and bool(means.min() > 0.0) and bool(means.max() > MIN_LOG_RATIO * means.min())


def _lines(axes: Axes, groups: Groups, measure: str, budget: str | None) -> None:
    """Draw one line per group by budget, or by number of agents without a budget."""
    looks = kinds(list(groups))
    by_x = {label: _by_x(rows, budget) for label, rows in groups.items()}
    points = sorted({x for rows in by_x.values() for x in rows})
    for label, rows in groups.items():
        if by_x[label]:
            draw(axes, _curve(by_x[label], measure), looks[label], label=label)
        elif rows:  # no noise: the same at all points
            mean, std, n_values = _mean_std(rows[-1:], measure)
            at = np.array(points)
            draw(axes, Curve(at, np.full(len(at), mean), np.full(len(at), std), n_values), looks[label], label=label)
    if points and points[0] > 0:
        at_values(axes, points)


def _by_x(rows: Sequence[ComparisonRow], budget: str | None) -> dict[float, list[ComparisonRow]]:
    groups: dict[float, list[ComparisonRow]] = {}
    for row in rows:
        x = row.n_agents if budget is None else row.asked if row.budget == budget else None
        if x is not None:
            groups.setdefault(x, []).append(row)
    return dict(sorted(groups.items()))


def _curve(groups: Mapping[float, Sequence[ComparisonRow]], measure: str) -> Curve:
    values = [np.concatenate([_values(row, measure) for row in rows]) for rows in groups.values()]
    means, stds = np.array([np.mean(each) for each in values]), np.array([spread(each) for each in values])
    return Curve(np.array([*groups], dtype=float), means, stds, max(map(len, values)))


def _side_by_side(axes: Axes, groups: Groups, measure: str) -> None:
    for i, (label, look) in enumerate(kinds(list(groups)).items()):
        mean, std, n_values = _mean_std(groups[label], measure)
        if groups[label]:
            axes.errorbar(i, mean, yerr=std if n_values > 1 else None, fmt=look.marker, color=look.color,
                          markersize=8, capsize=4, label=label)  # fmt: skip
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(groups) - 0.4)
