"""Measurements for claims, tables and figures: times, gaps to the optimum, speed of convergence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dpadmm.engine.metrics import spread
from dpadmm.figures.style import Curve
from dpadmm.matrices.arrays import Floats
from reproduction import series
from reproduction.results import Results
from reproduction.series import at_end, distinct, done, split

PAPER_SECONDS = {
    ("admm", 0.01): 67.242, ("admm_pvp", 0.01): 102.282, ("admm_dvp", 0.01): 59.743, ("dp_admm", 0.01): 6.937,
    ("admm", 0.05): 67.242, ("admm_pvp", 0.05): 78.798, ("admm_dvp", 0.05): 65.935, ("dp_admm", 0.05): 5.322,
    ("admm", 0.1): 67.242, ("admm_pvp", 0.1): 79.013, ("admm_dvp", 0.1): 69.855, ("dp_admm", 0.1): 5.218,
}  # fmt: skip
"""Table III of the paper: seconds of 100 rounds in MATLAB, by method and ε per round."""
THEOREMS = {"l1": "Theorem 2, non-smooth", "l2": "Theorem 3, smooth"}


@dataclass(frozen=True)
class Time:
    """Time of one method at one budget: the fastest repeat, because other programs can only slow a run down.

    ``ratio`` is relative to DP-ADMM at the same budget, or NaN without DP-ADMM.
    """

    method: str
    name: str
    budget: float
    seconds: float
    slowest: float
    iterations: float
    ratio: float
    paper_seconds: float | None
    paper_ratio: float | None


def times(results: Results) -> list[Time]:
    """Return every method at every budget of the timed runs. Methods without a budget are repeated at each."""
    lines = done(results).select(timed=True)
    if not len(lines):
        return []
    budget = series.budget_column(lines)
    out = []
    for value in distinct(lines, budget):
        ours = float(at_end(lines.select(method="dp_admm", **{budget: value}), "seconds").min())
        for label, group in series.variants(lines).items():
            name = str(distinct(group, "method")[0])
            runs = group.select(**{budget: value if distinct(group, budget) else None})
            if not len(runs) or name == "centralized":
                continue
            seconds = at_end(runs, "seconds")
            fastest, slowest = float(seconds.min()), float(seconds.max())
            iterations = float(at_end(runs, "iterations").mean())
            paper, paper_ours = PAPER_SECONDS.get((name, value)), PAPER_SECONDS.get(("dp_admm", value))
            paper_ratio = paper / paper_ours if paper and paper_ours else None
            out.append(Time(label, name, value, fastest, slowest, iterations, fastest / ours, paper, paper_ratio))
    return out


@dataclass(frozen=True)
class Gap:
    """Gap ``Σ_i(f_i(w̄_i) + ρ‖w̄_i − w̄‖) − n·F*`` by round, the theorem's bound, and the slope per split.

    ``slopes`` has, by seed, the slope of ln(gap) against ln(round) over the rounds from a tenth of the last.
    """

    regularizer: str
    budget: float
    measured: Curve
    bound: Floats
    slopes: pd.Series


def gaps(results: Results) -> list[Gap]:
    """Return the gap of every DP-ADMM run that has a bound, relative to the optimum of its own split."""
    lines = done(results)
    private = lines.select(method="dp_admm")
    private = private.keep(private.frame["bound"].notna())
    if not len(private):
        return []
    out = []
    names = ("regularizer", "n_agents", "delta", "alpha", "weight_radius", series.budget_column(private))
    for values, group in split(private, *names).items():
        setting = dict(zip(names, values, strict=True))
        best = lines.select(method="centralized", regularizer=setting["regularizer"], alpha=setting["alpha"])
        optimum = at_end(best, "objective_global")
        runs = group.frame.pivot_table(index="round", columns="seed", values=["augmented_objective", "bound"])
        gap = (runs["augmented_objective"] - setting["n_agents"] * optimum).dropna(axis="columns", how="all")
        if gap.empty:
            continue
        rounds, bound = gap.index.to_numpy(dtype=float), runs["bound"].iloc[:, 0].to_numpy()
        curve = Curve(rounds, gap.mean(axis="columns").to_numpy(), spread(gap, axis=1), gap.shape[1])
        slopes = gap.apply(lambda column, rounds=rounds: slope(rounds, column.to_numpy())).dropna()
        out.append(Gap(str(values[0]), float(values[-1]), curve, bound, slopes))
    return out


def slope(rounds: Floats, gap: Floats) -> float:
    """Return the least-squares slope of ln(gap) against ln(round), from a tenth of the rounds on.

    NaN with fewer than three positive gaps.

    Examples
    --------
    >>> rounds = np.arange(1.0, 101.0)
    >>> round(slope(rounds, 3.0 / np.sqrt(rounds)), 6)
    -0.5
    """
    used = (rounds >= rounds.max() / 10) & (gap > 0)
    if used.sum() < 3:
        return float("nan")
    return float(np.polyfit(np.log(rounds[used]), np.log(gap[used]), 1)[0])


def rounds_to_settle(lines: Results) -> pd.Series:
    """Return, by seed, the first measured round after 90% of the change in training loss (global model).

    The change is that from the first to the last round of the same run, so the number measures how fast a run
    converges, not how good its result is.
    """
    loss = lines.frame.pivot_table(index="round", columns="seed", values="train_loss_global")
    near = (loss - loss.iloc[-1]).abs() <= 0.1 * (loss.iloc[0] - loss.iloc[-1]).abs()
    return near.idxmax()
