"""The constants that both theorems are written in, gathered from a problem and its agents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpadmm._base.arrays import Floats, Integers
from dpadmm._base.errors import StudyError
from dpadmm.optim.problem import Problem


@dataclass(frozen=True)
class Constants:
    """What Theorems 2 and 3 need.

    Attributes
    ----------
    c1, c2 : float
        Bounds of ``‖ℓ'‖`` and ``‖R'‖``.
    c3, c4 : float or None
        Bounds of ``‖∇²ℓ‖`` and ``‖∇²R‖``; None where there is a kink.
    reg_share : float
        λ/n.
    n_weights : int
        dp.
    weight_radius : float
        c_w, a public bound of ``‖w*‖``.
    noise_multiplier, n_rows : (n,)
        z and m of every agent.
    """

    c1: float
    c2: float
    c3: float | None
    c4: float | None
    reg_share: float
    n_weights: int
    weight_radius: float
    noise_multiplier: Floats
    n_rows: Integers

    def __post_init__(self) -> None:
        if not (0.0 < self.weight_radius < np.inf):
            raise StudyError(
                f"weight_radius (c_w, a public bound of the norm of the weights) must be a positive number, "
                f"not {self.weight_radius!r}"
            )

    @property
    def noisy_gradient_size(self) -> Floats:
        """Root mean square bound of the noisy gradient, ``√((c1 + λc2/n)² + 4 dp c1² z²/m²)``, per agent."""
        clean = self.c1 + self.reg_share * self.c2
        return np.sqrt(clean**2 + 4.0 * self.n_weights * (self.c1 * self.noise_multiplier / self.n_rows) ** 2)

    @property
    def noise_size(self) -> Floats:
        """``2√2 c1 z √(dp)/m`` per agent: √2 times the root mean square norm of the noise on the gradient."""
        return np.asarray(np.sqrt(8.0 * self.n_weights) * self.c1 * self.noise_multiplier / self.n_rows)

    @property
    def curvature(self) -> float:
        """``c3 + λc4/n``; a StudyError where it does not exist."""
        if self.c3 is None or self.c4 is None:
            kink = "loss" if self.c3 is None else "regularizer"
            raise StudyError(f"the smooth theorem does not apply: the {kink} has kinks; use the non-smooth one")
        return self.c3 + self.reg_share * self.c4


def constants_of(
    problem: Problem,
    *,
    n_features: int,
    n_rows: Integers,
    noise_multiplier: Floats,
    weight_radius: float,
) -> Constants:
    """Gather the constants of a problem; ``noise_multiplier`` is one number or one per agent."""
    n_weights = n_features * problem.loss.n_outputs
    return Constants(
        c1=problem.loss.lipschitz,
        c2=problem.regularizer.lipschitz(n_weights, weight_radius),
        c3=problem.loss.smoothness,
        c4=problem.regularizer.smoothness,
        reg_share=problem.reg_share,
        n_weights=n_weights,
        weight_radius=weight_radius,
        noise_multiplier=np.broadcast_to(np.asarray(noise_multiplier, dtype=float), n_rows.shape),
        n_rows=n_rows,
    )
