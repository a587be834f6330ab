"""Figure of ``dpadmm audit``: error rates of the attack, compared with the guaranteed limit."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FuncFormatter, PercentFormatter
from scipy.special import betainccinv, betaincinv, ndtr, ndtri

from dpadmm.figures import style
from dpadmm.figures.style import Picture, dress, kinds, legend, new_figure
from dpadmm.matrices.arrays import Floats

Points = tuple[Floats, Floats]
ALPHA, BETA = "world 0 taken for 1 (share of trials)", "world 1 taken for 0 (share of trials)"


def roc_figure(
    scores: tuple[Floats, Floats], *, mu: float, proven: float, threshold: float, confidence: float, title: str
) -> Picture:
    """Draw the error rates of an attacker at all thresholds, on linear and logarithmic axes.

    Parameters
    ----------
    scores : pair of arrays
        Scores in world 0 and in world 1. Large scores indicate world 1.
    mu, proven : float
        The guaranteed μ, and its lower bound from the errors at ``threshold``, which was fixed before the audit.
    confidence : float
        Confidence of the limits of each rate.
    """
    cuts = np.quantile(np.concatenate(scores), np.linspace(0.0, 1.0, 401))
    rates, low, high = _rates(scores, cuts, confidence)
    here, _, corner = _rates(scores, np.array([threshold]), confidence)
    figure = new_figure(9.2, 4.6)
    left, right = figure.subplots(1, 2)
    axis = np.concatenate([np.geomspace(1e-5, 0.02, 60), np.linspace(0.02, 1.0, 200)])
    looks = kinds(["measured", "guaranteed", "proven"])
    # outline of the band between the limits
    band = [np.maximum(np.concatenate([a, b[::-1]]), 1e-9) for a, b in zip(low, high, strict=True)]
    for axes in (left, right):
        axes.fill(*band, color=looks["measured"].color, alpha=0.2, linewidth=0,
                  label=f"its {100 * confidence:.6g}% limits, at each threshold")  # fmt: skip
        axes.plot(*rates, color=looks["measured"].color, linewidth=1.4, label="the attacker's errors, measured")
        axes.plot(axis, ndtr(-ndtri(axis) - mu), color=looks["proven"].color, linestyle=(0, (5, 2)),
                  linewidth=1.6, label=f"guarantee, μ = {mu:g}: lower limit of the errors")  # fmt: skip
        if proven > 0.0:
            axes.plot(axis, ndtr(-ndtri(axis) - proven), color="#555555", linestyle=(0, (1, 1.5)),
                      linewidth=1.5, label=f"proven, μ ≥ {proven:.3f}")  # fmt: skip
        axes.plot(*here, "o", color=looks["measured"].color, markeredgecolor="white", markersize=6,
                  label="threshold fixed before the audit")  # fmt: skip
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
        f"logarithmic. Dashed: the trade-off curve of μ-GDP for the guaranteed μ = {mu:g}, the lower limit of all "
        "attackers. Correct code and an optimal attacker give points on this curve. Dotted: the lower bound "
        f"μ ≥ {proven:.3f}, which follows from the limits of both errors at the threshold fixed before the audit."
    )
    return Picture("roc", "Errors of an attacker, and the guarantee", caption, figure)


def _rates(scores: tuple[Floats, Floats], cuts: Floats, confidence: float) -> tuple[Points, Points, Points]:
    """Return the rates of both errors at each threshold, and their lower and upper limits (Clopper–Pearson)."""
    zero, one = (np.sort(each) for each in scores)
    wrong = (len(zero) - np.searchsorted(zero, cuts, side="right"), np.searchsorted(one, cuts, side="right"))
    rates, low, high = [], [], []
    tail = (1.0 - confidence) / 2.0
    for count, n in zip(wrong, (len(zero), len(one)), strict=True):
        rates.append(count / n)
        low.append(np.where(count > 0, betaincinv(np.maximum(count, 1), n - count + 1, tail), 0.0))
        high.append(np.where(count < n, betainccinv(count + 1, np.maximum(n - count, 1), tail), 1.0))
    return (rates[0], rates[1]), (low[0], low[1]), (high[0], high[1])
