"""The figures of commands: a run's convergence, comparison, explanation, forecast and audit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from scipy.special import betainccinv, betaincinv, ndtr, ndtri

from dpadmm.engine.metrics import Trace, spread
from dpadmm.experiments.results import Results
from dpadmm.files.atomic import atomic_file
from dpadmm.matrices.arrays import Floats
from dpadmm.models.description import ColumnSummary, Description
from dpadmm.models.explain import Coefficient, Explanation, alike
from dpadmm.reporting import series, style
from dpadmm.reporting.series import BUDGETS, METHODS, Curve, distinct, done, where
from dpadmm.reporting.style import Look, Picture, draw, dress, floor, kinds, legend, new_figure, steps

if TYPE_CHECKING:
    from dpadmm.planning.forecast import Outlook
    from dpadmm.planning.plan import Plan, Recommendation

GREY = "#8a8a8a"


def save_figure(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, or only some ``kinds`` of them."""
    paths = [stem.with_suffix(f".{kind}") for kind in kinds]
    with matplotlib.rc_context({"svg.hashsalt": "dpadmm", "svg.fonttype": "none"}):
        for path in paths:
            undated = {"Date": None} if path.suffix == ".svg" else None
            with atomic_file(path) as out:
                figure.savefig(out, format=path.suffix[1:], metadata=undated)
            figure.set_layout_engine("none")  # laid out once, it need not be again
    return paths


# --- dpadmm simulate: loss and error by round ------------------------------------------------------------


def convergence_figure(
    traces: Mapping[str, Sequence[Trace]],
    *,
    optimum: Mapping[str, float] | None = None,
    title: str = "",
) -> Figure:
    """Two panels, training loss and error by round, beside the non-private ``optimum`` (column -> value).

    ``traces`` are those of repeated runs, by label.
    """
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    columns = next(iter(traces.values()))[0].columns
    error = "test_error_global" if "test_error_global" in columns else "train_error_global"
    measured_on = "test rows" if error.startswith("test") else "training rows"
    panels = (
        (left, "train_loss_global", "training loss of the global model"),
        (right, error, f"error of the global model, {measured_on}"),
    )
    looks = kinds(list(traces))
    for axes, column, heading in panels:
        for label, group in traces.items():
            shortest = min(len(trace) for trace in group)
            values = np.array([trace.columns[column][:shortest] for trace in group])
            rounds = group[0].columns["round"][:shortest]
            curve = Curve(rounds, values.mean(axis=0), spread(values, axis=0), len(group))
            draw(axes, curve, looks[label], label=label)
        floor(axes, (optimum or {}).get(column, np.nan), "non-private optimum")
        dress(axes, title=heading, x="round")
    legend(figure, left, columns=4 if len(traces) < 5 else 3)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


# --- dpadmm compare: methods × budgets × agents ----------------------------------------------------------

_MOST_PANELS = 4
_FAR = 5.0
"""Largest over smallest mean from which a scale is logarithmic."""


def comparison_figure(results: Results) -> Figure:
    """Error and training loss of the global model at the end, beside the non-private optimum.

    Against the budget, one column of panels per number of agents; against the number of agents where there is
    one budget; side by side where there is one of both.
    """
    lines = done(results)
    groups = {
        label: group
        for label, group in series.variants(lines).items()
        if set(distinct(group, "method")) != {"centralized"}
    }
    budget = series.budget_column(lines)
    budgets = distinct(lines, budget)
    agents = sorted({n for group in groups.values() for n in distinct(group, "n_agents")})
    by_agents = len(budgets) < 2 and len(agents) > 1
    alone = len(budgets) < 2 and len(agents) < 2
    panels = [None] if by_agents or alone else agents[:_MOST_PANELS]
    figure = new_figure(4.6 * max(1 if len(panels) > 1 else 1.4, len(panels)), 6.4)
    grid = figure.subplots(2, len(panels), squeeze=False, sharey="row", sharex="col")
    for i, column in enumerate((series.error_column(lines), "train_loss_global")):
        rate = "error" in column and not series.is_regression(lines)
        for axes, n in zip(grid[i], panels, strict=True):
            here = {
                label: group if n is None or _same_for_all(group, n) else where(group, n_agents=n)
                for label, group in groups.items()
            }
            if alone:
                _side_by_side(axes, here, column)
            else:
                _lines(axes, here, column, "n_agents" if by_agents else budget)
            floor(axes, series.optimum(lines, column), "non-private optimum")
            title = f"{n} agents" if n is not None and i == 0 else ""
            x = "" if alone or i == 0 else "number of agents n" if by_agents else BUDGETS[budget]
            measured = "loss" if "loss" in column else "error" if rate else "RMS error"
            y = f"{'training' if 'train' in column else 'test'} {measured}, global model"
            dress(axes, title=title, x=x, y=y if axes is grid[i][0] else "", percent=rate)
        if not rate and _far_apart(lines, column):
            for axes in grid[i]:
                style.logarithmic(axes.yaxis)
    legend(figure, grid[0][0], columns=max(3, 3 * len(panels)))
    return figure


def comparison_picture(results: Results, name: str) -> Picture:
    """The figure with its caption; raises ``NoRunsError`` where every run was refused."""
    lines = done(results)
    series.need(lines)
    figure = comparison_figure(results)
    names = [label for label in series.variants(lines) if label != METHODS["centralized"]]
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


def _same_for_all(group: Results, n_agents: int) -> bool:
    """Whether a method without noise was run for another number of agents only, which stands for all."""
    return not distinct(group, series.budget_column(group)) and n_agents not in distinct(group, "n_agents")


def _far_apart(lines: Results, column: str) -> bool:
    """Whether one mean is so large that the others could not be told apart beside it."""
    keys = ("n_agents", series.budget_column(lines))
    cells = [cell for each in series.variants(lines).values() for cell in series.split(each, *keys).values()]
    means = np.array([series.mean_std(series.at_end(cell, column))[0] for cell in cells])
    means = means[np.isfinite(means)]
    return bool(means.size) and means.min() > 0.0 and means.max() > _FAR * means.min()


def _lines(axes: Axes, groups: dict[str, Results], column: str, x: str) -> None:
    looks = kinds(list(groups))
    points = sorted({value for group in groups.values() for value in distinct(group, x)})
    for label, group in groups.items():
        if len(group):
            several = distinct(group, x)
            curve = series.by_end(group, column, x) if several else series.flat(group, column, points)
            draw(axes, curve, looks[label], label=label)
    if points and points[0] > 0:
        style.at_values(axes, points)


def _side_by_side(axes: Axes, groups: dict[str, Results], column: str) -> None:
    for i, (label, look) in enumerate(kinds(list(groups)).items()):
        if len(groups[label]):
            values = series.at_end(groups[label], column)
            mean, std = series.mean_std(values)
            axes.errorbar(i, mean, yerr=std if len(values) > 1 else None, fmt=look.marker, color=look.color,
                          markersize=8, capsize=4, label=label)  # fmt: skip
    axes.set_xticks([])
    axes.set_xlim(-0.6, len(groups) - 0.4)


# --- dpadmm explain: what every column does to the score -------------------------------------------------

LONGEST = 44
"""Characters of a name that are shown."""
PER_ROW, MARGIN = 0.24, 1.7
"""Inches."""
LN10 = math.log(10.0)


def coefficient_figure(explanation: Explanation, *, top: int, title: str) -> Figure:
    """A forest plot: effects over the columns' ranges, largest on top; 95% intervals, hollow if they reach 0.

    Where their exponentials are ratios, the axis says these, and numbers stand at the right.
    """
    known = [each for each in explanation.coefficients if explanation.unknown or each.standard_error is not None]
    shown = known[:top]
    figure = new_figure(7.2, MARGIN + PER_ROW * max(len(shown), 3))
    axes = figure.subplots()
    looks = kinds(list(dict.fromkeys(each.output for each in shown)))
    axes.axvline(0.0, color="black", linewidth=0.8)
    for place, each in enumerate(shown):
        _dot(axes, each, place, looks[each.output])
    axes.set_yticks(range(len(shown)), [_plain(f"{_short(each.name)}{_change(each)}") for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    dress(axes, title=_plain(_short(title)), x=f"change of: {explanation.score}\n(over the whole range of the column)")
    axes.grid(visible=False, axis="y")
    ratios = bool(explanation.ratios) and not explanation.unknown and bool(shown)
    if ratios and (ticks := _ratio_ticks(*axes.get_xlim())):
        axes.set_xticks([math.log(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(f"ratio of the {explanation.score.removeprefix('log ')}\n(over the whole range of the column)")
        _write_ratios(axes, shown, explanation.ratios)
    nothing = [np.nan]
    for output, look in looks.items():
        if output:
            axes.plot(nothing, nothing, look.marker, color=look.color, label=_plain(output))
    if not explanation.unknown:
        axes.errorbar(nothing, nothing, xerr=nothing, color=GREY, capsize=2.5,
                      label="95% confidence interval")  # fmt: skip
        axes.plot(nothing, nothing, "o", color=GREY, markerfacecolor="white",
                  label="reaches 1" if ratios else "reaches zero")  # fmt: skip
    longest = max(map(len, axes.get_legend_handles_labels()[1]), default=0)
    legend(figure, axes, columns=max(1, 110 // (longest + 10)))  # as many as fit the figure
    return figure


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _change(each: Coefficient) -> str:
    """How much of a column's change is shown, where that is not the one that coefficients are of."""
    per = each.per.removeprefix("per ")
    return f" (per {each.span:.3g} {per}s)" if per != each.per and each.span != 1.0 else ""


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios between these logarithms; none where ratios are no sensible numbers."""
    if high - low > 30.0:
        return []
    steps = (1.0, 2.0, 5.0) if high - low < 7.0 else (1.0,)
    found = [step * 10.0**k for k in range(math.floor(low / LN10) - 1, math.ceil(high / LN10) + 1) for step in steps]
    if high - low < 1.2:
        found = [float(tick) for tick in MaxNLocator(6).tick_values(math.exp(low), math.exp(high)) if tick > 0.0]
    return [tick for tick in found if low <= math.log(tick) <= high]


def _write_ratios(axes: Axes, shown: Sequence[Coefficient], words: str) -> None:
    """Ratios and their intervals at the right."""
    told = []
    for each in shown:
        low, high = each.interval() or (each.coefficient, each.coefficient)
        value, *ends = alike(*(math.exp(min(x * each.span, 700.0)) for x in (each.coefficient, low, high)))
        told.append(f"{value} ({ends[0]} to {ends[1]})")
    beside = axes.twinx()
    beside.set_ylim(axes.get_ylim())
    beside.set_yticks(range(len(shown)), told, fontsize=8)
    beside.tick_params(length=0)
    beside.spines[:].set_visible(False)
    beside.text(1.012, 1.01, f"{words} (95% CI)", transform=beside.transAxes, fontsize=8, va="bottom")


def _dot(axes: Axes, each: Coefficient, place: int, look: Look) -> None:
    low, high = each.interval() or (each.coefficient, each.coefficient)
    reach, hollow = (high - low) / 2.0 * each.span, low < 0.0 < high
    color = GREY if hollow and not each.output else look.color
    axes.errorbar(
        [each.effect], [place], xerr=[reach] if reach else None, color=color, marker=look.marker,
        markersize=5.5, markerfacecolor="white" if hollow else color, markeredgecolor=color,
        elinewidth=1.3, capsize=2.5, linestyle="none",
    )  # fmt: skip


def _plain(name: str) -> str:
    return name.replace("$", r"\$")  # no formulas


# --- dpadmm describe: a panel for every column -------------------------------------------------------------

ACROSS, MOST_PANELS, MOST_BARS = 3, 30, 12


def description_figure(description: Description) -> Figure:
    """Counts by bin of every column, with whiskers of ± one standard deviation of the privacy noise."""
    shown = list(description.columns.values())[:MOST_PANELS]
    down = -(-len(shown) // ACROSS)
    figure = new_figure(10.5, 1.0 + 2.4 * down)
    panels = figure.subplots(down, min(ACROSS, len(shown)), squeeze=False).ravel()
    for axes, each in zip(panels, shown, strict=False):
        _bars(axes, each)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    left = len(description.columns) - len(shown)
    epsilon, delta = description.privacy.get("epsilon"), description.privacy.get("delta")
    budget = f"ε = {epsilon:.4g}, δ = {delta:g}; " if epsilon is not None and delta is not None else ""
    more = f"; {left} more columns are in the file" if left else ""
    title = f"{description.study.name}: {description.released.n_rows:,} rows"
    figure.suptitle(_plain(title), fontsize=11, x=0.01, ha="left")
    figure.supxlabel(f"rows by bin; {budget}whiskers: ± one standard deviation of the privacy noise{more}", fontsize=9)
    return figure


def _bars(axes: Axes, each: ColumnSummary) -> None:
    color, whiskers = "#79a9d6", {"ecolor": "#0b1f4b", "elinewidth": 0.8, "capsize": 1.5}
    missing = f" ({each.missing:,.0f} missing)" if each.missing >= 0.5 else ""
    dress(axes, title=_plain(f"{each.name}{missing}"))
    if each.bins.edges:
        edges = np.array(each.bins.edges)
        axes.bar(edges[:-1], each.counts[:-1], np.diff(edges), align="edge", color=color, edgecolor="white",
                 linewidth=0.4, yerr=each.noise_se, error_kw=whiskers)  # fmt: skip
        if getattr(each.bins.column, "transform", "none") == "log":
            axes.set_xscale("log")
        axes.set_ylim(bottom=0.0)
        return
    pairs = list(zip(each.bins.labels, each.counts.tolist(), strict=True))
    pairs = pairs if len(pairs) <= MOST_BARS else sorted(pairs, key=lambda pair: -pair[1])[:MOST_BARS]
    names = [label if len(label) <= 18 else f"{label[:17]}…" for label, _ in pairs]
    axes.barh(range(len(pairs)), [count for _, count in pairs], color=color, xerr=each.noise_se, error_kw=whiskers)
    axes.set_yticks(range(len(pairs)), [_plain(name) for name in names])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set_xlim(left=0.0)
    axes.grid(visible=False, axis="y")


# --- dpadmm plan: what is reached against ε, a line for every number of rounds ---------------------------


def forecast_figure(plan: Plan, *, title: str) -> Picture:
    """A panel for every scenario: the judged measure, between the lines between which everything lies."""
    outlooks, verdicts, measure = plan.outlooks, plan.verdicts, plan.measure
    several = len(outlooks) > 1
    figure = new_figure(4.2 * len(outlooks) if several else 7.6, 4.9)
    panels = np.atleast_1d(figure.subplots(1, len(outlooks), sharey=True))
    for axes, outlook, verdict in zip(panels, outlooks, verdicts, strict=True):
        _outlook(axes, plan, outlook, verdict)
        heading, y = f"{outlook.name}: {verdict.word}", measure if axes is panels[0] else ""
        dress(axes, title=heading, x="total ε", y=y, percent=plan.goal.measure.percent)
    figure.suptitle(f"Forecast, not a result: {title}", fontsize=11, x=0.01, ha="left")
    legend(figure, panels[0], columns=5 if several else 3)
    words = "; ".join(
        f"{each.name}: {verdict.word}, {verdict.reason}" for each, verdict in zip(outlooks, verdicts, strict=True)
    )
    caption = (
        f"A forecast of {title}, from {'made-up' if several else 'public'} rows; no private row was read. "
        f"{measure} against the total ε, a line for every number of rounds; bands: ± one standard deviation "
        "of what one run reaches (noise, splits and the number of rows tested on). Dotted: without "
        f"noise; grey: a constant prediction. The ring marks the study's own ε and rounds. Recommendation: {words}."
    )
    return Picture("forecast", "Forecast of a study", caption, figure)


def _outlook(axes: Axes, plan: Plan, outlook: Outlook, verdict: Recommendation) -> None:
    grid, name = plan.grid, plan.goal.name
    for rounds, look in zip(grid.rounds, steps(len(grid.rounds)), strict=True):
        values = [outlook.at(epsilon, rounds)[name] for epsilon in grid.epsilons]
        mean, std = np.array([(each.mean, each.spread) for each in values]).T
        curve = Curve(np.array(grid.epsilons), mean, std, n_seeds=2)  # 2: with a band
        draw(axes, curve, look, label=f"{rounds} rounds")
    axes.plot(
        [grid.own[0]], [outlook.at(*grid.own)[name].mean], "o", markersize=13, markerfacecolor="none",
        markeredgecolor="#b5432a", markeredgewidth=1.8, label="this study", zorder=5,
    )  # fmt: skip
    floor(axes, outlook.ceiling[name].mean, "without noise")
    dashes = (0, (5, 3))
    axes.axhline(outlook.baseline[name], color="#888888", linestyle=dashes, linewidth=1.3, label="constant prediction")
    if plan.goal.target is not None:
        axes.axhline(verdict.goal, color="#b5432a", linewidth=1.0, alpha=0.8, label="goal")
    style.at_values(axes, list(grid.epsilons))


# --- dpadmm audit: how well an attacker told two worlds apart, beside what was promised -------------------

Points = tuple[Floats, Floats]
ALPHA, BETA = "world 0 taken for 1 (share of trials)", "world 1 taken for 0 (share of trials)"


def roc_figure(
    scores: tuple[Floats, Floats], *, mu: float, proven: float, threshold: float, confidence: float, title: str
) -> Picture:
    """Errors of an attacker for every threshold, linear and logarithmic.

    ``scores`` are those of world 0 and of world 1, large ones speaking for world 1; ``mu`` was promised, and
    ``proven`` is the lower limit that the audit found with the ``threshold`` that it fixed beforehand;
    ``confidence`` is that of the limits of each rate.
    """
    cuts = np.quantile(np.concatenate(scores), np.linspace(0.0, 1.0, 401))
    rates, low, high = _rates(scores, cuts, confidence)
    here, _, corner = _rates(scores, np.array([threshold]), confidence)
    figure = new_figure(9.2, 4.6)
    left, right = figure.subplots(1, 2)
    axis = np.concatenate([np.geomspace(1e-5, 0.02, 60), np.linspace(0.02, 1.0, 200)])
    looks = kinds(["seen", "promised", "proven"])
    # the outline of the band between the two limits
    band = [np.maximum(np.concatenate([a, b[::-1]]), 1e-9) for a, b in zip(low, high, strict=True)]
    for axes in (left, right):
        axes.fill(*band, color=looks["seen"].color, alpha=0.2, linewidth=0,
                  label=f"its {100 * confidence:.6g}% limits, at each threshold")  # fmt: skip
        axes.plot(*rates, color=looks["seen"].color, linewidth=1.4, label="the attacker's errors, measured")
        axes.plot(axis, ndtr(-ndtri(axis) - mu), color=looks["proven"].color, linestyle=(0, (5, 2)),
                  linewidth=1.6, label=f"promise, μ = {mu:g}: nobody may be below")  # fmt: skip
        if proven > 0.0:
            axes.plot(axis, ndtr(-ndtri(axis) - proven), color="#555555", linestyle=(0, (1, 1.5)),
                      linewidth=1.5, label=f"proven, μ ≥ {proven:.3f}")  # fmt: skip
        axes.plot(*here, "o", color=looks["seen"].color, markeredgecolor="white", markersize=6,
                  label="threshold fixed beforehand")  # fmt: skip
        axes.plot(*corner, "+", color="#555555", markersize=9, markeredgewidth=1.4,
                  label="upper limits of both its errors")  # fmt: skip
        axes.set_aspect("equal")
    left.plot([0.0, 1.0], [1.0, 0.0], color="black", linewidth=0.6, alpha=0.5)
    left.text(0.52, 0.52, "guessing by a coin", fontsize=8, rotation=-45, ha="center", va="center")
    left.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    left.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    dress(left, title="(a) all thresholds", x=ALPHA, y=BETA, percent=True)
    least = max(1e-4, 3.0 / min(len(each) for each in scores))
    right.set(xlim=(least, 1.0), ylim=(least, 1.0))
    style.logarithmic(right.xaxis, right.yaxis)
    for scale in (right.xaxis, right.yaxis):
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{100.0 * value:g}%"))
    dress(right, title="(b) the same, logarithmic", x=ALPHA, y=BETA)
    legend(figure, left, columns=3)
    caption = (
        f"{title}. Horizontal: how often an attacker takes world 0 for world 1; vertical: how often world 1 "
        "for world 0; each point is a threshold for its likelihood ratio. (a) linear, (b) the same, "
        f"logarithmic. Dashed: the trade-off curve of μ-GDP for the promised μ = {mu:g}, which nobody may be "
        "below. "
        "A sound audit lies on it: the attacker is as good as one can be, and no better. Dotted: what the "
        f"limits of both errors at the one threshold that was fixed beforehand prove, μ ≥ {proven:.3f}."
    )
    return Picture("roc", "Errors of an attacker, and the promise", caption, figure)


def _rates(scores: tuple[Floats, Floats], cuts: Floats, confidence: float) -> tuple[Points, Points, Points]:
    """Rates of both errors at each threshold, and their lower and upper limits (Clopper–Pearson)."""
    zero, one = (np.sort(each) for each in scores)
    wrong = (len(zero) - np.searchsorted(zero, cuts, side="right"), np.searchsorted(one, cuts, side="right"))
    rates, low, high = [], [], []
    tail = (1.0 - confidence) / 2.0
    for count, n in zip(wrong, (len(zero), len(one)), strict=True):
        rates.append(count / n)
        low.append(np.where(count > 0, betaincinv(np.maximum(count, 1), n - count + 1, tail), 0.0))
        high.append(np.where(count < n, betainccinv(count + 1, np.maximum(n - count, 1), tail), 1.0))
    return (rates[0], rates[1]), (low[0], low[1]), (high[0], high[1])
