"""Queries of methods to noise sources."""

from __future__ import annotations

from dpadmm.engine.noise import CohortQuery
from dpadmm.losses import Loss
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.queries.gradient import Gradient
from dpadmm.queries.problem import Rows


def gradient_query(
    rows: Rows, loss: Loss, points: Floats, z: Floats, round: int, active: Integers | None = None
) -> CohortQuery:
    """Return the query for every agent's gradient at its point."""
    return CohortQuery(rows, Gradient(loss, rows.n_features), points, z, round, active)
