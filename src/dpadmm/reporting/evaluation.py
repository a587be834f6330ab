"""The figure of an evaluation: ROC, calibration and confusion, or predicted against true numbers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpadmm.model.evaluate import Evaluation
from dpadmm.model.model import Model
from dpadmm.reporting.style import dress, kinds, new_figure

MOST_CLASSES = 12
"""Beyond, a confusion matrix has no numbers in its cells."""

MOST_POINTS = 2000
"""Of a curve: what a figure can show."""


def evaluation_figure(model: Model, evaluation: Evaluation, title: str) -> Figure:
    """What there is to see: two or three panels."""
    if model.task == "regression":
        figure = new_figure(5.2, 4.6)
        _numbers(figure.subplots(), model, evaluation, title)
        return figure
    panels = [
        _confusion,
        *([_reliability] if evaluation.bins else []),
        *([_roc] if model.task == "binary" else []),
    ]
    figure = new_figure(4.4 * len(panels), 4.2)
    for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        panel(axes, evaluation)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _confusion(axes: Axes, evaluation: Evaluation) -> None:
    counts = evaluation.confusion
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    names = [str(name) for name in evaluation.classes]
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 4 else 0)
    axes.set_yticks(range(len(names)), names)
    if len(names) <= MOST_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", fontsize=8.5, color=color)
    dress(axes, title=f"accuracy {evaluation.figures['accuracy']:.1%}", x="predicted", y="true")
    axes.grid(visible=False)


def _reliability(axes: Axes, evaluation: Evaluation) -> None:
    bins, look = evaluation.bins, kinds(["bins"])["bins"]
    axes.plot([0.0, 1.0], [0.0, 1.0], color="#777777", linestyle=(0, (5, 2)), linewidth=1.0)
    sizes = np.array([each.rows for each in bins])
    predicted, observed = [each.predicted for each in bins], [each.observed for each in bins]
    axes.plot(predicted, observed, color=look.color, linewidth=1.2)
    axes.scatter(predicted, observed, s=12.0 + 140.0 * sizes / sizes.max(), color=look.color, alpha=0.8)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    error = evaluation.figures["calibration_error"]
    dress(
        axes, title=f"calibration, mean error {error:.3f}", x="predicted probability", y="share that was so"
    )


def _roc(axes: Axes, evaluation: Evaluation) -> None:
    order = np.argsort(-evaluation.scores[:, 0], kind="stable")
    positive, scores = evaluation.truth[order] == 1, evaluation.scores[order, 0]
    last_of_tie = np.append(np.diff(scores) != 0.0, True)
    hits, alarms = (np.append(0, np.cumsum(each)[last_of_tie]) for each in (positive, ~positive))
    chosen = np.unique(np.linspace(0, len(hits) - 1, MOST_POINTS).astype(int))
    axes.plot([0.0, 1.0], [0.0, 1.0], color="#777777", linestyle=(0, (5, 2)), linewidth=1.0)
    if hits[-1] and alarms[-1]:
        axes.plot(alarms[chosen] / alarms[-1], hits[chosen] / hits[-1], color=kinds(["roc"])["roc"].color)
    area = evaluation.figures["auc"]
    dress(
        axes,
        title="ROC" if area is None else f"ROC, area {area:.3f}",
        x=f"{evaluation.classes[0]} taken for {evaluation.classes[1]}"[:60],
        y=f"{evaluation.classes[1]} found"[:60],
    )


def _numbers(axes: Axes, model: Model, evaluation: Evaluation, title: str) -> None:
    predicted = model.answers(evaluation.scores)
    low = float(min(predicted.min(), evaluation.truth.min()))
    high = float(max(predicted.max(), evaluation.truth.max()))
    axes.hexbin(evaluation.truth, predicted, gridsize=50, cmap="viridis", bins="log", mincnt=1)
    axes.plot([low, high], [low, high], color="#777777", linestyle=(0, (5, 2)), linewidth=1.0)
    dress(axes, title=f"{title}: RMSE {evaluation.figures['rmse']:.4g}", x="true", y="predicted")
