"""Times of runs that had the machine to themselves, beside the paper's Table 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm.reporting.series import at_end, budget_column, distinct, done, mean_std, variants, where
from dpadmm.results import Results

PAPER_SECONDS = {
    ("admm", 0.01): 67.242, ("admm_pvp", 0.01): 102.282, ("admm_dvp", 0.01): 59.743, ("dp_admm", 0.01): 6.937,
    ("admm", 0.05): 67.242, ("admm_pvp", 0.05): 78.798, ("admm_dvp", 0.05): 65.935, ("dp_admm", 0.05): 5.322,
    ("admm", 0.1): 67.242, ("admm_pvp", 0.1): 79.013, ("admm_dvp", 0.1): 69.855, ("dp_admm", 0.1): 5.218,
}  # fmt: skip
"""Table 3 of the paper: seconds of 100 rounds in MATLAB, (method, ε per round)."""


@dataclass(frozen=True)
class Time:
    """Time of one method at one budget: of the fastest repeat, since other programs can only slow a run down.

    ``ratio`` is to DP-ADMM at the same budget (NaN: no DP-ADMM there).
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
    """Every method at every budget of the timed runs; one without a budget stands beside each."""
    lines = where(done(results), timed=True)
    if not len(lines):
        return []
    budget = budget_column(lines)
    out = []
    for value in distinct(lines, budget):
        base = where(lines, method="dp_admm", **{budget: value})
        ours = min(at_end(base, "seconds").values()) if len(base) else np.nan
        for label, group in variants(lines).items():
            name = str(distinct(group, "method")[0])
            here = where(group, **{budget: value if distinct(group, budget) else None})
            if not len(here) or name == "centralized":
                continue
            seconds = at_end(here, "seconds").values()
            fastest, slowest = min(seconds), max(seconds)
            ratio = fastest / ours
            out.append(
                Time(label, name, value, fastest, slowest, _iterations(here), ratio, *_paper(name, value))
            )
    return out


def _iterations(lines: Results) -> float:
    return mean_std(at_end(lines, "iterations"))[0]


def _paper(name: str, value: float) -> tuple[float | None, float | None]:
    seconds, base = PAPER_SECONDS.get((name, value)), PAPER_SECONDS.get(("dp_admm", value))
    return (seconds, seconds / base) if seconds and base else (None, None)
