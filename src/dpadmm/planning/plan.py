"""The plan of a study, before any private row is read: costs from public numbers, a forecast, a recommendation."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from dpadmm.accounting.composition import tally_paper_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.engine.noise import CohortQuery, ExactNoise
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.hyperparameters import HYPERPARAMETERS, noise_per_unit
from dpadmm.models.model import PROBABILITIES
from dpadmm.planning.forecast import ForecastGrid, Outlook, Pool, Values
from dpadmm.planning.intervals import Intervals
from dpadmm.planning.measures import MEASURES, ForecastMeasure, difference_text, value_text
from dpadmm.queries import make_query
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Problem, PublicSizes
from dpadmm.studies.settings import BUDGETS, Training
from dpadmm.studies.study import Study

NUMBER_BYTES = 8
MEASURED_ROWS = 20_000

CLEARLY = 2.0
"""Standard errors by which a forecast must be better than a constant prediction and the model of public rows alone."""

WORTHWHILE, WORTHWHILE_SHARE = 0.05, 0.1
"""Public rows are too few to tell if they cannot exclude a gain of this much over a constant prediction: in accuracy,
AUC and sensitivity, or as a share of another measure."""

SMALL, SMALL_SHARE = 0.01, 0.02
"""A study is not recommended if a gain of this much over the model of public rows alone can be excluded."""

PLAIN = ("accuracy", "rmse", "deviance")
"""The measures that everyone knows: every study has one of them."""

WORTH_NAMING = 0.005
"""A better number of rounds is named if it gains this share of what is reached without privacy, and more than luck;
secure aggregation, if it gains this much itself."""

VOIDS = 0.1
"""Share of aborted rounds whose cost is forecast."""

TAG_BYTES = 8
"""What two sites show each other, to see that they have the same key."""


def for_sizes(study: Study, sizes: Integers) -> Study:
    """The study with the rounds that agents of these sizes would take, where it does not say how many."""
    study.check_sites(len(sizes))
    training = study.training.resolved(study.problem, PublicSizes(sizes, study.shape[0]))
    return study if training == study.training else replace(study, training=training)


@dataclass(frozen=True)
class Costs:
    """What is known before any row is.

    ``noise`` is ν, the standard deviation of the noise in the mean over all agents' rows, for a statistic of
    sensitivity 1 that takes the whole budget. Bytes are of one agent, without the headers of messages: what
    it hears in a round, what it says in the largest one, both in all rounds. ``seconds`` are of all agents in
    one process, with exact noise. What is not known is NaN: seconds that were not measured, the paper's ε of
    rounds that differ. With secure aggregation ``epsilon`` relies on ``min_honest_sites`` agents, and
    ``epsilon_if_others_collude``
    on none.
    """

    epsilon: float
    epsilon_if_others_collude: float
    min_honest_sites: int | None
    epsilon_paper: float
    delta: float
    noise_multiplier: float
    n_rounds: int
    n_agents: int
    n_features: int
    n_weights: int
    noise: float
    bytes_heard: int
    bytes_said: int
    bytes_total: int
    seconds: float

    @property
    def noise_all(self) -> float:
        """``x = ν·d``. Above ``max_noise`` of ``auto``, the noise hides the columns."""
        return self.noise * self.n_features

    def as_json(self) -> dict[str, Any]:
        plain = {**asdict(self), "noise_all": self.noise_all}
        return {name: None if value is None or math.isnan(value) else value for name, value in plain.items()}


def costs_of(study: Study, sizes: Integers, seconds: float = math.nan) -> Costs:
    """What the study costs agents that have so many rows.

    Examples
    --------
    >>> study = Study(name="flu", features=("age", "fever"), training={"epsilon": 1.0, "n_rounds": 25})
    >>> costs = costs_of(study, np.array([1000, 500, 500]))
    >>> round(costs.noise, 4), round(costs.noise_all, 4), costs.bytes_heard, costs.bytes_said
    (0.0032, 0.0065, 152, 48)
    """
    terms, t, n, min_honest_sites = study.terms, study.terms.plan.n_rounds, len(sizes), study.training.min_honest_sites
    mu, shares = math.sqrt(terms.plan.mu_squared()), math.sqrt(min_honest_sites or 1)
    heard = NUMBER_BYTES * math.prod(study.broadcast_shape)
    said = [NUMBER_BYTES * math.prod(study.upload_shape(k)) for k in range(1, t + 1)]
    tags, members = (
        (0, 0) if min_honest_sites is None else (TAG_BYTES * n, -(-n // 8))
    )  # with READY and PRESENT; with MASK
    return Costs(
        epsilon=exact_epsilon(mu, terms.delta),
        epsilon_if_others_collude=exact_epsilon(shares * mu, terms.delta),
        min_honest_sites=min_honest_sites,
        epsilon_paper=tally_paper_epsilon(terms.plan.tally(), terms.delta),
        delta=terms.delta,
        noise_multiplier=study.noise_multiplier,
        n_rounds=t,
        n_agents=n,
        n_features=study.shape[0],
        n_weights=math.prod(study.shape),
        noise=noise_per_unit(sizes, np.full(n, shares * mu)),
        bytes_heard=heard + members,
        bytes_said=max(said) + tags,
        bytes_total=t * (heard + members + tags) + sum(said) + tags,
        seconds=seconds,
    )


def measured_seconds(study: Study, pool: Pool, sizes: Integers) -> float:
    """Seconds of all rounds in one process: ``t·(a·Σm + b·n)``, a and b measured on rows of the pool."""
    problem, z = study.problem, study.noise_multiplier
    few, many = pool.take(np.arange(2)), pool.take(np.arange(min(len(pool), MEASURED_ROWS)))
    points = np.zeros((1, *study.shape))
    release = _round_seconds(problem, few, points, z)
    row = max(0.0, _round_seconds(problem, many, points, z) - release) / len(many)
    return study.training.planned_rounds * (row * float(sizes.sum()) + release * len(sizes))


def _round_seconds(problem: Problem, pool: Pool, points: Floats, z: float) -> float:
    rows, noise, multiplier = pool.rows(), ExactNoise(), np.array([z])
    gradient = make_query(Gradient.name, problem, rows.n_features)
    times = []
    for k in range(1, 4):  # the first one is warm-up
        started = perf_counter()
        noise.answer(CohortQuery(rows, gradient, points, multiplier, k))
        times.append(perf_counter() - started)
    return min(times[1:])


@dataclass(frozen=True)
class Goal:
    """A measure and its target; without one: clearly better than a constant prediction."""

    name: str
    target: float | None = None

    @property
    def measure(self) -> ForecastMeasure:
        return MEASURES[self.name]

    def margin(self, values: Values, outlook: Outlook) -> tuple[float, float]:
        """By how much a forecast is better than the target or a constant prediction, and the margin that is clear."""
        value = values[self.name]
        if self.target is None:  # on the same rows
            gain = self.measure.gain(value.mean, outlook.baseline[self.name])
            return gain, CLEARLY * math.hypot(value.luck, value.paired)
        return self.measure.gain(value.mean, self.target), value.spread

    def public_margin(self, values: Values, outlook: Outlook) -> tuple[float, float]:
        """The same compared with the model of public rows alone; without public rows there is nothing to beat."""
        if outlook.alone is None:
            return math.inf, 0.0
        value = values[self.name]
        gain = self.measure.gain(value.mean, outlook.alone[self.name].mean)
        return gain, CLEARLY * math.hypot(value.luck, value.from_public)


def goal_from(text: str | None, study: Study) -> Goal:
    """``"0.8"``, ``"auc=0.8"``, ``"log-loss=0.4"``; None: better than a constant prediction, by AUC for classes.

    An accuracy is no judge of its own of rare classes: who always says no is hardly ever wrong.
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
    """The recommendation for the study's own ε and rounds, with its reason."""

    word: Literal["recommended", "not recommended", "inconclusive"]
    goal: float
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.word, "goal": self.goal, "reason": self.reason}


def judged(outlook: Outlook, grid: ForecastGrid, goal: Goal, *, noise_all: float = 0.0) -> Recommendation:
    """The verdict of one scenario.

    Recommended is a forecast that is clearly better than the goal or a constant prediction, and than the model of
    public rows alone. ``noise_all`` is the noise over all features.
    """
    baseline, own = outlook.baseline[goal.name], outlook.at(*grid.own)
    target = baseline if goal.target is None else goal.target
    if goal.target is None or goal.measure.gain(target, baseline) > 0.0:
        gain, clear = Goal(goal.name).margin(outlook.ceiling, outlook)
        if gain <= clear and _are_too_few(outlook, goal, max(gain, 0.0) + clear):
            return Recommendation("inconclusive", target, f"the {_public_rows(outlook)} are too few to tell")
        if gain <= clear:
            return Recommendation("not recommended", target, "even without noise these rows show no signal")
    forecast = f"forecast {goal.measure.title} {value_text(own[goal.name].mean, goal.name)}"
    gain, clear = goal.margin(own, outlook)
    bar = "a constant prediction" if goal.target is None else "the goal"
    if gain < -clear or (
        goal.target is None and gain <= clear and (gain <= 0.0 or noise_all > HYPERPARAMETERS.max_noise)
    ):
        beyond = goal.measure.gain(target, outlook.ceiling[goal.name].mean) > outlook.ceiling[goal.name].spread
        if goal.target is None:
            return Recommendation("not recommended", target, f"{forecast}, no better than {bar}")
        without = ", and out of reach without noise" if beyond else ""
        return Recommendation("not recommended", target, f"{forecast}, {_difference(goal, gain)} {bar}{without}")
    if gain <= clear:
        return Recommendation("inconclusive", target, f"{forecast}, not clearly different from {bar}")
    return _beside_public(outlook, grid, goal, target, f"{forecast}, {_difference(goal, gain)} {bar}")


def _beside_public(outlook: Outlook, grid: ForecastGrid, goal: Goal, target: float, passed: str) -> Recommendation:
    """The verdict on a forecast that passed the goal or a constant prediction."""
    if outlook.alone is None:
        return Recommendation("recommended", target, passed)
    own, alone = outlook.at(*grid.own)[goal.name], outlook.alone[goal.name].mean
    gain, clear = goal.public_margin(outlook.at(*grid.own), outlook)
    forecast = passed if goal.target is not None else f"forecast {goal.measure.title} {value_text(own.mean, goal.name)}"
    model = "the model from public rows alone"
    if gain > clear:
        return Recommendation("recommended", target, f"{forecast}, {_difference(goal, gain)} {model}")
    model = f"{model} ({value_text(alone, goal.name)})"
    if gain + clear < (SMALL if goal.measure.higher else SMALL_SHARE * alone):
        return Recommendation(
            "not recommended", target, f"{forecast}, {'hardly' if gain > 0.0 else 'no'} better than {model}"
        )
    return Recommendation("inconclusive", target, f"{forecast}, not clearly better than {model}")


def _difference(goal: Goal, gain: float) -> str:
    """``0.031 above``; less is better for errors."""
    above = (gain > 0.0) == goal.measure.higher
    return f"{difference_text(abs(gain), goal.name)} {'above' if above else 'below'}"


def _are_too_few(outlook: Outlook, goal: Goal, upper_limit: float) -> bool:
    """Whether public rows leave open a worthwhile gain over a constant prediction."""
    if outlook.alone is None:
        return False
    worthwhile = WORTHWHILE if goal.measure.higher else WORTHWHILE_SHARE * outlook.baseline[goal.name]
    return upper_limit >= worthwhile


def _public_rows(outlook: Outlook) -> str:
    rare = "" if outlook.rarest is None else f" ({outlook.rarest:,} of the rarest class)"
    return f"{outlook.rows:,} public rows{rare}"


def joined(verdicts: Sequence[Recommendation]) -> Recommendation:
    """One verdict for all scenarios: theirs where they agree."""
    words = {each.word for each in verdicts}
    if len(words) == 1:
        return verdicts[0]
    return Recommendation("inconclusive", verdicts[0].goal, "it depends on the strength of the signal")


def best_rounds(outlooks: Sequence[Outlook], grid: ForecastGrid, goal: Goal) -> int | None:
    """The number of rounds that is best for the study's ε; None where its own are as good."""

    def gain(n_rounds: int) -> float:
        return sum(_better(each, grid, goal, n_rounds) for each in outlooks) / len(outlooks)

    best = max(grid.rounds, key=gain)
    return best if gain(best) > 0.0 else None


def _better(outlook: Outlook, grid: ForecastGrid, goal: Goal, n_rounds: int) -> float:
    """By how much these rounds are better than the study's, beyond what is worth naming."""
    own, other = (outlook.at(grid.own[0], t)[goal.name] for t in (grid.own[1], n_rounds))
    least = max(WORTH_NAMING * abs(outlook.ceiling[goal.name].mean), own.luck)
    return goal.measure.gain(other.mean, own.mean) - least


def least_epsilon(outlook: Outlook, grid: ForecastGrid, goal: Goal) -> tuple[float, int] | None:
    """The smallest ε of the grid that reaches the goal, with its rounds; None where none does.

    Without a target: the smallest that is clearly better than a constant prediction and public rows alone.
    """
    for epsilon in grid.epsilons:
        best = max(grid.rounds, key=lambda t: goal.margin(outlook.at(epsilon, t), outlook)[0])
        values = outlook.at(epsilon, best)
        gain, clear = goal.margin(values, outlook)
        over_public, clear_of_public = goal.public_margin(values, outlook)
        if gain > 0.0 if goal.target is not None else gain > clear and over_public > clear_of_public:
            return epsilon, best
    return None


@dataclass(frozen=True)
class Alternative:
    """The study's total ε with secure aggregation, and what that is forecast to reach in every scenario."""

    training: Training
    epsilon_if_others_collude: float
    aborted_rounds: float = 0.0
    values: tuple[Values, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "min_honest_sites": self.training.min_honest_sites,
            "n_rounds": self.training.planned_rounds,
            "epsilon_if_others_collude": self.epsilon_if_others_collude,
            "aborted_rounds": self.aborted_rounds,
            "scenarios": [{name: value.as_json() for name, value in each.items()} for each in self.values],
        }


def alternatives(study: Study, sizes: Integers, epsilon: float) -> list[Alternative]:
    """What a plan compares with: other numbers of honest agents and aborted rounds, or secure aggregation at all.

    ``study`` is as it was given: how many rounds are taken depends on how many agents are honest.
    """
    most, own = study.quorum_of(len(sizes)) - 1, study.training.min_honest_sites
    half = -(-len(sizes) // 2)
    if most < 2 or not study.training.method.sums_only:
        return []
    wanted = [(min(half, most), 0.0)]
    if own is not None:
        numbers = {2, -(-len(sizes) // 4), half, most, own}
        wanted = [*((h, 0.0) for h in sorted(numbers) if 2 <= h <= most), (own, VOIDS)]
    mu, delta = math.sqrt(study.terms.plan.mu_squared()), study.terms.delta
    budget, made = {**dict.fromkeys(BUDGETS), "epsilon": epsilon}, []
    for min_honest_sites, aborted_rounds in wanted:
        training = study.training.with_changes(aggregation="secure", min_honest_sites=min_honest_sites, **budget)
        training = training.resolved(study.problem, PublicSizes(sizes, study.shape[0]))
        made.append(Alternative(training, exact_epsilon(math.sqrt(min_honest_sites) * mu, delta), aborted_rounds))
    return made


@dataclass(frozen=True)
class Plan:
    """The cost and the forecast of a study."""

    study: Study
    sizes: Integers
    costs: Costs
    grid: ForecastGrid
    outlooks: tuple[Outlook, ...]
    goal: Goal
    public: Path | None
    repeats: int
    warnings: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    known: bool = False
    """Whether synthetic rows have the counts of private statistics."""
    intervals: Intervals | None = None
    """For a study that asks for them."""

    @cached_property
    def verdicts(self) -> tuple[Recommendation, ...]:
        noise = self.costs.noise_all
        return tuple(judged(each, self.grid, self.goal, noise_all=noise) for each in self.outlooks)

    @property
    def verdict(self) -> Recommendation:
        """That of all scenarios; a study that requests intervals is not recommended if they are unlikely."""
        found, intervals = joined(self.verdicts), self.intervals
        if intervals is None or intervals.likely:
            return found
        unlikely = f"the requested confidence intervals are unlikely ({intervals.having} of {intervals.runs} runs)"
        return replace(found, word="not recommended", reason=f"{unlikely}; {found.reason}")

    @property
    def measure(self) -> str:
        """What is judged, in words."""
        if self.goal.name != "rmse":
            return self.goal.measure.title
        column = self.study.label.column if self.study.label is not None else "the label"
        return f"{self.goal.measure.title} of {column}"

    @property
    def n_rounds(self) -> int:
        """The rounds to take: the study's, unless others are clearly better."""
        return best_rounds(self.outlooks, self.grid, self.goal) or self.grid.own[1]

    @property
    def measures(self) -> list[str]:
        """What is told of an alternative: accuracy or error, and what is judged."""
        return list(dict.fromkeys([next(each for each in PLAIN if each in self.outlooks[0].baseline), self.goal.name]))

    def gains(self, other: Alternative) -> bool:
        """Whether an alternative is better than the study by what is worth naming, over all scenarios."""
        for name in self.measures:
            measure, pairs = MEASURES[name], list(zip(self.outlooks, other.values, strict=True))
            gain = sum(measure.gain(found[name].mean, each.at(*self.grid.own)[name].mean) for each, found in pairs)
            unit = sum(1.0 if measure.higher else abs(each.ceiling[name].mean) for each, _ in pairs)
            if gain >= WORTH_NAMING * unit:
                return True
        return False

    @property
    def agents_in_words(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        n = len(self.sizes)
        return f"{n:,} agent{'s' if n > 1 else ''} with {each} rows{' each' if n > 1 else ''}"

    def as_json(self) -> dict[str, Any]:
        scenarios = []
        for outlook, verdict in zip(self.outlooks, self.verdicts, strict=True):
            own = {name: value.as_json() for name, value in outlook.at(*self.grid.own).items()}
            more = {"own": own, "better_rounds": best_rounds([outlook], self.grid, self.goal)}
            scenarios.append({**outlook.as_json(), **verdict.as_json(), **more})
        return {
            "forecast": True,
            "private_rows_read": 0,
            "study": self.study.name,
            "hash": self.study.hash,
            "n_rows": self.sizes.tolist(),
            "costs": self.costs.as_json(),
            "measure": self.goal.name,
            "higher_is_better": self.goal.measure.higher,
            "source": "synthetic rows" if self.public is None else str(self.public),
            "repeats": self.repeats,
            "own": {"epsilon": self.grid.own[0], "n_rounds": self.grid.own[1]},
            "n_rounds": self.n_rounds,
            "scenarios": scenarios,
            "secure_aggregation": [each.as_json() for each in self.alternatives],
            "verdict": self.verdict.word,
            "reason": self.verdict.reason,
            "intervals": None if self.intervals is None else self.intervals.as_json(),
            "warnings": list(self.warnings),
        }


def with_n_rounds(text: str, n_rounds: int) -> str:
    """The text of a study's file with ``n_rounds`` under [training]; all else stays as it is.

    Examples
    --------
    >>> with_n_rounds("[training]  # how\\nintercept = true\\n", 25)
    '[training]  # how\\nn_rounds = 25\\nintercept = true\\n'
    """
    wanted, line = tomllib.loads(text), "\r\n" if "\r\n" in text else "\n"
    wanted.setdefault("training", {})["n_rounds"] = n_rounds
    parts = re.split(r"(?m)^(?=[ \t]*\[)", text)  # at headings
    place = next((i for i, part in enumerate(parts) if re.match(r"[ \t]*\[[ \t]*training[ \t]*\]", part)), None)
    if place is None:
        parts.append(f"{'' if text.endswith(line) else line}{line}[training]{line}n_rounds = {n_rounds}{line}")
    else:
        known = r"(?m)^([ \t]*n_rounds[ \t]*=[ \t]*)[0-9_]+"
        parts[place], found = re.subn(known, rf"\g<1>{n_rounds}", parts[place])
        if not found:
            heading, _, rest = parts[place].partition(line)
            parts[place] = f"{heading}{line}n_rounds = {n_rounds}{line}{rest}"
    changed = "".join(parts)
    try:
        fits = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        fits = False
    if not fits:
        raise StudyError(
            f"this file writes [training] in another way than drafts do: say n_rounds = {n_rounds} by hand"
        )
    return changed
