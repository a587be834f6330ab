"""The figures of the paper and additional ones, drawn from a results file.

Figures 1 to 7 come first, then times, bounds, exact ε, and the effect of the paper's choices. Captions are in
``captions.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.baselines import METHOD_TITLES
from dpadmm.figures import comparison, style
from dpadmm.figures.comparison import BUDGETS
from dpadmm.figures.style import Curve, Look, Picture, draw, dress, floor, kinds, legend, new_figure, power, steps
from dpadmm.training.compare import ComparisonRow
from reproduction import series
from reproduction.measurements import THEOREMS, gaps, times
from reproduction.results import DONE, Results
from reproduction.series import about, by_round, distinct, done, number_list, spread_note

_SHOWN_BUDGETS = (0.05, 0.1)
_MODELS = {"local": "local models", "global": "global model"}
_TEXTS = tomllib.loads(files("reproduction").joinpath("captions.toml").read_text(encoding="utf-8"))


def _picture(name: str, kind: str, figure: Figure, lines: Results, **words: Any) -> Picture:
    """Return a figure with its title and caption. A boolean word shows or hides a sentence."""
    texts = _TEXTS[kind]
    words = {key: (texts[key] if value else "") if isinstance(value, bool) else value for key, value in words.items()}
    regularizers = ", ".join(value.upper() for value in distinct(lines, "regularizer"))
    words |= {"about": about(lines), "spread": spread_note(lines), "regularizers": regularizers}
    title, caption = (texts[key].format_map(words).strip() for key in ("title", "caption"))
    return Picture(name, title, caption, figure)


def _private(results: Results) -> tuple[Results, str]:
    """Return the lines of DP-ADMM, and the column of their budget."""
    lines = done(results).select(method="dp_admm")
    series.need(lines)
    return lines, series.budget_column(lines)


def agents_figure(results: Results, name: str) -> Picture:
    """Draw figures 1 and 4: training loss by round for each n; below, final loss and error against n."""
    lines, budget = _private(results)
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
            group = lines.select(**{budget: value, "n_agents": n})
            draw(axes, by_round(group, "train_loss_local"), look, label=f"n = {n}")
        floor(axes, best, "non-private optimum")
        y = "training loss, local models" if i == 0 else ""
        dress(axes, title=f"({'abcd'[i]}) {BUDGETS[budget]} = {value:g}", x="round", y=y)
    error = series.error_column(lines).removesuffix("_global")
    below = [(panels["train_loss"], "train_loss"), (panels["error"], error)]
    for letter, (axes, stem) in zip("abcdef"[len(budgets) :], below, strict=False):
        words = stem.replace("train_", "training ").replace("_", " ")
        _against_agents(axes, lines, results, stem)
        title = f"({letter}) {words} at the end"
        dress(axes, title=title, x="number of agents n", y=words, percent="error" in stem)
    legend(figure, panels["loss 0"], columns=7)
    values = {"agents": number_list(agents), "budget": BUDGETS[budget], "budgets": number_list(budgets)}
    return _picture(name, "agents", figure, results, **values, fewest=agents[0], most=agents[-1])


def _against_agents(axes: Axes, lines: Results, results: Results, stem: str) -> None:
    budget = series.budget_column(lines)
    budgets = distinct(lines, budget)
    for value, look in zip(budgets, kinds([f"{value:g}" for value in budgets]).values(), strict=True):
        group = lines.select(**{budget: value})
        for model in ("global", "local"):
            if series.has(group, f"{stem}_{model}"):
                curve = series.by_end(group, f"{stem}_{model}", "n_agents")
                draw(axes, curve, look, label=f"ε = {value:g}, {model}", hollow=model == "local")
    floor(axes, series.optimum(results, f"{stem}_global"))
    style.at_values(axes, distinct(lines, "n_agents"))
    axes.legend(frameon=False, fontsize=8.5, handlelength=3.0)


def objective_figure(results: Results, name: str) -> Picture:
    """Draw figures 2 and 6: the augmented objective by round, one panel per δ, one line per ε."""
    lines, budget = _private(results)
    budgets, deltas = distinct(lines, budget), sorted(distinct(lines, "delta"), reverse=True)
    agents = distinct(lines, "n_agents")
    columns = min(2, len(deltas))
    height = -(-len(deltas) // columns)
    figure = new_figure(4.6 * columns, 0.7 + 3.0 * height)
    panels = figure.subplots(height, columns, sharex=True, sharey=True, squeeze=False).ravel()
    best = series.optimum(results, "objective_global") * agents[0] if len(agents) == 1 else float("nan")
    for i, (axes, delta) in enumerate(zip(panels, deltas, strict=False)):
        for value, look in zip(budgets, steps(len(budgets)), strict=True):
            group = lines.select(**{budget: value, "delta": delta})
            if len(group):
                draw(axes, by_round(group, "augmented_objective"), look, label=f"{BUDGETS[budget]} {value:g}")
        floor(axes, best, "optimum, n·F*")
        style.logarithmic(axes.yaxis)
        x = "round" if i + columns >= len(deltas) else ""
        y = "augmented objective" if i % columns == 0 else ""
        dress(axes, title=f"({'abcdefgh'[i % 8]}) δ = {power(delta)}", x=x, y=y)
    for axes in panels[len(deltas) :]:
        axes.set_visible(False)
    legend(figure, panels[0])
    values = {"agents": number_list(agents), "budget": BUDGETS[budget], "budgets": number_list(budgets)}
    return _picture(name, "objective", figure, lines, **values, dotted=bool(np.isfinite(best)))


def methods_figure(results: Results, name: str, *, model: str) -> Picture:
    """Draw figures 3 and 7: loss by round at two ε, error against ε and δ. ``model`` is "local" or "global"."""
    lines = done(results)
    private, budget = _private(results)
    delta = _widest(private, "delta", budget, prefer=1e-3)
    value = _widest(private, budget, "delta", prefer=0.1)
    optima = METHOD_TITLES["centralized"]
    groups = {label: group for label, group in series.variants(lines).items() if label != optima}
    looks = kinds(list(groups))
    budgets = distinct(private.select(delta=delta), budget)
    # the paper's two budgets if present, else the two in the middle
    shown, middle = [value for value in budgets if value in _SHOWN_BUDGETS], max(0, len(budgets) // 2 - 1)
    shown = shown if len(shown) == 2 else budgets[middle : middle + 2]
    figure = new_figure(9.2, 7.2)
    panels = figure.subplots(2, 2).ravel()
    models = _MODELS[model]
    for axes, letter, one in zip(panels, "ab", shown, strict=False):
        for label, group in groups.items():
            at = group.select(**{budget: one, "delta": delta}) if _has_budget(group) else group
            if len(at):
                draw(axes, by_round(at, f"train_loss_{model}"), looks[label], label=label)
        floor(axes, series.optimum(lines, "train_loss_global"), "non-private optimum")
        title = f"({letter}) {BUDGETS[budget]} = {one:g}, δ = {power(delta)}"
        dress(axes, title=title, x="round", y=f"training loss, {models}")
        _fit(axes)
    error = f"test_error_{model}" if series.has(private, "test_error_global") else "train_error_global"
    panels[3].sharey(panels[2])
    against = (
        (panels[2], f"(c) δ = {power(delta)}", budget, {"delta": delta}),
        (panels[3], f"(d) {BUDGETS[budget]} = {value:g}", "delta", {budget: value}),
    )
    for axes, title, x, equals in against:
        _against(axes, groups, looks, error, x, equals)
        y = f"{error.split('_')[0]} error, {models}"
        dress(axes, title=title, x=BUDGETS.get(x, "δ"), y=y, percent=True)
        floor(axes, series.optimum(lines, error.replace("local", "global")))
    for axes in panels[len(shown) : 2]:
        axes.set_visible(False)
    legend(figure, max(panels[:2], key=lambda axes: len(axes.lines)), columns=4)
    values = {"models": models, "methods": ", ".join(groups), "which": _TEXTS["methods"][model].strip()}
    values |= {"budget": BUDGETS[budget], "budgets": number_list(shown)}
    named = name if model == "local" else f"{name}_global"
    return _picture(named, "methods", figure, lines, **values, tail="tail" in distinct(lines, "average"))


def _has_budget(group: Results) -> bool:
    """Return whether a method has a budget. Otherwise its results do not depend on it."""
    return any(distinct(group, name) for name in BUDGETS)


def _against(
    axes: Axes, groups: Mapping[str, Results], looks: Mapping[str, Look], error: str, x: str,
    equals: Mapping[str, float],
) -> None:  # fmt: skip
    private = {label: group.select(**equals) for label, group in groups.items() if _has_budget(group)}
    points = {value for group in private.values() for value in distinct(group, x)}
    for label, group in groups.items():
        if len(private.get(label, group)):
            noisy = label in private
            curve = series.by_end(private[label], error, x) if noisy else series.flat(group, error, points)
            draw(axes, curve, looks[label], label=label)
    if points:
        style.at_values(axes, sorted(points))


def _widest(lines: Results, column: str, other: str, *, prefer: float) -> float:
    """Return the value of a column with most values of another column. Ties: ``prefer``, or the largest value."""
    values = distinct(lines, column)
    n_beside = {value: len(distinct(lines.select(**{column: value}), other)) for value in values}
    return float(max(values, key=lambda value: (n_beside[value], value == prefer, value)))


def _fit(axes: Axes) -> None:
    """Use a logarithmic scale if one method is so far off that the others would look flat."""
    drawn = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if drawn.size and drawn.max() > 3.0 * drawn.min():
        style.logarithmic(axes.yaxis)


def times_figure(results: Results, name: str) -> Picture:
    """Draw Table III: how many times longer than DP-ADMM each method takes, here and in the paper."""
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
        here = [(labels.index(row.method) + shift, row) for row in rows if row.budget == value]
        axes.plot([row.ratio for _, row in here], [y for y, _ in here], look.marker, color=look.color, markersize=6,
                  markeredgecolor="black", markeredgewidth=0.5, label=f"measured, ε = {value:g}")  # fmt: skip
        # DP-ADMM's ratio is 1 by definition and would hide other markers
        paper = [(row.paper_ratio, y) for y, row in here if row.paper_ratio is not None and row.name != "dp_admm"]
        if paper:
            axes.plot(*zip(*paper, strict=True), look.marker, markerfacecolor="white", markersize=6,
                      markeredgecolor=look.color, label=f"paper, ε = {value:g}")  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=0.8)
    style.logarithmic(axes.xaxis)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    dress(axes, x="time of a run, as a multiple of DP-ADMM's at the same ε (logarithmic)")
    axes.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _picture(name, "times", figure, results)


def bounds_figure(results: Results, name: str) -> Picture:
    """Draw one panel per theorem: measured gap and bound for every ε, both scales logarithmic."""
    found = gaps(results)
    series.need(found)
    regularizers = list(dict.fromkeys(gap.regularizer for gap in found))
    figure = new_figure(4.6 * max(1, len(regularizers)), 3.9)
    budget = BUDGETS[_private(results)[1]]
    looks = kinds([f"{value:g}" for value in sorted({gap.budget for gap in found})])
    panels = figure.subplots(1, len(regularizers), sharey=True, squeeze=False).ravel()
    for axes, regularizer in zip(panels, regularizers, strict=True):
        for gap in (one for one in found if one.regularizer == regularizer):
            look, positive, curve = looks[f"{gap.budget:g}"], gap.measured.mean > 0, gap.measured
            measured = Curve(curve.x[positive], curve.mean[positive], curve.std[positive], curve.n_seeds)
            bound = Curve(curve.x, gap.bound, np.zeros_like(gap.bound), 1)
            draw(axes, measured, look, label=f"measured, {budget} {gap.budget:g}", band=False)
            draw(axes, bound, look, label=f"bound, {budget} {gap.budget:g}", hollow=True)
        style.logarithmic(axes.xaxis, axes.yaxis)
        y = "augmented objective − n·F*" if axes is panels[0] else ""
        dress(axes, title=THEOREMS.get(regularizer, regularizer), x="round t", y=y)
    legend(figure, panels[0], columns=4 if len(regularizers) > 1 else 2)
    negative = any(bool((gap.measured.mean <= 0).any()) for gap in found)
    return _picture(name, "bounds", figure, results, negative=negative)


def _largest_budget(results: Results) -> tuple[Results, dict[str, str]]:
    """Return the lines of DP-ADMM at its largest budget, and words for that budget."""
    lines = done(results).select(method="dp_admm")
    budget = series.budget_column(lines)
    value = max(distinct(lines, budget), default=np.nan)
    return lines.select(**{budget: value}), {"budget": BUDGETS[budget], "value": f"{value:g}"}


def _final_panels(
    groups: Mapping[str, Results], looks: Sequence[Look], x: str, x_words: str, *,
    measures: Mapping[str, tuple[str, str]], optima: Results | None = None,
) -> Figure:  # fmt: skip
    """Draw a panel for each of two ``measures`` (with title and y label) at the end of the runs, by ``x``."""
    figure = new_figure(9.2, 4.0)
    panels = figure.subplots(1, 2)
    for axes, letter, (column, (title, y)) in zip(panels, "ab", measures.items(), strict=True):
        for (label, group), look in zip(groups.items(), looks, strict=True):
            draw(axes, series.by_end(group, column, x), look, label=label)
        if optima is not None:
            floor(axes, series.optimum(optima, column), "non-private optimum")
        style.at_values(axes, sorted({value for group in groups.values() for value in distinct(group, x)}))
        dress(axes, title=f"({letter}) {title}", x=x_words, y=y, percent="error" in column)
    legend(figure, panels[0])
    return figure


def choices_figure(results: Results, name: str) -> Picture:
    """Draw error and loss of the global model against c_w, one line per λ/n."""
    lines, words = _largest_budget(results)
    shares = distinct(lines, "alpha")
    series.need(len(distinct(lines, "weight_radius")) > 1 or len(shares) > 1)
    groups = {f"λ/n = {power(share)}": lines.select(alpha=share) for share in shares}
    measures = {
        series.error_column(lines): ("error at the end", "error, global model"),
        "train_loss_global": ("training loss at the end", "loss, global model"),
    }
    figure = _final_panels(
        groups, steps(len(groups)), "weight_radius", "c_w, guessed norm of the best weights",
        measures=measures, optima=results.select(alpha=shares[0]),
    )  # fmt: skip
    return _picture(name, "choices", figure, lines, **words)


def lambda_figure(results: Results, name: str) -> Picture:
    """Draw loss and error of the non-private optimum on held-out rows against λ/n."""
    lines = done(results).select(method="centralized")
    series.need(len(distinct(lines, "alpha")) > 1, series.has(lines, "test_error_global"))
    groups = {value.upper(): lines.select(regularizer=value) for value in distinct(lines, "regularizer")}
    measures = {f"test_{kind}_global": (f"{kind} on held-out rows", kind) for kind in ("loss", "error")}
    figure = _final_panels(groups, list(kinds(list(groups)).values()), "alpha", "λ/n", measures=measures)
    return _picture(name, "lambda", figure, lines)


def schedule_figure(results: Results, name: str) -> Picture:
    """Draw the training loss by round, for the theorem's step sizes and noise and for constant ones."""
    series.need(done(results).select(method="dp_admm", schedule="constant"))
    lines, words = _largest_budget(results)
    regularizers = distinct(lines, "regularizer")
    figure = new_figure(9.2, 0.6 + 3.2 * len(regularizers))
    panels = figure.subplots(len(regularizers), 2, squeeze=False, sharey="row")
    for row, regularizer in zip(panels, regularizers, strict=True):
        here = lines.select(regularizer=regularizer)
        constants = here.select(schedule="constant")
        groups = {"theorem's schedule": here.select(schedule="theorem")}
        groups |= {
            f"constant η = {size:g}": constants.select(step_size=size) for size in distinct(constants, "step_size")
        }
        for axes, (model, models) in zip(row, _MODELS.items(), strict=True):
            for (label, group), look in zip(groups.items(), kinds(list(groups)).values(), strict=True):
                if len(group):
                    draw(axes, by_round(group, f"train_loss_{model}"), look, label=label)
            y = "training loss" if model == "local" else ""
            dress(axes, title=f"{regularizer.upper()}, {models}", x="round", y=y)
        row[1].legend(frameon=False, fontsize=8, handlelength=3.0)
    return _picture(name, "schedule", figure, lines, **words)


def comparison_panels(results: Results) -> Figure:
    """Draw error and training loss of the global model at the end of the runs."""
    lines = done(results)
    budget = series.budget_column(lines)
    error = series.error_column(lines)
    groups = {label: _comparison_rows(group, budget, error) for label, group in series.variants(lines).items()}
    return comparison.comparison_figure(groups, regression=series.is_regression(lines))


def _comparison_rows(group: Results, budget: str, error: str) -> list[ComparisonRow]:
    """Return one row for each number of agents and budget."""
    rows = []
    for (n_agents, asked), lines in series.split(group.last(), "n_agents", budget).items():
        values = {name: lines.frame[name].tolist() for name in (error, "train_loss_global", "seconds")}
        method, named = distinct(lines, "method")[0], None if asked is None else budget
        rows.append(ComparisonRow(method, n_agents, named, asked, DONE, None, None, None, values))
    return rows


def comparison_picture(results: Results, name: str) -> Picture:
    """Return the figure with its caption. Raises ``NoRunsError`` if every run was refused."""
    lines = done(results)
    series.need(lines)
    figure = comparison_panels(results)
    names = [label for label in series.variants(lines) if label != METHOD_TITLES["centralized"]]
    deltas = ", ".join(f"{value:g}" for value in distinct(lines, "delta"))
    far = any(axes.get_yscale() == "log" for axes in figure.axes)
    dotted = "The dotted line is the non-private optimum on pooled rows. "
    caption = (
        f"{', '.join(names) or 'The non-private optimum alone'} at the end of the runs "
        f"({series.about(lines)}, δ = {deltas}): {'RMS error' if series.is_regression(lines) else 'error'} "
        f"(top) and training loss (bottom) of the global model. {series.spread_note(lines)}"
        f"{dotted if np.isfinite(series.optimum(lines, 'train_loss_global')) else ''}Lower is better."
        f"{' A scale is logarithmic where methods lie far apart.' if far else ''}"
    )
    return Picture(name, "Methods side by side", caption, figure)


_BOTH = [partial(methods_figure, model=model) for model in _MODELS]
_MAKERS: dict[str, list[Callable[[Results, str], Picture]]] = {
    "fig1": [agents_figure],
    "fig2": [objective_figure],
    "fig3": [*_BOTH],
    "fig4": [agents_figure],
    "fig6": [objective_figure],
    "fig7": [*_BOTH],
    "table3": [times_figure],
    "bounds": [bounds_figure],
    "choices": [choices_figure],
    "schedule": [schedule_figure],
    "lambda": [lambda_figure],
}
PAPER = tuple(_MAKERS)
"""Experiments of the paper's grid; any other experiment is a comparison of methods."""


MODULES = (
    "epsilon",
)  # fmt: skip
"""Modules of this package, each with a ``figure(results, name)`` of all the paper's runs."""


def pictures(results: Results) -> list[Picture]:
    """Draw the figures of all experiments in the results."""
    started = series.started(results)
    wanted = [
        (maker, series.with_optimum(results, experiment), experiment)
        for experiment in sorted(started, key=lambda name: name not in PAPER)
        for maker in _MAKERS.get(experiment, [comparison_picture])
    ]
    if set(PAPER) & set(started):
        wanted += [(import_module(f"reproduction.{name}").figure, results, name) for name in MODULES]
    found = []
    for maker, lines, name in wanted:
        with suppress(series.NoRunsError):
            found.append(maker(lines, name))
    return found
