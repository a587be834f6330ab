"""Setup of a method: problem, public sizes and budget, and the noise calibrated to it. No row is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpadmm.accounting.calibration import (
    exact_round_noise_multiplier,
    paper_noise_multiplier,
    sampled_noise_multiplier,
    total_noise_multiplier,
)
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers, kinds
from dpadmm.methods.theory import Constants, constants_of
from dpadmm.queries.problem import Problem, Sizes

Budget = float | Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A problem, the public sizes of a cohort, and its budget: total ε, ε per round, or the noise multiplier.

    ``planned`` (n,) is the number of rounds, out of ``n_rounds``, that each agent's noise is calibrated for. Agents
    with the same public numbers share a calibration.
    """

    problem: Problem
    sizes: Sizes
    planned: Integers
    n_rounds: int = 100
    epsilon: Budget = None
    round_epsilon: Budget = None
    noise_multiplier: Budget = None
    delta: float = 1e-5
    calibration: Literal["paper", "exact"] = "paper"
    aggregation: str = "plain"
    min_honest_sites: int | None = None
    seed: int = 0

    @property
    def n_agents(self) -> int:
        return self.sizes.n_agents

    def constants(self, weight_radius: float, noise_multiplier: Floats) -> Constants:
        """Return the constants of both theorems."""
        return constants_of(
            self.problem,
            n_features=self.sizes.n_features,
            n_rows=self.sizes.n_rows,
            noise_multiplier=noise_multiplier,
            weight_radius=weight_radius,
        )

    def gaussian(self, sampling: float = 1.0) -> Floats:
        """Return z (n,) of a Gaussian release in every round, of a Poisson sample of the rows if ``sampling`` < 1."""
        if self.noise_multiplier is not None:
            return self.per_agent("noise_multiplier")
        if self.epsilon is None:
            exact = self.calibration == "exact"
            calibrate = exact_round_noise_multiplier if exact else paper_noise_multiplier
            return by_distinct_agent(lambda epsilon: calibrate(epsilon, self.delta), self.per_agent("round_epsilon"))
        if sampling == 1.0:
            return by_distinct_agent(
                lambda epsilon, rounds: total_noise_multiplier(epsilon, self.delta, int(rounds)),
                self.per_agent("epsilon"),
                self.planned,
            )
        return by_distinct_agent(
            lambda epsilon, rounds: sampled_noise_multiplier(epsilon, self.delta, int(rounds), sampling),
            self.per_agent("epsilon"),
            self.planned,
        )

    def gaussian_apart(self, share: float) -> tuple[Floats, Floats]:
        """Return z (n,) of one round with this share of the budget, in μ², and of each of the other rounds.

        The total cost is that of t equal rounds: ``1/z_1² + (t − 1)/z_2² = t/z²``. If an agent is planned for fewer
        rounds than the study has, these may be any rounds, and ``t`` replaces ``t − 1``.
        """
        z, t = self.gaussian(), np.maximum(self.planned, 1)  # t = 0 is treated as 1
        others = np.maximum(np.where(t == self.n_rounds, t - 1, t), 1)
        return z / np.sqrt(share * t), z * np.sqrt(others / ((1.0 - share) * t))

    def per_agent(self, name: str) -> Floats:
        """Return this budget for every agent: (n,)."""
        values = np.asarray(getattr(self, name), dtype=float)
        if values.ndim and values.shape != (self.n_agents,):
            raise StudyError(
                f"{name} has {values.size} values for {self.n_agents} agents; give one number, or one per agent"
            )
        return np.broadcast_to(values, (self.n_agents,))


def by_distinct_agent(calculate: Callable[..., float], *columns: Floats | Integers) -> Floats:
    """Return ``calculate`` for every agent, evaluated once per distinct row of the columns."""
    first, which = kinds(*columns)
    distinct = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([calculate(*row) for row in distinct])[which]
