"""Poisson loss with log link, for counts with an exposure; with time intervals, piecewise-exponential survival.

Labels are scaled by public numbers: counts by the largest count, exposures by the longest exposure. One number contains
both, so rows, kernels and files store one label per row (:func:`coded`, :func:`decoded`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import scipy  # submodules load on first use
from msgspec import Meta

from dpadmm.errors import StudyError
from dpadmm.losses.base import Index, Task, exp
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import NOT_IN_FILE, checked_parameters

STEPS = 2.0**26
"""Counts are multiples of 1/STEPS. Exposures have about the same resolution."""

LARGEST_SCORE = 15.0
"""Score above which the loss is linear: a mean of three million times the largest count for the longest exposure."""


@checked_parameters
@dataclass(frozen=True)
class Poisson:
    """``ℓ(b, s) = Σ_h e_h exp(s_h) − y·s_k`` plus a constant in s; ``∂ℓ/∂s_h = e_h exp(s_h) − y·[h = k]``.

    y is the count and e the exposure, 0 to 1 each. Without cuts there is one score, ``e_1 = e`` and k = 1. Cuts divide
    (0, 1] into intervals: e_h is the length of ``(0, e]`` in interval h, k is the interval that contains e, and y is 1
    if an event ended there. A row is a person with all of its intervals.

    The slope is unbounded, so c1 is declared: ``gradient_bound``, in units of the largest count. The curvature
    ``e_h exp(s_h)`` is unbounded as well, so there is no c3.
    """

    gradient_bound: Annotated[
        float, Meta(gt=0, le=1e100), "Clipping bound of the gradient of a row; for counts in units of the largest one."
    ] = 2.0
    unit: float = field(default=1.0, metadata=NOT_IN_FILE)
    """Label of one event: 1 divided by the largest count."""
    cuts: tuple[float, ...] = field(default=(), metadata=NOT_IN_FILE)
    """Ends of the intervals, as shares of the longest time. The last one ends at 1."""

    name: ClassVar[str] = "poisson"
    task: ClassVar[Task] = "count"
    smoothness: ClassVar[None] = None

    def __post_init__(self) -> None:
        edges = [0.0, *self.cuts, 1.0]
        if not (0.0 < self.unit <= 1.0) or edges != sorted(set(edges)):
            raise StudyError(f"poisson: unit must lie in (0, 1] and cuts must rise between 0 and 1, not {self!r}")

    @property
    def n_outputs(self) -> int:
        return len(self.cuts) + 1

    @property
    def lipschitz(self) -> float:
        return self.gradient_bound

    @property
    def parameters(self) -> tuple[float, ...]:
        return (0.0, *self.cuts, 1.0)

    def value(self, labels: Floats, scores: Floats) -> Floats:
        """Return half of the deviance, which is 0 if the prediction equals the count."""
        counts, _ = decoded(labels)
        exposures, ends = self.spent(labels)
        near = np.minimum(scores, LARGEST_SCORE)
        means = np.sum(exposures * np.exp(near) * (1.0 + (scores - near)), axis=1)
        known = np.sum(ends * scores, axis=1) + np.log(np.sum(exposures * ends, axis=1))
        return np.asarray(np.maximum(scipy.special.xlogy(counts, counts) - counts * known - counts + means, 0.0))

    def spent(self, labels: Floats) -> tuple[Floats, Floats]:
        """Split the exposure of every row by interval, and mark the interval in which it ends: (rows, p) each."""
        _, exposures = decoded(labels)
        edges = np.array(self.parameters)
        reached = exposures[:, None] - edges[:-1]
        ends = (reached > 0.0) & (exposures[:, None] <= edges[1:])
        return np.clip(reached, 0.0, np.diff(edges)), ends.astype(float)

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        steps = np.floor(labels[i])
        exposure = 1.0 - (labels[i] - steps)
        for h in range(len(scores)):
            low, high = parameters[h], parameters[h + 1]
            spent = np.minimum(np.maximum(exposure - low, 0.0), high - low)
            ends = (exposure > low) * (exposure <= high)
            out[h, i] = spent * exp(np.minimum(scores[h, i], LARGEST_SCORE)) - steps / STEPS * ends


def coded(counts: Floats, exposures: Floats | float = 1.0) -> Floats:
    """Return labels for counts (0 to 1) and exposures (above 0, to 1): whole steps, plus 1 minus the exposure.

    Examples
    --------
    >>> decoded(coded(np.array([0.0, 0.25, 1.0]), np.array([1.0, 0.5, 0.001])))
    (array([0.  , 0.25, 1.  ]), array([1.   , 0.5  , 0.001...]))
    """
    missing = np.minimum(1.0 - np.asarray(exposures, float), 1.0 - 1.0 / STEPS)
    return np.asarray(np.rint(np.asarray(counts, float) * STEPS) + missing)


def decoded(labels: Floats) -> tuple[Floats, Floats]:
    """Return the counts and exposures of labels, 0 to 1 each for any labels."""
    steps = np.floor(labels)
    return np.clip(steps / STEPS, 0.0, 1.0), 1.0 - (labels - steps)
