"""Distributed DP-SGD: agents send noisy mean gradients at the consensus, and the aggregator takes a step.

``h_i = g_i + N(0, (zΔ)²I)``, ``w^k = w^{k−1} − lr·[mean_i h_i + (λ/n)R'(w^{k−1})]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import numpy as np

from dpadmm import kernels
from dpadmm.accounting.events import AnyRelease, SampledRelease
from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import NoState, Round, RoundResult, ServerSideMethod, prepared
from dpadmm.engine.noise import LazyAnswers, release
from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.parameters.fields import Positive, Probability, checked_parameters
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Problem, Sizes


@checked_parameters
@dataclass(frozen=True)
class DpSgd(ServerSideMethod):
    """Distributed DP-SGD.

    With ``sampling`` q, every row is in a round's sample with probability q (Poisson sampling). The sum over the sample
    is divided by ``q·m_i``, a public number, so its sensitivity is ``2c1/(q·m_i)``.

    Attributes
    ----------
    noise_multiplier : (n,)
        z of every agent, in units of the sensitivity of its release; 0 means no noise.
    """

    learning_rate: Annotated[Positive | None, "Step size; default 1/(c3 + λc4/n), which guarantees convergence."] = None
    sampling: Annotated[Probability, "Probability that a row is used in a round (Poisson sampling)."] = 1.0
    noise_multiplier: Floats = prepared()

    name: ClassVar[str] = "dp_sgd"
    title: ClassVar[str] = "DPSGD"
    divergence_hint: ClassVar[str] = "a smaller learning_rate, a smaller alpha, or less noise"
    weighs_answers: ClassVar[bool] = True

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        z = budget.gaussian(self.sampling)
        if self.learning_rate is not None:
            return replace(self, noise_multiplier=z)
        if problem.loss.smoothness is None:
            raise StudyError(
                f"dp_sgd has no default learning_rate for the loss {problem.loss.name}, which is not smooth; set one"
            )
        curvature = problem.loss.smoothness + problem.alpha * (problem.regularizer.smoothness or 0.0)
        return replace(self, learning_rate=1.0 / curvature, noise_multiplier=z)

    def release(self, round: int) -> tuple[str, Floats]:
        return Gradient.name, self.noise_multiplier

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        """Return the point of every agent's gradient, w^{k−1}."""
        return np.broadcast_to(consensus, state.released.shape)

    def step(self, state: NoState, now: Round) -> tuple[NoState, Floats | LazyAnswers]:
        if self.sampling == 1.0:
            return super().step(state, now)
        points = self.parameters(state, now.consensus, round=now.number)
        return state, noisy_gradient(now, points, self.noise_multiplier, sampling=self.sampling)

    def aggregate(self, result: RoundResult) -> Floats:
        assert self.learning_rate is not None  # set by build
        consensus, problem = result.consensus, result.problem
        slope = result.mean() + problem.alpha * problem.regularizer.gradient(consensus)
        return np.asarray(consensus - self.learning_rate * slope)

    def event(self, statistic: str, noise_multiplier: float) -> AnyRelease:
        if self.sampling == 1.0:
            return super().event(statistic, noise_multiplier)
        return SampledRelease(noise_multiplier, self.sampling)


def noisy_gradient(
    now: Round, points: Floats, noise_multiplier: Floats, *, sampling: float = 1.0, stream: int = 0
) -> Floats:
    """Return noisy mean gradients (n, d, p) at these points, over a Poisson sample of every agent's rows.

    The noise is drawn from a stream of the round, so a round may have several releases. A guard cannot check them.
    """
    rows, loss = now.rows, now.problem.loss
    sample = rows if sampling == 1.0 else rows.subsample(sampling, seed=now.seed, round=now.number)
    # The kernel divides by the size of the sample, which is not public; the mechanism divides by q·m
    mean = kernels.gradient(sample, points, loss, now.active)
    mean = np.asarray(mean * (sample.n_rows / (sampling * rows.n_rows))[:, None, None])
    if not np.any(noise_multiplier):
        return mean
    sensitivity = mean_sensitivity(loss.lipschitz, rows.n_rows) / sampling
    noise_std = (noise_multiplier * sensitivity)[:, None, None]
    return release(mean, noise_std=noise_std, noise=now.noise.draw(now.number, stream))
