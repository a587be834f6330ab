"""ε for people: four digits, rounded to the safe side."""

from __future__ import annotations

import math


def rounded_up(epsilon: float) -> str:
    """Four digits, rounded up: a guarantee must not be understated."""
    return f"{math.ceil(epsilon * 1e4 * (1.0 - 1e-9)) / 1e4:.4f}"


def rounded_down(epsilon: float) -> str:
    """Four digits of what is left; what lies within 1e-9 of a digit is rounding, not privacy."""
    return f"{math.floor(epsilon * 1e4 * (1.0 + 1e-9)) / 1e4:.4f}"
