"""Regularizers: a convex function of the weights, and the constants the theorems need."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from dpadmm.matrices.arrays import Floats


@runtime_checkable
class Regularizer(Protocol):
    """``R(w)``. Weights are (..., d, p); leading axes, such as the agents, are kept."""

    name: ClassVar[str]

    @property
    def smoothness(self) -> float | None:
        """c4: bound of the Hessian norm, or None when R has kinks."""

    @property
    def convexity(self) -> float:
        """Strong convexity: the largest q for which ``R(w) − (q/2)‖w‖²`` is convex; 0 is always safe."""

    def lipschitz(self, n_weights: int, weight_radius: float) -> float:
        """c2: bound of ``‖R'(w)‖`` for dp = n_weights weights with ``‖w‖ ≤ weight_radius``."""

    def value(self, weights: Floats) -> Floats:
        """``R(w)``: (..., d, p) -> (...)."""

    def gradient(self, weights: Floats) -> Floats:
        """A subgradient ``R'(w)``, of the shape of the weights."""

    def prox(self, weights: Floats, step: float) -> Floats:
        """``argmin_u ½‖u − w‖² + step·R(u)``."""
