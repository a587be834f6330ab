"""Squared loss for regression, with gradients clipped to a declared bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec import Meta

from dpadmm.losses.base import Index, Task
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import checked_parameters


@checked_parameters
@dataclass(frozen=True)
class Squared:
    """``ℓ(b, s) = (s − b)²/2``, ``ℓ' = s − b``; ``ℓ'' = 1``, so c3 = 1.

    The slope is unbounded, so c1 is declared: ``gradient_bound``. Gradients with a larger norm ``‖a‖·|s − b|`` are
    clipped, so the sensitivity is finite. With labels in [−1, 1], the default of 2 clips no row whose prediction is in
    [−1, 1].
    """

    gradient_bound: Annotated[float, Meta(gt=0, le=1e100), "Clipping bound of the gradient of a row."] = 2.0

    name: ClassVar[str] = "squared"
    task: ClassVar[Task] = "regression"
    n_outputs: ClassVar[int] = 1
    smoothness: ClassVar[float] = 1.0
    parameters: ClassVar[tuple[float, ...]] = ()

    @property
    def lipschitz(self) -> float:
        return self.gradient_bound

    def value(self, labels: Floats, scores: Floats) -> Floats:
        residual = scores[:, 0] - labels
        return residual * residual / 2.0

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        out[0, i] = scores[0, i] - labels[i]
