"""The figure of ``dpadmm describe``: a panel for every column."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.figures.style import dress, new_figure, plain_text
from dpadmm.models.description import ColumnSummary, Description

N_COLUMNS, MAX_PANELS, MAX_BARS = 3, 30, 12


def description_figure(description: Description) -> Figure:
    """Plot counts by bin of every column, with ± one standard deviation of the privacy noise."""
    shown = list(description.columns.values())[:MAX_PANELS]
    n_rows = -(-len(shown) // N_COLUMNS)
    figure = new_figure(10.5, 1.0 + 2.4 * n_rows)
    panels = figure.subplots(n_rows, min(N_COLUMNS, len(shown)), squeeze=False).ravel()
    for axes, each in zip(panels, shown, strict=False):
        _bars(axes, each)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    left = len(description.columns) - len(shown)
    epsilon, delta = description.privacy.get("epsilon"), description.privacy.get("delta")
    budget = f"ε = {epsilon:.4g}, δ = {delta:g}; " if epsilon is not None and delta is not None else ""
    more = f"; {left} more columns are in the file" if left else ""
    title = f"{description.study.name}: {description.released.n_rows:,} rows"
    figure.suptitle(plain_text(title), fontsize=11, x=0.01, ha="left")
    figure.supxlabel(f"rows by bin; {budget}whiskers: ± one standard deviation of the privacy noise{more}", fontsize=9)
    return figure


def _bars(axes: Axes, each: ColumnSummary) -> None:
    color, whiskers = "#79a9d6", {"ecolor": "#0b1f4b", "elinewidth": 0.8, "capsize": 1.5}
    missing = f" ({each.missing:,.0f} missing)" if each.missing >= 0.5 else ""
    dress(axes, title=plain_text(f"{each.name}{missing}"))
    if each.bins.edges:
        edges = np.array(each.bins.edges)
        axes.bar(edges[:-1], each.counts[:-1], np.diff(edges), align="edge", color=color, edgecolor="white",
                 linewidth=0.4, yerr=each.noise_se, error_kw=whiskers)  # fmt: skip
        if each.is_log:
            axes.set_xscale("log")
        axes.set_ylim(bottom=0.0)
        return
    pairs = list(zip(each.bins.labels, each.counts.tolist(), strict=True))
    pairs = pairs if len(pairs) <= MAX_BARS else sorted(pairs, key=lambda pair: -pair[1])[:MAX_BARS]
    names = [label if len(label) <= 18 else f"{label[:17]}…" for label, _ in pairs]
    axes.barh(range(len(pairs)), [count for _, count in pairs], color=color, xerr=each.noise_se, error_kw=whiskers)
    axes.set_yticks(range(len(pairs)), [plain_text(name) for name in names])
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    axes.set_xlim(left=0.0)
    axes.grid(visible=False, axis="y")
