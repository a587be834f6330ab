"""Logistic loss for labels ±1: ``ℓ(b, s) = ln(1 + exp(−b s))``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.losses.base import Index, Task, exp
from dpadmm.matrices.arrays import Floats


@dataclass(frozen=True)
class Logistic:
    """``ℓ(b, s) = ln(1 + exp(−b s))``, ``ℓ' = −b / (1 + exp(b s))``.

    c1 = 1, since ``|ℓ'| < 1``. c3 = ¼, since ``ℓ'' = σ(s)(1 − σ(s)) ≤ ¼``.
    """

    name: ClassVar[str] = "logistic"
    task: ClassVar[Task] = "binary"
    n_outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 0.25
    parameters: ClassVar[tuple[float, ...]] = ()

    def value(self, labels: Floats, scores: Floats) -> Floats:
        return np.logaddexp(0.0, -labels * scores[:, 0])

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        # exp(700) is finite; beyond it the slope is 0 to the last bit anyway
        out[0, i] = -labels[i] / (1.0 + exp(np.minimum(labels[i] * scores[0, i], 700.0)))
