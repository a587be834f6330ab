"""Questions that methods put to the noise sources."""

from __future__ import annotations

from dpadmm._base.arrays import Floats, Integers
from dpadmm.optim.losses import Loss
from dpadmm.optim.problem import Rows
from dpadmm.privacy.statistics.gradient import Gradient
from dpadmm.training.oracles import Question


def gradient_question(
    rows: Rows, loss: Loss, points: Floats, z: Floats, round: int, active: Integers | None = None
) -> Question:
    """Every agent's gradient at its point."""
    return Question(rows, Gradient(loss, rows.n_features), points, z, round, active)
