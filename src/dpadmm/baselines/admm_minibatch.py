"""Mini-batch DP-ADMM: stochastic linearised ADMM, which is Algorithm 1 on a Poisson sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from dpadmm.accounting.events import AnyRelease, SampledRelease
from dpadmm.engine.method import Round, merge_states
from dpadmm.engine.noise import LazyAnswers
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.dp_admm import AdmmState, DpAdmm
from dpadmm.methods.dp_sgd import noisy_gradient
from dpadmm.parameters.fields import Probability, checked_parameters
from dpadmm.queries.problem import Problem, Sizes


@checked_parameters
@dataclass(frozen=True)
class AdmmMinibatch(DpAdmm):
    """Algorithm 1 with the gradient of a sample, ``(1/(q m_i)) Σ_{j in sample} ℓ_j'(w̃_i) + N(0, (zΔ/q)²I)``.

    Every row is in the sample of a round with probability q, independently. With q = 1 this is DP-ADMM, to the last
    bit.

    **Privacy.** The divisor q·m_i is public, so replacing a row changes the release by at most ``2c1/(q m_i) = Δ/q``
    if the row is in the sample, and not at all otherwise. The sample is secret. Conditional on the other rows of the
    sample, the release is ``(1−q)N(g, s²I) + qN(g + v/(q m_i), s²I)``, with the gradient v of the row or of its
    replacement, ``‖v‖ ≤ c1``. The worst pair is v and v' opposite with norm c1: in units of the sensitivity,
    ``(1−q)N(0, z²) + qN(½, z²)`` against ``(1−q)N(0, z²) + qN(−½, z²)``. dp_accounting composes its privacy loss
    distribution (``SampledRelease``; proof in ``docs/explanation/proofs.md``). The ε for neighbours that *add or
    remove* a row, as in many libraries, is another and smaller number: there a row has no replacement.
    The state of an agent, w̃_i and γ_i, is public, so it adds nothing.

    **Step sizes.** The theorems use ``E‖h − f'‖² = dp(zΔ)²``. The noise of a sample is ``dp(zΔ/q)²``, and sampling adds
    at most ``Σ_j q(1−q)‖ℓ_j'‖²/(q m)² ≤ (1−q)c1²/(q m)``. The schedule uses the z with which both are ``dp(zΔ)²``.
    """

    sampling: Annotated[Probability, "Probability that a row is used in a round (Poisson sampling)."] = 0.2

    name: ClassVar[str] = "admm_minibatch"
    title: ClassVar[str] = "DP-ADMM, mini-batches"
    deployable: ClassVar[bool] = False

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        if self.sampling == 1.0:
            return super().build(problem, sizes, budget)
        z, q = budget.gaussian(self.sampling), self.sampling
        # Of Δ² = 4c1²/m², the variance of sampling is (1−q)m/(4q)
        sampled = (1.0 - q) * sizes.n_rows / (4.0 * q * sizes.n_features * problem.loss.n_outputs)
        return self.with_noise(problem, sizes, z, gradient_noise=np.sqrt(np.square(z / q) + sampled))

    def step(self, state: AdmmState, now: Round) -> tuple[AdmmState, Floats | LazyAnswers]:
        if self.sampling == 1.0:
            return super().step(state, now)
        answers = noisy_gradient(now, state.released, self.noise_multiplier, sampling=self.sampling)
        new, uploads = self.advance(state, answers, now.consensus, round=now.number, problem=now.problem)
        return merge_states(new, state, now.active), uploads

    def event(self, statistic: str, noise_multiplier: float) -> AnyRelease:
        if self.sampling == 1.0:
            return super().event(statistic, noise_multiplier)
        return SampledRelease(noise_multiplier, self.sampling)
