"""Regularizers: convex functions of the weights, with the constants of the theorems."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from dpadmm.matrices.arrays import Floats


@runtime_checkable
class Regularizer(Protocol):
    """``R(w)``. Weights are (..., d, p); leading axes, such as the agents, are kept."""

    name: ClassVar[str]

    @property
    def smoothness(self) -> float | None:
        """c4: bound of the Hessian norm; None if R has kinks."""

    @property
    def convexity(self) -> float:
        """Strong convexity: the largest q for which ``R(w) − (q/2)‖w‖²`` is convex; 0 is always safe."""

    def lipschitz(self, n_weights: int, weight_radius: float) -> float:
        """Return c2, the bound of ``‖R'(w)‖`` for dp = n_weights weights with ``‖w‖ ≤ weight_radius``."""

    def value(self, weights: Floats) -> Floats:
        """Return ``R(w)``: (..., d, p) -> (...)."""

    def gradient(self, weights: Floats) -> Floats:
        """Return a subgradient ``R'(w)``, of the shape of the weights."""

    def prox(self, weights: Floats, step: float) -> Floats:
        """Return ``argmin_u ½‖u − w‖² + step·R(u)``."""
