"""``auto``: preconditioned DP gradient descent, the default method. It has no parameters to tune.

Linearised at the consensus, the duals of ADMM cancel: a round of DP-ADMM is a gradient step of length
``1/(ρ + 1/η)``, and with a matrix proximal term a gradient step on preconditioned rows. Agents have no state, and the
aggregator needs only the weighted sum of their answers.

All rules depend on public numbers: sizes, budgets and releases. The main one is ν, the standard deviation of the noise
in the weighted mean per unit of sensitivity: ``ν = ‖W_i/(m_i μ_i)‖`` with ``W_i ∝ m_i μ_i``.

:class:`AutoRounds` lists the steps of the algorithm, :class:`Hyperparameters` its hyperparameters. Context:
docs/decisions/0015-auto.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.engine.method import MethodSettings, NoState, RoundResult, ServerSideMethod
from dpadmm.errors import StudyError
from dpadmm.losses.base import Loss
from dpadmm.losses.poisson import Poisson
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods import newton
from dpadmm.queries.moments import LABEL_WEIGHT, Moments
from dpadmm.queries.preconditioned_gradient import PreconditionedGradient
from dpadmm.queries.preconditioner import WIDEST, Preconditioner
from dpadmm.queries.problem import Problem

if TYPE_CHECKING:
    from dpadmm.methods.prior import Prior
    from dpadmm.methods.setup import Setup


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters of ``auto``, one per line: meaning; unit; tables that it was tuned on.

    q is the signal-to-noise ratio of :func:`signal_to_noise`; d, p and T are the numbers of features, outputs and
    rounds; s, τ, C, c and f are those of :class:`AutoRounds`. Curvature is relative to that of the logistic loss.
    The effect of each change is in benchmarks/RESULTS.md ("Hyperparameters of auto"). Sets of tables:

    - small: cancer, odd, affairs, churn, digits, wine
    - noisy: affairs, compas, mortality, insurance, pension, smoking, happy, lending, churn, with 10 and 100 agents
    - correlated: correlated, decaying, churn, compas, and eleven tables without effect
    - large: flights, lending, vote, churn, homes, crashes, Adult
    - prior: affairs, compas, churn, happy, mortality, insurance, pension
    - floor: churn, affairs, compas, mortality, insurance, pension
    - all: Adult with one agent, then 22 tables of benchmarks/drafted.py
    - unrecorded: RESULTS.md has no entry for this value
    """

    # Budget and number of rounds
    moments_share: float = 0.15  # budget of round 1; share of μ²; Adult
    signal_scale: float = 0.0065  # numerator of q; noise per unit of sensitivity; unrecorded
    rounds_scale: float = 16.0  # gradient rounds at q = 1; rounds; unrecorded
    rounds_signal: tuple[float, float] = (0.75, 4.0)  # limits of q as a factor of the rounds; ratio; lower one: Adult
    rounds_extra: tuple[float, float] = (1.0, 1.6)  # limits of q as a further factor; ratio; correlated

    # Preconditioner
    max_noise: float = 0.6  # B = I if ν·d is larger; noise per unit of sensitivity; small
    ridge_noise_squared: float = 150.0  # τ ≥ this·d·ν², for p classes times p(p − 1)/2; row²; unrecorded
    ridge_noise: float = 1.3  # τ ≥ this·ν; row²; unrecorded
    ridge_regularizer: float = 10.0  # τ grows by this·(λ/n)c4; ratio; unrecorded
    min_rank: float = 1e-3  # lower limit of the effective rank of the rows; directions; unrecorded
    full_weight: float = 0.8  # larger mean row weights count as 1, since clipping reduces moments; ratio; unrecorded

    # Clipping bound C, divided by the square root of the rank
    binary_clip: float = 0.35  # two classes, times √q; residual; unrecorded
    binary_clip_signal: tuple[float, float] = (0.7, 1.0)  # limits of q there; ratio; lower one: Adult
    binary_clip_slope: float = 0.6  # factor of q above these limits; ratio; all
    binary_clip_max_signal: float = 16.0  # upper limit of q with this factor; ratio; all
    multiclass_clip: float = 0.7  # several classes, times √(1 − 1/p); residual; unrecorded
    number_clip: float = 0.6  # regression, times √q; root mean square label; unrecorded
    number_clip_signal: tuple[float, float] = (0.7, 9.0)  # limits of q there; ratio; upper one: large
    plain_clip: float = 0.5  # C itself if B = I; residual; unrecorded

    # Step size and start
    step: float = 4.0  # step size, times √(step_rounds/(T − 1)); 1/curvature; all
    step_rounds: float = 64.0  # gradient rounds with that step size; rounds; unrecorded
    max_step: float = 8.0  # upper limit of the step size; 1/curvature; unrecorded
    step_signal: float = 2.0  # two classes and counts: step size times √(this·q); ratio; noisy
    step_signal_limits: tuple[float, float] = (0.4, 1.0)  # limits of that factor; ratio; noisy
    max_step_factor: float = 2.0  # upper limit of the step multiplier if τ dominates; ratio; small
    plain_max_step: float = 16.0  # upper limit of the step size if B = I; 1/curvature; unrecorded
    plain_step_noise: float = 4.0  # the same, divided by ν·d; 1/curvature; unrecorded
    plain_step_total_noise: float = 0.125  # the same, divided by ν; 1/curvature; small
    start: float = 2.5  # start along mean rows times labels; 1/curvature; unrecorded
    multiclass_start: float = 1.25  # the same for p classes, times p; weights; unrecorded
    opposed_deviations: float = 3.0  # opposition of gradients that noise explains; standard deviations; unrecorded
    opposed_share: float = 0.25  # further opposition allowed; share of the last squared gradient; unrecorded

    # Counts
    count_deviations: float = 1.5  # residuals are clipped to one event plus this; standard deviations; unrecorded
    count_start: float = 0.6  # length of the start; Newton steps; unrecorded
    count_step: float = 0.5  # step size; Newton steps; unrecorded
    count_max_step_factor: float = 2.0  # upper limit of √(step_rounds/(T − 1)); ratio; unrecorded
    count_clip_signal: tuple[float, float] = (0.8, 2.0)  # limits of √q in C; ratio; unrecorded
    count_rate_deviations: float = 0.5  # bias of the mean count, since means fall faster; noise; unrecorded
    binary_residual: float = 1.4  # C over curvature for two classes; residual; unrecorded

    # Shrink factor and prior
    shrink: tuple[float, float] = (0.5, 0.45)  # two classes: s = first + second·clip, at most 1; ratio; unrecorded
    prior_noise: float = 8.0  # factor of the noise in c; ratio; prior
    min_private: float = 0.2  # f, which limits the prior in directions without private information; ratio; floor
    surprise_deviations: float = 2.0  # size of the first gradient that noise explains; standard deviations; cancer
    multiclass_curvature: float = 0.15  # assumed curvature of softmax; second derivative; unrecorded
    curvature_share: float = 0.6  # assumed curvature of other losses; share of its maximum; unrecorded


HYPERPARAMETERS = Hyperparameters()


@dataclass(frozen=True)
class Auto(MethodSettings):
    """Preconditioned DP gradient descent. With ``inference``: Newton steps and confidence intervals."""

    inference: Annotated[
        bool, "95% confidence intervals that include the privacy noise; for logistic, squared and Poisson loss."
    ] = False

    name: ClassVar[str] = "auto"
    title: ClassVar[str] = "auto"
    local_models: ClassVar[bool] = False
    deployable: ClassVar[bool] = True
    omit_if_default: ClassVar[tuple[str, ...]] = ("inference",)
    sums_only: ClassVar[bool] = True
    usual_alpha: ClassVar[float] = 1e-6
    usual_rounds: ClassVar[int] = 25
    weighs_public_rows: ClassVar[bool] = True
    rounds_by_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inference:
            object.__setattr__(self, "usual_rounds", newton.ROUNDS)
            object.__setattr__(self, "rounds_by_size", False)

    def rounds(self, setup: Setup) -> AutoRounds | newton.NewtonRounds:
        if self.inference:
            return newton.NewtonRounds.of(setup)
        loss = setup.problem.loss
        if isinstance(loss, Poisson) and loss.cuts:
            raise StudyError("hazards by time interval need inference = true")
        if setup.n_rounds < 2:
            raise StudyError("auto needs at least 2 rounds: one for moments, the others for gradients")
        first, later = setup.gaussian_apart(HYPERPARAMETERS.moments_share)
        return AutoRounds(setup.problem, setup.sizes.n_features, setup.n_rounds, first, later)

    def best_rounds(self, setup: Setup) -> int:
        """Return the number of rounds for these public sizes and this budget: 13, up to 103 if there is little noise.

        Correlated columns need many steps. If the noise is large, fewer steps are better.
        """
        z, t = setup.gaussian(), setup.planned
        mu, n_rows = np.sqrt(t) / np.where(z > 0.0, z, 1e-9), setup.sizes.n_rows
        if setup.min_honest_sites is not None:  # one sum; each agent adds a share of the noise
            mu, n_rows = mu[:1] * math.sqrt(setup.min_honest_sites / len(n_rows)), n_rows.sum(keepdims=True)
        hyper, noise = HYPERPARAMETERS, noise_per_unit(n_rows, mu)
        snr = signal_to_noise(setup.problem.loss, setup.sizes.n_features, noise)
        factor = float(np.clip(snr, *hyper.rounds_signal) * np.clip(snr, *hyper.rounds_extra))
        return 1 + round(hyper.rounds_scale * factor)


def noise_per_unit(n_rows: Integers, mu: Floats) -> float:
    """Return ν, the standard deviation of the noise in the mean over all rows, weighted by m_i·μ_i, for S = 1."""
    return math.sqrt(len(n_rows)) / float(np.sum(n_rows * mu))


def signal_to_noise(loss: Loss, n_features: int, noise: float) -> float:
    """Return ``q = .0065/(ν√d)``, the signal-to-noise ratio of gradients; d is the number of free weights."""
    return HYPERPARAMETERS.signal_scale / (noise * math.sqrt(n_features * max(1, loss.n_outputs - 1)))


def default_shrink(clip: float | Floats) -> Floats:
    """Return s for two classes and gradients clipped to ``clip·√rank``, if public rows give no better value."""
    constant, slope = HYPERPARAMETERS.shrink
    return np.minimum(1.0, constant + slope * np.asarray(clip))


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
            clip,
            step,
            shrink,
            n_averaged,
            ridge,
            prior_weight,
            noise,
            preconditioner,
            point,
            last_gradient,
            total,
            origin,
        )

    @property
    def weights(self) -> Floats:
        """The model (d, p) for rows without preconditioner (step 9)."""
        mean = self.shrink * (self.total / self.n_averaged) if self.n_averaged else self.point
        if self.prior_weight:  # θ0 + (M + f)(M + f + c)⁻¹x for c = prior_weight
            change, bound = mean - self.origin, HYPERPARAMETERS.min_private + self.prior_weight
            kept = self.preconditioner.filtered(change, self.ridge, bound)
            mean = mean - self.prior_weight / bound * (change - kept)
        return self.preconditioner.transposed_times(mean)


class InitialValues(NamedTuple):
    """Values of step 3 that depend on the kind of labels.

    τ; C/√rank; the step size; the start along mean rows times labels; s.
    """

    ridge: float
    clip: float
    step: float
    start: float
    shrink: float


@dataclass(frozen=True)
class AutoRounds(ServerSideMethod):
    """Preconditioned DP gradient descent over T rounds.

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

    problem: Problem
    n_features: int
    n_rounds: int
    first: Floats
    later: Floats
    prior: Prior | None = None

    name: ClassVar[str] = "auto"
    divergence_hint: ClassVar[str] = "a smaller alpha, or more noise"
    weighs_answers: ClassVar[bool] = True

    @property
    def _shape(self) -> tuple[int, int]:
        return self.n_features, self.problem.loss.n_outputs

    @property
    def _reg_curvature(self) -> float:
        """``(λ/n)c4``."""
        return self.problem.alpha * (self.problem.regularizer.smoothness or 0.0)

    def release(self, round: int) -> tuple[str, Floats]:
        return (Moments.name, self.first) if round == 1 else (PreconditionedGradient.name, self.later)

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        zero, ones = np.zeros(shape), np.ones(shape[0])
        if warm_start is None and self.prior is not None:
            warm_start = self.prior.weights
        point = zero if warm_start is None else warm_start
        return PublicState(
            clip=1.0,
            step=0.0,
            shrink=1.0,
            n_averaged=0.0,
            ridge=0.0,
            prior_weight=0.0,
            noise=0.0,
            preconditioner=Preconditioner(ones, 0.0 * ones),
            point=point,
            last_gradient=zero,
            total=zero,
            origin=point,
        ).packed()

    def with_prior(self, prior: Prior) -> AutoRounds:
        return replace(self, prior=prior)

    def model(self, consensus: Floats) -> Floats:
        return self._state(consensus).weights

    def _state(self, consensus: Floats) -> PublicState:
        return PublicState.unpacked(consensus, self._shape)

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
        noisy = bool(np.all(first) and np.all(later))
        # Steps 1 and 4: the weighted mean, its noise, and ν
        weights = n_rows / later if noisy else n_rows.astype(float)
        weights = weights / weights.sum()
        mean = result.mean(weights)
        mu = np.sqrt(1.0 / np.square(first) + (self.n_rounds - 1) / np.square(later)) if noisy else np.full(1, 1e9)
        noise = float(np.sqrt(np.sum(np.square(weights * later / n_rows))))
        if result.round == 1:
            return replace(self._initialise(now, mean, noise_per_unit(n_rows, mu)), noise=noise).packed()
        if not now.step:  # round 1 was aborted
            plain = self._without_preconditioner(now, 1.0, noise_per_unit(n_rows, mu))
            now = replace(now, step=plain.step, noise=noise)
        deviation = now.clip * mean_sensitivity(PreconditionedGradient.row_norm, 1) * noise
        step_share = now.noise / noise if 0.0 < now.noise < noise else 1.0  # step 7
        return self._take_step(now, now.clip * mean, deviation, result.round, step_share).packed()

    def _initialise(self, now: PublicState, released: Floats, noise: float) -> PublicState:
        """Run steps 2 and 3 with the released moments."""
        hyper, d = HYPERPARAMETERS, self.n_features
        moments = Moments(self.problem.loss, d).split(released)
        if self.prior is not None:
            moments = self._with_public_moments(moments, noise)
        if isinstance(self.problem.loss, Poisson):
            return self._initialise_counts(now, self.problem.loss, moments, noise)
        means, squares, by_label, label_squares = moments
        # Divided by the mean weight, sums become means of weighted rows, and their noise grows by the same factor
        weight = self._mean_weight(means, noise)
        label_squares, noise = label_squares / weight, noise / weight
        if self.prior is None and noise * d > hyper.max_noise:
            now = self._without_preconditioner(now, label_squares, noise)
            return replace(now, step=now.step / weight)
        initial = self._initial_values(noise, label_squares)
        ridge = initial.ridge * weight + hyper.ridge_regularizer * self._reg_curvature
        means = means / math.sqrt(weight)  # K = ω̄·(variances + m·mᵀ), and the released means are ω̄·m
        variances, means = (squares, np.zeros(d)) if d > WIDEST else (squares - np.square(means), means)
        preconditioner = Preconditioner.of(variances, means, ridge)
        squared_mean = float(np.sum(np.square(means))) or 1.0
        top = squared_mean + float(np.sum(np.maximum(variances, 0.0) * np.square(means))) / squared_mean
        # If τ dominates, the curvature is small in all directions
        step = initial.step * min((top + ridge) / top, hyper.max_step_factor)
        if np.any(now.point):  # warm start or prior
            point = preconditioner.solve_transposed(now.point)
        else:
            point = preconditioner.times(initial.start * self._centre_classes(by_label))
        clip = initial.clip * math.sqrt(max(preconditioner.rank(ridge), hyper.min_rank) / weight)
        now = replace(now, preconditioner=preconditioner, ridge=ridge, point=point, origin=point)
        return replace(now, clip=clip, step=step, shrink=initial.shrink)

    def _constant_deviation(self, noise: float) -> float:
        """Return the standard deviation of a mean from round 1, in units of the constant column."""
        share = math.sqrt(HYPERPARAMETERS.moments_share)
        return noise * mean_sensitivity(Moments.row_norm, 1) / (share * INTERCEPT)

    def _mean_weight(self, means: Floats, noise: float) -> float:
        """Estimate the mean row weight ω̄ from the constant column, with an upward bias; 1 if there is no estimate."""
        if not (self.problem.weighted and self.problem.intercept):
            return 1.0
        estimate = max(float(means[-1]) / INTERCEPT, 0.0) + self._constant_deviation(noise)
        return min(estimate / HYPERPARAMETERS.full_weight, 1.0)

    def _initialise_counts(
        self, now: PublicState, loss: Poisson, moments: tuple[Floats, Floats, Floats, float], noise: float
    ) -> PublicState:
        """Run step 3 for counts, from the rate λ of all rows: the curvature is λ times that of rows with exposure.

        Residuals are clipped to one event plus a multiple of their standard deviation. The effect of noise relative to
        the curvature grows with this bound over the curvature. The rules for two classes therefore use a ν that is
        larger by this ratio.
        """
        hyper, d = HYPERPARAMETERS, self.n_features
        means, squares, by_label, label_squares = moments
        spread = self._constant_deviation(noise)
        exposure = max(float(means[-1]) / INTERCEPT, spread, 1e-6)
        mean = max(float(by_label[-1, 0]) / INTERCEPT, 0.0) + hyper.count_rate_deviations * spread / LABEL_WEIGHT
        rate = min(mean / exposure, 1.0)
        weight = exposure if self.problem.weighted else 1.0  # at most the mean weight, which was not released
        deviation = math.sqrt(max(label_squares / weight - (mean / weight) ** 2, loss.unit * mean / weight))
        residual = min(loss.unit + hyper.count_deviations * deviation, 1.0)
        noise *= max(1.0, residual / (hyper.binary_residual * rate * exposure))
        snr = signal_to_noise(loss, d, noise)
        ridge = max(hyper.ridge_noise_squared * d * noise**2, hyper.ridge_noise * noise) * exposure
        ridge = ridge + hyper.ridge_regularizer * self._reg_curvature / rate
        direction = means / math.sqrt(exposure)
        variances = squares if d > WIDEST else squares - np.square(direction)
        preconditioner = Preconditioner.of(variances, np.zeros(d) if d > WIDEST else direction, ridge)
        constant = np.append(np.zeros(d - 1), math.log(rate) / INTERCEPT)[:, None]
        point = preconditioner.solve_transposed(now.point if np.any(now.point) else constant)
        if not np.any(now.point) and noise * d <= hyper.max_noise:
            point = point + hyper.count_start / rate * preconditioner.times(by_label - rate * means[:, None])
        step = min(math.sqrt(hyper.step_rounds / (self.n_rounds - 1)), hyper.count_max_step_factor)
        step = step * hyper.count_step * _step_factor(snr)
        rank = max(preconditioner.rank(ridge), hyper.min_rank)
        clip = residual * math.sqrt(rank) * _limit(math.sqrt(snr), hyper.count_clip_signal)
        now = replace(now, preconditioner=preconditioner, ridge=ridge, point=point, origin=point)
        return replace(now, clip=clip, step=step / rate)

    def _with_public_moments(
        self, moments: tuple[Floats, Floats, Floats, float], noise: float
    ) -> tuple[Floats, Floats, Floats, float]:
        """Run step 2: average private and public moments by precision."""
        assert self.prior is not None
        means, squares, by_label, label_squares = moments
        deviation = noise * mean_sensitivity(Moments.row_norm, 1) / math.sqrt(HYPERPARAMETERS.moments_share)
        share = 1.0 / (1.0 + self.prior.n_rows * deviation**2)
        means = share * means + (1.0 - share) * self.prior.means
        return means, share * squares + (1.0 - share) * self.prior.squares, by_label, label_squares

    def _without_preconditioner(self, now: PublicState, label_squares: float, noise: float) -> PublicState:
        """Run step 3 with B = I; the noise limits the step size."""
        hyper, (d, p) = HYPERPARAMETERS, self._shape
        step = min(hyper.plain_max_step, hyper.plain_step_noise / (noise * d), hyper.plain_step_total_noise / noise)
        step = step / (self._curvature if p == 1 else 1.0)
        return replace(now, clip=hyper.plain_clip * self._residual_scale(label_squares), step=step)

    @property
    def _curvature(self) -> float:
        """Curvature of the loss relative to the logistic loss."""
        return 4.0 * (self.problem.loss.smoothness or 0.25)

    def _initial_values(self, noise: float, label_squares: float) -> InitialValues:
        hyper, loss, (d, p) = HYPERPARAMETERS, self.problem.loss, self._shape
        snr = signal_to_noise(loss, d, noise)
        ridge = max(hyper.ridge_noise_squared * d * noise**2, hyper.ridge_noise * noise)
        step = min(hyper.step * math.sqrt(hyper.step_rounds / (self.n_rounds - 1)), hyper.max_step)
        if loss.task == "multiclass":
            ridge = max(hyper.ridge_noise_squared / 2.0 * d * noise**2 * p * (p - 1), hyper.ridge_noise * noise)
            clip = hyper.multiclass_clip * math.sqrt(1.0 - 1.0 / p)
            return InitialValues(ridge, clip, step * p / 4.0, start=hyper.multiclass_start * p, shrink=1.0)
        if loss.task == "binary":
            high = hyper.binary_clip_slope * min(snr, hyper.binary_clip_max_signal)
            clip = hyper.binary_clip * math.sqrt(max(_limit(snr, hyper.binary_clip_signal), high))
            shrink = float(default_shrink(clip)) if self.prior is None else self.prior.shrink(clip)
            step *= _step_factor(snr)
        else:
            clip = hyper.number_clip * math.sqrt(_limit(snr, hyper.number_clip_signal))
            clip, shrink = clip * self._residual_scale(label_squares), 1.0
        start = hyper.start / self._curvature
        return InitialValues(ridge, clip, step / self._curvature, start=start, shrink=shrink)

    def _centre_classes(self, vectors: Floats) -> Floats:
        """Subtract the mean over several classes: adding the same to all classes changes only the noise."""
        return vectors - vectors.mean(axis=1, keepdims=True) if self.problem.loss.task == "multiclass" else vectors

    def _residual_scale(self, label_squares: float) -> float:
        """Return the scale of the first residuals: 1 for classes, the root mean square of numeric labels."""
        if self.problem.loss.task != "regression":
            return 1.0
        return min(math.sqrt(min(max(label_squares, 1e-4), 1.0)), self.problem.loss.lipschitz)

    def _take_step(
        self, now: PublicState, gradient: Floats, deviation: float, round: int, step_share: float = 1.0
    ) -> PublicState:
        """Run steps 5 to 8; ``deviation`` is that of each number of the gradient."""
        hyper, problem, gradient = HYPERPARAMETERS, self.problem, self._centre_classes(gradient)
        n_free = gradient.size - (gradient.shape[0] if problem.loss.task == "multiclass" else 0)
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
        hyper, loss, n, tail = HYPERPARAMETERS, self.problem.loss, self.prior.n_rows, self.n_rounds // 2
        multiclass = loss.task == "multiclass"
        curvature = hyper.multiclass_curvature if multiclass else hyper.curvature_share * (loss.smoothness or 0.25)
        rank = max(now.preconditioner.rank(now.ridge), hyper.min_rank)
        expected = curvature * rank * max(1, loss.n_outputs - 1) / n
        surprise = max(1.0, excess / expected)
        return max(hyper.prior_noise * n * (now.shrink * deviation) ** 2 / (curvature * surprise * tail), 1e-12)


def _limit(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _step_factor(snr: float) -> float:
    return _limit(math.sqrt(HYPERPARAMETERS.step_signal * snr), HYPERPARAMETERS.step_signal_limits)
