"""Figure of ``dpadmm plan``: the forecast by ε, one line per number of rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from dpadmm.figures import style
from dpadmm.figures.style import Curve, Picture, draw, dress, floor, legend, new_figure, steps

if TYPE_CHECKING:
    from dpadmm.planning.forecast import ScenarioForecast
    from dpadmm.planning.plan import Plan
    from dpadmm.planning.recommendation import Recommendation


def forecast_figure(plan: Plan, *, title: str) -> Picture:
    """Draw the measure of the goal in each scenario, with a model without noise and a constant prediction."""
    forecasts, verdicts, measure = plan.forecasts, plan.recommendations, plan.measure_title
    several = len(forecasts) > 1
    figure = new_figure(4.2 * len(forecasts) if several else 7.6, 4.9)
    panels = np.atleast_1d(figure.subplots(1, len(forecasts), sharey=True))
    for axes, forecast, verdict in zip(panels, forecasts, verdicts, strict=True):
        _draw(axes, plan, forecast, verdict)
        heading, y = f"{forecast.name}: {verdict.word}", measure if axes is panels[0] else ""
        dress(axes, title=heading, x="total ε", y=y, percent=plan.goal.measure.percent)
    figure.suptitle(f"Forecast, not a result: {title}", fontsize=11, x=0.01, ha="left")
    legend(figure, panels[0], columns=5 if several else 3)
    words = "; ".join(
        f"{each.name}: {verdict.word}, {verdict.reason}" for each, verdict in zip(forecasts, verdicts, strict=True)
    )
    caption = (
        f"A forecast of {title}, from {'synthetic' if several else 'public'} rows; no private row was read. "
        f"{measure} against the total ε, a line for every number of rounds; bands: ± one standard deviation "
        "of what one run reaches (noise, splits and the number of rows tested on). Dotted: without "
        f"noise; grey: a constant prediction. The ring marks the study's own ε and rounds. Recommendation: {words}."
    )
    return Picture("forecast", "Forecast of a study", caption, figure)


def _draw(axes: Axes, plan: Plan, forecast: ScenarioForecast, verdict: Recommendation) -> None:
    grid, name = plan.grid, plan.goal.name
    for rounds, look in zip(grid.rounds, steps(len(grid.rounds)), strict=True):
        values = [forecast.at(epsilon, rounds)[name] for epsilon in grid.epsilons]
        mean, std = np.array([(each.mean, each.spread) for each in values]).T
        curve = Curve(np.array(grid.epsilons), mean, std, n_seeds=2)  # 2: with a band
        draw(axes, curve, look, label=f"{rounds} rounds")
    axes.plot(
        [grid.own[0]], [forecast.at(*grid.own)[name].mean], "o", markersize=13, markerfacecolor="none",
        markeredgecolor="#b5432a", markeredgewidth=1.8, label="this study", zorder=5,
    )  # fmt: skip
    floor(axes, forecast.without_noise[name].mean, "without noise")
    dashes = (0, (5, 3))
    axes.axhline(forecast.constant[name], color="#888888", linestyle=dashes, linewidth=1.3, label="constant prediction")
    if plan.goal.target is not None:
        axes.axhline(verdict.goal, color="#b5432a", linewidth=1.0, alpha=0.8, label="goal")
    style.at_values(axes, list(grid.epsilons))
