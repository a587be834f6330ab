"""The plan of a study: costs, forecast and recommendation, before any private row is read."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Integers
from dpadmm.planning.costs import Costs
from dpadmm.planning.forecast import ForecastGrid, ScenarioForecast, Values, values_to_dict
from dpadmm.planning.intervals import Intervals
from dpadmm.planning.measures import MEASURES
from dpadmm.planning.recommendation import MIN_GAIN, Goal, Recommendation, best_rounds, combine, recommend
from dpadmm.queries.problem import PublicSizes
from dpadmm.rendering import Renderable, Rendering
from dpadmm.rendering.formats import plural
from dpadmm.studies.settings import BUDGETS, Training
from dpadmm.studies.study import Study

MAIN_MEASURES = ("accuracy", "rmse", "deviance")
"""The most common measures. Every study has one of them."""

ABORTED_SHARE = 0.1
"""Share of aborted rounds whose cost is forecast."""


@dataclass(frozen=True)
class Alternative:
    """The study's total ε with secure aggregation, and its forecast in every scenario."""

    training: Training
    epsilon_if_others_collude: float
    aborted_rounds: float = 0.0
    values: tuple[Values, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "min_honest_sites": self.training.min_honest_sites,
            "n_rounds": self.training.planned_rounds,
            "epsilon_if_others_collude": self.epsilon_if_others_collude,
            "aborted_rounds": self.aborted_rounds,
            "scenarios": [values_to_dict(values) for values in self.values],
        }


def alternatives(study: Study, sizes: Integers, epsilon: float) -> list[Alternative]:
    """Return the alternatives to compare: secure aggregation, other numbers of honest agents, aborted rounds.

    ``study`` is as given by the user, since the number of rounds depends on the number of honest agents.
    """
    limit, own = study.quorum_of(len(sizes)) - 1, study.training.min_honest_sites
    half = -(-len(sizes) // 2)
    if limit < 2 or not study.training.method.sums_only:
        return []
    wanted = [(min(half, limit), 0.0)]
    if own is not None:
        numbers = {2, -(-len(sizes) // 4), half, limit, own}
        wanted = [*((h, 0.0) for h in sorted(numbers) if 2 <= h <= limit), (own, ABORTED_SHARE)]
    mu, delta = math.sqrt(study.terms.plan.mu_squared()), study.terms.delta
    budget, options = {**dict.fromkeys(BUDGETS), "epsilon": epsilon}, []
    for min_honest_sites, aborted_rounds in wanted:
        training = study.training.with_changes(aggregation="secure", min_honest_sites=min_honest_sites, **budget)
        training = training.resolved(study.problem, PublicSizes(sizes, study.shape[0]))
        options.append(Alternative(training, exact_epsilon(math.sqrt(min_honest_sites) * mu, delta), aborted_rounds))
    return options


@dataclass(frozen=True)
class Plan(Renderable):
    """Costs, forecast and recommendation of a study.

    ``intervals`` is set if the study requests them. ``uses_statistics``: synthetic rows have the counts of private
    statistics.
    """

    study: Study
    sizes: Integers
    costs: Costs
    grid: ForecastGrid
    forecasts: tuple[ScenarioForecast, ...]
    goal: Goal
    public: Path | None
    repeats: int
    warnings: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    uses_statistics: bool = False
    intervals: Intervals | None = None

    @cached_property
    def recommendations(self) -> tuple[Recommendation, ...]:
        """The recommendation for every scenario."""
        noise = self.costs.total_noise
        return tuple(recommend(each, self.grid, self.goal, total_noise=noise) for each in self.forecasts)

    @property
    def recommendation(self) -> Recommendation:
        """The recommendation over all scenarios. A study whose intervals are unlikely is not recommended."""
        combined, intervals = combine(self.recommendations), self.intervals
        if intervals is None or intervals.is_likely:
            return combined
        counts = f"{intervals.n_with_intervals} of {intervals.n_runs} runs"
        unlikely = f"the requested confidence intervals are unlikely ({counts})"
        return replace(combined, word="not recommended", reason=f"{unlikely}; {combined.reason}")

    @property
    def measure_title(self) -> str:
        """Title of the measure of the goal."""
        if self.goal.name != "rmse":
            return self.goal.measure.title
        column = self.study.label.column if self.study.label is not None else "the label"
        return f"{self.goal.measure.title} of {column}"

    @property
    def n_rounds(self) -> int:
        """The recommended number of rounds: the study's, unless another one is clearly better."""
        return best_rounds(self.forecasts, self.grid, self.goal) or self.grid.own[1]

    @property
    def shown_measures(self) -> list[str]:
        """Measures that are shown for alternatives: accuracy or error, and that of the goal."""
        main = next(name for name in MAIN_MEASURES if name in self.forecasts[0].constant)
        return list(dict.fromkeys([main, self.goal.name]))

    def gains_from(self, other: Alternative) -> bool:
        """Return whether an alternative is better than the study by the minimum gain, over all scenarios."""
        for name in self.shown_measures:
            measure, pairs = MEASURES[name], list(zip(self.forecasts, other.values, strict=True))
            gain = sum(
                measure.gain(values[name].mean, forecast.at(*self.grid.own)[name].mean) for forecast, values in pairs
            )
            unit = sum(1.0 if measure.higher else abs(forecast.without_noise[name].mean) for forecast, _ in pairs)
            if gain >= MIN_GAIN * unit:
                return True
        return False

    def describe_agents(self) -> str:
        """Return ``5 agents with 400 rows each``."""
        low, high = int(self.sizes.min()), int(self.sizes.max())
        rows = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return f"{plural(len(self.sizes), 'agent')} with {rows} rows{' each' if len(self.sizes) > 1 else ''}"

    def rendering(self) -> Rendering:
        """Return the description of the plan."""
        from dpadmm.planning.rendering import render_plan

        return render_plan(self)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: costs, forecasts and recommendation."""
        scenarios = []
        for forecast, recommendation in zip(self.forecasts, self.recommendations, strict=True):
            own = {
                "own": values_to_dict(forecast.at(*self.grid.own)),
                "better_rounds": best_rounds([forecast], self.grid, self.goal),
            }
            scenarios.append({**forecast.to_dict(), **recommendation.to_dict(), **own})
        return {
            "forecast": True,
            "private_rows_read": 0,
            "study": self.study.name,
            "hash": self.study.hash,
            "n_rows": self.sizes.tolist(),
            "costs": self.costs.to_dict(),
            "measure": self.goal.name,
            "higher_is_better": self.goal.measure.higher,
            "source": "synthetic rows" if self.public is None else str(self.public),
            "repeats": self.repeats,
            "own": {"epsilon": self.grid.own[0], "n_rounds": self.grid.own[1]},
            "n_rounds": self.n_rounds,
            "scenarios": scenarios,
            "secure_aggregation": [other.to_dict() for other in self.alternatives],
            "verdict": self.recommendation.word,
            "reason": self.recommendation.reason,
            "intervals": None if self.intervals is None else self.intervals.to_dict(),
            "warnings": list(self.warnings),
        }


def with_n_rounds(text: str, n_rounds: int) -> str:
    """Return the text of a study file with ``n_rounds`` under [training], otherwise unchanged.

    Examples
    --------
    >>> with_n_rounds("[training]  # how\\nintercept = true\\n", 25)
    '[training]  # how\\nn_rounds = 25\\nintercept = true\\n'
    >>> with_n_rounds("[training]\\n# n_rounds = 100\\n", 25)
    '[training]\\nn_rounds = 25\\n'
    """
    expected, newline = tomllib.loads(text), "\r\n" if "\r\n" in text else "\n"
    expected.setdefault("training", {})["n_rounds"] = n_rounds
    parts = re.split(r"(?m)^(?=[ \t]*\[)", text)  # at headings
    place = next((i for i, part in enumerate(parts) if re.match(r"[ \t]*\[[ \t]*training[ \t]*\]", part)), None)
    if place is None:
        parts.append(
            f"{'' if text.endswith(newline) else newline}{newline}[training]{newline}n_rounds = {n_rounds}{newline}"
        )
    else:
        for comment in ("", r"#[ \t]*"):
            pattern = rf"(?m)^([ \t]*){comment}(n_rounds[ \t]*=[ \t]*)[0-9_]+"
            parts[place], n_found = re.subn(pattern, rf"\g<1>\g<2>{n_rounds}", parts[place], count=1)
            if n_found:
                break
        else:
            heading, _, rest = parts[place].partition(newline)
            parts[place] = f"{heading}{newline}n_rounds = {n_rounds}{newline}{rest}"
    changed = "".join(parts)
    try:
        is_valid = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_valid = False
    if not is_valid:
        raise StudyError(f"[training] of this file cannot be edited automatically; set n_rounds = {n_rounds} by hand")
    return changed
