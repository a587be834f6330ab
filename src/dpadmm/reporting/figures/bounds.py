"""Measured distance to the optimum beside what the two theorems promise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm.arrays import Floats
from dpadmm.metrics import spread
from dpadmm.reporting.picture import Picture, about
from dpadmm.reporting.series import BUDGETS, Curve, at_end, budget_column, done, keep, split, where
from dpadmm.reporting.style import draw, dress, kinds, legend, log_x, log_y, new_figure
from dpadmm.results import Results

THEOREMS = {"l1": "Theorem 2, non-smooth", "l2": "Theorem 3, smooth"}


@dataclass(frozen=True)
class Gap:
    """Distance ``Σ_i(f_i(w̄_i) + ρ‖w̄_i − w̄‖) − n·F*`` by round, and the theorem's bound of its mean."""

    regularizer: str
    budget: float
    measured: Curve
    bound: Floats


def gaps(results: Results) -> list[Gap]:
    """Every DP-ADMM run with a bound, its distance taken to the optimum of the same split."""
    lines = done(results)
    private = where(lines, method="dp_admm")
    private = _with_bound(private)
    if not len(private):
        return []
    out = []
    names = ("regularizer", "n_agents", "delta", "reg_share", "weight_radius", budget_column(private))
    for values, group in split(private, *names).items():
        setting = dict(zip(names, values, strict=True))
        best = where(lines, method="centralized", regularizer=values[0], reg_share=setting["reg_share"])
        optimum = at_end(best, "objective_global")
        runs = [run for (seed,), run in split(group, "seed").items() if int(seed) in optimum]
        if runs:
            measured = np.array([_distance(run, optimum) for run in runs])
            rounds, bound = (np.array(runs[0].column(name), dtype=float) for name in ("round", "bound"))
            curve = Curve(rounds, measured.mean(axis=0), spread(measured, axis=0), len(runs))
            out.append(Gap(str(values[0]), float(values[-1]), curve, bound))
    return out


def bounds_figure(results: Results, name: str) -> Picture | None:
    """One panel per theorem, measured distance and bound for every ε; both scales logarithmic."""
    found = gaps(results)
    if not found:
        return None
    regularizers = list(dict.fromkeys(gap.regularizer for gap in found))
    figure = new_figure(4.6 * max(1, len(regularizers)), 3.9)
    budget = BUDGETS[budget_column(where(done(results), method="dp_admm"))]
    looks = kinds([f"{value:g}" for value in sorted({gap.budget for gap in found})])
    panels = figure.subplots(1, len(regularizers), sharey=True, squeeze=False).ravel()
    for axes, regularizer in zip(panels, regularizers, strict=True):
        for gap in (each for each in found if each.regularizer == regularizer):
            look, positive = looks[f"{gap.budget:g}"], gap.measured.mean > 0
            curve = gap.measured
            measured = Curve(curve.x[positive], curve.mean[positive], curve.std[positive], curve.n_seeds)
            bound = Curve(gap.measured.x, gap.bound, np.zeros_like(gap.bound), 1)
            draw(axes, measured, look, label=f"measured, {budget} {gap.budget:g}", band=False)
            draw(axes, bound, look, label=f"bound, {budget} {gap.budget:g}", hollow=True)
        log_x(axes)
        log_y(axes)
        dress(axes, title=THEOREMS.get(regularizer, regularizer), x="round t",
              y="augmented objective − n·F*" if axes is panels[0] else "")  # fmt: skip
    legend(figure, panels[0], columns=4 if len(regularizers) > 1 else 2)
    negative = any((gap.measured.mean <= 0).any() for gap in found)
    caption = (
        "Distance of DP-ADMM's augmented objective from n times the non-private optimum F* of the same "
        "split, summed over the agents, at the averages of the local models, beside the theorems' bounds "
        f"with β = ρ ({about(results)}). Mean over the splits, both scales logarithmic. The theorems bound "
        "the mean; a measured line must lie below the hollow "
        "one of the same shape. " + ("Rounds with a distance below zero are left out. " if negative else "")
    )
    return Picture(name, "Measured convergence beside the theorems' bounds", caption.strip(), figure)


def _with_bound(lines: Results) -> Results:
    return keep(lines, np.isfinite(np.array(lines.column("bound"), dtype=float)))


def _distance(run: Results, optimum: dict[int, float]) -> Floats:
    seed, n_agents = int(run.column("seed")[0]), int(run.column("n_agents")[0])
    values = np.array(run.column("augmented_objective"), dtype=float)
    return np.asarray(values - n_agents * optimum[seed])
