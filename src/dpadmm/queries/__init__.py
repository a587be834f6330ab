"""The closed list of queries that an agent answers: sums over rows of a function with a bounded norm.

Each query is one file with the function, the proof of its bound in the docstring, and a line in ``QUERIES``. Guard,
ledger and wire format contain no query by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from dpadmm.errors import StudyError
from dpadmm.matrices.arrays import Floats, Integers
from dpadmm.parameters.fields import registered
from dpadmm.queries.problem import Problem, Rows


class Query(Protocol):
    """``Σ_j f(row_j, parameters)`` with ``‖f‖ ≤ row_norm`` for every row and all parameters.

    If rows have weights (``Rows.row_weights``, from 0 to 1), f is clipped first and then multiplied by the row's
    weight, so no weight increases its norm. Replacing a row changes the sum by at most ``2·row_norm``. Silencing a row
    changes it by at most ``row_norm``: f of a row of zeros is 0 for every label, because silent rows keep their labels.
    """

    name: ClassVar[str]

    @property
    def n_features(self) -> int:
        """Number of columns d of a row."""

    @property
    def row_norm(self) -> float:
        """Bound on the L2 norm of one row's contribution."""

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Shape of the public parameters of one agent."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the sum."""

    def accepts(self, parameters: Floats) -> bool:
        """Return whether one agent's finite parameters are within their bounds. Others are refused unread."""

    def sums(self, rows: Rows, parameters: Floats, active: Integers | None = None, *, bound: float) -> Floats:
        """Return the sum of each agent (n, *shape), each row's contribution clipped to norm ``bound``."""

    def means(self, rows: Rows, parameters: Floats, active: Integers | None = None) -> Floats:
        """Return the sums divided by the numbers of rows, each row's contribution clipped to ``row_norm``."""


QUERIES: Mapping[str, Any] = registered(
    __name__,
    "gradient",
    "preconditioned_gradient",
    "moments",
    "calibration",
    "newton",
    "column_sums",
    "score_histogram",
    having="sums",
)
"""The closed list, by name. ``of`` builds a query from a problem and the number of columns."""


def make_query(name: str, problem: Problem, n_features: int) -> Query:
    """Return the query of this name for a problem, over rows of ``n_features`` columns."""
    if name not in QUERIES:
        raise StudyError(f"unknown statistic {name!r}; choose one of {', '.join(QUERIES)}")
    query: Query = QUERIES[name].of(problem, n_features)
    return query
