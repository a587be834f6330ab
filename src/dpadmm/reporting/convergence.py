"""The convergence figure: loss and error by round, mean and spread, beside the non-private optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.arrays import Floats
from dpadmm.files import atomic_file
from dpadmm.metrics import Trace, spread

# dark to light, so that the lines differ in grey too; each also has its own marker
_LOOKS = [("#00429d", "o"), ("#c1562c", "s"), ("#3d8b37", "^"), ("#7a3f9d", "D"), ("#8a8a00", "v")]


def convergence_figure(
    traces: Mapping[str, Sequence[Trace]],
    *,
    optimum: Mapping[str, float] | None = None,
    title: str = "",
    error_name: str = "error of the global model",
) -> Figure:
    """Two panels, training loss and error by round.

    Parameters
    ----------
    traces : label -> traces of repeated runs
    optimum : column -> value, optional
        The non-private optimum's measures, drawn as a line.
    """
    figure = Figure(figsize=(9.0, 3.8), layout="constrained", dpi=150)
    left, right = figure.subplots(1, 2)
    error_column = _error_column(traces)
    _panel(left, traces, "train_loss_global", optimum or {}, "training loss of the global model")
    where = "test rows" if error_column.startswith("test") else "training rows"
    _panel(right, traces, error_column, optimum or {}, f"{error_name}, {where}")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def save_figure(figure: Figure, stem: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, or only some ``kinds`` of them."""
    paths = [stem.with_suffix(f".{kind}") for kind in kinds]
    with matplotlib.rc_context({"svg.hashsalt": "dpadmm", "svg.fonttype": "none"}):
        for path in paths:
            with atomic_file(path) as out:
                figure.savefig(
                    out, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None
                )
    return paths


def _error_column(traces: Mapping[str, Sequence[Trace]]) -> str:
    columns = next(iter(traces.values()))[0].columns
    return "test_error_global" if "test_error_global" in columns else "train_error_global"


def _panel(
    axes: Axes, traces: Mapping[str, Sequence[Trace]], column: str, optimum: Mapping[str, float], title: str
) -> None:
    for (color, marker), (label, group) in zip(_LOOKS, traces.items(), strict=False):
        rounds, mean, spread = _mean_and_spread(group, column)
        every = max(1, len(rounds) // 8)
        axes.plot(
            rounds,
            mean,
            color=color,
            marker=marker,
            markevery=every,
            markersize=4,
            linewidth=1.4,
            label=label,
        )
        if len(group) > 1:
            axes.fill_between(rounds, mean - spread, mean + spread, color=color, alpha=0.18, linewidth=0)
    if column in optimum:
        axes.axhline(
            optimum[column], color="black", linestyle="--", linewidth=1.0, label="non-private optimum"
        )
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("round")
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)


def _mean_and_spread(group: Sequence[Trace], column: str) -> tuple[Floats, Floats, Floats]:
    shortest = min(len(trace) for trace in group)
    values = np.array([trace.columns[column][:shortest] for trace in group])
    return group[0].columns["round"][:shortest], values.mean(axis=0), spread(values, axis=0)
