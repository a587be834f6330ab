"""Privacy: sensitivity, from (ε, δ) to noise and back, and what releases cost together."""

from dpadmm.privacy.accounting import (
    Accountant,
    Release,
    affordable_rounds,
    exact_delta,
    exact_epsilon,
    gaussian_mu,
    group_mu,
    paper_epsilon,
    pld_epsilon,
    rdp_epsilon,
)
from dpadmm.privacy.calibration import (
    exact_round_noise_multiplier,
    mu_from_epsilon,
    paper_noise_multiplier,
    round_epsilon_from_noise,
    total_noise_multiplier,
)
from dpadmm.privacy.sensitivity import mean_gradient_sensitivity

__all__ = [
    "Accountant",
    "Release",
    "affordable_rounds",
    "exact_delta",
    "exact_epsilon",
    "exact_round_noise_multiplier",
    "gaussian_mu",
    "group_mu",
    "mean_gradient_sensitivity",
    "mu_from_epsilon",
    "paper_epsilon",
    "paper_noise_multiplier",
    "pld_epsilon",
    "rdp_epsilon",
    "round_epsilon_from_noise",
    "total_noise_multiplier",
]
