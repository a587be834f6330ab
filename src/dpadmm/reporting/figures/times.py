"""Table 3 as a picture: time of 100 rounds beside the paper's."""

from __future__ import annotations

import numpy as np

from dpadmm.reporting.picture import Picture
from dpadmm.reporting.style import dress, kinds, log_x, new_figure
from dpadmm.reporting.times import times
from dpadmm.results import Results


def times_figure(results: Results, name: str) -> Picture | None:
    """How many times longer than DP-ADMM each method takes, measured and in the paper."""
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
            if row.paper_ratio is not None and row.name != "dp_admm"  # 1 by definition, and over our own
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
        "same ratio from the paper's Table 3 (hollow; DP-ADMM's own is 1 in both). Each run had the "
        "machine to itself; the fastest of the repeats. To the right of the line: slower than DP-ADMM."
    )
    return Picture(name, "Time of a run beside DP-ADMM's", caption, figure)
