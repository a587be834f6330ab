"""The convergence figure: loss and error by round, mean and spread, beside the non-private optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm._base.files import atomic_file
from dpadmm.reporting.series import Curve
from dpadmm.reporting.style import draw, dress, floor, kinds, legend, new_figure
from dpadmm.training.metrics import Trace, spread


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
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    columns = next(iter(traces.values()))[0].columns
    error = "test_error_global" if "test_error_global" in columns else "train_error_global"
    _panel(left, traces, "train_loss_global", optimum or {}, "training loss of the global model")
    where = "test rows" if error.startswith("test") else "training rows"
    _panel(right, traces, error, optimum or {}, f"{error_name}, {where}")
    legend(figure, left, columns=4)
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


def _panel(
    axes: Axes, traces: Mapping[str, Sequence[Trace]], column: str, optimum: Mapping[str, float], title: str
) -> None:
    looks = kinds(list(traces))
    for label, group in traces.items():
        shortest = min(len(trace) for trace in group)
        values = np.array([trace.columns[column][:shortest] for trace in group])
        rounds = group[0].columns["round"][:shortest]
        curve = Curve(rounds, values.mean(axis=0), spread(values, axis=0), len(group))
        draw(axes, curve, looks[label], label=label)
    floor(axes, optimum.get(column, np.nan), "non-private optimum")
    dress(axes, title=title, x="round")
