"""The figure of experiments that are not the paper's: methods by budget and number of agents."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from dpadmm.baselines import METHOD_TITLES
from dpadmm.figures import comparison
from dpadmm.figures.style import Picture
from dpadmm.training.compare import ComparisonRow
from reproduction import series
from reproduction.results import DONE, Results
from reproduction.series import distinct, done


def comparison_figure(results: Results) -> Figure:
    """Error and training loss of the global model at the end of the runs."""
    lines = done(results)
    budget = series.budget_column(lines)
    error = series.error_column(lines)
    groups = {label: _rows(group, budget, error) for label, group in series.variants(lines).items()}
    return comparison.comparison_figure(groups, regression=series.is_regression(lines))


def _rows(group: Results, budget: str, error: str) -> list[ComparisonRow]:
    """One row for each number of agents and budget."""
    rows = []
    for (n_agents, asked), lines in series.split(group.last(), "n_agents", budget).items():
        values = {name: series.measure(lines, name).tolist() for name in (error, "train_loss_global", "seconds")}
        method, named = distinct(lines, "method")[0], None if asked is None else budget
        rows.append(ComparisonRow(method, n_agents, named, asked, DONE, None, None, None, values))
    return rows


def comparison_picture(results: Results, name: str) -> Picture:
    """The figure with its caption; raises ``NoRunsError`` where every run was refused."""
    lines = done(results)
    series.need(lines)
    figure = comparison_figure(results)
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
