"""Private fixed-point ADMM (Cyffers, Bellet and Basu 2023): noise in the iteration of an averaged operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dpadmm.baselines.admm_pvp import AdmmPvp
from dpadmm.baselines.local_solver import LocalProblems
from dpadmm.engine.method import Round
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import Probability, checked_parameters


@checked_parameters
@dataclass(frozen=True)
class AdmmFixedPoint(AdmmPvp):
    """The federated algorithm of the paper, with an aggregator.

    ADMM is the iteration of ``u ← (1−λ)u + λR(u)`` with a nonexpansive R (Lions and Mercier). Agent i has u_i, and the
    aggregator ``w = mean_i u_i``. In a round ``x_i = argmin_x f_i(x) + (ρ/2)‖x − (2w − u_i)‖²`` and
    ``u_i ← u_i + 2λ(x_i + noise − w)``. With ``γ_i = ρ(w − u_i)`` these are the equations of Algorithm 3 with
    ``r_i = w + 2λ(w̃_i − w)`` in place of w̃_i. So λ = ½ is primal variable perturbation, to the last bit, and other λ
    are its relaxations (λ = 1: Peaceman–Rachford).

    **Privacy.** A row moves x_i by at most ``Δ = (2c1/m + 2·tol)/(ρ + λc/n)``, as in Algorithm 3, and u_i by 2λΔ. Noise
    of scale zΔ on x_i is noise of scale 2λzΔ on u_i, so a round is a Gaussian release with multiplier z for every λ.

    **Adversary.** The guarantee is against everyone who sees all messages, including the aggregator. An adversary who
    sees only the model at the end is weaker, and the paper gives smaller bounds for it by amplification by iteration.
    They are not used here: with an aggregator that reads the uploads, they do not hold. For a token that passes
    agents one by one they need care. (1) For fixed u, the token's map ``w ↦ w + (2λ/n)(prox_{f/ρ}(2w − u) − w)`` is not
    nonexpansive: where f is flat, prox is the identity and the slope is ``1 + 2λ/n``. R is nonexpansive on all u_i
    together. (2) But noise enters only the u_i of one agent and the token, while all u_j visited before still contain
    the row's effect, and return it at the next visit. A proof has to use the joint state and its norm (Chan, Xie and
    Zhao 2023 do so for a gradient variant of ADMM).
    """

    relaxation: Annotated[Probability, "λ of the averaged operator: 0.5 is ADMM, 1 Peaceman–Rachford."] = 0.25

    name: ClassVar[str] = "admm_fixed_point"
    title: ClassVar[str] = "fixed-point ADMM"

    def protected(self, weights: Floats, problems: LocalProblems, now: Round) -> Floats:
        released = super().protected(weights, problems, now)
        if self.relaxation == 0.5:
            return released
        return np.asarray(now.consensus + 2.0 * self.relaxation * (released - now.consensus))
