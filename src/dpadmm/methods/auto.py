"""``auto``, the default: selects the method and the number of rounds. The algorithm is in :mod:`dpadmm.methods.pgd`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dpadmm.engine.method import MethodChoice
from dpadmm.methods.budget import PrivacyBudget
from dpadmm.methods.hyperparameters import HYPERPARAMETERS, noise_per_unit, signal_to_noise
from dpadmm.methods.newton import Newton
from dpadmm.methods.pgd import Pgd
from dpadmm.parameters.fields import checked_parameters
from dpadmm.queries.problem import Problem, Sizes


@checked_parameters
@dataclass(frozen=True)
class Auto(MethodChoice):
    """Select ``pgd``, or ``newton`` for confidence intervals, and the number of rounds."""

    inference: Annotated[
        bool, "95% confidence intervals that include the privacy noise; for logistic, squared and Poisson loss."
    ] = False

    name: ClassVar[str] = "auto"
    title: ClassVar[str] = "auto"
    deployable: ClassVar[bool] = True
    local_models: ClassVar[bool] = False
    sums_only: ClassVar[bool] = True
    uses_public_rows: ClassVar[bool] = True

    def concrete(self) -> Pgd | Newton:
        return Newton() if self.inference else Pgd()

    def is_open(self, epsilon: object, n_rounds: int | None) -> bool:
        """Whether the number of rounds depends on the sizes. Otherwise a total ε is not set, or the rounds are."""
        return n_rounds is None and epsilon is not None and not self.inference

    def n_rounds(self, problem: Problem, sizes: Sizes, budget: PrivacyBudget) -> int:
        """Return the number of rounds for public sizes and a budget: 14 to 200 of ``pgd``, more with less noise.

        Correlated columns need many steps. If the noise is large, fewer steps are better.
        """
        z, n_rows = budget.gaussian(), sizes.n_rows
        mu = np.sqrt(budget.planned) / np.where(z > 0.0, z, 1e-9)
        if budget.min_honest_sites is not None:  # one sum; each agent adds a share of the noise
            mu, n_rows = mu[:1] * math.sqrt(budget.min_honest_sites / len(n_rows)), n_rows.sum(keepdims=True)
        snr = signal_to_noise(problem.loss, sizes.n_features, noise_per_unit(n_rows, mu))
        hyper = HYPERPARAMETERS
        steps = hyper.rounds_scale * math.sqrt(snr) * min(snr, hyper.rounds_signal)
        return 2 + round(float(np.clip(steps, *hyper.rounds_limits)))
