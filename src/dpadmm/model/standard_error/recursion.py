"""How noise travels through the rounds: the linear recursion of a method in one direction of the weights.

Where the mean loss has curvature h in a direction, every agent's gradient there is h times where it stands,
plus a constant, plus noise of known size. All else is the method's public arithmetic, so the variance that
all noise together leaves in the model is a function of h alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity
from dpadmm.study.study import Study
from dpadmm.training.loop import AverageName
from dpadmm.training.methods import DpAdmmRounds, DpSgdRounds


@dataclass(frozen=True)
class Recursion:
    """The rounds of a study, as far as they were run; agents with the same number of rows are one group.

    Attributes
    ----------
    counts : (g,)
        Agents in every group.
    noise_std : (g,)
        Standard deviation of the noise on an agent's mean gradient, ``z·2c1/m``.
    steps : (t, g)
        How far a gradient moves an agent's model: ``1/(ρ + 1/η)``, or the learning rate.
    rho : float, optional
        ρ of DP-ADMM; None for DP-SGD.
    average : (t,)
        The model is ``Σ_k average_k x^k`` of the consensus of every round.
    """

    counts: Integers
    noise_std: Floats
    steps: Floats
    rho: float | None
    average: Floats

    @property
    def n_agents(self) -> int:
        return int(self.counts.sum())

    @property
    def mean_steps(self) -> Floats:
        """How far the mean gradient moves the consensus: (t,)."""
        return np.asarray(self.steps @ self.counts / self.n_agents)

    @property
    def gradient_noise(self) -> Floats:
        """Standard deviation of the noise on the consensus' step divided by ``mean_steps``: (t,)."""
        moved = np.sqrt((self.steps * self.noise_std) ** 2 @ self.counts) / self.n_agents
        return np.asarray(moved / self.mean_steps)

    def variance(self, curvature: Floats, relative: Floats) -> Floats:
        """Variance of the model in directions of these curvatures: (r,) -> (r,).

        ``relative`` (t,) says how much stronger or weaker curvature is in each round. Backwards through the
        rounds goes the derivative of the model with respect to everything an agent remembers; its square,
        times the noise's, adds up.
        """
        return (
            self._sgd(curvature, relative) if self.rho is None else self._admm(curvature, relative, self.rho)
        )

    def _sgd(self, curvature: Floats, relative: Floats) -> Floats:
        size = (self.mean_steps * self.gradient_noise) ** 2
        slope, out = np.zeros(len(curvature)), np.zeros(len(curvature))
        for k in reversed(range(len(self.steps))):
            slope += self.average[k]
            out += size[k] * slope**2
            slope *= 1.0 - self.mean_steps[k] * relative[k] * curvature
        return out

    def _admm(self, curvature: Floats, relative: Floats, rho: float) -> Floats:
        n, shape = self.n_agents, (len(curvature), len(self.counts))
        model, dual, consensus = np.zeros(shape), np.zeros(shape), np.zeros((shape[0], 1))
        out = np.zeros(shape[0])
        for k in reversed(range(len(self.steps))):
            step = self.steps[k]
            consensus += self.average[k]
            # x^k = mean(w̃ − γ/ρ)
            model += consensus / n
            dual -= consensus / (n * rho)
            # w̃^k = step·((1/η − h) w̃^{k−1} + ρ x^{k−1} + γ^{k−1} − noise), and 1/η = 1/step − ρ
            out += (step * self.noise_std * model) ** 2 @ self.counts
            dual += step * model
            back = (1.0 - step * (rho + relative[k] * curvature[:, None])) * model
            # γ^{k−1} = γ^{k−2} − ρ (w̃^{k−1} − x^{k−1})
            consensus = rho * ((step * model + dual) @ self.counts)[:, None]
            model = back - rho * dual
        return out

    def local_variance(self, curvature: float) -> Floats:
        """Variance of agents' models around the consensus before every round, mean over agents: (t,)."""
        if self.rho is None or self.n_agents == 1:
            return np.zeros(len(self.steps))
        rho, out = self.rho, np.empty(len(self.steps))
        model = both = dual = np.zeros(len(self.counts))  # variances and covariance of w̃ and γ
        for k, step in enumerate(self.steps):
            out[k] = model @ self.counts / self.n_agents
            dual, both = dual - 2.0 * rho * both + rho**2 * model, both - rho * model
            keep = 1.0 - step * (rho + curvature)
            model, both = (
                keep**2 * model + 2.0 * keep * step * both + step**2 * dual + (step * self.noise_std) ** 2,
                keep * both + step * dual,
            )
        return out * (1.0 - 1.0 / self.n_agents)


def recursion_of(study: Study, n_rows: Integers, rounds: int) -> Recursion:
    """The first ``rounds`` rounds of a study with agents of so many rows."""
    settings, loss = study.settings, study.problem.loss
    sizes, counts = np.unique(np.asarray(n_rows, dtype=np.int64), return_counts=True)
    method = study.method(*sizes.tolist())
    assert isinstance(method, DpAdmmRounds | DpSgdRounds)  # a study has no others
    rho = method.rho if isinstance(method, DpAdmmRounds) else None
    steps = [
        1.0 / (method.rho + 1.0 / method.schedule(k))
        if isinstance(method, DpAdmmRounds)
        else np.full(len(sizes), method.learning_rate)
        for k in range(1, rounds + 1)
    ]
    return Recursion(
        counts=counts,
        noise_std=method.noise_multiplier * mean_gradient_sensitivity(loss.lipschitz, sizes),
        steps=np.array(steps),
        rho=rho,
        average=average_weights(settings.average, rounds, settings.n_rounds),
    )


def average_weights(average: AverageName, rounds: int, planned: int) -> Floats:
    """The share of every round's consensus in the model, as :class:`dpadmm.training.loop.Averages` has it.

    Examples
    --------
    >>> average_weights("tail", 4, 4).tolist()
    [0.0, 0.0, 0.5, 0.5]
    """
    numbers = np.arange(1, rounds + 1)
    used = {"last": numbers == rounds, "all": numbers > 0, "tail": 2 * numbers > planned}[average]
    chosen = used if used.any() else numbers > 0
    return np.asarray(chosen / chosen.sum())
