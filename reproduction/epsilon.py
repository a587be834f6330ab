"""Figure: exact ε and the paper's ε̄ of all the paper's runs."""

from __future__ import annotations

from matplotlib.axes import Axes

from dpadmm.figures import style
from dpadmm.figures.style import Picture, draw, dress, new_figure, power, steps
from reproduction import series
from reproduction.results import Results
from reproduction.series import distinct, done, number_list

_TOTALS = (("epsilon", "exact ε", False), ("paper_epsilon", "paper's ε̄", True))


def figure(results: Results, name: str) -> Picture:
    """Draw the total ε by round, and after the last round by the ε of a round."""
    lines = done(results).select(method="dp_admm")
    series.need(series.has(lines, "total_paper_epsilon"), distinct(lines, "round_epsilon"))
    figure = new_figure(9.2, 4.1)
    left, right = figure.subplots(1, 2)
    deltas = distinct(lines, "delta")
    delta, ends = deltas[-1], sorted({deltas[0], deltas[-1]}, reverse=True)
    spent = distinct(lines.select(delta=delta), "round_epsilon")
    shown = [value for value in spent if value in (0.05, 0.1, 0.2)] or spent[-3:]
    _epsilon_by_round(left, lines.select(delta=delta), shown)
    dress(left, title=f"(a) spent so far, δ = {power(delta)}", x="round", y="total ε")
    for one, look in zip(ends, steps(len(ends)), strict=True):
        for column, words, hollow in _TOTALS:
            curve = series.by_end(lines.select(delta=one), f"total_{column}", "round_epsilon")
            draw(right, curve, look, label=f"{words}, δ = {power(one)}", hollow=hollow, band=False)
    style.at_values(right, distinct(lines, "round_epsilon"))
    style.logarithmic(right.yaxis)
    dress(right, title="(b) after the last round", x="ε per round", y="total ε")
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8, handlelength=3.0)
    caption = (
        "Cost of the same noise: exact ε of the composed Gaussian releases (filled markers, solid) and "
        "the paper's bound ε̄ from the moments accountant (hollow, dotted). (a) by round at δ = "
        f"{power(delta)}, for ε per round {number_list(shown)}; (b) after the last round against the ε of a "
        f"round, for δ = {', '.join(map(power, ends))}, both scales logarithmic. These numbers depend on the "
        "noise alone, not on the rows."
    )
    return Picture(name, "The paper's ε̄ and the exact ε", caption, figure)


def _epsilon_by_round(axes: Axes, lines: Results, budgets: list[float]) -> None:
    for value, look in zip(budgets, steps(len(budgets)), strict=True):
        run = next(iter(series.split(lines.select(round_epsilon=value), "cell").values()))
        for column, words, hollow in _TOTALS:
            draw(
                axes,
                series.by_round(run, f"spent_{column}"),
                look,
                label=f"{words}, {value:g} per round",
                hollow=hollow,
            )
