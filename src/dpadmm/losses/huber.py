"""Huber loss for regression: squared near zero, linear beyond ``delta``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from dpadmm.losses.base import Index, Task
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import checked_parameters


@checked_parameters
@dataclass(frozen=True)
class Huber:
    """With residual ``r = s − b``: ``r²/2`` for ``|r| ≤ delta``, ``delta·(|r| − delta/2)`` beyond.

    ``ℓ' = clip(r, −delta, delta)``, so c1 = delta; ``ℓ''`` is 0 or 1, so c3 = 1.
    """

    delta: Annotated[float, Meta(gt=0, le=1e100), "Residuals beyond it count linearly."] = 1.0

    name: ClassVar[str] = "huber"
    task: ClassVar[Task] = "regression"
    n_outputs: ClassVar[int] = 1
    smoothness: ClassVar[float] = 1.0

    @property
    def lipschitz(self) -> float:
        return self.delta

    @property
    def parameters(self) -> tuple[float, ...]:
        return (self.delta,)

    def value(self, labels: Floats, scores: Floats) -> Floats:
        size = np.abs(scores[:, 0] - labels)
        near = np.minimum(size, self.delta)
        return near * near / 2.0 + self.delta * (size - near)

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        out[0, i] = np.minimum(np.maximum(scores[0, i] - labels[i], -parameters[0]), parameters[0])
