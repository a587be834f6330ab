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
from typing import Any, ClassVar, Self

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import NoState, RoundResult, ServerSideMethod, prepared
from dpadmm.errors import StudyError
from dpadmm.losses.poisson import Poisson
from dpadmm.matrices.arrays import Floats
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.hyperparameters import HYPERPARAMETERS, max_momentum, noise_per_unit, signal_to_noise
from dpadmm.methods.prior import Prior
from dpadmm.methods.tasks import TASKS, Task
from dpadmm.queries.calibration import CHANGE_WEIGHT, Calibration
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
    score_bound : float
        Clipping bound of scores in the calibration, over their root mean square.
    residual : float
        Clipping bound of slopes in the calibration.
    curvature : float
        Largest second derivative of the loss, for the calibration.
    shrink : float
        s: the mean of the iterates is multiplied by s, since clipping makes them overconfident.
    scale : float
        t, of the calibration: the model's difference from its level is multiplied by t; 1 until then.
    level : float
        Weight of the constant column that alone predicts the mean count; 0 for other labels.
    n_averaged : float
        Number of iterates in ``total``.
    age : float
        Number of steps since the momentum was reset.
    ridge : float
        τ of the preconditioner.
    prior_weight : float
        c, the variance of the noise relative to that of the public rows' model; 0 without public rows.
    noise : float
        Standard deviation of the noise of a round's mean per unit of sensitivity, for which ``step`` was chosen.
    preconditioner : Preconditioner
        B.
    point, momentum, last_gradient, total, origin : (d, p)
        The point θ of the next gradient and the part of it that is momentum, the gradient of the round before, the sum
        of the iterates of the second half, and the start θ0.
    """

    clip: float
    step: float
    score_bound: float
    residual: float
    curvature: float
    shrink: float
    scale: float
    level: float
    n_averaged: float
    age: float
    ridge: float
    prior_weight: float
    noise: float
    preconditioner: Preconditioner
    point: Floats
    momentum: Floats
    last_gradient: Floats
    total: Floats
    origin: Floats

    @classmethod
    def at(cls, point: Floats) -> PublicState:
        """Return the state before round 1."""
        d, zero = len(point), np.zeros(point.shape)
        preconditioner = Preconditioner(np.ones(d), np.zeros(d))
        return cls(
            1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            preconditioner, point, zero, zero, zero, point,
        )  # fmt: skip

    def packed(self) -> Floats:
        numbers = [
            self.clip, self.step, self.score_bound, self.residual, self.curvature, self.shrink, self.scale, self.level,
            self.n_averaged, self.age, self.ridge, self.prior_weight, self.noise,
        ]  # fmt: skip
        vectors = (self.preconditioner.scale, self.preconditioner.direction)
        matrices = (self.point, self.momentum, self.last_gradient, self.total, self.origin)
        return np.concatenate([numbers, *vectors, *(matrix.ravel() for matrix in matrices)])

    @classmethod
    def unpacked(cls, packed: Floats, shape: tuple[int, int]) -> PublicState:
        d, size = shape[0], shape[0] * shape[1]
        numbers, scale, direction, *rest = np.split(packed, np.cumsum([13, d, d, size, size, size, size]))
        values: list[Any] = [*numbers.tolist(), Preconditioner(scale, direction)]
        return cls(*values, *(matrix.reshape(shape) for matrix in rest))

    @property
    def base(self) -> Floats:
        """Weights (d, p) that predict the same for all rows, from which the calibration scales: those of the level."""
        weights = np.zeros(self.point.shape)
        weights[-1] = self.level
        return weights

    @property
    def uncalibrated(self) -> Floats:
        """The model (d, p) for rows without preconditioner, before the calibration (step 9)."""
        mean = self.shrink * (self.total / self.n_averaged) if self.n_averaged else self.point
        if self.prior_weight:  # θ0 + (M + f)(M + f + c)⁻¹x for c = prior_weight
            change, bound = mean - self.origin, HYPERPARAMETERS.min_private + self.prior_weight
            kept = self.preconditioner.filtered(change, self.ridge, bound)
            mean = mean - self.prior_weight / bound * (change - kept)
        return self.preconditioner.transposed_times(mean)

    @property
    def weights(self) -> Floats:
        """The model (d, p) for rows without preconditioner (step 10)."""
        model = self.uncalibrated
        return model if self.scale == 1.0 else self.base + self.scale * (model - self.base)


@dataclass(frozen=True)
class Pgd(ServerSideMethod):
    """Preconditioned DP gradient descent over T rounds. It has no parameters.

    Round 1, moments:

    1. Agents release the means, mean squares and products with the label of their rows, with noise multiplier
       ``first``. The aggregator takes their mean with weights ``W_i ∝ m_i/z_i``.
    2. With public rows: average the released and the public moments, weighted by their precision.
    3. From the moments, choose τ, the preconditioner B with ``BᵀB = (K + τI)⁻¹``, the clipping bound C, the step size,
       the start and the shrink factor s. If ``ν·d`` is too large and there are no public rows: B = I and a start at 0.

    Rounds 2 to T − 1, gradients (to T if T = 2):

    4. Agents release the mean gradient at θ of their rows ``u = B·a``, clipped to C, with noise multiplier ``later``.
       The aggregator takes the mean g with the same weights.
    5. With public rows, once: choose the prior weight c from g. Public rows that contradict g have less weight.
    6. If g opposes the last gradient by more than the noise, halve the step size and reset the momentum.
    7. ``x' ← θ − step·(g + B·(λ/n)R'(Bᵀθ))`` and ``θ ← x' + β·(x' − x)``, with the momentum β of little noise. If
       agents are missing and the noise is larger than in round 1, the step is reduced in proportion.
    8. In the second half of the rounds, add x' to the sum of iterates.

    Model, and its calibration in round T:

    9. θ̂ is s times the mean of these iterates. With public rows and their model θ0:
       ``θ̂ ← θ0 + (M + fI)(M + fI + cI)⁻¹(θ̂ − θ0)`` with ``M = BKBᵀ``. The weights are ``w = Bᵀθ̂``.
    10. Agents release the derivative of the loss along w at w, and its change since w/2. The aggregator adds those of
        ``(λ/n)R``. The weights become ``t·w``. t is a Newton step from 1, averaged with 1 by precision. (For counts, w
        is the difference from the weights that predict the mean count.)

    Attributes
    ----------
    first, later, last : (n,) or (1,)
        Noise multipliers of round 1, of the gradients and of the calibration, per agent or common to all.
    prior : Prior, optional
        Prior from public rows. Only the aggregator needs it.
    """

    problem: Problem = prepared()
    n_features: int = prepared()
    n_rounds: int = prepared()
    first: Floats = prepared()
    later: Floats = prepared()
    last: Floats = prepared()
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
        hyper, n_features, n_rounds = HYPERPARAMETERS, sizes.n_features, budget.n_rounds
        if n_rounds == 2:
            first, later = budget.gaussian_apart(hyper.moments_share)
            last = later
        else:
            first, last, later = budget.gaussian_apart(hyper.moments_share, hyper.calibration_share)
        return replace(
            self, problem=problem, n_features=n_features, n_rounds=n_rounds, first=first, later=later, last=last
        )

    @property
    def n_steps(self) -> int:
        """Number of gradient rounds."""
        return max(self.n_rounds - 2, 1)

    def with_prior(self, prior: Prior) -> Self:
        return replace(self, prior=prior)

    @cached_property
    def task(self) -> Task:
        """Rules that depend on the kind of labels."""
        return TASKS[self.problem.loss.task](self.problem, self.n_features, self.n_steps, self.prior)

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        if warm_start is None:
            warm_start = np.zeros(shape) if self.prior is None else self.prior.weights
        return PublicState.at(warm_start).packed()

    def model(self, consensus: Floats) -> Floats:
        return self._state(consensus).weights

    def _state(self, consensus: Floats) -> PublicState:
        return PublicState.unpacked(consensus, (self.n_features, self.problem.loss.n_outputs))

    def release(self, round: int) -> tuple[str, Floats]:
        if round == 1:
            return Moments.name, self.first
        if round <= 1 + self.n_steps:
            return PreconditionedGradient.name, self.later
        return Calibration.name, self.last

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        """Return the public parameters of the round's query.

        Of gradients these are ``s/C``, ``q`` and ``Cθ``: the gradients of rows ``u/C``, clipped to 1, are those of u
        over C.
        """
        n, parameters = len(state.released), np.zeros(0)
        if round > 1:
            now = self._state(consensus)
            parameters = self._step_parameters(now) if round <= 1 + self.n_steps else _calibration_parameters(now)
        return np.broadcast_to(parameters, (n, len(parameters)))

    def _step_parameters(self, now: PublicState) -> Floats:
        scale, direction = now.preconditioner.scale / now.clip, now.preconditioner.direction
        return np.concatenate([scale, direction, (now.clip * now.point).ravel()])

    def aggregate(self, result: RoundResult) -> Floats:
        first, later, last = (result.multipliers(z) for z in (self.first, self.later, self.last))
        n_rows, now = result.n_rows[result.present], self._state(result.consensus)
        is_noisy = bool(np.all(first) and np.all(later) and np.all(last))
        # Steps 1 and 4: the weighted mean, its noise, and ν
        weights = n_rows / later if is_noisy else n_rows.astype(float)
        weights = weights / weights.sum()
        mean, mu_squared = result.mean(weights), np.full(1, 1e18)
        if is_noisy:
            mu_squared = 1.0 / np.square(first) + self.n_steps / np.square(later)
            mu_squared = mu_squared + 1.0 / np.square(last) if self.n_rounds > 2 else mu_squared
        unit_noise = noise_per_unit(n_rows, np.sqrt(mu_squared))
        if result.round > 1 + self.n_steps:  # step 10
            noise = float(np.linalg.norm(weights * last / n_rows))
            released = Calibration.of(self.problem, self.n_features).split(mean)
            deviation = mean_sensitivity(Calibration.row_norm, 1) * noise
            return self._calibrate(now, released, deviation).packed()
        noise = float(np.linalg.norm(weights * later / n_rows))
        if result.round == 1:  # steps 2 and 3
            initial = self.task.initial_values(mean, unit_noise, now.point)
            return replace(now, **initial._asdict(), origin=initial.point, noise=noise).packed()
        if not now.step:  # round 1 was aborted
            now = replace(now, step=self.task.plain_values(1.0, unit_noise, now.point).step, noise=noise)
        deviation = now.clip * mean_sensitivity(PreconditionedGradient.row_norm, 1) * noise
        step_share = now.noise / noise if 0.0 < now.noise < noise else 1.0  # step 7
        snr = signal_to_noise(self.problem.loss, self.n_features, unit_noise)
        return self._take_step(now, now.clip * mean, deviation, result.round, snr, step_share).packed()

    def _take_step(
        self, now: PublicState, gradient: Floats, deviation: float, round: int, snr: float, step_share: float = 1.0
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
        opposed = round > 2 and product < -bound
        step = now.step / 2.0 if opposed else now.step
        # Step 7
        penalty = problem.regularizer.gradient(now.preconditioner.transposed_times(now.point))
        slope = gradient + now.preconditioner.times(problem.alpha * penalty)
        iterate = now.point - step_share * step * slope
        move = iterate - (now.point - now.momentum)
        uphill = float(np.sum(slope * move)) > hyper.opposed_deviations * deviation * float(np.linalg.norm(move))
        age = 0.0 if opposed or uphill else now.age + 1.0
        momentum = min(age / (age + 3.0), max_momentum(snr)) * move
        now = replace(
            now, step=step, point=iterate + momentum, momentum=momentum, age=age, last_gradient=gradient,
            prior_weight=prior_weight,
        )  # fmt: skip
        # Step 8
        if 2 * (round - 1) > self.n_steps:
            now = replace(now, total=now.total + iterate, n_averaged=now.n_averaged + 1.0)
        return now

    def _calibrate(self, now: PublicState, released: tuple[float, float], deviation: float) -> PublicState:
        """Run step 10; ``deviation`` is that of each number of the release.

        t̂ is a Newton step from 1 for the loss plus the penalty, which is public. If noise hides the curvature, t is 1.
        """
        hyper, query, scale_deviation = HYPERPARAMETERS, math.hypot(1.0, CHANGE_WEIGHT), self.task.scale_deviation
        change_bound, (penalty_slope, penalty_curvature) = _change_bound(now), self._penalty_along(now)
        derivative, error = now.residual * released[0] + penalty_slope, now.residual * query * deviation
        curvature = 2.0 * change_bound * released[1] + penalty_curvature  # between half of the model and all of it
        curvature_error = 2.0 * change_bound * query * deviation / CHANGE_WEIGHT
        if curvature <= hyper.clear_curvature * curvature_error + 1e-12:
            return now
        newton = -derivative / curvature
        variance = (error**2 + (newton * curvature_error) ** 2) / curvature**2
        weight = scale_deviation**2 / (scale_deviation**2 + variance)
        return replace(now, scale=max(1.0 + weight * newton, 0.0))

    def _penalty_along(self, now: PublicState) -> tuple[float, float]:
        """Return the derivative of α·R along D at the model, and twice its change since half of the model.

        Clipping scores reduces only the part of the loss. So with much noise, a large α shrinks the model more.
        """
        model = now.uncalibrated
        along, regularizer = model - now.base, self.problem.regularizer
        slope, before = regularizer.gradient(model), regularizer.gradient(model - along / 2.0)
        direction = (self.problem.alpha / (now.score_bound * _score_size(now))) * along
        return float(np.sum(direction * slope)), 2.0 * float(np.sum(direction * (slope - before)))

    def _prior_weight(self, now: PublicState, excess: float, deviation: float) -> float:
        """Return c, the variance of the noise relative to that of the model of N public rows; 0 without public rows.

        h is the curvature and φ the dispersion. In a direction where rows have the variance e, the model of the public
        rows has the variance ``κ²φ/(N h e)``, and the noise adds ``σ²/(T/2)/(h e)²``. κ² is the ratio of the first
        squared gradient to its expected value for private rows of the same distribution, so contradicting public rows
        have less weight.
        """
        if self.prior is None:
            return 0.0
        hyper, n, tail = HYPERPARAMETERS, self.prior.n_rows, (self.n_steps + 1) // 2
        curvature, dispersion = hyper.curvature_share * now.curvature, self.task.dispersion(now.residual)
        rank = max(now.preconditioner.rank(now.ridge), hyper.min_rank)
        expected = dispersion * curvature * rank * max(1, self.problem.loss.n_outputs - 1) / n
        spread = curvature * dispersion * max(1.0, excess / expected) * tail
        return max(hyper.prior_noise * n * (now.shrink * deviation) ** 2 / spread, 1e-12)


def _calibration_parameters(now: PublicState) -> Floats:
    """Return D, the two points and the clipping bounds."""
    model, size = now.uncalibrated, _score_size(now)
    along = model - now.base
    parts = along / (now.score_bound * size), model - along / 2.0, model
    return np.concatenate([*(part.ravel() for part in parts), [now.residual, _change_bound(now)]])


def _score_size(now: PublicState) -> float:
    """Return about the root mean square of the scores along the model: its norm for preconditioned rows."""
    along = now.preconditioner.solve_transposed(now.uncalibrated - now.base)
    return max(float(np.linalg.norm(along)), 1e-9)


def _change_bound(now: PublicState) -> float:
    """Return the clipping bound of the change of slopes: twice that of a typical row at the largest curvature."""
    return min(max(now.curvature * _score_size(now), 1e-9), 2.0 * now.residual)
