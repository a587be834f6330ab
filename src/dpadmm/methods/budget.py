"""The privacy budget of a run, and the noise that it allows. No row is read."""

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
from dpadmm.matrices.arrays import Floats, Integers, distinct_rows

PerAgent = float | Sequence[float] | None
"""One number for all agents, or one per agent."""


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """Budget of every agent: total ε, ε per round, or the noise multiplier. Exactly one of the three is set.

    ``planned`` (n,) is the number of rounds, out of ``n_rounds``, that each agent's noise is calibrated for. Agents
    with the same public numbers share a calibration.
    """

    planned: Integers
    n_rounds: int
    epsilon: PerAgent = None
    round_epsilon: PerAgent = None
    noise_multiplier: PerAgent = None
    delta: float = 1e-5
    calibration: Literal["paper", "exact"] = "paper"
    min_honest_sites: int | None = None

    def gaussian(self, sampling: float = 1.0) -> Floats:
        """Return z (n,) of a Gaussian release in every round, of a Poisson sample of the rows if ``sampling`` < 1."""
        if self.noise_multiplier is not None:
            return self.amounts
        if self.epsilon is None:
            calibrate = exact_round_noise_multiplier if self.calibration == "exact" else paper_noise_multiplier
            return by_distinct_agent(lambda epsilon: calibrate(epsilon, self.delta), self.amounts)

        def total(epsilon: float, rounds: int) -> float:
            if sampling == 1.0:
                return total_noise_multiplier(epsilon, self.delta, int(rounds))
            return sampled_noise_multiplier(epsilon, self.delta, int(rounds), sampling)

        return by_distinct_agent(total, self.amounts, self.planned)

    def gaussian_apart(self, *shares: float) -> tuple[Floats, ...]:
        """Return z (n,) of one round for each of these shares of the budget, in μ², and of each of the other rounds.

        The total cost is that of t equal rounds: for one share ``1/z_1² + (t − 1)/z_2² = t/z²``. If an agent is planned
        for fewer rounds than the study has, these may be any rounds, and ``t`` replaces ``t − 1``.
        """
        z, t = self.gaussian(), np.maximum(self.planned, 1)  # t = 0 is treated as 1
        others = np.maximum(np.where(t == self.n_rounds, t - len(shares), t), 1)
        apart = (z / np.sqrt(share * t) for share in shares)
        return (*apart, z * np.sqrt(others / ((1.0 - sum(shares)) * t)))

    @property
    def amounts(self) -> Floats:
        """The budget of every agent, in the unit of the one that is set: (n,)."""
        options = {
            "noise_multiplier": self.noise_multiplier, "epsilon": self.epsilon, "round_epsilon": self.round_epsilon,
        }  # fmt: skip
        name, given = next((name, given) for name, given in options.items() if given is not None)
        values, n_agents = np.asarray(given, dtype=float), len(self.planned)
        if values.ndim and values.shape != (n_agents,):
            raise StudyError(
                f"{name} has {values.size} values for {n_agents} agents; give one number, or one per agent"
            )
        return np.broadcast_to(values, (n_agents,))


def by_distinct_agent(calculate: Callable[..., float], *columns: Floats | Integers) -> Floats:
    """Return ``calculate`` for every agent, evaluated once per distinct row of the columns."""
    first, which = distinct_rows(*columns)
    distinct = zip(*(column[first].tolist() for column in columns), strict=True)
    return np.array([calculate(*row) for row in distinct])[which]
