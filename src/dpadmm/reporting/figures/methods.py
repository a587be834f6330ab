"""Figures 3 and 7: DP-ADMM beside the other methods, by round, by ε and by δ."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from dpadmm.reporting.picture import Picture, about, number_list, optimum, spread
from dpadmm.reporting.series import (
    BUDGETS,
    METHODS,
    Curve,
    at_end,
    budget_column,
    by_end,
    by_round,
    distinct,
    done,
    has,
    mean_std,
    variants,
    where,
)
from dpadmm.reporting.style import (
    Look,
    at_values,
    draw,
    dress,
    floor,
    kinds,
    legend,
    log_y,
    new_figure,
    power,
)
from dpadmm.results import Results

_SHOWN_BUDGETS = (0.05, 0.1)


def methods_figure(results: Results, name: str, *, model: str) -> Picture | None:
    """Loss by round at two ε, error against ε and against δ; ``model`` is "local" or "global"."""
    lines = done(results)
    private = where(lines, method="dp_admm")
    if not len(private):
        return None
    budget, delta, value = budget_column(private), _most(private, "delta"), _common_budget(private)
    groups = {label: group for label, group in variants(lines).items() if label != METHODS["centralized"]}
    looks = kinds(list(groups))
    shown = _two(distinct(where(private, delta=delta), budget))
    figure = new_figure(9.2, 7.2)
    panels = figure.subplots(2, 2).ravel()
    loss = f"train_loss_{model}"
    for axes, letter, one in zip(panels, "ab", shown, strict=False):
        for label, group in groups.items():
            at = _at(group, **{budget: one, "delta": delta})
            if len(at):
                draw(axes, by_round(at, loss), looks[label], label=label)
        floor(axes, optimum(lines, "train_loss_global"), "non-private optimum")
        dress(axes, title=f"({letter}) {BUDGETS[budget]} = {one:g}, δ = {power(delta)}", x="round",
              y=f"training loss, {model} model{'s' if model == 'local' else ''}")  # fmt: skip
        _fit(axes)
    error = f"test_error_{model}" if has(private, "test_error_global") else "train_error_global"
    error_words = f"{error.split('_')[0]} error, {model} model{'s' if model == 'local' else ''}"
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
        f"DP-ADMM and the other methods: {model} model{'s' if model == 'local' else ''} "
        f"({', '.join(value.upper() for value in distinct(lines, 'regularizer'))})",
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
        f"end against {BUDGETS[budget]}; (d) the same against δ. {spread(lines)}ADMM and the optimum have no "
        "noise. The loss is on a logarithmic scale where methods lie far apart."
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
        if _has_budget(group):
            here = where(group, **equals)
            if len(here):
                draw(axes, by_end(here, error, x), looks[label], label=label)
        elif points and len(group):
            mean, std = mean_std(at_end(group, error))
            at, n_seeds = np.array(sorted(points)), len(distinct(group, "seed"))
            flat = Curve(at, np.full(len(at), mean), np.full(len(at), std), n_seeds)
            draw(axes, flat, looks[label], label=label)
    if points:
        at_values(axes, sorted(points))


def _most(lines: Results, column: str) -> float:
    """The value of a column with the most budgets beside it."""
    budget = budget_column(lines)
    values = distinct(lines, column)
    return float(max(values, key=lambda v: (len(distinct(where(lines, **{column: v}), budget)), v)))


def _common_budget(lines: Results) -> float:
    """The budget with the most δ beside it."""
    budget = budget_column(lines)
    values = distinct(lines, budget)
    return float(max(values, key=lambda v: (len(distinct(where(lines, **{budget: v}), "delta")), v == 0.1)))


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
