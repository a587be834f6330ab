"""What claims, tables and figures read off the results: times, gaps to the optimum, speed of convergence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm.engine.metrics import spread
from dpadmm.figures.style import Curve
from dpadmm.matrices.arrays import Floats
from reproduction import series
from reproduction.results import Results
from reproduction.series import at_end, distinct, done, measure, split, where

PAPER_SECONDS = {
    ("admm", 0.01): 67.242, ("admm_pvp", 0.01): 102.282, ("admm_dvp", 0.01): 59.743, ("dp_admm", 0.01): 6.937,
    ("admm", 0.05): 67.242, ("admm_pvp", 0.05): 78.798, ("admm_dvp", 0.05): 65.935, ("dp_admm", 0.05): 5.322,
    ("admm", 0.1): 67.242, ("admm_pvp", 0.1): 79.013, ("admm_dvp", 0.1): 69.855, ("dp_admm", 0.1): 5.218,
}  # fmt: skip
"""Table III of the paper: seconds of 100 rounds in MATLAB, by method and ε per round."""
THEOREMS = {"l1": "Theorem 2, non-smooth", "l2": "Theorem 3, smooth"}


@dataclass(frozen=True)
class Time:
    """Time of one method at one budget: the fastest repeat, since other programs can only slow a run down.

    ``ratio`` is to DP-ADMM at the same budget; NaN without DP-ADMM there.
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
    """Every method at every budget of the timed runs; one without a budget is repeated at each."""
    lines = where(done(results), timed=True)
    if not len(lines):
        return []
    budget = series.budget_column(lines)
    out = []
    for value in distinct(lines, budget):
        base = where(lines, method="dp_admm", **{budget: value})
        ours = min(at_end(base, "seconds").values()) if len(base) else np.nan
        for label, group in series.variants(lines).items():
            name = str(distinct(group, "method")[0])
            here = where(group, **{budget: value if distinct(group, budget) else None})
            if not len(here) or name == "centralized":
                continue
            seconds = at_end(here, "seconds").values()
            iterations = series.mean_std(at_end(here, "iterations"))[0]
            paper, base_of_paper = PAPER_SECONDS.get((name, value)), PAPER_SECONDS.get(("dp_admm", value))
            paper_ratio = paper / base_of_paper if paper and base_of_paper else None
            fastest, slowest = min(seconds), max(seconds)
            out.append(Time(label, name, value, fastest, slowest, iterations, fastest / ours, paper, paper_ratio))
    return out


@dataclass(frozen=True)
class Gap:
    """Gap ``Σ_i(f_i(w̄_i) + ρ‖w̄_i − w̄‖) − n·F*`` by round, the theorem's bound, and the slope per split.

    ``slopes`` maps a seed to the slope of ln(gap) against ln(round) over the rounds from a tenth of the last.
    """

    regularizer: str
    budget: float
    measured: Curve
    bound: Floats
    slopes: dict[int, float]


def gaps(results: Results) -> list[Gap]:
    """The gap of every DP-ADMM run that has a bound, each to the optimum of its own split."""
    lines = done(results)
    private = where(lines, method="dp_admm")
    private = series.keep(private, np.isfinite(measure(private, "bound")))
    if not len(private):
        return []
    out = []
    names = ("regularizer", "n_agents", "delta", "alpha", "weight_radius", series.budget_column(private))
    for values, group in split(private, *names).items():
        setting = dict(zip(names, values, strict=True))
        best = where(lines, method="centralized", regularizer=values[0], alpha=setting["alpha"])
        optimum = at_end(best, "objective_global")
        runs = {int(seed): run for (seed,), run in split(group, "seed").items() if int(seed) in optimum}
        if not runs:
            continue
        found = {
            seed: measure(run, "augmented_objective") - setting["n_agents"] * optimum[seed]
            for seed, run in runs.items()
        }
        first, every = next(iter(runs.values())), np.array(list(found.values()))
        rounds = measure(first, "round")
        curve = Curve(rounds, every.mean(axis=0), spread(every, axis=0), len(runs))
        slopes = {seed: value for seed, gap in found.items() if np.isfinite(value := slope(rounds, gap))}
        out.append(Gap(str(values[0]), float(values[-1]), curve, measure(first, "bound"), slopes))
    return out


def slope(rounds: Floats, gap: Floats) -> float:
    """Least-squares slope of ln(gap) against ln(round), from a tenth of the rounds on.

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


def rounds_to_settle(lines: Results) -> dict[int, float]:
    """Seed -> first measured round at which 90% of the change in training loss is done (global model).

    The change is that from the first to the last round of the same run, so the number says how fast a run
    converges, not how good its result is.
    """
    out = {}
    for (seed,), run in split(lines, "seed").items():
        rounds, loss = measure(run, "round"), measure(run, "train_loss_global")
        near = np.abs(loss - loss[-1]) <= 0.1 * abs(loss[0] - loss[-1])
        out[int(seed)] = float(rounds[np.argmax(near)])
    return out
