"""A model's weights as other tools want them: coefficients of features, constants, and the label's units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpadmm._base.arrays import Floats
from dpadmm.optim.features import BESIDE_INTERCEPT, INTERCEPT

if TYPE_CHECKING:
    from dpadmm.model.model import Model


def split(model: Model) -> tuple[Floats, Floats]:
    """Coefficients (p, features) and constants (p,); with an intercept rows were ``[0.96·a, 0.28]``."""
    if not model.intercept:
        return np.ascontiguousarray(model.weights.T), np.zeros(model.weights.shape[1])
    return np.ascontiguousarray(model.weights[:-1].T) * BESIDE_INTERCEPT, model.weights[-1] * INTERCEPT


def units(model: Model) -> tuple[float, float]:
    """(scale, shift) from scores −1 … 1 to the label's units."""
    if model.label is None or model.label.bounds is None:
        return 1.0, 0.0
    low, high = model.label.bounds
    return 0.5 * (high - low), 0.5 * (high + low)
