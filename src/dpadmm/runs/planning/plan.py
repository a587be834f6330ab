"""The plan of a study, before any private row is read: costs from public numbers, a forecast, go or no-go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm.optim.problem import Problem, make_rows
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.composition import tally_paper_epsilon
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.privacy.statistics import make_statistic
from dpadmm.privacy.statistics.gradient import Gradient
from dpadmm.runs.planning.forecast import Cell, Grid, Outlook, Pool
from dpadmm.study.study import Study
from dpadmm.training.oracles import ExactNoise, Question

NUMBER_BYTES = 8
MEASURED_ROWS = 20_000

HALF = 0.5
"""Without a goal: this share of the way from the baseline to what is reached without privacy."""

WORTH_NAMING = 0.005
"""A better number of rounds is named if it gains this share of the ceiling."""


@dataclass(frozen=True)
class AgentCost:
    """The noise of agents with ``n_rows`` rows, as a share of c1, the largest length of a mean gradient.

    ``noise_coordinate`` = 2z/m is the standard deviation of one number, ``noise_length`` = 2z√(dp)/m the
    usual length of all of them.
    """

    n_rows: int
    agents: int
    noise_coordinate: float
    noise_length: float


@dataclass(frozen=True)
class Costs:
    """What is known before any row is.

    ``noise_length_mean`` is the usual length of the noise in the mean over all agents, as a share of c1.
    Bytes are of one agent, both directions, without the envelope of messages; ``seconds`` are of all agents
    in one process, with exact noise, NaN until they are measured.
    """

    epsilon: float
    epsilon_paper: float
    delta: float
    noise_multiplier: float
    n_rounds: int
    n_agents: int
    n_weights: int
    agents: tuple[AgentCost, ...]
    noise_length_mean: float
    bytes_round: int
    bytes_total: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        seconds = self.seconds if math.isfinite(self.seconds) else None
        return {**asdict(self), "agents": [asdict(each) for each in self.agents], "seconds": seconds}


def costs_of(study: Study, sizes: Integers, seconds: float = math.nan) -> Costs:
    """What the study costs agents that have so many rows.

    Examples
    --------
    >>> study = Study(name="flu", features=("age", "fever"), training={"epsilon": 1.0, "delta": 1e-6})
    >>> costs = costs_of(study, np.array([1000, 500, 500]))
    >>> [(each.n_rows, each.agents, round(each.noise_coordinate, 3)) for each in costs.agents]
    [(500, 2, 0.169), (1000, 1, 0.084)]
    """
    terms, n_weights = study.terms, math.prod(study.shape)
    z, t = study.noise_multiplier, terms.plan.n_rounds
    relative = z * np.asarray(mean_gradient_sensitivity(1.0, sizes))
    each, counts = np.unique(sizes, return_counts=True)
    agents = tuple(
        AgentCost(m, int(count), 2.0 * z / m, 2.0 * z / m * math.sqrt(n_weights))
        for m, count in zip(each.tolist(), counts, strict=True)
    )
    return Costs(
        epsilon=exact_epsilon(math.sqrt(terms.plan.mu_squared()), terms.delta),
        epsilon_paper=tally_paper_epsilon(terms.plan.tally(), terms.delta),
        delta=terms.delta,
        noise_multiplier=z,
        n_rounds=t,
        n_agents=len(sizes),
        n_weights=n_weights,
        agents=agents,
        noise_length_mean=float(np.sqrt(n_weights * np.square(relative).sum()) / len(sizes)),
        bytes_round=2 * NUMBER_BYTES * n_weights,
        bytes_total=2 * NUMBER_BYTES * n_weights * t,
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
    rows, noise, multiplier = make_rows(pool.features, pool.labels), ExactNoise(), np.array([z])
    gradient = make_statistic(Gradient.name, problem, rows.n_features)
    times = []
    for k in range(1, 4):  # the first one is warm-up
        started = perf_counter()
        noise.answer(Question(rows, gradient, points, multiplier, k))
        times.append(perf_counter() - started)
    return min(times[1:])


@dataclass(frozen=True)
class Verdict:
    """What a forecast says about the study's own ε and rounds.

    ``go`` and ``no-go`` are said where the goal lies outside mean ± spread, ``open`` where it lies within.
    """

    word: Literal["go", "no-go", "open"]
    goal: float
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"verdict": self.word, "goal": self.goal, "reason": self.reason}


def judged(outlook: Outlook, grid: Grid, *, goal: float | None, higher: bool) -> Verdict:
    """The verdict of one scenario; ``higher`` says that more is better (accuracy, not an error)."""
    sign = 1.0 if higher else -1.0
    own, ceiling, baseline = outlook.at(*grid.own), outlook.ceiling, outlook.baseline
    if _is_nothing_learnt(outlook, higher=higher):
        target = baseline if goal is None else goal
        if goal is None or sign * (goal - baseline) > 0.0:
            return Verdict("no-go", target, "even without privacy nothing is learnt from these rows")
    target = baseline + HALF * (ceiling.mean - baseline) if goal is None else goal
    gain = sign * (own.mean - target)
    if gain > own.spread:
        return Verdict("go", target, "the goal is passed by more than the spread")
    if gain < -own.spread:
        beyond = sign * (target - ceiling.mean) > ceiling.spread
        reason = "the goal is missed by more than the spread"
        return Verdict("no-go", target, f"{reason}, even without privacy" if beyond else reason)
    return Verdict("open", target, "the goal lies within the spread")


def rounds_help(outlook: Outlook, grid: Grid, verdict: Verdict, *, higher: bool) -> int | None:
    """A number of rounds with which the same ε would not be a no-go; None where none was found or needed."""
    best, sign = best_rounds(outlook, grid, higher=higher), 1.0 if higher else -1.0
    if verdict.word != "no-go" or best is None or _is_nothing_learnt(outlook, higher=higher):
        return None
    return best.n_rounds if sign * (best.value.mean - verdict.goal) >= -best.value.spread else None


def too_short(outlook: Outlook, grid: Grid, *, higher: bool) -> bool:
    """Whether the most rounds that were tried do best, and more ε than the study's gives next to nothing."""
    best = best_rounds(outlook, grid, higher=higher)
    if best is None or best.n_rounds != grid.rounds[-1] or grid.epsilons[-1] <= grid.own[0]:
        return False
    most = outlook.at(grid.epsilons[-1], grid.own[1])
    return (1.0 if higher else -1.0) * (most.mean - outlook.at(*grid.own).mean) < most.spread


def _is_nothing_learnt(outlook: Outlook, *, higher: bool) -> bool:
    """Whether a model without privacy is not clearly better than one that looks at no column."""
    gain = outlook.ceiling.mean - outlook.baseline
    return (gain if higher else -gain) <= 2.0 * outlook.ceiling.sampling


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict for all scenarios: theirs where they agree."""
    words = {each.word for each in verdicts}
    if len(words) == 1:
        return verdicts[0]
    return Verdict("open", verdicts[0].goal, "it depends on how strong the signal is")


def best_rounds(outlook: Outlook, grid: Grid, *, higher: bool) -> Cell | None:
    """The best number of rounds for the study's ε; None where its own are as good."""
    best = _best(outlook, grid.own[0], higher=higher)
    gain = (1.0 if higher else -1.0) * (best.value.mean - outlook.at(*grid.own).mean)
    return best if gain > WORTH_NAMING * outlook.ceiling.mean else None


def _best(outlook: Outlook, epsilon: float, *, higher: bool) -> Cell:
    cells = [cell for cell in outlook.cells if cell.epsilon == epsilon]
    return max(cells, key=lambda cell: cell.value.mean if higher else -cell.value.mean)


def least_epsilon(outlook: Outlook, grid: Grid, verdict: Verdict, *, higher: bool) -> tuple[float, int] | None:
    """The smallest ε of the grid that reaches the goal, with its rounds; None where none does."""
    sign = 1.0 if higher else -1.0
    for epsilon in grid.epsilons:
        best = _best(outlook, epsilon, higher=higher)
        if sign * (best.value.mean - verdict.goal) > 0.0:
            return epsilon, best.n_rounds
    return None


@dataclass(frozen=True)
class Plan:
    """The cost and the forecast of a study."""

    study: Study
    sizes: Integers
    costs: Costs
    grid: Grid
    outlooks: tuple[Outlook, ...]
    verdicts: tuple[Verdict, ...]
    public: Path | None
    repeats: int
    goal_given: bool
    warnings: tuple[str, ...] = ()

    @property
    def higher(self) -> bool:
        """Whether a larger measure is better."""
        return self.study.problem.loss.task != "regression"

    @property
    def measure(self) -> str:
        if self.higher:
            return "accuracy"
        column = self.study.label.column if self.study.label is not None else "the label"
        return f"root mean square error of {column}"

    @property
    def agents_in_words(self) -> str:
        low, high = int(self.sizes.min()), int(self.sizes.max())
        each = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        n = len(self.sizes)
        return f"{n:,} agent{'s' if n > 1 else ''} with {each} rows{' each' if n > 1 else ''}"

    @property
    def verdict(self) -> Verdict:
        return joined(self.verdicts)

    def as_json(self) -> dict[str, Any]:
        scenarios = []
        for outlook, verdict in zip(self.outlooks, self.verdicts, strict=True):
            best, own = best_rounds(outlook, self.grid, higher=self.higher), outlook.at(*self.grid.own)
            more = {"own": own.as_json(), "better_rounds": None if best is None else best.n_rounds}
            scenarios.append({**outlook.as_json(), **verdict.as_json(), **more})
        return {
            "forecast": True,
            "private_rows_read": 0,
            "study": self.study.name,
            "hash": self.study.hash,
            "n_rows": self.sizes.tolist(),
            "costs": self.costs.as_json(),
            "measure": self.measure,
            "higher_is_better": self.higher,
            "source": "synthetic rows" if self.public is None else str(self.public),
            "repeats": self.repeats,
            "own": {"epsilon": self.grid.own[0], "n_rounds": self.grid.own[1]},
            "scenarios": scenarios,
            "verdict": self.verdict.word,
            "reason": self.verdict.reason,
            "warnings": list(self.warnings),
        }
