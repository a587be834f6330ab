"""Hyperparameters of preconditioned gradient descent (``pgd``), and the two noise levels that its rules depend on.

They are the same for all data, so a user has nothing to tune. Measured effects: benchmarks/RESULTS.md,
"Hyperparameters of pgd".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpadmm.losses.base import Loss
from dpadmm.matrices.arrays import Floats, Integers


@dataclass(frozen=True)
class Hyperparameters:
    """One hyperparameter per line: meaning; unit; data sets that it was tuned on.

    q is the signal-to-noise ratio of :func:`signal_to_noise`. ν, d, p and T are the noise per unit of sensitivity and
    the numbers of features, outputs and rounds. s, τ, C, c and f are those of :class:`dpadmm.methods.pgd.Pgd`.
    Curvature is relative to that of the logistic loss. Sets of data:

    - small: cancer, odd, affairs, churn, digits, wine
    - noisy: affairs, compas, mortality, insurance, pension, smoking, happy, lending, churn, with 10 and 100 agents
    - correlated: correlated, decaying, churn, compas, and eleven data sets without effect
    - large: flights, lending, vote, churn, homes, crashes, Adult
    - prior: affairs, compas, churn, happy, mortality, insurance, pension
    - floor: churn, affairs, compas, mortality, insurance, pension
    - calibration: churn, affairs, compas, mortality, happy, wine, with 1, 10 and 50 agents and with public rows
    - multiclass: rodents, wine, generated tables of four classes
    - consistency: rodents, Adult and generated tables at ε = 50 and 200
    - all: Adult with one agent, then the 22 data sets of benchmarks/drafted.py
    - unrecorded: RESULTS.md has no entry for this value
    """

    # Budget and number of rounds
    moments_share: float = 0.15  # budget of round 1; share of μ²; Adult
    calibration_share: float = 0.05  # budget of the last round; share of μ²; calibration
    signal_scale: float = 0.0065  # numerator of q; noise per unit of sensitivity; unrecorded
    rounds_scale: float = 16.0  # gradient rounds at q = 1; times √q·min(q, rounds_signal); rounds; unrecorded
    rounds_signal: float = 2.5  # q from which rounds increase with √q instead of q^1.5; ratio; Adult, rodents
    rounds_limits: tuple[float, float] = (12.0, 198.0)  # limits of their number; sites accept 200 rounds by default

    # Preconditioner
    max_noise: float = 0.6  # B = I if ν·d is larger; noise per unit of sensitivity; small
    ridge_noise_squared: float = 150.0  # τ ≥ this·d·ν², for p classes times p(p − 1)/2; row²; unrecorded
    ridge_noise: float = 1.3  # τ ≥ this·ν; row²; unrecorded
    ridge_regularizer: float = 10.0  # τ grows by this·(λ/n)c4; ratio; unrecorded
    min_rank: float = 1e-3  # lower limit of the effective rank of the rows; directions; unrecorded
    full_weight: float = 0.8  # larger mean row weights count as 1, since clipping reduces moments; ratio; unrecorded

    # Clipping bound C, divided by the square root of the rank
    binary_clip: float = 0.35  # two classes; residual; unrecorded
    min_clip_signal: float = 0.7  # lower limit of q in all clips; ratio; Adult
    binary_clip_slope: float = 0.6  # two classes: factor of q; ratio; all
    multiclass_clip: float = 0.7  # several classes, times √(1 − 1/p); residual; unrecorded
    multiclass_clip_signal: float = 2.0  # this·q is the square of a further factor, if it is above 1; ratio; multiclass
    number_clip: float = 0.6  # regression, times √q; root mean square label; unrecorded
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
    max_count_clip: float = 2.0  # upper limit of √q in C, since exponentials have no largest slope; ratio; unrecorded
    count_rate_deviations: float = 0.5  # bias of the mean count, since means fall faster; noise; unrecorded
    binary_residual: float = 1.4  # C over curvature for two classes; residual; unrecorded

    # Momentum
    momentum_signal: float = 4.0  # largest momentum 1 − this/q; ratio; Adult, rodents, happy
    max_momentum: float = 0.9  # upper limit of the momentum; ratio; consistency

    # Scale and prior
    shrink: tuple[float, float] = (0.5, 0.45)  # two classes: s = first + second·clip, at most 1; ratio; unrecorded
    multiclass_shrink: float = 0.9  # several classes: s = this·clip over multiclass_clip, at most 1; ratio; multiclass
    calibration_residual: float = 2.0  # clipping bound of slopes there; scale of the first residuals; unrecorded
    clear_curvature: float = 2.0  # smallest curvature in the calibration; standard deviations; calibration
    class_scale_deviation: float = 0.3  # prior standard deviation of t for classes; ratio; calibration
    number_scale_deviation: float = 0.1  # the same for numbers and counts, which clipping biases less; ratio; wages
    prior_noise: float = 8.0  # factor of the noise in c; ratio; prior
    min_private: float = 0.2  # f, which limits the prior in directions without private information; ratio; floor
    surprise_deviations: float = 2.0  # size of the first gradient that noise explains; standard deviations; cancer
    curvature_share: float = 0.6  # assumed curvature; share of its maximum; unrecorded


HYPERPARAMETERS = Hyperparameters()


def noise_per_unit(n_rows: Integers, mu: Floats) -> float:
    """Return ν, the standard deviation of the noise in the mean over all rows per unit of sensitivity.

    Agents have the weights ``W_i ∝ m_i·μ_i``, so ``ν = ‖W_i/(m_i·μ_i)‖``.
    """
    return math.sqrt(len(n_rows)) / float(np.sum(n_rows * mu))


def signal_to_noise(loss: Loss, n_features: int, noise: float) -> float:
    """Return ``q = .0065/(ν√d)``, the signal-to-noise ratio of gradients; d is the number of free weights."""
    return HYPERPARAMETERS.signal_scale / (noise * math.sqrt(n_features * max(1, loss.n_outputs - 1)))


def max_momentum(snr: float) -> float:
    """Return the largest momentum at the signal-to-noise ratio q. With much noise there is none."""
    hyper = HYPERPARAMETERS
    return min(max(1.0 - hyper.momentum_signal / snr, 0.0), hyper.max_momentum)
