"""Figures that the paper does not have: times, bounds, exact ε, and what its choices change."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from dpadmm.experiments.results import Results
from dpadmm.paper.measurements import THEOREMS, gaps, times
from dpadmm.reporting.series import (
    BUDGETS,
    Curve,
    about,
    budget_column,
    by_end,
    by_round,
    distinct,
    done,
    has,
    number_list,
    optimum,
    split,
    spread_note,
    where,
)
from dpadmm.reporting.style import (
    Picture,
    at_values,
    draw,
    dress,
    floor,
    kinds,
    legend,
    log_x,
    log_y,
    new_figure,
    power,
    steps,
)


def times_figure(results: Results, name: str) -> Picture | None:
    """Table III as a picture: how many times longer than DP-ADMM each method takes, here and in the paper."""
    rows = [row for row in times(results) if np.isfinite(row.ratio)]
    if not rows:
        return None
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
    log_x(axes)
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


def bounds_figure(results: Results, name: str) -> Picture | None:
    """One panel per theorem, measured gap and bound for every ε; both scales logarithmic."""
    found = gaps(results)
    if not found:
        return None
    regularizers = list(dict.fromkeys(gap.regularizer for gap in found))
    figure = new_figure(4.6 * max(1, len(regularizers)), 3.9)
    budget = BUDGETS[budget_column(where(done(results), method="dp_admm"))]
    looks = kinds([f"{value:g}" for value in sorted({gap.budget for gap in found})])
    panels = figure.subplots(1, len(regularizers), sharey=True, squeeze=False).ravel()
    for axes, regularizer in zip(panels, regularizers, strict=True):
        for gap in (each for each in found if each.regularizer == regularizer):
            look, positive, curve = looks[f"{gap.budget:g}"], gap.measured.mean > 0, gap.measured
            measured = Curve(curve.x[positive], curve.mean[positive], curve.std[positive], curve.n_seeds)
            bound = Curve(curve.x, gap.bound, np.zeros_like(gap.bound), 1)
            draw(axes, measured, look, label=f"measured, {budget} {gap.budget:g}", band=False)
            draw(axes, bound, look, label=f"bound, {budget} {gap.budget:g}", hollow=True)
        log_x(axes)
        log_y(axes)
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


_TOTALS = (("epsilon", "exact ε", False), ("paper_epsilon", "paper's ε̄", True))


def epsilon_figure(results: Results, name: str) -> Picture | None:
    """Total ε by round, and after the last round by the ε of a round."""
    lines = where(done(results), method="dp_admm")
    if not has(lines, "total_paper_epsilon") or not distinct(lines, "round_epsilon"):
        return None
    figure = new_figure(9.2, 4.1)
    left, right = figure.subplots(1, 2)
    deltas = distinct(lines, "delta")
    delta, ends = deltas[-1], sorted({deltas[0], deltas[-1]}, reverse=True)
    spent = distinct(where(lines, delta=delta), "round_epsilon")
    shown = [value for value in spent if value in (0.05, 0.1, 0.2)] or spent[-3:]
    _by_round(left, where(lines, delta=delta), shown)
    dress(left, title=f"(a) spent so far, δ = {power(delta)}", x="round", y="total ε")
    for one, look in zip(ends, steps(len(ends)), strict=True):
        for column, words, hollow in _TOTALS:
            curve = by_end(where(lines, delta=one), f"total_{column}", "round_epsilon")
            draw(right, curve, look, label=f"{words}, δ = {power(one)}", hollow=hollow, band=False)
    at_values(right, distinct(lines, "round_epsilon"))
    log_y(right)
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


def _by_round(axes: Axes, lines: Results, budgets: list[float]) -> None:
    for value, look in zip(budgets, steps(len(budgets)), strict=True):
        run = next(iter(split(where(lines, round_epsilon=value), "cell").values()))
        for column, words, hollow in _TOTALS:
            x, y = (np.array(run.column(each), dtype=float) for each in ("round", f"spent_{column}"))
            seen = np.isfinite(y)
            curve = Curve(x[seen], y[seen], np.zeros(int(seen.sum())), 1)
            draw(axes, curve, look, label=f"{words}, {value:g} per round", hollow=hollow)


def choices_figure(results: Results, name: str) -> Picture | None:
    """Error and loss of the global model against c_w, one line per λ/n."""
    lines = where(done(results), method="dp_admm")
    if not len(lines):
        return None
    budget = budget_column(lines)
    value = max(distinct(lines, budget))
    lines = where(lines, **{budget: value})
    radii, shares = distinct(lines, "weight_radius"), distinct(lines, "reg_share")
    if len(radii) < 2 and len(shares) < 2:
        return None
    figure = new_figure(9.2, 4.0)
    panels = figure.subplots(1, 2)
    for axes, letter, column in zip(panels, "ab", (_error(lines), "train_loss_global"), strict=True):
        for share, look in zip(shares, steps(len(shares)), strict=True):
            curve = by_end(where(lines, reg_share=share), column, "weight_radius")
            draw(axes, curve, look, label=f"λ/n = {power(share)}")
        floor(axes, optimum(where(results, reg_share=shares[0]), column), "non-private optimum")
        at_values(axes, radii)
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


def _error(lines: Results) -> str:
    return "test_error_global" if has(lines, "test_error_global") else "train_error_global"


def schedule_figure(results: Results, name: str) -> Picture | None:
    """Training loss by round: the theorem's step sizes and noise beside constant ones."""
    lines = where(done(results), method="dp_admm")
    if not len(where(lines, schedule="constant")):
        return None
    budget = budget_column(lines)
    value = max(distinct(lines, budget))
    lines = where(lines, **{budget: value})
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


def lambda_figure(results: Results, name: str) -> Picture | None:
    """Loss and error on held-out rows of the non-private optimum against λ/n."""
    lines = where(done(results), method="centralized")
    shares = distinct(lines, "reg_share")
    if len(shares) < 2 or not has(lines, "test_error_global"):
        return None
    figure = new_figure(9.2, 3.8)
    panels = figure.subplots(1, 2)
    looks = kinds(distinct(lines, "regularizer"))
    for axes, letter, column in zip(panels, "ab", ("test_loss_global", "test_error_global"), strict=True):
        for regularizer, look in looks.items():
            curve = by_end(where(lines, regularizer=regularizer), column, "reg_share")
            draw(axes, curve, look, label=regularizer.upper())
        at_values(axes, shares)
        kind = column.split("_")[1]
        dress(axes, title=f"({letter}) {kind} on held-out rows", x="λ/n", y=kind, percent=kind == "error")
    legend(figure, panels[0])
    caption = (
        "Cross-validation of λ/n without privacy: loss and error of the non-private optimum, one global "
        f"model on pooled rows, on rows held out from training ({about(lines)}). The paper's choice is "
        f"λ/n = 10⁻⁶. {spread_note(lines)}Lower is better."
    )
    return Picture(name, "Cross-validation of λ/n", caption, figure)
