"""Figures 1 and 4: what it costs to spread the same rows over more agents."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from dpadmm.reporting.picture import Picture, about, number_list, optimum, spread
from dpadmm.reporting.series import BUDGETS, budget_column, by_end, by_round, distinct, done, has, where
from dpadmm.reporting.style import at_values, draw, dress, floor, kinds, legend, new_figure, steps
from dpadmm.results import Results


def agents_figure(results: Results, name: str) -> Picture | None:
    """Training loss by round for every n, one panel per ε; below, loss and error at the end against n."""
    lines = where(done(results), method="dp_admm")
    if not len(lines):
        return None
    budget = budget_column(lines)
    budgets, agents = distinct(lines, budget)[:4], distinct(lines, "n_agents")
    columns = max(2, len(budgets))
    figure = new_figure(4.6 * columns, 6.8)
    above: list[Any] = [f"loss {i}" if i < len(budgets) else "." for i in range(columns)]
    rows = figure.subplot_mosaic([above, _below(columns)])
    best = optimum(results, "train_loss_global")
    for i, value in enumerate(budgets):
        axes = rows[f"loss {i}"]
        for n, look in zip(agents, steps(len(agents)), strict=True):
            group = where(lines, **{budget: value, "n_agents": n})
            draw(axes, by_round(group, "train_loss_local"), look, label=f"n = {n}")
        floor(axes, best, "non-private optimum")
        dress(
            axes,
            title=f"({'abcd'[i]}) {BUDGETS[budget]} = {value:g}",
            x="round",
            y="training loss, local models" if i == 0 else "",
        )
    first = len(budgets)
    error = "test_error" if has(lines, "test_error_global") else "train_error"
    _against_agents(
        rows["end loss"], lines, results, "train_loss", f"({'abcdef'[first]}) training loss at the end"
    )
    _against_agents(
        rows["end error"],
        lines,
        results,
        error,
        f"({'abcdef'[first + 1]}) {error.replace('_', ' ')} at the end",
    )
    legend(figure, rows["loss 0"], columns=7)
    low, high = agents[0], agents[-1]
    caption = (
        f"The same rows over more agents ({about(results)}). Top: training loss of the local models, as in "
        f"the paper, by round for n = {number_list(agents)} agents at {BUDGETS[budget]} "
        f"{number_list(budgets)}. Bottom: loss and error after the last round against n, from {low} to "
        f"{high} agents; filled markers are the global model, hollow markers the mean of the local models. "
        f"{spread(lines)}The dotted line is the non-private optimum on pooled rows. Unlike the paper, the "
        "lower panels show the end of the runs against n and both models, since the paper does not say "
        "which model its error rates belong to."
    )
    return Picture(name, f"More agents, same rows ({_short(results)})", caption, figure)


def _below(columns: int) -> list[Any]:
    half = columns // 2
    return ["end loss"] * half + ["end error"] * (columns - half)


def _short(results: Results) -> str:
    return ", ".join(value.upper() for value in distinct(results, "regularizer"))


def _against_agents(axes: Axes, lines: Results, results: Results, stem: str, title: str) -> None:
    budget = budget_column(lines)
    budgets = distinct(lines, budget)
    looks = kinds([f"{value:g}" for value in budgets])
    for value in budgets:
        group = where(lines, **{budget: value})
        look = looks[f"{value:g}"]
        draw(axes, by_end(group, f"{stem}_global", "n_agents"), look, label=f"ε = {value:g}, global")
        if has(group, f"{stem}_local"):
            draw(
                axes,
                by_end(group, f"{stem}_local", "n_agents"),
                look,
                label=f"ε = {value:g}, local",
                hollow=True,
            )
    floor(axes, optimum(results, f"{stem}_global"))
    at_values(axes, distinct(lines, "n_agents"))
    y = stem.replace("train_", "training ").replace("_", " ")
    dress(axes, title=title, x="number of agents n", y=y, percent="error" in stem)
    axes.legend(frameon=False, fontsize=8.5, handlelength=3.0)
