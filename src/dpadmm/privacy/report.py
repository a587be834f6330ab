"""What a run gave away: the total guarantee of every agent, exactly and by the paper's bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpadmm.arrays import Floats, Integers
from dpadmm.privacy.accounting import exact_epsilon, paper_epsilon
from dpadmm.privacy.calibration import round_epsilon_from_noise

GUARANTEE = (
    "with secret, exact noise of this size: for any one row of an agent replaced by any other (number of "
    "rows public), against everyone who sees all messages of this one run"
)
SIMULATED = "simulated floating-point noise from a seed: an experiment, not a protection"


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy spent by every agent.

    Attributes
    ----------
    noise_multiplier : (n,)
        z; 0 means no noise.
    n_releases : (n,)
        Rounds the agent took part in.
    planned_releases : (n,)
        Rounds its noise was calibrated for.
    delta : float
    method : str
        Name of the method; ``centralized`` releases rows' optimum without noise.
    ended_by_result : bool
        The run's length depended on what it released (a stop rule, or somebody who watched and interrupted).
        Then fewer rounds do not cost less: the guarantee that holds is that of all rounds planned.
    """

    noise_multiplier: Floats
    n_releases: Integers
    planned_releases: Integers
    delta: float
    method: str
    ended_by_result: bool = False

    @property
    def charged_releases(self) -> Integers:
        """What every agent is charged for: its releases, or all planned where the result ended the run."""
        return self.planned_releases if self.ended_by_result else self.n_releases

    @property
    def mu(self) -> Floats:
        """Gaussian-DP parameter ``μ_i = √charged / z`` of every agent; inf without noise."""
        return _mu(self.noise_multiplier, self.charged_releases)

    @property
    def private(self) -> bool:
        """Whether every agent that said something added noise."""
        return bool(np.isfinite(self.mu).all())

    @property
    def epsilon_by_agent(self) -> Floats:
        """Exact total ε of every agent at δ."""
        return np.asarray(exact_epsilon(self.mu, self.delta))

    @property
    def epsilon(self) -> float:
        """Exact total ε of the agent that gave away most; inf without noise."""
        return float(self.epsilon_by_agent.max())

    @property
    def planned_epsilon(self) -> float:
        """What ``epsilon`` would be had every agent taken part in all rounds planned for it."""
        mu = _mu(self.noise_multiplier, self.planned_releases)
        return float(np.max(exact_epsilon(mu, self.delta)))

    @property
    def paper_epsilon(self) -> float:
        """The paper's moments bound ε̄ for the same releases: the worst agent's."""
        charged = zip(self.noise_multiplier, self.charged_releases, strict=True)
        pairs = {(float(z), int(k)) for z, k in charged if k}
        return max((float(paper_epsilon(z, k, self.delta)) for z, k in pairs), default=0.0)

    @property
    def round_epsilon(self) -> float:
        """The paper's ε of one round, ``√(2 ln(1.25/δ))/z``, of the agent with the least noise.

        inf beyond 1, where the classical theorem proves nothing.
        """
        classical = float(np.max(round_epsilon_from_noise(self.noise_multiplier, self.delta)))
        return classical if classical <= 1.0 + 1e-9 else float("inf")

    def as_json(self) -> dict[str, Any]:
        """Plain values; None where there is no noise and so no finite ε."""

        def plain(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        return {
            "private": self.private,
            "epsilon": plain(self.epsilon),
            "delta": self.delta,
            "planned_epsilon": plain(self.planned_epsilon),
            "paper_epsilon": plain(self.paper_epsilon),
            "round_epsilon": plain(self.round_epsilon),
            "epsilon_by_agent": [plain(value) for value in self.epsilon_by_agent],
            "noise_multiplier": [float(z) for z in self.noise_multiplier],
            "n_releases": [int(k) for k in self.n_releases],
            "charged_releases": [int(k) for k in self.charged_releases],
            "guarantee": GUARANTEE if self.private else "none: rows were used without noise",
            "noise": SIMULATED if np.any(self.noise_multiplier) else "none",
            "method": self.method,
        }


def _mu(noise_multiplier: Floats, n_releases: Integers) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        mu = np.sqrt(n_releases) / noise_multiplier
    return np.where(n_releases == 0, 0.0, mu)
