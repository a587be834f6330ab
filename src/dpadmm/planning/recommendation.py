"""Recommendations: whether a forecast is clearly better than the goal and than public knowledge alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpadmm.errors import StudyError
from dpadmm.methods.hyperparameters import HYPERPARAMETERS
from dpadmm.models.model import PROBABILITIES
from dpadmm.planning.forecast import ForecastGrid, ScenarioForecast, Values
from dpadmm.planning.measures import MEASURES, ForecastMeasure, difference_text, value_text
from dpadmm.studies.study import Study

CLEAR_ERRORS = 2.0
"""Standard errors by which a forecast must be better than a constant prediction and the model of public rows alone."""

WORTHWHILE_GAIN, WORTHWHILE_GAIN_SHARE = 0.05, 0.1
"""There are too few public rows if they cannot exclude a gain of this much over a constant prediction: in accuracy, AUC
and sensitivity, or as a share of another measure."""

MIN_PUBLIC_GAIN, MIN_PUBLIC_GAIN_SHARE = 0.01, 0.02
"""A study is not recommended if a gain of this much over the model of public rows alone can be excluded."""

MIN_GAIN = 0.005
"""Another number of rounds is suggested if it gains this share of the measure without noise, and more than the standard
deviation; secure aggregation, if it gains this much itself."""


@dataclass(frozen=True)
class Goal:
    """A measure and its target. Without a target: clearly better than a constant prediction."""

    name: str
    target: float | None = None

    @property
    def measure(self) -> ForecastMeasure:
        return MEASURES[self.name]

    def margin(self, values: Values, forecast: ScenarioForecast) -> tuple[float, float]:
        """Return the gain over the target or a constant prediction, and the margin above which it is clear."""
        value = values[self.name]
        if self.target is None:  # on the same rows
            gain = self.measure.gain(value.mean, forecast.constant[self.name])
            return gain, CLEAR_ERRORS * math.hypot(value.std, value.std_error_vs_constant)
        return self.measure.gain(value.mean, self.target), value.spread

    def public_margin(self, values: Values, forecast: ScenarioForecast) -> tuple[float, float]:
        """Return the gain over the model of public rows alone, infinite without public rows, and its margin."""
        if forecast.public_model is None:
            return math.inf, 0.0
        value = values[self.name]
        gain = self.measure.gain(value.mean, forecast.public_model[self.name].mean)
        return gain, CLEAR_ERRORS * math.hypot(value.std, value.std_error_vs_public)


def goal_from(text: str | None, study: Study) -> Goal:
    """Return the goal for ``"0.8"``, ``"auc=0.8"`` or ``"log-loss=0.4"``.

    None: better than a constant prediction, by AUC for classes. Accuracy would hardly depend on rare classes.
    """
    loss = study.problem.loss
    if loss.task == "regression":
        known, wanted = ["rmse"], "a positive error in the units of the label"
    elif loss.task == "count":
        known, wanted = ["deviance"], "a positive mean deviance"
    else:
        known = (
            ["accuracy", "auc"] + ["log_loss"] * (loss.name in PROBABILITIES) + ["sensitivity"] * (loss.n_outputs == 1)
        )
        wanted = (
            f"an accuracy between 0 and 1, such as 0.8, or such as {', '.join(f'{each}=0.8' for each in known[1:])}"
        )
    if text is None:
        return Goal(known[min(1, len(known) - 1)])
    name, _, number = text.rpartition("=")
    name = name.strip().lower().replace("-", "_") or known[0]
    try:
        target = float(number)
    except ValueError:
        target = math.nan
    if name not in known or not 0.0 < target < (1.0 if name not in ("rmse", "log_loss", "deviance") else math.inf):
        raise StudyError(f"goal must be {wanted}, not {text}")
    return Goal(name, target)


@dataclass(frozen=True)
class Recommendation:
    """The recommendation for the study's own ε and rounds, with its reason and the value to reach."""

    word: Literal["recommended", "not recommended", "inconclusive"]
    goal: float
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": self.word, "goal": self.goal, "reason": self.reason}


def recommend(
    forecast: ScenarioForecast, grid: ForecastGrid, goal: Goal, *, total_noise: float = 0.0
) -> Recommendation:
    """Return the recommendation for one scenario.

    A study is recommended if its forecast is clearly better than the goal, or else than a constant prediction, and than
    the model of public rows alone. ``total_noise`` is the noise over all features.
    """
    baseline, own = forecast.constant[goal.name], forecast.at(*grid.own)
    target = baseline if goal.target is None else goal.target
    if goal.target is None or goal.measure.gain(target, baseline) > 0.0:
        gain, clear = Goal(goal.name).margin(forecast.without_noise, forecast)
        if gain <= clear and _are_too_few(forecast, goal, max(gain, 0.0) + clear):
            return Recommendation("inconclusive", target, f"the {_public_rows(forecast)} are too few for a conclusion")
        if gain <= clear:
            return Recommendation("not recommended", target, "even without noise these rows show no signal")
    summary = f"forecast {goal.measure.title} {value_text(own[goal.name].mean, goal.name)}"
    gain, clear = goal.margin(own, forecast)
    bar = "a constant prediction" if goal.target is None else "the goal"
    if gain < -clear or (
        goal.target is None and gain <= clear and (gain <= 0.0 or total_noise > HYPERPARAMETERS.max_noise)
    ):
        beyond = (
            goal.measure.gain(target, forecast.without_noise[goal.name].mean) > forecast.without_noise[goal.name].spread
        )
        if goal.target is None:
            return Recommendation("not recommended", target, f"{summary}, no better than {bar}")
        without = ", and out of reach without noise" if beyond else ""
        return Recommendation("not recommended", target, f"{summary}, {_difference(goal, gain)} {bar}{without}")
    if gain <= clear:
        return Recommendation("inconclusive", target, f"{summary}, not clearly different from {bar}")
    return _compare_with_public(forecast, grid, goal, target, f"{summary}, {_difference(goal, gain)} {bar}")


def _compare_with_public(
    forecast: ScenarioForecast, grid: ForecastGrid, goal: Goal, target: float, passed: str
) -> Recommendation:
    """Return the recommendation for a forecast that is clearly better than the goal or a constant prediction."""
    if forecast.public_model is None:
        return Recommendation("recommended", target, passed)
    own, public = forecast.at(*grid.own)[goal.name], forecast.public_model[goal.name].mean
    gain, clear = goal.public_margin(forecast.at(*grid.own), forecast)
    own_text = f"forecast {goal.measure.title} {value_text(own.mean, goal.name)}"
    summary = passed if goal.target is not None else own_text
    model = "the model from public rows alone"
    if gain > clear:
        return Recommendation("recommended", target, f"{summary}, {_difference(goal, gain)} {model}")
    model = f"{model} ({value_text(public, goal.name)})"
    if gain + clear < (MIN_PUBLIC_GAIN if goal.measure.higher else MIN_PUBLIC_GAIN_SHARE * public):
        return Recommendation(
            "not recommended", target, f"{summary}, {'hardly' if gain > 0.0 else 'no'} better than {model}"
        )
    return Recommendation("inconclusive", target, f"{summary}, not clearly better than {model}")


def _difference(goal: Goal, gain: float) -> str:
    """Return ``0.031 above`` or ``0.031 below``."""
    above = (gain > 0.0) == goal.measure.higher
    return f"{difference_text(abs(gain), goal.name)} {'above' if above else 'below'}"


def _are_too_few(forecast: ScenarioForecast, goal: Goal, upper_limit: float) -> bool:
    """Return whether the public rows cannot exclude a worthwhile gain over a constant prediction."""
    if forecast.public_model is None:
        return False
    worthwhile = WORTHWHILE_GAIN if goal.measure.higher else WORTHWHILE_GAIN_SHARE * forecast.constant[goal.name]
    return upper_limit >= worthwhile


def _public_rows(forecast: ScenarioForecast) -> str:
    rare = "" if forecast.n_rarest_class is None else f" ({forecast.n_rarest_class:,} of the rarest class)"
    return f"{forecast.n_rows:,} public rows{rare}"


def combine(verdicts: Sequence[Recommendation]) -> Recommendation:
    """Return one recommendation for all scenarios: inconclusive if they differ."""
    words = {each.word for each in verdicts}
    if len(words) == 1:
        return verdicts[0]
    return Recommendation("inconclusive", verdicts[0].goal, "it depends on the strength of the signal")


def best_rounds(forecasts: Sequence[ScenarioForecast], grid: ForecastGrid, goal: Goal) -> int | None:
    """Return the best number of rounds for the study's ε; None if the study's own is as good."""

    def gain(n_rounds: int) -> float:
        return sum(_better(each, grid, goal, n_rounds) for each in forecasts) / len(forecasts)

    best = max(grid.rounds, key=gain)
    return best if gain(best) > 0.0 else None


def _better(forecast: ScenarioForecast, grid: ForecastGrid, goal: Goal, n_rounds: int) -> float:
    """Return the gain of this number of rounds over the study's, minus the minimum worth suggesting."""
    own, other = (forecast.at(grid.own[0], t)[goal.name] for t in (grid.own[1], n_rounds))
    minimum = max(MIN_GAIN * abs(forecast.without_noise[goal.name].mean), own.std)
    return goal.measure.gain(other.mean, own.mean) - minimum


def min_epsilon(forecast: ScenarioForecast, grid: ForecastGrid, goal: Goal) -> tuple[float, int] | None:
    """Return the smallest ε of the grid that reaches the goal, with its number of rounds, or None.

    Without a target: the smallest ε that is clearly better than a constant prediction and the public rows alone.
    """
    for epsilon in grid.epsilons:
        best = max(grid.rounds, key=lambda t: goal.margin(forecast.at(epsilon, t), forecast)[0])
        values = forecast.at(epsilon, best)
        gain, clear = goal.margin(values, forecast)
        public_gain, public_clear = goal.public_margin(values, forecast)
        if gain > 0.0 if goal.target is not None else gain > clear and public_gain > public_clear:
            return epsilon, best
    return None
