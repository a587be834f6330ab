"""Figures 2 and 6: the augmented objective by round for every ε and δ."""

from __future__ import annotations

import numpy as np

from dpadmm.reporting.picture import Picture, about, number_list, optimum, spread
from dpadmm.reporting.series import BUDGETS, budget_column, by_round, distinct, done, where
from dpadmm.reporting.style import draw, dress, floor, legend, log_y, new_figure, power, steps
from dpadmm.results import Results


def objective_figure(results: Results, name: str) -> Picture | None:
    """One panel per δ, one line per ε."""
    lines = where(done(results), method="dp_admm")
    if not len(lines):
        return None
    budget = budget_column(lines)
    budgets, deltas = distinct(lines, budget), sorted(distinct(lines, "delta"), reverse=True)
    columns = min(2, len(deltas))
    height = -(-len(deltas) // columns)
    figure = new_figure(4.6 * columns, 0.7 + 3.0 * height)
    panels = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False).ravel()
    floor_value = _floor(results, lines)
    for i, (axes, delta) in enumerate(zip(panels, deltas, strict=False)):
        for value, look in zip(budgets, steps(len(budgets)), strict=True):
            group = where(lines, **{budget: value, "delta": delta})
            if len(group):
                draw(axes, by_round(group, "augmented_objective"), look, label=f"{BUDGETS[budget]} {value:g}")
        floor(axes, floor_value, "optimum, n·F*")
        log_y(axes)
        dress(
            axes,
            title=f"({'abcdefgh'[i % 8]}) δ = {power(delta)}",
            x="round" if i + columns >= len(deltas) else "",
            y="augmented objective" if i % columns == 0 else "",
        )
    for axes in panels[len(deltas) :]:
        axes.set_visible(False)
    legend(figure, panels[0])
    caption = (
        "Augmented objective Σᵢ(fᵢ(w̄ᵢ) + ρ‖w̄ᵢ − w̄‖) of DP-ADMM by round, summed over the agents, at the "
        f"averages of the local models ({about(lines)}, n = {number_list(distinct(lines, 'n_agents'))}). One "
        f"panel for each δ, one line for each {BUDGETS[budget]}: {number_list(budgets)}. Logarithmic scale. "
        f"{spread(lines)}"
        + ("The dotted line is n times the non-private optimum F*. " if np.isfinite(floor_value) else "")
        + "Lower is better."
    )
    titles = ", ".join(value.upper() for value in distinct(lines, "regularizer"))
    return Picture(name, f"Convergence for every ε and δ ({titles})", caption, figure)


def _floor(results: Results, lines: Results) -> float:
    agents = distinct(lines, "n_agents")
    return optimum(results, "objective_global") * agents[0] if len(agents) == 1 else float("nan")
