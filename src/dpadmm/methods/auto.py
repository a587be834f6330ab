"""``auto``: the best model that a total (ε, δ) allows, without a constant to tune.

Linearised at the consensus, the duals of ADMM cancel, and a round of DP-ADMM is a gradient step of length
``1/(ρ + 1/η)``; with a matrix proximal term it is a gradient step in other coordinates. So this is DP-ADMM
linearised at the consensus with a matrix proximal term, and equally DP gradient descent on shaped rows. Agents
remember nothing, and the aggregator needs the weighted sum of their answers alone.

Everything depends on one public number, the noise of the weighted mean for one unit of sensitivity:
``ν = ‖W_i/(m_i μ_i)‖``, W_i ∝ m_i μ_i. Round 1 asks for the moments of rows, which give the shape ``B`` and the
start; the other rounds ask for gradients of rows ``u = B·a``, clipped to C. The model is the mean of the second
half of the rounds. Constants and how they were found: docs/decisions/0015-auto.md.
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

MOMENTS_SHARE = 0.15
"""Share of the budget, in μ², that round 1 takes."""

MOST_NOISE = 0.6
"""With ``ν·d`` above this, moments are noise: rows keep their coordinates, and planners warn of a constant guess."""

STEEPEST = 2.0
"""Steps may be so many times as long where the shape's τ flattens all directions."""

DOUBT = 8.0
"""Beside public rows, noise counts so many times as much as where all directions were learnt in full."""

COUNT_DEVIATIONS, COUNT_START, COUNT_STEP = 1.5, 0.6, 0.5
"""Of counts: what residuals are clipped to, how far to go at first and later, beside a Newton step."""

USUAL_RESIDUAL = 1.4
"""What gradients of two classes are clipped to, over their curvature."""

SURELY_FULL = 0.8
"""A mean weight above this is taken to be 1: shortened moments of rows without weights are no smaller."""

LEAST_KNOWN = 0.2
"""Of no direction less is said to be known than this share: public rows that are not believed keep none of them."""


@dataclass(frozen=True)
class Auto(MethodSettings):
    """Shaped DP gradient descent, which needs no tuning; with ``inference`` Newton steps, for intervals."""

    inference: Annotated[
        bool, "95% confidence intervals that count the privacy noise; for logistic, squared and Poisson loss."
    ] = False

    name: ClassVar[str] = "auto"
    title: ClassVar[str] = "auto"
    local_models: ClassVar[bool] = False
    deployable: ClassVar[bool] = True
    omit_if_default: ClassVar[tuple[str, ...]] = ("inference",)
    sums_only: ClassVar[bool] = True
    usual_reg_share: ClassVar[float] = 1e-6
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
        if getattr(setup.problem.loss, "cuts", ()):
            raise StudyError("hazards by intervals of time need inference = true")
        if setup.n_rounds < 2:
            raise StudyError("auto needs at least 2 rounds: one for the moments of rows, the others for gradients")
        first, later = setup.gaussian_apart(MOMENTS_SHARE)
        return AutoRounds(setup.problem, setup.sizes.n_features, setup.n_rounds, first, later)

    def best_rounds(self, setup: Setup) -> int:
        """Rounds for these public sizes and this budget: 13, and up to 103 where there is little noise."""
        z, t = setup.gaussian(), setup.planned
        mu, n_rows = np.sqrt(t) / np.where(z > 0.0, z, 1e-9), setup.sizes.n_rows
        if setup.honest is not None:  # one sum, with a share of the noise from everyone
            mu, n_rows = mu[:1] * math.sqrt(setup.honest / len(n_rows)), n_rows.sum(keepdims=True)
        noise = noise_per_unit(n_rows, mu)
        clear = clarity(setup.problem.loss, setup.sizes.n_features, noise)
        # Columns that go together need many steps; where noise is large, many steps are worse than few
        return 1 + round(16.0 * float(np.clip(clear, 0.75, 4.0) * np.clip(clear, 1.0, 1.6)))


def noise_per_unit(n_rows: Integers, mu: Floats) -> float:
    """``ν``: standard deviation of the noise in the mean over all rows, weighted by m_i·μ_i, for S = 1."""
    return math.sqrt(len(n_rows)) / float(np.sum(n_rows * mu))


def clarity(loss: Loss, n_features: int, noise: float) -> float:
    """``q = .0065/(ν√d)``, how well gradients are heard; d counts the weights that are free."""
    return 0.0065 / (noise * math.sqrt(n_features * max(1, loss.n_outputs - 1)))


def usual_shrink(clip: float | Floats) -> Floats:
    """s for two classes where gradients are clipped to ``clip·√rank`` and no public rows say better."""
    return np.minimum(1.0, 0.5 + 0.45 * np.asarray(clip))


@dataclass(frozen=True)
class PublicState:
    """All that the aggregator knows between rounds, which is public: it is what agents are sent.

    Attributes
    ----------
    clip : float
        C, what gradients of shaped rows are clipped to.
    step : float
        Length of the next step.
    shrink : float
        s: the model is s times the mean of the iterates, since clipping makes them overconfident.
    averaged : float
        Iterates in ``total``.
    ridge : float
        τ of the shape.
    doubt : float
        How much the noise outweighs what the public rows leave open; 0 where there are none.
    noise : float
        Standard deviation of the noise of a round's mean, for one unit of sensitivity, that the step is meant for.
    shape : Preconditioner
        The coordinates of rows.
    point, last, total, origin : (d, p)
        The iterate θ, the gradient before, the sum of the iterates of the second half, and the start.
    """

    clip: float
    step: float
    shrink: float
    averaged: float
    ridge: float
    doubt: float
    noise: float
    shape: Preconditioner
    point: Floats
    last: Floats
    total: Floats
    origin: Floats

    def packed(self) -> Floats:
        numbers = [self.clip, self.step, self.shrink, self.averaged, self.ridge, self.doubt, self.noise]
        arrays = (self.shape.scale, self.shape.direction, self.point, self.last, self.total, self.origin)
        return np.concatenate([numbers, *(each.ravel() for each in arrays)])

    @classmethod
    def unpacked(cls, packed: Floats, shape: tuple[int, int]) -> PublicState:
        d, size = shape[0], shape[0] * shape[1]
        numbers, scale, direction, *rest = np.split(packed, np.cumsum([7, d, d, size, size, size]))
        clip, step, shrink, averaged, ridge, doubt, noise = numbers.tolist()
        point, last, total, origin = (each.reshape(shape) for each in rest)
        shaped = Preconditioner(scale, direction)
        return cls(clip, step, shrink, averaged, ridge, doubt, noise, shaped, point, last, total, origin)

    @property
    def weights(self) -> Floats:
        """The model (d, p), of rows as they are.

        With public rows it is their model, and of what was learnt beyond it as much as the noise lets one tell.
        """
        mean = self.shrink * (self.total / self.averaged) if self.averaged else self.point
        if self.doubt:  # (M + f)(M + f + c)⁻¹x for c = doubt
            learnt, bound = mean - self.origin, LEAST_KNOWN + self.doubt
            mean = mean - self.doubt / bound * (learnt - self.shape.filtered(learnt, self.ridge, bound))
        return self.shape.transposed_times(mean)


class Tuned(NamedTuple):
    """τ; C for one direction that is clear of it; the step; how far to start along rows times labels; s."""

    ridge: float
    clip: float
    step: float
    start: float
    shrink: float


@dataclass(frozen=True)
class AutoRounds(ServerSideMethod):
    """z of round 1 and of the other rounds, of every agent (n,), or of all alike (1,).

    ``prior`` is what the aggregator knows of public rows; agents need not know it.
    """

    problem: Problem
    n_features: int
    n_rounds: int
    first: Floats
    later: Floats
    prior: Prior | None = None

    name: ClassVar[str] = "auto"
    cure: ClassVar[str] = "a smaller reg_share, or more noise"
    weighs_answers: ClassVar[bool] = True

    @property
    def _shape(self) -> tuple[int, int]:
        return self.n_features, self.problem.loss.n_outputs

    def release(self, round: int) -> tuple[str, Floats]:
        return (Moments.name, self.first) if round == 1 else (PreconditionedGradient.name, self.later)

    def start(self, shape: tuple[int, int], warm_start: Floats | None = None) -> Floats:
        zero, ones = np.zeros(shape), np.ones(shape[0])
        if warm_start is None and self.prior is not None:
            warm_start = self.prior.weights
        point = zero if warm_start is None else warm_start
        return PublicState(
            1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, Preconditioner(ones, 0.0 * ones), point, zero, zero, point
        ).packed()

    def with_prior(self, prior: Prior) -> AutoRounds:
        return replace(self, prior=prior)

    def model(self, consensus: Floats) -> Floats:
        return self._state(consensus).weights

    def _state(self, consensus: Floats) -> PublicState:
        return PublicState.unpacked(consensus, self._shape)

    def parameters(self, state: NoState, consensus: Floats, *, round: int) -> Floats:
        """``s/C``, ``q`` and ``Cθ``: rows ``u/C`` have the gradients of rows u, clipped to C, over C."""
        n = len(state.released)
        if round == 1:
            return np.broadcast_to(np.zeros(0), (n, 0))
        now = self._state(consensus)
        asked = [now.shape.scale / now.clip, now.shape.direction, (now.clip * now.point).ravel()]
        return np.broadcast_to(np.concatenate(asked), (n, 2 * self._shape[0] + math.prod(self._shape)))

    def aggregate(self, gathered: RoundResult) -> Floats:
        first, later = gathered.multipliers(self.first), gathered.multipliers(self.later)
        n_rows, now = gathered.n_rows[gathered.present], self._state(gathered.consensus)
        noisy = bool(np.all(first) and np.all(later))
        weights = n_rows / later if noisy else n_rows.astype(float)
        weights = weights / weights.sum()
        mean = gathered.mean(weights)
        mu = np.sqrt(1.0 / np.square(first) + (self.n_rounds - 1) / np.square(later)) if noisy else np.full(1, 1e9)
        noise = float(np.sqrt(np.sum(np.square(weights * later / n_rows))))
        if gathered.round == 1:
            return replace(self._started(now, mean, noise_per_unit(n_rows, mu)), noise=noise).packed()
        if not now.step:  # round 1 was void
            now = replace(now, step=self._unshaped(now, 1.0, noise_per_unit(n_rows, mu)).step, noise=noise)
        # Of every number of the weighted mean
        deviation = now.clip * mean_sensitivity(PreconditionedGradient.row_norm, 1) * noise
        # Where fewer agents answer, a step shakes the model no more than it was meant to
        share = now.noise / noise if 0.0 < now.noise < noise else 1.0
        return self._stepped(now, now.clip * mean, deviation, gathered.round, share).packed()

    def _started(self, now: PublicState, released: Floats, noise: float) -> PublicState:
        """Shape, clip, step and start from noisy moments, all by public rules."""
        d, reg = self.n_features, self.problem.reg_share * (self.problem.regularizer.smoothness or 0.0)
        moments = Moments(self.problem.loss, d).split(released)
        if self.prior is not None:
            moments = self._informed(moments, noise)
        if isinstance(self.problem.loss, Poisson):
            return self._started_at_a_rate(now, self.problem.loss, moments, noise)
        means, squares, by_label, label_squares = moments
        # Over the mean weight, sums are means of weighted rows, and their noise is so much larger
        share = self._mean_weight(means, noise)
        label_squares, noise = label_squares / share, noise / share
        if self.prior is None and noise * d > MOST_NOISE:
            now = self._unshaped(now, label_squares, noise)
            return replace(now, step=now.step / share)
        tuned = self._tuned(noise, label_squares)
        ridge = tuned.ridge * share + 10.0 * reg
        means = means / math.sqrt(share)  # of the second moment ω̄·(variances + m·mᵀ), as sums have ω̄·m
        variances, means = (squares, np.zeros(d)) if d > WIDEST else (squares - np.square(means), means)
        shape = Preconditioner.of(variances, means, ridge)
        length = float(np.sum(np.square(means))) or 1.0
        top = length + float(np.sum(np.maximum(variances, 0.0) * np.square(means))) / length
        step = tuned.step * min((top + ridge) / top, STEEPEST)  # where τ is large, all of the curvature is small
        if np.any(now.point):  # a start that is known already
            point = shape.solve_transposed(now.point)
        else:
            point = shape.times(tuned.start * self._centred(by_label))
        clip = tuned.clip * math.sqrt(max(shape.rank(ridge), 1e-3) / share)
        now = replace(now, shape=shape, ridge=ridge, point=point, origin=point)
        return replace(now, clip=clip, step=step, shrink=tuned.shrink)

    def _mean_weight(self, means: Floats, noise: float) -> float:
        """About the mean weight ω̄ of rows, rather too large, by the constant column; 1 where it says nothing."""
        if not (self.problem.weighted and self.problem.intercept):
            return 1.0
        spread = noise * mean_sensitivity(Moments.row_norm, 1) / (math.sqrt(MOMENTS_SHARE) * INTERCEPT)
        return min((max(float(means[-1]) / INTERCEPT, 0.0) + spread) / SURELY_FULL, 1.0)

    def _started_at_a_rate(
        self, now: PublicState, loss: Poisson, moments: tuple[Floats, Floats, Floats, float], noise: float
    ) -> PublicState:
        """The same for counts, from the rate of all rows, λ: there the curvature is λ times that of exposed rows.

        Residuals are clipped to one event and some standard deviations. What noise does beside the curvature grows
        with the one over the other, so rules that were found for two classes take it to be so much larger.
        """
        (means, squares, by_label, label_squares), d = moments, self.n_features
        spread = noise * mean_sensitivity(Moments.row_norm, 1) / (math.sqrt(MOMENTS_SHARE) * INTERCEPT)
        exposure = max(float(means[-1]) / INTERCEPT, spread, 1e-6)
        mean = (
            max(float(by_label[-1, 0]) / INTERCEPT, 0.0) + 0.5 * spread / LABEL_WEIGHT
        )  # rather too large: means fall faster
        rate = min(mean / exposure, 1.0)
        counted = exposure if self.problem.weighted else 1.0  # at most the mean weight, which is not known by itself
        deviation = math.sqrt(max(label_squares / counted - (mean / counted) ** 2, loss.unit * mean / counted))
        residual = min(loss.unit + COUNT_DEVIATIONS * deviation, 1.0)
        noise *= max(1.0, residual / (USUAL_RESIDUAL * rate * exposure))
        clear, reg = clarity(loss, d, noise), self.problem.reg_share * (self.problem.regularizer.smoothness or 0.0)
        ridge = max(150.0 * d * noise**2, 1.3 * noise) * exposure + 10.0 * reg / rate
        direction = means / math.sqrt(exposure)
        variances = squares if d > WIDEST else squares - np.square(direction)
        shape = Preconditioner.of(variances, np.zeros(d) if d > WIDEST else direction, ridge)
        constant = np.append(np.zeros(d - 1), math.log(rate) / INTERCEPT)[:, None]
        point = shape.solve_transposed(now.point if np.any(now.point) else constant)
        if not np.any(now.point) and noise * d <= MOST_NOISE:
            point = point + COUNT_START / rate * shape.times(by_label - rate * means[:, None])
        step = min(math.sqrt(64.0 / (self.n_rounds - 1)), 2.0) * COUNT_STEP * min(max(math.sqrt(2.0 * clear), 0.4), 1.0)
        rank = max(shape.rank(ridge), 1e-3)
        clip = residual * math.sqrt(rank) * min(max(math.sqrt(clear), 0.8), 2.0)
        return replace(now, shape=shape, ridge=ridge, point=point, origin=point, clip=clip, step=step / rate)

    def _informed(
        self, moments: tuple[Floats, Floats, Floats, float], noise: float
    ) -> tuple[Floats, Floats, Floats, float]:
        """Moments of private and of public rows, weighted by how well each is known."""
        assert self.prior is not None
        means, squares, by_label, label_squares = moments
        spread = noise * mean_sensitivity(Moments.row_norm, 1) / math.sqrt(MOMENTS_SHARE)
        share = 1.0 / (1.0 + self.prior.n_rows * spread**2)
        means = share * means + (1.0 - share) * self.prior.means
        return means, share * squares + (1.0 - share) * self.prior.squares, by_label, label_squares

    def _unshaped(self, now: PublicState, label_squares: float, noise: float) -> PublicState:
        """Rows keep their coordinates; the noise bounds the steps."""
        d, p = self._shape
        length = min(16.0, 4.0 / (noise * d), 0.125 / noise) / (self._curvature if p == 1 else 1.0)
        return replace(now, clip=0.5 * self._residual(label_squares), step=length)

    @property
    def _curvature(self) -> float:
        """That of the loss beside the logistic loss's."""
        return 4.0 * (self.problem.loss.smoothness or 0.25)

    def _tuned(self, noise: float, label_squares: float) -> Tuned:
        """What depends on the kind of labels."""
        loss, (d, p) = self.problem.loss, self._shape
        clear = clarity(loss, d, noise)
        ridge, step = max(150.0 * d * noise**2, 1.3 * noise), min(4.0 * math.sqrt(64.0 / (self.n_rounds - 1)), 8.0)
        if loss.task == "multiclass":
            ridge = max(75.0 * d * noise**2 * p * (p - 1), 1.3 * noise)
            clip = 0.7 * math.sqrt(1.0 - 1.0 / p)
            return Tuned(ridge, clip, step * p / 4.0, start=1.25 * p, shrink=1.0)
        if loss.task == "binary":
            clip = 0.35 * math.sqrt(max(min(max(clear, 0.7), 1.0), 0.6 * min(clear, 16.0)))
            shrink = float(usual_shrink(clip)) if self.prior is None else self.prior.shrink(clip)
            step *= min(max(math.sqrt(2.0 * clear), 0.4), 1.0)
        else:
            clip, shrink = 0.6 * math.sqrt(min(max(clear, 0.7), 9.0)) * self._residual(label_squares), 1.0
        return Tuned(ridge, clip, step / self._curvature, start=2.5 / self._curvature, shrink=shrink)

    def _centred(self, vectors: Floats) -> Floats:
        """Of several classes, less their mean: the same added to all classes changes nothing but the noise."""
        return vectors - vectors.mean(axis=1, keepdims=True) if self.problem.loss.task == "multiclass" else vectors

    def _residual(self, label_squares: float) -> float:
        """How large residuals are at first: 1 for classes, the root mean square of labels that are numbers."""
        if self.problem.loss.task != "regression":
            return 1.0
        return min(math.sqrt(min(max(label_squares, 1e-4), 1.0)), self.problem.loss.lipschitz)

    def _stepped(
        self, now: PublicState, gradient: Floats, deviation: float, round: int, share: float = 1.0
    ) -> PublicState:
        problem, gradient = self.problem, self._centred(gradient)
        turned = float(np.sum(gradient * now.last))
        free = gradient.size - (gradient.shape[0] if problem.loss.task == "multiclass" else 0)
        variance = free * deviation**2
        known = variance * (1.0 + 2.0 * math.sqrt(2.0 / free))  # what the noise hides is no surprise
        doubt = now.doubt or self._doubt(now, float(np.sum(np.square(gradient))) - known, deviation)
        bound = 3.0 * deviation**2 * math.sqrt(free) + 0.25 * max(float(np.sum(np.square(now.last))) - variance, 0.0)
        step = now.step / 2.0 if round > 2 and turned < -bound else now.step
        penalty = problem.regularizer.gradient(now.shape.transposed_times(now.point))
        slope = gradient + now.shape.times(problem.reg_share * penalty)
        point = now.point - share * step * slope
        half = 2 * (round - 1) > self.n_rounds - 1
        total = now.total + point if half else now.total
        averaged = now.averaged + 1.0 if half else now.averaged
        return replace(now, step=step, point=point, last=gradient, total=total, averaged=averaged, doubt=doubt)

    def _doubt(self, now: PublicState, excess: float, deviation: float) -> float:
        """How much the noise outweighs what N public rows leave open, for curvature h; 0 without public rows.

        They leave open a variance of ``κ²/(N h e)`` where rows have the variance e, the noise adds
        ``σ²/(T/2)/(h e)²``. κ² is how much larger the first gradient is than for private rows that are like the
        public ones, so that others are not trusted.
        """
        if self.prior is None:
            return 0.0
        loss, n, tail = self.problem.loss, self.prior.n_rows, self.n_rounds // 2
        curvature = 0.15 if loss.task == "multiclass" else 0.6 * (loss.smoothness or 0.25)
        usual = curvature * max(now.shape.rank(now.ridge), 1e-3) * max(1, loss.n_outputs - 1) / n
        surprise = max(1.0, excess / usual)
        return max(DOUBT * n * (now.shrink * deviation) ** 2 / (curvature * surprise * tail), 1e-12)
