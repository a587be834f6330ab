"""``pgd``: preconditioned DP gradient descent.

Linearised at the consensus, the duals of ADMM cancel: a round of DP-ADMM is a gradient step of length
``1/(ρ + 1/η)``, and with a matrix proximal term a gradient step on preconditioned rows. Agents have no state, and the
aggregator needs only the weighted sum of their answers.

All rules depend on public numbers: sizes, budgets and releases. The main one is ν, the standard deviation of the noise
in the weighted mean per unit of sensitivity. Rules for each task: :mod:`dpadmm.methods.tasks`. Context:
docs/decisions/0015-auto.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import NoState, RoundResult, ServerSideMethod, prepared
from dpadmm.errors import StudyError
from dpadmm.losses.poisson import Poisson
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.hyperparameters import HYPERPARAMETERS, noise_per_unit
from dpadmm.methods.prior import Prior
from dpadmm.methods.tasks import TASKS, Task
from dpadmm.queries.moments import Moments
from dpadmm.queries.preconditioned_gradient import PreconditionedGradient
from dpadmm.queries.preconditioner import Preconditioner
from dpadmm.queries.problem import Problem, Sizes


@dataclass(frozen=True)
class PublicState:
    """The aggregator's state between rounds. It is public: agents receive all of it.

    Attributes
    ----------
    clip : float
        C, the clipping bound of gradients of preconditioned rows.
    step : float
        Size of the next step; 0 until moments were released.
    shrink : float
        s: the model is s times the mean of the iterates, since clipping makes them overconfident.
    n_averaged : float
        Number of iterates in ``total``.
    ridge : float
        τ of the preconditioner.
    prior_weight : float
        c, the variance of the noise relative to that of the public rows' model; 0 without public rows.
    noise : float
        Standard deviation of the noise of a round's mean per unit of sensitivity, for which ``step`` was chosen.
    preconditioner : Preconditioner
        B.
    point, last_gradient, total, origin : (d, p)
        The iterate θ, the gradient of the round before, the sum of the iterates of the second half, and the start θ0.
    """

    clip: float
    step: float
    shrink: float
    n_averaged: float
    ridge: float
    prior_weight: float
    noise: float
    preconditioner: Preconditioner
    point: Floats
    last_gradient: Floats
    total: Floats
    origin: Floats

    @classmethod
    def at(cls, point: Floats) -> PublicState:
        """Return the state before round 1."""
        d, zero = len(point), np.zeros(point.shape)
        preconditioner = Preconditioner(np.ones(d), np.zeros(d))
        return cls(1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, preconditioner, point, zero, zero, point)

    def packed(self) -> Floats:
        numbers = [self.clip, self.step, self.shrink, self.n_averaged, self.ridge, self.prior_weight, self.noise]
        vectors = (self.preconditioner.scale, self.preconditioner.direction)
        matrices = (self.point, self.last_gradient, self.total, self.origin)
        return np.concatenate([numbers, *vectors, *(matrix.ravel() for matrix in matrices)])

    @classmethod
    def unpacked(cls, packed: Floats, shape: tuple[int, int]) -> PublicState:
        d, size = shape[0], shape[0] * shape[1]
        numbers, scale, direction, *rest = np.split(packed, np.cumsum([7, d, d, size, size, size]))
        clip, step, shrink, n_averaged, ridge, prior_weight, noise = numbers.tolist()
        point, last_gradient, total, origin = (matrix.reshape(shape) for matrix in rest)
        preconditioner = Preconditioner(scale, direction)
        return cls(
            clip, step, shrink, n_averaged, ridge, prior_weight, noise,
            preconditioner, point, last_gradient, total, origin,
        )  # fmt: skip

    @property
    def weights(self) -> Floats:
        """The model (d, p) for rows without preconditioner (step 9)."""
        mean = self.shrink * (self.total / self.n_averaged) if self.n_averaged else self.point
        if self.prior_weight:  # θ0 + (M + f)(M + f + c)⁻¹x for c = prior_weight
            change, bound = mean - self.origin, HYPERPARAMETERS.min_private + self.prior_weight
            kept = self.preconditioner.filtered(change, self.ridge, bound)
            mean = mean - self.prior_weight / bound * (change - kept)
        return self.preconditioner.transposed_times(mean)


@dataclass(frozen=True)
class Pgd(ServerSideMethod):
    """Preconditioned DP gradient descent over T rounds. It has no parameters.

    Round 1, moments:

    1. Agents release the means, mean squares and products with the label of their rows, with noise multiplier
       ``first``. The aggregator takes their mean with weights ``W_i ∝ m_i/z_i``.
    2. With public rows: average the released and the public moments, weighted by their precision.
    3. From the moments, choose τ, the preconditioner B with ``BᵀB = (K + τI)⁻¹``, the clipping bound C, the step size,
       the start θ0 and the shrink factor s. If ``ν·d`` is too large and there are no public rows: B = I and θ0 = 0.

    Rounds 2 to T, gradients:

    4. Agents release the mean gradient at θ of their rows ``u = B·a``, clipped to C, with noise multiplier ``later``.
       The aggregator takes the mean g with the same weights.
    5. With public rows, once: choose the prior weight c from g. Public rows that contradict g have less weight.
    6. If g opposes the last gradient by more than the noise, halve the step size.
    7. ``θ ← θ − step·(g + B·(λ/n)R'(Bᵀθ))``. If agents are missing and the noise is larger than in round 1, the step
       is reduced in proportion.
    8. In the second half of the rounds, add θ to the sum of iterates.

    Model:

    9. θ̂ is s times the mean of these iterates. With public rows:
       ``θ̂ ← θ0 + (M + fI)(M + fI + cI)⁻¹(θ̂ − θ0)`` with ``M = BKBᵀ``. The weights are ``Bᵀθ̂``.

    Attributes
    ----------
    first, later : (n,) or (1,)
        Noise multipliers of round 1 and of the other rounds, per agent or common to all.
    prior : Prior, optional
        Prior from public rows. Only the aggregator needs it.
    """

    problem: Problem = prepared()
    n_features: int = prepared()
    n_rounds: int = prepared()
    first: Floats = prepared()
    later: Floats = prepared()
    prior: Prior | None = prepared()

    name: ClassVar[str] = "pgd"
    title: ClassVar[str] = "PGD"
    divergence_hint: ClassVar[str] = "a smaller alpha, or more noise"
    default_alpha: ClassVar[float] = 1e-6
    default_rounds: ClassVar[int] = 25
    sums_only: ClassVar[bool] = True
    uses_public_rows: ClassVar[bool] = True
    weighs_answers: ClassVar[bool] = True

    def build(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> Self:
        if isinstance(problem.loss, Poisson) and problem.loss.cuts:
            raise StudyError("hazards by time interval need inference = true")
        if budget.n_rounds < 2:
            raise StudyError("pgd needs at least 2 rounds: one for moments, the others for gradients")
        first, later = budget.gaussian_apart(HYPERPARAMETERS.moments_share)
        n_features, n_rounds = sizes.n_features, budget.n_rounds
        return replace(self, problem=problem, n_features=n_features, n_rounds=n_rounds, first=first, later=later)

    def with_prior(self, prior: Prior) -> Self:
        return replace(self, prior=prior)

    @cached_property
    def task(self) -> Task:
        """Rules that depend on the kind of labels."""
        return TASKS[self.problem.loss.task](self.problem, self.n_features, self.n_rounds, self.prior)

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        if warm_start is None:
            warm_start = np.zeros(shape) if self.prior is None else self.prior.weights
        return PublicState.at(warm_start).packed()

    def model(self, consensus: Floats) -> Floats:
        return self._state(consensus).weights

    def _state(self, consensus: Floats) -> PublicState:
        return PublicState.unpacked(consensus, (self.n_features, self.problem.loss.n_outputs))

    def release(self, round: int) -> tuple[str, Floats]:
        return (Moments.name, self.first) if round == 1 else (PreconditionedGradient.name, self.later)

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        """Return ``s/C``, ``q`` and ``Cθ``: the gradients of rows ``u/C``, clipped to 1, are those of u over C."""
        n = len(state.released)
        if round == 1:
            return np.broadcast_to(np.zeros(0), (n, 0))
        now = self._state(consensus)
        scale, direction = now.preconditioner.scale / now.clip, now.preconditioner.direction
        parameters = np.concatenate([scale, direction, (now.clip * now.point).ravel()])
        return np.broadcast_to(parameters, (n, len(parameters)))

    def aggregate(self, result: RoundResult) -> Floats:
        first, later = result.multipliers(self.first), result.multipliers(self.later)
        n_rows, now = result.n_rows[result.present], self._state(result.consensus)
        is_noisy = bool(np.all(first) and np.all(later))
        # Steps 1 and 4: the weighted mean, its noise, and ν
        weights = n_rows / later if is_noisy else n_rows.astype(float)
        weights = weights / weights.sum()
        mean = result.mean(weights)
        mu = np.sqrt(1.0 / np.square(first) + (self.n_rounds - 1) / np.square(later)) if is_noisy else np.full(1, 1e9)
        unit_noise = noise_per_unit(n_rows, mu)
        noise = float(np.sqrt(np.sum(np.square(weights * later / n_rows))))
        if result.round == 1:  # steps 2 and 3
            initial = self.task.initial_values(mean, unit_noise, now.point)
            return replace(now, **initial._asdict(), origin=initial.point, noise=noise).packed()
        if not now.step:  # round 1 was aborted
            now = replace(now, step=self.task.plain_values(1.0, unit_noise, now.point).step, noise=noise)
        deviation = now.clip * mean_sensitivity(PreconditionedGradient.row_norm, 1) * noise
        step_share = now.noise / noise if 0.0 < now.noise < noise else 1.0  # step 7
        return self._take_step(now, now.clip * mean, deviation, result.round, step_share).packed()

    def _take_step(
        self, now: PublicState, gradient: Floats, deviation: float, round: int, step_share: float = 1.0
    ) -> PublicState:
        """Run steps 5 to 8; ``deviation`` is that of each number of the gradient."""
        hyper, problem, n_free = HYPERPARAMETERS, self.problem, self.task.n_free
        gradient = self.task.centre(gradient)
        variance = n_free * deviation**2
        # Step 5
        explained = variance * (1.0 + hyper.surprise_deviations * math.sqrt(2.0 / n_free))
        excess = float(np.sum(np.square(gradient))) - explained
        prior_weight = now.prior_weight or self._prior_weight(now, excess, deviation)
        # Step 6
        product = float(np.sum(gradient * now.last_gradient))
        last = max(float(np.sum(np.square(now.last_gradient))) - variance, 0.0)
        bound = hyper.opposed_deviations * deviation**2 * math.sqrt(n_free) + hyper.opposed_share * last
        step = now.step / 2.0 if round > 2 and product < -bound else now.step
        # Step 7
        penalty = problem.regularizer.gradient(now.preconditioner.transposed_times(now.point))
        slope = gradient + now.preconditioner.times(problem.alpha * penalty)
        point = now.point - step_share * step * slope
        now = replace(now, step=step, point=point, last_gradient=gradient, prior_weight=prior_weight)
        # Step 8
        if 2 * (round - 1) > self.n_rounds - 1:
            now = replace(now, total=now.total + point, n_averaged=now.n_averaged + 1.0)
        return now

    def _prior_weight(self, now: PublicState, excess: float, deviation: float) -> float:
        """Return c, the variance of the noise relative to that of the model of N public rows; 0 without public rows.

        h is the curvature. In a direction where rows have the variance e, the model of the public rows has the variance
        ``κ²/(N h e)``, and the noise adds ``σ²/(T/2)/(h e)²``. κ² is the ratio of the first squared gradient to its
        expected value for private rows of the same distribution, so contradicting public rows have less weight.
        """
        if self.prior is None:
            return 0.0
        hyper, n, tail, curvature = HYPERPARAMETERS, self.prior.n_rows, self.n_rounds // 2, self.task.assumed_curvature
        rank = max(now.preconditioner.rank(now.ridge), hyper.min_rank)
        expected = curvature * rank * max(1, self.problem.loss.n_outputs - 1) / n
        surprise = max(1.0, excess / expected)
        return max(hyper.prior_noise * n * (now.shrink * deviation) ** 2 / (curvature * surprise * tail), 1e-12)
