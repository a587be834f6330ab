"""The figure of ``dpadmm simulate`` and ``demo``: loss and error by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpadmm.engine.metrics import Trace, spread
from dpadmm.figures.style import Curve, draw, dress, floor, kinds, legend, new_figure


def convergence_figure(
    traces: Mapping[str, Sequence[Trace]],
    *,
    optimum: Mapping[str, float] | None = None,
    title: str = "",
) -> Figure:
    """Plot training loss and error by round, with the non-private ``optimum`` (column -> value).

    ``traces`` has the traces of repeated runs, by label.
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
