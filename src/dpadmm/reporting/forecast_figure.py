"""The figure of a forecast: what is reached against ε, a line for every number of rounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from dpadmm.reporting.series import Curve
from dpadmm.reporting.style import Picture, at_values, draw, dress, legend, new_figure, steps
from dpadmm.runs.planning.forecast import Grid, Outlook
from dpadmm.runs.planning.plan import Verdict


def forecast_figure(
    outlooks: Sequence[Outlook],
    grid: Grid,
    verdicts: Sequence[Verdict],
    *,
    title: str,
    measure: str,
    percent: bool,
) -> Picture:
    """A panel for every scenario, with the lines between which everything lies.

    Parameters
    ----------
    measure : str
        What the vertical axis shows.
    percent : bool
        Whether it is a share.
    """
    several = len(outlooks) > 1
    figure = new_figure(4.2 * len(outlooks) if several else 7.6, 4.9)
    panels = np.atleast_1d(figure.subplots(1, len(outlooks), sharey=True))
    for axes, outlook, verdict in zip(panels, outlooks, verdicts, strict=True):
        _panel(axes, outlook, grid, verdict)
        dress(
            axes,
            title=f"{outlook.name}: {verdict.word}",
            x="total ε",
            y=measure if axes is panels[0] else "",
            percent=percent,
        )
    figure.suptitle(f"Forecast, not a result: {title}", fontsize=11, x=0.01, ha="left")
    legend(figure, panels[0], columns=5 if several else 3)
    words = "; ".join(
        f"{each.name}: {verdict.word}, {verdict.reason}"
        for each, verdict in zip(outlooks, verdicts, strict=True)
    )
    caption = (
        f"A forecast of {title}, from {'made-up' if several else 'public'} rows; no private row was read. "
        f"{measure} against the total ε, a line for every number of rounds; bands: ± one standard deviation "
        "of what one run reaches (noise, splits and the number of rows tested on). Dotted: without "
        f"privacy; grey: without learning. The ring marks the study's own ε and rounds. Verdict: {words}."
    )
    return Picture("forecast", "Forecast of a study", caption, figure)


def _panel(axes: Axes, outlook: Outlook, grid: Grid, verdict: Verdict) -> None:
    for rounds, look in zip(grid.rounds, steps(len(grid.rounds)), strict=True):
        cells = [cell for cell in outlook.cells if cell.n_rounds == rounds]
        curve = Curve(
            np.array([cell.epsilon for cell in cells]),
            np.array([cell.value.mean for cell in cells]),
            np.array([cell.value.spread for cell in cells]),
            2,  # a band is drawn
        )
        draw(axes, curve, look, label=f"{rounds} rounds")
    own = outlook.at(*grid.own)
    axes.plot(
        [grid.own[0]], [own.mean], "o", markersize=13, markerfacecolor="none", markeredgecolor="#b5432a",
        markeredgewidth=1.8, label="this study", zorder=5,
    )  # fmt: skip
    axes.axhline(
        outlook.ceiling.mean, color="black", linestyle=(0, (1, 2)), linewidth=1.3, label="without privacy"
    )
    axes.axhline(
        outlook.baseline, color="#888888", linestyle=(0, (5, 3)), linewidth=1.3, label="without learning"
    )
    axes.axhline(verdict.goal, color="#b5432a", linewidth=1.0, alpha=0.8, label="goal")
    at_values(axes, list(grid.epsilons))
