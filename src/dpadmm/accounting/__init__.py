"""Privacy accounting: sensitivity, calibration of noise, composition, and privacy reports."""

from dpadmm.accounting.calibration import (
    exact_round_noise_multiplier,
    mu_from_epsilon,
    paper_noise_multiplier,
    round_epsilon_from_noise,
    total_noise_multiplier,
)
from dpadmm.accounting.composition import accountant_of, total_epsilon
from dpadmm.accounting.events import AnyRelease, ObjectiveRelease, PureRelease, Release, SampledRelease
from dpadmm.accounting.gaussian import (
    Accountant,
    affordable_rounds,
    exact_delta,
    exact_epsilon,
    gaussian_mu,
    group_mu,
    paper_epsilon,
    pld_epsilon,
    rdp_epsilon,
)
from dpadmm.accounting.sensitivity import mean_sensitivity, minimizer_sensitivity

__all__ = [
    "Accountant", "AnyRelease", "ObjectiveRelease", "PureRelease", "Release", "SampledRelease",
    "accountant_of", "affordable_rounds", "exact_delta", "exact_epsilon", "exact_round_noise_multiplier",
    "gaussian_mu", "group_mu", "mean_sensitivity", "minimizer_sensitivity", "mu_from_epsilon",
    "paper_epsilon", "paper_noise_multiplier", "pld_epsilon", "rdp_epsilon", "round_epsilon_from_noise",
    "total_epsilon", "total_noise_multiplier",
]  # fmt: skip
