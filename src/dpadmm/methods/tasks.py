"""Initial values of ``pgd`` for each task: steps 2 and 3 of :class:`dpadmm.methods.pgd.Pgd`.

One class per task holds the rules that depend on the kind of labels. All rules use public numbers only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpadmm.accounting.sensitivity import mean_sensitivity
from dpadmm.losses.poisson import Poisson
from dpadmm.matrices.arrays import Floats
from dpadmm.matrices.clipping import INTERCEPT
from dpadmm.methods.hyperparameters import HYPERPARAMETERS, signal_to_noise
from dpadmm.methods.prior import Prior
from dpadmm.queries.moments import LABEL_WEIGHT, Moments
from dpadmm.queries.preconditioner import MAX_DIRECTION_FEATURES, Preconditioner
from dpadmm.queries.problem import Problem


class InitialValues(NamedTuple):
    """Result of step 3: B and its τ, the start, θ0, C, the step size, the clipping bound of slopes, and s."""

    preconditioner: Preconditioner
    ridge: float
    point: Floats
    clip: float
    step: float
    residual: float
    curvature: float
    score_bound: float = 1.0
    shrink: float = 1.0
    level: float = 0.0


@dataclass(frozen=True)
class Task(ABC):
    """Rules for one kind of labels. ``noise`` is ν, ``snr`` is q."""

    problem: Problem
    n_features: int
    n_steps: int
    prior: Prior | None = None

    def initial_values(self, released: Floats, noise: float, point: Floats) -> InitialValues:
        """Run steps 2 and 3. ``released`` are the noisy moments, ``point`` are weights to start from (0: none)."""
        hyper, d = HYPERPARAMETERS, self.n_features
        means, squares, by_label, label_squares = self._moments(released, noise)
        # Divided by the mean weight, sums become means of weighted rows, and their noise grows by the same factor
        weight = self._mean_weight(means, noise)
        label_squares, noise = label_squares / weight, noise / weight
        if self.prior is None and noise * d > hyper.max_noise:
            plain = self.plain_values(label_squares, noise, point)
            return plain._replace(step=plain.step / weight)
        snr = signal_to_noise(self.problem.loss, d, noise)
        ridge = self.ridge(noise) * weight + hyper.ridge_regularizer * self.penalty_curvature
        variances, means = _covariance(means, squares, weight)
        preconditioner = Preconditioner.of(variances, means, ridge)
        squared_mean = float(np.sum(np.square(means))) or 1.0
        top = squared_mean + float(np.sum(np.maximum(variances, 0.0) * np.square(means))) / squared_mean
        # If τ dominates, the curvature is small in all directions
        step = self.step(snr) * min((top + ridge) / top, hyper.max_step_factor)
        if np.any(point):
            start = preconditioner.solve_transposed(point)
        else:
            start = preconditioner.times(self.start * self.centre(by_label))
        clip = self.clip(snr, label_squares)
        scaled = clip * math.sqrt(max(preconditioner.rank(ridge), hyper.min_rank) / weight)
        residual = self.slope_bound(label_squares)
        return InitialValues(
            preconditioner,
            ridge,
            start,
            scaled,
            step,
            residual,
            self.curvature / 4.0,
            _score_bound(snr),
            self.shrink(clip),
        )

    def plain_values(self, label_squares: float, noise: float, point: Floats) -> InitialValues:
        """Return initial values with B = I. The noise limits the step size."""
        hyper, d = HYPERPARAMETERS, self.n_features
        step = min(hyper.plain_max_step, hyper.plain_step_noise / (noise * d), hyper.plain_step_total_noise / noise)
        clip = hyper.plain_clip * self.residual_scale(label_squares)
        plain, residual = Preconditioner(np.ones(d), np.zeros(d)), self.slope_bound(label_squares)
        return InitialValues(plain, 0.0, point, clip, step / self.curvature, residual, self.curvature / 4.0)

    # Rules of the task

    @abstractmethod
    def clip(self, snr: float, label_squares: float) -> float:
        """Return C, divided by the square root of the rank."""

    def ridge(self, noise: float) -> float:
        """Return τ, without the part of the regularizer."""
        hyper = HYPERPARAMETERS
        return max(hyper.ridge_noise_squared * self.n_features * noise**2, hyper.ridge_noise * noise)

    def step(self, snr: float) -> float:
        """Return the step size."""
        return self.common_step / self.curvature

    @property
    def start(self) -> float:
        """Factor of the start along mean rows times labels."""
        return HYPERPARAMETERS.start / self.curvature

    def shrink(self, clip: float) -> float:
        """Return s for gradients clipped to ``clip·√rank``."""
        return 1.0

    def residual_scale(self, label_squares: float) -> float:
        """Return the scale of the first residuals."""
        return 1.0

    def slope_bound(self, label_squares: float) -> float:
        """Return the clipping bound of slopes in the calibration: 1 for classes."""
        bound = HYPERPARAMETERS.calibration_residual * self.residual_scale(label_squares)
        return min(bound, self.problem.loss.lipschitz, 1.0)

    def centre(self, vectors: Floats) -> Floats:
        """Remove the part of gradients (d, p) that does not affect predictions."""
        return vectors

    @property
    def curvature(self) -> float:
        """Curvature of the loss relative to the logistic loss."""
        return 4.0 * (self.problem.loss.smoothness or 0.25)

    @property
    def scale_deviation(self) -> float:
        """Prior standard deviation of the scale of the model."""
        return HYPERPARAMETERS.number_scale_deviation

    def dispersion(self, residual: float) -> float:
        """Return the variance of slopes relative to the curvature, given the clipping bound of the calibration."""
        return 1.0

    # Shared by the tasks

    @property
    def n_free(self) -> int:
        """Number of free weights."""
        return self.n_features * max(1, self.problem.loss.n_outputs - 1)

    @property
    def penalty_curvature(self) -> float:
        """``(λ/n)c4``."""
        return self.problem.alpha * (self.problem.regularizer.smoothness or 0.0)

    @property
    def common_step(self) -> float:
        """Step size for the curvature of the logistic loss and little noise."""
        hyper = HYPERPARAMETERS
        return min(hyper.step * math.sqrt(hyper.step_rounds / self.n_steps), hyper.max_step)

    def _moments(self, released: Floats, noise: float) -> tuple[Floats, Floats, Floats, float]:
        """Run step 2: average the released and the public moments by precision."""
        moments = Moments(self.problem.loss, self.n_features).split(released)
        if self.prior is None:
            return moments
        means, squares, by_label, label_squares = moments
        deviation = noise * mean_sensitivity(Moments.row_norm, 1) / math.sqrt(HYPERPARAMETERS.moments_share)
        share = 1.0 / (1.0 + self.prior.n_rows * deviation**2)
        means = share * means + (1.0 - share) * self.prior.means
        return means, share * squares + (1.0 - share) * self.prior.squares, by_label, label_squares

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


class Binary(Task):
    """Two classes: clipping makes models overconfident, so they are shrunk."""

    def clip(self, snr: float, label_squares: float) -> float:
        hyper = HYPERPARAMETERS
        return hyper.binary_clip * math.sqrt(max(hyper.binary_clip_slope * snr, hyper.min_clip_signal))

    def step(self, snr: float) -> float:
        return self.common_step * _step_factor(snr) / self.curvature

    @property
    def scale_deviation(self) -> float:
        return HYPERPARAMETERS.class_scale_deviation

    def shrink(self, clip: float) -> float:
        constant, slope = HYPERPARAMETERS.shrink
        return min(1.0, constant + slope * clip)


class Multiclass(Task):
    """Several classes: adding the same to the weights of all classes changes only the noise."""

    def clip(self, snr: float, label_squares: float) -> float:
        hyper = HYPERPARAMETERS
        return self._base_clip * max(1.0, math.sqrt(hyper.multiclass_clip_signal * snr))

    @property
    def scale_deviation(self) -> float:
        return HYPERPARAMETERS.class_scale_deviation

    def shrink(self, clip: float) -> float:
        return min(1.0, HYPERPARAMETERS.multiclass_shrink * clip / self._base_clip)

    @property
    def _base_clip(self) -> float:
        return HYPERPARAMETERS.multiclass_clip * math.sqrt(1.0 - 1.0 / self.n_classes)

    def ridge(self, noise: float) -> float:
        hyper, d, p = HYPERPARAMETERS, self.n_features, self.n_classes
        return max(hyper.ridge_noise_squared / 2.0 * d * noise**2 * p * (p - 1), hyper.ridge_noise * noise)

    def step(self, snr: float) -> float:
        return self.common_step * self.n_classes / 4.0

    @property
    def start(self) -> float:
        return HYPERPARAMETERS.multiclass_start * self.n_classes

    def centre(self, vectors: Floats) -> Floats:
        return np.asarray(vectors - vectors.mean(axis=1, keepdims=True))

    @property
    def n_classes(self) -> int:
        return self.problem.loss.n_outputs

    @property
    def curvature(self) -> float:
        return 1.0


class Regression(Task):
    """Numeric labels: residuals are as large as the labels at first."""

    def clip(self, snr: float, label_squares: float) -> float:
        clip = HYPERPARAMETERS.number_clip * math.sqrt(max(snr, HYPERPARAMETERS.min_clip_signal))
        return clip * self.residual_scale(label_squares)

    def dispersion(self, residual: float) -> float:
        return (residual / HYPERPARAMETERS.calibration_residual) ** 2

    def residual_scale(self, label_squares: float) -> float:
        return min(math.sqrt(min(max(label_squares, 1e-4), 1.0)), self.problem.loss.lipschitz)


class CountTask(Task):
    """Counts: the curvature is the rate λ of all rows, times that of rows with exposure.

    Residuals are clipped to one event plus a multiple of their standard deviation. The effect of noise relative to
    the curvature grows with this bound over the curvature. The rules for two classes therefore use a ν that is
    larger by this ratio.
    """

    def initial_values(self, released: Floats, noise: float, point: Floats) -> InitialValues:
        hyper, d, loss = HYPERPARAMETERS, self.n_features, self.problem.loss
        assert isinstance(loss, Poisson)
        means, squares, by_label, label_squares = self._moments(released, noise)
        spread = self._constant_deviation(noise)
        exposure = max(float(means[-1]) / INTERCEPT, spread, 1e-6)
        mean = max(float(by_label[-1, 0]) / INTERCEPT, 0.0) + hyper.count_rate_deviations * spread / LABEL_WEIGHT
        rate = min(mean / exposure, 1.0)
        weight = exposure if self.problem.weighted else 1.0  # at most the mean weight, which was not released
        deviation = math.sqrt(max(label_squares / weight - (mean / weight) ** 2, loss.unit * mean / weight))
        residual = min(loss.unit + hyper.count_deviations * deviation, 1.0)
        noise *= max(1.0, residual / (hyper.binary_residual * rate * exposure))
        snr = signal_to_noise(loss, d, noise)
        ridge = self.ridge(noise) * exposure + hyper.ridge_regularizer * self.penalty_curvature / rate
        preconditioner = Preconditioner.of(*_covariance(means, squares, exposure), ridge)
        level = math.log(rate) / INTERCEPT
        constant = np.append(np.zeros(d - 1), level)[:, None]
        start = preconditioner.solve_transposed(point if np.any(point) else constant)
        if not np.any(point) and noise * d <= hyper.max_noise:
            start = start + hyper.count_start / rate * preconditioner.times(by_label - rate * means[:, None])
        rank = max(preconditioner.rank(ridge), hyper.min_rank)
        clip = residual * math.sqrt(rank) * self.clip(snr, label_squares)
        bound = min(hyper.calibration_residual * residual, loss.lipschitz)
        return InitialValues(
            preconditioner,
            ridge,
            start,
            clip,
            self.step(snr) / rate,
            bound,
            rate * exposure,
            _score_bound(snr),
            level=level,
        )

    def clip(self, snr: float, label_squares: float) -> float:
        """Return C, divided by the bound of residuals and the square root of the rank."""
        return min(math.sqrt(max(snr, HYPERPARAMETERS.min_clip_signal)), HYPERPARAMETERS.max_count_clip)

    def dispersion(self, residual: float) -> float:
        assert isinstance(self.problem.loss, Poisson)
        return self.problem.loss.unit

    def step(self, snr: float) -> float:
        """Return the step size, times the rate."""
        hyper = HYPERPARAMETERS
        step = min(math.sqrt(hyper.step_rounds / self.n_steps), hyper.count_max_step_factor)
        return step * hyper.count_step * _step_factor(snr)


TASKS: dict[str, type[Task]] = {
    "binary": Binary,
    "multiclass": Multiclass,
    "regression": Regression,
    "count": CountTask,
}


def _covariance(means: Floats, squares: Floats, weight: float) -> tuple[Floats, Floats]:
    """Return v and m of ``K = diag(v) + mmᵀ``. K is ω̄·(variances + m·mᵀ), and the released means are ω̄·m."""
    if len(means) > MAX_DIRECTION_FEATURES:
        return squares, np.zeros(len(means))
    means = means / math.sqrt(weight)
    return squares - np.square(means), means


def _limit(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _step_factor(snr: float) -> float:
    return _limit(math.sqrt(HYPERPARAMETERS.step_signal * snr), HYPERPARAMETERS.step_signal_limits)


def _score_bound(snr: float) -> float:
    """Return the clipping bound of scores in the calibration, over their root mean square: more with less noise."""
    return max(1.0, math.sqrt(snr))
