"""Smoothed hinge for labels ±1: the hinge with its kink replaced by a parabola of a given width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from dpadmm.losses.base import Index, Task
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import Positive, checked_parameters


@checked_parameters
@dataclass(frozen=True)
class SmoothedHinge:
    """With ``u = 1 − b s`` and width h: 0 for ``u ≤ 0``, ``u²/(2h)`` for ``0 ≤ u ≤ h``, ``u − h/2`` beyond.

    ``ℓ' = −b · clip(u/h, 0, 1)``, so c1 = 1; ``ℓ''`` is 0 or 1/h, so c3 = 1/h.
    It lies below the hinge by at most h/2.
    """

    width: Annotated[Positive, "Width of the parabola in place of the kink."] = 1.0

    name: ClassVar[str] = "smoothed_hinge"
    task: ClassVar[Task] = "binary"
    n_outputs: ClassVar[int] = 1
    lipschitz: ClassVar[float] = 1.0

    @property
    def smoothness(self) -> float:
        return 1.0 / self.width

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.width,)

    def value(self, labels: Floats, scores: Floats) -> Floats:
        gap = np.maximum(0.0, 1.0 - labels * scores[:, 0])
        near = np.minimum(gap, self.width)
        return np.asarray(near * near / (2.0 * self.width) + (gap - near))

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        gap = (1.0 - labels[i] * scores[0, i]) / parameters[0]
        out[0, i] = -labels[i] * np.minimum(np.maximum(gap, 0.0), 1.0)
