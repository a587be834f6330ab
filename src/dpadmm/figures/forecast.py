"""The figure of ``dpadmm plan``: the forecast against ε, a line for every number of rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from dpadmm.figures import style
from dpadmm.figures.style import Curve, Picture, draw, dress, floor, legend, new_figure, steps

if TYPE_CHECKING:
    from dpadmm.planning.forecast import Outlook
    from dpadmm.planning.plan import Plan, Recommendation


def forecast_figure(plan: Plan, *, title: str) -> Picture:
    """A panel for every scenario: the judged measure, between the lines between which everything lies."""
    outlooks, verdicts, measure = plan.outlooks, plan.verdicts, plan.measure
    several = len(outlooks) > 1
    figure = new_figure(4.2 * len(outlooks) if several else 7.6, 4.9)
    panels = np.atleast_1d(figure.subplots(1, len(outlooks), sharey=True))
    for axes, outlook, verdict in zip(panels, outlooks, verdicts, strict=True):
        _outlook(axes, plan, outlook, verdict)
        heading, y = f"{outlook.name}: {verdict.word}", measure if axes is panels[0] else ""
        dress(axes, title=heading, x="total ε", y=y, percent=plan.goal.measure.percent)
    figure.suptitle(f"Forecast, not a result: {title}", fontsize=11, x=0.01, ha="left")
    legend(figure, panels[0], columns=5 if several else 3)
    words = "; ".join(
        f"{each.name}: {verdict.word}, {verdict.reason}" for each, verdict in zip(outlooks, verdicts, strict=True)
    )
    caption = (
        f"A forecast of {title}, from {'made-up' if several else 'public'} rows; no private row was read. "
        f"{measure} against the total ε, a line for every number of rounds; bands: ± one standard deviation "
        "of what one run reaches (noise, splits and the number of rows tested on). Dotted: without "
        f"noise; grey: a constant prediction. The ring marks the study's own ε and rounds. Recommendation: {words}."
    )
    return Picture("forecast", "Forecast of a study", caption, figure)


def _outlook(axes: Axes, plan: Plan, outlook: Outlook, verdict: Recommendation) -> None:
    grid, name = plan.grid, plan.goal.name
    for rounds, look in zip(grid.rounds, steps(len(grid.rounds)), strict=True):
        values = [outlook.at(epsilon, rounds)[name] for epsilon in grid.epsilons]
        mean, std = np.array([(each.mean, each.spread) for each in values]).T
        curve = Curve(np.array(grid.epsilons), mean, std, n_seeds=2)  # 2: with a band
        draw(axes, curve, look, label=f"{rounds} rounds")
    axes.plot(
        [grid.own[0]], [outlook.at(*grid.own)[name].mean], "o", markersize=13, markerfacecolor="none",
        markeredgecolor="#b5432a", markeredgewidth=1.8, label="this study", zorder=5,
    )  # fmt: skip
    floor(axes, outlook.ceiling[name].mean, "without noise")
    dashes = (0, (5, 3))
    axes.axhline(outlook.baseline[name], color="#888888", linestyle=dashes, linewidth=1.3, label="constant prediction")
    if plan.goal.target is not None:
        axes.axhline(verdict.goal, color="#b5432a", linewidth=1.0, alpha=0.8, label="goal")
    style.at_values(axes, list(grid.epsilons))
