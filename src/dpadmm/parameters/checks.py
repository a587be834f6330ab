"""Checks of numbers for accounting and calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats

Number = TypeVar("Number", float, Floats)
"""One number, or one per agent."""


def unwrapped(values: Floats) -> float | Floats:
    """Return a float for a 0-dimensional array, else the array."""
    return values if values.ndim else float(values)


def require(name: str, value: ArrayLike, rule: Callable[[Any], Any], wanted: str) -> None:
    """Raise StudyError with the first number that violates the rule. NaN violates every comparison."""
    # NumPy has no integers above 2⁶⁴, counts of rounds do
    values = np.asarray(float(value) if type(value) is int else value)
    numeric = values.dtype.kind in ("i", "u", "f")
    wrong = ~np.asarray(rule(values.astype(float))) if numeric else np.ones(values.shape, bool)
    if wrong.any():
        raise StudyError(f"{name} must be {wanted}, not {np.asarray(value)[wrong].flat[0]}")


def require_epsilon(name: str, epsilon: ArrayLike) -> None:
    require(name, epsilon, lambda e: (e > 0.0) & np.isfinite(e), "a positive number")


def require_delta(delta: ArrayLike) -> None:
    require("delta", delta, lambda d: (d > 0.0) & (d < 1.0), "between 0 and 1, both excluded")


def require_noise_multiplier(z: ArrayLike) -> None:
    require("noise_multiplier", z, lambda v: (v >= 0.0) & np.isfinite(v), "a finite number of at least 0")


def require_mu(mu: ArrayLike) -> None:
    require("mu", mu, lambda m: m >= 0.0, "a number of at least 0")


def require_whole(name: str, value: ArrayLike, *, least: int) -> None:
    wanted = f"a whole number of at least {least}"
    require(name, value, lambda v: (v >= least) & (v == np.floor(v)) & np.isfinite(v), wanted)
