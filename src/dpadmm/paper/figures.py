"""Figures 1 to 7 of the paper, drawn from a results file alone, and the list of all figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dpadmm.experiments.results import Results
from dpadmm.paper.extra_figures import (
    bounds_figure,
    choices_figure,
    epsilon_figure,
    lambda_figure,
    schedule_figure,
    times_figure,
)
from dpadmm.reporting.comparison import comparison_picture
from dpadmm.reporting.series import (
    BUDGETS,
    METHODS,
    about,
    begun,
    budget_column,
    by_end,
    by_round,
    distinct,
    done,
    flat,
    has,
    number_list,
    optimum,
    spread_note,
    variants,
    where,
    with_optimum,
)
from dpadmm.reporting.style import (
    Look,
    Picture,
    at_values,
    draw,
    dress,
    floor,
    kinds,
    legend,
    log_y,
    new_figure,
    power,
    steps,
)

_SHOWN_BUDGETS = (0.05, 0.1)


def agents_figure(results: Results, name: str) -> Picture | None:
    """Figures 1 and 4: training loss by round for each n; below, loss and error at the end against n."""
    lines = where(done(results), method="dp_admm")
    if not len(lines):
        return None
    budget = budget_column(lines)
    budgets, agents = distinct(lines, budget)[:4], distinct(lines, "n_agents")
    columns = max(2, len(budgets))
    figure = new_figure(4.6 * columns, 6.8)
    above: list[Any] = [f"loss {i}" if i < len(budgets) else "." for i in range(columns)]
    below: list[Any] = ["train_loss"] * (columns // 2) + ["error"] * (columns - columns // 2)
    panels = figure.subplot_mosaic([above, below])
    best = optimum(results, "train_loss_global")
    for i, value in enumerate(budgets):
        axes = panels[f"loss {i}"]
        for n, look in zip(agents, steps(len(agents)), strict=True):
            group = where(lines, **{budget: value, "n_agents": n})
            draw(axes, by_round(group, "train_loss_local"), look, label=f"n = {n}")
        floor(axes, best, "non-private optimum")
        y = "training loss, local models" if i == 0 else ""
        dress(axes, title=f"({'abcd'[i]}) {BUDGETS[budget]} = {value:g}", x="round", y=y)
    error = "test_error" if has(lines, "test_error_global") else "train_error"
    for letter, axes, stem in zip(
        "abcdef"[len(budgets) :], (panels["train_loss"], panels["error"]), ("train_loss", error), strict=False
    ):
        words = stem.replace("train_", "training ").replace("_", " ")
        _against_agents(axes, lines, results, stem)
        dress(axes, title=f"({letter}) {words} at the end", x="number of agents n", y=words,
              percent="error" in stem)  # fmt: skip
    legend(figure, panels["loss 0"], columns=7)
    caption = (
        f"The same rows over more agents ({about(results)}). Top: training loss of the local models, as in "
        f"the paper, by round for n = {number_list(agents)} agents at {BUDGETS[budget]} "
        f"{number_list(budgets)}. Bottom: loss and error after the last round against n, from {agents[0]} to "
        f"{agents[-1]} agents; filled markers are the global model, hollow markers the mean of the local "
        f"models. {spread_note(lines)}The dotted line is the non-private optimum on pooled rows. Unlike the "
        "paper, the lower panels show the end of the runs against n and both models, since the paper does "
        "not say which model its error rates belong to."
    )
    return Picture(name, f"More agents, same rows ({_regularizers(results)})", caption, figure)


def _against_agents(axes: Axes, lines: Results, results: Results, stem: str) -> None:
    budget = budget_column(lines)
    budgets = distinct(lines, budget)
    for value, look in zip(budgets, kinds([f"{value:g}" for value in budgets]).values(), strict=True):
        group = where(lines, **{budget: value})
        for model in ("global", "local"):
            if has(group, f"{stem}_{model}"):
                curve = by_end(group, f"{stem}_{model}", "n_agents")
                draw(axes, curve, look, label=f"ε = {value:g}, {model}", hollow=model == "local")
    floor(axes, optimum(results, f"{stem}_global"))
    at_values(axes, distinct(lines, "n_agents"))
    axes.legend(frameon=False, fontsize=8.5, handlelength=3.0)


def _regularizers(results: Results) -> str:
    return ", ".join(value.upper() for value in distinct(results, "regularizer"))


def objective_figure(results: Results, name: str) -> Picture | None:
    """Figures 2 and 6: the augmented objective by round, one panel per δ, one line per ε."""
    lines = where(done(results), method="dp_admm")
    if not len(lines):
        return None
    budget = budget_column(lines)
    budgets, deltas = distinct(lines, budget), sorted(distinct(lines, "delta"), reverse=True)
    agents = distinct(lines, "n_agents")
    columns = min(2, len(deltas))
    height = -(-len(deltas) // columns)
    figure = new_figure(4.6 * columns, 0.7 + 3.0 * height)
    panels = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False).ravel()
    best = optimum(results, "objective_global") * agents[0] if len(agents) == 1 else float("nan")
    for i, (axes, delta) in enumerate(zip(panels, deltas, strict=False)):
        for value, look in zip(budgets, steps(len(budgets)), strict=True):
            group = where(lines, **{budget: value, "delta": delta})
            if len(group):
                draw(axes, by_round(group, "augmented_objective"), look, label=f"{BUDGETS[budget]} {value:g}")
        floor(axes, best, "optimum, n·F*")
        log_y(axes)
        x = "round" if i + columns >= len(deltas) else ""
        y = "augmented objective" if i % columns == 0 else ""
        dress(axes, title=f"({'abcdefgh'[i % 8]}) δ = {power(delta)}", x=x, y=y)
    for axes in panels[len(deltas) :]:
        axes.set_visible(False)
    legend(figure, panels[0])
    caption = (
        "Augmented objective Σᵢ(fᵢ(w̄ᵢ) + ρ‖w̄ᵢ − w̄‖) of DP-ADMM by round, summed over the agents, at the "
        f"averages of the local models ({about(lines)}, n = {number_list(agents)}). One panel for each δ, "
        f"one line for each {BUDGETS[budget]}: {number_list(budgets)}. Logarithmic scale. "
        f"{spread_note(lines)}"
        + ("The dotted line is n times the non-private optimum F*. " if np.isfinite(best) else "")
        + "Lower is better."
    )
    return Picture(name, f"Convergence for every ε and δ ({_regularizers(lines)})", caption, figure)


def methods_figure(results: Results, name: str, *, model: str) -> Picture | None:
    """Figures 3 and 7: loss by round at two ε, error against ε and δ; ``model`` is "local" or "global"."""
    lines = done(results)
    private = where(lines, method="dp_admm")
    if not len(private):
        return None
    budget = budget_column(private)
    delta = _widest(private, "delta", budget, prefer=1e-3)
    value = _widest(private, budget, "delta", prefer=0.1)
    groups = {label: group for label, group in variants(lines).items() if label != METHODS["centralized"]}
    looks = kinds(list(groups))
    shown = _two(distinct(where(private, delta=delta), budget))
    figure = new_figure(9.2, 7.2)
    panels = figure.subplots(2, 2).ravel()
    loss, models = f"train_loss_{model}", "local models" if model == "local" else "global model"
    for axes, letter, one in zip(panels, "ab", shown, strict=False):
        for label, group in groups.items():
            at = _at(group, **{budget: one, "delta": delta})
            if len(at):
                draw(axes, by_round(at, loss), looks[label], label=label)
        floor(axes, optimum(lines, "train_loss_global"), "non-private optimum")
        dress(axes, title=f"({letter}) {BUDGETS[budget]} = {one:g}, δ = {power(delta)}", x="round",
              y=f"training loss, {models}")  # fmt: skip
        _fit(axes)
    error = f"test_error_{model}" if has(private, "test_error_global") else "train_error_global"
    error_words = f"{error.split('_')[0]} error, {models}"
    panels[3].sharey(panels[2])
    _against(panels[2], groups, looks, error, budget, {"delta": delta})
    dress(panels[2], title=f"(c) δ = {power(delta)}", x=BUDGETS[budget], y=error_words, percent=True)
    _against(panels[3], groups, looks, error, "delta", {budget: value})
    dress(panels[3], title=f"(d) {BUDGETS[budget]} = {value:g}", x="δ", y=error_words, percent=True)
    for axes in panels[2:]:
        floor(axes, optimum(lines, error.replace("local", "global")))
    for axes in panels[len(shown) : 2]:
        axes.set_visible(False)
    legend(figure, max(panels[:2], key=lambda axes: len(axes.lines)), columns=4)
    return Picture(
        name if model == "local" else f"{name}_global",
        f"DP-ADMM and the other methods: {models} ({_regularizers(lines)})",
        _caption(lines, groups, model=model, shown=shown, budget=budget),
        figure,
    )


def _caption(
    lines: Results, groups: Mapping[str, Results], *, model: str, shown: list[float], budget: str
) -> str:
    which = (
        "the mean of the agents' local models, as in the paper's formula; methods that have one model only "
        "are shown with it"
        if model == "local"
        else "the global model, which the paper does not show"
    )
    return (
        f"{', '.join(groups)}, and the non-private optimum ({about(lines)}). Measured on {which}. (a, b) "
        f"training loss by round at {BUDGETS[budget]} {number_list(shown)}; (c) error on test rows at the "
        f"end against {BUDGETS[budget]}; (d) the same against δ. {spread_note(lines)}ADMM and "
        "the optimum have no noise. The loss is on a logarithmic scale where methods lie far apart."
        + (
            " A tail average starts halfway through the rounds."
            if "tail" in distinct(lines, "average")
            else ""
        )
    )


def _at(group: Results, **equals: float) -> Results:
    """The lines of a budget; a method without a budget is the same at each."""
    return group if not _has_budget(group) else where(group, **equals)


def _has_budget(group: Results) -> bool:
    return any(distinct(group, name) for name in BUDGETS)


def _against(
    axes: Axes, groups: Mapping[str, Results], looks: Mapping[str, Look], error: str, x: str,
    equals: Mapping[str, float],
) -> None:  # fmt: skip
    points: set[float] = set()
    for group in groups.values():
        if _has_budget(group):
            points |= set(distinct(where(group, **equals), x))
    for label, group in groups.items():
        here = where(group, **equals) if _has_budget(group) else group
        if len(here):
            curve = by_end(here, error, x) if _has_budget(group) else flat(group, error, points)
            draw(axes, curve, looks[label], label=label)
    if points:
        at_values(axes, sorted(points))


def _widest(lines: Results, column: str, other: str, *, prefer: float) -> float:
    """The value of a column with the most values of another beside it; in a tie ``prefer`` or the largest."""
    values = distinct(lines, column)
    n_beside = {value: len(distinct(where(lines, **{column: value}), other)) for value in values}
    return float(max(values, key=lambda value: (n_beside[value], value == prefer, value)))


def _two(values: list[float]) -> list[float]:
    """The paper's two budgets where they are there, else the two in the middle."""
    ours = [value for value in values if value in _SHOWN_BUDGETS]
    middle = max(0, len(values) // 2 - 1)
    return ours if len(ours) == 2 else values[middle : middle + 2]


def _fit(axes: Axes) -> None:
    """A logarithmic scale where one method goes so far astray that it would flatten all the others."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if drawn.size and drawn.max() > 3.0 * drawn.min():
        log_y(axes)


_MAKERS: dict[str, list[Callable[[Results, str], Picture | None]]] = {
    "fig1": [agents_figure],
    "fig2": [objective_figure],
    "fig3": [partial(methods_figure, model="local"), partial(methods_figure, model="global")],
    "fig4": [agents_figure],
    "fig6": [objective_figure],
    "fig7": [partial(methods_figure, model="local"), partial(methods_figure, model="global")],
    "table3": [times_figure],
    "bounds": [bounds_figure],
    "choices": [choices_figure],
    "schedule": [schedule_figure],
    "lambda": [lambda_figure],
}
PAPER = tuple(_MAKERS)
"""Experiments of the paper's grid; any other experiment is a comparison of methods."""


def pictures(results: Results) -> list[Picture]:
    """The figures of all experiments in the results."""
    found = [
        picture
        for experiment in sorted(begun(results), key=lambda name: name not in PAPER)
        for maker in _MAKERS.get(experiment, [comparison_picture])
        if (picture := maker(with_optimum(results, experiment), experiment)) is not None
    ]
    epsilon = epsilon_figure(results, "epsilon") if set(PAPER) & set(begun(results)) else None
    return found + ([epsilon] if epsilon else [])
