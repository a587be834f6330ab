"""The paper's figures and those that it does not have, drawn from a results file alone.

Figures 1 to 7 come first; then times, bounds, exact ε, and what the paper's choices change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dpadmm.experiments.results import Results
from dpadmm.paper.measurements import THEOREMS, gaps, times
from dpadmm.reporting import series, style
from dpadmm.reporting.figures import comparison_picture
from dpadmm.reporting.series import BUDGETS, about, by_round, distinct, done, number_list, spread_note, where
from dpadmm.reporting.style import Look, Picture, draw, dress, floor, kinds, legend, new_figure, power, steps

_SHOWN_BUDGETS = (0.05, 0.1)


def agents_figure(results: Results, name: str) -> Picture:
    """Figures 1 and 4: training loss by round for each n; below, loss and error at the end against n."""
    lines = where(done(results), method="dp_admm")
    series.need(lines)
    budget = series.budget_column(lines)
    budgets, agents = distinct(lines, budget)[:4], distinct(lines, "n_agents")
    columns = max(2, len(budgets))
    figure = new_figure(4.6 * columns, 6.8)
    above: list[Any] = [f"loss {i}" if i < len(budgets) else "." for i in range(columns)]
    under: list[Any] = ["train_loss"] * (columns // 2) + ["error"] * (columns - columns // 2)
    panels = figure.subplot_mosaic([above, under])
    best = series.optimum(results, "train_loss_global")
    for i, value in enumerate(budgets):
        axes = panels[f"loss {i}"]
        for n, look in zip(agents, steps(len(agents)), strict=True):
            group = where(lines, **{budget: value, "n_agents": n})
            draw(axes, by_round(group, "train_loss_local"), look, label=f"n = {n}")
        floor(axes, best, "non-private optimum")
        y = "training loss, local models" if i == 0 else ""
        dress(axes, title=f"({'abcd'[i]}) {BUDGETS[budget]} = {value:g}", x="round", y=y)
    error = series.error_column(lines).removesuffix("_global")
    below = [(panels["train_loss"], "train_loss"), (panels["error"], error)]
    for letter, (axes, stem) in zip("abcdef"[len(budgets) :], below, strict=False):
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
    budget = series.budget_column(lines)
    budgets = distinct(lines, budget)
    for value, look in zip(budgets, kinds([f"{value:g}" for value in budgets]).values(), strict=True):
        group = where(lines, **{budget: value})
        for model in ("global", "local"):
            if series.has(group, f"{stem}_{model}"):
                curve = series.by_end(group, f"{stem}_{model}", "n_agents")
                draw(axes, curve, look, label=f"ε = {value:g}, {model}", hollow=model == "local")
    floor(axes, series.optimum(results, f"{stem}_global"))
    style.at_values(axes, distinct(lines, "n_agents"))
    axes.legend(frameon=False, fontsize=8.5, handlelength=3.0)


def _regularizers(results: Results) -> str:
    return ", ".join(value.upper() for value in distinct(results, "regularizer"))


def objective_figure(results: Results, name: str) -> Picture:
    """Figures 2 and 6: the augmented objective by round, one panel per δ, one line per ε."""
    lines = where(done(results), method="dp_admm")
    series.need(lines)
    budget = series.budget_column(lines)
    budgets, deltas = distinct(lines, budget), sorted(distinct(lines, "delta"), reverse=True)
    agents = distinct(lines, "n_agents")
    columns = min(2, len(deltas))
    height = -(-len(deltas) // columns)
    figure = new_figure(4.6 * columns, 0.7 + 3.0 * height)
    panels = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False).ravel()
    best = series.optimum(results, "objective_global") * agents[0] if len(agents) == 1 else float("nan")
    for i, (axes, delta) in enumerate(zip(panels, deltas, strict=False)):
        for value, look in zip(budgets, steps(len(budgets)), strict=True):
            group = where(lines, **{budget: value, "delta": delta})
            if len(group):
                draw(axes, by_round(group, "augmented_objective"), look, label=f"{BUDGETS[budget]} {value:g}")
        floor(axes, best, "optimum, n·F*")
        style.log_y(axes)
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


def methods_figure(results: Results, name: str, *, model: str) -> Picture:
    """Figures 3 and 7: loss by round at two ε, error against ε and δ; ``model`` is "local" or "global"."""
    lines = done(results)
    private = where(lines, method="dp_admm")
    series.need(private)
    budget = series.budget_column(private)
    delta = _widest(private, "delta", budget, prefer=1e-3)
    value = _widest(private, budget, "delta", prefer=0.1)
    optima = series.METHODS["centralized"]
    groups = {label: group for label, group in series.variants(lines).items() if label != optima}
    looks = kinds(list(groups))
    shown = _two(distinct(where(private, delta=delta), budget))
    figure = new_figure(9.2, 7.2)
    panels = figure.subplots(2, 2).ravel()
    loss, models = f"train_loss_{model}", "local models" if model == "local" else "global model"
    for axes, letter, one in zip(panels, "ab", shown, strict=False):
        for label, group in groups.items():
            at = where(group, **{budget: one, "delta": delta}) if _has_budget(group) else group
            if len(at):
                draw(axes, by_round(at, loss), looks[label], label=label)
        floor(axes, series.optimum(lines, "train_loss_global"), "non-private optimum")
        dress(axes, title=f"({letter}) {BUDGETS[budget]} = {one:g}, δ = {power(delta)}", x="round",
              y=f"training loss, {models}")  # fmt: skip
        _fit(axes)
    error = f"test_error_{model}" if series.has(private, "test_error_global") else "train_error_global"
    error_words = f"{error.split('_')[0]} error, {models}"
    panels[3].sharey(panels[2])
    _against(panels[2], groups, looks, error, budget, {"delta": delta})
    dress(panels[2], title=f"(c) δ = {power(delta)}", x=BUDGETS[budget], y=error_words, percent=True)
    _against(panels[3], groups, looks, error, "delta", {budget: value})
    dress(panels[3], title=f"(d) {BUDGETS[budget]} = {value:g}", x="δ", y=error_words, percent=True)
    for axes in panels[2:]:
        floor(axes, series.optimum(lines, error.replace("local", "global")))
    for axes in panels[len(shown) : 2]:
        axes.set_visible(False)
    legend(figure, max(panels[:2], key=lambda axes: len(axes.lines)), columns=4)
    which = "the global model, which the paper does not show"
    if model == "local":
        which = (
            "the mean of the agents' local models, as in the paper's formula; methods that have one model "
            "only are shown with it"
        )
    tail = " A tail average starts halfway through the rounds."
    caption = (
        f"{', '.join(groups)}, and the non-private optimum ({about(lines)}). Measured on {which}. (a, b) "
        f"training loss by round at {BUDGETS[budget]} {number_list(shown)}; (c) error on test rows at the "
        f"end against {BUDGETS[budget]}; (d) the same against δ. {spread_note(lines)}ADMM and "
        "the optimum have no noise. The loss is on a logarithmic scale where methods lie far apart."
        f"{tail if 'tail' in distinct(lines, 'average') else ''}"
    )
    title = f"DP-ADMM and the other methods: {models} ({_regularizers(lines)})"
    return Picture(name if model == "local" else f"{name}_global", title, caption, figure)


def _has_budget(group: Results) -> bool:
    """A method without a budget is the same at each."""
    return any(distinct(group, name) for name in BUDGETS)


def _against(
    axes: Axes, groups: Mapping[str, Results], looks: Mapping[str, Look], error: str, x: str,
    equals: Mapping[str, float],
) -> None:  # fmt: skip
    private = {label: where(group, **equals) for label, group in groups.items() if _has_budget(group)}
    points = {value for group in private.values() for value in distinct(group, x)}
    for label, group in groups.items():
        if len(private.get(label, group)):
            noisy = label in private
            curve = series.by_end(private[label], error, x) if noisy else series.flat(group, error, points)
            draw(axes, curve, looks[label], label=label)
    if points:
        style.at_values(axes, sorted(points))


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
        style.log_y(axes)


def times_figure(results: Results, name: str) -> Picture:
    """Table III as a picture: how many times longer than DP-ADMM each method takes, here and in the paper."""
    rows = [row for row in times(results) if np.isfinite(row.ratio)]
    series.need(rows)
    labels = list(dict.fromkeys(row.method for row in rows))
    budgets = sorted({row.budget for row in rows})
    figure = new_figure(9.2, 1.3 + 0.62 * len(labels))
    axes = figure.subplots()
    looks = kinds([f"{value:g}" for value in budgets])
    for i, value in enumerate(budgets):
        look = looks[f"{value:g}"]
        shift = 0.2 * (i - (len(budgets) - 1) / 2)
        here = [row for row in rows if row.budget == value]
        y = [labels.index(row.method) + shift for row in here]
        axes.plot([row.ratio for row in here], y, look.marker, color=look.color, markersize=6,
                  markeredgecolor="black", markeredgewidth=0.5, label=f"measured, ε = {value:g}")  # fmt: skip
        paper = [
            (row.paper_ratio, labels.index(row.method) + shift)
            for row in here
            if row.paper_ratio is not None and row.name != "dp_admm"  # 1 by definition; would hide ours
        ]
        if paper:
            axes.plot(*zip(*paper, strict=True), look.marker, markerfacecolor="white", markersize=6,
                      markeredgecolor=look.color, label=f"paper, ε = {value:g}")  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=0.8)
    style.log_x(axes)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    dress(axes, x="time of a run, as a multiple of DP-ADMM's at the same ε (logarithmic)")
    axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    caption = (
        "Time of a run as a multiple of DP-ADMM's on the same rows and the same machine (filled), and the "
        "same ratio from the paper's Table III (hollow; DP-ADMM's own is 1 in both). Each run had the "
        "machine to itself; the fastest of the repeats. To the right of the line: slower than DP-ADMM."
    )
    return Picture(name, "Time of a run beside DP-ADMM's", caption, figure)


def bounds_figure(results: Results, name: str) -> Picture:
    """One panel per theorem, measured gap and bound for every ε; both scales logarithmic."""
    found = gaps(results)
    series.need(found)
    regularizers = list(dict.fromkeys(gap.regularizer for gap in found))
    figure = new_figure(4.6 * max(1, len(regularizers)), 3.9)
    budget = BUDGETS[series.budget_column(where(done(results), method="dp_admm"))]
    looks = kinds([f"{value:g}" for value in sorted({gap.budget for gap in found})])
    panels = figure.subplots(1, len(regularizers), sharey=True, squeeze=False).ravel()
    for axes, regularizer in zip(panels, regularizers, strict=True):
        for gap in (each for each in found if each.regularizer == regularizer):
            look, positive, curve = looks[f"{gap.budget:g}"], gap.measured.mean > 0, gap.measured
            measured = series.Curve(curve.x[positive], curve.mean[positive], curve.std[positive], curve.n_seeds)
            bound = series.Curve(curve.x, gap.bound, np.zeros_like(gap.bound), 1)
            draw(axes, measured, look, label=f"measured, {budget} {gap.budget:g}", band=False)
            draw(axes, bound, look, label=f"bound, {budget} {gap.budget:g}", hollow=True)
        style.log_x(axes)
        style.log_y(axes)
        dress(axes, title=THEOREMS.get(regularizer, regularizer), x="round t",
              y="augmented objective − n·F*" if axes is panels[0] else "")  # fmt: skip
    legend(figure, panels[0], columns=4 if len(regularizers) > 1 else 2)
    negative = any((gap.measured.mean <= 0).any() for gap in found)
    caption = (
        "Gap between DP-ADMM's augmented objective and n times the non-private optimum F* of the same "
        "split, summed over the agents, at the averages of the local models, beside the theorems' bounds "
        f"with β = ρ ({about(results)}). Mean over the splits, both scales logarithmic; a rate of 1/√t is a "
        "slope of −1/2. The theorems bound the mean; a measured line must lie below the hollow "
        "one of the same shape. " + ("Rounds with a gap below zero are left out. " if negative else "")
    )
    return Picture(name, "Measured convergence beside the theorems' bounds", caption.strip(), figure)


def _largest_budget(results: Results) -> tuple[Results, str, float]:
    """DP-ADMM's lines at its largest budget, that budget's column, and its value."""
    lines = where(done(results), method="dp_admm")
    budget = series.budget_column(lines)
    value = max(distinct(lines, budget), default=np.nan)
    return where(lines, **{budget: value}), budget, value


def choices_figure(results: Results, name: str) -> Picture:
    """Error and loss of the global model against c_w, one line per λ/n."""
    lines, budget, value = _largest_budget(results)
    radii, shares = distinct(lines, "weight_radius"), distinct(lines, "reg_share")
    series.need(len(radii) > 1 or len(shares) > 1)
    figure = new_figure(9.2, 4.0)
    panels = figure.subplots(1, 2)
    for axes, letter, column in zip(panels, "ab", (series.error_column(lines), "train_loss_global"), strict=True):
        for share, look in zip(shares, steps(len(shares)), strict=True):
            curve = series.by_end(where(lines, reg_share=share), column, "weight_radius")
            draw(axes, curve, look, label=f"λ/n = {power(share)}")
        floor(axes, series.optimum(where(results, reg_share=shares[0]), column), "non-private optimum")
        style.at_values(axes, radii)
        kind = column.split("_")[1]
        dress(axes, title=f"({letter}) {'training ' if kind == 'loss' else ''}{kind} at the end",
              x="c_w, guessed norm of the best weights", y=f"{kind}, global model",
              percent=kind == "error")  # fmt: skip
    legend(figure, panels[0])
    caption = (
        "DP-ADMM with other values of c_w and λ/n, which the paper took from the private rows "
        f"({about(lines)}, {BUDGETS[budget]} {value:g}). Error and training loss of the global model at the "
        f"end. {spread_note(lines)}The dotted line is the non-private optimum at the smallest λ/n."
    )
    return Picture(name, "Constants chosen on private rows", caption, figure)


def schedule_figure(results: Results, name: str) -> Picture:
    """Training loss by round: the theorem's step sizes and noise beside constant ones."""
    series.need(where(done(results), method="dp_admm", schedule="constant"))
    lines, budget, value = _largest_budget(results)
    regularizers = distinct(lines, "regularizer")
    figure = new_figure(9.2, 0.6 + 3.2 * len(regularizers))
    panels = figure.subplots(len(regularizers), 2, squeeze=False, sharey="row")
    for row, regularizer in zip(panels, regularizers, strict=True):
        here = where(lines, regularizer=regularizer)
        constants = where(here, schedule="constant")
        sizes = distinct(constants, "step_size")
        groups = {"theorem's schedule": where(here, schedule="theorem")}
        groups |= {f"constant η = {size:g}": where(constants, step_size=size) for size in sizes}
        looks = kinds(list(groups))
        for axes, model in zip(row, ("local", "global"), strict=True):
            for label, group in groups.items():
                if len(group):
                    draw(axes, by_round(group, f"train_loss_{model}"), looks[label], label=label)
            title = f"{regularizer.upper()}, {'local models' if model == 'local' else 'global model'}"
            dress(axes, title=title, x="round", y="training loss" if model == "local" else "")
        row[1].legend(frameon=False, fontsize=8, handlelength=3.0)
    caption = (
        "DP-ADMM with the time-varying step sizes and noise of the theorems, and with constant ones "
        f"({about(lines)}, {BUDGETS[budget]} {value:g}): training loss of the local models (left) and of the "
        "global model (right). Each constant is the theorem's step size of the "
        "first, of a middle or of the last round. The noise of a round is proportional to 1/(ρ + 1/η), so "
        f"a constant step means constant noise at the same ε. {spread_note(lines)}Lower is better."
    )
    return Picture(name, "Time-varying and constant steps and noise", caption, figure)


def lambda_figure(results: Results, name: str) -> Picture:
    """Loss and error on held-out rows of the non-private optimum against λ/n."""
    lines = where(done(results), method="centralized")
    shares = distinct(lines, "reg_share")
    series.need(len(shares) > 1, series.has(lines, "test_error_global"))
    figure = new_figure(9.2, 3.8)
    panels = figure.subplots(1, 2)
    looks = kinds(distinct(lines, "regularizer"))
    for axes, letter, column in zip(panels, "ab", ("test_loss_global", "test_error_global"), strict=True):
        for regularizer, look in looks.items():
            curve = series.by_end(where(lines, regularizer=regularizer), column, "reg_share")
            draw(axes, curve, look, label=regularizer.upper())
        style.at_values(axes, shares)
        kind = column.split("_")[1]
        dress(axes, title=f"({letter}) {kind} on held-out rows", x="λ/n", y=kind, percent=kind == "error")
    legend(figure, panels[0])
    caption = (
        "Cross-validation of λ/n without privacy: loss and error of the non-private optimum, one global "
        f"model on pooled rows, on rows held out from training ({about(lines)}). The paper's choice is "
        f"λ/n = 10⁻⁶. {spread_note(lines)}Lower is better."
    )
    return Picture(name, "Cross-validation of λ/n", caption, figure)


_MAKERS: dict[str, list[Callable[[Results, str], Picture]]] = {
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


FILES = (
    "epsilon",
)  # fmt: skip
"""Files of this package, each with a ``figure(results, name)`` of all the paper's runs."""


def pictures(results: Results) -> list[Picture]:
    """The figures of all experiments in the results."""
    begun = series.begun(results)
    wanted = [
        (maker, series.with_optimum(results, experiment), experiment)
        for experiment in sorted(begun, key=lambda name: name not in PAPER)
        for maker in _MAKERS.get(experiment, [comparison_picture])
    ]
    if set(PAPER) & set(begun):
        wanted += [(import_module(f"dpadmm.paper.{file}").figure, results, file) for file in FILES]
    found = []
    for maker, lines, name in wanted:
        with suppress(series.NoRuns):
            found.append(maker(lines, name))
    return found
