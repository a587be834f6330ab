"""The paper's ε̄ beside the exact ε of the same noise."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from dpadmm.reporting.picture import Picture, number_list
from dpadmm.reporting.series import Curve, by_end, distinct, done, has, split, where
from dpadmm.reporting.style import at_values, draw, dress, log_y, new_figure, power, steps
from dpadmm.results import Results


def epsilon_figure(results: Results, name: str) -> Picture | None:
    """Total ε by round, and after the last round by the ε of a round."""
    lines = where(done(results), method="dp_admm")
    if not has(lines, "total_paper_epsilon") or not distinct(lines, "round_epsilon"):
        return None
    figure = new_figure(9.2, 4.1)
    left, right = figure.subplots(1, 2)
    delta = max(distinct(lines, "delta"))
    _by_round(left, where(lines, delta=delta))
    dress(left, title=f"(a) spent so far, δ = {power(delta)}", x="round", y="total ε")
    _by_budget(right, lines)
    dress(right, title="(b) after the last round", x="ε per round", y="total ε")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8, handlelength=3.0)
    caption = (
        "What the same noise costs: exact ε of the composed Gaussian releases (filled markers, solid) and "
        "the paper's bound ε̄ from the moments accountant (hollow, dotted). (a) by round at δ = "
        f"{power(delta)}, for ε per round "
        f"{number_list(_few(distinct(where(lines, delta=delta), 'round_epsilon')))}; (b) after the last "
        f"round against the ε of a round, for δ = {', '.join(map(power, _ends(lines)))}, both scales "
        "logarithmic. These numbers depend on the noise alone, not on the rows."
    )
    return Picture(name, "The paper's ε̄ and the exact ε", caption, figure)


def _by_round(axes: Axes, lines: Results) -> None:
    budgets = _few(distinct(lines, "round_epsilon"))
    for value, look in zip(budgets, steps(len(budgets)), strict=True):
        _, run = next(iter(split(where(lines, round_epsilon=value), "cell").items()))
        for column, words, hollow in (
            ("spent_epsilon", "exact ε", False),
            ("spent_paper_epsilon", "paper's ε̄", True),
        ):
            x, y = (np.array(run.column(each), dtype=float) for each in ("round", column))
            seen = np.isfinite(y)
            curve = Curve(x[seen], y[seen], np.zeros(int(seen.sum())), 1)
            draw(axes, curve, look, label=f"{words}, {value:g} a round", hollow=hollow)


def _by_budget(axes: Axes, lines: Results) -> None:
    deltas = _ends(lines)
    for delta, look in zip(deltas, steps(len(deltas)), strict=True):
        group = where(lines, delta=delta)
        for column, words, hollow in (
            ("total_epsilon", "exact ε", False),
            ("total_paper_epsilon", "paper's ε̄", True),
        ):
            curve = by_end(group, column, "round_epsilon")
            draw(axes, curve, look, label=f"{words}, δ = {power(delta)}", hollow=hollow, band=False)
    at_values(axes, distinct(lines, "round_epsilon"))
    log_y(axes)


def _few(values: list[float]) -> list[float]:
    ours = [value for value in values if value in (0.05, 0.1, 0.2)]
    return ours or values[-3:]


def _ends(lines: Results) -> list[float]:
    deltas = distinct(lines, "delta")
    return [deltas[-1], deltas[0]] if len(deltas) > 1 else deltas
