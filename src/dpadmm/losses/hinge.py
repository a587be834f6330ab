"""Hinge loss (support vector machine) for labels ±1: ``ℓ(b, s) = max(0, 1 − b s)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpadmm.losses.base import Index, Task
from dpadmm.matrices.arrays import Floats


@dataclass(frozen=True)
class Hinge:
    """``ℓ(b, s) = max(0, 1 − b s)``, subgradient ``−b`` where ``b s < 1``, else 0.

    c1 = 1. No c3: the slope jumps at ``b s = 1``, so Theorem 2 (non-smooth) applies.
    """

    name: ClassVar[str] = "hinge"
    task: ClassVar[Task] = "binary"
    n_outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[None] = None
    parameters: ClassVar[tuple[float, ...]] = ()

    def value(self, labels: Floats, scores: Floats) -> Floats:
        return np.maximum(0.0, 1.0 - labels * scores[:, 0])

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        out[0, i] = -labels[i] * (labels[i] * scores[0, i] < 1.0)
