"""What a study will cost, from public numbers alone: ε, noise beside the largest gradient, bytes, time."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm.optim.problem import Problem, make_rows
from dpadmm.privacy.accounting import exact_epsilon
from dpadmm.privacy.composition import tally_paper_epsilon
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.privacy.statistics import make_statistic
from dpadmm.privacy.statistics.gradient import Gradient
from dpadmm.runs.planning.trial import Pool
from dpadmm.study.study import Study
from dpadmm.training.oracles import ExactNoise, Question

NUMBER_BYTES = 8
MEASURED_ROWS = 20_000


@dataclass(frozen=True)
class AgentCost:
    """The noise of agents of one size, as shares of c1, which no mean gradient can be longer than.

    Attributes
    ----------
    n_rows, agents : int
        m, and how many agents have as many.
    noise_coordinate, noise_length : float
        ``2z/m`` and ``2z√(dp)/m``: standard deviation of one number, and the usual length of all of them.
    """

    n_rows: int
    agents: int
    noise_coordinate: float
    noise_length: float


@dataclass(frozen=True)
class Costs:
    """What is known before any row is.

    Attributes
    ----------
    epsilon, epsilon_paper, delta : float
        Total, exact and by the paper's bound, the same for every agent.
    noise_multiplier : float
    noise_length_mean : float
        Usual length of the noise in the mean over all agents, as a share of c1.
    bytes_round, bytes_total : int
        Of one agent, both directions, without the envelope of messages.
    seconds : float
        Of all agents in one process, with exact noise; NaN until it is measured.
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
        """Plain values."""
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
    return study.settings.n_rounds * (row * float(sizes.sum()) + release * len(sizes))


def _round_seconds(problem: Problem, pool: Pool, points: Floats, z: float) -> float:
    rows, noise, multiplier = make_rows(pool.features, pool.labels), ExactNoise(), np.array([z])
    gradient = make_statistic(Gradient.name, problem, rows.n_features)
    times = []
    for k in range(1, 4):  # the first one is warm-up
        started = perf_counter()
        noise.answer(Question(rows, gradient, points, multiplier, k))
        times.append(perf_counter() - started)
    return min(times[1:])
