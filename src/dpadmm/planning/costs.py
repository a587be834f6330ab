"""Costs of a study, from public numbers: privacy loss, noise, traffic and time."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from dpadmm.accounting.composition import tally_paper_epsilon
from dpadmm.accounting.gaussian import exact_epsilon
from dpadmm.engine.noise import CohortQuery, ExactNoise
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.methods.hyperparameters import noise_per_unit
from dpadmm.planning.scenarios import Pool
from dpadmm.queries import make_query
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Problem, PublicSizes
from dpadmm.studies.study import Study

NUMBER_BYTES = 8
TIMED_ROWS = 20_000

TAG_BYTES = 8
"""Bytes that a pair of sites exchanges per round to check that they have the same key."""


def with_rounds_for(study: Study, sizes: Integers) -> Study:
    """Return the study with the number of rounds for agents of these sizes, if it sets none."""
    study.check_sites(len(sizes))
    training = study.training.resolved(study.problem, PublicSizes(sizes, study.shape[0]))
    return study if training == study.training else replace(study, training=training)


@dataclass(frozen=True)
class Costs:
    """Costs of a study. Unknown values are NaN.

    Attributes
    ----------
    epsilon, epsilon_if_others_collude : float
        Total ε; with secure aggregation, if at least ``min_honest_sites`` agents are honest, and if none of the others
        is.
    epsilon_paper : float
        The paper's bound; NaN if rounds differ.
    noise : float
        ν, the standard deviation of the noise in the mean over all rows, for a query of sensitivity 1 with the whole
        budget.
    bytes_received, bytes_sent, bytes_total : int
        Traffic of one agent without message headers: received per round, sent in the largest round, all rounds.
    seconds : float
        Time of all agents in one process, with exact noise; NaN if not measured.
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
    bytes_received: int
    bytes_sent: int
    bytes_total: int
    seconds: float

    @property
    def total_noise(self) -> float:
        """``x = ν·d``. Above ``max_noise`` of ``pgd``, the noise hides the columns."""
        return self.noise * self.n_features

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; unknown values are None."""
        values = {**asdict(self), "total_noise": self.total_noise}
        return {name: None if value is None or math.isnan(value) else value for name, value in values.items()}


def costs_of(study: Study, sizes: Integers, seconds: float = math.nan) -> Costs:
    """Return the costs of a study for agents with these numbers of rows.

    Examples
    --------
    >>> study = Study(name="flu", features=("age", "fever"), training={"epsilon": 1.0, "n_rounds": 25})
    >>> costs = costs_of(study, np.array([1000, 500, 500]))
    >>> round(costs.noise, 4), round(costs.total_noise, 4), costs.bytes_received, costs.bytes_sent
    (0.0032, 0.0065, 216, 48)
    """
    terms, t, n, min_honest_sites = study.terms, study.terms.plan.n_rounds, len(sizes), study.training.min_honest_sites
    mu, shares = math.sqrt(terms.plan.mu_squared()), math.sqrt(min_honest_sites or 1)
    received = NUMBER_BYTES * math.prod(study.broadcast_shape)
    sent = [NUMBER_BYTES * math.prod(study.upload_shape(k)) for k in range(1, t + 1)]
    # With secure aggregation: tags in READY and PRESENT, and one bit per member in MASK
    tags, members = (0, 0) if min_honest_sites is None else (TAG_BYTES * n, -(-n // 8))
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
        bytes_received=received + members,
        bytes_sent=max(sent) + tags,
        bytes_total=t * (received + members + tags) + sum(sent) + tags,
        seconds=seconds,
    )


def measured_seconds(study: Study, pool: Pool, sizes: Integers) -> float:
    """Return the seconds of all rounds in one process: ``t·(a·Σm + b·n)``, with a and b measured on the pool."""
    problem, z = study.problem, study.noise_multiplier
    few, many = pool.take(np.arange(2)), pool.take(np.arange(min(len(pool), TIMED_ROWS)))
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
