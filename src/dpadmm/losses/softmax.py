"""Multi-class logistic loss: labels 0..p−1, one column of weights per class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import scipy  # submodules load on first use

from dpadmm.errors import StudyError
from dpadmm.losses.base import Index, Task, exp
from dpadmm.matrices.arrays import Floats
from dpadmm.parameters.fields import NOT_IN_FILE


@dataclass(frozen=True)
class Softmax:
    """``ℓ(b, s) = ln Σ_h exp(s_h) − s_b``, ``∂ℓ/∂s_h = q_h − [h = b]`` with ``q = softmax(s)``.

    c1 = √2: ``‖q − e_b‖² = (1 − q_b)² + Σ_{h≠b} q_h² ≤ 2(1 − q_b)² ≤ 2``.
    c3 = ½: the Hessian ``diag(q) − qqᵀ`` has row sums of absolute values ``2 q_h(1 − q_h) ≤ ½``,
    which bound its norm (Gershgorin).
    """

    n_outputs: int = field(default=2, metadata=NOT_IN_FILE)  # as many as the labels have classes

    name: ClassVar[str] = "softmax"
    task: ClassVar[Task] = "multiclass"
    lipschitz: ClassVar[float] = float(np.sqrt(2.0))
    smoothness: ClassVar[float] = 0.5
    parameters: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.n_outputs, int | np.integer) and self.n_outputs >= 2):
            raise StudyError(
                f"softmax: n_outputs must be a whole number of classes, at least 2, not {self.n_outputs!r}"
            )

    def value(self, labels: Floats, scores: Floats) -> Floats:
        chosen = np.take_along_axis(scores, labels.astype(np.int64)[:, None], axis=1)[:, 0]
        return np.asarray(scipy.special.logsumexp(scores, axis=1) - chosen, dtype=float)

    @staticmethod
    def formula(i: Index, labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        n_outputs = len(scores)
        top = scores[0, i]
        for h in range(1, n_outputs):
            top = np.maximum(top, scores[h, i])
        total = 0.0 * top
        for h in range(n_outputs):
            out[h, i] = exp(scores[h, i] - top)
            total = total + out[h, i]
        for h in range(n_outputs):
            out[h, i] = out[h, i] / total - (labels[i] == h)

    @staticmethod
    def formula_of_rows(labels: Floats, scores: Floats, parameters: Floats, out: Floats) -> None:
        n_outputs, n_rows = len(scores), len(labels)
        top, total = np.full(n_rows, -np.inf), np.zeros(n_rows)
        for h in range(n_outputs):
            for i in range(n_rows):
                top[i] = max(top[i], scores[h, i])
        for h in range(n_outputs):
            for i in range(n_rows):
                out[h, i] = exp(scores[h, i] - top[i])
                total[i] += out[h, i]
        for i in range(n_rows):
            total[i] = 1.0 / total[i]
        for h in range(n_outputs):
            for i in range(n_rows):
                out[h, i] = out[h, i] * total[i] - (labels[i] == h)
